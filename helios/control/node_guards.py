"""Guards over changes of nodes, which no service, mode or option disables.

A guard checks one change and its node, and returns a reason where it refuses. :class:`PowerBudget` bounds how many
nodes may be asleep or changing their power at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from helios.actions import NodeSetting, Result
from helios.changes import AWAKE, Change
from helios.config import Power, Settings
from helios.control.applied import AppliedChanges, same_list, weight_in
from helios.control.guards import GuardResult, split_repeated
from helios.control.modes import OUTSIDE, ServiceMode
from helios.control.observed import UNTOUCHABLE, ObservedNode
from helios.control.state import NodeControllerState
from helios.model import Mode, NodePower, PowerSettings, Snapshot

OLDEST_DEMAND = timedelta(hours=1)
"""Age of a forecast beyond which it is not used to put nodes to sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCycleContext:
    """Observations and state of a node cycle, for its guards.

    Attributes
    ----------
    nodes : mapping
        The nodes as observed.
    wanted : frozenset of str
        Partitions in which a pending job waits for nodes.
    never : frozenset of str
        Nodes in ``power.never``.
    """

    snapshot: Snapshot
    nodes: Mapping[str, ObservedNode]
    applied: AppliedChanges
    memory: NodeControllerState
    settings: Settings
    wanted: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    @property
    def power(self) -> PowerSettings | None:
        """The cluster's power-saving settings."""
        return self.snapshot.power

    @property
    def only_lists(self) -> bool:
        """Whether the cluster's own idle timer puts nodes to sleep."""
        return self.settings.power.mechanism == "keep_awake"

    def is_wanted(self, node: ObservedNode) -> bool:
        """Return whether a pending job waits for nodes of its partitions."""
        return bool(self.wanted.intersection(node.partitions))


def apply_node_guards(
    changes: Sequence[Change[str]], *, context: NodeCycleContext, mode: ServiceMode
) -> GuardResult[str]:
    """Apply every guard for single nodes to one service's changes."""
    once, twice = split_repeated(changes)
    same = [
        change
        for change in once
        if _may_be_named(change, context, mode) == "" and is_in_desired_state(change, context, mode.mode)
    ]
    kept = {change.key for change in same}
    why = {change.key: _node_refusal(change, context, mode) for change in once if change.key not in kept}
    return GuardResult(
        allowed=tuple(change for change in once if change.key not in kept and not why[change.key][1]),
        same=tuple(same),
        refused=(
            *(change.outcome(*why[change.key]) for change in once if change.key not in kept and why[change.key][1]),
            *(change.outcome(Result.REFUSED, "the service named this node twice") for change in twice),
        ),
    )


def is_in_desired_state(change: Change[str], context: NodeCycleContext, mode: Mode) -> bool:
    """Return whether a requested change is already applied.

    For a shadow, whether it would be.
    """
    row = context.applied.of(mode).get(change.key)
    node = context.nodes.get(change.target)
    if change.setting is NodeSetting.POWER:
        return _has_power(change, node, would_sleep=mode is Mode.SHADOW and row is not None)
    if row is None or row.value != change.value or row.overridden:
        return False
    if mode is Mode.SHADOW:
        return True
    if change.setting is NodeSetting.WEIGHT:
        return row.confirmed and node is not None and node.weight == weight_in(row.after)
    return row.confirmed and context.power is not None and same_list(context.power.keep_awake, row.after)


def _has_power(change: Change[str], node: ObservedNode | None, *, would_sleep: bool) -> bool:
    if node is None:
        return False
    if change.value == AWAKE:
        return not would_sleep and node.power in {NodePower.AWAKE, NodePower.WAKING}
    return would_sleep or node.is_away


def why_keep_awake(node: ObservedNode, context: NodeCycleContext) -> str:
    """Return why Helios must not keep a node asleep, whatever its state.

    Empty where it may.
    """
    return (
        context.memory.protected
        or _why_no_forecast(context)
        or _why_protected(node, context)
        or ("a pending job waits for nodes of its partition" if context.is_wanted(node) else "")
    )


def _node_refusal(change: Change[str], context: NodeCycleContext, mode: ServiceMode) -> tuple[Result, str]:
    if why := _may_be_named(change, context, mode):
        return Result.REFUSED, why
    if change.setting is NodeSetting.KEEP_AWAKE:
        return Result.REFUSED, _refuse_list(context)
    node = context.nodes[change.target]
    if change.setting is NodeSetting.WEIGHT:
        return Result.REFUSED, "its own weight is not known" if math.isnan(node.weight) else ""
    if change.value == AWAKE:
        return _refuse_wake(node, context)
    return Result.REFUSED, _refuse_sleep(node, context)


def _may_be_named(change: Change[str], context: NodeCycleContext, mode: ServiceMode) -> str:
    row = context.applied.real.get(change.key)
    if row is not None and row.overridden:
        return "somebody changed it after Helios did: it is theirs"
    if change.setting is NodeSetting.KEEP_AWAKE:
        return ""
    node = context.nodes.get(change.target)
    if node is None:
        return "no such node"
    return "" if mode.reaches(node.name, partitions=node.partitions) else OUTSIDE


def _refuse_list(context: NodeCycleContext) -> str:
    if not context.only_lists:
        return "power.mechanism is sleep: the keep-awake list is left to the site"
    if context.power is None:
        return "it is not known how the cluster powers nodes"
    return "" if context.power.can_keep_awake else "the keep-awake list cannot be changed on this cluster"


def _refuse_wake(node: ObservedNode, context: NodeCycleContext) -> tuple[Result, str]:
    if node.down:
        return Result.REFUSED, f"it is {node.state or 'down'}"
    if not node.in_service:  # a node that is only planned or reserved may be woken
        return Result.REFUSED, node.excluded_reason or f"it is {min(node.flags)}"
    if node.power is NodePower.FALLING_ASLEEP:
        return Result.POSTPONED, "falling asleep: it cannot be called back until it is asleep"
    row = context.applied.real.get((NodeSetting.POWER, node.name))
    pays_at = row and row.written_at + timedelta(seconds=context.settings.power.payback_s)
    if pays_at and context.snapshot.taken_at < pays_at and not context.is_wanted(node):
        return Result.REFUSED, f"asleep too short to pay: not woken ahead of need before {pays_at:%Y-%m-%d %H:%M} UTC"
    return Result.REFUSED, ""


def _refuse_sleep(node: ObservedNode, context: NodeCycleContext) -> str:
    return (
        _why_no_sleep_here(context)
        or _why_in_use(node)
        or why_keep_awake(node, context)
        or _why_not_idle(node, context)
    )


def _why_no_sleep_here(context: NodeCycleContext) -> str:
    if context.only_lists:
        return "power.mechanism is keep_awake: the cluster's own timer puts nodes to sleep"
    if context.power is None:
        return "it is not known how the cluster powers nodes"
    return context.power.why_not or ("" if context.power.can_sleep else "nodes cannot be put to sleep on this cluster")


def _why_no_forecast(context: NodeCycleContext) -> str:
    demand = context.snapshot.demand
    if demand is None:
        return "there is no forecast of the demand for nodes"
    apart_s = context.snapshot.taken_at.timestamp() - demand.ended_s
    bound_s = OLDEST_DEMAND.total_seconds()
    return "" if -bound_s <= apart_s <= bound_s else "the forecast of the demand for nodes is not of this hour"


def _why_in_use(node: ObservedNode) -> str:
    if node.excluded_reason:
        return node.excluded_reason
    flags = sorted(node.flags & UNTOUCHABLE)
    return f"it is {flags[0]}" if flags else ""


def _why_protected(node: ObservedNode, context: NodeCycleContext) -> str:
    memory, power = context.memory, context.settings.power
    if node.name in context.never:
        return "power.never names it"
    if node.name in memory.quarantined:
        return f"it {memory.quarantined[node.name].what}, and nobody has cleared it"
    if node.name in memory.keep_off:
        return f"somebody woke it: left awake until {memory.keep_off[node.name]:%Y-%m-%d %H:%M} UTC"
    cycles = len(memory.slept.get(node.name, ()))
    return f"Helios put it to sleep {cycles} times in 24 hours" if cycles >= power.cycles_per_day else ""


def _why_not_idle(node: ObservedNode, context: NodeCycleContext) -> str:
    now = context.snapshot.taken_at
    if node.kept_awake:
        return "the cluster's keep-awake list names it"
    if not node.idle:
        return f"it is not idle: {node.state} and {node.power}" + (", and jobs hold it" if node.holds else "")
    seen_idle = context.memory.idle.get(node.name)
    if seen_idle is None or seen_idle >= now:
        return "it was not idle at the look before, and it takes two in a row"
    since = node.idle_since or seen_idle
    idle_s = context.settings.power.idle_s
    return "" if now - since >= timedelta(seconds=idle_s) else f"it has not been idle for {idle_s} s"


# Bounds on nodes that are asleep or changing their power, counted as changes are allowed one after the other.

BudgetResult = tuple[Result, str]
"""Result with its reason, which is empty where the change is allowed."""
ALLOWED: BudgetResult = (Result.DONE, "")
TOO_MANY_MOVING = "as many nodes are on their way as may be"


class PowerBudget:
    """Remaining bounds of ``[power]`` in one cycle.

    Parameters
    ----------
    away : collection of str
        Nodes that count as asleep whatever is observed: those that a shadow has asleep, or that the cluster's own timer
        may put to sleep at any moment.
    about_to_fall : collection of str
        Those of them that the cluster's timer will put to sleep soon. They count as changing their power before another
        node may sleep.
    """

    def __init__(
        self,
        nodes: Mapping[str, ObservedNode],
        settings: Power,
        *,
        away: Iterable[str] = (),
        about_to_fall: Collection[str] = (),
    ) -> None:
        asleep = set(away)
        self._about_to_fall = len(about_to_fall)
        self._settings = settings
        self._left = max(1, _share(settings.most_in_transition, len(nodes)))
        self._left -= sum(node.in_transition for node in nodes.values())
        in_service = [node for node in nodes.values() if node.in_service]
        self._serving = Counter(
            kind for node in in_service if node.serves and node.name not in asleep for kind in node.kinds()
        )
        self._away = Counter(node.pool for node in in_service if node.is_away or node.name in asleep)
        self._total = Counter(node.pool for node in in_service)

    def to_wake(self) -> BudgetResult:
        """Reserve a power change for one node that wakes."""
        if self._left <= 0:
            return Result.POSTPONED, TOO_MANY_MOVING
        self._left -= 1
        return ALLOWED

    def to_sleep(self, node: ObservedNode) -> BudgetResult:
        """Reserve a power change and a sleeping node for ``node``."""
        if last := [kind for kind in node.kinds() if self._serving[kind] <= 1]:
            return Result.REFUSED, f"it is the last node awake of {last[0]}"
        most = _share(self._settings.most_asleep, self._total[node.pool])
        if self._away[node.pool] >= most:
            return Result.REFUSED, f"no more than {most} of {self._total[node.pool]} nodes of {node.pool} may be asleep"
        if node.idle and self._left - self._about_to_fall <= 0:
            return Result.POSTPONED, TOO_MANY_MOVING
        self._left -= node.idle
        self._away[node.pool] += 1
        self._serving.subtract(node.kinds())
        return ALLOWED


def _share(share: float, of: int) -> int:
    return math.floor(share * of + 1e-9)  # the epsilon keeps 0.1 x 30 at 3
