"""What a bound on waiting does to a replay, in single claims and under absurd predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.metrics.backlog import BacklogWindows, expected_run_s
from helios.services.queue_orders import shortest_service_first
from helios.simulate import Backfill, Backlog, Reservation, WaitBound, replay
from helios.simulate.orders import first_in_first_out, shortest_job_first
from tests.run_times import in_columns

from .builders import a_shape, a_workload

ONE_NODE = a_shape((1, 8))


def starts(rows, *, believed, guard=None, backfill=Backfill.NONE, predictor=None):
    workload = a_workload(rows)
    result = replay(
        workload,
        ONE_NODE,
        backfill=backfill,
        order=shortest_service_first,
        run_time_s=None if predictor else np.array(believed, dtype=np.float64),
        estimate_s=workload.run_time_s,
        guard=guard,
        predictor=predictor,
    )
    return result.started_s.tolist()


# The first holds the node until 10; the second is believed long; three short ones follow.
QUEUE = [(0, 10, 8), (1, 10, 8), (2, 10, 8), (3, 10, 8), (4, 10, 8)]
BELIEVED = [10, 1e9, 1, 2, 3]


def test_without_a_guard_a_job_believed_long_waits_for_all_others():
    assert starts(QUEUE, believed=BELIEVED) == [0, 40, 10, 20, 30]


@pytest.mark.parametrize(("patience_s", "start"), [(8, 10), (9, 20), (18, 20), (19, 30), (29, 40)])
def test_a_job_that_has_waited_longer_than_the_bound_goes_first(patience_s, start):
    assert starts(QUEUE, believed=BELIEVED, guard=WaitBound.constant(patience_s))[1] == start


def test_among_the_promoted_the_first_submitted_goes_first():
    rows = [(0, 10, 8), (1, 10, 8), (2, 10, 8), (3, 10, 8)]
    assert starts(rows, believed=[10, 7, 9, 1], guard=WaitBound.constant(5)) == [0, 10, 20, 30]


def test_a_bound_holds_from_its_time_on_and_not_before():
    guard = WaitBound(at_s=np.array([15]), patience_s=np.array([0]))
    assert starts(QUEUE, believed=BELIEVED, guard=guard)[1] == 20


def test_who_was_promoted_stays_so_when_the_bound_rises():
    rows = [(0, 10, 4), (0, 30, 4), (1, 10, 8), (2, 10, 4), (11, 10, 4)]
    guard = WaitBound(at_s=np.array([0, 15]), patience_s=np.array([5, 10**6]))
    # At 10 the large job is promoted and blocks; at 15 the bound rises, and still nobody passes it.
    assert starts(rows, believed=[10, 30, 1e9, 1, 1], guard=guard)[2] == 30


def test_backfill_may_pass_a_promoted_job_where_it_does_not_delay_it():
    rows = [(0, 20, 4), (1, 10, 8), (2, 10, 4), (12, 8, 4)]
    guarded = starts(rows, believed=[20, 1e9, 1, 1], guard=WaitBound.constant(1), backfill=Backfill.EASY)
    assert guarded == [0, 20, 2, 12]


def test_partitions_keep_their_own_cycles():
    workload = a_workload([(0, 10, 8, 0), (0, 99, 8, 1), (1, 5, 8, 0), (2, 5, 8, 0), (3, 5, 8, 1)])
    result = replay(
        workload,
        a_shape((1, 8), (1, 8)),
        backfill=Backfill.NONE,
        order=shortest_job_first,
        run_time_s=np.array([1.0, 1.0, 9.0, 1.0, 1.0]),
        guard=WaitBound.constant(8),
    )
    assert result.started_s.tolist() == [0, 0, 10, 15, 99]


def test_the_bound_beside_a_shadow_is_a_share_of_its_longest_wait_so_far():
    guard = WaitBound.beside(started_s=np.array([50, 10, 30]), wait_s=np.array([8, 100, 400]), least_s=60, share=0.5)
    assert guard.at_s[1:].tolist() == [10, 30]
    assert guard.patience_s.tolist() == [60, 60, 200]


@pytest.mark.parametrize(
    ("at_s", "patience_s"), [([1, 2], [5]), ([2, 1], [5, 5]), ([1], [-1])], ids=["length", "descending", "negative"]
)
def test_what_is_no_step_function_is_refused(at_s, patience_s):
    with pytest.raises(UsageError, match="step function"):
        WaitBound(at_s=np.array(at_s, dtype=np.int64), patience_s=np.array(patience_s, dtype=np.int64))


def test_srtf_takes_no_guard():
    workload = a_workload([(0, 1, 1)])
    with pytest.raises(UsageError, match="SRTF"):
        replay(
            workload,
            ONE_NODE,
            backfill=Backfill.NONE,
            order=shortest_job_first,
            preemptive=True,
            guard=WaitBound.constant(1),
        )


class Absurd:
    """Says anything of any job, something else every time."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def ended(self, jobs, ended_s):
        pass

    def submitted(self, jobs, now_s):
        return in_columns(np.sort(np.exp(self.rng.normal(0, 20, (len(jobs), 3))), axis=1))

    def waiting(self, jobs, now_s, *, running, since_s):
        return self.submitted(jobs, now_s)


@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 8)), min_size=1, max_size=40),
    patience_s=st.integers(0, 100),
    seed=st.integers(0, 2**32 - 1),
    again_s=st.none() | st.integers(1, 50),
)
@settings(max_examples=200, deadline=None)
def test_nobody_waits_longer_than_the_bound_and_the_work_before_them_whatever_is_predicted(
    rows, patience_s, seed, again_s
):
    workload = a_workload(sorted(rows))
    result = replay(
        workload,
        ONE_NODE,
        backfill=Backfill.NONE,
        order=shortest_service_first,
        predictor=Absurd(seed),
        predict_again_s=again_s,
        guard=WaitBound.constant(patience_s),
    )
    # From its turn on, only what ran then and what was submitted before it can be in its way, one after the other.
    for job in range(len(workload)):
        cycle_s = workload.submitted_s[job] + patience_s
        running = (result.started_s <= cycle_s) & (result.ended_s > cycle_s)
        ahead = (np.arange(len(workload)) < job) & (result.started_s > cycle_s)
        assert result.started_s[job] <= cycle_s + 1 + workload.run_time_s[running | ahead].sum()


def test_the_longest_wait_under_lies_is_bounded_and_without_a_guard_it_is_not():
    rows = [(second, 10, 8) for second in range(0, 4000, 10)]
    rows.insert(1, (1, 10, 8))
    lies = [1.0] * len(rows)
    lies[1] = 1e12
    assert starts(rows, believed=lies)[1] >= 4000
    assert starts(rows, believed=lies, guard=WaitBound.constant(100))[1] == 110


def test_a_first_come_first_served_queue_is_left_as_it_is():
    workload = a_workload([(i, 7 + i % 5, 1 + 3 * (i % 3)) for i in range(200)])
    free, guarded = (
        replay(
            workload,
            ONE_NODE,
            backfill=Backfill.EASY,
            order=first_in_first_out,
            run_time_s=workload.run_time_s.astype(np.float64),
            estimate_s=workload.run_time_s,
            guard=guard,
        )
        for guard in (None, WaitBound.constant(50))
    )
    np.testing.assert_array_equal(free.started_s, guarded.started_s)


def test_the_backlog_is_the_work_before_a_newcomer_and_nothing_where_nobody_waits():
    looks = BacklogWindows(np.array([8, 8, 4]))
    looks.settle(np.array([0]), np.array([0]), np.array([100.0]))
    looks.look(
        waits=np.array([True, False, True]),
        done_gpu_s=np.array([300.0, 8_000.0, 0.0]),
        open_work=(np.array([0, 0, 1, 2]), np.array([0, 0, 0, 0]), np.array([400.0, 160.0, 9_999.0, 120.0])),
    )
    assert looks.longest_s == max((100 + 400 + 160 - 300) / 8, 120 / 4)


def test_a_backlog_of_the_past_is_reckoned_anew_when_its_work_is_known():
    looks = BacklogWindows(np.array([8]))
    here, first = np.array([0]), np.array([0])
    looks.look(waits=np.array([True]), done_gpu_s=np.zeros(1), open_work=(here, first, np.array([8e6])))
    assert looks.longest_s == 1e6
    looks.settle(here, first, np.array([80.0]))
    nothing = np.array([], dtype=np.int64)
    looks.look(waits=np.array([False]), done_gpu_s=np.array([80.0]), open_work=(nothing, nothing, np.array([])))
    assert looks.longest_s == 10


@pytest.mark.parametrize("believed", [1e12, np.inf])
def test_what_is_believed_very_long_counts_as_what_has_ended(believed):
    expected_s = expected_run_s(
        ended=(np.array([8.0, 2.0]), np.array([3_200.0, 60.0])),
        waiting=(np.array([0, 0, 1, 1]), np.array([8, 4, 2, 2]), np.array([believed, 1.0, 10.0, np.nan])),
    )
    assert expected_s.tolist() == [400.0, 400.0, 10.0, 30.0]


@pytest.mark.parametrize("wrong", [{"least_s": -1}, {"share": -0.1}, {"known_s": -1}, {"every_s": 0}], ids=str)
def test_a_bound_by_the_backlog_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError, match="backlog"):
        Backlog(**wrong)


def test_who_is_believed_long_goes_first_after_a_share_of_the_backlog():
    rows = [(second, 10, 8) for second in range(0, 4_000, 8)]
    lies = [1.0] * len(rows)
    lies[20] = 1e9
    unguarded, guarded = (
        starts(rows, believed=lies, guard=guard) for guard in (None, Backlog(least_s=100, share=0.5, every_s=50))
    )
    assert unguarded[20] == 10 * (len(rows) - 1)
    # The queue grows by 2 s in 8 s; 1 s believed for each of them is little beside the 10 s that runs have taken.
    assert 160 + 100 <= guarded[20] < 1_000


def test_a_longest_wait_known_from_before_counts_as_a_backlog():
    rows = [(second, 10, 8) for second in range(0, 4_000, 10)]
    rows.insert(1, (1, 10, 8))
    lies = [1.0] * len(rows)
    lies[1] = 1e12
    guard = Backlog(least_s=100, share=0.5, known_s=2_000, every_s=50)
    assert starts(rows, believed=lies, guard=guard)[1] == 1_010


class Noting(Backlog):
    """Keeps a list of the longest backlogs that it is told."""

    __slots__ = ("told",)

    def patience_s(self, longest_s):
        if not hasattr(self, "told"):
            object.__setattr__(self, "told", [])
        self.told.append(longest_s)
        return Backlog.patience_s(self, longest_s)


def a_backlog_in_plain_words(workload, result, predicted_s, past, gpus):
    """Return the longest backlog at the moments in ``past``, by what is known at the last, counted job by job."""
    now = past[-1]
    started, ended = result.started_s < now, result.ended_s < now
    running, waiting = started & ~ended, (workload.submitted_s < now) & ~started
    work = np.where(ended, workload.run_time_s, np.where(running, 1.5 * (now - result.started_s), 0)) * workload.gpus
    ran = (workload.gpus * (now - result.started_s))[running].sum()
    mean = (work[ended].sum() + ran) / workload.gpus[ended].sum() if ended.any() else 0.0
    as_predicted = sum(workload.gpus[job] * predicted_s[job] for job in np.flatnonzero(waiting))
    for job in np.flatnonzero(waiting):
        capped = as_predicted > workload.gpus[waiting].sum() * mean
        work[job] = workload.gpus[job] * (mean if capped else predicted_s[job])
    longest = 0.0
    for look in past:
        there = workload.submitted_s < look
        done = (workload.gpus * np.clip(look - result.started_s, 0, workload.run_time_s)).sum()
        if (there & (result.started_s >= look)).any():
            longest = max(longest, (work[there].sum() - done) / gpus)
    return longest


def backlogs_in_plain_words(workload, result, predicted_s, moments):
    """Return what each look on 16 GPUs finds."""
    looks = range(1, len(moments) + 1)
    return [a_backlog_in_plain_words(workload, result, predicted_s, moments[:look], gpus=16) for look in looks]


JOBS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 16)), min_size=1, max_size=40)


@given(rows=JOBS, share=st.floats(0, 1.5), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_bound_by_the_backlog_needs_nothing_that_comes_later(rows, share, seed):
    """A job starts first after ``share`` x the backlog: no sooner than the least, no later than the longest allows."""
    workload = a_workload(sorted(rows))
    predicted = np.exp(np.random.default_rng(seed).normal(0, 10, len(workload)))
    guard = Noting(least_s=20, share=share, every_s=1)
    result = replay(
        workload,
        a_shape((2, 8)),
        backfill=Backfill.NONE,
        order=shortest_service_first,
        run_time_s=predicted,
        guard=guard,
    )
    moments = np.unique(np.concatenate((workload.submitted_s, result.ended_s)))[1:]  # the first is no look
    said = backlogs_in_plain_words(workload, result, predicted, moments)
    np.testing.assert_allclose(guard.told[1:], said, rtol=1e-9, atol=1e-6)
    for job in range(len(workload)):
        past = [value for value, moment in zip(said, moments, strict=True) if moment <= result.started_s[job]]
        cycle_s = workload.submitted_s[job] + max(20, share * max(past, default=0))
        running = (result.started_s <= cycle_s) & (result.ended_s > cycle_s)
        ahead = (np.arange(len(workload)) < job) & (result.started_s > cycle_s)
        assert result.started_s[job] <= cycle_s + 1 + workload.run_time_s[running | ahead].sum()


def test_a_job_counts_less_the_longer_it_has_waited():
    """Both of 200 s: one that fades goes first by what is left to it, one that does not when it is promoted."""
    # One job at a time; the second is ten times as long as those that follow and would go last.
    rows = [(0, 100, 8), (1, 100, 8), *((second, 10, 8) for second in range(2, 22))]
    believed = [100.0, 100.0, *[10.0] * 20]
    fades, stays = (
        starts(rows, believed=believed, guard=Backlog(least_s=200, share=0, every_s=1, fades=fades))
        for fades in (True, False)
    )
    # At 160 it has 41 of its 200 s left and counts 100 x .042, the others, with at most 57 left, 10 x .08 and less.
    # At 190 it has 11 left and counts .3, the least of the others, with 29 left, .2; at 200 1 left, and .0025 to .09.
    assert stays[1] == 210
    assert fades[1] == 200
    assert sorted(fades[2:]) == [*range(100, 200, 10), *range(300, 400, 10)]


class Fixed:
    """Says of each job what it was made with."""

    def __init__(self, quantiles_s):
        self.quantiles_s = quantiles_s

    def ended(self, jobs, ended_s):
        pass

    def submitted(self, jobs, now_s):
        return in_columns(self.quantiles_s[jobs])


@given(rows=JOBS, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_the_backlog_goes_by_expected_run_times_and_not_by_medians(rows, seed):
    workload, guard = a_workload(sorted(rows)), Noting(least_s=20, every_s=1)
    quantiles_s = np.sort(np.exp(np.random.default_rng(seed).normal(2, 2, (len(workload), 3))), axis=1)
    result = replay(
        workload,
        a_shape((2, 8)),
        backfill=Backfill.NONE,
        order=shortest_service_first,
        predictor=Fixed(quantiles_s),
        guard=guard,
    )
    moments = np.unique(np.concatenate((workload.submitted_s, result.ended_s)))[1:]
    expected_s = quantiles_s @ np.array([0.25, 0.5, 0.25])
    said = backlogs_in_plain_words(workload, result, expected_s, moments)
    np.testing.assert_allclose(guard.told[1:], said, rtol=1e-9, atol=1e-6)


def test_a_job_counts_less_by_the_square_of_what_is_left_to_it():
    # One job at a time, and one of ten times the run time beside a stream of short ones that have just come.
    rows = [(0, 100, 8), (1, 100, 8), *((second, 10, 8) for second in range(92, 302, 10))]
    believed = [100.0, 100.0, *[10.0] * 21]
    started = starts(rows, believed=believed, guard=Backlog(least_s=200, share=0, every_s=1))
    # At 150, with .255 of its 200 s left, it counts 6.5, a short one with .96 left 9.2; at 140 it was 9.3. Linearly
    # it would be at 190.
    assert started[1] == 150


@given(rows=JOBS, slack=st.lists(st.integers(0, 60), min_size=40, max_size=40), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_with_time_limits_a_reservation_of_nodes_keeps_the_bound_whatever_is_predicted(rows, slack, seed):
    workload = a_workload(sorted(rows))
    limit_s = workload.run_time_s + np.array(slack[: len(workload)])
    patience_s, longest_s = 30, int(limit_s.max())
    result = replay(
        workload,
        a_shape((3, 8)),
        backfill=Backfill.NODES,
        order=shortest_service_first,
        predictor=Absurd(seed),
        estimate_s=limit_s,
        predict_again_s=7,
        guard=WaitBound.constant(patience_s),
        reservation=Reservation(closed=True),
    )
    for job in range(len(workload)):
        cycle_s = workload.submitted_s[job] + patience_s
        ahead = (np.arange(len(workload)) < job) & (result.started_s > cycle_s)
        assert result.started_s[job] <= cycle_s + (int(ahead.sum()) + 2) * longest_s
