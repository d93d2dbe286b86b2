"""Targets of trials, to which resources bring the nearest first.

Each client, which is a sweep, has a part of the pool. As a weight it goes into the one plan of packing. Where trials on
a device bring more by taking turns than side by side, it becomes their shares of the time as well.

- Who has not reached its first target gets by how little it still needs. On one device the shortest remaining need
  first is the best order for the mean.
- Who is between its targets gets by what it needs to the second one. While others wait for a first target, that is
  worth little beside theirs, and half of the pool is theirs.
- One without a target has an equal part, and none falls below a floor.

Two-tier targets are from TRADL (HPEC'19, doi 10.1109/HPEC.2019.8916403); how parts follow from them is ours.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median

from helios.training.model import (
    ENDED,
    NUMBERS,
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ShareTrial,
    StartTrial,
    Trial,
    TrialState,
    by_process,
)
from helios.training.services.group_speeds import PRIOR_SPEED
from helios.training.services.packing import Packing, PackingOptions

UNLIKELY = 0.02
"""Probability of reaching a target below which nobody makes room for it."""
LEAST_SHARE = 0.01
"""Smallest share of a device's time."""
LEAST_NEED_S, MOST_NEED_S = 1.0, 1e9
"""Needs below and above which none is nearer than another, s."""
UNKNOWN, LONGER = 0.5, 25.0
"""A need of which nothing is known is this part of the median one, so that it is tried, but at least so many times what
the trial took so far."""
SHARPNESS = 6.0
"""Power of 1 / need by which shares of time go. Weights go by the first, as they are what a second of work is worth."""
LATER = 1e-3
"""How much less a trial weighs for each one of its sweep that is nearer, so that each sweep begins with one."""
CHANGE = 0.2
"""Relative change of a share from which it is given."""
MOST_DEVICES_TRIED = 4
"""Devices on which room is looked for, those of the trials that are worth least. Each costs a plan or more."""
MOST_FOR_DEADLINE = 0.8
"""Largest part of the pool that a deadline brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(PackingOptions):
    """Options of targets, beside those of packing.

    Attributes
    ----------
    floor : float
        Least part of a client that waits for its first target, as a share of an equal part. That of others is a third
        of it.
    between : float
        What a second target is worth beside a first one that others wait for, 0 to 1.
    """

    floor: float = 0.15
    between: float = 0.07

    def __post_init__(self) -> None:
        PackingOptions.__post_init__(self)
        if not 0 < self.floor <= 1:
            raise ValueError("floor must be above 0 and at most 1")
        if not 0 <= self.between <= 1:
            raise ValueError("between must lie between 0 and 1")


class Targets:
    """Bring the models of clients to their targets, the nearest first.

    Clients are sweeps. What packs, fuses and limits memory is the service ``packing``, with weights from the targets.
    """

    Options = TargetOptions

    def __init__(self, options: TargetOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)
        self._packing = Packing(options)
        self._for_results = Packing(replace(options, for_="results"))

    def decide(self, snapshot: PoolSnapshot) -> list[PoolAction]:
        """Return which trials to start, to pause, and to give shares."""
        trials = [trial for trial in snapshot.trials if trial.state not in ENDED]
        if not any(trial.target for trial in trials):
            actions = self._packing.decide(snapshot)
            claims = dict[int, Claim]()
        else:
            claims = trial_claims(trials, snapshot, self.options)
            weighted = [
                replace(trial, weight=claims[trial.number].weight) if trial.number in claims else trial
                for trial in snapshot.trials
            ]
            by_worth = replace(snapshot, trials=tuple(weighted))
            actions = self._for_results.decide(by_worth) or self._make_room(by_worth, claims)
        changing = {action.number for action in actions}
        by_device: dict[tuple[str, ...], list[list[Trial]]] = defaultdict(list)
        for process in by_process(trials):
            by_device[process[0].devices].append(process)
        known = {(speed.family, speed.beside): speed.steps_per_s for speed in snapshot.speeds}
        for device in snapshot.devices:
            there = by_device[device.name,]
            if not any(trial.number in changing for process in there for trial in process):
                actions += self._divide(device, there, claims, known)
        return actions

    def _make_room(self, snapshot: PoolSnapshot, claims: Mapping[int, Claim]) -> list[PoolAction]:
        """Pause trials that are worth little for a waiting one.

        Packing does that only where a measured group does more. One without a target is left alone. So are all where
        packing would not start the waiting one instead: they would be started again, and paused again.
        """
        waiting = [t for t in snapshot.trials if t.state in {TrialState.WAITING, TrialState.PAUSED}]
        leads = [lead for lead, *fused in by_process(snapshot.trials) if not fused and len(lead.devices) == 1]
        running = [trial for trial in leads if trial.target is not None]
        if not waiting or not running:
            return []
        first = max(waiting, key=lambda trial: (claims[trial.number].weight, -trial.number))
        there: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
        for trial in sorted(running, key=lambda trial: (claims[trial.number].weight, -trial.number)):
            there[trial.devices].append(trial)
        for trials in [*there.values()][:MOST_DEVICES_TRIED]:
            for count in range(1, len(trials) + 1):
                leaving = trials[:count]
                if not self._is_worth(claims[first.number], leaving, claims, snapshot.now_s):
                    break
                if self._would_start(first, leaving, snapshot):
                    reason = f"trial {first.label} is nearer to its target"
                    return [PauseTrial(number=trial.number, reason=reason) for trial in leaving]
        return []

    def _is_worth(self, more: Claim, leaving: Sequence[Trial], claims: Mapping[int, Claim], now_s: float) -> bool:
        """Return whether a trial brings enough more than those that leave for it."""
        if any(
            now_s - (now_s if each.started_s is None else each.started_s) < self.options.restart_s for each in leaving
        ):
            return False
        less = sum(claims[each.number].weight for each in leaving)
        return (more.weight - less) * more.need_s > 2 * self.options.restart_s * (more.weight + less)

    def _would_start(self, first: Trial, leaving: Sequence[Trial], snapshot: PoolSnapshot) -> bool:
        """Return whether packing starts a trial once others have left."""
        left = {
            trial.number: replace(trial, state=TrialState.PAUSED, devices=(), started_s=None, process=None, share=None)
            for trial in leaving
        }
        trials = tuple(left.get(trial.number, trial) for trial in snapshot.trials)
        actions = self._for_results.decide(replace(snapshot, trials=trials))
        return any(isinstance(action, StartTrial) and action.number == first.number for action in actions)

    def _divide(
        self,
        device: Device,
        there: Sequence[Sequence[Trial]],
        claims: Mapping[int, Claim],
        known: Mapping[tuple[str, tuple[str, ...]], float],
    ) -> list[PoolAction]:
        """Return the shares of a device's processes, or take them back."""
        before = [process[0].share for process in there]
        shares: list[float | None] = [None] * len(there)
        reasons = ["all run side by side"] * len(there)
        if claims and len(there) > max(1, device.places):
            weights = [sum(claims[trial.number].weight for trial in process) for process in there]
            parts = [sum(claims[trial.number].part for trial in process) for process in there]
            by_turns = sum(weight * part for weight, part in zip(weights, parts, strict=True)) / sum(parts)
            together = 0.0 if device.kind == "cpu" else _worth_together(there, weights, known)
            if by_turns > together * (1 + self.options.worth * (1 if None in before else -1)):
                shares = [round(max(LEAST_SHARE, part / sum(parts)), 4) for part in parts]
                reasons = [claims[process[0].number].reason for process in there]
        pairs = zip(shares, before, strict=True)
        if all(abs((share or 0.0) - (old or 0.0)) <= CHANGE * (old or 0.0) for share, old in pairs):
            return []  # all are about what they were, or there is none as before
        return [
            ShareTrial(number=process[0].number, share=share, reason=reason)
            for process, share, old, reason in zip(there, shares, before, reasons, strict=True)
            if share != old
        ]


def _worth_together(
    there: Sequence[Sequence[Trial]],
    weights: Sequence[float],
    known: Mapping[tuple[str, tuple[str, ...]], float],
) -> float:
    """Return what processes side by side on a GPU bring in a second.

    It is infinite where that is not known, so that it is measured.
    """
    families = [process[0].family for process in there]
    together = 0.0
    for place, (family, weight) in enumerate(zip(families, weights, strict=True)):
        beside = known.get((family, tuple(sorted(families[:place] + families[place + 1 :]))))
        if beside is None or len(there[place]) > 1:
            return math.inf
        alone = known.get((family, ())) or there[place][0].forecast.steps_per_s
        together += weight * (min(1.0, beside / alone) if alone else PRIOR_SPEED)
    return together


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a trial gets, and why.

    Attributes
    ----------
    weight : float
        What a second of its work is worth, beside that of others.
    part : float
        Part of the time that it gets where all take turns.
    need_s : float
        How much more it needs alone, s.
    """

    weight: float
    part: float
    need_s: float
    reason: str


def trial_claims(trials: Sequence[Trial], snapshot: PoolSnapshot, options: TargetOptions) -> dict[int, Claim]:
    """Return what each trial gets, by its target and forecast need.

    The trials of a sweep are one client, and its nearest trial counts for it.
    """
    alone = {speed.family: speed.steps_per_s for speed in snapshot.speeds if not speed.beside}
    processes = by_process(trials)
    counts = Counter(process[0].devices for process in processes)
    took_s = {
        trial.number: (snapshot.now_s - trial.started_s) * (trial.share or 1 / counts[trial.devices])
        for process in processes
        for trial in process
        if trial.started_s is not None
    }
    members: dict[tuple[int, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        members[trial.number // NUMBERS, trial.sweep].append(trial)
    clients = [_Client(its, {trial.number: _need(trial, alone) for trial in its}) for its in members.values()]
    usual_s = median([client.need_s for client in clients if client.need_s is not None] or [LEAST_NEED_S])
    for client in clients:
        least_s = LONGER * max((took_s.get(trial.number, 0.0) for trial in client.trials), default=0.0)
        client.fill(max(UNKNOWN * usual_s, least_s))
    weights = _parts(clients, options, 1.0, snapshot.now_s)
    parts = _parts(clients, options, SHARPNESS, snapshot.now_s)
    return {
        trial.number: Claim(
            weight=max(1e-6, len(clients) * weight * own * (1 - LATER * rank / len(client.trials))),
            part=max(1e-6, part * sharp),
            need_s=client.needs_s[trial.number],
            reason=client.reason,
        )
        for client, weight, part in zip(clients, weights, parts, strict=True)
        for rank, (trial, own, sharp) in enumerate(
            zip(client.trials, client.divided(1.0), client.divided(SHARPNESS), strict=True)
        )
    }


@dataclass(frozen=True, slots=True)
class _Need:
    """How much more a trial needs alone to its next target."""

    low_s: float
    p90_s: float
    likely: float


def _need(trial: Trial, alone: Mapping[str, float]) -> _Need | None:
    """Return the need of a trial, or None where it is not known."""
    steps = trial.forecast.second if trial.targets_reached else trial.forecast.first
    speed = alone.get(trial.family) or trial.forecast.steps_per_s or trial.steps_per_s
    if not speed and trial.curve and trial.curve[-1].seconds > 0:
        speed = trial.curve[-1].step / trial.curve[-1].seconds
    if steps is None or not speed:
        return None
    # Without the long tail, as who may be near is tried first: that shows soon whether it is.
    low = (steps.p10 + steps.p50) / 2
    return _Need(min(MOST_NEED_S, max(LEAST_NEED_S, low / speed)), steps.p90 / speed, steps.reached)


class _Client:
    """Trials of one sweep.

    Attributes
    ----------
    trials : sequence of Trial
        The nearest first, once needs are filled.
    importance : float
    tier : int, optional
        Target that comes next, 0 or 1. None where there is none.
    need_s : float, optional
        What its nearest trial needs to that, s. None where it is not known.
    needs_s : dict of int to float
        The same of each trial.
    """

    def __init__(self, trials: Sequence[Trial], needs: Mapping[int, _Need | None]) -> None:
        self.trials, self.target = trials, trials[0].target
        reached = max(trial.targets_reached for trial in trials)
        self.importance = max(trial.weight for trial in trials)
        self.tier = reached if self.target is not None and reached < len(self.target.values) else None
        known = {number: need for number, need in needs.items() if need is not None and self.tier is not None}
        self.likely = max((need.likely for need in known.values()), default=1.0)
        self.needs_s = {
            number: need.low_s for number, need in known.items() if need.likely >= min(UNLIKELY, self.likely)
        }
        self.need_s = min(self.needs_s.values(), default=None)
        self.p90_s = min((need.p90_s for need in known.values()), default=math.inf)

    def fill(self, usual_s: float) -> None:
        """Take a need for what is not known."""
        self.need_s = usual_s if self.need_s is None else self.need_s
        self.needs_s = {
            trial.number: self.needs_s.get(trial.number, max(self.need_s, usual_s)) for trial in self.trials
        }
        self.trials = sorted(
            self.trials,
            key=lambda each: (self.needs_s[each.number], each.state is not TrialState.RUNNING, each.number),
        )

    @property
    def waits(self) -> bool:
        """Whether it waits for its first target, and will reach it."""
        return self.tier == 0 and self.likely >= UNLIKELY

    @property
    def reason(self) -> str:
        """Why it gets what it gets."""
        if self.target is None:
            return "its sweep has no target"
        if self.tier is None:
            return "it has reached its targets"
        if self.likely < UNLIKELY:
            return "it will hardly reach its target"
        return "it is between its targets" if self.tier else "it comes to its first target"

    def divided(self, sharpness: float) -> list[float]:
        """Return which part of what it gets each trial has."""
        powers = [(min(self.needs_s.values()) / self.needs_s[trial.number]) ** sharpness for trial in self.trials]
        return [power / sum(powers) for power in powers]


def _parts(clients: Sequence[_Client], options: TargetOptions, sharpness: float, now_s: float) -> list[float]:
    """Return the part of each client, which sum to 1."""
    total = sum(client.importance for client in clients)
    waiting = [client for client in clients if client.waits]
    # What will hardly reach its first target keeps its floor, until nobody else waits for one.
    others = [client for client in clients if client.tier == 1 or (client.tier == 0 and not waiting)]
    parts = {}
    for client in clients:
        kept = 1.0 if client.target is None else options.floor / (1 if client.tier == 0 else 3)
        parts[id(client)] = kept * client.importance / total
    free = 1.0 - sum(parts.values())
    # The next is who brings most for a second: a second target that is very near goes before a first one that is far.
    chosen, count = [*waiting, *others] or clients, len(waiting)
    rates = [(options.between if waiting and each.tier else 1.0) / (each.need_s or LEAST_NEED_S) for each in chosen]
    powers = [each.importance * (rate / max(rates)) ** sharpness for each, rate in zip(chosen, rates, strict=True)]
    firsts, seconds = sum(powers[:count]), sum(powers[count:])
    most = min(1.0, firsts / seconds) if waiting and seconds else 1.0  # half is of who waits for a first target
    for place, (client, power) in enumerate(zip(chosen, powers, strict=True)):
        parts[id(client)] += free * (power if place < count else most * power) / (firsts + most * seconds)
    for client in waiting:  # what a deadline needs is taken from all others
        wanted = min(MOST_FOR_DEADLINE, _part_for_deadline(client, now_s))
        if wanted > (own := parts[id(client)]):
            parts = {key: part * (1 - wanted) / (1 - own) for key, part in parts.items()} | {id(client): wanted}
    return [parts[id(client)] for client in clients]


def _part_for_deadline(client: _Client, now_s: float) -> float:
    """Return the part with which nine of ten such needs end before the deadline.

    It is 0 where there is none, or it has passed.
    """
    if client.target is None or client.target.deadline_s is None or not math.isfinite(client.p90_s):
        return 0.0
    began_s = [
        min(trial.started_s, now_s - (trial.curve[-1].seconds if trial.curve else 0.0))
        for trial in client.trials
        if trial.started_s is not None
    ]
    left_s = min(began_s, default=now_s) + client.target.deadline_s - now_s
    return client.p90_s / left_s if left_s > 0 else 0.0
