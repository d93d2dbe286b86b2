"""What actions ask of Slurm's nodes: one thing wanted on one lever of one node each, and whether it may be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
from helios.errors import HostlistInvalid
from helios.model import NodePower
from helios.slurm import values
from helios.slurm.backend import NodeChange, RawNode
from helios.slurm.power import hands_off, in_hand, is_idle, joined, kept_awake, power, same_list, warm
from helios.slurm.power_settings import KEEP_AWAKE_SINCE, Powering
from helios.slurm.weights import tiered

DOWN, UP = "POWER_DOWN", "POWER_UP"
"""The two states that are ever written: never ``POWER_DOWN_ASAP``, which drains, or ``_FORCE``, which kills jobs."""
NO_NODE = "there is no such node"
FALLING = "it is falling asleep: Slurm ignores a power_up until it is asleep"
TAKEN = "a job was started on it in between: it runs to its end, and then Slurm puts the node to sleep"
TOO_OLD = f"this Slurm cannot change SuspendExcNodes while it runs; {'.'.join(f'{n:02}' for n in KEEP_AWAKE_SINCE)} can"

_ON_THE_WAY_DOWN = (NodePower.FALLING_ASLEEP, NodePower.ASLEEP)
_ON_THE_WAY_UP = (NodePower.WAKING, NodePower.AWAKE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """What was read of the nodes at one moment: the ground that every change is judged on.

    Attributes
    ----------
    nodes : mapping
        The nodes by name.
    powering : Powering
        How the cluster powers them.
    warm : set of str
        Nodes that the cluster's own keep-awake list keeps awake now.
    """

    nodes: Mapping[str, RawNode]
    powering: Powering
    warm: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, nodes: Sequence[RawNode], powering: Powering) -> NodeLook:
        """Return what was read."""
        kept = kept_awake(nodes, powering.surroundings.exclusions)
        return cls(nodes={node["name"]: node for node in nodes}, powering=powering, warm=kept)

    def said(self, lever: NodeLever, node: str) -> str:
        """Return what stands on a lever of a node, in Slurm's words; empty: it cannot be read."""
        if lever is NodeLever.KEEP_AWAKE:
            return f"SuspendExcNodes {self.powering.settings.keep_awake or '(null)'}"
        if node not in self.nodes:
            return ""
        if lever is NodeLever.WEIGHT:
            return f"Weight {self.nodes[node]['weight']}"
        return "+".join(filter(None, (self.nodes[node]["state"], self.nodes[node]["flags"])))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWish:
    """What is wanted on one lever of one node.

    Attributes
    ----------
    wanted : str
        :data:`DOWN` or :data:`UP`; a weight; of the keep-awake list the whole list.
    note : str
        What to say of it besides what becomes of it.
    """

    action: str
    lever: NodeLever
    node: str
    reason: str
    wanted: str
    note: str = ""

    @property
    def takes_back(self) -> bool:
        """Whether it is part of a ``RestoreNodes``."""
        return self.action == RestoreNodes.__name__

    @property
    def change(self) -> NodeChange:
        """The change that fulfils it; of the keep-awake list there is none."""
        if self.lever is NodeLever.WEIGHT:
            return NodeChange(node=self.node, weight=_weight(self.wanted))
        return NodeChange(node=self.node, state=self.wanted)

    def outcome(self, result: Result, *, before: str = "", after: str = "", remark: str = "") -> NodeOutcome:
        """Return ``result`` as the outcome of this wish."""
        return NodeOutcome(
            action=self.action,
            lever=self.lever,
            node=self.node,
            result=result,
            reason=self.reason,
            before=before,
            after=after,
            remark="; ".join(filter(None, (remark, self.note))),
        )


def wishes_of(actions: Sequence[NodeAction], look: NodeLook) -> list[NodeWish]:
    """Return what the actions ask for, in their order.

    Raises
    ------
    TypeError
        There is no such action on nodes.
    """
    return [wish for action in actions for wish in _of(action, look)]


def verdict(wish: NodeWish, look: NodeLook) -> NodeOutcome | None:
    """Return the outcome of a wish that must not, cannot or need not be written; None: it is to be written."""
    if wish.lever is not NodeLever.KEEP_AWAKE and wish.node not in look.nodes:
        return wish.outcome(Result.GONE, remark=NO_NODE)
    before = look.said(wish.lever, wish.node)
    if is_so(wish, look):
        return wish.outcome(Result.UNCHANGED, before=before, after=before)
    result, why = _VERDICTS[wish.lever](wish, look)
    return wish.outcome(result, before=before, remark=why) if why else None


def is_so(wish: NodeWish, look: NodeLook) -> bool:
    """Return whether what is wanted is so, or on its way; of a node that exists."""
    if wish.lever is NodeLever.KEEP_AWAKE:
        return same_list(look.powering.settings.keep_awake, wish.wanted)
    node = look.nodes[wish.node]
    if wish.lever is NodeLever.WEIGHT:
        return node["weight"] == _weight(wish.wanted)
    return power(node) in (_ON_THE_WAY_DOWN if wish.wanted == DOWN else _ON_THE_WAY_UP)


def became(wish: NodeWish, before: NodeLook, after: NodeLook, answer: str) -> NodeOutcome:
    """Return what became of a wish that was written, from what was read before and after and what Slurm answered."""
    was, seen = before.said(wish.lever, wish.node), after.said(wish.lever, wish.node)
    if not seen:
        return wish.outcome(Result.GONE, before=was, remark=NO_NODE)
    if is_so(wish, after):
        return wish.outcome(Result.DONE, before=was, after=seen, remark=_landed(wish, after))
    if answer:
        return wish.outcome(Result.FAILED, before=was, after=seen, remark=answer)
    return wish.outcome(Result.MISMATCH, before=was, after=seen, remark="Slurm accepted it, and something else stands")


def _landed(wish: NodeWish, after: NodeLook) -> str:
    """Return what to say of a job that came before the sleep did: it is in no danger, Slurm waits for its end."""
    return TAKEN if wish.wanted == DOWN and not is_idle(after.nodes[wish.node]) else ""


def _of(action: NodeAction, look: NodeLook) -> Iterator[NodeWish]:
    name = type(action).__name__
    if isinstance(action, PowerDown | PowerUp):
        state = DOWN if isinstance(action, PowerDown) else UP
        yield NodeWish(action=name, lever=NodeLever.POWER, node=action.node, reason=action.reason, wanted=state)
    elif isinstance(action, KeepAwake):
        yield _kept(action, look)
    elif isinstance(action, FillFirst):
        for node, weight in _weights(action, look).items():
            wanted = "" if weight is None else str(weight)
            yield NodeWish(action=name, lever=NodeLever.WEIGHT, node=node, reason=action.reason, wanted=wanted)
    elif isinstance(action, RestoreNodes):
        for node, own in action.own:
            wanted = UP if action.lever is NodeLever.POWER else own
            yield NodeWish(action=name, lever=action.lever, node=node, reason=action.reason, wanted=wanted)
    else:
        raise TypeError(f"{name} is no action on nodes; there are {', '.join(_NAMES)}")


_NAMES = tuple(kind.__name__ for kind in (PowerDown, PowerUp, KeepAwake, FillFirst, RestoreNodes))


def _kept(action: KeepAwake, look: NodeLook) -> NodeWish:
    own = look.powering.settings.keep_awake if action.own is None else action.own
    known = [node for node in action.nodes if node in look.nodes]
    missing = [node for node in action.nodes if node not in look.nodes]
    return NodeWish(
        action=type(action).__name__,
        lever=NodeLever.KEEP_AWAKE,
        node="",
        reason=action.reason,
        wanted=joined(own, known),
        # Slurm takes a list with a node that does not exist (26.05.5), and then may keep nothing awake.
        note=f"left out, as there are no such nodes: {', '.join(missing)}" if missing else "",
    )


def _weights(action: FillFirst, look: NodeLook) -> dict[str, int | None]:
    """Return the weight of each node that a tier names; None: it does not exist."""
    own = {name: node["weight"] or 0 for name, node in look.nodes.items()}
    own |= {node: weight for node, weight in action.own if node in own}
    tiers = [[node for node in tier if node in own] for tier in action.tiers]
    return dict.fromkeys(node for tier in action.tiers for node in tier) | tiered(own, tiers)


def _of_power(wish: NodeWish, look: NodeLook) -> tuple[Result, str]:
    node = look.nodes[wish.node]
    if wish.wanted == DOWN:
        return Result.REFUSED, _why_awake(node, look)
    if power(node) is NodePower.FALLING_ASLEEP:
        return Result.POSTPONED, FALLING
    return Result.REFUSED, in_hand(node) or ("" if power(node) else "it does not answer")


def _why_awake(node: RawNode, look: NodeLook) -> str:
    """Return why a node must not be put to sleep now; empty: it may be."""
    if why := look.powering.settings.why_not or hands_off(node, look.powering.surroundings.exclusions):
        return why
    if power(node) is NodePower.WAKING:
        return "it is waking"
    if not is_idle(node):
        return f"it is not idle: {look.said(NodeLever.POWER, node['name'])}"
    return "SuspendExcNodes keeps it awake" if node["name"] in look.warm else ""


def _of_the_list(wish: NodeWish, look: NodeLook) -> tuple[Result, str]:
    if look.powering.release < KEEP_AWAKE_SINCE:
        return Result.REFUSED, TOO_OLD
    if why := "" if wish.takes_back else look.powering.settings.why_not:
        return Result.REFUSED, why
    try:
        warm(wish.wanted)
    except HostlistInvalid as reason:
        return Result.REFUSED, reason.fact
    return Result.REFUSED, ""


def _of_weight(wish: NodeWish, _: NodeLook) -> tuple[Result, str]:
    readable = _weight(wish.wanted) is not None
    return Result.REFUSED, "" if readable else f"{wish.wanted!r} is no weight"


def _weight(text: str) -> int | None:
    text = text.partition(".")[0]
    return values.whole(text) if text.isascii() and text.isdigit() else None


_VERDICTS: Mapping[NodeLever, Callable[[NodeWish, NodeLook], tuple[Result, str]]] = {
    NodeLever.POWER: _of_power,
    NodeLever.KEEP_AWAKE: _of_the_list,
    NodeLever.WEIGHT: _of_weight,
}
