"""Carrying out a plan for nodes: entered in the book before anything is written, settled by what was read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from helios.actions import NodeAction, NodeLever, NodeOutcome, RestoreNodes, Result
from helios.control.audit import HELIOS, Minutes
from helios.control.nodes.guards import NodeScene
from helios.control.nodes.memory import NodeMemory, Wake
from helios.control.nodes.modes import node_door_for
from helios.control.nodes.plan import GiveBack, NodePlan
from helios.control.nodes.standings import NodeBook, NodeBooks, NodeStanding
from helios.control.nodes.wishes import AWAKE, LIST, NodeKey, NodeWish, actions_of
from helios.control.plan import Seat
from helios.errors import HeliosError
from helios.model import Mode
from helios.ports import NodeCluster

_READ_BACK = {Result.DONE, Result.UNCHANGED, Result.WOULD}
_NOT_WRITTEN = {Result.POSTPONED, Result.REFUSED}
_NOTHING_STANDS = {Result.DONE, Result.UNCHANGED, Result.WOULD, Result.GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeErrand:
    """A plan, and all that carrying it out takes.

    Attributes
    ----------
    seats : sequence of Seat
        Those that play.
    why_stop : callable
        Asked before each door that writes: why nothing more may be written; empty: it may.
    """

    plan: NodePlan
    seats: Sequence[Seat]
    scene: NodeScene
    now: datetime
    why_stop: Callable[[], str] = lambda: ""

    @property
    def writes(self) -> bool:
        """Whether anything will be written to the cluster."""
        return bool(self.plan.take_back) or any(self.plan.send.get(seat.name) for seat in self.writers())

    def writers(self) -> list[Seat]:
        """Return the seats whose actions may reach the cluster."""
        return [seat for seat in self.seats if seat.mode.writes]


@dataclass(slots=True, kw_only=True)
class Deeds:
    """What was done on the cluster, and what is remembered of it."""

    memory: NodeMemory
    slept: list[str] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    weighed: list[str] = field(default_factory=list)

    def take_note(self, outcomes: Iterable[NodeOutcome], *, now: datetime) -> None:
        """Remember who was put to sleep, and watch who was told to wake."""
        for outcome in outcomes:
            if outcome.result is not Result.DONE:
                continue
            if outcome.lever is NodeLever.WEIGHT:
                self.weighed.append(outcome.node)
            elif outcome.lever is NodeLever.POWER and outcome.action == "PowerDown":
                self.slept.append(outcome.node)
                self.memory = self.memory.with_slept(outcome.node, now)
            elif outcome.lever is NodeLever.POWER:
                self.woken.append(outcome.node)
                self.memory = self.memory.with_wake(outcome.node, Wake(since=now, by="Helios"))


def entered(errand: NodeErrand) -> NodeBooks:
    """Return the books with every change entered before it is made, and what was found as asked adopted."""
    real = dict(errand.scene.books.real)
    for seat in errand.writers():
        for wish in errand.plan.send.get(seat.name, ()):
            if wish.value != AWAKE:
                real[wish.key] = _entry(errand, wish, seat, after="")
            elif wish.key in real:
                real[wish.key] = replace(real[wish.key], value=AWAKE)
        for wish in errand.plan.same.get(seat.name, ()):
            if wish.key in real and real[wish.key].service != seat.name and wish.value != AWAKE:
                real[wish.key] = replace(real[wish.key], service=seat.name)
    for back in errand.plan.take_back:
        if back.row.lever is NodeLever.POWER:
            real[back.row.key] = replace(back.row, value=AWAKE)
    shadows = {seat.name for seat in errand.seats if seat.mode.mode is Mode.SHADOW}
    ends = {back.row.key for back in errand.plan.shadows_end if back.row.service not in shadows}
    return NodeBooks(real=real, shadow={k: row for k, row in errand.scene.books.shadow.items() if k not in ends})


def carried_out(
    errand: NodeErrand, *, cluster: NodeCluster, books: NodeBooks, minutes: Minutes, deeds: Deeds
) -> NodeBooks:
    """Act, and return the books settled by what became of it.

    A cluster that cannot be reached ends it there, and so does a pause, or a lease that was lost since the turn began;
    what was entered stays entered.

    Parameters
    ----------
    books : NodeBooks
        As :func:`entered` gave them, and as they were written down.
    """
    real, shadow = dict(books.real), dict(books.shadow)
    try:
        _take_back(errand, cluster, real, minutes, deeds)
        for seat in errand.seats:
            book = shadow if seat.mode.mode is Mode.SHADOW else real
            _send(errand, seat, cluster, book=book, minutes=minutes, deeds=deeds)
    except _Stopped as stopped:
        minutes.notes.append(f"acting was broken off: {stopped}")
    except HeliosError as error:
        minutes.bad = True
        minutes.notes.append(f"acting was broken off: {error.fact}")
    return NodeBooks(real=real, shadow=shadow)


def restores_of(backs: Iterable[GiveBack]) -> list[RestoreNodes]:
    """Return the actions that take ``backs`` back, wakes first."""
    grouped: dict[tuple[NodeLever, str], list[tuple[str, str]]] = {}
    for back in backs:
        grouped.setdefault((back.row.lever, back.why), []).append((back.row.node, back.row.own))
    ranked = sorted(grouped.items(), key=lambda item: list(NodeLever).index(item[0][0]))
    return [RestoreNodes(lever=lever, own=tuple(own), reason=why) for (lever, why), own in ranked]


class _Stopped(Exception):
    """Nothing more may be written in this turn."""


def _mind(errand: NodeErrand) -> None:
    if why := errand.why_stop():
        raise _Stopped(why)


def _take_back(errand: NodeErrand, cluster: NodeCluster, real: NodeBook, minutes: Minutes, deeds: Deeds) -> None:
    if not errand.plan.take_back:
        return
    _mind(errand)
    outcomes = cluster.steer(restores_of(errand.plan.take_back))
    minutes.outcomes(HELIOS, Mode.ACTIVE, outcomes)
    deeds.take_note(outcomes, now=errand.now)
    for outcome in outcomes:
        if outcome.result in _NOTHING_STANDS:
            real.pop((outcome.lever, outcome.node), None)


def _send(
    errand: NodeErrand, seat: Seat, cluster: NodeCluster, *, book: NodeBook, minutes: Minutes, deeds: Deeds
) -> None:
    wishes = {wish.key: wish for wish in errand.plan.send.get(seat.name, ())}
    door = _door(errand, seat, cluster)
    actions = _actions(errand, seat, wishes)
    if not actions or door is None:
        return
    if seat.mode.writes:
        _mind(errand)
    outcomes = _with_own_reasons(door.steer(actions), wishes)
    minutes.outcomes(seat.name, seat.mode.mode, outcomes)
    deeds.take_note(outcomes, now=errand.now)
    for outcome in outcomes:
        key = (outcome.lever, outcome.node)
        if key in wishes:
            _settle(book, errand, wishes[key], seat, outcome)
        elif outcome.result in _NOTHING_STANDS and seat.mode.mode is Mode.SHADOW:
            book.pop(key, None)


def _with_own_reasons(outcomes: Iterable[NodeOutcome], wishes: dict[NodeKey, NodeWish]) -> list[NodeOutcome]:
    """Give each weight its own reason back: the door knows the one of the whole order only."""
    return [
        replace(outcome, reason=wishes[outcome.lever, outcome.node].reason)
        if outcome.lever is NodeLever.WEIGHT and (outcome.lever, outcome.node) in wishes
        else outcome
        for outcome in outcomes
    ]


def _actions(errand: NodeErrand, seat: Seat, wishes: dict[NodeKey, NodeWish]) -> list[NodeAction]:
    shadow = seat.mode.mode is Mode.SHADOW
    ends = [back for back in errand.plan.shadows_end if back.row.service == seat.name and shadow]
    weighs = any(wish.lever is NodeLever.WEIGHT for wish in wishes.values())
    # An order of filling is given whole: what a weight becomes depends on who else is in the order.
    same = [wish for wish in errand.plan.same.get(seat.name, ()) if wish.lever is NodeLever.WEIGHT and weighs]
    own = {} if shadow else errand.scene.books.own()
    return [*actions_of([*wishes.values(), *([] if shadow else same)], own=own), *restores_of(ends)]


def _door(errand: NodeErrand, seat: Seat, cluster: NodeCluster) -> NodeCluster | None:
    snapshot = errand.scene.snapshot
    return node_door_for(seat.mode, cluster, look=lambda: snapshot, stands=errand.scene.books.shadow)


def _settle(book: NodeBook, errand: NodeErrand, wish: NodeWish, seat: Seat, outcome: NodeOutcome) -> None:
    books = errand.scene.books
    prior = (books.shadow if seat.mode.mode is Mode.SHADOW else books.real).get(wish.key)
    found_asleep = wish.sleeps and outcome.result is Result.UNCHANGED and prior is None
    if outcome.result in _READ_BACK and (wish.value == AWAKE or found_asleep):
        book.pop(wish.key, None)  # a node that somebody else put to sleep meanwhile is not Helios'
    elif outcome.result in _READ_BACK:
        book[wish.key] = _entry(errand, wish, seat, after=outcome.after or outcome.before or wish.value)
    elif outcome.result in _NOT_WRITTEN and prior is not None:
        book[wish.key] = prior
    elif outcome.result in _NOT_WRITTEN | _NOTHING_STANDS:
        book.pop(wish.key, None)


def _entry(errand: NodeErrand, wish: NodeWish, seat: Seat, *, after: str) -> NodeStanding:
    books = errand.scene.books
    prior = (books.shadow if seat.mode.mode is Mode.SHADOW else books.real).get(wish.key)
    return NodeStanding(
        lever=wish.lever,
        node=wish.node,
        service=seat.name,
        mode=seat.mode.mode,
        value=wish.value,
        own=_own(errand.scene, wish.key) if prior is None else prior.own,
        after=after,
        written_at=errand.now,
    )


def _own(scene: NodeScene, key: NodeKey) -> str:
    if key == LIST:
        return "" if scene.power is None else scene.power.keep_awake
    return f"{scene.nodes[key[1]].weight:.0f}" if key[0] is NodeLever.WEIGHT else ""
