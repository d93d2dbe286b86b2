"""Forecasts of memory, speed and length of trials.

A family of trials that ran often enough is forecast from its own runs. Otherwise LightGBM learns the trials of a
program from their parameters, with one model for each target, whose spread comes from trials that it was not trained
on. Otherwise, where families differ in the batch size alone, two of them give a line, as memory and the time of a step
grow with the batch. Models are fitted once, on what had ended by then. Runs of the pool itself are added as they come.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from helios.model.trial_runs import TrialRun
from helios.training.learning_curve import NO_CURVES, EarlierCurves, earlier_curves, expect_targets
from helios.training.model import ONE_DEVICE, SharedSpeed, Trial, TrialForecast, count_fused, peak_hardly_exceeded

if TYPE_CHECKING:
    import lightgbm

MEMORY, SECONDS, SPEED = "memory_mib", "seconds", "steps_per_s"
TARGETS = (MEMORY, SECONDS, SPEED)
SPREAD = {MEMORY: 0.05, SECONDS: 0.25, SPEED: 0.1}
"""Prior of the standard deviation of the logarithm within a family."""
SPREAD_WEIGHT = 3
"""Number of runs that the prior counts for."""
OTHER_FAMILY_FACTOR = 2.0
"""Factor of the spread for a value that is not from the family's own runs."""
ENOUGH = 3
"""Fewest trials of a family from which it is forecast alone."""
FEWEST_TRIALS, HELD_BACK = 30, 1 / 3
"""Fewest trials of a program from which LightGBM learns, and the share of the last ones that shows its errors."""
LEAST_PROGRESS = 0.05
"""Least progress of a running trial from which its length is computed."""
SETTLED_S = 60.0
"""Time after which the memory of a running trial counts as its peak if its progress is unknown, s."""
ROUNDS = 150
PARAMETERS = {
    "objective": "l1",
    "num_leaves": 15,
    "learning_rate": 0.08,
    "min_data_in_leaf": 3,
    "min_data_in_bin": 1,
    "lambda_l2": 0.5,
    # One thread gives the same trees on every machine.
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbose": -1,
    "seed": 1,
}
NORMAL_90, NORMAL_95 = 1.2816, 1.6449
"""Quantiles of the normal distribution."""
_BATCH = re.compile(r"(^|_)(batch|bs)(_|$|size)", re.IGNORECASE)


class TrialModel:
    """Model of a program's trials on one kind of device.

    Parameters
    ----------
    runs : iterable of TrialRun
        Earlier runs, of any program and device.
    now_s : float
        Runs that ended later are left out, s since the epoch.
    device_model : str
        Only runs on this device are used, by the name of the vendor or ``cpu``. Empty for any device.

    Attributes
    ----------
    speeds : tuple of SharedSpeed
        Speeds measured in these runs.
    """

    def __init__(self, runs: Iterable[TrialRun], *, now_s: float, device_model: str = "") -> None:
        past = [run for run in runs if run.ended_s <= now_s and device_model in {"", run.device_model, run.device_kind}]
        self._facts = trial_facts(past)
        self._past = past
        self.speeds = measured_speeds(past)
        self._trees: dict[str, dict[str, _Trees]] = {}
        self._curves: dict[tuple[str, str, int], EarlierCurves] = {}

    def __bool__(self) -> bool:
        """Whether any run is known."""
        return bool(self._facts)

    def forecasts(
        self, trials: Sequence[tuple[str, str, Mapping[str, Any]]], runs: Iterable[TrialRun] = ()
    ) -> list[TrialForecast]:
        """Return a forecast of each trial, with None where nothing is known.

        Parameters
        ----------
        trials : sequence of (program, family, parameters)
        runs : iterable of TrialRun
            Runs of the pool itself, with those that go on (outcome ``running``).
        """
        facts: dict[str, list[TrialFacts]] = defaultdict(list)
        for fact in self._facts + trial_facts(runs):
            facts[fact.program].append(fact)
        tables = {program: _ProgramTable(program_facts) for program, program_facts in facts.items()}
        cache: dict[tuple[str, str, str], TrialForecast] = {}
        forecasts = []
        for program, family, parameters in trials:
            key = (program, family, repr(sorted(parameters.items())))
            if key not in cache:
                cache[key] = self._forecast(tables.get(program), program, family, parameters)
            forecasts.append(cache[key])
        return forecasts

    def expect(self, program: str, trials: Sequence[Trial], runs: Sequence[TrialRun]) -> list[TrialForecast]:
        """Return a forecast of each trial of a pool.

        It is a :data:`~helios.training.model.Forecast`. The length of a trial that has run is computed from its own
        runs, and what it needs to its targets from its curve.
        """
        forecasts = self.forecasts([(program, trial.family, trial.parameters) for trial in trials], runs)
        own_seconds = {fact.number: fact.seconds for fact in trial_facts(runs)}
        metric = next((trial.target.metric for trial in trials if trial.target is not None), "")
        earlier = self._earlier(program, metric, runs) if metric else NO_CURVES
        for i, trial in enumerate(trials):
            if (seconds := own_seconds.get(trial.number)) is not None:
                forecasts[i] = replace(forecasts[i], seconds_p50=seconds, seconds_p90=seconds)
            if trial.target is not None:
                first, second = expect_targets(trial, earlier)
                forecasts[i] = replace(forecasts[i], first=first, second=second)
        return forecasts

    def curves(self, program: str, metric: str) -> list[TrialRun]:
        """Return the last run of each trial with a curve of a metric."""
        last = {
            (run.pool, run.number): run
            for run in sorted(self._past, key=lambda run: run.attempt)
            if run.program == program and run.metric == metric
        }
        return [run for run in last.values() if run.curve]

    def _earlier(self, program: str, metric: str, runs: Sequence[TrialRun]) -> EarlierCurves:
        """Return earlier curves of a metric, with ended ones of the pool.

        They change when these are a fifth more, since all forecasts change with them.
        """
        ended = [run for run in runs if run.outcome != "running" and run.metric == metric]
        key = (program, metric, int(5 * math.log1p(len(ended))))
        if key not in self._curves:
            self._curves = {key: earlier_curves([*self.curves(program, metric), *ended])}
        return self._curves[key]

    def _forecast(
        self, table: _ProgramTable | None, program: str, family: str, parameters: Mapping[str, Any]
    ) -> TrialForecast:
        if table is None:
            return TrialForecast()
        estimates: dict[str, _Estimate | None] = {}
        for target in TARGETS:
            values = table.values.get((family, target), [])
            estimate = _family_estimate(values, target) if len(values) >= ENOUGH else None
            if estimate is None and (trees := self._program_trees(program).get(target)) is not None:
                estimate = trees.estimate(parameters)
            if estimate is None and values:
                estimate = _family_estimate(values, target)
            estimates[target] = estimate or table.by_batch(target, parameters)
        memory, seconds, speed = (estimates[target] for target in TARGETS)
        return TrialForecast(
            memory_p50_mib=memory.value if memory else None,
            memory_p95_mib=memory.quantile(NORMAL_95) if memory else None,
            memory_most_mib=peak_hardly_exceeded(table.peaks_mib[family]),
            seconds_p50=seconds.value if seconds else None,
            seconds_p90=seconds.quantile(NORMAL_90) if seconds else None,
            steps_per_s=speed.value if speed else None,
        )

    def _program_trees(self, program: str) -> Mapping[str, _Trees]:
        """Return LightGBM's models of a program, fitted once on what had ended."""
        if program not in self._trees:
            facts = [fact for fact in self._facts if fact.program == program]
            fitted = {target: _fit(facts, target) for target in TARGETS}
            self._trees[program] = {target: trees for target, trees in fitted.items() if trees is not None}
        return self._trees[program]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """Needs of one trial over all its attempts, None where unknown.

    Attributes
    ----------
    memory_mib : float, optional
        Peak memory. For a trial that was killed for memory, at least 1.5 times its limit.
    seconds : float, optional
        Time alone on a device, s.
    steps_per_s : float, optional
        Speed alone on a device.
    finished : bool
        Whether it ran to its end, so that its memory cannot grow any more.
    """

    number: int
    program: str
    family: str
    parameters: Mapping[str, Any]
    ended_s: float
    memory_mib: float | None
    seconds: float | None
    steps_per_s: float | None
    finished: bool


def measured_speeds(runs: Iterable[TrialRun]) -> tuple[SharedSpeed, ...]:
    """Return the mean speeds of families alone and beside others.

    Each trial counts with the time that it was measured.
    """
    sums: dict[tuple[str, tuple[str, ...], tuple[int, ...]], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for run in runs:
        for speed in run.speeds:
            entry = sums[run.family, speed.beside, run.placement]
            entry[0] += speed.steps_per_s * speed.seconds
            entry[1] += speed.seconds
            entry[2] += 1
    return tuple(
        SharedSpeed(
            family=family, beside=beside, steps_per_s=steps / seconds, samples=int(samples), placement=placement
        )
        for (family, beside, placement), (steps, seconds, samples) in sorted(sums.items())
        if seconds > 0
    )


def trial_facts(runs: Iterable[TrialRun]) -> list[TrialFacts]:
    """Return what each trial needed on one device, the first ended first.

    Time beside other trials is multiplied by the speed there as a share of the family's speed alone, if both are known.
    """
    runs = [run for run in runs if run.placement == ONE_DEVICE]
    speeds_alone = {speed.family: speed.steps_per_s for speed in measured_speeds(runs) if not speed.beside}
    attempts: dict[tuple[str, int], list[TrialRun]] = defaultdict(list)
    for run in runs:
        attempts[run.pool, run.number].append(run)
    facts = [_facts(trial, speeds_alone) for trial in attempts.values()]
    return sorted(facts, key=lambda fact: fact.ended_s)


def _facts(attempts: Sequence[TrialRun], speeds_alone: Mapping[str, float]) -> TrialFacts:
    """Return the needs of the trial with these attempts."""
    last = max(attempts, key=lambda run: run.attempt)
    done = 1.0 if last.outcome == "finished" else last.progress or 0.0
    useful = [run for run in attempts if run.outcome in {"finished", "stopped", "diverged", "running", "paused"}]
    seconds = (
        sum(_seconds_alone(run, speeds_alone.get(run.family)) for run in useful) if done >= LEAST_PROGRESS else None
    )
    alone = [speed for run in attempts for speed in run.speeds if not speed.beside and speed.seconds > 0]
    steps, steps_s = sum(speed.steps_per_s * speed.seconds for speed in alone), sum(speed.seconds for speed in alone)
    return TrialFacts(
        number=last.number,
        program=last.program,
        family=last.family,
        parameters=last.parameters,
        ended_s=last.ended_s,
        memory_mib=_peak_memory_mib(attempts, last, done),
        seconds=seconds / done if seconds else None,
        steps_per_s=steps / steps_s if alone else None,
        finished=last.outcome == "finished",
    )


def _peak_memory_mib(attempts: Sequence[TrialRun], last: TrialRun, done: float) -> float | None:
    # The memory of a process that trained several trials is known only for all of them together.
    peaks = [
        run.peak_memory_mib
        for run in attempts
        if run.peak_memory_mib and run.outcome != "out_of_memory" and not _is_fused(run)
    ]
    killed = [1.5 * run.memory_limit_mib for run in attempts if run.outcome == "out_of_memory" and run.memory_limit_mib]
    is_settled = last.outcome != "running" or done >= LEAST_PROGRESS or last.seconds >= SETTLED_S
    return (max(peaks, default=None) if is_settled else None) or max(killed, default=None)


def _is_fused(run: TrialRun) -> bool:
    return any(count_fused(speed.beside) > 1 for speed in run.speeds)


def _seconds_alone(run: TrialRun, speed_alone: float | None) -> float:
    if not speed_alone:
        return run.seconds
    lost_s = sum(
        speed.seconds * (1 - min(1.0, speed.steps_per_s / speed_alone)) for speed in run.speeds if speed.beside
    )
    return max(0.0, run.seconds - min(lost_s, run.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """A value with the standard deviation of its logarithm."""

    value: float
    spread: float

    def quantile(self, normal: float) -> float:
        return self.value * math.exp(normal * self.spread)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trees:
    """LightGBM's model of one target of a program."""

    names: tuple[str, ...]
    codes: Mapping[str, Mapping[str, float]]
    booster: lightgbm.Booster
    spread: float

    def estimate(self, parameters: Mapping[str, Any]) -> _Estimate:
        features = _features(parameters, self.names, self.codes)
        return _Estimate(value=float(math.exp(self.booster.predict(features[None, :])[0])), spread=self.spread)


def _family_estimate(values: Sequence[float], target: str) -> _Estimate:
    """Return the estimate of a family's next trial from its own values."""
    logs, count = np.log(values), len(values)
    squares = float(((logs - logs.mean()) ** 2).sum()) + SPREAD_WEIGHT * SPREAD[target] ** 2
    spread = math.sqrt(squares / (max(0, count - 1) + SPREAD_WEIGHT) * (1 + 1 / count))
    return _Estimate(value=float(np.exp(np.median(logs))), spread=spread)


class _ProgramTable:
    """Values of the trials of one program, by family and by batch size."""

    def __init__(self, facts: Sequence[TrialFacts]) -> None:
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.peaks_mib: dict[str, list[float]] = defaultdict(list)
        self._by_batch: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for fact in facts:
            batch = _batch_size(fact.parameters)
            if fact.finished and fact.memory_mib:
                self.peaks_mib[fact.family].append(fact.memory_mib)
            for target in TARGETS:
                value = getattr(fact, target)
                if value is None or value <= 0:
                    continue
                self.values[fact.family, target].append(value)
                if batch is not None:
                    size, others = batch
                    self._by_batch[others, target][size].append(value)

    def by_batch(self, target: str, parameters: Mapping[str, Any]) -> _Estimate | None:
        """Return the value on a line over the batch size.

        It is None with fewer than two sizes. The line is fitted to families that differ in nothing else. Memory is a
        constant plus a part for each sample, and so is the time of a step. The time of a trial is a part for each
        sample plus one for each step, of which larger batches have fewer. No part is below 0.
        """
        batch = _batch_size(parameters)
        if batch is None:
            return None
        size, others = batch
        by_size = self._by_batch.get((others, target), {})
        if len(by_size) < 2:
            return None
        sizes = np.array(sorted(by_size))
        values = np.array([float(np.median(by_size[known])) for known in sizes])
        is_speed = target == SPEED
        y = 1 / values if is_speed else values
        x, new_x = (1 / sizes, 1 / size) if target == SECONDS else (sizes, size)
        weights = 1 / y  # so that errors are relative
        (constant, slope), _ = nnls(np.column_stack([weights, x * weights]), y * weights)
        value = constant + slope * new_x
        return _Estimate(value=float(1 / value if is_speed else value), spread=OTHER_FAMILY_FACTOR * SPREAD[target])


def _batch_size(parameters: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the batch size of a trial and its other parameters, without floats.

    None if no parameter, or more than one, is a batch size.
    """
    names = [name for name, value in parameters.items() if _BATCH.search(name) and _is_number(value) and value > 0]
    if len(names) != 1:
        return None
    others = sorted(
        (name, value) for name, value in parameters.items() if name != names[0] and not isinstance(value, float)
    )
    return float(parameters[names[0]]), repr(others)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _features(
    parameters: Mapping[str, Any], names: Sequence[str], codes: Mapping[str, Mapping[str, float]]
) -> NDArray[np.float64]:
    """Return the features of a trial, with codes for texts."""
    values = [(name, parameters.get(name)) for name in names]
    return np.array(
        [
            float(value)
            if isinstance(value, int | float) and _is_number(value)
            else codes[name].get(repr(value), math.nan)
            for name, value in values
        ]
    )


def _fit(facts: Sequence[TrialFacts], target: str) -> _Trees | None:
    """Return a model of one target, None for too few trials.

    A first model is trained on the earlier trials alone. Its errors on the later ones give the spread.
    """
    facts = [fact for fact in facts if (getattr(fact, target) or 0) > 0]
    names = tuple(sorted({name for fact in facts for name in fact.parameters}))
    if len(facts) < FEWEST_TRIALS or not names:
        return None
    codes: dict[str, dict[str, float]] = {}
    for name in names:
        values = [fact.parameters.get(name) for fact in facts]
        texts = sorted({repr(value) for value in values if not _is_number(value)})
        codes[name] = {text: float(code) for code, text in enumerate(texts)}
    features = np.array([_features(fact.parameters, names, codes) for fact in facts])
    log_values = np.log([getattr(fact, target) for fact in facts])

    def train(n: int) -> lightgbm.Booster:
        import lightgbm  # noqa: PLC0415 - most pools need none, and run without it

        return lightgbm.train(PARAMETERS, lightgbm.Dataset(features[:n], log_values[:n]), ROUNDS)

    split = len(facts) - int(len(facts) * HELD_BACK)
    errors = log_values[split:] - train(split).predict(features[split:])
    upper = float(np.quantile(errors, 0.95)) / NORMAL_95  # so that the 95th percentile is the observed one
    spread = max(SPREAD[target] / OTHER_FAMILY_FACTOR, upper, float(np.median(np.abs(errors))))
    return _Trees(names=names, codes=codes, booster=train(len(facts)), spread=spread)
