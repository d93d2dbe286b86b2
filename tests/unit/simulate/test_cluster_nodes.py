"""Nodes that sleep and wake, job by job and second by second as in the plain event loop."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.actions import KeepAwake, NodeSetting, PowerDown, PowerUp, Result, RevertNodes
from helios.errors import UsageError
from helios.metrics.spare_nodes import AwakeRule
from helios.model import STEP_S, NodePower
from helios.simulate import Backfill, Placement, SimCluster, Sleep, replay
from helios.simulate.ageing import first_in_first_out
from tests.changes import asked_of_nodes
from tests.examples import examples

from .builders import a_busy_cluster, a_shape, a_sim_cluster, a_workload, jobs_of
from .crowds import clusters_with_jobs
from .sleeping_reference import Sleepers

thorough = settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def name_of(partition, number):
    return f"{'abc'[partition]}{number + 1}"


@st.composite
def steering(draw, shape):
    """Draw (second, what, node or tiers): what somebody asks for, whether it can be done or not."""
    nodes = [(p, n) for p, count in enumerate(shape.nodes.tolist()) for n in range(count)]
    one = st.sampled_from(nodes)
    second = st.integers(0, 60)
    power = st.tuples(second, st.sampled_from(["down", "down", "up"]), one)
    kept = st.tuples(second, st.just("keep"), st.lists(one, max_size=3))
    fill = st.tuples(second, st.just("fill"), st.lists(one, max_size=4, unique=True))
    asked = draw(st.lists(st.one_of(power, power, kept, fill), max_size=25))
    return sorted(asked, key=lambda it: it[0])


def asked_of_cluster(what, about):
    if what == "down":
        return PowerDown(node=name_of(*about), reason="why")
    if what == "up":
        return PowerUp(node=name_of(*about), reason="why")
    return KeepAwake(nodes=tuple(sorted({name_of(*node) for node in about})), reason="why")


def asked_of_reference(what, about):
    def done(sleepers, now):
        if what in ("down", "up"):
            node = sleepers.nodes[about[0]][about[1]]
            if what == "down" and node.power == "awake" and node.free == node.size:
                sleepers.fall(node, now)
            if what == "up" and node.power == "asleep":
                sleepers.wake(node, now)
        elif what == "keep":
            for partition, nodes in enumerate(sleepers.nodes):
                for node in nodes:
                    node.kept = (partition, node.number) in about
        else:
            for tier, (partition, number) in enumerate(about):
                sleepers.nodes[partition][number].weight = 1 + tier

    return done


@pytest.mark.parametrize("placement", list(Placement))
@pytest.mark.parametrize("backfill", list(Backfill))
@given(data=st.data(), case=clusters_with_jobs())
@thorough
def test_jobs_and_nodes_do_as_in_the_reference(backfill, placement, data, case):
    shape, workload, estimate = case
    boot, shutdown = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 12))
    timer = data.draw(st.sampled_from([None, None, 1, 4, 15]))
    asked = data.draw(steering(shape))
    sleep = Sleep(boot_s=boot, shutdown_s=shutdown, idle_timer_s=timer)
    cluster = SimCluster(
        workload,
        shape,
        jobs_of(workload, shape),
        estimates_s=estimate,
        backfill=backfill,
        placement=placement,
        seed=3,
        sleep=sleep,
    )
    asked = [it for it in asked if it[0] >= cluster.now_s]
    for second in sorted({it[0] for it in asked}):
        cluster.advance(second)
        for what, about in (it[1:] for it in asked if it[0] == second):
            if what == "fill":
                cluster.fill([[name_of(*node)] for node in about])
            else:
                cluster.steer(asked_of_nodes([asked_of_cluster(what, about)]))
    while (moment := cluster.next_event_s()) is not None:
        cluster.advance(moment)
    until = max(cluster.now_s, 61) + 1
    cluster.advance(until)
    model = Sleepers(
        workload,
        shape,
        estimate,
        backfill=str(backfill),
        placement=str(placement),
        seed=3,
        boot=boot,
        shutdown=shutdown,
        timer=timer,
    )
    first = int(workload.submitted_s[0])
    for nodes in model.nodes:
        for node in nodes:
            node.idle_since = first - 1
    commands = [(second, asked_of_reference(what, about)) for second, what, about in asked]
    model.play(commands, until)
    assert cluster.started_s.tolist() == [job.start for job in model.jobs]
    assert cluster.ended_s.tolist() == [job.end for job in model.jobs]
    assert cluster.late_s.tolist() == [job.start - job.given for job in model.jobs]
    assert_counted_alike(cluster, model, shape, until)


@st.composite
def awake_rules(draw, shape):
    """Draw a rule for each partition, all checked at the same times."""
    every = draw(st.sampled_from([1, 3, 10]))
    return tuple(
        AwakeRule(
            memory_s=every * draw(st.integers(0, 8)),
            spare=draw(st.integers(0, 3)),
            wakes=draw(st.sampled_from(["ahead", "ahead", "short", "never"])),
            every_s=every,
            least_idle_s=draw(st.sampled_from([0, 0, 5])),
            counts_use=draw(st.sampled_from([True, True, False])),
        )
        for _ in range(len(shape.nodes))
    )


@pytest.mark.parametrize("placement", list(Placement))
@given(data=st.data(), case=clusters_with_jobs())
@thorough
def test_rules_for_nodes_awake_act_as_in_the_reference(placement, data, case):
    shape, workload, estimate = case
    boot, shutdown = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 12))
    rules = data.draw(awake_rules(shape))
    cluster = SimCluster(
        workload,
        shape,
        jobs_of(workload, shape),
        estimates_s=estimate,
        placement=placement,
        seed=3,
        sleep=Sleep(boot_s=boot, shutdown_s=shutdown, rules=rules),
    )
    run_out(cluster)
    until = cluster.now_s + 1
    cluster.advance(until)
    model = Sleepers(
        workload,
        shape,
        estimate,
        backfill=str(Backfill.EASY),
        placement=str(placement),
        seed=3,
        boot=boot,
        shutdown=shutdown,
        timer=None,
        rules=rules,
    )
    for nodes in model.nodes:
        for node in nodes:
            node.idle_since = int(workload.submitted_s[0]) - 1
    model.play([], until)
    assert cluster.started_s.tolist() == [job.start for job in model.jobs]
    assert_counted_alike(cluster, model, shape, until)


def assert_counted_alike(cluster, model, shape, until):
    tally, first = cluster.tally(), int(cluster.busy_nodes(1)[0])
    assert (tally.sleeps, tally.wakes) == (model.sleeps, model.wakes)
    assert tally.delays == sum(job.start > job.given for job in model.jobs)
    for partition, (name, seconds) in enumerate(tally.seconds.items()):
        counted = Counter(model.seconds[partition])
        # The model counts from second 0 on, the cluster from the one before the first submission.
        counted["awake"] -= (first - 1) * int(shape.nodes[partition])
        assert seconds.busy == counted["busy"], name
        assert seconds.idle == counted["awake"], name
        assert seconds.asleep == counted["asleep"], name
        assert seconds.falling_asleep == counted["falling"], name
        assert seconds.waking == counted["waking"], name
        assert seconds.gpus_busy == counted["gpus"], name
    _, most, mean = cluster.busy_nodes(1)
    assert most.tolist() == [held[first:until] for held in model.holding]
    assert (most == mean).all()


SLEEP = Sleep(boot_s=300, shutdown_s=120)


def a_sleeper(rows, shape=None, **options):
    """Build a cluster of whose nodes every one sleeps; the clock stands at 1,000."""
    cluster = a_sim_cluster([(0, 1, 1), *rows], shape or a_shape((3, 8)), **{"sleep": SLEEP} | options)
    cluster.advance(500)
    cluster.steer(asked_of_nodes([PowerDown(node=node, reason="why") for node in cluster.snapshot().nodes["name"]]))
    cluster.advance(1_000)
    return cluster


def powers(cluster):
    return cluster.snapshot().nodes["power"].tolist()


def run_out(cluster):
    while (moment := cluster.next_event_s()) is not None:
        cluster.advance(moment)


def test_a_job_gets_a_sleeping_node_and_runs_once_it_is_up():
    cluster = a_sleeper([(2_000, 50, 4)])
    cluster.advance(2_000)
    cluster.next_event_s()
    assert powers(cluster) == [NodePower.WAKING, NodePower.ASLEEP, NodePower.ASLEEP]
    running = cluster.snapshot().running
    assert running["job_id"].tolist() == ["1"]
    assert running["started_at"].iloc[0].timestamp() == 2_000
    run_out(cluster)
    assert (cluster.started_s[1], cluster.ended_s[1], cluster.late_s[1]) == (2_300, 2_350, 300)


def test_a_second_job_shares_a_waking_node():
    cluster = a_sleeper([(2_000, 50, 4), (2_100, 50, 4)])
    run_out(cluster)
    assert cluster.started_s[2] == 2_300
    assert cluster.tally().wakes == 1


def test_awake_nodes_are_filled_before_sleeping_ones_whatever_their_weight():
    cluster = a_sleeper([(2_000, 50, 8)])
    cluster.steer(asked_of_nodes([PowerUp(node="a3", reason="why")]))
    cluster.fill([["a1"], ["a2"], ["a3"]])
    run_out(cluster)
    assert (cluster.started_s[1], cluster.tally().wakes) == (2_000, 1)


def test_a_job_waits_for_the_last_of_its_nodes():
    cluster = a_sleeper([(2_000, 50, 24)])
    cluster.steer(asked_of_nodes([PowerUp(node="a1", reason="why")]))
    cluster.advance(1_900)
    run_out(cluster)
    assert cluster.late_s[1] == 300
    assert cluster.tally().short_node_s == 2 * 300


def test_a_node_that_falls_asleep_is_used_once_it_sleeps():
    cluster = a_sim_cluster([(0, 1, 1), (600, 50, 8)], a_shape((1, 8)), sleep=SLEEP)
    cluster.advance(550)
    cluster.steer(asked_of_nodes([PowerDown(node="a1", reason="why")]))
    run_out(cluster)
    assert cluster.started_s[1] == 550 + 120 + 300


def test_backfill_does_not_delay_a_head_that_waits_for_a_node():
    # Node a2 can be used from 120 on; the head of two nodes then needs both, so a job of 150 s on a1 would delay it.
    rows = [(10, 100, 16), (10, 150, 8), (10, 100, 8)]
    cluster = a_sim_cluster(rows, a_shape((2, 8)), sleep=SLEEP)
    cluster.advance(9)
    cluster.steer(asked_of_nodes([PowerDown(node="a2", reason="why")]))
    run_out(cluster)
    assert cluster.started_s.tolist() == [129 + 300, 529, 110 - 100]


def test_no_job_is_backfilled_into_a_window_shorter_than_the_boot():
    # a1 is busy until 400, the head needs both nodes; 100 s fit before that, but not after a boot.
    rows = [(0, 400, 8), (10, 100, 16), (11, 100, 8)]
    for slept, started in ((False, 11), (True, 700 + 100)):
        cluster = a_sim_cluster(rows, a_shape((2, 8)), sleep=Sleep(boot_s=300, shutdown_s=1))
        cluster.advance(1)
        if slept:
            cluster.steer(asked_of_nodes([PowerDown(node="a2", reason="why")]))
        run_out(cluster)
        assert cluster.started_s[2] == started


def test_the_idle_timer_spares_nodes_kept_awake():
    sleep = Sleep(boot_s=300, shutdown_s=120, idle_timer_s=600, keep_awake=("a2",))
    cluster = a_sim_cluster([(0, 100, 8), (5_000, 1, 1)], a_shape((3, 8)), sleep=sleep)
    cluster.advance(699)
    assert powers(cluster) == [NodePower.AWAKE, NodePower.AWAKE, NodePower.FALLING_ASLEEP]
    cluster.advance(701)
    assert powers(cluster)[0] == NodePower.FALLING_ASLEEP
    cluster.advance(4_000)
    assert powers(cluster) == [NodePower.ASLEEP, NodePower.AWAKE, NodePower.ASLEEP]


def test_a_burst_wakes_its_own_nodes_and_the_spare_ones():
    sleep = Sleep(boot_s=300, shutdown_s=1, rules=(AwakeRule(memory_s=600, spare=2),))
    burst = [(7_200, 900, 8)] * 5
    cluster = a_sim_cluster([(0, 60, 8), *burst, (20_000, 1, 1)], a_shape((10, 8)), sleep=sleep)
    cluster.advance(7_199)
    assert powers(cluster).count(NodePower.ASLEEP) == 8
    cluster.advance(7_261)
    assert Counter(powers(cluster)) == {NodePower.AWAKE: 2, NodePower.WAKING: 5, NodePower.ASLEEP: 3}


def test_a_rule_that_remembers_too_long_is_refused():
    with pytest.raises(UsageError, match="remember too long"):
        Sleep(boot_s=300, shutdown_s=120, rules=(AwakeRule(memory_s=86_400, spare=2),))


def test_a_node_no_longer_kept_awake_falls_asleep_at_once():
    sleep = Sleep(boot_s=300, shutdown_s=120, idle_timer_s=600, keep_awake=("a1", "a2", "a3"))
    cluster = a_sim_cluster([(0, 100, 8), (5_000, 1, 1)], a_shape((3, 8)), sleep=sleep)
    cluster.advance(2_000)
    cluster.steer(asked_of_nodes([RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", "a1,a3"),), reason="why")]))
    cluster.advance(2_001)
    assert powers(cluster) == [NodePower.AWAKE, NodePower.FALLING_ASLEEP, NodePower.AWAKE]


def test_a_node_that_got_up_is_idle_from_then_on():
    cluster = a_sleeper([(9_000, 1, 1)])
    cluster.steer(asked_of_nodes([PowerUp(node="a2", reason="why")]))
    cluster.advance(2_000)
    idle_since = cluster.snapshot().nodes.set_index("name")["idle_since"]
    assert idle_since["a2"].timestamp() == 1_300


def test_without_sleep_times_no_node_sleeps():
    cluster = a_busy_cluster(shape=a_shape((3, 8)))
    (outcome,) = cluster.steer(asked_of_nodes([PowerDown(node="a3", reason="why")]))
    assert (outcome.result, outcome.remark) == (Result.REFUSED, "nodes do not sleep here")
    assert cluster.snapshot().power is None


@pytest.mark.parametrize("placement", list(Placement))
@given(case=clusters_with_jobs())
@thorough
def test_nodes_that_could_sleep_but_do_not_change_nothing(placement, case):
    shape, workload, estimate = case
    cluster = SimCluster(
        workload, shape, jobs_of(workload, shape), estimates_s=estimate, placement=placement, sleep=SLEEP
    )
    run_out(cluster)
    plain = replay(
        workload,
        shape,
        backfill=Backfill.EASY,
        order=first_in_first_out,
        estimate_s=estimate,
        placement=placement,
    )
    assert cluster.started_s.tolist() == plain.started_s.tolist()
    assert cluster.ended_s.tolist() == plain.ended_s.tolist()


def test_busy_nodes_are_the_most_and_the_mean_of_each_step():
    rows = [(100, 400, 8), (300, 500, 8), (300, 0, 8), (650, 100, 1)]
    workload = a_workload(rows)
    result = replay(
        workload,
        a_shape((3, 8)),
        backfill=Backfill.NONE,
        order=first_in_first_out,
        count_nodes=True,
    )
    start_s, most, mean = result.busy_nodes(STEP_S)
    assert start_s == 0
    assert most.tolist() == [[2, 2]]
    assert mean.tolist() == [[(400 + 300) / 600, (200 + 100) / 600]]


def test_random_placement_depends_on_its_seed_alone():
    rows = [(second, 10_000, 1) for second in range(12)]

    def holders(seed):
        cluster = a_sim_cluster(rows, a_shape((50, 8)), placement=Placement.RANDOM, seed=seed)
        cluster.advance(20)
        cluster.next_event_s()
        return cluster.snapshot().running["node_list"].tolist()

    assert holders(1) == holders(1)
    assert holders(1) != holders(2)
    assert len(set(holders(1))) > 8
