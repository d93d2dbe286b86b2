"""Nodes that sleep and wake, job by job and second by second as in the plain event loop."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.actions import FillFirst, KeepAwake, PowerDown, PowerUp
from helios.simulate import Backfill, Placement, SimCluster, Sleep

from .builders import jobs_of
from .sleeping_reference import Sleepers
from .test_against_reference import clusters_with_jobs

thorough = settings(
    max_examples=int(__import__("os").environ.get("N", "60")),
    phases=[__import__("hypothesis").Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


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
    names = tuple(name_of(*node) for node in about)
    if what == "keep":
        return KeepAwake(nodes=tuple(sorted(set(names))), reason="why")
    return FillFirst(tiers=tuple((name,) for name in names), reason="why")


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
        cluster.steer([asked_of_cluster(*it[1:]) for it in asked if it[0] == second])
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
    tally = cluster.tally()
    assert (tally.sleeps, tally.wakes) == (model.sleeps, model.wakes)
