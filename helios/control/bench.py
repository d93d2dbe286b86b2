"""The bench: a service that keeps failing sits out until told, or until a day has passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

SITS_OUT = timedelta(days=1)
"""How long a service sits out unless told: long enough to be seen, short enough to outlive a passing fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How often in a row a service failed, when last, and with what."""

    in_row: int
    last_at: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Who failed in the last turn that asked it; a service without a fault is not named."""

    faults: Mapping[str, Fault] = field(default_factory=dict)

    def after_a_failure(self, service: str, *, what: str, now: datetime) -> Bench:
        """Return the bench after ``service`` failed with ``what``."""
        before = self.faults.get(service)
        in_row = 1 if before is None else before.in_row + 1
        return Bench(faults={**self.faults, service: Fault(in_row=in_row, last_at=now, what=what)})

    def without(self, service: str) -> Bench:
        """Return the bench after ``service`` answered, or after a person said that it may play again."""
        return Bench(faults={name: fault for name, fault in self.faults.items() if name != service})

    def why_not(self, service: str, *, now: datetime, failures: int) -> str:
        """Return why ``service`` sits out, for a person; empty: it plays.

        Parameters
        ----------
        failures : int
            In a row, that bench a service. After its day it has one try, not as many again.
        """
        fault = self.faults.get(service)
        if fault is None or fault.in_row < failures or now - fault.last_at >= SITS_OUT:
            return ""
        until = f"{fault.last_at + SITS_OUT:%Y-%m-%d %H:%M} UTC"
        return f"service {service} failed {fault.in_row} times in a row and sits out until {until}: {fault.what}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            name: {"in_row": fault.in_row, "last_at": fault.last_at.isoformat(), "what": fault.what}
            for name, fault in self.faults.items()
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Bench:
        """Read what :meth:`to_json` wrote."""
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
