"""Reader of the Standard Workload Format 2.2 of the Parallel Workloads Archive.

Source: Chapin et al., *Benchmarks and Standards for the Evaluation of Parallel Job Schedulers*, JSSPP 1999, and
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. A line has 18 numbers; -1 means unknown. Times are seconds
after UnixStartTime in the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FormatUnknown
from helios.ingest.checks import CheckResults, Reason
from helios.ingest.delimited import DelimitedRows, Dialect, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.lines import head
from helios.ingest.parse import NEVER, Instants, category, instants, numbers, strings
from helios.model import JobState

FIELDS = (
    "job",
    "submit",
    "wait",
    "run",
    "procs",
    "cpu_time",
    "memory",
    "requested_procs",
    "requested_time",
    "requested_memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding",
    "think",
)
KIB_PER_MIB = 1024.0
_STATES = {0: JobState.FAILED, 1: JobState.COMPLETED, 5: JobState.CANCELLED}
# "2, 3, 4: partial executions": parts of a job that also has a line for the whole job.
_PARTIAL = (2, 3, 4)
_UNIX_START = re.compile(rb"^;\s*UnixStartTime:\s*(\d+)", re.MULTILINE)
_NUMBERS = re.compile(rb"\s*(-?\d+(\.\d+)?\s+){17}-?\d+(\.\d+)?\s*")
PARTIAL = "partial executions belong to jobs that have their own line, and were skipped"
NO_START = "UnixStartTime is not in the header: times count from 1970, and only their differences mean anything"


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
    columns = ["job", "submit", "wait", "status"] if reading.only else FIELDS
    for rows in read_rows(reading, dialect, columns):
        yield _draft(rows, reading, float(told[1]) if told else 0.0)


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda _: False)


def _draft(rows: DelimitedRows, reading: FileReading, unix_start_s: float) -> JobRows:
    results = CheckResults(len(rows))
    status = _number(rows, "status", results)
    jobs: dict[str, Any] = {"job_id": strings(_label(rows, "job")), "state": _states(status)}
    skipped = np.isin(status, _PARTIAL)
    reading.tally[PARTIAL] += int(skipped.sum())
    submit = _number(rows, "submit", results)
    jobs["submitted_at"] = _instants(unix_start_s + submit, results)
    wait = _number(rows, "wait", results)
    jobs["started_at"] = _instants(unix_start_s + submit + wait, results)
    if reading.only is None:
        _read_run(jobs, rows, results, unix_start_s + submit + wait)
        _read_sizes(jobs, rows, results)
        _read_labels(jobs, rows)
    return rows.draft(jobs, results, skipped=skipped)


def _read_run(
    jobs: dict[str, Any], rows: DelimitedRows, results: CheckResults, left_queue_s: NDArray[np.float64]
) -> None:
    run, procs = _number(rows, "run", results), _number(rows, "procs", results)
    # By the standard, a job that was cancelled before it started waited until the cancellation, and has neither run
    # time nor processors.
    cancelled = np.asarray(jobs["state"] == JobState.CANCELLED.value)
    unstarted = cancelled & ~(run > 0) & ~(procs > 0)
    jobs["started_at"] = np.where(unstarted, NEVER, jobs["started_at"])
    jobs["ended_at"] = _instants(left_queue_s + np.where(unstarted, 0.0, run), results)
    jobs["run_time_s"] = np.where(unstarted, np.nan, run)


def _read_sizes(jobs: dict[str, Any], rows: DelimitedRows, results: CheckResults) -> None:
    asked = _number(rows, "requested_procs", results)
    jobs["cpus"] = np.where(asked > 0, asked, _number(rows, "procs", results))
    jobs["gpus"] = np.zeros(len(rows))
    jobs["time_limit_s"] = _number(rows, "requested_time", results)
    jobs["memory_mib"] = _number(rows, "requested_memory", results) / KIB_PER_MIB * jobs["cpus"]


def _read_labels(jobs: dict[str, Any], rows: DelimitedRows) -> None:
    jobs["user"] = category(_label(rows, "user"))
    jobs["group"] = category(_label(rows, "group"))
    jobs["partition"] = category(pc.coalesce(_label(rows, "queue"), _label(rows, "partition")))
    jobs["name"] = strings(_label(rows, "executable"))


def _number(rows: DelimitedRows, field: str, results: CheckResults) -> NDArray[np.float64]:
    values, bad = numbers(rows.columns[field])
    results.refuse(bad, Reason.UNREADABLE_NUMBER)
    return np.where(values == -1, np.nan, values)


def _label(rows: DelimitedRows, field: str) -> pa.Array:
    texts = rows.columns[field]
    return pc.if_else(pc.equal(texts, "-1"), pa.scalar(None, pa.string()), texts)


def _states(status: NDArray[np.float64]) -> pd.Categorical:
    codes = np.full(len(status), -1, dtype=np.int8)
    for code, number in enumerate(_STATES):
        codes[status == number] = code
    names = pd.Index([state.value for state in _STATES.values()], dtype="str")
    return pd.Categorical.from_codes(codes, categories=names)


def _instants(seconds: NDArray[np.float64], results: CheckResults) -> Instants:
    found, bad = instants(seconds)
    results.refuse(bad, Reason.UNREADABLE_TIME)
    return found
