"""A training pool in one allocation, as services see it.

Which trials train as one stack is decided here, because the pool itself and its services use the same rule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any


class TrialState(StrEnum):
    """Where a trial is between its start and its result."""

    WAITING = "waiting"
    """Not started, or to be started again."""
    RUNNING = "running"
    PAUSED = "paused"
    """Stopped at a checkpoint, holding nothing."""
    FINISHED = "finished"
    FAILED = "failed"
    """Its program ended with an error as often as it may."""
    PRUNED = "pruned"
    """Stopped early, since the search gave it up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or the CPU, on which trials run.

    Attributes
    ----------
    name : str
        Unique in the pool, such as ``gpu:0``, ``cpu:0`` or ``node2/gpu:1``.
    kind : str
        ``gpu`` or ``cpu``.
    model : str
        What the vendor calls it. Empty where unknown.
    memory_mib : float
        Memory that trials may share, MiB.
    slots : int
        Most trials at the same time.
    """

    name: str
    kind: str
    memory_mib: float
    model: str = ""
    slots: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialForecast:
    """Forecast of a trial before it runs.

    None stands for what is not known.

    Attributes
    ----------
    memory_p50_mib, memory_p95_mib : float, optional
        Peak device memory, MiB.
    memory_most_mib : float, optional
        Peak that hardly a trial of the family exceeds, as :func:`peak_hardly_exceeded` tells it, MiB.
    seconds_p50, seconds_p90 : float, optional
        Time from start to end alone on a device, s.
    share : float, optional
        Share of the device's time that it needs when alone, 0 to 1.
    steps_per_s : float, optional
        Speed alone on a device.
    """

    memory_p50_mib: float | None = None
    memory_p95_mib: float | None = None
    memory_most_mib: float | None = None
    seconds_p50: float | None = None
    seconds_p90: float | None = None
    share: float | None = None
    steps_per_s: float | None = None


FEWEST_PEAKS = 8
"""Trials of a family that tell how alike their peaks are."""
PEAKS_WEIGHT = 12
"""Number of trials of which the next one is expected as far above the largest as that is above the median, at most.

With 12 about one trial in a hundred needs more, where the logarithms of peaks are normal.
"""


def peak_hardly_exceeded(peaks_mib: Sequence[float]) -> float | None:
    """Return a peak that hardly another trial of a family exceeds, MiB.

    Of twelve it is as far above the largest as that is above the median. The more were seen, the closer it is, but at
    least 1 % above. None of fewer than eight. Trials that run the same program at the same shapes need the same
    memory, often to the byte.
    """
    if len(peaks_mib) < FEWEST_PEAKS:
        return None
    largest = max(peaks_mib)
    return float(largest * max(1.01, (largest / median(peaks_mib)) ** (PEAKS_WEIGHT / len(peaks_mib))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a program with one set of parameters.

    Attributes
    ----------
    number : int
        Unique in the pool, from 0 in the order in which trials were made.
    parameters : mapping
        What the program is given.
    family : str
        Trials of one family run the same program at the same shapes, so that they are expected to behave alike.
    state : TrialState
    device : str, optional
        Name of the device on which it runs.
    started_s : float, optional
        When this attempt began, s since the epoch.
    attempts : int
        How often it was started.
    memory_limit_mib : float, optional
        What this attempt may use.
    memory_mib : float, optional
        What this attempt uses now.
    peak_memory_mib : float, optional
        The most that it was seen to use in any attempt.
    out_of_memory_mib : float, optional
        Limit at which it was killed for memory, so that it needs more than that.
    progress : float, optional
        Share that is done, 0 to 1, as it reports.
    steps_per_s : float, optional
        Speed of the last minute, as it reports.
    forecast : TrialForecast
    fusible : str
        Trials with the same text may be trained as one stack in one process. Empty where this one has its own process.
    most_fused : int
        Most trials of such a process.
    process : int, optional
        Process of a running trial that may be fused. All trials in one process share its number and memory limit.
    """

    number: int
    parameters: Mapping[str, Any]
    family: str = ""
    state: TrialState = TrialState.WAITING
    device: str | None = None
    started_s: float | None = None
    attempts: int = 0
    memory_limit_mib: float | None = None
    memory_mib: float | None = None
    peak_memory_mib: float | None = None
    out_of_memory_mib: float | None = None
    progress: float | None = None
    steps_per_s: float | None = None
    forecast: TrialForecast = field(default_factory=TrialForecast)
    fusible: str = ""
    most_fused: int = 1
    process: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpeed:
    """Speed of a trial beside others, as measured in this pool.

    Attributes
    ----------
    family : str
        Family of the trial.
    beside : tuple of str
        Families of the others on the device, sorted. Empty where it is alone. Of those in its own process,
        :func:`~helios.model.pools.fused_with`.
    steps_per_s : float
    samples : int
        Trials that it was measured on.
    """

    family: str
    beside: tuple[str, ...]
    steps_per_s: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSpeed:
    """Speed of fused trials, measured before the first step.

    Attributes
    ----------
    fusible : str
        Group of its trials, as in :class:`Trial`.
    models : int
        How many it trains.
    together_s : float
        Time in which all make some steps, s.
    alone_s : float
        Time in which one alone makes as many, s.
    """

    fusible: str
    models: int
    together_s: float
    alone_s: float

    @property
    def gain(self) -> float:
        """Work in a second, over that of one alone."""
        return self.models * self.alone_s / max(1e-9, self.together_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """A pool at one moment.

    Attributes
    ----------
    now_s : float
        s since the epoch.
    ends_s : float, optional
        When the allocation ends. None where it does not.
    devices : tuple of Device
    trials : tuple of Trial
        All that have not ended, by number, and those that ended since the last snapshot.
    speeds : tuple of SharedSpeed
        Measured so far.
    fused : tuple of FusedSpeed
        Measured so far.
    """

    now_s: float
    ends_s: float | None = None
    devices: tuple[Device, ...]
    trials: tuple[Trial, ...]
    speeds: tuple[SharedSpeed, ...] = ()
    fused: tuple[FusedSpeed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """Speed of an attempt in one group.

    Attributes
    ----------
    beside : tuple of str
        Families of the others on the device, sorted. Empty where it is alone.
    steps_per_s : float
    seconds : float
        How long it was measured, s.
    """

    beside: tuple[str, ...]
    steps_per_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """A finished attempt of a trial, with its use.

    Attributes
    ----------
    pool : str
        Identity of the pool.
    number, attempt : int
        Number of the trial in its pool, and of the attempt, from 1.
    program, family : str
        What runs, and which trials are expected to behave alike.
    parameters : mapping
    device_kind, device_model : str
        Kind and model, as in :class:`Device`.
    outcome : str
        ``finished``, ``pruned``, ``failed``, ``out_of_memory``, ``killed``, ``paused`` or ``interrupted``.
    started_s, seconds : float
        When it began, s since the epoch, and how long it took, s.
    start_up_s : float, optional
        Until its first report, s.
    progress : float, optional
        Share of the trial that was done at its end.
    peak_memory_mib, memory_limit_mib : float, optional
    utilization : float, optional
        Mean share of the device's time that it used; of a shared GPU that of all on it.
    energy_j : float, optional
        Energy of the device, in equal parts for those on it, J.
    speeds : tuple of MeasuredSpeed
    metrics : mapping
        Last values that it reported.
    """

    pool: str
    number: int
    attempt: int
    program: str
    family: str
    parameters: Mapping[str, Any]
    device_kind: str
    device_model: str = ""
    outcome: str
    started_s: float
    seconds: float
    start_up_s: float | None = None
    progress: float | None = None
    peak_memory_mib: float | None = None
    memory_limit_mib: float | None = None
    utilization: float | None = None
    energy_j: float | None = None
    speeds: tuple[MeasuredSpeed, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended_s(self) -> float:
        """When it ended, s since the epoch."""
        return self.started_s + self.seconds


Forecast = Callable[[Sequence[Trial], Sequence[TrialRun]], Sequence[TrialForecast]]
"""Tells what is expected of trials from what ran in the pool so far.

Runs that go on have the outcome ``running``.
"""


# What a service may ask of a pool. Each action has a reason for a person.


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrial:
    """Start a waiting or paused trial on a device.

    Attributes
    ----------
    memory_limit_mib : float, optional
        What it may use. None for all that the device has.
    into : int, optional
        Trial whose process is to train this one as well: one that runs, or that an action before this one starts. The
        process keeps its memory limit.
    """

    number: int
    device: str
    memory_limit_mib: float | None
    reason: str
    into: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTrial:
    """Pause a running trial at its next checkpoint."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTrial:
    """End a trial for good, as pruned."""

    number: int
    reason: str


PoolAction = StartTrial | PauseTrial | StopTrial


_FUSED = "{others} more in its process"


def fused_with(others: int) -> str:
    """Return the family name for trials of the same process."""
    return _FUSED.format(others=others)


def count_fused(beside: Iterable[str]) -> int:
    """Return how many trials shared a process."""
    ends = _FUSED.format(others="")
    return 1 + sum(int(each.removesuffix(ends)) for each in beside if each.endswith(ends))


def by_process(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return the running trials, those of one process together."""
    found: dict[tuple[str, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.state is TrialState.RUNNING:
            key = ("own", trial.number) if trial.process is None else ("fused", trial.process)
            found[key].append(trial)
    return list(found.values())


def fuse(snapshot: PoolSnapshot, free: Mapping[str, int]) -> list[StartTrial]:
    """Return which trials that may be fused start, and in which process.

    A part is all trials that may train in one process. Its trials are spread evenly over its processes, and over new
    ones on free slots; a slot goes to the part whose processes have most to do. So a trial takes the place of one that
    has left its process.

    Parameters
    ----------
    free : mapping
        Slots that may be taken of each device.
    """
    waiting: dict[str, list[Trial]] = defaultdict(list)
    for trial in sorted(snapshot.trials, key=lambda trial: trial.number):
        if trial.fusible and trial.state in {TrialState.WAITING, TrialState.PAUSED}:
            waiting[trial.fusible].append(trial)
    running: dict[str, list[list[Trial]]] = defaultdict(list)
    for process in by_process(snapshot.trials):
        if process[0].process is not None:
            running[process[0].fusible].append(process)
    slots = sorted(
        (device for device in snapshot.devices for _ in range(free.get(device.name, 0))), key=lambda d: d.name
    )
    slots.sort(key=lambda device: -free.get(device.name, 0) / device.slots)
    new = dict.fromkeys(waiting, 0)

    def load(part: str) -> float:
        """Return the trials of each process of a part."""
        trials, count = len(waiting[part]) + sum(map(len, running[part])), len(running[part]) + new[part]
        return trials / count if count else math.inf

    for _ in slots:
        parts = [part for part in waiting if new[part] < len(waiting[part]) and load(part) > 1]
        if not parts:
            break
        new[max(parts, key=lambda part: (load(part), len(waiting[part])))] += 1
    actions: list[StartTrial] = []
    for part, trials in waiting.items():
        there, left = sorted(running[part], key=len), list(trials)
        if not there and not new[part]:
            continue
        size = min(trials[0].most_fused, math.ceil((len(left) + sum(map(len, there))) / (len(there) + new[part])))
        for process in there:
            lead = process[0]
            for _ in range(min(len(left), size - len(process))):
                reason = f"trained with trial {lead.number}"
                actions.append(_start(left.pop(0), str(lead.device), None, lead.number, reason))
        for _ in range(min(new[part], len(left))):
            device, count = slots.pop(0), min(size, len(left))
            lead = left.pop(0)
            limit = device.memory_mib / device.slots
            reason = f"{count} trials in one process" if count > 1 else "a slot is free"
            actions.append(_start(lead, device.name, limit, None, reason))
            actions += [_start(left.pop(0), device.name, limit, lead.number, reason) for _ in range(count - 1)]
            if not left:
                break
    return actions


def _start(trial: Trial, device: str, limit_mib: float | None, into: int | None, reason: str) -> StartTrial:
    return StartTrial(number=trial.number, device=device, memory_limit_mib=limit_mib, reason=reason, into=into)
