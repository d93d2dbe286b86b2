"""Trials of a pool that run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from helios.training.model import Device, Trial, fused_with, node_name
from helios.training.pool.clock import steady_s
from helios.training.pool.curve import Curve
from helios.training.pool.fusing import FusedProcess
from helios.training.pool.reports import TaskRequest, write_request

LEAST_SHARE = 0.01
"""Smallest share, so that the turn of every trial comes within a minute."""


def count_parts(devices: Sequence[Device]) -> int:
    """Return of how many devices the memory is measured and limited as one."""
    return len(devices) if devices[0].kind == "cpu" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingResize:
    """A change of a trial's devices that is under way.

    Attributes
    ----------
    number : int
        That of the request.
    devices, before : tuple of Device
        What it is to have, those that it keeps first, and what it had.
    by_s : float
        When it is given up, s since the epoch.
    in_place : bool
        Whether the program changes while it runs. Else it is started again.
    """

    number: int
    devices: tuple[Device, ...]
    before: tuple[Device, ...]
    by_s: float
    in_place: bool
    reason: str


@dataclass(slots=True)
class Attempt:
    """A trial that runs."""

    trial: Trial
    devices: tuple[Device, ...]
    limit_mib: float
    folder: Path
    began_s: float
    nodes: tuple[str, ...] = ("",)
    """Names of the nodes on which it has a process."""
    ends: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """How its processes ended, by their nodes."""
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    value: float | None = None
    diverged: set[str] = field(default_factory=set)
    """Metrics that it is compared by whose last value was not finite."""
    has_reported: bool = False
    asked: TaskRequest | None = None
    answered: TaskRequest | None = None
    terminate_at_s: float = inf
    terminated: bool = False
    stopped: bool = False
    """Whether it was asked to stop for good."""
    finished: bool = False
    """Whether it then ends as finished, with its last value, and not as pruned."""
    why: str = ""
    """Why it was asked to pause or stop."""
    beside: tuple[str, ...] = ()
    beside_since: tuple[float, int, float] | None = None
    """When the measurement began, the step then, and how long it had run."""
    first_report_s: float | None = None
    speeds: dict[tuple[str, ...], tuple[float, float]] = field(default_factory=dict)
    """Steps a second in each group, and how long that was measured, s."""
    share: float | None = None
    """What a service gave it of its device's time."""
    held_s: float = 0.0
    """How long it was held back since it was the turn of other trials, s."""
    held_read_s: float = 0.0
    """When its agent told that, s since the epoch."""
    held_part: float = 0.0
    """Part of the time before in which it was held back."""
    process: FusedProcess | None = None
    ended: Mapping[str, Any] = field(default_factory=dict)
    """What its process, which trains others as well, told of its end."""
    curve: Curve = field(default_factory=Curve)
    curve_from_s: float = 0.0
    """When the trial would have begun without pauses, s since the epoch."""
    read_s: float | None = None
    """When reports of this attempt were read last, s since the epoch."""
    is_elastic: bool = False
    """Whether its program has told of its size, so that it can change in place."""
    told: list[Mapping[str, Any]] = field(default_factory=list)
    """What it has told of its size since that was looked at."""
    change: PendingResize | None = None
    missed: int | None = None
    """Number of the last change that it kept its size at; it may answer yet."""
    sized_s: float = 0.0
    """When its devices changed last, s since the epoch."""
    kept_until_s: float = 0.0
    """Until when it is not asked to change its devices, s since the epoch."""
    restarted_s: float | None = None
    """When it was started again on other devices, until it reports, s since the epoch."""

    @property
    def log(self) -> Path:
        """File to which its process writes."""
        return (self.folder if self.process is None else self.process.folder) / "log.txt"

    @property
    def parts(self) -> int:
        """Number of its devices that share one memory, as CPUs do."""
        return count_parts(self.devices)

    def on_node(self, node: str) -> list[Device]:
        """Return its devices on a node."""
        return [each for each in self.devices if node_name(each.name) == node]

    @property
    def is_asked_to_end(self) -> bool:
        """Whether it was asked to pause or stop, or is being ended."""
        return self.terminated or self.asked in {TaskRequest.PAUSE, TaskRequest.STOP}

    @property
    def seen(self) -> Trial:
        """The trial as services see it now."""
        elastic = self.trial.elastic
        if elastic is not None:
            gpu_s = len(self.trial.devices) * (steady_s() - self.sized_s)
            kept_until_s = inf if self.change is not None or self.is_asked_to_end else self.kept_until_s
            elastic = replace(elastic, gpu_s=elastic.gpu_s + gpu_s, kept_until_s=kept_until_s)
        return replace(self.trial, curve=self.curve.points, elastic=elastic)

    @property
    def process_number(self) -> int:
        """Number by which the agent knows its process."""
        return self.trial.number if self.process is None else self.process.number

    def ran_s(self, now_s: float) -> float:
        """Return how long it was not held back, as known, s."""
        return now_s - self.began_s - self.held_s - self.held_part * max(0.0, now_s - self.held_read_s)

    def request(self, request: TaskRequest, *, by_s: float | None = None) -> None:
        """Ask the program for something.

        Parameters
        ----------
        by_s : float, optional
            When it is ended if it has not ended by itself, s since the epoch.
        """
        self.asked = request
        with suppress(OSError):  # a full disk: the signal comes anyway
            write_request(self.folder / "requests", request, by_s=by_s and round(by_s, 3))

    def stop(self, grace_s: float, *, why: str = "", finished: bool = False) -> None:
        """Ask the program to stop for good, before it is ended.

        Parameters
        ----------
        why : str
            Why it ends.
        finished : bool
            Whether it ends as finished, with its last value, and not as pruned.
        """
        self.stopped, self.finished, self.why = True, finished, why
        if self.process is None:  # one that trains others as well reads requests
            self.terminate_at_s = min(self.terminate_at_s, steady_s() + grace_s)
        self.request(TaskRequest.STOP, by_s=self.terminate_at_s if self.terminate_at_s < inf else None)


class Attempts:
    """Holds what runs on the devices of a pool.

    Attributes
    ----------
    running : dict of int to Attempt
        By the numbers of trials.
    processes : dict of int to FusedProcess
        Those that train several trials, by their own numbers.
    stop_reason : str
        Why all are to end. Empty while trials may start.
    """

    def __init__(self) -> None:
        self.running: dict[int, Attempt] = {}
        self.processes: dict[int, FusedProcess] = {}
        self.stop_reason = ""
        self._held_s: dict[int, float] = {}

    def on(self, device: Device) -> list[Attempt]:
        """Return what runs on a device."""
        return [attempt for attempt in self.running.values() if device in attempt.devices]

    def add(self, attempt: Attempt) -> None:
        """Add a trial that starts."""
        self.running[attempt.trial.number] = attempt
        self.change_neighbours(attempt.devices)

    def remove(self, attempt: Attempt) -> None:
        """Remove a trial that has ended."""
        del self.running[attempt.trial.number]
        if attempt.process is not None:
            attempt.process.trials.discard(attempt.trial.number)
        self.change_neighbours(attempt.devices)

    def take_memory(self, mib: Mapping[str, float], node: str) -> None:
        """Take over how much memory each process of a node has."""
        for number, total in mib.items():
            process = self.processes.get(int(number))
            numbers = [int(number)] if process is None else process.trials
            for attempt in [self.running[each] for each in numbers if each in self.running]:
                share = (
                    total / len(numbers) / count_parts(attempt.on_node(node) or attempt.devices)
                )  # the trials of a process in equal parts
                peak = max(share, attempt.trial.peak_memory_mib or 0.0)
                attempt.trial = replace(attempt.trial, memory_mib=share, peak_memory_mib=peak)

    def take_held(self, held_s: Mapping[str, float]) -> None:
        """Take over how long each process was held back, s."""
        now_s = steady_s()
        for key, total_s in held_s.items():
            number = int(key)
            before_s, self._held_s[number] = self._held_s.get(number, 0.0), total_s
            more_s = total_s - before_s if total_s >= before_s else total_s  # another attempt
            process = self.processes.get(number)
            for each in [number] if process is None else process.trials:
                if (attempt := self.running.get(each)) is not None:
                    passed_s = now_s - (attempt.held_read_s or attempt.began_s)
                    attempt.held_part = min(1.0, more_s / max(1e-3, passed_s))
                    attempt.held_s += more_s
                    attempt.held_read_s = now_s

    def divide(self, device: Device) -> dict[int, float]:
        """Return the share of each process of a device, which sum to 1.

        Nothing where no trial has a share. Trials on several devices, and those that were asked to pause or stop and
        need their time for that, have none and run on beside the others.
        """
        given: dict[int, float | None] = {}
        for attempt in self.on(device):
            if len(attempt.devices) == 1 and not attempt.is_asked_to_end:
                given[attempt.process_number] = attempt.share or given.get(attempt.process_number)
        return divide_time(given)

    def change_neighbours(self, devices: Iterable[Device]) -> None:
        """Restart the measurement after a change of trials."""
        for attempt in {each.trial.number: each for device in devices for each in self.on(device)}.values():
            neighbours = {each.trial.number: each for device in attempt.devices for each in self.on(device)}.values()
            others = [each for each in neighbours if each.process is None or each.process is not attempt.process]
            beside = [other.trial.family for other in others if other is not attempt]
            if attempt.process is not None and len(attempt.process.trials) > 1:
                beside.append(fused_with(len(attempt.process.trials) - 1))
            attempt.beside = tuple(sorted(beside))
            attempt.beside_since = None


def divide_time(given: Mapping[int, float | None]) -> dict[int, float]:
    """Return shares that sum to 1.

    Those without one divide equally what the others leave. All have a hundredth at least.
    """
    if all(share is None for share in given.values()):
        return {}
    claimed = sum(share for share in given.values() if share is not None)
    without = sum(share is None for share in given.values())
    rest = max(0.0, 1.0 - claimed) / max(1, without)
    shares = {number: max(LEAST_SHARE, rest if share is None else share) for number, share in given.items()}
    return {number: share / sum(shares.values()) for number, share in shares.items()}
