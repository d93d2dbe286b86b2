"""What a shadow's decisions of a day would have changed: the day's own jobs, replayed without and with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.machine import Machine, machine_for
from helios.errors import JobLargerThanPartition, PartitionUnknown
from helios.ports import Order
from helios.report.admin.jobs import wait_s
from helios.report.admin.shadow import (
    LIMITS,
    MOVED_S,
    ShadowDay,
    Waits,
    decided_urgencies,
    moved_jobs,
    urgencies_of,
)
from helios.report.words import unit_of
from helios.simulate import ORDERS, Backfill, Replay, Workload, replay

WARM_UP = timedelta(days=3)
"""Stretch before the day that is replayed too, so that its jobs do not find an empty cluster."""


def shadow_day(
    jobs: pd.DataFrame,
    decisions: pd.DataFrame,
    *,
    begin: datetime,
    end: datetime,
    nodes: Mapping[str, int] | None,
    gpus_per_node: int,
    default_time_limit_s: int,
    timezone: str = "UTC",
) -> ShadowDay:
    """Replay a day under FIFO with EASY backfill by time limits, and again with what a shadow decided that day.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order: those of the day and of the stretch before it.
    decisions : DataFrame
        Columns of ``DECISIONS`` of the day, oldest first.
    begin, end : datetime
        The day, aware.
    nodes : mapping, optional
        Nodes of each partition; None takes the cluster from the peak demand.
    default_time_limit_s : int
        For jobs that have none.
    """
    decided = decided_urgencies(decisions)
    machine, notes = _machine(jobs, nodes, gpus_per_node)
    of_the_day = _within(jobs, begin, end)
    recorded = wait_s(jobs[of_the_day])
    recorded = recorded[~np.isnan(recorded)]
    counted = np.zeros(0, dtype=bool) if machine is None else _within(machine.jobs, begin, end)
    day = ShadowDay(
        begin=begin,
        timezone=timezone,
        decided=len(decided),
        earlier=0,
        later=0,
        recorded=Waits.of(recorded) if len(recorded) else None,
        without=None,
        with_decisions=None,
        moved=moved_jobs(
            jobs.iloc[:0], size=_none().astype(np.int32), urgency=np.zeros(0), wait_s=_none(), would_wait_s=_none()
        ),
        notes=tuple(notes),
    )
    if machine is None or not counted.any():
        return day
    return _compared(day, machine, counted, decided, default_time_limit_s)


def _compared(
    day: ShadowDay, machine: Machine, counted: NDArray[np.bool_], decided: Mapping[str, float], default_limit_s: int
) -> ShadowDay:
    """Fill in what the two replays say of the jobs that count."""
    urgency = urgencies_of(machine.jobs, decided)
    without = _replayed(machine, ORDERS["fifo"], default_limit_s).wait_s[counted]
    with_them = _replayed(machine, _by(urgency), default_limit_s).wait_s[counted] if decided else without
    moved = moved_jobs(
        machine.jobs[counted],
        size=machine.size[counted],
        urgency=urgency[counted],
        wait_s=without,
        would_wait_s=with_them,
    )
    return ShadowDay(
        begin=day.begin,
        timezone=day.timezone,
        decided=day.decided,
        earlier=int(np.count_nonzero(with_them - without < -MOVED_S)),
        later=int(np.count_nonzero(with_them - without > MOVED_S)),
        recorded=day.recorded,
        without=Waits.of(without),
        with_decisions=Waits.of(with_them),
        moved=moved,
        notes=(*day.notes, *LIMITS),
    )


def _machine(
    jobs: pd.DataFrame, nodes: Mapping[str, int] | None, gpus_per_node: int
) -> tuple[Machine | None, list[str]]:
    """Return the jobs that can be replayed on their cluster, or None; and what to say of it."""
    resource = "gpus" if bool((jobs["gpus"] > 0).any()) else "cpus"
    replayable = jobs[(jobs["run_time_s"].notna() & (jobs[resource].fillna(0) > 0)).to_numpy()]
    notes = []
    if left_out := len(jobs) - len(replayable):
        notes.append(f"{left_out:,} jobs that hold no {unit_of(resource)} or have not ended were not replayed.")
    if replayable.empty:
        return None, notes
    try:
        machine = machine_for(
            replayable, resource=resource, nodes=nodes, gpus_per_node=gpus_per_node, skip_oversized=True
        )
    except (PartitionUnknown, JobLargerThanPartition) as reason:
        return None, [*notes, f"The day was not replayed: {reason.fact}"]
    return machine, [*notes, *machine.notes]


def _replayed(machine: Machine, order: Order, default_limit_s: int) -> Replay:
    jobs = machine.jobs
    limit_s = jobs["time_limit_s"].to_numpy(dtype=np.float64)
    workload = Workload(
        job_id=jobs["job_id"].to_numpy(dtype=object),
        submitted_s=jobs["submitted_at"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=jobs["run_time_s"].to_numpy().astype(np.int64),
        gpus=machine.size,
        partition=machine.partition,
    )
    return replay(
        workload,
        machine.shape,
        backfill=Backfill.EASY,
        order=order,
        run_time_s=workload.run_time_s.astype(np.float64),
        estimate_s=np.where(np.isfinite(limit_s), limit_s, default_limit_s).astype(np.int64),
    )


def _by(urgency: NDArray[np.float64]) -> Order:
    """Return the order that starts the most urgent first; it is asked once, for all jobs of the replay."""

    def decided(
        *,
        submitted_s: NDArray[np.int64],  # noqa: ARG001 - ties are broken by it anyway
        gpus: NDArray[np.int32],  # noqa: ARG001 - the decision knew it
        run_time_s: NDArray[np.float64],  # noqa: ARG001 - the decision did not know it
    ) -> NDArray[np.float64]:
        return -urgency

    return decided


def _within(jobs: pd.DataFrame, begin: datetime, end: datetime) -> NDArray[np.bool_]:
    submitted = jobs["submitted_at"]
    inside: NDArray[np.bool_] = ((submitted >= pd.Timestamp(begin)) & (submitted < pd.Timestamp(end))).to_numpy()
    return inside


def _none() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)
