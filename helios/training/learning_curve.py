"""Forecast of the steps that a task needs to a metric's value.

A family of monotone shapes over the step, each with an offset and a height, is fitted to the points so far in closed
form. Shapes count by how well they explain the points, times a prior. All together give the distribution of the step
at which the metric first reaches the value, to which the part of a training that others needed is added. It needs numpy
only, so that a pool without a history can use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helios.training.model import StepsToTarget

if TYPE_CHECKING:
    from helios.model.trial_runs import CurvePoint, TrialRun
    from helios.training.model import Trial

Array = NDArray[np.float64]
Levels = tuple[float, float, float]

POWERS = (0.5, 1.0, 2.0)
"""Exponents p of the shapes 1 - (1 + t/s)^-p."""
STRETCHES = (0.5, 1.0, 2.0)
"""Exponents q of the shapes 1 - exp(-(t/s)^q). With 2 the metric starts slowly."""
FORMS = len(POWERS) + len(STRETCHES) + 1
"""The last one is log(1 + t/s), which never ends."""
SCALES = 10 ** np.arange(-1.5, 2.01, 0.35)
"""Scales s of the shapes, as multiples of the last step."""
NOISES = np.array([0.003, 0.01, 0.03, 0.08, 0.2, 0.5])
"""Standard deviations of points around a shape, as parts of the way from the first value to the target."""
OFFSET_SPREAD = 0.2
"""Prior of the standard deviation of the first value around a shape, in the same unit."""
HEIGHT, HEIGHT_SPREAD = 1.7, 0.3
"""Prior of the height of a shape, in the same unit. Targets are mostly chosen so that they can just be reached."""
GAIN_SPREAD = 0.25
"""Standard deviation of what a shape gains after the last point, as a part of it. No curve is exactly of a shape."""
MOST_POINTS = 40
"""Points that are fitted. More are averaged, by steps."""
ENOUGH_POINTS = 20.0
"""Points that all together count for at most, since neighbours tell the same."""
HALF_LIFE = 0.2
"""Age at which a point counts half, as a part of the last step."""
MOST_DISTANCE = 8.0
"""Distance to the target, as a multiple of its median, from which values are cut off: losses may start very high."""
MOST_BEHIND = 3.0
"""Distance of a value behind the best one before it, as a multiple of the noise, from which values are cut off."""
SURPRISE = 0.1
"""Probability that a curve reaches a target as no shape does, as at a step of the learning rate, if all is ahead."""
PART_WEIGHT = 0.5
"""Weight of the part of a training that others needed, beside the shapes, where all the way is ahead. It falls with the
root of the distance to the target."""
SHARES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Parts of a training that are done, each twice the one before, for each of which a prior has levels."""
TIMES = 24
"""Times at which the distribution is computed."""
EVEN = np.linspace(0, 1, TIMES)
MOST_STEPS = 100.0
"""How far is looked ahead where the end is unknown, as a multiple of the last step."""
UNKNOWN_HORIZON, UNKNOWN_SPREAD = 8.0, 1.5
"""Where the end is unknown: its median, as a multiple of the last step, and the standard deviation of its logarithm."""
LEAST_WEIGHT = 1e-3
"""Fits that explain the points so much worse than the best one are left out."""
LOST_POINTS = 3
"""So many last points that are not finite mean that the training has diverged."""
PRIOR_CURVES, FEWEST_POINTS = 5.0, 8
"""For how many curves a prior counts, and the fewest points of a curve from which it learns."""
EARLIER_SPREAD, EARLIER_WEIGHT = 0.35, 5.0
"""Standard deviation of the logarithm of what trainings of one program need around each other, and how much more likely
a step is at which one of them reached the target."""
MOST_EARLIER = 50
"""Earlier curves that are used, the last ones."""
DONE = StepsToTarget(p10=0.0, p50=0.0, p90=0.0)
RECORD_SHARE = 0.3
"""What of the expected record of noisy reports counts, since noise falls."""
_LOG_REPORTS = np.log([1, 2, 5, 10, 20, 50, 100, 1000])
_RECORDS = np.array([0, 0.56, 1.16, 1.54, 1.87, 2.25, 2.51, 3.24])
"""Expected largest of so many standard normal values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrior:
    """Which shapes are expected.

    Attributes
    ----------
    weights : tuple of float
        Probability of each form.
    centers, spreads : tuple of float
        Mean and standard deviation of the logarithm of each form's scale, as a part of the whole training.
    part, part_spread : float
        Mean and standard deviation of the logarithm of the part of the whole training that a target took.
    levels : tuple of tuple of float
        Levels of the distribution that were the 10th, 50th and 90th percentile of what was needed, where each of
        ``SHARES`` was done.
    open_levels : tuple of float
        The same where the end is unknown.
    """

    weights: tuple[float, ...] = (1 / FORMS,) * FORMS
    centers: tuple[float, ...] = (math.log(0.2),) * FORMS
    spreads: tuple[float, ...] = (2.0,) * FORMS
    part: float = math.log(0.5)
    part_spread: float = 0.6
    levels: tuple[Levels, ...] = ((0.1, 0.5, 0.9),) * len(SHARES)
    open_levels: Levels = (0.1, 0.5, 0.9)


BUILT_IN = CurvePrior(
    weights=(0.142, 0.251, 0.107, 0.204, 0.064, 0.186, 0.046),
    centers=(-2.578, -2.259, -1.075, -1.702, -1.194, -1.118, -1.138),
    spreads=(1.159, 0.932, 1.203, 1.082, 1.35, 0.71, 2.086),
    part=-0.752,
    part_spread=0.54,
    levels=(
        (0.141, 0.633, 0.976),
        (0.136, 0.522, 0.947),
        (0.249, 0.648, 0.945),
        (0.4, 0.711, 0.949),
        (0.379, 0.69, 0.913),
        (0.116, 0.629, 0.938),
        (0.021, 0.66, 0.981),
    ),
    open_levels=(0.153, 0.616, 0.872),
)
"""What ``benchmarks/learning_curves.py`` fits to the 40 curves of Pollux (OSDI'21), with levels also of those for
tuning."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EarlierCurves:
    """Whole curves of earlier trainings of one program.

    Attributes
    ----------
    prior : CurvePrior
        Which shapes they have.
    """

    curves: tuple[tuple[CurvePoint, ...], ...] = ()
    maximize: bool = True
    prior: CurvePrior = BUILT_IN


NO_CURVES = EarlierCurves()


def earlier_curves(runs: Sequence[TrialRun]) -> EarlierCurves:
    """Return the curves of the last runs that ended, by one metric."""
    whole = [run for run in runs if run.curve and run.outcome in {"finished", "diverged"}][-MOST_EARLIER:]
    if not whole:
        return NO_CURVES
    curves, maximize = tuple(run.curve for run in whole), whole[-1].direction != "minimize"
    return EarlierCurves(curves=curves, maximize=maximize, prior=learn_prior((curve, maximize) for curve in curves))


@lru_cache(maxsize=256)
def _works(earlier: EarlierCurves, value: float) -> Array:
    """Return the step at which each curve first reached a value, or infinity."""
    sign = 1.0 if earlier.maximize else -1.0
    return np.array(
        [
            next((max(1.0, p.step) for p in curve if p.value is not None and sign * (p.value - value) >= 0), math.inf)
            for curve in earlier.curves
        ]
    )


def expect_targets(
    trial: Trial, earlier: EarlierCurves = NO_CURVES
) -> tuple[StepsToTarget | None, StepsToTarget | None]:
    """Forecast the steps of a trial to its first and second target.

    None where it has no such target, or where nothing is known.
    """
    target = trial.target
    if target is None:
        return None, None
    horizon = trial.curve[-1].step / trial.progress if trial.curve and trial.progress else None
    steps = [
        DONE
        if tier < trial.targets_reached
        else forecast_steps(trial.curve, value, target.maximize, horizon=horizon, earlier=earlier)
        for tier, value in enumerate(target.values)
    ]
    return steps[0], steps[1] if len(steps) > 1 else None


@lru_cache(maxsize=4096)
def forecast_steps(
    curve: tuple[CurvePoint, ...],
    value: float,
    maximize: bool,
    *,
    horizon: float | None = None,
    earlier: EarlierCurves = NO_CURVES,
) -> StepsToTarget | None:
    """Forecast how many steps after its last point a curve reaches a value.

    None without a point and without earlier curves.

    Parameters
    ----------
    horizon : float, optional
        Last step of the training. None where unknown.
    """
    sign = 1.0 if maximize else -1.0
    prior, works = earlier.prior, _works(earlier, value)
    numbers, _, metric = zip(*curve, strict=True) if curve else ((), (), ())
    steps, values = np.array(numbers, dtype=np.float64), sign * np.array(metric, dtype=np.float64)
    known = np.isfinite(values)
    if np.any(values[known] >= sign * value):
        return DONE
    if not known.any() and len(curve) < LOST_POINTS:
        return _from_works(works)
    if not known[-LOST_POINTS:].any():
        left = float(_times(steps, horizon)[-1] - max(1.0, steps[-1]))
        return StepsToTarget(p10=left, p50=left, p90=left, reached=0.0)
    times, cdf, between = crossing(steps, sign * value - values, horizon, prior)
    levels: Sequence[float] = prior.open_levels
    if horizon is not None:
        place = min(max(0.0, math.log2(times[0] / times[-1] / SHARES[0])), len(SHARES) - 1.001)
        before, after = prior.levels[int(place) : int(place) + 2]
        levels = tuple(a + place % 1 * (b - a) for a, b in zip(before, after, strict=True))
    return _quantiles(times[1:] - times[0], _with_works(cdf, times, works), between, levels)


def crossing(
    steps: Array, distances: Array, horizon: float | None, prior: CurvePrior = BUILT_IN
) -> tuple[Array, Array, float]:
    """Return later steps, with the probability that the target is reached by them.

    Parameters
    ----------
    steps, distances : arrays of shape (n,)
        Step of each point, and how far it is from the target, above 0 or not finite.

    Returns
    -------
    times : array of shape (m + 1,)
        The last step and those after it.
    cdf : array of shape (m,)
    between : float
        Steps from one report to the next.
    """
    times = _times(steps, horizon)
    last, end = times[0], times[-1]
    between = _between(steps)
    known = np.isfinite(distances)
    points = _points(steps[known], distances[known])
    cdf = _crossing(_fit(points, times, horizon, prior), times, between, points.noise)
    surprise = SURPRISE * (1 - last / end)
    cdf = (1 - surprise) * cdf + surprise * np.log(times[1:] / last) / math.log(end / last)
    if horizon is not None:
        others = 1 + np.tanh(0.851 * (np.log(times / end) - prior.part) / prior.part_spread)
        weight = PART_WEIGHT * math.sqrt(min(1.0, max(0.0, 1 - points.values.max())))
        cdf += weight * ((others[1:] - others[0]) / max(1e-9, others[-1] - others[0]) * cdf[-1] - cdf)
    return times, cdf, between


def _from_works(works: Array) -> StepsToTarget | None:
    """Return what earlier trainings needed, for one without a point."""
    needed = works[np.isfinite(works)]
    if not len(needed):
        return None
    times = np.exp(np.linspace(math.log(needed.min() / 4), math.log(needed.max() * 4), 4 * TIMES))
    cdf = _with_works(0.5 * np.linspace(0, 1, len(times))[1:], times, works)
    return _quantiles(times[1:], cdf, 1.0, CurvePrior().open_levels)


def _with_works(cdf: Array, times: Array, works: Array) -> Array:
    """Weigh the steps at which a target may be reached by earlier trainings."""
    works = works[works > times[0]]  # what took less says nothing of what is left
    if not len(works):
        return cdf
    needed = np.log(works[np.isfinite(works)])
    middle = 0.5 * np.log(times[1:] * times[:-1])
    near = np.exp(-0.5 * ((middle[:, None] - needed) / EARLIER_SPREAD) ** 2).sum(axis=1)
    parts = np.diff(cdf, prepend=0.0) * (1 + EARLIER_WEIGHT * near)
    odds = cdf[-1] / max(1e-9, 1 - cdf[-1]) * (1 + len(needed)) / (1 + len(works) - len(needed))
    return np.asarray(np.cumsum(parts) / parts.sum() * odds / (1 + odds))


def learn_prior(curves: Iterable[tuple[Sequence[CurvePoint], bool]], *, base: CurvePrior = BUILT_IN) -> CurvePrior:
    """Learn which shapes curves of earlier trainings have.

    Parameters
    ----------
    curves : iterable of (curve, bool)
        Whole curves, each with whether a larger value is better.
    base : CurvePrior
        Counts for ``PRIOR_CURVES`` curves.
    """
    count = np.array(base.weights) * PRIOR_CURVES
    centers, squares = count * base.centers, count * (np.square(base.spreads) + np.square(base.centers))
    for curve, maximize in curves:
        known = [point for point in curve if point.value is not None]
        steps = np.array([point.step for point in known], dtype=np.float64)
        distances = np.array([point.value for point in known]) * (-1.0 if maximize else 1.0)
        if len(known) < FEWEST_POINTS or not np.ptp(distances):
            continue
        points = _points(steps, distances - distances.min() + 1e-3 * np.ptp(distances))
        fits = _fit(points, steps[-1:], None, CurvePrior())
        logs = fits.log_scales - math.log(steps[-1])
        count = count + np.bincount(fits.forms, fits.weights, FORMS)
        centers = centers + np.bincount(fits.forms, fits.weights * logs, FORMS)
        squares = squares + np.bincount(fits.forms, fits.weights * logs**2, FORMS)
    means = centers / count
    spreads = np.sqrt(squares / count - means**2)
    learnt = [tuple(values.tolist()) for values in (count / count.sum(), means, spreads)]
    return replace(base, weights=learnt[0], centers=learnt[1], spreads=learnt[2])


def _between(steps: Array) -> float:
    """Return the steps from one point to the next, as a mean."""
    return max(1.0, steps[-1]) if len(steps) < 2 else max(1e-9, float(steps[-1] - steps[0]) / (len(steps) - 1))


def _times(steps: Array, horizon: float | None) -> Array:
    """Return the last step and the steps of the distribution."""
    last, between = max(1.0, steps[-1]), _between(steps)
    end = max(MOST_STEPS * last if horizon is None else horizon, last + between)
    first = min(between, 0.5 * (end - last))
    return np.concatenate([[last], last + first * ((end - last) / first) ** EVEN])


def _shapes(t: Array, scales: Array) -> Array:
    """Return an array of shape (forms, scales, steps)."""
    ratio = t / scales[:, None]
    shapes = np.empty((FORMS, *ratio.shape))
    np.log1p(ratio, out=shapes[-1])
    shapes[: len(POWERS)] = np.multiply.outer(POWERS, shapes[-1])
    shapes[len(POWERS) : -1] = np.sqrt(ratio), ratio, ratio * ratio
    shapes[:-1] = -np.expm1(-shapes[:-1])
    return shapes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Points:
    """Points of a curve, 0 at first and 1 at the target."""

    steps: Array
    values: Array
    weights: Array
    noise: float


def _points(steps: Array, distances: Array) -> _Points:
    """Return the points to fit.

    Parameters
    ----------
    distances : array
        From the value of each point to the target, above 0.
    """
    median = float(np.sort(distances)[len(distances) // 2])  # np.median takes ten times as long
    unit = min(max(distances[0], median), MOST_DISTANCE * median)
    values = np.maximum(1 - distances / unit, -1.0)
    # Second differences hardly see the trend; the factors are those of independent normal noise.
    bends = np.sort(np.abs(values[2:] - 2 * values[1:-1] + values[:-2]))
    noise = float(bends[len(bends) // 2]) / (0.6745 * math.sqrt(6)) if len(bends) >= 3 else 0.0
    # Where it overfits, what counts is that the best is not exceeded.
    values = np.maximum(values, np.maximum.accumulate(values) - MOST_BEHIND * noise)
    weights = 0.5 ** ((1 - steps / max(1.0, steps[-1])) / HALF_LIFE)
    if len(steps) > MOST_POINTS:
        shares = (steps - steps[0]) / max(1e-9, steps[-1] - steps[0])
        places = np.minimum(shares * MOST_POINTS, MOST_POINTS - 1).astype(np.intp)
        sums = np.bincount(places, weights, MOST_POINTS)
        kept = sums > 0
        steps = np.bincount(places, weights * steps, MOST_POINTS)[kept] / sums[kept]
        values = np.bincount(places, weights * values, MOST_POINTS)[kept] / sums[kept]
        weights = sums[kept]
    weights = weights * min(1.0, ENOUGH_POINTS / weights.sum())
    return _Points(steps=steps, values=values, weights=weights, noise=noise)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fits:
    """Shapes that explain the points, each with a noise.

    Attributes
    ----------
    weights, forms, log_scales, noises : arrays of shape (n,)
        Of each fit; the weights sum to 1.
    means, variances : arrays of shape (n, times)
        Of the value at each time.
    """

    weights: Array
    forms: NDArray[np.intp]
    log_scales: Array
    noises: Array
    means: Array
    variances: Array


def _fit(points: _Points, times: Array, horizon: float | None, prior: CurvePrior) -> _Fits:
    """Fit each shape with each noise in closed form."""
    scales, y, w = SCALES * times[0], points.values, points.weights
    shapes = _shapes(np.concatenate([points.steps, times]), scales)
    shapes[-1] /= shapes[-1, :, -1:]  # of the one that never ends, the height is that at the end
    shapes -= shapes[:, :, :1]
    spreads = np.hypot(prior.spreads, 0.0 if horizon is not None else UNKNOWN_SPREAD)[:, None]
    centers = np.array(prior.centers)[:, None] + math.log(horizon or UNKNOWN_HORIZON * times[0])
    log_prior = np.log(prior.weights)[:, None] - np.log(spreads) - 0.5 * ((np.log(scales) - centers) / spreads) ** 2
    shapes = shapes.reshape(-1, shapes.shape[-1])
    known, future = shapes[:, : len(y)], shapes[:, len(y) :]
    # Posterior of offset and height of each shape, by each noise: weighted least squares with a normal prior.
    variance, weighted = (NOISES**2)[:, None], known * w
    sum_g, sum_gg, sum_gy = weighted.sum(axis=1), np.einsum("ij,ij->i", weighted, known), weighted @ y
    p11 = w.sum() / variance + OFFSET_SPREAD**-2 + 0 * sum_g
    p12, p22 = sum_g / variance, sum_gg / variance + HEIGHT_SPREAD**-2
    r1, r2 = w @ y / variance, sum_gy / variance + HEIGHT * HEIGHT_SPREAD**-2
    det = p11 * p22 - p12 * p12
    offset, height = (p22 * r1 - p12 * r2) / det, (p11 * r2 - p12 * r1) / det
    offset, height = np.where(height > 0, offset, r1 / p11), np.maximum(height, 0)  # none goes away from the target
    evidence = offset * r1 + height * r2 - np.log(det) - w.sum() * np.log(variance) - w @ (y * y) / variance
    evidence = 0.5 * evidence + log_prior.reshape(-1)
    at = np.nonzero(evidence > evidence.max() + math.log(LEAST_WEIGHT))
    weight = np.exp(evidence[at] - evidence.max())
    o, h, a, b, c, d = (array[at][:, None] for array in (offset, height, p11, p12, p22, det))
    g = future[at[1]]
    return _Fits(
        weights=weight / weight.sum(),
        forms=at[1] // len(SCALES),
        log_scales=np.log(scales[at[1] % len(SCALES)]),
        noises=NOISES[at[0]],
        means=o + h * g,
        variances=(c - 2 * b * g + a * g * g) / d,
    )


def _crossing(fits: _Fits, times: Array, between: float, noise: float) -> Array:
    """Return the probability that the target is reached by each later time."""
    gain = fits.means - fits.means[:, :1]
    # What counts is the first of all reports that reaches the target, and noise helps.
    noises = np.minimum(fits.noises, noise)[:, None]
    reports = 1 + (times - times[0]) / between * np.minimum(1, noises / np.maximum(gain, 1e-9))
    means = fits.means + RECORD_SHARE * noises * np.interp(np.log(reports), _LOG_REPORTS, _RECORDS)
    variances = fits.variances + (GAIN_SPREAD * gain) ** 2 + 1e-6
    # A logistic function is close to the normal distribution, and its tails are heavier.
    reached = 0.5 + 0.5 * np.tanh(0.851 * (means - 1) / np.sqrt(variances))
    mixture = fits.weights @ np.maximum.accumulate(reached, axis=1)
    return np.asarray((mixture[1:] - mixture[0]) / max(1e-9, 1 - mixture[0]))


def _quantiles(ahead: Array, cdf: Array, between: float, levels: Sequence[float]) -> StepsToTarget:
    """Return the quantiles of the steps where the target is reached.

    It is seen at a report only.
    """
    quantiles = np.exp(np.interp(np.array(levels) * cdf[-1], cdf, np.log(ahead)))
    p10, p50, p90 = np.minimum(np.ceil(quantiles / between - 1e-6) * between, ahead[-1])
    return StepsToTarget(p10=float(p10), p50=float(p50), p90=float(p90), reached=float(cdf[-1]))
