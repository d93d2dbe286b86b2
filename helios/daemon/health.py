"""How the daemon fares: what it remembers of each task, and whether that is well."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from helios import __version__
from helios.app.cycle_summary import CycleSummary, NodeCycleSummary
from helios.private_files import make_folder, write_private

NAME = "health.json"
FAILURES = 3
"""So many in a row are no accident: the daemon is not well, however lately it was."""
OF_CYCLES = ("suspended", "seconds", "modes", "breaker", "lease_held", "acted")
OF_JOBS = ("pending", "running", "predictions", "history_read_at", "model_trained_at")
OF_NODES = ("nodes", "by_helios", "protected", "quarantined")
"""What the report shows of a cycle: any, one on jobs, one on nodes."""

_log = logging.getLogger("helios.daemon.health")


class HealthFile:
    """``health.json`` in the state folder, for whoever has no port to ask.

    Replaced as a whole, so that a reader never sees half of it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._problem = ""
        self._one_at_a_time = Lock()

    def write(self, report: Callable[[], Mapping[str, Any]]) -> None:
        """Replace the file by what ``report`` says; a failure is logged once, and never raised."""
        with self._one_at_a_time:  # the last to write asks last: "stopping" never lands on top of "stopped"
            problem = ""
            try:
                make_folder(self._path.parent)
                write_private(self._path, (json.dumps(report(), indent=2) + "\n").encode())
            except OSError as error:
                problem = f"{self._path} cannot be written: {error.strerror}"
            if problem and problem != self._problem:
                _log.error("%s. What to do: check control.state_folder and the room on its disk.", problem)
            elif self._problem and not problem:
                _log.warning("%s is written again", self._path)
            self._problem = problem


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """The wall clock for people and the monotonic one for lengths of time; a test hands in its own.

    Attributes
    ----------
    now : callable
        Aware UTC; may jump.
    monotonic_s : callable
        Never goes back; its zero means nothing.
    """

    now: Callable[[], datetime] = _utc_now
    monotonic_s: Callable[[], float] = time.monotonic


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
    problem : str
        What went wrong last; empty: it is well.
    """

    began_at: datetime | None = None
    succeeded_at: datetime | None = None
    failed_at: datetime | None = None
    at_work: bool = False
    line: str = ""
    failures: int = 0
    problem: str = ""


class Health:
    """What the daemon knows of itself; written by the tasks' threads, read by whoever asks.

    Parameters
    ----------
    lately_s : mapping of str to float
        The tasks that must have succeeded lately for the daemon to be well, and what lately means for each, s.
    times : TaskTimes
        The clocks.
    """

    def __init__(self, *, lately_s: Mapping[str, float], times: TaskTimes) -> None:
        self._lately_s = dict(lately_s)
        self._times = times
        self._lock = Lock()
        self._started_at = times.now()
        self._tasks = {name: TaskHealth() for name in lately_s}
        self._cycles: dict[str, CycleSummary | NodeCycleSummary] = {}
        self._ending = ""
        self.note = ""
        """What a person should know besides, though all is well; empty: nothing."""

    @property
    def stands_by(self) -> bool:
        """Whether other processes of Helios write to this cluster, as far as the last cycles saw."""
        cycles = list(self._cycles.values())
        return bool(cycles) and not any(cycle.lease_held for cycle in cycles)

    def began(self, name: str, *, at: datetime) -> None:
        """Note that a task began."""
        self._change(name, began_at=at, at_work=True)

    def succeeded(self, name: str, *, at: datetime, line: str) -> None:
        """Note that a task ended well; an empty line leaves what it said before."""
        said = {"line": line} if line else {}
        self._change(name, succeeded_at=at, at_work=False, failures=0, problem="", **said)

    def failed(self, name: str, *, at: datetime, problem: str) -> None:
        """Note that a task failed."""
        self._change(name, failed_at=at, at_work=False, failures=self.of(name).failures + 1, problem=problem)

    def record_cycle(self, name: str, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Note the last cycle of a task."""
        self._cycles[name] = cycle

    def ending(self, word: str) -> None:
        """Note that the daemon is ``stopping``, or ``stopped``."""
        self._ending = word

    def of(self, name: str) -> TaskHealth:
        """Return how one task fares."""
        with self._lock:
            return self._tasks.get(name, TaskHealth())

    def reasons(self) -> list[str]:
        """Say why the daemon is not well; nothing if it is."""
        if self._ending:
            return [f"the daemon is {self._ending}"]
        return [reason for name in self._lately_s if (reason := self._complaint(name))]

    def report(self) -> dict[str, Any]:
        """Return everything as plain values, as ``/healthz`` and ``health.json`` show it."""
        reasons = self.reasons()
        with self._lock:
            tasks = {name: _plain(asdict(task)) for name, task in sorted(self._tasks.items())}
        return {
            "healthy": not reasons,
            "state": self._state(reasons),
            "reasons": reasons,
            "note": self.note,
            "version": __version__,
            "pid": os.getpid(),
            **_plain({"started_at": self._started_at, "written_at": self._times.now()}),
            "tasks": tasks,
            "cycle": self._report_cycle("cycle", OF_JOBS),
            "nodes": self._report_cycle("nodes", OF_NODES),
        }

    def _report_cycle(self, name: str, fields: tuple[str, ...]) -> dict[str, Any] | None:
        if (cycle := self._cycles.get(name)) is None:
            return None
        return {"line": cycle.line(), **_plain({field: getattr(cycle, field) for field in OF_CYCLES + fields})}

    def _state(self, reasons: list[str]) -> str:
        if self._ending:
            return self._ending
        if reasons:
            return "failing" if any(task.failures for task in self._tasks.values()) else "waiting"
        if self.stands_by:
            return "standby"
        return "suspended" if any(cycle.suspended for cycle in list(self._cycles.values())) else "at work"

    def _complaint(self, name: str) -> str:
        task = self.of(name)
        age_s = (self._times.now() - (task.succeeded_at or self._started_at)).total_seconds()
        if task.failures >= FAILURES:
            return f"{name} failed {task.failures} times in a row: {task.problem}"
        if task.succeeded_at is not None and age_s <= self._lately_s[name]:
            return ""
        why = task.problem or ("at work" if task.at_work else "")
        return f"{name} has not succeeded for {age_s:.0f} s" + (f": {why}" if why else "")

    def _change(self, name: str, **changes: Any) -> None:
        with self._lock:
            self._tasks[name] = replace(self._tasks.get(name, TaskHealth()), **changes)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that JSON has: times to the second, seconds to the millisecond."""
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: str(it) if isinstance(it, str) else it for key, it in value.items()}
    return list(value) if isinstance(value, tuple) else value
