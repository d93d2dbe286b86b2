"""Blocks of time, intervals over them, and findings.

Jobs of one user and of one day are alike, so an interval over jobs would be far too narrow. Weeks are taken as
independent instead, and days where there are fewer than eight weeks. An interval is that of the delete-one jackknife
with Student's t (Efron and Stein, Annals of Statistics 9(3), 1981). A finding is the value behind a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        None where not known.
    low, high : float, optional
        95 % interval over blocks. None where there are fewer than ``FEWEST_BLOCKS``.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def bounded(self, least: float = 0.0, most: float = np.inf) -> Estimate:
        """Return the estimate with its interval bounded."""
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
        found: Floats = self.spread_groups(begins_s, ends_s, weight, np.zeros(len(weight), dtype=np.int8), 1)[0]
        return found

    def spread_groups(
        self, begins_s: Seconds, ends_s: Seconds, weight: NDArray[Any], group: NDArray[Any], n_groups: int
    ) -> Floats:
        """Return the integral of each group over each block.

        The unit is that of the weight times s.

        Parameters
        ----------
        group : int array
            Group of each interval. Intervals of a negative group are left out.

        Returns
        -------
        float64 array of shape (n_groups, n)
        """
        begins_s, ends_s = np.maximum(begins_s, self.edges_s[0]), np.minimum(ends_s, self.edges_s[-1])
        some = np.flatnonzero((ends_s > begins_s) & (weight > 0) & (group >= 0))
        begins_s, ends_s, weight = begins_s[some], ends_s[some], weight[some].astype(np.float64)
        row = group[some].astype(np.int64) * (self.n + 1)
        first = np.searchsorted(self.edges_s, begins_s, side="right") - 1
        last = np.searchsorted(self.edges_s, ends_s, side="left") - 1
        size = n_groups * (self.n + 1)
        held = np.bincount(row + last, weight * (ends_s - np.maximum(begins_s, self.edges_s[last])), size)
        # Most intervals lie in one block; the others fill a part of their first, and all between it and their last.
        across = np.flatnonzero(last > first)
        row, first, last, weight = row[across], first[across], last[across], weight[across]
        held += np.bincount(row + first, weight * (self.edges_s[first + 1] - begins_s[across]), size)
        change = np.bincount(row + first + 1, weight, size) - np.bincount(row + last, weight, size)
        between = np.maximum(np.cumsum(change.reshape(n_groups, -1), axis=1), 0)
        return held.reshape(n_groups, -1)[:, : self.n] + between[:, : self.n] * self.seconds

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
        order = np.argsort(values, kind="stable")
        values, number = values[order], number[order]
        # Of all but one block, the k-th value is the k-th of all, moved on by what of that block lies before it.
        places = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
        without = [_quantile(values, share, left_out=place) for place in places if 0 < len(place) < len(values)]
        return self.estimate(_quantile(values, share, left_out=places[0][:0]), np.array(without))

    def weighted_median(self, values: Floats, moment_s: Seconds, weight: Floats) -> Estimate:
        """Return the weighted median with its interval.

        The value is NaN where there is none.
        """
        number = self.number(moment_s)
        order = np.argsort(values, kind="stable")
        values, number, weight = values[order], number[order], weight[order]
        reached = np.cumsum(weight)
        if not len(values):
            return Estimate(value=float("nan"))
        by_block = np.argsort(number, kind="stable")
        bounds = np.flatnonzero(np.diff(number[by_block])) + 1
        places = np.split(by_block, bounds)
        value = _weighted_median(values, reached, by_block[:0], weight)
        if len(places) < 2:
            return Estimate(value=value)
        return self.estimate(value, np.array([_weighted_median(values, reached, place, weight) for place in places]))

    def estimate(self, value: float, without: Floats) -> Estimate:
        """Return a value with its interval, from the values without each block."""
        n = len(without)
        if n < FEWEST_BLOCKS:
            return Estimate(value=value)
        error = sqrt((n - 1) / n * float(np.sum((without - without.mean()) ** 2)))
        half = student_t(n - 1) * error
        return Estimate(value=value, low=value - half, high=value + half)


def _quantile(values: Floats, share: float, *, left_out: NDArray[np.int64]) -> float:
    """Return a quantile without the values at some places.

    Values are sorted, and interpolated as in NumPy.
    """
    rank = (len(values) - len(left_out) - 1) * share
    below = int(rank)
    ranks = np.array([below, min(below + 1, len(values) - len(left_out) - 1)])
    kept_before = left_out - np.arange(len(left_out))
    low, high = values[ranks + np.searchsorted(kept_before, ranks, side="right")].tolist()
    part = rank - below
    return float(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))


def _weighted_median(values: Floats, reached: Floats, left_out: NDArray[np.int64], weight: Floats) -> float:
    """Return the weighted median of sorted values without those at some places.

    Parameters
    ----------
    reached : float64 array
        Weight of the values up to each.
    """
    gone = np.concatenate([[0.0], np.cumsum(weight[left_out])])
    half = (reached[-1] - gone[-1]) / 2
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        before = float(reached[middle] - gone[np.searchsorted(left_out, middle, side="right")])
        low, high = (low, middle) if before >= half else (middle + 1, high)
    return float(values[low])


def local_edges(first_s: int, end_s: int, *, timezone: str, days: int = 1) -> Seconds:
    """Return the local midnights of a window.

    The window's own bounds are the first and the last.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Answer of a history to one question.

    Attributes
    ----------
    number : int
        1 to 20, as in docs/study.md.
    estimate : Estimate
        The value with its interval; in the unit that the question has.
    n : int, optional
        Jobs, nodes, users or partitions that it rests on.
    coverage : float, optional
        Share of them, or of their hours, that the history says enough about.
    hours_per_week : float, optional
        Resource hours at stake in a week, to rank findings by. None where it is not about hours.
    missing : str
        What the history lacks; empty where the value is known.
    parts : dict
        Further figures by name, plain values.
    """

    number: int
    estimate: Estimate = field(default_factory=Estimate)
    n: int | None = None
    coverage: float | None = None
    hours_per_week: float | None = None
    missing: str = ""
    parts: Mapping[str, Any] = field(default_factory=dict)


def unknown_finding(number: int, missing: str, *, n: int | None = None, coverage: float | None = None) -> Finding:
    """Return a finding without a value, with the missing data."""
    return Finding(number=number, missing=missing, n=n, coverage=coverage)
