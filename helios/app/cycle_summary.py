"""What the daemon's clock calls, and what a cycle tells of itself.

The daemon stands above this room and is handed these callables; so it can be driven by toys, and a use case never
learns that a clock calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from helios.actions import Result
from helios.model import Mode

Breaker = Literal["closed", "half-open", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleTally:
    """How many jobs one service's proposals ended for in one way.

    Attributes
    ----------
    service : str
        Name in the configuration; ``helios`` for control itself.
    mode : str
        A Mode, or ``paused``.
    result : Result
        What became of them.
    jobs : int
        How many; not negative.
    """

    service: str
    mode: str
    result: Result
    jobs: int

    def __post_init__(self) -> None:
        if self.jobs < 0:
            raise ValueError(f"the tally of {self.service} counts {self.jobs} jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSummary:
    """One cycle, as logs, health and metrics show it.

    Attributes
    ----------
    pending, running : int
        Jobs seen.
    acted : int
        Jobs changed on the cluster; a shadow changes none.
    still : tuple of str
        Why nothing was done, for a person; empty: the services were asked.
    tallies : tuple of Tally
        What became of the proposals, by service, mode and result.
    seconds : float
        How long the cycle took.
    predictions : int
        Run times predicted for this cycle.
    history_read_at : datetime, optional
        Aware; up to when the cluster's history is known. None: it was never read.
    model_trained_at : datetime, optional
        Aware; None: there is no model.
    modes : mapping of str to Mode
        The mode of each service.
    breaker : str
        State of the breaker.
    lease_held : bool
        False: another Helios writes to this cluster, and this one stands by.
    notes : tuple of str
        What the operator should be told besides; the daemon says each once.
    trouble : str
        What kept the cycle from being taken at all, as a cluster that is away: the cycle then counts as failed. Empty:
        it was taken, be it to decide that nothing is to be done.
    """

    pending: int
    running: int
    acted: int
    suspended: tuple[str, ...] = ()
    tallies: tuple[CycleTally, ...] = ()
    seconds: float
    predictions: int = 0
    history_read_at: datetime | None = None
    model_trained_at: datetime | None = None
    modes: Mapping[str, Mode] = field(default_factory=dict)
    breaker: Breaker = "closed"
    lease_held: bool = True
    notes: tuple[str, ...] = ()
    problem: str = ""

    def line(self) -> str:
        """Return the cycle in one line, for a person."""
        seen = f"{self.pending} pending, {self.running} running, {self.seconds:.1f} s"
        if self.problem:
            return f"no cycle: {self.problem}"
        if self.suspended:
            return f"{seen}; nothing is done: {'; '.join(self.suspended)}"
        said = ", ".join(f"{t.service} ({t.mode}) {t.result.value} {t.jobs}" for t in self.tallies if t.jobs)
        return f"{seen}; {said or 'nothing proposed'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCycleSummary:
    """One cycle on nodes, as logs, health and metrics show it.

    Attributes
    ----------
    nodes : mapping of str to int
        Nodes by what they do: busy, idle, asleep, falling asleep, waking, out of service.
    by_helios : int
        Nodes asleep or on the way there because Helios asked for it.
    slept, woken, weighed : int
        Nodes told to sleep, told to wake, and given another weight, in this cycle.
    protected : str
        Why nothing is put to sleep until a person clears it; empty: nothing of the kind.
    quarantined : int
        Nodes that failed to wake and are left alone until a person clears them.
    still, tallies, seconds, modes, breaker, lease_held, notes, trouble
        As in :class:`CycleSummary`; tallies count nodes.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    by_helios: int = 0
    slept: int = 0
    woken: int = 0
    weighed: int = 0
    protected: str = ""
    quarantined: int = 0
    suspended: tuple[str, ...] = ()
    tallies: tuple[CycleTally, ...] = ()
    seconds: float
    modes: Mapping[str, Mode] = field(default_factory=dict)
    breaker: Breaker = "closed"
    lease_held: bool = True
    notes: tuple[str, ...] = ()
    problem: str = ""

    @property
    def acted(self) -> int:
        """Nodes that were changed."""
        return self.slept + self.woken + self.weighed

    def line(self) -> str:
        """Return the cycle in one line, for a person."""
        if self.problem:
            return f"no cycle on nodes: {self.problem}"
        seen = ", ".join(f"{number} {state}" for state, number in self.nodes.items() if number) or "no nodes"
        seen = f"{seen}, {self.seconds:.1f} s"
        if self.suspended:
            return f"{seen}; nothing is done: {'; '.join(self.suspended)}"
        did = [("put to sleep", self.slept), ("woken", self.woken), ("given another weight", self.weighed)]
        said = ", ".join(f"{number} {what}" for what, number in did if number) or "nothing to change"
        return f"{seen}; {said}{f'; PROTECTED: {self.protected}' if self.protected else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOperations:
    """Everything that the clock has done, each bound to its configuration already.

    Each returns one line for the log (empty: nothing worth a line) and raises HeliosError when it could not do its
    work. Whatever a task raises ends that run only. ``cycle``, ``nodes``, ``hook`` and ``release`` never run at the
    same time; ``ingest`` and ``nightly`` run beside them, from other threads.

    Attributes
    ----------
    ingest : callable, optional
        Read what ended since the last reading; None: another process does.
    turn : callable, optional
        Look, ask, check, act on jobs, write down; None: no service of this process acts on jobs.
    nodes : callable, optional
        The same on nodes; None: no service of this process acts on nodes.
    hook : callable
        Publish the priority hook's table, or remove it where it must not be; called after each reading and each night.
    nightly : callable
        Train, judge, report.
    release : callable
        Given why: revert everything that Helios set, the hook's table too, and verify that nothing is left.
        Idempotent. It raises when something is left or cannot be verified.
    """

    ingest: Callable[[], str] | None
    cycle: Callable[[], CycleSummary] | None
    hook: Callable[[], str]
    nightly: Callable[[], str]
    release: Callable[[str], str]
    nodes: Callable[[], NodeCycleSummary] | None = None
