"""The doors to the nodes of a cluster: the cluster itself, a part of it, or a shadow that holds nothing that writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from helios.actions import (
    FillFirst,
    KeepAwake,
    NodeAction,
    NodeLever,
    NodeOutcome,
    PowerDown,
    PowerUp,
    RestoreNodes,
    Result,
)
from helios.control.modes import OUTSIDE, ServiceMode
from helios.control.nodes.seen import nodes_seen
from helios.control.nodes.standings import NodeStanding
from helios.control.nodes.wishes import AWAKE, TIER, NodeKey, NodeWish, node_proposal_of
from helios.model import Mode, Snapshot
from helios.ports import NodeCluster

_UNTOUCHED = {NodeLever.POWER: AWAKE, NodeLever.WEIGHT: f"{TIER}0"}
"""What stands where Helios changed nothing; a node of the first tier has the site's own weight."""


def node_door_for(
    mode: ServiceMode,
    cluster: NodeCluster,
    *,
    look: Callable[[], Snapshot],
    stands: Mapping[NodeKey, NodeStanding],
) -> NodeCluster | None:
    """Return what a service of that mode acts on; None: it is off.

    Parameters
    ----------
    look : callable
        Gives the snapshot of this turn. It must not lead to the cluster: a shadow is given nothing else.
    stands : mapping
        What would stand if the shadows could act.
    """
    if mode.mode is Mode.OFF:
        return None
    if mode.mode is Mode.SHADOW:
        return ShadowNodes(look=look, stands=stands)
    if mode.mode is Mode.CANARY:
        return CanaryNodes(cluster=cluster, mode=mode, look=look)
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowNodes:
    """Nodes that cannot be changed, and a word on what would have been: it holds nothing that could write."""

    look: Callable[[], Snapshot]
    stands: Mapping[NodeKey, NodeStanding]

    def snapshot(self) -> Snapshot:
        """Look."""
        return self.look()

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Say what would become of each node, and change nothing."""
        nodes = nodes_seen(self.look())
        wishes = node_proposal_of(actions).wishes
        restores = [action for action in actions if isinstance(action, RestoreNodes)]
        return [
            *(self._would(wish, known=not wish.node or wish.node in nodes) for wish in wishes),
            *(outcome for restore in restores for outcome in self._taken_back(restore)),
        ]

    def _would(self, wish: NodeWish, *, known: bool) -> NodeOutcome:
        if not known:
            return wish.outcome(Result.GONE, "no such node")
        row = self.stands.get(wish.key)
        before = _UNTOUCHED.get(wish.lever, "") if row is None else row.value
        result = Result.UNCHANGED if before == wish.value else Result.WOULD
        return wish.outcome(result, before=before, after=wish.value)

    def _taken_back(self, restore: RestoreNodes) -> list[NodeOutcome]:
        return [
            NodeOutcome(
                action="RestoreNodes",
                lever=restore.lever,
                node=node,
                result=Result.WOULD,
                reason=restore.reason,
                before=self.stands[restore.lever, node].value,
                after=own or AWAKE,
            )
            for node, own in restore.own
            if (restore.lever, node) in self.stands
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryNodes:
    """A cluster of which only the nodes of a canary can be changed; the others are refused."""

    cluster: NodeCluster
    mode: ServiceMode
    look: Callable[[], Snapshot]

    def snapshot(self) -> Snapshot:
        """Look at the whole cluster."""
        return self.cluster.snapshot()

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Let pass what concerns nodes of the canary."""
        inside = {
            node.name
            for node in nodes_seen(self.look()).values()
            if self.mode.reaches(node.name, partitions=node.partitions)
        }
        wishes = node_proposal_of(actions).wishes
        refused = [wish.outcome(Result.REFUSED, OUTSIDE) for wish in wishes if wish.node and wish.node not in inside]
        allowed = [narrowed for action in actions if (narrowed := _within(action, inside)) is not None]
        return [*refused, *(self.cluster.steer(allowed) if allowed else [])]


def _within(action: NodeAction, inside: set[str]) -> NodeAction | None:
    if isinstance(action, PowerDown | PowerUp):
        return action if action.node in inside else None
    if isinstance(action, KeepAwake):
        return replace(action, nodes=tuple(node for node in action.nodes if node in inside))
    if isinstance(action, FillFirst):
        tiers = tuple(tuple(node for node in tier if node in inside) for tier in action.tiers)
        return replace(action, tiers=tiers) if any(tiers) else None
    own = tuple((node, had) for node, had in action.own if not node or node in inside)
    return replace(action, own=own) if own else None
