"""Reader of the Alibaba PAI 2020 GPU trace.

It reads the table of jobs. The table of tasks must lie beside it; the table of group tags is used where it is there.

Source: github.com/alibaba/clusterdata, ``cluster-trace-gpu-v2020``; Weng et al., *MLaaS in the Wild*, NSDI 2022.
Two months of a cluster with 6,500 GPUs. The files have no line of column names; the published ``.header`` files do.

The job table says who submitted when and how it ended, but not how much was asked for: a job's size is the sum over
its tasks. A task asks for ``inst_num`` times ``plan_gpu`` per cent of a GPU, and shares GPUs with others.

Times are seconds from a shifted origin; read as seconds after 1970 in the zone of Shanghai, hours and weekdays are
true and dates are not.

Tasks lie in no order, so the whole table of tasks is summed by job before the first job is read. That takes some 60
bytes of memory for each task, and as many for each group tag.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FormatUnknown
from helios.ingest.delimited import MIB_PER_GIB, DelimitedRows, Translation, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout, Refused, RunKeys
from helios.ingest.lines import head
from helios.ingest.parse import NOT_A_TIME, CheckResults, Instants, Reason, category, known_values, numbers, strings
from helios.ingest.repair import Dialect
from helios.model import JobState

PER_CENT = 0.01
_LINES_LOOKED_AT = 20
_STATUS = frozenset({"Terminated", "Failed", "Running", "Waiting"})
_SECONDS = re.compile(r"(\d+(\.\d*)?)?", re.ASCII)

Floats = NDArray[np.float64]

_NO_TASKS = pd.DataFrame(
    {
        "job": np.empty(0, dtype=np.uint64),
        **{name: np.empty(0) for name in ("gpus", "cpus", "memory_mib", "started_s")},
        "gpu_type": np.empty(0, dtype=object),
    }
)

ZONE = "Asia/Shanghai"
_THEIR_STATES = pa.array(["Terminated", "Waiting"])
_OUR_STATES = pa.array([JobState.COMPLETED.value, JobState.PENDING.value])
_UNFINISHED = (JobState.PENDING.value, JobState.RUNNING.value)
# Sums of percentages carry binary rounding errors, with which a whole number of GPUs would not be whole.
_DECIMALS = 6

NO_TASK = "jobs have no task in the task table: their start and size are unknown"
NO_TAG = "jobs have no group tag and hence no name"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTable:
    """One table of the trace.

    Attributes
    ----------
    name : str
        Name of its file, without endings.
    names : tuple of str
        Its columns, in the order of the file.
    """

    name: str
    names: tuple[str, ...]

    def fits(self, start: bytes) -> bool:
        """Return whether a file begins with a row of this table.

        One of the first 20 lines must have as many fields as the table, with a known status and two times.
        """
        lines = start.decode("utf-8", errors="replace").split("\n")[:_LINES_LOOKED_AT]
        return any(self._is_row(line.rstrip("\r").split(",")) for line in lines)

    def dialect(self, start: bytes) -> Dialect:
        """Return how this table's file separates its fields.

        The first line is taken as a header where it names this table's columns.
        """
        first = start.partition(b"\n")[0]
        named = first.decode("utf-8", errors="replace").strip() == ",".join(self.names)
        return Dialect(names=self.names, separator=b",", quoted=True, header=first if named else None)

    def _is_row(self, fields: list[str]) -> bool:
        if len(fields) != len(self.names):
            return False
        row = dict(zip(self.names, fields, strict=True))
        times = (row.get("start_time", "-"), row.get("end_time", "-"))
        return row.get("status") in _STATUS and all(_SECONDS.fullmatch(time) for time in times)


JOBS = TraceTable(name="pai_job_table", names=("job_name", "inst_id", "user", "status", "start_time", "end_time"))
TASKS = TraceTable(
    name="pai_task_table",
    names=(
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
)
GROUP_TAGS = TraceTable(name="pai_group_tag_table", names=("inst_id", "user", "gpu_type_spec", "group", "workload"))


def _sum_tasks(rows: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the requested resources of each job, summed over its tasks.

    The index is of :func:`hash_names`. The earliest start of a task is the start of the job; the GPU types are joined.
    """
    tasks = pd.concat([_NO_TASKS, *rows], ignore_index=True) if rows else _NO_TASKS
    by_job = tasks.groupby("job")
    jobs = by_job[["gpus", "cpus", "memory_mib"]].sum(min_count=1)
    return jobs.assign(started_s=by_job["started_s"].min(), gpu_type=_kinds(tasks[tasks["gpus"] > 0]), has_task=True)


def _task_rows(rows: DelimitedRows, results: CheckResults) -> pd.DataFrame:
    """Return the valid rows of a task table."""
    results.refuse(rows.columns["job_name"].is_null().to_numpy(zero_copy_only=False), Reason.MISSING_JOB_ID)
    instances = np.nan_to_num(_amount(rows, "inst_num", results), nan=1.0)
    asked = {field: _amount(rows, field, results) * instances for field in ("plan_gpu", "plan_cpu", "plan_mem")}
    started = _amount(rows, "start_time", results)
    frame = pd.DataFrame(
        {
            "job": hash_names(rows.columns["job_name"]),
            "gpus": asked["plan_gpu"] * PER_CENT,
            "cpus": asked["plan_cpu"] * PER_CENT,
            "memory_mib": asked["plan_mem"] * MIB_PER_GIB,
            "started_s": np.where(started > 0, started, np.nan),
            "gpu_type": pd.Series(category(rows.columns["gpu_type"])).astype(object),
        }
    )
    return frame[results.accepted]


def hash_names(names: pa.Array) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each name.

    Among a million names, two have the same hash with a probability of 3 in 100 million.
    """
    return pd.util.hash_array(pc.fill_null(names, "").to_numpy(zero_copy_only=False), categorize=False)


def _amount(rows: DelimitedRows, field: str, results: CheckResults) -> Floats:
    values, bad = numbers(rows.columns[field])
    results.refuse(bad, Reason.UNREADABLE_NUMBER)
    results.refuse(values < 0, Reason.NEGATIVE_SIZE)
    return values


def _kinds(rows: pd.DataFrame) -> pd.Series[Any]:
    """Return the GPU types of each job's tasks, joined by commas."""
    pairs = rows[["job", "gpu_type"]].dropna().drop_duplicates().sort_values(["job", "gpu_type"])
    several = pairs["job"].duplicated(keep=False)
    joined = pairs[several].groupby("job")["gpu_type"].agg(",".join)
    return pd.Series(pd.concat([pairs[~several].set_index("job")["gpu_type"], joined]))


def fits(start: bytes) -> bool:
    """Return whether a file begins like an Alibaba table."""
    return JOBS.fits(start) or TASKS.fits(start)


def companions(path: Path) -> tuple[Path, ...]:
    """Return those tables beside a job table that exist."""
    return tuple(found for table in (TASKS, GROUP_TAGS) if (found := _beside(path, table)) is not None)


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield translated rows of a job table.

    Raises
    ------
    FormatUnknown
        It is another table, or the task table is not beside it.
    """
    _refuse_other_tables(reading.path)
    tasks = yield from _tasks(reading)
    tags = yield from _tags(reading)
    for rows in read_rows(reading, JOBS.dialect(head(reading.path)), JOBS.names):
        yield _draft(rows, reading, tasks, tags)


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda _: False, zone=ZONE, companions=companions)


def _beside(path: Path, table: TraceTable) -> Path | None:
    beside = (path.with_name(f"{table.name}{ending}") for ending in (".csv", ".csv.gz"))
    return next((found for found in beside if found.is_file()), None)


def _refuse_other_tables(path: Path) -> None:
    start = head(path)
    if TASKS.fits(start):
        raise FormatUnknown(
            f"{path} is PAI's table of tasks, which does not say who submitted them when.",
            hint=f"Give the table of jobs, {JOBS.name}.csv, with this one beside it as {TASKS.name}.csv.",
        )
    if not JOBS.fits(start):
        raise FormatUnknown(
            f"{path} is not PAI's table of jobs: no line at its start has its six fields.",
            hint=f"It is the file {JOBS.name}.csv of github.com/alibaba/clusterdata, cluster-trace-gpu-v2020",
        )
    if _beside(path, TASKS) is None:
        raise FormatUnknown(
            f"{path} is PAI's table of jobs, which does not say how many GPUs they ask for.",
            hint=f"Put {TASKS.name}.csv (or .csv.gz) beside it; {GROUP_TAGS.name}.csv too, for names.",
        )


def _tasks(reading: FileReading) -> Generator[JobRows, None, pd.DataFrame]:
    """Read and sum the task table.

    Rows of it that make no sense are yielded as rejects, without jobs.
    """
    tasks: list[pd.DataFrame] = []
    for rows in _rows_beside(reading, TASKS):
        results = CheckResults(len(rows))
        tasks.append(_task_rows(rows, results))
        yield from _refusals(rows, results, TASKS)
    return _sum_tasks(tasks)


def _tags(reading: FileReading) -> Generator[JobRows, None, pd.Series[Any]]:
    """Read the group tag of each job instance.

    The index is of :func:`hash_names`. Jobs with the same tag run the same task repeatedly, as the trace's authors
    found; it is read as the job's name. Of several tags for one instance the first counts.
    """
    found = [pd.Series([], index=pd.Index([], dtype=np.uint64), dtype=object)]
    for rows in _rows_beside(reading, GROUP_TAGS):
        tags = pd.Series(category(rows.columns["group"]), index=hash_names(rows.columns["inst_id"]))
        found.append(tags[tags.notna()].astype(object))
        yield from _refusals(rows, CheckResults(len(rows)), GROUP_TAGS)
    known = pd.concat(found).astype("category")
    return known[~known.index.duplicated()]


def _rows_beside(reading: FileReading, table: TraceTable) -> Iterator[DelimitedRows]:
    path = _beside(reading.path, table)
    if path is not None:
        yield from read_rows(replace(reading, path=path), table.dialect(head(path)), table.names)


def _refusals(rows: DelimitedRows, results: CheckResults, table: TraceTable) -> Iterator[JobRows]:
    """Yield the rejects of a table that holds no jobs.

    The name of the table is put before the text of each line.
    """
    if not rows.refused and results.accepted.all():
        return
    named = f"{table.name}: ".encode()
    nothing = np.full(len(rows), NOT_A_TIME)
    yield JobRows(
        jobs={"job_id": strings(rows.columns[table.names[0]]), "submitted_at": nothing, "started_at": nothing},
        runs=RunKeys(results.accepted, nothing),
        results=results,
        skipped=results.accepted,
        refused=[Refused(refused.line, refused.reason, named + refused.text) for refused in rows.refused],
        texts=replace(rows.texts, block=replace(rows.texts.block, bytes_read=0), prefix=named),
    )


def _draft(rows: DelimitedRows, reading: FileReading, tasks: pd.DataFrame, tags: pd.Series[Any]) -> JobRows:
    job = Translation(rows, reading)
    asked = tasks.reindex(hash_names(rows.columns["job_name"])).reset_index(drop=True)
    job.read_strings(job_id="job_name")
    texts = known_values(rows.columns["status"])
    words = pc.index_in(texts, value_set=_THEIR_STATES)
    job.read_states(pc.coalesce(_OUR_STATES.take(words), texts))
    job.jobs["submitted_at"] = _instants(job, "start_time")
    job.jobs["started_at"] = job.instants(asked["started_s"].to_numpy(dtype=np.float64))
    job.note_runs()
    job.jobs["ended_at"] = np.where(job.is_in(_UNFINISHED), NOT_A_TIME, _instants(job, "end_time"))
    job.jobs["run_time_s"] = job.run_time_s()
    sized = asked["has_task"].notna().to_numpy()
    # A task without a share of GPUs asks for none.
    gpus = np.nan_to_num(asked["gpus"].to_numpy(dtype=np.float64)).round(_DECIMALS)
    job.jobs["gpus"] = np.where(sized, gpus, np.nan)
    job.reading.tally[NO_TASK] += int((~sized).sum())
    job.jobs["gpu_type"] = pd.Categorical(asked["gpu_type"])
    job.jobs |= {name: asked[name].to_numpy(dtype=np.float64) for name in ("cpus", "memory_mib")}
    job.read_categories(user="user")
    found = tags.reindex(hash_names(rows.columns["inst_id"])).astype(object)
    job.jobs["name"] = strings(pa.array(found.where(found.notna(), None), pa.string()))
    reading.tally[NO_TAG] += int(job.jobs["name"].isna().sum())
    return job.draft()


def _instants(job: Translation, field: str) -> Instants:
    seconds = job.numbers(field)
    # The trace has 0 for an unknown time; the notebook of its authors reads it so.
    return job.instants(np.where(seconds == 0, np.nan, seconds))
