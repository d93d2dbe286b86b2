"""Evaluation of demand forecasts against baselines without a model.

Scores are SMAPE, MAE, and the pinball loss of a quantile (Koenker and Bassett 1978), each the mean over the steps of a
window. Coverage is the share of steps in which the quantile was enough. One of two methods is called better only where
the difference of their errors, day by day, is more than chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.metrics.queue import standard_error_of_mean
from helios.model import STEP_S
from helios.predict.demand.baselines import max_of_last_3_h, outcomes, persistence, rises, same_hour_last_week
from helios.predict.demand.types import AHEAD, AHEAD_S, LEVELS, Forecasts, Wanted


JUDGED_H = (1, 3, 6, 24)
"""Evaluated horizons, h."""
JUDGED = Wanted(point=tuple(3_600 * hour for hour in JUDGED_H), mean=tuple(3_600 * hour for hour in JUDGED_H))
"""Forecasts that an evaluation takes."""
UPPER = 0.9
"""Level at which a method's bound on the most nodes needed is evaluated."""
HELIOS, PERSISTENCE, EMPIRICAL = "helios", "persistence", "now_plus_empirical_quantile"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointScore:
    """Errors of one method at one horizon.

    Attributes
    ----------
    method : str
    horizon_h : int
    smape : float
        Error of the busy nodes exactly that much later, %.
    mae : float
        Error of the same, nodes.
    pinball : float
        Loss at ``UPPER`` of the most nodes needed within the horizon, nodes. A baseline without quantiles is evaluated
        by its one value: the current one, or the maximum of the last 3 h or of the same hours last week.
    mae_mean : float or None
        Error of the mean over the horizon, nodes; None where the method has none.
    better, sure_by : float or None
        Mean absolute error of persistence less this method's, nodes, and its standard error over days. None for
        persistence itself, and the latter with too few days.
    """

    method: str
    horizon_h: int
    smape: float
    mae: float
    pinball: float
    mae_mean: float | None = None
    better: float | None = None
    sure_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MostScore:
    """Score of one quantile of the most nodes needed within a horizon.

    It has the pinball loss, in nodes, and the coverage.
    """

    method: str
    horizon_h: int
    level: float
    pinball: float
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastVerdict:
    """All scores of one window, and the number of evaluated steps."""

    points: tuple[PointScore, ...]
    most: tuple[MostScore, ...]
    steps: int


def judge(
    busy: Values,
    total: Values,
    forecasts: Forecasts,
    *,
    gaps: NDArray[np.bool_],
    start_s: int,
    from_step: int,
    refit_every_s: int = 86_400,
) -> ForecastVerdict:
    """Evaluate forecasts of the steps from ``from_step`` on.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        The actual series. Outcomes beyond its end are not known and not evaluated.
    gaps : bool array of shape (n_steps,)
        Steps without data. Forecasts from them, and outcomes that include them, are not evaluated.
    refit_every_s : int
        Time between two updates of the empirical quantiles, the same as the forecaster's.
    """
    window = slice(from_step, len(busy))
    came, came_mean, came_most = (values[window] for values in outcomes(busy))
    is_known = np.isfinite(came) & _without_gaps(gaps)[window]
    ended_s = start_s + (np.arange(len(busy))[window] + 1) * STEP_S
    by_method = _point_forecasts(busy, forecasts, window)
    means = {HELIOS: forecasts.mean, PERSISTENCE: persistence(busy)[window]}
    quantiles = {HELIOS: forecasts.most, EMPIRICAL: _empirical(busy, total, from_step, refit_every_s // STEP_S)}

    def point_score(method: str, hour: int, at: int, rows: NDArray[np.int64]) -> PointScore:
        truth, guess, bound = came[rows, at], *(values[rows, at] for values in by_method[method])
        gain = np.abs(truth - by_method[PERSISTENCE][0][rows, at]) - np.abs(truth - guess)
        alone, mean = method == PERSISTENCE, means.get(method)
        return PointScore(
            method=method,
            horizon_h=hour,
            smape=smape(truth, guess),
            mae=float(np.abs(truth - guess).mean()),
            pinball=pinball(came_most[rows, at], bound, UPPER),
            mae_mean=None if mean is None else float(np.abs(came_mean[rows, at] - mean[rows, at]).mean()),
            better=None if alone else float(gain.mean()),
            sure_by=None if alone else standard_error_of_mean(gain, submitted_s=ended_s[rows]),
        )

    def most_score(method: str, hour: int, at: int, rows: NDArray[np.int64], level: float) -> MostScore:
        highest, bound = came_most[rows, at], quantiles[method][rows, at, LEVELS.index(level)]
        return MostScore(
            method=method,
            horizon_h=hour,
            level=level,
            pinball=pinball(highest, bound, level),
            coverage=float(np.mean(highest <= bound)),
        )

    ahead = [(hour, AHEAD_S.index(hour * 3_600)) for hour in JUDGED_H]
    judged = [(hour, at, np.flatnonzero(is_known[:, at])) for hour, at in ahead if is_known[:, at].any()]
    return ForecastVerdict(
        points=tuple(point_score(method, *one) for one in judged for method in by_method),
        most=tuple(most_score(method, *one, level) for one in judged for method in quantiles for level in LEVELS),
        steps=int((~gaps[window]).sum()),
    )


def smape(truth: Values, forecast: Values) -> float:
    """Return the symmetric mean absolute percentage error, %.

    A forecast of 0 for a true 0 is no error.
    """
    size = np.abs(truth) + np.abs(forecast)
    return float(100 * np.mean(np.where(size > 0, 2 * np.abs(forecast - truth) / np.where(size > 0, size, 1.0), 0.0)))


def pinball(truth: Values, forecast: Values, level: float) -> float:
    """Return the mean pinball loss of a quantile.

    It has the unit of the values.
    """
    short = truth - forecast
    return float(np.mean(np.maximum(level * short, (level - 1) * short)))


def _point_forecasts(busy: Values, forecasts: Forecasts, window: slice) -> dict[str, tuple[Values, Values]]:
    """Return each method's forecast and its bound on the maximum, by horizon."""
    week, week_most = same_hour_last_week(busy)
    highest, now = max_of_last_3_h(busy), persistence(busy)
    return {
        HELIOS: (forecasts.point, forecasts.most[:, :, LEVELS.index(UPPER)]),
        PERSISTENCE: (now[window], now[window]),
        "same_hour_last_week": (week[window], week_most[window]),
        "max_of_last_3_h": (highest[window], highest[window]),
    }


def _empirical(busy: Values, total: Values, from_step: int, refit: int) -> Values:
    """Return the current value plus the empirical quantiles of rises so far.

    They are updated every ``refit`` steps, as often as the forecaster.
    """
    quantiles = np.zeros((len(busy) - from_step, len(AHEAD), len(LEVELS)))
    for step in range(from_step, len(busy), refit):
        now = busy[step : step + refit]
        there = np.maximum(total[step : step + refit], now)[:, None, None]
        rise = rises(busy, until=step)
        quantiles[step - from_step : step - from_step + len(now)] = np.minimum(now[:, None, None] + rise, there)
    return quantiles


def _without_gaps(gaps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each step is without gaps up to each horizon."""
    so_far = np.concatenate([[0], np.cumsum(gaps)])
    is_known = np.zeros((len(gaps), len(AHEAD)), dtype=np.bool_)
    for number, steps in enumerate(AHEAD):
        reach = np.minimum(np.arange(len(gaps)) + steps + 1, len(gaps))
        is_known[:, number] = so_far[reach] == so_far[:-1]
    return is_known
