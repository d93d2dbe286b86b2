"""Guards over changes of single nodes.

No service, mode or option disables them. A guard checks one change and its node, and returns a reason where it refuses.
How many nodes may change at once is bounded by ``power_budget``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from helios.actions import NodeSetting, Result
from helios.changes import AWAKE, Change
from helios.config import Settings
from helios.control.guards import GuardResult, split_repeated
from helios.control.modes import OUTSIDE, ServiceMode
from helios.control.observed import UNTOUCHABLE, AppliedChanges, ObservedNode, same_list
from helios.control.state import NodeControllerState
from helios.model import Mode, NodePower, PowerSettings, Snapshot

OLDEST_USE = timedelta(hours=1)
"""Age of a record of the use of nodes beyond which none is put to sleep on it."""


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
    unique, repeated = split_repeated(changes)
    same = [
        change
        for change in unique
        if _why_not_named(change, context, mode) == "" and is_in_desired_state(change, context, mode.mode)
    ]
    same_keys = {change.key for change in same}
    refusals = {change.key: _node_refusal(change, context, mode) for change in unique if change.key not in same_keys}
    return GuardResult(
        allowed=tuple(change for change in unique if change.key not in same_keys and not refusals[change.key][1]),
        same=tuple(same),
        refused=(
            *(
                change.outcome(*refusals[change.key])
                for change in unique
                if change.key not in same_keys and refusals[change.key][1]
            ),
            *(change.outcome(Result.REFUSED, "the service named this node twice") for change in repeated),
        ),
    )


def is_in_desired_state(change: Change[str], context: NodeCycleContext, mode: Mode) -> bool:
    """Return whether a requested change is already applied.

    In shadow mode: whether it would be.
    """
    row = context.applied.of(mode).get(change.key)
    node = context.nodes.get(change.target)
    if change.setting is NodeSetting.POWER:
        return _has_power(change, node, would_sleep=mode is Mode.SHADOW and row is not None)
    if row is None or row.value != change.value or row.overridden:
        return False
    if mode is Mode.SHADOW:
        return True
    return row.confirmed and context.power is not None and same_list(context.power.keep_awake, row.after)


def why_keep_awake(node: ObservedNode, context: NodeCycleContext) -> str:
    """Return why Helios must not keep a node asleep, whatever its state.

    Empty where it may.
    """
    return (
        context.memory.protected
        or _why_use_unknown(context)
        or _why_protected(node, context)
        or ("a pending job waits for nodes of its partition" if context.is_wanted(node) else "")
    )


def _has_power(change: Change[str], node: ObservedNode | None, *, would_sleep: bool) -> bool:
    if node is None:
        return False
    if change.value == AWAKE:
        return not would_sleep and node.power in {NodePower.AWAKE, NodePower.WAKING}
    return would_sleep or node.is_away


def _node_refusal(change: Change[str], context: NodeCycleContext, mode: ServiceMode) -> tuple[Result, str]:
    if why := _why_not_named(change, context, mode):
        return Result.REFUSED, why
    if change.setting is NodeSetting.KEEP_AWAKE:
        return Result.REFUSED, _refuse_keep_awake(context)
    node = context.nodes[change.target]
    if change.value == AWAKE:
        return _refuse_wake(node)
    return Result.REFUSED, _refuse_sleep(node, context)


def _why_not_named(change: Change[str], context: NodeCycleContext, mode: ServiceMode) -> str:
    row = context.applied.real.get(change.key)
    if row is not None and row.overridden:
        return "somebody changed it after Helios did: it is theirs"
    if change.setting is NodeSetting.KEEP_AWAKE:
        return ""
    node = context.nodes.get(change.target)
    if node is None:
        return "no such node"
    return "" if mode.reaches(node.name, partitions=node.partitions) else OUTSIDE


def _refuse_keep_awake(context: NodeCycleContext) -> str:
    if not context.only_lists:
        return "power.mechanism is sleep: the keep-awake list is left to the site"
    if context.power is None:
        return "it is not known how the cluster powers nodes"
    return "" if context.power.can_keep_awake else "the keep-awake list cannot be changed on this cluster"


def _refuse_wake(node: ObservedNode) -> tuple[Result, str]:
    if node.down:
        return Result.REFUSED, f"it is {node.state or 'down'}"
    if not node.in_service:  # a node that is only planned or reserved may be woken
        return Result.REFUSED, node.excluded_reason or f"it is {min(node.flags)}"
    if node.power is NodePower.FALLING_ASLEEP:
        return Result.POSTPONED, "falling asleep: it cannot be called back until it is asleep"
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


def _why_use_unknown(context: NodeCycleContext) -> str:
    use = context.snapshot.use
    if use is None:
        return "it is not known which nodes were in use"
    is_recent = abs(context.snapshot.taken_at.timestamp() - use.ended_s) <= OLDEST_USE.total_seconds()
    return "" if is_recent else "the record of which nodes were in use is not of this hour"


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
    observed_idle = context.memory.idle.get(node.name)
    if observed_idle is None or observed_idle >= now:
        return "it was not idle at the look before, and it takes two in a row"
    since = node.idle_since or observed_idle
    idle_s = context.settings.power.idle_s
    return "" if now - since >= timedelta(seconds=idle_s) else f"it has not been idle for {idle_s} s"
