"""Health of the daemon and of each of its tasks."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from helios import __version__
from helios.app.controller_state import now_utc
from helios.app.cycle_summary import CycleSummary, NodeCycleSummary
from helios.private_files import make_folder, write_private

NAME = "health.json"
FAILURES = 3
"""Failures in a row after which the daemon is unhealthy, however recent the last success is."""
OF_CYCLES = ("suspended", "seconds", "modes", "breaker", "lease_held", "acted")
OF_JOBS = ("pending", "running", "predictions", "history_read_at", "model_trained_at")
OF_NODES = ("nodes", "by_helios", "protected", "quarantined")
"""Fields in the report of any cycle, of one on jobs and of one on nodes."""

_log = logging.getLogger("helios.daemon.health")


class HealthFile:
    """The file ``health.json`` in the state folder, for readers without a port.

    It is replaced atomically.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._problem = ""
        self._one_at_a_time = Lock()

    def write(self, report: Callable[[], Mapping[str, Any]]) -> None:
        """Replace the file by the content of ``report``.

        A failure is logged once, and never raised.
        """
        with self._one_at_a_time:  # the report is made under the lock, so that "stopping" never overwrites "stopped"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """Clocks of the tasks, which tests replace.

    Attributes
    ----------
    now : callable
        Returns the time, aware UTC, for people. It may jump.
    monotonic_s : callable
        Returns monotonic time, s, for lengths of time. Its zero has no meaning.
    """

    now: Callable[[], datetime] = now_utc
    monotonic_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHealth:
    """Recent results of one task.

    Attributes
    ----------
    began_at, succeeded_at, failed_at : datetime, optional
        Last time of each; None where it has not happened since the start.
    at_work : bool
        Whether it runs now.
    line : str
        Its last message.
    failures : int
        Number of failures in a row.
    problem : str
        The last error; empty after a success.
    """

    began_at: datetime | None = None
    succeeded_at: datetime | None = None
    failed_at: datetime | None = None
    at_work: bool = False
    line: str = ""
    failures: int = 0
    problem: str = ""


class Health:
    """Health of the daemon.

    The tasks' threads write it, and other threads read it.

    Parameters
    ----------
    longest_silence_s : mapping of str to float
        Tasks that must have succeeded for the daemon to be healthy, and the longest time since then, s.
    times : TaskTimes
        The clocks.
    """

    def __init__(self, *, longest_silence_s: Mapping[str, float], times: TaskTimes) -> None:
        self._longest_silence_s = dict(longest_silence_s)
        self._times = times
        self._lock = Lock()
        self._started_at = times.now()
        self._tasks = {name: TaskHealth() for name in longest_silence_s}
        self._cycles: dict[str, CycleSummary | NodeCycleSummary] = {}
        self._ending = ""
        self.note = ""
        """A remark for a person that does not affect the health, or an empty text."""

    @property
    def is_standby(self) -> bool:
        """Whether this process holds no lease, by its last cycles.

        Another Helios then writes to the cluster. False before the first cycle.
        """
        cycles = list(self._cycles.values())
        return bool(cycles) and not any(cycle.lease_held for cycle in cycles)

    def record_begin(self, name: str, *, at: datetime) -> None:
        """Record that a task began."""
        self._update(name, began_at=at, at_work=True)

    def record_success(self, name: str, *, at: datetime, line: str) -> None:
        """Record that a task succeeded.

        With an empty ``line`` its previous message stays.
        """
        said = {"line": line} if line else {}
        self._update(name, succeeded_at=at, at_work=False, failures=0, problem="", **said)

    def record_failure(self, name: str, *, at: datetime, problem: str) -> None:
        """Record that a task failed."""
        self._update(name, failed_at=at, at_work=False, failures=self.of(name).failures + 1, problem=problem)

    def record_cycle(self, name: str, cycle: CycleSummary | NodeCycleSummary) -> None:
        """Record the last cycle of a task."""
        self._cycles[name] = cycle

    def record_ending(self, word: str) -> None:
        """Record that the daemon is ``stopping``, or ``stopped``."""
        self._ending = word

    def of(self, name: str) -> TaskHealth:
        """Return the recent results of one task."""
        with self._lock:
            return self._tasks.get(name, TaskHealth())

    def reasons(self) -> list[str]:
        """Return why the daemon is not healthy, or an empty list."""
        if self._ending:
            return [f"the daemon is {self._ending}"]
        return [reason for name in self._longest_silence_s if (reason := self._task_problem(name))]

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
        if self.is_standby:
            return "standby"
        return "suspended" if any(cycle.suspended for cycle in list(self._cycles.values())) else "at work"

    def _task_problem(self, name: str) -> str:
        task = self.of(name)
        age_s = (self._times.now() - (task.succeeded_at or self._started_at)).total_seconds()
        if task.failures >= FAILURES:
            return f"{name} failed {task.failures} times in a row: {task.problem}"
        if task.succeeded_at is not None and age_s <= self._longest_silence_s[name]:
            return ""
        why = task.problem or ("at work" if task.at_work else "")
        return f"{name} has not succeeded for {age_s:.0f} s" + (f": {why}" if why else "")

    def _update(self, name: str, **changes: Any) -> None:
        with self._lock:
            self._tasks[name] = replace(self._tasks.get(name, TaskHealth()), **changes)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values that JSON supports.

    Times are rounded to seconds, numbers to three decimals.
    """
    return {name: _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: str(it) if isinstance(it, str) else it for key, it in value.items()}
    return list(value) if isinstance(value, tuple) else value
