"""The verbs: the closed list of things Helios may do to a cluster, each with a reason for a person.

An action says what is wanted, never how: the Slurm room maps an order to SiteFactor and a soft limit to TimeMin, the
simulator maps both to arrays. Helios never sets Priority, Nice or TimeLimit, and never cancels, holds or requeues.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Lever(StrEnum):
    """What of a job Helios can change."""

    ORDER = "order"
    SOFT_LIMIT = "soft_limit"


class Result(StrEnum):
    """What became of an action on one target."""

    DONE = "done"
    """Written and read back as asked."""
    UNCHANGED = "unchanged"
    """It already was so; nothing was written."""
    WOULD = "would"
    """A shadow: nothing was written; an active service would have."""
    REFUSED = "refused"
    """A guard or the cluster's door said no before anything was written."""
    POSTPONED = "postponed"
    """The budget of calls is spent; asked again next turn."""
    GONE = "gone"
    """The job started or ended meanwhile; nothing to do."""
    FAILED = "failed"
    """The cluster refused or did not answer."""
    MISMATCH = "mismatch"
    """Written, but something else was read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One job's place in an order.

    Attributes
    ----------
    job_id : str
        As in ``QUEUE``.
    urgency : float
        From -1 to 1; 0 is neutral, what a job has that is not named. It should depend on the job, not on its
        neighbours, so that an arrival does not move every other job.
    reason : str
        Why it stands here, for the user who asks.
    """

    job_id: str
    urgency: float
    reason: str

    def __post_init__(self) -> None:
        if not -1 <= self.urgency <= 1:
            raise ValueError(f"urgency of job {self.job_id} is {self.urgency}, not between -1 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder:
    """Start the jobs of a partition in this order, as far as the site's own priorities leave room.

    Attributes
    ----------
    partition : str
        As in ``QUEUE``.
    order : tuple of Place
        First to start first; urgencies descend. Equal urgencies are left in the site's own order, and so is a job
        that is not named, at urgency 0.
    reason : str
        Why, for a person.
    """

    partition: str
    order: tuple[Place, ...]
    reason: str

    def __post_init__(self) -> None:
        urgencies = [place.urgency for place in self.order]
        if urgencies != sorted(urgencies, reverse=True):
            raise ValueError(f"the order of partition {self.partition} has urgencies that do not descend")
        if len({place.job_id for place in self.order}) < len(self.order):
            raise ValueError(f"the order of partition {self.partition} names a job twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftLimit:
    """Let backfill plan with ``run_time`` for a pending job; its hard time limit stands.

    Attributes
    ----------
    job_id : str
        As in ``QUEUE``.
    run_time : timedelta
        An upper bound of the run time, positive; what is at or above the hard limit has no effect.
    reason : str
        Why, for a person.
    """

    job_id: str
    run_time: timedelta
    reason: str

    def __post_init__(self) -> None:
        if self.run_time <= timedelta(0):
            raise ValueError(f"soft limit of job {self.job_id} is {self.run_time}, not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Take back what Helios set, so that the cluster is as it would be without it.

    Attributes
    ----------
    lever : Lever, optional
        None: every lever.
    job_ids : tuple of str, optional
        None: every job that Helios ever touched and that is still pending.
    reason : str
        Why, for a person.
    """

    lever: Lever | None = None
    job_ids: tuple[str, ...] | None = None
    reason: str


Action = Reorder | SoftLimit | Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an action on one job.

    Attributes
    ----------
    action : str
        Name of the action's class.
    lever : Lever
        What was to change.
    job_id : str
        On which job.
    result : Result
        What became of it.
    reason : str
        The action's own reason for this job.
    before, after : str
        What was read before and after, in the mechanism's words (``SiteFactor 0``); empty: not read.
    remark : str
        What more there is to say: why it was refused, what the cluster answered.
    """

    action: str
    lever: Lever
    job_id: str
    result: Result
    reason: str
    before: str = ""
    after: str = ""
    remark: str = ""
