"""A job's own story in a replay: what held it in each stretch of its wait; ``helios.report.telling`` tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """What holds a pending job."""

    PRIORITY = "priority"
    """Another job comes before it and cannot start."""
    RESOURCES = "resources"
    """It is next in line, and fewer GPUs are free than it asks for."""
    PIECES = "pieces"
    """It is next in line, and enough GPUs are free, but scattered over too many nodes."""
    RESERVED = "reserved"
    """It would fit, but starting it could delay the job at the head of the queue, for which backfill reserves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A job that comes first.

    Attributes
    ----------
    job_id, user : str
        ``user`` is empty where it is unknown.
    gpus : int
    """

    job_id: str
    user: str
    gpus: int

    def named(self, unit: str) -> str:
        """Write it within a sentence."""
        whose = f" of {self.user}" if self.user else ""
        return f"job {self.job_id}{whose} ({sized(self.gpus, unit)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a job's wait in which the same held it.

    Attributes
    ----------
    began_at, ended_at : datetime
        UTC; the end is not part of it.
    cause : Cause
    blocker : Blocker, optional
        With PRIORITY and RESERVED, the job that comes first.
    free, room : pair of int
        Fewest and most GPUs free in its partition, and of the largest job that could have been placed.
    fitted_s : int
        For how long of it the job would have fitted, s.
    scattered_s : int
        For how long of it enough GPUs were free for whom they were meant - the blocker, or the job itself - but in
        pieces, s.
    reserved_at : datetime, optional
        With RESERVED, when the blocker was expected to start, as last said; None: unknown.
    """

    began_at: datetime
    ended_at: datetime
    cause: Cause
    blocker: Blocker | None
    free: tuple[int, int]
    room: tuple[int, int]
    fitted_s: int
    scattered_s: int
    reserved_at: datetime | None = None

    @property
    def length_s(self) -> int:
        """How long it was, s."""
        return round((self.ended_at - self.began_at).total_seconds())

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "from": self.began_at.isoformat(),
            "to": self.ended_at.isoformat(),
            "length_s": self.length_s,
            "cause": self.cause.value,
            "behind": None if self.blocker is None else self.blocker.job_id,
            "free": list(self.free),
            "largest_that_fits": list(self.room),
            "fitted_s": self.fitted_s,
            "scattered_s": self.scattered_s,
            "head_expected_at": None if self.reserved_at is None else self.reserved_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that held GPUs while the job waited for them: which, how many, and for how long of that time, s."""

    job: Blocker
    held_s: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """When the job starts in another replay of the same history."""

    label: str
    is_today: bool
    started_at: datetime
    wait_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShorterLimit:
    """A run time to plan with under which backfill would have started the job by then."""

    planned_s: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Jobs submitted later that started earlier: those that the order put before it, and those let past by backfill.

    By the order's own keys, without promotions for long waits.
    """

    by_order: int
    by_backfill: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What became of one job in a replay, and why.

    Attributes
    ----------
    job : Blocker
        The job itself.
    cluster, partition, unit, label : str
        ``unit``: GPU or CPU; ``label`` names the replay.
    is_today : bool
        Whether that is what a Slurm site has today.
    submitted_at, started_at : datetime
        UTC, in the replay.
    run_time_s : int
        How long it ran, s.
    believed_s, planned_s : float, optional
        Run time that the order believed and that backfill planned with, s; None: it asked for none.
    planned_by : str
        Where the latter comes from: limit, predicted, true, or a number of seconds; empty: nobody planned.
    rank, queued : int
        Place in its partition's queue when it was submitted, and the queue's length; 0: it did not wait.
    stretches : tuple of Stretch
        They follow each other from submission to start.
    holders : tuple of Holder
        Who held most while it was next in line, or where that is less than half of its wait, while it waited.
    overtaken : Overtaken
    shorter : ShorterLimit, optional
        What the user could have done.
    beside : tuple of Beside
        The same job in other replays.
    recorded_wait_s : float, optional
        What it waited in truth, s; None: not recorded.
    notes : tuple of str
    """

    job: Blocker
    cluster: str
    partition: str
    unit: str
    label: str
    is_today: bool
    submitted_at: datetime
    started_at: datetime
    run_time_s: int
    believed_s: float | None
    planned_s: float | None
    planned_by: str
    rank: int
    queued: int
    stretches: tuple[Stretch, ...]
    holders: tuple[Holder, ...]
    overtaken: Overtaken
    shorter: ShorterLimit | None
    beside: tuple[Beside, ...]
    recorded_wait_s: float | None
    notes: tuple[str, ...]

    @property
    def wait_s(self) -> int:
        """How long it waited, s: the sum of the stretches."""
        return round((self.started_at - self.submitted_at).total_seconds())

    def of(self, cause: Cause) -> list[Stretch]:
        """Return the stretches in which that held it."""
        return [stretch for stretch in self.stretches if stretch.cause is cause]

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            "job_id": self.job.job_id,
            "user": self.job.user or None,
            "gpus": self.job.gpus,
            "resource": f"{self.unit.lower()}s",
            "cluster": self.cluster,
            "partition": self.partition,
            "replay": self.label,
            "submitted_at": self.submitted_at.isoformat(),
            "started_at": self.started_at.isoformat(),
            "wait_s": self.wait_s,
            "run_time_s": self.run_time_s,
            "believed_s": self.believed_s,
            "planned_s": self.planned_s,
            "planned_by": self.planned_by or None,
            "rank": self.rank,
            "queued": self.queued,
            "wait_s_by_cause": {cause.value: total_s(self.of(cause)) for cause in Cause},
            "stretches": [stretch.to_json() for stretch in self.stretches],
            "held_by": [
                {
                    "job_id": holder.job.job_id,
                    "user": holder.job.user or None,
                    "gpus": holder.job.gpus,
                    "held_s": holder.held_s,
                    "until": holder.until.isoformat(),
                }
                for holder in self.holders
            ],
            "overtaken": {"by_order": self.overtaken.by_order, "by_backfill": self.overtaken.by_backfill},
            "shorter_limit": None
            if self.shorter is None
            else {"planned_s": self.shorter.planned_s, "started_at": self.shorter.started_at.isoformat()},
            "beside": [
                {"replay": other.label, "started_at": other.started_at.isoformat(), "wait_s": other.wait_s}
                for other in self.beside
            ],
            "recorded_wait_s": self.recorded_wait_s,
            "notes": list(self.notes),
        }


def total_s(stretches: Sequence[Stretch]) -> int:
    """Return how long stretches are together, s."""
    return sum(stretch.length_s for stretch in stretches)


def sized(gpus: int, unit: str) -> str:
    """Write a number of GPUs."""
    return f"{gpus:,} {unit}{'' if gpus == 1 else 's'}"
