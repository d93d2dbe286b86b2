"""Circuit breaker for bad cycles, and suspension of services that fail.

After several bad cycles in a row Helios writes nothing for a while, and then tries one cycle. The functions are pure:
the time is an argument. The state is stored with that of the last cycle, so that a restart does not shorten the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from helios.config import Control


class BreakerState(StrEnum):
    """State of the circuit breaker, whether cycles may write."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """The wait is over; the result of the next cycle that writes decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """Stored state of the circuit breaker.

    Attributes
    ----------
    bad_in_row : int
        Bad cycles that wrote since the last good one.
    opened_at : datetime, optional
        When it opened last; None where it is closed.
    """

    bad_in_row: int = 0
    opened_at: datetime | None = None

    def state(self, *, now: datetime, settings: Control) -> BreakerState:
        """Return whether cycles may write now."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self.closes_at(settings) else BreakerState.OPEN

    def closes_at(self, settings: Control) -> datetime:
        """Return when an open breaker allows a trial cycle.

        Raises
        ------
        ValueError
            It is closed.
        """
        if self.opened_at is None:
            raise ValueError("the breaker is closed")
        return self.opened_at + timedelta(seconds=settings.breaker_s)

    def after_a_good_cycle(self) -> CircuitBreaker:
        """Return the breaker after a cycle in which every write was verified."""
        return CircuitBreaker()

    def after_a_bad_cycle(self, *, now: datetime, settings: Control) -> CircuitBreaker:
        """Return the breaker after a cycle in which a write failed.

        A write that reads back as something else counts as failed.
        """
        bad = self.bad_in_row + 1
        opens = self.opened_at is not None or bad >= settings.mismatches_to_open
        return CircuitBreaker(bad_in_row=bad, opened_at=now if opens else None)

    def to_json(self) -> dict[str, Any]:
        """Return the breaker as plain values."""
        return {"bad_in_row": self.bad_in_row, "opened_at": self.opened_at and self.opened_at.isoformat()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> CircuitBreaker:
        """Read the values that ``to_json`` returned."""
        at = plain["opened_at"]
        return cls(bad_in_row=int(plain["bad_in_row"]), opened_at=datetime.fromisoformat(at) if at else None)


# Suspension of services. One that fails repeatedly is not asked until a person clears it, or until a day has passed.

SITS_OUT = timedelta(days=1)
"""How long a service stays suspended: long enough to be noticed, and no longer than most passing faults need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Failures of a service in a row, with time and error of the last."""

    in_row: int
    last_at: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSuspension:
    """Failures in a row of each service.

    Services that succeeded last time have no entry.
    """

    faults: Mapping[str, Fault] = field(default_factory=dict)

    def after_a_failure(self, service: str, *, what: str, now: datetime) -> ServiceSuspension:
        """Return the suspensions after ``service`` failed with ``what``."""
        before = self.faults.get(service)
        in_row = 1 if before is None else before.in_row + 1
        return ServiceSuspension(faults={**self.faults, service: Fault(in_row=in_row, last_at=now, what=what)})

    def without(self, service: str) -> ServiceSuspension:
        """Return the suspensions without ``service``.

        Used after it succeeded, or after a person ended its suspension.
        """
        return ServiceSuspension(faults={name: fault for name, fault in self.faults.items() if name != service})

    def why_not(self, service: str, *, now: datetime, failures: int) -> str:
        """Return why ``service`` is suspended, for a person.

        Empty where it is not.

        Parameters
        ----------
        failures : int
            Failures in a row that suspend a service. After the suspension one more failure suspends it again.
        """
        fault = self.faults.get(service)
        if fault is None or fault.in_row < failures or now - fault.last_at >= SITS_OUT:
            return ""
        until = f"{fault.last_at + SITS_OUT:%Y-%m-%d %H:%M} UTC"
        return f"service {service} failed {fault.in_row} times in a row and sits out until {until}: {fault.what}"

    def to_json(self) -> dict[str, Any]:
        """Return the suspensions as plain values."""
        return {
            name: {"in_row": fault.in_row, "last_at": fault.last_at.isoformat(), "what": fault.what}
            for name, fault in self.faults.items()
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> ServiceSuspension:
        """Read the values that ``to_json`` returned."""
        return cls(
            faults={
                name: Fault(
                    in_row=int(fault["in_row"]),
                    last_at=datetime.fromisoformat(fault["last_at"]),
                    what=str(fault["what"]),
                )
                for name, fault in plain.items()
            }
        )
