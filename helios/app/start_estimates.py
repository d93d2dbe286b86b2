"""Estimates of starts as they were made, kept and compared with what came.

Estimates are kept when somebody asks for them. Of an array none is kept, since its tasks start at different times.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas as pd

from helios.errors import HeliosError
from helios.model import START_ESTIMATES
from helios.report.job import JobExplanation, StartForecast
from helios.report.job_life import was_inside
from helios.units import count_in_words, duration_in_words, in_number
from helios.warehouse import Warehouse

LOOKS_BACK = timedelta(weeks=4)
"""Time over which estimates are compared with starts."""
WAITS_S = 1
"""Longest wait for another writer of a SQLite database, s: nobody who asks for a start waits for a load to end."""

_log = logging.getLogger(__name__)


def keep_estimates(url: str, cluster: str, jobs: pd.DataFrame, starts: Sequence[StartForecast]) -> int:
    """Store estimates of starts, and return how many were stored.

    A database that is busy or may not be written stores none: the answer itself matters more.

    Parameters
    ----------
    jobs : DataFrame
        ``job_id``, ``submitted_at``, ``restart`` and ``tasks`` of each job.
    starts : sequence of StartForecast
        One for each job. Those with a problem are not stored.
    """
    rows = [
        {
            **{name: job[name] for name in ("job_id", "submitted_at", "restart")},
            **{name: getattr(start, name) for name in ("p10_at", "p50_at", "p90_at", "horizon_at")},
            "made_at": start.taken_at,
        }
        for job, start in zip(jobs.to_dict("records"), starts, strict=True)
        if not start.problem and job["tasks"] <= 1
    ]
    if not rows:
        return 0
    try:
        with Warehouse.open(url, waits_s=WAITS_S) as warehouse:
            return warehouse.add_start_estimates(cluster, START_ESTIMATES.conform(pd.DataFrame(rows)))
    except HeliosError as problem:
        _log.debug("estimates of starts were not kept: %s", problem.message)
        return 0


def keep_estimate(url: str, cluster: str, found: JobExplanation) -> None:
    """Store the estimate of an explained job, as ``keep_estimates`` does."""
    if found.start is None or found.runs is None:
        return
    run = found.runs.runs.iloc[-1]
    job = {"job_id": found.job_id, "submitted_at": run["submitted_at"], "restart": run["number"], "tasks": found.tasks}
    keep_estimates(url, cluster, pd.DataFrame([job]), [found.start])


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAccuracy:
    """How near estimates of starts were.

    Attributes
    ----------
    estimates, jobs : int
        Estimates whose job has started, and their jobs.
    unended : int
        Estimates whose job still waits, was cancelled, or is not in the history yet.
    median_error_s : float
        Median of the time between the estimated median start and the true one, s. NaN where none is known.
    inside : float
        Share of starts inside their interval, of which 8 in 10 should be. NaN where none is known.
    """

    estimates: int
    jobs: int
    unended: int
    median_error_s: float
    inside: float

    def sentence(self) -> str:
        """Return it in words."""
        weeks = f"{LOOKS_BACK.days // 7} weeks"
        if not self.estimates:
            return f"How good estimates of starts were is unknown: none of the last {weeks} has come due."
        of_jobs = f"{in_number(self.estimates, 'estimates')} of the starts of {count_in_words(self.jobs, 'job')}"
        later = f" {self.unended:,} more have not come due, or never will." if self.unended else ""
        error = duration_in_words(self.median_error_s) if self.median_error_s >= 0 else "an unknown time"
        return (
            f"{of_jobs} that somebody asked for in the last {weeks}: half were off by at most {error}, "
            f"and {self.inside:.0%} of the starts lay inside their interval (8 in 10 should).{later}"
        )


def start_accuracy(warehouse: Warehouse, cluster: str, *, now: datetime, user: str | None = None) -> StartAccuracy:
    """Return how near the estimates of the last weeks were.

    Parameters
    ----------
    user : str, optional
        Only those of jobs of this user.
    """
    made = warehouse.start_estimates(cluster, since=now - LOOKS_BACK, until=now, user=user)
    started = made[made["started_at"].notna()]
    errors_s = (started["started_at"] - started["p50_at"]).abs().dt.total_seconds()
    inside = [was_inside(estimate) for estimate in started.to_dict("records")]
    known: dict[str, Any] = {"median_error_s": float(errors_s.median()), "inside": float("nan")}
    if inside:
        known["inside"] = sum(inside) / len(inside)
    return StartAccuracy(
        estimates=len(started),
        jobs=len(started.drop_duplicates(["submitted_at", "job_id", "restart"])),
        unended=len(made) - len(started),
        **known,
    )
