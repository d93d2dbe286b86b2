"""Small trace files, and what is read from them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from helios.ingest import TraceFormat, open_trace, write_parquet
from helios.model import Batch
from tests.builders import a_job, jobs_frame

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


def a_philly_attempt(start="2017-10-07 01:12:09", end="2017-10-07 02:12:09", **gpus_of):
    """One attempt; machines and their GPUs as ``m47=2``."""
    detail = [
        {"ip": ip, "gpus": [f"gpu{place}" for place in range(count)]} for ip, count in (gpus_of or {"m47": 8}).items()
    ]
    return {"start_time": start, "end_time": end, "detail": detail}


def a_philly_job(*attempts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1506638472019_14199",
        "attempts": list(attempts),
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
        **fields,
    }


def a_philly_file(folder: Path, *jobs: Any) -> Path:
    return a_file(folder, json.dumps(jobs))


def a_pai_job(*, name="j1", inst="i1", user="ann", status="Terminated", start="4550879.0", end="4551416.0") -> str:
    return ",".join([name, inst, user, status, start, end])


def a_pai_task(
    *,
    job="j1",
    task="worker",
    instances="1.0",
    start="4550900.0",
    end="4551416.0",
    cpu="600.0",
    memory="29.296875",
    gpu="50.0",
    kind="MISC",
    status="Terminated",
) -> str:
    return ",".join([job, task, instances, status, start, end, cpu, memory, gpu, kind])


def a_pai_file(folder: Path, *jobs: str, tasks: Sequence[str] | None = (), tags: Sequence[str] = ()) -> Path:
    """The job table, with the other tables beside it; ``tasks=None`` for no such table."""
    if tasks is not None:
        a_file(folder, "".join(f"{row}\n" for row in tasks or [a_pai_task()]), name="pai_task_table.csv")
    if tags:
        a_file(folder, "".join(f"{row}\n" for row in tags), name="pai_group_tag_table.csv")
    return a_file(folder, "".join(f"{row}\n" for row in jobs), name="pai_job_table.csv")


SEREN_HEADER = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time"
KALOS_HEADER = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,"
    "submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time"
)


def a_seren_row(**fields: str) -> str:
    row = {
        "job_id": "5778432",
        "user": "u5907",
        "node_num": "1",
        "gpu_num": "8",
        "cpu_num": "128",
        "type": "Other",
        "state": "FAILED",
        "submit_time": "2023-03-01 00:18:22+08:00",
        "start_time": "2023-03-01 00:18:54+08:00",
        "end_time": "2023-03-01 00:20:51+08:00",
        "duration": "117",
        "queue": "32",
        "gpu_time": "936.0",
    }
    return ",".join((row | fields).values())


def a_kalos_row(**fields: str) -> str:
    row = {
        "job_id": "dlctk696s0jbvitv",
        "user": "uf794",
        "node_num": "8",
        "gpu_num": "64",
        "cpu_num": "960",
        "mem_per_pod_GB": "1000",
        "shared_mem_per_pod": "100.0",
        "type": "Other",
        "state": "FAILED",
        "submit_time": "2023-05-17 11:00:58+00:00",
        "start_time": "2023-05-17 11:01:08+00:00",
        "end_time": "2023-05-17 11:01:16+00:00",
        "fail_time": "2023-05-17 11:01:16+00:00",
        "stop_time": "",
        "duration": "18",
        "queue": "10.0",
        "gpu_time": "1152.0",
    }
    return ",".join((row | fields).values())


DATA_PARSERS = ("v0.0.38", "v0.0.39", "v0.0.40", "v0.0.43")
"""Four wordings of ``sacct --json``: Slurm 22.05, 23.02, 23.11, and 25.05 as all releases up to 26.05."""


def a_json_job(
    *,
    data_parser: str = "v0.0.43",
    job_id: int = 100,
    state: str = "COMPLETED",
    times: tuple[int, int, int, int] = (1_700_000_000, 1_700_000_005, 1_700_000_060, 1_700_003_660),
    limit_minutes: int | str | None = 120,
    gpus: int = 2,
    cpus: int = 8,
    memory_mib: int = 4096,
    array: tuple[int, int] | None = None,
    het: tuple[int, int] | None = None,
    exit_code: tuple[int, int] = (0, 0),
    **fields: Any,
) -> dict[str, Any]:
    """One job as that release words it; times are submission, eligible, start and end; 0 is not yet."""
    old, listed = data_parser == "v0.0.38", data_parser >= "v0.0.40"

    def number(value: int | None) -> Any:
        return value if old else {"set": value is not None, "infinite": False, "number": value or 0}

    submitted, eligible, started, ended = times
    limit = number(limit_minutes) if limit_minutes != "UNLIMITED" else None
    if limit_minutes == "UNLIMITED" and not old:
        limit = {"set": False, "infinite": True, "number": 0}
    nothing = None if old else ""
    tres = [("cpu", "", cpus), ("mem", "", memory_mib), ("node", "", 1), ("billing", "", cpus), ("gres", "gpu", gpus)]
    asked = [
        {"type": kind, "name": name or nothing, "id": place, "count": count}
        for place, (kind, name, count) in enumerate(tres, start=1)
        if count
    ]
    energy = {"type": "energy", "name": nothing, "id": 3, "count": None if old else -2}
    returned, signal = exit_code
    status = "SIGNALED" if signal else "ERROR" if returned else "SUCCESS"
    code: dict[str, Any] = {
        "status": [status] if listed else status,
        "return_code": number(returned) if listed else None if signal else returned,
    }
    if signal or listed:
        code["signal"] = {"id": number(signal or None), "name": ""} if listed else {"signal_id": signal, "name": ""}
    return {
        "account": "vision",
        "allocation_nodes": 1,
        "array": {
            "job_id": array[0] if array else 0,
            "limits": {"max": {"running": {"tasks": 0}}},
            "task_id": number(array[1] if array else None),
            "task": nothing,
        },
        "association": {"account": "vision", "cluster": "ada", "partition": nothing, "user": "ann"},
        "cluster": "ada",
        "time": {
            "elapsed": ended - started if started and ended else 0,
            "eligible": eligible,
            "end": ended,
            "start": started,
            "submission": submitted,
            "suspended": 0,
            "limit": limit,
        },
        "exit_code": code,
        "group": "staff",
        "het": {"job_id": het[0] if het else 0, "job_offset": number(het[1] if het else None)},
        "job_id": job_id,
        "name": "fit",
        "nodes": "n1",
        "partition": "gpu",
        "qos": "normal",
        "required": {"CPUs": cpus, "memory": memory_mib}
        if old
        else {"CPUs": cpus, "memory_per_cpu": number(None), "memory_per_node": number(memory_mib)},
        "state": {"current": [state] if listed else state, "reason": "None"},
        "steps": [{"step": {"id": "batch"}, "state": "COMPLETED", "time": {"start": started, "end": ended}}],
        "tres": {"allocated": [*asked, energy], "requested": asked},
        "user": "ann",
        **fields,
    }


def a_json_file(folder: Path, *jobs: Any, name: str = "trace") -> Path:
    meta = {"plugin": {"type": "", "data_parser": "data_parser/v0.0.43"}, "slurm": {"release": "25.05.1"}}
    return a_file(folder, json.dumps({"jobs": list(jobs), "meta": meta, "errors": [], "warnings": []}), name=name)


def a_parquet_file(rows: int = 1) -> bytes:
    """Return a Parquet file as Helios writes it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "jobs.parquet")
        write_parquet(jobs_frame(*(a_job() for _ in range(rows))), path, cluster="lab", timezone="UTC")
        return path.read_bytes()


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
