"""Trees that learn the change of demand from now, and how far to believe them.

Small, much randomised trees (extremely randomised splits: Geurts, Ernst, Wehenkel 2006; LightGBM) of every third step;
the longer the horizon, the fewer independent hours there are in a history, so the larger the smallest leaf. Even so
they are only part of the answer: an expected value is drawn towards persistence, and a quantile of the most at least
half way to the empirical one of all rises so far, then moved by what it missed in the last weeks (rolling conformal
prediction: Gibbs and Candes 2021), both as far as there is evidence. What was tried: docs/forecast.md.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from helios.predict.demand.values import AHEAD, DAY, LEVELS

Values = NDArray[np.float64]

ROUNDS = 60
EVERY = 3
"""Of so many steps one is learned from: neighbours say the same. Every step costs thrice as much and is no better."""
_LEAF_PER_HORIZON = 4
_FEWEST_IN_LEAF = 40
_SIDE_BY_SIDE = 2
_HELD_BACK = 28 * DAY
_EXCEEDANCES = 20.0
"""Independent exceedances in the weeks held back at which their verdict is believed by half."""
_MOST_OF_TREES, _ENOUGH_EXCEEDANCES = 0.5, 5.0
_INDEPENDENT = 60.0
"""Independent horizons held back at which what erred least is believed by half."""
_SHARES = np.linspace(0.0, 1.0, 11)
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
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}
_EXPECTED: list[dict[str, Any]] = [{"objective": "regression_l1"}]
_QUANTILES: list[dict[str, Any]] = [{"objective": "quantile", "alpha": level} for level in LEVELS]


def learn(
    known: NDArray[np.float32],
    now: Values,
    point: Values,
    mean: Values,
    most: Values,
    *,
    first: int,
    until: int,
    every: int = EVERY,
) -> tuple[str, ...]:
    """Learn from the steps ``first`` to ``until`` - 1 what comes at each horizon.

    Parameters
    ----------
    known : float32 array of shape (n_steps, n_features)
        What was known at the end of each step.
    now : float64 array of shape (n_steps,)
    point, mean, most : float64 arrays of shape (n_steps, n_ahead)
        What came. Of outcomes that lie at ``until`` or later nothing is used.

    Returns
    -------
    tuple of str
        LightGBM's text of the trees: for each horizon point, mean, then each level of the most.
    """

    def of_horizon(number: int) -> list[str]:
        rows = np.arange(until - AHEAD[number] - 1, first - 1, -every)[::-1]
        leaf = max(_FEWEST_IN_LEAF, _LEAF_PER_HORIZON * AHEAD[number] // every)
        binned = lightgbm.Dataset(known[rows], params=_PARAMETERS, free_raw_data=False)
        texts = _trees(binned, point[rows, number] - now[rows], leaf, _EXPECTED)
        texts += _trees(binned, mean[rows, number] - now[rows], leaf, _EXPECTED)
        return texts + _trees(binned, most[rows, number] - now[rows], leaf, _QUANTILES)

    return tuple(text for texts in _side_by_side(of_horizon) for text in texts)


def belief(change: Values, told: Values, *, history: int) -> Values:
    """Return how far expected changes are believed, a share for each horizon.

    The share that would have erred least over the steps held back, drawn towards one that rises with the length of the
    history: the longer the horizon, the fewer independent hours those steps hold.

    Parameters
    ----------
    change, told : float64 arrays of shape (n_steps, n_ahead)
        What came, and what had been expected.
    history : int
        Steps that were learned from.
    """
    days = history / DAY
    shares = np.full(len(AHEAD), 0.45 + 0.5 * days**2 / (days**2 + 100**2))
    for number, steps in enumerate(AHEAD):
        n_known = max(len(change) - steps, 0)
        if n_known >= steps:
            came, said = change[:n_known, number, None], told[:n_known, number, None]
            best = _SHARES[np.abs(came - _SHARES * said).mean(axis=0).argmin()]
            shares[number] += (best - shares[number]) * n_known / (n_known + _INDEPENDENT * steps)
    return shares


def shares(history: int) -> Values:
    """Return how much of each quantile is the trees' after ``history`` steps; the rest is the empirical one's.

    Half where the history holds many independent exceedances, next to nothing for one day in a hundred.

    Returns
    -------
    float64 array of shape (n_ahead, n_levels)
    """
    exceedances = history / np.array(AHEAD)[:, None] * np.minimum(LEVELS, 1 - np.array(LEVELS))
    return np.asarray(_MOST_OF_TREES * exceedances / (exceedances + _ENOUGH_EXCEEDANCES))


def held_back(history: int) -> int:
    """Return the steps at the end of a history on which quantiles are tried before they are used."""
    return min(_HELD_BACK, history // 3)


def missed(rise: Values, told: Values) -> Values:
    """Return by how much to move quantiles that were told for steps whose outcome is known by now.

    Parameters
    ----------
    rise : float64 array of shape (n_steps, n_ahead)
        What came.
    told : float64 array of shape (n_steps, n_ahead, n_levels)

    Returns
    -------
    float64 array of shape (n_ahead, n_levels)
    """
    moves = np.zeros((len(AHEAD), len(LEVELS)))
    for number, steps in enumerate(AHEAD):
        n_known = max(len(rise) - steps, 0)
        for place, level in enumerate(LEVELS):
            exceedances = n_known / steps * min(level, 1 - level)
            if n_known >= steps:
                move = np.quantile(rise[:n_known, number] - told[:n_known, number, place], level)
                moves[number, place] = move * exceedances / (exceedances + _EXCEEDANCES)
    return moves


def _trees(binned: lightgbm.Dataset, change: Values, leaf: int, objectives: list[dict[str, Any]]) -> list[str]:
    binned.set_label(change)
    return [
        str(lightgbm.train(_PARAMETERS | objective | {"min_data_in_leaf": leaf}, binned, ROUNDS).model_to_string())
        for objective in objectives
    ]


def _side_by_side(of_horizon: Any) -> list[list[str]]:
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as workers:
        return list(workers.map(of_horizon, range(len(AHEAD))))
