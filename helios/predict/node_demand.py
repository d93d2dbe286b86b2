"""Forecast of the nodes that will be needed, hour by hour.

One plain forecaster: gradient-boosted trees (LightGBM) on recent use, on the same hour of the day and of the week
before, and on the calendar. The number of the hour ahead is a feature like the others, so that one model serves all
hours. Trees cannot predict values that were not in training, so everything is given as its difference from now.

The range is that of the errors in the last weeks of the history, which a second model did not learn from (split
conformal prediction; Papadopoulos et al. 2002). A forecast is beside two without a model in every evaluation: as now,
and as in the same hour a week ago. For putting nodes to sleep no forecast was worth more than 1 % of the energy.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import FrameInvalid
from helios.model import STEP_S
from helios.ports import Progress, no_progress

Values = NDArray[np.float64]
Rows = NDArray[np.int64]

HOUR = 3_600 // STEP_S
"""Steps of an hour."""
DAY = 24 * HOUR
WEEK = 7 * DAY
HOURS = 48
"""Hours ahead that can be forecast: at any moment they contain all of the next day."""
LEARNED = 6 * WEEK
"""Most steps that a model learns from. The first of them look back a week, and the model is up to a week old: so eight
weeks of history give the same as more."""
FEWEST = WEEK + DAY
"""Fewest steps that a model learns from: before, no hour has one a week before it."""
FEWEST_FOR_RANGE = 2 * WEEK
"""Fewest steps from which a range can be told: four days of errors."""
OF_ERRORS = 3 * WEEK
"""Last steps whose errors give a range, at most a quarter of all: with fewer, distant hours have too few of them."""
RANGE = (0.05, 0.95)
"""Quantiles of the errors that a range spans."""
JUDGED_H = (1, 3, 6, 12, 24, 48)
"""Hours ahead that are evaluated."""
MEANS_H = (3, 6, 24, 168)
"""Lengths of the windows before now whose mean is a feature, h."""
SPREAD = np.sqrt(np.arange(1, HOURS + 1))
"""By which changes are divided for training: else the distant hours, which change most, decide the near ones."""
DECIMALS = 6
"""Digits of means after the point."""
ROUNDS = 60
PARAMETERS: dict[str, Any] = {
    "objective": "regression_l1",
    "num_leaves": 15,
    "learning_rate": 0.08,
    "min_data_in_leaf": 100,
    "lambda_l2": 5.0,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "max_bin": 63,
    "num_threads": 1,
    "deterministic": True,
    "force_col_wise": True,
    "seed": 0,
    "verbose": -1,
}
HELIOS, AS_NOW, WEEK_AGO = "helios", "as_now", "same_hour_last_week"
"""Methods of an evaluation."""


def mean_of_hour(busy: Values) -> Values:
    """Return the mean over the hour that ends with each step.

    In the first hour it is over the steps there are.
    """
    return np.asarray(_rolling(busy, HOUR).mean().round(DECIMALS))


def most_of_hour(busy: Values) -> Values:
    """Return the most within the hour that ends with each step."""
    return np.asarray(_rolling(busy, HOUR).max())


def _rolling(values: Values, n_steps: int) -> Any:
    return pd.Series(values, dtype=np.float64).rolling(n_steps, min_periods=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeHours:
    """History of one pool, with the features of its steps.

    Attributes
    ----------
    start_s : int
        Begin of the first step of ``STEP_S``, s since the epoch.
    hourly : float64 array of shape (n_steps,)
        Nodes in use in the hour that ends with each step, on average or at most (:func:`mean_of_hour`,
        :func:`most_of_hour`).
    past : float64 array of shape (n_steps, n_features)
        What preceded each step, as its difference from ``hourly``.
    calendar : float64 array of shape (n_steps + HOUR * HOURS, 2)
        Local hour of the day and weekday (Monday is 0) of the hour that ends with each step, future ones included.
    """

    start_s: int
    hourly: Values
    past: Values
    calendar: Values

    @classmethod
    def of(cls, hourly: Values, *, start_s: int, zone: ZoneInfo) -> NodeHours:
        """Return a history with its features.

        Raises
        ------
        FrameInvalid
            The history has gaps.
        """
        if not np.isfinite(hourly).all():
            raise FrameInvalid("a series of nodes has gaps; fill them first (helios.ingest.node_series.resample)")
        means = [_rolling(hourly, HOUR * hours).mean() for hours in MEANS_H]
        # Rounded, as running sums depend a little on where the history begins.
        before = np.column_stack([*means, _rolling(hourly, DAY).max(), _rolling(hourly, DAY).min()]).round(DECIMALS)
        begins_s = start_s + STEP_S * np.arange(1 - HOUR, len(hourly) + HOUR * (HOURS - 1) + 1, dtype=np.int64)
        local = pd.DatetimeIndex(begins_s.astype("datetime64[s]")).tz_localize("UTC").tz_convert(zone)
        calendar = np.column_stack([local.hour + local.minute / 60, local.day_of_week]).astype(np.float64)
        return cls(start_s=start_s, hourly=hourly, past=before - hourly[:, None], calendar=calendar)

    def features(self, rows: Rows, hours: int) -> Values:
        """Return the features of the hours after each of the steps.

        The result has the shape (len(rows) * hours, n_features); what came after a step has no part in its rows.
        """
        ahead = np.arange(1, hours + 1)
        goal = rows[:, None] + HOUR * ahead
        # The last hour of the same time of day, and of the week, that is over by now.
        earlier = [goal - DAY * -(-ahead // 24), goal - WEEK]
        same = [np.where(at >= 0, self.hourly[np.maximum(at, 0)], np.nan) - self.hourly[rows, None] for at in earlier]
        columns = [np.broadcast_to(ahead, goal.shape), *same, *np.moveaxis(self.calendar[goal], 2, 0)]
        columns += [np.broadcast_to(column[:, None], goal.shape) for column in self.past[rows].T]
        return np.stack(columns, axis=-1).reshape(goal.size, -1)

    def changes(self, rows: Rows, hours: int) -> Values:
        """Return by how much use changed until each hour."""
        goal = rows[:, None] + HOUR * np.arange(1, hours + 1)
        known = goal < len(self.hourly)
        changed = self.hourly[np.where(known, goal, 0)] - self.hourly[rows, None]
        return np.where(known, changed / SPREAD[:hours], np.nan)


def train(history: NodeHours, *, until: int, hours: int) -> lightgbm.Booster | None:
    """Train on the steps before ``until``, on nothing that ended later.

    Returns
    -------
    Booster or None
        None: the history is too short.
    """
    if until < FEWEST:
        return None
    rows = np.arange(max(until - LEARNED, DAY), until, HOUR)
    known = (rows[:, None] + HOUR * np.arange(1, hours + 1) < until).ravel()
    data = lightgbm.Dataset(history.features(rows, hours)[known], history.changes(rows, hours).ravel()[known])
    return lightgbm.train(PARAMETERS, data, ROUNDS, keep_training_booster=True)


def expect(model: lightgbm.Booster, history: NodeHours, rows: Rows, hours: int) -> Values:
    """Return the nodes expected, of shape (len(rows), hours)."""
    changes = np.asarray(model.predict(history.features(rows, hours), num_threads=1)).reshape(len(rows), hours)
    return np.asarray(np.maximum(history.hourly[rows, None] + changes * SPREAD[:hours], 0.0))


def expect_all(
    history: NodeHours,
    *,
    from_step: int,
    until_step: int,
    hours: int,
    models: MutableMapping[int, lightgbm.Booster | None] | None = None,
) -> Values:
    """Return the nodes expected after each of some past steps.

    A model is trained at the begin of each week since the epoch on what was before it, so that the forecast of a step
    does not depend on where the history or the steps begin, and a restart changes nothing.

    Parameters
    ----------
    from_step, until_step : int
        The steps, without ``until_step`` itself.
    models : mutable mapping, optional
        Models by week, which are used and added to.

    Returns
    -------
    float64 array of shape (until_step - from_step, hours)
        NaN in weeks that have too little history before them.
    """
    models = {} if models is None else models
    expected = np.full((until_step - from_step, hours), np.nan)
    weeks = (history.start_s // STEP_S + np.arange(from_step, until_step) + 1) // WEEK
    for week in np.unique(weeks).tolist():
        rows = from_step + np.flatnonzero(weeks == week)
        if week not in models:
            models[week] = train(history, until=max(week * WEEK - history.start_s // STEP_S, 0), hours=hours)
        if (model := models[week]) is not None:
            expected[rows - from_step] = expect(model, history, rows, hours)
    return expected


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HourForecast:
    """Nodes needed in each of the next hours.

    Attributes
    ----------
    made_at_s : int
        When the first of the hours begins, s since the epoch.
    expected, low, high : float64 arrays of shape (n_hours,)
        In ``RANGE`` of all hours they lie between the last two.
    """

    made_at_s: int
    expected: Values
    low: Values
    high: Values


def forecast_hours(history: NodeHours, *, until: int, most: float) -> HourForecast | None:
    """Forecast the hours after step ``until`` - 1.

    Parameters
    ----------
    most : float
        Nodes there are.

    Returns
    -------
    HourForecast or None
        None: the history is too short for a range.
    """
    if until < FEWEST_FOR_RANGE:
        return None
    now = np.array([until - 1])
    errors = _error_range(history, until=until)
    expected = _expect_with(train(history, until=until, hours=HOURS), history, now)[0]
    return HourForecast(
        made_at_s=history.start_s + STEP_S * until,
        expected=np.minimum(expected, most),
        low=np.clip(expected + errors[0], 0.0, most),
        high=np.clip(expected + errors[1], 0.0, most),
    )


def _expect_with(model: lightgbm.Booster | None, history: NodeHours, rows: Rows) -> Values:
    if model is None:
        return np.repeat(history.hourly[rows, None], HOURS, axis=1)
    return expect(model, history, rows, HOURS)


def _error_range(history: NodeHours, *, until: int) -> Values:
    """Return the range of errors, of shape (2, HOURS)."""
    split = until - min(until // 4, OF_ERRORS)
    rows = np.arange(split, until - HOUR, HOUR)
    model = train(history, until=split, hours=HOURS)
    goal = rows[:, None] + HOUR * np.arange(1, HOURS + 1)
    errors = history.hourly[np.minimum(goal, until - 1)] - _expect_with(model, history, rows)
    errors[goal >= until] = np.nan
    return np.asarray(np.nanquantile(errors, RANGE, axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class HourScore:
    """Error of one method so many hours ahead.

    Attributes
    ----------
    method : str
        ``helios``, ``as_now`` or ``same_hour_last_week``.
    ahead_h : int
    error : float
        Mean absolute error, nodes.
    within : float, optional
        Share of hours within the range; None: the method has none.
    """

    method: str
    ahead_h: int
    error: float
    within: float | None = None


def score(
    history: NodeHours, *, from_step: int, gaps: NDArray[np.bool_] | None = None, progress: Progress = no_progress
) -> list[HourScore]:
    """Score forecasts of each hour beside those without a model.

    A model is trained at the begin of each week after ``from_step``, on what was before.

    Parameters
    ----------
    gaps : bool array of shape (n_steps,), optional
        Steps without data, whose hours are not evaluated.
    """
    n_steps = len(history.hourly)
    expected, low, high, rows = [], [], [], []
    for begin in range(from_step, n_steps, WEEK):
        progress("Scoring past forecasts", (begin - from_step) / (n_steps - from_step))
        steps = np.arange(begin, min(begin + WEEK, n_steps), HOUR)
        found = _expect_with(train(history, until=begin, hours=HOURS), history, steps)
        errors = _error_range(history, until=begin)
        rows.append(steps)
        expected.append(found)
        low.append(found + errors[0])
        high.append(found + errors[1])
    progress("Scoring past forecasts", 1.0)
    steps = np.concatenate(rows)
    missing = _rolling(np.zeros(n_steps) if gaps is None else gaps.astype(np.float64), HOUR).max().to_numpy()
    methods = {
        HELIOS: np.concatenate(expected),
        AS_NOW: np.repeat(history.hourly[steps, None], HOURS, axis=1),
        WEEK_AGO: history.hourly[np.maximum(steps[:, None] + HOUR * np.arange(1, HOURS + 1) - WEEK, 0)],
    }
    found_scores = []
    for hours in JUDGED_H:
        goal = steps + HOUR * hours
        known = goal < n_steps
        known[known] &= missing[goal[known]] == 0
        known &= missing[steps] == 0
        if not known.any():
            continue
        truth = history.hourly[goal[known]]
        inside = (np.concatenate(low)[known, hours - 1] <= truth) & (truth <= np.concatenate(high)[known, hours - 1])
        found_scores += [
            HourScore(
                method=method,
                ahead_h=hours,
                error=float(np.abs(values[known, hours - 1] - truth).mean()),
                within=float(inside.mean()) if method == HELIOS else None,
            )
            for method, values in methods.items()
        ]
    return found_scores
