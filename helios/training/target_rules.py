"""Rules for tasks with targets, compared with an oracle on a simulated pool."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.training.model import (
    Device,
    Forecast,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    ShareTrial,
    Trial,
    TrialState,
)
from helios.training.services.targets import TargetOptions, Targets
from helios.training.sharing_rules import finite, outcome_json, share_fixed
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import Decide, PoolCosts, PoolOutcome, SimulatedPool
from helios.training.target import StepsToTarget

EQUAL, FIRST_COME, SHORTEST, GROWTH, ORACLE = (
    "equal share",
    "first come",
    "shortest need",
    "growth efficiency",
    "oracle",
)
TIERS = ("first", "second")
FIXED = 2
"""Trials on a device under the rule of the shortest need first."""
GROWTH_FLOOR = 0.5
"""Least share by growth efficiency, of an equal one, as FlowCon has it (beta 2)."""
NORMAL_90 = 1.2816


def needs_known(
    decide: Decide, trials: Sequence[SimulatedTrial], profiles: PairProfiles, *, sigma: float = 0.0, seed: int = 0
) -> Decide:
    """Return a rule that is told how much each trial needs to its targets.

    With ``sigma`` each need is wrong by a log-normal factor, which stays.
    """
    wrong = np.exp(sigma * np.random.default_rng(seed).standard_normal((len(trials), 2)))
    spread = math.exp(NORMAL_90 * sigma)
    works_of = [trial.work_to_targets for trial in trials]
    steps = [trial.seconds * float(profiles.alone[trial.family]) for trial in trials]

    def need(trial: Trial, tier: int) -> StepsToTarget | None:
        works = works_of[trial.number]
        if tier >= len(works):
            return None
        if works[tier] == math.inf:
            return StepsToTarget(p10=steps[trial.number], p50=steps[trial.number], p90=steps[trial.number], reached=0.0)
        left = max(0.0, works[tier] - (trial.progress or 0.0)) * steps[trial.number] * float(wrong[trial.number, tier])
        return StepsToTarget(p10=left / spread, p50=left, p90=left * spread)

    def told(trial: Trial) -> Trial:
        speed = float(profiles.alone[trials[trial.number].family])
        known = replace(trial.forecast, first=need(trial, 0), second=need(trial, 1), steps_per_s=speed)
        return replace(trial, forecast=known)

    return lambda snapshot: decide(replace(snapshot, trials=tuple(map(told, snapshot.trials))))


def shortest_need(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Start the trials with the shortest forecast need, two on a device."""

    def need(trial: Trial) -> float:
        forecast = trial.forecast
        return forecast.first.p50 / (forecast.steps_per_s or 1.0) if forecast.first else math.inf

    ordered = tuple(sorted(snapshot.trials, key=lambda trial: (need(trial), trial.number)))
    return list(share_fixed(FIXED)(replace(snapshot, trials=ordered)))


def growth_efficiency(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Share devices by what the metric gains for the time used.

    That is the rule of FlowCon (ICPP'19).
    """
    actions = list(_all_at_once(snapshot))
    running: dict[tuple[str, ...], list[Trial]] = defaultdict(list)
    for trial in snapshot.trials:
        if trial.state is TrialState.RUNNING:
            running[trial.devices].append(trial)
    for there in running.values():
        gains = [_gain(trial) for trial in there]
        known = [gain for gain in gains if gain is not None]
        usual = max(known, default=1.0) or 1.0
        full = [usual if gain is None else gain for gain in gains]
        least = GROWTH_FLOOR / len(there)
        total = sum(full) or 1.0
        parts = [max(least, gain / total) for gain in full]
        for trial, part in zip(there, parts, strict=True):
            share = round(part / sum(parts), 4)
            if len(there) > 1 and (trial.share is None or abs(share - trial.share) > 0.1 * trial.share):
                actions.append(ShareTrial(number=trial.number, share=share, reason="growth efficiency"))
    return actions


def _gain(trial: Trial) -> float | None:
    """Return what the metric gained last for a second alone.

    It is a share of its range so far, and None where that is not known.
    """
    values = [(point.step, point.value) for point in trial.curve if point.value is not None]
    if len(values) < 2:
        return None
    span = max(value for _, value in values) - min(value for _, value in values)
    (before, old), (now, new) = values[-2:]
    speed = trial.forecast.steps_per_s or trial.steps_per_s or 1.0
    return abs(new - old) / span * speed / max(1, now - before) if span > 0 else 0.0


def _all_at_once(snapshot: PoolSnapshot) -> list[PoolAction]:
    return list(share_fixed(max((device.slots for device in snapshot.devices), default=1))(snapshot))


def _first_come(snapshot: PoolSnapshot) -> list[PoolAction]:
    return list(share_fixed(max((device.places for device in snapshot.devices), default=1))(snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComparison:
    """Outcomes of the same tasks under several rules.

    Attributes
    ----------
    outcomes : dict of str to PoolOutcome
        By the rule's name, with that of the service and ``oracle``.
    tasks : dict of str to tuple of int
        Trials of each task. It reaches a target when its first trial does.
    arrives_s : tuple of float
        Of each trial, s.
    oracle_plan : str
        Plan that was the oracle's best.
    """

    outcomes: Mapping[str, PoolOutcome]
    tasks: Mapping[str, tuple[int, ...]]
    arrives_s: tuple[float, ...]
    oracle_plan: str

    def times_s(self, rule: str, tier: int) -> NDArray[np.float64]:
        """Return the time of each task from its arrival to a target, s.

        It is NaN where it has none or never reaches it.
        """
        return _times_s(self.outcomes[rule], self.tasks, self.arrives_s, tier)

    def mean_s(self, rule: str, tier: int) -> float:
        """Return the mean time to a target of those that reach it, s."""
        return _mean(self.times_s(rule, tier))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, one object for each rule."""
        return {
            "oracle_plan": self.oracle_plan,
            "rules": {
                rule: outcome_json(outcome)
                | {"share_of_oracle_gain": finite(self.share_of_gain(rule))}
                | {name: self._tier_json(rule, tier) for tier, name in enumerate(TIERS)}
                for rule, outcome in self.outcomes.items()
            },
        }

    def _tier_json(self, rule: str, tier: int) -> dict[str, Any]:
        """Return the times to a target, with None for tasks that never reach it."""
        works = self.outcomes[rule].reached_s
        times_s = {
            task: finite(float(time_s))
            for (task, numbers), time_s in zip(self.tasks.items(), self.times_s(rule, tier), strict=True)
            if tier < len(works[numbers[0]])
        }
        known = {task: time_s for task, time_s in times_s.items() if time_s is not None}
        return {
            "mean_s": float(np.mean([*known.values()])) if known else None,
            "p95_s": float(np.quantile([*known.values()], 0.95)) if known else None,
            "worst_s": max(known.values(), default=None),
            "worst_task": max(known, key=lambda task: known[task], default=None),
            "tasks_s": times_s,
        }

    def share_of_gain(self, rule: str) -> float:
        """Return the share of the oracle's gain that a rule reaches.

        The gain is in mean time to the first target over equal share.
        """
        equal, best = self.mean_s(EQUAL, 0), self.mean_s(ORACLE, 0)
        return (equal - self.mean_s(rule, 0)) / (equal - best) if best < equal else math.nan


def _times_s(
    outcome: PoolOutcome, tasks: Mapping[str, tuple[int, ...]], arrives_s: Sequence[float], tier: int
) -> NDArray[np.float64]:
    times = []
    for numbers in tasks.values():
        reached = [
            outcome.reached_s[number][tier] - arrives_s[number]
            for number in numbers
            if tier < len(outcome.reached_s[number]) and not math.isnan(outcome.reached_s[number][tier])
        ]
        times.append(min(reached, default=math.nan))
    return np.array(times)


def _mean(times_s: NDArray[np.float64]) -> float:
    return math.nan if np.isnan(times_s).all() else float(np.nanmean(times_s))


def compare_target_rules(
    trials: Sequence[SimulatedTrial],
    devices: Sequence[Device],
    profiles: PairProfiles,
    *,
    rules: Mapping[str, Decide],
    costs: PoolCosts | None = None,
    seed: int = 0,
    forecast: Forecast | None = None,
    known_speeds: Sequence[SharedSpeed] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> TargetComparison:
    """Simulate tasks with targets under several rules.

    Parameters
    ----------
    trials, devices, profiles, costs, seed, forecast, known_speeds
        As of :class:`~helios.training.simulator.SimulatedPool`. The trials of one ``sweep`` are one task.
    rules : mapping of str to Decide
        Rules to compare beside equal share, first come first served, the shortest need first, growth efficiency and an
        oracle, such as ``{"targets": Targets(TargetOptions()).decide}``.
    progress : callable
        Called with the name of each rule before it runs.
    """
    tasks: dict[str, tuple[int, ...]] = {}
    for number, trial in enumerate(trials):
        key = trial.sweep or str(number)
        tasks[key] = (*tasks.get(key, ()), number)
    arrives_s = tuple(trial.arrives_s for trial in trials)

    def outcome(name: str, decide: Decide) -> PoolOutcome:
        progress(name)
        return SimulatedPool(
            trials, devices, profiles, costs=costs, seed=seed, forecast=forecast, known_speeds=known_speeds
        ).run(decide)

    outcomes = {EQUAL: outcome(EQUAL, _all_at_once), FIRST_COME: outcome(FIRST_COME, _first_come)}
    outcomes |= {SHORTEST: outcome(SHORTEST, shortest_need), GROWTH: outcome(GROWTH, growth_efficiency)}
    outcomes |= {name: outcome(name, decide) for name, decide in rules.items()}
    plans = dict(outcomes)
    strict = Targets(TargetOptions(floor=0.02, between=0.0)).decide
    for name, decide in {**rules, "nearest": strict, SHORTEST: shortest_need}.items():
        plans[f"{name}, knowing"] = outcome(f"{name}, knowing", needs_known(decide, trials, profiles))
    best = min(plans, key=lambda name: _mean(_times_s(plans[name], tasks, arrives_s, 0)))
    return TargetComparison(
        outcomes=outcomes | {ORACLE: plans[best]}, tasks=tasks, arrives_s=arrives_s, oracle_plan=best
    )
