"""Packing of trials, which share devices where that ends the sweep sooner.

How much trials slow each other is not known before they run together, so the service learns it in the pool:

- A Gaussian process predicts the speeds of pairs from the measured pairs and the trials' parameters.
- A linear program over the families' remaining work gives the time that each group of trials should share a device,
  and the price of a second of each family's work. A group is worth the work that it does in a second, at these prices.
- What a trial's owner gives it as weight multiplies the price of its work, and brings it forward in its family.
- A device takes the group that is worth most. It changes it where another one is worth more than a restart costs.

Relish (doi 10.1145/3533028.3533309) packs by memory and by the overhead of segments; the plan by a linear program is
that of Gavel (OSDI'20), over families instead of jobs and without knowing the speeds.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from helios.training.model import (
    ONE_DEVICE,
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    Trial,
    TrialState,
)
from helios.training.services.fused_starts import fuse_where_faster
from helios.training.services.group_speeds import MOST_CLASSES, PRIOR_SPEED, Group, Traits, speeds_of_groups

URGENT, URGENT_FROM = 0.4, 0.5
"""Worth added for a trial that needs the whole planned time, so that it does not run alone at the end. It falls
linearly to 0 for a trial that needs half. From a quarter on, results come later (benchmarks/packing.py)."""
NEAR = 0.05
"""Difference of worth below which the shorter and earlier trial is started."""
JOIN = 0.5
"""Share of the option ``worth`` that is enough to join others, as nothing is paused for it."""
LONG = 0.5
"""A trial is long if it needs more than this share of the planned time alone; beside another it needs about all."""
SAMPLE_S, SETTLED_S = 90.0, 60.0
"""Time after a start in which a speed is usually known, and after which a trial without reports has none, s."""
CLEAR = 0.75
"""Mean speed beside another, as a share of that alone, from which sharing gains clearly, so that speeds alone are not
worth a wait, and no trial is paused for them."""
MOST_WAITING, MOST_SAMPLING = 0.02, 0.12
"""Shares of the planned time for which devices wait for speeds alone, and for which trials are paused for them."""
LATE, IN_TIME = 0.5, 0.9
"""A group in which a trial would need more than this share of the planned time loses worth, half of the excess."""
FEW_RESTARTS = 10.0
"""Restarts in the planned time below which no trial is paused for one that would end last."""
LEAST_SHARE = 0.05
"""Mean speed beside another, as a share of that alone, below which no lost speed is inferred from another's."""
EPSILON = 1e-9
"""Share of the work, and of a second, that counts as zero."""

_LAST_BASIS: dict[tuple[int, bytes, bytes], NDArray[np.intp]] = {}
"""Basis of the last solution, by number of groups, classes with work, and groups that do only such work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingOptions:
    """Options of the packing of trials.

    Attributes
    ----------
    every_s : int
        Time between two decisions where nothing happens, s.
    together : int
        Most trials on a device at the same time.
    head_room : float
        Memory that a trial may use above the expected one, as a share of it.
    optimism : float
        Standard deviations added to the prediction of an unmeasured pair, so that it is tried.
    restart_s : float
        Cost of pausing a trial and starting it again, s.
    worth : float
        Least gain, as a share of a device's worth, for which a device changes its group.
    for_ : str
        What it aims at: an early end of the sweep (``makespan``), or a short mean time to a result (``results``).
    """

    every_s: int = 30
    together: int = 8
    head_room: float = 0.1
    optimism: float = 1.0
    restart_s: float = 40.0
    worth: float = 0.04
    for_: Literal["makespan", "results"] = "makespan"

    def __post_init__(self) -> None:
        for valid, message in (
            (self.every_s > 0, "every_s must be positive"),
            (1 <= self.together <= 64, "together must lie between 1 and 64"),
            (0 <= self.head_room <= 4, "head_room must lie between 0 and 4"),
            (0 <= self.optimism <= 10, "optimism must lie between 0 and 10"),
            (0 <= self.restart_s < math.inf, "restart_s must be at least 0 and finite"),
            (0 <= self.worth < 1, "worth must lie between 0 and 1"),
        ):
            if not valid:
                raise ValueError(message)


class Packing:
    """Share devices between trials where that ends the sweep sooner.

    The first trial of a family runs alone until its memory and its speed are known. An unmeasured group is tried on one
    device at a time. The expected memory of all trials on a device, with head-room, stays within the device's. A trial
    killed for memory starts again with half as much more, and alone after the second time.
    """

    Options = PackingOptions

    def __init__(self, options: PackingOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)

    def decide(self, snapshot: PoolSnapshot) -> list[PoolAction]:
        """Return which trials to start where, and which to pause."""
        speeds = tuple(speed for speed in snapshot.speeds if speed.placement == ONE_DEVICE)
        actions, remaining = fuse_where_faster(replace(snapshot, speeds=speeds))
        decision = _Decision(remaining, self.options)
        return [*actions, *(decision.decide() if decision.waiting or decision.running else [])]


def least_device_time(
    rates: NDArray[np.float64], work: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solve for the least device time in which groups do all work.

    Parameters
    ----------
    rates : float64 array of shape (n_groups, n_classes)
    work : float64 array of shape (n_classes,)
        Remaining seconds alone.

    Returns
    -------
    price : float64 array of shape (n_classes,)
        Device seconds that one more second of a class's work takes.
    time : float64 array of shape (n_groups,)
        How long each group is on devices, s.
    """
    has_work = work > 0
    price, time = np.ones(len(work)), np.zeros(len(rates))
    if not has_work.any():
        return price, time
    useful = np.flatnonzero((rates[:, has_work] > 0).any(axis=1) & (rates[:, ~has_work] <= 0).all(axis=1))
    used_rates, share = rates[np.ix_(useful, has_work)].T, work[has_work] / work.sum()
    key = (len(rates), has_work.tobytes(), useful.tobytes())
    solution = _solve_again(used_rates, share, _LAST_BASIS.get(key))
    if solution is None:
        result = linprog(np.ones(len(useful)), A_ub=-used_rates, b_ub=-share, method="highs")
        if result.status != 0:
            return price, time
        solution = -result.ineqlin.marginals, result.x
        if len(_LAST_BASIS) > 64:
            _LAST_BASIS.clear()
        _LAST_BASIS[key] = np.flatnonzero(np.concatenate([result.x, result.slack]) > EPSILON)
    price[has_work], time[useful] = solution[0], solution[1] * work.sum()
    return price, time


def _solve_again(
    rates: NDArray[np.float64], share: NDArray[np.float64], basis: NDArray[np.intp] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Solve with a known basis, if that is still optimal.

    Work and speeds change little between two decisions, so the basis often stays the same. Only a unique solution is
    taken, so that a result never depends on earlier ones.
    """
    count, groups = rates.shape
    if basis is None or len(basis) != count:
        return None
    columns = np.hstack([rates, -np.eye(count)])
    cost = np.concatenate([np.ones(groups), np.zeros(count)])
    try:
        inverse = np.linalg.inv(columns[:, basis])
    except np.linalg.LinAlgError:
        return None
    amount, price = inverse @ share, cost[basis] @ inverse
    reduced_cost = cost - price @ columns
    reduced_cost[basis] = 1.0
    if amount.min() <= EPSILON or reduced_cost.min() <= EPSILON:
        return None
    time = np.zeros(groups + count)
    time[basis] = amount
    return price, time[:groups]


class _Decision:
    """One decision about a pool.

    Groups and classes are given by their indices in ``speeds``.

    Attributes
    ----------
    for_results : bool
        Whether early results are aimed at, not an early end: no trial waits or is paused so that speeds are known.
    trials_on : dict of str to list of Trial
        Running trials of each device.
    queue : dict of int to list of Trial
        Waiting trials of each class that were not started yet, in the order of their starts.
    worth : float64 array of shape (n_groups,)
        Worth of a group's work in a second.
    is_planned : bool array of shape (n_groups,)
        Whether the plan has a group.
    planned_s : float
        Time until all work is done by the plan, s.
    mean_length_s : float
        Mean length of a trial alone, s; 0: none is known.
    most_needed_mib : float
        Most memory that is kept for a trial, MiB; 0: nothing is known.
    measured_alone : set of str
        Families whose speed alone was measured, or is forecast.
    waits_for_speeds : bool
        Whether a trial that is alone stays so until its speed is known.
    loses : bool
        Whether sharing is known not to gain clearly.
    sampling : bool
        Whether trials are paused for families to be measured alone.
    """

    def __init__(self, snapshot: PoolSnapshot, options: PackingOptions) -> None:
        self.options, self.for_results = options, options.for_ == "results"
        self.devices = snapshot.devices
        self.waiting = [t for t in snapshot.trials if t.state in {TrialState.WAITING, TrialState.PAUSED}]
        self.running = [t for t in snapshot.trials if t.state is TrialState.RUNNING]
        active = self.waiting + self.running
        speeds = (*snapshot.speeds, *_expected_speeds(active, snapshot.speeds))
        optimism = 0.0 if self.for_results else options.optimism  # what a try costs comes back at the end alone
        self.speeds = speeds_of_groups(_traits(active, speeds), speeds, options.together, optimism)
        alone = {speed.family: speed.steps_per_s for speed in speeds if not speed.beside}
        self.family_lengths_s = _family_lengths(active, alone, now_s=snapshot.now_s)
        self.family_peaks_mib: dict[str, float] = {}
        for trial in snapshot.trials:
            if trial.peak_memory_mib is not None:
                peak_mib = max(trial.peak_memory_mib, self.family_peaks_mib.get(trial.family, 0.0))
                self.family_peaks_mib[trial.family] = peak_mib
        lengths_s = self.family_lengths_s.values()
        self.mean_length_s = sum(lengths_s) / len(lengths_s) if lengths_s else 0.0
        self._left_s = {trial.number: self._expected_left_s(trial) for trial in active}
        self._needed_mib = {trial.number: self._expected_need_mib(trial) for trial in active}
        self.most_needed_mib = max((need or 0.0 for need in self._needed_mib.values()), default=0.0)
        self.trials_on: dict[str, list[Trial]] = {device.name: [] for device in self.devices}
        for trial in self.running:
            for name in self.trials_on.keys() & {*trial.devices}:
                self.trials_on[name].append(trial)
        self.queue: dict[int, list[Trial]] = defaultdict(list)
        for trial in self.waiting:
            self.queue[self.class_of(trial)].append(trial)
        self.actions: list[PoolAction] = []
        self._plan(active)
        self.now_s = snapshot.now_s
        self.measured_alone = {speed.family for speed in snapshot.speeds if not speed.beside}
        self.measured_alone |= {trial.family for trial in active if trial.forecast.steps_per_s}
        self.measured = {speed.family for speed in snapshot.speeds}
        shares = _shares(snapshot.speeds)
        is_clear = _usual_share(shares) >= CLEAR
        unknown = {trial.family for trial in active} - self.measured_alone
        wait_s = len(unknown) * SAMPLE_S / 2 / max(1, len(self.devices))
        self.waits_for_speeds = not is_clear and wait_s <= MOST_WAITING * self.planned_s
        self.loses = not is_clear and bool(shares)
        self._start_orders = {trial.number: self.start_order(trial) for trial in self.waiting}
        for queue in self.queue.values():
            queue.sort(key=lambda trial: self._start_orders[trial.number])
        self.sampling = (
            not self.for_results and self.loses and bool(unknown) and 3 * wait_s <= MOST_SAMPLING * self.planned_s
        )
        self.n_samples = sum(bool(q) and q[0].family in unknown for q in self.queue.values())
        self._extensions: dict[Group, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        self._heads = np.array([self._head(cls) for cls in range(self.speeds.rates.shape[1])]).reshape(-1, 4)

    def _head(self, cls: int) -> tuple[float, float, float, float]:
        """Return the memory, work left, urgency and turn of a class's next trial."""
        queue = self.queue.get(cls)
        if not queue:
            return math.inf, math.inf, 0.0, math.inf
        trial = queue[0]
        return (
            self.need_mib(trial) or 0.0,
            self.left_s(trial),
            self.urgency(trial),
            trial.number + 1e9 * self.can_wait(trial),
        )

    def _plan(self, active: Iterable[Trial]) -> None:
        """Plan the work of all trials.

        A second of a trial's work is worth its price times the weight of its class, relative to the mean weight.
        """
        work = np.zeros(self.speeds.rates.shape[1])
        weighted = np.zeros(len(work))
        for trial in active:
            work[self.class_of(trial)] += self.left_s(trial)
            weighted[self.class_of(trial)] += self.left_s(trial) * trial.weight
        mean_weight = max(EPSILON, weighted.sum() / work.sum()) if work.any() else 1.0
        weight = np.divide(weighted, work * mean_weight, out=np.ones(len(work)), where=work > 0)
        rates = np.where(self._fitting_groups()[:, None], self.speeds.rates, 0.0)
        # A CPU's slots are filled without a plan.
        price, time_s = least_device_time(rates, work * any(device.kind != "cpu" for device in self.devices))
        self.worth, self.is_planned = self.speeds.rates @ (price * weight), time_s > 0
        self.planned_s = float(time_s.sum()) / max(1, len(self.devices))

    def _fitting_groups(self) -> NDArray[np.bool_]:
        """Return which groups fit into the memory of the largest device.

        A plan with others could not be followed, and its prices would be wrong.
        """
        least_mib = [math.inf] * self.speeds.rates.shape[1]
        for trial in (*self.waiting, *self.running):
            cls = self.class_of(trial)
            least_mib[cls] = min(least_mib[cls], self.need_mib(trial) or 0.0)
        largest_mib = max((device.memory_mib for device in self.devices), default=0.0)
        fits = [len(group) == 1 or sum(least_mib[cls] for cls in group) <= largest_mib for group in self.speeds.groups]
        return np.array(fits, dtype=bool)

    def decide(self) -> list[PoolAction]:
        """Return the actions."""
        for device in self.devices:
            if device.kind == "cpu":
                self.fill_cores(device)
        self.devices = tuple(device for device in self.devices if device.kind != "cpu")
        for device in self.devices:
            if not self.trials_on[device.name]:
                self.start_first(device)
        closed = self.make_room()
        for device in self.devices:
            if device.name in closed or (self.sampling and self.sample(device)):
                continue
            while self.join(device):
                pass
        if not self.queue_length():
            self.spread()
        elif not self.actions:
            self.even_ends()
        if not self.actions:
            for device in self.devices:
                trials = self.trials_on[device.name]
                is_sure = self.loses or all(trial.family in self.measured_alone for trial in trials)
                if len(trials) > 1 and is_sure and self.settled(trials):
                    self.split_group(device)
        return self.actions

    @property
    def sees_end(self) -> bool:
        """Whether the end of the sweep is aimed at and can be expected."""
        return not self.for_results and self.mean_length_s > 0 and self.planned_s > 0

    # Starts.

    def fill_cores(self, device: Device) -> None:
        """Start a trial in each free slot of the CPU.

        Slots have cores of their own there.
        """
        trials = self.trials_on[device.name]
        even_mib = device.memory_mib / max(1, device.slots)
        room_mib = device.memory_mib - sum(min(device.memory_mib, t.memory_limit_mib or even_mib) for t in trials)
        if any(map(self.keeps_device, trials)):
            return
        n_started = len(trials)
        for trial in sorted((t for queue in self.queue.values() for t in queue), key=lambda t: (-t.weight, t.number)):
            need_mib = min(self.need_mib(trial) or even_mib, device.memory_mib)
            if _ran_out_twice(trial):
                need_mib = device.memory_mib
            if n_started < device.slots and need_mib <= room_mib * (1 + 1e-9):
                room_mib -= need_mib
                n_started += 1
                self._start(trial, device, need_mib, "a slot is free")

    def start_first(self, device: Device) -> None:
        """Start the next trial on a device without trials.

        Where nothing is known yet, it gets half of the device, as another is to join it.
        """
        heads = [queue[0] for queue in self.queue.values() if queue]
        if self.sampling:
            heads = [trial for trial in heads if trial.family not in self.measured_alone] or heads
        if heads:
            trial = min(heads, key=lambda trial: self._start_orders[trial.number])
            is_shared = not self.most_needed_mib and self.queue_length() > len(self.devices)
            limit_mib = self.need_mib(trial) or (device.memory_mib / 2 if is_shared else None)
            self.start(trial, device, "a device is free", limit_mib=None if _ran_out_twice(trial) else limit_mib)

    def join(self, device: Device) -> bool:
        """Add a trial to a device, and return whether that is worth it."""
        trials = self.trials_on[device.name]
        group = self.group_index(trials) if trials else None
        room_mib = device.memory_mib - sum(map(self.reserved_mib, trials))
        if group is None or len(trials) >= self.most_trials(device) or room_mib <= 0 or self.waits(trials, device):
            return False
        classes, larger = self.extensions(trials)
        need_mib, _, urgency, turn = self._heads[classes].T
        worth = self.worth[larger] - self._lateness_of_all(trials, classes, larger)
        now = float(self.worth[group]) - self.lateness(trials, group)
        least = now + np.where(self.is_planned[larger], -EPSILON, self.options.worth * JOIN)
        order = np.lexsort((turn, -np.round((worth + URGENT * urgency) / NEAR)))
        for place in order[(worth >= least)[order] & np.isfinite(need_mib)[order]]:
            trial = self.pick(int(classes[place]), room_mib, device)
            if trial is not None:
                reason = self.describe([*trials, trial], int(larger[place]))
                self.start(trial, device, reason, limit_mib=self.need_mib(trial) or self.unknown_need_mib(device))
                return True
        return False

    def extensions(self, trials: Sequence[Trial]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the classes that may join trials, with the larger groups."""
        group = self.group(trials)
        if group not in self._extensions:
            found = self.speeds.extensions(group)
            self._extensions[group] = (
                np.array([added for added, _ in found], dtype=np.intp),
                np.array([larger for _, larger in found], dtype=np.intp),
            )
        return self._extensions[group]

    def _lateness_of_all(
        self, trials: Sequence[Trial], classes: NDArray[np.intp], larger: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return the lateness of trials with the next one of each class."""
        if not self.sees_end:
            return np.zeros(len(classes))
        counts, rates = Counter(map(self.class_of, trials)), np.maximum(1e-6, self.speeds.rates[larger])
        joining = np.array([counts[int(cls)] + 1 for cls in classes])
        lasts_s = self._heads[classes, 1] * joining / rates[np.arange(len(classes)), classes]
        for trial in trials:
            cls = self.class_of(trial)
            lasts_s = np.maximum(lasts_s, self.left_s(trial) * (counts[cls] + (classes == cls)) / rates[:, cls])
        return np.asarray(LATE * np.clip(lasts_s / self.planned_s - IN_TIME, 0.0, 1.0))

    def waits(self, trials: Sequence[Trial], device: Device) -> bool:
        """Return whether trials are joined later, or by none.

        A trial may stay alone until its speed is known. The first device has it do so where nothing is known, since
        nobody can tell otherwise whether sharing gains, unless trials are too short for that.
        """
        if any(map(self.keeps_device, trials)):
            return True
        if len(trials) > 1 or trials[0].family in self.measured_alone or not self.queue_length():
            return False
        trial = trials[0]
        age_s = self.now_s - (self.now_s if trial.started_s is None else trial.started_s)
        if not self.measured_alone and device is self.devices[0] and not self.for_results:
            wait_s = SAMPLE_S / 2 / len(self.devices)
            is_short = bool(self.mean_length_s) and wait_s > MOST_WAITING / 2 * self.planned_s
            return age_s < (SETTLED_S if trial.progress is None else SAMPLE_S) and not is_short
        is_reporting = trial.family in self.measured or (trial.progress is not None and age_s < SAMPLE_S)
        return self.waits_for_speeds and is_reporting

    def unknown_need_mib(self, device: Device) -> float:
        """Return the memory to keep for an unknown trial, MiB.

        It is half of the device, or what another trial needs if that is more.
        """
        return max(device.memory_mib / 2, self.most_needed_mib)

    def pick(self, cls: int, room_mib: float, device: Device) -> Trial | None:
        """Return the next waiting trial of a class that fits beside others.

        While families are measured alone, one that was not is not picked.
        """
        for trial in self.queue.get(cls, ()):
            need_mib = self.need_mib(trial) or self.unknown_need_mib(device)
            may_share = not self.sampling or trial.family in self.measured_alone
            if may_share and need_mib <= room_mib * (1 + 1e-9) and not _ran_out_twice(trial):
                return trial
        return None

    def start(self, trial: Trial, device: Device, reason: str, *, limit_mib: float | None) -> None:
        """Start a trial, with a memory limit unless it gets the whole device."""
        self._start(trial, device, limit_mib, reason)
        self.trials_on[device.name].append(replace(trial, memory_limit_mib=limit_mib))

    def _start(self, trial: Trial, device: Device, need_mib: float | None, reason: str) -> None:
        limit_mib = None if need_mib is None or need_mib >= device.memory_mib else need_mib
        self.actions.append(
            StartTrial(number=trial.number, devices=(device.name,), memory_limit_mib=limit_mib, reason=reason)
        )
        cls = self.class_of(trial)
        self.queue[cls].remove(trial)
        self._heads[cls] = self._head(cls)

    # Pauses.

    def make_room(self) -> set[str]:
        """Pause trials for waiting ones that would end last.

        Such a trial may fit beside no other, and a device that others join is never free.

        Returns
        -------
        set of str
            Devices that no trial is to join.
        """
        closed: set[str] = set()
        for trial in self.late_trials():
            candidates = [
                (sum(map(self.left_s, trials)), name)
                for name, trials in ((device.name, self.trials_on[device.name]) for device in self.devices)
                if name not in closed
                and trials
                and self.settled(trials)
                and max(map(self.left_s, trials)) < 0.5 * self.left_s(trial)
                and not any(map(self.keeps_device, trials))
            ]
            if not candidates:
                break
            name = min(candidates)[1]
            closed.add(name)
            reason = f"trial {trial.number} would end last, and has no device"
            self.actions += [PauseTrial(number=other.number, reason=reason) for other in self.trials_on[name]]
        return closed

    def sample(self, device: Device) -> bool:
        """Run a trial alone to measure it, and return whether that is done."""
        trials = self.trials_on[device.name]
        if not trials or any(self.left_s(trial) < 2 * SAMPLE_S for trial in trials):
            return False
        new = [trial for trial in trials if trial.family not in self.measured_alone]
        paused = [trial for trial in trials if trial is not new[0]] if new else trials
        if not new:
            self.n_samples -= 1
        if (paused and not self.settled(trials)) or (not new and self.n_samples < 0):
            return False
        self.actions += [PauseTrial(number=t.number, reason="a family of trials is not known yet") for t in paused]
        return True

    def spread(self) -> None:
        """Pause the shortest trials of groups, for devices without trials to take."""
        n_free = sum(not self.trials_on[device.name] for device in self.devices)
        pauses: list[tuple[float, int]] = []
        for device in self.devices:
            trials = self.trials_on[device.name]
            group = self.group_index(trials) if len(trials) > 1 and self.settled(trials) else None
            if group is None or not self.mean_length_s:
                continue
            end_together_s = max(self.lasts_each_s(trials, group))
            shortest = min(trials, key=lambda t: (self.left_s(t), t.number))
            end_apart_s = max(self.left_s(t) + (self.options.restart_s if t is shortest else 0.0) for t in trials)
            if end_together_s - end_apart_s > self.options.restart_s:
                pauses.append((end_together_s, shortest.number))
        for _, number in sorted(pauses, reverse=True)[:n_free]:
            self.actions.append(PauseTrial(number=number, reason="a device without trials can take it"))

    def even_ends(self) -> None:
        """Pause a short trial for a longer one where that ends sooner.

        It is done once no more trials wait than there are devices, and each device runs one trial.
        """
        waiting_s = sorted((self.left_s(t) for queue in self.queue.values() for t in queue), reverse=True)
        alone = [trials[0] for device in self.devices if len(trials := self.trials_on[device.name]) == 1]
        if not self.sees_end or not 0 < len(waiting_s) <= len(self.devices) or len(alone) < len(self.devices):
            return
        left_s = [self.left_s(trial) for trial in alone]
        restart_s = self.options.restart_s
        end_s = _last_end_s(left_s, waiting_s)
        best: tuple[float, Trial] | None = None
        for i, trial in enumerate(alone):
            if trial.steps_per_s is None or self.keeps_device(trial):
                continue
            busy_s = [*left_s[:i], waiting_s[0] + restart_s, *left_s[i + 1 :]]
            changed_end_s = _last_end_s(busy_s, [*waiting_s[1:], left_s[i] + restart_s])
            if end_s - changed_end_s > restart_s and (best is None or changed_end_s < best[0]):
                best = changed_end_s, trial
        if best is not None:
            self.actions.append(PauseTrial(number=best[1].number, reason="a waiting trial has more work left"))

    def split_group(self, device: Device) -> None:
        """Pause a trial of a group if another group is worth more."""
        trials = self.trials_on[device.name]
        group = self.group_index(trials)
        if group is None:
            return
        now = float(self.worth[group]) - self.lateness(trials, group)
        best: tuple[float, int] | None = None
        for leaving in trials:
            if self.is_urgent(leaving):
                continue
            staying = [trial for trial in trials if trial is not leaving]
            lasts_s = min(self.planned_s, max(map(self.left_s, staying))) if self.mean_length_s else math.inf
            for changed, members in self._groups_of(staying, device, without=group):
                # An unmeasured group often turns out worse than hoped, and then costs a second restart.
                cost_s = self.options.restart_s * (1.5 if self.speeds.measured[changed] else 3.0)
                more = float(self.worth[changed]) - self.lateness(members, changed) - now
                gain_s = more * lasts_s - cost_s
                if more > self.options.worth and gain_s > 0 and (best is None or gain_s > best[0]):
                    best = (gain_s, leaving.number)
        if best is not None:
            share = self.speeds.rates[group].sum()
            reason = f"{_names(trials)} together do {share:.2f} of one alone; another group does more"
            self.actions.append(PauseTrial(number=best[1], reason=reason))

    def _groups_of(self, staying: list[Trial], device: Device, *, without: int) -> list[tuple[int, list[Trial]]]:
        """Return the groups of the staying trials, alone or with a waiting one."""
        smaller = self.group_index(staying)
        if smaller is None:
            return []
        groups = [(smaller, staying)]
        room_mib = device.memory_mib - sum(map(self.reserved_mib, staying))
        for cls, larger in self.speeds.extensions(self.group(staying)):
            if larger != without and (joining := self.pick(cls, room_mib, device)):
                groups.append((larger, [*staying, joining]))
        return groups

    # Trials and groups.

    def class_of(self, trial: Trial) -> int:
        """Return the class of a trial's family."""
        return self.speeds.class_of[trial.family]

    def group(self, trials: Iterable[Trial]) -> Group:
        """Return the classes of trials."""
        return tuple(sorted(map(self.class_of, trials)))

    def group_index(self, trials: Iterable[Trial]) -> int | None:
        """Return the group of trials, or None if it is not allowed."""
        return self.speeds.index.get(self.group(trials))

    def most_trials(self, device: Device) -> int:
        """Return the most trials on a device at a time."""
        return min(self.options.together, device.slots)

    def queue_length(self) -> int:
        """Return how many trials wait and were not started."""
        return sum(map(len, self.queue.values()))

    def settled(self, trials: Sequence[Trial]) -> bool:
        """Return whether the speeds and the memory of a device's trials are known.

        The group may have been measured on another device.
        """
        if all(trial.steps_per_s is not None for trial in trials):
            return True
        group = self.group_index(trials)
        if group is None or not self.speeds.measured[group]:
            return False
        return all(t.peak_memory_mib is not None and t.family in self.measured_alone for t in trials)

    def keeps_device(self, trial: Trial) -> bool:
        """Return whether a running trial must keep its device for itself."""
        return _ran_out_twice(trial) and trial.memory_limit_mib is None

    def describe(self, trials: Sequence[Trial], group: int) -> str:
        """Return why trials run together, for a person."""
        if len(trials) == 1:
            return "alone on its device"
        share = self.speeds.rates[group].sum()
        source = "measured" if self.speeds.measured[group] else "expected, to be measured"
        return f"{_names(trials)} together do {share:.2f} of one alone ({source})"

    # Time.

    def left_s(self, trial: Trial) -> float:
        """Return the expected remaining time of a trial alone, s."""
        return self._left_s[trial.number]

    def _expected_left_s(self, trial: Trial) -> float:
        # Where no length is known, all trials count as 1 s long.
        length_s = trial.forecast.seconds_p50 or self.family_lengths_s.get(trial.family) or self.mean_length_s or 1.0
        return max(1e-3, length_s * (1 - min(1.0, max(0.0, trial.progress or 0.0))))

    def lasts_each_s(self, trials: Sequence[Trial], group: int) -> list[float]:
        """Return how long each of some trials takes in their group, s."""
        counts, rates = Counter(map(self.class_of, trials)), self.speeds.rates[group]
        return [
            self.left_s(trial) * counts[cls] / max(1e-6, float(rates[cls]))
            for trial, cls in ((trial, self.class_of(trial)) for trial in trials)
        ]

    def is_urgent(self, trial: Trial) -> bool:
        """Return whether a trial would end last if it did not run now."""
        return self.sees_end and self.left_s(trial) > LONG * self.planned_s

    def start_order(self, trial: Trial) -> tuple[float, float, int]:
        """Return the order of a class's trials, urgent, short and heavy first."""
        length_s = 1.0 if self.loses else self.left_s(trial)
        return -round(self.urgency(trial), 2), length_s / max(EPSILON, trial.weight), trial.number

    def can_wait(self, trial: Trial) -> bool:
        """Return whether a trial is long and not urgent.

        Others give results first then. Where sharing loses none waits, as all families are to be known early instead.
        """
        return not self.loses and self.left_s(trial) > 1.001 * self.mean_length_s > 0 and not self.urgency(trial)

    def urgency(self, trial: Trial) -> float:
        """Return how urgent a trial is, 0 to 1.

        One that starts too late ends last and alone.
        """
        if not self.sees_end:
            return 0.0
        return min(1.0, max(0.0, (self.left_s(trial) / self.planned_s - URGENT_FROM) / (1 - URGENT_FROM)))

    def lateness(self, trials: Sequence[Trial], group: int) -> float:
        """Return what a group loses if one of its trials ends last."""
        if not self.sees_end:
            return 0.0
        return LATE * min(1.0, max(0.0, max(self.lasts_each_s(trials, group)) / self.planned_s - IN_TIME))

    def late_trials(self) -> list[Trial]:
        """Return the waiting trials that would end last, the longest first."""
        if not self.sees_end or self.planned_s < FEW_RESTARTS * self.options.restart_s:
            return []
        late = [t for queue in self.queue.values() for t in queue if self.left_s(t) > IN_TIME * self.planned_s]
        return sorted(late, key=lambda t: (-self.left_s(t), t.number))

    # Memory.

    def need_mib(self, trial: Trial) -> float | None:
        """Return the memory to keep for a trial, MiB, None if unknown."""
        return self._needed_mib[trial.number]

    def _expected_need_mib(self, trial: Trial) -> float | None:
        forecast = trial.forecast
        own = max(trial.peak_memory_mib or 0.0, forecast.memory_p50_mib or forecast.memory_p95_mib or 0.0)
        expected = own or self.family_peaks_mib.get(trial.family, 0.0)
        need = max(expected * (1 + self.options.head_room), forecast.memory_p95_mib or 0.0)
        if forecast.memory_most_mib is not None:
            need = max(own, min(need, forecast.memory_most_mib))
        if trial.out_of_memory_mib is not None:
            need = max(need, 1.5 * trial.out_of_memory_mib)
        return need or None

    def reserved_mib(self, trial: Trial) -> float:
        """Return the memory reserved for a running trial, MiB."""
        if trial.memory_limit_mib is not None:
            return trial.memory_limit_mib
        peak_mib = trial.peak_memory_mib or trial.forecast.memory_p95_mib
        return math.inf if not peak_mib else peak_mib * (1 + self.options.head_room)


def _ran_out_twice(trial: Trial) -> bool:
    return trial.out_of_memory_mib is not None and trial.attempts > 2


def _last_end_s(busy_s: Sequence[float], waiting_s: Sequence[float]) -> float:
    """Return the makespan of trials alone, the longest first, s."""
    ends_s = sorted(busy_s)
    for length_s in sorted(waiting_s, reverse=True):
        heapq.heapreplace(ends_s, ends_s[0] + length_s)
    return max(ends_s)


def _family_lengths(trials: Iterable[Trial], alone: Mapping[str, float], *, now_s: float) -> dict[str, float]:
    """Return the mean length of each family's trials alone, s.

    It follows from forecasts, else from the progress of running trials.
    """
    forecast: dict[str, list[float]] = defaultdict(list)
    running: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.forecast.seconds_p50:
            forecast[trial.family].append(trial.forecast.seconds_p50)
        elif trial.started_s is not None and trial.attempts == 1 and 0.02 < (trial.progress or 0.0) <= 1:
            speed = alone.get(trial.family) or 0.0
            share = min(1.0, trial.steps_per_s / speed) if trial.steps_per_s and speed else 1.0
            running[trial.family].append(max(1e-3, now_s - trial.started_s) * share / (trial.progress or 1.0))
    return {family: sum(lengths) / len(lengths) for family, lengths in (running | forecast).items()}


def _expected_speeds(trials: Iterable[Trial], measured: Iterable[SharedSpeed]) -> tuple[SharedSpeed, ...]:
    """Return expected speeds alone of families never run alone.

    They are forecast, else what the family did beside others over what others lost there.
    """
    alone = {speed.family for speed in measured if not speed.beside}
    expected = {t.family: t.forecast.steps_per_s for t in trials if t.forecast.steps_per_s and t.family not in alone}
    usual = _usual_share(_shares(measured))
    shared: dict[str, list[float]] = defaultdict(list)
    for speed in measured:
        if len(speed.beside) == 1 and speed.steps_per_s and speed.family not in alone | set(expected):
            shared[speed.family].append(speed.steps_per_s / usual)
    expected |= {family: sum(rates) / len(rates) for family, rates in shared.items()}
    return tuple(
        SharedSpeed(family=family, beside=(), steps_per_s=float(f"{steps:.2g}"), samples=1)
        for family, steps in sorted(expected.items())
    )


def _shares(measured: Iterable[SharedSpeed]) -> list[float]:
    """Return the speeds beside one other, as shares of that alone."""
    measured = list(measured)
    alone = {speed.family: speed.steps_per_s for speed in measured if not speed.beside}
    return [
        min(1.0, speed.steps_per_s / alone[speed.family])
        for speed in measured
        if len(speed.beside) == 1 and alone.get(speed.family)
    ]


def _usual_share(shares: Sequence[float]) -> float:
    return max(LEAST_SHARE, sum(shares) / len(shares)) if shares else PRIOR_SPEED


def _names(trials: Iterable[Trial]) -> str:
    return " and ".join(sorted(trial.family or f"trial {trial.label}" for trial in trials))


def _traits(trials: Iterable[Trial], speeds: Iterable[SharedSpeed]) -> Traits:
    """Return the families with the simple parameters that all their trials share.

    Families without active trials, of which speeds are known, are among them unless there are too many.
    """
    common: dict[str, dict[str, Any]] = {}
    for trial in trials:
        simple = {name: v for name, v in trial.parameters.items() if isinstance(v, str | int | float)}
        shared = common.get(trial.family)
        common[trial.family] = (
            simple if shared is None else {name: v for name, v in shared.items() if simple.get(name) == v}
        )
    ended = {speed.family for speed in speeds} - set(common)
    if len(ended) + len(common) <= MOST_CLASSES:
        common |= {family: {} for family in ended}
    return tuple((family, tuple(sorted(common[family].items()))) for family in sorted(common))
