"""Rows of the priority hook's table, computed from recent kinds of jobs.

A row says what a job of one kind would get if it were submitted now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from helios.actions import Reorder, SoftLimit
from helios.app.predictions import PredictorState
from helios.control.modes import ServiceMode
from helios.model import JOBS, NODE_STATES, QUEUE, JobState, Mode, Snapshot, with_sizes_requested
from helios.ports import JobwiseService, Service
from helios.slurm.hook_table import HookRow

UNPUBLISHED = "no table is published (hook.publish is false)"
LOOK_BACK = timedelta(days=60)
KEY = ("user", "partition", "gpus", "limit_min")
KINDS: tuple[tuple[str, ...], ...] = (KEY, KEY[:3], KEY[:2], ("partition", "gpus"))


def hook_orders_new_jobs(services: Iterable[tuple[Service, ServiceMode]]) -> bool:
    """Return whether the hook can place new jobs.

    It can where an active service orders jobs. A canary by percent does not count, because the jobs in its percentage
    are known only after submission.
    """
    return any(
        isinstance(service, JobwiseService) and mode.mode in {Mode.CANARY, Mode.ACTIVE} and mode.percent is None
        for service, mode in services
    )


def hook_rows(
    knowledge: PredictorState,
    services: Iterable[tuple[Service, ServiceMode]],
    *,
    cluster: str,
    now: datetime,
    most_rows: int,
    site_factor: Callable[[float], int],
    time_min: Callable[[float], int] | None,
    of_cluster: Mapping[str, Any] | None = None,
) -> tuple[list[HookRow], list[str]]:
    """Return the rows of the table, and notes for a person.

    For every kind of job (user, partition, GPUs, time limit) of the last 60 days, the services are asked as if its last
    job were submitted now. The row holds what they would do to it. A coarser kind gets the values of its most frequent
    finer kind.

    Parameters
    ----------
    services : iterable of (Service, ServiceMode)
        Only those in canary or active mode count. A canary by percent does not, because the jobs in its percentage are
        known only after submission.
    most_rows : int
        The most frequent kinds are kept.
    site_factor : callable
        Gives the SiteFactor of an urgency.
    time_min : callable, optional
        Gives the TimeMin, whole minutes, of a soft limit in s. None where the cluster has no soft limits.
    of_cluster : mapping, optional
        ``SAME_FOR_ALL`` and the nodes of the last cycle, so that a new job is placed as the next cycle will place it.
    """
    writing = [(service, mode) for service, mode in services if mode.mode in {Mode.CANARY, Mode.ACTIVE}]
    notes = [
        "a canary by percent does not reach the hook: which jobs belong to it is known only after submission"
        for _, mode in writing
        if mode.percent is not None
    ]
    writing = [(service, mode) for service, mode in writing if mode.percent is None]
    # The last job of every recent kind, most frequent first; "seen" is the number of jobs of the kind.
    history = knowledge.history
    lately = with_sizes_requested(history[history["submitted_at"] >= pd.Timestamp(now - LOOK_BACK)])
    several = lately["partition"].astype("str").str.contains(",", regex=False).fillna(False)
    lately = lately[lately["user"].notna() & lately["partition"].notna() & ~several]
    minutes = np.ceil(lately["time_limit_s"].replace(np.inf, np.nan) / 60).fillna(0)
    keyed = lately.assign(limit_min=minutes.astype("int64"))
    keyed = keyed.assign(**{name: keyed[name].astype("str") for name in ("user", "partition")})
    groups = keyed.groupby(list(KEY), sort=False, dropna=False)
    last = keyed.assign(seen=groups["job_id"].transform("size")).loc[groups.tail(1).index]
    kinds = last.sort_values("seen", ascending=False, kind="stable").head(most_rows).reset_index(drop=True)
    if kinds.empty or not writing:
        return [], notes
    shared = [name for name in QUEUE.names if name in JOBS.by_name and name in kinds]
    fresh: dict[str, Any] = {
        "job_id": [f"kind {number}" for number in range(len(kinds))],
        "state": JobState.PENDING.value,
        "submitted_at": pd.Timestamp(now),
        "eligible_at": pd.Timestamp(now),
        "tasks": 1,
        "priority": 1.0,
        "urgency": 0.0,
        "gpus": kinds["gpus"].fillna(0.0),  # a queue knows the GPUs of all its jobs
    }
    queue = QUEUE.conform(kinds[shared].drop(columns=["started_at", "node_list"], errors="ignore").assign(**fresh))
    queue = queue.assign(**knowledge.predict(queue, now=now))
    seen = Snapshot(
        taken_at=now,
        cluster=cluster,
        pending=queue,
        running=QUEUE.empty(),
        **({"nodes": NODE_STATES.empty()} | dict(of_cluster or {})),
    )
    answers = [_decisions(service, mode, seen) for service, mode in writing]
    factors = {job: site_factor(urgency) for orders, _ in answers for job, urgency in orders.items()}
    limits = {job: time_min(limit) for _, soft in answers for job, limit in soft.items()} if time_min else {}
    kinds = kinds.assign(job_id=queue["job_id"])
    rows = []
    for names in reversed(KINDS):  # coarse kinds first, so that a table that is cut still covers every job
        # The jobs are sorted by frequency: the first of each coarser kind is its most frequent finer kind.
        first = kinds.drop_duplicates(list(names))
        rows += [row for job in first.to_dict("records") if (row := _row(job, names, factors, limits))]
    return rows[:most_rows], notes


def _decisions(service: Service, mode: ServiceMode, snapshot: Snapshot) -> tuple[dict[str, float], dict[str, float]]:
    """Return a service's urgencies and soft limits, s, for the pending jobs."""
    partitions = snapshot.pending["partition"].astype("str")
    pending = snapshot.pending[partitions.isin(mode.partitions)] if mode.partitions else snapshot.pending
    actions = list(service.decide(replace(snapshot, pending=pending)))
    orders = {
        place.job_id: place.urgency for action in actions if isinstance(action, Reorder) for place in action.order
    }
    soft = {action.job_id: action.run_time.total_seconds() for action in actions if isinstance(action, SoftLimit)}
    return orders, soft


def _row(
    job: Mapping[Any, Any], names: Sequence[str], factors: dict[str, int], limits: dict[str, int]
) -> HookRow | None:
    factor, limit = factors.get(str(job["job_id"]), 0), limits.get(str(job["job_id"]), 0)
    if not factor and not limit:
        return None
    if "gpus" in names and not float(job["gpus"]).is_integer():
        return None  # the hook knows whole GPUs; such a job gets the row of its user and partition
    numbers = {name: int(job[name]) for name in names if name in {"gpus", "limit_min"}}
    return HookRow(
        user=str(job["user"]) if "user" in names else None,
        partition=str(job["partition"]),
        gpus=numbers.get("gpus"),
        limit_min=numbers.get("limit_min"),
        site_factor=factor,
        time_min=limit if names == KEY else 0,
    )
