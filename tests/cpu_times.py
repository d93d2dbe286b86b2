"""CPU seconds of the tests by folder and file, printed beside the slowest tests where ``--durations`` asks for these.

The times of pytest-xdist's workers come with their reports. Counted are a worker and all processes that it started,
but for daemons that no longer belong to it, as those of Slurm.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

DEEPEST = 3
"""Parts of a folder's name that have a row of their own: ``tests/unit/app``."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FILES = 40
"""Files that are printed: the dearest."""
BEGAN_AT = pytest.StashKey[float]()
"""CPU seconds when a test began."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Sums())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.stash[BEGAN_AT] = cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "teardown":  # the last: looking takes a fraction of a millisecond
        report.cpu_s = cpu_s() - item.stash[BEGAN_AT]
    return report


class Sums:
    """Adds up what the reports say, where they all come together."""

    def __init__(self) -> None:
        self.of_folders: Counter[str] = Counter()
        self.of_files: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, used_s = PurePosixPath(report.nodeid.partition("::")[0]), getattr(report, "cpu_s", 0.0)
        self.of_folders["/".join(file.parent.parts[:DEEPEST])] += used_s
        self.of_files[str(file)] += used_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if config.option.durations is None:
            return
        terminalreporter.section(f"CPU seconds of the {FILES} dearest files")
        for file, used_s in self.of_files.most_common(FILES):
            terminalreporter.write_line(f"{used_s:8.1f}s  {file}")
        terminalreporter.section("CPU seconds by folder")
        for folder, used_s in self.of_folders.most_common():
            terminalreporter.write_line(f"{used_s:8.1f}s  {folder}")
        terminalreporter.write_line(f"{self.of_folders.total():8.1f}s  all")


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all that it started, as far as they still belong to it."""
    times = os.times()
    return (
        times.user
        + times.system
        + times.children_user
        + times.children_system
        + sum(map(process_s, children(os.getpid())))
    )


def process_s(pid: int) -> float:
    """Return the CPU seconds of a process with its children; 0 once it has ended."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
        return sum(map(int, ticks)) / TICKS_PER_S + sum(map(process_s, children(pid)))
    except OSError:
        return 0.0


def children(pid: int) -> list[int]:
    """Return the living children of a process; none where the system does not tell."""
    try:
        return [
            int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
        ]
    except OSError:
        return []
