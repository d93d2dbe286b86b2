"""Blocks of time, intervals over them, and findings.

Jobs of one user and of one day are alike, so an interval over jobs would be far too narrow. Weeks are taken as
independent instead, and days where there are fewer than eight weeks. Intervals are computed by the delete-one jackknife
with Student's t (Efron and Stein, Annals of Statistics 9(3), 1981). A finding is the value behind a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.queue import Weights, mean_level_over_time
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
        integral: Floats = self.spread_groups(begins_s, ends_s, weight, np.zeros(len(weight), dtype=np.int8), 1)[0]
        return integral

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
        is_inside = np.flatnonzero((ends_s > begins_s) & (weight > 0) & (group >= 0))
        begins_s, ends_s, weight = begins_s[is_inside], ends_s[is_inside], weight[is_inside].astype(np.float64)
        row = group[is_inside].astype(np.int64) * (self.n + 1)
        first = np.searchsorted(self.edges_s, begins_s, side="right") - 1
        last = np.searchsorted(self.edges_s, ends_s, side="left") - 1
        size = n_groups * (self.n + 1)
        integral = np.bincount(row + last, weight * (ends_s - np.maximum(begins_s, self.edges_s[last])), size)
        # Most intervals are in one block. The others fill a part of their first block, and all before their last.
        spanning = np.flatnonzero(last > first)
        row, first, last, weight = row[spanning], first[spanning], last[spanning], weight[spanning]
        integral += np.bincount(row + first, weight * (self.edges_s[first + 1] - begins_s[spanning]), size)
        change = np.bincount(row + first + 1, weight, size) - np.bincount(row + last, weight, size)
        between = np.maximum(np.cumsum(change.reshape(n_groups, -1), axis=1), 0)
        return integral.reshape(n_groups, -1)[:, : self.n] + between[:, : self.n] * self.seconds

    def ratio(self, numerator: Floats, denominator: Floats) -> Estimate:
        """Return the ratio of two sums over blocks, with its interval.

        The value is None where the denominator is 0.
        """
        total, denominator_total = float(numerator.sum()), float(denominator.sum())
        if denominator_total <= 0:
            return Estimate()
        is_filled = denominator > 0
        remaining_base = denominator_total - denominator[is_filled]
        if (remaining_base <= 0).any():
            return Estimate(value=total / denominator_total)
        return self.estimate(total / denominator_total, (total - numerator[is_filled]) / remaining_base)

    def quantile(self, values: Floats, moment_s: Seconds, share: float) -> Estimate:
        """Return a quantile of values that belong to moments, with its interval."""
        number = self.number(moment_s)
        is_known = np.isfinite(values) & (number >= 0)
        values, number = values[is_known], number[is_known]
        if not len(values):
            return Estimate()
        order = np.argsort(values, kind="stable")
        values, number = values[order], number[order]
        # The k-th value without a block is a later one of all values, by the number of values of the block before it.
        rows_by_block = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
        leave_one_out = [
            _quantile(values, share, left_out=rows) for rows in rows_by_block if 0 < len(rows) < len(values)
        ]
        return self.estimate(_quantile(values, share, left_out=rows_by_block[0][:0]), np.array(leave_one_out))

    def weighted_median(self, values: Floats, moment_s: Seconds, weight: Floats) -> Estimate:
        """Return the weighted median with its interval.

        The value is NaN where there is none.
        """
        number = self.number(moment_s)
        order = np.argsort(values, kind="stable")
        values, number, weight = values[order], number[order], weight[order]
        cumulative_weight = np.cumsum(weight)
        if not len(values):
            return Estimate(value=float("nan"))
        by_block = np.argsort(number, kind="stable")
        bounds = np.flatnonzero(np.diff(number[by_block])) + 1
        rows_by_block = np.split(by_block, bounds)
        value = _weighted_median(values, cumulative_weight, by_block[:0], weight)
        if len(rows_by_block) < 2:
            return Estimate(value=value)
        return self.estimate(
            value, np.array([_weighted_median(values, cumulative_weight, rows, weight) for rows in rows_by_block])
        )

    def rank_correlation(self, one: Floats, other: Floats, moment_s: Seconds) -> Estimate:
        """Return the rank correlation of two series, with its interval.

        It is Spearman's, of pairs that belong to moments. Ranks are among all pairs, also where a block is left out.
        The value is None where either is constant.
        """
        if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
            return Estimate()
        ranks = [pd.Series(values).rank().to_numpy(dtype=np.float64) for values in (one, other)]
        x, y = ((rank - rank.mean()) / rank.std() for rank in ranks)
        number = self.number(moment_s)
        moments = (np.ones(len(x)), x, y, x * x, y * y, x * y)
        by_block = np.array([np.bincount(number, values, self.n) for values in moments])
        total = by_block.sum(axis=1)
        without = total[:, None] - by_block[:, by_block[0] > 0]
        return self.estimate(float(_correlation(total)), _correlation(without))

    def estimate(self, value: float, leave_one_out: Floats) -> Estimate:
        """Return a value with its interval, from the values without each block."""
        n = len(leave_one_out)
        if n < FEWEST_BLOCKS:
            return Estimate(value=value)
        error = sqrt((n - 1) / n * float(np.sum((leave_one_out - leave_one_out.mean()) ** 2)))
        margin = student_t(n - 1) * error
        return Estimate(value=value, low=value - margin, high=value + margin)


def _correlation(sums: Floats) -> Floats:
    """Return the correlation from sums.

    The sums are those of 1, x, y, x x, y y and x y.
    """
    n, x, y, xx, yy, xy = sums
    spread = np.sqrt(np.maximum((n * xx - x * x) * (n * yy - y * y), 0.0))
    found: Floats = np.divide(n * xy - x * y, spread, out=np.zeros_like(spread), where=spread > 0)
    return found


def _quantile(values: Floats, share: float, *, left_out: NDArray[np.int64]) -> float:
    """Return a quantile of sorted values without those at some positions.

    Values are interpolated as in NumPy.
    """
    rank = (len(values) - len(left_out) - 1) * share
    lower = int(rank)
    ranks = np.array([lower, min(lower + 1, len(values) - len(left_out) - 1)])
    n_kept_before = left_out - np.arange(len(left_out))
    low, high = values[ranks + np.searchsorted(n_kept_before, ranks, side="right")].tolist()
    fraction = rank - lower
    return float(low + (high - low) * fraction if fraction < 0.5 else high - (high - low) * (1 - fraction))


def _weighted_median(values: Floats, cumulative_weight: Floats, left_out: NDArray[np.int64], weight: Floats) -> float:
    """Return the weighted median of sorted values without those at some positions.

    Parameters
    ----------
    cumulative_weight : float64 array
        Weight of the values up to each.
    """
    removed_weight = np.concatenate([[0.0], np.cumsum(weight[left_out])])
    half = (cumulative_weight[-1] - removed_weight[-1]) / 2
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        weight_up_to = float(
            cumulative_weight[middle] - removed_weight[np.searchsorted(left_out, middle, side="right")]
        )
        low, high = (low, middle) if weight_up_to >= half else (middle + 1, high)
    return float(values[low])


def local_edges(first_s: int, end_s: int, *, timezone: str, days: int = 1) -> Seconds:
    """Return the bounds of a window, and the local midnights between them."""
    first = pd.Timestamp(first_s, unit="s", tz="UTC").tz_convert(timezone)
    end = pd.Timestamp(end_s, unit="s", tz="UTC").tz_convert(timezone)
    midnights = pd.date_range(first.normalize(), end, freq=pd.DateOffset(days=days))
    edges_s = (midnights.as_unit("s").asi8 if len(midnights) else np.zeros(0)).astype(np.int64)
    edges_s = edges_s[(edges_s > first_s) & (edges_s < end_s)]
    return np.concatenate([[first_s], edges_s, [end_s]]).astype(np.int64)


def mean_levels(begins_s: Seconds, ends_s: Seconds, weight: Weights, edges_s: Seconds) -> Floats:
    """Return the mean level of intervals in each step.

    Intervals may begin before the first step, or never end.
    """
    begins_s, ends_s = np.maximum(begins_s, edges_s[0]), np.minimum(ends_s, edges_s[-1])
    is_inside = ends_s > begins_s
    return mean_level_over_time(
        begins_s=begins_s[is_inside], ends_s=ends_s[is_inside], weight=weight[is_inside], edges_s=edges_s
    )


class Question(IntEnum):
    """Question that a study answers, with its number in docs/study.md."""

    IDLE_WHILE_JOBS_WAIT_ELSEWHERE = 1
    UNUSABLE_IDLE = 2
    IDLE_BEHIND_OLDEST_JOB = 3
    IDLE_NODES = 4
    UTILIZATION = 5
    IMBALANCE = 6
    LONG_FAILURES = 7
    REPEATED_FAILURES = 8
    HOURS_AT_TIME_LIMIT = 9
    LONG_TIME_LIMITS = 10
    CONCENTRATION = 11
    WHO_WAITS = 12
    SHORT_BEHIND_LONG = 13
    REPETITION = 14
    BURSTS = 15
    ONE_GPU_JOBS = 16
    LARGE_AND_LONG_JOBS = 17
    DRIFT = 18
    REQUEUES = 19
    CPU_JOBS_ON_GPU_NODES = 20
    HELD_AND_UNUSED = 21
    FITS_A_PART = 22
    UNUSED_REQUESTS = 23


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Answer of a history to one question.

    Attributes
    ----------
    question : Question
    estimate : Estimate
        The value with its interval, in the unit of the question.
    n : int, optional
        Number of jobs, nodes, users or partitions in the data.
    coverage : float, optional
        Share of them, or of their hours, with enough data.
    hours_per_week : float, optional
        Resource hours a week that it is about, to rank findings by. None where it is not about hours.
    missing : str
        Missing data; empty where the value is known.
    parts : dict
        Further figures by name, plain values.
    """

    question: Question
    estimate: Estimate = field(default_factory=Estimate)
    n: int | None = None
    coverage: float | None = None
    hours_per_week: float | None = None
    missing: str = ""
    parts: Mapping[str, Any] = field(default_factory=dict)


def unknown_finding(
    question: Question, missing: str, *, n: int | None = None, coverage: float | None = None
) -> Finding:
    """Return a finding without a value, with the missing data."""
    return Finding(question=question, missing=missing, n=n, coverage=coverage)
