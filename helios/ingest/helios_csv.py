"""Reader and writer of the published Helios layout.

A file has one line of comma-separated fields for each job, and the names of the columns in its first line. Source:
github.com/S-Lab-System-Group/HeliosData, ``cluster_log.csv``. Two more columns are read and written where they exist:
``name`` (also ``jobname``) and ``time_limit`` (seconds, or a Slurm duration).

AcmeTrace's job logs have these columns and a workload type. Their times carry a UTC offset. The file of the Kalos
cluster also gives the memory of each pod. Source: github.com/InternLM/AcmeTrace, ``trace_seren.csv`` and
``trace_kalos.csv``; Hu et al., *Characterization of Large Language Model Development in the Datacenter*, NSDI 2024.
880,740 jobs, March to August 2023. Their ``duration`` is not read: in Seren it is end minus start, in Kalos end minus
*submission*, whatever its README says (its own example: submitted 11:00:58, started 11:01:08, ended 11:01:16, duration
18).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from helios.errors import FormatUnknown
from helios.ingest.delimited import MIB_PER_GIB, DelimitedRows, Translation, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.lines import created, head
from helios.ingest.parse import NOT_A_TIME, has_utc_offset, known_values, spans, strings
from helios.ingest.repair import Dialect, distinct_names
from helios.model import JOBS, JobState

FIELDS = (
    *("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state"),
    *("submit_time", "start_time", "end_time", "duration", "queue"),
)
EXTRA_FIELDS = ("name", "jobname", "time_limit")

# Shanghai AI Lab. Seren's times say +08:00 and Kalos' +00:00; the days of both are those of Shanghai.
ACME_ZONE = "Asia/Shanghai"
_SIZES = {"gpus": "gpu_num", "cpus": "cpu_num", "nodes": "node_num"}
_UNFINISHED = (JobState.PENDING.value, JobState.RUNNING.value, JobState.SUSPENDED.value)
REJOINED = "rows broken by a newline or a comma in a field were put together again"

COLUMNS_HELD = frozenset(
    {
        *("job_id", "name", "user", "partition", "state", "submitted_at", "started_at", "ended_at"),
        *("run_time_s", "time_limit_s", "nodes", "cpus", "gpus"),
    }
)
"""Columns of ``JOBS`` that the layout holds. The number of a restart is found again from the starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Column names of a family of files that share the Helios columns.

    Attributes
    ----------
    layout : str
        Its name, for messages.
    required : tuple of str
        Columns that every file of the family has.
    fields : tuple of str
        Its columns in their published order.
    name : tuple of str
        Columns that hold a job's name or what comes closest to it, the best first.
    duration_is_run_time : bool
        Whether ``duration`` is the run time; it is not read otherwise.
    gib_each_node : str, optional
        Column of the requested memory of each node, GiB.
    """

    layout: str
    required: tuple[str, ...]
    fields: tuple[str, ...]
    name: tuple[str, ...]
    duration_is_run_time: bool = True
    gib_each_node: str | None = None


PUBLISHED = Wording(layout="helios", required=("job_id", "submit_time"), fields=FIELDS, name=("name", "jobname"))
ACME = Wording(
    layout="acme",
    required=("job_id", "submit_time", "type", "gpu_time"),
    fields=(
        *("job_id", "user", "node_num", "gpu_num", "cpu_num", "mem_per_pod_gb", "type", "state"),
        *("submit_time", "start_time", "end_time", "duration", "queue", "gpu_time"),
    ),
    name=("type",),
    duration_is_run_time=False,
    gib_each_node="mem_per_pod_gb",
)


def has_columns(start: bytes, wording: Wording) -> bool:
    """Return whether a header has the columns of ``wording``."""
    return set(wording.required) <= set(column_names(start))


def column_names(start: bytes) -> tuple[str, ...]:
    """Return the column names in a file's first line, in lower case."""
    line = start.partition(b"\n")[0].decode("utf-8", errors="replace")
    return tuple(name.strip().strip('"').lower() for name in line.split(","))


def translate(reading: FileReading, wording: Wording) -> Iterator[JobRows]:
    """Yield a file whose columns are named as ``wording`` says.

    Raises
    ------
    FormatUnknown
        The first line does not name all required columns.
    """
    start = head(reading.path)
    names = column_names(start)
    if missing := [name for name in wording.required if name not in names]:
        raise FormatUnknown(
            f"{reading.path} is not of the {wording.layout} layout: its first line names no column "
            f"{' and no '.join(missing)}.",
            hint=f"Its first line should be: {','.join(wording.fields)}",
        )
    for rows in read_rows(reading, _dialect(start, names), [*wording.fields, *EXTRA_FIELDS]):
        reading.tally[REJOINED] += rows.rejoined
        yield _draft(rows, reading, wording)


def _layout(wording: Wording, *, zone: str = "UTC") -> Layout:
    return Layout(
        fits=partial(has_columns, wording=wording),
        drafts=partial(translate, wording=wording),
        local_times=lambda start: not has_utc_offset(start),
        zone=zone,
    )


LAYOUT, ACME_LAYOUT = _layout(PUBLISHED), _layout(ACME, zone=ACME_ZONE)


def write_helios_csv(jobs: pd.DataFrame, path: Path, *, timezone: str = "UTC") -> None:
    """Write jobs in the published Helios layout.

    The columns ``name`` and ``time_limit`` are added at the end of each line.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    path : Path
        Compressed with gzip where it ends in ``.gz``; the same jobs always give the same bytes.
    timezone : str
        Zone in which times are written, in whole seconds and without a zone, as the layout has them.

    Raises
    ------
    FileUnwritable
        The file cannot be written.
    """
    layout = _to_layout(JOBS.check(jobs), timezone)
    table = pa.Table.from_pandas(layout, preserve_index=False)
    # Arrow's "needed" quotes every text; the published files have no quotes.
    options = pa_csv.WriteOptions(quoting_style="needed" if _needs_quotes(layout) else "none", quoting_header="none")
    with created(path) as file:
        pa_csv.write_csv(table, file, options)


def _dialect(start: bytes, names: tuple[str, ...]) -> Dialect:
    distinct = distinct_names(names)
    return Dialect(
        names=distinct,
        separator=b",",
        quoted=True,
        header=start.partition(b"\n")[0],
        free_text=tuple(distinct.index(name) for name in PUBLISHED.name if name in distinct),
        plausible=lambda fields: bool(
            fields[distinct.index("job_id")] and fields[distinct.index("submit_time")][:4].isdigit()
        ),
    )


def _draft(rows: DelimitedRows, reading: FileReading, wording: Wording) -> JobRows:
    job = Translation(rows, reading)
    job.read_strings(job_id="job_id")
    job.read_states(known_values(job.texts("state")))
    job.jobs["submitted_at"] = submitted = job.times("submit_time")
    started = job.times("start_time", not_before=submitted)
    job.jobs["started_at"] = np.where(np.isnat(started), submitted + spans(job.numbers("queue")), started)
    job.note_runs()
    _read_run(job, wording)
    job.jobs |= {name: job.numbers(field) for name, field in _SIZES.items()}
    job.jobs["time_limit_s"] = job.durations("time_limit", bare_unit_s=1.0)
    if wording.gib_each_node is not None:
        job.jobs["memory_mib"] = job.numbers(wording.gib_each_node) * MIB_PER_GIB * job.jobs["nodes"]
    job.read_categories(user="user", partition="vc")
    job.jobs["name"] = strings(job.texts(*wording.name))
    return job.draft()


def _read_run(job: Translation, wording: Wording) -> None:
    started, over = job.jobs["started_at"], ~job.is_in(_UNFINISHED)
    ended = job.times("end_time", not_before=np.fmax(job.jobs["submitted_at"], started))
    duration = job.numbers("duration" if wording.duration_is_run_time else "")
    job.jobs["ended_at"] = np.where(over, np.where(np.isnat(ended), started + spans(duration), ended), NOT_A_TIME)
    # The duration was counted by Slurm. The difference of two local times is wrong by an hour where clocks change.
    run_time_s = np.where(np.isnan(duration), job.run_time_s(), duration)
    job.jobs["run_time_s"] = np.where(over, run_time_s, np.nan)


def _needs_quotes(layout: pd.DataFrame) -> bool:
    texts = (layout[name].astype("str") for name in ("job_id", "user", "vc", "name"))
    return any(text.str.contains(r'[",\r\n]', regex=True).any() for text in texts)


def _to_layout(jobs: pd.DataFrame, timezone: str) -> pd.DataFrame:
    times = {
        field: jobs[name].dt.tz_convert(timezone).dt.strftime("%Y-%m-%d %H:%M:%S")
        for field, name in (("submit_time", "submitted_at"), ("start_time", "started_at"), ("end_time", "ended_at"))
    }
    waited = (jobs["started_at"] - jobs["submitted_at"]).dt.total_seconds()
    plain = {"job_id": "job_id", "user": "user", "vc": "partition", "state": "state"}
    values = {field: jobs[name] for field, name in plain.items()}
    whole = {"cpu_num": jobs["cpus"], "node_num": jobs["nodes"], "duration": jobs["run_time_s"], "queue": waited}
    for field, numbers_ in whole.items():
        values[field] = numbers_.round().astype("Int64")
    gpus, limits = (
        jobs[name].astype("str").where(jobs[name].notna()).str.removesuffix(".0") for name in ("gpus", "time_limit_s")
    )
    limits = limits.replace("inf", "UNLIMITED")
    frame = pd.DataFrame({**values, **times, "gpu_num": gpus, "name": jobs["name"], "time_limit": limits})
    return frame[[*FIELDS, "name", "time_limit"]]
