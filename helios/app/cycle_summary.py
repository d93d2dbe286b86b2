"""Results of control cycles, and the tasks that the daemon calls.

The daemon receives these callables instead of importing use cases. So a test can drive it with fakes, and a use case
does not know that a scheduler calls it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from helios.actions import Result
from helios.model import Mode

NIGHTLY_LEVELS = "study levels"
"""Name under which the warehouse keeps the values of the last nightly study."""

Breaker = Literal["closed", "half-open", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleTally:
    """Number of jobs of one service that ended with one result.

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
class DomainSummary:
    """Result of one cycle, for logs, health and metrics.

    Attributes
    ----------
    suspended : tuple of str
        Why nothing was done, for a person; empty where the services were asked.
    tallies : tuple of CycleTally
        What became of the changes that services asked for, by service, mode and result.
    seconds : float
        How long the cycle took.
    modes : mapping of str to Mode
        The mode of each service.
    breaker : str
        State of the circuit breaker.
    lease_held : bool
        False where another Helios holds the lease, and this one stands by.
    notes : tuple of str
        Further messages for the operator. The daemon logs each once.
    problem : str
        What prevented the cycle, such as a cluster that cannot be reached; the cycle then counts as failed. Empty where
        the cycle ran, even if it decided to do nothing.
    """

    suspended: tuple[str, ...] = ()
    tallies: tuple[CycleTally, ...] = ()
    seconds: float
    modes: Mapping[str, Mode] = field(default_factory=dict)
    breaker: Breaker = "closed"
    lease_held: bool = True
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSummary(DomainSummary):
    """Result of one cycle on jobs.

    Attributes
    ----------
    pending, running : int
        Jobs in the queue.
    acted : int
        Jobs changed on the cluster; 0 in shadow mode.
    predictions : int
        Run times predicted for this cycle.
    history_read_at : datetime, optional
        Aware; up to when the cluster's history is known. None where it was never read.
    model_trained_at : datetime, optional
        Aware; None where there is no model.
    """

    pending: int
    running: int
    acted: int
    predictions: int = 0
    history_read_at: datetime | None = None
    model_trained_at: datetime | None = None

    def line(self) -> str:
        """Return the cycle in one line of text."""
        counts = f"{self.pending} pending, {self.running} running, {self.seconds:.1f} s"
        if self.problem:
            return f"no cycle: {self.problem}"
        if self.suspended:
            return f"{counts}; nothing is done: {'; '.join(self.suspended)}"
        changes = ", ".join(f"{t.service} ({t.mode}) {t.result.value} {t.jobs}" for t in self.tallies if t.jobs)
        return f"{counts}; {changes or 'nothing proposed'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCycleSummary(DomainSummary):
    """Result of one cycle on nodes.

    Its tallies count nodes.

    Attributes
    ----------
    nodes : mapping of str to int
        Nodes by what they do: busy, idle, asleep, falling asleep, waking, out of service.
    by_helios : int
        Nodes asleep or on the way there because Helios asked for it.
    slept, woken, weighed : int
        Nodes powered down, powered up, and given another weight in this cycle.
    protected : str
        Why nothing is powered down until a person clears it; empty where power-down is allowed.
    quarantined : int
        Nodes that failed to wake and are left alone until a person clears them.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    by_helios: int = 0
    slept: int = 0
    woken: int = 0
    weighed: int = 0
    protected: str = ""
    quarantined: int = 0

    @property
    def acted(self) -> int:
        """Number of nodes that were changed."""
        return self.slept + self.woken + self.weighed

    def line(self) -> str:
        """Return the cycle in one line of text."""
        if self.problem:
            return f"no cycle on nodes: {self.problem}"
        counts = ", ".join(f"{number} {state}" for state, number in self.nodes.items() if number) or "no nodes"
        counts = f"{counts}, {self.seconds:.1f} s"
        if self.suspended:
            return f"{counts}; nothing is done: {'; '.join(self.suspended)}"
        did = [("put to sleep", self.slept), ("woken", self.woken), ("given another weight", self.weighed)]
        changes = ", ".join(f"{number} {what}" for what, number in did if number) or "nothing to change"
        return f"{counts}; {changes}{f'; PROTECTED: {self.protected}' if self.protected else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOperations:
    """Tasks of the daemon, each bound to its configuration.

    Each returns one line for the log (empty where nothing is worth one) and raises HeliosError when it could not do its
    work. An exception ends that run only. ``cycle``, ``nodes``, ``hook`` and ``release`` never run at the same time.
    ``ingest`` and ``nightly`` run beside them, in other threads.

    Attributes
    ----------
    ingest : callable, optional
        Read the jobs that ended since the last reading. None where another process does.
    cycle : callable, optional
        Run one cycle on jobs. None where no service of this process acts on jobs.
    hook : callable
        Publish the priority hook's table, or remove it where it must not be; called after each reading and each night.
    nightly : callable
        Train, evaluate and report.
    release : callable
        Given the reason, revert everything that Helios set, the hook's table too, and verify that nothing is left.
        Idempotent. It raises when something is left or cannot be verified.
    nodes : callable, optional
        Run one cycle on nodes. None where no service of this process acts on nodes.
    levels : callable
        Return the values of the last nightly report by name, empty where there was none.
    observe : callable
        Takes note of what a cycle has to tell a person. It neither waits nor fails.
    notify : callable, optional
        Tell what is due. None where nobody is told anything. It runs in a thread of its own.
    """

    ingest: Callable[[], str] | None
    cycle: Callable[[], CycleSummary] | None
    hook: Callable[[], str]
    nightly: Callable[[], str]
    release: Callable[[str], str]
    nodes: Callable[[], NodeCycleSummary] | None = None
    levels: Callable[[], Mapping[str, float]] = dict
    observe: Callable[[CycleSummary | NodeCycleSummary], None] = lambda _: None
    notify: Callable[[], str] | None = None


def error_kind(line: str) -> str:
    """Return a line with its numbers replaced.

    So waits of 30.1 s and 30.2 s are the same problem.
    """
    return re.sub(r"\d[\d.,]*", "#", line)
