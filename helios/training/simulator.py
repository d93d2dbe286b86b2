"""Simulate a pool on measured speeds.

Speeds were measured for trials alone and in pairs; none are published for three and more. Three or more trials on a
device are simulated as if each of their pairs ran for the same share of the time, so they gain nothing over pairs.

A rule sees what a pool would report: speeds after ``measure_s`` in the same group, peak memory after a trial's start,
progress, and which trials were killed for memory. It may start, pause and stop trials and share devices by time.

Further effects are off unless they are asked for: memory that grows with a trial's work, starts that slow the trials
of their node, reports that are rare, curves of a metric, and trials on several devices. Where trials that grow exceed
their device, one is killed: it asked for memory last, which is more probable the faster it grows. It goes on from its
last pause. All chance is drawn from one seed.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from helios.model.trial_runs import CurvePoint
from helios.training.model import (
    ENDED,
    Device,
    Forecast,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    ShareTrial,
    StartTrial,
    StopTrial,
    Trial,
    TrialState,
    node_name,
    placement,
)
from helios.training.pool.slices import fill_places
from helios.training.simulated_trials import PairProfiles, SeenTrials, SimulatedTrial

Decide = Callable[[PoolSnapshot], Iterable[PoolAction]]
"""A rule, such as the method ``decide`` of a service for pools."""
QUERIES_PER_TRIAL = 20
"""Least number of times that a rule decides in the mean length of a trial. In a real pool it does about each second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCosts:
    """Time that starts, pauses and measurements take in a simulated pool.

    Attributes
    ----------
    start_s : float
        From a trial's start to its first step, s, at each attempt.
    pause_s : float
        From a request to pause or stop until the checkpoint is written and the device is free, s. There is no progress
        then.
    measure_s : float
        Time in the same group after which a speed is known, s.
    noise : float
        Standard deviation of a measured speed, as a share of it.
    start_load : float
        Work of a trial's start on the other trials of its node, which run at 1 / (1 + the loads of all starts).
    """

    start_s: float = 20.0
    pause_s: float = 5.0
    measure_s: float = 60.0
    noise: float = 0.02
    start_load: float = 0.0


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
    starts, pauses, stops : int
        Attempts, pauses and stops of all trials.
    ended_s : tuple of float
        End of each trial, s.
    reached_s : tuple of tuple of float
        When each trial reached each target, s; NaN where it did not. Empty without a target.
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
    stops: int = 0
    reached_s: tuple[tuple[float, ...], ...] = ()


@dataclass(slots=True)
class _Attempt:
    """A trial on its devices."""

    number: int
    devices: tuple[int, ...]
    speed_up: float
    """Speed on these devices, relative to one."""
    limit_mib: float | None
    started_s: float
    ready_s: float
    group_since_s: float = math.inf
    """Since when it shares the device with the same trials, s; infinite during its start."""
    paused_at_s: float = math.inf
    """When its pause or stop is done, s; infinite: none was asked for."""
    ends_as: TrialState = TrialState.PAUSED
    share: float | None = None
    rate: float = 0.0
    """Speed as a share of that alone on one device."""
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
        self._saved_s = list(self._remaining_s)
        """Work left at the last checkpoint, s."""
        self._curves: list[tuple[CurvePoint, ...]] = [() for _ in self.trials]
        self._work_to_targets = [trial.work_to_targets for trial in self.trials]
        self._reached_s: list[list[float]] = [[] for _ in self.trials]
        self._targets_reached: Counter[str] = Counter()
        """By sweep."""
        self._ran_s = [0.0] * count
        self._killed_at_mib: list[float | None] = [None] * count
        self._attempts_on: list[list[_Attempt]] = [[] for _ in self.devices]
        self._running: dict[int, _Attempt] = {}
        self._seen = SeenTrials(self.trials, profiles.families, forecast=forecast, known_speeds=known_speeds)
        self._arrivals = [(trial.arrives_s, number) for number, trial in enumerate(self.trials)]
        heapq.heapify(self._arrivals)
        self._ended_since_query: list[int] = []
        self._killed: list[int] = []
        self._start_order: list[int] = []
        self._starts = self._pauses = self._stops = 0
        self._busy_s = self._reserved_mib_s = self._used_mib_s = 0.0

    def run(self, decide: Decide) -> PoolOutcome:
        """Run all trials to their ends.

        Raises
        ------
        RuntimeError
            The rule lets trials wait although nothing runs, or asks for what cannot be done.
        """
        while self._arrivals or any(state not in ENDED for state in self._state):
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
            stops=self._stops,
            ended_s=tuple(self._ended_s),
            reached_s=tuple(
                (*reached_s, *[math.nan] * (len(works) - len(reached_s)))
                for works, reached_s in zip(self._work_to_targets, self._reached_s, strict=True)
            ),
        )

    def snapshot(self) -> PoolSnapshot:
        """Return the pool as a rule sees it now."""
        shown = [
            number
            for number, state in enumerate(self._state)
            if self._arrived[number] and (state not in ENDED or number in self._ended_since_query)
        ]
        active = [number for number, state in enumerate(self._state) if state not in ENDED]
        trials = (
            replace(self._trial(number), forecast=self._seen.forecast(number, active, self._trial)) for number in shown
        )
        return PoolSnapshot(now_s=self.now_s, devices=self.devices, trials=tuple(trials), speeds=self._seen.speeds())

    def _trial(self, number: int) -> Trial:
        true, attempt = self.trials[number], self._running.get(number)
        ready = attempt is not None and attempt.ready_s <= self.now_s
        return Trial(
            number=number,
            parameters=true.parameters,
            family=self._names[true.family],
            state=self._state[number],
            devices=() if attempt is None else self._device_names(attempt),
            started_s=None if attempt is None else attempt.started_s,
            attempts=self._attempts[number],
            memory_limit_mib=None if attempt is None else attempt.limit_mib,
            memory_mib=self._memory_mib(number) if ready else None,
            peak_memory_mib=self._seen.peak_mib.get(number),
            out_of_memory_mib=self._killed_at_mib[number],
            progress=self._shown_progress(number),
            steps_per_s=None
            if attempt is None or not attempt.measured
            # With turns it shows the speed of its own ones.
            else (attempt.rate if attempt.share is None else attempt.speed_up)
            * float(self.profiles.alone[true.family]),
            share=None if attempt is None else attempt.share,
            curve=self._curves[number],
            sweep=true.sweep,
            weight=true.weight,
            target=true.target,
            targets_reached=self._targets_reached[true.sweep],
        )

    def _shown_progress(self, number: int) -> float | None:
        """Return the progress that a trial reported last."""
        true, seen = self.trials[number], len(self._curves[number])
        if not true.reports:
            return None
        if not true.curve:
            return self._progress(number)
        return true.curve[seen - 1][0] if seen else 0.0

    def _progress(self, number: int) -> float:
        """Return the share of a trial's work that is done."""
        seconds = self.trials[number].seconds
        return 1 - self._remaining_s[number] / seconds if seconds > 0 else 1.0

    def _memory_mib(self, number: int) -> float:
        """Return the memory that a trial has now, MiB."""
        true = self.trials[number]
        if true.first_memory == 1:
            return true.memory_mib
        return true.memory_mib * (true.first_memory + (1 - true.first_memory) * self._progress(number))

    def _growth_mib_s(self, attempt: _Attempt) -> float:
        """Return how much memory a trial takes each second, MiB."""
        true = self.trials[attempt.number]
        if true.first_memory == 1:
            return 0.0
        return true.memory_mib * (1 - true.first_memory) * self._speed(attempt) / max(1e-9, true.seconds)

    def _speed(self, attempt: _Attempt) -> float:
        """Return a trial's speed, with what starts on its node take."""
        if not self.costs.start_load:
            return attempt.rate
        node = node_name(self.devices[attempt.devices[0]].name)
        starting = sum(
            not other.computes and node_name(self.devices[other.devices[0]].name) == node
            for other in self._running.values()
        )
        return attempt.rate / (1 + self.costs.start_load * starting)

    def _device_names(self, attempt: _Attempt) -> tuple[str, ...]:
        return tuple(self.devices[index].name for index in attempt.devices)

    def _arrive(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_s:
            self._arrived[heapq.heappop(self._arrivals)[1]] = True

    def _apply(self, actions: Sequence[PoolAction]) -> None:
        for action in actions:
            if isinstance(action, StartTrial):
                self._start(action)
                continue
            attempt = self._running.get(action.number)
            if isinstance(action, StopTrial):
                self._stop(action, attempt)
            elif attempt is None:
                raise RuntimeError(f"Trial {action.number} does not run, and cannot be paused or get a share.")
            elif isinstance(action, ShareTrial):
                attempt.share = action.share
                self._update_rates(attempt.devices)
            elif attempt.paused_at_s == math.inf:
                attempt.paused_at_s = self.now_s + self.costs.pause_s
                self._pauses += 1
                self._update_rates(attempt.devices)

    def _stop(self, action: StopTrial, attempt: _Attempt | None) -> None:
        """End a trial, at its next checkpoint if it runs."""
        if self._state[action.number] in ENDED:
            raise RuntimeError(f"Trial {action.number} has ended, and cannot be stopped.")
        ends_as = TrialState.FINISHED if action.finished else TrialState.PRUNED
        if attempt is not None:
            attempt.ends_as = ends_as
            attempt.paused_at_s = min(attempt.paused_at_s, self.now_s + self.costs.pause_s)
            self._update_rates(attempt.devices)
            return
        self._stops += 1
        self._end(action.number, ends_as)

    def _end(self, number: int, state: TrialState) -> None:
        self._state[number], self._ended_s[number] = state, self.now_s
        self._ended_since_query.append(number)

    def _start(self, action: StartTrial) -> None:
        number, true, shape = action.number, self.trials[action.number], placement(action.devices)
        if self._state[number] not in {TrialState.WAITING, TrialState.PAUSED} or not self._arrived[number]:
            raise RuntimeError(f"Trial {number} is {self._state[number]} and cannot be started.")
        if shape not in true.speed_ups:
            raise RuntimeError(f"How fast trial {number} is on {', '.join(action.devices)} is not known.")
        indices = tuple(self._device_index[name] for name in action.devices)
        for index in indices:
            if len(self._attempts_on[index]) >= self.devices[index].slots:
                raise RuntimeError(f"{self.devices[index].name} has no free slot for trial {number}.")
        attempt = _Attempt(
            number=number,
            devices=indices,
            speed_up=true.speed_ups[shape],
            limit_mib=action.memory_limit_mib,
            started_s=self.now_s,
            ready_s=self.now_s + self.costs.start_s,
        )
        self._state[number] = TrialState.RUNNING
        self._attempts[number] += 1
        self._starts += 1
        self._start_order.append(number)
        for index in indices:
            self._attempts_on[index].append(attempt)
        self._running[number] = attempt

    def _advance(self) -> bool:
        """Go to the next event, and return whether there was one."""
        next_s = self._arrivals[0][0] if self._arrivals else math.inf
        for attempt in self._running.values():
            next_s = min(next_s, self._due_s(attempt))
        if any(trial.first_memory < 1 for trial in self.trials):
            next_s = min(next_s, *(self._overflows_s(index) for index in range(len(self.devices))))
        if next_s == math.inf:
            return False
        if self._running:
            next_s = min(next_s, self.now_s + self._query_every_s)
        step_s = max(0.0, next_s - self.now_s)
        used_mib = {number: self._memory_mib(number) for number in self._running}
        speeds = {number: self._speed(attempt) for number, attempt in self._running.items()}
        for number, attempt in self._running.items():
            self._remaining_s[number] -= step_s * speeds[number]
            self._ran_s[number] += step_s
            self._report_points(attempt, speeds[number])
            if attempt.limit_mib is not None:
                self._reserved_mib_s += step_s * attempt.limit_mib * len(attempt.devices)
                self._used_mib_s += step_s * min(attempt.limit_mib, used_mib[number]) * len(attempt.devices)
        self._busy_s += step_s * sum(bool(attempts) for attempts in self._attempts_on)
        self.now_s = next_s
        self._process_events()
        return True

    def _due_s(self, attempt: _Attempt) -> float:
        """Return when something happens to a trial next, s."""
        due = min(attempt.paused_at_s, math.inf if attempt.computes else attempt.ready_s)
        true = self.trials[attempt.number]
        if attempt.rate > 0 and attempt.paused_at_s == math.inf:
            work_s = min(self._remaining_s[attempt.number], self._work_to_target_s(attempt.number))
            due = min(due, self.now_s + work_s / self._speed(attempt))
        if not attempt.measured and true.reports:
            due = min(due, attempt.group_since_s + self.costs.measure_s)
        growth = self._growth_mib_s(attempt)
        if growth > 0 and attempt.limit_mib is not None:
            due = min(due, self.now_s + max(0.0, attempt.limit_mib - self._memory_mib(attempt.number)) / growth)
        return due

    def _overflows_s(self, index: int) -> float:
        """Return when the trials of a device have grown to its memory, s."""
        growth = sum(map(self._growth_mib_s, self._attempts_on[index]))
        room_mib = self.devices[index].memory_mib - self._used_on_mib(index)
        return self.now_s + max(0.0, room_mib) / growth if growth > 0 else math.inf

    def _used_on_mib(self, index: int, *, without: _Attempt | None = None) -> float:
        """Return the memory in use on a device, MiB."""
        return sum(
            self._memory_mib(attempt.number)
            for attempt in self._attempts_on[index]
            if attempt.computes and attempt is not without
        )

    def _process_events(self) -> None:
        now = self.now_s
        for attempt in list(self._running.values()):
            number = attempt.number
            is_done = self._reach_targets(attempt)
            if attempt.rate > 0 and (is_done or self._remaining_s[number] <= 1e-6):
                if not is_done:
                    self._remaining_s[number] = 0.0
                    self._report_points(attempt, attempt.rate)
                self._end(number, TrialState.FINISHED)
                self._seen.add_length(number, now - attempt.started_s)
                self._seen.add_end(number)
                self._remove_attempt(attempt)
            elif attempt.paused_at_s <= now:
                self._leave(attempt)
            elif not attempt.computes and attempt.ready_s <= now:
                if self._fits(attempt):
                    attempt.computes = True
                    self._seen.add_memory(number, self._memory_mib(number))
                    self._update_rates(attempt.devices)
                else:
                    self._kill(attempt)
        self._grow()
        for attempt in self._running.values():
            reports, known_s = self.trials[attempt.number].reports, attempt.group_since_s + self.costs.measure_s
            if reports and not attempt.measured and now >= known_s - 1e-9:
                self._measure(attempt)

    def _leave(self, attempt: _Attempt) -> None:
        """Take a trial that was paused or stopped from its devices."""
        number = attempt.number
        self._saved_s[number] = self._remaining_s[number]
        if attempt.ends_as is TrialState.PAUSED:
            self._state[number] = TrialState.PAUSED
        else:
            self._stops += 1
            self._end(number, attempt.ends_as)
        self._remove_attempt(attempt)

    def _work_to_target_s(self, number: int) -> float:
        """Return a trial's work until its next target alone, s.

        It is infinite where it will reach no other.
        """
        works, tier = self._work_to_targets[number], len(self._reached_s[number])
        if tier == len(works) or works[tier] == math.inf:
            return math.inf
        return self._remaining_s[number] - (1 - works[tier]) * self.trials[number].seconds

    def _reach_targets(self, attempt: _Attempt) -> bool:
        """Record the targets that a trial reached, and return whether it ends."""
        number, true = attempt.number, self.trials[attempt.number]
        reached_s = self._reached_s[number]
        while self._work_to_target_s(number) <= 1e-6:
            reached_s.append(self.now_s)
            self._targets_reached[true.sweep] = max(self._targets_reached[true.sweep], len(reached_s))
        return true.ends_at_target and 0 < len(reached_s) == len(self._work_to_targets[number])

    def _report_points(self, attempt: _Attempt, speed: float) -> None:
        """Take the points of its curve that a trial has passed."""
        number, true = attempt.number, self.trials[attempt.number]
        curve, progress = self._curves[number], self._progress(number) + 1e-9
        while speed > 0 and len(curve) < len(true.curve) and true.curve[len(curve)][0] <= progress:
            work, value = true.curve[len(curve)]
            since_s = (progress - work) * true.seconds / speed
            step = round(work * true.seconds * float(self.profiles.alone[true.family]))
            seen = value if math.isfinite(value) else None
            curve = (*curve, CurvePoint(step, self._ran_s[number] - since_s, seen))
        if curve is not self._curves[number]:
            self._curves[number] = curve
            self._seen.add_report()

    def _grow(self) -> None:
        """Kill trials whose memory exceeds their limit or their device."""
        growing = [
            attempt
            for attempt in self._running.values()
            if attempt.computes and self.trials[attempt.number].first_memory < 1
        ]
        for attempt in growing:
            self._seen.add_memory(attempt.number, self._memory_mib(attempt.number))
            if attempt.limit_mib is not None and self._memory_mib(attempt.number) > attempt.limit_mib - 1e-6:
                self._kill(attempt)
        for index, device in enumerate(self.devices if growing else ()):
            there = [attempt for attempt in self._attempts_on[index] if self._growth_mib_s(attempt) > 0]
            if there and self._used_on_mib(index) > device.memory_mib - 1e-6:
                growth = np.array(list(map(self._growth_mib_s, there)))
                self._kill(there[int(self._random.choice(len(there), p=growth / growth.sum()))])

    def _computing(self, index: int) -> list[_Attempt]:
        """Return the attempts on a device that neither start nor write a checkpoint."""
        return [attempt for attempt in self._attempts_on[index] if attempt.computes and attempt.paused_at_s == math.inf]

    def _others(self, attempt: _Attempt) -> list[_Attempt]:
        """Return the others on a trial's devices that are past their start."""
        there = {other.number: other for index in attempt.devices for other in self._attempts_on[index]}
        return [other for other in there.values() if other is not attempt and other.computes]

    def _fits(self, attempt: _Attempt) -> bool:
        own, own_mib = self.trials[attempt.number], self._memory_mib(attempt.number)
        if attempt.limit_mib is not None and own_mib > attempt.limit_mib + 1e-6:
            return False
        speeds = self.profiles.beside
        pairs = (speeds[own.family, self.trials[other.number].family] for other in self._others(attempt))
        return not any(map(math.isnan, pairs)) and all(
            own_mib + self._used_on_mib(index, without=attempt) <= self.devices[index].memory_mib + 1e-6
            for index in attempt.devices
        )

    def _kill(self, attempt: _Attempt) -> None:
        number, true, others = attempt.number, self.trials[attempt.number], self._others(attempt)
        device_mib = min(self.devices[index].memory_mib for index in attempt.devices)
        if not others and true.memory_mib > device_mib:
            raise RuntimeError(f"Trial {number} does not fit alone on {', '.join(self._device_names(attempt))}.")
        room_mib = min(
            self.devices[index].memory_mib - self._used_on_mib(index, without=attempt) for index in attempt.devices
        )
        limit_mib = min(device_mib if attempt.limit_mib is None else attempt.limit_mib, room_mib)
        self._killed.append(number)
        self._killed_at_mib[number] = max(limit_mib, self._killed_at_mib[number] or 0.0)
        self._state[number] = TrialState.WAITING
        if others and not attempt.computes and (attempt.limit_mib is None or true.memory_mib <= attempt.limit_mib):
            self._record_speed(attempt, others, 0.0)
        self._remaining_s[number] = self._saved_s[number]
        done = sum(work <= self._progress(number) + 1e-9 for work, _ in true.curve)
        self._curves[number] = self._curves[number][:done]
        self._remove_attempt(attempt)

    def _remove_attempt(self, attempt: _Attempt) -> None:
        del self._running[attempt.number]
        for index in attempt.devices:
            self._attempts_on[index].remove(attempt)
        self._update_rates(attempt.devices)

    def _update_rates(self, indices: Iterable[int]) -> None:
        """Update the rates of the trials on devices whose group changed."""
        attempts = {attempt.number: attempt for index in indices for attempt in self._attempts_on[index]}
        for attempt in attempts.values():
            if not attempt.computes or attempt.paused_at_s < math.inf:
                attempt.rate = 0.0
                continue
            attempt.rate = attempt.speed_up * min(self._rate_on(attempt, index) for index in attempt.devices)
            attempt.group_since_s, attempt.measured = self.now_s, False

    def _rate_on(self, attempt: _Attempt, index: int) -> float:
        """Return a trial's speed on one device, as a share of that alone.

        Where any trial has a share of the time, they take turns, as many at a time as the device has places.
        """
        computing = self._computing(index)
        if any(other.share is not None for other in computing):
            without = sum(other.share is None for other in computing)
            rest = max(0.0, 1 - sum(other.share or 0.0 for other in computing)) / max(1, without)
            shares = {other.number: rest if other.share is None else other.share for other in computing}
            return fill_places(shares, self.devices[index].places)[attempt.number]
        if len(computing) == 1:
            return 1.0
        families = [self.trials[other.number].family for other in computing if other is not attempt]
        beside = sum(self.profiles.beside[self.trials[attempt.number].family, other] for other in families)
        return float(beside) / (len(computing) * (len(computing) - 1) / 2)

    def _measure(self, attempt: _Attempt) -> None:
        attempt.measured = True
        others = self._others(attempt)
        if any(other.paused_at_s < math.inf for other in [attempt, *others]):
            return  # one of the group writes its checkpoint
        noise = 1 + self.costs.noise * float(self._random.standard_normal())
        alone = float(self.profiles.alone[self.trials[attempt.number].family])
        if attempt.share is None:  # else it is the speed neither alone nor beside others
            self._record_speed(attempt, others, self._speed(attempt) * alone * max(0.5, noise))
        self._seen.add_length(attempt.number, self.now_s - attempt.started_s)

    def _record_speed(self, attempt: _Attempt, others: Iterable[_Attempt], steps_per_s: float) -> None:
        beside = [self.trials[other.number].family for other in others]
        self._seen.add_speed(attempt.number, beside, placement(self._device_names(attempt)), steps_per_s)
