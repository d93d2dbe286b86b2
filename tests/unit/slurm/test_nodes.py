"""What of an action on nodes is written, what is refused, and what is said about it: on a Slurm in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from helios.actions import (
    KeepAwake,
    NodeAction,
    NodeOutcome,
    NodeSetting,
    PowerDown,
    PowerUp,
    Result,
    RevertNodes,
)
from helios.errors import ClusterUnavailable
from helios.slurm.backend import NodeUpdate
from helios.slurm.jobs import OVERRULED, SPENT
from helios.slurm.nodes import FALLING, NO_NODE, TAKEN, TOO_OLD, SlurmNodes
from tests.changes import asked_of_nodes
from tests.contract.nodes_suite import NodesContract, NodeWorld
from tests.unit.slurm.slurm import SleepySlurm, a_raw_node

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def nodes_of(slurm: SleepySlurm, *, writes_per_cycle: int = 100) -> SlurmNodes:
    return SlurmNodes(
        slurm,
        slurm,  # type: ignore[arg-type]  # because it answers as the desk does
        name="venus",
        site_factor_most=10_000,
        writes_per_cycle=writes_per_cycle,
        clock=lambda: NOON,
    )


def asleep(name: str, **more: Any) -> Any:
    return a_raw_node(name, flags="POWERED_DOWN", **more)


def down(*names: str) -> list[NodeAction]:
    return [PowerDown(node=name, reason="nothing to do") for name in names]


def up(*names: str) -> list[NodeAction]:
    return [PowerUp(node=name, reason="wanted soon") for name in names]


def restore(setting: NodeSetting, **own: str) -> RevertNodes:
    return RevertNodes(setting=setting, own=tuple(own.items()), reason="stop")


def only(outcomes: list[NodeOutcome]) -> NodeOutcome:
    (outcome,) = outcomes
    return outcome


class TestSlurmInMemory(NodesContract):
    """The contract of every cluster's nodes."""

    @pytest.fixture
    def world(self) -> NodeWorld:
        busy = a_raw_node("n9", state="MIXED", cpus_held=4, gpus_held=1)
        slurm = SleepySlurm(*(a_raw_node(f"n{number}", weight=10) for number in range(1, 6)), busy)
        return NodeWorld(
            cluster=nodes_of(slurm),
            let_pass=lambda _: slurm.passes(),
            longest_s=300,
            forbid=lambda node: slurm.node[node].update(flags="DRAIN"),
            set_weight=lambda node, weight: slurm.node[node].update(weight=weight),
        )


def test_a_snapshot_says_how_the_cluster_powers_its_nodes() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"), SuspendExcNodes="n1")
    slurm.racks = {"n2": "r1"}
    snapshot = nodes_of(slurm).snapshot()
    assert snapshot.power is not None
    assert (snapshot.power.suspend_timeout_s, snapshot.power.resume_timeout_s) == (30, 300)
    assert (snapshot.power.keep_awake, snapshot.power.why_not) == ("n1", "")
    assert snapshot.nodes["power"].tolist() == ["awake", "asleep"]
    assert snapshot.nodes["kept_awake"].tolist() == [1, 0]


def test_an_idle_node_is_put_to_sleep_and_one_asleep_is_woken() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"))
    outcomes = nodes_of(slurm).steer(asked_of_nodes([*down("n1"), *up("n2")]))
    assert [outcome.result for outcome in outcomes] == [Result.DONE, Result.DONE]
    assert [(outcome.before, outcome.after) for outcome in outcomes] == [
        ("IDLE", "IDLE+POWER_DOWN"),
        ("IDLE+POWERED_DOWN", "IDLE+POWER_UP+POWERED_DOWN"),
    ]
    # Wakes come first.
    assert slurm.written == [NodeUpdate(node="n2", state="POWER_UP"), NodeUpdate(node="n1", state="POWER_DOWN")]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"state": "MIXED", "cpus_held": 4}, "not idle: MIXED"),
        ({"state": "ALLOCATED"}, "not idle: ALLOCATED"),
        ({"cpus_held": 4}, "not idle"),
        ({"gpus_held": 1}, "not idle"),
        ({"flags": "DRAIN"}, "drained"),
        ({"flags": "COMPLETING"}, "completing"),
        ({"flags": "PLANNED"}, "plans"),
        ({"flags": "RESERVED"}, "reserved"),
        ({"flags": "MAINTENANCE"}, "maintenance"),
        ({"flags": "NOT_RESPONDING"}, "not answer"),
        ({"flags": "NOT_RESPONDING+POWERING_UP"}, "waking"),
        ({"state": "DOWN"}, "down"),
        ({"name": "n7"}, "SuspendExcNodes"),
        ({"partitions": "gpu,login"}, "SuspendExcParts"),
    ],
)
def test_a_node_that_must_not_sleep_is_refused_with_the_reason(node: dict[str, Any], why: str) -> None:
    slurm = SleepySlurm(a_raw_node("n1") | node, SuspendExcNodes="n[7-9]", SuspendExcParts="login")  # type: ignore[arg-type]  # because | forgets the type
    outcome = only(nodes_of(slurm).steer(asked_of_nodes(down(node.get("name", "n1")))))
    assert outcome.result is Result.REFUSED
    assert why in outcome.remark
    assert slurm.written == []


@pytest.mark.parametrize(
    "settings",
    [{"SuspendTime": "INFINITE"}, {"SuspendProgram": "(null)"}, {"ResumeProgram": "(null)"}, {"SuspendExcNodes": "n["}],
)
def test_where_slurm_cannot_power_nodes_it_is_not_asked_to(settings: dict[str, str]) -> None:
    slurm = SleepySlurm(a_raw_node("n1"), **settings)
    cluster = nodes_of(slurm)
    outcome = only(cluster.steer(asked_of_nodes(down("n1"))))
    assert outcome.result is Result.REFUSED
    assert next(iter(settings)) in outcome.remark
    power = cluster.snapshot().power
    assert power is not None
    assert (power.can_sleep, power.can_keep_awake) == (False, False)


def test_what_already_is_so_or_on_its_way_costs_no_write() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"), a_raw_node("n3", flags="POWERING_DOWN"))
    slurm.node["n4"] = dict(a_raw_node("n4", flags="NOT_RESPONDING+POWERING_UP"))
    actions: list[NodeAction] = [*up("n1", "n4"), *down("n2", "n3"), restore(NodeSetting.WEIGHT, n1="1")]
    outcomes = nodes_of(slurm).steer(asked_of_nodes(actions))
    assert {outcome.result for outcome in outcomes} == {Result.UNCHANGED}
    assert slurm.written == []


@pytest.mark.parametrize("flags", ["POWER_DOWN", "POWERING_DOWN"])
def test_a_node_that_is_falling_asleep_is_woken_later(flags: str) -> None:
    slurm = SleepySlurm(a_raw_node("n1", flags=flags))
    cluster = nodes_of(slurm)
    actions: list[NodeAction] = [*up("n1"), restore(NodeSetting.POWER, n1="")]
    for action in actions:
        outcome = only(cluster.steer(asked_of_nodes([action])))
        assert (outcome.result, outcome.remark) == (Result.POSTPONED, FALLING)
    slurm.passes()
    assert only(cluster.steer(asked_of_nodes(up("n1")))).result is Result.DONE
    assert [change.state for change in slurm.written] == ["POWER_UP"]


@pytest.mark.parametrize(("state", "flags"), [("IDLE", "DRAIN+POWERED_DOWN"), ("DOWN", "POWERED_DOWN")])
def test_a_node_asleep_that_an_admin_has_in_hand_is_not_woken(state: str, flags: str) -> None:
    slurm = SleepySlurm(a_raw_node("n1", state=state, flags=flags))
    actions: list[NodeAction] = [*up("n1"), restore(NodeSetting.POWER, n1="")]
    for action in actions:
        assert only(nodes_of(slurm).steer(asked_of_nodes([action]))).result is Result.REFUSED
    assert slurm.written == []


def test_a_node_planned_or_reserved_may_be_woken() -> None:
    slurm = SleepySlurm(a_raw_node("n1", flags="PLANNED+POWERED_DOWN"))
    outcome = only(nodes_of(slurm).steer(asked_of_nodes(up("n1"))))
    assert slurm.written == [NodeUpdate(node="n1", state="POWER_UP")]
    assert outcome.result is not Result.REFUSED


def test_a_node_that_is_not_there_is_gone_whatever_is_asked() -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    actions: list[NodeAction] = [
        *down("n9"),
        *up("n8"),
        restore(NodeSetting.WEIGHT, n6="1"),
    ]
    outcomes = nodes_of(slurm).steer(asked_of_nodes(actions))
    assert {(outcome.result, outcome.remark) for outcome in outcomes} == {(Result.GONE, NO_NODE)}


def test_a_job_that_comes_before_the_write_keeps_the_node_awake() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), a_raw_node("n2"))
    slurm.before_look[2] = lambda: slurm.node["n1"].update(state="MIXED", cpus_held=4)
    outcomes = nodes_of(slurm).steer(asked_of_nodes(down("n1", "n2")))
    assert [outcome.result for outcome in outcomes] == [Result.REFUSED, Result.DONE]
    assert [change.node for change in slurm.written] == ["n2"]


def test_a_job_that_comes_with_the_write_is_told_to_be_safe() -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    slurm.before_look[3] = lambda: slurm.node["n1"].update(state="MIXED", cpus_held=4)
    outcome = only(nodes_of(slurm).steer(asked_of_nodes(down("n1"))))
    assert (outcome.result, outcome.after, outcome.remark) == (Result.DONE, "MIXED+POWER_DOWN", TAKEN)


def test_what_slurm_swallowed_is_a_mismatch_and_what_it_refused_a_failure() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), a_raw_node("n2"), asleep("n3"), a_raw_node("n4"))
    slurm.swallowed = {"n1", "n3"}
    slurm.answers = {"n2": "Invalid node state specified"}
    outcomes = nodes_of(slurm).steer(asked_of_nodes([*down("n1", "n2"), *up("n3"), *down("n4")]))
    assert [outcome.result for outcome in outcomes] == [Result.MISMATCH, Result.FAILED, Result.MISMATCH, Result.DONE]
    assert outcomes[1].remark == "Invalid node state specified"


def test_the_last_of_two_changes_for_a_node_is_written() -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    outcomes = nodes_of(slurm).steer(
        asked_of_nodes([restore(NodeSetting.WEIGHT, n1="2"), restore(NodeSetting.WEIGHT, n1="3")])
    )
    assert [(outcome.result, outcome.remark) for outcome in outcomes] == [
        (Result.REFUSED, OVERRULED),
        (Result.DONE, ""),
    ]
    assert slurm.node["n1"]["weight"] == 3


def test_taking_back_and_waking_come_before_sleeping() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"), a_raw_node("n3", weight=9), a_raw_node("n4"))
    actions: list[NodeAction] = [
        *down("n4", "n1"),
        *up("n2"),
        restore(NodeSetting.WEIGHT, n3="1"),
    ]
    outcomes = nodes_of(slurm, writes_per_cycle=2).steer(asked_of_nodes(actions))
    assert [outcome.result for outcome in outcomes] == [Result.POSTPONED, Result.POSTPONED, Result.DONE, Result.DONE]
    assert {outcome.remark for outcome in outcomes[:2]} == {SPENT}
    assert {change.node for change in slurm.written} == {"n2", "n3"}


def test_a_weight_of_0_is_a_weight() -> None:
    slurm = SleepySlurm(a_raw_node("n1", weight=1))
    outcome = only(nodes_of(slurm).steer(asked_of_nodes([restore(NodeSetting.WEIGHT, n1="0")])))
    assert (outcome.result, outcome.after) == (Result.DONE, "Weight 0")
    assert only(nodes_of(slurm).steer(asked_of_nodes([restore(NodeSetting.WEIGHT, n1="")]))).result is Result.REFUSED


def test_the_keep_awake_list_holds_the_sites_own_and_is_given_back() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), a_raw_node("n2"), SuspendExcNodes="n[8-9]:1")
    cluster = nodes_of(slurm)
    first = only(cluster.steer(asked_of_nodes([KeepAwake(nodes=("n1", "n7"), reason="wanted")])))
    assert (first.result, first.after) == (Result.DONE, "SuspendExcNodes n[8-9]:1,n1")
    assert "n7" in first.remark
    second = only(cluster.steer(asked_of_nodes([KeepAwake(nodes=("n2",), reason="wanted")], own="n[8-9]:1")))
    assert (second.before, second.after) == ("SuspendExcNodes n[8-9]:1,n1", "SuspendExcNodes n[8-9]:1,n2")
    again = only(cluster.steer(asked_of_nodes([KeepAwake(nodes=("n2",), reason="wanted")], own="n[8-9]:1")))
    assert again.result is Result.UNCHANGED
    back = only(
        cluster.steer(
            asked_of_nodes([RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", "n[8-9]:1"),), reason="stop")])
        )
    )
    assert (back.result, slurm.settings["SuspendExcNodes"]) == (Result.DONE, "n[8-9]:1")
    assert len(slurm.lists) == 3


def test_an_empty_own_list_is_given_back_as_none() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), SuspendExcNodes="n1")
    for own in ("", "(null)"):
        nodes_of(slurm).steer(
            asked_of_nodes([RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", own),), reason="stop")])
        )
        assert slurm.settings["SuspendExcNodes"] == "(null)"


def test_a_list_that_is_not_taken_is_told() -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    slurm.swallowed = {"list"}
    assert only(nodes_of(slurm).steer(asked_of_nodes([KeepAwake(nodes=("n1",), reason="r")]))).result is Result.MISMATCH
    slurm.answers = {"list": "Permission denied"}
    assert only(nodes_of(slurm).steer(asked_of_nodes([KeepAwake(nodes=("n1",), reason="r")]))).result is Result.FAILED


def test_an_old_slurm_is_not_asked_for_a_list() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), version="22.05.8")
    outcome = only(nodes_of(slurm).steer(asked_of_nodes([KeepAwake(nodes=("n1",), reason="r")])))
    assert (outcome.result, outcome.remark, slurm.lists) == (Result.REFUSED, TOO_OLD, [])


def test_a_silent_cluster_is_an_error_before_anything_is_written() -> None:
    slurm = SleepySlurm(a_raw_node("n1"))
    for answers in (0, 1, 2, 3):  # nodes, how they are powered, nodes once more, the write
        slurm.down_after = answers
        with pytest.raises(ClusterUnavailable):
            nodes_of(slurm).steer(asked_of_nodes(down("n1")))
    assert slurm.written == []


def test_after_the_first_write_silence_is_told_of_each_node() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"))
    slurm.down_after = 3  # nodes, desk and the wake are answered
    outcomes = nodes_of(slurm).steer(asked_of_nodes([*down("n1"), *up("n2")]))
    assert [outcome.result for outcome in outcomes] == [Result.FAILED, Result.FAILED]
    assert outcomes[0].remark.startswith("not written")
    assert "could not be read back" in outcomes[1].remark


def test_a_sleep_that_fails_after_a_written_wake_is_told() -> None:
    slurm = SleepySlurm(a_raw_node("n1"), asleep("n2"))
    slurm.down_after = 4  # nodes, desk, the wake and the freshest look are answered
    outcomes = nodes_of(slurm).steer(asked_of_nodes([*down("n1"), *up("n2")]))
    assert [outcome.result for outcome in outcomes] == [Result.FAILED, Result.FAILED]
    assert all("could not be read back" in outcome.remark for outcome in outcomes)


def test_nothing_asked_costs_nothing() -> None:
    slurm = SleepySlurm()
    assert nodes_of(slurm).steer([]) == []
    assert slurm.looks == 0


@pytest.mark.parametrize("state", ["POWER_DOWN_ASAP", "POWER_DOWN_FORCE", "DRAIN", "DOWN", "RESUME"])
def test_no_other_state_can_be_written_to_a_node(state: str) -> None:
    with pytest.raises(ValueError, match=state):
        NodeUpdate(node="n1", state=state)
