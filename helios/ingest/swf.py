"""Reader and writer of the Standard Workload Format 2.2.

Source: Chapin et al., *Benchmarks and Standards for the Evaluation of Parallel Job Schedulers*, JSSPP 1999, and
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. A line has 18 numbers; -1 means unknown. Times are seconds
after UnixStartTime in the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from helios.errors import FormatUnknown
from helios.ingest.delimited import DelimitedRows, Translation, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout, RecordedMachine
from helios.ingest.lines import created, head
from helios.ingest.parse import NOT_A_TIME, category, without
from helios.ingest.repair import Dialect
from helios.model import JOBS, JobState, seconds_of

FIELDS = (
    *("job", "submit", "wait", "run", "procs", "cpu_time", "memory", "requested_procs", "requested_time"),
    *("requested_memory", "status", "user", "group", "executable", "queue", "partition", "preceding", "think"),
)
KIB_PER_MIB = 1024.0
_STATES = {0: JobState.FAILED, 1: JobState.COMPLETED, 5: JobState.CANCELLED}
# "2, 3, 4: partial executions": parts of a job that also has a line for the whole job.
_PARTIAL = (2, 3, 4)
_UNIX_START = re.compile(rb"^;\s*UnixStartTime:\s*(\d+)", re.MULTILINE)
_MACHINE = re.compile(rb"^;\s*(MaxNodes|MaxProcs):\s*([1-9]\d{0,8})\b", re.MULTILINE)
_NUMBERS = re.compile(rb"\s*(-?\d+(\.\d+)?\s+){17}-?\d+(\.\d+)?\s*")
PARTIAL = "partial executions belong to jobs that have their own line, and were skipped"
NO_START = "UnixStartTime is not in the header: times count from 1970, and only their differences mean anything"

# Slurm has more states than the standard: whatever ended otherwise than on demand failed.
_STATUS = {state.value: number for number, state in _STATES.items()} | {
    **dict.fromkeys((JobState.TIMEOUT.value, JobState.NODE_FAIL.value, JobState.OUT_OF_MEMORY.value), 0),
    **dict.fromkeys((JobState.BOOT_FAIL.value, JobState.DEADLINE.value), 0),
    **dict.fromkeys((JobState.PREEMPTED.value, JobState.REVOKED.value), 5),
}
COLUMNS_HELD = frozenset(
    {
        *("job_id", "name", "user", "group", "partition", "state", "submitted_at", "started_at", "ended_at"),
        *("run_time_s", "time_limit_s", "cpus", "cpus_requested", "memory_mib"),
    }
)
"""Columns of ``JOBS`` that the format holds. The number of a restart is found again from the starts."""
_LONGEST_ID = 18
_NUMBERED = {"user": "user", "group": "group", "executable": "name", "queue": "partition"}


def fits(start: bytes) -> bool:
    """Return whether a file begins with SWF comments or rows.

    Comments begin with a semicolon, and a row is a line of 18 numbers. A start without rows must have a comment with
    UnixStartTime.
    """
    lines = [line for line in start.split(b"\n")[:200] if line.strip()]
    rows = [line for line in lines if not line.lstrip().startswith(b";")]
    if not rows:
        return _UNIX_START.search(start) is not None
    return any(_NUMBERS.fullmatch(line) for line in rows[:20])


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield a file in the Standard Workload Format as translated rows.

    Raises
    ------
    FormatUnknown
        Nothing at its start looks like the format.
    """
    start = head(reading.path)
    if not fits(start):
        raise FormatUnknown(
            f"{reading.path} is not in the Standard Workload Format: no line at its start has 18 numbers.",
            hint="The format is described at https://www.cs.huji.ac.il/labs/parallel/workload/swf.html",
        )
    told = _UNIX_START.search(start)
    reading.tally[NO_START] += told is None
    dialect = Dialect(names=FIELDS, separator=b" ", squeezed=True, comment=b";")
    for rows in read_rows(reading, dialect, FIELDS):
        yield _draft(rows, reading, float(told[1]) if told else 0.0)


def machine(start: bytes) -> RecordedMachine | None:
    """Return the machine by MaxNodes and MaxProcs of the header.

    Where only one of them is known, a node has one processor.
    """
    sizes = {name: int(number) for name, number in _MACHINE.findall(start)}
    nodes = sizes.get(b"MaxNodes", sizes.get(b"MaxProcs"))
    return None if nodes is None else RecordedMachine(nodes, max(sizes.get(b"MaxProcs", nodes), nodes))


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda _: False, machine=machine)


def write_swf(
    jobs: pd.DataFrame, path: Path, *, timezone: str, cluster: str | None = None, machine: RecordedMachine | None = None
) -> tuple[str, ...]:
    """Write jobs in the Standard Workload Format, and return notes.

    Users, groups, names and partitions become numbers. Times are whole seconds.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order.
    path : Path
        Compressed with gzip where it ends in ``.gz``.
    timezone : str
        Zone of the cluster, for the header.
    cluster : str, optional
        Name for the header, which then lists the names of the partitions too. None: neither is written.
    machine : RecordedMachine, optional
        Nodes and CPUs of the cluster, for the header.

    Raises
    ------
    FileUnwritable
        The file cannot be written.
    """
    notes = []
    of_gpus = not (JOBS.check(jobs)["cpus"] > 0).any() and bool((jobs["gpus"] > 0).any())
    if of_gpus:
        notes.append(f"{path.name}: no job's CPUs are known, so that its processors are GPUs.")
        if parts := int((jobs["gpus"] % 1 > 0).sum()):
            notes.append(f"{path.name}: the parts of GPUs that {parts:,} jobs hold are rounded up to whole ones.")
    elif with_gpus := int((jobs["gpus"] > 0).sum()):
        notes.append(f"{path.name}: processors are CPUs; the format has no place for the GPUs of {with_gpus:,} jobs.")
    numeric = jobs["job_id"].str.fullmatch(f"[0-9]{{1,{_LONGEST_ID}}}")
    if not numeric.all():
        notes.append(f"{path.name}: jobs are numbered anew, since some ids are no numbers.")
    start_s = int(np.floor(seconds_of(jobs["submitted_at"]).min()))
    columns = _swf_columns(jobs, start_s, "gpus" if of_gpus else "cpus")
    numbers = jobs["job_id"].astype("int64").to_numpy() if numeric.all() else np.arange(1, len(jobs) + 1)
    table = pa.table({name: columns[name].astype(np.int64) for name in FIELDS} | {"job": numbers})
    lines = ["Version: 2.2", "Conversion: Helios", f"MaxJobs: {len(jobs)}", f"MaxRecords: {len(jobs)}"]
    lines += [f"UnixStartTime: {start_s}", f"TimeZoneString: {timezone}"]
    if machine is not None:
        lines += [f"MaxNodes: {machine.nodes}", f"MaxProcs: {machine.cpus}"]
    lines.append(f"Note: processors are {'GPUs' if of_gpus else 'CPUs'}")
    if cluster is not None:
        names = sorted(jobs["partition"].dropna().astype("str").unique())
        lines += [f"Computer: {_one_line(cluster)}", f"MaxQueues: {len(names)}"]
        lines += [f"Queue: {number} {_one_line(name)}" for number, name in enumerate(names, start=1)]
    header = "".join(f"; {line}\n" for line in lines)
    with created(path) as file:
        file.write(header.encode())
        pa_csv.write_csv(table, file, pa_csv.WriteOptions(include_header=False, delimiter=" "))
    return tuple(notes)


def _swf_columns(jobs: pd.DataFrame, start_s: int, size: str) -> dict[str, NDArray[np.float64]]:
    submitted, started, ended = (
        np.floor(seconds_of(jobs[f"{event}_at"])) for event in ("submitted", "started", "ended")
    )
    run = jobs["run_time_s"].to_numpy(dtype=np.float64)
    never = np.isnan(started) & (jobs["state"] == JobState.CANCELLED.value).to_numpy()
    unstarted = np.isnan(started) & np.isnan(run)
    held = np.ceil(jobs[size].to_numpy(dtype=np.float64))
    asked = np.ceil(jobs[f"{size}_requested"].to_numpy(dtype=np.float64))
    asked = np.where(unstarted & ~(asked > 0), held, asked)
    of_memory = np.where(asked > 0, asked, held)
    limit = jobs["time_limit_s"].to_numpy(dtype=np.float64)
    kib = jobs["memory_mib"].to_numpy(dtype=np.float64) * KIB_PER_MIB
    known = {
        "submit": submitted - start_s,
        "wait": np.maximum(np.where(never, ended, started) - submitted, 0.0),
        "run": run,
        "procs": np.where(unstarted | ~(held > 0), np.nan, held),
        "requested_procs": np.where(asked > 0, asked, np.nan),
        "requested_time": np.where(np.isfinite(limit), limit, np.nan),
        "requested_memory": np.divide(kib, of_memory, out=np.full(len(jobs), np.nan), where=of_memory > 0),
        "status": jobs["state"].astype("object").map(_STATUS).to_numpy(dtype=np.float64),
        **{field: _codes(jobs[name]) for field, name in _NUMBERED.items()},
    }
    unknown = np.full(len(jobs), np.nan)
    return {name: np.nan_to_num(np.round(known.get(name, unknown)), nan=-1.0) for name in FIELDS}


def _codes(names: pd.Series[Any]) -> NDArray[np.float64]:
    """Return the number of each name, from 1."""
    codes, _ = pd.factorize(names.astype("str"), sort=True)
    return np.where(codes < 0, np.nan, codes + 1.0)


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _SwfTranslation(Translation):
    """Translation of fields in which -1 means unknown."""

    def numbers(self, *fields: str) -> NDArray[np.float64]:
        values = super().numbers(*fields)
        return np.where(values == -1, np.nan, values)

    def texts(self, *fields: str) -> pa.Array:
        return without(super().texts(*fields), "-1")


def _draft(rows: DelimitedRows, reading: FileReading, unix_start_s: float) -> JobRows:
    job = _SwfTranslation(rows, reading)
    status = job.numbers("status")
    job.read_strings(job_id="job")
    codes = np.full(len(status), -1, dtype=np.int8)
    for code, number in enumerate(_STATES):
        codes[status == number] = code
    names = pd.Index([state.value for state in _STATES.values()], dtype="str")
    job.jobs["state"] = pd.Categorical.from_codes(codes, categories=names)
    skipped = np.isin(status, _PARTIAL)
    reading.tally[PARTIAL] += int(skipped.sum())
    submitted_s = unix_start_s + job.numbers("submit")
    job.jobs["submitted_at"] = job.instants(submitted_s)
    left_queue_s = submitted_s + job.numbers("wait")
    job.jobs["started_at"] = job.instants(left_queue_s)
    job.note_runs()
    run, procs = job.numbers("run"), job.numbers("procs")
    # By the standard, a job that was cancelled before it started waited until the cancellation, and has neither run
    # time nor processors.
    unstarted = job.is_in((JobState.CANCELLED.value,)) & ~(run > 0) & ~(procs > 0)
    job.jobs["started_at"] = np.where(unstarted, NOT_A_TIME, job.jobs["started_at"])
    job.jobs["ended_at"] = job.instants(left_queue_s + np.where(unstarted, 0.0, run))
    job.jobs["run_time_s"] = np.where(unstarted, np.nan, run)
    given, asked = job.numbers("procs"), job.numbers("requested_procs")
    job.jobs["cpus"] = np.where(given > 0, given, asked)
    job.jobs["cpus_requested"] = np.where(asked > 0, asked, np.nan)
    job.jobs["time_limit_s"] = job.numbers("requested_time")
    job.jobs["memory_mib"] = job.numbers("requested_memory") / KIB_PER_MIB * np.where(asked > 0, asked, given)
    job.read_categories(user="user", group="group")
    job.jobs["partition"] = category(pc.coalesce(job.texts("queue"), job.texts("partition")))
    job.read_strings(name="executable")
    return job.draft(skipped=skipped)
