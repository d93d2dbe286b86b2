"""Judge forecasts of the steps that a training needs to a target, beside simple ones.

    python -m benchmarks.learning_curves POLLUX     # the folder pollux of the measured profiles; a minute
    python -m benchmarks.learning_curves POLLUX --trees   # also LightGBM

Targets are 80, 90, 95 and 98 % of the way from a curve's first value to its best. At 10, 25 and 50 % of the work to
one, the forecast has the points until then and, but for "no end", how long the training is to be. Curves of Pollux
(OSDI'21) are judged **leaving a model out**: the prior is fitted to the other models alone. Those recorded here
(``learning_curves.csv``; ``record_curves.py`` made it) are judged with the built-in prior, whose shapes are fitted to
Pollux. Constants were tuned on the half ``tune`` of that file and on Pollux with a model left out. Levels of the
percentiles are learnt on both too, at moments all along a training and not at those that are judged.

Beside it: "slope" goes on with the last quarter of the points, "power law" is the least squares fit of a - b t^-c,
"same" says that all need what the others needed, as a part of the training, to any of the targets. None may say more
than what is left. LightGBM learns what was needed at many moments of the other models.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.model.trial_runs import CurvePoint
from helios.training.learning_curve import (
    BUILT_IN,
    SHARES,
    CurvePrior,
    EarlierCurves,
    crossing,
    forecast_steps,
    learn_prior,
)
from helios.training.model import StepsToTarget

RECORDED = Path(__file__).with_name("learning_curves.csv")
TO_MINIMIZE = {"deepspeech2", "yolov3"}
WAYS = (0.8, 0.9, 0.95, 0.98)
"""Targets, as parts of the way from the first value to the best."""
TOO_FAR = (1.05, 1.2)
"""Targets that no curve reached."""
SHARE_SPREAD = 0.3
"""How near, by the logarithm of the part of the training that is done, moments are from which levels are learnt."""
FRACTIONS = (0.1, 0.25, 0.5)
"""When it is forecast, as parts of the work to the target."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A recorded training.

    Attributes
    ----------
    model : str
        What is left out together.
    values : array
        Larger is better.
    """

    model: str
    name: str
    steps: np.ndarray
    values: np.ndarray
    horizon: float

    def points(self, until: float) -> tuple[CurvePoint, ...]:
        """Return the curve until a step."""
        return tuple(
            CurvePoint(step, step, None if math.isnan(value) else value)
            for step, value in zip(self.steps.tolist(), self.values.tolist(), strict=True)
            if step <= until
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A moment of a training, and what it needed from then on."""

    task: Task
    fraction: float
    way: float
    value: float
    curve: tuple[CurvePoint, ...]
    need: float

    @property
    def left(self) -> float:
        """How much of the training is left."""
        return self.task.horizon - self.curve[-1].step


def read_pollux(folder: Path) -> list[Task]:
    """Return the recorded curves of Pollux, by the progress of the smallest batch."""
    tasks = []
    for path in sorted(folder.glob("*/validation-*.csv")):
        rows = pd.read_csv(path)
        sign = -1 if path.parent.name in TO_MINIMIZE else 1
        steps = rows["progress"].to_numpy()
        values = sign * rows["metric"].to_numpy()
        tasks.append(Task(model=path.parent.name, name=path.stem, steps=steps, values=values, horizon=steps[-1]))
    return tasks


def read_recorded(half: str) -> list[Task]:
    """Return the curves of one half of what was recorded here."""
    rows = pd.read_csv(RECORDED)
    tasks = []
    for row in rows[rows["half"] == half].to_dict("records"):
        sign = 1 if row["metric"].endswith("acc") else -1
        values = sign * np.array(row["values"].split(), dtype=float)
        steps = float(row["first_step"]) * np.arange(1, len(values) + 1)
        tasks.append(Task(model=row["kind"], name=row["task"], steps=steps, values=values, horizon=steps[-1]))
    return tasks


def cases(tasks: Iterable[Task], fractions: Sequence[float] = FRACTIONS, *, whole: bool = False) -> list[Case]:
    """Return moments before a target. One before the first point is none.

    Parameters
    ----------
    whole : bool
        Whether fractions are of the whole training, not of the work to the target.
    """
    found = []
    for task in tasks:
        first, best = task.values[0], np.nanmax(task.values)
        for way in WAYS:
            value = first + way * (best - first)
            work = task.steps[np.argmax(task.values >= value)]
            for fraction in fractions:
                curve = task.points(fraction * (task.horizon if whole else work))
                if curve and (need := work - curve[-1].step) > 0:
                    case = Case(task=task, fraction=fraction, way=way, value=value, curve=curve, need=need)
                    found.append(case)
    return found


Method = Callable[[Case], StepsToTarget | None]


def ours(prior: CurvePrior, *, horizon: bool) -> Method:
    """Return the forecast with a prior."""
    return lambda case: forecast_steps.__wrapped__(
        case.curve, case.value, True, horizon=case.task.horizon if horizon else None, earlier=EarlierCurves(prior=prior)
    )


def exactly(case: Case, need: float) -> StepsToTarget:
    """Return a need without an interval, within what is left."""
    need = case.left if math.isnan(need) else min(max(need, 1e-9), case.left)
    return StepsToTarget(p10=need, p50=need, p90=need, reached=float(need < case.left))


def slope(case: Case) -> StepsToTarget:
    """Go on as in the last quarter of the points."""
    steps, values = clean(case.curve)
    first = min(len(steps) - 2, len(steps) - max(2, len(steps) // 4))
    if first < 0:
        return exactly(case, math.nan)
    gain = np.polyfit(steps[first:] - steps[-1], values[first:], 1)[0]
    return exactly(case, (case.value - values.max()) / gain if gain > 0 else math.inf)


def power_law(case: Case) -> StepsToTarget:
    """Fit a - b t^-c by least squares over a grid of c."""
    steps, values = clean(case.curve)
    if len(steps) < 3:
        return slope(case)
    best = (math.inf, math.inf)
    for c in np.geomspace(0.02, 5, 60):
        design = np.column_stack([np.ones(len(steps)), -((steps / steps[-1]) ** -c)])
        (a, b), *_ = np.linalg.lstsq(design, values, rcond=None)
        error = float(((design @ (a, b) - values) ** 2).sum())
        need = steps[-1] * ((b / (a - case.value)) ** (1 / c) - 1) if b > 0 and a > case.value else math.inf
        best = min(best, (error, need))
    return exactly(case, best[1])


def clean(curve: tuple[CurvePoint, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values that are finite."""
    known = [(point.step, point.value) for point in curve if point.value is not None]
    return np.array([step for step, _ in known]), np.array([value for _, value in known])


def same(others: Sequence[Task]) -> Method:
    """Return the forecast that all need the same part of the training."""
    known = cases(others, (0.999,))
    parts = np.array([(case.need + case.curve[-1].step) / case.task.horizon for case in known])

    def forecast(case: Case) -> StepsToTarget:
        needs = parts * case.task.horizon - case.curve[-1].step
        needs = needs[needs > 0]
        if not len(needs):
            return exactly(case, case.left / 2)
        p10, p50, p90 = np.quantile(needs, [0.1, 0.5, 0.9])
        return StepsToTarget(p10=p10, p50=p50, p90=p90)

    return forecast


def by(key: Callable[[Case], Any], items: Iterable[Case]) -> dict[Any, list[Case]]:
    """Return cases by a key."""
    found = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def score(method: Method, judged: Sequence[Case]) -> dict[str, float]:
    """Return the median absolute log error, the coverage and how often it says that it will not be reached."""
    steps = [(method(case) or exactly(case, math.nan), case.need) for case in judged]
    return {
        "error": float(np.median([abs(math.log(step.p50 / need)) for step, need in steps])),
        "covered": float(np.mean([step.p10 <= need <= step.p90 for step, need in steps])),
        "below half": float(np.mean([step.reached < 0.5 for step, _ in steps])),
        "below a tenth": float(np.mean([step.reached < 0.1 for step, _ in steps])),
    }


def compare(
    title: str,
    tasks: Sequence[Task],
    priors: Callable[[str], CurvePrior],
    others: Callable[[str], list[Task]],
    *,
    with_trees: bool,
) -> None:
    """Print what each method reaches, as means over models, and models from the worst one."""
    groups = by(lambda case: case.task.model, cases(tasks))
    methods: dict[str, Callable[[str], Method]] = {
        "family": lambda model: ours(priors(model), horizon=True),
        "family, no end": lambda model: ours(priors(model), horizon=False),
        "slope": lambda _: slope,
        "power law": lambda _: power_law,
        "same": lambda model: same(others(model)),
    }
    if with_trees:
        methods["LightGBM"] = lambda model: trees(others(model), family=False)
        methods["LightGBM, family"] = lambda model: trees(others(model), family=True)
    print(f"\n{title}: {len(tasks)} curves of {len(groups)} models, {sum(map(len, groups.values()))} cases")
    print(f"{'':16s}   at  cases  error  covered   P<.5   P<.1   worst models: error, covered")
    for name, method in methods.items():
        ready = {model: method(model) for model in groups}
        for fraction in FRACTIONS:
            parts = {model: [case for case in part if case.fraction == fraction] for model, part in groups.items()}
            scores = {model: score(ready[model], part) for model, part in parts.items() if part}
            error, covered, half, tenth = np.mean([list(each.values()) for each in scores.values()], axis=0)
            worst = sorted(scores.items(), key=lambda item: -item[1]["error"])[:3]
            count = sum(map(len, parts.values()))
            print(
                f"{name:16s} {fraction:4.0%} {count:6d} {error:6.2f} {covered:8.0%} {half:6.0%} {tenth:6.0%}   "
                + ", ".join(f"{model} {it['error']:.2f} {it['covered']:.0%}" for model, it in worst)
            )


def too_far(tasks: Sequence[Task], priors: Callable[[str], CurvePrior]) -> None:
    """Print how probable targets are said to be that no curve reached."""
    for fraction in (0.25, 0.5, 0.9):
        said = []
        for task in tasks:
            first, best, curve = task.values[0], np.nanmax(task.values), task.points(fraction * task.horizon)
            for way in TOO_FAR:
                value = first + way * (best - first)
                case = Case(task=task, fraction=fraction, way=way, value=value, curve=curve, need=math.inf)
                if curve and (steps := ours(priors(task.model), horizon=True)(case)):
                    said.append(steps.reached)
        p10, p50, p90 = np.quantile(said, [0.1, 0.5, 0.9])
        print(f"never reached, at {fraction:.0%} of the training: P {p50:.2f}, 80 % of them {p10:.2f} to {p90:.2f}")


def fit(tasks: Sequence[Task], tuning: Sequence[Task]) -> CurvePrior:
    """Return a prior fitted to some models.

    Its levels come from leaving out one of them at a time, and from curves for tuning.
    """
    prior = fit_shapes(tasks)
    judged = [
        (case, fit_shapes([t for t in tasks if t.model != case.task.model]))
        for case in cases(tasks, SHARES, whole=True)
    ]
    judged += [(case, prior) for case in cases(tuning, SHARES, whole=True)]
    count = Counter((case.task.model, case.fraction) for case, _ in judged)
    weights = np.array([1 / count[case.task.model, case.fraction] for case, _ in judged])
    shares = np.log([case.fraction for case, _ in judged])
    far_apart = (shares - np.log(SHARES)[:, None]) / SHARE_SPREAD
    levels, opens = (
        np.array([level(inner, case, case.task.horizon if known else None) for case, inner in judged])
        for known in (True, False)
    )
    return replace(
        prior,
        levels=tuple(percentiles(levels, weights * np.exp(-0.5 * far**2)) for far in far_apart),
        open_levels=percentiles(opens, weights),
    )


def percentiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Return the 10th, 50th and 90th percentile."""
    p10, p50, p90 = np.quantile(values, [0.1, 0.5, 0.9], weights=weights, method="inverted_cdf").round(3).tolist()
    return p10, p50, p90


def level(prior: CurvePrior, case: Case, horizon: float | None) -> float:
    """Return the level of the distribution at which a case's need was."""
    steps, values = zip(*[(p.step, math.nan if p.value is None else p.value) for p in case.curve], strict=True)
    times, cdf, _ = crossing(np.array(steps, dtype=float), case.value - np.array(values), horizon, prior)
    return float(np.interp(math.log(case.need), np.log(times[1:] - times[0]), cdf / cdf[-1], left=0.0))


def fit_shapes(tasks: Sequence[Task]) -> CurvePrior:
    """Return a prior fitted to some models, with the plain levels."""
    parts = by(lambda case: case.task.model, cases(tasks, (0.999,)))
    logs = [np.log([(case.need + case.curve[-1].step) / case.task.horizon for case in part]) for part in parts.values()]
    part = float(np.mean([each.mean() for each in logs]))
    spread = math.sqrt(np.mean([((each - part) ** 2).mean() for each in logs]))
    base = CurvePrior(part=part, part_spread=spread)
    return learn_prior([(task.points(math.inf), True) for task in tasks], base=base)


def trees(tasks: Sequence[Task], *, family: bool) -> Method:
    """Return LightGBM trained on other models, with or without the family's forecast among its features."""
    import lightgbm  # noqa: PLC0415 - takes a second, and only --trees needs it

    prior = fit_shapes(tasks)

    def features(case: Case) -> list[float]:
        steps, values = clean(case.curve)
        at = np.interp(np.array([0.25, 0.5, 0.75, 1]) * steps[-1], steps, values)
        ways = (case.value - at) / (case.value - values[0])
        found = [len(steps), steps[-1] / case.task.horizon, *ways, math.log(slope(case).p50 / steps[-1])]
        if family:
            said = ours(prior, horizon=True)(case) or exactly(case, math.nan)
            found += [math.log(said.p50 / steps[-1]), said.reached]
        return found

    known = cases(tasks, np.geomspace(0.03, 0.97, 12).tolist())
    data = lightgbm.Dataset(
        np.array([features(case) for case in known]), np.log([case.need / case.curve[-1].step for case in known])
    )
    options = {"objective": "l1", "num_leaves": 7, "min_data_in_leaf": 10, "verbose": -1, "seed": 1, "num_threads": 1}
    booster = lightgbm.train(options, data, 100)
    return lambda case: exactly(
        case, math.exp(booster.predict(np.array([features(case)]))[0]) * max(1.0, case.curve[-1].step)
    )


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pollux", type=Path)
    parser.add_argument("--trees", action="store_true")
    given = parser.parse_args()
    pollux, recorded = read_pollux(given.pollux), read_recorded("judge")
    left = {model: [task for task in pollux if task.model != model] for model in sorted({t.model for t in pollux})}
    tuning = read_recorded("tune")
    priors = {model: fit(tasks, tuning) for model, tasks in left.items()}
    compare("Pollux, a model left out", pollux, priors.__getitem__, left.__getitem__, with_trees=given.trees)
    too_far(pollux, priors.__getitem__)
    compare("recorded here", recorded, lambda _: BUILT_IN, lambda _: pollux, with_trees=given.trees)
    too_far(recorded, lambda _: BUILT_IN)
    print(f"\nbuilt in, fitted to all of Pollux: {fit(pollux, tuning)}")


if __name__ == "__main__":
    main()
