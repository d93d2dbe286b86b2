"""From what services ask for to what is sent to the cluster: guarded, owned, different from what stands, affordable.

Pure. Desired state: what stands and is no longer asked for by a service that may write is reverted, and exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from helios.actions import JobSetting, NodeOutcome, NodeSetting, Outcome, Result
from helios.changes import (
    ASLEEP,
    LIST,
    TIER,
    JobChange,
    Key,
    NodeChange,
    NodeKey,
    RequestedChanges,
    RequestedNodeChanges,
    join_names,
    nodes_named,
)
from helios.config import Settings
from helios.control.applied import AppliedChange, AppliedChanges, AppliedNodeChange, Book, NodeBook, Tolerance
from helios.control.guards import GuardResult, apply_guards, keep_one_owner
from helios.control.modes import NOTHING, ServiceMode
from helios.control.node_guards import (
    NodeCycleContext,
    NodeGuardResult,
    PowerBudget,
    apply_node_guards,
    is_in_desired_state,
    keep_one_node_owner,
    why_not_asleep,
)
from helios.control.observed import PendingJob, carried_values
from helios.model import Mode, NodePower, Snapshot
from helios.ports import Service

NOBODY = "it bears Helios' mark and nobody asks for it"
SPENT = "the writes of this cycle are spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveService:
    """A service at the table, under its name in the configuration, and how far it may go."""

    name: str
    service: Service
    mode: ServiceMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleContext:
    """What a cycle sees and remembers of the cluster before it asks anybody.

    Attributes
    ----------
    jobs : mapping
        The pending jobs, as the cluster gave them.
    """

    snapshot: Snapshot
    jobs: Mapping[str, PendingJob]
    applied: AppliedChanges
    tolerance: Tolerance
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReversion:
    """A change of Helios that must not stand any longer, whose it was, and why."""

    key: Key
    service: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePlan:
    """What a cycle will do.

    Attributes
    ----------
    send, same, refused : mapping
        By service: what differs from what stands, what already is so, and what may not be or must wait.
    take_back : tuple of TakeBack
        On the cluster.
    shadows_end : tuple of TakeBack
        What would be reverted, if the shadows could act.
    forget : frozenset of Key
        Real entries behind which nothing is seen on the cluster any more.
    orphans : int
        Changes that bear Helios' mark, are in no book, and are about jobs that no service may change now: what the hook
        or a lost database left. They are told, not touched: a shadow alone on a cluster must not write.
    """

    send: Mapping[str, tuple[JobChange, ...]] = field(default_factory=dict)
    same: Mapping[str, tuple[JobChange, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[Outcome, ...]] = field(default_factory=dict)
    take_back: tuple[JobReversion, ...] = ()
    shadows_end: tuple[JobReversion, ...] = ()
    forget: frozenset[Key] = frozenset()
    untracked: int = 0


def plan_jobs(
    proposals: Mapping[str, RequestedChanges], *, active_services: Sequence[ActiveService], context: CycleContext
) -> ReconcilePlan:
    """Return what to do about ``proposals``.

    Parameters
    ----------
    proposals : mapping
        Of the services that were asked in this cycle and answered.
    seats : sequence of Seat
        In the order of configuration; without those that sit out.
    """
    results = {
        active.name: _result(proposals[active.name], active, context)
        for active in active_services
        if active.name in proposals
    }
    real = _owned(results, [active for active in active_services if active.mode.writes], context.applied.real)
    shadow = _owned(
        results, [active for active in active_services if active.mode.mode is Mode.SHADOW], context.applied.shadow
    )
    allowed = real.allowed | shadow.allowed
    split = {name: _split(changes, context, is_shadow=name in shadow.allowed) for name, changes in allowed.items()}
    refused = {name: (*results[name].refused, *(real.refused | shadow.refused).get(name, ())) for name in results}
    unwanted = _unwanted(proposals, results, real, active_services=active_services, context=context)
    # What cannot be read is neither written blindly nor forgotten: a later turn that can read it takes it back.
    seen = tuple(back for back in unwanted if context.jobs[back.key[1]].carries(back.key[0]))
    planned = ReconcilePlan(
        send={name: tuple(differing) for name, (differing, _) in split.items()},
        same={name: tuple(same) for name, (_, same) in split.items()},
        refused=refused,
        take_back=seen,
        shadows_end=tuple(_shadows_end(proposals, results, shadow, active_services=active_services, context=context)),
        forget=frozenset(back.key for back in unwanted if not _may_stand(back.key, context)),
        untracked=_untracked([active for active in active_services if active.mode.writes], context),
    )
    return _within_budget(planned, writers=set(real.allowed), context=context)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owned:
    allowed: dict[str, tuple[JobChange, ...]]
    refused: dict[str, tuple[Outcome, ...]]

    def wanted(self) -> set[Key]:
        return {change.key for changes in self.allowed.values() for change in changes}


def _result(proposal: RequestedChanges, active: ActiveService, context: CycleContext) -> GuardResult:
    return apply_guards(
        proposal.changes,
        jobs=context.jobs,
        mode=active.mode,
        of_the_overridden=context.applied.of_the_overridden(),
        most_of_one_user=context.settings.control.most_of_one_user,
    )


def _owned(results: Mapping[str, GuardResult], active_services: Sequence[ActiveService], applied_now: Book) -> _Owned:
    silent = {active.name for active in active_services} - set(results)
    held = {key: row.service for key, row in applied_now.items() if row.service in silent}
    changes = {
        active.name: results[active.name].allowed if active.name in results else () for active in active_services
    }
    allowed, refused = keep_one_owner(changes, held=held)
    return _Owned(allowed=allowed, refused=refused)


def _split(
    changes: Iterable[JobChange], context: CycleContext, *, is_shadow: bool
) -> tuple[list[JobChange], list[JobChange]]:
    differing: list[JobChange] = []
    same: list[JobChange] = []
    for change in changes:
        read = _would_stand(change, context) if is_shadow else context.jobs[change.job_id].value(change.setting)
        agrees = context.tolerance.same(change.setting, asked=change.value, read=read)
        (same if agrees else differing).append(change)
    return differing, same


def _would_stand(change: JobChange, context: CycleContext) -> float:
    row = context.applied.shadow.get(change.key)
    return NOTHING[change.setting] if row is None else row.value


def _may_stand(key: Key, context: CycleContext) -> bool:
    setting, job_id = key
    job = context.jobs[job_id]
    return job.carries(setting) or not job.readable(setting)


def _unwanted(
    proposals: Mapping[str, RequestedChanges],
    results: Mapping[str, GuardResult],
    owned: _Owned,
    *,
    active_services: Sequence[ActiveService],
    context: CycleContext,
) -> list[JobReversion]:
    writers = {active.name: active for active in active_services if active.mode.writes}
    keep = owned.wanted() | _waiting(results)
    theirs = context.applied.of_the_overridden()
    unwanted = [
        JobReversion(key=key, service=row.service, why=why)
        for key, row in context.applied.real.items()
        if key not in keep and key not in theirs and not context.jobs[row.job_id].excluded_reason
        if (why := _why_not_stand(row, writers, proposals, context))
    ]
    return [*unwanted, *_nobodys(proposals, writers, keep, context)]


def _why_not_stand(
    row: AppliedChange,
    writers: Mapping[str, ActiveService],
    proposals: Mapping[str, RequestedChanges],
    context: CycleContext,
) -> str:
    if row.service not in writers:
        return f"service {row.service} may not write now"
    if not writers[row.service].mode.covers(context.jobs[row.job_id]):
        return f"it is outside the canary of service {row.service} now"
    return f"service {row.service} no longer asks for it" if row.service in proposals else ""


def _nobodys(
    proposals: Mapping[str, RequestedChanges],
    writers: Mapping[str, ActiveService],
    keep: set[Key],
    context: CycleContext,
) -> Iterable[JobReversion]:
    for key in carried_values(list(context.jobs.values())):
        job = context.jobs[key[1]]
        if key in keep or key in context.applied.real or job.excluded_reason:
            continue
        for name, active in writers.items():
            if name in proposals and active.mode.covers(job) and _is_governed(key[0], job, proposals[name]):
                yield JobReversion(key=key, service=name, why=NOBODY)
                break


def _untracked(writers: Sequence[ActiveService], context: CycleContext) -> int:
    return sum(
        key not in context.applied.real
        and not context.jobs[key[1]].excluded_reason
        and not any(active.mode.covers(context.jobs[key[1]]) for active in writers)
        for key in carried_values(list(context.jobs.values()))
    )


def _is_governed(setting: JobSetting, job: PendingJob, proposal: RequestedChanges) -> bool:
    return job.partition in proposal.partitions if setting is JobSetting.ORDER else proposal.soft_limits


def _waiting(results: Mapping[str, GuardResult]) -> set[Key]:
    refused = (outcome for result in results.values() for outcome in result.refused)
    return {(outcome.setting, outcome.job_id) for outcome in refused if outcome.result is Result.POSTPONED}


def _shadows_end(
    proposals: Mapping[str, RequestedChanges],
    results: Mapping[str, GuardResult],
    owned: _Owned,
    *,
    active_services: Sequence[ActiveService],
    context: CycleContext,
) -> Iterable[JobReversion]:
    shadows = {active.name for active in active_services if active.mode.mode is Mode.SHADOW}
    keep = owned.wanted() | _waiting(results)
    for key, row in context.applied.shadow.items():
        if key in keep or context.jobs[row.job_id].excluded_reason:
            continue
        if row.service not in shadows:
            yield JobReversion(key=key, service=row.service, why=f"service {row.service} is no shadow now")
        elif row.service in proposals:
            yield JobReversion(key=key, service=row.service, why=f"service {row.service} no longer asks for it")


def _within_budget(plan: ReconcilePlan, *, writers: set[str], context: CycleContext) -> ReconcilePlan:
    left = context.settings.slurm.writes_per_cycle - len(plan.take_back)
    if left < 0:
        return _cut(plan, writers, left, context)
    wanted = sum(len(plan.send[name]) for name in writers)
    return plan if wanted <= left else _cut(plan, writers, left, context)


def _cut(plan: ReconcilePlan, writers: set[str], left: int, context: CycleContext) -> ReconcilePlan:
    send, refused = dict(plan.send), dict(plan.refused)
    for name in (name for name in plan.send if name in writers):
        changes = sorted(plan.send[name], key=lambda change: -_size(change, context))
        send[name], late = tuple(changes[: max(left, 0)]), changes[max(left, 0) :]
        refused[name] = (*refused.get(name, ()), *(change.outcome(Result.POSTPONED, SPENT) for change in late))
        left -= len(send[name])
    return replace(
        plan, send=send, refused=refused, take_back=plan.take_back[: context.settings.slurm.writes_per_cycle]
    )


def _size(change: JobChange, context: CycleContext) -> float:
    # Orders of the largest change first; soft limits after them, in the order of the queue.
    return abs(change.value - context.jobs[change.job_id].urgency) if change.setting is JobSetting.ORDER else 0.0


# From what services ask of nodes to what is sent to the cluster: guarded, owned, within bounds, affordable.
#
# Pure. Sleep and wake are asked for once and stand until somebody wakes the node; weights and the keep-awake list
# stand until a service says otherwise. What stands for a service that may no longer write is reverted.

SOON_S = 600.0
"""How long before the cluster's idle timer ends a node counts as on its way to sleep, s."""
TAKEN_BACK = "what stands there is reverted first"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReversion:
    """A change of Helios that must not stand any longer, and why."""

    row: AppliedNodeChange
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReconcilePlan:
    """What a node cycle will do.

    Attributes
    ----------
    send, same, refused : mapping
        By service: what differs from what stands, what already is so, and what may not be or must wait.
    take_back : tuple of GiveBack
        On the cluster.
    shadows_end : tuple of GiveBack
        What would be reverted, if the shadows could act.
    waiting : tuple of NodeStanding
        What must be reverted and cannot be yet: nodes still falling asleep, drained since, or no room on the way.
    """

    send: Mapping[str, tuple[NodeChange, ...]] = field(default_factory=dict)
    same: Mapping[str, tuple[NodeChange, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[NodeOutcome, ...]] = field(default_factory=dict)
    take_back: tuple[NodeReversion, ...] = ()
    shadows_end: tuple[NodeReversion, ...] = ()
    waiting: tuple[AppliedNodeChange, ...] = ()


def plan_nodes(
    proposals: Mapping[str, RequestedNodeChanges],
    *,
    active_services: Sequence[ActiveService],
    context: NodeCycleContext,
) -> NodeReconcilePlan:
    """Return what to do about ``proposals``.

    Parameters
    ----------
    proposals : mapping
        Of the services that were asked in this cycle and answered.
    seats : sequence of Seat
        In the order of configuration; without those that sit out.
    """
    results = {
        active.name: apply_node_guards(
            _bounded(proposals[active.name].changes, context, active.mode), context=context, mode=active.mode
        )
        for active in active_services
        if active.name in proposals
    }
    draft = _Draft(context=context, refused={name: list(result.refused) for name, result in results.items()})
    writers = [active for active in active_services if active.mode.writes]
    draft.own(writers, results, context.applied.real)
    bounds, may_sleep = context.settings.power, _may_sleep(context)
    room = PowerBudget(context.nodes, bounds, away=may_sleep, about_to_fall=_about_to_fall(context))
    take_back, waiting = _given_back(proposals, writers, context, room)
    draft.let_through(writers, room, without={back.row.key for back in take_back})
    for active in active_services:
        if active.mode.mode is Mode.SHADOW:
            draft.own([active], results, {})
            asleep = {row.node for row in context.applied.shadow.values() if row.value == ASLEEP}
            draft.let_through(
                [active], PowerBudget(context.nodes, bounds, away=(asleep & set(context.nodes)) | may_sleep)
            )
    draft.cut(writers, left=context.settings.slurm.writes_per_cycle - len(take_back))
    return NodeReconcilePlan(
        send={name: tuple(changes) for name, changes in draft.send.items()},
        same={name: tuple(changes) for name, changes in draft.same.items()},
        refused={name: tuple(outcomes) for name, outcomes in draft.refused.items()},
        take_back=take_back,
        shadows_end=tuple(_node_shadows_end(proposals, active_services, results, context)),
        waiting=waiting,
    )


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A plan while it is made; each method narrows it."""

    context: NodeCycleContext
    refused: dict[str, list[NodeOutcome]]
    send: dict[str, list[NodeChange]] = field(default_factory=dict)
    same: dict[str, list[NodeChange]] = field(default_factory=dict)

    def own(
        self, active_services: Sequence[ActiveService], results: Mapping[str, NodeGuardResult], applied_now: NodeBook
    ) -> None:
        asked = {
            active.name: results[active.name].allowed if active.name in results else () for active in active_services
        }
        allowed, refused = keep_one_node_owner(asked, held={key: row.service for key, row in applied_now.items()})
        for name in asked:
            self.send[name] = list(allowed[name])
            self.same[name] = list(results[name].same) if name in results else []
            self.refused.setdefault(name, []).extend(refused[name])

    def let_through(
        self, active_services: Sequence[ActiveService], room: PowerBudget, *, without: Iterable[NodeKey] = ()
    ) -> None:
        """Keep what there is room for: wakes of all services before anybody's sleeps."""
        taken = set(without)
        for active in active_services:
            late = [change for change in self.send[active.name] if change.key in taken]
            self.send[active.name] = [change for change in self.send[active.name] if change.key not in taken]
            self.refused[active.name].extend(change.outcome(Result.POSTPONED, TAKEN_BACK) for change in late)
        for sleeps in (False, True):
            for active in active_services:
                self._pass(active, room, sleeps=sleeps)

    def _pass(self, active: ActiveService, room: PowerBudget, *, sleeps: bool) -> None:
        kept: list[NodeChange] = []
        for change in self.send[active.name]:
            if change.setting is NodeSetting.KEEP_AWAKE and sleeps:
                self._narrow(active, change, room, kept)
            elif change.setting is NodeSetting.POWER and change.sleeps is sleeps:
                result = room.to_sleep(self.context.nodes[change.node]) if sleeps else room.to_wake()
                if result[1]:
                    self.refused[active.name].append(change.outcome(*result))
                else:
                    kept.append(change)
            else:
                kept.append(change)
        self.send[active.name] = kept

    def _narrow(self, active: ActiveService, change: NodeChange, room: PowerBudget, kept: list[NodeChange]) -> None:
        narrowed = _kept_longer(change, self.context, room, mode=active.mode.mode)
        (self.same[active.name] if is_in_desired_state(narrowed, self.context, active.mode.mode) else kept).append(
            narrowed
        )

    def cut(self, writers: Sequence[ActiveService], *, left: int) -> None:
        """Keep what the writes of a cycle pay for: power first, then the list, weights last."""
        order = [NodeSetting.POWER, NodeSetting.KEEP_AWAKE, NodeSetting.WEIGHT]
        for active in writers:
            changes = sorted(self.send[active.name], key=lambda change: order.index(change.setting))
            late = changes[max(left, 0) :]
            self.send[active.name] = changes[: max(left, 0)]
            self.refused[active.name].extend(change.outcome(Result.POSTPONED, SPENT) for change in late)
            left -= len(self.send[active.name])


def _bounded(changes: Iterable[NodeChange], context: NodeCycleContext, mode: ServiceMode) -> list[NodeChange]:
    """Bring weights within ``power.tiers``, and the keep-awake list to nodes that there are, within the canary."""
    bounded = []
    for change in changes:
        if change.setting is NodeSetting.WEIGHT:
            bounded.append(replace(change, value=f"{TIER}{min(change.tier, context.settings.power.tiers - 1)}"))
        elif change.setting is NodeSetting.KEEP_AWAKE:
            known = [context.nodes[name] for name in change.names if name in context.nodes]
            reached = {n.name for n in context.nodes.values() if mode.reaches(n.name, partitions=n.partitions)}
            inside, never = {node.name for node in known} & reached, context.never & reached
            bounded.append(replace(change, value=join_names(inside | never)))
        else:
            bounded.append(change)
    return bounded


def _may_sleep(context: NodeCycleContext) -> set[str]:
    """Return the nodes that the cluster's own timer may put to sleep at any moment, where that is who does it."""
    return {node.name for node in context.nodes.values() if not node.kept_awake} if context.only_lists else set()


def _about_to_fall(context: NodeCycleContext) -> list[str]:
    if not context.only_lists or context.power is None:
        return []
    idle_s = context.power.suspend_time_s - SOON_S
    unkept = (node for node in context.nodes.values() if node.idle and not node.kept_awake and node.idle_since)
    now = context.snapshot.taken_at
    return [node.name for node in unkept if (now - (node.idle_since or now)).total_seconds() >= idle_s]


def _kept_longer(change: NodeChange, context: NodeCycleContext, room: PowerBudget, *, mode: Mode) -> NodeChange:
    """Return the list with those nodes left in it that may not leave it now."""
    row = (context.applied.shadow if mode is Mode.SHADOW else context.applied.real).get(LIST)
    leaving = [] if row is None else [name for name in nodes_named(row.value) if name not in change.names]
    stays, first = [], ""
    for node in (context.nodes[name] for name in leaving if name in context.nodes):
        why = why_not_asleep(node, context) or room.to_sleep(node)[1]
        if why:
            stays.append(node.name)
            first = first or f"{node.name}: {why}"
    quarantined = [name for name in context.memory.quarantined if name in context.nodes and row is not None]
    value = join_names([*change.names, *stays, *quarantined])
    told = f"{change.reason}; {len(stays)} more stay in it ({first})" if stays else change.reason
    return replace(change, value=value, reason=told)


def _given_back(
    proposals: Mapping[str, RequestedNodeChanges],
    writers: Sequence[ActiveService],
    context: NodeCycleContext,
    room: PowerBudget,
) -> tuple[tuple[NodeReversion, ...], tuple[AppliedNodeChange, ...]]:
    modes = {active.name: active.mode for active in writers}
    back, waiting = [], []
    for row in context.applied.real.values():
        why = "" if row.overridden else _why_node_not_stand(row, modes, proposals, context)
        if not why:
            continue
        node = context.nodes.get(row.node)
        if row.setting is not NodeSetting.POWER:
            back.append(NodeReversion(row=row, why=why))
        elif node is None or node.power is NodePower.FALLING_ASLEEP or not node.in_service or room.to_wake()[1]:
            waiting.append(row)
        else:
            back.append(NodeReversion(row=row, why=why))
    most = context.settings.slurm.writes_per_cycle
    return tuple(back[:most]), (*waiting, *(late.row for late in back[most:]))


def _why_node_not_stand(
    row: AppliedNodeChange,
    modes: Mapping[str, ServiceMode],
    proposals: Mapping[str, RequestedNodeChanges],
    context: NodeCycleContext,
) -> str:
    if row.service not in modes:
        return f"service {row.service} may not write now"
    node = context.nodes.get(row.node)
    if node is not None and not modes[row.service].reaches(node.name, partitions=node.partitions):
        return f"it is outside the canary of service {row.service} now"
    other = NodeSetting.POWER if context.only_lists else NodeSetting.KEEP_AWAKE
    if row.setting is other:
        return f"power.mechanism is {context.settings.power.mechanism} now"
    gives = row.service in proposals and row.key in proposals[row.service].gives_back
    return f"service {row.service} gave it back" if gives else ""


def _node_shadows_end(
    proposals: Mapping[str, RequestedNodeChanges],
    active_services: Sequence[ActiveService],
    results: Mapping[str, NodeGuardResult],
    context: NodeCycleContext,
) -> Iterable[NodeReversion]:
    shadows = {active.name for active in active_services if active.mode.mode is Mode.SHADOW}
    for row in context.applied.shadow.values():
        if row.service not in shadows:
            yield NodeReversion(row=row, why=f"service {row.service} is no shadow now")
        elif row.service in proposals and row.setting is NodeSetting.POWER:
            # The node is awake in truth, so that a shadow that still wants it asleep asks for it again.
            if row.key not in {change.key for change in results[row.service].same}:
                yield NodeReversion(row=row, why=f"service {row.service} no longer wants it asleep")
        elif row.service in proposals and row.key in proposals[row.service].gives_back:
            yield NodeReversion(row=row, why=f"service {row.service} gave it back")
