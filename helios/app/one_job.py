"""One job by the id that a person writes: found in the queue, and with the jobs that were known before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from helios.errors import Misuse
from helios.model import JOBS, QUEUE, Snapshot

_SHARED = [name for name in JOBS.names if name in QUEUE.by_name]


class JobUnknown(Misuse):
    """Neither the cluster nor the history knows the job."""


def queued(snapshot: Snapshot, job_id: str) -> pd.Series[Any] | None:
    """Return a job of the queue by the id that a person writes, of an array ``123`` or ``123_7``; None: no such job."""
    master, _, task = job_id.partition("_")
    for queue in (snapshot.pending, snapshot.running):
        whole = queue["job_id"] == job_id
        of_array = (queue["array_job_id"] == master) & ((queue["array_task_id"] == task) if task else True)
        pending_array = (queue["job_id"] == master) & (queue["tasks"] > 1)
        for matches in (whole, of_array, pending_array):
            if matches.any():
                return queue[matches].iloc[0]
    return None


def known_before(
    job: pd.Series[Any], known_at: pd.Timestamp, *, history: pd.DataFrame, running: pd.DataFrame
) -> pd.DataFrame:
    """Return the jobs that had been submitted by a moment and had ended or ran, and last ``job`` as submitted then.

    Parameters
    ----------
    job : Series
        A row of ``QUEUE``.
    known_at : Timestamp
        The moment, aware.
    history : DataFrame
        Columns of ``JOBS``, in submission order.
    running : DataFrame
        Columns of ``QUEUE``.

    Returns
    -------
    DataFrame
        Columns of ``JOBS``, in submission order.
    """
    ended = history[history["ended_at"].notna() & (history["submitted_at"] < known_at)]
    others = running[(running["job_id"] != job["job_id"]) & (running["started_at"] < known_at)]
    parts = [part for part in (ended, _as_jobs(others), _as_jobs(job.to_frame().T, known_at)) if len(part)]
    together = pd.concat(parts, ignore_index=True)
    return JOBS.conform(together.sort_values("submitted_at", kind="stable", ignore_index=True))


def _as_jobs(queue: pd.DataFrame, submitted_at: pd.Timestamp | None = None) -> pd.DataFrame:
    asked = queue[_SHARED].reset_index(drop=True)
    moment = asked["submitted_at"] if submitted_at is None else submitted_at
    return JOBS.conform(asked.assign(submitted_at=moment)).assign(run_time_s=np.nan)
