"""Carrying out a plan: entered in the book before anything is written, settled by what was read back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from helios.actions import JobAction, Lever, Outcome, Restore, Result
from helios.control.audit import HELIOS, Minutes
from helios.control.modes import door_for, worded
from helios.control.pending import Key
from helios.control.plan import Plan, Scene, Seat, TakeBack
from helios.control.standings import SET_AGAIN, Book, Books, Standing
from helios.control.wishes import Wish, actions_of
from helios.errors import HeliosError
from helios.model import Mode
from helios.ports import Cluster

_READ_BACK = {Result.DONE, Result.UNCHANGED, Result.WOULD}
_NOT_WRITTEN = {Result.POSTPONED, Result.REFUSED}
_NOTHING_STANDS = {Result.DONE, Result.UNCHANGED, Result.WOULD, Result.GONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
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

    plan: Plan
    seats: Sequence[Seat]
    scene: Scene
    disputed: frozenset[Key]
    now: datetime
    why_stop: Callable[[], str] = lambda: ""

    @property
    def writes(self) -> bool:
        """Whether anything will be written to the cluster."""
        return bool(self.plan.take_back) or any(self.plan.send.get(seat.name) for seat in self.writers())

    def writers(self) -> list[Seat]:
        """Return the seats whose actions may reach the cluster."""
        return [seat for seat in self.seats if seat.mode.writes]


def entered(errand: Errand) -> Books:
    """Return the books with every change entered before it is made, and what was found as asked adopted."""
    real = {key: row for key, row in errand.scene.books.real.items() if key not in errand.plan.forget}
    for seat in errand.writers():
        for wish in errand.plan.send.get(seat.name, ()):
            real[wish.key] = _entry(errand, wish, seat, after=_again(errand, wish.key))
        for wish in errand.plan.same.get(seat.name, ()):
            _adopt(real, errand, wish, seat)
    shadows = {back.key for back in errand.plan.shadows_end if back.service not in _shadows(errand)}
    return Books(real=real, shadow={k: row for k, row in errand.scene.books.shadow.items() if k not in shadows})


def carried_out(errand: Errand, *, cluster: Cluster, books: Books, minutes: Minutes) -> Books:
    """Act, and return the books settled by what became of it.

    A cluster that cannot be reached ends it there, and so does a pause, or a lease that was lost since the turn began;
    what was entered stays entered.

    Parameters
    ----------
    books : Books
        As :func:`entered` gave them, and as they were written down.
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
    return Books(real=real, shadow=shadow)


class _Stopped(Exception):
    """Nothing more may be written in this turn."""


def _mind(errand: Errand) -> None:
    if why := errand.why_stop():
        raise _Stopped(why)


def _take_back(errand: Errand, cluster: Cluster, real: Book, minutes: Minutes) -> None:
    if not errand.plan.take_back:
        return
    _mind(errand)
    restores = _restores(errand.plan.take_back)
    for outcome in _applied(cluster, restores, errand, minutes, service=HELIOS, mode=Mode.ACTIVE):
        if outcome.result in _NOTHING_STANDS:
            real.pop((outcome.lever, outcome.job_id), None)


def _send(errand: Errand, seat: Seat, cluster: Cluster, book: Book, minutes: Minutes) -> None:
    wishes = {wish.key: wish for wish in errand.plan.send.get(seat.name, ())}
    ends = [back for back in errand.plan.shadows_end if back.service == seat.name and seat.mode.mode is Mode.SHADOW]
    actions = [*actions_of([_explained(errand, wish) for wish in wishes.values()]), *_restores(ends)]
    door = _door(errand, seat, cluster)
    if not actions or door is None:
        return
    if seat.mode.writes:
        _mind(errand)
    for outcome in _applied(door, actions, errand, minutes, service=seat.name, mode=seat.mode.mode):
        key = (outcome.lever, outcome.job_id)
        if key in wishes:
            _settle(book, errand, wishes[key], seat, outcome)
        elif outcome.result in _NOTHING_STANDS:
            book.pop(key, None)


def _door(errand: Errand, seat: Seat, cluster: Cluster) -> Cluster | None:
    snapshot = errand.scene.snapshot
    return door_for(
        seat.mode,
        cluster,
        look=lambda: snapshot,
        stands={key: row.value for key, row in errand.scene.books.shadow.items()},
        resolution=errand.scene.resolution,
    )


def _applied(
    door: Cluster, actions: Sequence[JobAction], errand: Errand, minutes: Minutes, *, service: str, mode: Mode
) -> list[Outcome]:
    outcomes = door.apply(actions)
    minutes.outcomes(service, mode, outcomes, errand.scene.jobs)
    return outcomes


def _settle(book: Book, errand: Errand, wish: Wish, seat: Seat, outcome: Outcome) -> None:
    prior = _books_of(errand, seat).get(wish.key)
    if outcome.result in _READ_BACK and not errand.scene.resolution.is_nothing(wish.lever, wish.value):
        after = (outcome.after or worded(wish.lever, wish.value)) + _again(errand, wish.key)
        book[wish.key] = _entry(errand, wish, seat, after=after)
    elif outcome.result in _NOT_WRITTEN and prior is not None:
        book[wish.key] = prior
    elif outcome.result in _NOT_WRITTEN | _NOTHING_STANDS:
        book.pop(wish.key, None)


def _adopt(real: Book, errand: Errand, wish: Wish, seat: Seat) -> None:
    if errand.scene.resolution.is_nothing(wish.lever, wish.value):
        real.pop(wish.key, None)
        return
    row, read = real.get(wish.key), errand.scene.jobs[wish.job_id].value(wish.lever)
    known = row is not None and row.confirmed and row.service == seat.name
    if row is None or not known or not errand.scene.resolution.same(wish.lever, asked=row.value, read=read):
        after = worded(wish.lever, read) + (SET_AGAIN if row is not None and row.set_again else "")
        real[wish.key] = _entry(errand, wish, seat, after=after)


def _entry(errand: Errand, wish: Wish, seat: Seat, *, after: str) -> Standing:
    return Standing(
        lever=wish.lever,
        job_id=wish.job_id,
        submitted_us=errand.scene.jobs[wish.job_id].submitted_us,
        service=seat.name,
        mode=seat.mode.mode,
        value=wish.value,
        after=after,
        written_at=errand.now,
    )


def _again(errand: Errand, key: Key) -> str:
    prior = errand.scene.books.real.get(key)
    return SET_AGAIN if key in errand.disputed or (prior is not None and prior.set_again) else ""


def _explained(errand: Errand, wish: Wish) -> Wish:
    if wish.key not in errand.disputed:
        return wish
    read = worded(wish.lever, errand.scene.jobs[wish.job_id].value(wish.lever))
    return replace(wish, reason=f"{wish.reason}; set again, once: {read} was found instead of what Helios had set")


def _books_of(errand: Errand, seat: Seat) -> Book:
    return errand.scene.books.shadow if seat.mode.mode is Mode.SHADOW else errand.scene.books.real


def _shadows(errand: Errand) -> set[str]:
    return {seat.name for seat in errand.seats if seat.mode.mode is Mode.SHADOW}


def _restores(backs: Iterable[TakeBack]) -> list[Restore]:
    grouped: dict[tuple[Lever, str], list[str]] = {}
    for back in backs:
        lever, job_id = back.key
        grouped.setdefault((lever, back.why), []).append(job_id)
    return [Restore(lever=lever, job_ids=tuple(jobs), reason=why) for (lever, why), jobs in grouped.items()]
