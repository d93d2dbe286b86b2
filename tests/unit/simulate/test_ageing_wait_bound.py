"""What a bound on waiting does to a replay, in single claims and under absurd predictions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.services.qssf import shortest_service_first
from helios.simulate import Backfill, Reservation, WaitBound, replay
from helios.simulate.ageing import first_in_first_out, shortest_job_first
from tests.examples import examples
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


def test_without_a_bound_a_job_believed_long_waits_for_all_others():
    assert starts(QUEUE, believed=BELIEVED) == [0, 40, 10, 20, 30]


@pytest.mark.parametrize(("bound_s", "start"), [(8, 10), (9, 20), (18, 20), (19, 30), (29, 40)])
def test_a_job_that_has_waited_longer_than_the_bound_goes_first(bound_s, start):
    assert starts(QUEUE, believed=BELIEVED, guard=WaitBound.constant(bound_s))[1] == start


def test_among_the_promoted_the_first_submitted_goes_first():
    rows = [(0, 10, 8), (1, 10, 8), (2, 10, 8), (3, 10, 8)]
    assert starts(rows, believed=[10, 7, 9, 1], guard=WaitBound.constant(5)) == [0, 10, 20, 30]


def test_a_bound_holds_from_its_time_on_and_not_before():
    guard = WaitBound(at_s=np.array([15]), bound_s=np.array([0]))
    assert starts(QUEUE, believed=BELIEVED, guard=guard)[1] == 20


def test_who_was_promoted_stays_so_when_the_bound_rises():
    rows = [(0, 10, 4), (0, 30, 4), (1, 10, 8), (2, 10, 4), (11, 10, 4)]
    guard = WaitBound(at_s=np.array([0, 15]), bound_s=np.array([5, 10**6]))
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


@pytest.mark.parametrize(
    ("at_s", "bound_s"), [([1, 2], [5]), ([2, 1], [5, 5]), ([1], [-1])], ids=["length", "descending", "negative"]
)
def test_what_is_no_step_function_is_refused(at_s, bound_s):
    with pytest.raises(UsageError, match="step function"):
        WaitBound(at_s=np.array(at_s, dtype=np.int64), bound_s=np.array(bound_s, dtype=np.int64))


def test_srtf_takes_no_bound_on_waits():
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
    bound_s=st.integers(0, 100),
    seed=st.integers(0, 2**32 - 1),
    again_s=st.none() | st.integers(1, 50),
)
@settings(max_examples=examples(50), deadline=None)
def test_nobody_waits_longer_than_the_bound_and_the_work_ahead(rows, bound_s, seed, again_s):
    workload = a_workload(sorted(rows))
    result = replay(
        workload,
        ONE_NODE,
        backfill=Backfill.NONE,
        order=shortest_service_first,
        predictor=Absurd(seed),
        predict_again_s=again_s,
        guard=WaitBound.constant(bound_s),
    )
    # From its turn on, only what ran then and what was submitted before it can be in its way, one after the other.
    for job in range(len(workload)):
        cycle_s = workload.submitted_s[job] + bound_s
        running = (result.started_s <= cycle_s) & (result.ended_s > cycle_s)
        ahead = (np.arange(len(workload)) < job) & (result.started_s > cycle_s)
        assert result.started_s[job] <= cycle_s + 1 + workload.run_time_s[running | ahead].sum()


def test_only_the_bound_limits_the_longest_wait_under_wrong_predictions():
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


JOBS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(1, 16)), min_size=1, max_size=40)


@given(rows=JOBS, slack=st.lists(st.integers(0, 60), min_size=40, max_size=40), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20), deadline=None)
def test_with_time_limits_a_reservation_keeps_the_bound_under_any_prediction(rows, slack, seed):
    workload = a_workload(sorted(rows))
    limit_s = workload.run_time_s + np.array(slack[: len(workload)])
    bound_s, longest_s = 30, int(limit_s.max())
    result = replay(
        workload,
        a_shape((3, 8)),
        backfill=Backfill.NODES,
        order=shortest_service_first,
        predictor=Absurd(seed),
        estimate_s=limit_s,
        predict_again_s=7,
        guard=WaitBound.constant(bound_s),
        reservation=Reservation(closed=True),
    )
    for job in range(len(workload)):
        cycle_s = workload.submitted_s[job] + bound_s
        ahead = (np.arange(len(workload)) < job) & (result.started_s > cycle_s)
        assert result.started_s[job] <= cycle_s + (int(ahead.sum()) + 2) * longest_s
