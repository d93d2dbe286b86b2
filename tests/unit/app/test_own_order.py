"""Longest wait of a live cluster under its own order: which jobs and GPUs count, and when it is computed anew."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from helios.app.own_order import longest_own_wait, own_order_waits
from helios.app.predictions import OwnOrderWatch
from helios.model import JOBS, Snapshot, in_submission_order
from helios.testing import NOON, a_node, a_pending_job, a_running_job, a_snapshot
from tests.builders import a_job, jobs_frame

HOUR = timedelta(hours=1)


def history(*jobs: dict[str, Any]) -> pd.DataFrame:
    return in_submission_order(jobs_frame(*jobs)) if jobs else JOBS.empty()


def ended(job_id: str, ago_h: float, hours: float, **job: Any) -> dict[str, Any]:
    """Return a job that was submitted so long ago and started at once, whatever the own order would have done."""
    at = NOON - ago_h * HOUR
    return a_job(
        **(
            {"job_id": job_id, "submitted_at": at, "started_at": at, "run_time_s": hours * 3600.0, "gpus": 8}
            | {"ended_at": at + hours * HOUR, "time_limit_s": hours * 3600.0, "partition": "gpu", "eligible_at": None}
            | job
        )
    )


def snapshot(*, nodes: list[dict[str, Any]] | None = None, **queues: Any) -> Snapshot:
    return a_snapshot(nodes=nodes or [a_node(partitions="gpu", gpus=8)], **queues)


def longest_h(seen: Snapshot, *jobs: dict[str, Any]) -> float:
    return longest_own_wait(seen, history(*jobs)) / 3600


def test_the_own_order_and_not_recorded_starts_decide() -> None:
    assert longest_h(snapshot(), ended("1", 30, 5), ended("2", 30, 4), ended("3", 29, 1)) == pytest.approx(8, abs=0.01)


def test_small_jobs_pass_by_backfill_where_they_delay_nobody() -> None:
    jobs = [ended("1", 30, 5, gpus=4), ended("2", 30, 4), ended("3", 29, 1, gpus=4)]
    assert longest_h(snapshot(), *jobs) == pytest.approx(5, abs=0.01)


def test_what_is_older_than_four_weeks_is_forgotten() -> None:
    old = [ended("1", 24 * 30, 50), ended("2", 24 * 30, 50)]
    assert math.isnan(longest_h(snapshot(), *old))
    assert longest_h(snapshot(), *old, ended("3", 5, 1)) == 0


def test_nothing_is_known_before_a_gpu_job_has_ended_or_without_gpus() -> None:
    assert math.isnan(longest_h(snapshot()))
    assert math.isnan(longest_h(snapshot(), ended("1", 5, 1, gpus=0)))
    assert math.isnan(longest_h(snapshot(nodes=[a_node(partitions="gpu", gpus=0)]), ended("1", 5, 1)))
    assert math.isnan(longest_h(snapshot(), ended("1", 5, 1, partition="elsewhere")))


def test_who_waits_now_counts_and_who_is_held_does_not() -> None:
    running = a_running_job(
        job_id="8", partition="gpu", submitted_at=NOON - 9 * HOUR, started_at=NOON - 9 * HOUR, gpus=8, mean_s=1e6
    )
    waits = a_pending_job(job_id="9", partition="gpu", submitted_at=NOON - 7 * HOUR, gpus=8, mean_s=60.0)
    past = ended("1", 20, 1)
    assert longest_h(snapshot(running=[running], pending=[waits]), past) == pytest.approx(7, abs=1.01)
    assert longest_h(snapshot(running=[running], pending=[waits | {"priority": 0}]), past) == 0


def test_partitions_that_share_nodes_are_one_queue() -> None:
    jobs = [ended("1", 30, 5, partition="a"), ended("2", 30, 4, partition="b")]
    shared, apart = (
        [a_node(name="n1", partitions=one, gpus=8), a_node(name="n2", partitions=other, gpus=0 if one == other else 8)]
        for one, other in (("a,b", "a,b"), ("a", "b"))
    )
    assert longest_h(snapshot(nodes=shared), *jobs) == pytest.approx(5, abs=0.01)
    assert longest_h(snapshot(nodes=apart), *jobs) == 0


def test_a_job_that_fits_nowhere_any_more_is_left_out() -> None:
    assert longest_h(snapshot(), ended("1", 30, 5, gpus=16), ended("2", 30, 4)) == 0


def test_it_is_computed_once_an_hour() -> None:
    watch, seen = OwnOrderWatch(), snapshot()
    short, long = (history(ended("1", 30, hours), ended("2", 30, 1)) for hours in (2, 6))
    first = watch(seen, short)
    assert watch(replace(seen, taken_at=NOON + timedelta(minutes=59)), long) == first
    assert watch(replace(seen, taken_at=NOON + HOUR), long) > first


def test_a_workload_without_gpus_has_no_own_order() -> None:
    nodes = snapshot().nodes
    assert own_order_waits(history(ended("1", 5, 1, gpus=0)), nodes) is None
    waits = own_order_waits(history(ended("1", 30, 5), ended("2", 30, 4)), nodes)
    assert waits is not None
    assert waits.at(int(NOON.timestamp())) == pytest.approx(5 * 3600, abs=36)
