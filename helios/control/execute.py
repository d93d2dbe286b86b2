"""Carrying out a plan: entered in the book before anything is written, settled by what was read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from helios.actions import (
    JobAction,
    JobSetting,
    NodeAction,
    NodeOutcome,
    NodeSetting,
    Outcome,
    Result,
    Revert,
    RevertNodes,
)
from helios.changes import AWAKE, LIST, JobChange, Key, NodeChange, NodeKey, to_actions, to_node_actions
from helios.control.applied import (
    SET_AGAIN,
    AppliedChange,
    AppliedChanges,
    AppliedNodeChange,
    AppliedNodeChanges,
    Book,
    NodeBook,
)
from helios.control.audit import HELIOS, AuditLog
from helios.control.modes import cluster_for_mode, describe_mode, node_cluster_for_mode
from helios.control.node_guards import NodeCycleContext
from helios.control.reconcile import (
    ActiveService,
    CycleContext,
    JobReversion,
    NodeReconcilePlan,
    NodeReversion,
    ReconcilePlan,
)
from helios.control.state import NodeControllerState, WakeUp
from helios.errors import HeliosError
from helios.model import Mode
from helios.ports import Cluster, NodeCluster

_READ_BACK = {Result.DONE, Result.UNCHANGED, Result.WOULD}
_NOT_WRITTEN = {Result.POSTPONED, Result.REFUSED}
_NOTHING_STANDS = {Result.DONE, Result.UNCHANGED, Result.WOULD, Result.GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A plan, and all that carrying it out takes.

    Attributes
    ----------
    seats : sequence of Seat
        Those that play.
    disputed : frozenset of Key
        What somebody else changed since it was read back: it is set again once, never twice.
    why_stop : callable
        Asked before each door that writes: why nothing more may be written; empty: it may.
    """

    plan: ReconcilePlan
    active_services: Sequence[ActiveService]
    context: CycleContext
    disputed: frozenset[Key]
    now: datetime
    why_stop: Callable[[], str] = lambda: ""

    @property
    def writes(self) -> bool:
        """Whether anything will be written to the cluster."""
        return bool(self.plan.take_back) or any(self.plan.send.get(active.name) for active in self.writers())

    def writers(self) -> list[ActiveService]:
        """Return the seats whose actions may reach the cluster."""
        return [active for active in self.active_services if active.mode.writes]


def record_intent(execution: Execution) -> AppliedChanges:
    """Return the books with every change entered before it is made, and what was found as asked adopted."""
    real = {key: row for key, row in execution.context.applied.real.items() if key not in execution.plan.forget}
    for active in execution.writers():
        for change in execution.plan.send.get(active.name, ()):
            real[change.key] = _entry(execution, change, active, after=_again(execution, change.key))
        for change in execution.plan.same.get(active.name, ()):
            _adopt(real, execution, change, active)
    shadows = {back.key for back in execution.plan.shadows_end if back.service not in _shadows(execution)}
    return AppliedChanges(
        real=real, shadow={k: row for k, row in execution.context.applied.shadow.items() if k not in shadows}
    )


def execute(execution: Execution, *, cluster: Cluster, applied: AppliedChanges, minutes: AuditLog) -> AppliedChanges:
    """Act, and return the books settled by what became of it.

    A cluster that cannot be reached ends it there, and so does a pause, or a lease that was lost since the cycle began;
    what was entered stays entered.

    Parameters
    ----------
    books : Books
        As :func:`record_intent` gave them, and as they were written down.
    """
    real, shadow = dict(applied.real), dict(applied.shadow)
    try:
        _take_back(execution, cluster, real, minutes)
        for active in execution.active_services:
            _send(execution, active, cluster, shadow if active.mode.mode is Mode.SHADOW else real, minutes)
    except _Stopped as stopped:
        minutes.notes.append(f"acting was broken off: {stopped}")
    except HeliosError as error:
        minutes.bad = True
        minutes.notes.append(f"acting was broken off: {error.message}")
    return AppliedChanges(real=real, shadow=shadow)


class _Stopped(Exception):
    """Nothing more may be written in this cycle."""


def _check_preconditions(execution: Execution) -> None:
    if why := execution.why_stop():
        raise _Stopped(why)


def _take_back(execution: Execution, cluster: Cluster, real: Book, minutes: AuditLog) -> None:
    if not execution.plan.take_back:
        return
    _check_preconditions(execution)
    restores = _restores(execution.plan.take_back)
    for outcome in _applied(cluster, restores, execution, minutes, service=HELIOS, mode=Mode.ACTIVE):
        if outcome.result in _NOTHING_STANDS:
            real.pop((outcome.setting, outcome.job_id), None)


def _send(execution: Execution, active: ActiveService, cluster: Cluster, applied_now: Book, minutes: AuditLog) -> None:
    changes = {change.key: change for change in execution.plan.send.get(active.name, ())}
    ends = [
        back for back in execution.plan.shadows_end if back.service == active.name and active.mode.mode is Mode.SHADOW
    ]
    actions = [*to_actions([_explained(execution, change) for change in changes.values()]), *_restores(ends)]
    door = _door(execution, active, cluster)
    if not actions or door is None:
        return
    if active.mode.writes:
        _check_preconditions(execution)
    for outcome in _applied(door, actions, execution, minutes, service=active.name, mode=active.mode.mode):
        key = (outcome.setting, outcome.job_id)
        if key in changes:
            _settle(applied_now, execution, changes[key], active, outcome)
        elif outcome.result in _NOTHING_STANDS:
            applied_now.pop(key, None)


def _door(execution: Execution, active: ActiveService, cluster: Cluster) -> Cluster | None:
    snapshot = execution.context.snapshot
    return cluster_for_mode(
        active.mode,
        cluster,
        look=lambda: snapshot,
        stands={key: row.value for key, row in execution.context.applied.shadow.items()},
        tolerance=execution.context.tolerance,
    )


def _applied(
    door: Cluster, actions: Sequence[JobAction], execution: Execution, minutes: AuditLog, *, service: str, mode: Mode
) -> list[Outcome]:
    outcomes = door.apply(actions)
    minutes.outcomes(service, mode, outcomes, execution.context.jobs)
    return outcomes


def _settle(
    applied_now: Book, execution: Execution, change: JobChange, active: ActiveService, outcome: Outcome
) -> None:
    prior = _applied_of(execution, active).get(change.key)
    if outcome.result in _READ_BACK and not execution.context.tolerance.is_nothing(change.setting, change.value):
        after = (outcome.after or describe_mode(change.setting, change.value)) + _again(execution, change.key)
        applied_now[change.key] = _entry(execution, change, active, after=after)
    elif outcome.result in _NOT_WRITTEN and prior is not None:
        applied_now[change.key] = prior
    elif outcome.result in _NOT_WRITTEN | _NOTHING_STANDS:
        applied_now.pop(change.key, None)


def _adopt(real: Book, execution: Execution, change: JobChange, active: ActiveService) -> None:
    if execution.context.tolerance.is_nothing(change.setting, change.value):
        real.pop(change.key, None)
        return
    row, read = real.get(change.key), execution.context.jobs[change.job_id].value(change.setting)
    known = row is not None and row.confirmed and row.service == active.name
    if row is None or not known or not execution.context.tolerance.same(change.setting, asked=row.value, read=read):
        after = describe_mode(change.setting, read) + (SET_AGAIN if row is not None and row.set_again else "")
        real[change.key] = _entry(execution, change, active, after=after)


def _entry(execution: Execution, change: JobChange, active: ActiveService, *, after: str) -> AppliedChange:
    return AppliedChange(
        setting=change.setting,
        job_id=change.job_id,
        submitted_us=execution.context.jobs[change.job_id].submitted_us,
        service=active.name,
        mode=active.mode.mode,
        value=change.value,
        after=after,
        written_at=execution.now,
    )


def _again(execution: Execution, key: Key) -> str:
    prior = execution.context.applied.real.get(key)
    return SET_AGAIN if key in execution.disputed or (prior is not None and prior.set_again) else ""


def _explained(execution: Execution, change: JobChange) -> JobChange:
    if change.key not in execution.disputed:
        return change
    read = describe_mode(change.setting, execution.context.jobs[change.job_id].value(change.setting))
    return replace(change, reason=f"{change.reason}; set again, once: {read} was found instead of what Helios had set")


def _applied_of(execution: Execution, active: ActiveService) -> Book:
    return execution.context.applied.shadow if active.mode.mode is Mode.SHADOW else execution.context.applied.real


def _shadows(execution: Execution) -> set[str]:
    return {active.name for active in execution.active_services if active.mode.mode is Mode.SHADOW}


def _restores(backs: Iterable[JobReversion]) -> list[Revert]:
    grouped: dict[tuple[JobSetting, str], list[str]] = {}
    for back in backs:
        setting, job_id = back.key
        grouped.setdefault((setting, back.why), []).append(job_id)
    return [Revert(setting=setting, job_ids=tuple(jobs), reason=why) for (setting, why), jobs in grouped.items()]


# Carrying out a plan for nodes: entered in the book before anything is written, settled by what was read back.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExecution:
    """A plan, and all that carrying it out takes.

    Attributes
    ----------
    seats : sequence of Seat
        Those that play.
    why_stop : callable
        Asked before each door that writes: why nothing more may be written; empty: it may.
    """

    plan: NodeReconcilePlan
    active_services: Sequence[ActiveService]
    context: NodeCycleContext
    now: datetime
    why_stop: Callable[[], str] = lambda: ""

    @property
    def writes(self) -> bool:
        """Whether anything will be written to the cluster."""
        return bool(self.plan.take_back) or any(self.plan.send.get(active.name) for active in self.writers())

    def writers(self) -> list[ActiveService]:
        """Return the seats whose actions may reach the cluster."""
        return [active for active in self.active_services if active.mode.writes]


@dataclass(slots=True, kw_only=True)
class NodeActivity:
    """What was done on the cluster, and what is remembered of it."""

    memory: NodeControllerState
    slept: list[str] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    weighed: list[str] = field(default_factory=list)

    def take_note(self, outcomes: Iterable[NodeOutcome], *, now: datetime) -> None:
        """Remember who was put to sleep, and watch who was told to wake."""
        for outcome in outcomes:
            if outcome.result is not Result.DONE:
                continue
            if outcome.setting is NodeSetting.WEIGHT:
                self.weighed.append(outcome.node)
            elif outcome.setting is NodeSetting.POWER and outcome.action == "PowerDown":
                self.slept.append(outcome.node)
                self.memory = self.memory.with_slept(outcome.node, now)
            elif outcome.setting is NodeSetting.POWER:
                self.woken.append(outcome.node)
                self.memory = self.memory.with_wake(outcome.node, WakeUp(since=now, by="Helios"))


def record_node_intent(execution: NodeExecution) -> AppliedNodeChanges:
    """Return the books with every change entered before it is made, and what was found as asked adopted."""
    real = dict(execution.context.applied.real)
    for active in execution.writers():
        for change in execution.plan.send.get(active.name, ()):
            if change.value != AWAKE:
                real[change.key] = _node_entry(execution, change, active, after="")
            elif change.key in real:
                real[change.key] = replace(real[change.key], value=AWAKE)
        for change in execution.plan.same.get(active.name, ()):
            if change.key in real and real[change.key].service != active.name and change.value != AWAKE:
                real[change.key] = replace(real[change.key], service=active.name)
    for back in execution.plan.take_back:
        if back.row.setting is NodeSetting.POWER:
            real[back.row.key] = replace(back.row, value=AWAKE)
    shadows = {active.name for active in execution.active_services if active.mode.mode is Mode.SHADOW}
    ends = {back.row.key for back in execution.plan.shadows_end if back.row.service not in shadows}
    return AppliedNodeChanges(
        real=real, shadow={k: row for k, row in execution.context.applied.shadow.items() if k not in ends}
    )


def execute_nodes(
    execution: NodeExecution,
    *,
    cluster: NodeCluster,
    applied: AppliedNodeChanges,
    minutes: AuditLog,
    activity: NodeActivity,
) -> AppliedNodeChanges:
    """Act, and return the books settled by what became of it.

    A cluster that cannot be reached ends it there, and so does a pause, or a lease that was lost since the cycle began;
    what was entered stays entered.

    Parameters
    ----------
    books : NodeBooks
        As :func:`record_intent` gave them, and as they were written down.
    """
    real, shadow = dict(applied.real), dict(applied.shadow)
    try:
        _take_nodes_back(execution, cluster, real, minutes, activity)
        for active in execution.active_services:
            applied_now = shadow if active.mode.mode is Mode.SHADOW else real
            _send_nodes(execution, active, cluster, applied_now=applied_now, minutes=minutes, activity=activity)
    except _Stopped as stopped:
        minutes.notes.append(f"acting was broken off: {stopped}")
    except HeliosError as error:
        minutes.bad = True
        minutes.notes.append(f"acting was broken off: {error.message}")
    return AppliedNodeChanges(real=real, shadow=shadow)


def reverts(backs: Iterable[NodeReversion]) -> list[RevertNodes]:
    """Return the actions that take ``backs`` back, wakes first."""
    grouped: dict[tuple[NodeSetting, str], list[tuple[str, str]]] = {}
    for back in backs:
        grouped.setdefault((back.row.setting, back.why), []).append((back.row.node, back.row.own))
    ranked = sorted(grouped.items(), key=lambda item: list(NodeSetting).index(item[0][0]))
    return [RevertNodes(setting=setting, own=tuple(own), reason=why) for (setting, why), own in ranked]


def _check_node_preconditions(execution: NodeExecution) -> None:
    if why := execution.why_stop():
        raise _Stopped(why)


def _take_nodes_back(
    execution: NodeExecution, cluster: NodeCluster, real: NodeBook, minutes: AuditLog, activity: NodeActivity
) -> None:
    if not execution.plan.take_back:
        return
    _check_node_preconditions(execution)
    outcomes = cluster.steer(reverts(execution.plan.take_back))
    minutes.outcomes(HELIOS, Mode.ACTIVE, outcomes)
    activity.take_note(outcomes, now=execution.now)
    for outcome in outcomes:
        if outcome.result in _NOTHING_STANDS:
            real.pop((outcome.setting, outcome.node), None)


def _send_nodes(
    execution: NodeExecution,
    active: ActiveService,
    cluster: NodeCluster,
    *,
    applied_now: NodeBook,
    minutes: AuditLog,
    activity: NodeActivity,
) -> None:
    changes = {change.key: change for change in execution.plan.send.get(active.name, ())}
    door = _node_door(execution, active, cluster)
    actions = _actions(execution, active, changes)
    if not actions or door is None:
        return
    if active.mode.writes:
        _check_node_preconditions(execution)
    outcomes = _with_own_reasons(door.steer(actions), changes)
    minutes.outcomes(active.name, active.mode.mode, outcomes)
    activity.take_note(outcomes, now=execution.now)
    for outcome in outcomes:
        key = (outcome.setting, outcome.node)
        if key in changes:
            _settle_node(applied_now, execution, changes[key], active, outcome)
        elif outcome.result in _NOTHING_STANDS and active.mode.mode is Mode.SHADOW:
            applied_now.pop(key, None)


def _with_own_reasons(outcomes: Iterable[NodeOutcome], changes: dict[NodeKey, NodeChange]) -> list[NodeOutcome]:
    """Give each weight its own reason back: the door knows the one of the whole order only."""
    return [
        replace(outcome, reason=changes[outcome.setting, outcome.node].reason)
        if outcome.setting is NodeSetting.WEIGHT and (outcome.setting, outcome.node) in changes
        else outcome
        for outcome in outcomes
    ]


def _actions(execution: NodeExecution, active: ActiveService, changes: dict[NodeKey, NodeChange]) -> list[NodeAction]:
    shadow = active.mode.mode is Mode.SHADOW
    ends = [back for back in execution.plan.shadows_end if back.row.service == active.name and shadow]
    weighs = any(change.setting is NodeSetting.WEIGHT for change in changes.values())
    # An order of filling is given whole: what a weight becomes depends on who else is in the order.
    same = [
        change for change in execution.plan.same.get(active.name, ()) if change.setting is NodeSetting.WEIGHT and weighs
    ]
    own = {} if shadow else execution.context.applied.own()
    return [*to_node_actions([*changes.values(), *([] if shadow else same)], own=own), *reverts(ends)]


def _node_door(execution: NodeExecution, active: ActiveService, cluster: NodeCluster) -> NodeCluster | None:
    snapshot = execution.context.snapshot
    return node_cluster_for_mode(active.mode, cluster, look=lambda: snapshot, stands=execution.context.applied.shadow)


def _settle_node(
    applied_now: NodeBook, execution: NodeExecution, change: NodeChange, active: ActiveService, outcome: NodeOutcome
) -> None:
    applied = execution.context.applied
    prior = (applied.shadow if active.mode.mode is Mode.SHADOW else applied.real).get(change.key)
    found_asleep = change.sleeps and outcome.result is Result.UNCHANGED and prior is None
    if outcome.result in _READ_BACK and (change.value == AWAKE or found_asleep):
        applied_now.pop(change.key, None)  # a node that somebody else put to sleep meanwhile is not Helios'
    elif outcome.result in _READ_BACK:
        applied_now[change.key] = _node_entry(
            execution, change, active, after=outcome.after or outcome.before or change.value
        )
    elif outcome.result in _NOT_WRITTEN and prior is not None:
        applied_now[change.key] = prior
    elif outcome.result in _NOT_WRITTEN | _NOTHING_STANDS:
        applied_now.pop(change.key, None)


def _node_entry(
    execution: NodeExecution, change: NodeChange, active: ActiveService, *, after: str
) -> AppliedNodeChange:
    applied = execution.context.applied
    prior = (applied.shadow if active.mode.mode is Mode.SHADOW else applied.real).get(change.key)
    return AppliedNodeChange(
        setting=change.setting,
        node=change.node,
        service=active.name,
        mode=active.mode.mode,
        value=change.value,
        own=_own(execution.context, change.key) if prior is None else prior.own,
        after=after,
        written_at=execution.now,
    )


def _own(context: NodeCycleContext, key: NodeKey) -> str:
    if key == LIST:
        return "" if context.power is None else context.power.keep_awake
    return f"{context.nodes[key[1]].weight:.0f}" if key[0] is NodeSetting.WEIGHT else ""
