"""Baseline forecasts that need no model.

Forecasts are compared with them, and they are used until the history is long enough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import cached_jit
from helios.predict.demand.types import AHEAD, DAY, LEVELS



def outcomes(busy: Values) -> tuple[Values, Values, Values]:
    """Return the actual demand at and up to each horizon.

    They are the busy nodes at the horizon, their mean until then and their maximum until then. NaN where not yet known.

    Returns
    -------
    three float64 arrays of shape (n_steps, n_ahead)
    """
    point, mean, most = (np.full((len(busy), len(AHEAD)), np.nan) for _ in range(3))
    _look_ahead(np.ascontiguousarray(busy, dtype=np.float64), np.array(AHEAD), point, mean, most)
    return point, mean, most


def persistence(busy: Values) -> Values:
    """Forecast the current value at every horizon."""
    return np.repeat(busy[:, None], len(AHEAD), axis=1)


def same_hour_last_week(busy: Values) -> tuple[Values, Values]:
    """Forecast the values of the same hours a week before.

    Returns the value at each horizon and the maximum until then. During the first week these are the current value.
    """
    point, most = persistence(busy), persistence(busy)
    was, _, was_most = outcomes(busy)
    point[7 * DAY :], most[7 * DAY :] = was[: -7 * DAY], was_most[: -7 * DAY]
    return point, most


def max_of_last_3_h(busy: Values) -> Values:
    """Forecast the maximum of the last three hours at every horizon."""
    padded = np.concatenate([np.full(17, -np.inf), busy])
    return persistence(np.lib.stride_tricks.sliding_window_view(padded, 18).max(axis=1))


def rises(busy: Values, *, until: int) -> Values:
    """Return empirical quantiles of the rise of demand within each horizon.

    The rise is that of the maximum above the value at the start.

    Parameters
    ----------
    busy : float64 array of shape (n_steps,)
    until : int
        Only steps before this one are used. Horizons that end later are not known.

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
    told = np.tile(np.where(np.array(LEVELS) > 0.5, np.inf, 0.0), (len(AHEAD), 1))
    for number, steps in enumerate(AHEAD):
        known = rise[: max(len(rise) - steps, 0), number]
        if len(known) >= DAY:
            told[number] = np.quantile(known, LEVELS)
    return told


@cached_jit
def _look_ahead(busy: Any, ahead: Any, point: Any, mean: Any, most: Any) -> None:
    for row in range(len(busy)):
        total, highest, seen = 0.0, -np.inf, 0
        for number in range(len(ahead)):
            if row + ahead[number] >= len(busy):
                break
            while seen < ahead[number]:
                seen += 1
                total += busy[row + seen]
                highest = max(highest, busy[row + seen])
            point[row, number] = busy[row + seen]
            mean[row, number] = total / seen
            most[row, number] = highest
