"""The longest backlog: looked at on the way, and reckoned from the jobs alone, it is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.backlog import EVERY_S, GOES_ON, BacklogEstimator, JobTimes, age_discount, longest_backlog_s

HOUR = float(EVERY_S)


def past(
    *jobs: tuple[float, float, float, int], partition: list[int] | None = None, predicted_s: Any = None
) -> JobTimes:
    """Return jobs of (since, started, ended, GPUs), in hours; NaN: it has not."""
    since, started, ended, gpus = (np.array(column, dtype=np.float64) for column in zip(*jobs, strict=True))
    return JobTimes(
        partition=np.array(partition or [0] * len(jobs)),
        gpus=gpus.astype(np.int64),
        since_s=since * HOUR,
        started_s=started * HOUR,
        ended_s=ended * HOUR,
        predicted_s=np.full(len(jobs), np.nan) if predicted_s is None else np.array(predicted_s, dtype=np.float64),
    )


def longest_h(jobs: JobTimes, *, now_h: float, gpus: tuple[int, ...] = (4,), first_h: float = 0.0) -> float:
    return longest_backlog_s(jobs, capacity=np.array(gpus), now_s=now_h * HOUR, first_s=first_h * HOUR) / HOUR


NOT = float("nan")


def test_it_is_the_work_that_stood_there_over_the_gpus() -> None:
    # At hour 1 two hours of the first job are left, and 3 of the second wait behind it; later there is less.
    assert longest_h(past((0, 0, 3, 4), (0.5, 3, 6, 4)), now_h=6) == pytest.approx(2 + 3)


def test_where_nothing_waits_there_is_none() -> None:
    assert longest_h(past((0, 0, 9, 4)), now_h=6) == 0
    assert longest_h(past((0, 0, 9, 4), (1.2, 1.8, 9, 4)), now_h=6) == 0, "it waited between two looks"


def test_it_is_told_by_the_partition_that_has_most() -> None:
    jobs = past((0, 0, 3, 4), (0.5, 3, 6, 4), (0, 0, 3, 4), (0.5, 3, 6, 4), partition=[0, 0, 1, 1])
    assert longest_h(jobs, now_h=6, gpus=(4, 1)) == pytest.approx((2 + 3) * 4)
    assert longest_h(jobs, now_h=6, gpus=(4, 0)) == pytest.approx(2 + 3), "a partition without GPUs has none"


def test_what_runs_goes_on_for_half_as_long_again_and_what_waits_as_it_is_predicted() -> None:
    jobs = past((0, 0, 2, 4), (2, 2, NOT, 4), (2, NOT, NOT, 4), predicted_s=[NOT, NOT, HOUR])
    ran_h = 4.0
    assert longest_h(jobs, now_h=6) == pytest.approx(ran_h * GOES_ON + 1), "at hour 2, when both had just come"


def test_a_predictor_that_believes_everything_long_lifts_it_no_higher_than_the_mean() -> None:
    jobs = past((0, 0, 2, 4), (2, NOT, NOT, 4), predicted_s=[NOT, 1e9])
    assert longest_h(jobs, now_h=2) == pytest.approx(2)


def test_what_was_before_the_first_look_does_not_count() -> None:
    jobs = past((0, 0, 3, 4), (0.5, 3, 6, 4), (6, 6, 8, 4), (6.5, 8, 9, 4))
    assert longest_h(jobs, now_h=9, first_h=6.1) == pytest.approx(1 + 1)


a_job = st.tuples(
    st.floats(0, 30), st.floats(0, 20), st.floats(0.01, 20), st.integers(1, 4), st.integers(0, 1), st.floats(0, 40)
)


@settings(max_examples=150)
@given(jobs=st.lists(a_job, min_size=1, max_size=25), looks=st.integers(1, 40))
def test_reckoned_from_the_jobs_alone_it_is_what_somebody_found_who_looked_each_hour(
    jobs: list[tuple[float, float, float, int, int, float]], looks: int
) -> None:
    since, wait, run, gpus, partition, predicted = (np.array(each) for each in zip(*sorted(jobs), strict=True))
    since_s, predicted_s = since * HOUR + 0.5, predicted * HOUR  # never at a look
    started_s = since_s + np.where(wait < 1, 0, wait * HOUR)
    ended_s = started_s + run * HOUR
    now_s, capacity = looks * HOUR, np.array([4, 3])
    estimator, told = (
        BacklogEstimator(partition=partition, gpus=gpus, capacity=capacity),
        np.zeros(len(since), dtype=bool),
    )
    longest_s = 0.0
    for number in range(1, looks + 1):
        at_s = number * HOUR
        ended = np.flatnonzero((ended_s <= at_s) & ~told)
        told[ended] = True
        waiting = np.flatnonzero((since_s <= at_s) & (started_s > at_s))
        running = np.flatnonzero((started_s <= at_s) & (ended_s > at_s))
        longest_s = estimator.look(
            arrived=int((since_s <= at_s).sum()),
            ended=(ended, (ended_s - started_s)[ended]),
            waiting=(waiting, predicted_s[waiting]),
            running=(running, at_s - started_s[running]),
        )
    known = since_s <= now_s
    alone = JobTimes(
        partition=partition[known],
        gpus=gpus[known],
        since_s=since_s[known],
        started_s=np.where(started_s <= now_s, started_s, np.nan)[known],
        ended_s=np.where(ended_s <= now_s, ended_s, np.nan)[known],
        predicted_s=predicted_s[known],
    )
    found_s = longest_backlog_s(alone, capacity=capacity, now_s=now_s, first_s=HOUR)
    assert found_s == pytest.approx(longest_s, rel=1e-9, abs=1e-6)


def test_what_is_left_fades_with_the_square() -> None:
    left = age_discount(np.array([0, 50, 90, 100, 200]), 100)
    assert left == pytest.approx([1, 0.25, 0.01, 0, 0])
    assert age_discount(np.array([5]), 0) == [0]
