"""Past use of nodes and the forecast of tomorrow's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.record import jobs_between
from helios.app.replay_cluster import replay_cluster_for
from helios.app.scenarios import ORDERS
from helios.choices import Policy
from helios.errors import NotEnoughHistory
from helios.ingest.node_series import read_series, resample, sum_series
from helios.metrics.capacity import ClusterCapacity, choose_resource
from helios.metrics.node_usage import busy_intervals, most_at_once, most_held, whole_seconds
from helios.model import STEP_S, JobState, NodeSeries
from helios.ports import Progress, no_progress
from helios.predict.node_demand import (
    FEWEST_FOR_RANGE,
    HOUR,
    HOURS,
    WEEK,
    NodeHours,
    forecast_hours,
    most_of_hour,
    score,
)
from helios.report.forecast import ForecastReport, NeededHour
from helios.units import best_unit, in_number

FEWEST_STARTED = 0.9
"""Share of the jobs with a known start and end from which a history is taken as it was recorded."""
FEWEST_PLACED = 0.9
"""Share of those with a list of their nodes from which nodes are counted one by one."""
ROUNDING = 1e-6
"""What adding up parts of nodes may be off by, nodes."""
SCORED = 4 * WEEK
"""Most steps at the end of a history on which forecasts are scored, at most a third of it."""
NEVER_S = np.iinfo(np.int64).max


def read_files(
    files: Sequence[Path], *, timezone: str, total: float | None, gpus_per_node: int, in_steps: bool = False
) -> NodeSeries:
    """Read series of busy nodes and add them up.

    Parameters
    ----------
    total : float, optional
        Nodes in service, of all files together.
    in_steps : bool
        Resample each to ``STEP_S`` first.

    Raises
    ------
    HeliosError
        As :func:`helios.ingest.node_series.read_series`.
    """
    share = None if total is None else total / len(files)
    read = [read_series(path, timezone=timezone, total=share, gpus_per_node=gpus_per_node) for path in files]
    if in_steps:
        read = [resample(one) for one in read]
    return sum_series(read, name=f"{files[0].parent.name or read[0].name} ({len(read)} files)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedClusterShape:
    """How the nodes of a cluster are counted.

    Attributes
    ----------
    nodes : mapping, optional
        Nodes of each partition, as :func:`helios.app.replay_cluster.parse_nodes` reads them; None: as many as were
        ever busy.
    gpus_per_node : int
    partitions : tuple of str
        Only jobs of these partitions; empty for all. They are counted together.
    default_time_limit_s : int
        Where a replay is needed: the limit of jobs that have none, s.
    """

    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    partitions: tuple[str, ...] = ()
    default_time_limit_s: int = 7 * 86_400

    @property
    def total(self) -> int | None:
        """Nodes there are, of all partitions that are asked for.

        None: the request does not say.
        """
        if self.nodes is None:
            return None
        named = [self.nodes[name] for name in self.partitions if name in self.nodes]
        return sum(named or self.nodes.values())


def count_nodes(history: LoadedHistory, asked: RequestedClusterShape) -> NodeSeries:
    """Count busy nodes in each step, from the jobs.

    Recorded starts and ends are used where nearly all jobs have them. Otherwise the jobs are replayed, first in first
    out with EASY backfill.

    Raises
    ------
    NotEnoughHistory
        No job can be used.
    PartitionUnknown
        A replay is needed, and the nodes named are not those of its partitions.
    """
    begin, capacity = history.window[0], history.capacity
    jobs, notes = _usable_jobs(history, asked)
    known = jobs["started_at"].notna() & (jobs["ended_at"].notna() | _runs(jobs))
    if known.mean() >= FEWEST_STARTED:
        counted = _count_recorded(jobs[known].reset_index(drop=True), asked, begin=begin, capacity=capacity)
    else:
        timed = jobs_between(jobs[jobs["run_time_s"].notna()], begin, None)
        counted = _count_replayed(timed.reset_index(drop=True), asked)
    if capacity is not None and capacity.nodes is not None:
        counted = replace(counted, total=float(capacity.nodes))
    return NodeSeries(
        name=", ".join((history.cluster, *asked.partitions)),
        start_s=counted.first_s,
        step_s=STEP_S,
        active=counted.busy,
        total=np.full(len(counted.busy), max(counted.total, float(counted.busy.max()))),
        gaps=np.zeros(len(counted.busy), dtype=np.bool_),
        notes=(*history.notes, *notes, *counted.notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counted:
    """Nodes that jobs kept busy, by step."""

    first_s: int
    busy: NDArray[np.float64]
    total: float
    notes: tuple[str, ...]


def _runs(jobs: pd.DataFrame) -> pd.Series:
    """Return which jobs run, as far as is known."""
    running: pd.Series = (jobs["state"] == JobState.RUNNING) & jobs["started_at"].notna() & jobs["ended_at"].isna()
    return running.fillna(value=False)


def _usable_jobs(history: LoadedHistory, asked: RequestedClusterShape) -> tuple[pd.DataFrame, list[str]]:
    jobs = history.jobs
    if asked.partitions:
        jobs = jobs[jobs["partition"].isin(asked.partitions)]
    began = jobs["run_time_s"].notna() | _runs(jobs)
    ran = began & (_size(jobs, asked) > 0)
    if not ran.any():
        known = ", ".join(sorted(history.jobs["partition"].dropna().astype("str").unique())[:20])
        raise NotEnoughHistory(
            f"{history.cluster} has no job with a run time to count nodes by.",
            hint=f"Its partitions: {known}" if known else "Read some: helios trace sync, or helios trace load FILE",
        )
    unknown = began & np.isnan(_size(jobs, asked))
    notes = []
    if unknown.any():
        example = jobs["job_id"][unknown].iloc[0]
        left_out = f"jobs have no record of their GPUs, such as {example}, and were left out."
        notes.append(in_number(int(unknown.sum()), left_out))
    if idle := int((~ran & ~unknown).sum()):
        notes.append(in_number(idle, "jobs that never ran or hold nothing were left out."))
    return jobs[ran].reset_index(drop=True), notes


def _size(jobs: pd.DataFrame, asked: RequestedClusterShape) -> NDArray[np.float64]:
    """Return the nodes that each job holds, or its share of one."""
    gpus = jobs["gpus"].to_numpy()
    if (gpus > 0).any():
        return np.asarray(gpus / asked.gpus_per_node)
    return np.asarray(jobs["nodes"].fillna(1.0).to_numpy(), dtype=np.float64)


def _count_recorded(
    jobs: pd.DataFrame, asked: RequestedClusterShape, *, begin: datetime | None, capacity: ClusterCapacity | None
) -> _Counted:
    start_s, end_s, submitted_s = (
        whole_seconds(jobs[name], otherwise=NEVER_S) for name in ("started_at", "ended_at", "submitted_at")
    )
    # Of the time before the record is complete only those that lasted are known.
    first_s = max(int(start_s.min()), int(begin.timestamp()) if begin else 0) // STEP_S * STEP_S
    # After the last submission, jobs may have run that are missing because they had not ended when history was read.
    n_steps = max(int(submitted_s.max()) - first_s, STEP_S) // STEP_S
    until_s = first_s + n_steps * STEP_S
    notes = []
    if running := int((end_s == NEVER_S).sum()):
        notes.append(in_number(running, "jobs have no end yet: in use up to the end of the record."))
    if jobs["node_list"].notna().mean() >= FEWEST_PLACED:
        held = busy_intervals(jobs, until_s=until_s).merged()
        group = np.zeros(len(held.names), dtype=np.int64)
        busy = most_at_once(held, group=group, n_groups=1, first_s=first_s, step_s=STEP_S, n_steps=n_steps)[0]
        total = float(asked.total or len(held.names))
        if not asked.nodes and capacity is None:
            notes.append(f"In service: the {len(held.names)} nodes that jobs ran on; else say --nodes N.")
    else:
        ends_s = np.minimum(end_s, until_s + STEP_S)
        size = most_held(start_s, ends_s, _size(jobs, asked), first_s=first_s, step_s=STEP_S, n_steps=n_steps)
        busy = np.maximum(np.ceil(size - ROUNDING), 0.0)
        notes.append(
            "The jobs do not say on which nodes they ran: busy nodes are their GPUs by "
            f"{asked.gpus_per_node} (--gpus-per-node), as if jobs were packed without a gap."
        )
        total = float(asked.total or 0)
        if asked.nodes is None:
            total = float(busy.max())
            notes.append(f"In service: the most ever held at once, {busy.max():.0f}; else say --nodes N.")
    return _Counted(first_s=first_s, busy=busy, total=total, notes=tuple(notes))


def _count_replayed(jobs: pd.DataFrame, asked: RequestedClusterShape) -> _Counted:
    resource, chosen = choose_resource(jobs)
    machine = replay_cluster_for(
        jobs, resource=resource, nodes=asked.nodes, gpus_per_node=asked.gpus_per_node, skip_oversized=True
    )
    result = machine.replay(ORDERS[Policy.FIFO], default_limit_s=asked.default_time_limit_s, count_nodes=True)
    first_s, most, _ = result.busy_nodes(STEP_S)
    n_steps = max(int(machine.jobs["submitted_at"].max().timestamp()) - first_s, STEP_S) // STEP_S
    said = (
        f"Starts and ends of jobs are not known: they were replayed, first in first out with EASY backfill, on "
        f"{int(machine.shape.nodes.sum())} nodes of {asked.gpus_per_node} {best_unit(resource)}s, jobs packed; each "
        "partition's most were added up."
    )
    return _Counted(
        first_s=first_s,
        busy=most.sum(axis=0)[:n_steps],
        total=float(machine.shape.nodes.sum()),
        notes=(*chosen, *machine.notes, said),
    )


def forecast_tomorrow(
    series: NodeSeries, *, kind: str, zone: ZoneInfo, until: datetime | None = None, progress: Progress = no_progress
) -> ForecastReport:
    """Forecast the hours of tomorrow, and score such forecasts.

    Parameters
    ----------
    series : NodeSeries
        In steps of ``STEP_S``.
    kind : str
        What it is of: ``series`` or ``cluster``.
    until : datetime, optional
        Nothing from then on is used; None: all is.

    Raises
    ------
    NotEnoughHistory
        There are less than two weeks.
    """
    end_s = series.end_s if until is None else min(int(until.timestamp()), series.end_s)
    # Hours begin as those of the local clock.
    end = datetime.fromtimestamp(end_s, zone).replace(minute=0, second=0, microsecond=0)
    n_steps = max((int(end.timestamp()) - series.start_s) // STEP_S, 0)
    most = float(series.total[:n_steps].max(initial=0.0))
    history = NodeHours.of(most_of_hour(series.active[:n_steps]), start_s=series.start_s, zone=zone)
    found = forecast_hours(history, until=n_steps, most=most)
    if found is None:
        first = datetime.fromtimestamp(series.start_s, zone)
        raise NotEnoughHistory(
            f"{series.name} begins on {first:%Y-%m-%d %H:%M}, {n_steps // (24 * HOUR)} days before the forecast, "
            f"and it takes {FEWEST_FOR_RANGE // (24 * HOUR)}.",
            hint="Read more history: helios trace sync, or helios trace load FILE",
        )
    tomorrow = end.date() + timedelta(days=1)
    begins = [datetime.fromtimestamp(found.made_at_s + 3_600 * hour, zone) for hour in range(HOURS)]
    from_step = max(n_steps - SCORED, 2 * n_steps // 3)
    return ForecastReport(
        kind=kind,
        name=series.name,
        made_at=end,
        nodes=most,
        hours=tuple(
            NeededHour(begin=begin, expected=float(expected), low=float(low), high=float(high))
            for begin, expected, low, high in zip(begins, found.expected, found.low, found.high, strict=True)
            if begin.date() == tomorrow
        ),
        scored_from=datetime.fromtimestamp(series.start_s + from_step * STEP_S, zone),
        scores=tuple(score(history, from_step=from_step, gaps=series.gaps[:n_steps], progress=progress)),
        notes=series.notes,
    )
