"""Soft limits for backfill from predicted run times.

Backfill then plans with an upper bound of the run time instead of a limit that is often ten times too long.

In Helios' own study on four logs, planning with predicted *medians* made waits many times longer, an upper quantile had
about no effect on average, and even perfect estimates gained a fifth at most. So this service is off unless configured,
uses an upper bound, only ever widens it, and requires a proven gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import SoftLimit
from helios.model import Snapshot
from helios.units import rounded_duration

STEP_S = 600.0
"""Bounds are multiples of this, so that a new prediction changes little, s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLimitsOptions:
    """Options of the soft limits.

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    margin : float
        The bound is this many times the run time that 90 % of such jobs stay below.
    least_s : float
        No bound is shorter than this, s.
    worth_s : float
        A bound is set only where it is shorter than the time limit by at least this, s.
    fallbacks : tuple of str
        Prefixes of sources of predictions that are not used.
    """

    every_s: int = 60
    margin: float = 1.5
    least_s: float = 600.0
    worth_s: float = 1_800.0
    fallbacks: tuple[str, ...] = ("shrinkage",)

    def __post_init__(self) -> None:
        for valid, message in (
            (self.every_s > 0, "every_s must be positive"),
            (1 <= self.margin < np.inf, "margin must be finite and at least 1: the bound is an upper one"),
            (0 < self.least_s < np.inf, "least_s must be positive and finite"),
            (self.worth_s >= 0, "worth_s must not be negative"),
        ):
            if not valid:
                raise ValueError(message)


class SoftLimits:
    """Give pending jobs a soft limit from their predicted run time.

    The limit is an upper bound of the prediction. The hard limit stays.

    A job gets one where its prediction comes from a model (not from a fallback for lack of history), its time limit is
    known and finite, it has no ``--time-min`` of its own, and the bound is shorter than the limit by at least
    ``worth_s``. A bound is widened when a new prediction is longer, and never narrowed. A job that exceeds its soft
    limit disturbs the plan; one that ends earlier does not.

    Attributes
    ----------
    requires_gain : str
        The service may act (canary or active) only where a what-if on the site's own history shows that soft limits
        shorten the mean wait and do not lengthen the longest one. Otherwise it is refused, with that what-if as the
        reason. In shadow it may always run. The condition is checked outside this service.
    """

    requires_gain = "soft_limits"

    Options = SoftLimitsOptions

    def __init__(self, options: SoftLimitsOptions) -> None:
        self.options = options
        self.every = timedelta(seconds=options.every_s)

    def decide(self, snapshot: Snapshot) -> list[SoftLimit]:
        """Return soft limits in the order of the queue."""
        jobs = snapshot.pending
        bound_s = self._bound_s(jobs)
        saved_s = np.nan_to_num(jobs["time_limit_s"].to_numpy() - bound_s, posinf=0.0, nan=0.0)
        chosen = (saved_s >= max(self.options.worth_s, 1.0)) & self._may_get_limit(jobs)
        return list(_limits(jobs.assign(bound_s=bound_s).loc[chosen]))

    def _bound_s(self, jobs: pd.DataFrame) -> NDArray[np.float64]:
        new_s = np.maximum(self.options.margin * jobs["p90_s"].to_numpy(), self.options.least_s)
        stepped_s: NDArray[np.float64] = np.ceil(new_s / STEP_S) * STEP_S
        return np.fmax(stepped_s, np.where(np.isnan(stepped_s), np.nan, jobs["soft_limit_s"].to_numpy()))

    def _may_get_limit(self, jobs: pd.DataFrame) -> NDArray[np.bool_]:
        from_model = jobs["source"].notna() & ~jobs["source"].astype("str").str.startswith(self.options.fallbacks)
        changeable = jobs["excluded_reason"].isna() & jobs["user_soft_limit_s"].isna()
        return (from_model & changeable).to_numpy(dtype=np.bool_)


def _limits(jobs: pd.DataFrame) -> Iterator[SoftLimit]:
    names = ("job_id", "bound_s", "p90_s", "time_limit_s")
    for job_id, bound_s, p90_s, time_limit_s in zip(*(jobs[name].to_list() for name in names), strict=True):
        p90, limit = rounded_duration(p90_s), rounded_duration(time_limit_s)
        reason = f"9 of 10 such jobs run less than {p90}; the time limit is {limit}"
        yield SoftLimit(job_id=job_id, run_time=timedelta(seconds=bound_s), reason=reason)
