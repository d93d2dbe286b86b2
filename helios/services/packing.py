"""Packing of trials, which share devices where that ends the sweep sooner.

What two trials do to each other is not known before they ran together, so the service learns it in the pool. Speeds of
pairs are predicted by a Gaussian process from the pairs that were measured and from the trials' parameters. A linear
program over the families' remaining work then says how long each group of trials should share a device at best, and
what a second of each family's work is worth. A device takes the group that is worth most, and gives it up where
another one would be worth more than a restart costs.

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
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from helios.model.pools import (
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    Trial,
    TrialState,
    by_process,
    fuse,
)

PRIOR_SPEED = 0.6
"""Expected speed of a trial beside another, as a share of its speed alone, before anything was measured."""
KERNEL = {"level": 0.05, "own": 0.08, "other": 0.08, "pair": 0.06, "alike": 0.05, "noise": 0.002}
"""Variances of the log speed beside another, by what it is due to. Chosen on K80 and P100."""
MOST_MEASURED = 320
"""Most measured pairs used for a prediction. More would cost time and improve it little."""
MOST_CLASSES = 40
"""Most classes in the plan. With more families, similar ones share a class."""
GROWTH = 1.1
"""Least gain of a group over the same without one trial, for which another trial more is tried."""
FEW_CLASSES = 6
"""Classes up to which any may be the third of a group."""
URGENT, FROM = 0.4, 0.25
"""Worth added to a group with a trial that needs the whole planned time, so that it does not run alone at the end.
Of one that needs less it is less, and nothing below this share. Chosen on draws 200 to 203 of benchmarks/packing.py."""
JOIN = 0.5
"""Share of the option ``worth`` that is enough to join others, since nothing is paused for it."""
LONG = 0.5
"""A trial is long if it needs more than this share of the planned time alone; beside another it needs about all."""
SAMPLE_S = 80.0
"""About what it takes until a trial's speed is known, s."""
MOST_SAMPLING = 0.12
"""Share of the expected time that may go into trials of families of which nothing is known.

The expected time is a rough guess then. With half of this, sampling stopped in between on some draws."""

LATE, IN_TIME = 0.5, 0.9
"""Worth that a group loses with a trial that would need that much more than this share of the planned time in it."""

SHORT = 10.0
"""Restarts in the planned time below which no room is made for a trial that would end last."""

LEAST_GAIN = 0.95
"""Gain of fusing below which trials run in slots of the CPU instead; a measurement is about as exact."""

LEAST = 1e-9
"""Share of the work, and of a second, that counts as nothing."""

Group = tuple[int, ...]
"""Classes of the trials on a device, sorted."""


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
        Memory that a trial may use above what is expected of it, as a share of that.
    optimism : float
        Standard deviations by which an unmeasured pair is expected to be better than predicted, so that it is tried.
    restart_s : float
        What it costs to pause a trial and to start it again, s.
    worth : float
        Least gain, as a share of a device's worth, for which a device changes its group.
    """

    every_s: int = 30
    together: int = 8
    head_room: float = 0.1
    optimism: float = 1.0
    restart_s: float = 40.0
    worth: float = 0.04

    def __post_init__(self) -> None:
        for holds, message in (
            (self.every_s > 0, "every_s must be positive"),
            (1 <= self.together <= 64, "together must lie between 1 and 64"),
            (0 <= self.head_room <= 4, "head_room must lie between 0 and 4"),
            (0 <= self.optimism <= 10, "optimism must lie between 0 and 10"),
            (0 <= self.restart_s < math.inf, "restart_s must be at least 0 and finite"),
            (0 <= self.worth < 1, "worth must lie between 0 and 1"),
        ):
            if not holds:
                raise ValueError(message)


class Packing:
    """Share devices between trials where that ends the sweep sooner.

    The first trial of a family runs alone until its memory and its speed are known. A group that was not measured
    is tried on one device at a time. No trial is put where the memory that is expected of all, with head-room, exceeds
    the device's. A trial killed for memory starts again with half as much more, and alone after the second time.
    """

    Options = PackingOptions

    def __init__(self, options: PackingOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)

    def decide(self, snapshot: PoolSnapshot) -> list[PoolAction]:
        """Return which trials to start where, and which to pause.

        It is empty where everything may stay as it is.
        """
        actions, rest = fuse_where_faster(snapshot)
        pool = _Pool(rest, self.options)
        return [*actions, *(pool.decide() if pool.waiting or pool.running else [])]


# Trials that one process may train.


def fuse_where_faster(snapshot: PoolSnapshot) -> tuple[list[PoolAction], PoolSnapshot]:
    """Start trials together that one process trains faster.

    A process measures before its first step what fusing gains, so that it is tried where nothing is known. On a GPU it
    has the device for itself; on the CPU it has a slot.

    Returns
    -------
    actions : list of PoolAction
    rest : PoolSnapshot
        The other trials, and what such processes leave of the devices.
    """
    parts = {trial.fusible: trial.family for trial in snapshot.trials if trial.fusible}
    if not parts:
        return [], snapshot
    chosen = {part for part, family in parts.items() if fused_gain(snapshot, part) >= _sharing_gain(snapshot, family)}
    processes = by_process(snapshot.trials)
    used = Counter(str(process[0].device) for process in processes)
    free = {
        device.name: max(0, device.slots - used[device.name]) if device.kind == "cpu" else int(not used[device.name])
        for device in snapshot.devices
    }
    whole = tuple(device if device.kind == "cpu" else replace(device, slots=1) for device in snapshot.devices)
    apart = [trial for trial in snapshot.trials if trial.fusible not in chosen or trial.state is TrialState.RUNNING]
    hidden = {trial.number for trial in snapshot.trials} - {trial.number for trial in apart}
    waiting = [trial for trial in snapshot.trials if trial.number in hidden or trial.state is TrialState.RUNNING]
    starts = fuse(replace(snapshot, devices=whole, trials=tuple(waiting)), free)
    taken = Counter(start.device for start in starts if start.into is None)
    for process in processes:
        if len(process) > 1 or process[0].fusible in chosen:
            taken[str(process[0].device)] += 1
            hidden.update(trial.number for trial in process)
    left = tuple(
        replace(device, slots=device.slots - taken[device.name], memory_mib=_free_mib(device, taken[device.name]))
        for device in snapshot.devices
        if taken[device.name] < (device.slots if device.kind == "cpu" else 1)
    )
    rest = tuple(trial for trial in snapshot.trials if trial.number not in hidden)
    return list(starts), replace(snapshot, devices=left, trials=rest)


def _free_mib(device: Device, taken: int) -> float:
    return device.memory_mib * (1 - taken / device.slots)


def fused_gain(snapshot: PoolSnapshot, part: str) -> float:
    """Return the speed-up of a process of many trials.

    It is infinite where it was not measured, so that it is tried.
    """
    return max((speed.gain for speed in snapshot.fused if speed.fusible == part), default=math.inf)


def _sharing_gain(snapshot: PoolSnapshot, family: str) -> float:
    """Return the speed-up of trials that share a GPU.

    On the CPU, where slots have cores of their own, it is that of one.
    """
    if all(device.kind == "cpu" for device in snapshot.devices):
        return LEAST_GAIN
    alone = max((s.steps_per_s for s in snapshot.speeds if s.family == family and not s.beside), default=0.0)
    shared = [
        (len(s.beside) + 1) * s.steps_per_s / alone
        for s in snapshot.speeds
        if alone and s.family == family and s.beside and {*s.beside} == {family}
    ]
    return max(1.0, *shared) if shared else 2 * PRIOR_SPEED


# Speeds of groups.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupSpeeds:
    """Speeds of groups, measured or predicted.

    Attributes
    ----------
    class_of : dict of str to int
        Class of each family.
    known : bool array of shape (n_classes,)
        Whether its speed alone was measured.
    groups : list of Group
        Groups that are allowed.
    place : dict of Group to int
    rates : float64 array of shape (n_groups, n_classes)
        Seconds of work alone that a group does in a second, of each class, with optimism where it was not measured.
    each : dict of Group to dict of int to float
        Speed of one trial of a class in a group.
    measured : bool array of shape (n_groups,)
    """

    class_of: dict[str, int]
    known: NDArray[np.bool_]
    groups: list[Group]
    place: dict[Group, int]
    rates: NDArray[np.float64]
    measured: NDArray[np.bool_]

    def extensions(self, group: Group) -> list[tuple[int, int]]:
        """Return the classes that may join a group.

        Each comes with the place of the group that it makes.
        """
        joined = ((one, self.place.get(tuple(sorted((*group, one))))) for one in range(len(self.known)))
        return [(one, place) for one, place in joined if place is not None]


Traits = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""Families in their order, each with what its trials' parameters have in common."""


@lru_cache(maxsize=8)
def _learn(traits: Traits, speeds: tuple[SharedSpeed, ...], together: int, optimism: float) -> _GroupSpeeds:
    """Return the speeds of all groups from measured ones.

    It is the same for the same arguments, and kept since they change seldom.
    """
    families = [family for family, _ in traits]
    alone = {s.family: s.steps_per_s for s in speeds if not s.beside and s.steps_per_s > 0}
    class_of, members = _classes(families, speeds, alone)
    count = len(members)
    known = np.array([any(family in alone for family in families) for families in members], dtype=bool)
    sums: dict[tuple[int, Group], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for s in speeds:
        if s.beside and s.family in alone and s.family in class_of and all(b in class_of for b in s.beside):
            entry = sums[class_of[s.family], tuple(sorted(class_of[b] for b in s.beside))]
            entry[0] += s.samples * min(1.2, s.steps_per_s / alone[s.family])
            entry[1] += s.samples
    seen = {key: total / samples for key, (total, samples) in sums.items()}
    optimistic = np.ones((count, count))
    if together > 2 or sum(len(others) == 1 for _, others in seen) < count**2:  # else nothing is left to predict
        mean, deviation = _predict_pairs(_similarity(traits, members), seen)
        optimistic = np.minimum(1.0, mean * np.exp(optimism * deviation))
    groups: list[Group] = [()] if together < 1 else [(one,) for one in range(count)]
    rows = [np.eye(count)]
    measured = [np.ones(count, dtype=bool)]
    if together >= 2:
        first, second = np.triu_indices(count)
        speed = optimistic.copy()
        exact = np.zeros((count, count), dtype=bool)
        for (own, others), rate in seen.items():
            if len(others) == 1:
                speed[own, others[0]], exact[own, others[0]] = rate, True
        both = exact[first, second] & exact[second, first]
        fits = ~(exact & (speed <= 0))
        kept = fits[first, second] & fits[second, first]
        first, second, both = first[kept], second[kept], both[kept]
        pairs = np.zeros((len(first), count))
        np.add.at(pairs, (np.arange(len(first)), first), speed[first, second])
        np.add.at(pairs, (np.arange(len(first)), second), speed[second, first])
        groups += list(zip(first.tolist(), second.tolist(), strict=True))
        rows.append(pairs)
        measured.append(both)
    if together > 2:
        larger = _larger_groups(seen, optimistic, together)
        groups += [group for group, _, _ in larger]
        rows.append(np.array([row for _, row, _ in larger]).reshape(len(larger), count))
        measured.append(np.array([known_one for _, _, known_one in larger], dtype=bool))
    rates = np.concatenate(rows)
    return _GroupSpeeds(
        class_of=class_of,
        known=known,
        groups=groups,
        place={group: place for place, group in enumerate(groups)},
        rates=rates,
        measured=np.concatenate(measured),
    )


def _larger_groups(
    seen: Mapping[tuple[int, Group], float], optimistic: NDArray[np.float64], together: int
) -> list[tuple[Group, NDArray[np.float64], bool]]:
    """Return groups of three and more with their speeds.

    With each come its rate of each class, and whether that was measured.

    They are those measured, and those with one trial more than a group that was worth its last trial. The one more
    is of a class in the group where there are many classes, since there would be too many groups otherwise.
    """
    count = len(optimistic)
    rates: dict[Group, dict[int, float]] = defaultdict(dict)
    for (own, others), rate in seen.items():
        rates[tuple(sorted((own, *others)))][own] = rate
    whole = {group: each for group, each in rates.items() if set(each) == set(group)}
    sums = {group: sum(each[one] for one in group) for group, each in whole.items()}
    sums |= {(one,): 1.0 for one in range(count)}
    answer = {group: (each, True) for group, each in whole.items() if 2 < len(group) <= together}
    for group, each in whole.items():
        before = [sums.get(group[:at] + group[at + 1 :], 0.0) for at in range(len(group))]
        if len(group) >= together or sums[group] < GROWTH * max(before):
            continue
        for one in range(count) if count <= FEW_CLASSES else sorted(set(group)):
            grown = tuple(sorted((*group, one)))
            if grown not in answer and min(optimistic[one, list(group)]) > 0:
                guess = {member: each[member] * optimistic[member, one] for member in each}
                guess[one] = min(float(np.prod(optimistic[one, list(group)])), guess.get(one, 1.0))
                answer[grown] = (guess, False)
    found = []
    for group, (each, known) in sorted(answer.items()):
        row = np.zeros(count)
        for one in group:
            row[one] += each[one]
        if min(each.values()) > 0:
            found.append((group, row, known))
    return found


def _classes(
    families: Sequence[str], speeds: Iterable[SharedSpeed], alone: Mapping[str, float]
) -> tuple[dict[str, int], list[list[str]]]:
    """Return the class of each family, and the families of each class."""
    if len(families) <= MOST_CLASSES:
        return {family: place for place, family in enumerate(families)}, [[family] for family in families]
    suffers: dict[str, list[float]] = defaultdict(list)
    presses: dict[str, list[float]] = defaultdict(list)
    for s in speeds:
        if len(s.beside) == 1 and s.family in alone:
            suffers[s.family].append(s.steps_per_s / alone[s.family])
            presses[s.beside[0]].append(s.steps_per_s / alone[s.family])
    keys = {}
    for family in families:
        cell = (_cell(suffers.get(family)), _cell(presses.get(family))) if family in alone else (-1, -1)
        keys[family] = cell
    order = {cell: place for place, cell in enumerate(sorted(set(keys.values())))}
    members: list[list[str]] = [[] for _ in order]
    for family in families:
        members[order[keys[family]]].append(family)
    return {family: order[cell] for family, cell in keys.items()}, members


def _cell(shares: Sequence[float] | None) -> int:
    """Return the fifth in which a family's mean speed lies.

    From 0 to 4, or 5 if nothing is known.
    """
    return 5 if not shares else min(4, int(5 * sum(shares) / len(shares)))


def _similarity(traits: Traits, members: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return the similarity of classes, of shape (n, n)."""
    by_family = dict(traits)
    rows = [dict(by_family[of_class[0]]) if len(of_class) == 1 else {} for of_class in members]
    names = sorted({name for row in rows for name in row})
    count = len(rows)
    alike = np.zeros((count, count))
    total = 0
    for name in names:
        values = [row.get(name) for row in rows]
        if len(set(map(repr, values))) < 2:
            continue
        total += 1
        if all(v is None or (isinstance(v, int | float) and not isinstance(v, bool) and v > 0) for v in values):
            logs = np.log2(np.array([np.nan if v is None else v for v in values], dtype=np.float64))
            alike += np.nan_to_num(np.exp(-np.abs(logs[:, None] - logs[None, :]) / 2))
        else:
            codes = np.unique([repr(v) for v in values], return_inverse=True)[1]
            known = np.array([v is not None for v in values])
            alike += (codes[:, None] == codes[None, :]) & known[:, None] & known[None, :]
    alike = alike / max(1, total)
    np.fill_diagonal(alike, 1.0)
    return alike


def _predict_pairs(
    alike: NDArray[np.float64], seen: Mapping[tuple[int, Group], float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict the speed of each class beside each other one.

    Returns
    -------
    mean : float64 array of shape (n, n)
        Speed of the row's class beside the column's, as a share of its speed alone.
    deviation : float64 array of shape (n, n)
        Standard deviation of its logarithm.
    """
    count = len(alike)
    near = 0.5 * np.eye(count) + 0.5 * alike
    pairs = [(own, others[0], rate) for (own, others), rate in seen.items() if len(others) == 1 and rate > 0]
    pairs = pairs[:MOST_MEASURED]
    prior = KERNEL["level"] + KERNEL["own"] + KERNEL["other"] + KERNEL["pair"] + KERNEL["alike"] * alike**2
    if not pairs:
        return np.full((count, count), PRIOR_SPEED), np.sqrt(prior)
    own = np.array([pair[0] for pair in pairs])
    other = np.array([pair[1] for pair in pairs])
    values = np.log(np.clip([pair[2] for pair in pairs], 0.02, 1.2)) - math.log(PRIOR_SPEED)
    like = alike[own, other]
    one, two = near[np.ix_(own, own)], near[np.ix_(other, other)]
    kernel = (
        KERNEL["level"]
        + KERNEL["own"] * one
        + KERNEL["other"] * two
        + KERNEL["pair"] * one * two
        + KERNEL["alike"] * np.outer(like, like)
        + KERNEL["noise"] * np.eye(len(pairs))
    )
    inverse = np.linalg.inv(kernel)
    weights = inverse @ values
    a, b = near[:, own], near[:, other]  # (n, m)
    cross = (
        KERNEL["level"]
        + KERNEL["own"] * a[:, None, :]
        + KERNEL["other"] * b[None, :, :]
        + KERNEL["pair"] * a[:, None, :] * b[None, :, :]
        + KERNEL["alike"] * alike[:, :, None] * like[None, None, :]
    )  # (n, n, m)
    mean = cross @ weights
    explained = np.einsum("ijm,ijm->ij", cross @ inverse, cross)
    scale = max(0.25, min(4.0, (2 + float(values @ weights)) / (2 + len(pairs))))
    deviation = np.sqrt(np.maximum(1e-6, prior - explained) * scale)
    return np.exp(mean) * PRIOR_SPEED, deviation


_LAST_BASIS: dict[tuple[int, bytes, bytes], NDArray[np.intp]] = {}
"""Columns of the last solution for the same groups and classes with work."""


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
        Device seconds that one more second of a class's work costs.
    time : float64 array of shape (n_groups,)
        How long each group is on devices at best, s.
    """
    todo = work > 0
    price, time = np.ones(len(work)), np.zeros(len(rates))
    if not todo.any():
        return price, time
    useful = np.flatnonzero((rates[:, todo] > 0).any(axis=1) & (rates[:, ~todo] <= 0).all(axis=1))
    used_rates, share = rates[np.ix_(useful, todo)].T, work[todo] / work.sum()
    key = (len(rates), todo.tobytes(), useful.tobytes())
    found = _solve_again(used_rates, share, _LAST_BASIS.get(key))
    if found is None:
        answer = linprog(np.ones(len(useful)), A_ub=-used_rates, b_ub=-share, method="highs")
        if answer.status != 0:
            return price, time
        found = -answer.ineqlin.marginals, answer.x
        basis = np.flatnonzero(np.concatenate([answer.x, answer.slack]) > LEAST)
        if len(_LAST_BASIS) > 64:
            _LAST_BASIS.clear()
        _LAST_BASIS[key] = basis
    price[todo], time[useful] = found[0], found[1] * work.sum()
    return price, time


def _solve_again(
    rates: NDArray[np.float64], share: NDArray[np.float64], basis: NDArray[np.intp] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Solve again with a known basis, if it is still best.

    Work and speeds change little between two decisions, and so the same groups are best in most of them. Only
    a solution that is unique is taken, so that an answer never depends on what was solved before.
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
    dearer = cost - price @ columns
    dearer[basis] = 1.0
    if amount.min() <= LEAST or dearer.min() <= LEAST:
        return None
    time = np.zeros(groups + count)
    time[basis] = amount
    return price, time[:groups]


# A decision.


class _Pool:
    """A snapshot on its way to a decision."""

    def __init__(self, snapshot: PoolSnapshot, options: PackingOptions) -> None:
        self.options = options
        self.devices = snapshot.devices
        self.waiting = [t for t in snapshot.trials if t.state in {TrialState.WAITING, TrialState.PAUSED}]
        self.running = [t for t in snapshot.trials if t.state is TrialState.RUNNING]
        active = self.waiting + self.running
        speeds = (*snapshot.speeds, *_expected_speeds(active, snapshot.speeds))
        self.known = _learn(_traits(active, speeds), speeds, options.together, options.optimism)
        alone = {s.family: s.steps_per_s for s in speeds if not s.beside}
        self.lengths_s = _family_lengths(active, alone, now_s=snapshot.now_s)
        self.peaks_mib: dict[str, float] = {}
        for trial in snapshot.trials:
            if trial.peak_memory_mib is not None:
                self.peaks_mib[trial.family] = max(trial.peak_memory_mib, self.peaks_mib.get(trial.family, 0.0))
        self.typical_s = sum(self.lengths_s.values()) / len(self.lengths_s) if self.lengths_s else 0.0
        self.remaining_s = {trial.number: self._remaining_s(trial) for trial in active}
        self.needs_mib = {trial.number: self._needed_mib(trial) for trial in active}
        self.on: dict[str, list[Trial]] = {device.name: [] for device in self.devices}
        for trial in self.running:
            if trial.device in self.on:
                self.on[trial.device].append(trial)
        self.queue: dict[int, list[Trial]] = defaultdict(list)
        for trial in sorted(self.waiting, key=lambda t: (-self.left_s(t), t.number)):
            self.queue[self.class_of(trial)].append(trial)
        work = np.zeros(len(self.known.known))
        for trial in active:
            work[self.class_of(trial)] += self.left_s(trial)
        self.price, self.time = least_device_time(np.where(self.fitting()[:, None], self.known.rates, 0.0), work)
        self.worth = self.known.rates @ self.price
        self.total_s = float(self.time.sum()) / max(1, len(self.devices))
        self.tried: Counter[int] = Counter()
        for trials in self.on.values():
            place = self.known.place.get(self.group(trials)) if len(trials) > 1 else None
            if place is not None:
                self.tried[place] += 1
                self.time[place] -= min(self.lasts_s(trials, place), self.time[place])
        self.actions: list[PoolAction] = []
        self.unknown = {one for one, trials in self.queue.items() if self.must_be_alone(trials[0])}
        sampling_s = len(self.unknown) * (options.restart_s + SAMPLE_S) / max(1, len(self.devices))
        self.pauses_to_sample = 0
        self.sampling = bool(self.unknown) and sampling_s <= MOST_SAMPLING * (self.total_s if self.typical_s else 0.0)

    def fitting(self) -> NDArray[np.bool_]:
        """Return which groups fit into the memory of the largest device.

        A plan with others could not be kept, and its prices would be wrong.
        """
        least = [math.inf] * len(self.known.known)
        for trial in (*self.waiting, *self.running):
            one = self.class_of(trial)
            least[one] = min(least[one], self.need_mib(trial) or 0.0)
        room = max((device.memory_mib for device in self.devices), default=0.0)
        return np.array([len(c) == 1 or sum(least[one] for one in c) <= room for c in self.known.groups], dtype=bool)

    def class_of(self, trial: Trial) -> int:
        """Return the class of a trial's family."""
        return self.known.class_of[trial.family]

    def group(self, trials: Iterable[Trial]) -> Group:
        """Return the classes of trials."""
        return tuple(sorted(map(self.class_of, trials)))

    def left_s(self, trial: Trial) -> float:
        """Return the expected remaining time of a trial alone, s."""
        return self.remaining_s[trial.number]

    def _remaining_s(self, trial: Trial) -> float:
        # Of a length of 1 s where none is known.
        length = trial.forecast.seconds_p50 or self.lengths_s.get(trial.family) or self.typical_s or 1.0
        return max(1e-3, length * (1 - min(1.0, max(0.0, trial.progress or 0.0))))

    def lasts_s(self, trials: Sequence[Trial], place: int) -> float:
        """Return how long trials go on together, s."""
        counts = Counter(map(self.class_of, trials))
        rates = self.known.rates[place]
        return min(self.left_s(t) * counts[c] / max(1e-6, float(rates[c])) for t in trials for c in (self.class_of(t),))

    def is_urgent(self, trial: Trial) -> bool:
        """Return whether a trial must run now, or it would end last."""
        return bool(self.typical_s) and self.left_s(trial) > LONG * self.total_s

    def urgency(self, trial: Trial) -> float:
        """Return how urgent a trial is, 0 to 1.

        One that starts too late ends last and alone.
        """
        if not self.typical_s or not self.total_s:
            return 0.0
        return min(1.0, max(0.0, (self.left_s(trial) / self.total_s - FROM) / (1 - FROM)))

    def lateness(self, trials: Sequence[Trial], place: int) -> float:
        """Return the worth that a group loses, 0 to 1.

        It is 0 unless a trial in it would end last.
        """
        if not self.typical_s or not self.total_s:
            return 0.0
        counts, rates = Counter(map(self.class_of, trials)), self.known.rates[place]
        last_s = max(
            self.left_s(t) * counts[c] / max(1e-6, float(rates[c])) for t in trials for c in (self.class_of(t),)
        )
        return LATE * min(1.0, max(0.0, last_s / self.total_s - IN_TIME))

    def need_mib(self, trial: Trial) -> float | None:
        """Return the memory to keep for a trial, MiB.

        None says that nothing is known.
        """
        return self.needs_mib[trial.number]

    def _needed_mib(self, trial: Trial) -> float | None:
        forecast = trial.forecast
        own = max(trial.peak_memory_mib or 0.0, forecast.memory_p50_mib or forecast.memory_p95_mib or 0.0)
        expected = own or self.peaks_mib.get(trial.family, 0.0)
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
        seen = trial.peak_memory_mib or trial.forecast.memory_p95_mib
        return math.inf if not seen else seen * (1 + self.options.head_room)

    def must_be_alone(self, trial: Trial) -> bool:
        """Return whether a trial needs a device alone.

        Nothing is known of it, or it ran out of memory twice.
        """
        unknown = self.need_mib(trial) is None or not self.known.known[self.class_of(trial)]
        return unknown or (trial.out_of_memory_mib is not None and trial.attempts > 2)

    def decide(self) -> list[PoolAction]:
        """Return the actions."""
        for device in self.devices:
            if device.kind == "cpu":
                self.fill_cores(device)
        self.devices = tuple(device for device in self.devices if device.kind != "cpu")
        free = [device for device in self.devices if not self.on[device.name]]
        for position, device in enumerate(free):
            self.fill(device, others=len(free) - position - 1)
        kept = self.make_room()
        for device in self.devices:
            if device.name in kept:
                continue
            if self.on[device.name] and self.settled(device) and not (self.sampling and self.sample(device)):
                self.join(device)
        if not self.waiting_left():
            self.spread()
        elif not self.actions:
            self.even_ends()
        if not self.actions:
            for device in self.devices:
                if len(self.on[device.name]) > 1 and self.settled(device):
                    self.split_group(device)
        return self.actions

    def waiting_left(self) -> int:
        """Return how many trials wait and have not been started."""
        return sum(map(len, self.queue.values()))

    def settled(self, device: Device) -> bool:
        """Return whether a device's group and memory are known.

        The group may have been measured elsewhere.
        """
        trials = self.on[device.name]
        if all(trial.steps_per_s is not None for trial in trials):
            return True
        place = self.known.place.get(self.group(trials))
        if place is None or not self.known.measured[place] or any(map(self.must_be_alone, trials)):
            return False
        return all(trial.peak_memory_mib is not None for trial in trials)

    def pick(self, one: int, room_mib: float, *, alone: bool) -> Trial | None:
        """Return the trial of a class with most work left that fits."""
        for trial in self.queue.get(one, ()):
            need = self.need_mib(trial)
            if alone or (need is not None and need <= room_mib and not self.must_be_alone(trial)):
                return trial
        return None

    def start(self, trial: Trial, device: Device, reason: str, *, whole: bool = False) -> None:
        """Start a trial."""
        need = self.need_mib(trial)
        limit = None if whole or need is None or need >= device.memory_mib else need
        self.actions.append(StartTrial(number=trial.number, device=device.name, memory_limit_mib=limit, reason=reason))
        self.queue[self.class_of(trial)].remove(trial)
        self.unknown.discard(self.class_of(trial))

    def may_try(self, place: int) -> bool:
        """Return whether a group was measured, or is tried nowhere else."""
        return bool(self.known.measured[place]) or self.tried[place] == 0

    def fill(self, device: Device, *, others: int) -> None:
        """Start the group that is worth most on a device without trials."""
        for trial in [] if self.sampling else self.late_trials()[:1]:  # others may join it
            self.start(trial, device, "it would end last", whole=self.must_be_alone(trial))
            return
        left = self.waiting_left()
        best: tuple[tuple[float, float, int], list[Trial]] | None = None
        classes = [one for one, trials in self.queue.items() if trials]
        if self.unknown.intersection(classes):
            classes = [one for one in classes if one in self.unknown]
        first = {one: self.pick(one, device.memory_mib, alone=True) for one in classes}
        single = {one: trial for one, trial in first.items() if trial is not None}
        if not single:
            return
        pairs = (
            not self.unknown.intersection(classes)
            and left - 2 >= others
            and min(self.options.together, device.slots) >= 2
        )
        for at, one in enumerate(classes):
            for two in classes[at:] if pairs else ():
                place = self.known.place.get((min(one, two), max(one, two)))
                if place is None or not self.may_try(place) or (one == two and len(self.queue[one]) < 2):
                    continue
                chosen = self.pick_pair(one, two, device)
                urgent = URGENT * max(map(self.urgency, chosen), default=0.0)
                late = self.lateness(chosen, place) if len(chosen) > 1 else 0.0
                key = (round(float(self.worth[place]) + urgent - late, 2), float(self.time[place]), -place)
                if chosen and (best is None or key > best[0]):
                    best = (key, chosen)
        for one, trial in single.items():
            value = float(self.worth[one]) + URGENT * self.urgency(trial)
            key = (round(value, 2), float(self.time[one]), -one)
            if best is None or key > best[0]:
                best = (key, [trial])
        if best is None:
            return
        chosen = best[1]
        place = self.known.place[self.group(chosen)]
        if len(chosen) > 1:
            self.tried[place] += 1
            self.time[place] -= min(self.time[place], self.lasts_s(chosen, place))
        for trial in chosen:
            whole = len(chosen) == 1 and self.must_be_alone(trial)
            self.start(trial, device, self.reason_together(chosen, place), whole=whole)

    def fill_cores(self, device: Device) -> None:
        """Start a trial in each free slot of the CPU.

        Slots have cores of their own there.
        """
        trials = self.on[device.name]
        even = device.memory_mib / max(1, device.slots)
        room = device.memory_mib - sum(min(device.memory_mib, t.memory_limit_mib or even) for t in trials)
        if any(map(self.reserved_alone, trials)):
            return
        started = len(trials)
        for trial in sorted((t for queue in self.queue.values() for t in queue), key=lambda t: t.number):
            need = min(self.need_mib(trial) or even, device.memory_mib)
            if trial.out_of_memory_mib is not None and trial.attempts > 2:
                need = device.memory_mib
            if started < device.slots and need <= room * (1 + 1e-9):
                room -= need
                started += 1
                limit = None if need >= device.memory_mib else need
                self.actions.append(
                    StartTrial(number=trial.number, device=device.name, memory_limit_mib=limit, reason="a slot is free")
                )
                self.queue[self.class_of(trial)].remove(trial)

    def pick_pair(self, one: int, two: int, device: Device) -> list[Trial]:
        """Return a trial of each class that fit together.

        If one must be alone at first, it is only that one.
        """
        for a, b in ((one, two), (two, one)):
            lead = self.queue[a][0]
            if self.must_be_alone(lead):
                return [lead]
            partner = next((t for t in self.queue[b] if t is not lead), None)
            if partner is not None and self.must_be_alone(partner):
                return [partner]
            if partner is None:
                return []
        lead = self.queue[one][0]
        need = self.need_mib(lead) or math.inf
        for trial in self.queue[two]:
            if trial is not lead and not self.must_be_alone(trial):
                more = self.need_mib(trial)
                if more is not None and need + more <= device.memory_mib:
                    return [lead, trial]
        return []

    def join(self, device: Device) -> None:
        """Add a trial to a device if that is worth it."""
        trials = self.on[device.name]
        if len(trials) >= min(self.options.together, device.slots) or any(map(self.reserved_alone, trials)):
            return
        room = device.memory_mib - sum(map(self.reserved_mib, trials))
        group = self.group(trials)
        place = self.known.place.get(group)
        if place is None:
            return
        best: tuple[tuple[float, float, int], Trial, int] | None = None
        now = float(self.worth[place]) - self.lateness(trials, place)
        for one, joined in self.known.extensions(group):
            if not self.queue.get(one) or not self.may_try(joined):
                continue
            trial = self.pick(one, room, alone=False)
            if trial is None:
                continue
            worth = float(self.worth[joined]) - self.lateness([*trials, trial], joined)
            if worth < now + self.options.worth * JOIN:
                continue
            value = worth + URGENT * self.urgency(trial)
            key = (round(value, 2), float(self.time[joined]), -joined)
            if best is None or key > best[0]:
                best = (key, trial, joined)
        if best is not None:
            _, trial, joined = best
            self.tried[joined] += 1
            self.start(trial, device, self.reason_together([*trials, trial], joined))

    def late_trials(self) -> list[Trial]:
        """Return waiting trials that would end last, the longest first."""
        if not self.typical_s or self.total_s < SHORT * self.options.restart_s:
            return []
        late = [t for queue in self.queue.values() for t in queue if self.left_s(t) > IN_TIME * self.total_s]
        return sorted(late, key=lambda t: (-self.left_s(t), t.number))

    def make_room(self) -> set[str]:
        """Pause trials for a waiting one that would end last.

        It may fit beside nobody, and a device that others join is never free.

        Returns
        -------
        set of str
            Devices that nobody is to join.
        """
        kept: set[str] = set()
        for trial in self.late_trials():
            free = [
                (sum(map(self.left_s, self.on[d.name])), d.name)
                for d in self.devices
                if d.name not in kept
                and self.on[d.name]
                and self.settled(d)
                and max(map(self.left_s, self.on[d.name])) < 0.5 * self.left_s(trial)
                and not any(map(self.reserved_alone, self.on[d.name]))
            ]
            if not free:
                break
            name = min(free)[1]
            kept.add(name)
            reason = f"trial {trial.number} would end last, and has no device"
            self.actions += [PauseTrial(number=t.number, reason=reason) for t in self.on[name]]
        return kept

    def even_ends(self) -> None:
        """Pause a short trial for a longer waiting one.

        That is where the last would end sooner, and no more trials wait than there are devices.
        """
        waiting = sorted((self.left_s(t) for queue in self.queue.values() for t in queue), reverse=True)
        alone = [self.on[device.name][0] for device in self.devices if len(self.on[device.name]) == 1]
        if not self.typical_s or not 0 < len(waiting) <= len(self.devices) or len(alone) < len(self.devices):
            return
        left = [self.left_s(trial) for trial in alone]
        restart_s = self.options.restart_s
        now = _last_end(left, waiting)
        best: tuple[float, Trial] | None = None
        for at, trial in enumerate(alone):
            if trial.steps_per_s is None or self.reserved_alone(trial):
                continue
            busy = [*left[:at], waiting[0] + restart_s, *left[at + 1 :]]
            then = _last_end(busy, [*waiting[1:], left[at] + restart_s])
            if now - then > restart_s and (best is None or then < best[0]):
                best = then, trial
        if best is not None:
            self.actions.append(PauseTrial(number=best[1].number, reason="a waiting trial has more work left"))

    def sample(self, device: Device) -> bool:
        """Pause the only trial of a device for an unknown family.

        Then lengths, memory and speeds alone are known early, and long trials do not start last.
        """
        trials = self.on[device.name]
        running = len({self.class_of(t) for t in self.running if t.steps_per_s is None})
        if self.pauses_to_sample >= len(self.unknown) or running > len(self.devices):
            return False  # one device for each family, also while pauses go on
        if len(trials) != 1 or self.left_s(trials[0]) < 2 * SAMPLE_S:
            return False
        self.pauses_to_sample += 1
        self.actions.append(PauseTrial(number=trials[0].number, reason="a family of trials is not known yet"))
        return True

    def reserved_alone(self, trial: Trial) -> bool:
        """Return whether a running trial must keep its device for itself."""
        return trial.out_of_memory_mib is not None and trial.attempts > 2 and trial.memory_limit_mib is None

    def split_group(self, device: Device) -> None:
        """Pause a trial if another group is worth more."""
        trials = self.on[device.name]
        place = self.known.place.get(self.group(trials))
        if place is None:
            return
        now = float(self.worth[place]) - self.lateness(trials, place)
        best: tuple[float, int, Trial] | None = None
        for leaving in trials:
            if self.is_urgent(leaving):
                continue
            rest = [trial for trial in trials if trial is not leaving]
            group = self.group(rest)
            alone = self.known.place.get(group)
            if alone is None:
                continue
            room = device.memory_mib - sum(map(self.reserved_mib, rest))
            lasts_s = min(self.total_s, max(map(self.left_s, rest))) if self.typical_s else math.inf
            options = [(alone, rest)]
            for one, joined in self.known.extensions(group):
                if joined != place and self.may_try(joined) and (joining := self.pick(one, room, alone=False)):
                    options.append((joined, [*rest, joining]))
            for other, then in options:
                # What was not measured often turns out worse than hoped, and costs a second restart then.
                costs_s = self.options.restart_s * (1.5 if self.known.measured[other] else 3.0)
                more = float(self.worth[other]) - self.lateness(then, other) - now
                gain_s = more * lasts_s - costs_s
                if more > self.options.worth and gain_s > 0 and (best is None or gain_s > best[0]):
                    best = (gain_s, leaving.number, leaving)
        if best is not None:
            share = self.known.rates[place].sum()
            reason = f"{_names(trials)} together do {share:.2f} of one alone; another group does more"
            self.actions.append(PauseTrial(number=best[2].number, reason=reason))

    def spread(self) -> None:
        """Pause a trial that an empty device can take."""
        started = {action.device for action in self.actions if isinstance(action, StartTrial)}
        free = sum(not self.on[device.name] and device.name not in started for device in self.devices)
        ends: list[tuple[float, int, Trial]] = []
        for device in self.devices:
            trials = self.on[device.name]
            place = self.known.place.get(self.group(trials)) if len(trials) > 1 and self.settled(device) else None
            if place is None or not self.typical_s:
                continue
            counts, rates = Counter(map(self.class_of, trials)), self.known.rates[place]
            slow = {
                t.number: self.left_s(t) * counts[c] / max(1e-6, rates[c]) for t in trials for c in [self.class_of(t)]
            }
            shortest = min(trials, key=lambda t: (self.left_s(t), t.number))
            saved_s = max(slow.values()) - max(
                self.left_s(t) + (self.options.restart_s if t is shortest else 0.0) for t in trials
            )
            if saved_s > self.options.restart_s:
                ends.append((max(slow.values()), shortest.number, shortest))
        for _, number, _ in sorted(ends, reverse=True)[:free]:
            self.actions.append(PauseTrial(number=number, reason="a device without trials can take it"))

    def reason_together(self, trials: Sequence[Trial], place: int) -> str:
        """Return why trials run together, for a person."""
        if len(trials) == 1:
            return "alone on its device"
        share = self.known.rates[place].sum()
        source = "measured" if self.known.measured[place] else "expected, to be measured"
        return f"{_names(trials)} together do {share:.2f} of one alone ({source})"


def _last_end(busy_s: Sequence[float], waiting_s: Sequence[float]) -> float:
    """Return when the last trial ends, s.

    Each runs alone, the longest first.
    """
    ends = sorted(busy_s)
    for length in sorted(waiting_s, reverse=True):
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def _family_lengths(trials: Iterable[Trial], alone: Mapping[str, float], *, now_s: float) -> dict[str, float]:
    """Return the mean length of each family's trials alone, s.

    It is taken from forecasts, else from the progress of those that run.
    """
    forecast: dict[str, list[float]] = defaultdict(list)
    seen: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.forecast.seconds_p50:
            forecast[trial.family].append(trial.forecast.seconds_p50)
        elif trial.started_s is not None and trial.attempts == 1 and 0.02 < (trial.progress or 0.0) <= 1:
            speed = alone.get(trial.family) or 0.0
            share = min(1.0, trial.steps_per_s / speed) if trial.steps_per_s and speed else 1.0
            seen[trial.family].append(max(1e-3, now_s - trial.started_s) * share / (trial.progress or 1.0))
    return {family: sum(lengths) / len(lengths) for family, lengths in (seen | forecast).items()}


def _expected_speeds(trials: Iterable[Trial], measured: Iterable[SharedSpeed]) -> tuple[SharedSpeed, ...]:
    """Return expected speeds of families never run alone."""
    known = {speed.family for speed in measured if not speed.beside}
    forecast = {t.family: t.forecast.steps_per_s for t in trials if t.forecast.steps_per_s and t.family not in known}
    return tuple(
        SharedSpeed(family=family, beside=(), steps_per_s=float(f"{steps:.2g}"), samples=1)
        for family, steps in sorted(forecast.items())
    )


def _names(trials: Iterable[Trial]) -> str:
    return " and ".join(sorted(trial.family or f"trial {trial.number}" for trial in trials))


def _traits(trials: Iterable[Trial], speeds: Iterable[SharedSpeed]) -> Traits:
    """Return the families with the simple parameters that all their trials share.

    Families of which only speeds are left are among them, unless there are too many.
    """
    common: dict[str, dict[str, Any]] = {}
    for trial in trials:
        simple = {name: v for name, v in trial.parameters.items() if isinstance(v, str | int | float)}
        before = common.get(trial.family)
        common[trial.family] = (
            simple if before is None else {name: v for name, v in before.items() if simple.get(name) == v}
        )
    gone = {s.family for s in speeds} - set(common)
    if len(gone) + len(common) <= MOST_CLASSES:
        common |= {family: {} for family in gone}
    return tuple((family, tuple(sorted(common[family].items()))) for family in sorted(common))
