"""How the daemon fares: what it remembers of each task, and whether that is well."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from helios import __version__
from helios.app.cycle_summary import CycleSummary, NodeCycleSummary
from helios.private_files import make_folder, write_private

# ``health.json``: the daemon's health for whoever has no port to ask (``helios doctor``, a site that serves none).

NAME = "health.json"

_log = logging.getLogger("helios.daemon.health")


class HealthFile:
    """The file in the state folder; replaced as a whole, so that a reader never sees half of it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._problem = ""
        self._one_at_a_time = Lock()

    def write(self, report: Callable[[], Mapping[str, Any]]) -> None:
        """Replace the file by what ``report`` says; a failure is said once, and never raised."""
        with self._one_at_a_time:  # the last to write asks last: "stopping" never lands on top of "stopped"
            try:
                self._replace(json.dumps(report(), indent=2) + "\n")
            except OSError as error:
                self._say(f"{self._path} cannot be written: {error.strerror}")
            else:
                self._say("")

    def _replace(self, text: str) -> None:
        make_folder(self._path.parent)
        write_private(self._path, text.encode())

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.error("%s. What to do: check control.state_folder and the room on its disk.", problem)
        elif self._problem and not problem:
            _log.warning("%s is written again", self._path)
        self._problem = problem


# The clocks that the daemon reads: the wall's for people, the monotonic one for lengths of time.


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """Two clocks; a test hands in its own.

    Attributes
    ----------
    now : callable
        Aware UTC; may jump.
    monotonic_s : callable
        Never goes back; its zero means nothing.
    """

    now: Callable[[], datetime] = _utc_now
    monotonic_s: Callable[[], float] = time.monotonic


FAILURES = 3
"""So many in a row are no accident: the daemon is not well, however lately it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHealth:
    """How one task fared lately.

    Attributes
    ----------
    began_at, succeeded_at, failed_at : datetime, optional
        The last time that it did; None: not since the start.
    at_work : bool
        It runs now.
    line : str
        What it said last.
    failures : int
        In a row.
    trouble : str
        What went wrong last; empty: it is well.
    """

    began_at: datetime | None = None
    succeeded_at: datetime | None = None
    failed_at: datetime | None = None
    at_work: bool = False
    line: str = ""
    failures: int = 0
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "began_at": _text(self.began_at),
            "succeeded_at": _text(self.succeeded_at),
            "failed_at": _text(self.failed_at),
            "at_work": self.at_work,
            "line": self.line,
            "failures": self.failures,
            "problem": self.problem,
        }


class Health:
    """What the daemon knows of itself; written by the tasks' threads, read by whoever asks.

    Parameters
    ----------
    lately_s : mapping of str to float
        The tasks that must have succeeded lately for the daemon to be well, and what lately means for each, s.
    times : Times
        The clocks.
    """

    def __init__(self, *, lately_s: Mapping[str, float], times: TaskTimes) -> None:
        self._lately_s = dict(lately_s)
        self._times = times
        self._lock = Lock()
        self._started_at = times.now()
        self._tasks = {name: TaskHealth() for name in lately_s}
        self._cycle: CycleSummary | None = None
        self._nodes: NodeCycleSummary | None = None
        self._ending = ""
        self.note = ""
        """What a person should know besides, though all is well; empty: nothing."""

    @property
    def last_cycle(self) -> CycleSummary | None:
        """The last cycle that was taken; None: none yet."""
        return self._cycle

    @property
    def stands_by(self) -> bool:
        """Whether other processes of Helios write to this cluster, as far as the last cycles saw."""
        cycles = [cycle for cycle in (self._cycle, self._nodes) if cycle is not None]
        return bool(cycles) and not any(cycle.lease_held for cycle in cycles)

    def began(self, name: str, *, at: datetime) -> None:
        """Take note that a task began."""
        self._change(name, began_at=at, at_work=True)

    def succeeded(self, name: str, *, at: datetime, line: str) -> None:
        """Take note that a task ended well; an empty line leaves what it said before."""
        said = {"line": line} if line else {}
        self._change(name, succeeded_at=at, at_work=False, failures=0, problem="", **said)

    def failed(self, name: str, *, at: datetime, problem: str) -> None:
        """Take note that a task failed."""
        failures = self.of(name).failures + 1
        self._change(name, failed_at=at, at_work=False, failures=failures, problem=problem)

    def turned(self, cycle: CycleSummary) -> None:
        """Take note of a cycle."""
        self._cycle = cycle

    def turned_nodes(self, cycle: NodeCycleSummary) -> None:
        """Take note of a cycle on nodes."""
        self._nodes = cycle

    def ending(self, word: str) -> None:
        """Take note that the daemon is ``stopping``, or ``stopped``."""
        self._ending = word

    def of(self, name: str) -> TaskHealth:
        """Return how one task fares."""
        with self._lock:
            return self._tasks.get(name, TaskHealth())

    def reasons(self) -> list[str]:
        """Say why the daemon is not well; nothing: it is."""
        if self._ending:
            return [f"the daemon is {self._ending}"]
        return [reason for name in self._lately_s if (reason := self._complaint(name))]

    def report(self) -> dict[str, Any]:
        """Return everything as plain values, as ``/healthz`` and ``health.json`` show it."""
        reasons = self.reasons()
        with self._lock:
            tasks = {name: task.to_json() for name, task in sorted(self._tasks.items())}
        return {
            "healthy": not reasons,
            "state": self._state(reasons),
            "reasons": reasons,
            "note": self.note,
            "version": __version__,
            "pid": os.getpid(),
            "started_at": _text(self._started_at),
            "written_at": _text(self._times.now()),
            "tasks": tasks,
            "cycle": None if self._cycle is None else _cycle(self._cycle),
            "nodes": None if self._nodes is None else _node_cycle(self._nodes),
        }

    def _state(self, reasons: list[str]) -> str:
        if self._ending:
            return self._ending
        if reasons:
            return "failing" if any(task.failures for task in self._tasks.values()) else "waiting"
        if self.stands_by:
            return "standby"
        suspended = any(cycle is not None and cycle.suspended for cycle in (self._cycle, self._nodes))
        return "suspended" if suspended else "at work"

    def _complaint(self, name: str) -> str:
        task = self.of(name)
        since = task.succeeded_at or self._started_at
        age_s = (self._times.now() - since).total_seconds()
        if task.failures >= FAILURES:
            return f"{name} failed {task.failures} times in a row: {task.problem}"
        if task.succeeded_at is not None and age_s <= self._lately_s[name]:
            return ""
        message = f"{name} has not succeeded for {age_s:.0f} s"
        if task.problem:
            return f"{message}: {task.problem}"
        return f"{message}: at work" if task.at_work else message

    def _change(self, name: str, **changes: Any) -> None:
        with self._lock:
            self._tasks[name] = replace(self._tasks.get(name, TaskHealth()), **changes)


def _cycle(cycle: CycleSummary) -> dict[str, Any]:
    return {
        "line": cycle.line(),
        "pending": cycle.pending,
        "running": cycle.running,
        "acted": cycle.acted,
        "suspended": list(cycle.suspended),
        "seconds": round(cycle.seconds, 3),
        "predictions": cycle.predictions,
        "history_read_at": _text(cycle.history_read_at),
        "model_trained_at": _text(cycle.model_trained_at),
        "modes": {service: mode.value for service, mode in cycle.modes.items()},
        "breaker": cycle.breaker,
        "lease_held": cycle.lease_held,
    }


def _node_cycle(cycle: NodeCycleSummary) -> dict[str, Any]:
    return {
        "line": cycle.line(),
        "nodes": dict(cycle.nodes),
        "by_helios": cycle.by_helios,
        "acted": cycle.acted,
        "protected": cycle.protected,
        "quarantined": cycle.quarantined,
        "suspended": list(cycle.suspended),
        "seconds": round(cycle.seconds, 3),
        "modes": {service: mode.value for service, mode in cycle.modes.items()},
        "breaker": cycle.breaker,
        "lease_held": cycle.lease_held,
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
