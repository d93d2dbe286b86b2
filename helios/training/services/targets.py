"""Targets of trials, to which resources bring the nearest first.

Each client, which is a sweep, has a part of the pool. A part becomes the weight of its trials in the plan of packing,
and their shares of a device's time where taking turns brings more than running side by side:

- A client that has not reached its first target gets by how likely it is to reach it soon for what it takes. It is
  Gittins' index of the forecast need, so that an uncertain need is worth a look.
- Between the targets it is the same for the second one. Together such clients are capped while others wait for a first.
- One without a target has an equal part, and none falls below a floor.

Two-tier targets are from TRADL (HPEC'19, doi 10.1109/HPEC.2019.8916403); how parts follow from them is ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from statistics import median

from helios.training.model import (
    ENDED,
    NUMBERS,
    Device,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    ShareTrial,
    Trial,
    TrialState,
    by_process,
)
from helios.training.services.group_speeds import PRIOR_SPEED
from helios.training.services.packing import Packing, PackingOptions
from helios.training.target import StepsToTarget

UNLIKELY = 0.1
"""Probability of reaching a target below which nobody waits for it."""
LEAST_SHARE = 0.01
"""Smallest share of a device's time."""
LEAST_NEED_S = 1.0
"""Need below which none is nearer than another, s."""
QUANTILE_PARTS = (0.3, 0.4, 0.3)
"""Part of the probability that p10, p50 and p90 stand for (Swanson's rule)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(PackingOptions):
    """Options of targets, beside those of packing.

    Attributes
    ----------
    floor : float
        Part that every client keeps, as a share of an equal part.
    between : float
        Most that clients between their targets get together while others wait for a first one, as a share.
    sharpness : float
        Power of the index: 1 divides by it, larger values prefer the nearest.
    change : float
        Relative change of a share from which it is given.
    """

    floor: float = 0.1
    between: float = 0.1
    sharpness: float = 4.0
    change: float = 0.2

    def __post_init__(self) -> None:
        PackingOptions.__post_init__(self)
        for valid, message in (
            (0 < self.floor <= 1, "floor must be above 0 and at most 1"),
            (0 <= self.between <= 1, "between must lie between 0 and 1"),
            (0 < self.sharpness <= 10, "sharpness must be above 0 and at most 10"),
            (0 <= self.change < 1, "change must lie between 0 and 1"),
        ):
            if not valid:
                raise ValueError(message)


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
            given = [trial for trial in trials if trial.share is not None and trial.state is TrialState.RUNNING]
            taken = [ShareTrial(number=t.number, share=None, reason="no sweep has a target") for t in given]
            return [*self._packing.decide(snapshot), *taken]
        weights = trial_weights(trials, snapshot, self.options)
        weighted = tuple(
            replace(trial, weight=weights[trial.number].weight) if trial.number in weights else trial
            for trial in snapshot.trials
        )
        actions = self._for_results.decide(replace(snapshot, trials=weighted))
        return [*actions, *self._shares(snapshot, weights, {action.number for action in actions})]

    def _shares(self, snapshot: PoolSnapshot, weights: Mapping[int, _Weight], changing: set[int]) -> list[PoolAction]:
        """Return the shares of devices on which turns bring more than running side by side."""
        actions: list[PoolAction] = []
        for device in snapshot.devices:
            there = [p for p in by_process(snapshot.trials) if p[0].devices == (device.name,)]
            if any(trial.number in changing for process in there for trial in process):
                continue
            given = [sum(weights[trial.number].weight for trial in process) for process in there]
            shares: list[float | None] = [round(max(LEAST_SHARE, weight / sum(given)), 4) for weight in given]
            before = [process[0].share for process in there]
            if not self._gain_by_turns(device, there, given, snapshot.speeds, is_shared=None not in before):
                shares = [None] * len(there)
            if all(self._is_near(share, old) for share, old in zip(shares, before, strict=True)):
                continue
            for (lead, *_), share, old in zip(there, shares, before, strict=True):
                if share != old:
                    reason = "side by side they do more" if share is None else weights[lead.number].reason
                    actions.append(ShareTrial(number=lead.number, share=share, reason=reason))
        return actions

    def _is_near(self, share: float | None, before: float | None) -> bool:
        """Return whether a share is about what it was."""
        if share is None or before is None:
            return share is before
        return abs(share - before) <= self.options.change * before

    def _gain_by_turns(
        self,
        device: Device,
        there: Sequence[Sequence[Trial]],
        weights: Sequence[float],
        speeds: Iterable[SharedSpeed],
        *,
        is_shared: bool,
    ) -> bool:
        """Return whether turns bring more than running side by side, where that is known."""
        if len(there) <= max(1, device.places):
            return False
        if device.kind == "cpu":
            return True
        known = {(speed.family, speed.beside): speed.steps_per_s for speed in speeds}
        families = [process[0].family for process in there]
        rates = []
        for place, family in enumerate(families):
            beside = known.get((family, tuple(sorted(families[:place] + families[place + 1 :]))))
            if beside is None or any(len(process) > 1 for process in there):
                return False  # to be measured first
            alone = known.get((family, ()))
            rates.append(min(1.0, beside / alone) if alone else PRIOR_SPEED)
        together = sum(weight * rate for weight, rate in zip(weights, rates, strict=True))
        by_turns = sum(weight**2 for weight in weights) / sum(weights)
        return (
            by_turns * (1 + self.options.worth) > together
            if is_shared
            else by_turns > together * (1 + self.options.worth)
        )


@dataclass(frozen=True, slots=True)
class _Weight:
    """Weight of a trial, and why it has it."""

    weight: float
    reason: str


def trial_weights(trials: Iterable[Trial], snapshot: PoolSnapshot, options: TargetOptions) -> dict[int, _Weight]:
    """Return the weight of each trial, by its target and forecast need.

    Those of clients have mean 1. The trials of a sweep are one client, and its nearest trial counts for it.
    """
    alone = {speed.family: speed.steps_per_s for speed in snapshot.speeds if not speed.beside}
    clients: dict[tuple[int, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        clients[trial.number // NUMBERS, trial.sweep].append(trial)
    found = [_Client(members, alone) for members in clients.values()]
    _set_parts(found, options)
    return {
        trial.number: _Weight(weight=max(1e-6, len(found) * client.part * share), reason=client.reason)
        for client in found
        for trial, share in client.divided(options.sharpness)
    }


class _Client:
    """Trials of one sweep.

    Attributes
    ----------
    importance : float
    tier : int, optional
        Target that comes next, 0 or 1. None where there is none.
    index : float, optional
        Index of the nearest trial, 1/s. None where no need is known.
    part : float
        Its part of the pool.
    """

    def __init__(self, trials: Sequence[Trial], alone: Mapping[str, float]) -> None:
        self.trials = trials
        target = trials[0].target
        reached = max(trial.targets_reached for trial in trials)
        self.importance = max(trial.weight for trial in trials) * (1.0 if target is None else target.weight)
        self.has_target = target is not None
        self.tier = reached if target is not None and reached < len(target.values) else None
        self.needs = [None if self.tier is None else _need(trial, self.tier, alone) for trial in trials]
        known = [need for need in self.needs if need is not None]
        self.likely = max((need.reached for need in known), default=1.0)
        self.indices = [None if need is None else index_of(need) for need in self.needs]
        self.index = max((index for index in self.indices if index is not None), default=None)
        self.part = 0.0
        self.reason = ""

    def divided(self, sharpness: float) -> list[tuple[Trial, float]]:
        """Return its trials, each with its share of what the client gets."""
        usual = self.index or 1.0
        powers = [(usual if index is None else index) ** sharpness for index in self.indices]
        total = sum(powers)
        return [
            (trial, power / total if total > 0 else 1 / len(powers))
            for trial, power in zip(self.trials, powers, strict=True)
        ]


def _need(trial: Trial, tier: int, alone: Mapping[str, float]) -> StepsToTarget | None:
    """Return the time alone that a trial needs to a target, s."""
    steps = trial.forecast.first if tier == 0 else trial.forecast.second
    speed = alone.get(trial.family) or trial.forecast.steps_per_s or trial.steps_per_s
    if not speed and trial.curve and trial.curve[-1].seconds > 0:
        speed = trial.curve[-1].step / trial.curve[-1].seconds
    if steps is None or not speed:
        return None
    return StepsToTarget(p10=steps.p10 / speed, p50=steps.p50 / speed, p90=steps.p90 / speed, reached=steps.reached)


def index_of(need: StepsToTarget) -> float:
    """Return Gittins' index of a need, 1/s.

    It is the largest chance to reach the target within a time, over the time that is spent until then or until it is
    reached.
    """
    best, chance, spent = 0.0, 0.0, 0.0
    for quantile, part in zip((need.p10, need.p50, need.p90), QUANTILE_PARTS, strict=True):
        until = max(LEAST_NEED_S, quantile)
        chance += need.reached * part
        spent += need.reached * part * until
        best = max(best, chance / (spent + (1 - chance) * until))
    return best


def _set_parts(clients: Sequence[_Client], options: TargetOptions) -> None:
    """Set the part of each client, which sum to 1."""
    total = sum(client.importance for client in clients)
    first = [client for client in clients if client.tier == 0]
    waiting = [client for client in first if client.likely >= UNLIKELY]
    second = [client for client in clients if client.tier == 1]
    free = 1.0
    for client in clients:
        equal = client.importance / total
        client.part = equal if not client.has_target else options.floor * equal
        client.reason = "its sweep has no target" if not client.has_target else "it has reached its targets"
        free -= client.part
    capped = max(0.0, options.between - sum(client.part for client in second)) if waiting else free
    for_second = 0.0 if not second else min(free, capped) if waiting else free
    _divide(second, for_second, options, "it is between its targets")
    _divide(waiting or first or second or clients, free - for_second, options, "it nears its first target")


def _divide(clients: Sequence[_Client], amount: float, options: TargetOptions, reason: str) -> None:
    """Divide a part of the pool among clients by their indices."""
    known = [client.index for client in clients if client.index is not None]
    usual = median(known) if known else 1.0
    powers = [
        client.importance * (usual if client.index is None else client.index) ** options.sharpness for client in clients
    ]
    total = sum(powers)
    for client, power in zip(clients, powers, strict=True):
        client.part += amount * (power / total if total > 0 else 1 / len(clients))
        if client.has_target:
            client.reason = reason
