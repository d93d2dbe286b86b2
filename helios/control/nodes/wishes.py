"""What services ask for, node by node: the form in which it can be checked, and back again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from helios.actions import (
    Action,
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

NodeKey = tuple[NodeLever, str]
"""One lever of one node; the keep-awake list is the cluster's and has an empty name."""
LIST: NodeKey = (NodeLever.KEEP_AWAKE, "")
ASLEEP, AWAKE = "asleep", "awake"
"""What is asked of a node's power, as the book has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWish:
    """One value for one lever of one node.

    Attributes
    ----------
    value : str
        ``asleep`` or ``awake``; ``tier 2``; or the nodes to keep awake, by commas, sorted.
    action : str
        Name of the action's class.
    """

    lever: NodeLever
    node: str
    value: str
    reason: str
    action: str

    @property
    def key(self) -> NodeKey:
        """Lever and node."""
        return self.lever, self.node

    @property
    def sleeps(self) -> bool:
        """Whether it puts the node to sleep."""
        return self.action == PowerDown.__name__

    @property
    def tier(self) -> int:
        """The tier of a weight, from 0."""
        return int(self.value.removeprefix(TIER))

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes of a keep-awake list."""
        return names_in(self.value)

    def outcome(self, result: Result, remark: str = "", *, before: str = "", after: str = "") -> NodeOutcome:
        """Say what became of it."""
        return NodeOutcome(
            action=self.action,
            lever=self.lever,
            node=self.node,
            result=result,
            reason=self.reason,
            before=before,
            after=after,
            remark=remark,
        )


TIER = "tier "


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProposal:
    """All that a service asked for in one turn.

    Attributes
    ----------
    gives_back : frozenset of NodeKey
        What of its own changes shall not stand any longer.
    fills : bool
        Whether it gave an order of filling.
    """

    wishes: tuple[NodeWish, ...]
    gives_back: frozenset[NodeKey] = frozenset()
    fills: bool = False


def node_proposal_of(actions: Sequence[Action]) -> NodeProposal:
    """Take the actions of a service apart.

    Raises
    ------
    TypeError
        Something is not an action on a node.
    """
    restores = [action for action in actions if isinstance(action, RestoreNodes)]
    return NodeProposal(
        wishes=tuple(wish for action in actions for wish in _wishes(action)),
        gives_back=frozenset((action.lever, node) for action in restores for node, _ in action.own),
        fills=any(isinstance(action, FillFirst) for action in actions),
    )


def actions_of(wishes: Sequence[NodeWish], *, own: Mapping[NodeKey, str]) -> list[NodeAction]:
    """Put wishes together again: wakes first, then the keep-awake list, sleeps and the order of filling.

    Parameters
    ----------
    own : mapping
        What the site itself has where Helios changed it.
    """
    ups = [PowerUp(node=wish.node, reason=wish.reason) for wish in wishes if wish.action == PowerUp.__name__]
    downs = [PowerDown(node=wish.node, reason=wish.reason) for wish in wishes if wish.sleeps]
    lists = [
        KeepAwake(nodes=wish.names, reason=wish.reason, own=own.get(LIST))
        for wish in wishes
        if wish.lever is NodeLever.KEEP_AWAKE
    ]
    return [*ups, *lists, *downs, *_fill_first([wish for wish in wishes if wish.lever is NodeLever.WEIGHT], own)]


def names_in(text: str) -> tuple[str, ...]:
    """Return the nodes of a list as the book has it."""
    return tuple(name for name in text.split(",") if name)


def listed(nodes: Iterable[str]) -> str:
    """Write a list of nodes as the book has it."""
    return ",".join(sorted(set(nodes)))


def _wishes(action: Action) -> list[NodeWish]:
    kind = type(action).__name__
    if isinstance(action, PowerDown):
        return [NodeWish(lever=NodeLever.POWER, node=action.node, value=ASLEEP, reason=action.reason, action=kind)]
    if isinstance(action, PowerUp):
        return [NodeWish(lever=NodeLever.POWER, node=action.node, value=AWAKE, reason=action.reason, action=kind)]
    if isinstance(action, KeepAwake):
        value = listed(action.nodes)
        return [NodeWish(lever=NodeLever.KEEP_AWAKE, node="", value=value, reason=action.reason, action=kind)]
    if isinstance(action, FillFirst):
        return [
            NodeWish(
                lever=NodeLever.WEIGHT, node=node, value=f"{TIER}{place}", reason=action.why_in(place), action=kind
            )
            for place, tier in enumerate(action.tiers)
            for node in tier
        ]
    if isinstance(action, RestoreNodes):
        return []
    raise TypeError(
        f"{kind} is not an action on a node; there are PowerDown, PowerUp, KeepAwake, FillFirst and RestoreNodes"
    )


def _fill_first(wishes: Sequence[NodeWish], own: Mapping[NodeKey, str]) -> list[NodeAction]:
    if not wishes:
        return []
    tiers: list[list[str]] = [[] for _ in range(max(wish.tier for wish in wishes) + 1)]
    for wish in wishes:
        tiers[wish.tier].append(wish.node)
    weights = tuple((node, int(float(text))) for (lever, node), text in own.items() if lever is NodeLever.WEIGHT)
    return [FillFirst(tiers=tuple(map(tuple, tiers)), reason=wishes[0].reason, own=weights)]
