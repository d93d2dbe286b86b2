"""Forecasts of memory, speed and length of trials.

Of a family that ran often enough, its own runs tell. Else LightGBM learns a program's trials from their parameters, one
model for each target, with the spread of trials that it was not trained on. Else, where families differ in the batch
size alone, two of them give a line: memory grows with the batch, and so does the time of a step. A model is fitted at
one moment, on what had ended by then; runs of the pool itself are added as they come.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from helios.model.pools import SharedSpeed, Trial, TrialForecast, TrialRun, count_fused, peak_hardly_exceeded

MEMORY, SECONDS, SPEED = "memory_mib", "seconds", "steps_per_s"
TARGETS = (MEMORY, SECONDS, SPEED)
SPREAD = {MEMORY: 0.05, SECONDS: 0.25, SPEED: 0.1}
"""Standard deviation of the logarithm within a family that is expected before there are runs to tell it."""
SPREAD_WEIGHT = 3
"""Runs that this expectation counts for."""
FROM_OTHERS = 2.0
"""How many times more a value may be off where it is not from the family's own runs."""
ENOUGH = 3
"""Trials of a family from which it is told by itself."""
FEWEST_TRIALS, HELD_BACK = 30, 1 / 3
"""Trials of a program from which LightGBM learns, and the share of the last ones that shows its errors."""
LEAST_PROGRESS = 0.05
"""Progress from which the length of a trial is taken that has not ended."""
SETTLED_S = 60.0
"""Time after which the memory of a trial that goes on is taken for its peak, s, where its progress does not tell."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """Needs of one trial over all its attempts.

    None stands for what is not known.

    Attributes
    ----------
    memory_mib : float, optional
        Peak; of a trial that was killed for memory, at least half as much again as its limit.
    seconds : float, optional
        Time alone on a device, s.
    steps_per_s : float, optional
        Alone on a device.
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
    sums: dict[tuple[str, tuple[str, ...]], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for run in runs:
        for speed in run.speeds:
            entry = sums[run.family, speed.beside]
            entry[0] += speed.steps_per_s * speed.seconds
            entry[1] += speed.seconds
            entry[2] += 1
    return tuple(
        SharedSpeed(family=family, beside=beside, steps_per_s=steps / seconds, samples=int(samples))
        for (family, beside), (steps, seconds, samples) in sorted(sums.items())
        if seconds > 0
    )


def trial_facts(runs: Iterable[TrialRun]) -> list[TrialFacts]:
    """Return what each trial needed, in the order in which they ended.

    Time beside others counts by the speed there, as a share of the family's speed alone, where both are known.
    """
    runs = list(runs)
    alone = {(s.family): s.steps_per_s for s in measured_speeds(runs) if not s.beside}
    by_trial: dict[tuple[str, int], list[TrialRun]] = defaultdict(list)
    for run in runs:
        by_trial[run.pool, run.number].append(run)
    facts = []
    for attempts in by_trial.values():
        last = max(attempts, key=lambda run: run.attempt)
        # Of a process that trained several trials, it is known only what all of them took.
        peaks = [
            run.peak_memory_mib
            for run in attempts
            if run.peak_memory_mib and run.outcome != "out_of_memory" and not _is_fused(run)
        ]
        killed = [
            1.5 * run.memory_limit_mib for run in attempts if run.outcome == "out_of_memory" and run.memory_limit_mib
        ]
        done = 1.0 if last.outcome == "finished" else last.progress or 0.0
        settled = last.outcome != "running" or done >= LEAST_PROGRESS or last.seconds >= SETTLED_S
        memory = (max(peaks, default=None) if settled else None) or max(killed, default=None)
        useful = [run for run in attempts if run.outcome in {"finished", "running", "paused"}]
        seconds = sum(_seconds_alone(run, alone.get(run.family)) for run in useful) if done >= LEAST_PROGRESS else None
        own = [(s.steps_per_s, s.seconds) for run in attempts for s in run.speeds if not s.beside and s.seconds > 0]
        facts.append(
            TrialFacts(
                number=last.number,
                program=last.program,
                family=last.family,
                parameters=last.parameters,
                ended_s=last.ended_s,
                memory_mib=memory,
                seconds=seconds / done if seconds else None,
                steps_per_s=sum(v * s for v, s in own) / sum(s for _, s in own) if own else None,
                finished=last.outcome == "finished",
            )
        )
    return sorted(facts, key=lambda fact: fact.ended_s)


def _is_fused(run: TrialRun) -> bool:
    return any(count_fused(speed.beside) > 1 for speed in run.speeds)


def _seconds_alone(run: TrialRun, alone: float | None) -> float:
    if not alone:
        return run.seconds
    shared = sum(s.seconds * (1 - min(1.0, s.steps_per_s / alone)) for s in run.speeds if s.beside)
    return max(0.0, run.seconds - min(shared, run.seconds))


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
        row = _row(parameters, self.names, self.codes)
        return _Estimate(value=float(math.exp(self.booster.predict(row[None, :])[0])), spread=self.spread)


class TrialModel:
    """Model of a program's trials on one kind of device.

    Parameters
    ----------
    runs : iterable of TrialRun
        Earlier runs, of any program and device.
    now_s : float
        Runs that ended later are left out, s since the epoch.
    device_model : str
        Only runs on this are used, the vendor's name or ``cpu``; empty: on any.

    Attributes
    ----------
    speeds : tuple of SharedSpeed
        As measured in these runs.
    """

    def __init__(self, runs: Iterable[TrialRun], *, now_s: float, device_model: str = "") -> None:
        past = [run for run in runs if run.ended_s <= now_s and device_model in {"", run.device_model, run.device_kind}]
        self._facts = trial_facts(past)
        self.speeds = measured_speeds(past)
        self._trees: dict[str, dict[str, _Trees]] = {}

    def __bool__(self) -> bool:
        """Whether any run is known."""
        return bool(self._facts)

    def forecasts(
        self,
        trials: Sequence[tuple[str, str, Mapping[str, Any]]],
        runs: Iterable[TrialRun] = (),
    ) -> list[TrialForecast]:
        """Return what is expected of trials.

        Parameters
        ----------
        trials : sequence of (program, family, parameters)
        runs : iterable of TrialRun
            Of the pool itself, also those that go on (outcome ``running``).

        Returns
        -------
        list of TrialForecast
            One for each trial, with None where nothing is known.
        """
        facts = self._facts + trial_facts(runs)
        by_program: dict[str, list[TrialFacts]] = defaultdict(list)
        for fact in facts:
            by_program[fact.program].append(fact)
        tables = {program: _ProgramTable(of) for program, of in by_program.items()}
        kept: dict[tuple[str, str, str], TrialForecast] = {}
        answer = []
        for program, family, parameters in trials:
            key = (program, family, repr(sorted(parameters.items())))
            if key not in kept:
                kept[key] = self._forecast(tables.get(program), program, family, parameters)
            answer.append(kept[key])
        return answer

    def expect(self, program: str, trials: Sequence[Trial], runs: Sequence[TrialRun]) -> list[TrialForecast]:
        """Return what is expected of the trials of a pool.

        It is a :data:`~helios.model.pools.Forecast`. What a trial itself has shown so far goes before what others did.
        """
        told = self.forecasts([(program, trial.family, trial.parameters) for trial in trials], runs)
        shown = {fact.number: fact for fact in trial_facts(runs)}
        answer = []
        for trial, forecast in zip(trials, told, strict=True):
            fact = shown.get(trial.number)
            if fact is not None and fact.seconds is not None:
                forecast = replace(forecast, seconds_p50=fact.seconds, seconds_p90=fact.seconds)  # noqa: PLW2901 - it is refined
            answer.append(forecast)
        return answer

    def _forecast(
        self, table: _ProgramTable | None, program: str, family: str, parameters: Mapping[str, Any]
    ) -> TrialForecast:
        if table is None:
            return TrialForecast()
        found: dict[str, _Estimate | None] = {}
        for target in TARGETS:
            own = table.values.get((family, target), [])
            estimate = _of_family(own, target) if len(own) >= ENOUGH else None
            if estimate is None and (trees := self._learned(program).get(target)) is not None:
                estimate = trees.estimate(parameters)
            if estimate is None and own:
                estimate = _of_family(own, target)
            found[target] = estimate or table.by_batch(target, parameters)
        memory, seconds, speed = (found[target] for target in TARGETS)
        return TrialForecast(
            memory_p50_mib=memory.value if memory else None,
            memory_p95_mib=memory.quantile(NORMAL_95) if memory else None,
            memory_most_mib=peak_hardly_exceeded(table.peaks_mib[family]),
            seconds_p50=seconds.value if seconds else None,
            seconds_p90=seconds.quantile(NORMAL_90) if seconds else None,
            steps_per_s=speed.value if speed else None,
        )

    def _learned(self, program: str) -> Mapping[str, _Trees]:
        """Return LightGBM's models of a program, fitted once on what had ended."""
        if program not in self._trees:
            facts = [fact for fact in self._facts if fact.program == program]
            learned = {target: _fit(facts, target) for target in TARGETS}
            self._trees[program] = {target: trees for target, trees in learned.items() if trees is not None}
        return self._trees[program]


def _of_family(values: Sequence[float], target: str) -> _Estimate:
    """Return what a family's own values tell of its next trial."""
    logs, count = np.log(values), len(values)
    squares = float(((logs - logs.mean()) ** 2).sum()) + SPREAD_WEIGHT * SPREAD[target] ** 2
    spread = math.sqrt(squares / (max(0, count - 1) + SPREAD_WEIGHT) * (1 + 1 / count))
    return _Estimate(value=float(np.exp(np.median(logs))), spread=spread)


class _ProgramTable:
    """What is known of the trials of one program, by family."""

    def __init__(self, facts: Sequence[TrialFacts]) -> None:
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.peaks_mib: dict[str, list[float]] = defaultdict(list)
        self._alike: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for fact in facts:
            at = _batch_size(fact.parameters)
            if fact.finished and fact.memory_mib:
                self.peaks_mib[fact.family].append(fact.memory_mib)
            for target in TARGETS:
                value = getattr(fact, target)
                if value is None or value <= 0:
                    continue
                self.values[fact.family, target].append(value)
                if at is not None:
                    self._alike[at[1], target][at[0]].append(value)

    def by_batch(self, target: str, parameters: Mapping[str, Any]) -> _Estimate | None:
        """Return the value on a line over the batch size.

        The line goes through families that differ in nothing else. Memory is a constant and a part for each sample, and
        so is the time of a step. The time of a trial is a part for each sample and one for each step, of which larger
        batches have fewer. No part is below 0.
        """
        at = _batch_size(parameters)
        if at is None:
            return None
        size, others = at
        known = self._alike.get((others, target), {})
        if len(known) < 2:
            return None
        sizes = np.array(sorted(known))
        values = np.array([float(np.median(known[one])) for one in sizes])
        inverse = target == SPEED
        y = 1 / values if inverse else values
        x, new = (1 / sizes, 1 / size) if target == SECONDS else (sizes, size)
        weights = 1 / y  # so that errors are relative
        (level, slope), _ = nnls(np.column_stack([weights, x * weights]), y * weights)
        value = level + slope * new
        return _Estimate(value=float(1 / value if inverse else value), spread=FROM_OTHERS * SPREAD[target])


def _batch_size(parameters: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the batch size of a trial and its other parameters.

    Of these, numbers with a fraction are left out.
    """
    names = [name for name, value in parameters.items() if _BATCH.search(name) and _is_number(value) and value > 0]
    if len(names) != 1:
        return None
    others = sorted((n, v) for n, v in parameters.items() if n != names[0] and not isinstance(v, float))
    return float(parameters[names[0]]), repr(others)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _row(
    parameters: Mapping[str, Any], names: Sequence[str], codes: Mapping[str, Mapping[str, float]]
) -> NDArray[np.float64]:
    """Return features of a trial, texts by their code."""
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
    """Fit a model of one target, or return None.

    None where there are too few trials. The earlier part is trained on first, and its errors on the rest are the spread
    of the model of all.
    """
    told = [(fact.parameters, getattr(fact, target)) for fact in facts if (getattr(fact, target) or 0) > 0]
    if len(told) < FEWEST_TRIALS:
        return None
    names = tuple(sorted({name for parameters, _ in told for name in parameters}))
    codes: dict[str, dict[str, float]] = {}
    for name in names:
        texts = sorted({repr(p.get(name)) for p, _ in told if not _is_number(p.get(name))})
        codes[name] = {text: float(place) for place, text in enumerate(texts)}
    features = np.array([_row(parameters, names, codes) for parameters, _ in told]).reshape(len(told), len(names))
    logs = np.log([value for _, value in told])
    split = len(told) - int(len(told) * HELD_BACK)
    if not names:
        return None

    def trained(rows: int) -> lightgbm.Booster:
        return lightgbm.train(PARAMETERS, lightgbm.Dataset(features[:rows], logs[:rows]), ROUNDS)

    errors = logs[split:] - trained(split).predict(features[split:])
    above = float(np.quantile(errors, 0.95)) / NORMAL_95  # so that the 95th percentile is the one that was seen
    spread = max(SPREAD[target] / FROM_OTHERS, above, float(np.median(np.abs(errors))))
    return _Trees(names=names, codes=codes, booster=trained(len(told)), spread=spread)
