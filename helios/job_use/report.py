"""What jobs used of the GPUs that they held, by job or summed.

What was not measured comes first, and is never counted as idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from helios.app.reports import CLOCK_SKEW, JobUse, ReportContext, ReportQuery, open_context
from helios.dates import local_day
from helios.metrics.job_use import MEMORY_CLASSES, UTILIZATION_CLASSES, memory_class, utilization_class
from helios.metrics.statistics import ratio_interval
from helios.model import JOBS, unknown_gpus_note
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable, as_json, declare_fields
from helios.report.admin.usage import COUNTED, EMPTY, held_s
from helios.report.advice import KEYS, describe_group, with_name_words
from helios.report.job_use import Floats, gpu_hours, idle_sentences, unused_sentence, with_use
from helios.warehouse.use import UNNAMED

READ = (
    *("job_id", "restart", "submitted_at", "user", "account", "partition", "name", "state"),
    *("started_at", "ended_at", "run_time_s", "time_limit_s", "nodes", "cpus", "gpus", "memory_mib"),
)
GROUPS: Mapping[str, tuple[str, int]] = {
    **{name: (name.capitalize(), 12) for name in ("user", "account", "partition", "week")},
    "kind": ("Kind", 44),
    "class": ("Utilization", 14),
    "memory": ("Memory", 14),
}
"""Name and width of the first column, by what the report is by."""
IN_HOURS = (
    *("hours", "measured", "idle", "inside", "failed", "busy"),
    *("gpu_memory", "gpu_memory_known", "memory", "memory_known"),
)
"""Sums that grow with the time that GPUs are held."""
LARGEST = 3
"""Users that a sentence names."""
SUMS = declare_fields(
    ("Unknown", "unknown_share", FieldKind.SHARE, 7, "Share of GPUHours that was not measured"),
    ("Jobs", "jobs", FieldKind.COUNT, 6, "Runs that held GPUs in the window"),
    ("GPUHours", "gpu_hours", FieldKind.DECIMAL, 9, "GPUs x time held in the window"),
    ("Share", "hours_share", FieldKind.SHARE, 6, "Share of all GPUHours"),
    ("Util", "utilization", FieldKind.SHARE, 6, "Mean utilization of the measured GPU hours"),
    ("IdleGPUh", "idle_hours", FieldKind.DECIMAL, 9, "Measured hours of GPUs below 1 % over their run"),
    ("Idle", "idle_share", FieldKind.SHARE, 6, "Share of the measured GPU hours that was idle"),
    ("IdleLow", "idle_low", FieldKind.SHARE, 7, "Lower end of Idle, 95 % sure over users; of 5 or more"),
    ("IdleHigh", "idle_high", FieldKind.SHARE, 8, "Upper end of Idle"),
    ("Inside", "inside_hours", FieldKind.DECIMAL, 8, "Of IdleGPUh, those in jobs that used other GPUs"),
    ("FailedGPUh", "failed_hours", FieldKind.DECIMAL, 10, "Of IdleGPUh, those in jobs that failed"),
    ("GPUMem", "gpu_memory", FieldKind.SHARE, 6, "Most GPU memory held, mean by hours; it proves no use"),
    ("CPUEff", "cpu_efficiency", FieldKind.SHARE, 6, "CPU time used of that held, of measured runs with GPUs"),
    ("MemEff", "memory_efficiency", FieldKind.SHARE, 6, "Most memory held of the limit, mean by hours"),
    ("Users", "users", FieldKind.COUNT, 5, "Users"),
)
SHOWN = ("Unknown", "Jobs", "GPUHours", "Util", "IdleGPUh", "Idle", "IdleLow", "IdleHigh", "Inside")
CLASS_SHOWN = ("Jobs", "Users", "GPUHours", "Share", "IdleGPUh", "CPUEff", "MemEff")
BY_JOB = declare_fields(
    ("JobID", "job_id", FieldKind.TEXT, 12, "The job"),
    ("State", "state", FieldKind.TEXT, 10, "State, as last recorded"),
    ("Elapsed", "run_time_s", FieldKind.LENGTH, 10, "How long it ran"),
    ("TimeEff", "time_efficiency", FieldKind.SHARE, 7, "Run time of the time limit"),
    ("CPUEff", "cpu_efficiency", FieldKind.SHARE, 6, "CPU time used of that held"),
    ("MemEff", "memory_efficiency", FieldKind.SHARE, 6, "Most memory held of the limit"),
    ("GPUs", "gpus", FieldKind.SIZE, 5, "GPUs"),
    ("GPUEff", "utilization", FieldKind.SHARE, 6, "Mean utilization of its GPUs"),
    ("IdleGPUs", "idle_gpus", FieldKind.SIZE, 8, "GPUs below 1 % over the run"),
    ("GPUMem", "gpu_memory", FieldKind.SHARE, 6, "Most memory held on a GPU; it proves no use"),
    ("LongestIdle", "longest_idle_s", FieldKind.LENGTH, 11, "Longest time below 1 %"),
    ("Source", "source", FieldKind.TEXT, 10, "Who measured its GPUs, else its CPUs and memory"),
    ("Busy", "busy_means", FieldKind.TEXT, 16, "What busy means there"),
    ("Quality", "quality", FieldKind.TEXT, 8, "How far the measurement is trusted; only ok counts in sums"),
    ("User", "user", FieldKind.TEXT, 12, "Whose job"),
    ("Restart", "restart", FieldKind.COUNT, 7, "Number of the run in its job"),
)
JOB_SHOWN = ("JobID", "State", "Elapsed", "TimeEff", "CPUEff", "MemEff", "GPUs", "GPUEff", "IdleGPUs", "GPUMem")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UseReport:
    """What jobs used in a window.

    Attributes
    ----------
    table : ReportTable
    sentences : tuple of str
        The share that was not measured, then what is known of the rest, and who measured it.
    """

    table: ReportTable
    sentences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"sentences": [*self.sentences], **as_json(self.table)}


def fields_by(by: str) -> tuple[Field, ...]:
    """Return the fields of a report."""
    if by == "job":
        return BY_JOB
    name, width = GROUPS[by]
    return (Field(name=name, column="group", kind=FieldKind.TEXT, width=width, doc=f"{name} of the jobs"), *SUMS)


def use_report(query: ReportQuery, *, by: str) -> UseReport:
    """Report what jobs used in the window.

    Parameters
    ----------
    by : str
        ``job`` or a key of ``GROUPS``.
    """
    with open_context(query) as context:
        until = context.until + CLOCK_SKEW
        read = context.warehouse.jobs(
            context.cluster, until=until, unended_at=context.since, columns=[*READ], only=query.only
        )
        jobs = JOBS.conform(read)
        held, _ = held_s(jobs, since=context.since, until=context.until, now=context.query.now)
        jobs, held = jobs[held > 0].reset_index(drop=True), held[held > 0]
        used = context.job_use(jobs)
        runs = with_use(jobs, used.runs)
        note = unknown_gpus_note(jobs)
        unused = unused_sentence(runs, held)
        with_gpus = runs[runs["gpus"] > 0].reset_index(drop=True)
        hours = _hours(with_gpus, used, held[(jobs["gpus"] > 0).to_numpy()])
        if by == "job":
            rows = _job_rows(runs, used)
            table = ReportTable(title=context.title("What jobs used"), fields=BY_JOB, shown=JOB_SHOWN, rows=rows)
        else:
            rows = _sums(_groups(context, with_gpus, hours, by), by)
            total = dict(_sums(hours.assign(group="Total"), "").iloc[0]) if len(hours) else None
            shown = CLASS_SHOWN if by in {"class", "memory"} else SHOWN
            table = ReportTable(
                title=context.title(f"GPU hours used by {by}"),
                fields=fields_by(by),
                shown=(GROUPS[by][0], *shown),
                rows=rows,
                total=total,
                notes=tuple(filter(None, [COUNTED, note])),
            )
        table = replace(table, empty=EMPTY, timezone=context.timezone)
        sentences = (*idle_sentences(hours), *_holders(hours), *([unused] if unused else []))
        return UseReport(table=context.with_coverage(table), sentences=sentences)


def _hours(runs: pd.DataFrame, used: JobUse, held: Floats) -> pd.DataFrame:
    """Return the GPU hours of the window, with what else is summed."""
    hours = gpu_hours(runs, used.gpus, held)
    run = hours["run"].to_numpy()
    part = hours["part"].to_numpy()
    peak, total, memory, limit, cpu_s = (
        runs[name].to_numpy(dtype=np.float64)
        for name in ("gpu_memory_peak_mib", "gpu_memory_total_mib", "memory_peak_mib", "memory_limit_mib", "cpu_s")
    )
    cpus = (runs["cpus"] * runs["run_time_s"]).to_numpy()
    has_cpu = np.isfinite(cpu_s) & (cpus > 0)
    gpu_share, memory_share = _ratio(peak, total)[run], _ratio(memory, limit)[run]
    return hours.assign(
        held_s=held[run],
        busy=hours["measured"] * hours["utilization"].fillna(0.0) / 100,
        gpu_memory=hours["hours"] * np.nan_to_num(gpu_share),
        gpu_memory_known=hours["hours"] * np.isfinite(gpu_share),
        memory=hours["hours"] * np.nan_to_num(memory_share),
        memory_known=hours["hours"] * np.isfinite(memory_share),
        cpu=np.where(has_cpu, cpu_s, 0.0)[run] * part,
        cpu_known=np.where(has_cpu, cpus, 0.0)[run] * part,
    )


def _groups(context: ReportContext, runs: pd.DataFrame, hours: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the hours with the group of each row."""
    run = hours["run"].to_numpy()
    if by == "class":
        return hours.assign(group=np.array(UTILIZATION_CLASSES)[utilization_class(hours["utilization"].to_numpy())])
    if by == "memory":
        peak, total = (hours[f"gpu_memory_{name}_mib"].to_numpy() for name in ("peak", "total"))
        return hours.assign(group=np.array(MEMORY_CLASSES)[memory_class(peak, total)])
    if by == "week":
        weeks = list[pd.DataFrame]()
        for begin, end in _weeks(context):
            held, _ = held_s(runs, since=begin, until=end, now=context.query.now)
            part = hours[held[run] > 0]
            share = held[part["run"]] / part["held_s"]
            weeks.append(part.assign(group=f"{begin:%Y-%m-%d}", **{name: part[name] * share for name in IN_HOURS}))
        return pd.concat(weeks, ignore_index=True)
    if by == "kind":
        alike = with_name_words(runs)
        kinds = alike.groupby(KEYS, dropna=False, sort=False).ngroup().to_numpy()
        first = alike[~pd.Series(kinds).duplicated().to_numpy()]
        names = [
            f"{row['user'] or UNNAMED}: {describe_group({key: np.array([row[key]], dtype=object) for key in KEYS})}"
            for row in first.to_dict("records")
        ]
        return hours.assign(group=np.array(names, dtype=object)[kinds[run]])
    return hours.assign(group=runs[by].astype("object").fillna(UNNAMED).to_numpy()[run])


def _weeks(context: ReportContext) -> Iterator[tuple[datetime, datetime]]:
    """Yield begin and end of the window's weeks, which begin on its weekday at midnight."""
    begin, (midnight, _) = context.since, local_day(context.since, timezone=context.timezone)
    while begin < context.until:
        midnight, _ = local_day(midnight + timedelta(days=7, hours=12), timezone=context.timezone)
        yield begin, min(midnight, context.until)
        begin = midnight


def _sums(hours: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the sums of each group, that with most idle hours first."""
    held = hours[hours["hours"] > 0]
    groups = held.groupby("group", sort=False)
    sums = groups[[name for name in held if held[name].dtype == np.float64]].sum()
    by_user = (
        held.astype({"user": "object"}).groupby(["group", "user"], sort=False, dropna=False)[["idle", "measured"]].sum()
    )
    ranges = {
        name: ratio_interval(*(part[column].to_numpy() for column in ("idle", "measured")))
        for name, part in by_user.groupby(level="group")
    }
    rows = pd.DataFrame(
        {
            "unknown_share": 1 - sums["measured"] / sums["hours"],
            "jobs": groups["run"].nunique(),
            "gpu_hours": sums["hours"],
            "hours_share": sums["hours"] / (sums["hours"].sum() or np.nan),
            "utilization": _ratio(sums["busy"], sums["measured"]),
            "idle_hours": sums["idle"].where(sums["measured"] > 0),
            "idle_share": _ratio(sums["idle"], sums["measured"]),
            "idle_low": [ranges[name][0] for name in sums.index],
            "idle_high": [ranges[name][1] for name in sums.index],
            "inside_hours": sums["inside"].where(sums["measured"] > 0),
            "failed_hours": sums["failed"].where(sums["measured"] > 0),
            "gpu_memory": _ratio(sums["gpu_memory"], sums["gpu_memory_known"]),
            "cpu_efficiency": _ratio(sums["cpu"], sums["cpu_known"]),
            "memory_efficiency": _ratio(sums["memory"], sums["memory_known"]),
            "users": groups["user"].nunique(),
        }
    ).reset_index(names="group")
    order = {"class": UTILIZATION_CLASSES, "memory": MEMORY_CLASSES}.get(by)
    if order:
        unknown_first = [order[-1], *order[:-1]]
        return rows.sort_values("group", key=lambda names: names.map(unknown_first.index), ignore_index=True)
    if by == "week":
        return rows.sort_values("group", ignore_index=True)
    return rows.sort_values(["idle_hours", "gpu_hours"], ascending=False, na_position="last", ignore_index=True)


def _holders(hours: pd.DataFrame) -> Iterator[str]:
    """Yield who held most idle hours."""
    users = hours.groupby(hours["user"].astype("object").fillna(UNNAMED))["idle"].sum().nlargest(LARGEST)
    if len(named := users[users > 0]) > 1:
        yield f"Most idle GPU hours: {', '.join(f'{user} {idle:,.0f}' for user, idle in named.items())}."


def _job_rows(runs: pd.DataFrame, used: JobUse) -> pd.DataFrame:
    """Return a row for each run."""
    hours = gpu_hours(runs, used.gpus, np.ones(len(runs)))
    is_idle = np.bincount(hours["run"], weights=(hours["utilization"] < 1) * hours["part"], minlength=len(runs))
    cpu_s = runs["cpus"] * runs["run_time_s"]
    return runs.assign(
        time_efficiency=_ratio(runs["run_time_s"], runs["time_limit_s"]),
        cpu_efficiency=_ratio(runs["cpu_s"], cpu_s),
        memory_efficiency=_ratio(runs["memory_peak_mib"], runs["memory_limit_mib"]),
        gpu_memory=_ratio(runs["gpu_memory_peak_mib"], runs["gpu_memory_total_mib"]),
        utilization=runs["utilization"] / 100,
        idle_gpus=np.where(runs["is_measured"], is_idle * runs["gpus"], np.nan),
    )


def _ratio(part: Any, whole: Any) -> Floats:
    """Return a ratio, NaN where either is unknown or the whole is not above 0."""
    part, whole = (np.asarray(values, dtype=np.float64) for values in (part, whole))
    ratio: Floats = part / np.where(whole > 0, whole, np.nan)
    return ratio
