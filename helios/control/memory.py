"""What control takes from one turn to the next, as text, so that a restart forgets nothing that keeps it still."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from helios.actions import NodeOutcome, Outcome
from helios.control.bench import Bench
from helios.control.breaker import Breaker
from helios.errors import MemoryDamaged

EARLY = 0.1
"""Part of its interval by which a service may be asked early: turns do not come to the second."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading JSON raises that is damaged or was written by somebody else: 1e999 for a count, 10^4 brackets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMemory:
    """What the last turn left.

    Attributes
    ----------
    asked_at : mapping
        When each service was asked last, by the time of the snapshot.
    breaker, bench : Breaker, Bench
    controller : str, optional
        Identity of the controller that answered last; None: not known.
    pending, nodes : int, optional
        Records pending and nodes seen in the last answer that was believed; None: there was none.
    still : tuple of str
        Reasons written down for the last still turn; said once, not every minute.
    said : mapping
        By service, digests of the refusals and failures already written down.
    """

    asked_at: Mapping[str, datetime] = field(default_factory=dict)
    breaker: Breaker = field(default_factory=Breaker)
    bench: Bench = field(default_factory=Bench)
    controller: str | None = None
    pending: int | None = None
    nodes: int | None = None
    still: tuple[str, ...] = ()
    said: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def is_due(self, service: str, *, every: timedelta, now: datetime) -> bool:
        """Return whether it is time to ask ``service`` again; a clock set back makes it so."""
        last = self.asked_at.get(service)
        return last is None or now < last or now - last >= every * (1 - EARLY)

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(
            {
                "asked_at": {service: at.isoformat() for service, at in self.asked_at.items()},
                "breaker": self.breaker.to_json(),
                "bench": self.bench.to_json(),
                "controller": self.controller,
                "pending": self.pending,
                "nodes": self.nodes,
                "still": list(self.still),
                "said": {service: sorted(digests) for service, digests in self.said.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> TurnMemory:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        MemoryDamaged
            It is something else. To go on with an empty memory would forget an open breaker.
        """
        try:
            plain = json.loads(text)
            return cls(
                asked_at={service: datetime.fromisoformat(at) for service, at in plain["asked_at"].items()},
                breaker=Breaker.from_json(plain["breaker"]),
                bench=Bench.from_json(plain["bench"]),
                controller=plain["controller"],
                pending=plain["pending"],
                nodes=plain["nodes"],
                still=tuple(plain["still"]),
                said={service: frozenset(digests) for service, digests in plain["said"].items()},
            )
        except UNREADABLE as reason:
            raise MemoryDamaged(
                f"what control remembers of its last turn cannot be read: {reason}",
                remedy="Helios keeps still. To start without a memory: helios pause, then helios resume.",
            ) from reason


def target_of(outcome: Outcome | NodeOutcome) -> str:
    """Return what an outcome is about: a job's id, or a node's name."""
    return outcome.job_id if isinstance(outcome, Outcome) else outcome.node


def digest_of(outcome: Outcome | NodeOutcome) -> str:
    """Return a short name of a refusal or failure: the same while nothing about it changes."""
    text = "\0".join((outcome.lever, target_of(outcome), outcome.result, outcome.remark))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
