"""What was read of a queue at one moment, by lever: the ground that every change is judged on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from helios import marks
from helios.actions import Lever
from helios.asked_of_jobs import SOFT_LIMIT_FLAG
from helios.slurm import translate
from helios.slurm.backend import RawJob
from helios.slurm.jobs_undo import JobsUndo
from helios.slurm.sprio import SiteFactor


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Pending jobs and what stands on them.

    Attributes
    ----------
    jobs : mapping
        The pending jobs by id.
    factors : mapping
        What ``sprio`` says, by id.
    release : tuple of int
        Slurm's release.
    undo : JobsUndo
        What Helios wrote.
    soft_limits : bool
        Whether a TimeMin is a soft limit here; else it lets Slurm shorten the job.
    """

    jobs: Mapping[str, RawJob]
    factors: Mapping[str, SiteFactor]
    release: tuple[int, int]
    undo: JobsUndo
    soft_limits: bool = False

    def value(self, lever: Lever, job_id: str) -> int | None:
        """Return a pending job's SiteFactor, or its TimeMin in minutes (0: none); None: it cannot be read now."""
        if lever is Lever.SOFT_LIMIT:
            return translate.minutes(self.jobs[job_id]["time_min_s"])
        factor = self.factors.get(job_id)
        return None if factor is None or factor.direct else factor.value

    def is_ours(self, lever: Lever, job_id: str) -> bool:
        """Return whether what stands on a pending job is proved to be Helios': its mark, and a record of it."""
        value, job = self.value(lever, job_id), self.jobs[job_id]
        if value is None:
            return False
        if lever is Lever.ORDER:
            return translate.is_our_site_factor(value, job, self.undo)
        return translate.is_our_time_min(job, self.undo, release=self.release)

    def hidden(self, job_id: str) -> int:
        """Return the SiteFactor that Helios wrote to a pending job where Slurm hides what stands; 0: none."""
        return self.undo.last(Lever.ORDER, self.jobs[job_id]) if self.value(Lever.ORDER, job_id) is None else 0

    def suspect(self, lever: Lever, job_id: str) -> str:
        """Return why a value that bears the mark is left as it is; empty: it bears none, or is proved."""
        value = self.value(lever, job_id)
        if not value or self.is_ours(lever, job_id):
            return ""
        # Without the flag Helios writes no TimeMin: there it is a user's.
        is_order = lever is Lever.ORDER
        bears = marks.is_ours(value) if is_order else self.soft_limits and marks.is_our_time_min(value)
        return translate.unproved(self.undo) if bears else ""

    def hands_off(self, job_id: str) -> str:
        """Return why a pending job must be left alone; empty: it need not."""
        return translate.hands_off(self.jobs[job_id], self.factors.get(job_id), self.undo)


def look_at(
    jobs: Sequence[RawJob],
    factors: Mapping[str, SiteFactor],
    *,
    release: tuple[int, int],
    scheduler_parameters: str,
    undo: JobsUndo,
) -> Look:
    """Return what was read as a :class:`Look`."""
    flags = {part.partition("=")[0].strip().lower() for part in scheduler_parameters.split(",")}
    return Look(
        jobs={job["job_id"]: job for job in jobs if job["state"] == "PENDING"},
        factors=factors,
        release=release,
        undo=undo,
        soft_limits=release >= translate.SOFT_LIMITS_SINCE and SOFT_LIMIT_FLAG in flags,
    )
