"""Reports of usage, waits and the queue.

Hours are those held in the window. Every other figure of usage is over the jobs submitted in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.job_sums import Sums, bin_quantiles
from helios.metrics.occupancy import (
    FAILURES,
    STILL_RUNNING,
    STILL_WAITING,
    Flags,
    Floats,
    held_until_us,
    microseconds,
)
from helios.metrics.queue import mean_level_over_time
from helios.model import NEVER_US, JobState, note_unknown_gpus, unknown_gpus_note
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, declare_fields
from helios.warehouse.use import UNNAMED, Use

Times = NDArray[np.int64]

JOB_KEY = ["submitted_at", "job_id", "restart"]

SHOWN_GPU = ("Jobs", "GPUHours", "MeanWait", "P50Wait", "P95Wait", "MaxWait", "Failed", "LostGPUh", "OverAsk")
SHOWN_CPU = ("Jobs", "CPUHours", "MeanWait", "P50Wait", "P95Wait", "MaxWait", "Failed", "P50Run", "OverAsk")
FIGURES = declare_fields(
    ("Jobs", "jobs", FieldKind.COUNT, 7, "Jobs submitted in the window, each run of a requeued one once"),
    ("Waiting", "waiting", FieldKind.COUNT, 7, "Of these, still waiting at its end"),
    ("GPUHours", "gpu_hours", FieldKind.DECIMAL, 9, "GPUs x time held in the window; running jobs so far"),
    ("CPUHours", "cpu_hours", FieldKind.DECIMAL, 9, "CPUs x time held in the window, without suspensions"),
    ("NodeHours", "node_hours", FieldKind.DECIMAL, 9, "Nodes x time held in the window, shared nodes in full"),
    ("Share", "hours_share", FieldKind.SHARE, 6, "Share of the total of GPU hours, else of CPU hours"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 10, "Eligible (else submitted) to start, mean"),
    ("P50Wait", "p50_wait_s", FieldKind.LENGTH, 10, "Wait that half of the started jobs stay below"),
    ("P95Wait", "p95_wait_s", FieldKind.LENGTH, 10, "Wait that one started job in 20 exceeds"),
    ("MaxWait", "longest_wait_s", FieldKind.LENGTH, 10, "Longest wait; of waiting jobs so far"),
    ("P50Run", "p50_run_time_s", FieldKind.LENGTH, 10, "Median run time of the ended jobs, whole"),
    ("Failed", "failed_share", FieldKind.SHARE, 6, "Share of ended jobs FAILED, OUT_OF_MEMORY, NODE_FAIL or BOOT_FAIL"),
    ("TimedOut", "timeout_share", FieldKind.SHARE, 8, "Share of ended jobs cut by their limit"),
    ("LostGPUh", "lost_gpu_hours", FieldKind.DECIMAL, 8, "Of GPUHours, those of failed jobs"),
    ("LostCPUh", "lost_cpu_hours", FieldKind.DECIMAL, 8, "Of CPUHours, those of failed jobs"),
    ("OverAsk", "over_asked", FieldKind.FACTOR, 7, "Limit over run time, median of jobs completed or timed out"),
    ("Predicted", "predicted", FieldKind.COUNT, 9, "Ended jobs that had been predicted"),
    ("OffBy", "off_by", FieldKind.FACTOR, 6, "Factor between predicted and true run time, median; 1.0x: exact"),
)
COUNTED = (
    "Hours are those held in the window; jobs, waits and ends are of what was submitted in it, each run of a requeued "
    "job once."
)
NO_START = "No start is recorded in this window: no wait is known, and hours are of the jobs submitted in it, whole."
FROM_SUMS = "Medians, P95Wait and MaxWait of whole days come from counts in bins and are within 1 %."
EMPTY = "No job was submitted in this window and none held anything in it."
OF_PREDICTIONS = ("predicted", "off_by")
"""Columns that only the jobs of a window and their predictions give."""
GROUPS = {"user": "User", "account": "Account", "partition": "Partition", "size": "Size"}

STEPS = tuple(timedelta(hours=hours) for hours in (0.25, 1, 3, 6, 24, 7 * 24, 28 * 24))
MOST_STEPS = 48
"""Most rows of the report over time, which decides the length of a step."""
STALE = timedelta(hours=6)
"""Age of the last submission from which a note says that the history is old."""

NOW = declare_fields(
    ("Partition", "partition", FieldKind.TEXT, 12, "Partition"),
    ("User", "user", FieldKind.TEXT, 12, "User"),
    ("Waiting", "waiting", FieldKind.COUNT, 7, "Jobs that could have started and have not"),
    ("GPUs", "waiting_gpus", FieldKind.SIZE, 6, "GPUs they ask for"),
    ("CPUs", "waiting_cpus", FieldKind.COUNT, 7, "CPUs they ask for"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 10, "How long they have waited so far, mean"),
    ("Oldest", "oldest_wait_s", FieldKind.LENGTH, 10, "How long the oldest of them has waited"),
    ("OldestJob", "oldest_job", FieldKind.TEXT, 10, "That job's id"),
    ("PredGPUh", "predicted_gpu_hours", FieldKind.DECIMAL, 9, "GPUs x predicted run time of those that were predicted"),
    ("Running", "running", FieldKind.COUNT, 7, "Jobs that run"),
    ("RunGPUs", "running_gpus", FieldKind.SIZE, 7, "GPUs they hold"),
)
OVER_TIME = declare_fields(
    ("Start", "time", FieldKind.MOMENT, 19, "Begin of the step"),
    ("Submitted", "submitted", FieldKind.COUNT, 9, "Jobs submitted in the step, each run of a requeued one once"),
    ("Started", "started", FieldKind.COUNT, 7, "Jobs started in the step"),
    ("Waiting", "waiting", FieldKind.DECIMAL, 9, "Jobs waiting, mean over the step"),
    ("WaitGPUs", "waiting_gpus", FieldKind.DECIMAL, 9, "GPUs waited for, mean over the step"),
    ("Running", "running", FieldKind.DECIMAL, 9, "Jobs running, mean over the step"),
    ("RunGPUs", "running_gpus", FieldKind.DECIMAL, 9, "GPUs held, mean over the step"),
    ("MeanWait", "mean_wait_s", FieldKind.LENGTH, 10, "Wait of the jobs started in the step, mean"),
    ("MaxWait", "longest_wait_s", FieldKind.LENGTH, 10, "Their longest wait"),
)


def select_jobs(
    jobs: pd.DataFrame, *, users: Collection[str] = (), accounts: Collection[str] = (), partitions: Collection[str] = ()
) -> pd.DataFrame:
    """Return the jobs of the named users, accounts and partitions.

    A job must match each collection; an empty one matches all.
    """
    kept = np.ones(len(jobs), dtype=bool)
    for column, names in (("user", users), ("account", accounts), ("partition", partitions)):
        if names:
            kept &= jobs[column].isin(list(names)).to_numpy()
    return jobs if kept.all() else jobs[kept]


def eligible_since(jobs: pd.DataFrame) -> pd.Series[Any]:
    """Return the moment from which each job could have started.

    When it became eligible, or its submission where that is unknown.
    """
    return jobs["eligible_at"].fillna(jobs["submitted_at"])


def is_in(jobs: pd.DataFrame, states: Collection[str]) -> Flags:
    """Return which jobs are in one of ``states``."""
    return jobs["state"].isin([str(state) for state in states]).to_numpy()


def waiting_at(jobs: pd.DataFrame, at: datetime) -> Flags:
    """Return which jobs could have started and had not at ``at``.

    A job with neither start nor end waits while its state is pending or requeued.
    """
    moment = pd.Timestamp(at)
    begun = (eligible_since(jobs) <= moment).to_numpy()
    without = jobs["started_at"].isna().to_numpy()
    later = (jobs["started_at"] > moment).to_numpy()
    # Cancelled before it started: it waited until then.
    given_up = without & (jobs["ended_at"] > moment).to_numpy()
    pending = without & jobs["ended_at"].isna().to_numpy() & is_in(jobs, STILL_WAITING)
    return begun & (later | given_up | pending)


def running_at(jobs: pd.DataFrame, at: datetime) -> Flags:
    """Return which jobs ran at ``at``.

    A job without an end runs while its state says so.
    """
    moment = pd.Timestamp(at)
    begun = (jobs["started_at"] <= moment).to_numpy()
    unended = jobs["ended_at"].isna().to_numpy() & is_in(jobs, STILL_RUNNING)
    return begun & ((jobs["ended_at"] > moment).to_numpy() | unended)


def wait_s(jobs: pd.DataFrame) -> Floats:
    """Return the wait of each started job, in s.

    Never negative. NaN where not started, or unknown.
    """
    waited = np.asarray((jobs["started_at"] - eligible_since(jobs)).dt.total_seconds(), dtype=np.float64)
    return np.maximum(waited, 0.0)


def wait_so_far_s(jobs: pd.DataFrame, at: datetime) -> Floats:
    """Return the wait of each job until ``at``, s."""
    return np.asarray((pd.Timestamp(at) - eligible_since(jobs)).dt.total_seconds(), dtype=np.float64)


def submitted_in(jobs: pd.DataFrame, since: datetime, until: datetime) -> Flags:
    """Return which jobs were submitted in [since, until)."""
    submitted = jobs["submitted_at"]
    return ((submitted >= pd.Timestamp(since)) & (submitted < pd.Timestamp(until))).to_numpy()


def held_s(jobs: pd.DataFrame, *, since: datetime, until: datetime, now: datetime) -> tuple[Floats, Floats]:
    """Return how long each run held resources in [since, until), in s.

    A run that goes on has held them until ``now``, or for as long as any can run. Where no start is recorded, the whole
    run counts in the window of its submission.

    Returns
    -------
    held, worked : arrays of shape (n_jobs,)
        From start to end, and without suspensions. When a job was suspended is unknown, so that they are spread evenly
        over its run.
    """
    run_s, limit_s = (jobs[name].to_numpy(dtype=np.float64) for name in ("run_time_s", "time_limit_s"))
    begin, end = (microseconds(jobs[name]) for name in ("started_at", "ended_at"))
    since_us, until_us, now_us = (round(moment.timestamp() * 1e6) for moment in (since, until, now))
    started, runs = begin != NEVER_US, is_in(jobs, STILL_RUNNING)
    goes_on = runs & (end == NEVER_US)
    end = held_until_us(started_us=begin, ended_us=end, run_s=run_s, limit_s=limit_s, runs=runs, now_us=now_us)
    inside_s = (np.minimum(end, until_us) - np.maximum(begin, since_us)) / 1e6
    whole_s = np.where(submitted_in(jobs, since, until), np.nan_to_num(run_s), 0.0)
    held = np.maximum(np.where(started, inside_s, whole_s), 0.0)
    length_s = (end - begin) / 1e6
    suspended = ~goes_on & (run_s < length_s)
    # slurmdbd takes suspensions off CPUs only, because a suspended job keeps its GPUs and memory.
    return held, held * np.divide(run_s, length_s, out=np.ones_like(held), where=suspended)


def with_first_prediction(jobs: pd.DataFrame, predictions: pd.DataFrame | None) -> pd.DataFrame:
    """Return ``jobs`` with the first prediction of each.

    Columns ``p10_s``, ``p50_s``, ``p90_s`` and ``source``; missing: never predicted, or not looked at.
    """
    wanted = ["p10_s", "p50_s", "p90_s", "source"]
    if predictions is None:
        return jobs.assign(**dict.fromkeys(wanted[:3], np.nan), source=None)
    first = predictions.sort_values("made_at", kind="stable").drop_duplicates(JOB_KEY)[JOB_KEY + wanted]
    joined: pd.DataFrame = jobs.merge(first, on=JOB_KEY, how="left", validate="many_to_one")
    joined.index = jobs.index
    return joined


def usage_by(
    group: str,
    jobs: pd.DataFrame,
    *,
    predictions: pd.DataFrame | None,
    since: datetime,
    until: datetime,
    now: datetime,
    title: str,
    timezone: str = "UTC",
) -> ReportTable:
    """Report hours, jobs, waits and failures by group.

    A group is a user, an account or a partition; the one with most hours comes first. Hours are those held in the
    window, also by jobs submitted before it; all else is of the jobs submitted in it. The errors of predictions are
    reported too.

    Parameters
    ----------
    group : str
        A key of ``GROUPS``, and a category column of the jobs.
    jobs : DataFrame
        Columns of ``JOBS``, with all jobs that were submitted in the window or held resources in it.
    predictions : DataFrame, optional
        As the warehouse gives them, with ``made_at``; of several for a job the first counts. None leaves their errors
        unknown.
    since, until : datetime
        The window, without its end.
    now : datetime
        Until when running jobs have held their resources.
    """
    table = _table(jobs, predictions, group, since=since, until=until, now=now)
    gpus = bool((table["gpus"] > 0).any())
    by = "gpu_hours" if gpus else "cpu_hours"
    rows = _figures(table, by).sort_values([by, "jobs", "group"], ascending=[False, False, True])
    name = GROUPS[group]
    return ReportTable(
        title=title,
        fields=fields_by(group),
        shown=(name, *(SHOWN_GPU if gpus else SHOWN_CPU)),
        rows=rows.reset_index(drop=True),
        total=_total(table, by),
        empty=EMPTY,
        notes=tuple(_notes(table)),
        timezone=timezone,
    )


def usage_of_sums(group: str, use: Use, *, title: str, timezone: str = "UTC") -> ReportTable:
    """Report hours, jobs, waits and failures by group, from sums.

    The figures are those of :func:`usage_by` without predictions. Quantiles and the longest wait are within 1 %.

    Parameters
    ----------
    group : str
        A key of ``GROUPS``.
    use : Use
        Of one period, the window, with all distributions.
    """
    cells = use.sums.cells[(use.sums.cells["present"] > 0).to_numpy()]
    gpus = bool((cells[["gpu_ms", "queued_gpu_ms"]] > 0).to_numpy().any())
    by = "gpu_hours" if gpus else "cpu_hours"
    rows = _figures_of_sums(cells, use, by).sort_values([by, "jobs", "group"], ascending=[False, False, True])
    total = None
    if len(cells):
        everything = cells.assign(period=0, group=0).groupby("group", as_index=False).sum()
        whole = replace(
            use,
            sums=Sums(cells=everything, bins=use.sums.bins.assign(cell=0)),
            names=["Total"],
            waiting=use.waiting.assign(group=0),
        )
        total = dict(_figures_of_sums(everything, whole, by).iloc[0])
    name = GROUPS[group]
    # What was submitted earlier and holds something has a start.
    started = bool((cells[["started", "waits"]] > 0).to_numpy().any() or (cells["present"] > cells["submitted"]).any())
    unknown = note_unknown_gpus(use.unknown_gpus, use.example)
    return ReportTable(
        title=title,
        fields=tuple(field for field in fields_by(group) if field.column not in OF_PREDICTIONS),
        shown=(name, *(SHOWN_GPU if gpus else SHOWN_CPU)),
        rows=rows.reset_index(drop=True),
        total=total or {},
        empty=EMPTY,
        notes=tuple(filter(None, [COUNTED if started else NO_START, unknown, FROM_SUMS])) if len(cells) else (),
        timezone=timezone,
    )


def _figures_of_sums(cells: pd.DataFrame, use: Use, by: str) -> pd.DataFrame:
    """Return the figures of each group."""
    # Of jobs whose GPUs or nodes are all unknown, the hours are unknown and not 0.
    known = {"gpu": "with_gpus", "lost_gpu": "with_gpus", "node": "with_nodes", "cpu": "present", "lost_cpu": "present"}
    figures = pd.DataFrame(
        {
            "group": [use.names[group] for group in cells["group"]],
            "jobs": cells["submitted"].to_numpy(),
            **{
                f"{name}_hours": (cells[f"{name}_ms"] / 3_600_000).where(cells[count] > 0).to_numpy()
                for name, count in known.items()
            },
            "mean_wait_s": _ratio(cells["wait_ms"] / 1000, cells["waits"]),
            "failed_share": _ratio(cells["failed"], cells["finished"]),
            "timeout_share": _ratio(cells["timed_out"], cells["finished"]),
        }
    )
    named = {"wait": ("p50_wait_s", "p95_wait_s", "longest_wait_s"), "run_time": ("p50_run_time_s",)}
    for kind, names in (named | {"over_asked": ("over_asked",)}).items():
        found = bin_quantiles(use.sums.bins, kind, (0.5, 0.95, 1.0)[: len(names)], n_cells=len(use.sums.cells))
        figures[list(names)] = found[:, cells.index.to_numpy()].T
    waiting = use.waiting.groupby("group")["wait_s"].agg(["size", "max"]).reindex(cells["group"])
    figures["waiting"] = waiting["size"].fillna(0).to_numpy().astype(np.int64)
    figures["longest_wait_s"] = np.fmax(figures["longest_wait_s"], waiting["max"].to_numpy())
    return figures.assign(hours_share=figures[by] / (figures[by].sum() or np.nan))


def _ratio(amount: pd.Series[Any], count: pd.Series[Any]) -> Floats:
    values = count.to_numpy(dtype=np.float64)
    ratio: Floats = amount.to_numpy(dtype=np.float64) / np.where(values > 0, values, np.nan)
    return ratio


def fields_by(group: str) -> tuple[Field, ...]:
    """Return the fields of ``usage_by``."""
    name = GROUPS[group]
    return (Field(name=name, column="group", kind=FieldKind.TEXT, width=12, doc=f"{name} of the jobs"), *FIGURES)


def _table(
    jobs: pd.DataFrame, predictions: pd.DataFrame | None, group: str, *, since: datetime, until: datetime, now: datetime
) -> pd.DataFrame:
    """Return the figures to sum, a row for each job.

    NaN where a figure does not apply to the job.
    """
    held, worked = (seconds / 3600 for seconds in held_s(jobs, since=since, until=until, now=now))
    counts = submitted_in(jobs, since, until) | (held > 0)
    jobs, held, worked = with_first_prediction(jobs[counts], predictions), held[counts], worked[counts]
    submitted = submitted_in(jobs, since, until)
    gpus, cpus = jobs["gpus"].to_numpy(), np.nan_to_num(jobs["cpus"].to_numpy())
    known = submitted & (jobs["run_time_s"].notna() & jobs["state"].notna()).to_numpy()
    failed, waiting = is_in(jobs, FAILURES), submitted & waiting_at(jobs, until)
    # A start after the window's end is not known at that end.
    waited = np.where(submitted & ~waiting, wait_s(jobs), np.nan)
    limit_s, run_s = (jobs[name].to_numpy(dtype=np.float64) for name in ("time_limit_s", "run_time_s"))
    whole = submitted & (is_in(jobs, {JobState.COMPLETED, JobState.TIMEOUT}) | jobs["state"].isna().to_numpy())
    return pd.DataFrame(
        {
            "group": jobs[group].cat.add_categories([UNNAMED]).fillna(UNNAMED).array,
            "job_id": jobs["job_id"].array,
            "gpus": gpus,
            "started": jobs["started_at"].notna().to_numpy(),
            "jobs": submitted,
            "waiting": waiting,
            "gpu_hours": gpus * held,
            "cpu_hours": cpus * worked,
            "node_hours": jobs["nodes"].to_numpy(dtype=np.float64) * held,
            "wait_s": waited,
            "longest_s": np.where(waiting, wait_so_far_s(jobs, until), waited),
            "run_time_s": np.where(submitted, run_s, np.nan),
            "failed": np.where(known, failed.astype(np.float64), np.nan),
            "timeout": np.where(known, is_in(jobs, {JobState.TIMEOUT}).astype(np.float64), np.nan),
            "lost_gpu_hours": gpus * held * failed,
            "lost_cpu_hours": cpus * worked * failed,
            "over_asked": np.where(whole & np.isfinite(limit_s), limit_s / np.maximum(run_s, 1.0), np.nan),
            "log_off": np.where(submitted, _log_off(jobs), np.nan),
        }
    )


def _log_off(jobs: pd.DataFrame) -> Floats:
    """Return the absolute log error of each predicted median.

    NaN where not predicted, or not ended.
    """
    p50_s, run_s = (jobs[name].to_numpy(dtype=np.float64) for name in ("p50_s", "run_time_s"))
    return np.asarray(np.abs(np.log1p(p50_s) - np.log1p(run_s)), dtype=np.float64)


def _figures(table: pd.DataFrame, by: str) -> pd.DataFrame:
    groups = table.groupby("group", observed=True, sort=False)
    # Of jobs whose GPUs or nodes are all unknown, the hours are unknown and not 0.
    known = groups[["gpu_hours", "lost_gpu_hours", "node_hours"]].sum(min_count=1)
    figures = groups.agg(
        jobs=("jobs", "sum"),
        waiting=("waiting", "sum"),
        cpu_hours=("cpu_hours", "sum"),
        mean_wait_s=("wait_s", "mean"),
        p50_wait_s=("wait_s", "median"),
        longest_wait_s=("longest_s", "max"),
        p50_run_time_s=("run_time_s", "median"),
        failed_share=("failed", "mean"),
        timeout_share=("timeout", "mean"),
        lost_cpu_hours=("lost_cpu_hours", "sum"),
        over_asked=("over_asked", "median"),
        predicted=("log_off", "count"),
        off_by=("log_off", "median"),
    )
    figures = figures.join(known)
    figures = figures.assign(
        hours_share=figures[by] / (table[by].sum() or np.nan),
        p95_wait_s=groups["wait_s"].quantile(0.95),
        off_by=np.exp(figures["off_by"]),
    )
    return figures.reset_index(names="group").astype({"group": "object"})


def _total(table: pd.DataFrame, by: str) -> dict[str, Any]:
    if table.empty:
        return {}
    return dict(_figures(table.assign(group="Total"), by).iloc[0])


def _notes(table: pd.DataFrame) -> list[str]:
    if table.empty:
        return []
    unknown = filter(None, [unknown_gpus_note(table)])
    if table["started"].any():
        return [COUNTED, *unknown]
    return [NO_START, *unknown]


def queue_at(
    jobs: pd.DataFrame,
    *,
    predictions: pd.DataFrame,
    at: datetime,
    title: str,
    timezone: str = "UTC",
    last_submitted_at: pd.Timestamp | None = None,
) -> ReportTable:
    """Report who waits at a moment, by partition and user.

    The longest wait comes first. Each row also has the jobs that run.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, with all jobs submitted by ``at`` that may have waited or run then.
    last_submitted_at : Timestamp, optional
        Last submission of the history, which a note names if it is long ago. By default the last of ``jobs``.
    """
    jobs = jobs[(jobs["submitted_at"] <= pd.Timestamp(at)).to_numpy()]
    held = jobs[waiting_at(jobs, at) | running_at(jobs, at)]
    table = _waiting_and_running(with_first_prediction(held, predictions), at)
    rows = _by_partition_and_user(table)
    gpus = bool((table["gpus"] > 0).any())
    size = "GPUs" if gpus else "CPUs"
    shown = ("Partition", "User", "Waiting", size, "MeanWait", "Oldest", "OldestJob", "PredGPUh", "Running", "RunGPUs")
    return ReportTable(
        title=title,
        fields=NOW,
        shown=shown if gpus else tuple(name for name in shown if "GPU" not in name),
        rows=rows,
        total=_totals(rows) if len(rows) > 1 else None,
        empty="Nothing waits and nothing runs.",
        notes=(
            *filter(None, [unknown_gpus_note(table)]),
            *_age_notes(jobs["submitted_at"].max() if last_submitted_at is None else last_submitted_at, at),
        ),
        timezone=timezone,
    )


def queue_over_time(
    jobs: pd.DataFrame,
    *,
    since: datetime,
    until: datetime,
    title: str,
    timezone: str = "UTC",
    cuts: Sequence[datetime] = (),
    known: Callable[[Times, Times], Flags] | None = None,
) -> ReportTable:
    """Report waiting and running jobs and GPUs in steps of time.

    Means are exact and take O(n log n).

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, with all jobs submitted before ``until`` that may have waited or run after ``since``.
    cuts : sequence of datetime
        Moments at which a step ends, such as the begin of the record.
    known : callable, optional
        Returns which steps are recorded, by their begins and ends in s since the epoch. By default all are. Figures of
        the others are empty.
    """
    inside_s = [int(moment.timestamp()) for moment in cuts if since < moment < until]
    edges_s = np.unique(np.append(steps(since, until, timezone=timezone), inside_s)).astype(np.int64)
    rows = levels(jobs, edges_s=edges_s)
    is_empty = not rows[["submitted", "started", "waiting", "running"]].to_numpy().any()
    if known is not None and not (flags := known(edges_s[:-1], edges_s[1:])).all():
        figures = rows.drop(columns="time").astype("object")
        rows = rows[["time"]].join(figures.where(np.repeat(flags[:, np.newaxis], figures.shape[1], axis=1), None))
    gpus = bool((jobs["gpus"] > 0).any())
    shown = tuple(field.name for field in OVER_TIME if gpus or "GPUs" not in field.name)
    return ReportTable(
        title=title,
        fields=OVER_TIME,
        shown=shown,
        rows=rows.iloc[:0] if is_empty else rows,
        empty="No job waited or ran in this window.",
        notes=(*filter(None, [unknown_gpus_note(jobs)]), *_age_notes(jobs["submitted_at"].max(), until)),
        timezone=timezone,
    )


def steps(since: datetime, until: datetime, *, timezone: str) -> NDArray[np.int64]:
    """Return the edges of the steps of a window.

    It is the shortest of ``STEPS`` that gives at most ``MOST_STEPS``. Steps of whole days begin at local midnight.
    """
    step = next((step for step in STEPS if (until - since) / step <= MOST_STEPS), STEPS[-1])
    first, last = (pd.Timestamp(moment).tz_convert(timezone) for moment in (since, until))
    # Whole days are counted on the local clock, shorter steps on the absolute one.
    whole_days = step // timedelta(days=1)
    begin = first.normalize() if whole_days else first.floor(step, ambiguous=True, nonexistent="shift_forward")
    edges = pd.date_range(begin, last, freq=pd.DateOffset(days=whole_days) if whole_days else step)
    return epoch_s([first, *edges[(edges > first) & (edges < last)], last])


def epoch_s(moments: Sequence[pd.Timestamp]) -> NDArray[np.int64]:
    """Return moments in whole seconds since the epoch."""
    return np.array([int(moment.timestamp()) for moment in moments], dtype=np.int64)


def levels(jobs: pd.DataFrame, *, edges_s: NDArray[np.int64]) -> pd.DataFrame:
    """Return waiting and running jobs in each step."""
    last_s = int(edges_s[-1])
    started, submitted = (_step_of(_seconds(jobs[name]), edges_s) for name in ("started_at", "submitted_at"))
    waited = pd.Series(wait_s(jobs)).groupby(started).agg(["mean", "max"]).reindex(range(len(edges_s) - 1))
    figures = {
        "time": pd.to_datetime(edges_s[:-1], unit="s", utc=True),
        "submitted": np.bincount(submitted[submitted >= 0], minlength=len(edges_s) - 1),
        "started": np.bincount(started[started >= 0], minlength=len(edges_s) - 1),
    }
    for name in ("waiting", "running"):
        begins_s, ends_s, gpus = _intervals(jobs, waiting=name == "waiting", last_s=last_s)
        for column, weight in ((name, None), (f"{name}_gpus", gpus)):
            figures[column] = mean_level_over_time(begins_s=begins_s, ends_s=ends_s, weight=weight, edges_s=edges_s)
    return pd.DataFrame(
        figures | {"mean_wait_s": waited["mean"].to_numpy(), "longest_wait_s": waited["max"].to_numpy()}
    )


def _waiting_and_running(held: pd.DataFrame, at: datetime) -> pd.DataFrame:
    """Return a row for each waiting or running job."""
    waits, runs = waiting_at(held, at), running_at(held, at)
    gpus = held["gpus"].to_numpy(dtype=np.float64)
    p50_h = held["p50_s"].to_numpy(dtype=np.float64) / 3600
    return pd.DataFrame(
        {
            "partition": held["partition"].astype("object").fillna(UNNAMED).array,
            "user": held["user"].astype("object").fillna(UNNAMED).array,
            "job_id": held["job_id"].array,
            "waiting": waits,
            "gpus": gpus,
            "waiting_gpus": np.where(waits, gpus, 0.0),
            "waiting_cpus": np.nan_to_num(held["cpus"].to_numpy(dtype=np.float64)) * waits,
            "wait_s": np.where(waits, wait_so_far_s(held, at), np.nan),
            "predicted_gpu_hours": np.where(waits, gpus * p50_h, np.nan),
            "running": runs,
            "running_gpus": np.where(runs, gpus, 0.0),
        }
    )


def _by_partition_and_user(table: pd.DataFrame) -> pd.DataFrame:
    ordered = table.sort_values("wait_s", ascending=False, kind="stable")
    groups = ordered.groupby(["partition", "user"], observed=True, sort=True)
    rows = groups.agg(
        waiting=("waiting", "sum"),
        waiting_cpus=("waiting_cpus", "sum"),
        mean_wait_s=("wait_s", "mean"),
        oldest_wait_s=("wait_s", "max"),
        oldest_job=("job_id", "first"),
        running=("running", "sum"),
    )
    for name in ("waiting_gpus", "running_gpus", "predicted_gpu_hours"):
        rows[name] = groups[name].sum(min_count=1)
    rows["oldest_job"] = rows["oldest_job"].where(rows["waiting"] > 0)
    rows = rows.reset_index()
    return rows.sort_values(["oldest_wait_s", "running_gpus"], ascending=False, kind="stable", ignore_index=True)


def _totals(rows: pd.DataFrame) -> dict[str, Any]:
    waiting = rows["waiting"].sum()
    summed = ("waiting", "waiting_gpus", "waiting_cpus", "predicted_gpu_hours", "running", "running_gpus")
    return {
        "partition": "Total",
        **{name: rows[name].sum(min_count=1) for name in summed},
        "mean_wait_s": (rows["mean_wait_s"] * rows["waiting"]).sum() / waiting if waiting else np.nan,
        "oldest_wait_s": rows["oldest_wait_s"].max(),
        "oldest_job": rows["oldest_job"].iloc[0],
    }


def _intervals(jobs: pd.DataFrame, *, waiting: bool, last_s: int) -> tuple[Times, Times, Floats]:
    """Return begin, end and GPUs of each interval of waiting or running.

    An interval that has not ended ends at ``last_s``. Unknown GPUs are 0.
    """
    begin = _seconds(eligible_since(jobs) if waiting else jobs["started_at"])
    end = _seconds(jobs["started_at"].fillna(jobs["ended_at"]) if waiting else jobs["ended_at"])
    lasts = (end < 0) & is_in(jobs, STILL_WAITING if waiting else STILL_RUNNING)
    end = np.where(lasts, np.maximum(begin, last_s), end)
    known = (begin >= 0) & (end > begin)
    return begin[known], end[known], np.nan_to_num(jobs["gpus"].to_numpy())[known]


def _seconds(times: pd.Series[Any]) -> NDArray[np.int64]:
    values = times.to_numpy(dtype="datetime64[s]")
    return np.where(np.isnat(values), -1, values.astype(np.int64))


def _step_of(moments_s: NDArray[np.int64], edges_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the step that each moment falls in, -1 for none."""
    step = np.searchsorted(edges_s, moments_s, side="right") - 1
    return np.where(step < len(edges_s) - 1, step, -1)


def _age_notes(last: pd.Timestamp, at: datetime) -> list[str]:
    if pd.isna(last) or pd.Timestamp(at) - last < STALE:
        return []
    known = f"The last submission that the warehouse knows is of {last:%Y-%m-%d %H:%M} UTC"
    return [f"{known}: what came since is missing."]
