"""Explanation of a job's wait, as a table of causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from helios.report.tables import plain_table
from helios.units import count_in_words, duration, duration_in_words


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

    def to_json(self) -> dict[str, Any]:
        """Return plain values.

        An unknown user is null.
        """
        return {"job_id": self.job_id, "user": self.user or None, "gpus": self.gpus}

    def named(self, unit: str) -> str:
        """Write it within a sentence."""
        whose = f" of {self.user}" if self.user else ""
        return f"job {self.job_id}{whose} ({count_in_words(self.gpus, unit)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInterval:
    """A part of a job's wait with one cause and one blocker.

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
        With RESERVED, when the blocker was last expected to start. None where unknown.
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
            "cause": self.cause,
            "behind": self.blocker and self.blocker.job_id,
            "free": list(self.free),
            "largest_that_fits": list(self.room),
            "fitted_s": self.fitted_s,
            "scattered_s": self.scattered_s,
            "head_expected_at": self.reserved_at and self.reserved_at.isoformat(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job that held GPUs while another one waited for them.

    Attributes
    ----------
    job : Blocker
    held_s : int
        For how long of that wait, s.
    until : datetime
        Until when it held them, UTC.
    """

    job: Blocker
    held_s: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherReplay:
    """When the job starts in another replay of the same history."""

    label: str
    is_today: bool
    started_at: datetime
    wait_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShorterLimit:
    """A planned run time with which the job would have started earlier.

    Attributes
    ----------
    planned_s : int
        Run time for backfill to plan with, s.
    started_at : datetime
        Latest time at which backfill would have started the job.
    """

    planned_s: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Numbers of jobs submitted later that started earlier.

    ``by_order``: the order put them before it; ``by_backfill``: backfill let them pass.

    They are ordered by the keys of the order, without promotions for long waits.
    """

    by_order: int
    by_backfill: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitExplanation:
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
        Run times that the order and backfill used, s. None where it used none.
    planned_by : str
        Where the latter comes from: limit, predicted, true, or a number of seconds. Empty for no backfill.
    rank, queued : int
        Place in its partition's queue when it was submitted, and the queue's length. 0 where it did not wait.
    intervals : tuple of WaitInterval
        They follow each other from submission to start.
    holders : tuple of Holder
        Jobs that held most while it was next in line, or where that is less than half of its wait, while it waited.
    overtaken : Overtaken
    shorter : ShorterLimit, optional
        What the user could have done.
    beside : tuple of OtherReplay
        The same job in other replays.
    recorded_wait_s : float, optional
        What it waited in truth, s. None where it was not recorded.
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
    intervals: tuple[WaitInterval, ...]
    holders: tuple[Holder, ...]
    overtaken: Overtaken
    shorter: ShorterLimit | None
    beside: tuple[OtherReplay, ...]
    recorded_wait_s: float | None
    notes: tuple[str, ...]

    @property
    def wait_s(self) -> int:
        """How long it waited, s, which is the sum of the intervals."""
        return round((self.started_at - self.submitted_at).total_seconds())

    def of(self, cause: Cause) -> list[WaitInterval]:
        """Return the intervals with that cause."""
        return [interval for interval in self.intervals if interval.cause is cause]

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return {
            **self.job.to_json(),
            **{name: getattr(self, name) for name in ("cluster", "partition", "wait_s", "run_time_s", "believed_s")},
            **{name: getattr(self, name) for name in ("planned_s", "rank", "queued", "recorded_wait_s")},
            "resource": f"{self.unit.lower()}s",
            "replay": self.label,
            "submitted_at": self.submitted_at.isoformat(),
            "started_at": self.started_at.isoformat(),
            "planned_by": self.planned_by or None,
            "wait_s_by_cause": {cause: total_s(self.of(cause)) for cause in Cause},
            "intervals": [interval.to_json() for interval in self.intervals],
            "held_by": [
                {**it.job.to_json(), "held_s": it.held_s, "until": it.until.isoformat()} for it in self.holders
            ],
            "overtaken": asdict(self.overtaken),
            "shorter_limit": self.shorter
            and asdict(self.shorter) | {"started_at": self.shorter.started_at.isoformat()},
            "beside": [
                {"replay": it.label, "started_at": it.started_at.isoformat(), "wait_s": it.wait_s} for it in self.beside
            ],
            "notes": list(self.notes),
        }


def total_s(intervals: Sequence[WaitInterval]) -> int:
    """Return the total length of the intervals, s."""
    return sum(interval.length_s for interval in intervals)


ROWS = 3
"""Jobs that a row names, those that held it longest."""
PLANNED_BY = {
    "limit": " (its time limit)",
    "predicted": " (predicted)",
    "expected": " (expected)",
    "true": " (the truth)",
}
WORDS = {
    Cause.PRIORITY: "Jobs before it in the order",
    Cause.RESOURCES: "Next in line: too few {unit}s free",
    Cause.PIECES: "Next in line: enough {unit}s free, in pieces",
    Cause.RESERVED: "It fits, but backfill keeps the place",
}


def wait_table(story: WaitExplanation) -> RenderableType:
    """Return a table of the causes of a job's wait.

    Longest cause first, with what else is known of the wait above and below.
    """
    table = plain_table("What held it", "For", f"{story.unit}s free", "Largest that fits")
    table.add_column("Behind", overflow="fold")
    for cause in sorted(Cause, key=lambda cause: -total_s(story.of(cause))):
        if found := story.of(cause):
            table.add_row(
                WORDS[cause].format(unit=story.unit),
                duration(total_s(found)),
                _span([interval.free for interval in found]),
                _span([interval.room for interval in found]),
                escape(_blockers(story, found)),
            )
    facts = [escape(line) for line in wait_facts(story)]
    parts: list[RenderableType] = ["", table, ""] if story.intervals else []
    return Group(facts[0], *parts, *facts[1:])


def wait_facts(story: WaitExplanation) -> list[str]:
    """Return a job's wait as sentences, the most important first."""
    job, unit, today = story.job, story.unit, ", what a Slurm site has today"
    rank = f", number {story.rank:,} of {story.queued:,} in the queue at first" if story.rank else ""
    waited = f"waited {duration_in_words(story.wait_s)}{rank}" if story.wait_s else "did not wait"
    lines = [
        f"Job {job.job_id}{f' of {job.user}' if job.user else ''} in {story.partition}: "
        f"{count_in_words(job.gpus, unit)}, submitted {story.submitted_at:%Y-%m-%d %H:%M:%S} UTC. Under "
        f"{story.label}{today if story.is_today else ''}, it {waited}."
    ]
    if story.holders:
        held = (f"{holder.job.named(unit)} for {duration_in_words(holder.held_s)}" for holder in story.holders)
        lines.append(f"Most was held meanwhile by {', '.join(held)}.")
    if story.wait_s:
        ordered, passed = story.overtaken.by_order, story.overtaken.by_backfill
        lines.append(
            f"Jobs submitted later that started earlier: {ordered:,} by the order, {passed:,} let past by backfill."
        )
    if story.shorter is not None:
        means = "With a time limit of" if story.planned_by == "limit" else "Planned with"
        earlier_s = (story.started_at - story.shorter.started_at).total_seconds()
        lines.append(
            f"{means} {duration_in_words(story.shorter.planned_s)} backfill would have started it by "
            f"{story.shorter.started_at:%Y-%m-%d %H:%M} UTC, {duration_in_words(earlier_s)} earlier."
        )
    lines += [
        f"Under {other.label}{today if other.is_today else ''}, it would have started at "
        f"{other.started_at:%Y-%m-%d %H:%M:%S} UTC, having waited {duration_in_words(other.wait_s)}."
        for other in story.beside
    ]
    ran = [f"It ran {duration_in_words(story.run_time_s)}"]
    if story.believed_s is not None:
        ran.append(f"the order expected {duration_in_words(story.believed_s)}")
    if story.planned_s is not None:
        ran.append(f"backfill planned with {duration_in_words(story.planned_s)}{PLANNED_BY.get(story.planned_by, '')}")
    lines.append(f"{'; '.join(ran)}.")
    if story.recorded_wait_s is not None:
        lines.append(
            f"In truth it waited {duration_in_words(story.recorded_wait_s)}: a replay knows no fairshare, limits or "
            "drained nodes."
        )
    return lines


def _blockers(story: WaitExplanation, found: list[WaitInterval]) -> str:
    """Name the jobs that blocked it longest, and count the rest."""
    lasted: Counter[Blocker] = Counter()
    for interval in found:
        if interval.blocker is not None:
            lasted[interval.blocker] += interval.length_s
    named = [f"{job.named(story.unit)} {duration(of_s)}" for job, of_s in lasted.most_common(ROWS)]
    rest_s = lasted.total() - sum(of_s for _, of_s in lasted.most_common(ROWS))
    if len(lasted) > ROWS:
        named.append(f"{len(lasted) - ROWS:,} more {duration(rest_s)}")
    return ", ".join(named)


def _span(pairs: list[tuple[int, int]]) -> str:
    """Write the smallest and the largest number, as ``4-12``."""
    least, most = min(low for low, _ in pairs), max(high for _, high in pairs)
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"
