"""What was read of a queue at one moment, by lever: the ground that every change is judged on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from helios import marks
from helios.actions import Lever
from helios.asked_of_jobs import SOFT_LIMIT_FLAG
from helios.slurm import translate
from helios.slurm.backend import RawJob
from helios.slurm.sprio import SiteFactor

Identity = tuple[str, int, int]
"""Id, submission and restart of a job: ids are used again."""


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
    soft_limits : bool
        Whether a TimeMin is a soft limit here; else it lets Slurm shorten the job.
    zeroed : set of Identity
        Jobs whose site factor cannot be read and was set to 0 since it last could.
    """

    jobs: Mapping[str, RawJob]
    factors: Mapping[str, SiteFactor]
    release: tuple[int, int]
    soft_limits: bool = False
    zeroed: frozenset[Identity] = field(default_factory=frozenset)

    def value(self, lever: Lever, job_id: str) -> int | None:
        """Return a pending job's SiteFactor, or its TimeMin in minutes (0: none); None: it cannot be read now."""
        if lever is Lever.SOFT_LIMIT:
            return translate.minutes(self.jobs[job_id]["time_min_s"])
        factor = self.factors.get(job_id)
        return None if factor is None or factor.direct else factor.value

    def is_ours(self, lever: Lever, job_id: str) -> bool:
        """Return whether what stands on a pending job is Helios'."""
        value = self.value(lever, job_id)
        if value is None:
            return False
        if lever is Lever.ORDER:
            return marks.is_ours(value)
        return translate.is_our_time_min(value, release=self.release)

    def may_hide_ours(self, job_id: str) -> bool:
        """Return whether a pending job may carry a SiteFactor of Helios that nobody can read now."""
        job = self.jobs[job_id]
        hidden = self.value(Lever.ORDER, job_id) is None and not job["cron"]
        return hidden and identity(job) not in self.zeroed

    def hands_off(self, job_id: str) -> str:
        """Return why a pending job must be left alone; empty: it need not."""
        return translate.hands_off(self.jobs[job_id], self.factors.get(job_id))


def look_at(
    jobs: Sequence[RawJob],
    factors: Mapping[str, SiteFactor],
    *,
    release: tuple[int, int],
    scheduler_parameters: str,
    zeroed: frozenset[Identity],
) -> Look:
    """Return what was read as a :class:`Look`; of ``zeroed`` only what is still pending and still hidden."""
    waiting = {job["job_id"]: job for job in jobs if job["state"] == "PENDING"}
    flags = {part.partition("=")[0].strip().lower() for part in scheduler_parameters.split(",")}
    hidden = {identity(job) for job_id, job in waiting.items() if _is_hidden(factors.get(job_id))}
    return Look(
        jobs=waiting,
        factors=factors,
        release=release,
        soft_limits=release >= translate.SOFT_LIMITS_SINCE and SOFT_LIMIT_FLAG in flags,
        zeroed=zeroed & hidden,
    )


def identity(job: RawJob) -> Identity:
    """Return what tells a job from a later one of the same id, and from its own next run."""
    return job["job_id"], job["submitted"], job["restart"]


def _is_hidden(factor: SiteFactor | None) -> bool:
    return factor is None or factor.direct
