"""Control groups in which this user may run trials."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

WEIGHTS = {"cpu.weight": (100, 1, 10_000), "cpu.shares": (1_024, 2, 262_144)}
"""Usual, smallest and largest CPU weight of a control group of version 2 and 1, by the file that holds it."""
MIB = 2.0**20


@dataclass(frozen=True)
class ControlGroups:
    """Folder in which this user can make control groups.

    The kernel enforces their memory limits.

    Attributes
    ----------
    parent : Path
    limit : str
        Name of the file with the limit.
    events : str
        Name of the file that counts kills.
    """

    parent: Path
    limit: str
    events: str

    def make(self, name: str, limit_mib: float) -> Path:
        """Make a group with a limit."""
        group = self.parent / name
        group.mkdir(exist_ok=True)
        try:
            self.set_limit(group, limit_mib)
        except OSError:
            group.rmdir()
            raise
        for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1"), ("memory.swappiness", "0")):
            with contextlib.suppress(OSError):  # depends on version and configuration of the kernel
                (group / file).write_text(value)
        return group

    def set_limit(self, group: Path, limit_mib: float) -> None:
        """Change the limit of a group."""
        (group / self.limit).write_text(str(int(limit_mib * MIB)))

    def kills(self, group: Path) -> int:
        """Return how many processes were killed at the limit."""
        return oom_kills(group / self.events)


def control_groups(prefix: str) -> ControlGroups | None:
    """Return where control groups can be made and entered, or None.

    Groups of agents that have ended are removed. Their names begin with ``prefix`` and the agent's process id.
    """
    for parent, is_v2 in group_parents("memory"):
        limit, events = ("memory.max", "memory.events") if is_v2 else ("memory.limit_in_bytes", "memory.oom_control")
        candidate = ControlGroups(parent=parent, limit=limit, events=events)
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            remove_old_groups(parent, prefix)
            if _can_enter(candidate.make(f"{prefix}{os.getpid()}-probe", 64.0)):
                return candidate
    return None


def cpu_groups(prefix: str) -> tuple[Path, str] | None:
    """Return where groups with CPU weights can be made, or None.

    With it comes the name of the file that holds the weight of a group.
    """
    for parent, is_v2 in group_parents("cpu"):
        file, group = ("cpu.weight" if is_v2 else "cpu.shares"), parent / f"{prefix}{os.getpid()}-probe"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            remove_old_groups(parent, prefix)
            group.mkdir(exist_ok=True)
            has_weight = os.access(group / file, os.W_OK)
            if _can_enter(group) and has_weight:
                return parent, file
    return None


def remove_old_groups(parent: Path, prefix: str) -> None:
    """Remove the groups of agents that have ended."""
    for old in parent.glob(f"{prefix}*"):
        agent_pid = old.name.removeprefix(prefix).partition("-")[0]
        if not (agent_pid.isdigit() and psutil.pid_exists(int(agent_pid))):
            with contextlib.suppress(OSError):
                old.rmdir()


def _can_enter(group: Path) -> bool:
    """Return whether a process can enter a group, and remove it."""
    try:
        entered = subprocess.run(["true"], preexec_fn=partial(join_group, group), check=False, capture_output=True)
    finally:
        remove_group(group)
    return entered.returncode == 0


def group_parents(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders in which this user may make groups.

    They are those of this process and above it. With each comes whether it is of version 2.
    """
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for line in own:
        _, controllers, path = line.split(":", 2)
        is_v2 = controllers == ""
        if not is_v2 and controller not in controllers.split(","):
            continue
        for mount in mounts:
            kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
            if kind != ("cgroup2" if is_v2 else "cgroup") or not (is_v2 or controller in options):
                continue
            root = Path(mount[4])
            inside = path.removeprefix(mount[3]) if mount[3] != "/" else path
            parent = root / inside.lstrip("/")
            if not is_v2:
                yield parent, False
                continue
            # A group that enables a controller for its children has no processes itself, so it is above this one.
            for ancestor in (parent, *parent.parents):
                if not ancestor.is_relative_to(root):
                    break
                with contextlib.suppress(OSError):
                    if controller in (ancestor / "cgroup.subtree_control").read_text().split():
                        yield ancestor, True


def join_group(group: Path) -> None:
    """Move this process into a group."""
    with (group / "cgroup.procs").open("w") as file:
        file.write("0")


def remove_group(group: Path) -> None:
    """Remove a group once its last process is gone."""
    for _ in range(50):  # a group is busy until its last process is gone
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def oom_kills(file: Path = Path("/proc/vmstat")) -> int:
    """Return the count of out-of-memory kills in a file of the kernel.

    By default, those of the machine.
    """
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0
