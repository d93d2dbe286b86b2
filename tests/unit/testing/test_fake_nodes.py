"""Nodes in memory keep Slurm's rules, and the check of a service that acts on nodes finds what it looks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from helios.actions import (
    Action,
    KeepAwake,
    NodeAction,
    NodeSetting,
    PowerDown,
    PowerUp,
    Reorder,
    Result,
    RevertNodes,
)
from helios.errors import ClusterUnavailable, FrameInvalid
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES, NodePower, Snapshot
from helios.ports import Domain
from helios.testing import (
    NOON,
    Crash,
    FakeLedger,
    FakeNodes,
    a_node,
    a_use,
    check_service,
    node_situations,
    power_settings,
)
from tests.changes import asked_of_nodes

MINUTE = timedelta(minutes=1)
AWAKE, FALLING, ASLEEP, WAKING = NodePower.AWAKE, NodePower.FALLING_ASLEEP, NodePower.ASLEEP, NodePower.WAKING


def a_cluster(number: int = 3, **overrides: Any) -> FakeNodes:
    """Nodes n1, n2, ... that fall asleep in a minute and wake in two."""
    return FakeNodes(nodes=[a_node(name=f"n{n}", weight=10.0) for n in range(1, number + 1)], **overrides)


def down(node: str) -> PowerDown:
    return PowerDown(node=node, reason="idle")


def up(node: str) -> PowerUp:
    return PowerUp(node=node, reason="needed")


def result(cluster: FakeNodes, *actions: NodeAction) -> list[Result]:
    return [outcome.result for outcome in cluster.steer(asked_of_nodes(actions))]


def asleep(cluster: FakeNodes, *nodes: str) -> FakeNodes:
    cluster.steer(asked_of_nodes([down(node) for node in nodes]))
    cluster.tick(5 * MINUTE)
    return cluster


def test_a_node_falls_asleep_and_wakes_in_its_time() -> None:
    cluster = a_cluster()
    assert result(cluster, down("n1")) == [Result.DONE]
    assert cluster.power_of("n1") is FALLING
    cluster.tick(MINUTE)
    assert cluster.power_of("n1") is ASLEEP
    assert result(cluster, up("n1")) == [Result.DONE]
    assert cluster.power_of("n1") is WAKING
    cluster.tick(2 * MINUTE)
    assert cluster.power_of("n1") is AWAKE


def test_what_already_is_so_costs_no_write() -> None:
    cluster = asleep(a_cluster(), "n1")
    writes = cluster.writes
    weight = RevertNodes(setting=NodeSetting.WEIGHT, own=(("n1", "10"),), reason="so")
    assert result(cluster, down("n1"), up("n2"), weight, KeepAwake(nodes=(), reason="so")) == [Result.UNCHANGED] * 4
    assert cluster.writes == writes


def test_impossible_changes_of_nodes_are_refused() -> None:
    cluster = a_cluster()
    cluster.submit()
    cluster.drain("n2")
    assert result(cluster, down("n1"), down("n2"), down("nobody")) == [Result.REFUSED] * 3


def test_slurm_itself_minds_none_of_it() -> None:
    cluster = a_cluster(lax=True, keep_awake="n3")
    cluster.drain("n2")
    assert result(cluster, down("n2"), down("n3")) == [Result.DONE] * 2
    assert cluster.in_state(FALLING) == ["n2", "n3"]


def test_a_power_down_sticks_to_a_busy_node_until_its_job_ends() -> None:
    cluster = a_cluster(1)
    job = cluster.submit()
    cluster.admin_powers_down("n1")
    cluster.admin_powers_up("n1")
    assert cluster.nodes_of(job) == ["n1"]
    assert cluster.power_of("n1") is FALLING
    cluster.end(job)
    cluster.tick(MINUTE)
    assert cluster.power_of("n1") is ASLEEP


def test_a_wake_of_a_node_going_down_is_postponed() -> None:
    cluster = a_cluster()
    cluster.steer(asked_of_nodes([down("n1")]))
    assert result(cluster, up("n1")) == [Result.POSTPONED]
    cluster.admin_powers_up("n1")
    assert cluster.power_of("n1") is FALLING


def test_a_job_prefers_nodes_awake_and_wakes_the_others_if_it_must() -> None:
    cluster = asleep(a_cluster(), "n1")
    assert cluster.nodes_of(cluster.submit()) == ["n2"]
    assert cluster.nodes_of(cluster.submit(nodes=2)) == ["n3", "n1"]
    assert cluster.power_of("n1") is WAKING
    assert cluster.snapshot().nodes.set_index("name").loc["n1", "state"] == "ALLOCATED"


def test_a_job_waits_for_a_node_going_down_until_it_sleeps() -> None:
    cluster = a_cluster(1)
    cluster.steer(asked_of_nodes([down("n1")]))
    job = cluster.submit()
    assert cluster.nodes_of(job) == []
    cluster.tick(MINUTE)
    assert cluster.nodes_of(job) == ["n1"]


def test_weights_say_which_node_is_filled_first() -> None:
    cluster = a_cluster()
    cluster.admin_sets_weight("n3", 9)
    assert cluster.nodes_of(cluster.submit()) == ["n3"]


def test_a_reconfiguration_forgets_weights_and_list() -> None:
    cluster = a_cluster(keep_awake="n3")
    cluster.admin_sets_weight("n2", 11)
    cluster.steer(asked_of_nodes([KeepAwake(nodes=("n1",), reason="so")]))
    assert (cluster.weight_of("n2"), cluster.keep_awake) == (11.0, "n[1,3]")
    cluster.reconfigure()
    assert (cluster.weight_of("n2"), cluster.keep_awake) == (10.0, "n3")


def test_what_was_set_can_be_restored() -> None:
    cluster = asleep(a_cluster(keep_awake="n3"), "n1")
    cluster.admin_sets_weight("n2", 11)
    cluster.steer(asked_of_nodes([KeepAwake(nodes=("n2",), reason="so")], own="n3"))
    cluster.steer(
        asked_of_nodes(
            [
                RevertNodes(setting=NodeSetting.POWER, own=(("n1", ""),), reason="stop"),
                RevertNodes(setting=NodeSetting.WEIGHT, own=(("n2", "10"),), reason="stop"),
                RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", "n3"),), reason="stop"),
            ]
        )
    )
    assert cluster.power_of("n1") is WAKING
    assert (cluster.weight_of("n2"), cluster.keep_awake) == (10.0, "n3")


def test_slurms_own_timer_spares_the_list() -> None:
    cluster = a_cluster(suspend_time_s=600.0, keep_awake="n3")
    cluster.tick(20 * MINUTE)
    assert cluster.in_state(AWAKE) == ["n3"]


def test_without_power_saving_a_power_down_comes_to_nothing() -> None:
    cluster = a_cluster(suspend_time_s=float("inf"))
    assert result(cluster, down("n1")) == [Result.MISMATCH]


def test_a_failed_wake_takes_the_node_down_and_requeues_its_job() -> None:
    cluster = asleep(a_cluster(1), "n1")
    cluster.fail_wakes("n1")
    job = cluster.submit()
    cluster.tick(10 * MINUTE)
    assert cluster.power_of("n1") is None
    assert cluster.nodes_of(job) == []
    seen = cluster.snapshot().nodes.iloc[0]
    assert (seen["state"], seen["reason"]) == ("DOWN", "ResumeTimeout reached")
    cluster.fail_wakes("n1", fails=False)
    cluster.resume("n1")
    assert cluster.nodes_of(job) == ["n1"]


def test_a_boot_longer_than_the_timeout_fails() -> None:
    cluster = asleep(a_cluster(boot_s=900.0), "n1")
    cluster.steer(asked_of_nodes([up("n1")]))
    cluster.tick(10 * MINUTE)
    assert cluster.power_of("n1") is None


def test_a_snapshot_says_what_slurm_says() -> None:
    cluster = asleep(a_cluster(keep_awake="n2"), "n1")
    cluster.submit()
    cluster.drain("n3", reason="fan")
    nodes = cluster.snapshot().nodes.set_index("name")
    assert nodes["power"].tolist() == ["asleep", "awake", "awake"]
    assert nodes["state"].tolist() == ["IDLE", "ALLOCATED", "IDLE"]
    assert nodes["kept_awake"].tolist() == [0, 1, 0]
    assert nodes.loc["n3", "excluded_reason"] == "drained: fan"
    assert nodes["idle_since"].isna().tolist() == [True, True, False]
    power = cluster.snapshot().power
    assert power is not None
    assert power.keep_awake == "n2"


def test_idle_since_is_when_the_last_job_left() -> None:
    cluster = a_cluster(1)
    job = cluster.submit()
    cluster.tick(7 * MINUTE)
    cluster.end(job)
    cluster.tick(MINUTE)
    assert cluster.snapshot().nodes["idle_since"].iloc[0] == NOON + 7 * MINUTE


def test_things_go_wrong_when_told_to() -> None:
    cluster = a_cluster()
    cluster.fail_next()
    with pytest.raises(ClusterUnavailable):
        cluster.snapshot()
    cluster.swallow_writes()
    cluster.refuse_writes("n2")
    assert result(cluster, down("n1"), down("n2")) == [Result.MISMATCH, Result.FAILED]
    cluster.crash_after(writes=1)
    with pytest.raises(Crash):
        cluster.steer(asked_of_nodes([down("n1"), down("n3")]))
    assert cluster.power_of("n1") is FALLING
    assert cluster.power_of("n3") is AWAKE


def test_each_domain_has_its_own_rows_in_the_ledger() -> None:
    ledger = FakeLedger(domain=Domain.NODES)
    APPLIED_NODE_CHANGES.check(ledger.applied_changes())
    token = ledger.acquire(holder="h", now=NOON, lasts=MINUTE)
    with pytest.raises(FrameInvalid):
        ledger.record(token=token or 0, decisions=ledger.decisions, applied_changes=APPLIED_CHANGES.empty())


def test_builders_of_power_and_use_make_sense() -> None:
    use = a_use({"gpu": 3, "cpu": [1] * 2_000}, nodes=8)
    assert use.recent["cpu"].tolist() == [1] * 180
    assert use.past["gpu"].days == 27.5  # until midnight
    assert len(use.past["cpu"].most) == 2_000 - 720
    assert power_settings(can_sleep=False).can_sleep is False


@dataclass(frozen=True)
class NoOptions:
    """Nothing to choose."""


class Sleeper:
    """Puts to sleep what has been idle for hours; a sound service."""

    Options = NoOptions
    domain: ClassVar[Domain] = Domain.NODES
    every = timedelta(minutes=10)

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        nodes = snapshot.nodes
        idle = nodes[(nodes["state"] == "IDLE") & (nodes["power"] == "awake") & nodes["excluded_reason"].isna()]
        late = idle[idle["idle_since"] < snapshot.taken_at - timedelta(hours=3)]
        return [PowerDown(node=node, reason="idle for three hours") for node in late["name"]]


def answering(answer: Callable[[Snapshot], list[Action]], *, domain: Domain = Domain.NODES) -> type[Any]:
    def decide(self: Any, snapshot: Snapshot) -> Iterable[Action]:
        return answer(snapshot)

    return type("Odd", (Sleeper,), {"decide": decide, "domain": domain, "__doc__": "Answers oddly."})


def test_a_sound_service_on_nodes_passes() -> None:
    check_service(Sleeper)


def first_of(snapshot: Snapshot) -> list[str]:
    return list(snapshot.nodes["name"][:1])


def spoil_the_use(snapshot: Snapshot) -> list[Action]:
    if snapshot.use is not None:
        snapshot.use.recent["gpu"][:] += 1
    return []


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda _: [Reorder(partition="gpu", order=(), reason="so")], "not an action on nodes"),
        (lambda _: [down("nobody")], "not in the snapshot"),
        (lambda _: [KeepAwake(nodes=("nobody",), reason="so")], "not in the snapshot"),
        (lambda s: [action(n) for n in first_of(s) for action in (down, up)], "2 times"),
        (lambda s: [PowerUp(node=n, reason=" ") for n in first_of(s)], "no reason"),
        (lambda s: [KeepAwake(nodes=(), reason="so")] * 2, "several KeepAwake"),
        (lambda s: [down(n) for n in s.nodes["name"] if n.startswith("busy")], "not idle and awake"),
        (lambda s: [down(n) for n in s.nodes["name"] if n == "drained"], "left alone"),
        (lambda s: [down(n) for n in s.nodes["name"] if n == "asleep1"], "not idle and awake"),
        (lambda s: [down(n) for n in s.nodes["name"] if s.use.recent["gpu"][-1] > 99], "it raised AttributeError"),
        (spoil_the_use, "changed the snapshot"),
    ],
)
def test_an_unsound_service_on_nodes_is_told(answer: Callable[[Snapshot], list[Action]], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_service(answering(answer))


def test_a_job_service_that_acts_on_nodes_is_told_what_to_do() -> None:
    with pytest.raises(AssertionError, match=r"domain = Domain\.NODES"):
        check_service(answering(lambda s: [up(n) for n in first_of(s)], domain=Domain.JOBS))


def test_every_situation_has_a_title_of_its_own() -> None:
    titles = [title for title, _ in node_situations()]
    assert len(set(titles)) == len(titles)
