"""Trials that an agent runs, in processes and containers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from helios.training.pool.processes import run_delay_s
from helios.training.pool.warm import read_state

_PLACEHOLDER = re.compile(r"\{(?:segment|limit_mib|node)\}")


@dataclass
class RunningTrial:
    """A trial and its measurements.

    Attributes
    ----------
    own : dict of str to str
        What identifies its processes in their environment.
    limit_mib, memory_mib, peak_mib : float
        Limit and use of its GPU, on the one where it uses most. Of the machine's memory where it has no GPU.
    kernel_kills, group_kills : int
        Out-of-memory kills of the machine and of the trial's control group, before it started.
    utilizations : list of float
        Samples of its GPUs' utilization.
    kill_at_s : float or None
        Monotonic time at which it is killed.
    orphans : set of int
        Process ids of its orphans, which are children of the agent.
    held : set of int or None
        Its processes that are stopped since it is another trial's turn. None while it may run.
    held_since_s, held_s : float
        Monotonic time since when it is held, and how long it was before, s.
    weight_file : Path or None
        File with its CPU weight, where weights divide the CPU.
    cpu_group : Path or None
        Control group that was made for that.
    seen : dict of int to tuple
        CPU time that each process had used, and had waited for, at the last look, s.
    ran_s : float
        Time that it had run when the energy of GPUs was measured last, s.
    """

    number: int
    own: dict[str, str]
    pid: int
    began_s: float
    limit_mib: float | None
    gpus: tuple[str, ...]
    group: Path | None
    kernel_kills: int = 0
    memory_mib: float = 0.0
    peak_mib: float = 0.0
    energy_j: float = 0.0
    utilizations: list[float] = field(default_factory=list)
    over_limit: bool = False
    ended_by_us: bool = False
    kill_at_s: float | None = None
    orphans: set[int] = field(default_factory=set)
    segment: Segment | None = None
    group_kills: int = 0
    held: set[int] | None = None
    held_since_s: float = 0.0
    held_s: float = 0.0
    weight_file: Path | None = None
    cpu_group: Path | None = None
    seen: dict[int, tuple[float, float]] = field(default_factory=dict)
    ran_s: float = 0.0

    def ran_since_s(self) -> float:
        """Return how long it ran since the last call, s."""
        before_s, self.ran_s = self.ran_s, time.monotonic() - self.began_s - self.held_for_s()
        return max(0.0, self.ran_s - before_s)

    def held_for_s(self) -> float:
        """Return how long it was held back for other trials, s."""
        return self.held_s + (0.0 if self.held is None else time.monotonic() - self.held_since_s)

    def measure(self, pids: Iterable[int]) -> tuple[float, float]:
        """Return the CPU time since the last call.

        It is what its processes used, and what one of them had to wait for, s. Where weights divide the CPU, the
        latter is time that it was held back.
        """
        now = {pid: (read_state(pid)[1], run_delay_s(pid)) for pid in pids}
        before, self.seen = self.seen, now or self.seen
        cpu_s = sum(max(0.0, used - before.get(pid, (0.0, 0.0))[0]) for pid, (used, _) in now.items())
        delay_s = max(
            (max(0.0, waited - before[pid][1]) for pid, (_, waited) in now.items() if pid in before), default=0.0
        )
        if self.weight_file is not None:
            self.held_s += delay_s
        return cpu_s, delay_s


@dataclass
class WarmProcess:
    """A process that has done the imports of a sweep's trials."""

    process: subprocess.Popen[bytes] | None = None
    failed: bool = False
    partial_line: bytes = b""


@dataclass
class Segment:
    """A container in which trials run one after another.

    Attributes
    ----------
    remove : list of str
        Command that removes the container.
    root_file : Path or None
        File for the process id of the runtime that runs the container, where that is no child of this process.
    trial : RunningTrial or None
        None while it is free.
    """

    process: subprocess.Popen[bytes]
    pool: str
    limit_mib: float | None
    group: Path | None
    remove: list[str]
    root_file: Path | None
    trial: RunningTrial | None = None
    partial_line: bytes = b""
    killed: bool = False

    def roots(self) -> list[psutil.Process]:
        """Return the root processes of everything in it."""
        pids = [self.process.pid]
        if self.root_file is not None:
            with contextlib.suppress(OSError, ValueError):
                pids.append(int(self.root_file.read_text()))
        roots = []
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                roots.append(psutil.Process(pid))
        return roots


def send_line(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> bool:
    """Send a message to a process, and return whether it exists."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def fill_placeholders(word: str, *, segment: str, limit_mib: float | None) -> str:
    """Return a word of a container runtime's command with its placeholders filled."""
    values = {
        "{segment}": segment,
        "{limit_mib}": str(int(limit_mib or 0)),
        "{node}": os.environ.get("SLURMD_NODENAME", ""),
    }
    return _PLACEHOLDER.sub(lambda match: values[match[0]], word)
