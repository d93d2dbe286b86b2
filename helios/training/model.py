"""A training pool in one allocation, as services see it.

It also decides which trials train as one stack in one process, because the pool itself and its services use this rule.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its package imports pandas, which who asks how a pool is does not need
    from helios.model.trial_runs import CurvePoint, TrialRun
    from helios.targets import Target
    from helios.training.sizes.model import ElasticState

FEWEST_PEAKS = 8
"""Fewest trials of a family that show how similar their peaks are."""
PEAKS_WEIGHT = 12
"""Number of trials for which the result of ``peak_hardly_exceeded`` is as far above the largest as that is above the
median. With 12 about one trial in a hundred needs more, if the logarithms of peaks are normal."""

NUMBERS = 1_000_000
"""Numbers of a sweep's trials: in the first sweep of a pool from 0, in the second from so many, and so on."""
ONE_DEVICE = (1,)
"""Placement on one device."""
_FUSED = "{others} more in its process"


class TrialState(StrEnum):
    """State of a trial."""

    WAITING = "waiting"
    """Not started, or to be started again."""
    RUNNING = "running"
    PAUSED = "paused"
    """Stopped at a checkpoint, holding nothing."""
    FINISHED = "finished"
    FAILED = "failed"
    """Its program ended with an error too often."""
    PRUNED = "pruned"
    """Stopped early by the search."""
    DIVERGED = "diverged"
    """Ended well, but the last value of what it is compared by is not a finite number."""


ENDED = frozenset({TrialState.FINISHED, TrialState.FAILED, TrialState.PRUNED, TrialState.DIVERGED})
"""States in which a trial is never started again."""


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
        Name by the vendor. Empty where unknown.
    memory_mib : float
        Memory that trials may share, MiB.
    slots : int
        Most trials at the same time.
    places : int
        How many trials run at the same time where they have shares of its time. On a CPU it is the cores, by those of a
        trial.
    cores : int, optional
        Cores that its trials divide, where these are not all of the machine.
    """

    name: str
    kind: str
    memory_mib: float
    model: str = ""
    slots: int = 8
    places: int = 1
    cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsToTarget:
    """Steps that a task needs from its last report to a target.

    Attributes
    ----------
    p10, p50, p90 : float
        Quantiles where it is reached, steps. 0 where it was reached.
    reached : float
        Probability that it is reached at all, 0 to 1.
    """

    p10: float
    p50: float
    p90: float
    reached: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialForecast:
    """Forecast of a trial before it runs, None where unknown.

    Attributes
    ----------
    memory_p50_mib, memory_p95_mib : float, optional
        Peak device memory, MiB.
    memory_most_mib : float, optional
        Result of :func:`peak_hardly_exceeded` for the trials of the family, MiB.
    seconds_p50, seconds_p90 : float, optional
        Time from start to end alone on a device, s.
    steps_per_s : float, optional
        Speed alone on a device.
    first, second : StepsToTarget, optional
        How much more it needs to the targets of its sweep.
    """

    memory_p50_mib: float | None = None
    memory_p95_mib: float | None = None
    memory_most_mib: float | None = None
    seconds_p50: float | None = None
    seconds_p90: float | None = None
    steps_per_s: float | None = None
    first: StepsToTarget | None = None
    second: StepsToTarget | None = None


def peak_hardly_exceeded(peaks_mib: Sequence[float]) -> float | None:
    """Return a peak that few other trials of a family exceed, MiB.

    With twelve peaks it is as far above the largest as that is above the median. With more it is closer, but at least
    1 % above. With fewer than eight it is None. Trials that run the same program at the same shapes need the same
    memory, often to the byte.
    """
    if len(peaks_mib) < FEWEST_PEAKS or not median(peaks_mib):
        return None
    largest = max(peaks_mib)
    return float(largest * max(1.01, (largest / median(peaks_mib)) ** (PEAKS_WEIGHT / len(peaks_mib))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a program with one set of parameters.

    Attributes
    ----------
    number : int
        Unique in the pool: that in its sweep, from 0 in the order in which trials were made, and a million for each
        sweep of the pool before its own.
    parameters : mapping
        Parameters of the program.
    family : str
        Trials of one family run the same program at the same shapes, so that similar needs are expected.
    state : TrialState
    devices : tuple of str
        Names of the devices on which it runs. Empty where it does not.
    started_s : float, optional
        When this attempt began, s since the epoch.
    attempts : int
        How often it was started.
    memory_limit_mib : float, optional
        Memory limit of this attempt on each of its devices.
    memory_mib : float, optional
        Memory that this attempt uses now, on the device where it uses most.
    peak_memory_mib : float, optional
        Peak of that memory over all attempts so far.
    out_of_memory_mib : float, optional
        Limit at which it was killed for memory, so that it needs more.
    progress : float, optional
        Reported share that is done, 0 to 1.
    steps_per_s : float, optional
        Reported speed of the last minute. Of a trial with a share it is that of the time in which it ran.
    forecast : TrialForecast
    fusible : str
        Trials with the same text may be trained as one stack in one process. Empty where this one has its own process.
    most_fused : int
        Most trials of such a process.
    process : int, optional
        Process of a running trial that may be fused. All trials in one process share its number and memory limit.
    weight : float
        Importance, relative to other trials, that the sweep's owner gives it.
    share : float, optional
        Part of its device's time that it is given now, above 0 and at most 1. None while nothing on the device has a
        share: then all run side by side.
    curve : tuple of CurvePoint
        The metric of the sweep by step so far, at most 200 points.
    sweep : str
        Name of its sweep. Empty where the pool has one only.
    owner : str
        Whose sweep it is.
    target : Target, optional
        Target of its sweep, which the first trial that reaches it delivers.
    targets_reached : int
        How many targets its sweep has reached: 0, 1 or 2.
    elastic : ElasticState, optional
        What is known of a trial that may change its number of devices. None where its size is fixed.
    """

    number: int
    parameters: Mapping[str, Any]
    family: str = ""
    state: TrialState = TrialState.WAITING
    devices: tuple[str, ...] = ()
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
    weight: float = 1.0
    share: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    sweep: str = ""
    owner: str = ""
    target: Target | None = None
    targets_reached: int = 0
    elastic: ElasticState | None = None

    @property
    def label(self) -> str:
        """Its number, behind the sweep's name where there are several sweeps."""
        return f"{self.sweep}:{self.number % NUMBERS}" if self.sweep else str(self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpeed:
    """Speed of a trial beside others, as measured in this pool.

    Attributes
    ----------
    family : str
        Family of the trial.
    beside : tuple of str
        Families of the others on its devices, sorted. Empty where it is alone. For trials in its own process, the
        result of :func:`~helios.training.model.fused_with`.
    steps_per_s : float
    samples : int
        Number of trials that were measured.
    placement : tuple of int
        Result of :func:`placement` for its devices.
    """

    family: str
    beside: tuple[str, ...]
    steps_per_s: float
    samples: int
    placement: tuple[int, ...] = ONE_DEVICE


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
        """Work per second, relative to that of one trial alone."""
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


Forecast = Callable[[Sequence[Trial], "Sequence[TrialRun]"], Sequence[TrialForecast]]
"""Function that forecasts trials from the runs of the pool so far.

Runs that have not ended have the outcome ``running``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrial:
    """Start a waiting or paused trial.

    Attributes
    ----------
    devices : tuple of str
        Devices of one node, each of which must have a slot for it.
    memory_limit_mib : float, optional
        Memory limit on each device. None for all memory of the device.
    into : int, optional
        Trial whose process is to train this one as well. It runs, or an earlier action of the same list starts it. The
        process keeps its memory limit.
    """

    number: int
    devices: tuple[str, ...]
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
    """End a trial for good.

    Attributes
    ----------
    finished : bool
        Whether it ends as finished, with the last value that it reported. By default it ends as pruned.
    """

    number: int
    reason: str
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTrial:
    """Give a running trial a share of its device's time.

    Shares hold while at least one trial of the device has one. The trials without one then divide the rest equally.
    Shares that sum to more than what is there are scaled down, and time that nobody is given, or that a trial cannot
    use, goes to the others. Memory stays with every trial. A share of a fused trial is that of its process.

    Attributes
    ----------
    share : float, optional
        Fraction of the time in which the trial has the device for itself, above 0 and at most 1. None takes the
        trial's share back.
    """

    number: int
    share: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeTrial:
    """Give a running trial that is elastic other devices.

    Where it cannot change in place, it is paused at a checkpoint and started again on them.

    Attributes
    ----------
    devices : tuple of str
        All that it has from now on. At least one.
    """

    number: int
    devices: tuple[str, ...]
    reason: str


PoolAction = StartTrial | PauseTrial | StopTrial | ShareTrial | ResizeTrial


def node_name(device: str) -> str:
    """Return the name of a device's node, empty for the coordinator's."""
    return device.rpartition("/")[0]


def placement(devices: Iterable[str]) -> tuple[int, ...]:
    """Return how many of some devices each node has, most first."""
    return tuple(sorted(Counter(map(node_name, devices)).values(), reverse=True))


def name_directions(objectives: Mapping[str, bool]) -> list[str]:
    """Return ``maximize`` or ``minimize`` for each metric."""
    return ["maximize" if maximize else "minimize" for maximize in objectives.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChoice:
    """A service for pools, and its options that differ from their defaults."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def fused_with(others: int) -> str:
    """Return the family name for trials of the same process."""
    return _FUSED.format(others=others)


def count_fused(beside: Iterable[str]) -> int:
    """Return how many trials shared a process."""
    suffix = _FUSED.format(others="")
    return 1 + sum(int(family.removesuffix(suffix)) for family in beside if family.endswith(suffix))


def by_process(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return the running trials of each process."""
    processes: dict[tuple[str, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.state is TrialState.RUNNING:
            key = ("own", trial.number) if trial.process is None else ("fused", trial.process)
            processes[key].append(trial)
    return list(processes.values())


def fuse(snapshot: PoolSnapshot, free: Mapping[str, int], *, most: int | None = None) -> list[StartTrial]:
    """Return which trials that may be fused start, and in which process.

    Trials that may be trained in one process are a group. They are spread evenly over the running processes of the
    group and over new ones on free slots. Each slot is given to the group with most trials per process. So a trial
    takes the place of one that has left its process.

    Parameters
    ----------
    free : mapping
        Number of free slots of each device.
    most : int, optional
        Most new processes.
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
        (device for device in snapshot.devices for _ in range(free.get(device.name, 0))),
        key=lambda device: (-free.get(device.name, 0) / device.slots, device.name),
    )[:most]
    n_new = _new_processes(waiting, running, len(slots))
    actions: list[StartTrial] = []
    for group, trials in waiting.items():
        actions += _start_group(trials, sorted(running[group], key=len), n_new[group], slots)
    return actions


def _new_processes(
    waiting: Mapping[str, Sequence[Trial]], running: Mapping[str, Sequence[Sequence[Trial]]], n_slots: int
) -> dict[str, int]:
    """Return the number of new processes of each group."""
    n_new = dict.fromkeys(waiting, 0)

    def trials_per_process(group: str) -> float:
        processes = running.get(group, ())
        n_trials, n_processes = len(waiting[group]) + sum(map(len, processes)), len(processes) + n_new[group]
        return n_trials / n_processes if n_processes else math.inf

    for _ in range(n_slots):
        groups = [group for group in waiting if n_new[group] < len(waiting[group]) and trials_per_process(group) > 1]
        if not groups:
            break
        n_new[max(groups, key=lambda group: (trials_per_process(group), len(waiting[group])))] += 1
    return n_new


def _start_group(
    trials: Sequence[Trial], running: Sequence[Sequence[Trial]], n_new: int, slots: list[Device]
) -> list[StartTrial]:
    """Start trials of a group in running processes, then in new ones.

    Each new process takes the first slot. Used slots are removed from ``slots``.
    """
    if not running and not n_new:
        return []
    left, actions = list(trials), list[StartTrial]()
    size = min(trials[0].most_fused, math.ceil((len(left) + sum(map(len, running))) / (len(running) + n_new)))
    for process in running:
        lead = process[0]
        for _ in range(min(len(left), size - len(process))):
            reason = f"trained with trial {lead.label}"
            actions.append(_start(left.pop(0), lead.devices, None, lead.number, reason))
    for _ in range(min(n_new, len(left))):
        device, count = slots.pop(0), min(size, len(left))
        lead = left.pop(0)
        limit_mib = device.memory_mib / device.slots
        reason = f"{count} trials in one process" if count > 1 else "a slot is free"
        actions.append(_start(lead, (device.name,), limit_mib, None, reason))
        actions += [_start(left.pop(0), (device.name,), limit_mib, lead.number, reason) for _ in range(count - 1)]
        if not left:
            break
    return actions


def _start(
    trial: Trial, devices: tuple[str, ...], limit_mib: float | None, into: int | None, reason: str
) -> StartTrial:
    return StartTrial(number=trial.number, devices=devices, memory_limit_mib=limit_mib, reason=reason, into=into)
