"""Advice on idle GPUs: each rule has a case that would be a false alarm without it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from helios.model import GPU_USE, JOB_USE
from helios.report.advice import Advice
from helios.report.gpu_advice import gpu_advice
from helios.report.job_use import with_use
from tests.builders import a_job, jobs_frame

HOUR_S = 3600.0
IDLE = {"utilization": 0.2, "utilization_later": 0.1, "longest_idle_s": 9 * HOUR_S, "is_interactive": 0.0}
SESSION = {"utilization": 0.2, "longest_idle_s": 3 * HOUR_S, "is_interactive": 1.0}
RESTED = {"utilization": 40.0, "utilization_later": 41.0, "longest_idle_s": 9 * HOUR_S, "is_interactive": 0.0}


def advice(
    use: dict[str, Any],
    *,
    count: int = 6,
    gpus: tuple[dict[str, Any], ...] = (),
    exempt: dict[str, list[str]] | None = None,
    others: int = 0,
    gpu_count: float = 1,
    **job: Any,
) -> list[Advice]:
    """Return the advice on ``count`` alike jobs of ten hours with this use, and ``others`` that worked."""
    jobs = jobs_frame(*(a_job(**{"run_time_s": 10 * HOUR_S, "gpus": gpu_count} | job) for _ in range(count + others)))
    known = {"source": "prometheus", "busy_means": "a kernel ran", "quality": "ok", "covered_s": 10 * HOUR_S}
    keys = jobs[["submitted_at", "job_id", "restart"]]
    runs = [
        {**key, **known, **(use if number < count else RESTED)} for number, key in enumerate(keys.to_dict("records"))
    ]
    each = [{**key, "source": "prometheus", "node": "g1"} | gpu for key in keys.to_dict("records") for gpu in gpus]
    return gpu_advice(
        with_use(jobs[jobs["gpus"] > 0], JOB_USE.conform(pd.DataFrame(runs))),
        GPU_USE.conform(pd.DataFrame(each)) if each else GPU_USE.empty(),
        exempt=exempt,
    )


def test_idle_batch_jobs_are_named_with_definition_and_source() -> None:
    (one,) = advice(IDLE)
    assert (one.kind, one.user, one.jobs, one.hours) == ("gpus_idle", "alice", 6, 60.0)
    assert one.sentence == (
        "6 of 6 kept their GPUs below 1 % utilization on average after their first hour. "
        "Measured by Prometheus, where busy means that a kernel ran."
    )


def test_a_resting_session_is_named_with_the_hours_that_it_rested() -> None:
    (one,) = advice(SESSION)
    assert (one.kind, one.hours) == ("session_idle", 18.0)


@pytest.mark.parametrize(
    ("use", "job"),
    [
        ({"covered_s": 8 * HOUR_S}, {}),
        ({"covered_s": None}, {}),
        ({"covered_s": 1_700.0, "utilization_later": 0.0}, {"run_time_s": 1_750.0}),
        ({"quality": "partial"}, {}),
        ({"is_shared": 1.0}, {}),
        ({"is_mig": 1.0}, {}),
        ({}, {"gpu_count": 0.5}),
        ({"utilization_later": 30.0}, {}),
        ({"utilization": 0.95, "utilization_later": None}, {}),
        ({"longest_idle_s": 50 * 60.0}, {}),
        ({}, {"state": "FAILED"}),
        ({}, {"user": None}),
    ],
    ids=[
        "measured for 80 % of the run",
        "measured for an unknown part",
        "measured for less than 30 minutes",
        "measured on some GPUs",
        "shared with other jobs",
        "slices measured as a whole card",
        "a part of a GPU",
        "idle in its first hour only",
        "perhaps idle in its first hour only",
        "pauses below an hour",
        "failed",
        "of nobody known",
    ],
)
def test_a_batch_job_is_no_false_alarm(use: dict[str, Any], job: dict[str, Any]) -> None:
    assert not advice(IDLE | use, **job)


@pytest.mark.parametrize("interactive", [1.0, None])
def test_a_session_is_never_judged_by_its_mean(interactive: float | None) -> None:
    mean = {"utilization": 0.0, "utilization_later": 0.0, "is_interactive": interactive}
    assert not advice({**mean, "longest_idle_s": 1.9 * HOUR_S})
    assert not advice({**mean, "longest_idle_s": None})
    assert advice({**mean, "longest_idle_s": 2 * HOUR_S})


def test_a_gpu_that_was_never_busy_needs_no_spell() -> None:
    never = {"utilization": 0.0, "gpu_memory_peak_mib": 500.0}  # as jobstats, which has means alone
    (one,) = advice(never)
    assert (one.kind, one.hours) == ("session_idle", 60.0)
    assert (
        advice(never | {"gpu_memory_peak_mib": 0.0}) == []
    )  # without a process, 0 may be an exporter that knows nothing
    assert advice(never | {"longest_idle_s": HOUR_S}) == []


def test_one_resting_gpu_does_not_make_a_session_rest() -> None:
    gpus = ({"gpu": "0", "utilization": 80.0, "longest_idle_s": 0.0}, {"gpu": "1", "longest_idle_s": 9 * HOUR_S})
    session = SESSION | {"utilization": 40.0, "longest_idle_s": 4.5 * HOUR_S}
    assert not advice(session, gpus=({**gpus[0]}, {**gpus[1], "utilization": 0.0}), gpu_count=2)
    assert not advice(session, gpu_count=2)


def test_a_slice_that_was_measured_by_itself_counts() -> None:
    gpu = {"gpu": "MIG-2645", "utilization": 0.2, "longest_idle_s": 9 * HOUR_S}
    assert advice(IDLE | {"is_mig": 1.0}, gpus=(gpu,))


def test_memory_that_is_held_proves_no_use() -> None:
    assert advice(IDLE | {"gpu_memory_peak_mib": 79_000.0, "gpu_memory_total_mib": 81_920.0})


def test_a_mean_far_below_one_percent_needs_no_later_one() -> None:
    assert advice(IDLE | {"utilization": 0.5, "utilization_later": None})


def test_four_alike_jobs_are_too_few() -> None:
    assert not advice(IDLE, count=4)
    assert advice(IDLE, count=5)


def test_idle_jobs_among_alike_ones_that_work_are_none() -> None:
    assert not advice(IDLE, count=6, others=4)


@pytest.mark.parametrize("exempt", [{"user": ["alice"]}, {"account": ["lab"]}, {"partition": ["gpu"]}])
def test_whom_the_site_exempts_is_not_named(exempt: dict[str, list[str]]) -> None:
    assert not advice(IDLE, exempt=exempt)
    assert advice(IDLE, exempt={name: ["other"] for name in exempt})


def test_idle_gpus_inside_a_job_that_works_are_counted() -> None:
    gpus = tuple(
        {"gpu": str(number), "utilization": busy, "longest_idle_s": 9 * HOUR_S if busy < 1 else 0.0}
        for number, busy in enumerate([80.0, 70.0, 0.0, 0.3])
    )
    (one,) = advice(RESTED, gpus=gpus, gpu_count=4)
    assert (one.kind, one.hours) == ("gpus_idle_inside", 120.0)
    assert one.sentence.startswith("6 of 6 kept at least 2 GPUs below 1 % utilization after their first hour.")
    pauses = tuple(gpu | {"longest_idle_s": 600.0} for gpu in gpus)
    assert not advice(RESTED, gpus=pauses, gpu_count=4)
    assert not advice(RESTED | {"is_interactive": 1.0, "longest_idle_s": 0.0}, gpus=gpus, gpu_count=4)
    assert not advice(RESTED, gpus=gpus[1:], gpu_count=4)  # one of the four was not measured
