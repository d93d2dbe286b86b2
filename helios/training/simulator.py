"""Simulate a pool on measured speeds.

Speeds were measured for trials alone and in pairs; none are published for three and more. Three or more trials on a
device are simulated as if each of their pairs ran for the same share of the time, so they gain nothing over pairs.

A rule sees what a pool would report: speeds after ``measure_s`` in the same group, peak memory after a trial's start,
progress, and which trials were killed for memory.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from helios.model.trial_runs import MeasuredSpeed, TrialRun
from helios.training.model import (
    ONE_DEVICE,
    Device,
    Forecast,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    StopTrial,
    Trial,
    TrialForecast,
    TrialState,
    peak_hardly_exceeded,
)
from helios.training.pair_profiles import PairProfiles

Decide = Callable[[PoolSnapshot], Iterable[PoolAction]]
"""A rule, such as the method ``decide`` of a service for pools."""
QUERIES_PER_TRIAL = 20
"""Least number of times that a rule decides in the mean length of a trial. In a real pool it does about each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTrial:
    """A trial and its true length and memory.

    Attributes
    ----------
    family : int
        Position in ``PairProfiles.families``.
    seconds : float
        From its first step to its end alone on a device, s.
    memory_mib : float
        Peak device memory, MiB.
    arrives_s : float
        When it can be started, s since the start of the pool.
    parameters : mapping
        Its parameters, which a rule sees.
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
    """Time that starts, pauses and measurements take in a simulated pool.

    Attributes
    ----------
    start_s : float
        From a trial's start to its first step, s, at each attempt. Others on its device are not slowed meanwhile.
    pause_s : float
        From a request to pause until the checkpoint is written and the device is free, s. There is no progress then.
    measure_s : float
        Time in the same group after which a speed is known, s.
    noise : float
        Standard deviation of a measured speed, as a share of it.
    """

    start_s: float = 20.0
    pause_s: float = 5.0
    measure_s: float = 60.0
    noise: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutcome:
    """Result of a simulated pool.

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
        Kills of trials that were not among the first ten to start.
    unused_reserved : float
        Share of the memory reserved by limits, over time, that was not used; NaN without any limit.
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


@dataclass(slots=True)
class _Attempt:
    """A trial on a device."""

    number: int
    device: int
    limit_mib: float | None
    started_s: float
    ready_s: float
    group_since_s: float = math.inf
    """Since when it shares the device with the same trials, s; infinite during its start."""
    paused_at_s: float = math.inf
    """When its pause is done, s; infinite: no pause was asked for."""
    rate: float = 0.0
    """Speed as a share of that alone on the device."""
    measured: bool = False
    computes: bool = False
    """Whether it has got past its start, and found enough memory."""


class SimulatedPool:
    """A pool whose trials run as the profiles say.

    Parameters
    ----------
    trials : sequence of SimulatedTrial
        Their positions are their numbers.
    devices : sequence of Device
    profiles : PairProfiles
        True speeds. The rule sees only what was measured in the pool.
    costs : PoolCosts
    seed : int
        Seed of the measurements' noise.
    forecast : Forecast, optional
        Forecasts that a rule gets. None: what the trials of a family have shown.
    known_speeds : sequence of SharedSpeed
        Speeds that a rule gets from the start.
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
        self._query_every_s = max(1.0, mean_s / QUERIES_PER_TRIAL)
        self._random = np.random.default_rng(seed)
        self._names = profiles.families
        self._device_index = {device.name: index for index, device in enumerate(self.devices)}
        count = len(self.trials)
        self.now_s = 0.0
        self._state = [TrialState.WAITING] * count
        self._arrived = [False] * count
        self._remaining_s = [trial.seconds for trial in self.trials]
        self._attempts, self._ended_s = [0] * count, [math.nan] * count
        self._peak_mib: list[float | None] = [None] * count
        self._killed_at_mib: list[float | None] = [None] * count
        self._length_known = [False] * count
        """Whether its speed was measured, so that its length follows from its progress."""
        self._attempts_on: list[list[_Attempt]] = [[] for _ in self.devices]
        self._running: dict[int, _Attempt] = {}
        self._speed_sums = {
            (speed.family, speed.beside): (speed.steps_per_s * speed.samples, speed.samples)
            for speed in known_speeds
            if speed.placement == ONE_DEVICE
        }
        self._speeds: tuple[SharedSpeed, ...] | None = None
        self._family_peak_mib: dict[int, float] = {}
        self._finished_mib: dict[int, list[float]] = defaultdict(list)
        self._family_most_mib: dict[int, float | None] = {}
        self._family_lengths_s: dict[int, list[float]] = defaultdict(list)
        self._family_s: dict[int, float] = {}
        self._arrivals = [(trial.arrives_s, number) for number, trial in enumerate(self.trials)]
        heapq.heapify(self._arrivals)
        self._ended_since_query: list[int] = []
        self._killed: list[int] = []
        self._start_order: list[int] = []
        self._starts = self._pauses = 0
        self._busy_s = self._reserved_mib_s = self._used_mib_s = 0.0

    def run(self, decide: Decide) -> PoolOutcome:
        """Run all trials to their ends.

        Raises
        ------
        RuntimeError
            The rule lets trials wait although nothing runs, or asks for what cannot be done.
        """
        while self._arrivals or any(state is not TrialState.FINISHED for state in self._state):
            self._arrive()
            for _ in range(8):  # usually one round, as a pause frees nothing at once
                actions = list(decide(self.snapshot()))
                self._ended_since_query = []
                if not actions:
                    break
                self._apply(actions)
                if not any(isinstance(action, StartTrial) for action in actions):
                    break
            if not self._advance():
                raise RuntimeError("The rule starts nothing although trials wait and nothing runs.")
        first = min((trial.arrives_s for trial in self.trials), default=0.0)
        makespan = max(self._ended_s, default=0.0) - first
        waits = [end - trial.arrives_s for end, trial in zip(self._ended_s, self.trials, strict=True)]
        early = set(dict.fromkeys(self._start_order[:10]))
        return PoolOutcome(
            makespan_s=makespan,
            mean_result_s=float(np.mean(waits)) if waits else 0.0,
            busy_gpu_s=self._busy_s,
            held_gpu_s=makespan * len(self.devices),
            out_of_memory=len(self._killed),
            out_of_memory_late=sum(number not in early for number in self._killed),
            unused_reserved=1 - self._used_mib_s / self._reserved_mib_s if self._reserved_mib_s else math.nan,
            starts=self._starts,
            pauses=self._pauses,
            ended_s=tuple(self._ended_s),
        )

    def snapshot(self) -> PoolSnapshot:
        """Return the pool as a rule sees it now."""
        if self._forecast is not None and self._outdated:
            self._update_forecasts()
        shown = [
            self._trial(number)
            for number, state in enumerate(self._state)
            if self._arrived[number] and (state is not TrialState.FINISHED or number in self._ended_since_query)
        ]
        if self._speeds is None:
            self._speeds = tuple(
                SharedSpeed(family=family, beside=beside, steps_per_s=total / samples, samples=samples)
                for (family, beside), (total, samples) in sorted(self._speed_sums.items())
            )
        return PoolSnapshot(now_s=self.now_s, devices=self.devices, trials=tuple(shown), speeds=self._speeds)

    def _update_forecasts(self) -> None:
        """Forecast all active trials from the runs so far."""
        assert self._forecast is not None
        self._forecasts.clear()
        runs = []
        for number, true in enumerate(self.trials):
            if self._peak_mib[number] is None:
                continue
            name, finished = self._names[true.family], self._length_known[number]
            total, samples = self._speed_sums.get((name, ()), (0.0, 0))
            alone = (MeasuredSpeed(beside=(), steps_per_s=total / samples, seconds=1.0),) if samples else ()
            runs.append(
                TrialRun(
                    pool="",
                    number=number,
                    attempt=1,
                    program="",
                    family=name,
                    parameters=true.parameters,
                    device_kind="gpu",
                    outcome="finished" if finished else "running",
                    started_s=0.0,
                    seconds=true.seconds,
                    progress=1.0 if finished else None,
                    peak_memory_mib=self._peak_mib[number],
                    speeds=alone,
                )
            )
        active = [number for number, state in enumerate(self._state) if state is not TrialState.FINISHED]
        forecasts = self._forecast([self._trial(number) for number in active], runs)
        self._forecasts.update(zip(active, forecasts, strict=True))
        self._outdated = False

    def _trial(self, number: int) -> Trial:
        true, attempt = self.trials[number], self._running.get(number)
        peak = self._family_peak_mib.get(true.family)
        seconds = true.seconds if self._length_known[number] else self._family_s.get(true.family)
        ready = attempt is not None and attempt.ready_s <= self.now_s
        return Trial(
            number=number,
            parameters=true.parameters,
            family=self._names[true.family],
            state=self._state[number],
            devices=() if attempt is None else (self.devices[attempt.device].name,),
            started_s=None if attempt is None else attempt.started_s,
            attempts=self._attempts[number],
            memory_limit_mib=None if attempt is None else attempt.limit_mib,
            memory_mib=true.memory_mib if ready else None,
            peak_memory_mib=self._peak_mib[number],
            out_of_memory_mib=self._killed_at_mib[number],
            progress=None
            if not true.reports
            else 1 - self._remaining_s[number] / true.seconds
            if true.seconds > 0
            else 1.0,
            steps_per_s=None
            if attempt is None or not attempt.measured
            else attempt.rate * float(self.profiles.alone[true.family]),
            forecast=self._forecasts.get(number, TrialForecast())
            if self._forecast is not None
            else TrialForecast(
                memory_p50_mib=peak,
                memory_p95_mib=peak,
                memory_most_mib=self._family_most_mib.get(true.family),
                seconds_p50=seconds,
            ),
        )

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            self._arrived[heapq.heappop(self._arrivals)[1]] = True

    def _apply(self, actions: Sequence[PoolAction]) -> None:
        for action in actions:
            if isinstance(action, StartTrial):
                self._start(action)
            elif isinstance(action, PauseTrial):
                attempt = self._running.get(action.number)
                if attempt is None:
                    raise RuntimeError(f"Trial {action.number} does not run and cannot be paused.")
                if attempt.paused_at_s == math.inf:
                    attempt.paused_at_s = self.now_s + self.costs.pause_s
                    self._pauses += 1
                    self._update_rates(attempt.device)
            elif isinstance(action, StopTrial):
                raise RuntimeError("A simulated trial runs to its end.")
            else:
                raise RuntimeError("A simulated trial cannot be given a share of its device.")

    def _start(self, action: StartTrial) -> None:
        number = action.number
        if self._state[number] not in {TrialState.WAITING, TrialState.PAUSED} or not self._arrived[number]:
            raise RuntimeError(f"Trial {number} is {self._state[number]} and cannot be started.")
        if len(action.devices) != 1:
            raise RuntimeError(f"Trial {number} is to start on {len(action.devices)} devices, and one is simulated.")
        index = self._device_index[action.devices[0]]
        if len(self._attempts_on[index]) >= self.devices[index].slots:
            raise RuntimeError(f"{action.devices[0]} has no free slot for trial {number}.")
        attempt = _Attempt(
            number=number,
            device=index,
            limit_mib=action.memory_limit_mib,
            started_s=self.now_s,
            ready_s=self.now_s + self.costs.start_s,
        )
        self._state[number] = TrialState.RUNNING
        self._attempts[number] += 1
        self._starts += 1
        self._start_order.append(number)
        self._attempts_on[index].append(attempt)
        self._running[number] = attempt

    def _advance(self) -> bool:
        """Go to the next event, and return whether there was one."""
        next_s = self._arrivals[0][0] if self._arrivals else math.inf
        for attempt in self._running.values():
            due = min(attempt.paused_at_s, math.inf if attempt.computes else attempt.ready_s)
            if attempt.rate > 0 and attempt.paused_at_s == math.inf:
                due = min(due, self.now_s + self._remaining_s[attempt.number] / attempt.rate)
            if not attempt.measured and self.trials[attempt.number].reports:
                due = min(due, attempt.group_since_s + self.costs.measure_s)
            next_s = min(next_s, due)
        if next_s == math.inf:
            return False
        if self._running:
            next_s = min(next_s, self.now_s + self._query_every_s)
        step_s = max(0.0, next_s - self.now_s)
        for attempt in self._running.values():
            self._remaining_s[attempt.number] -= step_s * attempt.rate
            if attempt.limit_mib is not None:
                self._reserved_mib_s += step_s * attempt.limit_mib
                self._used_mib_s += step_s * min(attempt.limit_mib, self.trials[attempt.number].memory_mib)
        self._busy_s += step_s * sum(bool(attempts) for attempts in self._attempts_on)
        self.now_s = next_s
        self._process_events()
        return True

    def _process_events(self) -> None:
        now = self.now_s
        for attempt in list(self._running.values()):
            number, index = attempt.number, attempt.device
            if attempt.rate > 0 and self._remaining_s[number] <= 1e-6:
                self._remaining_s[number] = 0.0
                self._state[number], self._ended_s[number] = TrialState.FINISHED, now
                self._ended_since_query.append(number)
                self._learn_length(number)
                self._learn_peak(number)
                self._remove_attempt(attempt)
            elif attempt.paused_at_s <= now:
                self._state[number] = TrialState.PAUSED
                self._remove_attempt(attempt)
            elif not attempt.computes and attempt.ready_s <= now:
                if self._fits(attempt):
                    attempt.computes = self._outdated = True
                    self._peak_mib[number] = self.trials[number].memory_mib
                    known = self._family_peak_mib.get(self.trials[number].family, 0.0)
                    self._family_peak_mib[self.trials[number].family] = max(known, self.trials[number].memory_mib)
                    self._update_rates(index)
                else:
                    self._kill(attempt)
        for attempt in self._running.values():
            reports = self.trials[attempt.number].reports
            if reports and not attempt.measured and now >= attempt.group_since_s + self.costs.measure_s - 1e-9:
                self._measure(attempt)

    def _computing(self, index: int) -> list[_Attempt]:
        """Return the attempts on a device that neither start nor write a checkpoint."""
        return [attempt for attempt in self._attempts_on[index] if attempt.computes and attempt.paused_at_s == math.inf]

    def _fits(self, attempt: _Attempt) -> bool:
        own = self.trials[attempt.number]
        if attempt.limit_mib is not None and own.memory_mib > attempt.limit_mib + 1e-6:
            return False
        others = [other for other in self._attempts_on[attempt.device] if other is not attempt and other.computes]
        total = own.memory_mib + sum(self.trials[other.number].memory_mib for other in others)
        speeds = self.profiles.beside
        pairs = all(not math.isnan(speeds[own.family, self.trials[other.number].family]) for other in others)
        return pairs and total <= self.devices[attempt.device].memory_mib + 1e-6

    def _kill(self, attempt: _Attempt) -> None:
        number = attempt.number
        device_mib = self.devices[attempt.device].memory_mib
        others = [other for other in self._attempts_on[attempt.device] if other is not attempt and other.computes]
        room_mib = device_mib - sum(self.trials[other.number].memory_mib for other in others)
        limit_mib = min(device_mib if attempt.limit_mib is None else attempt.limit_mib, room_mib)
        if not others and self.trials[number].memory_mib > device_mib:
            raise RuntimeError(f"Trial {number} does not fit alone on {self.devices[attempt.device].name}.")
        self._killed.append(number)
        self._killed_at_mib[number] = max(limit_mib, self._killed_at_mib[number] or 0.0)
        self._state[number] = TrialState.WAITING
        if others and (attempt.limit_mib is None or self.trials[number].memory_mib <= attempt.limit_mib):
            self._record_speed(self._names[self.trials[number].family], self._families_beside(attempt, others), 0.0)
        self._remove_attempt(attempt)

    def _remove_attempt(self, attempt: _Attempt) -> None:
        del self._running[attempt.number]
        self._attempts_on[attempt.device].remove(attempt)
        self._update_rates(attempt.device)

    def _update_rates(self, index: int) -> None:
        """Update the rates of a device's trials after its group changed."""
        for attempt in self._attempts_on[index]:
            if not attempt.computes or attempt.paused_at_s < math.inf:
                attempt.rate = 0.0
        computing = self._computing(index)
        families = [self.trials[attempt.number].family for attempt in computing]
        speeds, count = self.profiles.beside, len(computing)
        for position, attempt in enumerate(computing):
            if count == 1:
                attempt.rate = 1.0
            else:
                beside = sum(speeds[families[position], other] for i, other in enumerate(families) if i != position)
                attempt.rate = float(beside) / (count * (count - 1) / 2)
            attempt.group_since_s, attempt.measured = self.now_s, False

    def _families_beside(self, attempt: _Attempt, others: Iterable[_Attempt]) -> tuple[str, ...]:
        return tuple(sorted(self._names[self.trials[other.number].family] for other in others if other is not attempt))

    def _measure(self, attempt: _Attempt) -> None:
        attempt.measured = True
        computing = self._computing(attempt.device)
        if any(other.computes and other not in computing for other in self._attempts_on[attempt.device]):
            return  # one of the group writes its checkpoint
        family = self.trials[attempt.number].family
        noise = 1 + self.costs.noise * float(self._random.standard_normal())
        steps = attempt.rate * float(self.profiles.alone[family]) * max(0.5, noise)
        self._record_speed(self._names[family], self._families_beside(attempt, computing), steps)
        self._learn_length(attempt.number)

    def _record_speed(self, family: str, beside: tuple[str, ...], steps_per_s: float) -> None:
        total, samples = self._speed_sums.get((family, beside), (0.0, 0))
        self._speed_sums[family, beside] = (total + steps_per_s, samples + 1)
        self._speeds, self._outdated = None, True

    def _learn_peak(self, number: int) -> None:
        family = self.trials[number].family
        self._finished_mib[family].append(self.trials[number].memory_mib)
        self._family_most_mib[family] = peak_hardly_exceeded(self._finished_mib[family])

    def _learn_length(self, number: int) -> None:
        if not self._length_known[number]:
            self._length_known[number] = self._outdated = True
            family = self.trials[number].family
            # Of a program that reports nothing, only the time that it took beside others is seen.
            true, started_s = self.trials[number], self._running[number].started_s
            self._family_lengths_s[family].append(true.seconds if true.reports else self.now_s - started_s)
            self._family_s[family] = float(np.mean(self._family_lengths_s[family]))
