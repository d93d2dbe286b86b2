"""Reader of the Standard Workload Format 2.2 of the Parallel Workloads Archive.

Source: Chapin et al., *Benchmarks and Standards for the Evaluation of Parallel Job Schedulers*, JSSPP 1999, and
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. A line has 18 numbers; -1 means unknown. Times are seconds
after UnixStartTime in the header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from helios.errors import FormatUnknown
from helios.ingest.delimited import DelimitedRows, Dialect, read_rows
from helios.ingest.job_rows import FileReading, JobRows, Layout, RecordedMachine
from helios.ingest.lines import head
from helios.ingest.parse import NEVER, category, without
from helios.ingest.translation import Translation
from helios.model import JobState

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
    job.jobs["state"] = _states(status)
    skipped = np.isin(status, _PARTIAL)
    reading.tally[PARTIAL] += int(skipped.sum())
    submitted_s = unix_start_s + job.numbers("submit")
    job.jobs["submitted_at"] = job.instants(submitted_s)
    left_queue_s = submitted_s + job.numbers("wait")
    job.jobs["started_at"] = job.instants(left_queue_s)
    job.note_runs()
    _read_run(job, left_queue_s)
    given, asked = job.numbers("procs"), job.numbers("requested_procs")
    job.jobs["cpus"] = np.where(given > 0, given, asked)
    job.jobs["cpus_requested"] = np.where(asked > 0, asked, np.nan)
    job.jobs["gpus"] = np.zeros(len(rows))
    job.jobs["time_limit_s"] = job.numbers("requested_time")
    job.jobs["memory_mib"] = job.numbers("requested_memory") / KIB_PER_MIB * np.where(asked > 0, asked, given)
    job.read_categories(user="user", group="group")
    job.jobs["partition"] = category(pc.coalesce(job.texts("queue"), job.texts("partition")))
    job.read_strings(name="executable")
    return job.draft(skipped=skipped)


def _read_run(job: Translation, left_queue_s: NDArray[np.float64]) -> None:
    run, procs = job.numbers("run"), job.numbers("procs")
    # By the standard, a job that was cancelled before it started waited until the cancellation, and has neither run
    # time nor processors.
    unstarted = job.is_in((JobState.CANCELLED.value,)) & ~(run > 0) & ~(procs > 0)
    job.jobs["started_at"] = np.where(unstarted, NEVER, job.jobs["started_at"])
    job.jobs["ended_at"] = job.instants(left_queue_s + np.where(unstarted, 0.0, run))
    job.jobs["run_time_s"] = np.where(unstarted, np.nan, run)


def _states(status: NDArray[np.float64]) -> pd.Categorical:
    codes = np.full(len(status), -1, dtype=np.int8)
    for code, number in enumerate(_STATES):
        codes[status == number] = code
    names = pd.Index([state.value for state in _STATES.values()], dtype="str")
    return pd.Categorical.from_codes(codes, categories=names)
