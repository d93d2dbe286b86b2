"""How good a forecast of node demand was, beside the rules that need no model.

Measures: SMAPE, MAE, and the pinball loss of a quantile (Koenker and Bassett 1978), the mean over the steps of a
window; coverage is the share of steps in which the quantile was enough. Of two methods one is called better only where
the difference of their errors, day by day, is more than chance would make of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.metrics.queue import standard_error_of_mean
from helios.model import STEP_S
from helios.predict.demand.baselines import max_of_last_3_h, outcomes, persistence, rises, same_hour_last_week
from helios.predict.demand.types import AHEAD, AHEAD_S, LEVELS, Forecasts

Values = NDArray[np.float64]

JUDGED_H = (1, 3, 6, 24)
"""Horizons that are judged, h."""
UPPER = 0.9
"""Level at which a method's bound on the most nodes needed is judged."""
HELIOS, PERSISTENCE, EMPIRICAL = "helios", "persistence", "now_plus_empirical_quantile"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointScore:
    """How far one method was off at one horizon.

    Attributes
    ----------
    method : str
    horizon_h : int
    smape : float
        Of the busy nodes exactly that much later, %.
    mae : float
        Of the same, nodes.
    pinball : float
        At ``UPPER``, of the most nodes needed within the horizon, nodes. A rule that knows no quantiles says what it
        says: now, the most of the last 3 h, the most of the same hours last week.
    mae_mean : float or None
        Of the mean over the horizon, nodes; None where the method says none.
    better, sure_by : float or None
        Mean absolute error of persistence less this method's, nodes, and its standard error over days; None: too few
        days, or persistence itself.
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
    """How good one quantile of the most nodes needed within a horizon was.

    Pinball loss, nodes, and coverage.
    """

    method: str
    horizon_h: int
    level: float
    pinball: float
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastVerdict:
    """All scores of one window, and the steps that were judged."""

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
    """Judge forecasts of the steps from ``from_step`` to the end of the series.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        What came; outcomes beyond the end are not known and not judged.
    gaps : bool array of shape (n_steps,)
        Steps in which nothing was told: forecasts from them and outcomes that touch them are not judged.
    refit_every_s : int
        How often the empirical quantile that is judged beside is taken anew; the same as the forecaster's.
    """
    window = slice(from_step, len(busy))
    came, came_mean, came_most = (values[window] for values in outcomes(busy))
    sound = np.isfinite(came) & _sound(gaps)[window]
    case = _Case(
        ended_s=start_s + (np.arange(len(busy))[window] + 1) * STEP_S,
        came=came,
        came_mean=came_mean,
        came_most=came_most,
        said=_said(busy, forecasts, window),
        means={HELIOS: forecasts.mean, PERSISTENCE: persistence(busy)[window]},
        quantiles={
            HELIOS: forecasts.most,
            EMPIRICAL: _empirical(busy, total, from_step, refit_every_s // STEP_S),
        },
    )
    ahead = [(hour, AHEAD_S.index(hour * 3_600)) for hour in JUDGED_H]
    judged = [(hour, at, np.flatnonzero(sound[:, at])) for hour, at in ahead if sound[:, at].any()]
    return ForecastVerdict(
        points=tuple(case.point(method, hour, at, rows) for hour, at, rows in judged for method in case.said),
        most=tuple(
            case.most(method, hour, at, rows, level)
            for hour, at, rows in judged
            for method in case.quantiles
            for level in LEVELS
        ),
        steps=int((~gaps[window]).sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What came in a window and what each method had said of it.

    Arrays of shape (n_steps, n_ahead, ...).
    """

    ended_s: NDArray[np.int64]
    came: Values
    came_mean: Values
    came_most: Values
    said: dict[str, tuple[Values, Values]]
    means: dict[str, Values]
    quantiles: dict[str, Values]

    def point(self, method: str, hour: int, at: int, rows: NDArray[np.int64]) -> PointScore:
        truth, said, bound = self.came[rows, at], *(values[rows, at] for values in self.said[method])
        gain = np.abs(truth - self.said[PERSISTENCE][0][rows, at]) - np.abs(truth - said)
        alone, mean = method == PERSISTENCE, self.means.get(method)
        return PointScore(
            method=method,
            horizon_h=hour,
            smape=smape(truth, said),
            mae=float(np.abs(truth - said).mean()),
            pinball=pinball(self.came_most[rows, at], bound, UPPER),
            mae_mean=None if mean is None else float(np.abs(self.came_mean[rows, at] - mean[rows, at]).mean()),
            better=None if alone else float(gain.mean()),
            sure_by=None if alone else standard_error_of_mean(gain, submitted_s=self.ended_s[rows]),
        )

    def most(self, method: str, hour: int, at: int, rows: NDArray[np.int64], level: float) -> MostScore:
        highest, said = self.came_most[rows, at], self.quantiles[method][rows, at, LEVELS.index(level)]
        return MostScore(
            method=method,
            horizon_h=hour,
            level=level,
            pinball=pinball(highest, said, level),
            coverage=float(np.mean(highest <= said)),
        )


def smape(truth: Values, said: Values) -> float:
    """Return the symmetric mean absolute percentage error, %.

    Nothing said of nothing is no error.
    """
    size = np.abs(truth) + np.abs(said)
    return float(100 * np.mean(np.where(size > 0, 2 * np.abs(said - truth) / np.where(size > 0, size, 1.0), 0.0)))


def pinball(truth: Values, said: Values, level: float) -> float:
    """Return the mean pinball loss of a quantile of that level, in the unit of the values."""
    short = truth - said
    return float(np.mean(np.maximum(level * short, (level - 1) * short)))


def _said(busy: Values, forecasts: Forecasts, window: slice) -> dict[str, tuple[Values, Values]]:
    """Return what each method expected at each horizon, and its bound on the most until then."""
    week, week_most = same_hour_last_week(busy)
    highest, now = max_of_last_3_h(busy), persistence(busy)
    return {
        HELIOS: (forecasts.point, forecasts.most[:, :, LEVELS.index(UPPER)]),
        PERSISTENCE: (now[window], now[window]),
        "same_hour_last_week": (week[window], week_most[window]),
        "max_of_last_3_h": (highest[window], highest[window]),
    }


def _empirical(busy: Values, total: Values, from_step: int, refit: int) -> Values:
    """Return now plus the empirical quantiles of all rises so far, taken anew as often as a forecaster learns."""
    told = np.zeros((len(busy) - from_step, len(AHEAD), len(LEVELS)))
    for step in range(from_step, len(busy), refit):
        now = busy[step : step + refit]
        there = np.maximum(total[step : step + refit], now)[:, None, None]
        rise = rises(busy, until=step)
        told[step - from_step : step - from_step + len(now)] = np.minimum(now[:, None, None] + rise, there)
    return told


def _sound(gaps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Say for each step and horizon whether neither the step nor anything until the horizon is a gap."""
    so_far = np.concatenate([[0], np.cumsum(gaps)])
    sound = np.zeros((len(gaps), len(AHEAD)), dtype=np.bool_)
    for number, steps in enumerate(AHEAD):
        reach = np.minimum(np.arange(len(gaps)) + steps + 1, len(gaps))
        sound[:, number] = so_far[reach] == so_far[:-1]
    return sound
