"""A breaker: after several bad turns in a row Helios keeps still for a while, then tries one turn.

Pure: time is given. It is kept with the memory of the last turn, so that a restart does not shorten the wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from helios.config import Control


class BreakerState(StrEnum):
    """Whether turns may write."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """The wait is over; the next turn that writes decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """What the breaker remembers.

    Attributes
    ----------
    bad_in_row : int
        Turns that wrote and were bad, since the last good one.
    opened_at : datetime, optional
        When it opened last; None: it is closed.
    """

    bad_in_row: int = 0
    opened_at: datetime | None = None

    def state(self, *, now: datetime, settings: Control) -> BreakerState:
        """Return whether turns may write now."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self.closes_at(settings) else BreakerState.OPEN

    def closes_at(self, settings: Control) -> datetime:
        """Return when an open breaker lets a turn try.

        Raises
        ------
        ValueError
            It is closed.
        """
        if self.opened_at is None:
            raise ValueError("the breaker is closed")
        return self.opened_at + timedelta(seconds=settings.breaker_s)

    def after_a_good_turn(self) -> Breaker:
        """Return the breaker after a turn whose every write was read back as asked."""
        return Breaker()

    def after_a_bad_turn(self, *, now: datetime, settings: Control) -> Breaker:
        """Return the breaker after a turn in which a write failed or read back as something else."""
        bad = self.bad_in_row + 1
        opens = self.opened_at is not None or bad >= settings.mismatches_to_open
        return Breaker(bad_in_row=bad, opened_at=now if opens else None)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"bad_in_row": self.bad_in_row, "opened_at": self.opened_at and self.opened_at.isoformat()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Breaker:
        """Read what :meth:`to_json` wrote."""
        at = plain["opened_at"]
        return cls(bad_in_row=int(plain["bad_in_row"]), opened_at=datetime.fromisoformat(at) if at else None)
