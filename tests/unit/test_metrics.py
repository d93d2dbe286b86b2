"""Each figure against the plainest way to compute it."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.metrics import SIZE_CLASSES, QueueSummary, bounded_slowdown, level_over_time, summarize_queue

JOB = st.tuples(st.integers(0, 500), st.integers(0, 300), st.integers(0, 200), st.integers(1, 40))
JOBS = st.lists(JOB, min_size=1, max_size=40)


def summary_of(jobs: list[tuple[int, int, int, int]], total_gpus: int = 64) -> QueueSummary:
    """Jobs as (submitted, waited, ran, gpus)."""
    submitted, waited, ran, gpus = (np.array(column, dtype=np.int64) for column in zip(*jobs, strict=True))
    return summarize_queue(
        submitted_s=submitted,
        ended_s=submitted + waited + ran,
        run_time_s=ran,
        gpus=gpus.astype(np.int32),
        total_gpus=total_gpus,
    )


@given(JOBS)
def test_waits_are_what_they_are_by_hand(jobs: list[tuple[int, int, int, int]]) -> None:
    summary = summary_of(jobs)
    waits = [job[1] for job in jobs]
    assert summary.mean_wait_s == pytest.approx(statistics.fmean(waits))
    assert summary.median_wait_s == statistics.median(waits)
    assert summary.max_wait_s == max(waits)
    assert summary.queued_jobs == sum(wait > 0 for wait in waits)
    assert summary.mean_jct_s == pytest.approx(statistics.fmean(wait + ran for _, wait, ran, _ in jobs))


@given(JOBS)
def test_waits_by_size_are_those_of_the_jobs_of_that_size(jobs: list[tuple[int, int, int, int]]) -> None:
    summary = summary_of(jobs)
    inside = {"1": lambda g: g == 1, "2-8": lambda g: 2 <= g <= 8, ">8": lambda g: g > 8}
    for name in SIZE_CLASSES:
        waits = [job[1] for job in jobs if inside[name](job[3])]
        expected = pytest.approx(statistics.fmean(waits)) if waits else None
        assert summary.mean_wait_s_by_size[name] == expected
        assert summary.jobs_by_size[name] == len(waits)


@given(JOBS)
def test_slowdown_and_utilisation_are_what_they_are_by_hand(jobs: list[tuple[int, int, int, int]]) -> None:
    summary = summary_of(jobs)
    slowdowns = [max(1, (wait + ran) / max(ran, 10)) for _, wait, ran, _ in jobs]
    span = max(sum(job[:3]) for job in jobs) - min(job[0] for job in jobs)
    busy = sum(ran * gpus for _, _, ran, gpus in jobs)
    assert summary.mean_bounded_slowdown == pytest.approx(statistics.fmean(slowdowns))
    assert summary.utilization == pytest.approx(busy / (64 * span) if span else 0)


def test_the_slowdown_of_a_very_short_job_is_bounded() -> None:
    assert bounded_slowdown(wait_s=np.array([90]), run_time_s=np.array([1])).tolist() == [9.1]


@given(JOBS, st.lists(st.integers(-10, 1100), min_size=1, max_size=20))
def test_a_level_counts_what_has_begun_and_not_ended(jobs: list[tuple[int, int, int, int]], moments: list[int]) -> None:
    begins = np.array([job[0] for job in jobs])
    ends = begins + np.array([job[2] for job in jobs])
    weight = np.array([job[3] for job in jobs])
    level = level_over_time(begins_s=begins, ends_s=ends, weight=weight, at_s=np.array(moments))
    by_hand = [sum(w for b, e, w in zip(begins, ends, weight, strict=True) if b <= moment < e) for moment in moments]
    assert level.tolist() == by_hand
