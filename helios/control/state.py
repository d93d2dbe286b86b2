"""State of control between cycles.

It is stored as JSON text, so that a restart loses nothing and shortens no wait. The functions are pure: the time is an
argument.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter, WrapSerializer

from helios.actions import NodeOutcome, Outcome
from helios.config import Control, Power
from helios.errors import MemoryDamaged

EARLY = 0.1
"""Share of its interval by which a service may be asked early, because the times of cycles vary slightly."""

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors from reading damaged or foreign JSON, such as 1e999 for a count, or 10^4 brackets."""

RENAMED = {"turn": "cycle", "still": "suspended", "bench": "suspension"}
"""Old names of keys, before migration 0006, which changes columns but not stored texts."""

Time = Annotated[datetime, BeforeValidator(datetime.fromisoformat), PlainSerializer(datetime.isoformat)]
"""Stored in ISO 8601, with the offset as ``+00:00``."""

SUSPENDED_FOR = timedelta(days=1)
"""How long a service stays suspended: long enough to be noticed, and no longer than most passing faults need."""

DAY = timedelta(days=1)
APART = timedelta(hours=1)
"""Longest time between consecutive snapshots. A node that is idle in both may otherwise have run a job in between."""


class StoredState:
    """State that is stored as JSON text."""

    __slots__ = ()
    of: ClassVar[str]
    """Whose state it is, for a person."""

    def to_json(self) -> str:
        """Return the state as JSON text."""
        return json.dumps(_STORED[type(self)].dump_python(self, mode="json"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the state that ``to_json`` wrote.

        Raises
        ------
        MemoryDamaged
            The text is something else. To continue with an empty state would lose an open breaker or a quarantine.
        """
        try:
            plain = {RENAMED.get(key, key): value for key, value in json.loads(text).items()}
            state: Self = _STORED[cls].validate_python(_complete(cls, plain))
        except UNREADABLE as reason:
            raise MemoryDamaged(
                f"the stored state of {cls.of} cannot be read: {' '.join(str(reason).split())}",
                hint="Helios changes nothing meanwhile. To start with an empty state: "
                "helios pause, then helios resume.",
            ) from reason
        return state


def _complete(kind: type[Any], plain: Any) -> Any:
    """Return the stored fields of a dataclass.

    Raises ValueError where one is missing: its default would lose an open breaker or a quarantine.
    """
    if missing := [each.name for each in fields(kind) if each.name not in plain]:
        raise ValueError(f"it has no {', '.join(missing)}")
    return plain


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
    opened_at: Time | None = None

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


# Suspension of services. One that fails repeatedly is not asked until a person clears it, or until a day has passed.
@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Consecutive failures of a service, and the last one."""

    in_row: int
    last_at: Time
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
        if fault is None or fault.in_row < failures or now - fault.last_at >= SUSPENDED_FOR:
            return ""
        until = f"{fault.last_at + SUSPENDED_FOR:%Y-%m-%d %H:%M} UTC"
        return f"service {service} failed {fault.in_row} times in a row and is suspended until {until}: {fault.what}"


StoredBreaker = Annotated[CircuitBreaker, BeforeValidator(lambda plain: _complete(CircuitBreaker, plain))]
StoredSuspension = Annotated[
    ServiceSuspension,
    BeforeValidator(lambda plain: {"faults": plain}),
    WrapSerializer(lambda suspension, stored: stored(suspension)["faults"]),
]
StoredDigests = Annotated[frozenset[str], PlainSerializer(sorted)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState(StoredState):
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

    of: ClassVar[str] = "the last cycle"
    asked_at: Mapping[str, Time] = field(default_factory=dict)
    breaker: StoredBreaker = field(default_factory=CircuitBreaker)
    suspension: StoredSuspension = field(default_factory=ServiceSuspension)
    controller: str | None = None
    pending: int | None = None
    nodes: int | None = None
    suspended: tuple[str, ...] = ()
    said: Mapping[str, StoredDigests] = field(default_factory=dict)

    def is_due(self, service: str, *, every: timedelta, now: datetime) -> bool:
        """Return whether it is time to ask ``service`` again.

        It is also due if the clock was set back.
        """
        last = self.asked_at.get(service)
        return last is None or now < last or now - last >= every * (1 - EARLY)


def outcome_target(outcome: Outcome | NodeOutcome) -> str:
    """Return the job id or node name of an outcome."""
    return outcome.job_id if isinstance(outcome, Outcome) else outcome.node


def state_digest(outcome: Outcome | NodeOutcome) -> str:
    """Return a short digest of a refusal or failure.

    It is the same while nothing about it changes.
    """
    text = "\0".join((outcome.setting, outcome_target(outcome), outcome.result, outcome.remark))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()


# State of the node cycle, stored as text, so that a restart loses no cool-down, power cycle or failure.
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

    since: Time
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A node that did not wake, with the time and a description."""

    node: str
    at: Time
    what: str


StoredCycle = Annotated[
    ControllerState, BeforeValidator(ControllerState.from_json), PlainSerializer(ControllerState.to_json)
]
StoredWakeUp = Annotated[
    WakeUp,
    BeforeValidator(lambda pair: dict(zip(("since", "by"), pair, strict=True))),
    WrapSerializer(lambda wake, stored: list(stored(wake).values())),
]
StoredFailure = Annotated[
    Failure,
    BeforeValidator(lambda three: dict(zip(("node", "at", "what"), three, strict=True))),
    WrapSerializer(lambda failure, stored: list(stored(failure).values())),
]
StoredQuarantine = Annotated[
    Mapping[str, StoredFailure],
    BeforeValidator(lambda failures: {failure[0]: failure for failure in failures}),
    WrapSerializer(lambda quarantined, stored: list(stored(quarantined).values())),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeControllerState(StoredState):
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
    delayed : mapping
        Submissions of the last seven days of which a job had to wait for a node to boot, and when that was first seen.
    """

    of: ClassVar[str] = "the nodes"
    cycle: StoredCycle = field(default_factory=ControllerState)
    looked_at: Time | None = None
    idle: Mapping[str, Time] = field(default_factory=dict)
    slept: Mapping[str, tuple[Time, ...]] = field(default_factory=dict)
    wakes: Mapping[str, StoredWakeUp] = field(default_factory=dict)
    failures: tuple[StoredFailure, ...] = ()
    quarantined: StoredQuarantine = field(default_factory=dict)
    protected_at: Time | None = None
    keep_off: Mapping[str, Time] = field(default_factory=dict)
    delayed: Mapping[str, Time] = field(default_factory=dict)

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

    def with_delayed(self, submissions: Collection[str], at: datetime) -> NodeControllerState:
        """Return the state with ``submissions`` that waited for a boot."""
        new = {submission: at for submission in submissions if submission not in self.delayed}
        return replace(self, delayed={**self.delayed, **new}) if new else self

    def without_old_entries(self, now: datetime) -> NodeControllerState:
        """Return the state without old entries.

        Delays are old after a week, others after a day. Quarantine and protected mode are ended only by a person.
        """
        slept = {node: tuple(at for at in times if now - at < DAY) for node, times in self.slept.items()}
        return replace(
            self,
            slept={node: times for node, times in slept.items() if times},
            failures=tuple(failure for failure in self.failures if now - failure.at < DAY),
            keep_off={node: until for node, until in self.keep_off.items() if until > now},
            delayed={submission: at for submission, at in self.delayed.items() if now - at < 7 * DAY},
        )


def clear_failed_wakes(memory: NodeControllerState, node: str | None = None) -> NodeControllerState:
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


_STORED: dict[Any, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (ControllerState, NodeControllerState)}
