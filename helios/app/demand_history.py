"""Past demand for nodes, from a series or from jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.replay_cluster import replay_cluster_for
from helios.app.scenarios import ORDERS
from helios.choices import Policy
from helios.errors import NotEnoughHistory
from helios.ingest.node_series import read_series, resample, sum_series
from helios.metrics.capacity import choose_resource
from helios.metrics.node_usage import busy_intervals, most_at_once, most_held, whole_seconds
from helios.model import JOBS, STEP_S, NodeSeries, in_submission_order
from helios.ports import Progress, no_progress
from helios.predict.demand.features import NEVER_S, state_of_jobs
from helios.predict.demand.forecaster import JUDGED, judge, walk_forward
from helios.predict.demand.types import Calendar, DemandJobState
from helios.report.forecast import ForecastReport
from helios.units import best_unit, in_number

Seconds = NDArray[np.int64]

_FEWEST_STARTED = 0.9
"""Share of the jobs with a known start and end from which a history is taken as it was recorded."""
_FEWEST_PLACED = 0.9
"""Share of those with a list of their nodes from which nodes are counted one by one."""

_ROUNDING = 1e-6
"""What adding up parts of nodes may be off by, nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandHistory:
    """Demand of a cluster or a part of it, by step.

    Attributes
    ----------
    series : NodeSeries
    state : DemandJobState or None
        What was known of jobs at the end of each step; None: nothing is known of jobs.
    kind : str
        Source of the demand: ``series`` or ``cluster``.
    unit : str
        What is counted: ``node`` or ``GPU``.
    """

    series: NodeSeries
    state: DemandJobState | None
    kind: str
    unit: str = "node"


def watch_files(
    files: Sequence[Path],
    *,
    timezone: str,
    total: float | None = None,
    gpus_per_node: int = 8,
    in_gpus: bool = False,
) -> DemandHistory:
    """Read series of busy nodes.

    Several files are parts of one cluster and are added up.

    Parameters
    ----------
    total : float, optional
        Nodes in service, of all files together.
    in_gpus : bool
        Count GPUs, of files that tell them.

    Raises
    ------
    HeliosError
        As :func:`helios.ingest.node_series.read_series`.
    """
    per_node = 1 if in_gpus else gpus_per_node
    series = read_files(files, timezone=timezone, total=total, gpus_per_node=per_node, in_steps=True)
    return DemandHistory(series=series, state=None, kind="series", unit="GPU" if in_gpus else "node")


def read_files(
    files: Sequence[Path], *, timezone: str, total: float | None, gpus_per_node: int, in_steps: bool = False
) -> NodeSeries:
    """Read series of busy nodes, and add them up.

    Parameters are as in :func:`watch_files`; ``in_steps`` resamples each to ``STEP_S`` first.
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
    partition : str, optional
        Only jobs of this partition; None: of all, together.
    in_gpus : bool
        Count GPUs, not nodes.
    default_time_limit_s : int
        Where a replay is needed: the limit of jobs that have none, s.
    """

    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    partition: str | None = None
    in_gpus: bool = False
    default_time_limit_s: int = 7 * 86_400

    @property
    def total(self) -> int | None:
        """Nodes there are, of all partitions that are asked for.

        None: the request does not say.
        """
        if self.nodes is None:
            return None
        return self.nodes.get(self.partition or "", sum(self.nodes.values()))


def watch_cluster(
    history: LoadedHistory, asked: RequestedClusterShape, *, progress: Progress = no_progress
) -> DemandHistory:
    """Count busy nodes in each step, from the jobs.

    Recorded starts and ends are used where nearly all jobs have them. Otherwise the jobs are replayed, first in first
    out with EASY backfill. The state of the jobs at the end of each step is returned with the counts.

    Raises
    ------
    NotEnoughHistory
        No job can be used.
    PartitionUnknown
        A replay is needed, and the nodes named are not those of its partitions.
    """
    jobs, notes = _usable_jobs(history, asked)
    progress("Counting busy nodes", 0.0)
    known = jobs["started_at"].notna() & jobs["ended_at"].notna()
    if known.mean() >= _FEWEST_STARTED:
        counted = _count_recorded(jobs[known].reset_index(drop=True), asked)
    else:
        counted = _count_replayed(jobs[jobs["run_time_s"].notna()].reset_index(drop=True), asked)
    progress("Counting busy nodes", 1.0)
    steps_s = counted.first_s + STEP_S * np.arange(1, len(counted.busy) + 1, dtype=np.int64)
    return DemandHistory(
        series=NodeSeries(
            name=history.cluster if asked.partition is None else f"{history.cluster}, {asked.partition}",
            start_s=counted.first_s,
            step_s=STEP_S,
            active=counted.busy,
            total=np.full(len(counted.busy), max(counted.total, float(counted.busy.max()))),
            gaps=np.zeros(len(counted.busy), dtype=np.bool_),
            notes=(*history.notes, *notes, *counted.notes),
        ),
        state=_state(counted.jobs, asked, steps_s, timezone=history.timezone, progress=progress),
        kind="cluster",
        unit="GPU" if asked.in_gpus else "node",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Counted:
    """Jobs with their starts and ends, and what they kept busy."""

    jobs: pd.DataFrame
    first_s: int
    busy: NDArray[np.float64]
    total: float
    notes: tuple[str, ...]


def _usable_jobs(history: LoadedHistory, asked: RequestedClusterShape) -> tuple[pd.DataFrame, list[str]]:
    jobs = history.jobs
    if asked.partition is not None:
        jobs = jobs[(jobs["partition"].astype("str") == asked.partition).to_numpy(dtype=bool, na_value=False)]
    ran = jobs["run_time_s"].notna() & (_size(jobs, asked) > 0)
    if not ran.any():
        known = ", ".join(sorted(history.jobs["partition"].dropna().astype("str").unique())[:20])
        raise NotEnoughHistory(
            f"{history.cluster} has no job with a run time to count nodes by.",
            hint=f"Its partitions: {known}" if known else "Read some: helios trace sync, or helios trace load FILE",
        )
    unknown = jobs["run_time_s"].notna() & np.isnan(_size(jobs, asked))
    notes = []
    if unknown.any():
        example = jobs["job_id"][unknown].iloc[0]
        left_out = f"jobs have no record of their GPUs, such as {example}, and were left out."
        notes.append(in_number(int(unknown.sum()), left_out))
    if idle := int((~ran & ~unknown).sum()):
        notes.append(in_number(idle, "jobs that never ran or hold nothing were left out."))
    return jobs[ran].reset_index(drop=True), notes


def _size(jobs: pd.DataFrame, asked: RequestedClusterShape) -> NDArray[np.float64]:
    """Return what each job holds, in nodes.

    Fractions where it shares one; whole GPUs where these are counted.
    """
    gpus = jobs["gpus"].to_numpy()
    if asked.in_gpus:
        return gpus
    if (gpus > 0).any():
        return gpus / asked.gpus_per_node
    return np.asarray(jobs["nodes"].fillna(1.0).to_numpy(), dtype=np.float64)


def _count_recorded(jobs: pd.DataFrame, asked: RequestedClusterShape) -> _Counted:
    start_s, end_s = (
        whole_seconds(jobs["started_at"], otherwise=NEVER_S),
        whole_seconds(jobs["ended_at"], otherwise=NEVER_S),
    )
    first_s = int(start_s.min()) // STEP_S * STEP_S
    # After the last submission, jobs may have run that are missing because they had not ended when history was read.
    n_steps = max(int(whole_seconds(jobs["submitted_at"], otherwise=NEVER_S).max()) - first_s, STEP_S) // STEP_S
    placed = jobs["node_list"].notna()
    if not asked.in_gpus and placed.mean() >= _FEWEST_PLACED:
        held = busy_intervals(jobs, until_s=int(end_s.max())).merged()
        group = np.zeros(len(held.names), dtype=np.int64)
        busy = most_at_once(held, group=group, n_groups=1, first_s=first_s, step_s=STEP_S, n_steps=n_steps)[0]
        total = float(asked.total or len(held.names))
        notes = (
            [] if asked.nodes else [f"In service: the {len(held.names)} nodes that jobs ran on; else say --nodes N."]
        )
    else:
        size = most_held(start_s, end_s, _size(jobs, asked), first_s=first_s, step_s=STEP_S, n_steps=n_steps)
        busy = np.maximum(np.ceil(size - _ROUNDING), 0.0)
        notes = []
        if not asked.in_gpus:
            notes.append(
                "The jobs do not say on which nodes they ran: busy nodes are their GPUs by "
                f"{asked.gpus_per_node} (--gpus-per-node), as if jobs were packed without a gap."
            )
        total = float((asked.total or 0) * (asked.gpus_per_node if asked.in_gpus else 1))
        if asked.nodes is None:
            total = float(busy.max())
            notes.append(f"In service: the most ever held at once, {busy.max():.0f}; else say --nodes N.")
    return _Counted(jobs=jobs, first_s=first_s, busy=busy, total=total, notes=tuple(notes))


def _count_replayed(jobs: pd.DataFrame, asked: RequestedClusterShape) -> _Counted:
    resource, chosen = choose_resource(jobs)
    machine = replay_cluster_for(
        jobs, resource=resource, nodes=asked.nodes, gpus_per_node=asked.gpus_per_node, skip_oversized=True
    )
    result = machine.replay(ORDERS[Policy.FIFO], default_limit_s=asked.default_time_limit_s, count_nodes=True)
    first_s, most, _ = result.busy_nodes(STEP_S)
    n_steps = max(int(machine.jobs["submitted_at"].max().timestamp()) - first_s, STEP_S) // STEP_S
    busy, total = most.sum(axis=0)[:n_steps], float(machine.shape.nodes.sum())
    if asked.in_gpus:
        held = machine.size.astype(np.float64)
        busy = most_held(result.started_s, result.ended_s, held, first_s=first_s, step_s=STEP_S, n_steps=n_steps)
        total = float(machine.shape.total_gpus)
    said = (
        f"Starts and ends of jobs are not known: they were replayed, first in first out with EASY backfill, on "
        f"{int(machine.shape.nodes.sum())} nodes of {asked.gpus_per_node} {best_unit(resource)}s, jobs packed; each "
        "partition's most were added up."
    )
    times = {"started_at": result.started_s, "ended_at": result.ended_s}
    as_times = {name: pd.to_datetime(moments_s, unit="s", utc=True) for name, moments_s in times.items()}
    return _Counted(
        jobs=JOBS.conform(machine.jobs.assign(**as_times)),
        first_s=first_s,
        busy=busy,
        total=total,
        notes=(*chosen, *machine.notes, said),
    )


def _state(
    jobs: pd.DataFrame, asked: RequestedClusterShape, steps_s: Seconds, *, timezone: str, progress: Progress
) -> DemandJobState:
    """Return the state of the jobs at the end of each step.

    Predicted run times are those that shrinkage would have given at each submission.
    """
    from helios.predict.job_table import JobTable, causal_features, past_mean_s  # noqa: PLC0415 - only jobs need them

    progress("Reading what jobs told", 0.0)
    jobs = in_submission_order(jobs)
    features = causal_features(JobTable.from_frame(jobs, timezone=timezone)).X
    state = state_of_jobs(
        jobs,
        nodes=_size(jobs, replace(asked, in_gpus=False)),
        predicted_s=past_mean_s(features),
        ends_of_steps_s=steps_s,
    )
    progress("Reading what jobs told", 1.0)
    return state


# How many nodes will be needed: forecasts of a past demand, made as they would have been then, and scored.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """Window to score forecasts on, and what they learn from.

    Attributes
    ----------
    since, until : datetime, optional
        Forecasts made in [since, until) are scored, against what came before ``until``; all before ``since`` is
        history. Without ``since`` the last third is scored.
    calendar : Calendar
    history_days : int
        Days that are learned from.
    """

    since: datetime | None
    until: datetime | None
    calendar: Calendar
    history_days: int


def evaluate_forecasts(
    watched: DemandHistory, request: ForecastRequest, *, progress: Progress = no_progress
) -> ForecastReport:
    """Score walk-forward forecasts of a window beside rules without a model.

    Each step is forecast from what was known at that step.

    Raises
    ------
    NotEnoughHistory
        The window does not lie within the series.
    """
    series = watched.series
    from_step, until_step = _window(series, request)
    busy, total = series.active[:until_step], series.total[:until_step]
    forecasts = walk_forward(
        busy,
        total,
        start_s=series.start_s,
        from_step=from_step,
        until_step=until_step,
        calendar=request.calendar,
        state=None if watched.state is None else watched.state.rows(0, until_step),
        history_steps=request.history_days * 86_400 // STEP_S,
        wanted=JUDGED,
        progress=progress,
    )
    return ForecastReport(
        kind=watched.kind,
        name=series.name,
        unit=watched.unit,
        window_s=(series.start_s + from_step * STEP_S, series.start_s + until_step * STEP_S),
        step_s=STEP_S,
        verdict=judge(
            busy, total, forecasts, gaps=series.gaps[:until_step], start_s=series.start_s, from_step=from_step
        ),
        source=forecasts.source,
        notes=series.notes,
    )


def _window(series: NodeSeries, request: ForecastRequest) -> tuple[int, int]:
    def step_of(moment: datetime) -> int:
        return -(-(int(moment.timestamp()) - series.start_s) // STEP_S)

    until_step = len(series) if request.until is None else min(step_of(request.until), len(series))
    from_step = 2 * until_step // 3 if request.since is None else max(step_of(request.since), 0)
    if until_step - from_step <= 3_600 // STEP_S:
        first, last = (datetime.fromtimestamp(at, request.calendar.zone) for at in (series.start_s, series.end_s))
        raise NotEnoughHistory(
            f"Nothing lies between --from and --to; the series spans {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}.",
            hint="Choose --from and --to within it, at least some hours apart.",
        )
    return from_step, until_step
