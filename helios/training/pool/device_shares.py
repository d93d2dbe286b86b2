"""Shares of the time of devices, as an agent carries them out."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from helios.training.pool.control_groups import WEIGHTS, cpu_groups, group_parents, remove_old_groups
from helios.training.pool.running import RunningTrial, send_line
from helios.training.pool.slices import GPU_SLICE_S, SLICE_S, TimeSlices
from helios.training.pool.warm import find_tree, hold, read_state, release

PAUSE = 100
"""Watching pauses this many times as long as it takes, so that it costs 1% of a core."""


@dataclass
class _SharedDevice:
    """A device whose trials have shares of its time.

    Attributes
    ----------
    shares : dict of int to float
        Share of each trial, by its number.
    places : int
        How many trials run at the same time.
    since_s, due_s : float
        Monotonic times of the last turn and of the next one.
    """

    slices: TimeSlices
    shares: dict[int, float] = field(default_factory=dict)
    places: int = 1
    is_gpu: bool = False
    since_s: float = field(default_factory=time.monotonic)
    due_s: float = 0.0


class DeviceShares:
    """Carries out the shares that trials have of the time of devices.

    On a CPU control groups do it by their weights, where this user may make them. Else trials run in turn, and the
    processes of the others are stopped.

    Parameters
    ----------
    prefix : str
        Begins the names of control groups, and those of agents that have ended.
    running : mapping of int to RunningTrial
        The trials of the agent, which come and go.
    find_roots : callable
        Returns the processes of a trial that are children of this one.
    """

    def __init__(
        self,
        prefix: str,
        running: Mapping[int, RunningTrial],
        find_roots: Callable[[RunningTrial], list[int]],
    ) -> None:
        self._prefix, self._running, self._find_roots = prefix, running, find_roots
        self._devices: dict[str, _SharedDevice] = {}
        for parent, _ in group_parents("cpu"):
            remove_old_groups(parent, prefix)

    @cached_property
    def _cpu_groups(self) -> tuple[Path, str] | None:
        """Where groups with CPU weights can be made, which is looked for once."""
        return cpu_groups(self._prefix)

    @property
    def due_s(self) -> float:
        """Monotonic time of the next turn on any device."""
        return min((device.due_s for device in self._devices.values()), default=math.inf)

    def divide_due(self, now: float) -> None:
        """Carry out the shares of devices whose next turn is due."""
        for device in self._devices.values():
            if device.due_s <= now:
                self._divide(device)

    def set(self, order: dict[str, Any]) -> None:
        """Divide the time of a device among its trials. Without shares all run."""
        name, shares = order["device"], {int(number): float(share) for number, share in order["shares"].items()}
        device = self._devices.setdefault(name, _SharedDevice(TimeSlices(GPU_SLICE_S if order["gpu"] else SLICE_S)))
        for number in device.shares.keys() - shares.keys():
            if (trial := self._running.get(number)) is not None:
                self.release(trial)
                self._reset_weight(trial)
        device.shares, device.due_s = shares, 0.0
        device.places, device.is_gpu = int(order["places"]), bool(order["gpu"])
        device.slices.set_shares(shares, device.places)
        if not shares:
            del self._devices[name]

    def divide_soon(self, number: int) -> None:
        """Divide the device of a trial again, which starts or ends."""
        for device in self._devices.values():
            if number in device.shares:
                device.due_s = 0.0

    def _divide(self, device: _SharedDevice) -> None:
        """Carry out the shares of a device until its next turn."""
        began_s = time.monotonic()
        trials = [trial for trial in self._running.values() if trial.number in device.shares and not trial.ended_by_us]
        if self._weigh(device, trials):
            for trial in trials:
                self.release(trial)
            device.due_s = math.inf
            return
        self._charge(device, [trial for trial in trials if trial.held is None], began_s)
        chosen = device.slices.choose(trial.number for trial in trials)
        for trial in trials:
            if trial.number not in chosen:
                self._hold(trial)
        for trial in trials:
            if trial.number in chosen:
                self.release(trial)
        cost_s = time.monotonic() - began_s
        device.since_s = began_s
        device.due_s = began_s + max(device.slices.slice_s, PAUSE * cost_s)
        if len(trials) <= device.places:
            device.due_s = math.inf

    def _charge(self, device: _SharedDevice, ran: Sequence[RunningTrial], now_s: float) -> None:
        """Charge trials for the time since the last turn.

        On a GPU they had all of it. On the CPU it is what they used, so that one that sleeps or waits keeps nobody off.
        """
        elapsed_s = now_s - device.since_s
        used_s: dict[int, float] = {}
        wanted_s: dict[int, float] = {}
        cores = len(os.sched_getaffinity(0)) / device.places
        for trial in ran:
            used_s[trial.number] = wanted_s[trial.number] = elapsed_s
            if trial.segment is None and not device.is_gpu:
                cpu_s, delay_s = trial.measure(find_tree(self._find_roots(trial)))
                used_s[trial.number] = min(elapsed_s, cpu_s / cores)
                wanted_s[trial.number] = used_s[trial.number] + delay_s
            elif trial.segment is None and read_state(trial.pid)[0] in "Tt":  # by somebody else
                used_s[trial.number] = wanted_s[trial.number] = 0.0
        device.slices.charge(elapsed_s, used_s, wanted_s)

    def _hold(self, trial: RunningTrial) -> None:
        """Stop the processes of a trial, which keep their memory."""
        if trial.held is None:
            trial.held, trial.held_since_s = set(), time.monotonic()
            if trial.segment is not None:
                send_line(trial.segment.process, {"do": "hold"})
        elif trial.pid not in trial.held or read_state(trial.pid)[0] not in "RSI":
            return
        if trial.segment is None:  # also what somebody has continued meanwhile, as Slurm does after a suspension
            trial.held |= hold(self._find_roots(trial))

    def release(self, trial: RunningTrial) -> None:
        """Continue the processes of a trial."""
        if trial.held is None:
            return
        if trial.segment is not None:
            send_line(trial.segment.process, {"do": "release"})
        release(trial.held)
        trial.held_s += time.monotonic() - trial.held_since_s
        trial.held = None

    def _weigh(self, device: _SharedDevice, trials: Sequence[RunningTrial]) -> bool:
        """Weigh the trials of a CPU, and return whether that succeeded."""
        if device.is_gpu or any(trial.segment is not None for trial in trials):
            return False
        try:
            for trial in trials:
                trial.weight_file = trial.weight_file or self._weight_file(trial)
                if trial.weight_file is None:
                    break
                usual, least, most = WEIGHTS[trial.weight_file.name]
                weight = round(usual * len(trials) * device.shares[trial.number])
                trial.weight_file.write_text(str(max(least, min(most, weight))))
            else:
                return True
        except OSError:
            pass
        for trial in trials:
            self._reset_weight(trial)
        return False

    def _weight_file(self, trial: RunningTrial) -> Path | None:
        """Return the file with a trial's CPU weight, or None.

        Where its group has none, it is moved into one that has.
        """
        if trial.group is not None and (trial.group / "cpu.weight").exists():
            return trial.group / "cpu.weight"
        if self._cpu_groups is None or (trial.group is not None and self._cpu_groups[1] == "cpu.weight"):
            return None  # it would leave the group that limits its memory
        parent, file = self._cpu_groups
        group = parent / f"{self._prefix}{os.getpid()}-{trial.number}-cpu"
        group.mkdir(exist_ok=True)
        trial.cpu_group = group
        moved: set[int] = set()
        # What is forked meanwhile is found by looking again.
        while new := set(find_tree(self._find_roots(trial))) - moved:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    (group / "cgroup.procs").write_text(str(pid))
            moved |= new
        return group / file

    def _reset_weight(self, trial: RunningTrial) -> None:
        if trial.weight_file is not None:
            with contextlib.suppress(OSError):
                trial.weight_file.write_text(str(WEIGHTS[trial.weight_file.name][0]))
            trial.weight_file = None
