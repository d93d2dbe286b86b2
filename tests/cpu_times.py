"""CPU seconds of the tests by folder, printed beside the slowest tests where ``--durations`` asks for these.

The times of pytest-xdist's workers come with their reports. Counted are a test's own process and those it waited for:
daemons that go on, and work that a fixture of several tests does, stand where they end or begin.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

DEEPEST = 3
"""Parts of a folder's name that have a row of their own: ``tests/unit/app``."""
UNTIL_NOW = pytest.StashKey[float]()
"""CPU seconds until the phase of a test that comes next."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sums())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.stash[UNTIL_NOW] = cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    now = cpu_s()
    report.cpu_s = now - item.stash[UNTIL_NOW]
    item.stash[UNTIL_NOW] = now
    return report


class Sums:
    """Adds up what the reports say, where they all come together."""

    def __init__(self) -> None:
        self.of_folders: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        parts = PurePosixPath(report.nodeid.partition("::")[0]).parent.parts
        self.of_folders["/".join(parts[:DEEPEST])] += getattr(report, "cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if config.option.durations is None:
            return
        terminalreporter.section("CPU seconds by folder")
        for folder, used_s in self.of_folders.most_common():
            terminalreporter.write_line(f"{used_s:8.1f}s  {folder}")
        terminalreporter.write_line(f"{self.of_folders.total():8.1f}s  all")


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
