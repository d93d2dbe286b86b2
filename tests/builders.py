"""Builders for tests: name only what matters, the rest is an ordinary job."""

from __future__ import annotations

from itertools import count
from typing import Any

import pandas as pd

from helios.model import JOBS, REJECTS, Batch
from helios.model.trial_runs import CurvePoint, MeasuredSpeed, TrialRun

FIRST_SUBMITTED_AT = pd.Timestamp("2020-01-01T00:00:00Z")
_job_ids = count(1)


def a_job(**overrides: Any) -> dict[str, Any]:
    """One ordinary completed GPU job as a row of ``JOBS``.

    Ids count up; each job is submitted a minute after the one with the id before it, waits 5 s and runs ``run_time_s``.
    Times may be given as text, and follow from each other unless they are given.
    """
    job_id = str(overrides.get("job_id", next(_job_ids)))
    offset_s = 60 * int(job_id) if job_id.isdecimal() else 0
    job: dict[str, Any] = {
        "job_id": job_id,
        "restart": 0,
        "name": "train",
        "user": "alice",
        "account": "lab",
        "partition": "gpu",
        "state": "COMPLETED",
        "submitted_at": FIRST_SUBMITTED_AT + pd.Timedelta(seconds=offset_s),
        "run_time_s": 60.0,
        "time_limit_s": 3600.0,
        "nodes": 1.0,
        "cpus": 4.0,
        "gpus": 1,
    }
    job |= {name: value for name, value in overrides.items() if name != "job_id"}
    submitted_at = pd.Timestamp(job["submitted_at"])
    job.setdefault("eligible_at", submitted_at)
    job.setdefault("started_at", submitted_at + pd.Timedelta(seconds=5))
    job.setdefault("ended_at", _end(job["started_at"], job["run_time_s"]))
    return job


def jobs_frame(*jobs: dict[str, Any]) -> pd.DataFrame:
    """A ``JOBS`` frame of the given rows, in the given order."""
    if not jobs:
        return JOBS.empty()
    names = [name for name in JOBS.names if any(name in job for job in jobs)]
    columns = {name: [job.get(name) for job in jobs] for name in names}
    for column in JOBS.columns:
        if column.name in columns and column.dtype.startswith("datetime"):
            columns[column.name] = list(pd.to_datetime(columns[column.name], utc=True))
    return JOBS.conform(pd.DataFrame(columns))


def rejects_frame(*rejects: tuple[int, str, str]) -> pd.DataFrame:
    """A ``REJECTS`` frame of (line, reason, text) rows."""
    if not rejects:
        return REJECTS.empty()
    return REJECTS.conform(pd.DataFrame(list(rejects), columns=REJECTS.names))


def a_batch(
    *jobs: dict[str, Any], rejects: tuple[tuple[int, str, str], ...] = (), notes: tuple[str, ...] = ()
) -> Batch:
    """A batch of the given jobs and rejects."""
    return Batch(jobs=jobs_frame(*jobs), rejects=rejects_frame(*rejects), bytes_read=0, notes=notes)


def _end(started_at: Any, run_time_s: float) -> pd.Timestamp | None:
    if started_at is None or pd.isna(started_at) or pd.isna(run_time_s):
        return None
    return pd.Timestamp(started_at) + pd.Timedelta(seconds=float(run_time_s))


def a_trial_run(number: int = 0, **values: Any) -> TrialRun:
    """Return a finished run of a trial."""
    usual: dict[str, Any] = {
        "pool": "p",
        "attempt": 1,
        "program": "train.py",
        "family": "train.py width=32",
        "parameters": {"width": 32, "lr": 0.1, "kind": "\u00e9"},
        "device_kind": "gpu",
        "device_model": "V100",
        "outcome": "finished",
        "started_s": 1_600_000_000.25 + number,
        "seconds": 100.5,
        "energy_j": 2_000.0,
        "speeds": (MeasuredSpeed(beside=("train.py width=64",), steps_per_s=4.5, seconds=60.0),),
        "metrics": {"loss": 0.5},
        "metric": "loss",
        "direction": "minimize",
        "curve": (CurvePoint(0, 1.5, 0.75), CurvePoint(9, 20.0, None), CurvePoint(10, 30.0, 0.1 + 0.2)),
    }
    return TrialRun(number=number, **(usual | values))
