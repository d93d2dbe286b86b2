"""From what services ask for to what is sent to the cluster: guarded, owned, different from what stands, affordable.

Pure. Desired state: what stands and is no longer asked for by a service that may write is taken back, and exactly that.
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
SPENT = "the writes of this turn are spent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveService:
    """A service at the table, under its name in the configuration, and how far it may go."""

    name: str
    service: Service
    mode: ServiceMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleContext:
    """What a turn sees and remembers of the cluster before it asks anybody.

    Attributes
    ----------
    jobs : mapping
        The pending jobs, as the cluster gave them.
    """

    snapshot: Snapshot
    jobs: Mapping[str, PendingJob]
    books: AppliedChanges
    resolution: Tolerance
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReversion:
    """A change of Helios that must not stand any longer, whose it was, and why."""

    key: Key
    service: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePlan:
    """What a turn will do.

    Attributes
    ----------
    send, same, refused : mapping
        By service: what differs from what stands, what already is so, and what may not be or must wait.
    take_back : tuple of TakeBack
        On the cluster.
    shadows_end : tuple of TakeBack
        What would be taken back, if the shadows could act.
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
    orphans: int = 0


def plan_jobs(
    proposals: Mapping[str, RequestedChanges], *, seats: Sequence[ActiveService], scene: CycleContext
) -> ReconcilePlan:
    """Return what to do about ``proposals``.

    Parameters
    ----------
    proposals : mapping
        Of the services that were asked in this turn and answered.
    seats : sequence of Seat
        In the order of configuration; without those that sit out.
    """
    verdicts = {seat.name: _verdict(proposals[seat.name], seat, scene) for seat in seats if seat.name in proposals}
    real = _owned(verdicts, [seat for seat in seats if seat.mode.writes], scene.books.real)
    shadow = _owned(verdicts, [seat for seat in seats if seat.mode.mode is Mode.SHADOW], scene.books.shadow)
    allowed = real.allowed | shadow.allowed
    split = {name: _split(wishes, scene, is_shadow=name in shadow.allowed) for name, wishes in allowed.items()}
    refused = {name: (*verdicts[name].refused, *(real.refused | shadow.refused).get(name, ())) for name in verdicts}
    unwanted = _unwanted(proposals, verdicts, real, seats=seats, scene=scene)
    # What cannot be read is neither written blindly nor forgotten: a later turn that can read it takes it back.
    seen = tuple(back for back in unwanted if scene.jobs[back.key[1]].carries(back.key[0]))
    planned = ReconcilePlan(
        send={name: tuple(differing) for name, (differing, _) in split.items()},
        same={name: tuple(same) for name, (_, same) in split.items()},
        refused=refused,
        take_back=seen,
        shadows_end=tuple(_shadows_end(proposals, verdicts, shadow, seats=seats, scene=scene)),
        forget=frozenset(back.key for back in unwanted if not _may_stand(back.key, scene)),
        orphans=_orphans([seat for seat in seats if seat.mode.writes], scene),
    )
    return _within_budget(planned, writers=set(real.allowed), scene=scene)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Owned:
    allowed: dict[str, tuple[JobChange, ...]]
    refused: dict[str, tuple[Outcome, ...]]

    def wanted(self) -> set[Key]:
        return {wish.key for wishes in self.allowed.values() for wish in wishes}


def _verdict(proposal: RequestedChanges, seat: ActiveService, scene: CycleContext) -> GuardResult:
    return apply_guards(
        proposal.wishes,
        jobs=scene.jobs,
        mode=seat.mode,
        of_the_admins=scene.books.of_the_admins(),
        most_of_one_user=scene.settings.control.most_of_one_user,
    )


def _owned(verdicts: Mapping[str, GuardResult], seats: Sequence[ActiveService], book: Book) -> _Owned:
    silent = {seat.name for seat in seats} - set(verdicts)
    held = {key: row.service for key, row in book.items() if row.service in silent}
    wishes = {seat.name: verdicts[seat.name].allowed if seat.name in verdicts else () for seat in seats}
    allowed, refused = keep_one_owner(wishes, held=held)
    return _Owned(allowed=allowed, refused=refused)


def _split(
    wishes: Iterable[JobChange], scene: CycleContext, *, is_shadow: bool
) -> tuple[list[JobChange], list[JobChange]]:
    differing: list[JobChange] = []
    same: list[JobChange] = []
    for wish in wishes:
        read = _would_stand(wish, scene) if is_shadow else scene.jobs[wish.job_id].value(wish.lever)
        agrees = scene.resolution.same(wish.lever, asked=wish.value, read=read)
        (same if agrees else differing).append(wish)
    return differing, same


def _would_stand(wish: JobChange, scene: CycleContext) -> float:
    row = scene.books.shadow.get(wish.key)
    return NOTHING[wish.lever] if row is None else row.value


def _may_stand(key: Key, scene: CycleContext) -> bool:
    lever, job_id = key
    job = scene.jobs[job_id]
    return job.carries(lever) or not job.readable(lever)


def _unwanted(
    proposals: Mapping[str, RequestedChanges],
    verdicts: Mapping[str, GuardResult],
    owned: _Owned,
    *,
    seats: Sequence[ActiveService],
    scene: CycleContext,
) -> list[JobReversion]:
    writers = {seat.name: seat for seat in seats if seat.mode.writes}
    keep = owned.wanted() | _waiting(verdicts)
    theirs = scene.books.of_the_admins()
    unwanted = [
        JobReversion(key=key, service=row.service, why=why)
        for key, row in scene.books.real.items()
        if key not in keep and key not in theirs and not scene.jobs[row.job_id].hands_off
        if (why := _why_not_stand(row, writers, proposals, scene))
    ]
    return [*unwanted, *_nobodys(proposals, writers, keep, scene)]


def _why_not_stand(
    row: AppliedChange,
    writers: Mapping[str, ActiveService],
    proposals: Mapping[str, RequestedChanges],
    scene: CycleContext,
) -> str:
    if row.service not in writers:
        return f"service {row.service} may not write now"
    if not writers[row.service].mode.covers(scene.jobs[row.job_id]):
        return f"it is outside the canary of service {row.service} now"
    return f"service {row.service} no longer asks for it" if row.service in proposals else ""


def _nobodys(
    proposals: Mapping[str, RequestedChanges], writers: Mapping[str, ActiveService], keep: set[Key], scene: CycleContext
) -> Iterable[JobReversion]:
    for key in carried_values(list(scene.jobs.values())):
        job = scene.jobs[key[1]]
        if key in keep or key in scene.books.real or job.hands_off:
            continue
        for name, seat in writers.items():
            if name in proposals and seat.mode.covers(job) and _is_governed(key[0], job, proposals[name]):
                yield JobReversion(key=key, service=name, why=NOBODY)
                break


def _orphans(writers: Sequence[ActiveService], scene: CycleContext) -> int:
    return sum(
        key not in scene.books.real
        and not scene.jobs[key[1]].hands_off
        and not any(seat.mode.covers(scene.jobs[key[1]]) for seat in writers)
        for key in carried_values(list(scene.jobs.values()))
    )


def _is_governed(lever: JobSetting, job: PendingJob, proposal: RequestedChanges) -> bool:
    return job.partition in proposal.partitions if lever is JobSetting.ORDER else proposal.soft_limits


def _waiting(verdicts: Mapping[str, GuardResult]) -> set[Key]:
    refused = (outcome for verdict in verdicts.values() for outcome in verdict.refused)
    return {(outcome.lever, outcome.job_id) for outcome in refused if outcome.result is Result.POSTPONED}


def _shadows_end(
    proposals: Mapping[str, RequestedChanges],
    verdicts: Mapping[str, GuardResult],
    owned: _Owned,
    *,
    seats: Sequence[ActiveService],
    scene: CycleContext,
) -> Iterable[JobReversion]:
    shadows = {seat.name for seat in seats if seat.mode.mode is Mode.SHADOW}
    keep = owned.wanted() | _waiting(verdicts)
    for key, row in scene.books.shadow.items():
        if key in keep or scene.jobs[row.job_id].hands_off:
            continue
        if row.service not in shadows:
            yield JobReversion(key=key, service=row.service, why=f"service {row.service} is no shadow now")
        elif row.service in proposals:
            yield JobReversion(key=key, service=row.service, why=f"service {row.service} no longer asks for it")


def _within_budget(plan: ReconcilePlan, *, writers: set[str], scene: CycleContext) -> ReconcilePlan:
    left = scene.settings.slurm.writes_per_turn - len(plan.take_back)
    if left < 0:
        return _cut(plan, writers, left, scene)
    wanted = sum(len(plan.send[name]) for name in writers)
    return plan if wanted <= left else _cut(plan, writers, left, scene)


def _cut(plan: ReconcilePlan, writers: set[str], left: int, scene: CycleContext) -> ReconcilePlan:
    send, refused = dict(plan.send), dict(plan.refused)
    for name in (name for name in plan.send if name in writers):
        wishes = sorted(plan.send[name], key=lambda wish: -_size(wish, scene))
        send[name], late = tuple(wishes[: max(left, 0)]), wishes[max(left, 0) :]
        refused[name] = (*refused.get(name, ()), *(wish.outcome(Result.POSTPONED, SPENT) for wish in late))
        left -= len(send[name])
    return replace(plan, send=send, refused=refused, take_back=plan.take_back[: scene.settings.slurm.writes_per_turn])


def _size(wish: JobChange, scene: CycleContext) -> float:
    # Orders of the largest change first; soft limits after them, in the order of the queue.
    return abs(wish.value - scene.jobs[wish.job_id].urgency) if wish.lever is JobSetting.ORDER else 0.0


# From what services ask of nodes to what is sent to the cluster: guarded, owned, within bounds, affordable.
#
# Pure. Sleep and wake are asked for once and stand until somebody wakes the node; weights and the keep-awake list
# stand until a service says otherwise. What stands for a service that may no longer write is taken back.

SOON_S = 600.0
"""How long before the cluster's idle timer ends a node counts as on its way to sleep, s."""
TAKEN_BACK = "what stands there is taken back first"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReversion:
    """A change of Helios that must not stand any longer, and why."""

    row: AppliedNodeChange
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReconcilePlan:
    """What a power turn will do.

    Attributes
    ----------
    send, same, refused : mapping
        By service: what differs from what stands, what already is so, and what may not be or must wait.
    take_back : tuple of GiveBack
        On the cluster.
    shadows_end : tuple of GiveBack
        What would be taken back, if the shadows could act.
    waiting : tuple of NodeStanding
        What must be taken back and cannot be yet: nodes still falling asleep, drained since, or no room on the way.
    """

    send: Mapping[str, tuple[NodeChange, ...]] = field(default_factory=dict)
    same: Mapping[str, tuple[NodeChange, ...]] = field(default_factory=dict)
    refused: Mapping[str, tuple[NodeOutcome, ...]] = field(default_factory=dict)
    take_back: tuple[NodeReversion, ...] = ()
    shadows_end: tuple[NodeReversion, ...] = ()
    waiting: tuple[AppliedNodeChange, ...] = ()


def plan_nodes(
    proposals: Mapping[str, RequestedNodeChanges], *, seats: Sequence[ActiveService], scene: NodeCycleContext
) -> NodeReconcilePlan:
    """Return what to do about ``proposals``.

    Parameters
    ----------
    proposals : mapping
        Of the services that were asked in this turn and answered.
    seats : sequence of Seat
        In the order of configuration; without those that sit out.
    """
    verdicts = {
        seat.name: apply_node_guards(
            _bounded(proposals[seat.name].wishes, scene, seat.mode), scene=scene, mode=seat.mode
        )
        for seat in seats
        if seat.name in proposals
    }
    draft = _Draft(scene=scene, refused={name: list(verdict.refused) for name, verdict in verdicts.items()})
    writers = [seat for seat in seats if seat.mode.writes]
    draft.own(writers, verdicts, scene.books.real)
    bounds, may_sleep = scene.settings.power, _may_sleep(scene)
    room = PowerBudget(scene.nodes, bounds, away=may_sleep, about_to_fall=_about_to_fall(scene))
    take_back, waiting = _given_back(proposals, writers, scene, room)
    draft.let_through(writers, room, without={back.row.key for back in take_back})
    for seat in seats:
        if seat.mode.mode is Mode.SHADOW:
            draft.own([seat], verdicts, {})
            asleep = {row.node for row in scene.books.shadow.values() if row.value == ASLEEP}
            draft.let_through([seat], PowerBudget(scene.nodes, bounds, away=(asleep & set(scene.nodes)) | may_sleep))
    draft.cut(writers, left=scene.settings.slurm.writes_per_turn - len(take_back))
    return NodeReconcilePlan(
        send={name: tuple(wishes) for name, wishes in draft.send.items()},
        same={name: tuple(wishes) for name, wishes in draft.same.items()},
        refused={name: tuple(outcomes) for name, outcomes in draft.refused.items()},
        take_back=take_back,
        shadows_end=tuple(_node_shadows_end(proposals, seats, verdicts, scene)),
        waiting=waiting,
    )


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A plan while it is made; each method narrows it."""

    scene: NodeCycleContext
    refused: dict[str, list[NodeOutcome]]
    send: dict[str, list[NodeChange]] = field(default_factory=dict)
    same: dict[str, list[NodeChange]] = field(default_factory=dict)

    def own(self, seats: Sequence[ActiveService], verdicts: Mapping[str, NodeGuardResult], book: NodeBook) -> None:
        asked = {seat.name: verdicts[seat.name].allowed if seat.name in verdicts else () for seat in seats}
        allowed, refused = keep_one_node_owner(asked, held={key: row.service for key, row in book.items()})
        for name in asked:
            self.send[name] = list(allowed[name])
            self.same[name] = list(verdicts[name].same) if name in verdicts else []
            self.refused.setdefault(name, []).extend(refused[name])

    def let_through(
        self, seats: Sequence[ActiveService], room: PowerBudget, *, without: Iterable[NodeKey] = ()
    ) -> None:
        """Keep what there is room for: wakes of all services before anybody's sleeps."""
        taken = set(without)
        for seat in seats:
            late = [wish for wish in self.send[seat.name] if wish.key in taken]
            self.send[seat.name] = [wish for wish in self.send[seat.name] if wish.key not in taken]
            self.refused[seat.name].extend(wish.outcome(Result.POSTPONED, TAKEN_BACK) for wish in late)
        for sleeps in (False, True):
            for seat in seats:
                self._pass(seat, room, sleeps=sleeps)

    def _pass(self, seat: ActiveService, room: PowerBudget, *, sleeps: bool) -> None:
        kept: list[NodeChange] = []
        for wish in self.send[seat.name]:
            if wish.lever is NodeSetting.KEEP_AWAKE and sleeps:
                self._narrow(seat, wish, room, kept)
            elif wish.lever is NodeSetting.POWER and wish.sleeps is sleeps:
                verdict = room.to_sleep(self.scene.nodes[wish.node]) if sleeps else room.to_wake()
                if verdict[1]:
                    self.refused[seat.name].append(wish.outcome(*verdict))
                else:
                    kept.append(wish)
            else:
                kept.append(wish)
        self.send[seat.name] = kept

    def _narrow(self, seat: ActiveService, wish: NodeChange, room: PowerBudget, kept: list[NodeChange]) -> None:
        narrowed = _kept_longer(wish, self.scene, room, mode=seat.mode.mode)
        (self.same[seat.name] if is_in_desired_state(narrowed, self.scene, seat.mode.mode) else kept).append(narrowed)

    def cut(self, writers: Sequence[ActiveService], *, left: int) -> None:
        """Keep what the writes of a turn pay for: power first, then the list, weights last."""
        order = [NodeSetting.POWER, NodeSetting.KEEP_AWAKE, NodeSetting.WEIGHT]
        for seat in writers:
            wishes = sorted(self.send[seat.name], key=lambda wish: order.index(wish.lever))
            late = wishes[max(left, 0) :]
            self.send[seat.name] = wishes[: max(left, 0)]
            self.refused[seat.name].extend(wish.outcome(Result.POSTPONED, SPENT) for wish in late)
            left -= len(self.send[seat.name])


def _bounded(wishes: Iterable[NodeChange], scene: NodeCycleContext, mode: ServiceMode) -> list[NodeChange]:
    """Bring weights within ``power.tiers``, and the keep-awake list to nodes that there are, within the canary."""
    bounded = []
    for wish in wishes:
        if wish.lever is NodeSetting.WEIGHT:
            bounded.append(replace(wish, value=f"{TIER}{min(wish.tier, scene.settings.power.tiers - 1)}"))
        elif wish.lever is NodeSetting.KEEP_AWAKE:
            known = [scene.nodes[name] for name in wish.names if name in scene.nodes]
            reached = {n.name for n in scene.nodes.values() if mode.reaches(n.name, partitions=n.partitions)}
            inside, never = {node.name for node in known} & reached, scene.never & reached
            bounded.append(replace(wish, value=join_names(inside | never)))
        else:
            bounded.append(wish)
    return bounded


def _may_sleep(scene: NodeCycleContext) -> set[str]:
    """Return the nodes that the cluster's own timer may put to sleep at any moment, where that is who does it."""
    return {node.name for node in scene.nodes.values() if not node.kept_awake} if scene.only_lists else set()


def _about_to_fall(scene: NodeCycleContext) -> list[str]:
    if not scene.only_lists or scene.power is None:
        return []
    idle_s = scene.power.suspend_time_s - SOON_S
    unkept = (node for node in scene.nodes.values() if node.idle and not node.kept_awake and node.idle_since)
    now = scene.snapshot.taken_at
    return [node.name for node in unkept if (now - (node.idle_since or now)).total_seconds() >= idle_s]


def _kept_longer(wish: NodeChange, scene: NodeCycleContext, room: PowerBudget, *, mode: Mode) -> NodeChange:
    """Return the list with those nodes left in it that may not leave it now."""
    row = (scene.books.shadow if mode is Mode.SHADOW else scene.books.real).get(LIST)
    leaving = [] if row is None else [name for name in nodes_named(row.value) if name not in wish.names]
    stays, first = [], ""
    for node in (scene.nodes[name] for name in leaving if name in scene.nodes):
        why = why_not_asleep(node, scene) or room.to_sleep(node)[1]
        if why:
            stays.append(node.name)
            first = first or f"{node.name}: {why}"
    quarantined = [name for name in scene.memory.quarantined if name in scene.nodes and row is not None]
    value = join_names([*wish.names, *stays, *quarantined])
    told = f"{wish.reason}; {len(stays)} more stay in it ({first})" if stays else wish.reason
    return replace(wish, value=value, reason=told)


def _given_back(
    proposals: Mapping[str, RequestedNodeChanges],
    writers: Sequence[ActiveService],
    scene: NodeCycleContext,
    room: PowerBudget,
) -> tuple[tuple[NodeReversion, ...], tuple[AppliedNodeChange, ...]]:
    modes = {seat.name: seat.mode for seat in writers}
    back, waiting = [], []
    for row in scene.books.real.values():
        why = "" if row.admins else _why_node_not_stand(row, modes, proposals, scene)
        if not why:
            continue
        node = scene.nodes.get(row.node)
        if row.lever is not NodeSetting.POWER:
            back.append(NodeReversion(row=row, why=why))
        elif node is None or node.power is NodePower.FALLING_ASLEEP or not node.in_service or room.to_wake()[1]:
            waiting.append(row)
        else:
            back.append(NodeReversion(row=row, why=why))
    most = scene.settings.slurm.writes_per_turn
    return tuple(back[:most]), (*waiting, *(late.row for late in back[most:]))


def _why_node_not_stand(
    row: AppliedNodeChange,
    modes: Mapping[str, ServiceMode],
    proposals: Mapping[str, RequestedNodeChanges],
    scene: NodeCycleContext,
) -> str:
    if row.service not in modes:
        return f"service {row.service} may not write now"
    node = scene.nodes.get(row.node)
    if node is not None and not modes[row.service].reaches(node.name, partitions=node.partitions):
        return f"it is outside the canary of service {row.service} now"
    other = NodeSetting.POWER if scene.only_lists else NodeSetting.KEEP_AWAKE
    if row.lever is other:
        return f"power.mechanism is {scene.settings.power.mechanism} now"
    gives = row.service in proposals and row.key in proposals[row.service].gives_back
    return f"service {row.service} gave it back" if gives else ""


def _node_shadows_end(
    proposals: Mapping[str, RequestedNodeChanges],
    seats: Sequence[ActiveService],
    verdicts: Mapping[str, NodeGuardResult],
    scene: NodeCycleContext,
) -> Iterable[NodeReversion]:
    shadows = {seat.name for seat in seats if seat.mode.mode is Mode.SHADOW}
    for row in scene.books.shadow.values():
        if row.service not in shadows:
            yield NodeReversion(row=row, why=f"service {row.service} is no shadow now")
        elif row.service in proposals and row.lever is NodeSetting.POWER:
            # The node is awake in truth, so that a shadow that still wants it asleep asks for it again.
            if row.key not in {wish.key for wish in verdicts[row.service].same}:
                yield NodeReversion(row=row, why=f"service {row.service} no longer wants it asleep")
        elif row.service in proposals and row.key in proposals[row.service].gives_back:
            yield NodeReversion(row=row, why=f"service {row.service} gave it back")
