"""The longest backlog of a live cluster: which jobs stand in it, on which GPUs, and when it is reckoned anew."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.predictions import LOOKS_BACK, BacklogWatch, backlog_estimator, longest_backlog
from helios.model import NODE_STATES, Snapshot, in_submission_order
from helios.testing import NOON, a_node, a_pending_job, a_running_job, a_snapshot, frame_of
from tests.builders import a_job, jobs_frame

HOUR = timedelta(hours=1)


def history(*jobs: dict[str, Any]) -> pd.DataFrame:
    return in_submission_order(jobs_frame(*jobs))


def ran(began_h: float, hours: float, *, waited_h: float = 0.0, gpus: int = 8, **more: Any) -> dict[str, Any]:
    """Return a job that began so many hours before noon."""
    began = NOON - began_h * HOUR
    return a_job(
        job_id=str(began_h),
        submitted_at=began - waited_h * HOUR,
        started_at=began,
        ended_at=began + hours * HOUR,
        run_time_s=hours * 3600,
        gpus=gpus,
        **({"partition": "gpu", "eligible_at": None} | more),
    )


def waits(since_h: float, **job: Any) -> dict[str, Any]:
    at = NOON - since_h * HOUR
    return a_pending_job(**({"submitted_at": at, "partition": "gpu", "gpus": 8} | job))


def seen(*pending: dict[str, Any], running: list[dict[str, Any]] | None = None, nodes: Any = None) -> Snapshot:
    nodes = nodes or [a_node(name="n1", partitions="gpu", gpus=8)]
    return a_snapshot(pending=pending, running=running or [], nodes=nodes)


def longest_h(snapshot: Snapshot, *jobs: dict[str, Any]) -> float:
    return longest_backlog(snapshot, history(*jobs)) / 3600


LONG_AGO = ran(40, 2)


def test_the_past_tells_how_long_it_was() -> None:
    # At 30 h before noon 5 hours of the first are left, and 4 of the second stand behind it.
    assert longest_h(seen(), ran(30, 5), ran(25, 4, waited_h=5)) == pytest.approx(9)


def test_what_waits_now_counts_as_it_is_predicted() -> None:
    hour = {"p10_s": 3600.0, "p50_s": 3600.0, "p90_s": 3600.0}
    assert longest_h(seen(waits(0.5, **hour), waits(0.2, job_id="8", **hour)), LONG_AGO) == pytest.approx(2)
    assert longest_h(seen(waits(0.5, tasks=3, **hour)), LONG_AGO) == pytest.approx(3), "each task of an array"
    wide = hour | {"p90_s": 3 * 3600.0}
    assert longest_h(seen(waits(0.5, **wide)), LONG_AGO) == pytest.approx(1.5), "a quarter, a half and a quarter"


def test_what_runs_counts_for_half_as_long_again() -> None:
    running = a_running_job(
        job_id="8", submitted_at=NOON - 4 * HOUR, started_at=NOON - 4 * HOUR, gpus=8, partition="gpu"
    )
    assert longest_h(seen(waits(0.5, p50_s=math.nan), running=[running]), LONG_AGO) == pytest.approx(2 + 2 + 4)


@pytest.mark.parametrize(
    "job",
    [
        {"eligible_at": None},
        {"eligible_at": NOON + HOUR},
        {"priority": 0.0},
        {"gpus": 0},
        {"partition": "elsewhere"},
    ],
    ids=["a dependency", "a begin time", "held", "no GPU", "no such partition"],
)
def test_what_stands_in_nobody_s_way_does_not_count(job: dict[str, Any]) -> None:
    assert longest_h(seen(waits(0.5, p50_s=3600.0, **job)), LONG_AGO) == 0


def test_partitions_that_share_nodes_are_one() -> None:
    nodes = [
        a_node(name="n1", partitions="gpu,long", gpus=8),
        a_node(name="n2", partitions="long,debug", gpus=8),
        a_node(name="n3", partitions="other", gpus=4),
    ]
    hour = {"p10_s": 3600.0, "p50_s": 3600.0, "p90_s": 3600.0}
    queue = [waits(0.5, job_id=name, partition=name, **hour) for name in ("gpu", "long", "debug")]
    assert longest_h(seen(*queue, nodes=nodes), LONG_AGO) == pytest.approx(3 * 8 / 16)
    either = waits(0.5, job_id="9", partition="gone,other", **hour)
    assert longest_h(seen(*queue, either, nodes=nodes), LONG_AGO, ran(41, 1, partition="other")) == pytest.approx(8 / 4)


def test_a_job_waits_since_it_could_have_started() -> None:
    late = ran(25, 4, waited_h=20)
    assert longest_h(seen(), ran(30, 5), late | {"eligible_at": NOON - 26.5 * HOUR}) == pytest.approx(1 + 4)


def test_a_jam_of_long_ago_is_forgotten() -> None:
    ago_h = LOOKS_BACK / HOUR
    assert longest_h(seen(), ran(ago_h + 20, 5), ran(ago_h + 15, 4, waited_h=5), LONG_AGO) == 0


def test_where_nothing_is_known_there_is_no_number() -> None:
    cpus = [a_node(name="n1", partitions="gpu", gpus=0)]
    assert math.isnan(longest_h(seen(waits(1))))
    assert math.isnan(longest_h(seen(waits(1)), ran(3, 1, gpus=0)))
    assert math.isnan(longest_h(seen(waits(1), nodes=cpus), LONG_AGO))
    assert math.isnan(longest_h(seen(waits(1)), ran(LOOKS_BACK / HOUR + 20, 5))), "it says nothing of today's jobs"
    assert longest_h(seen(), LONG_AGO) == 0


def test_it_is_reckoned_anew_each_hour_and_when_the_clock_went_back() -> None:
    watch = BacklogWatch()
    hour = {"p10_s": 3600.0, "p50_s": 3600.0, "p90_s": 3600.0}

    def look(at: datetime, *jobs: dict[str, Any]) -> float:
        return watch(replace(seen(*jobs), taken_at=at), history(LONG_AGO)) / 3600

    assert look(NOON) == 0
    one = waits(0.5, **hour)
    assert look(NOON + timedelta(minutes=59), one) == 0
    assert look(NOON + HOUR, one) == pytest.approx(1)
    assert look(NOON + 1.5 * HOUR) == pytest.approx(1)
    assert look(NOON + 0.9 * HOUR) == 0


def test_a_replay_is_reckoned_on_the_same_groups() -> None:
    nodes = frame_of(
        NODE_STATES,
        [
            a_node(name="n1", partitions="cpu", gpus=0),
            a_node(name="n2", partitions="gpu,long", gpus=8),
            a_node(name="n3", partitions="long", gpus=8),
        ],
    )
    jobs = jobs_frame(*(a_job(job_id=str(n), partition=name, gpus=gpus) for n, name, gpus in JOBS_OF_THREE))
    estimator = backlog_estimator(nodes, jobs)
    assert estimator is not None
    longest_s = estimator.look(
        arrived=3,
        ended=(np.array([1]), np.array([7_200])),
        waiting=(np.array([0, 2]), np.array([3_600.0, 1_800.0])),
        running=(np.array([], dtype=np.int64), np.array([], dtype=np.int64)),
    )
    assert longest_s == pytest.approx(8 * 1_800 / 16), "the job of the CPUs is no work for GPUs"
    assert backlog_estimator(nodes[nodes["gpus"] == 0], jobs) is None


JOBS_OF_THREE = [(0, "cpu", 0), (1, "gpu", 4), (2, "long", 8)]
