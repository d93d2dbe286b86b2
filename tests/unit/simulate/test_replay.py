"""Single claims about a replay that a person can check with a pencil."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.services.qssf import shortest_service_first
from helios.simulate import ORDERS, Backfill, Reservation, WaitBound, replay
from helios.simulate.ageing import fewest_gpus_first, first_in_first_out, shortest_job_first
from tests.examples import examples
from tests.run_times import in_columns

from .builders import a_shape, a_workload

NONE, SKIP, EASY, NODES = Backfill


def starts(rows, shape, *, backfill=NONE, order=first_in_first_out, estimates=None, **options):
    workload = a_workload(rows)
    estimate_s = workload.run_time_s if estimates is None else np.array(estimates, dtype=np.int64)
    told = {"run_time_s": workload.run_time_s.astype(np.float64), "estimate_s": estimate_s}
    result = replay(workload, shape, backfill=backfill, order=order, **{**told, **options})
    return result.started_s.tolist()


def test_a_blocked_head_blocks_a_strict_queue():
    assert starts([(0, 9, 6), (1, 9, 6), (2, 9, 1)], a_shape((1, 8))) == [0, 9, 9]


def test_skipping_lets_a_small_job_pass_a_blocked_head():
    assert starts([(0, 9, 6), (1, 9, 6), (2, 9, 1)], a_shape((1, 8)), backfill=SKIP) == [0, 9, 2]


def test_easy_lets_a_job_pass_that_ends_before_the_head_can_start():
    assert starts([(0, 9, 6), (1, 9, 8), (2, 7, 1)], a_shape((1, 8)), backfill=EASY) == [0, 9, 2]


def test_easy_holds_a_job_back_that_would_delay_the_head():
    assert starts([(0, 9, 6), (1, 9, 8), (2, 8, 1)], a_shape((1, 8)), backfill=EASY) == [0, 9, 18]


def test_easy_gives_the_extra_gpus_away_once():
    rows = [(0, 9, 6), (1, 9, 7), (2, 99, 1), (3, 99, 1)]
    assert starts(rows, a_shape((1, 8)), backfill=EASY) == [0, 9, 2, 18]


def test_easy_holds_long_jobs_back_for_a_head_that_only_fragmentation_blocks():
    # 2 + 3 GPUs are free for a head of 5; the first end, at 5, makes them 6.
    rows = [(0, 9, 5), (0, 9, 5), (0, 5, 1), (1, 9, 5), (2, 4, 2), (2, 3, 2)]
    assert starts(rows, a_shape((2, 8)), backfill=EASY)[3:] == [9, 5, 2]


def test_easy_extends_an_estimate_that_proved_too_small():
    # The running job, expected to end at 2, is there at 10: it was granted 3, 4, 5, 6, 7, 9, and now 11 s.
    rows = [(0, 50, 6), (1, 9, 8), (10, 1, 1), (10, 4, 1)]
    assert starts(rows, a_shape((1, 8)), backfill=EASY, estimates=[2, 9, 1, 4]) == [0, 50, 10, 59]


# Two nodes, three GPUs free on each; the first node is free at 9, the second at 50, and the head needs a whole one.
DRAINING = [(0, 9, 5), (0, 50, 5), (1, 9, 8)]


def test_easy_may_give_a_long_job_a_node_of_the_head():
    assert starts([*DRAINING, (2, 99, 1)], a_shape((2, 8)), backfill=EASY)[2:] == [50, 2]


def test_nodes_puts_a_long_job_beside_the_node_that_the_head_needs():
    assert starts([*DRAINING, (2, 99, 1)], a_shape((2, 8)), backfill=NODES)[2:] == [9, 2]


def test_nodes_holds_a_long_job_back_that_has_no_other_place():
    assert starts([*DRAINING, (2, 99, 3), (2, 99, 2)], a_shape((2, 8)), backfill=NODES)[2:] == [9, 2, 18]


def test_nodes_lets_a_job_that_ends_in_time_use_what_is_reserved():
    assert starts([*DRAINING, (2, 99, 3), (2, 7, 3)], a_shape((2, 8)), backfill=NODES)[2:] == [9, 2, 2]


@pytest.mark.parametrize(("closed", "second"), [(False, 2), (True, 5)])
def test_nodes_reserved_for_a_promoted_head_are_closed_to_short_jobs(closed, second):
    rows = [*DRAINING, (2, 3, 3), (2, 3, 3)]
    options = {"guard": WaitBound.constant(0), "reservation": Reservation(closed=closed)}
    assert starts(rows, a_shape((2, 8)), backfill=NODES, **options)[3:] == [2, second]


@pytest.mark.parametrize(("idle_gpus", "head"), [(2, 50), (3, 9), (None, 9)])
def test_no_more_gpus_are_held_idle_for_a_head_than_may_be(idle_gpus, head):
    reservation = Reservation(idle_gpus=idle_gpus)
    assert starts([*DRAINING, (2, 99, 1)], a_shape((2, 8)), backfill=NODES, reservation=reservation)[2] == head


def test_a_job_past_its_estimate_is_expected_to_last_30_percent_longer():
    rows = [(0, 50, 6), (1, 9, 8), (10, 3, 1), (10, 4, 1)]
    assert starts(rows, a_shape((1, 8)), backfill=NODES, estimates=[2, 9, 3, 4]) == [0, 50, 10, 59]


def test_a_negative_number_of_idle_gpus_is_refused():
    with pytest.raises(UsageError, match="idle_gpus is -1"):
        Reservation(idle_gpus=-1)


def test_a_job_goes_to_the_fullest_node_that_fits():
    rows = [(0, 9, 3), (0, 9, 6), (1, 9, 2), (2, 9, 5)]
    assert starts(rows, a_shape((2, 8)))[3] == 2


def test_scattered_gpus_do_not_make_a_whole_node():
    assert starts([(0, 9, 5), (0, 9, 5), (1, 1, 4)], a_shape((2, 8))) == [0, 0, 9]


def test_a_large_job_takes_whole_nodes_and_a_rest_elsewhere():
    assert starts([(0, 9, 12), (0, 9, 4), (1, 9, 1)], a_shape((2, 8))) == [0, 0, 9]


def test_partitions_do_not_wait_for_each_other():
    assert starts([(0, 9, 8, 0), (0, 9, 8, 0), (1, 9, 8, 1)], a_shape((1, 8), (1, 8))) == [0, 9, 1]


def test_jobs_of_no_length_follow_each_other_in_the_same_second():
    assert starts([(3, 0, 8), (3, 0, 8), (3, 0, 8)], a_shape((1, 8))) == [3, 3, 3]


def test_times_before_1970_are_times_like_any_other():
    assert starts([(-9, 4, 8), (-8, 4, 8)], a_shape((1, 8))) == [-9, -5]


@pytest.mark.parametrize(
    ("order", "first"),
    [(first_in_first_out, 1), (shortest_job_first, 2), (shortest_service_first, 3), (fewest_gpus_first, 4)],
)
def test_each_order_starts_its_own_first(order, first):
    rows = [(0, 100, 8), (1, 50, 8), (2, 10, 8), (3, 30, 2), (4, 70, 1)]
    waiting = starts(rows, a_shape((1, 8)), order=order)[1:]
    assert waiting[first - 1] == 100


def test_ties_go_by_submit_time_then_job_id():
    rows = [(0, 10, 8), (1, 5, 8), (1, 5, 8), (2, 5, 8)]
    assert starts(rows, a_shape((1, 8)), order=fewest_gpus_first) == [0, 10, 15, 20]


def srtf(rows, shape, backfill=NONE):
    return replay(a_workload(rows), shape, backfill=backfill, order=shortest_job_first, preemptive=True)


def test_srtf_stops_a_longer_job_and_keeps_its_work():
    assert srtf([(0, 10, 8), (4, 3, 8)], a_shape((1, 8))).ended_s.tolist() == [13, 7]


def test_srtf_lets_a_job_of_equal_remaining_time_run_on():
    assert srtf([(0, 10, 8), (4, 6, 8)], a_shape((1, 8))).ended_s.tolist() == [10, 16]


def test_srtf_stops_nobody_if_that_would_not_make_room():
    assert srtf([(0, 4, 4), (0, 90, 4), (1, 10, 8)], a_shape((1, 8))).ended_s.tolist() == [4, 100, 14]


def test_the_wait_under_srtf_counts_all_time_without_running():
    assert srtf([(0, 10, 8), (4, 3, 8)], a_shape((1, 8))).wait_s.tolist() == [3, 0]


def test_busy_gpu_seconds_are_gpus_times_run_time():
    assert srtf([(0, 10, 8), (4, 3, 2)], a_shape((1, 8))).busy_gpu_s == 86


def test_progress_ends_with_all_jobs():
    heard = []
    starts([(0, 10, 8), (1, 5, 8)], a_shape((1, 8)), progress=heard.append)
    assert heard[-1] == 2


class Oracle:
    def __init__(self, quantiles):
        self.quantiles = in_columns(quantiles)

    def ended(self, jobs, ended_s):
        pass

    def submitted(self, jobs, now_s):
        return self.quantiles[jobs]

    def waiting(self, jobs, now_s, *, running, since_s):
        return self.quantiles[jobs]


@pytest.mark.parametrize(("quantile", "start"), [(0.1, 2), (0.5, 2), (0.9, 18)])
def test_easy_plans_with_the_chosen_quantile(quantile, start):
    workload = a_workload([(0, 9, 6), (1, 9, 8), (2, 3, 1)])
    predictor = Oracle([(9, 9, 9), (9, 9, 9), (6.5, 6.9, 7.1)])
    result = replay(
        workload, a_shape((1, 8)), backfill=EASY, order=first_in_first_out, predictor=predictor, plan_quantile=quantile
    )
    assert result.started_s[2] == start


def test_the_scores_that_were_used_are_returned():
    predictor = Oracle([(1, 2, 3.2), (4, 5, 6)])
    result = replay(
        a_workload([(0, 9, 6), (1, 9, 8)]),
        a_shape((1, 8)),
        backfill=EASY,
        order=shortest_job_first,
        predictor=predictor,
    )
    assert (result.believed_s.tolist(), result.estimate_s.tolist()) == ([2, 5], [4, 6])


def test_a_prediction_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="no finite"):
        starts([(0, 9, 6)], a_shape((1, 8)), predictor=Oracle([(1, np.nan, 3)]), run_time_s=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backfill": EASY, "estimate_s": None}, "backfill easy needs estimates"),
        ({"backfill": NODES, "estimate_s": None}, "backfill nodes needs estimates"),
        ({"backfill": EASY, "reservation": Reservation()}, "reserves no nodes"),
        ({"order": shortest_job_first, "preemptive": True, "backfill": NODES}, "SRTF preempts"),
        ({"order": shortest_job_first, "run_time_s": None}, "goes by run time, and some jobs have none"),
        ({"order": shortest_job_first, "preemptive": True, "backfill": EASY}, "SRTF preempts"),
        ({"order": first_in_first_out, "preemptive": True}, "SRTF goes by remaining"),
        ({"order": shortest_job_first, "preemptive": True, "run_time_s": np.array([1.0])}, "SRTF goes by remaining"),
        ({"order": shortest_job_first, "preemptive": True, "predictor": Oracle([(1, 2, 3)])}, "SRTF knows"),
        ({"plan_quantile": 0.8}, "plan_quantile is 0.8"),
        ({"estimate_s": np.array([-1])}, "1 estimates are negative"),
        ({"run_time_s": np.array([1.0, 2.0])}, "2 run times"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        starts([(0, 9, 6)], a_shape((1, 8)), **options)


def test_an_endless_estimate_is_like_a_very_long_one():
    longest = np.iinfo(np.int64).max
    rows = [(0, 9, 6), (1, 9, 8), (2, 7, 1)]
    assert starts(rows, a_shape((1, 8)), backfill=EASY, estimates=[longest] * 3) == [0, 9, 18]


def crowds(shortest=0):
    row = st.tuples(st.integers(0, 60), st.integers(shortest, 40), st.integers(1, 12))
    return st.lists(row, min_size=1, max_size=30).map(sorted)


def occupied(rows, result, now):
    """Return the GPUs in use at ``now``."""
    spans = zip(rows, result.started_s, result.ended_s, strict=True)
    return sum(row[2] for row, start, end in spans if start <= now < end)


@given(rows=crowds(), backfill=st.sampled_from(Backfill), order=st.sampled_from(sorted(ORDERS)))
@settings(max_examples=examples(60), deadline=None)
def test_no_more_gpus_are_used_than_there_are(rows, backfill, order):
    workload = a_workload(rows)
    result = replay(
        workload,
        a_shape((3, 4)),
        backfill=backfill,
        order=ORDERS[order],
        run_time_s=workload.run_time_s.astype(np.float64),
        estimate_s=workload.run_time_s,
    )
    assert all(occupied(rows, result, now) <= 12 for now in result.started_s)


@given(rows=crowds())
@settings(max_examples=examples(60), deadline=None)
def test_a_strict_queue_starts_in_its_order(rows):
    assert np.all(np.diff(starts(rows, a_shape((3, 4)))) >= 0)


@given(rows=crowds())
@settings(max_examples=examples(60), deadline=None)
def test_skipping_leaves_no_job_waiting_beside_gpus_that_would_do(rows):
    # With one GPU a node placement cannot fail where the number suffices.
    result = replay(a_workload(rows), a_shape((12, 1)), backfill=SKIP, order=first_in_first_out)
    for (submitted, _, gpus), start in zip(rows, result.started_s, strict=True):
        assert all(occupied(rows, result, now) + gpus > 12 for now in range(submitted, start))


@given(rows=crowds(shortest=1))  # a job of no length cannot be expected to end now, only at the next second
@settings(max_examples=examples(60), deadline=None)
def test_easy_with_true_run_times_starts_no_head_later_than_first_promised(rows):
    # With one GPU a node the count is exact, so that the promise can be told from who held what at that time.
    workload = a_workload(rows)
    result = replay(workload, a_shape((12, 1)), backfill=EASY, order=first_in_first_out, estimate_s=workload.run_time_s)
    began, ended = result.started_s.tolist(), result.ended_s.tolist()
    for head, (submitted, _, gpus) in enumerate(rows):
        since = max([submitted, *began[:head]])
        if began[head] > since:
            ahead = [i for i, start in enumerate(began) if start < since or (start == since and i < head)]
            promised = min(
                t for t in ended if t > since and 12 - sum(rows[i][2] for i in ahead if ended[i] > t) >= gpus
            )
            assert began[head] <= promised
