"""Control of nodes, which has their power and the keep-awake list.

Changes are sticky. Sleep and wake are requested once and stay until somebody wakes the node. The keep-awake list stays
until a service changes it. Changes of a service that may no longer write are reverted, and so are weights, which
releases up to 0.1 set. Helios' changes are recorded in the ledger, and also in the undo file in case the ledger is
lost.

Each cycle compares the recorded changes with the observed nodes. Nodes that somebody else has changed, or that did not
wake, get an entry in the audit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from helios.actions import NodeOutcome, NodeSetting, Outcome, Result
from helios.changes import (
    ASLEEP,
    AWAKE,
    LIST,
    Change,
    Key,
    RequestedChanges,
    join_names,
    nodes_named,
    revert_node,
    sleeps,
    to_node_changes,
)
from helios.choices import Domain
from helios.config import Power, Settings
from helios.control.cycle import (
    ROUNDS,
    ActiveService,
    Cycle,
    Finish,
    ReconcilePlan,
    ReleaseResult,
    Reversion,
    add_round,
    postpone_beyond,
    record_release,
    release_entries,
    shadow_intent,
)
from helios.control.guards import GuardResult, keep_one_owner
from helios.control.modes import ServiceMode, node_cluster_for_mode
from helios.control.node_guards import NodeCycleContext, apply_node_guards, is_in_desired_state, why_keep_awake
from helios.control.observed import (
    AppliedByKey,
    AppliedChange,
    AppliedChanges,
    ObservedNode,
    Undo,
    delayed_submissions,
    nodes_wanted,
    observed_nodes,
    partitions_wanted,
    same_list,
    weight_in,
)
from helios.control.power_budget import PowerBudget, bound_power_changes
from helios.control.preconditions import Preconditions, cluster_suspension_reasons
from helios.control.report import HELIOS, AuditEntry, NodeCycleReport, node_cycle_counts, wanted_awake
from helios.control.state import APART, DAY, Failure, NodeControllerState, WakeUp
from helios.errors import HeliosError
from helios.model import APPLIED_NODE_CHANGES, Mode, NodePower, PowerSettings, Snapshot
from helios.model.nodes import expand
from helios.ports import Ledger, NodeCluster
from helios.units import count_in_words

WAKE_MARGIN_S = 60.0
"""Time after Slurm's own ResumeTimeout at which a wake counts as failed, s."""
SLEEP_TIMEOUT = timedelta(minutes=10)
"""Time after which a requested sleep counts as failed if the node is still awake."""
NO_ANSWER_REASONS = ("resumetimeout", "not respond", "noresp")
"""Parts of Slurm's reason for a node that did not answer. Any other reason of a node that is down is a person's."""
SOON_ASLEEP_S = 600.0
"""Time before the end of the cluster's idle timer from which a node counts as about to sleep, s."""
REVERTED_FIRST = "what stands there is reverted first"
KEEP_AWAKE_NAME = "the keep-awake list"
NO_RECORDS = "there is neither book nor undo file: what Helios did to nodes is not known here"
WRITE_PRIORITY = [NodeSetting.POWER, NodeSetting.KEEP_AWAKE]
"""Order of settings when a cycle has more changes than it may write."""


class NodeDomain:
    """Domain of the nodes of a cluster.

    A pause wakes everything that Helios put to sleep and restores weights and the keep-awake list, in each cycle until
    nothing remains. Where it is not known which nodes were in use, nodes are woken and none is put to sleep.
    """

    name = Domain.NODES
    table = APPLIED_NODE_CHANGES
    sticky = True
    finish: Finish | None = None
    to_changes = staticmethod(to_node_changes)

    def __init__(self, cluster: NodeCluster, settings: Settings, memory: NodeControllerState) -> None:
        self.cluster, self.settings = cluster, settings
        self.activity = NodeActivity(memory=memory)
        self._context: NodeCycleContext | None = None

    @property
    def context(self) -> NodeCycleContext:
        """The observations of this cycle."""
        if self._context is None:
            raise RuntimeError("the nodes were not observed")
        return self._context

    def observe(self, cycle: Cycle, expectation: Callable[[Snapshot], Snapshot]) -> None:
        """Observe the nodes, add their use, and read the applied changes."""
        cycle.snapshot = self.cluster.snapshot()
        nodes, wanted = observed_nodes(cycle.snapshot), partitions_wanted(cycle.snapshot)
        cycle.held_back = ""
        try:
            cycle.snapshot = expectation(cycle.snapshot)
        except HeliosError as error:
            cycle.held_back = " ".join(filter(None, [error.message, error.hint]))
            cycle.audit.notes.append(f"the use of nodes is not known, so none is put to sleep: {cycle.held_back}")
        applied = cycle.read_applied() or AppliedChanges()
        try:
            cycle.undo_file = cycle.read_undo()
        except HeliosError as error:
            cycle.audit.notes.append(f"the undo file could not be read: {error.message}")
        if not applied.real and cycle.undo_file is not None:
            # Only where the ledger is lost, because the file on a standby's disk may be outdated.
            applied = with_undo_records(applied, cycle.undo_file, at=cycle.now)
        cycle.applied = cycle.known = cycle.stored = applied
        never: frozenset[str] = frozenset()
        try:
            never = frozenset(expand(self.settings.power.never))
        except HeliosError as error:
            cycle.faults.append(f"power.never cannot be read: {error.message}")
        self._context = NodeCycleContext(
            snapshot=cycle.snapshot,
            nodes=nodes,
            applied=applied,
            memory=self.activity.memory,
            settings=self.settings,
            wanted=wanted,
            never=never,
        )

    def check_preconditions(self, cycle: Cycle, conditions: Preconditions) -> list[str]:
        """Return why nothing may be written, empty where it may.

        It also updates the applied changes and the state by what is observed.
        """
        context = self.context
        reasons = cluster_suspension_reasons(
            conditions, self.settings.control, snapshot=context.snapshot, memory=cycle.memory, now=cycle.now
        )
        if conditions.cut_short:
            return reasons
        observation = NodeObservation(
            nodes=context.nodes,
            power=context.power,
            at=context.snapshot.taken_at,
            settings=self.settings.power,
            released=bool(conditions.released),
        )
        update = update_nodes(context.memory, context.applied, observation)
        cycle.audit.lines.extend([*update.lines, *shadow_entries(context.applied, update.applied)])
        cycle.audit.notes.extend(update.notes)
        if update.memory.protected:
            cycle.audit.notes.append(f"{update.memory.protected}; to end it: helios power --clear all")
        delayed = delayed_submissions(context.snapshot, context.nodes)
        self.activity.memory = update.memory.with_delayed(delayed, context.snapshot.taken_at)
        cycle.applied = cycle.known = update.applied
        self._context = replace(context, memory=self.activity.memory, applied=update.applied)
        return reasons

    def apply_guards(self, cycle: Cycle, requested: RequestedChanges[str], mode: ServiceMode) -> GuardResult[str]:  # noqa: ARG002 - a ControlDomain's
        """Apply every guard for single nodes to one service's changes.

        The keep-awake list is first limited to existing nodes.
        """
        return apply_node_guards(self._limit_changes(requested.changes, mode), context=self.context, mode=mode)

    def allocate(
        self, cycle: Cycle, results: Mapping[str, GuardResult[str]], services: Sequence[ActiveService]
    ) -> ReconcilePlan:
        """Return the changes to send and to revert within the budgets.

        Reversions come first, then wakes of all services, then sleeps.
        """
        context, max_writes = self.context, self.settings.slurm.writes_per_cycle
        writers = [active for active in services if active.mode.writes]
        draft = _Draft(context=context, refused={name: list(result.refused) for name, result in results.items()})
        draft.assign_services(writers, results, context.applied.real)
        # Nodes that the cluster's own timer may put to sleep. It is off where Helios puts nodes to sleep itself.
        may_sleep = {node.name for node in context.nodes.values() if context.only_lists and not node.kept_awake}
        wanted = nodes_wanted(context.snapshot)
        budget = PowerBudget(
            context.nodes, self.settings.power, away=may_sleep, about_to_fall=self._nodes_soon_asleep(), wanted=wanted
        )
        reversions, waiting = self._due_reversions(cycle, writers, budget)
        draft.apply_budget(writers, budget, without={reversion.key for reversion in reversions})
        would_sleep = {row.target for row in context.applied.shadow.values() if row.value == ASLEEP}
        for active in services:
            if active.is_shadow:
                draft.assign_services([active], results, {})
                away = (would_sleep & set(context.nodes)) | may_sleep
                draft.apply_budget([active], PowerBudget(context.nodes, self.settings.power, away=away, wanted=wanted))
        postpone_beyond(
            max_writes - len(reversions),
            draft.send,
            draft.refused,
            writers,
            rank=lambda change: WRITE_PRIORITY.index(NodeSetting(change.setting)),
        )
        to_wake = sum(key[0] is NodeSetting.POWER for key in waiting)
        when = "to be woken, once asleep and in service, and when there is room"
        plan = ReconcilePlan(
            send=draft.send,
            same=draft.same,
            refused=draft.refused,
            reversions=tuple(reversions),
            shadow_reversions=tuple(self._shadow_reversions(cycle, services, results)),
            notes=(f"{count_in_words(to_wake, 'node')} {when}",) if to_wake else (),
        )
        return replace(plan, intent=self._intent(cycle, plan, services))

    def apply(
        self, cycle: Cycle, plan: ReconcilePlan, active: ActiveService | None
    ) -> list[tuple[Outcome | NodeOutcome, AppliedChange | None]]:
        """Change nodes for one service, or revert changes without a service."""
        changes: dict[Key, Change[str]] = {}
        if active is None:
            cluster: NodeCluster | None = self.cluster
            asked = _reverts(plan.reversions)
        else:
            changes = {change.key: change for change in plan.send.get(active.name, ())}
            context = self.context
            cluster = node_cluster_for_mode(
                active.mode, self.cluster, read_snapshot=lambda: context.snapshot, applied=context.applied.shadow
            )
            asked = self._in_write_order(plan, active)
        if not asked or cluster is None:
            return []
        if active is None or active.mode.writes:
            cycle.check_may_write()
        applied: list[tuple[Outcome | NodeOutcome, AppliedChange | None]] = []
        for answer in cluster.steer(asked):
            change = changes.get((answer.setting, answer.node))
            row = None if active is None or change is None else self._applied_after(cycle, change, active, answer)
            applied.append((answer, row))
        self.activity.add([outcome for outcome, _ in applied], now=cycle.now)
        return applied

    def revert(self, cycle: Cycle, reason: str) -> ReleaseResult | None:
        """Wake everything that Helios put to sleep, and restore the rest.

        None where nothing of Helios is applied.
        """
        snapshot, applied = self.context.snapshot, cycle.known
        if not observed_changes(snapshot, applied.real):
            cycle.known = AppliedChanges(real=possibly_applied_changes(applied.real, snapshot))
            return None
        result = revert_nodes(self.cluster, applied, reason)
        self.activity.add(result.outcomes, now=cycle.now)
        return result

    def summarise(self, cycle: Cycle) -> NodeCycleReport:
        """Return the report of the cycle."""
        n_applied = sum(not row.overridden for row in cycle.known.real.values())
        stays = f"{n_applied} changes of Helios stand on the nodes and stay as they are"
        memory = replace(self.activity.memory, cycle=cycle.memory)
        wanted = wanted_awake(cycle.requested, self.context.nodes) if cycle.requested else {}
        return NodeCycleReport(
            **self.activity.lists(),
            protected=memory.protected,
            memory=memory,
            **cycle.report(stays=stays if n_applied and cycle.released is None else ""),
            **node_cycle_counts(cycle.snapshot, cycle.known, at=cycle.now, wanted=wanted),
        )

    def _limit_changes(self, changes: Iterable[Change[str]], mode: ServiceMode) -> list[Change[str]]:
        """Limit the keep-awake list to existing nodes of the canary."""
        nodes, limited = self.context.nodes, []
        for change in changes:
            value = change.value
            if change.setting is NodeSetting.KEEP_AWAKE:
                reached = {node.name for node in nodes.values() if mode.reaches(node.name, partitions=node.partitions)}
                value = join_names(reached & {*nodes_named(change.value), *self.context.never})
            limited.append(replace(change, value=value))
        return limited

    def _nodes_soon_asleep(self) -> list[str]:
        context = self.context
        if not context.only_lists or context.power is None:
            return []
        idle_s, now = context.power.suspend_time_s - SOON_ASLEEP_S, context.snapshot.taken_at
        return [
            node.name
            for node in context.nodes.values()
            if node.idle
            and not node.kept_awake
            and node.idle_since
            and (now - node.idle_since).total_seconds() >= idle_s
        ]

    def _due_reversions(
        self, cycle: Cycle, writers: Sequence[ActiveService], budget: PowerBudget
    ) -> tuple[list[Reversion], list[Key]]:
        """Return the changes to revert now, and those that must wait.

        A node waits while it falls asleep, while it is drained, or while the budget of power changes is used up.
        """
        modes = {active.name: active.mode for active in writers}
        reversions: list[Reversion] = []
        waiting: list[Key] = []
        for row in self.context.applied.real.values():
            why = "" if row.overridden else self._why_revert(row, modes, cycle.requested)
            if not why:
                continue
            node = self.context.nodes.get(row.target)
            if row.setting is NodeSetting.POWER and (
                node is None or node.power is NodePower.FALLING_ASLEEP or not node.in_service or budget.to_revert()[1]
            ):
                waiting.append(row.key)
            else:
                reversions.append(Reversion(key=row.key, service=row.service, why=why, own=row.own))
        max_writes = self.settings.slurm.writes_per_cycle
        return reversions[:max_writes], [*waiting, *(reversion.key for reversion in reversions[max_writes:])]

    def _why_revert(
        self, row: AppliedChange, modes: Mapping[str, ServiceMode], requested: Mapping[str, RequestedChanges[str]]
    ) -> str:
        if row.service not in modes:
            return f"service {row.service} may not write now"
        node = self.context.nodes.get(row.target)
        if node is not None and not modes[row.service].reaches(node.name, partitions=node.partitions):
            return f"it is outside the canary of service {row.service} now"
        unused_setting = NodeSetting.POWER if self.context.only_lists else NodeSetting.KEEP_AWAKE
        if row.setting is unused_setting:
            return f"power.mechanism is {self.settings.power.mechanism} now"
        is_returned = row.service in requested and row.key in requested[row.service].reverts
        return f"service {row.service} gave it back" if is_returned else ""

    def _shadow_reversions(
        self, cycle: Cycle, services: Sequence[ActiveService], results: Mapping[str, GuardResult[str]]
    ) -> Iterable[Reversion]:
        shadows = {active.name for active in services if active.is_shadow}
        for row in self.context.applied.shadow.values():
            if row.service not in shadows:
                why = f"service {row.service} is no shadow now"
            elif row.service not in cycle.requested:
                continue
            elif row.setting is NodeSetting.POWER:
                # The node is really awake, so that a service in shadow that wants it asleep requests it again.
                if row.key in {change.key for change in results[row.service].same}:
                    continue
                why = f"service {row.service} no longer wants it asleep"
            elif row.key in cycle.requested[row.service].reverts:
                why = f"service {row.service} gave it back"
            else:
                continue
            yield Reversion(key=row.key, service=row.service, why=why, own=row.own)

    def _intent(self, cycle: Cycle, plan: ReconcilePlan, services: Sequence[ActiveService]) -> AppliedChanges:
        """Return the applied changes as they will be after the plan.

        Changes that are already as requested get their new service.
        """
        real = dict(cycle.applied.real)
        for active in services:
            if not active.mode.writes:
                continue
            for change in plan.send.get(active.name, ()):
                if change.value != AWAKE:
                    real[change.key] = self._row(cycle, change, active, after="")
                elif change.key in real:
                    real[change.key] = replace(real[change.key], value=AWAKE)
            for change in plan.same.get(active.name, ()):
                if change.key in real and real[change.key].service != active.name and change.value != AWAKE:
                    real[change.key] = replace(real[change.key], service=active.name)
        for reversion in plan.reversions:
            if reversion.key[0] is NodeSetting.POWER:
                real[reversion.key] = replace(cycle.applied.real[reversion.key], value=AWAKE)
        return AppliedChanges(real=real, shadow=shadow_intent(cycle.applied, plan.shadow_reversions, services))

    def _in_write_order(self, plan: ReconcilePlan, active: ActiveService) -> list[Change[str]]:
        """Return a service's changes, wakes first and sleeps last.

        The keep-awake list has the site's own list where Helios has recorded it.
        """
        own = {} if active.is_shadow else self.context.applied.own_values()
        changes = [
            replace(change, own=own.get(LIST)) if change.key == LIST else change
            for change in sorted(
                plan.send.get(active.name, ()), key=lambda change: (sleeps(change), change.key == LIST)
            )
        ]
        mine = [reversion for reversion in plan.shadow_reversions if reversion.service == active.name]
        return [*changes, *_reverts(mine if active.is_shadow else [])]

    def _applied_after(
        self, cycle: Cycle, change: Change[str], active: ActiveService, outcome: NodeOutcome
    ) -> AppliedChange | None:
        prior = cycle.applied.of(active.mode.mode).get(change.key)
        was_asleep = sleeps(change) and outcome.result is Result.UNCHANGED and prior is None
        if change.value == AWAKE or was_asleep:
            return None  # a node that somebody else put to sleep meanwhile is not recorded as Helios'
        return self._row(cycle, change, active, after=outcome.after or outcome.before or change.value)

    def _row(self, cycle: Cycle, change: Change[str], active: ActiveService, *, after: str) -> AppliedChange:
        prior, own = cycle.applied.of(active.mode.mode).get(change.key), ""
        if prior is not None:
            own = prior.own
        elif change.key == LIST and self.context.power is not None:
            own = self.context.power.keep_awake
        return AppliedChange(
            setting=change.setting,
            target=change.target,
            service=active.name,
            mode=active.mode.mode,
            value=change.value,
            own=own,
            after=after,
            written_at=cycle.now,
        )


def release_nodes(
    *,
    cluster: NodeCluster,
    ledger: Ledger,
    undo: Callable[[Undo], None],
    read_undo: Callable[[], Undo | None],
    now: datetime,
    holder: str,
    reason: str,
    memory: NodeControllerState | None = None,
) -> NodeCycleReport:
    """Wake what Helios put to sleep, and restore weights and keep-awake list.

    The result is verified and recorded. No :class:`HeliosError` is raised. ``clean``, ``suspended`` and ``notes`` of
    the report say what could not be done.

    Parameters
    ----------
    undo, read_undo : callable
        Write and read the undo file. Reading returns None if there is none. Without it and the ledger the applied
        changes are not known, which is reported.
    holder : str
        Name of the caller. The lease is taken for the audit if it is free, and released.
    memory : NodeControllerState, optional
        State of the last cycle, to watch the wakes. None where it is not known.
    """
    notes: list[str] = []
    applied = _read_recorded(ledger, read_undo, notes, at=now)
    if applied is None:
        result = ReleaseResult(outcomes=[], message=f"{Result.FAILED}: {NO_RECORDS}", failure=NO_RECORDS)
    else:
        result = revert_nodes(cluster, applied, reason)
    audit = release_entries(result, now=now, reason=reason)
    audit.notes.extend(notes)
    recorded = record_release(ledger, audit, lambda: result.left, table=APPLIED_NODE_CHANGES, now=now, holder=holder)
    if applied is not None:
        try:
            undo(Undo.of(result.left))
        except HeliosError as error:
            audit.notes.append(f"the undo file could not be written: {error.message}")
    activity = NodeActivity(memory=memory or NodeControllerState())
    activity.add(result.outcomes, now=now)
    return NodeCycleReport(
        **activity.lists(),
        protected=activity.memory.protected,
        memory=activity.memory,
        **result.report(audit, reason=reason, recorded=recorded),
        **node_cycle_counts(result.snapshot, result.left, at=now),
    )


def revert_nodes(cluster: NodeCluster, applied: AppliedChanges, reason: str) -> ReleaseResult:
    """Revert everything that is observed to be applied, and verify it.

    A node that still falls asleep cannot be woken yet. It remains, and the caller has to try again. A sleeping node
    that an admin has taken over, for instance by draining it, is left as it is and is not waited for.
    """
    real, outcomes = applied.real, dict[Key, NodeOutcome]()
    try:
        snapshot = cluster.snapshot()
        for _ in range(ROUNDS):
            reversions = [
                Reversion(key=row.key, service=row.service, why=reason, own=row.own)
                for row in observed_changes(snapshot, real)
            ]
            answer = cluster.steer(_reverts(reversions)) if reversions else []
            may_do_more = add_round(outcomes, answer)  # before the next snapshot, which may fail
            snapshot = cluster.snapshot() if answer else snapshot
            if not may_do_more:
                break
    except HeliosError as error:
        failure = f"waking the nodes was broken off: {error.message}"
        message = f"{Result.FAILED}: {failure}"
        left = AppliedChanges(real=real)
        return ReleaseResult(outcomes=list(outcomes.values()), message=message, failure=failure, left=left)
    left_to_admin = {
        key: outcome
        for key, outcome in outcomes.items()
        if outcome.setting is NodeSetting.POWER and outcome.result is Result.REFUSED
    }
    remaining = [
        row.target or KEEP_AWAKE_NAME for row in observed_changes(snapshot, real) if row.key not in left_to_admin
    ]
    names = tuple(dict.fromkeys(remaining))
    message = f"{Result.DONE}: looked again, no node sleeps or is weighed because of Helios"
    if names:
        message = f"{Result.POSTPONED}: {len(names)} cannot be reverted yet: {', '.join(names[:20])}; asked again"
    admin_nodes = ", ".join(f"{outcome.node} ({outcome.remark})" for outcome in list(left_to_admin.values())[:20])
    notes = (f"left asleep, in the hands of an admin, to be woken when back in service: {admin_nodes}",)
    return ReleaseResult(
        outcomes=list(outcomes.values()),
        message=message,
        notes=notes if admin_nodes else (),
        remaining=names,
        snapshot=snapshot,
        left=AppliedChanges(real=possibly_applied_changes(real, snapshot)),
    )


def observed_changes(snapshot: Snapshot, real: AppliedByKey) -> list[AppliedChange]:
    """Return Helios' own changes that are observed to be applied."""
    nodes = observed_nodes(snapshot)
    keep_awake = None if snapshot.power is None else snapshot.power.keep_awake
    return [row for row in real.values() if not row.overridden and _is_applied(row, nodes.get(row.target), keep_awake)]


def possibly_applied_changes(real: AppliedByKey, snapshot: Snapshot) -> AppliedByKey:
    """Return changes that are observed to be applied, or cannot be observed.

    Overridden changes are dropped, because nothing of Helios is applied there and the observed value is the site's own.
    """
    keys, observable = {row.key for row in observed_changes(snapshot, real)}, {*snapshot.nodes["name"], ""}
    return {
        key: row for key, row in real.items() if key in keys or (row.target not in observable and not row.overridden)
    }


def with_undo_records(applied: AppliedChanges, undo: Undo, *, at: datetime) -> AppliedChanges:
    """Return the applied changes, with those that only the undo file has.

    The latter belong to no service, so that they are reverted.
    """
    return replace(applied, real={**undo.rows(at=at, service=HELIOS), **applied.real})


@dataclass(slots=True, kw_only=True)
class NodeActivity:
    """Changes of nodes in one cycle, and the state after them."""

    memory: NodeControllerState
    slept: list[str] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    weighed: list[str] = field(default_factory=list)

    def add(self, outcomes: Iterable[Outcome | NodeOutcome], *, now: datetime) -> None:
        """Record the nodes put to sleep, woken and weighed by completed changes."""
        for outcome in outcomes:
            if not isinstance(outcome, NodeOutcome) or outcome.result is not Result.DONE:
                continue
            if outcome.setting is NodeSetting.WEIGHT:
                self.weighed.append(outcome.node)
            elif outcome.setting is NodeSetting.POWER and outcome.action == "PowerDown":
                self.slept.append(outcome.node)
                self.memory = self.memory.with_slept(outcome.node, now)
            elif outcome.setting is NodeSetting.POWER:
                self.woken.append(outcome.node)
                self.memory = self.memory.with_wake(outcome.node, WakeUp(since=now, by="Helios"))

    def lists(self) -> dict[str, Any]:
        """Return the changed nodes, as fields of a report."""
        return {"slept": tuple(self.slept), "woken": tuple(self.woken), "weighed": tuple(self.weighed)}


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A plan in progress.

    Attributes
    ----------
    send, same, refused : dict
        By service, the changes to send, those that are already as requested, and the outcomes of the others.
    """

    context: NodeCycleContext
    refused: dict[str, list[Outcome | NodeOutcome]]
    send: dict[str, list[Change[str]]] = field(default_factory=dict)
    same: dict[str, list[Change[str]]] = field(default_factory=dict)

    def assign_services(
        self, services: Sequence[ActiveService], results: Mapping[str, GuardResult[str]], applied: AppliedByKey
    ) -> None:
        """Assign each setting of each node to one service."""
        requested = {active.name: results[active.name].allowed if active.name in results else () for active in services}
        held = {key: row.service for key, row in applied.items()}
        allowed, refused = keep_one_owner(requested, held=held, kind="node")
        for name in requested:
            self.send[name] = list(allowed[name])
            self.same[name] = list(results[name].same) if name in results else []
            self.refused.setdefault(name, []).extend(refused[name])

    def apply_budget(
        self, services: Sequence[ActiveService], budget: PowerBudget, *, without: Collection[Key] = ()
    ) -> None:
        """Keep the changes within the budget of power changes.

        Wakes of all services come before any sleep.
        """
        for active in services:
            requested = self.send[active.name]
            self.send[active.name] = [change for change in requested if change.key not in without]
            self.refused[active.name].extend(
                change.outcome(Result.POSTPONED, REVERTED_FIRST) for change in requested if change.key in without
            )
        to_send = {active.name: self.send[active.name] for active in services}
        allowed, refused = bound_power_changes(to_send, self.context.nodes, budget)
        for active in services:
            self.refused[active.name].extend(refused[active.name])
            self.send[active.name] = [change for change in allowed[active.name] if change.key != LIST]
            for change in allowed[active.name]:
                if change.key == LIST:
                    extended = self._extend_keep_awake(change, budget, mode=active.mode.mode)
                    is_desired = is_in_desired_state(extended, self.context, active.mode.mode)
                    (self.same if is_desired else self.send)[active.name].append(extended)

    def _extend_keep_awake(self, change: Change[str], budget: PowerBudget, *, mode: Mode) -> Change[str]:
        """Return the keep-awake list with nodes that may not leave it now."""
        row, nodes = self.context.applied.of(mode).get(LIST), self.context.nodes
        named = nodes_named(change.value)
        leaving = [] if row is None else [name for name in nodes_named(row.value) if name not in named]
        staying, example = [], ""
        for node in (nodes[name] for name in leaving if name in nodes):
            why = why_keep_awake(node, self.context) or budget.to_sleep(node)[1]
            if why:
                staying.append(node.name)
                example = example or f"{node.name}: {why}"
        quarantined = [name for name in self.context.memory.quarantined if name in nodes and row is not None]
        reason = f"{change.reason}; {len(staying)} more stay in it ({example})" if staying else change.reason
        return replace(change, value=join_names([*named, *staying, *quarantined]), reason=reason)


def _read_recorded(
    ledger: Ledger, read_undo: Callable[[], Undo | None], notes: list[str], *, at: datetime
) -> AppliedChanges | None:
    """Return the recorded applied changes.

    None where neither ledger nor undo file can be read.
    """
    applied, undo = None, None
    try:
        applied = AppliedChanges.read(ledger.applied_changes(), APPLIED_NODE_CHANGES)
    except HeliosError as error:
        notes.append(f"the book could not be read, the undo file stands in for it: {error.message}")
    try:
        undo = read_undo()
    except HeliosError as error:
        notes.append(f"the undo file could not be read: {error.message}")
    if applied is None and undo is None:
        return None
    return with_undo_records(applied or AppliedChanges(), undo or Undo(), at=at)


def _is_applied(row: AppliedChange, node: ObservedNode | None, keep_awake: str | None) -> bool:
    if row.setting is NodeSetting.KEEP_AWAKE:
        if keep_awake is None or same_list(keep_awake, row.own):
            return False
        return not row.confirmed or same_list(keep_awake, row.after)
    if node is None:
        return False
    if row.setting is NodeSetting.POWER:
        return node.is_away and not node.down
    return node.weight != weight_in(row.own) and (not row.confirmed or node.weight == weight_in(row.after))


def _reverts(reversions: Iterable[Reversion]) -> list[Change[str]]:
    """Return the changes that revert, wakes first.

    Those with the same setting and reason stand side by side.
    """
    grouped: dict[tuple[NodeSetting, str], list[Change[str]]] = {}
    for reversion in reversions:
        setting, node = NodeSetting(reversion.key[0]), reversion.key[1]
        change = revert_node(setting, node, reversion.own, reason=reversion.why)
        grouped.setdefault((setting, reversion.why), []).append(change)
    ranked = sorted(grouped.items(), key=lambda item: list(NodeSetting).index(item[0][0]))
    return [change for _, changes in ranked for change in changes]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObservation:
    """Current observation of the nodes, with the settings to evaluate it.

    Attributes
    ----------
    released : bool
        Whether the kill switch reverted everything since the last cycle.
    """

    nodes: Mapping[str, ObservedNode]
    power: PowerSettings | None
    at: datetime
    settings: Power
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeComparison:
    """State and applied changes after a comparison with the observed nodes.

    Attributes
    ----------
    applied : AppliedChanges
        Applied changes, without those that were undone by others.
    lines : tuple of AuditEntry
        Entries for the audit.
    notes : tuple of str
        Further messages for the operator.
    """

    memory: NodeControllerState
    applied: AppliedChanges
    lines: tuple[AuditEntry, ...] = ()
    notes: tuple[str, ...] = ()


def update_nodes(memory: NodeControllerState, applied: AppliedChanges, observation: NodeObservation) -> NodeComparison:
    """Return state and applied changes, updated by what is observed."""
    memory = memory.without_old_entries(observation.at)
    for row in applied.by_helios(NodeSetting.POWER):
        memory = memory.with_slept(row.target, row.written_at) if observation.at - row.written_at < DAY else memory
    update = _update_power(memory, applied, observation)
    update = _update_weights(update, observation)
    update = _update_keep_awake(update, observation)
    update = _update_wakes(update, observation)
    idle_nodes = {node.name for node in observation.nodes.values() if node.idle}
    shadow = {
        key: row
        for key, row in update.applied.shadow.items()
        if row.setting is not NodeSetting.POWER or row.target in idle_nodes  # a job on it would have woken it
    }
    memory = update.memory
    is_recent = memory.looked_at is not None and timedelta(0) <= observation.at - memory.looked_at <= APART
    idle_before = memory.idle if is_recent else {}
    return replace(
        update,
        memory=replace(
            memory,
            idle={
                node.name: idle_before.get(node.name, observation.at)
                for node in observation.nodes.values()
                if node.idle
            },
            looked_at=observation.at,
        ),
        applied=replace(update.applied, shadow=shadow),
    )


def shadow_entries(before: AppliedChanges, after: AppliedChanges) -> Iterable[AuditEntry]:
    """Yield entries about nodes that are no longer asleep in shadow.

    A service in shadow would have put them to sleep, and they are no longer idle.
    """
    for key, row in before.shadow.items():
        if key not in after.shadow:
            outcome = f"{Result.WOULD}: Slurm would have woken it for a job, or somebody has changed it"
            yield _audit_entry("Woken", row, reason="it is no longer idle", outcome=outcome, observed="awake")


def _update_power(memory: NodeControllerState, applied: AppliedChanges, observation: NodeObservation) -> NodeComparison:
    real, lines = dict(applied.real), []
    for row in applied.by_helios(NodeSetting.POWER):
        node = observation.nodes.get(row.target)
        if node is None:
            continue  # a node missing in the snapshot may come back, and still be asleep
        if node.is_away and not node.down:
            real[row.key] = row if row.confirmed else replace(row, after=str(node.power))
            continue
        asked_to_sleep = not row.confirmed and row.value != AWAKE
        if asked_to_sleep and node.power is NodePower.AWAKE and observation.at - row.written_at < SLEEP_TIMEOUT:
            continue  # it may still fall asleep
        del real[row.key]
        if observation.released or not row.confirmed:
            continue
        if node.down:
            did_not_answer = any(words in node.reason.lower() for words in NO_ANSWER_REASONS)
            if row.value == AWAKE or not node.reason or did_not_answer:
                # It was asleep in the last snapshot, and did not answer when it was woken after that.
                memory = memory.with_wake(row.target, WakeUp(since=observation.at, by="Slurm"))
        elif row.value != AWAKE:
            memory, line = _woken_by_others(memory, row, node, observation)
            lines.append(line)
        elif node.power is NodePower.WAKING:  # woken by a cycle that ended before it could record so
            memory = memory.with_wake(row.target, WakeUp(since=observation.at, by="Helios"))
    return NodeComparison(memory=memory, applied=replace(applied, real=real), lines=tuple(lines))


def _woken_by_others(
    memory: NodeControllerState, row: AppliedChange, node: ObservedNode, observation: NodeObservation
) -> tuple[NodeControllerState, AuditEntry]:
    job_ran = node.idle_since is not None and node.idle_since > row.written_at
    reason, effect = "somebody woke it", "it is no longer asleep because of Helios"
    if node.holds or node.state != "IDLE" or (node.power is NodePower.AWAKE and job_ran):
        reason = "Slurm woke it for a job"
    elif observation.at - row.written_at < timedelta(seconds=observation.settings.payback_s):
        until = observation.at + DAY
        memory = replace(memory, keep_off={**memory.keep_off, row.target: until})
        effect = f"Helios does not put it to sleep before {until:%Y-%m-%d %H:%M} UTC"
    if node.power is NodePower.WAKING:
        memory = memory.with_wake(row.target, WakeUp(since=observation.at, by="Slurm"))
    outcome = f"{Result.DONE}: {effect}"
    return memory, _audit_entry("Woken", row, reason=reason, outcome=outcome, observed=str(node.power))


def _update_weights(update: NodeComparison, observation: NodeObservation) -> NodeComparison:
    real, lines = dict(update.applied.real), list(update.lines)
    for row in [row for row in real.values() if row.setting is NodeSetting.WEIGHT]:
        node = observation.nodes.get(row.target)
        if node is None or math.isnan(node.weight):
            continue
        as_written = node.weight == weight_in(row.after)
        if node.weight == weight_in(row.own) and (observation.released or not as_written):
            del real[row.key]
        elif as_written:
            continue  # also after a release, since its user may not have had the privilege
        elif row.confirmed and not row.overridden:
            lines.append(_overridden_entry(row, observed=f"Weight {node.weight:.0f}"))
            real[row.key] = replace(row, overridden=True)
    return replace(update, applied=replace(update.applied, real=real), lines=tuple(lines))


def _update_keep_awake(update: NodeComparison, observation: NodeObservation) -> NodeComparison:
    row = update.applied.real.get(LIST)
    if row is None or observation.power is None:
        return update
    observed = observation.power.keep_awake
    if row.confirmed and same_list(observed, row.after) and not observation.released:
        return update
    if same_list(observed, row.own):
        real = {key: other for key, other in update.applied.real.items() if key != LIST}
        notes = update.notes
        if row.confirmed and not row.overridden and not observation.released:
            lost = "the cluster forgot the keep-awake list (a reconfiguration, a restart): it is set again"
            notes = (*notes, lost)
        return replace(update, applied=replace(update.applied, real=real), notes=notes)
    if not row.confirmed or row.overridden or same_list(observed, row.after):
        return update
    applied = replace(update.applied, real={**update.applied.real, LIST: replace(row, overridden=True)})
    return replace(update, applied=applied, lines=(*update.lines, _overridden_entry(row, observed=observed)))


def _update_wakes(update: NodeComparison, observation: NodeObservation) -> NodeComparison:
    memory, lines, notes = update.memory, list(update.lines), list(update.notes)
    was_protected = bool(memory.protected)
    for name, wake in update.memory.wakes.items():
        result = _wake_result(observation.nodes.get(name), wake, observation)
        if result is None:
            continue
        memory = replace(memory, wakes={node: other for node, other in memory.wakes.items() if node != name})
        if result:
            memory = memory.with_failure(Failure(node=name, at=observation.at, what=result), observation.settings)
            lines.append(
                AuditEntry(
                    service=HELIOS,
                    mode=Mode.ACTIVE,
                    action="FailedWake",
                    target=name,
                    reason=f"{wake.by} told it to wake at {wake.since:%Y-%m-%d %H:%M:%S} UTC",
                    outcome=f"{Result.FAILED}: {result}; it is not put to sleep until a person clears it",
                )
            )
            notes.append(
                f"tell somebody: node {name} {result}; it is not put to sleep until: helios power --clear {name}"
            )
    if memory.protected and not was_protected:
        lines.append(
            AuditEntry(
                service=HELIOS,
                mode=Mode.ACTIVE,
                action="Protected",
                target="",
                reason=f"{len(memory.failures)} wakes failed in 24 hours",
                outcome=f"{Result.REFUSED}: nothing is put to sleep until a person says: helios power --clear all",
            )
        )
    return replace(update, memory=memory, lines=tuple(lines), notes=tuple(notes))


def _wake_result(node: ObservedNode | None, wake: WakeUp, observation: NodeObservation) -> str | None:
    """Return why a wake failed.

    Empty where the node woke, or the wake no longer matters. None while it may still wake.
    """
    if node is None or node.power is NodePower.FALLING_ASLEEP:
        return ""
    if node.state == "DOWN":
        return "did not wake: it is DOWN" + (f" ({node.reason})" if node.reason else "")
    if node.power is NodePower.AWAKE:
        return ""
    if observation.power is None or observation.at - wake.since <= timedelta(
        seconds=observation.power.resume_timeout_s + WAKE_MARGIN_S
    ):
        return None
    return f"did not wake within {observation.power.resume_timeout_s:g} s: it is {node.power or 'not responding'}"


def _overridden_entry(row: AppliedChange, *, observed: str) -> AuditEntry:
    outcome = f"{Result.REFUSED}: {row.setting} is theirs from now on; what Helios set there it leaves"
    reason = f"somebody changed what service {row.service} had set"
    return _audit_entry("HandsOff", row, reason=reason, outcome=outcome, observed=observed)


def _audit_entry(action: str, row: AppliedChange, *, reason: str, outcome: str, observed: str) -> AuditEntry:
    return AuditEntry(
        service=row.service,
        mode=row.mode,
        action=action,
        target=row.target,
        reason=reason,
        before=row.after,
        after=observed,
        outcome=outcome,
    )
