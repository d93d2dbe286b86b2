"""Simulate a pool on measured speeds, and compare rules of sharing devices.

The speeds are measured ones of trials alone and in pairs. Of three and more on a device nothing is published, so a
device runs their pairs in turn there, each for the same time: more than two gain nothing over the pairs that were
measured, and nothing is made up. A rule sees what a pool would report: speeds after ``measure_s`` in the same group,
peak memory after a trial's start, progress, and who was killed for memory.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import HeliosError
from helios.model.pools import (
    Device,
    Forecast,
    MeasuredSpeed,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    StopTrial,
    Trial,
    TrialForecast,
    TrialRun,
    TrialState,
    peak_hardly_exceeded,
)

Decide = Callable[[PoolSnapshot], Iterable[PoolAction]]
"""A rule, such as the method ``decide`` of a service for pools."""
ASKED = 20
"""How often at least a rule is asked in the mean length of a trial. A real pool asks about every second."""


class ProfilesInvalid(HeliosError):
    """Measured speeds cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairProfiles:
    """Measured speeds of families, alone and in pairs.

    Attributes
    ----------
    families : tuple of str
        n of them.
    alone : float64 array of shape (n,)
        Steps a second alone.
    beside : float64 array of shape (n, n)
        Speed of the row's family beside one of the column's, as a share of its speed alone; NaN: they do not fit.
    """

    families: tuple[str, ...]
    alone: NDArray[np.float64]
    beside: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrial:
    """A trial as it truly is.

    Attributes
    ----------
    family : int
        Place in ``PairProfiles.families``.
    seconds : float
        From start-up to end alone on a device, s.
    memory_mib : float
        Peak device memory, MiB.
    arrives_s : float
        When it is there to be started, s since the start of the pool.
    parameters : mapping
        What the rule sees.
    reports : bool
        Whether its program reports steps, so that its speed can be measured.
    """

    family: int
    seconds: float
    memory_mib: float = 0.0
    arrives_s: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reports: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCosts:
    """What things cost in a simulated pool.

    Attributes
    ----------
    start_s : float
        From a trial's start to its first step, s, at each attempt. Its device's others are not slowed meanwhile.
    pause_s : float
        From a request to pause until the checkpoint is written and the device is free, s, without progress.
    measure_s : float
        A speed is known after this long in the same group, s.
    noise : float
        Standard deviation of a measured speed, as a share of it.
    """

    start_s: float = 20.0
    pause_s: float = 5.0
    measure_s: float = 60.0
    noise: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutcome:
    """What became of a simulated pool.

    Attributes
    ----------
    makespan_s : float
        From the first arrival to the last end, s.
    mean_result_s : float
        Mean time from a trial's arrival to its end, s.
    busy_gpu_s : float
        GPU seconds with a trial on the device.
    held_gpu_s : float
        GPU seconds of the allocation: devices times makespan.
    out_of_memory : int
        Kills for memory.
    out_of_memory_late : int
        Those of trials that were not among the first ten to start.
    unused_reserved : float
        Share of the memory reserved by limits that was never used, over time; NaN without any limit.
    starts, pauses : int
        Attempts and pauses of all trials.
    ended_s : tuple of float
        End of each trial, s.
    """

    makespan_s: float
    mean_result_s: float
    busy_gpu_s: float
    held_gpu_s: float
    out_of_memory: int
    out_of_memory_late: int
    unused_reserved: float
    starts: int
    pauses: int
    ended_s: tuple[float, ...]


def read_pair_profiles(path: Path, *, gpu: str) -> PairProfiles:
    """Read measured speeds of one GPU type.

    Parameters
    ----------
    path : Path
        CSV with the columns ``gpu``, ``model``, ``gpus``, ``other_model``, ``steps_per_s`` and ``other_steps_per_s``,
        as published for Gavel (OSDI'20): alone where ``other_model`` is empty, 0 where two do not fit.
    gpu : str
        A value of the column ``gpu``.

    Raises
    ------
    ProfilesInvalid
        A column is missing, or nothing is there of that GPU.
    """
    try:
        rows = pd.read_csv(path)
        rows = rows[(rows["gpu"] == gpu) & (rows["gpus"] == 1)]
        alone = rows[rows["other_model"].isna()].drop_duplicates("model").set_index("model")["steps_per_s"]
        pairs = rows[rows["other_model"].notna()]
        families = tuple(sorted(alone.index, key=_natural))
        speeds = pairs.pivot_table(index="model", columns="other_model", values="steps_per_s")
        mirrored = pairs.pivot_table(index="other_model", columns="model", values="other_steps_per_s")
    except (OSError, KeyError, ValueError) as reason:
        raise ProfilesInvalid(
            f"Speeds cannot be read from {path}: {reason}.",
            hint="Give a CSV with gpu, model, gpus, other_model, steps_per_s and other_steps_per_s.",
        ) from reason
    if not families:
        raise ProfilesInvalid(f"{path} has no speeds of {gpu!r}.", hint="Name a GPU of its column gpu.")
    table = speeds.reindex(index=families, columns=families)
    table = table.fillna(mirrored.reindex(index=families, columns=families))
    grid = table.to_numpy(dtype=np.float64)
    steps = alone.reindex(families).to_numpy(dtype=np.float64)
    beside = np.where(grid > 0, grid / steps[:, None], np.nan)
    return PairProfiles(families=families, alone=steps, beside=np.where(np.isnan(beside.T), np.nan, beside))


def _natural(name: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


@dataclass(slots=True)
class _Attempt:
    """A trial on a device."""

    number: int
    device: int
    limit: float | None
    started_s: float
    ready_s: float
    group_s: float = math.inf
    """Since when its group is the same, s; infinite during its start."""
    leaves_s: float = math.inf
    """When its pause is done, s."""
    rate: float = 0.0
    """Seconds alone that it does in a second."""
    measured: bool = False
    computes: bool = False
    """Whether its start is over and its memory was there."""


class SimulatedPool:
    """A pool whose trials run as the profiles say.

    Parameters
    ----------
    trials : sequence of SimulatedTrial
        Numbered by their place.
    devices : sequence of Device
    profiles : PairProfiles
        What is true; the rule sees only what was measured in the pool.
    costs : PoolCosts
    seed : int
        Of the measurements' noise.
    forecast : Forecast, optional
        What a rule is told of trials. None: of a family what its trials have shown.
    known_speeds : sequence of SharedSpeed
        Told from the start.
    """

    def __init__(
        self,
        trials: Sequence[SimulatedTrial],
        devices: Sequence[Device],
        profiles: PairProfiles,
        *,
        costs: PoolCosts | None = None,
        seed: int = 0,
        forecast: Forecast | None = None,
        known_speeds: Sequence[SharedSpeed] = (),
    ) -> None:
        self._forecast, self._forecasts, self._outdated = forecast, dict[int, TrialForecast](), True
        self.trials, self.devices, self.profiles = list(trials), tuple(devices), profiles
        self.costs = costs or PoolCosts()
        mean_s = sum(trial.seconds for trial in self.trials) / max(1, len(self.trials))
        self._ask_s = max(1.0, mean_s / ASKED)
        self._random = np.random.default_rng(seed)
        self._names = profiles.families
        self._place = {device.name: place for place, device in enumerate(self.devices)}
        count = len(self.trials)
        self.now_s = 0.0
        self._state = [TrialState.WAITING] * count
        self._arrived = [False] * count
        self._left = [trial.seconds for trial in self.trials]
        self._attempts, self._ended = [0] * count, [math.nan] * count
        self._peak: list[float | None] = [None] * count
        self._killed_at: list[float | None] = [None] * count
        self._seen = [False] * count
        """Whether its speed was measured, so that its length is known from its progress."""
        self._on: list[list[_Attempt]] = [[] for _ in self.devices]
        self._running: dict[int, _Attempt] = {}
        self._sums = {(s.family, s.beside): (s.steps_per_s * s.samples, s.samples) for s in known_speeds}
        self._speeds: tuple[SharedSpeed, ...] | None = None
        self._family_peak: dict[int, float] = {}
        self._finished_mib: dict[int, list[float]] = defaultdict(list)
        self._family_most: dict[int, float | None] = {}
        self._lengths: dict[int, list[float]] = defaultdict(list)
        self._family_s: dict[int, float] = {}
        self._arrivals = [(trial.arrives_s, number) for number, trial in enumerate(self.trials)]
        heapq.heapify(self._arrivals)
        self._ended_since: list[int] = []
        self._killed: list[int] = []
        self._order_of_starts: list[int] = []
        self._starts = self._pauses = 0
        self._busy_s = self._reserved = self._used = 0.0

    def run(self, decide: Decide) -> PoolOutcome:
        """Run all trials to their ends.

        Raises
        ------
        RuntimeError
            The rule lets trials wait although nothing runs, or asks for what cannot be done.
        """
        while self._arrivals or any(state is not TrialState.FINISHED for state in self._state):
            self._arrive()
            for _ in range(8):  # a pause frees nothing at once, so one round is the rule
                actions = list(decide(self.snapshot()))
                self._ended_since = []
                if not actions:
                    break
                self._act(actions)
                if not any(isinstance(action, StartTrial) for action in actions):
                    break
            if not self._advance():
                raise RuntimeError("The rule starts nothing although trials wait and nothing runs.")
        first = min((trial.arrives_s for trial in self.trials), default=0.0)
        makespan = max(self._ended, default=0.0) - first
        waits = [end - trial.arrives_s for end, trial in zip(self._ended, self.trials, strict=True)]
        early = set(dict.fromkeys(self._order_of_starts[:10]))
        return PoolOutcome(
            makespan_s=makespan,
            mean_result_s=float(np.mean(waits)) if waits else 0.0,
            busy_gpu_s=self._busy_s,
            held_gpu_s=makespan * len(self.devices),
            out_of_memory=len(self._killed),
            out_of_memory_late=sum(number not in early for number in self._killed),
            unused_reserved=1 - self._used / self._reserved if self._reserved else math.nan,
            starts=self._starts,
            pauses=self._pauses,
            ended_s=tuple(self._ended),
        )

    def snapshot(self) -> PoolSnapshot:
        """Return what a rule may see now."""
        if self._forecast is not None and self._outdated:
            self._expect()
        shown = [
            self._shown(number)
            for number, state in enumerate(self._state)
            if self._arrived[number] and (state is not TrialState.FINISHED or number in self._ended_since)
        ]
        if self._speeds is None:
            self._speeds = tuple(
                SharedSpeed(family=family, beside=beside, steps_per_s=total / samples, samples=samples)
                for (family, beside), (total, samples) in sorted(self._sums.items())
            )
        return PoolSnapshot(now_s=self.now_s, devices=self.devices, trials=tuple(shown), speeds=self._speeds)

    def _expect(self) -> None:
        """Have the forecasts follow what the trials have shown."""
        assert self._forecast is not None
        self._forecasts.clear()
        runs = []
        for number, truth in enumerate(self.trials):
            if self._peak[number] is None:
                continue
            name, seen = self._names[truth.family], self._seen[number]
            total, samples = self._sums.get((name, ()), (0.0, 0))
            alone = (MeasuredSpeed(beside=(), steps_per_s=total / samples, seconds=1.0),) if samples else ()
            runs.append(
                TrialRun(
                    pool="",
                    number=number,
                    attempt=1,
                    program="",
                    family=name,
                    parameters=truth.parameters,
                    device_kind="gpu",
                    outcome="finished" if seen else "running",
                    started_s=0.0,
                    seconds=truth.seconds,
                    progress=1.0 if seen else None,
                    peak_memory_mib=self._peak[number],
                    speeds=alone,
                )
            )
        active = [number for number, state in enumerate(self._state) if state is not TrialState.FINISHED]
        forecasts = self._forecast([self._shown(number) for number in active], runs)
        self._forecasts.update(zip(active, forecasts, strict=True))
        self._outdated = False

    def _shown(self, number: int) -> Trial:
        truth, attempt = self.trials[number], self._running.get(number)
        peak = self._family_peak.get(truth.family)
        seconds = truth.seconds if self._seen[number] else self._family_s.get(truth.family)
        ready = attempt is not None and attempt.ready_s <= self.now_s
        return Trial(
            number=number,
            parameters=truth.parameters,
            family=self._names[truth.family],
            state=self._state[number],
            device=None if attempt is None else self.devices[attempt.device].name,
            started_s=None if attempt is None else attempt.started_s,
            attempts=self._attempts[number],
            memory_limit_mib=None if attempt is None else attempt.limit,
            memory_mib=truth.memory_mib if ready else None,
            peak_memory_mib=self._peak[number],
            out_of_memory_mib=self._killed_at[number],
            progress=1 - self._left[number] / truth.seconds if truth.seconds > 0 else 1.0,
            steps_per_s=None
            if attempt is None or not attempt.measured
            else attempt.rate * float(self.profiles.alone[truth.family]),
            forecast=self._forecasts.get(number, TrialForecast())
            if self._forecast is not None
            else TrialForecast(
                memory_p50_mib=peak,
                memory_p95_mib=peak,
                memory_most_mib=self._family_most.get(truth.family),
                seconds_p50=seconds,
            ),
        )

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            self._arrived[heapq.heappop(self._arrivals)[1]] = True

    def _act(self, actions: Sequence[PoolAction]) -> None:
        for action in actions:
            if isinstance(action, StartTrial):
                self._start(action)
            elif isinstance(action, PauseTrial):
                attempt = self._running.get(action.number)
                if attempt is None:
                    raise RuntimeError(f"Trial {action.number} does not run and cannot be paused.")
                if attempt.leaves_s == math.inf:
                    attempt.leaves_s = self.now_s + self.costs.pause_s
                    self._pauses += 1
                    self._new_group(attempt.device)
            elif isinstance(action, StopTrial):
                raise RuntimeError("A simulated trial runs to its end.")

    def _start(self, action: StartTrial) -> None:
        number = action.number
        if self._state[number] not in {TrialState.WAITING, TrialState.PAUSED} or not self._arrived[number]:
            raise RuntimeError(f"Trial {number} is {self._state[number]} and cannot be started.")
        place = self._place[action.device]
        if len(self._on[place]) >= self.devices[place].slots:
            raise RuntimeError(f"{action.device} has no free slot for trial {number}.")
        attempt = _Attempt(
            number=number,
            device=place,
            limit=action.memory_limit_mib,
            started_s=self.now_s,
            ready_s=self.now_s + self.costs.start_s,
        )
        self._state[number] = TrialState.RUNNING
        self._attempts[number] += 1
        self._starts += 1
        self._order_of_starts.append(number)
        self._on[place].append(attempt)
        self._running[number] = attempt

    def _advance(self) -> bool:
        """Go to the next event.

        Returns
        -------
        bool
            Whether there was one.
        """
        next_s = self._arrivals[0][0] if self._arrivals else math.inf
        for attempt in self._running.values():
            due = min(attempt.leaves_s, math.inf if attempt.computes else attempt.ready_s)
            if attempt.rate > 0 and attempt.leaves_s == math.inf:
                due = min(due, self.now_s + self._left[attempt.number] / attempt.rate)
            if not attempt.measured and self.trials[attempt.number].reports:
                due = min(due, attempt.group_s + self.costs.measure_s)
            next_s = min(next_s, due)
        if next_s == math.inf:
            return False
        if self._running:
            next_s = min(next_s, self.now_s + self._ask_s)
        step_s = max(0.0, next_s - self.now_s)
        for attempt in self._running.values():
            self._left[attempt.number] -= step_s * attempt.rate
            if attempt.limit is not None:
                self._reserved += step_s * attempt.limit
                self._used += step_s * min(attempt.limit, self.trials[attempt.number].memory_mib)
        self._busy_s += step_s * sum(bool(attempts) for attempts in self._on)
        self.now_s = next_s
        self._settle()
        return True

    def _settle(self) -> None:
        now = self.now_s
        for attempt in list(self._running.values()):
            number, place = attempt.number, attempt.device
            if attempt.rate > 0 and self._left[number] <= 1e-6:
                self._left[number] = 0.0
                self._state[number], self._ended[number] = TrialState.FINISHED, now
                self._ended_since.append(number)
                self._learn_length(number)
                self._learn_peak(number)
                self._remove_attempt(attempt)
            elif attempt.leaves_s <= now:
                self._state[number] = TrialState.PAUSED
                self._remove_attempt(attempt)
            elif not attempt.computes and attempt.ready_s <= now:
                if self._fits(attempt):
                    attempt.computes = self._outdated = True
                    self._peak[number] = self.trials[number].memory_mib
                    known = self._family_peak.get(self.trials[number].family, 0.0)
                    self._family_peak[self.trials[number].family] = max(known, self.trials[number].memory_mib)
                    self._new_group(place)
                else:
                    self._kill(attempt)
        for attempt in self._running.values():
            reports = self.trials[attempt.number].reports
            if reports and not attempt.measured and now >= attempt.group_s + self.costs.measure_s - 1e-9:
                self._measure(attempt)

    def _present(self, place: int) -> list[_Attempt]:
        """Return those that compute on a device.

        They are neither starting nor writing their checkpoint.
        """
        return [a for a in self._on[place] if a.computes and a.leaves_s == math.inf]

    def _fits(self, attempt: _Attempt) -> bool:
        own = self.trials[attempt.number]
        if attempt.limit is not None and own.memory_mib > attempt.limit + 1e-6:
            return False
        others = [a for a in self._on[attempt.device] if a is not attempt and a.computes]
        total = own.memory_mib + sum(self.trials[other.number].memory_mib for other in others)
        speeds = self.profiles.beside
        pairs = all(not math.isnan(speeds[own.family, self.trials[other.number].family]) for other in others)
        return pairs and total <= self.devices[attempt.device].memory_mib + 1e-6

    def _kill(self, attempt: _Attempt) -> None:
        number = attempt.number
        memory = self.devices[attempt.device].memory_mib
        others = [a for a in self._on[attempt.device] if a is not attempt and a.computes]
        room = memory - sum(self.trials[other.number].memory_mib for other in others)
        limit = min(memory if attempt.limit is None else attempt.limit, room)
        if not others and self.trials[number].memory_mib > memory:
            raise RuntimeError(f"Trial {number} does not fit alone on {self.devices[attempt.device].name}.")
        self._killed.append(number)
        self._killed_at[number] = max(limit, self._killed_at[number] or 0.0)
        self._state[number] = TrialState.WAITING
        if others and (attempt.limit is None or self.trials[number].memory_mib <= attempt.limit):
            self._note(self._names[self.trials[number].family], self._group(attempt, others), 0.0)
        self._remove_attempt(attempt)

    def _remove_attempt(self, attempt: _Attempt) -> None:
        del self._running[attempt.number]
        self._on[attempt.device].remove(attempt)
        self._new_group(attempt.device)

    def _new_group(self, place: int) -> None:
        """Update the speeds of a device's trials."""
        for attempt in self._on[place]:
            if not attempt.computes or attempt.leaves_s < math.inf:
                attempt.rate = 0.0
        present = self._present(place)
        families = [self.trials[attempt.number].family for attempt in present]
        speeds, count = self.profiles.beside, len(present)
        for own, attempt in enumerate(present):
            if count == 1:
                attempt.rate = 1.0
            else:
                beside = sum(speeds[families[own], other] for at, other in enumerate(families) if at != own)
                attempt.rate = float(beside) / (count * (count - 1) / 2)
            attempt.group_s, attempt.measured = self.now_s, False

    def _group(self, attempt: _Attempt, others: Iterable[_Attempt]) -> tuple[str, ...]:
        return tuple(sorted(self._names[self.trials[o.number].family] for o in others if o is not attempt))

    def _measure(self, attempt: _Attempt) -> None:
        attempt.measured = True
        present = self._present(attempt.device)
        if len(present) != len(self._on[attempt.device]) and any(
            other.computes and other not in present for other in self._on[attempt.device]
        ):
            return
        family = self.trials[attempt.number].family
        noise = 1 + self.costs.noise * float(self._random.standard_normal())
        steps = attempt.rate * float(self.profiles.alone[family]) * max(0.5, noise)
        self._note(self._names[family], self._group(attempt, present), steps)
        self._learn_length(attempt.number)

    def _note(self, family: str, beside: tuple[str, ...], steps_per_s: float) -> None:
        total, samples = self._sums.get((family, beside), (0.0, 0))
        self._sums[family, beside] = (total + steps_per_s, samples + 1)
        self._speeds, self._outdated = None, True

    def _learn_peak(self, number: int) -> None:
        family = self.trials[number].family
        self._finished_mib[family].append(self.trials[number].memory_mib)
        self._family_most[family] = peak_hardly_exceeded(self._finished_mib[family])

    def _learn_length(self, number: int) -> None:
        if not self._seen[number]:
            self._seen[number] = self._outdated = True
            family = self.trials[number].family
            self._lengths[family].append(self.trials[number].seconds)
            self._family_s[family] = float(np.mean(self._lengths[family]))


# Rules to compare with.


def share_fixed(together: int) -> Decide:
    """Return the rule of a fixed number of trials on a device.

    They start in their order.

    A trial that was killed for memory starts again on a device of its own, which nobody joins.
    """

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        free = {device.name: min(together, device.slots) for device in snapshot.devices}
        empty = dict.fromkeys(free, True)
        for trial in snapshot.trials:
            if trial.state is TrialState.RUNNING and trial.device is not None:
                empty[trial.device] = False
                free[trial.device] -= 1 if trial.out_of_memory_mib is None else together
        actions: list[PoolAction] = []
        for trial in snapshot.trials:
            if trial.state is not TrialState.WAITING:
                continue
            alone = trial.out_of_memory_mib is not None
            fitting = [name for name, slots in free.items() if (empty[name] if alone else slots > 0)]
            if not fitting:
                continue
            name = max(fitting, key=lambda name: free[name])
            free[name] -= together if alone else 1
            empty[name] = False
            actions.append(
                StartTrial(number=trial.number, device=name, memory_limit_mib=None, reason=f"up to {together} share")
            )
        return actions

    return decide


def knowing(
    decide: Decide, trials: Sequence[SimulatedTrial], profiles: PairProfiles, *, lengths: bool = True
) -> Decide:
    """Return a rule that knows the truth from the start.

    It knows all speeds and memory, and how long each trial takes or, without ``lengths``, the mean of its family.
    """
    names = profiles.families
    by_family: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        by_family[trial.family].append(trial.seconds)
    there = sorted(by_family)
    true = [
        SharedSpeed(family=names[one], beside=(), steps_per_s=float(profiles.alone[one]), samples=1_000)
        for one in there
    ]
    for one in there:
        for two in there:
            share = float(profiles.beside[one, two])
            rate = 0.0 if math.isnan(share) else share * float(profiles.alone[one])
            true.append(SharedSpeed(family=names[one], beside=(names[two],), steps_per_s=rate, samples=1_000))
    speeds = tuple(true)

    forecasts = [
        TrialForecast(
            memory_p50_mib=truth.memory_mib,
            memory_p95_mib=truth.memory_mib,
            seconds_p50=truth.seconds if lengths else float(np.mean(by_family[truth.family])),
        )
        for truth in trials
    ]

    def with_truth(trial: Trial) -> Trial:
        running = trial.state is TrialState.RUNNING
        return replace(trial, forecast=forecasts[trial.number], steps_per_s=1.0 if running else None)

    return lambda snapshot: decide(replace(snapshot, speeds=speeds, trials=tuple(map(with_truth, snapshot.trials))))


# What a person is shown before anything runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolComparison:
    """Outcomes of the same trials under several rules.

    Attributes
    ----------
    outcomes : dict of str to PoolOutcome
        By the rule's name: ``exclusive``, ``fixed 2`` and so on, the given ones, and ``oracle``.
    bound_s : float
        No schedule has a shorter makespan: the longest trial alone from its arrival, s.
    oracle_plan : str
        Plan that was the oracle's best.
    """

    outcomes: Mapping[str, PoolOutcome]
    bound_s: float
    oracle_plan: str

    def share_of_gain(self, rule: str) -> float:
        """Return the share of the oracle's gain that a rule reaches.

        The gain is in makespan over exclusive; NaN without one.
        """
        exclusive, best = self.outcomes["exclusive"].makespan_s, self.outcomes["oracle"].makespan_s
        gained = exclusive - self.outcomes[rule].makespan_s
        return gained / (exclusive - best) if best < exclusive else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, one object for each rule."""
        shares = {name: self.share_of_gain(name) for name in self.outcomes}
        return {
            "bound_s": self.bound_s,
            "oracle_plan": self.oracle_plan,
            "rules": {
                name: {key: _finite(value) for key, value in asdict(outcome).items() if key != "ended_s"}
                | {"share_of_oracle_gain": _finite(shares[name])}
                for name, outcome in self.outcomes.items()
            },
        }


def compare_pool_rules(
    trials: Sequence[SimulatedTrial],
    devices: Sequence[Device],
    profiles: PairProfiles,
    *,
    rules: Mapping[str, Decide],
    planners: Mapping[str, Decide],
    fixed: Sequence[int] = (2, 4, 8),
    costs: PoolCosts | None = None,
    seed: int = 0,
    forecast: Forecast | None = None,
    known_speeds: Sequence[SharedSpeed] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> PoolComparison:
    """Simulate a sweep under several rules of sharing devices.

    Parameters
    ----------
    trials, devices, profiles, costs, seed, forecast, known_speeds
        As of :class:`SimulatedPool`.
    rules : mapping of str to Decide
        Rules to judge, such as ``{"packing": Packing(Packing.Options()).decide}``. They learn speeds in the pool.
    planners : mapping of str to Decide
        Rules for the oracle, which are told the true speeds, lengths and memory. The oracle is the best in makespan of
        them, of the fixed rules, of ``rules`` told the truth, and of what ``rules`` did untold, which it could do too.
    fixed : sequence of int
        Numbers of trials that share a device under a fixed rule.
    progress : callable
        Called with the name of each rule before it runs.

    Returns
    -------
    PoolComparison
    """

    def outcome(name: str, decide: Decide) -> PoolOutcome:
        progress(name)
        return SimulatedPool(
            trials, devices, profiles, costs=costs, seed=seed, forecast=forecast, known_speeds=known_speeds
        ).run(decide)

    outcomes = {"exclusive": outcome("exclusive", share_fixed(1))}
    outcomes |= {f"fixed {count}": outcome(f"fixed {count}", share_fixed(count)) for count in fixed}
    outcomes |= {name: outcome(name, decide) for name, decide in rules.items()}
    plans = dict(outcomes)
    for name, decide in {**rules, **planners, "longest first": longest_first}.items():
        plans[f"{name}, knowing"] = outcome(f"{name}, knowing", knowing(decide, trials, profiles))
    best = min(plans, key=lambda name: plans[name].makespan_s)
    first = min((trial.arrives_s for trial in trials), default=0.0)
    bound = max((trial.arrives_s + trial.seconds - first for trial in trials), default=0.0)
    return PoolComparison(outcomes=outcomes | {"oracle": plans[best]}, bound_s=bound, oracle_plan=best)


def longest_first(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Start the longest trials first, each alone on a device."""
    taken = {trial.device for trial in snapshot.trials if trial.state is TrialState.RUNNING}
    free = [device.name for device in snapshot.devices if device.name not in taken]
    waiting = [trial for trial in snapshot.trials if trial.state is TrialState.WAITING]
    waiting.sort(key=lambda trial: (-(trial.forecast.seconds_p50 or 0.0), trial.number))
    return [
        StartTrial(number=trial.number, device=name, memory_limit_mib=None, reason="the longest first")
        for trial, name in zip(waiting, free, strict=False)
    ]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
