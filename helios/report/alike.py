"""Where a job lies among alike jobs of its user.

Jobs are alike as for :mod:`helios.report.advice`, whatever their time limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import with_sizes_requested
from helios.report.admin.usage import wait_s
from helios.report.advice import describe_group, with_name_words
from helios.units import duration_in_words, percent

ALIKE_WITHIN = timedelta(weeks=4)
"""Time before and after a submission in which alike jobs are looked for."""
FEWEST_ALIKE = 5
"""Fewest alike jobs of which a share is given."""
COLUMNS = [
    *("job_id", "name", "user", "partition", "submitted_at", "eligible_at", "started_at", "run_time_s"),
    *("gpus", "cpus", "nodes", "gpus_requested", "cpus_requested", "nodes_requested"),
]
"""Columns of ``JOBS`` by which jobs are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmongAlike:
    """A time of a job among those of alike jobs.

    Attributes
    ----------
    own_s : float
        NaN where it is not known.
    jobs, shorter : int
        Alike jobs of which it is known, and those below ``own_s``.
    p10_s, p50_s, p90_s : float
        Quantiles of the alike jobs.
    """

    own_s: float
    jobs: int
    shorter: int
    p10_s: float
    p50_s: float
    p90_s: float

    @classmethod
    def of(cls, own_s: float, times_s: NDArray[np.float64]) -> AmongAlike | None:
        """Return the comparison, None with too few known times."""
        known_s = times_s[np.isfinite(times_s)]
        if len(known_s) < FEWEST_ALIKE:
            return None
        low, middle, high = map(float, np.quantile(known_s, (0.1, 0.5, 0.9)))
        shorter = int((known_s < own_s).sum())
        return cls(own_s=own_s, jobs=len(known_s), shorter=shorter, p10_s=low, p50_s=middle, p90_s=high)

    def sentence(self, verb: str) -> str:
        """Return it in words, where ``verb`` is ran or waited."""
        low, middle, high = map(duration_in_words, (self.p10_s, self.p50_s, self.p90_s))
        of_these = f"half of them {verb} at most {middle}, 8 of 10 {low} to {high}"
        if np.isnan(self.own_s):
            return f"Of {self.jobs:,} alike jobs of its user {of_these}."
        share = percent(self.shorter / self.jobs)
        return f"It {verb} longer than {share} of {self.jobs:,} alike jobs of its user: {of_these}."


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeJobs:
    """Other jobs like one, and where it lies among them.

    Attributes
    ----------
    which : str
        What is alike, in words.
    jobs : int
    run_time, wait : AmongAlike, optional
        None with too few jobs of which it is known.
    """

    which: str
    jobs: int
    run_time: AmongAlike | None
    wait: AmongAlike | None

    def lines(self) -> Iterator[str]:
        """Yield where it lies as sentences."""
        compared = [part.sentence(verb) for part, verb in ((self.run_time, "ran"), (self.wait, "waited")) if part]
        yield from compared
        if compared:
            weeks = ALIKE_WITHIN // timedelta(weeks=1)
            yield f"Alike: {self.which}, submitted up to {weeks} weeks before or after."


def compare_alike(jobs: pd.DataFrame, job: pd.Series[Any], *, waited_s: float) -> AlikeJobs | None:
    """Return where a job lies among alike ones.

    Parameters
    ----------
    jobs : DataFrame
        ``COLUMNS`` of ``JOBS``; those of other users and times may be among them.
    job : Series
        A row of ``JOBS`` or ``QUEUE``. In the queue it may name several partitions.
    waited_s : float
        How long it waited, s, perhaps so far.

    Returns
    -------
    AlikeJobs or None
        None where its user is not known.
    """
    if not isinstance(job["user"], str):
        return None
    own = pd.DataFrame({name: [job[name] if name in job.index else np.nan] for name in COLUMNS})
    partitions = own["partition"].astype("str").str.split(",").iloc[0]
    near = (jobs["submitted_at"] - job["submitted_at"]).abs() <= ALIKE_WITHIN
    others = jobs[near & (jobs["user"] == job["user"]) & (jobs["job_id"] != job["job_id"])]
    if isinstance(job["partition"], str):
        others = others[others["partition"].isin(partitions)]
    own, others = (with_name_words(with_sizes_requested(rows)) for rows in (own, others))
    wanted = own.iloc[0]
    for key in ("words", "gpus", "cpus"):
        others = others[(others[key] == wanted[key]) | (others[key].isna() & pd.isna(wanted[key]))]
    run_s = float(job["run_time_s"]) if "run_time_s" in job.index else np.nan
    return AlikeJobs(
        which=describe_group({str(name): own[name].to_numpy() for name in own}),
        jobs=len(others),
        run_time=AmongAlike.of(run_s, others["run_time_s"].to_numpy(dtype=np.float64)),
        wait=AmongAlike.of(waited_s, wait_s(others)),
    )
