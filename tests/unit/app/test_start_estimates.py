"""Estimates of starts: kept when they are made, and compared with what came."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

from helios.app import start_estimates
from helios.app.explain import explain, start_of_like, starts_of
from helios.app.live_cluster import LiveCluster
from helios.app.start_estimates import start_accuracy
from helios.model import NODES, START_ESTIMATES
from helios.model.slurm_site import NodeGroup, PartitionRules, SlurmSite
from helios.report.job_life import estimate_lines
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite

RULES = SlurmSite(
    nodes=(NodeGroup(names=("n1",), cpus=64, gpus={"": 8}),),
    partitions=(PartitionRules(name="gpu", nodes=("n1",), is_default=True),),
)
HOUR = timedelta(hours=1)


class RuledSite(FakeSite):
    """A site of one node whose rules are known."""

    def live_cluster(self) -> LiveCluster:
        return replace(super().live_cluster(), rules=lambda: RULES)

    def predicted(self) -> pd.DataFrame:
        return self.cycles.predictions(self.cluster.snapshot()).pending


@pytest.fixture
def site(tmp_path: Path) -> RuledSite:
    site = RuledSite(tmp_path)
    site.learn()
    with site.warehouse() as warehouse:
        warehouse.add_nodes("dev", NODES.conform(pd.DataFrame([{"name": "n1", "partition": "gpu", "gpus": 8}])))
    return site


def kept(site: RuledSite, job: str) -> pd.DataFrame:
    with site.warehouse() as warehouse:
        return warehouse.start_estimates("dev", job_id=job)


def test_a_start_that_was_asked_for_is_kept_with_what_came(site: RuledSite) -> None:
    job = site.cluster.submit(user="alice")
    assert explain(site.cycles, job).estimates.empty
    assert len(kept(site, job)) == 1
    again = explain(site.cycles, job)
    assert any("The estimate" in line and "said that it starts between" in line for line in again.lines())
    site.cluster.tick(timedelta(minutes=1))
    site.cluster.start(job)
    came = explain(site.cycles, job)
    assert any("as estimated." in line for line in came.lines())
    assert [event.kind for event in came.events()] == ["submitted", "estimated", "started"]


def test_starts_on_a_page_are_kept_once_an_hour(site: RuledSite) -> None:
    job = site.cluster.submit(user="alice")
    for _ in range(3):
        snapshot = site.cycles.predictions(site.cluster.snapshot())
        starts_of(site.cycles, snapshot, snapshot.pending)
        site.cluster.tick(timedelta(minutes=40))
    assert len(kept(site, job)) == 2


def test_a_past_job_without_an_estimate_says_so(site: RuledSite) -> None:
    assert "No estimate of its start was kept." in explain(site.cycles, "alice3").lines()


def test_a_busy_database_does_not_hold_up_the_answer(site: RuledSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_estimates, "WAITS_S", 0)
    job = site.cluster.submit(user="alice")
    writer = sqlite3.connect(site.folder / "helios.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert explain(site.cycles, job).start is not None
    writer.execute("ROLLBACK")
    writer.close()
    assert kept(site, job).empty


def test_how_good_estimates_were_counts_started_jobs_alone(site: RuledSite) -> None:
    now = pd.Timestamp(site.cluster.now)
    jobs = [a_job(job_id=f"s{n}", user="carol", submitted_at=now - 9 * HOUR, started_at=now - n * HOUR) for n in (1, 3)]
    rows = [
        {"submitted_at": now - 9 * HOUR, "job_id": job_id, "restart": 0, "made_at": now - 8 * HOUR}
        | {"p10_at": now - 4 * HOUR, "p50_at": now - 3 * HOUR, "p90_at": now - 2 * HOUR, "horizon_at": now}
        for job_id in ("s1", "s3", "waits")
    ]
    with site.warehouse() as warehouse:
        assert "unknown" in start_accuracy(warehouse, "dev", now=site.cluster.now).sentence()
        warehouse.load([a_batch(*jobs)], cluster="dev", path="s", sha256="s", format="sacct", timezone="UTC")
        warehouse.add_start_estimates("dev", START_ESTIMATES.conform(pd.DataFrame(rows)))
        found = start_accuracy(warehouse, "dev", now=site.cluster.now)
        of_alice = start_accuracy(warehouse, "dev", now=site.cluster.now, user="alice")
    assert (found.estimates, found.jobs, found.unended, found.inside) == (2, 2, 1, 0.5)
    assert found.median_error_s == 3_600.0  # of 0 h and 2 h
    assert of_alice.estimates == 0


@pytest.mark.parametrize(
    ("started", "words"), [(1, "1 h before that"), (3, "as estimated"), (9, "5 h after that"), (None, "never started")]
)
def test_what_was_said_and_what_came_stand_together(started: int | None, words: str) -> None:
    at = pd.Timestamp("2026-03-02T00:00Z")
    row = {"submitted_at": at, "made_at": at, "p10_at": at + 2 * HOUR, "p50_at": at + 3 * HOUR, "p90_at": at + 4 * HOUR}
    row |= {"horizon_at": at + 99 * HOUR, "started_at": at + started * HOUR if started else pd.NaT}
    (line,) = estimate_lines(pd.DataFrame([row | {"ended_at": at + 20 * HOUR}]))
    assert words in line and "between 2026-03-02 02:00 and 2026-03-02 04:00 UTC" in line


def test_a_job_like_the_last_one_waits_behind_the_queue(site: RuledSite) -> None:
    last = pd.Series(a_job(user="alice", gpus=8, cpus=8.0, partition="gpu"))
    free = start_of_like(site.cycles, site.cycles.predictions(site.cluster.snapshot()), last)
    assert free.p50_at is not None and free.p50_at - site.cluster.now < timedelta(minutes=2)
    holder = site.cluster.submit(user="bob", gpus=8)
    site.cluster.start(holder, node_list="n1")
    busy = start_of_like(site.cycles, site.cycles.predictions(site.cluster.snapshot()), last)
    assert busy.p50_at is not None and busy.p50_at - free.p50_at > timedelta(minutes=10)
    assert site.cluster.snapshot().pending.empty


def test_a_job_like_one_too_large_is_not_forecast(site: RuledSite) -> None:
    last = pd.Series(a_job(user="alice", partition="gone"))
    found = start_of_like(site.cycles, site.cycles.predictions(site.cluster.snapshot()), last)
    assert "no partition gone" in found.problem
