"""Forecast of the steps that a training task needs to a value of its metric.

A family of monotone shapes over the step, each with an offset and a height, is fitted to the points so far in closed
form. Shapes count by how well they explain the points, times a prior. All together give the distribution of the step
at which the metric first reaches the value. It needs numpy only, so that a pool without a history can use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from helios.training.target import StepsToTarget

if TYPE_CHECKING:
    from helios.model.trial_runs import CurvePoint
    from helios.training.model import Trial

Array = NDArray[np.float64]

POWERS = (0.5, 1.0, 2.0)
"""Exponents p of the shapes 1 - (1 + t/s)^-p."""
STRETCHES = (0.5, 1.0, 2.0)
"""Exponents q of the shapes 1 - exp(-(t/s)^q). With 2 the metric starts slowly."""
FORMS = len(POWERS) + len(STRETCHES) + 1
"""The last one is log(1 + t/s), which never ends."""
SCALES = 10 ** np.arange(-5 / 3, 2.01, 1 / 3)
"""Scales s of the shapes, as multiples of the last step."""
NOISES = np.array([0.01, 0.03, 0.08, 0.2, 0.5])
"""Standard deviations of points around a shape, as parts of the way from the first value to the target."""
OFFSET_SPREAD = 0.2
"""Prior of the standard deviation of the first value around a shape, in the same unit."""
HEIGHT, HEIGHT_SPREAD = 1.25, 0.6
"""Prior of the height of a shape, in the same unit. Targets are mostly chosen so that they can just be reached."""
GAIN_SPREAD = 0.3
"""Standard deviation of what a shape gains after the last point, as a part of it. No curve is exactly of a shape."""
MOST_POINTS = 40
"""Points that are fitted. More are averaged, by steps."""
ENOUGH_POINTS = 20.0
"""Points that all together count for at most, since neighbours tell the same."""
HALF_LIFE = 0.5
"""Age at which a point counts half, as a part of the last step."""
MOST_DISTANCE = 4.0
"""Distance to the target, as a multiple of its median, from which values are cut off: losses may start very high."""
SURPRISE = 0.1
"""Probability that the curve does something that no shape knows, as at a step of the learning rate."""
TIMES = 24
"""Times at which the distribution is computed."""
MOST_STEPS = 100.0
"""How far is looked ahead where the end is unknown, as a multiple of the last step."""
LEAST_WEIGHT = 1e-3
"""Fits that explain the points so much worse than the best one are left out."""
LOST_POINTS = 3
"""So many last points that are not finite mean that the training has diverged."""
LOST = StepsToTarget(p10=math.inf, p50=math.inf, p90=math.inf, reached=0.0)
DONE = StepsToTarget(p10=0.0, p50=0.0, p90=0.0)
_LOG_REPORTS = np.log([1, 2, 5, 10, 20, 50, 100, 1000])
_RECORDS = np.array([0, 0.56, 1.16, 1.54, 1.87, 2.25, 2.51, 3.24])
"""Expected largest of so many standard normal values."""
_RECORD_VARIANCE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrior:
    """Which shapes are expected.

    Attributes
    ----------
    weights : tuple of float
        Probability of each form.
    centers, spreads : tuple of float
        Mean and standard deviation of the logarithm of each form's scale, as a part of the whole training.
    """

    weights: tuple[float, ...] = (1 / FORMS,) * FORMS
    centers: tuple[float, ...] = (math.log(0.2),) * FORMS
    spreads: tuple[float, ...] = (2.0,) * FORMS


BUILT_IN = CurvePrior()


def expect_targets(trial: Trial) -> tuple[StepsToTarget | None, StepsToTarget | None]:
    """Forecast the steps of a trial to its first and second target.

    None where it has no such target, or where nothing is known.
    """
    target, horizon = trial.target, None
    if target is None:
        return None, None
    if trial.curve and trial.progress:
        horizon = trial.curve[-1].step / trial.progress
    steps = [
        DONE if tier < trial.targets_reached else forecast_steps(trial.curve, value, target.maximize, horizon=horizon)
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
    prior: CurvePrior = BUILT_IN,
) -> StepsToTarget | None:
    """Forecast how many steps after its last point a curve reaches a value.

    Parameters
    ----------
    horizon : float, optional
        Last step of the training. None where unknown.
    """
    sign = 1.0 if maximize else -1.0
    steps = np.array([point.step for point in curve], dtype=np.float64)
    values = np.array([math.nan if point.value is None else point.value for point in curve]) * sign
    known = np.isfinite(values)
    if np.any(values[known] >= sign * value):
        return DONE
    if not known.any():
        return None
    if not known[-LOST_POINTS:].any() and len(curve) >= LOST_POINTS:
        return LOST
    last = max(1.0, steps[-1])
    between = last if len(steps) < 2 else max(1e-9, (steps[-1] - steps[0]) / (len(steps) - 1))
    times = _times(last, between, horizon)
    points = _points(steps[known], sign * value - values[known])
    cdf = _crossing(points, times, between, horizon, prior)
    # Something may happen that no shape knows, at any time.
    ahead = times[1:] - last
    cdf = (1 - SURPRISE) * cdf + SURPRISE * np.log(times[1:] / last) / np.log(times[-1] / last) / 2
    return _quantiles(ahead, cdf)


def _times(last: float, between: float, horizon: float | None) -> Array:
    """Return the last step and the steps after it at which the distribution is computed."""
    end = max(MOST_STEPS * last if horizon is None else horizon, last + between)
    return np.concatenate([[last], last + np.geomspace(min(between, 0.5 * (end - last)), end - last, TIMES)])


def _shapes(t: Array, scales: Array) -> Array:
    """Return an array of shape (forms, scales, steps)."""
    ratio = t / scales[:, None]
    log_ratio = np.log1p(ratio)
    root = np.sqrt(ratio)
    powers = [-np.expm1(-p * log_ratio) for p in POWERS]
    stretched = [-np.expm1(-x) for x in (root, ratio, ratio * ratio)]
    return np.stack([*powers, *stretched, log_ratio])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Points:
    """Points of a curve, with 0 for its first value and 1 for the target."""

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
    median = float(np.median(distances))
    unit = min(max(distances[0], median), MOST_DISTANCE * median)
    values = np.maximum(1 - distances / unit, -1.0)
    # Second differences hardly see the trend; the factors are those of independent normal noise.
    noise = float(np.median(np.abs(np.diff(values, 2)))) / (0.6745 * math.sqrt(6)) if len(values) >= 5 else 0.0
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


def _crossing(points: _Points, times: Array, between: float, horizon: float | None, prior: CurvePrior) -> Array:
    """Return the probability that the target is reached by each later time."""
    last, scales, y, w = times[0], SCALES * times[0], points.values, points.weights
    shapes = _shapes(np.concatenate([points.steps, times]), scales)
    shapes[-1] /= shapes[-1, :, -1:]  # of the one that never ends, the height is that at the end
    shapes -= shapes[:, :, :1]
    log_prior = np.log(prior.weights)[:, None] + np.zeros(len(scales))
    if horizon is not None:
        z = (np.log(scales / horizon) - np.array(prior.centers)[:, None]) / np.array(prior.spreads)[:, None]
        log_prior = log_prior - 0.5 * z * z - np.log(prior.spreads)[:, None]
    known, future = np.split(shapes.reshape(-1, shapes.shape[-1]), [len(y)], axis=1)
    # Posterior of offset and height of each shape, by each noise: weighted least squares with a normal prior.
    variance, weighted = (NOISES**2)[:, None], known * w
    sum_g, sum_gg, sum_gy = weighted.sum(axis=1), np.einsum("ij,ij->i", weighted, known), weighted @ y
    p11 = w.sum() / variance + OFFSET_SPREAD**-2 + 0 * sum_g
    p12, p22 = sum_g / variance, sum_gg / variance + HEIGHT_SPREAD**-2
    r1, r2 = w @ y / variance, sum_gy / variance + HEIGHT * HEIGHT_SPREAD**-2
    det = p11 * p22 - p12 * p12
    offset, height = (p22 * r1 - p12 * r2) / det, (p11 * r2 - p12 * r1) / det
    evidence = offset * r1 + height * r2 - np.log(det) - w.sum() * np.log(variance) - w @ (y * y) / variance
    evidence = np.where(height > 0, 0.5 * evidence + log_prior.reshape(-1), -np.inf)
    at = np.nonzero(evidence > evidence.max() + math.log(LEAST_WEIGHT))
    weight = np.exp(evidence[at] - evidence.max())
    o, h, a, b, c, d = (array[at][:, None] for array in (offset, height, p11, p12, p22, det))
    g = future[at[1]]
    mean, spread = o + h * g, (c - 2 * b * g + a * g * g) / d
    # What counts is the first value of all that reaches the target, and noise helps.
    gain = mean - mean[:, :1]
    noise = np.minimum(NOISES[at[0]], points.noise)[:, None]
    reports = 1 + (times - last) / between * np.minimum(1, noise / np.maximum(gain, 1e-9))
    mean = mean + noise * np.interp(np.log(reports), _LOG_REPORTS, _RECORDS)
    spread = spread + (GAIN_SPREAD * gain) ** 2 + _RECORD_VARIANCE * noise**2 + 1e-6
    reached = np.maximum.accumulate(1 / (1 + np.exp(-1.702 * (mean - 1) / np.sqrt(spread))), axis=1)
    mixture = weight @ reached / weight.sum()
    return np.asarray((mixture[1:] - mixture[0]) / max(1e-9, 1 - mixture[0]))


def _quantiles(ahead: Array, cdf: Array) -> StepsToTarget:
    """Return the quantiles of the steps where the target is reached."""
    reached = float(cdf[-1])
    p10, p50, p90 = np.exp(np.interp(np.array([0.1, 0.5, 0.9]) * reached, cdf, np.log(ahead)))
    return StepsToTarget(p10=float(p10), p50=float(p50), p90=float(p90), reached=reached)
