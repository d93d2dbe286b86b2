"""Small trace files, and what is read from them."""

import gzip
from pathlib import Path

import pandas as pd

from helios.ingest import TraceFormat, open_trace
from helios.model import Batch

HELIOS_HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"


def a_helios_row(
    *,
    job_id="1",
    user="ann",
    vc="vc1",
    gpus="8",
    cpus="64",
    nodes="1",
    state="COMPLETED",
    submit="2020-04-01 10:00:00",
    start="2020-04-01 10:00:05",
    end="2020-04-01 11:00:05",
    duration="3600",
    queue="5",
):
    return ",".join([job_id, user, vc, gpus, cpus, nodes, state, submit, start, end, duration, queue])


def a_helios_file(folder: Path, *rows: str, header: str = HELIOS_HEADER) -> Path:
    return a_file(folder, "\n".join([header, *rows]) + "\n")


def a_sacct_row(**fields: str) -> dict[str, str]:
    return {
        "JobIDRaw": "100",
        "JobID": "100",
        "State": "COMPLETED",
        "Submit": "2021-05-01T10:00:00",
        "Start": "2021-05-01T10:01:00",
        "End": "2021-05-01T11:01:00",
        **fields,
    }


def a_sacct_file(folder: Path, *rows: dict[str, str]) -> Path:
    names = list(rows[0])
    lines = ["|".join(names), *("|".join(row[name] for name in names) for row in rows)]
    return a_file(folder, "\n".join(lines) + "\n")


RAW_FIELDS = (
    *("jobid", "jobidraw", "cluster", "partition", "qos", "account", "group", "gid", "user", "uid"),
    *("submit", "eligible", "start", "end", "elapsed", "exitcode", "state", "nnodes", "ncpus", "reqcpus"),
    *("reqmem", "reqtres", "alloctres", "timelimit", "nodelist", "jobname"),
)


def a_raw_row(**fields: str) -> str:
    row = dict.fromkeys(RAW_FIELDS, "") | {
        "jobid": "7",
        "jobidraw": "7",
        "cluster": "ada",
        "submit": "2016-12-30T10:00:00",
        "start": "2016-12-30T10:01:00",
        "end": "2016-12-30T11:01:00",
        "state": "COMPLETED",
        "jobname": "fit",
    }
    return "|".join((row | fields).values())


def an_swf_row(**fields: int) -> str:
    row = {
        "job": 1,
        "submit": 100,
        "wait": 10,
        "run": 60,
        "procs": 4,
        "cpu_time": -1,
        "memory": -1,
        "requested_procs": 4,
        "requested_time": 3600,
        "requested_memory": -1,
        "status": 1,
        "user": 3,
        "group": 2,
        "executable": 5,
        "queue": 1,
        "partition": -1,
        "preceding": -1,
        "think": -1,
    }
    return "  ".join(str(value) for value in (row | fields).values())


def an_swf_file(folder: Path, *rows: str, unix_start_s: int = 1_000_000_000) -> Path:
    return a_file(folder, "\n".join([f"; UnixStartTime: {unix_start_s}", *rows]) + "\n")


def a_file(folder: Path, content: str | bytes, *, packed: bool = False, name: str = "trace") -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def read(
    path: Path,
    *,
    format: TraceFormat | None = None,
    timezone: str | None = None,
    rows_per_batch: int = 200_000,
) -> Batch:
    """Read a whole file as one batch."""
    trace = open_trace(path, format=format, timezone=timezone)
    batches = list(trace.read(rows_per_batch=rows_per_batch))
    return Batch(
        jobs=pd.concat([batch.jobs for batch in batches], ignore_index=True),
        rejects=pd.concat([batch.rejects for batch in batches], ignore_index=True),
        bytes_read=batches[-1].bytes_read,
        notes=tuple(note for batch in batches for note in batch.notes),
    )


def the_job(path: Path, *, timezone: str | None = None) -> pd.Series:
    """Return the one job of a file."""
    jobs = read(path, timezone=timezone).jobs
    assert len(jobs) == 1
    return jobs.iloc[0]


def rejects_of(path: Path, *, format: TraceFormat | None = None) -> list[tuple[int, str]]:
    """Return line and reason of each reject."""
    rejects = read(path, format=format).rejects
    return list(zip(rejects["line"].tolist(), rejects["reason"].tolist(), strict=True))
