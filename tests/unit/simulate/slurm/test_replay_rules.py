"""Does each rule of Slurm do what the manual, or its source, says?"""

import dataclasses

import numpy as np
import pytest

from helios.errors import JobLargerThanPartition, PartitionUnknown, WorkloadInvalid
from helios.model.slurm_site import NodeGroup, PartitionRules, QosRules
from helios.simulate.slurm import SlurmTimeline, replay_slurm, startable
from tests.unit.simulate.slurm.builders import AT_ONCE, a_site, a_workload

MINUTE = 60


def started(site, workload, **options):
    return replay_slurm(workload, site, latency=AT_ONCE, **options).started_s.tolist()


def priorities(site, workload):
    """Return the priority of each job at its submission."""
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    timeline.advance(float(workload.submitted_s[-1]), leave_due=True)
    return timeline.result().priority.tolist()


# Priority.


def test_the_priority_is_the_sum_of_weighted_factors_cut_off():
    site = a_site(
        nodes=4,
        cpus=8,
        partitions=(
            PartitionRules(name="p", nodes=("n0", "n1", "n2", "n3"), priority_job_factor=5),
            PartitionRules(name="q", nodes=("n0",), priority_job_factor=10),
        ),
        priority={"age": 1000, "job_size": 100, "partition": 70, "qos": 30, "tres": {"CPU": 40}},
        qos=(QosRules(name="low", priority=1), QosRules(name="high", priority=3)),
    )
    workload = a_workload([(0, 1, 3)], partitions=("p", "q"), qos_names=("low",), qos=[0], nice=[7], site_factor=[1000])
    # Size (1/4 + 3/32) / 2, partition 5/10, QOS 1/3, CPUs 3/32, nothing for age.
    assert priorities(site, workload) == [int(100 * (1 / 4 + 3 / 32) / 2 + 35 + 10 + 40 * 3 / 32 + 1000 - 7)]


def test_no_priority_is_below_one():
    assert priorities(a_site(), a_workload([(0, 1)], nice=[5000])) == [1]


def test_age_counts_from_eligibility_and_only_each_calculation_period():
    site = a_site(priority={"age": 1000, "max_age_s": 1000, "calc_period_s": 300}, scheduling={"backfill": False})
    workload = a_workload([(0, 5000, 8, 6000), (0, 1, 8), (10, 1, 8)], eligible_s=[0.0, 0.0, 200.0])
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    timeline.advance(230.0)
    assert timeline.result().priority.tolist()[1:] == [1, 1]
    # Priorities are made anew each 300 s from the controller's start at -60.
    timeline.advance(240.0)
    assert timeline.result().priority.tolist()[1:] == [int(1000 * 240 / 1020), int(1000 * 40 / 1020)]


def test_equal_priorities_go_by_submission_then_id():
    site = a_site(scheduling={"backfill": False})
    times = started(site, a_workload([(0, 10, 8), (1, 10, 8), (1, 10, 8)]))
    assert times == sorted(times)


def test_priority_tier_goes_before_priority():
    partitions = (
        PartitionRules(name="p", nodes=("n0",), priority_tier=1),
        PartitionRules(name="q", nodes=("n0",), priority_tier=2),
    )
    rows = [(0, 100, 8, MINUTE * 9), (1, 10, 8, MINUTE), (2, 10, 8, MINUTE)]
    workload = a_workload(rows, partitions=("p", "q"), partition=[0, 0, 1], site_factor=[0, 100_000, 0])
    times = started(a_site(partitions=partitions), workload)
    assert times[2] < times[1]


def test_a_site_factor_set_while_a_job_waits_moves_it():
    site = a_site(scheduling={"backfill": False})
    workload = a_workload([(0, 100, 8), (1, 10, 8), (2, 10, 8)])

    plain = started(site, workload)
    assert plain[1] < plain[2]
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    timeline.advance(timeline.now_s + 30.0, leave_due=True)
    timeline.set_site_factor(np.array([2]), np.array([500]))
    timeline.advance()
    steered = timeline.result().started_s
    assert steered[2] < steered[1]


# The main scheduler.


def test_a_job_that_cannot_start_closes_its_partition_and_its_nodes():
    partitions = (
        PartitionRules(name="p", nodes=("n0", "n1")),
        PartitionRules(name="q", nodes=("n1",)),
        PartitionRules(name="r", nodes=("n2",)),
    )
    site = a_site(nodes=3, partitions=partitions, scheduling={"backfill": False})
    rows = [(0, 100, 8, 600), (1, 10, 16, 600), (2, 10, 4, 600), (2, 10, 4, 600), (2, 10, 4, 600)]
    workload = a_workload(rows, partitions=("p", "q", "r"), partition=[0, 0, 0, 1, 2], nodes=[1, 2, 1, 1, 1])
    times = started(site, workload)
    # The second needs both nodes: nobody may have n1, neither in its partition nor in the one that shares it.
    assert min(times[2:4]) >= times[1] + 10
    assert times[4] == 2.0


def test_a_job_whose_nodes_another_partition_keeps_closes_its_own():
    partitions = (PartitionRules(name="p", nodes=("n0", "n1")), PartitionRules(name="q", nodes=("n1", "n2")))
    site = a_site(nodes=3, partitions=partitions, scheduling={"backfill": False})
    rows = [(0, 100, 8, 600), (1, 10, 16, 600), (2, 10, 16, 600), (3, 10, 4, 600)]
    workload = a_workload(rows, partitions=("p", "q"), partition=[0, 0, 1, 1], nodes=[1, 2, 2, 1])
    times = started(site, workload)
    # n1 is kept for the second; the third needs it too, so that the last does not get n2, which nobody uses.
    assert times[3] >= times[2] >= 110.0


def test_only_a_quick_pass_stops_at_its_depth():
    limited = QosRules(name="limited", max_jobs_per_user=1)
    site = a_site(qos=(limited,), scheduling={"backfill": False, "default_queue_depth": 2}, partitions=None)
    # Five jobs that a limit holds stand before one that could start; three are looked at.
    workload = a_workload([(0, 300, 1), *[(1, 1, 1)] * 5, (2, 1, 1)], qos_names=("limited",), qos=[*[0] * 6, -1])
    shallow = started(site, workload)[-1]
    deep = started(a_site(qos=(limited,), scheduling={"backfill": False}), workload)[-1]
    assert deep == 2.0
    assert shallow == pytest.approx(60.0, abs=1.0)


def test_ends_wait_for_the_background_loop_where_there_is_no_epilog():
    workload = a_workload([(0, 9.5, 8), (1, 10, 8)])
    with_epilog = started(a_site(scheduling={"backfill": False}), workload)
    without = started(a_site(scheduling={"backfill": False, "epilog": False, "batch_sched_delay_s": 3}), workload)
    assert with_epilog[1] == pytest.approx(9.5)
    assert without[1] == 10.0


# Backfill.


def test_backfill_starts_what_ends_before_the_planned_start_and_nothing_else():
    site = a_site(nodes=2, cpus=8)
    rows = [
        (0, 600, 8, 10 * MINUTE),
        (1, 60, 16, 10 * MINUTE),  # needs both nodes, planned for 600
        (2, 400, 8, 8 * MINUTE),  # ends before that
        (3, 400, 8, 30 * MINUTE),  # does not
    ]
    workload = a_workload(rows, nodes=[1, 2, 1, 1])
    replay = replay_slurm(workload, site, latency=AT_ONCE)
    assert replay.backfilled.tolist() == [False, False, True, False]
    assert replay.started_s[1] == pytest.approx(600.0, abs=1.0)
    assert replay.planned_s[1] == pytest.approx(600.0, abs=60.0)
    assert replay.started_s[3] > replay.started_s[1]


def test_a_job_beyond_the_window_reserves_nothing():
    rows = [(0, 7200, 8, 7200), (1, 60, 16, MINUTE), (2, 60, 8, 10 * 7200)]
    workload = a_workload(rows, nodes=[1, 2, 1])
    near, far = (started(a_site(nodes=2, scheduling={"bf_window_s": window}), workload) for window in (86_400, 3600))
    assert near[2] > near[1]
    assert far[2] < 60


def test_a_planned_start_is_never_later_than_running_limits_say():
    # While limits hold, nothing of lower priority delays the plan of a job: it starts by its first planned start.
    rng = np.random.default_rng(4)
    n_jobs = 120
    site = a_site(nodes=4, cpus=8, scheduling={"bf_interval_s": 5, "bf_resolution_s": 1})
    run = rng.integers(20, 900, n_jobs)
    rows = list(zip(np.sort(rng.integers(0, 9000, n_jobs)), run, rng.integers(1, 9, n_jobs), run + 60, strict=True))
    timeline = SlurmTimeline(a_workload(rows), site, latency=AT_ONCE)
    head, promised, kept = -1, np.inf, 0
    while timeline.is_going():
        timeline.advance(timeline.now_s + 1.0)
        waiting = timeline.pending()
        replay = timeline.result()
        if len(waiting) and waiting[0] != head:
            if head >= 0 and np.isfinite(promised):
                assert replay.started_s[head] <= promised + 60.0
                kept += 1
            head, promised = waiting[0], np.inf
        if len(waiting) and not np.isfinite(promised) and np.isfinite(replay.planned_s[head]):
            promised = replay.planned_s[head]
    assert kept > 10


def test_planned_ends_are_rounded_down_to_the_tolerance():
    rows = [(5, 600, 8, 10 * MINUTE), (6, 100, 8, 2 * MINUTE), (7, 100, 8, 2 * MINUTE)]
    timeline = SlurmTimeline(a_workload(rows), a_site(scheduling={"bf_resolution_s": 60}), latency=AT_ONCE)
    timeline.advance(120.0)
    # From 605 to 725 by the limits; the slot ends at 720.
    assert timeline.result().planned_s[1:].tolist() == [605.0, 720.0]


def a_wait_for_both_nodes(*, second_is_idle):
    """Build: one node is full, the other idle or not; one job waits for both, a short one comes at 107.3 s."""
    rows = [(0, 900, 8, 15 * MINUTE), (0, 900, 4, 15 * MINUTE), (1, 60, 16, MINUTE), (107.3, 30, 4, MINUTE)]
    kept = [0, 2, 3] if second_is_idle else [0, 1, 2, 3]
    return a_workload([rows[row] for row in kept], nodes=[[1, 1, 2, 1][row] for row in kept])


def test_backfill_waits_for_news_not_for_its_interval_where_nothing_was_updated():
    times = started(a_site(nodes=2), a_wait_for_both_nodes(second_is_idle=False))
    # Its thread has looked each second since 60 s.
    assert times[-1] == 108.0


@pytest.mark.parametrize(("calc_period_s", "seen_s"), [(60, 120.0), (600, 540.0)])
def test_new_priorities_are_news_and_a_begin_time_that_passes_is_none(calc_period_s, seen_s):
    rows = [(0, 900, 8, 15 * MINUTE), (0, 900, 4, 15 * MINUTE), (1, 60, 16, MINUTE), (2, 30, 4, MINUTE)]
    workload = a_workload(rows, nodes=[1, 1, 2, 1], eligible_s=[0.0, 0.0, 1.0, 107.3])
    site = a_site(nodes=2, priority={"calc_period_s": calc_period_s}, scheduling={"sched_interval_s": 3600})
    # Priorities are made anew each period from the controller's start at -60.
    assert started(site, workload)[-1] == seen_s


def test_a_plan_with_an_idle_node_brings_the_next_backfill_pass():
    site, workload = a_site(nodes=2), a_wait_for_both_nodes(second_is_idle=True)
    assert started(site, workload)[-1] == 4 * 30.0
    slow = dataclasses.replace(AT_ONCE, backfill_s=2.0, backfill_job_s=1.5)
    # Each begins 30 s after the end of the one before: the first, at 2 s, and what takes 2 s and 1.5 s for who waits.
    assert replay_slurm(workload, site, latency=slow).started_s[-1] == 2 + 4 * (30 + 2 + 1.5)


def test_time_min_shortens_a_job_to_fit_unless_it_is_soft():
    rows = [(0, 600, 8, 10 * MINUTE), (1, 60, 16, MINUTE), (2, 900, 8, 20 * MINUTE)]
    workload = a_workload(rows, nodes=[1, 2, 1], time_min_s=[0.0, 0.0, 2.0 * MINUTE])
    hard, soft = (
        replay_slurm(workload, a_site(nodes=2, scheduling={"time_min_is_soft": is_soft}), latency=AT_ONCE)
        for is_soft in (False, True)
    )
    assert hard.started_s[2] < 60
    assert soft.started_s[2] < 60
    # Cut to what was left until the planned start, in whole minutes; the soft one lasts, and delays the plan.
    assert hard.ended_s[2] - hard.started_s[2] == 9 * MINUTE
    assert soft.ended_s[2] - soft.started_s[2] == 900
    assert hard.started_s[1] == pytest.approx(600.0, abs=2.0)
    assert soft.started_s[1] > 900


# Limits, sizes, arrays.


def test_a_job_ends_at_its_time_limit_rounded_up_to_minutes():
    replay = replay_slurm(a_workload([(0, 500, 1, 61)]), a_site(), latency=AT_ONCE)
    assert replay.ended_s[0] - replay.started_s[0] == 120


def test_a_job_without_a_limit_gets_the_default_of_its_partition():
    partitions = (PartitionRules(name="p", nodes=("n0",), max_time_s=3600, default_time_s=300),)
    replay = replay_slurm(a_workload([(0, 5000)]), a_site(partitions=partitions), latency=AT_ONCE)
    assert replay.ended_s[0] - replay.started_s[0] == 300


@pytest.mark.parametrize(
    ("limit", "together"), [({"max_gpus_per_user": 3}, 1), ({"max_gpus": 4}, 2), ({"max_jobs_per_user": 1}, 1)]
)
def test_limits_of_a_qos_hold_jobs_back_without_blocking_others(limit, together):
    qos = (QosRules(name="limited", **limit),)
    site = a_site(nodes=2, gpus=8, qos=qos)
    rows = [(0, 100, 1, 120)] * 4 + [(1, 10, 1, 60)]
    workload = a_workload(
        rows, gpus=[2] * 5, qos_names=("limited",), qos=[0, 0, 0, 0, -1], users=("u", "v"), user=[0, 0, 0, 0, 1]
    )
    times = started(site, workload)
    assert sum(time < 50 for time in times[:4]) == together
    assert times[4] < 5


def test_a_partition_qos_goes_before_the_jobs_own():
    qos = (QosRules(name="part", max_jobs_per_user=2), QosRules(name="own", max_jobs_per_user=1))
    partitions = (PartitionRules(name="p", nodes=("n0",), qos="part"),)
    workload = a_workload([(0, 100, 1, 120)] * 3, qos_names=("own",), qos=[0] * 3)
    times = started(a_site(partitions=partitions, qos=qos), workload)
    assert sum(time < 50 for time in times) == 2


def test_a_pending_array_is_one_record_to_the_depth_counters():
    scheduling = {"backfill": False, "default_queue_depth": 1, "sched_interval_s": 600}
    rows = [(0, 100, 8, 120), *[(1, 300, 8, 600)] * 5, (2, 10, 4, 60)]
    partitions = (PartitionRules(name="p", nodes=("n0",)), PartitionRules(name="q", nodes=("n1",)))
    common = {"partitions": ("p", "q"), "partition": [0] * 6 + [1]}
    site = a_site(nodes=2, partitions=partitions, scheduling=scheduling)
    as_array = started(site, a_workload(rows, array=[-1, 7, 7, 7, 7, 7, -1], **common))
    alone = started(site, a_workload(rows, **common))
    assert as_array[-1] == 2.0
    assert alone[-1] > 2.0


def test_tasks_of_an_array_start_one_after_the_other_in_one_pass():
    times = started(a_site(cpus=8), a_workload([(0, 100, 2)] * 4, array=[3] * 4))
    assert times == [0.0] * 4


def test_a_job_goes_to_whichever_of_its_partitions_has_room():
    partitions = (PartitionRules(name="p", nodes=("n0",)), PartitionRules(name="q", nodes=("n1",)))
    workload = a_workload([(0, 100, 8), (1, 10, 8)], partitions=("p", "q"), partition=[0, 0], more_partitions={1: (1,)})
    replay = replay_slurm(workload, a_site(nodes=2, partitions=partitions), latency=AT_ONCE)
    assert replay.partition.tolist() == [0, 1]
    assert replay.started_s[1] == 1.0


def test_gpu_types_weights_and_memory_decide_where_a_job_runs():
    nodes = (
        NodeGroup(names=("big",), cpus=8, memory_mib=100, gpus={"a100": 4}, weight=10),
        NodeGroup(names=("small",), cpus=8, memory_mib=50, gpus={"v100": 4}, weight=1),
    )
    partitions = (PartitionRules(name="p", nodes=("big", "small")),)
    site = a_site(partitions=partitions, holds_memory=True)
    site = type(site)(
        nodes=nodes, partitions=partitions, scheduling=site.scheduling, priority=site.priority, holds_memory=True
    )
    workload = a_workload(
        [(0, 100)] * 3,
        gpus=[1, 1, 1],
        gpu_types=("a100", "v100"),
        gpu_type=[-1, 0, -1],
        memory_mib=[10, 10, 60],
    )
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    timeline.advance(1.0)
    replay = timeline.result()
    assert [replay.node_names[node] for node in replay.node] == ["small", "big", "big"]


def test_an_exclusive_partition_gives_whole_nodes():
    partitions = (PartitionRules(name="p", nodes=("n0",), exclusive=True),)
    times = started(a_site(partitions=partitions), a_workload([(0, 50, 1, 60), (0, 50, 1, 60)]))
    assert times == [0.0, 50.0]


def test_least_loaded_nodes_go_first_where_the_site_says_so():
    workload = a_workload([(0, 100, 2), (1, 100, 2)])
    nodes = []
    for least_loaded in (False, True):
        timeline = SlurmTimeline(workload, a_site(nodes=2, least_loaded=least_loaded), latency=AT_ONCE)
        timeline.advance(5.0)
        nodes.append(timeline.result().node.tolist())
    assert nodes == [[0, 0], [0, 1]]


# What cannot be.


def test_jobs_that_could_never_start_are_refused_and_can_be_left_out():
    site, workload = a_site(cpus=8), a_workload([(0, 1, 8), (0, 1, 9)])
    with pytest.raises(JobLargerThanPartition, match="1 jobs could never start, as job 1"):
        replay_slurm(workload, site)
    assert startable(workload, site).tolist() == [True, False]
    assert len(workload.kept(startable(workload, site))) == 1


def test_an_unknown_partition_is_refused():
    with pytest.raises(PartitionUnknown, match="gone"):
        replay_slurm(a_workload([(0, 1)], partitions=("gone",)), a_site())


def test_a_workload_out_of_order_is_refused():
    with pytest.raises(WorkloadInvalid, match="submitted before"):
        a_workload([(5, 1), (0, 1)])


def test_a_job_that_no_limit_lets_start_waits_for_ever():
    qos = (QosRules(name="none", max_jobs_per_user=0),)
    times = started(a_site(qos=qos), a_workload([(0, 1), (0, 1)], qos_names=("none",), qos=[0, -1]))
    assert np.isnan(times[0])
    assert times[1] == 0.0


def test_a_replay_in_steps_is_the_same_as_one_at_once():
    rng = np.random.default_rng(1)
    rows = [
        (at, int(run), int(cpus))
        for at, run, cpus in zip(range(0, 400, 4), rng.integers(1, 300, 100), rng.integers(1, 9, 100), strict=True)
    ]
    site, workload = a_site(nodes=2, priority={"age": 100}), a_workload(rows)
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    while timeline.is_going():
        timeline.advance(timeline.now_s + 7.3)
    assert timeline.result().started_s.tolist() == started(site, workload)
