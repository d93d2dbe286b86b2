"""What every cluster promises of its nodes, as a class of tests: it wants a fixture ``world``, whatever that brings.

An implementation plugs in with a function that returns a :class:`NodeWorld`; see ``tests/contract/test_nodes.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
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
from helios.model import NODE_STATES, NodePower
from helios.ports import NodeCluster
from tests.changes import asked_of_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWorld:
    """A cluster with at least four nodes that are awake, idle and free to sleep, and one that holds a job; its people.

    Attributes
    ----------
    cluster : NodeCluster
    let_pass : callable
        Let so many seconds pass; after enough of them (``longest_s``) a node that was told to sleep or wake is there.
    longest_s : int
        Longest time to fall asleep or to wake, s.
    forbid : callable, optional
        Make a node ``excluded_reason``, as by a drain; None: nobody can, here.
    set_weight : callable, optional
        Change a node's weight past Helios; None: nobody can, here.
    can_keep_awake : bool
        Whether the keep-awake list can be changed live.
    """

    cluster: NodeCluster
    let_pass: Callable[[int], None]
    longest_s: int
    forbid: Callable[[str], None] | None = None
    set_weight: Callable[[str, int], None] | None = None
    can_keep_awake: bool = True

    def nodes(self) -> pd.DataFrame:
        """Return the nodes by name."""
        return self.cluster.snapshot().nodes.set_index("name")

    def idle(self) -> list[str]:
        """Return nodes that are awake and idle, and that nothing says to leave alone."""
        nodes = self.nodes()
        free = (nodes["power"] == NodePower.AWAKE) & (nodes["state"] == "IDLE") & nodes["excluded_reason"].isna()
        return list(nodes.index[free & (nodes["kept_awake"] == 0) & nodes["flags"].isna()])

    def busy(self) -> str:
        """Return a node that holds a job."""
        nodes = self.nodes()
        return str(nodes.index[nodes["state"].isin(["ALLOCATED", "MIXED"])][0])

    def power(self, node: str) -> object:
        """Return what a node does."""
        return self.nodes().loc[node, "power"]

    def steer(self, action: NodeAction, *, own: str | None = None) -> NodeOutcome:
        """Apply one action that has one outcome."""
        (outcome,) = self.cluster.steer(asked_of_nodes([action], own=own))
        return outcome

    def asleep(self) -> str:
        """Put a node to sleep, wait until it is, and return it."""
        node = self.idle()[0]
        self.steer(PowerDown(node=node, reason="why"))
        self.let_pass(self.longest_s)
        return node


class NodesContract:
    """The promises."""

    def test_a_snapshot_tells_how_nodes_are_powered(self, world: NodeWorld) -> None:
        snapshot = world.cluster.snapshot()
        NODE_STATES.check(snapshot.nodes)
        assert snapshot.power is not None
        assert snapshot.power.can_sleep
        assert not snapshot.power.why_not
        assert snapshot.power.suspend_timeout_s > 0
        assert snapshot.power.resume_timeout_s > 0
        assert snapshot.use is None

    def test_an_idle_node_falls_asleep_and_then_sleeps(self, world: NodeWorld) -> None:
        node = world.idle()[0]
        outcome = world.steer(PowerDown(node=node, reason="not needed"))
        assert (outcome.action, outcome.setting, outcome.node) == ("PowerDown", NodeSetting.POWER, node)
        assert (outcome.result, outcome.reason) == (Result.DONE, "not needed")
        assert outcome.before != outcome.after
        assert world.power(node) in (NodePower.FALLING_ASLEEP, NodePower.ASLEEP)
        world.let_pass(world.longest_s)
        assert world.power(node) == NodePower.ASLEEP

    def test_a_node_that_sleeps_wakes_when_it_is_told(self, world: NodeWorld) -> None:
        node = world.asleep()
        outcome = world.steer(PowerUp(node=node, reason="why"))
        assert outcome.result is Result.DONE
        assert world.power(node) in (NodePower.WAKING, NodePower.AWAKE)
        world.let_pass(world.longest_s)
        assert world.power(node) == NodePower.AWAKE
        assert node in world.idle()

    def test_what_already_is_so_is_unchanged(self, world: NodeWorld) -> None:
        node, awake = world.asleep(), world.idle()[0]
        assert world.steer(PowerDown(node=node, reason="why")).result is Result.UNCHANGED
        assert world.steer(PowerUp(node=awake, reason="why")).result is Result.UNCHANGED
        world.steer(PowerUp(node=node, reason="why"))
        assert world.steer(PowerUp(node=node, reason="why")).result is Result.UNCHANGED

    def test_a_node_that_is_falling_asleep_cannot_be_called_back(self, world: NodeWorld) -> None:
        node = world.idle()[0]
        world.steer(PowerDown(node=node, reason="why"))
        outcome = world.steer(PowerUp(node=node, reason="why"))
        if world.power(node) == NodePower.FALLING_ASLEEP:
            assert outcome.result is Result.POSTPONED
            assert outcome.remark

    def test_a_busy_node_is_refused_and_its_neighbour_is_not(self, world: NodeWorld) -> None:
        busy, idle = world.busy(), world.idle()[0]
        outcomes = world.cluster.steer(
            asked_of_nodes([PowerDown(node=busy, reason="why"), PowerDown(node=idle, reason="why")])
        )
        assert [outcome.result for outcome in outcomes] == [Result.REFUSED, Result.DONE]
        assert outcomes[0].remark
        assert world.power(busy) == NodePower.AWAKE

    def test_a_node_that_must_be_left_alone_is_refused(self, world: NodeWorld) -> None:
        if world.forbid is None:
            pytest.skip("nobody can do that to this cluster")
        node = world.idle()[0]
        world.forbid(node)
        outcome = world.steer(PowerDown(node=node, reason="why"))
        assert outcome.result is Result.REFUSED
        assert outcome.remark
        assert world.nodes().loc[node, "excluded_reason"]

    def test_a_node_that_is_not_there_stops_nobody(self, world: NodeWorld) -> None:
        idle = world.idle()[0]
        outcomes = world.cluster.steer(
            asked_of_nodes([PowerDown(node="nobody", reason="why"), PowerDown(node=idle, reason="why")])
        )
        assert outcomes[0].result in (Result.FAILED, Result.REFUSED, Result.GONE)
        assert outcomes[1].result is Result.DONE

    def test_a_weight_is_set_back_to_the_sites_own(self, world: NodeWorld) -> None:
        if world.set_weight is None:
            pytest.skip("nobody can change a weight here")
        node = world.idle()[0]
        own = round(world.nodes().loc[node, "weight"])
        world.set_weight(node, own + 1)
        restore = RevertNodes(setting=NodeSetting.WEIGHT, own=((node, str(own)),), reason="stop")
        assert [outcome.result for outcome in world.cluster.steer(asked_of_nodes([restore]))] == [Result.DONE]
        assert round(world.nodes().loc[node, "weight"]) == own
        assert [outcome.result for outcome in world.cluster.steer(asked_of_nodes([restore]))] == [Result.UNCHANGED]

    def test_nodes_are_kept_awake_and_let_go_again(self, world: NodeWorld) -> None:
        if not world.can_keep_awake:
            pytest.skip("the keep-awake list of this cluster cannot be changed live")
        own = world.cluster.snapshot().power.keep_awake
        first, second = world.idle()[:2]
        outcome = world.steer(KeepAwake(nodes=(first, second), reason="why"))
        assert (outcome.setting, outcome.node, outcome.result) == (NodeSetting.KEEP_AWAKE, "", Result.DONE)
        assert list(world.nodes().loc[[first, second], "kept_awake"]) == [1, 1]
        assert world.steer(KeepAwake(nodes=(second, first), reason="why"), own=own).result is Result.UNCHANGED
        world.steer(KeepAwake(nodes=(second,), reason="why"), own=own)
        assert list(world.nodes().loc[[first, second], "kept_awake"]) == [0, 1]
        world.steer(RevertNodes(setting=NodeSetting.KEEP_AWAKE, own=(("", own),), reason="stop"))
        assert world.cluster.snapshot().power.keep_awake == own
        assert world.nodes().loc[second, "kept_awake"] == 0

    def test_restored_power_wakes_what_sleeps_and_nothing_else(self, world: NodeWorld) -> None:
        node, awake = world.asleep(), world.idle()[0]
        restore = RevertNodes(setting=NodeSetting.POWER, own=((node, ""), (awake, "")), reason="stop")
        results = {outcome.node: outcome.result for outcome in world.cluster.steer(asked_of_nodes([restore]))}
        assert results == {node: Result.DONE, awake: Result.UNCHANGED}
        world.let_pass(world.longest_s)
        assert world.power(node) == NodePower.AWAKE
