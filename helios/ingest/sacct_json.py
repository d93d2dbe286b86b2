"""Reader of ``sacct --json``, Slurm 22.05 to 26.05.

Each release changes the form of some fields. Known are 22.05.8 (recorded, dbv0.0.38), 23.02.6 and 23.11.5 (published
recordings, v0.0.39 and v0.0.40), and the tables in ``src/plugins/data_parser/*/parsers.c`` of github.com/SchedMD/slurm
up to v0.0.46. One translator converts them all to the fields of ``sacct --parsable2``, and those are read as usual. So
both exports of one accounting database give the same jobs.

- Numbers are plain or null up to dbv0.0.38, and objects of ``set``, ``infinite`` and ``number`` since.
- States and statuses are one word up to v0.0.39, and a list of words since.
- ``array.task`` is a bit mask (``0x3A0``) where ``--parsable2`` has ``[5,7-9]``.
- Up to dbv0.0.38, "no time limit" and UNLIMITED are both null: such a limit is unknown. A job that failed with code 3
  has ``return_code`` 0: the code of a failed job that says 0 is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from helios.errors import FormatUnknown, NothingUnderstood
from helios.ingest import sacct
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.json_records import Fields, as_text, read_records, value_at, without_lines_before
from helios.ingest.lines import head

UNLIMITED = "UNLIMITED"
_NOT_SET = (2**32 - 2, 2**64 - 2)  # slurm.h NO_VAL, NO_VAL64, which older plugins print as numbers
_INFINITE = (2**32 - 1, 2**64 - 1)  # slurm.h INFINITE, INFINITE64
# slurm.h: base states, beside which there may be flags. slurmdbd closes a record with the flag alone (REQUEUED,
# RESIZING), whose base state is then 0 and printed as PENDING.
_ACTIVE_STATES = ("PENDING", "RUNNING", "SUSPENDED")
_ENDED_STATES = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
    "OUT_OF_MEMORY",
)
_REVOKED = "REVOKED"
_FAILED = "FAILED"
_LONGEST_ERROR = 200
EXPORT = "Export the accounting with: sacct --allusers --duplicates --json -S 2026-09-01 -E 2026-10-01"
_MASK = re.compile(r"0x[0-9a-fA-F]{1,4096}")
_MEMBER = re.compile(rb'"(jobs|job_id|submission|submit_time)"\s*:')

REPAIRED_START = (
    "jobs had their eligible time in place of their start, as some releases print; it was found from the end"
)

FIELDS = (
    *("jobidraw", "jobid", "cluster", "user", "group", "account", "qos", "partition", "state", "exitcode", "submit"),
    *(
        "eligible",
        "start",
        "end",
        "elapsedraw",
        "suspended",
        "timelimit",
        "allocnodes",
        "reqcpus",
        "reqmem",
        "reqtres",
        "alloctres",
    ),
    *("nodelist", "jobname", "restarts", "sluid", "submitline"),
)


def fits(start: bytes) -> bool:
    """Return whether a file begins like ``sacct --json``.

    The JSON of squeue and scontrol, which also has a list of jobs, does not fit.
    """
    found = set(_MEMBER.findall(start))
    return _begins_with_object(start) and b"jobs" in found and (b"submission" in found or b"job_id" not in found)


def lacks(start: bytes) -> str:
    """Return why a file of jobs in JSON has no history.

    Empty where it is none.
    """
    found = set(_MEMBER.findall(start))
    if not (_begins_with_object(start) and {b"jobs", b"submit_time"} <= found):
        return ""
    return "is what squeue, scontrol or slurmrestd's /slurm/ prints: the jobs of one moment, and no history."


def _begins_with_object(start: bytes) -> bool:
    return without_lines_before(start).lstrip()[:1] == b"{"


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield a ``sacct --json`` file as translated rows.

    Raises
    ------
    FormatUnknown
        It is no object with a list ``jobs``, or squeue printed it.
    FileUnreadable
        It is damaged.
    """
    start = head(reading.path)
    if not fits(start):
        no_jobs = "is not what sacct --json prints: no object with jobs and their times at its start."
        raise FormatUnknown(f"{reading.path} {lacks(start) or no_jobs}", hint=EXPORT)

    def records_of(job: Mapping[str, Any]) -> list[Fields]:
        fields = lift_records(job)
        reading.tally[REPAIRED_START] += _has_wrong_start(job)
        return [fields]

    wanted, errors, is_empty = [name for name in sacct.fields_read(reading) if name in FIELDS], list[Any](), True
    for rows in read_records(reading, "jobs.item", records_of, wanted, errors=errors):
        is_empty = False
        yield sacct.translate(rows, reading)
    if errors and is_empty:
        raise NothingUnderstood(
            f"{reading.path} holds no jobs, and says why: {_error_text(errors[0])}.", hint="Export it again."
        )
    if errors:
        reading.tally[f"errors stand in the file beside its jobs, which may lack some: {_error_text(errors[0])}"] = len(
            errors
        )


def _error_text(error: Any) -> str:
    """Return what an entry of ``errors`` says."""
    parts = (as_text(value_at(error, name)) for name in ("description", "error", "source"))
    return ": ".join(filter(None, parts)) or str(as_text(error))[:_LONGEST_ERROR]


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda _: False)


def lift_records(job: Mapping[str, Any]) -> Fields:
    """Return one job as fields of ``sacct --parsable2``.

    The job may come from any release. Times are seconds since the epoch.
    """
    times = {field: _time(job, name) for field, name in (("submit", "submission"), ("eligible", "eligible"))}
    sizes = {"allocnodes": _count(job, "allocation_nodes"), "reqcpus": _count(job, "required", "CPUs")}
    texts = {name: as_text(job.get(name)) for name in ("cluster", "group", "account", "qos", "partition")}
    return {
        "jobidraw": _number_of_job(job),
        "jobid": _job_id(job),
        "user": as_text(job.get("user")) or as_text(value_at(job, "association", "user")),
        "jobname": as_text(job.get("name")),
        "nodelist": as_text(job.get("nodes")),
        "state": _state(job),
        "exitcode": _exit_code(job),
        "start": as_text(_start_from_end(job)) if _has_wrong_start(job) else _time(job, "start"),
        "end": _time(job, "end"),
        # Since v0.0.40 (restart_cnt) and v0.0.43 (sluid).
        "restarts": _count(job, "restart_cnt"),
        "sluid": as_text(job.get("sluid")),
        "submitline": as_text(job.get("submit_line")),
        "elapsedraw": _count(job, "time", "elapsed"),
        "suspended": _count(job, "time", "suspended"),
        "timelimit": _count(job, "time", "limit"),
        "reqmem": _memory(job.get("required")),
        "reqtres": _tres(value_at(job, "tres", "requested")),
        "alloctres": _tres(value_at(job, "tres", "allocated")),
        **times,
        **sizes,
        **texts,
    }


def _number(value: Any) -> Any:
    """Return a number, whatever form a release gives it.

    None where it is not set, ``UNLIMITED`` where it is infinite.
    """
    if isinstance(value, Mapping):
        if value.get("infinite") is True:
            return UNLIMITED
        value = value.get("number") if value.get("set", True) else None
    if value in _INFINITE:
        return UNLIMITED
    return None if value in _NOT_SET else value


def _count(job: Mapping[str, Any], *path: str) -> str | None:
    return as_text(_number(value_at(job, *path)))


def _time(job: Mapping[str, Any], name: str) -> str | None:
    moment = _number(value_at(job, "time", name))
    return None if moment in (0, UNLIMITED) else as_text(moment)


def _has_wrong_start(job: Mapping[str, Any]) -> bool:
    # 21.08 and the first releases with v0.0.39 print the eligible time as the start (parsers.c maps eligible to
    # "time/start").
    start, eligible, elapsed = (_number(value_at(job, "time", name)) for name in ("start", "eligible", "elapsed"))
    true = _start_from_end(job)
    return bool(true and elapsed and start == eligible and true > eligible)


def _start_from_end(job: Mapping[str, Any]) -> int | None:
    end, elapsed, suspended = (_number(value_at(job, "time", name)) for name in ("end", "elapsed", "suspended"))
    if not all(isinstance(value, int) for value in (end, elapsed)) or not end:
        return None
    return int(end) - int(elapsed) - (suspended if isinstance(suspended, int) else 0)


def _job_id(job: Mapping[str, Any]) -> str | None:
    array, task = _count(job, "array", "job_id"), _count(job, "array", "task_id")
    tasks = as_text(value_at(job, "array", "task"))
    if array not in (None, "0") and (task or tasks):
        return f"{array}_{task}" if task else f"{array}_[{_tasks(str(tasks), job)}]"
    master, offset = _count(job, "het", "job_id"), _count(job, "het", "job_offset")
    if master not in (None, "0") and offset is not None:
        return f"{master}+{offset}"
    return _number_of_job(job)


def _number_of_job(job: Mapping[str, Any]) -> str | None:
    # An id with a fraction would be read as a step and skipped silently. This text makes the row a reject.
    number = _count(job, "job_id")
    return f"no whole number: {number}" if number and "." in number else number


def _tasks(tasks: str, job: Mapping[str, Any]) -> str:
    at_once = _count(job, "array", "limits", "max", "running", "tasks")
    limit = f"%{at_once}" if at_once not in (None, "0") and "%" not in tasks else ""
    return (_ranges(int(tasks, 16)) if _MASK.fullmatch(tasks) else tasks.strip("[]")) + limit


def _ranges(mask: int) -> str:
    members = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    runs = [[bit for _, bit in run] for _, run in groupby(enumerate(members), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _state(job: Mapping[str, Any]) -> str | None:
    """Return the base state, or the flag that stands for it.

    It is a flag where the record has ended and its base state has not, and where the job ran on another cluster.
    """
    current = value_at(job, "state", "current")
    words = current if isinstance(current, list) else [current]
    if _REVOKED in words:
        return _REVOKED
    if ended := [word for word in words if word in _ENDED_STATES]:
        return as_text(ended[0])
    active = [word for word in words if word in _ACTIVE_STATES]
    flags = [word for word in words if word not in _ACTIVE_STATES]
    chosen = (flags or active) if _time(job, "end") else (active or flags)
    return as_text(chosen[0]) if chosen else None


def _exit_code(job: Mapping[str, Any]) -> str | None:
    code = job.get("exit_code")
    if not isinstance(code, Mapping):
        return as_text(code)
    returned = _number(code.get("return_code"))
    signal = _number(value_at(code, "signal", "id")) or _number(value_at(code, "signal", "signal_id")) or 0
    worded_in_one = isinstance(code.get("status"), str)
    if worded_in_one and not returned and not signal and _state(job) == _FAILED:
        return None
    # v0.0.39 prints -127 where there is no return code.
    return f"{returned if isinstance(returned, int) and returned > 0 else 0}:{signal}"


def _memory(required: Any) -> str | None:
    # Up to dbv0.0.38 there is only "memory", which does not say whether it is per CPU; the TRES give the total.
    for name, unit in (("memory_per_cpu", "Mc"), ("memory_per_node", "Mn")):
        if amount := _number(value_at(required, name)):
            return f"{amount}{unit}"
    return None


def _tres(entries: Any) -> str | None:
    if not isinstance(entries, list):
        return as_text(entries)
    counts: dict[str, Any] = {}
    for entry in entries:
        kind, name, count = (value_at(entry, member) for member in ("type", "name", "count"))
        counts[f"{kind}/{name}" if name else f"{kind}"] = count
    # Energy that was not measured is null, -2 or NO_VAL64.
    known = {
        name: count
        for name, count in counts.items()
        if isinstance(count, int) and count >= 0 and count not in (*_NOT_SET, *_INFINITE)
    }
    return ",".join(f"{name}={count}{'M' * (name == 'mem')}" for name, count in sorted(known.items())) or None
