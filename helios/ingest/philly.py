"""Reader of the job log of Microsoft's Philly clusters.

The log is a JSON list of jobs, each with its scheduling attempts. Source: github.com/msr-fiddle/philly-traces,
``cluster_job_log``; Jeon et al., *Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads*, ATC
2019. 117,325 jobs, August to December 2017.

Each attempt that has a start is a run of its own, as is each run of a requeued job in Slurm's accounting (``sacct
--duplicates``). It becomes a row with its own start, end, GPUs and nodes, numbered by ``restart``. The job's status is
that of its last attempt; how earlier ones ended is not recorded. A later attempt was eligible when the one before it
ended.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from helios.errors import FormatUnknown
from helios.ingest.delimited import Translation
from helios.ingest.job_rows import FileReading, JobRows, Layout
from helios.ingest.json_records import as_text, read_records, value_at
from helios.ingest.lines import head
from helios.ingest.parse import has_utc_offset, known_values
from helios.model import JobState

# The machine utilisation files beside the log name PDT and PST.
ZONE = "America/Los_Angeles"
FIELDS = ("job_id", "user", "vc", "state", "submitted", "before", "started", "ended", "gpus", "nodes", "node_list")
_TIMES = {"submitted_at": "submitted", "eligible_at": "before", "started_at": "started", "ended_at": "ended"}
_STATES = {"Pass": JobState.COMPLETED, "Killed": JobState.CANCELLED, "Failed": JobState.FAILED}
_MEMBER = re.compile(rb'"(jobid|submitted_time|attempts)"\s*:')
Record = dict[str, str | None]
_NO_TIME = (None, "", "None")

NO_ATTEMPT = (
    "jobs have no recorded attempt: neither their start nor their size is known, and they count as without GPUs"
)
NO_START = "attempts without a start, before others of their job, were left out"


def fits(start: bytes) -> bool:
    """Return whether a file begins like the Philly trace."""
    return start.lstrip()[:1] == b"[" and len(set(_MEMBER.findall(start))) == 3


def drafts(reading: FileReading) -> Iterator[JobRows]:
    """Yield a Philly job log as translated rows.

    Raises
    ------
    FormatUnknown
        It is no list of jobs with ``jobid``, ``submitted_time`` and ``attempts``.
    FileUnreadable
        It is damaged.
    """
    if not fits(head(reading.path)):
        raise FormatUnknown(
            f"{reading.path} is not Philly's: no list of jobs with jobid, submitted_time and attempts at its start.",
            hint="It is the file cluster_job_log of trace-data.tar.gz, github.com/msr-fiddle/philly-traces",
        )
    for rows in read_records(reading, "item", partial(parse_runs, tally=reading.tally), FIELDS):
        job = Translation(rows, reading)
        job.read_states(known_values(rows.columns["state"]))
        job.read_times({name: [field] for name, field in _TIMES.items()})
        job.jobs["run_time_s"] = job.run_time_s()
        job.jobs |= {name: job.numbers(name) for name in ("gpus", "nodes")}
        job.read_strings(job_id="job_id")
        job.read_categories(user="user", partition="vc", node_list="node_list")
        yield job.draft()


LAYOUT = Layout(fits=fits, drafts=drafts, local_times=lambda start: not has_utc_offset(start), zone=ZONE)


def parse_runs(job: Mapping[str, Any], *, tally: Counter[str]) -> list[Record] | None:
    """Return the runs of a job, the last one with its state.

    None where the attempts are no list of objects. ``tally`` counts attempts without a start and jobs without an
    attempt, which are read as one run.
    """
    attempts = job.get("attempts") or []
    if not isinstance(attempts, list) or not all(isinstance(attempt, Mapping) for attempt in attempts):
        return None
    earlier = [attempt for attempt in attempts[:-1] if attempt.get("start_time") not in _NO_TIME]
    tally[NO_START] += max(0, len(attempts) - 1) - len(earlier)
    tally[NO_ATTEMPT] += not attempts
    runs = [{**_job(job), **_run(attempt)} for attempt in [*earlier, *attempts[-1:]] or [{}]]
    for before, run in pairwise(runs):
        run["before"] = before["ended"]
    status = job.get("status")
    last = runs[-1]
    # README: "If a job has a None value for its last attempt's end_time, the job was still running".
    started, ended = (last.get(name) not in _NO_TIME for name in ("started", "ended"))
    runs[-1]["state"] = JobState.RUNNING if started and not ended else _STATES.get(str(status)) or as_text(status)
    return runs


def _job(job: Mapping[str, Any]) -> Record:
    fields = {"job_id": "jobid", "user": "user", "vc": "vc", "submitted": "submitted_time"}
    return {name: as_text(job.get(field)) for name, field in fields.items()}


def _run(attempt: Mapping[str, Any]) -> Record:
    detail = attempt.get("detail")
    machines = [machine for machine in detail if isinstance(machine, Mapping)] if isinstance(detail, list) else []
    gpus = sum(len(found) for machine in machines if isinstance(found := machine.get("gpus"), list))
    return {
        "started": as_text(attempt.get("start_time")),
        "ended": as_text(attempt.get("end_time")),
        "gpus": str(gpus),
        "nodes": str(len(machines)) if machines else None,
        "node_list": ",".join(str(value_at(machine, "ip")) for machine in machines),
    }
