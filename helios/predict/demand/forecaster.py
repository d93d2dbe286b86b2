"""Demand forecaster of one pool with its baselines and evaluation.

It is fitted once a day and used at every step. Baselines need no model. Forecasts are compared with them, and the
empirical quantiles are used until the history is long enough.

Scores are SMAPE, MAE, and the pinball loss of a quantile (Koenker and Bassett 1978), each the mean over the steps of a
window. Coverage is the share of steps in which the quantile was enough. One of two methods is better only if the
difference of their errors, day by day, is more than chance.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from helios.errors import FrameInvalid
from helios.jit import cached_jit
from helios.metrics.queue import standard_error_of_mean
from helios.model import STEP_S
from helios.ports import Progress, no_progress
from helios.predict.demand.features import REACH, matrix
from helios.predict.demand.types import AHEAD, AHEAD_S, DAY, LEVELS, Calendar, DemandJobState, Forecasts, Wanted

Values = NDArray[np.float64]
FEWEST_STEPS = 7 * DAY
HISTORY_STEPS = 180 * DAY
"""Default number of steps that are learned from, as for the setting ``[demand] history_days``."""
_N_AHEAD, _N_LEVELS = len(AHEAD), len(LEVELS)
_ALL = Wanted()

ROUNDS = 60
STEP_SPACING = 3
"""Spacing of the steps that are learned from, because adjacent ones are similar. With all steps the forecasts are no
better, and training takes three times as long."""
_SPACING = (1, 1, 2, 4, 4)
"""Factor of the spacing of steps in a long history, by horizon, because their outcomes overlap.

It saves a third of the training, and changes errors by less than another seed of the trees (docs/experiments.md).
"""
_ENOUGH_STEPS = 1_500
"""Fewest steps that a larger spacing must leave. In a history below two months every third step is learned from."""
_LEAF_PER_HORIZON = 4
_FEWEST_IN_LEAF = 40
_THREADS = 2
_HELD_BACK = 28 * DAY
_TRIAL_STEPS, _TRIAL_GROWTH = 7 * DAY, 0.05
"""A backtest repeats the trial on the last weeks after so many steps, or after that relative growth of the history."""
_EXCEEDANCES = 20.0
"""Number of independent exceedances in the trial at which their correction has half its weight."""
_MOST_WEIGHT, _ENOUGH_EXCEEDANCES = 0.5, 5.0
"""Largest weight of the trees in a quantile, and number of independent exceedances at which it is half of that."""
_INDEPENDENT = 60.0
"""Number of independent horizons in the trial at which the best weight of the trees counts half."""
_WEIGHTS = np.linspace(0.0, 1.0, 11)
_PARAMETERS: dict[str, Any] = {
    "num_leaves": 15,
    "learning_rate": 0.06,
    "extra_trees": True,
    "feature_fraction": 0.3,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "max_bin": 63,
    "feature_pre_filter": False,
    "num_threads": 1,
    "deterministic": True,
    "force_col_wise": True,
    "seed": 0,
    "verbose": -1,
}
_EXPECTED: list[dict[str, Any]] = [{"objective": "regression_l1"}]
_QUANTILES: list[dict[str, Any]] = [{"objective": "quantile", "alpha": level} for level in LEVELS]

JUDGED_H = (1, 3, 6, 24)
"""Evaluated horizons, h."""
JUDGED = Wanted(point=tuple(3_600 * hour for hour in JUDGED_H), mean=tuple(3_600 * hour for hour in JUDGED_H))
"""Forecasts that an evaluation needs."""
UPPER = 0.9
"""Level at which a method's bound on the most nodes needed is evaluated."""
HELIOS, PERSISTENCE, EMPIRICAL = "helios", "persistence", "now_plus_empirical_quantile"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandForecaster:
    """Fitted demand forecaster of one pool.

    Create one with :meth:`fit`.

    Attributes
    ----------
    calendar : Calendar
        Calendar of the site.
    source : str
        The method, for people.
    with_jobs : bool
        Whether :meth:`forecast` needs the state of jobs.
    """

    calendar: Calendar
    source: str
    with_jobs: bool
    _trees: _Trees
    _point_weights: Values
    _quantile_weights: Values
    _rises: Values
    _corrections: Values

    @classmethod
    def fit(
        cls,
        busy: Values,
        total: Values,
        *,
        start_s: int,
        calendar: Calendar,
        state: DemandJobState | None = None,
        history_steps: int = HISTORY_STEPS,
    ) -> DemandForecaster:
        """Fit a forecaster to the history of one pool.

        Parameters
        ----------
        busy, total : float64 arrays of shape (n_steps,)
            Most busy nodes within each step, and nodes in service, oldest first, without gaps.
        start_s : int
            Start of the first step, s since the epoch.
        state : DemandJobState, optional
            State of jobs at the same steps. If given, :meth:`forecast` needs it too.
        history_steps : int
            Number of last steps to learn from.

        Raises
        ------
        FrameInvalid
            The series differ in length or have gaps.
        """
        _check(busy, total, state)
        rows = np.arange(len(busy))
        features = matrix(busy, total, start_s=start_s, rows=rows, calendar=calendar, state=state)
        past = _Past(busy, total, features, *outcomes(busy))
        return _fit_forecaster(
            past, len(busy), calendar=calendar, with_jobs=state is not None, history_steps=history_steps
        )

    def forecast(
        self,
        busy: Values,
        total: Values,
        *,
        start_s: int,
        state: DemandJobState | None = None,
        steps: int = 1,
    ) -> Forecasts:
        """Forecast from the end of each of the last ``steps`` steps.

        Parameters
        ----------
        busy, total : float64 arrays of shape (n_steps,)
            As in :meth:`fit`, with at least a week before the first forecast, where there is one.
        state : DemandJobState, optional
            State of jobs at the same steps.
        """
        _check(busy, total, state)
        if self.with_jobs != (state is not None):
            raise FrameInvalid("a forecaster that learned from jobs must be told of jobs, another must not")
        after = len(busy)
        first = max(after - steps - REACH - DAY, 0)
        features = matrix(
            busy[first:after],
            total[first:after],
            start_s=start_s + first * STEP_S,
            rows=np.arange(after - steps - first, after - first),
            calendar=self.calendar,
            state=None if state is None else state.rows(first, after),
        )
        return self._forecast_rows(features, busy[after - steps :], total[after - steps :])

    def _forecast_rows(self, features: NDArray[np.float32], now: Values, total: Values) -> Forecasts:
        point, mean = np.zeros((len(now), _N_AHEAD)), np.zeros((len(now), _N_AHEAD))
        most = np.tile(self._rises, (len(now), 1, 1))
        if self._trees:
            predicted = predict_changes(self._trees, features)
            point, mean = self._point_weights[0] * predicted[:, :, 0], self._point_weights[1] * predicted[:, :, 1]
            most = _mix(predicted[:, :, 2:], self._rises, self._quantile_weights) + self._corrections
        in_service = np.maximum(total, now)[:, None]
        return Forecasts(
            ahead_s=AHEAD_S,
            levels=LEVELS,
            point=np.clip(now[:, None] + point, 0.0, in_service),
            mean=np.clip(now[:, None] + mean, 0.0, in_service),
            most=_make_ascending(np.clip(now[:, None, None] + most, 0.0, in_service[:, None])),
            source=self.source,
        )


def walk_forward(
    busy: Values,
    total: Values,
    *,
    start_s: int,
    from_step: int,
    until_step: int,
    calendar: Calendar,
    state: DemandJobState | None = None,
    refit_every_s: int = 86_400,
    history_steps: int = HISTORY_STEPS,
    wanted: Wanted = _ALL,
    progress: Progress = no_progress,
) -> Forecasts:
    """Backtest forecasts over a window, and refit regularly.

    Each forecast is made as it would have been at the end of its step.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        As in :meth:`DemandForecaster.fit`. Steps before the window are history.
    from_step, until_step : int
        The window, without ``until_step`` itself.
    refit_every_s : int
        Time between two fits, each to the steps before it.
    wanted : Wanted
        Parts of the forecasts that are made. The others are NaN.

    Returns
    -------
    Forecasts
        Forecasts of the steps ``from_step`` to ``until_step`` - 1. A row depends on nothing after the end of its step.

    Raises
    ------
    FrameInvalid
        The series differ in length or have gaps, or the window does not lie within them.
    """
    _check(busy, total, state)
    if not 0 <= from_step < until_step <= len(busy):
        raise FrameInvalid(f"the window from step {from_step} to {until_step} is not within {len(busy)} steps")
    rows = np.arange(until_step)
    features = matrix(busy, total, start_s=start_s, rows=rows, calendar=calendar, state=state)
    past = _Past(busy, total, features, *outcomes(busy[:until_step]))
    refit, predicted = max(refit_every_s // STEP_S, 1), list[Forecasts]()
    trial: _Trial | None = None
    for step in range(from_step, until_step, refit):
        progress("Forecasting the demand for nodes", (step - from_step) / (until_step - from_step))
        first = max(step - history_steps, 0)
        trial_steps = min(_TRIAL_STEPS, _TRIAL_GROWTH * (step - first))
        if step - first >= FEWEST_STEPS and (trial is None or step - trial.made_at >= trial_steps):
            last = step + (_TRIAL_STEPS - 1) // refit * refit
            trial = _run_trial(past, first, step, last=min(last, until_step), wanted=wanted)
        fitted = _fit_forecaster(
            past,
            step,
            calendar=calendar,
            with_jobs=state is not None,
            history_steps=history_steps,
            wanted=wanted,
            trial=trial,
        )
        ahead = slice(step, min(step + refit, until_step))
        predicted.append(fitted._forecast_rows(features[ahead], busy[ahead], total[ahead]))
    progress("Forecasting the demand for nodes", 1.0)
    return replace(
        predicted[-1],
        point=np.concatenate([part.point for part in predicted]),
        mean=np.concatenate([part.mean for part in predicted]),
        most=np.concatenate([part.most for part in predicted]),
    )


def _fit_forecaster(
    past: _Past,
    until: int,
    *,
    calendar: Calendar,
    with_jobs: bool,
    history_steps: int,
    wanted: Wanted = _ALL,
    trial: _Trial | None = None,
) -> DemandForecaster:
    """Fit a forecaster to the steps before ``until``.

    Outcomes that were unknown by then are not used. ``trial`` may be that of an earlier day; None to run one.
    """
    first = max(until - history_steps, 0)
    history, days = until - first, (until - first) / DAY
    weights, corrections = np.zeros((2, _N_AHEAD)), np.zeros((_N_AHEAD, _N_LEVELS))
    trees: _Trees = ()
    source = f"now and the rises of {days:.1f} days: to learn takes {FEWEST_STEPS // DAY} days of history"
    if history >= FEWEST_STEPS:
        trial = trial or _run_trial(past, first, until, last=until, wanted=wanted)
        weights, corrections = _evaluate_trial(past, first, until, trial)
        trees = train_trees(past, first=first, until=until, wanted=wanted)
        source = f"trees on {days:.0f} days of busy nodes{' and jobs' if with_jobs else ''}"
    return DemandForecaster(
        calendar=calendar,
        source=source,
        with_jobs=with_jobs,
        _trees=trees,
        _point_weights=weights,
        _quantile_weights=quantile_weights(history),
        _rises=_rises(past, first, until),
        _corrections=corrections,
    )


def _rises(past: _Past, first: int, until: int) -> Values:
    return typical_rises(past.most[first:until] - past.busy[first:until, None])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trial:
    """Predictions of trees for steps that they were not trained on.

    Attributes
    ----------
    changes : float64 array of shape (n_steps, n_ahead, 2 + n_levels)
        As of ``predict_changes``, from step ``until`` on.
    until : int
        First step that the trees were not trained on.
    made_at : int
        Step at which the trial was made.
    """

    changes: Values
    until: int
    made_at: int


def _run_trial(past: _Past, first: int, until: int, *, last: int, wanted: Wanted) -> _Trial:
    """Train trees without the last weeks.

    They predict the steps from there up to ``last`` - 1.
    """
    split = until - held_back(until - first)
    trees = train_trees(past, first=first, until=split, spacing=2, wanted=wanted)
    return _Trial(changes=predict_changes(trees, past.features[split:last]), until=split, made_at=until)


def _evaluate_trial(past: _Past, first: int, until: int, trial: _Trial) -> tuple[Values, Values]:
    """Return what a trial shows.

    It is the weights of points and means, and the corrections of quantiles.
    """
    split, history = trial.until, until - first
    predicted = trial.changes[: until - split]
    now = past.busy[split:until, None]
    actual = (past.point[split:until] - now, past.mean[split:until] - now)
    weights = np.stack([point_weights(change, predicted[:, :, i], history=history) for i, change in enumerate(actual)])
    quantiles = _mix(predicted[:, :, 2:], _rises(past, first, split), quantile_weights(split - first))
    return weights, quantile_corrections(past.most[split:until] - now, quantiles)


def _mix(trees: Values, rises: Values, weights: Values) -> Values:
    return weights * trees + (1 - weights) * rises


def _make_ascending(most: Values) -> Values:
    """Return quantiles that ascend in level and in horizon.

    Nodes needed within 3 h are also needed within 6 h.
    """
    return np.maximum.accumulate(np.sort(most, axis=2), axis=1)


def _check(busy: Values, total: Values, state: DemandJobState | None) -> None:
    if len(busy) != len(total) or (state is not None and len(state.values) != len(busy)):
        raise FrameInvalid("busy nodes, nodes in service and the state of jobs are not of the same steps")
    if not (np.isfinite(busy).all() and np.isfinite(total).all()):
        raise FrameInvalid("a series of nodes has gaps; fill them first (helios.ingest.node_series.resample)")


# Trees that learn the change of demand from the current value, and their weight in the forecast.
#
# The trees are small and strongly randomised (extremely randomised splits; Geurts, Ernst, Wehenkel 2006), and learn
# from every third step. The longer the horizon, the fewer independent hours a history has, so the larger is the
# smallest leaf, and the further apart are the steps of a long history. The trees are only part of the forecast. An
# expected value is mixed with persistence. A quantile of the maximum is mixed with the empirical one of all rises so
# far, with a weight of at most one half, and corrected by its misses in the last weeks, as far as there is evidence
# (rolling conformal prediction; Gibbs and Candes 2021). Alternatives that were tried are in docs/experiments.md.


@dataclass(frozen=True, slots=True)
class _Past:
    """Series of a pool with its features and outcomes.

    Attributes
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        Busy nodes and nodes in service at the end of each step.
    features : float32 array of shape (n_steps, n_features)
        Features at the end of each step.
    point, mean, most : float64 arrays of shape (n_steps, n_ahead)
        The actual outcomes.
    """

    busy: Values
    total: Values
    features: NDArray[np.float32]
    point: Values
    mean: Values
    most: Values


_Trees = tuple[lightgbm.Booster | None, ...]


def train_trees(past: _Past, *, first: int, until: int, spacing: int = 1, wanted: Wanted = _ALL) -> _Trees:
    """Train trees for each horizon on steps ``first`` to ``until`` - 1.

    Outcomes at ``until`` or later are not used, nor those of the first day, whose features look back too far. Steps are
    ``spacing`` times as far apart as ``STEP_SPACING``.

    Returns
    -------
    tuple of Booster or None
        For each horizon those of point, mean, and each level of the maximum. None where it is not wanted.
    """
    # The bins of features are computed once. Each horizon uses a subset of these steps.
    closest = STEP_SPACING * spacing
    steps = np.arange(until - AHEAD[0] - 1, first + DAY - 1, -closest)[::-1]
    binned = lightgbm.Dataset(past.features[steps], np.zeros(len(steps)), params=_PARAMETERS).construct()

    def train_horizon(i: int) -> list[lightgbm.Booster | None]:
        n_known = len(steps) - (AHEAD[i] - AHEAD[0]) // closest
        factor = min(_SPACING[i], max(n_known // _ENOUGH_STEPS, 1))
        chosen = np.arange(n_known - 1, -1, -factor)[::-1]
        rows = steps[chosen]
        fewest = _LEAF_PER_HORIZON * AHEAD[i] // (closest * factor)
        leaf = {"min_data_in_leaf": max(_FEWEST_IN_LEAF, fewest)}
        data = binned.subset(chosen.tolist()).construct()
        boosters: list[lightgbm.Booster | None] = []
        for actual, objectives, horizons in (
            (past.point, _EXPECTED, wanted.point),
            (past.mean, _EXPECTED, wanted.mean),
            (past.most, _QUANTILES, wanted.most),
        ):
            if AHEAD_S[i] not in horizons:
                boosters += [None] * len(objectives)
                continue
            data.set_label(actual[rows, i] - past.busy[rows])
            for objective in objectives:
                parameters = _PARAMETERS | objective | leaf
                # Without keep_training_booster LightGBM writes and reads each booster once more.
                boosters.append(lightgbm.train(parameters, data, ROUNDS, keep_training_booster=True))
        return boosters

    with ThreadPoolExecutor(_THREADS) as workers:
        return tuple(booster for boosters in workers.map(train_horizon, range(len(AHEAD))) for booster in boosters)


def predict_changes(trees: _Trees, features: NDArray[np.float32]) -> Values:
    """Return the predicted changes for each row of features.

    The result has the shape (n_rows, n_ahead, 2 + n_levels). What is not wanted is NaN.
    """
    not_predicted = np.full(len(features), np.nan)
    predicted = [not_predicted if booster is None else booster.predict(features, num_threads=1) for booster in trees]
    return np.stack(predicted, axis=1).reshape(len(features), len(AHEAD), -1)


def point_weights(change: Values, predicted: Values, *, history: int) -> Values:
    """Return the weight of predicted changes at each horizon, 0 to 1.

    It is the weight with the least error over the held-back steps, shrunk towards one that grows with the length of the
    history. The longer the horizon, the fewer independent hours these steps have, and the stronger is the shrinkage.

    Parameters
    ----------
    change, predicted : float64 arrays of shape (n_steps, n_ahead)
        The actual changes and the predicted ones.
    history : int
        Number of steps that were learned from.
    """
    days = history / DAY
    weights = np.full(len(AHEAD), 0.45 + 0.5 * days**2 / (days**2 + 100**2))
    for i, steps in enumerate(AHEAD):
        n_known = max(len(change) - steps, 0)
        if n_known >= steps:
            actual, forecast = change[:n_known, i, None], predicted[:n_known, i, None]
            best = _WEIGHTS[np.abs(actual - _WEIGHTS * forecast).mean(axis=0).argmin()]
            weights[i] += (best - weights[i]) * n_known / (n_known + _INDEPENDENT * steps)
    return weights


def quantile_weights(history: int) -> Values:
    """Return the weight of the trees in each quantile.

    The rest is that of the empirical quantile. The weight is near ``_MOST_WEIGHT`` where the history has many
    independent exceedances, and near 0 where they are rare, such as one day in a hundred.

    Returns
    -------
    float64 array of shape (n_ahead, n_levels)
    """
    exceedances = history / np.array(AHEAD)[:, None] * np.minimum(LEVELS, 1 - np.array(LEVELS))
    return np.asarray(_MOST_WEIGHT * exceedances / (exceedances + _ENOUGH_EXCEEDANCES))


def held_back(history: int) -> int:
    """Return the number of last steps that a trial holds back from training."""
    return min(_HELD_BACK, history // 3)


def quantile_corrections(rise: Values, predicted: Values) -> Values:
    """Return the corrections of quantiles, from forecasts with known outcome.

    Parameters
    ----------
    rise : float64 array of shape (n_steps, n_ahead)
        The actual rises.
    predicted : float64 array of shape (n_steps, n_ahead, n_levels)
        The forecast quantiles.

    Returns
    -------
    float64 array of shape (n_ahead, n_levels)
    """
    corrections = np.zeros((len(AHEAD), len(LEVELS)))
    for i, steps in enumerate(AHEAD):
        n_known = max(len(rise) - steps, 0)
        for k, level in enumerate(LEVELS):
            exceedances = n_known / steps * min(level, 1 - level)
            if n_known >= steps:
                move = np.quantile(rise[:n_known, i] - predicted[:n_known, i, k], level)
                corrections[i, k] = move * exceedances / (exceedances + _EXCEEDANCES)
    return corrections


# Evaluation.


@dataclass(frozen=True, slots=True, kw_only=True)
class PointScore:
    """Errors of one method at one horizon.

    Attributes
    ----------
    method : str
    horizon_h : int
    smape : float
        Error of the busy nodes exactly at the horizon, %.
    mae : float
        The same error in nodes.
    pinball : float
        Loss at ``UPPER`` of the most nodes needed within the horizon, nodes. A baseline without quantiles is evaluated
        by its one value: the current one, or the maximum of the last 3 h or of the same hours last week.
    mae_mean : float or None
        Error of the mean over the horizon, nodes; None where the method has none.
    better, sure_by : float or None
        Mean absolute error of persistence minus that of this method, nodes, and its standard error over days. None for
        persistence itself. The latter is None with too few days too.
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
        The actual series. Outcomes after its end are unknown and not evaluated.
    gaps : bool array of shape (n_steps,)
        Steps without data. Forecasts from them, and outcomes that include them, are not evaluated.
    refit_every_s : int
        Time between two updates of the empirical quantiles, as that of the forecaster.
    """
    window = slice(from_step, len(busy))
    actual, actual_mean, actual_most = (values[window] for values in outcomes(busy))
    is_known = np.isfinite(actual) & _has_no_gaps(gaps)[window]
    ended_s = start_s + (np.arange(len(busy))[window] + 1) * STEP_S
    by_method = _point_forecasts(busy, forecasts, window)
    means = {HELIOS: forecasts.mean, PERSISTENCE: persistence(busy)[window]}
    quantiles = {HELIOS: forecasts.most, EMPIRICAL: _empirical(busy, total, from_step, refit_every_s // STEP_S)}

    def point_score(method: str, hour: int, at: int, rows: NDArray[np.int64]) -> PointScore:
        truth, forecast, bound = actual[rows, at], *(values[rows, at] for values in by_method[method])
        gain = np.abs(truth - by_method[PERSISTENCE][0][rows, at]) - np.abs(truth - forecast)
        is_persistence, mean = method == PERSISTENCE, means.get(method)
        return PointScore(
            method=method,
            horizon_h=hour,
            smape=smape(truth, forecast),
            mae=float(np.abs(truth - forecast).mean()),
            pinball=pinball(actual_most[rows, at], bound, UPPER),
            mae_mean=None if mean is None else float(np.abs(actual_mean[rows, at] - mean[rows, at]).mean()),
            better=None if is_persistence else float(gain.mean()),
            sure_by=None if is_persistence else standard_error_of_mean(gain, submitted_s=ended_s[rows]),
        )

    def most_score(method: str, hour: int, at: int, rows: NDArray[np.int64], level: float) -> MostScore:
        most_nodes, bound = actual_most[rows, at], quantiles[method][rows, at, LEVELS.index(level)]
        return MostScore(
            method=method,
            horizon_h=hour,
            level=level,
            pinball=pinball(most_nodes, bound, level),
            coverage=float(np.mean(most_nodes <= bound)),
        )

    ahead = [(hour, AHEAD_S.index(hour * 3_600)) for hour in JUDGED_H]
    horizons = [(hour, at, np.flatnonzero(is_known[:, at])) for hour, at in ahead if is_known[:, at].any()]
    return ForecastVerdict(
        points=tuple(point_score(method, *horizon) for horizon in horizons for method in by_method),
        most=tuple(
            most_score(method, *horizon, level) for horizon in horizons for method in quantiles for level in LEVELS
        ),
        steps=int((~gaps[window]).sum()),
    )


def _point_forecasts(busy: Values, forecasts: Forecasts, window: slice) -> dict[str, tuple[Values, Values]]:
    """Return each method's forecast and its bound on the maximum, by horizon."""
    week, week_most = same_hour_last_week(busy)
    most_nodes, now = max_of_last_3_h(busy), persistence(busy)
    return {
        HELIOS: (forecasts.point, forecasts.most[:, :, LEVELS.index(UPPER)]),
        PERSISTENCE: (now[window], now[window]),
        "same_hour_last_week": (week[window], week_most[window]),
        "max_of_last_3_h": (most_nodes[window], most_nodes[window]),
    }


def _empirical(busy: Values, total: Values, from_step: int, refit: int) -> Values:
    """Return the current value plus the empirical quantiles of rises so far.

    They are updated every ``refit`` steps, as the forecaster.
    """
    quantiles = np.zeros((len(busy) - from_step, len(AHEAD), len(LEVELS)))
    for step in range(from_step, len(busy), refit):
        now = busy[step : step + refit]
        in_service = np.maximum(total[step : step + refit], now)[:, None, None]
        rise = rises(busy, until=step)
        quantiles[step - from_step : step - from_step + len(now)] = np.minimum(now[:, None, None] + rise, in_service)
    return quantiles


def _has_no_gaps(gaps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether there are no gaps from each step up to each horizon."""
    cumulative = np.concatenate([[0], np.cumsum(gaps)])
    is_known = np.zeros((len(gaps), len(AHEAD)), dtype=np.bool_)
    for i, steps in enumerate(AHEAD):
        reach = np.minimum(np.arange(len(gaps)) + steps + 1, len(gaps))
        is_known[:, i] = cumulative[reach] == cumulative[:-1]
    return is_known


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
    error = truth - forecast
    return float(np.mean(np.maximum(level * error, (level - 1) * error)))


# Outcomes and baselines.


def outcomes(busy: Values) -> tuple[Values, Values, Values]:
    """Return the actual demand at and up to each horizon.

    They are the busy nodes at the horizon, their mean until then and their maximum until then. NaN where still unknown.

    Returns
    -------
    three float64 arrays of shape (n_steps, n_ahead)
    """
    point, mean, most = (np.full((len(busy), len(AHEAD)), np.nan) for _ in range(3))
    _look_ahead(np.ascontiguousarray(busy, dtype=np.float64), np.array(AHEAD), point, mean, most)
    return point, mean, most


@cached_jit
def _look_ahead(busy: Any, ahead: Any, point: Any, mean: Any, most: Any) -> None:
    for row in range(len(busy)):
        total, highest, steps = 0.0, -np.inf, 0
        for i in range(len(ahead)):
            if row + ahead[i] >= len(busy):
                break
            while steps < ahead[i]:
                steps += 1
                total += busy[row + steps]
                highest = max(highest, busy[row + steps])
            point[row, i] = busy[row + steps]
            mean[row, i] = total / steps
            most[row, i] = highest


def persistence(busy: Values) -> Values:
    """Forecast the current value at every horizon."""
    return np.repeat(busy[:, None], len(AHEAD), axis=1)


def same_hour_last_week(busy: Values) -> tuple[Values, Values]:
    """Forecast the values of the same hours a week before.

    The results are the value at each horizon and the maximum until then, in the first week the current value.
    """
    point, most = persistence(busy), persistence(busy)
    actual, _, actual_most = outcomes(busy)
    point[7 * DAY :], most[7 * DAY :] = actual[: -7 * DAY], actual_most[: -7 * DAY]
    return point, most


def max_of_last_3_h(busy: Values) -> Values:
    """Forecast the maximum of the last three hours at every horizon."""
    padded = np.concatenate([np.full(17, -np.inf), busy])
    return persistence(np.lib.stride_tricks.sliding_window_view(padded, 18).max(axis=1))


def rises(busy: Values, *, until: int) -> Values:
    """Return empirical quantiles of the rise of demand within each horizon.

    The rise is the maximum within the horizon minus the current value.

    Parameters
    ----------
    busy : float64 array of shape (n_steps,)
    until : int
        Only steps before this one are used. Outcomes of horizons that end later are unknown.

    Returns
    -------
    float64 array of shape (n_ahead, n_levels)
        As :func:`typical_rises`.
    """
    return typical_rises(outcomes(busy[:until])[2] - busy[:until, None])


def typical_rises(rise: Values) -> Values:
    """Return quantiles of rises of shape (n_steps, n_ahead).

    Rises that had not ended by the last step are left out.

    Returns
    -------
    float64 array of shape (n_ahead, n_levels)
        Where less than a day of them is known, 0 for the median and infinite for the upper levels.
    """
    quantiles = np.tile(np.where(np.array(LEVELS) > 0.5, np.inf, 0.0), (len(AHEAD), 1))
    for i, steps in enumerate(AHEAD):
        known = rise[: max(len(rise) - steps, 0), i]
        if len(known) >= DAY:
            quantiles[i] = np.quantile(known, LEVELS)
    return quantiles
