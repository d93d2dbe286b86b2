"""What the series of busy nodes itself tells at the end of a step, all of it relative to now.

Trees cannot say more than they have seen, so every level is given as its distance from now, and what is learned is the
change from now. Each row is computed from the series alone, by looking back from its own step: the row of a live turn
and that of a walk through a year cannot differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.kernels import kept, part
from helios.model import STEP_S
from helios.predict.demand.values import AHEAD, DAY, Calendar, JobState

LAGS = (1, 2, 3, 6, 12, 18, 36, 72, DAY, 7 * DAY)
WINDOWS = (6, 18, 36, 72, DAY, 7 * DAY)
"""Steps whose mean, most and least are told."""
EWMA_S = (900, 3_600, 3 * 3_600)
"""Time constants of the decayed means, s; the first is what forecasts are drawn towards."""
REACH = 7 * DAY
"""Steps that a row looks back; with fewer, what reaches further is unknown (NaN)."""

SERIES_FEATURES = (
    "free",
    *(f"ewma_{constant_s // 60}_min" for constant_s in EWMA_S),
    *(f"lag_{lag}" for lag in LAGS),
    *(f"{what}_{window}" for window in WINDOWS for what in ("mean", "most", "least")),
    "roughness_day",
    "roughness_week",
    *(f"daily_change_{ahead}" for ahead in AHEAD),
    *(f"daily_rise_{ahead}" for ahead in AHEAD),
)
CALENDAR_FEATURES = ("hour", "weekday", "holiday", "holiday_tomorrow")
_LAGS, _WINDOWS, _AHEAD = np.array(LAGS), np.array(WINDOWS), np.array(AHEAD)
_KEPT = np.exp(-STEP_S / np.array(EWMA_S))
_EWMA_STEPS = 12 * EWMA_S[-1] // STEP_S  # what is older weighs less than 1e-5


def matrix(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    *,
    start_s: int,
    rows: NDArray[np.int64],
    calendar: Calendar,
    state: JobState | None,
) -> NDArray[np.float32]:
    """Return what was known at the end of the steps ``rows``, of shape (len(rows), n_features)."""
    series = np.full((len(rows), len(SERIES_FEATURES)), np.nan, dtype=np.float32)
    _describe(busy, total, rows, _LAGS, _WINDOWS, _AHEAD, _KEPT, _EWMA_STEPS, series)
    parts = [series, calendar.describe(start_s + (rows + 1) * STEP_S)]
    if state is not None:
        parts.append(state.values[rows])
    return np.hstack(parts).astype(np.float32)


def names(state: JobState | None) -> tuple[str, ...]:
    """Return the names of the columns of :func:`matrix`."""
    return (*SERIES_FEATURES, *CALENDAR_FEATURES, *(state.names if state is not None else ()))


@kept
def _describe(  # noqa: PLR0917 - numba kernels are called by position
    busy: Any, total: Any, rows: Any, lags: Any, windows: Any, ahead: Any, kept: Any, ewma_steps: int, out: Any
) -> None:
    for place in range(len(rows)):
        row, now = rows[place], busy[rows[place]]
        out[place, 0] = total[row] - now
        column = 1
        for constant in range(len(kept)):
            out[place, column] = _decayed(busy, row, kept[constant], ewma_steps) - now
            column += 1
        for lag in lags:
            if row >= lag:
                out[place, column] = busy[row - lag] - now
            column += 1
        column = _windows(busy, row, windows, out[place], column)
        out[place, column] = _roughness(busy, row, DAY)
        out[place, column + 1] = _roughness(busy, row, 7 * DAY)
        _seasons(busy, row, ahead, out[place], column + 2)


@part
def _decayed(busy: Any, row: int, kept: float, steps: int) -> float:
    weight, total, share = 0.0, 0.0, 1.0
    for back in range(min(row + 1, steps)):
        total += share * busy[row - back]
        weight += share
        share *= kept
    return total / weight


@part
def _windows(busy: Any, row: int, windows: Any, out: Any, column: int) -> int:
    """Tell mean, most and least of the last steps, for each of the ascending ``windows``."""
    now, total, most, least, back = busy[row], 0.0, -np.inf, np.inf, 0
    for window in windows:
        while back < window and back <= row:
            value = busy[row - back]
            total += value
            most, least = max(most, value), min(least, value)
            back += 1
        out[column] = total / back - now
        out[column + 1] = most - now
        out[column + 2] = least - now
        column += 3
    return column


@part
def _roughness(busy: Any, row: int, steps: int) -> float:
    """Return the mean change from hour to hour over the last ``steps``."""
    total, seen = 0.0, 0
    for back in range(0, steps, 6):
        if row - back - 6 < 0:
            break
        total += abs(busy[row - back] - busy[row - back - 6])
        seen += 1
    return total / seen if seen else np.nan


@part
def _seasons(busy: Any, row: int, ahead: Any, out: Any, column: int) -> None:
    """Tell what followed at this hour of the last seven days: the change, and the rise to the most in between."""
    n_ahead = len(ahead)
    for number in range(n_ahead):
        steps = ahead[number]
        total, rise, seen = 0.0, 0.0, 0
        for day in range(1, 8):
            then = row - day * DAY
            if then < 0:
                break
            total += busy[then + steps] - busy[then]
            rise += busy[then + 1 : then + steps + 1].max() - busy[then]
            seen += 1
        if seen:
            out[column + number] = total / seen
            out[column + n_ahead + number] = rise / seen
