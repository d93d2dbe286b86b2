"""Each figure against the plainest way to compute it."""

import statistics
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.metrics.queue import (
    QueueSummary,
    bounded_slowdown,
    mean_level_over_time,
    summarize_queue,
)
from helios.model import SIZE_CLASSES, is_large, largest_nodes, size_class

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
        node=8,
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
    inside = {"below_node": lambda g: g < 8, "one_node": lambda g: g == 8, "more_nodes": lambda g: g > 8}
    for name in SIZE_CLASSES:
        waits = [job[1] for job in jobs if inside[name](job[3])]
        expected = pytest.approx(statistics.fmean(waits)) if waits else None
        assert summary.mean_wait_s_by_size[name] == expected
        assert summary.jobs_by_size[name] == len(waits)


def test_whole_node_job_has_a_class_on_any_node() -> None:
    gpus = np.array([3, 4, 8, 9])
    assert size_class(gpus, 4).tolist() == [0, 1, 2, 2]
    assert size_class(gpus, 0).tolist() == [0, 0, 1, 2]
    assert size_class(gpus, np.array([8, 4, 16, 0])).tolist() == [0, 1, 0, 2]


def test_large_is_a_node_and_more_but_never_one_gpu() -> None:
    assert is_large(np.array([7, 8, 9]), 8).tolist() == [False, True, True]
    assert is_large(np.array([1, 2]), 1).tolist() == [False, True]


def test_node_of_a_job_is_the_largest_of_its_partitions() -> None:
    nodes = pd.DataFrame({"partitions": ["a", "a,b", "c", "d", None], "gpus": [4, 8, 4, 0, 16]})
    partitions = np.array(["a", "b,c", "c", "d", np.nan], dtype=object)
    assert largest_nodes(partitions, nodes).tolist() == [8, 8, 4, 8, 8]


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


@given(JOBS, st.lists(st.integers(-10, 1100), min_size=2, max_size=8, unique=True))
def test_a_mean_level_is_the_mean_over_every_second(jobs: list[tuple[int, int, int, int]], moments: list[int]) -> None:
    begins = np.array([job[0] for job in jobs])
    ends = begins + np.array([job[2] for job in jobs])
    weight = np.array([job[3] for job in jobs])
    edges = sorted(moments)
    means = mean_level_over_time(begins_s=begins, ends_s=ends, weight=weight, edges_s=np.array(edges))
    spans = list(zip(begins, ends, weight, strict=True))
    by_hand = [
        statistics.fmean(sum(int(w) for b, e, w in spans if b <= second < e) for second in range(first, last))
        for first, last in pairwise(edges)
    ]
    assert means.tolist() == pytest.approx(by_hand)


def test_without_weights_each_job_counts_once() -> None:
    begins, ends = np.array([0, 0]), np.array([10, 5])
    assert mean_level_over_time(begins_s=begins, ends_s=ends, edges_s=np.array([0, 10])).tolist() == [1.5]
