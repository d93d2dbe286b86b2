"""State of control between cycles.

It is stored as text, so that a restart loses nothing.
"""

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
"""Share of its interval by which a service may be asked early, because the times of cycles vary slightly."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors from reading damaged or foreign JSON, such as 1e999 for a count, or 10^4 brackets."""

RENAMED = {"turn": "cycle", "still": "suspended", "bench": "suspension"}
"""Old names of keys, before migration 0006, which changes columns but not stored texts."""


def _read(text: str) -> dict[str, Any]:
    return {RENAMED.get(key, key): value for key, value in json.loads(text).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """State after the last cycle.

    Attributes
    ----------
    asked_at : mapping
        Time of the snapshot with which each service was asked last.
    breaker : CircuitBreaker
    suspension : ServiceSuspension
    controller : str, optional
        Identity of the controller that answered last; None where it is not known.
    pending, nodes : int, optional
        Number of pending records and nodes in the last trusted snapshot; None without one.
    suspended : tuple of str
        Reasons of the last suspended cycle, which are logged once, not every minute.
    said : mapping
        Digests of the refusals and failures already logged, by service.
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
        """Return whether it is time to ask ``service`` again.

        It is also due if the clock was set back.
        """
        last = self.asked_at.get(service)
        return last is None or now < last or now - last >= every * (1 - EARLY)

    def to_json(self) -> str:
        """Return the state as JSON text."""
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
        """Return the state that ``to_json`` wrote.

        Raises
        ------
        MemoryDamaged
            The text is something else. To continue with an empty state would lose an open breaker.
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


def outcome_target(outcome: Outcome | NodeOutcome) -> str:
    """Return the target of an outcome, a job's id or a node's name."""
    return outcome.job_id if isinstance(outcome, Outcome) else outcome.node


def state_digest(outcome: Outcome | NodeOutcome) -> str:
    """Return a short digest of a refusal or failure.

    It is the same while nothing about it changes.
    """
    text = "\0".join((outcome.setting, outcome_target(outcome), outcome.result, outcome.remark))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


# State of the node cycle, stored as text, so that a restart loses no cool-down, power cycle or failure.

DAY = timedelta(days=1)
APART = timedelta(hours=1)
"""Longest time between consecutive snapshots. A node that is idle in both may otherwise have run a job in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """A wake that was requested and has not succeeded yet.

    Attributes
    ----------
    since : datetime
        When it was requested, or first observed.
    by : str
        Who requested it, for a person.
    """

    since: datetime
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A node that did not wake, with the time and a description."""

    node: str
    at: datetime
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeControllerState:
    """State after the last node cycle.

    Attributes
    ----------
    cycle : ControllerState
        The part of the state that all domains have.
    looked_at : datetime, optional
        Time of the last snapshot; None without one.
    idle : mapping
        Nodes idle in the last snapshot, with the first consecutive snapshot in which they were.
    slept : mapping
        Times at which Helios put each node to sleep in the last 24 hours.
    wakes : mapping
        Nodes whose wake was requested and has not succeeded yet.
    failures : tuple of Failure
        Failed wakes of the last 24 hours that nobody has cleared.
    quarantined : mapping
        Nodes that failed to wake, until a person clears them.
    protected_at : datetime, optional
        Time since which nothing is put to sleep; None where nodes may be.
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
        """Why nothing is put to sleep any more, for a person.

        Empty where nodes may be put to sleep.
        """
        if self.protected_at is None:
            return ""
        failed = ", ".join(sorted({failure.node for failure in self.failures})) or "since cleared"
        since = f"{self.protected_at:%Y-%m-%d %H:%M} UTC"
        return f"protected mode since {since}: too many nodes did not wake ({failed}); no node is put to sleep"

    def with_slept(self, node: str, at: datetime) -> NodeControllerState:
        """Return the state after Helios put a node to sleep."""
        times = self.slept.get(node, ())
        return self if at in times else replace(self, slept={**self.slept, node: (*times, at)})

    def with_wake(self, node: str, wake: WakeUp) -> NodeControllerState:
        """Return the state after a wake of a node was requested.

        The first request counts.
        """
        return self if node in self.wakes else replace(self, wakes={**self.wakes, node: wake})

    def with_failure(self, failure: Failure, settings: Power) -> NodeControllerState:
        """Return the state after a failed wake.

        With too many of them protected mode begins.
        """
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
        """Return the state without entries older than a day.

        Quarantine and protected mode are ended only by a person.
        """
        slept = {node: tuple(at for at in times if now - at < DAY) for node, times in self.slept.items()}
        return replace(
            self,
            slept={node: times for node, times in slept.items() if times},
            failures=tuple(failure for failure in self.failures if now - failure.at < DAY),
            keep_off={node: until for node, until in self.keep_off.items() if until > now},
        )

    def to_json(self) -> str:
        """Return the state as JSON text."""
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
        """Return the state that ``to_json`` wrote.

        Raises
        ------
        MemoryDamaged
            The text is something else. To continue with an empty state would lose a quarantine.
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
    """Return the state after a person cleared failed wakes.

    The nodes may be put to sleep again.

    Parameters
    ----------
    node : str, optional
        The node to clear, with its quarantine, its failures and its ``keep_off``. Protected mode goes on. None to clear
        all nodes and end protected mode.
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
