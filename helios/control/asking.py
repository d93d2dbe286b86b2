"""Asking the services: each gets the same snapshot, and one that fails is written down and skipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from helios.actions import Action, Result
from helios.config import Control
from helios.control.audit import Line, Minutes
from helios.control.bench import Bench
from helios.control.memory import TurnMemory
from helios.control.plan import Seat
from helios.model import Mode, Snapshot

LONGEST_FAULT = 300
"""Characters of a service's own words that are kept."""


Asked = TypeVar("Asked")
"""All that a service asked for, in the form of its office."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Generic[Asked]):
    """What the services said.

    Attributes
    ----------
    proposals : mapping
        Of those that were asked and answered.
    playing : tuple of Seat
        All that are not off and do not sit out, asked or not.
    memory : TurnMemory
        With who was asked, and the bench.
    """

    proposals: Mapping[str, Asked]
    playing: tuple[Seat, ...]
    memory: TurnMemory


def ask(
    seats: Sequence[Seat],
    *,
    snapshot: Snapshot,
    memory: TurnMemory,
    minutes: Minutes,
    settings: Control,
    now: datetime,
    understand: Callable[[Sequence[Action]], Asked],
) -> Answers[Asked]:
    """Ask each service that is due, and take down who failed or sits out.

    Parameters
    ----------
    understand : callable
        Takes the actions of a service apart; what it raises is the service's fault.
    """
    proposals: dict[str, Asked] = {}
    bench, asked_at = memory.bench, dict(memory.asked_at)
    for seat in seats:
        absent = seat.mode.mode is Mode.OFF or bench.why_not(seat.name, now=now, failures=settings.raises_to_bench)
        if absent or not memory.is_due(seat.name, every=seat.service.every, now=snapshot.taken_at):
            continue
        asked_at[seat.name] = snapshot.taken_at
        minutes.asks(seat.name)
        try:
            proposals[seat.name] = understand(list(seat.service.decide(_own_copy(snapshot))))
            bench = bench.without(seat.name)
        except Exception as raised:
            # Whatever a service may raise: the others and the turn must go on, and the reason is kept.
            fault = f"{type(raised).__name__}: {' '.join(str(raised).split())}"[:LONGEST_FAULT]
            bench = bench.after_a_failure(seat.name, what=fault, now=now)
            minutes.say(_failed(seat, snapshot, fault))
            minutes.count(seat.name, Result.FAILED)
    return Answers(
        proposals=proposals,
        playing=_playing(seats, bench, minutes, settings, now),
        memory=replace(memory, bench=bench, asked_at=asked_at),
    )


def _own_copy(snapshot: Snapshot) -> Snapshot:
    # pandas copies on write, so that this costs nothing, and a service that writes changes only its own.
    return replace(
        snapshot,
        pending=snapshot.pending.copy(deep=False),
        running=snapshot.running.copy(deep=False),
        nodes=snapshot.nodes.copy(deep=False),
    )


def _failed(seat: Seat, snapshot: Snapshot, what: str) -> Line:
    return Line(
        service=seat.name,
        mode=seat.mode.mode,
        action="Turn",
        target=snapshot.cluster,
        reason="the service was asked and failed",
        outcome=f"{Result.FAILED}: {what}",
    )


def _playing(
    seats: Sequence[Seat], bench: Bench, minutes: Minutes, settings: Control, now: datetime
) -> tuple[Seat, ...]:
    why = {seat.name: bench.why_not(seat.name, now=now, failures=settings.raises_to_bench) for seat in seats}
    minutes.notes.extend(reason for reason in why.values() if reason)
    return tuple(seat for seat in seats if not why[seat.name] and seat.mode.mode is not Mode.OFF)
