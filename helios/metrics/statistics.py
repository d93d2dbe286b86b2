"""Confidence intervals and correlations for few observations."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pandas as pd
from numpy.typing import NDArray

CONFIDENCE = 0.95
_UPPER = (1 + CONFIDENCE) / 2
FEWEST_UNITS = 5
"""Fewest units that are resampled; fewer do not show how they differ."""
DRAWS = 1_000
"""Resamples of the bootstrap."""


def mean_interval(values: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the ``CONFIDENCE`` interval of the mean of independent values (Student's t).

    None where there are fewer than two.
    """
    n = len(values)
    if n < 2:
        return None, None
    mean, half = float(values.mean()), student_t(n - 1) * float(np.std(values, ddof=1)) / sqrt(n)
    return mean - half, mean + half


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    share, z_n = count / total, student_t(1e9) ** 2 / total
    middle, half = share + z_n / 2, sqrt(z_n * share * (1 - share) + z_n**2 / 4)
    return max((middle - half) / (1 + z_n), 0.0), min((middle + half) / (1 + z_n), 1.0)


def ratio_interval(parts: NDArray[np.float64], wholes: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the ``CONFIDENCE`` interval of a ratio of sums over units such as users (bootstrap).

    None where there are fewer than ``FEWEST_UNITS`` with a whole above 0.
    """
    parts, wholes = parts[wholes > 0], wholes[wholes > 0]
    n = len(wholes)
    if n < FEWEST_UNITS:
        return None, None
    # Seeded: the same history gives the same interval.
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    low, high = np.quantile((drawn @ parts) / (drawn @ wholes), [1 - _UPPER, _UPPER])
    return float(low), float(high)


def rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Spearman's rank correlation.

    NaN where either is constant.
    """
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(pd.Series(one).rank(), pd.Series(other).rank())[0, 1])


def weighted_median(values: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """Return the weighted median, NaN of no values."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    place = int(np.searchsorted(reached, reached[-1] / 2)) if len(values) else 0
    return float(values[order][min(place, len(values) - 1)]) if len(values) else float("nan")


def student_t(degrees: float, *, upper: float = _UPPER) -> float:
    """Return a quantile of Student's t.

    By default the upper bound of ``CONFIDENCE``.
    """
    # scipy.stats takes a second to import.
    from scipy.special import stdtrit  # noqa: PLC0415 - a fifth of a second; the tables of most commands need none

    return float(stdtrit(degrees, upper))
