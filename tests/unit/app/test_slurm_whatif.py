"""A site's history under its own Slurm: what is compared, and how it is held against the past."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from helios.app.history import LoadedHistory
from helios.app.slurm_whatif import SlurmWhatIfResult, slurm_whatif
from helios.app.whatif import WhatIfRequest
from helios.errors import NotEnoughHistory
from helios.model import JOBS
from helios.model.slurm_site import SlurmSite
from helios.slurm.site import read_site

BEGAN = pd.Timestamp("2026-01-01", tz="UTC")
CONF = """
ClusterName=frost
PriorityWeightAge=1000
SelectType=select/cons_tres
NodeName=n[1-2] CPUs=16 Gres=gpu:4
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=1-0
"""


def a_history(jobs: int = 400, *, days: int = 2) -> LoadedHistory:
    """Jobs of two users: one submits short ones, one long ones, more than two nodes can run at once."""
    rng = np.random.default_rng(3)
    long = rng.random(jobs) < 0.3
    at = np.sort(rng.integers(0, days * 86_400, jobs))
    run_time_s = np.where(long, 7_200.0, 300.0) + rng.integers(0, 60, jobs)
    frame = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(jobs)],
            "user": np.where(long, "long", "short"),
            "account": "lab",
            "partition": "gpu",
            "submitted_at": BEGAN + pd.to_timedelta(at, unit="s"),
            "run_time_s": run_time_s,
            "time_limit_s": np.where(long, 10_800.0, 3_600.0),
            "gpus": np.where(long, 4.0, 2.0),
            "cpus": 4.0,
            "nodes": 1.0,
            "state": "COMPLETED",
        }
    )
    return LoadedHistory(cluster="frost", jobs=JOBS.conform(frame), timezone="UTC")


@pytest.fixture(scope="module")
def site() -> SlurmSite:
    return read_site(CONF)


@pytest.fixture(scope="module")
def answer(site: SlurmSite) -> SlurmWhatIfResult:
    otherwise = read_site(CONF + "SchedulerType=sched/builtin\n")
    changed = "SchedulerType=sched/builtin"
    return slurm_whatif(a_history(), WhatIfRequest(), site, otherwise=otherwise, changed=changed)


def test_todays_setup_is_what_the_others_are_compared_with(answer: SlurmWhatIfResult) -> None:
    assert [run.policy for run in answer.whatif.runs] == ["slurm", "qssf", "slurm_otherwise", "fifo"]
    assert answer.whatif.baseline.policy == "slurm"
    assert answer.whatif.size == "2 nodes of 4 GPUs"
    assert any("Other settings: SchedulerType=sched/builtin" in note for note in answer.whatif.notes)


def test_short_jobs_no_longer_wait_behind_long_ones_when_ordered_by_qssf(answer: SlurmWhatIfResult) -> None:
    today, ordered, *_ = answer.whatif.runs
    assert today.summary.mean_wait_s > 600
    assert ordered.summary.mean_wait_s < 0.8 * today.summary.mean_wait_s


def test_without_backfill_jobs_wait_longer(site: SlurmSite) -> None:
    # Every tenth job wants both nodes, and leaves one of them to jobs of minutes while it waits for the other.
    history = a_history(days=6)
    wide = np.arange(len(history.jobs)) % 10 == 0
    gpus = np.where(wide, 8, history.jobs["gpus"])
    limit_s = np.where(history.jobs["user"] == "long", 10_800.0, 600.0)
    jobs = history.jobs.assign(gpus=gpus, nodes=np.where(wide, 2.0, 1.0), time_limit_s=limit_s)
    otherwise = read_site(CONF + "SchedulerType=sched/builtin\n")
    found = slurm_whatif(replace(history, jobs=JOBS.conform(jobs)), WhatIfRequest(), site, otherwise=otherwise)
    today, _, without, _ = found.whatif.runs
    assert without.summary.mean_wait_s > 1.5 * today.summary.mean_wait_s


def test_no_job_starts_before_it_is_submitted_or_runs_for_another_time(answer: SlurmWhatIfResult) -> None:
    for run in answer.whatif.runs:
        assert (run.wait_s >= 0).all()
        assert np.abs((run.ended_s - run.started_s) - a_history().jobs["run_time_s"].to_numpy()).max() <= 1


def test_a_history_without_starts_is_not_judged(answer: SlurmWhatIfResult) -> None:
    assert answer.fidelity == ()


def test_a_past_that_followed_the_same_rules_is_repeated(answer: SlurmWhatIfResult, site: SlurmSite) -> None:
    past, today = a_history(), answer.whatif.baseline
    started = pd.to_datetime(today.started_s, unit="s", utc=True)
    told = replace(past, jobs=JOBS.conform(past.jobs.assign(started_at=started)))
    ours, textbook, at_once = slurm_whatif(told, WhatIfRequest(), site).fidelity
    assert ours.order_correlation == pytest.approx(1.0)
    assert ours.p95_error_s <= 1
    assert abs(textbook.mean_wait_error) > abs(ours.mean_wait_error)
    assert at_once.mean_wait_error == -1


def test_only_the_window_counts_and_its_warm_up_is_replayed(site: SlurmSite) -> None:
    since = (BEGAN + timedelta(days=1)).to_pydatetime()
    counted = int((a_history().jobs["submitted_at"] >= since).sum())
    cold, warm = (
        slurm_whatif(a_history(), WhatIfRequest(since=since, warm_up=timedelta(hours=hours)), site) for hours in (0, 12)
    )
    assert cold.whatif.baseline.summary.jobs == warm.whatif.baseline.summary.jobs == counted
    assert warm.whatif.baseline.summary.mean_wait_s > cold.whatif.baseline.summary.mean_wait_s
    assert any("starts on an empty cluster" in note for note in cold.whatif.notes)


def test_a_window_without_jobs_is_refused(site: SlurmSite) -> None:
    since = (BEGAN + timedelta(days=30)).to_pydatetime()
    with pytest.raises(NotEnoughHistory, match="No job was submitted in the window"):
        slurm_whatif(a_history(), WhatIfRequest(since=since), site)


def test_the_answer_is_plain_values(answer: SlurmWhatIfResult) -> None:
    plain = answer.to_json()
    assert plain["fidelity"] == []
    assert [run["policy"] for run in plain["runs"]] == ["slurm", "qssf", "slurm_otherwise", "fifo"]
