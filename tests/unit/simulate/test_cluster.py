"""The simulated cluster: the same timeline as a replay, and the same door as a real cluster."""

import copy
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.actions import JobSetting, Place, PowerDown, PowerUp, Reorder, Result, Revert, SoftLimit
from helios.errors import JobLargerThanPartition, UsageError, WorkloadInvalid
from helios.model import NODE_STATES, QUEUE, plain_values
from helios.simulate import Backfill, Predictions, SimCluster, Sleep, replay
from helios.simulate.ageing import first_in_first_out
from helios.testing import check_cluster
from tests.changes import asked, asked_of_nodes
from tests.examples import examples
from tests.run_times import in_columns

from .builders import a_busy_cluster, a_shape, a_sim_cluster, a_workload, jobs_of


def an_order(**urgencies):
    """Build a Reorder of jobs written as job1=0.5."""
    ranked = sorted(urgencies.items(), key=lambda item: -item[1])
    places = (Place(job_id=name.removeprefix("job"), urgency=urgency, reason="why") for name, urgency in ranked)
    return Reorder(partition="a", order=tuple(places), reason="why")


def a_soft_limit(job_id, seconds):
    return SoftLimit(job_id=job_id, run_time=timedelta(seconds=seconds), reason="why")


def results(outcomes):
    return [(outcome.job_id, outcome.result) for outcome in outcomes]


def run_out(cluster):
    """Let everything happen, and return each job's start."""
    while (moment := cluster.next_event_s()) is not None:
        cluster.advance(moment)
    return cluster.started_s.tolist()


def pending_ids(cluster):
    return cluster.snapshot().pending["job_id"].tolist()


workloads = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(1, 8), st.integers(0, 1)), max_size=25
).map(sorted)
stops = st.lists(st.integers(0, 300), max_size=12).map(sorted)


@settings(max_examples=examples(37), deadline=None)
@given(rows=workloads, stops=stops, backfill=st.sampled_from(Backfill))
def test_wherever_the_clock_is_stopped_the_timeline_is_that_of_the_replay(rows, stops, backfill):
    workload, shape = a_workload(rows), a_shape((1, 8), (2, 4))
    whole = replay(workload, shape, backfill=backfill, order=first_in_first_out, estimate_s=workload.run_time_s)
    cluster = a_sim_cluster(rows, shape, backfill=backfill)
    for stop in stops:
        if stop >= cluster.now_s:
            cluster.advance(stop)
    assert run_out(cluster) == whole.started_s.tolist()
    assert cluster.ended_s.tolist() == whole.ended_s.tolist()
    assert sorted(cluster.ended) == list(range(len(rows)))


def test_it_keeps_the_contract_of_a_cluster():
    check_cluster(a_busy_cluster)


def test_ends_and_arrivals_of_a_second_come_before_starts():
    cluster = a_sim_cluster([(0, 10, 8), (5, 10, 8), (10, 10, 1)])
    cluster.advance(10)
    snapshot = cluster.snapshot()
    assert (snapshot.running.empty, snapshot.pending["job_id"].tolist()) == (True, ["1", "2"])
    assert cluster.next_event_s() == 20
    assert cluster.snapshot().running["job_id"].tolist() == ["1"]


def test_what_is_done_at_a_moment_counts_for_who_starts_then():
    cluster = a_sim_cluster([(0, 10, 8), (5, 10, 8), (10, 10, 8)])
    cluster.advance(10)
    cluster.apply(asked([an_order(job2=0.5)]))
    assert run_out(cluster) == [0, 20, 10]


def test_a_reorder_while_nothing_ends_can_start_a_job_at_once():
    # Six GPUs run; a job of eight blocks the queue for one that would delay it, until that one goes first.
    cluster = a_sim_cluster([(0, 100, 6), (1, 10, 8), (2, 500, 2)])
    cluster.advance(50)
    assert pending_ids(cluster) == ["1", "2"]
    cluster.apply(asked([an_order(job2=0.5)]))
    assert run_out(cluster) == [0, 550, 50]


def test_jobs_of_equal_urgency_stay_in_order_of_submission():
    cluster = a_busy_cluster(pending=4)
    cluster.apply(asked([an_order(job4=0.5, job3=0.5)]))
    assert pending_ids(cluster) == ["3", "4", "1", "2"]


def test_a_negative_urgency_goes_behind_those_that_nobody_named():
    cluster = a_busy_cluster(pending=3)
    cluster.apply(asked([an_order(job1=-0.2)]))
    assert pending_ids(cluster) == ["2", "3", "1"]


def test_urgencies_are_counted_in_the_steps_of_a_site_factor():
    cluster = a_busy_cluster(site_factor_most=1_037)
    cluster.apply(asked([an_order(job1=0.57, job2=0.04, job3=-0.96)]))
    seen = cluster.snapshot().pending.set_index("job_id")
    assert seen["urgency"].loc[["1", "2", "3"]].tolist() == [0.6, 0.0, -1.0]
    assert (seen["priority"] - seen["priority"]["4"]).loc[["1", "2", "3"]].tolist() == [637, 0, -1037]


def test_what_already_is_so_is_unchanged_and_the_rest_is_done():
    cluster = a_busy_cluster()
    cluster.apply(asked([an_order(job1=0.5)]))
    outcomes = cluster.apply(asked([an_order(job1=0.5, job2=0.3, job3=0.0)]))
    assert results(outcomes) == [("1", Result.UNCHANGED), ("2", Result.DONE), ("3", Result.UNCHANGED)]
    assert (outcomes[1].before, outcomes[1].after) == ("urgency 0", "urgency 0.303")


@pytest.mark.parametrize("job", ["0", "nobody"])
def test_jobs_that_run_or_are_not_there_are_gone(job):
    (outcome,) = a_busy_cluster().apply(asked([a_soft_limit(job, 60)]))
    assert outcome.result is Result.GONE


def test_a_job_submitted_later_is_not_in_the_snapshot():
    cluster = a_sim_cluster([(0, 10, 8), (5, 10, 8)])
    cluster.advance(4)
    assert results(cluster.apply(asked([an_order(job1=0.5)]))) == [("1", Result.GONE)]
    assert pending_ids(cluster) == []


def test_a_job_that_has_ended_is_gone():
    cluster = a_sim_cluster([(0, 10, 8)])
    cluster.advance(10)
    assert results(cluster.apply(asked([an_order(job0=0.5)]))) == [("0", Result.GONE)]
    assert cluster.snapshot().running.empty


def test_a_held_job_is_refused_and_starts_after_its_release():
    cluster = a_sim_cluster([(0, 10, 8), (1, 10, 8), (2, 10, 8)])
    cluster.advance(2)
    cluster.hold("1")
    (outcome,) = cluster.apply(asked([an_order(job1=0.5)]))
    assert (outcome.result, outcome.remark) == (Result.REFUSED, "held")
    seen = cluster.snapshot().pending
    assert seen["job_id"].tolist() == ["2", "1"]
    assert (seen["excluded_reason"].tolist()[1], seen["priority"].tolist()[1]) == ("held", 0)
    cluster.advance(15)
    cluster.release("1")
    assert cluster.snapshot().pending["excluded_reason"].isna().all()
    assert run_out(cluster) == [0, 20, 10]


def test_holding_the_head_lets_those_behind_it_start_at_once():
    cluster = a_sim_cluster([(0, 100, 6), (1, 10, 8), (2, 500, 2)])
    cluster.advance(50)
    cluster.hold("1")
    assert run_out(cluster)[2] == 50


def test_a_value_on_a_held_job_counts_when_it_is_released():
    cluster = a_busy_cluster(pending=3)
    cluster.apply(asked([an_order(job2=0.5, job3=0.5)]))
    cluster.hold("2")
    cluster.hold("3")
    assert results(cluster.apply(asked([Revert(job_ids=("2",), setting=JobSetting.ORDER, reason="why")]))) == [
        ("2", Result.DONE)
    ]
    cluster.release("2")
    cluster.release("3")
    assert pending_ids(cluster) == ["3", "1", "2"]


@pytest.mark.parametrize("job", ["0", "nobody"])
def test_only_pending_jobs_can_be_held(job):
    with pytest.raises(UsageError, match="not pending"):
        a_busy_cluster().hold(job)


def test_a_job_can_be_held_once_and_released_once():
    cluster = a_busy_cluster()
    cluster.hold("1")
    with pytest.raises(UsageError, match="held already"):
        cluster.hold("1")
    cluster.release("1")
    with pytest.raises(UsageError, match="is not held"):
        cluster.release("1")


def test_a_component_of_a_heterogeneous_job_is_left_alone():
    cluster = a_busy_cluster(pending=2, columns={"het_job_id": [None, "77", None]})
    assert results(cluster.apply(asked([an_order(job1=0.5, job2=0.4)]))) == [("1", Result.REFUSED), ("2", Result.DONE)]


def test_a_soft_limit_changes_the_plan_and_no_run_time():
    # Job 2 would pass the blocked head if backfill knew that it runs for 50 s and not for its limit of 500 s.
    rows, limits = [(0, 100, 7), (1, 10, 8), (2, 50, 1)], {"time_limit_s": [100.0, 10.0, 500.0]}
    alone, helped = (a_sim_cluster(rows, columns=limits, estimates_s=[100, 10, 500]) for _ in range(2))
    helped.advance(2)
    assert results(helped.apply(asked([a_soft_limit("2", 60)]))) == [("2", Result.DONE)]
    assert (run_out(alone), run_out(helped)) == ([0, 100, 110], [0, 100, 2])
    assert helped.ended_s.tolist()[2] == 52


def test_a_soft_limit_taken_back_is_planned_with_no_more():
    rows, limits = [(0, 100, 7), (1, 10, 8), (2, 50, 1)], {"time_limit_s": [100.0, 10.0, 500.0]}
    cluster = a_sim_cluster(rows, columns=limits, estimates_s=[100, 10, 500])
    cluster.advance(2)
    cluster.apply(asked([a_soft_limit("2", 60)]))
    cluster.apply(asked([Revert(setting=JobSetting.SOFT_LIMIT, reason="why")]))
    assert run_out(cluster) == [0, 100, 110]


def test_a_soft_limit_that_is_no_shorter_than_the_limit_is_refused():
    cluster = a_busy_cluster()
    assert results(cluster.apply(asked([a_soft_limit("1", 7_200)]))) == [("1", Result.REFUSED)]
    assert cluster.snapshot().pending["soft_limit_s"].isna().all()


def test_a_full_restore_leaves_the_order_of_the_site():
    cluster = a_busy_cluster(pending=4)
    cluster.apply(asked([an_order(job3=0.5), a_soft_limit("4", 660)]))
    outcomes = cluster.apply(asked([Revert(reason="why")]))
    assert [(o.job_id, o.setting, o.result) for o in outcomes] == [
        ("3", JobSetting.ORDER, Result.DONE),
        ("4", JobSetting.SOFT_LIMIT, Result.DONE),
    ]
    assert pending_ids(cluster) == ["1", "2", "3", "4"]


def test_nodes_and_places_show_who_runs_where():
    cluster = a_sim_cluster([(0, 10, 12), (0, 10, 2)], a_shape((3, 8)))
    cluster.advance(0)
    cluster.next_event_s()
    snapshot = cluster.snapshot()
    assert snapshot.nodes["state"].tolist() == ["ALLOCATED", "MIXED", "IDLE"]
    assert snapshot.nodes["gpus_held"].tolist() == [8, 6, 0]
    assert snapshot.running["node_list"].tolist() == ["a1,a2", "a2"]


def test_a_cluster_of_cpus_shows_cpus():
    workload, shape = a_workload([(0, 10, 3)]), a_shape((1, 8))
    jobs = jobs_of(workload, shape, gpus=0)
    cluster = SimCluster(workload, shape, jobs, estimates_s=workload.run_time_s, resource="cpus")
    cluster.advance(0)
    cluster.next_event_s()
    nodes, running = cluster.snapshot().nodes, cluster.snapshot().running
    assert (nodes["cpus"].tolist(), nodes["cpus_held"].tolist(), nodes["gpus"].tolist()) == ([8], [3], [0])
    assert (running["cpus"].tolist(), running["gpus"].tolist()) == ([3], [0])


def test_predictions_stand_in_the_rows_of_their_jobs():
    cluster = a_busy_cluster(pending=2)
    cluster.apply(asked([an_order(job2=0.5)]))
    run_times = in_columns([[np.nan] * 3, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    told = Predictions(run_times=run_times, source=np.array([-1, 0, 1], dtype=np.int16), sources=["m0", "m1"])
    seen = cluster.snapshot_with(told).pending
    assert seen[["job_id", "p10_s", "p90_s", "source"]].to_numpy().tolist() == [
        ["2", 4.0, 6.0, "m1"],
        ["1", 1.0, 3.0, "m0"],
    ]


def a_snapshot_with_everything():
    """Look at a cluster where jobs are held, moved, limited and predicted."""
    cluster = a_busy_cluster(pending=4)
    cluster.apply(asked([an_order(job2=0.5, job3=-0.4), a_soft_limit("4", 660)]))
    cluster.hold("1")
    told = Predictions(
        run_times=in_columns(np.arange(15.0).reshape(5, 3)),
        source=np.array([0, 1, -1, 0, 1], dtype=np.int16),
        sources=["a", "b"],
    )
    return cluster, cluster.snapshot_with(told)


def test_what_is_seen_has_the_declared_columns_and_types():
    for snapshot in (a_sim_cluster([]).snapshot(), a_busy_cluster().snapshot(), a_snapshot_with_everything()[1]):
        assert list(QUEUE.check(snapshot.pending)) == list(QUEUE.check(snapshot.running)) == QUEUE.names
        NODE_STATES.check(snapshot.nodes)


@pytest.mark.parametrize("name", QUEUE.names)
def test_a_column_asked_for_alone_says_what_the_frame_says(name):
    _, snapshot = a_snapshot_with_everything()
    alone = snapshot.pending_values(name)
    framed = plain_values(snapshot.pending[name])
    assert alone.dtype == framed.dtype
    assert pd.Series(alone).equals(pd.Series(framed))


def a_sleeping_cluster():
    """Return a cluster that holds jobs on several nodes, and has nodes asleep, waking, excluded and kept awake."""
    sleep = Sleep(boot_s=300, shutdown_s=120, keep_awake=("a6",))
    cluster = a_sim_cluster([(0, 900, 20), (0, 400, 2), (0, 900, 2)], a_shape((7, 8)), sleep=sleep)
    cluster.advance(0)
    cluster.next_event_s()
    cluster.steer(asked_of_nodes([PowerDown(node="a4", reason=""), PowerDown(node="a5", reason="")]))
    cluster.advance(200)
    cluster.next_event_s()
    cluster.steer(asked_of_nodes([PowerUp(node="a5", reason=""), PowerDown(node="a7", reason="")]))
    cluster.fill([["a1"], ["a2", "a3"]])
    cluster.forbid("a6", why="drained")
    return cluster


@pytest.mark.parametrize("name", QUEUE.names)
def test_a_column_of_running_jobs_says_what_the_frame_says(name):
    snapshot = a_sleeping_cluster().snapshot()
    alone, framed = snapshot.running_values(name), plain_values(snapshot.running[name])
    assert alone.dtype == framed.dtype
    assert pd.Series(alone).equals(pd.Series(framed))


@pytest.mark.parametrize("name", NODE_STATES.names)
def test_a_column_of_nodes_says_what_the_frame_says(name):
    snapshot = a_sleeping_cluster().snapshot()
    alone, framed = snapshot.node_values(name), plain_values(snapshot.nodes[name])
    assert alone.dtype == framed.dtype
    assert pd.Series(alone).equals(pd.Series(framed))


def test_columns_of_nodes_are_those_of_the_cluster():
    snapshot = a_sleeping_cluster().snapshot()
    powers = ["awake", "awake", "awake", "asleep", "waking", "awake", "falling asleep"]
    flags = [None, None, None, "POWERED_DOWN", "POWERING_UP", None, "POWERING_DOWN"]
    assert snapshot.node_values("power").tolist() == powers
    assert [flag if isinstance(flag, str) else None for flag in snapshot.node_values("flags")] == flags
    assert snapshot.node_values("state").tolist() == ["ALLOCATED"] * 3 + ["IDLE"] * 4
    assert snapshot.node_values("kept_awake").tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert snapshot.node_values("weight").tolist() == [1, 2, 2, 1, 1, 1, 1]
    assert snapshot.node_values("excluded_reason")[5] == "drained"
    assert snapshot.running_values("node_list").tolist() == ["a1,a2,a3", "a3", "a3"]


def test_columns_of_a_snapshot_with_other_nodes_and_running_jobs_are_theirs():
    snapshot = a_sleeping_cluster().snapshot()
    other = replace(snapshot, nodes=snapshot.nodes.iloc[:1], running=snapshot.running.iloc[1:])
    assert other.node_values("name").tolist() == ["a1"]
    assert other.running_values("gpus").tolist() == [2, 2]


def test_columns_stay_as_they_were_when_time_goes_on():
    cluster = a_sleeping_cluster()
    seen = cluster.snapshot()
    cluster.steer(asked_of_nodes([PowerUp(node="a4", reason="")]))
    run_out(cluster)
    assert seen.node_values("power").tolist()[3] == "asleep"
    assert len(seen.running_values("node_list")) == 3


def test_what_was_seen_stays_so_whatever_happens_before_somebody_looks():
    early, (cluster, late) = a_snapshot_with_everything()[1], a_snapshot_with_everything()
    frames = (early.pending, early.running, early.nodes)
    cluster.release("1")
    cluster.apply(asked([an_order(job2=-0.9, job3=0.9), a_soft_limit("3", 600)]))
    run_out(cluster)
    for framed_then, framed_now in zip(frames, (late.pending, late.running, late.nodes), strict=True):
        pd.testing.assert_frame_equal(framed_then, framed_now)
    assert late.pending_values("urgency").tolist() == early.pending["urgency"].tolist()


def test_a_service_cannot_change_the_snapshot_of_the_next_one():
    cluster = a_busy_cluster(pending=2)
    spoilt = cluster.snapshot()
    spoilt.pending.loc[:, ["gpus", "user", "name"]] = [77, "alice", "spoilt"]
    spoilt.nodes.loc[:, "gpus"] = 77
    seen = cluster.snapshot()
    assert seen.pending["gpus"].max() < 77
    assert seen.nodes["gpus"].max() < 77
    assert set(seen.pending["name"]) == {"train"}


def test_a_snapshot_with_other_jobs_in_it_shows_those():
    _, snapshot = a_snapshot_with_everything()
    other = replace(snapshot, pending=snapshot.pending.iloc[:1])
    assert other.pending_values("job_id").tolist() == other.pending["job_id"].tolist() == ["2"]
    assert copy.deepcopy(snapshot).pending_values("job_id").tolist() == snapshot.pending["job_id"].tolist()


@settings(max_examples=examples(25), deadline=None)
@given(rows=workloads, backfill=st.sampled_from([Backfill.SKIP, Backfill.EASY, Backfill.NODES]))
def test_a_choice_and_the_jobs_that_wait_are_what_counting_them_says(rows, backfill):
    estimates_s = [row[1] // 2 for row in rows]
    cluster = a_sim_cluster(rows, a_shape((1, 8), (2, 4)), backfill=backfill, estimates_s=estimates_s)
    while (moment := cluster.next_event_s()) is not None:
        cluster.advance(moment)
        snapshot = cluster.snapshot()
        waiting = [row for n, row in enumerate(rows) if row[0] <= moment and cluster.started_s[n] > moment]
        taken = snapshot.running.groupby("partition", observed=False)["gpus"].sum()
        free = [8 - taken.get("a", 0), 8 - taken.get("b", 0)]
        mates = Counter(partition for *_, partition in waiting)
        fit = [row for row in waiting if row[2] <= free[row[3]] and (mates[row[3]] > 1 or row[0] < moment)]
        assert cluster.has_choice() == bool(fit)
        assert len(snapshot.pending) == len(waiting)


def test_an_id_that_was_used_again_gets_a_number():
    workload, shape = a_workload([(0, 10, 8), (1, 10, 8), (2, 10, 8)]), a_shape((1, 8))
    workload.job_id[:] = "7"
    cluster = SimCluster(workload, shape, jobs_of(workload, shape), estimates_s=workload.run_time_s)
    cluster.advance(5)
    assert cluster.snapshot().running["job_id"].tolist() == ["7"]
    cluster.apply(asked([Reorder(partition="a", order=(Place(job_id="7-3", urgency=1, reason="why"),), reason="why")]))
    assert run_out(cluster) == [0, 20, 10]


def test_one_job_that_came_alone_is_no_choice():
    cluster = a_sim_cluster([(0, 10, 8), (1, 10, 4), (2, 10, 4), (30, 10, 1)])
    seen = []
    while (moment := cluster.next_event_s()) is not None:
        cluster.advance(moment)
        seen.append((moment, cluster.has_choice()))
    assert seen == [(0, False), (1, False), (2, False), (10, True), (20, False), (30, False), (40, False)]


def test_two_jobs_that_come_in_one_second_are_a_choice():
    cluster = a_sim_cluster([(0, 10, 8), (0, 10, 8)])
    cluster.advance(0)
    assert cluster.has_choice()


def test_one_job_that_has_waited_is_a_choice_too():
    cluster = a_sim_cluster([(0, 10, 8), (1, 10, 4)])
    run = []
    while (moment := cluster.next_event_s()) is not None:
        cluster.advance(moment)
        run.append(cluster.has_choice())
    assert run == [False, False, True, False]


def halts(cluster, **stops):
    """Let time go on until all is over, and return where it stopped."""
    seen = []
    while (halt := cluster.advance_to_decision(**stops)) is not None:
        seen.append((halt.moment_s, halt.before, halt.choice))
    return seen


def test_time_goes_on_by_itself_from_one_arrival_to_the_next():
    cluster = a_sim_cluster([(0, 10, 8), (1, 10, 4), (2, 10, 4), (30, 10, 1)])
    assert [moment for moment, *_ in halts(cluster)] == [0, 1, 2, 30]
    assert cluster.ended_s.tolist() == [10, 20, 20, 40]


def test_time_stops_where_a_service_may_choose():
    rows = [(0, 10, 8), (1, 10, 4), (2, 10, 4), (30, 10, 1)]
    assert (10, False, True) in halts(a_sim_cluster(rows), choices_from_s=10)
    assert (10, False, True) not in halts(a_sim_cluster(rows), choices_from_s=11)


def test_an_alarm_rings_only_after_a_moment_with_a_choice():
    # At 10 one job starts and another, which would fit but for the reservation, goes on waiting.
    rows = [(0, 10, 8), (1, 100, 7), (2, 50, 8), (3, 500, 1)]
    rung = halts(a_sim_cluster(rows, estimates_s=[10, 100, 50, 500]), choices_from_s=25, alarm_from_s=25)
    assert (25, False, True) in rung
    assert all(moment != 25 for moment, *_ in halts(a_sim_cluster(rows[:1]), choices_from_s=25, alarm_from_s=25))


def test_an_alarm_outlasts_a_stop_for_those_who_wait():
    rows = [(0, 10, 8), (1, 100, 7), (2, 50, 8), (3, 500, 1)]
    cluster = a_sim_cluster(rows, estimates_s=[10, 100, 50, 500])
    halt = cluster.advance_to_decision(
        arrivals=False, choices_from_s=25, alarm_from_s=25, again_s=12
    )  # set at 10, where a job ends
    assert (halt.before, halt.alarm_s) == (True, 25)
    halt = cluster.advance_to_decision(arrivals=False, choices_from_s=25, alarm_s=halt.alarm_s, alarm_from_s=25)
    assert (halt.moment_s, halt.choice) == (25, True)


def test_before_a_moment_nothing_of_it_has_happened():
    cluster = a_sim_cluster([(0, 10, 8), (20, 10, 8)])
    cluster.advance_to_decision()
    halt = cluster.advance_to_decision(before_s=7)
    assert (halt.moment_s, halt.before, len(cluster.ended), cluster.now_s) == (10, True, 0, 0)
    halt = cluster.advance_to_decision()
    assert (halt.moment_s, halt.before, len(cluster.ended), cluster.arrived) == (20, False, 1, 2)


def test_arrivals_are_no_stops_where_nobody_asks_for_them():
    rows = [(0, 10, 8), (1, 10, 4), (2, 10, 4), (30, 10, 1)]
    assert halts(a_sim_cluster(rows), arrivals=False) == []
    assert halts(a_sim_cluster(rows), arrivals=False, choices_from_s=0) == [(10, False, True)]


def test_a_stop_for_those_who_wait_is_put_off_while_nobody_does():
    alone = a_sim_cluster([(0, 10, 8), (20, 10, 8), (21, 10, 8)])
    halt = alone.advance_to_decision(arrivals=False, again_s=5, again_every_s=7)  # put off at 10 to 17, and at 20 to 27
    assert (halt.moment_s, halt.before, halt.again_s) == (30, True, 27)
    queued = a_sim_cluster([(0, 10, 8), (1, 10, 8)])
    halt = queued.advance_to_decision(arrivals=False, again_s=5, again_every_s=7)
    assert (halt.moment_s, halt.before, halt.again_s) == (10, True, 5)


def test_wishing_by_position_says_how_many_jobs_ended_in_each_way():
    order = an_order(job1=0.5, job2=0.25, job77=0.1)
    told, counted = a_busy_cluster(), a_busy_cluster()
    for _ in range(2):
        outcomes = told.apply(asked([order]))
        assert counted.change(*counted.ranked(order)) == Counter(outcome.result for outcome in outcomes)
        assert pending_ids(counted) == pending_ids(told)


def test_urgencies_are_not_rounded_where_the_site_factor_has_no_bound():
    cluster = a_busy_cluster(site_factor_most=None)
    cluster.apply(asked([an_order(job1=0.123456789012345, job2=-1e-12)]))
    assert cluster.snapshot().pending.set_index("job_id")["urgency"].loc[["1", "2"]].tolist() == [
        0.123456789012345,
        -1e-12,
    ]
    assert pending_ids(cluster)[-1] == "2"


def test_the_clock_does_not_go_back():
    cluster = a_busy_cluster()
    with pytest.raises(UsageError, match="cannot go back"):
        cluster.advance(99)


def test_what_cannot_be_simulated_is_refused():
    workload, shape = a_workload([(0, 10, 9)]), a_shape((1, 8))
    jobs = jobs_of(workload, shape)
    with pytest.raises(JobLargerThanPartition):
        SimCluster(workload, shape, jobs, estimates_s=workload.run_time_s)
    with pytest.raises(WorkloadInvalid):
        SimCluster(workload, a_shape((2, 8)), jobs.iloc[:0], estimates_s=workload.run_time_s)
    with pytest.raises(UsageError, match="site_factor_most"):
        SimCluster(workload, a_shape((2, 8)), jobs, estimates_s=workload.run_time_s, site_factor_most=100)


def test_an_empty_workload_is_an_idle_cluster():
    cluster = a_sim_cluster([])
    assert cluster.next_event_s() is None
    assert (cluster.snapshot().nodes["state"] == "IDLE").all()
