"""Rules for tasks with targets, compared with an oracle on a simulated pool."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.targets import TIERS
from helios.training.model import (
    Device,
    PoolAction,
    PoolSnapshot,
    ShareTrial,
    StepsToTarget,
    Trial,
    TrialState,
)
from helios.training.services.targets import TargetOptions, Targets
from helios.training.sharing_rules import finite, outcome_json, share_fixed, simulate_rules
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import Decide, PoolOutcome

EQUAL, FIRST_COME, SHORTEST, GROWTH, ORACLE = (
    "equal share",
    "first come",
    "shortest need",
    "growth efficiency",
    "oracle",
)
FIXED = 2
"""Trials on a device under the rule of the shortest need first."""
ALL = 1_000_000
"""As many trials as a device has slots."""
GROWTH_FLOOR = 0.5
"""Least share by growth efficiency, of an equal one, as FlowCon has it (beta 2)."""


def needs_known(decide: Decide, trials: Sequence[SimulatedTrial], profiles: PairProfiles) -> Decide:
    """Return a rule that knows what each trial needs to its targets."""
    works_of = [trial.work_to_targets for trial in trials]
    speeds = [float(profiles.alone[trial.family]) for trial in trials]

    def need(trial: Trial, tier: int) -> StepsToTarget | None:
        works = works_of[trial.number]
        if tier >= len(works):
            return None
        is_reached = works[tier] < math.inf
        part = max(0.0, works[tier] - (trial.progress or 0.0)) if is_reached else 1.0
        left = part * (trials[trial.number].seconds * speeds[trial.number])
        return StepsToTarget(p10=left, p50=left, p90=left, reached=float(is_reached))

    def with_needs(trial: Trial) -> Trial:
        steps_per_s = speeds[trial.number]
        known = replace(trial.forecast, first=need(trial, 0), second=need(trial, 1), steps_per_s=steps_per_s)
        return replace(trial, forecast=known)

    return lambda snapshot: decide(replace(snapshot, trials=tuple(map(with_needs, snapshot.trials))))


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
    actions = list(share_fixed(ALL)(snapshot))
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
        reached_s = self.outcomes[rule].reached_s
        times_s = [
            [reached_s[number][tier] - self.arrives_s[number] for number in numbers if tier < len(reached_s[number])]
            for numbers in self.tasks.values()
        ]
        return np.array([np.fmin.reduce(own, initial=math.nan) for own in times_s])

    def mean_s(self, rule: str, tier: int) -> float:
        """Return the mean time to a target of those that reach it, s."""
        times_s = self.times_s(rule, tier)
        return math.nan if np.isnan(times_s).all() else float(np.nanmean(times_s))

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
        """Return the times to a target, None where it is never reached."""
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


def compare_target_rules(
    trials: Sequence[SimulatedTrial],
    devices: Sequence[Device],
    profiles: PairProfiles,
    *,
    rules: Mapping[str, Decide],
    progress: Callable[[str], None] = lambda _: None,
    **about: Any,
) -> TargetComparison:
    """Simulate tasks with targets under several rules.

    Parameters
    ----------
    trials, devices, profiles, **about
        As of :class:`~helios.training.simulator.SimulatedPool`. The trials of one ``sweep`` are one task; one without
        a name of its sweep is a task by itself.
    rules : mapping of str to Decide
        Rules to compare beside equal share, first come first served, the shortest need first, growth efficiency and an
        oracle, such as ``{"targets": Targets(TargetOptions()).decide}``.
    progress : callable
        Called with the name of each rule before it runs.
    """
    trials = [replace(trial, sweep=trial.sweep or str(number)) for number, trial in enumerate(trials)]
    tasks: dict[str, tuple[int, ...]] = {}
    for number, trial in enumerate(trials):
        tasks[trial.sweep] = (*tasks.get(trial.sweep, ()), number)
    first_come = share_fixed(max((device.places for device in devices), default=1))
    compared = {EQUAL: share_fixed(ALL), FIRST_COME: first_come, SHORTEST: shortest_need, GROWTH: growth_efficiency}
    strict = Targets(TargetOptions(floor=0.02, between=0.0)).decide
    knowing = {
        f"{name}, knowing": needs_known(decide, trials, profiles)
        for name, decide in {**rules, "nearest": strict, SHORTEST: shortest_need}.items()
    }
    plans = simulate_rules({**compared, **rules, **knowing}, trials, devices, profiles, progress=progress, **about)
    arrives_s = tuple(trial.arrives_s for trial in trials)
    found = TargetComparison(outcomes=plans, tasks=tasks, arrives_s=arrives_s, oracle_plan="")
    best = min(plans, key=lambda name: found.mean_s(name, 0))
    outcomes = {name: plans[name] for name in (*compared, *rules)} | {ORACLE: plans[best]}
    return replace(found, outcomes=outcomes, oracle_plan=best)
