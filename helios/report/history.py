"""Figures of a history, for tables, JSON and pages.

They are computed once, by columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.queue import mean_level_over_time
from helios.model import JOBS, SIZE_RANGES, JobState, size_range
from helios.units import best_unit

QUANTILES = {"p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75, "p90": 0.90, "p99": 0.99, "max": 1.0}
STATES = ("completed", "cancelled", "failed", "timeout", "other", "unknown")
BUSIEST = 10
STEP_S = 900
MAY_BE_MISSING = ("user", "partition", "state", "started_at", "ended_at", "run_time_s", "time_limit_s", "name", "gpus")
_STATE_OF = {
    JobState.COMPLETED: "completed",
    JobState.CANCELLED: "cancelled",
    JobState.FAILED: "failed",
    JobState.OUT_OF_MEMORY: "failed",
    JobState.TIMEOUT: "timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Figures of one cluster's history.

    Attributes
    ----------
    resource : str
        ``gpus``; ``cpus`` where no job names a GPU. Sizes and hours are of it.
    resource_hours : float
        Sum of size x run time, h, of the jobs whose size is known.
    run_time_s, wait_s : dict of float
        Mean and quantiles (linear interpolation) over jobs where known; ``wait_s`` is start - eligible, or submission
        where eligible is unknown, and is empty where no start is.
    sizes : list of dict
        For each size class with jobs: jobs, share of jobs, share of hours, the share of each state in it, and the mean
        wait, s, None where unknown.
    busiest_users : list of dict
        Up to ten, by hours.
    day_shape, week_shape : list of float
        Share of submissions in each local hour (24) and weekday (7, Monday first).
    busy_by_hour : list of float
        Mean of the resource in use in each local hour; empty where no start is known.
    missing : dict of int
        Jobs that lack each of the columns that may be missing.
    run_time_cdf : list of pairs
        101 points (run time, s; share of jobs at or below it); empty where none is known.
    """

    cluster: str
    timezone: str
    jobs: int
    gpu_jobs: int
    users: int
    partitions: int
    resource: str
    resource_hours: float
    first_submitted_at: str
    last_submitted_at: str
    days: float
    run_time_s: dict[str, float]
    wait_s: dict[str, float]
    sizes: list[dict[str, Any]]
    states: dict[str, float]
    busiest_users: list[dict[str, Any]]
    day_shape: list[float]
    week_shape: list[float]
    busy_by_hour: list[float]
    missing: dict[str, int]
    run_time_cdf: list[tuple[float, float]]

    @property
    def unit(self) -> str:
        """Name of the resource that jobs hold, ``GPU`` or ``CPU``."""
        return best_unit(self.resource)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def describe(jobs: pd.DataFrame, *, cluster: str, timezone: str) -> Description:
    """Describe a history of at least one job.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    timezone : str
        Zone of the cluster's clock, for the shape of the day.
    """
    JOBS.check(jobs)
    resource = "gpus" if bool((jobs["gpus"] > 0).any()) else "cpus"
    size = jobs[resource].to_numpy(dtype=np.float64)
    hours = np.nan_to_num(size) * jobs["run_time_s"].fillna(0).to_numpy(dtype=np.float64) / 3600
    local = jobs["submitted_at"].dt.tz_convert(timezone).dt
    first, last = jobs["submitted_at"].min(), jobs["submitted_at"].max()
    run_time_s = jobs["run_time_s"].dropna().to_numpy(dtype=np.float64)
    able = jobs["eligible_at"].fillna(jobs["submitted_at"])
    wait_s = np.asarray((jobs["started_at"] - able).dt.total_seconds(), dtype=np.float64)
    states, shares = _states(jobs["state"]), np.linspace(0, 1, 101)
    return Description(
        cluster=cluster,
        timezone=timezone,
        jobs=len(jobs),
        gpu_jobs=int((jobs["gpus"] > 0).sum()),
        users=int(jobs["user"].nunique()),
        partitions=int(jobs["partition"].nunique()),
        resource=resource,
        resource_hours=float(hours.sum()),
        first_submitted_at=first.isoformat(),
        last_submitted_at=last.isoformat(),
        days=(last - first).total_seconds() / 86_400,
        run_time_s=_quantiles(run_time_s),
        wait_s=_quantiles(wait_s[~np.isnan(wait_s)]),
        sizes=_by_size(size, hours, states, wait_s),
        states=_shares(states),
        busiest_users=_busiest(jobs["user"], hours),
        day_shape=_shape(local.hour.to_numpy(), 24),
        week_shape=_shape(local.day_of_week.to_numpy(), 7),
        busy_by_hour=_busy_by_hour(jobs, size, timezone),
        missing={name: int(jobs[name].isna().sum()) for name in MAY_BE_MISSING},
        run_time_cdf=list(zip(np.quantile(run_time_s, shares).tolist(), shares.tolist(), strict=True))
        if len(run_time_s)
        else [],
    )


def _quantiles(values: NDArray[np.floating[Any]]) -> dict[str, float]:
    if not len(values):
        return {}
    found = np.quantile(values, list(QUANTILES.values()))
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, found.tolist(), strict=True))}


def _states(states: pd.Series) -> NDArray[np.int64]:
    """Return each job's state as an index into ``STATES``."""
    named = [_STATE_OF.get(JobState(name), "other") for name in states.cat.categories]
    codes = np.array([STATES.index(name) for name in [*named, "unknown"]], dtype=np.int64)
    return codes[states.cat.codes.to_numpy()]


def _shares(states: NDArray[np.int64]) -> dict[str, float]:
    counts = np.bincount(states, minlength=len(STATES)) / max(1, len(states))
    return {name: float(share) for name, share in zip(STATES, counts, strict=True) if share}


def _by_size(
    size: NDArray[np.float64], hours: NDArray[np.float64], states: NDArray[np.int64], wait_s: NDArray[np.float64]
) -> list[dict[str, Any]]:
    classes = size_range(size)
    total_hours = max(float(hours.sum()), 1e-9)
    rows = []
    for number, name in enumerate(SIZE_RANGES):
        inside = classes == number
        if inside.any():
            known = wait_s[inside & ~np.isnan(wait_s)]
            rows.append(
                {
                    "size": name,
                    "jobs": int(inside.sum()),
                    "share_of_jobs": float(inside.mean()),
                    "share_of_hours": float(hours[inside].sum()) / total_hours,
                    "states": _shares(states[inside]),
                    "mean_wait_s": float(known.mean()) if len(known) else None,
                }
            )
    return rows


def _busiest(users: pd.Series, hours: NDArray[np.float64]) -> list[dict[str, Any]]:
    by_user = pd.DataFrame({"user": users, "hours": hours}).groupby("user", observed=True)["hours"]
    table = by_user.agg(["sum", "size"]).sort_values("sum", ascending=False, kind="stable").head(BUSIEST)
    total = max(float(hours.sum()), 1e-9)
    return [
        {"user": str(user), "jobs": int(row["size"]), "hours": float(row["sum"]), "share_of_hours": row["sum"] / total}
        for user, row in table.iterrows()
    ]


def _shape(places: NDArray[np.integer[Any]], n_places: int) -> list[float]:
    counts = np.bincount(places, minlength=n_places)
    return (counts / max(1, counts.sum())).tolist()  # type: ignore[no-any-return]  # because numpy does not type tolist


def _busy_by_hour(jobs: pd.DataFrame, size: NDArray[np.float64], timezone: str) -> list[float]:
    known = (jobs["started_at"].notna() & jobs["ended_at"].notna()).to_numpy()
    if not known.any():
        return []
    start, end = (
        jobs[name][known].to_numpy(dtype="datetime64[s]").astype(np.int64) for name in ("started_at", "ended_at")
    )
    # Quarters of an hour, so that zones half an hour apart fall on whole steps.
    edges = np.arange(start.min() // STEP_S * STEP_S, end.max() + STEP_S + 1, STEP_S, dtype=np.int64)
    busy = mean_level_over_time(begins_s=start, ends_s=end, weight=np.nan_to_num(size[known]), edges_s=edges)
    hours = pd.to_datetime(edges[:-1], unit="s", utc=True).tz_convert(timezone).hour.to_numpy()
    per_hour = np.bincount(hours, weights=busy, minlength=24) / np.maximum(1, np.bincount(hours, minlength=24))
    return per_hour.tolist()  # type: ignore[no-any-return]  # because numpy does not type tolist
