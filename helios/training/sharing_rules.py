"""Rules of sharing devices, compared with an oracle on a simulated pool."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from helios.training.model import (
    Device,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    Trial,
    TrialForecast,
    TrialState,
)
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import Decide, PoolOutcome, SimulatedPool


def share_fixed(together: int) -> Decide:
    """Return the rule of a fixed number of trials on a device.

    A trial that was killed for memory starts again alone on a device.
    """

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        free = {device.name: min(together, device.slots) for device in snapshot.devices}
        empty = dict.fromkeys(free, True)
        for trial in snapshot.trials:
            for name in trial.devices:
                empty[name] = False
                free[name] -= 1 if trial.out_of_memory_mib is None else together
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
                StartTrial(
                    number=trial.number, devices=(name,), memory_limit_mib=None, reason=f"up to {together} share"
                )
            )
        return actions

    return decide


def with_true_values(
    decide: Decide, trials: Sequence[SimulatedTrial], profiles: PairProfiles, *, lengths: bool = True
) -> Decide:
    """Return a rule that is given the true values from the start.

    These are all speeds, the memory, and the length of each trial or, without ``lengths``, the mean of its family.
    """
    names = profiles.families
    family_seconds: dict[int, list[float]] = defaultdict(list)
    for trial in trials:
        family_seconds[trial.family].append(trial.seconds)

    def true_speed(family: int, beside: tuple[int, ...]) -> SharedSpeed:
        share = 1.0 if not beside else float(profiles.beside[family, beside[0]])
        steps_per_s = 0.0 if math.isnan(share) else share * float(profiles.alone[family])
        others = tuple(names[other] for other in beside)
        return SharedSpeed(family=names[family], beside=others, steps_per_s=steps_per_s, samples=1_000)

    families = sorted(family_seconds)
    speeds = (
        *(true_speed(family, ()) for family in families),
        *(true_speed(family, (other,)) for family in families for other in families),
    )
    forecasts = [
        TrialForecast(
            memory_p50_mib=trial.memory_mib,
            memory_p95_mib=trial.memory_mib,
            seconds_p50=trial.seconds if lengths else float(np.mean(family_seconds[trial.family])),
        )
        for trial in trials
    ]

    def with_truth(trial: Trial) -> Trial:
        running = trial.state is TrialState.RUNNING
        return replace(trial, forecast=forecasts[trial.number], steps_per_s=1.0 if running else None)

    return lambda snapshot: decide(replace(snapshot, speeds=speeds, trials=tuple(map(with_truth, snapshot.trials))))


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
                name: outcome_json(outcome) | {"share_of_oracle_gain": finite(shares[name])}
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
    progress: Callable[[str], None] = lambda _: None,
    **about: Any,
) -> PoolComparison:
    """Simulate a sweep under several rules of sharing devices.

    Parameters
    ----------
    trials, devices, profiles, **about
        As of :class:`SimulatedPool`.
    rules : mapping of str to Decide
        Rules to compare, such as ``{"packing": Packing(Packing.Options()).decide}``. They learn speeds in the pool.
    planners : mapping of str to Decide
        Rules for the oracle, which get the true speeds, lengths and memory. The oracle is the best in makespan of them,
        of the fixed rules, and of ``rules``, with the true values and without.
    fixed : sequence of int
        Numbers of trials that share a device under a fixed rule.
    progress : callable
        Called with the name of each rule before it runs.

    Returns
    -------
    PoolComparison
    """
    compared = {"exclusive": share_fixed(1), **{f"fixed {count}": share_fixed(count) for count in fixed}, **rules}
    knowing = {
        f"{name}, knowing": with_true_values(decide, trials, profiles)
        for name, decide in {**rules, **planners, "longest first": longest_first}.items()
    }
    plans = simulate_rules({**compared, **knowing}, trials, devices, profiles, progress=progress, **about)
    best = min(plans, key=lambda name: plans[name].makespan_s)
    first = min((trial.arrives_s for trial in trials), default=0.0)
    bound = max((trial.arrives_s + trial.seconds - first for trial in trials), default=0.0)
    outcomes = {name: plans[name] for name in compared} | {"oracle": plans[best]}
    return PoolComparison(outcomes=outcomes, bound_s=bound, oracle_plan=best)


def simulate_rules(
    rules: Mapping[str, Decide], *pool: Any, progress: Callable[[str], None], **about: Any
) -> dict[str, PoolOutcome]:
    """Simulate a pool under each of some rules."""
    outcomes = {}
    for name, decide in rules.items():
        progress(name)
        outcomes[name] = SimulatedPool(*pool, **about).run(decide)
    return outcomes


def longest_first(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Start the longest trials first, each alone on a device."""
    taken = {name for trial in snapshot.trials for name in trial.devices}
    free = [device.name for device in snapshot.devices if device.name not in taken]
    waiting = [trial for trial in snapshot.trials if trial.state is TrialState.WAITING]
    waiting.sort(key=lambda trial: (-(trial.forecast.seconds_p50 or 0.0), trial.number))
    return [
        StartTrial(number=trial.number, devices=(name,), memory_limit_mib=None, reason="the longest first")
        for trial, name in zip(waiting, free, strict=False)
    ]


def outcome_json(outcome: PoolOutcome) -> dict[str, Any]:
    """Return an outcome as JSON values, without those of each trial."""
    return {key: finite(value) for key, value in asdict(outcome).items() if key not in {"ended_s", "reached_s"}}


def finite(value: Any) -> Any:
    """Return a value, None where it is a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
