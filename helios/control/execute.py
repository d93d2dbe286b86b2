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
    RevertJobs,
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
    seats: Sequence[ActiveService]
    scene: CycleContext
    disputed: frozenset[Key]
    now: datetime
    why_stop: Callable[[], str] = lambda: ""

    @property
    def writes(self) -> bool:
        """Whether anything will be written to the cluster."""
        return bool(self.plan.take_back) or any(self.plan.send.get(seat.name) for seat in self.writers())

    def writers(self) -> list[ActiveService]:
        """Return the seats whose actions may reach the cluster."""
        return [seat for seat in self.seats if seat.mode.writes]


def record_intent(errand: Execution) -> AppliedChanges:
    """Return the books with every change entered before it is made, and what was found as asked adopted."""
    real = {key: row for key, row in errand.scene.books.real.items() if key not in errand.plan.forget}
    for seat in errand.writers():
        for wish in errand.plan.send.get(seat.name, ()):
            real[wish.key] = _entry(errand, wish, seat, after=_again(errand, wish.key))
        for wish in errand.plan.same.get(seat.name, ()):
            _adopt(real, errand, wish, seat)
    shadows = {back.key for back in errand.plan.shadows_end if back.service not in _shadows(errand)}
    return AppliedChanges(
        real=real, shadow={k: row for k, row in errand.scene.books.shadow.items() if k not in shadows}
    )


def execute(errand: Execution, *, cluster: Cluster, books: AppliedChanges, minutes: AuditLog) -> AppliedChanges:
    """Act, and return the books settled by what became of it.

    A cluster that cannot be reached ends it there, and so does a pause, or a lease that was lost since the turn began;
    what was entered stays entered.

    Parameters
    ----------
    books : Books
        As :func:`record_intent` gave them, and as they were written down.
    """
    real, shadow = dict(books.real), dict(books.shadow)
    try:
        _take_back(errand, cluster, real, minutes)
        for seat in errand.seats:
            _send(errand, seat, cluster, shadow if seat.mode.mode is Mode.SHADOW else real, minutes)
    except _Stopped as stopped:
        minutes.notes.append(f"acting was broken off: {stopped}")
    except HeliosError as error:
        minutes.bad = True
        minutes.notes.append(f"acting was broken off: {error.fact}")
    return AppliedChanges(real=real, shadow=shadow)


class _Stopped(Exception):
    """Nothing more may be written in this turn."""


def _check_preconditions(errand: Execution) -> None:
    if why := errand.why_stop():
        raise _Stopped(why)


def _take_back(errand: Execution, cluster: Cluster, real: Book, minutes: AuditLog) -> None:
    if not errand.plan.take_back:
        return
    _check_preconditions(errand)
    restores = _restores(errand.plan.take_back)
    for outcome in _applied(cluster, restores, errand, minutes, service=HELIOS, mode=Mode.ACTIVE):
        if outcome.result in _NOTHING_STANDS:
            real.pop((outcome.lever, outcome.job_id), None)


def _send(errand: Execution, seat: ActiveService, cluster: Cluster, book: Book, minutes: AuditLog) -> None:
    wishes = {wish.key: wish for wish in errand.plan.send.get(seat.name, ())}
    ends = [back for back in errand.plan.shadows_end if back.service == seat.name and seat.mode.mode is Mode.SHADOW]
    actions = [*to_actions([_explained(errand, wish) for wish in wishes.values()]), *_restores(ends)]
    door = _door(errand, seat, cluster)
    if not actions or door is None:
        return
    if seat.mode.writes:
        _check_preconditions(errand)
    for outcome in _applied(door, actions, errand, minutes, service=seat.name, mode=seat.mode.mode):
        key = (outcome.lever, outcome.job_id)
        if key in wishes:
            _settle(book, errand, wishes[key], seat, outcome)
        elif outcome.result in _NOTHING_STANDS:
            book.pop(key, None)


def _door(errand: Execution, seat: ActiveService, cluster: Cluster) -> Cluster | None:
    snapshot = errand.scene.snapshot
    return cluster_for_mode(
        seat.mode,
        cluster,
        look=lambda: snapshot,
        stands={key: row.value for key, row in errand.scene.books.shadow.items()},
        resolution=errand.scene.resolution,
    )


def _applied(
    door: Cluster, actions: Sequence[JobAction], errand: Execution, minutes: AuditLog, *, service: str, mode: Mode
) -> list[Outcome]:
    outcomes = door.apply(actions)
    minutes.outcomes(service, mode, outcomes, errand.scene.jobs)
    return outcomes


def _settle(book: Book, errand: Execution, wish: JobChange, seat: ActiveService, outcome: Outcome) -> None:
    prior = _books_of(errand, seat).get(wish.key)
    if outcome.result in _READ_BACK and not errand.scene.resolution.is_nothing(wish.lever, wish.value):
        after = (outcome.after or describe_mode(wish.lever, wish.value)) + _again(errand, wish.key)
        book[wish.key] = _entry(errand, wish, seat, after=after)
    elif outcome.result in _NOT_WRITTEN and prior is not None:
        book[wish.key] = prior
    elif outcome.result in _NOT_WRITTEN | _NOTHING_STANDS:
        book.pop(wish.key, None)


def _adopt(real: Book, errand: Execution, wish: JobChange, seat: ActiveService) -> None:
    if errand.scene.resolution.is_nothing(wish.lever, wish.value):
        real.pop(wish.key, None)
        return
    row, read = real.get(wish.key), errand.scene.jobs[wish.job_id].value(wish.lever)
    known = row is not None and row.confirmed and row.service == seat.name
    if row is None or not known or not errand.scene.resolution.same(wish.lever, asked=row.value, read=read):
        after = describe_mode(wish.lever, read) + (SET_AGAIN if row is not None and row.set_again else "")
        real[wish.key] = _entry(errand, wish, seat, after=after)


def _entry(errand: Execution, wish: JobChange, seat: ActiveService, *, after: str) -> AppliedChange:
    return AppliedChange(
        lever=wish.lever,
        job_id=wish.job_id,
        submitted_us=errand.scene.jobs[wish.job_id].submitted_us,
        service=seat.name,
        mode=seat.mode.mode,
        value=wish.value,
        after=after,
        written_at=errand.now,
    )


def _again(errand: Execution, key: Key) -> str:
    prior = errand.scene.books.real.get(key)
    return SET_AGAIN if key in errand.disputed or (prior is not None and prior.set_again) else ""


def _explained(errand: Execution, wish: JobChange) -> JobChange:
    if wish.key not in errand.disputed:
        return wish
    read = describe_mode(wish.lever, errand.scene.jobs[wish.job_id].value(wish.lever))
    return replace(wish, reason=f"{wish.reason}; set again, once: {read} was found instead of what Helios had set")


def _books_of(errand: Execution, seat: ActiveService) -> Book:
    return errand.scene.books.shadow if seat.mode.mode is Mode.SHADOW else errand.scene.books.real


def _shadows(errand: Execution) -> set[str]:
    return {seat.name for seat in errand.seats if seat.mode.mode is Mode.SHADOW}


def _restores(backs: Iterable[JobReversion]) -> list[RevertJobs]:
    grouped: dict[tuple[JobSetting, str], list[str]] = {}
    for back in backs:
        lever, job_id = back.key
        grouped.setdefault((lever, back.why), []).append(job_id)
    return [RevertJobs(lever=lever, job_ids=tuple(jobs), reason=why) for (lever, why), jobs in grouped.items()]


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
    seats: Sequence[ActiveService]
    scene: NodeCycleContext
    now: datetime
    why_stop: Callable[[], str] = lambda: ""

    @property
    def writes(self) -> bool:
        """Whether anything will be written to the cluster."""
        return bool(self.plan.take_back) or any(self.plan.send.get(seat.name) for seat in self.writers())

    def writers(self) -> list[ActiveService]:
        """Return the seats whose actions may reach the cluster."""
        return [seat for seat in self.seats if seat.mode.writes]


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
            if outcome.lever is NodeSetting.WEIGHT:
                self.weighed.append(outcome.node)
            elif outcome.lever is NodeSetting.POWER and outcome.action == "PowerDown":
                self.slept.append(outcome.node)
                self.memory = self.memory.with_slept(outcome.node, now)
            elif outcome.lever is NodeSetting.POWER:
                self.woken.append(outcome.node)
                self.memory = self.memory.with_wake(outcome.node, WakeUp(since=now, by="Helios"))


def record_node_intent(errand: NodeExecution) -> AppliedNodeChanges:
    """Return the books with every change entered before it is made, and what was found as asked adopted."""
    real = dict(errand.scene.books.real)
    for seat in errand.writers():
        for wish in errand.plan.send.get(seat.name, ()):
            if wish.value != AWAKE:
                real[wish.key] = _node_entry(errand, wish, seat, after="")
            elif wish.key in real:
                real[wish.key] = replace(real[wish.key], value=AWAKE)
        for wish in errand.plan.same.get(seat.name, ()):
            if wish.key in real and real[wish.key].service != seat.name and wish.value != AWAKE:
                real[wish.key] = replace(real[wish.key], service=seat.name)
    for back in errand.plan.take_back:
        if back.row.lever is NodeSetting.POWER:
            real[back.row.key] = replace(back.row, value=AWAKE)
    shadows = {seat.name for seat in errand.seats if seat.mode.mode is Mode.SHADOW}
    ends = {back.row.key for back in errand.plan.shadows_end if back.row.service not in shadows}
    return AppliedNodeChanges(
        real=real, shadow={k: row for k, row in errand.scene.books.shadow.items() if k not in ends}
    )


def execute_nodes(
    errand: NodeExecution, *, cluster: NodeCluster, books: AppliedNodeChanges, minutes: AuditLog, deeds: NodeActivity
) -> AppliedNodeChanges:
    """Act, and return the books settled by what became of it.

    A cluster that cannot be reached ends it there, and so does a pause, or a lease that was lost since the turn began;
    what was entered stays entered.

    Parameters
    ----------
    books : NodeBooks
        As :func:`record_intent` gave them, and as they were written down.
    """
    real, shadow = dict(books.real), dict(books.shadow)
    try:
        _take_nodes_back(errand, cluster, real, minutes, deeds)
        for seat in errand.seats:
            book = shadow if seat.mode.mode is Mode.SHADOW else real
            _send_nodes(errand, seat, cluster, book=book, minutes=minutes, deeds=deeds)
    except _Stopped as stopped:
        minutes.notes.append(f"acting was broken off: {stopped}")
    except HeliosError as error:
        minutes.bad = True
        minutes.notes.append(f"acting was broken off: {error.fact}")
    return AppliedNodeChanges(real=real, shadow=shadow)


def reverts(backs: Iterable[NodeReversion]) -> list[RevertNodes]:
    """Return the actions that take ``backs`` back, wakes first."""
    grouped: dict[tuple[NodeSetting, str], list[tuple[str, str]]] = {}
    for back in backs:
        grouped.setdefault((back.row.lever, back.why), []).append((back.row.node, back.row.own))
    ranked = sorted(grouped.items(), key=lambda item: list(NodeSetting).index(item[0][0]))
    return [RevertNodes(lever=lever, own=tuple(own), reason=why) for (lever, why), own in ranked]


def _check_node_preconditions(errand: NodeExecution) -> None:
    if why := errand.why_stop():
        raise _Stopped(why)


def _take_nodes_back(
    errand: NodeExecution, cluster: NodeCluster, real: NodeBook, minutes: AuditLog, deeds: NodeActivity
) -> None:
    if not errand.plan.take_back:
        return
    _check_node_preconditions(errand)
    outcomes = cluster.steer(reverts(errand.plan.take_back))
    minutes.outcomes(HELIOS, Mode.ACTIVE, outcomes)
    deeds.take_note(outcomes, now=errand.now)
    for outcome in outcomes:
        if outcome.result in _NOTHING_STANDS:
            real.pop((outcome.lever, outcome.node), None)


def _send_nodes(
    errand: NodeExecution,
    seat: ActiveService,
    cluster: NodeCluster,
    *,
    book: NodeBook,
    minutes: AuditLog,
    deeds: NodeActivity,
) -> None:
    wishes = {wish.key: wish for wish in errand.plan.send.get(seat.name, ())}
    door = _node_door(errand, seat, cluster)
    actions = _actions(errand, seat, wishes)
    if not actions or door is None:
        return
    if seat.mode.writes:
        _check_node_preconditions(errand)
    outcomes = _with_own_reasons(door.steer(actions), wishes)
    minutes.outcomes(seat.name, seat.mode.mode, outcomes)
    deeds.take_note(outcomes, now=errand.now)
    for outcome in outcomes:
        key = (outcome.lever, outcome.node)
        if key in wishes:
            _settle_node(book, errand, wishes[key], seat, outcome)
        elif outcome.result in _NOTHING_STANDS and seat.mode.mode is Mode.SHADOW:
            book.pop(key, None)


def _with_own_reasons(outcomes: Iterable[NodeOutcome], wishes: dict[NodeKey, NodeChange]) -> list[NodeOutcome]:
    """Give each weight its own reason back: the door knows the one of the whole order only."""
    return [
        replace(outcome, reason=wishes[outcome.lever, outcome.node].reason)
        if outcome.lever is NodeSetting.WEIGHT and (outcome.lever, outcome.node) in wishes
        else outcome
        for outcome in outcomes
    ]


def _actions(errand: NodeExecution, seat: ActiveService, wishes: dict[NodeKey, NodeChange]) -> list[NodeAction]:
    shadow = seat.mode.mode is Mode.SHADOW
    ends = [back for back in errand.plan.shadows_end if back.row.service == seat.name and shadow]
    weighs = any(wish.lever is NodeSetting.WEIGHT for wish in wishes.values())
    # An order of filling is given whole: what a weight becomes depends on who else is in the order.
    same = [wish for wish in errand.plan.same.get(seat.name, ()) if wish.lever is NodeSetting.WEIGHT and weighs]
    own = {} if shadow else errand.scene.books.own()
    return [*to_node_actions([*wishes.values(), *([] if shadow else same)], own=own), *reverts(ends)]


def _node_door(errand: NodeExecution, seat: ActiveService, cluster: NodeCluster) -> NodeCluster | None:
    snapshot = errand.scene.snapshot
    return node_cluster_for_mode(seat.mode, cluster, look=lambda: snapshot, stands=errand.scene.books.shadow)


def _settle_node(
    book: NodeBook, errand: NodeExecution, wish: NodeChange, seat: ActiveService, outcome: NodeOutcome
) -> None:
    books = errand.scene.books
    prior = (books.shadow if seat.mode.mode is Mode.SHADOW else books.real).get(wish.key)
    found_asleep = wish.sleeps and outcome.result is Result.UNCHANGED and prior is None
    if outcome.result in _READ_BACK and (wish.value == AWAKE or found_asleep):
        book.pop(wish.key, None)  # a node that somebody else put to sleep meanwhile is not Helios'
    elif outcome.result in _READ_BACK:
        book[wish.key] = _node_entry(errand, wish, seat, after=outcome.after or outcome.before or wish.value)
    elif outcome.result in _NOT_WRITTEN and prior is not None:
        book[wish.key] = prior
    elif outcome.result in _NOT_WRITTEN | _NOTHING_STANDS:
        book.pop(wish.key, None)


def _node_entry(errand: NodeExecution, wish: NodeChange, seat: ActiveService, *, after: str) -> AppliedNodeChange:
    books = errand.scene.books
    prior = (books.shadow if seat.mode.mode is Mode.SHADOW else books.real).get(wish.key)
    return AppliedNodeChange(
        lever=wish.lever,
        node=wish.node,
        service=seat.name,
        mode=seat.mode.mode,
        value=wish.value,
        own=_own(errand.scene, wish.key) if prior is None else prior.own,
        after=after,
        written_at=errand.now,
    )


def _own(scene: NodeCycleContext, key: NodeKey) -> str:
    if key == LIST:
        return "" if scene.power is None else scene.power.keep_awake
    return f"{scene.nodes[key[1]].weight:.0f}" if key[0] is NodeSetting.WEIGHT else ""
