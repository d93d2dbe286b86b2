"""Nodes in use by minute: counted from jobs, read once a day and after each reading of the accounting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.node_use import NodeUseRecord
from helios.app.sync import JOBS as JOBS_READ
from helios.config import Settings
from helios.model import NodeUse, Snapshot
from helios.services.energy_saving import Ces, CesOptions
from helios.testing import NOON, a_node, a_running_job, a_snapshot, power_settings
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.unit.app.sites import put_empty_database

GPU = "gpu (a100)"
NODES = [
    *(a_node(name=f"g{place}", partitions="gpu", gpu_type="a100") for place in range(1, 5)),
    a_node(name="c1", partitions="cpu", gpus=0, gpu_type=None),
]
MINUTE = timedelta(minutes=1)


def ended(node_list: str | None, *, minutes_ago: float, minutes: float = 60) -> dict[str, Any]:
    """Return a job that started so long before noon and ran so long."""
    started = pd.Timestamp(NOON) - pd.Timedelta(minutes=minutes_ago)
    return a_job(
        job_id=f"{node_list}-{minutes_ago}",
        submitted_at=started,
        started_at=started,
        ended_at=started + pd.Timedelta(minutes=minutes),
        run_time_s=minutes * 60,
        node_list=node_list,
        gpus=8,
    )


class Record(NodeUseRecord):
    """One on a warehouse of its own, which counts what is read of it."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__("dev", Settings.model_validate({"database": {"url": url}} | settings))
        self.url, self.reads = url, 0

    def _ended_since(self, *args: Any, **kwargs: Any) -> pd.DataFrame:
        self.reads += 1
        return super()._ended_since(*args, **kwargs)

    def load(self, *jobs: dict[str, Any]) -> None:
        with Warehouse.open(self.url) as warehouse:
            digest = "-".join(str(job["job_id"]) for job in jobs)
            batches = [a_batch(*jobs)]
            warehouse.load(batches, cluster="dev", path="a", sha256=digest, format="sacct", timezone="UTC", live=True)

    def cover(self, *periods: tuple[datetime, datetime]) -> None:
        with Warehouse.open(self.url) as warehouse:
            for begin, end in periods:
                warehouse.add_coverage("dev", source=JOBS_READ, started_at=begin, ended_at=end, read_at=end)

    def use(self, snapshot: Snapshot | None = None) -> NodeUse:
        use = self(seen() if snapshot is None else snapshot).use
        assert use is not None
        return use


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    yield Record(put_empty_database(tmp_path / "helios.db"))


def seen(*running: dict[str, Any], at: datetime = NOON, nodes: Any = NODES) -> Snapshot:
    return a_snapshot(nodes=list(nodes), running=list(running), taken_at=at, power=power_settings())


def running(node_list: str, *, minutes: float) -> dict[str, Any]:
    return a_running_job(job_id=f"r{node_list}", node_list=node_list, started_at=NOON - minutes * MINUTE)


def test_the_last_minutes_are_counted_by_pool(record: Record) -> None:
    record.load(ended("g[1-3]", minutes_ago=100, minutes=30), ended("c1", minutes_ago=100, minutes=30))
    recent = record.use(seen(running("g[1-2]", minutes=20))).recent
    assert recent[GPU].tolist() == [0] * (720 - 100) + [3] * 30 + [0] * 50 + [2] * 20  # since midnight
    assert recent["cpu"].max() == 1


def test_a_node_shared_by_jobs_counts_once(record: Record) -> None:
    record.load(ended("g1", minutes_ago=100), ended("g[1-2]", minutes_ago=90))
    assert record.use().recent[GPU].max() == 2


def test_a_node_out_of_service_is_not_in_use_lately(record: Record) -> None:
    record.load(ended("g[1-4]", minutes_ago=100))
    drained = [{**node, "flags": "DRAIN"} if node["name"] == "g4" else node for node in NODES]
    assert record.use(seen(nodes=drained)).recent[GPU].max() == 3


def test_an_end_that_was_not_read_yet_is_known_from_its_node(record: Record) -> None:
    record.load(ended("g1", minutes_ago=3_000))
    idle = [{**node, "idle_since": NOON - 10 * MINUTE} if node["name"] == "g2" else node for node in NODES]
    recent = record.use(seen(nodes=idle)).recent[GPU]
    assert recent.tolist().index(1) == 720 - 11


def test_the_past_ends_with_the_last_midnight(record: Record) -> None:
    record.load(ended("g1", minutes_ago=3 * 1_440), ended("g[1-2]", minutes_ago=1_000))
    past = record.use().past[GPU]
    assert past.nodes == 4
    assert past.days == 2.5
    assert past.submissions == 2
    assert past.raised[past.raised > 0].tolist() == [1, 2]


def test_a_midnight_that_was_not_read_to_its_end_waits(record: Record) -> None:
    record.load(ended("g1", minutes_ago=3 * 1_440))
    record.cover((NOON - timedelta(days=9), NOON - timedelta(hours=13)))
    assert record.use().past[GPU].days == 1.5
    record.cover((NOON - timedelta(hours=13), NOON - timedelta(hours=1)))
    assert record.use().past[GPU].days == 2.5


def test_midnight_is_that_of_the_history(record: Record) -> None:
    with Warehouse.open(record.url) as warehouse:
        batches = [a_batch(ended("g1", minutes_ago=3 * 1_440))]
        zone = "Asia/Tokyo"  # where noon UTC is 21:00
        warehouse.load(batches, cluster="dev", path="a", sha256="1", format="sacct", timezone=zone)
    assert record.use().past[GPU].days == 3 - 21 / 24


def test_within_a_day_only_what_was_read_anew_is_read_again(record: Record) -> None:
    record.load(ended("g1", minutes_ago=600))
    record.use()
    record.use(seen(at=NOON + MINUTE))
    assert record.reads == 2
    record.load(ended("g2", minutes_ago=30, minutes=10))
    assert record.use(seen(at=NOON + 2 * MINUTE)).recent[GPU].max() == 1
    assert record.reads == 3


def test_a_restart_gives_the_same_decision(record: Record) -> None:
    record.load(*(ended(f"g{1 + hours % 3}", minutes_ago=60 * hours, minutes=50) for hours in range(1, 900, 2)))
    before, after = Ces(CesOptions()), Ces(CesOptions())
    old = record
    for minute in range(0, 60, 7):
        snapshot = seen(running("g4", minutes=5), at=NOON + minute * MINUTE)
        fresh = Record(record.url)
        assert before.decide(old(snapshot)) == after.decide(fresh(snapshot))
        assert before.choices == after.choices


@pytest.mark.parametrize(("covered", "holes"), [((), True), (((NOON - timedelta(days=9), NOON),), False)])
def test_days_without_any_job_are_a_hole_unless_they_were_read(record: Record, covered: Any, holes: bool) -> None:
    record.load(ended("g1", minutes_ago=5 * 1_440), ended("g1", minutes_ago=1_000))
    record.cover(*covered)
    assert record.use().past[GPU].has_holes is holes


def test_a_history_without_nodes_says_what_to_do(record: Record) -> None:
    record.load(*(ended(None, minutes_ago=1_000 + hours) for hours in range(10)), ended("g1", minutes_ago=999))
    assert record(seen()).use is None
    assert "of 11 ended jobs only 1 say on which nodes they ran" in record.why_not
    assert "NodeList" in record.why_not and "helios trace sync" in record.why_not


def test_a_history_read_again_with_its_nodes_is_counted(record: Record) -> None:
    job = ended(None, minutes_ago=1_000)
    record.load(job)
    assert record(seen()).use is None
    record.load(job | {"node_list": "g1"}, ended("g2", minutes_ago=999))
    assert record.use().past[GPU].submissions == 2
    assert record.why_not == ""


def test_a_new_cluster_without_jobs_has_an_empty_record(record: Record) -> None:
    use = record.use(replace(seen(), cluster="dev"))
    assert use.past == {}
    assert use.recent[GPU].max() == 0


def test_a_forecast_is_made_for_the_rule_of_the_paper_alone(record: Record) -> None:
    record.load(*(ended("g[1-2]", minutes_ago=60 * hours) for hours in range(2, 24 * 20, 6)))
    assert record(seen()).forecast is None
    paper = Record(record.url, services={"ces": {"rule": "published"}})
    forecast = paper(seen()).forecast
    assert forecast is not None
    assert forecast.busy[GPU].max() == 2
    assert np.isfinite(forecast.expected[GPU][-1]).all()
    assert paper(seen(at=NOON + 9 * MINUTE)).forecast is forecast
    assert paper(seen(at=NOON + 10 * MINUTE)).forecast is not forecast


def test_only_figures_that_the_site_gives_are_passed_on(record: Record) -> None:
    assert record.use().energy == {}
    given = Record(record.url, energy={"boot_s": 240})
    assert given.use().energy == {"boot_s": 240.0}
