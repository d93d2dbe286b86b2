"""Jobs whose comments name a target, and the two requests of such a running job.

They go through Slurm's commands with either backend: pyslurm cannot requeue only what has not ended. A plain ``scontrol
requeue`` starts a job again that has just ended; ``requeue Incomplete`` leaves it, and says nothing (22.05.8).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from helios.errors import AnswerNotUnderstood
from helios.model.targets import OPT_IN, TargetJob, read_note
from helios.slurm import parse
from helios.slurm.backend import RawJob
from helios.slurm.pyslurm_worker import BASE_STATE
from helios.slurm.shell import Shell, quoted

_FIELDS = ("JobID", "State", "RestartCnt", "Requeue", "BatchFlag", "Comment")
"""Fields of ``squeue --Format``. The comment comes last, because it may hold any character."""
_BETWEEN = "\x1f"
LONGEST_COMMENT = 1_024
"""Slurm accepts none that is longer (22.05.8), bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetJobs:
    """Reader of comments, and requests of running jobs, through a shell."""

    shell: Shell

    def read(self, job_ids: Sequence[str] = ()) -> dict[str, TargetJob]:
        """Return the jobs whose comments name a target, by id.

        What the queue says of them is missing. Of ``job_ids`` alone where it names any.

        Raises
        ------
        ClusterUnavailable, ClusterRefused, AnswerNotUnderstood
            squeue failed, or its answer does not end as it should.
        """
        end = f"\x1e{secrets.token_hex(8)}"
        fields = [f"{name}:{_BETWEEN}" for name in _FIELDS[:-1]] + [f"{_FIELDS[-1]}:{end}"]
        # squeue fails where one job alone is named and is gone, and not where several are (22.05.8).
        only = [f"--jobs={','.join([*job_ids, job_ids[0]])}"] if job_ids else []
        printed = self.shell.run("squeue", "--all", "--noheader", f"--Format={','.join(fields)}", *only)
        *records, rest = printed.decode("utf-8", "surrogateescape").split(f"{end}\n")
        if rest:
            raise AnswerNotUnderstood("squeue's answer ends in the middle of a comment.", hint="Run: squeue --version")
        jobs: dict[str, TargetJob] = {}
        for record in records:
            values = record.split(_BETWEEN, len(_FIELDS) - 1)
            if len(values) != len(_FIELDS):
                raise AnswerNotUnderstood(f"squeue printed a comment of {len(values)} fields, not {len(_FIELDS)}.")
            job_id, state, restart, requeue, batch, comment = values
            if OPT_IN in comment:
                jobs[job_id] = _with_note(
                    TargetJob(
                        job_id=job_id,
                        state=BASE_STATE.get(state, state),
                        restart=parse.whole(restart) or 0,
                        requeues=requeue == "1" and batch == "1",
                        comment=comment[:LONGEST_COMMENT],
                    )
                )
        return jobs

    def signal(self, job_id: str, signal: str) -> str:
        """Send a job's program a signal, and return Slurm's complaint.

        It is empty where Slurm accepted.
        """
        batch = ["--batch"] if signal.startswith("B:") else []
        return self._complaint("scancel", f"--signal={signal.removeprefix('B:')}", *batch, job_id)

    def requeue(self, job_id: str) -> str:
        """Requeue a job that has not ended, and return Slurm's complaint.

        It is empty where Slurm accepted, which does not say that it happened.
        """
        return self._complaint("scontrol", "requeue", "Incomplete", job_id)

    def _complaint(self, program: str, *words: str) -> str:
        answer = self.shell.answer(program, *words)
        return quoted(answer.error_output) if answer.status or answer.error_output.strip() else ""


def _with_note(job: TargetJob) -> TargetJob:
    try:
        return replace(job, note=read_note(job.comment))
    except ValueError as reason:
        return replace(job, problem=str(reason))


def join_queue(
    noted: Mapping[str, TargetJob], queue: Sequence[RawJob], excluded: Mapping[str, str]
) -> tuple[TargetJob, ...]:
    """Return jobs with targets as the queue has them.

    A job that changed between the two readings is left out.

    Parameters
    ----------
    excluded : mapping
        Why jobs must be left alone, by id.
    """
    jobs = []
    for raw in queue:
        job = noted.get(raw["job_id"])
        if job is None or (job.state, job.restart) != (raw["state"], raw["restart"]):
            continue
        array = "it is part of an array" if raw["array_job_id"] else ""
        jobs.append(
            replace(
                job,
                user=raw["user"] or "",
                partition=raw["partition"] or "",
                reason=raw["reason"] or "",
                gpus=raw["gpus"],
                gpu_type=raw["gpu_type"],
                nodes=raw["nodes"] or 1,
                started_s=raw["started"] or 0,
                excluded_reason=excluded.get(job.job_id, "") or array,
            )
        )
    return tuple(jobs)
