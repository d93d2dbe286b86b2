"""What control takes from one cycle to the next, as text, so that a restart forgets nothing that keeps it still."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from helios.actions import NodeOutcome, Outcome
from helios.config import Power
from helios.control.circuit_breaker import CircuitBreaker, ServiceSuspension
from helios.errors import MemoryDamaged

EARLY = 0.1
"""Part of its interval by which a service may be asked early: cycles do not come to the second."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading JSON raises that is damaged or was written by somebody else: 1e999 for a count, 10^4 brackets."""

RENAMED = {"turn": "cycle", "still": "suspended", "bench": "suspension"}
"""Keys that had another name before migration 0006, which changes columns and leaves texts as they are."""


def _read(text: str) -> dict[str, Any]:
    return {RENAMED.get(key, key): value for key, value in json.loads(text).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """What the last cycle left.

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
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    suspension: ServiceSuspension = field(default_factory=ServiceSuspension)
    controller: str | None = None
    pending: int | None = None
    nodes: int | None = None
    suspended: tuple[str, ...] = ()
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
                "suspension": self.suspension.to_json(),
                "controller": self.controller,
                "pending": self.pending,
                "nodes": self.nodes,
                "suspended": list(self.suspended),
                "said": {service: sorted(digests) for service, digests in self.said.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ControllerState:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        MemoryDamaged
            It is something else. To go on with an empty memory would forget an open breaker.
        """
        try:
            plain = _read(text)
            return cls(
                asked_at={service: datetime.fromisoformat(at) for service, at in plain["asked_at"].items()},
                breaker=CircuitBreaker.from_json(plain["breaker"]),
                suspension=ServiceSuspension.from_json(plain["suspension"]),
                controller=plain["controller"],
                pending=plain["pending"],
                nodes=plain["nodes"],
                suspended=tuple(plain["suspended"]),
                said={service: frozenset(digests) for service, digests in plain["said"].items()},
            )
        except UNREADABLE as reason:
            raise MemoryDamaged(
                f"what control remembers of its last cycle cannot be read: {reason}",
                hint="Helios keeps still. To start without a memory: helios pause, then helios resume.",
            ) from reason


def jobs_digest(outcome: Outcome | NodeOutcome) -> str:
    """Return what an outcome is about: a job's id, or a node's name."""
    return outcome.job_id if isinstance(outcome, Outcome) else outcome.node


def state_digest(outcome: Outcome | NodeOutcome) -> str:
    """Return a short name of a refusal or failure: the same while nothing about it changes."""
    text = "\0".join((outcome.setting, jobs_digest(outcome), outcome.result, outcome.remark))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


# What the node cycle takes from one cycle to the next, as text: a restart forgets no cool-down, cycle or failure.

DAY = timedelta(days=1)
APART = timedelta(hours=1)
"""Looks farther apart than this do not follow each other: what was idle at both may have run a job in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """A node that was told to wake and has not come yet.

    Attributes
    ----------
    since : datetime
        When it was told, or seen on its way.
    by : str
        Who told it, for a person.
    """

    since: datetime
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A node that did not wake: when that was seen, and what was seen."""

    node: str
    at: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeControllerState:
    """What the last node cycle left.

    Attributes
    ----------
    turn : TurnMemory
        What every domain remembers: who was asked, breaker, bench, controller, what was said.
    looked_at : datetime, optional
        When the nodes were looked at last; None: never.
    idle : mapping
        The nodes that were idle at the last look, and since which look in a row they are.
    slept : mapping
        When Helios put each node to sleep in the last 24 hours.
    wakes : mapping
        Nodes told to wake that have not come yet.
    failures : tuple of Failure
        Wakes that failed in the last 24 hours and that nobody has cleared.
    quarantined : mapping
        Nodes that failed to wake, until a person clears them.
    protected_at : datetime, optional
        Since when nothing is put to sleep; None: it is.
    keep_off : mapping
        Nodes that somebody woke soon after Helios had put them to sleep, and until when Helios leaves them awake.
    """

    cycle: ControllerState = field(default_factory=ControllerState)
    looked_at: datetime | None = None
    idle: Mapping[str, datetime] = field(default_factory=dict)
    slept: Mapping[str, tuple[datetime, ...]] = field(default_factory=dict)
    wakes: Mapping[str, WakeUp] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    quarantined: Mapping[str, Failure] = field(default_factory=dict)
    protected_at: datetime | None = None
    keep_off: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def protected(self) -> str:
        """Why nothing is put to sleep any more, for a person; empty: it is."""
        if self.protected_at is None:
            return ""
        failed = ", ".join(sorted({failure.node for failure in self.failures})) or "since cleared"
        since = f"{self.protected_at:%Y-%m-%d %H:%M} UTC"
        return f"protected mode since {since}: too many nodes did not wake ({failed}); no node is put to sleep"

    def with_slept(self, node: str, at: datetime) -> NodeControllerState:
        """Return the memory after Helios put a node to sleep."""
        times = self.slept.get(node, ())
        return self if at in times else replace(self, slept={**self.slept, node: (*times, at)})

    def with_wake(self, node: str, wake: WakeUp) -> NodeControllerState:
        """Return the memory after a node was told to wake; the first time counts."""
        return self if node in self.wakes else replace(self, wakes={**self.wakes, node: wake})

    def with_failure(self, failure: Failure, settings: Power) -> NodeControllerState:
        """Return the memory after a failed wake; with too many of them it protects."""
        failures = (*self.failures, failure)
        protects = self.protected_at is None and len(failures) >= settings.failures_to_protect
        return replace(
            self,
            failures=failures,
            quarantined={**self.quarantined, failure.node: failure},
            wakes={node: wake for node, wake in self.wakes.items() if node != failure.node},
            protected_at=failure.at if protects else self.protected_at,
        )

    def without_the_old(self, now: datetime) -> NodeControllerState:
        """Return the memory without what is a day old; quarantine and protection end by a person only."""
        slept = {node: tuple(at for at in times if now - at < DAY) for node, times in self.slept.items()}
        return replace(
            self,
            slept={node: times for node, times in slept.items() if times},
            failures=tuple(failure for failure in self.failures if now - failure.at < DAY),
            keep_off={node: until for node, until in self.keep_off.items() if until > now},
        )

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(
            {
                "cycle": self.cycle.to_json(),
                "looked_at": self.looked_at and self.looked_at.isoformat(),
                "idle": _told(self.idle),
                "slept": {node: [at.isoformat() for at in times] for node, times in self.slept.items()},
                "wakes": {node: [wake.since.isoformat(), wake.by] for node, wake in self.wakes.items()},
                "failures": [_failure_told(failure) for failure in self.failures],
                "quarantined": [_failure_told(failure) for failure in self.quarantined.values()],
                "protected_at": self.protected_at and self.protected_at.isoformat(),
                "keep_off": _told(self.keep_off),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> NodeControllerState:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        MemoryDamaged
            It is something else. To go on with an empty memory would forget a quarantine.
        """
        try:
            plain = _read(text)
            quarantined = [_failure(entry) for entry in plain["quarantined"]]
            return cls(
                cycle=ControllerState.from_json(plain["cycle"]),
                looked_at=_moment(plain["looked_at"]),
                idle=_moments(plain["idle"]),
                slept={node: tuple(map(datetime.fromisoformat, times)) for node, times in plain["slept"].items()},
                wakes={
                    node: WakeUp(since=datetime.fromisoformat(since), by=str(by))
                    for node, (since, by) in plain["wakes"].items()
                },
                failures=tuple(_failure(entry) for entry in plain["failures"]),
                quarantined={failure.node: failure for failure in quarantined},
                protected_at=_moment(plain["protected_at"]),
                keep_off=_moments(plain["keep_off"]),
            )
        except UNREADABLE as reason:
            raise MemoryDamaged(
                f"what control remembers of the nodes cannot be read: {reason}",
                hint="Helios keeps still. To start without a memory: helios pause, then helios resume.",
            ) from reason


def clear_service(memory: NodeControllerState, node: str | None = None) -> NodeControllerState:
    """Return the memory after a person looked: what failed to wake may sleep again.

    Parameters
    ----------
    node : str, optional
        Only this one: its quarantine, its failures and its hands-off end, protected mode goes on. None: all of them,
        and protected mode ends.
    """
    if node is None:
        return replace(memory, failures=(), quarantined={}, protected_at=None, keep_off={})
    return replace(
        memory,
        failures=tuple(failure for failure in memory.failures if failure.node != node),
        quarantined={name: failure for name, failure in memory.quarantined.items() if name != node},
        keep_off={name: until for name, until in memory.keep_off.items() if name != node},
    )


def _told(moments: Mapping[str, datetime]) -> dict[str, str]:
    return {name: at.isoformat() for name, at in moments.items()}


def _moments(plain: Mapping[str, str]) -> dict[str, datetime]:
    return {name: datetime.fromisoformat(at) for name, at in plain.items()}


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _failure_told(failure: Failure) -> list[str]:
    return [failure.node, failure.at.isoformat(), failure.what]


def _failure(plain: Any) -> Failure:
    node, at, what = plain
    return Failure(node=str(node), at=datetime.fromisoformat(at), what=str(what))
