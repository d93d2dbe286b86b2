"""What every report reads off jobs: when they waited, what they held, what was predicted of them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JobState

JOB_KEY = ["submitted_at", "job_id", "restart"]
UNKNOWN = "(unknown)"
FAILURES = frozenset({JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.NODE_FAIL, JobState.BOOT_FAIL})
"""Ends that nobody wanted; a time limit reached and a cancellation may be a choice."""
STILL_RUNNING = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.RESIZING})
STILL_WAITING = frozenset({JobState.PENDING, JobState.REQUEUED})

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def chosen_jobs(
    jobs: pd.DataFrame,
    *,
    users: Collection[str] = (),
    accounts: Collection[str] = (),
    partitions: Collection[str] = (),
) -> pd.DataFrame:
    """Return the jobs of any of the users, accounts and partitions named; an empty collection means all."""
    kept = np.ones(len(jobs), dtype=bool)
    for column, names in (("user", users), ("account", accounts), ("partition", partitions)):
        if names:
            kept &= jobs[column].isin(list(names)).to_numpy()
    return jobs if kept.all() else jobs[kept]


def able_since(jobs: pd.DataFrame) -> pd.Series[Any]:
    """Return since when each job could have started: eligible, or submitted where that is unknown."""
    return jobs["eligible_at"].fillna(jobs["submitted_at"])


def is_in(jobs: pd.DataFrame, states: Collection[str]) -> Flags:
    """Return which jobs are in one of ``states``."""
    found: Flags = jobs["state"].isin([str(state) for state in states]).to_numpy()
    return found


def waiting_at(jobs: pd.DataFrame, at: datetime) -> Flags:
    """Return which jobs could have started and had not at ``at``; a job without a start waits while it is pending."""
    moment = pd.Timestamp(at)
    begun = (able_since(jobs) <= moment).to_numpy()
    without = jobs["started_at"].isna().to_numpy()
    later = (jobs["started_at"] > moment).to_numpy()
    # Cancelled before it started: it waited until then.
    given_up = without & (jobs["ended_at"] > moment).to_numpy()
    pending = without & jobs["ended_at"].isna().to_numpy() & is_in(jobs, STILL_WAITING)
    return begun & (later | given_up | pending)


def running_at(jobs: pd.DataFrame, at: datetime) -> Flags:
    """Return which jobs ran at ``at``; one without an end runs while its state says so."""
    moment = pd.Timestamp(at)
    begun = (jobs["started_at"] <= moment).to_numpy()
    unended = jobs["ended_at"].isna().to_numpy() & is_in(jobs, STILL_RUNNING)
    return begun & ((jobs["ended_at"] > moment).to_numpy() | unended)


def wait_s(jobs: pd.DataFrame) -> Floats:
    """Return each started job's wait, s, never negative; NaN: not started, or unknown."""
    waited = np.asarray((jobs["started_at"] - able_since(jobs)).dt.total_seconds(), dtype=np.float64)
    return np.maximum(waited, 0.0)


def wait_so_far_s(jobs: pd.DataFrame, at: datetime) -> Floats:
    """Return how long each job has been able to start at ``at``, s."""
    return np.asarray((pd.Timestamp(at) - able_since(jobs)).dt.total_seconds(), dtype=np.float64)


def used_s(jobs: pd.DataFrame, at: datetime) -> Floats:
    """Return each job's run time, s: of the last run, of a running job until ``at``, 0 where there is none."""
    known = jobs["run_time_s"].to_numpy(dtype=np.float64)
    so_far = np.asarray((pd.Timestamp(at) - jobs["started_at"]).dt.total_seconds(), dtype=np.float64)
    running = np.isnan(known) & running_at(jobs, at)
    return np.where(running, np.maximum(so_far, 0.0), np.nan_to_num(known))


def with_first_prediction(jobs: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return ``jobs`` with ``p10_s``, ``p50_s``, ``p90_s``, ``source`` as first predicted; missing: never."""
    wanted = ["p10_s", "p50_s", "p90_s", "source"]
    first = predictions.sort_values("made_at", kind="stable").drop_duplicates(JOB_KEY)[JOB_KEY + wanted]
    joined: pd.DataFrame = jobs.merge(first, on=JOB_KEY, how="left", validate="many_to_one")
    joined.index = jobs.index
    return joined
