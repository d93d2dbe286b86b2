"""Toys for the daemon: clocks that are set by hand, tasks that do as they are told."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from helios.app.controller_state import CycleSummary, DaemonOperations
from helios.app.explain_socket import JobAnswer
from helios.daemon.health import TaskTimes
from tests.waiting import TEST_TIMEOUT_S

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PATIENCE_S = TEST_TIMEOUT_S
"""How long a test waits for a thread that does its work in milliseconds."""


def a_cycle(**changes: Any) -> CycleSummary:
    facts: dict[str, Any] = {"pending": 3, "running": 2, "acted": 0, "seconds": 0.5}
    return CycleSummary(**{**facts, **changes})


class HandSet:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def move(self, seconds: float) -> None:
        self.passed_s += seconds

    @property
    def times(self) -> TaskTimes:
        return TaskTimes(now=lambda: NOON + timedelta(seconds=self.passed_s), monotonic_s=lambda: 1000 + self.passed_s)


@dataclass
class ToyChores:
    """Tasks that are written down when called, and raise or wait where a test says so."""

    called: list[str] = field(default_factory=list)
    raises: dict[str, Exception] = field(default_factory=dict)
    does: dict[str, Callable[[], None]] = field(default_factory=dict)
    cycle: CycleSummary = field(default_factory=a_cycle)

    def tasks(self) -> DaemonOperations:
        return DaemonOperations(
            ingest=lambda: self._do("ingest"),
            cycle=self._cycle,
            hook=lambda: self._do("hook"),
            nightly=lambda: self._do("nightly"),
            release=lambda why: self._do("release", f"release {why}"),
            explain=self._explain,
        )

    def count(self, name: str) -> int:
        return sum(call.split()[0] == name for call in self.called)

    def _cycle(self) -> CycleSummary:
        self._do("cycle")
        return self.cycle

    def _explain(self, job_id: str, cluster: str | None) -> JobAnswer:
        self._do("explain", f"explain {job_id} of {cluster}")
        return JobAnswer(values={}, lines=("It waits.",))

    def _do(self, name: str, call: str = "") -> str:
        self.called.append(call or name)
        if name in self.does:
            self.does[name]()
        if name in self.raises:
            raise self.raises[name]
        return f"{name} done"


class Blocked:
    """Work that is entered and stays until it is let go."""

    def __init__(self) -> None:
        self.enter = threading.Event()
        self._go = threading.Event()
        self.left = threading.Event()

    def __call__(self) -> None:
        self.enter.set()
        assert self._go.wait(PATIENCE_S)
        self.left.set()

    def let_go(self) -> None:
        self._go.set()


def eventually(holds: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    """Ask again and again until it holds; False: it did not in time."""
    pause = threading.Event()
    for _ in range(int(within_s / 0.01)):
        if holds():
            return True
        pause.wait(0.01)
    return holds()
