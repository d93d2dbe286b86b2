"""Storing of what ended jobs used, as Prometheus measured it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pandas as pd

from helios.config import Settings
from helios.errors import UsageError
from helios.job_use.dialects import select
from helios.job_use.prometheus import Prometheus
from helios.job_use.use_reader import Gpu, JobRun, UseReader
from helios.metrics.job_use import EARLY_S
from helios.model import EARLY, GPU_USE, JOB_USE
from helios.model.frames import seconds_of
from helios.model.job_use import BusyMeans, UseQuality, UseSource
from helios.model.nodes import expand_valid
from helios.ports import Progress, no_progress
from helios.units import HOUR_S
from helios.warehouse import Warehouse

JOBS_AT_ONCE = 100
SETTLED = timedelta(minutes=10)
"""Time after the end of a job in which its last samples arrive."""
LONGEST_KEPT_DAYS = 4096
NIGHT_S = HOUR_S
"""Most time that a night asks for jobs, s: a server with years of samples is read in several nights."""
SHARED = 0.05
"""Share of the samples with another job on the GPU from which it counts as shared. One sample may have both jobs where
one follows the other."""
MOST_PERCENT = 100.5
"""A GPU cannot be busy for more than all the time; averages of 100 may be this far off."""
_BUSY = ("utilization", "utilization_p95", "utilization_max", "idle_share", "longest_idle_s", "utilization_later")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """What a reading of Prometheus brought.

    Attributes
    ----------
    dialect : str
        Exporter whose metrics of GPUs were read; empty: none names jobs.
    runs : dict of int
        Runs by the quality of what is stored of them.
    queries : int
        Queries that were answered.
    since : datetime
        Time of the oldest samples that the server keeps.
    """

    dialect: str
    runs: dict[str, int]
    queries: int
    since: datetime

    def line(self) -> str:
        """Return the result in one line."""
        counts = ", ".join(f"{number:,} {quality}" for quality, number in self.runs.items()) or "nothing new"
        return f"use of jobs from Prometheus ({self.dialect or 'no exporter of GPUs'}): {counts}"


def fetch_by_night(settings: Settings, cluster: str, *, now: datetime) -> str:
    """Store what ended jobs used, as ``fetch``, and return a line.

    It is empty where there is no Prometheus. What is not asked for in ``NIGHT_S`` is left to the next night.
    """
    return fetch(settings, cluster, now, most_s=NIGHT_S).line() if settings.prometheus.url else ""


def fetch(
    settings: Settings, cluster: str, now: datetime, *, most_s: float = math.inf, progress: Progress = no_progress
) -> FetchResult:
    """Store what ended jobs used, by Prometheus, the last submitted first.

    Runs that were asked for are not asked for again, so that a reading that was interrupted goes on. It goes back to
    the oldest samples that the server has.

    Parameters
    ----------
    most_s : float
        Time after which no more jobs are asked for, s.

    Raises
    ------
    UsageError
        There is no Prometheus, or no exporter in it names jobs.
    PrometheusUnavailable, PrometheusRefused
        It does not answer, its clock is wrong, or it refuses. What was read before is stored.
    """
    client = open_client(settings)
    client.refuse_wrong_clock()
    reader = UseReader(client, settings.prometheus)
    since = oldest_samples(client, reader, now)
    counts: Counter[str] = Counter()
    with Warehouse.open(settings.database.url) as warehouse:
        before, begun_s = now, time.monotonic()
        while time.monotonic() - begun_s < most_s:
            jobs = warehouse.runs_without_use(
                cluster, UseSource.PROMETHEUS, since=since, until=now - SETTLED, before=before, most=JOBS_AT_ONCE
            )
            if jobs.empty:
                break
            runs = runs_of(jobs)
            reader.read(runs)
            use, gpus = frames(runs, reader)
            early = early_use(runs, reader)
            warehouse.add_job_use(cluster, JOB_USE.conform(pd.concat([use, early])), gpus)
            counts.update(use["quality"].astype("str"))
            # Runs with the same submission may be left.
            before = jobs["submitted_at"].iloc[-1].to_pydatetime() + timedelta(microseconds=1)
            progress("jobs", min(1.0, (now - before) / (now - since)))
    name = reader.dialect.name if reader.dialect else ""
    return FetchResult(dialect=name, runs=dict(counts), queries=client.queries, since=since)


def early_use(runs: Sequence[JobRun], reader: UseReader) -> pd.DataFrame:
    """Ask for what runs used until ``EARLY_S`` after their start.

    Returns
    -------
    DataFrame
        Columns of ``JOB_USE``, with the source ``EARLY``. Shorter runs are left out.
    """
    early = [
        replace(run, end_s=run.begin_s + EARLY_S, found={}, host={}, counts_sm=False)
        for run in runs
        if not run.end_s < run.begin_s + EARLY_S  # one that still runs has no end
    ]
    if not early:
        return JOB_USE.empty()
    reader.read_early(early)
    return JOB_USE.conform(frames(early, reader)[0].assign(source=EARLY))


def open_client(settings: Settings) -> Prometheus:
    """Return a client of the Prometheus of the settings.

    Raises
    ------
    UsageError
        There is none.
    """
    if not settings.prometheus.url:
        raise UsageError("No Prometheus is named.", hint="Set url in the section [prometheus] of helios.toml.")
    return Prometheus(settings.prometheus)


def oldest_samples(client: Prometheus, reader: UseReader, now: datetime) -> datetime:
    """Return the time since which the server has samples, to about a day."""
    names = [metric.name for metric in reader.dialect.utilization] if reader.dialect else []
    series = select("", f'__name__=~"{"|".join(["up", *names])}"')

    def has(days: float) -> bool:
        return bool(client.query(f"count(last_over_time({series}[1h]))", at=(now - timedelta(days=days)).timestamp()))

    known, unknown = 0.0, 1.0
    while unknown < LONGEST_KEPT_DAYS and has(unknown):
        known, unknown = unknown, 2 * unknown
    while unknown - known > 1:
        middle = (known + unknown) / 2
        known, unknown = (middle, unknown) if has(middle) else (known, middle)
    return now - timedelta(days=unknown)


def runs_of(jobs: pd.DataFrame) -> list[JobRun]:
    """Return runs of rows of the warehouse, of which nothing is known yet."""
    nodes = {text: frozenset(expand_valid(text)) for text in jobs["node_list"].dropna().unique() if text}
    columns = [jobs[name].tolist() for name in ("submitted_at", "job_id", "restart", "gpus", "node_list")]
    spans = [seconds_of(jobs[name]).tolist() for name in ("started_at", "ended_at")]
    return [
        JobRun(
            submitted_at=submitted_at,
            job_id=job_id,
            restart=restart,
            begin_s=begin_s,
            end_s=end_s,
            gpus=gpus,
            nodes=nodes.get(node_list, frozenset()),
        )
        for submitted_at, job_id, restart, gpus, node_list, begin_s, end_s in zip(*columns, *spans, strict=True)
    ]


def frames(runs: Sequence[JobRun], reader: UseReader) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what runs used as frames of ``JOB_USE`` and of ``GPU_USE``."""
    jobs: list[dict[str, object]] = []
    gpus: list[dict[str, object]] = []
    for run in runs:
        key = {"submitted_at": run.submitted_at, "job_id": run.job_id, "restart": run.restart}
        key["source"] = UseSource.PROMETHEUS.value
        of_gpus = [_gpu_values(gpu, run, reader) for gpu in run.found.values()]
        jobs.append(key | _job_values(run, of_gpus, reader))
        for gpu, values in zip(run.found.values(), of_gpus, strict=True):
            kept = {name: value for name, value in values.items() if name in GPU_USE.by_name}
            gpus.append(key | {"node": gpu.node, "gpu": gpu.number} | kept)
    of_gpu = GPU_USE.conform(pd.DataFrame(gpus)) if gpus else GPU_USE.empty()
    return JOB_USE.conform(pd.DataFrame(jobs)), of_gpu.drop_duplicates(
        ["submitted_at", "job_id", "restart", "node", "gpu"]
    )


def _gpu_values(gpu: Gpu, run: JobRun, reader: UseReader) -> dict[str, float]:
    """Return what is known of a GPU in a run."""
    values = dict(gpu.values)
    is_shared = values.get("shared", 0.0) > SHARED
    is_covered = run.is_covered(values.get("covered_s"), reader.step_s)
    dialect = reader.dialect
    assert dialect is not None  # it has found the GPU
    if values.get("idle_share") == 0:
        values["longest_idle_s"] = 0.0
    elif values.get("idle_share") == 1 and is_covered:
        values["longest_idle_s"] = min(values["covered_s"], run.span_s)
    knows_slice = dialect.knows_slices or run.counts_sm
    unknown: set[str] = set()
    if is_shared or _is_busy_wrong(gpu) or (gpu.is_slice and not knows_slice):
        unknown |= {*_BUSY}
    if is_shared or gpu.is_slice or not _is_amount(values.get("power_w", 0.0)):  # the power is the whole card's
        unknown.add("power_w")
    names_processes = bool(dialect.shows_sm) and not run.counts_sm  # NVML says what each process holds, DCGM does not
    if _is_memory_wrong(gpu) or (is_shared and not names_processes):
        unknown.add("gpu_memory_peak_mib")
    known = {name: value for name, value in values.items() if name not in unknown}
    return known | ({"energy_j": known["power_w"] * run.span_s} if "power_w" in known and is_covered else {})


def _job_values(run: JobRun, of_gpus: Sequence[dict[str, float]], reader: UseReader) -> dict[str, object]:
    """Return what is known of a run of a job."""
    covered_s = _mean(_each(of_gpus, "covered_s")) if of_gpus else run.host.get("covered_s")
    covered_s = None if covered_s is None else min(covered_s, run.span_s)
    host = {name: value for name, value in run.host.items() if _is_amount(value) and name != "covered_s"}
    if not run.is_covered(run.host.get("covered_s"), reader.step_s):
        host.pop("cpu_s", None)  # the time of processors after the last sample is not known
    shared = [value > SHARED for value in _each(of_gpus, "shared")]
    if of_gpus and not shared and run.gpus >= 1:
        shared = [False]  # a GPU that Slurm gave whole, of an exporter that names one job for each
    step_s = run.step(reader.step_s)
    energy = [*_each(of_gpus, "energy_j")]
    row: dict[str, object] = {name: _mean(_each(of_gpus, name)) for name in (*_BUSY, "power_w")}
    row |= {name: max(_each(of_gpus, name), default=None) for name in ("gpu_memory_peak_mib", "gpu_memory_total_mib")}
    return (
        row
        | host
        | {
            "busy_means": _busy_means(run) if row["utilization"] is not None else None,
            "samples": None if covered_s is None else covered_s / step_s,
            "covered_s": covered_s,
            "gpus_measured": None if reader.dialect is None or run.gpus == 0 else float(len(of_gpus)),
            "energy_j": sum(energy) if energy and len(energy) == len(of_gpus) else None,
            "is_mig": float(any(gpu.is_slice for gpu in run.found.values())) if of_gpus else None,
            "is_shared": float(any(shared)) if shared else None,
            "quality": _quality(run, covered_s, reader.step_s).value,
        }
    )


def _quality(run: JobRun, covered_s: float | None, step_s: int) -> UseQuality:
    gpus = run.found.values()
    if any(map(_is_busy_wrong, gpus)) or any(map(_is_memory_wrong, gpus)):
        return UseQuality.BROKEN
    if not all(map(_is_amount, [*run.host.values(), *(gpu.values.get("power_w", 0.0) for gpu in gpus)])):
        return UseQuality.BROKEN
    if run.span_s < 2 * step_s or (covered_s is not None and covered_s < 2 * run.step(step_s)):
        return UseQuality.SHORT
    if not gpus and not run.host:
        return UseQuality.NONE
    is_whole = run.is_covered(covered_s, step_s) and not run.gpus > len(gpus)
    return UseQuality.OK if is_whole else UseQuality.PARTIAL


def _busy_means(run: JobRun) -> str | None:
    """Return what all GPUs of a run count as busy, None where they differ."""
    meanings = {BusyMeans.SM if run.counts_sm else gpu.metric.busy_means for gpu in run.found.values()}
    only = meanings.pop() if len(meanings) == 1 else None
    return None if only is None else only.value


def _is_busy_wrong(gpu: Gpu) -> bool:
    names = ("utilization", "utilization_p95", "utilization_max")
    return not all(0 <= gpu.values[name] <= MOST_PERCENT for name in names if name in gpu.values)


def _is_memory_wrong(gpu: Gpu) -> bool:
    peak_mib, total_mib = gpu.values.get("gpu_memory_peak_mib", 0.0), gpu.values.get("gpu_memory_total_mib", math.inf)
    return not 0 <= peak_mib <= 1.01 * total_mib


def _is_amount(value: float) -> bool:
    return 0 <= value < math.inf


def _each(rows: Iterable[dict[str, float]], name: str) -> list[float]:
    return [row[name] for row in rows if name in row]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
