"""What control must know of each pending job, taken from the snapshot before any service has it in its hands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from helios.actions import Lever
from helios.model import Snapshot

Key = tuple[Lever, str]
"""One lever of one job, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """One pending record of the queue; names as in ``QUEUE``.

    Attributes
    ----------
    submitted_us : int
        Submission, microseconds since the epoch: ids are used again, so a job is its id and this.
    eligible_us : int
        When it could first have started, or can, likewise; unknown: long ago.
    eligible : bool
        Whether it could have started when the cluster was looked at; only then can its urgency be read.
    hands_off : str
        Why it must be left alone; empty: it may be changed.
    source : str
        What predicted; empty: nothing did.
    """

    job_id: str
    array_job_id: str
    partition: str
    user: str
    submitted_us: int
    eligible_us: int
    eligible: bool
    time_limit_s: float
    user_soft_limit_s: float
    urgency: float
    soft_limit_s: float
    hands_off: str
    p50_s: float
    source: str

    def value(self, lever: Lever) -> float:
        """Return what Helios has set there: 0 or NaN is nothing."""
        return self.urgency if lever is Lever.ORDER else self.soft_limit_s

    def readable(self, lever: Lever) -> bool:
        """Return whether :meth:`value` says what stands on the cluster."""
        return self.eligible or lever is Lever.SOFT_LIMIT

    def carries(self, lever: Lever) -> bool:
        """Return whether something that Helios set is seen on it."""
        return self.urgency != 0 if lever is Lever.ORDER else not math.isnan(self.soft_limit_s)


def pending_jobs(snapshot: Snapshot) -> dict[str, PendingJob]:
    """Return the pending jobs by id, in the order of the queue."""
    frame = snapshot.pending
    columns = {
        "job_id": _text(frame["job_id"]),
        "array_job_id": _text(frame["array_job_id"]),
        "partition": _text(frame["partition"]),
        "user": _text(frame["user"]),
        "submitted_us": frame["submitted_at"].astype("int64").tolist(),
        "eligible_us": frame["eligible_at"].astype("int64").tolist(),
        "eligible": (frame["eligible_at"] <= snapshot.taken_at).tolist(),
        "time_limit_s": frame["time_limit_s"].tolist(),
        "user_soft_limit_s": frame["user_soft_limit_s"].tolist(),
        "urgency": frame["urgency"].fillna(0.0).tolist(),
        "soft_limit_s": frame["soft_limit_s"].tolist(),
        "hands_off": _text(frame["hands_off"]),
        "p50_s": frame["p50_s"].tolist(),
        "source": _text(frame["source"]),
    }
    rows = zip(*columns.values(), strict=True)
    return {row[0]: PendingJob(**dict(zip(columns, row, strict=True))) for row in rows}


def carried(jobs: Sequence[PendingJob]) -> list[Key]:
    """Return every lever of every job on which something that Helios set is seen."""
    return [(lever, job.job_id) for job in jobs for lever in Lever if job.carries(lever)]


def _text(values: pd.Series[Any]) -> list[str]:
    return [value if isinstance(value, str) else "" for value in values.astype(object)]
