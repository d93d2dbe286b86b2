"""Blocks of time, and intervals over them.

Jobs of one user and of one day are alike, so an interval over jobs would be far too narrow. Weeks are taken as
independent instead, and days where there are fewer than eight weeks. An interval is that of the delete-one jackknife
with Student's t (Efron and Stein, Annals of Statistics 9(3), 1981).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.queue import mean_level_over_time
from helios.metrics.statistics import student_t

FEWEST_BLOCKS = 5
"""Blocks below which no interval is given."""
WEEK_HOURS = 7 * 24
FEWEST_WEEKS = 8
"""Weeks below which days are the blocks."""

Seconds = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its interval.

    Attributes
    ----------
    value : float, optional
        None: not known.
    low, high : float, optional
        95 % interval over blocks; None: there are fewer than ``FEWEST_BLOCKS``.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def bounded(self, least: float = 0.0, most: float = np.inf) -> Estimate:
        """Return the estimate with its interval cut at what is possible."""
        if self.low is None or self.high is None:
            return self
        return Estimate(value=self.value, low=max(self.low, least), high=min(self.high, most))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Weeks or days of a window, on the cluster's own clock.

    Attributes
    ----------
    kind : str
        ``weeks`` or ``days``.
    edges_s : int64 array of shape (n + 1,)
        Edges, s since the epoch. The first and last block may be shorter.
    """

    kind: str
    edges_s: Seconds

    @classmethod
    def of_window(cls, first_s: int, end_s: int, *, timezone: str) -> Blocks:
        """Return the blocks of a window, from local midnight to local midnight."""
        kind = "weeks" if end_s - first_s >= FEWEST_WEEKS * 7 * 86_400 else "days"
        return cls(kind=kind, edges_s=local_edges(first_s, end_s, timezone=timezone, days=7 if kind == "weeks" else 1))

    @property
    def n(self) -> int:
        """Number of blocks."""
        return len(self.edges_s) - 1

    @property
    def seconds(self) -> Floats:
        """Length of each block, s."""
        return np.diff(self.edges_s).astype(np.float64)

    def number(self, moment_s: Seconds) -> Seconds:
        """Return the block of each moment, -1 outside the window."""
        number = np.searchsorted(self.edges_s, moment_s, side="right") - 1
        return np.where(number < self.n, number, -1)

    def sum(self, moment_s: Seconds, weight: NDArray[Any] | None = None) -> Floats:
        """Return the sum of the weights of the moments in each block."""
        number = self.number(moment_s)
        inside = number >= 0
        weight = None if weight is None else weight[inside]
        return np.bincount(number[inside], weights=weight, minlength=self.n).astype(np.float64)

    def spread(self, begins_s: Seconds, ends_s: Seconds, weight: NDArray[Any]) -> Floats:
        """Return the integral of intervals over each block, weight x s."""
        begins_s, ends_s = np.maximum(begins_s, self.edges_s[0]), np.minimum(ends_s, self.edges_s[-1])
        some = (ends_s > begins_s) & (weight > 0)
        begins_s, ends_s, weight = begins_s[some], ends_s[some], weight[some].astype(np.float64)
        first = np.searchsorted(self.edges_s, begins_s, side="right") - 1
        last = np.searchsorted(self.edges_s, ends_s, side="left") - 1
        held = np.bincount(last, weights=weight * (ends_s - np.maximum(begins_s, self.edges_s[last])), minlength=self.n)
        # Most intervals lie in one block; the others fill each of those before their last.
        for number in range(self.n):
            across = np.flatnonzero((first <= number) & (last > number))
            from_s = np.maximum(begins_s[across], self.edges_s[number])
            held[number] += float(np.sum(weight[across] * (self.edges_s[number + 1] - from_s)))
        return held.astype(np.float64)

    def ratio(self, numerator: Floats, denominator: Floats) -> Estimate:
        """Return the ratio of two sums over blocks, with its interval.

        The value is None where the denominator is 0.
        """
        total, base = float(numerator.sum()), float(denominator.sum())
        if base <= 0:
            return Estimate()
        filled = denominator > 0
        rest = base - denominator[filled]
        if (rest <= 0).any():
            return Estimate(value=total / base)
        return self.estimate(total / base, (total - numerator[filled]) / rest)

    def quantile(self, values: Floats, moment_s: Seconds, share: float) -> Estimate:
        """Return a quantile of values that belong to moments, with its interval."""
        number = self.number(moment_s)
        known = np.isfinite(values) & (number >= 0)
        values, number = values[known], number[known]
        if not len(values):
            return Estimate()
        others = [values[number != block] for block in np.unique(number)]
        without = [float(np.quantile(rest, share)) for rest in others if len(rest)]
        return self.estimate(float(np.quantile(values, share)), np.array(without))

    def estimate(self, value: float, without: Floats) -> Estimate:
        """Return a value with its interval, from the values without each block."""
        n = len(without)
        if n < FEWEST_BLOCKS:
            return Estimate(value=value)
        error = sqrt((n - 1) / n * float(np.sum((without - without.mean()) ** 2)))
        half = student_t(n - 1) * error
        return Estimate(value=value, low=value - half, high=value + half)


def local_edges(first_s: int, end_s: int, *, timezone: str, days: int = 1) -> Seconds:
    """Return the local midnights of a window, with the window's own first and last moment."""
    first = pd.Timestamp(first_s, unit="s", tz="UTC").tz_convert(timezone)
    end = pd.Timestamp(end_s, unit="s", tz="UTC").tz_convert(timezone)
    midnights = pd.date_range(first.normalize(), end, freq=pd.DateOffset(days=days))
    inside = (midnights.as_unit("s").asi8 if len(midnights) else np.zeros(0)).astype(np.int64)
    inside = inside[(inside > first_s) & (inside < end_s)]
    return np.concatenate([[first_s], inside, [end_s]]).astype(np.int64)


def mean_levels(begins_s: Seconds, ends_s: Seconds, weight: NDArray[np.int64], edges_s: Seconds) -> Floats:
    """Return the mean level of intervals in each step.

    Also of those that never begin or end.
    """
    begins_s, ends_s = np.maximum(begins_s, edges_s[0]), np.minimum(ends_s, edges_s[-1])
    some = ends_s > begins_s
    return mean_level_over_time(begins_s=begins_s[some], ends_s=ends_s[some], weight=weight[some], edges_s=edges_s)
