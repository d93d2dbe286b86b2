"""Ageing of queue keys by a share of the longest wait of another replay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.ports import RUN_TIME
from helios.services.qssf import divide_large_jobs, shortest_service_first
from helios.simulate import Ageing, Backfill, LongestWaits, WaitBound, replay
from helios.simulate.ageing import EVERY_S, LEAST_BOUND_S, LEAST_TAU_S, MEMORY_S, fewest_gpus_first
from helios.simulate.core.state import NEVER
from tests.examples import examples

from .builders import a_shape, a_workload

ONE_NODE = a_shape((1, 8))
HOUR = 3_600
JOBS = st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 20_000), st.integers(1, 8)), min_size=1, max_size=25)


def longest_in_plain_words(workload, started_s, at_s, memory_s):
    """Return the longest wait at a whole hour after the first submission, where starts are noticed hour by hour."""
    longest, first = 0, int(workload.submitted_s[0])
    for submitted, start in zip(workload.submitted_s.tolist(), started_s.tolist(), strict=True):
        noticed = first + max(-(-(start - first) // HOUR), 1) * HOUR
        if submitted <= at_s < noticed + memory_s:
            longest = max(longest, min(start, at_s) - submitted)
    return longest


@given(rows=JOBS, memory_s=st.sampled_from([HOUR, 2 * HOUR, 5 * HOUR, MEMORY_S]))
@settings(max_examples=examples(20), deadline=None)
def test_the_longest_wait_is_of_pending_and_recently_started_jobs(rows, memory_s):
    workload = a_workload(sorted(rows))
    result = replay(workload, ONE_NODE, backfill=Backfill.SKIP, order=fewest_gpus_first)
    longest = LongestWaits.of(submitted_s=workload.submitted_s, started_s=result.started_s, memory_s=memory_s)
    ends = int(result.started_s.max()) + 2 * EVERY_S + memory_s
    for hour in range(int(workload.submitted_s[0]) + EVERY_S, ends, EVERY_S)[:100]:
        now = longest_in_plain_words(workload, result.started_s, hour, memory_s)
        assert longest.at(hour) == longest.at(hour + EVERY_S - 1) == now
    assert longest.at(ends) == 0


@given(earlier=JOBS, later=JOBS)
@settings(max_examples=examples(20), deadline=None)
def test_the_waits_of_two_replays_are_the_longer_ones_of_both(earlier, later):
    of = [
        LongestWaits.of(
            submitted_s=workload.submitted_s,
            started_s=replay(workload, ONE_NODE, backfill=Backfill.SKIP, order=fewest_gpus_first).started_s,
            memory_s=5 * HOUR,
        )
        for workload in map(a_workload, (sorted(earlier), sorted(later)))
    ]
    both = of[0].with_earlier(of[1])
    for at_s in range(-HOUR, 100 * HOUR, 1_800):
        assert both.at(at_s) == max(one.at(at_s) for one in of)


def test_what_starts_later_than_the_end_counts_as_waiting_until_then():
    hours = {"submitted_s": np.array([0, 0, HOUR]), "started_s": np.array([0, 5 * HOUR, 90 * HOUR])}
    longest = LongestWaits.of(**hours, until_s=10 * HOUR, memory_s=20 * HOUR)
    assert [longest.at(hour * HOUR) for hour in (0, 3, 7, 10, 29, 30)] == [wait * HOUR for wait in (0, 3, 6, 9, 9, 0)]


def test_no_job_means_no_wait():
    nothing = np.empty(0, dtype=np.int64)
    assert LongestWaits.of(submitted_s=nothing, started_s=nothing).at(10**9) == 0


def test_bound_and_ageing_time_are_shares_with_least_values():
    longest = LongestWaits(at_s=np.array([-NEVER, 10, 20]), longest_s=np.array([0, 8_000, 40_000]))
    assert longest.wait_bound(0.5).bound_s.tolist() == [LEAST_BOUND_S, LEAST_BOUND_S, 20_000]
    assert longest.ageing(0.5).tau_s.tolist() == [LEAST_TAU_S, 4_000, 20_000]
    assert longest.ageing(0.5).at(np.array([5, 10, 19, 99])).tolist() == [LEAST_TAU_S, 4_000, 4_000, 20_000]


@pytest.mark.parametrize(("at_s", "tau_s"), [([], []), ([1, 2], [5.0]), ([2, 1], [5.0, 5.0]), ([1], [0.0])], ids=str)
def test_what_is_no_step_function_of_ageing_times_is_refused(at_s, tau_s):
    with pytest.raises(UsageError, match="step function"):
        Ageing(at_s=np.array(at_s, dtype=np.int64), tau_s=np.array(tau_s))


def strict_queue_in_plain_words(workload, service, ageing):
    """Replay whole-node jobs on one node, the least key first, as somebody would with a pencil."""
    submitted, run = workload.submitted_s.tolist(), workload.run_time_s.tolist()
    started, now, left = {}, submitted[0], set(range(len(submitted)))
    while left:
        here = [job for job in left if submitted[job] <= now]
        if not here:
            now = min(submitted[job] for job in left)
            continue
        tau_s = float(ageing.at(np.array([now]))[0])
        job = min(here, key=lambda job: (np.log(service[job]) + submitted[job] / tau_s, submitted[job], job))
        started[job] = now
        now += run[job]
        left.remove(job)
    return [started[job] for job in range(len(submitted))]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 30_000), st.integers(1, 9_000), st.just(8)), min_size=1, max_size=25, unique=True
    ),
    steps=st.lists(st.tuples(st.integers(0, 60_000), st.integers(3_600, 10**6)), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=examples(20), deadline=None)
def test_keys_age_by_the_formula_with_the_current_ageing_time(rows, steps, seed):
    workload = a_workload(sorted(rows))
    believed = np.exp(np.random.default_rng(seed).uniform(0, 12, len(workload)))
    steps = sorted(steps)
    ageing = Ageing(
        at_s=np.array([-NEVER, *(at for at, _ in steps)]), tau_s=np.array([5_000.0, *(float(tau) for _, tau in steps)])
    )
    result = replay(
        workload,
        ONE_NODE,
        backfill=Backfill.NONE,
        order=shortest_service_first,
        run_time_s=believed,
        ageing=ageing,
    )
    assert result.started_s.tolist() == strict_queue_in_plain_words(workload, 8 * believed, ageing)


class Fixed:
    """Says of each job what it was made with, column by column."""

    def __init__(self, run_times):
        self.run_times = run_times

    def ended(self, jobs, ended_s):
        pass

    def submitted(self, jobs, now_s):
        return self.run_times[jobs]

    def waiting(self, jobs, now_s, *, running, since_s):
        return self.run_times[jobs]


@pytest.mark.parametrize("again_s", [None, 60, 3_600])
def test_predicted_and_known_run_times_age_alike(again_s):
    rng = np.random.default_rng(7)
    workload = a_workload(
        sorted(zip(*(rng.integers(1, most, 60).tolist() for most in (40_000, 5_000, 9)), strict=True))
    )
    run_times = np.repeat(workload.run_time_s[:, None], len(RUN_TIME), axis=1).astype(np.float64)
    run_times[:, RUN_TIME.truncated_mean] = believed = rng.uniform(1, 28_800, 60)
    longest = LongestWaits(at_s=np.array([-NEVER, 9_000, 30_000]), longest_s=np.array([0, 9_000, 50_000]))
    options = {
        "backfill": Backfill.EASY,
        "order": shortest_service_first,
        "estimate_s": workload.run_time_s,
        "ageing": longest.ageing(0.5),
        "guard": longest.wait_bound(1.0),
    }
    known = replay(workload, ONE_NODE, run_time_s=believed, **options)
    predicted = replay(
        workload,
        ONE_NODE,
        predictor=Fixed(run_times),
        reads=RUN_TIME.truncated_mean,
        predict_again_s=again_s,
        **options,
    )
    np.testing.assert_array_equal(known.started_s, predicted.started_s)


def test_a_promoted_head_is_not_delayed_by_short_jobs_that_pass():
    """EASY reserves for the head: a stream of short jobs may use what it leaves free, and not a second more."""
    rows = [(0, 1_000, 4), (1, 500, 8), *((10 + 20 * n, 90, 4) for n in range(100))]
    workload = a_workload(rows)
    result = replay(
        workload,
        ONE_NODE,
        backfill=Backfill.EASY,
        order=shortest_service_first,
        run_time_s=np.array([1.0, 1e6, *[1.0] * 100]),
        estimate_s=workload.run_time_s,
        guard=WaitBound.constant(5),
    )
    assert result.started_s[1] == 1_000


def test_jobs_of_a_node_and_more_count_as_a_part():
    order = divide_large_jobs(shortest_service_first, 4.0, node=9)
    gpus = np.array([8, 9], dtype=np.int32)
    assert order(submitted_s=np.zeros(2, dtype=np.int64), gpus=gpus, run_time_s=np.full(2, 10.0)).tolist() == [80, 22.5]
