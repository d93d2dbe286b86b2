"""A job's own story in a replay: what held it in each stretch of its wait; ``helios.report.job_wait`` tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.units import duration, duration_in_words


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
        return f"job {self.job_id}{whose} ({describe_size(self.gpus, unit)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitInterval:
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
class OtherReplay:
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
    intervals: tuple[WaitInterval, ...]
    holders: tuple[Holder, ...]
    overtaken: Overtaken
    shorter: ShorterLimit | None
    beside: tuple[OtherReplay, ...]
    recorded_wait_s: float | None
    notes: tuple[str, ...]

    @property
    def wait_s(self) -> int:
        """How long it waited, s: the sum of the stretches."""
        return round((self.started_at - self.submitted_at).total_seconds())

    def of(self, cause: Cause) -> list[WaitInterval]:
        """Return the stretches in which that held it."""
        return [interval for interval in self.intervals if interval.cause is cause]

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
            "intervals": [interval.to_json() for interval in self.intervals],
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


def total_s(intervals: Sequence[WaitInterval]) -> int:
    """Return how long stretches are together, s."""
    return sum(interval.length_s for interval in intervals)


def describe_size(gpus: int, unit: str) -> str:
    """Write a number of GPUs."""
    return f"{gpus:,} {unit}{'' if gpus == 1 else 's'}"


# A job's own story in a replay, told in the words that ``helios why`` uses too.

NAMED = 3
"""Jobs that a sentence names, the ones that matter most."""
ROWS = 12
"""Phases that a screen shows, the longest."""


def story_lines(story: WaitExplanation) -> list[str]:
    """Return the story as sentences, the most important first."""
    return [
        _headline(story),
        *_causes(story),
        *_holders(story),
        *_overtaken(story),
        *_shorter(story),
        *_beside(story),
        _run_time(story),
        *_recorded(story),
    ]


def story_screen(story: WaitExplanation) -> RenderableType:
    """Return the story for a terminal: sentences, and the stretches of the wait one by one where there are several."""
    parts: list[RenderableType] = [escape(line) for line in story_lines(story)]
    if len(story.intervals) > 1:
        parts += ["", _table(story)]
    return Group(*parts)


def _headline(story: WaitExplanation) -> str:
    whose = f" of {story.job.user}" if story.job.user else ""
    today = ", what a Slurm site has today" if story.is_today else ""
    waited = f"waited {duration_in_words(story.wait_s)}" if story.wait_s else "did not wait"
    rank = f", number {story.rank:,} of {story.queued:,} in the queue at first" if story.rank else ""
    return (
        f"Job {story.job.job_id}{whose} in {story.partition}: {describe_size(story.job.gpus, story.unit)}, submitted "
        f"{story.submitted_at:%Y-%m-%d %H:%M:%S} UTC. Under {story.label}{today}, it {waited}{rank}."
    )


def _causes(story: WaitExplanation) -> list[str]:
    told = {
        Cause.PRIORITY: _behind,
        Cause.RESOURCES: _for_gpus,
        Cause.PIECES: _in_pieces,
        Cause.RESERVED: _reserved,
    }
    longest_first = sorted(Cause, key=lambda cause: -total_s(story.of(cause)))
    return [
        f"- {duration_in_words(total_s(found))} {told[cause](story, found)}."
        for cause in longest_first
        if (found := story.of(cause))
    ]


def _behind(story: WaitExplanation, found: list[WaitInterval]) -> str:
    fitted_s = sum(interval.fitted_s for interval in found)
    idle = f"; for {duration_in_words(fitted_s)} it would have fitted, but nothing may pass" if fitted_s else ""
    scattered_s = sum(interval.scattered_s for interval in found)
    pieces = f", for {duration_in_words(scattered_s)} enough for who came first, but in pieces" if scattered_s else ""
    return f"on priority{_blockers(story, found, 'behind')}; {_free(story, found)}{pieces}{idle}"


def _for_gpus(story: WaitExplanation, found: list[WaitInterval]) -> str:
    return f"next in line, for {describe_size(story.job.gpus, story.unit)}; {_free(story, found)}"


def _in_pieces(story: WaitExplanation, found: list[WaitInterval]) -> str:
    return (
        f"next in line, for {describe_size(story.job.gpus, story.unit)} in one piece; {_free(story, found)}, "
        f"but on nodes that "
        f"hold a job of {_span(found, 'room')} at most"
    )


def _reserved(story: WaitExplanation, found: list[WaitInterval]) -> str:
    known = {interval.reserved_at for interval in found if interval.reserved_at is not None}
    by = f", expected to start by {min(known):%Y-%m-%d %H:%M} UTC" if len(known) == len(found) == 1 else ""
    return f"it would have fitted, but backfill kept the place{_blockers(story, found, 'for')}{by}"


def _blockers(story: WaitExplanation, found: list[WaitInterval], how: str) -> str:
    """Name the jobs that were first, those that were so longest, and count the rest."""
    lasted: dict[Blocker, int] = {}
    for interval in found:
        if interval.blocker is not None:
            lasted[interval.blocker] = lasted.get(interval.blocker, 0) + interval.length_s
    ranked = sorted(lasted, key=lambda job: -lasted[job])
    if len(ranked) == 1:
        return f" {how} {ranked[0].named(story.unit)}"
    parts = [f"{duration_in_words(lasted[job])} {how} {job.named(story.unit)}" for job in ranked[:NAMED]]
    if rest := ranked[NAMED:]:
        others = f"{len(rest):,} other{'' if len(rest) == 1 else 's'}"
        parts.append(f"{duration_in_words(sum(lasted[job] for job in rest))} {how} {others}")
    return f": {', '.join(parts)}"


def _free(story: WaitExplanation, found: list[WaitInterval]) -> str:
    span = _span(found, "free")
    if span == "0":
        return f"no {story.unit} was free"
    return f"{span} {story.unit}{' was' if span == '1' else 's were'} free"


def _span(found: list[WaitInterval], what: str) -> str:
    """Write the fewest and the most, as ``4 to 12``."""
    pairs = [getattr(interval, what) for interval in found]
    least, most = min(low for low, _ in pairs), max(high for _, high in pairs)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _holders(story: WaitExplanation) -> list[str]:
    if not story.holders:
        return []
    named = ", ".join(
        f"{holder.job.named(story.unit)} for {duration_in_words(holder.held_s)}" for holder in story.holders
    )
    return [f"Most was held meanwhile by {named}."]


def _overtaken(story: WaitExplanation) -> list[str]:
    ordered, passed = story.overtaken.by_order, story.overtaken.by_backfill
    if not ordered + passed:
        return ["No job that was submitted later started earlier."] if story.wait_s else []
    n = ordered + passed
    how = " and ".join(
        part
        for part in (
            f"{ordered:,} that the order put before it" if ordered else "",
            f"{passed:,} that backfill let pass" if passed else "",
        )
        if part
    )
    return [f"{n:,} job{'' if n == 1 else 's'} submitted later started earlier: {how}."]


def _shorter(story: WaitExplanation) -> list[str]:
    if story.shorter is None:
        return []
    earlier_s = (story.started_at - story.shorter.started_at).total_seconds()
    if story.planned_by == "limit":
        means = f"With a time limit of {duration_in_words(story.shorter.planned_s)}"
    else:
        means = f"Planned with {duration_in_words(story.shorter.planned_s)}"
    return [
        f"{means} backfill would have started it by {story.shorter.started_at:%Y-%m-%d %H:%M} UTC, "
        f"{duration_in_words(earlier_s)} earlier."
    ]


def _beside(story: WaitExplanation) -> list[str]:
    return [
        f"Under {other.label}{', what a Slurm site has today' if other.is_today else ''}, it would have started at "
        f"{other.started_at:%Y-%m-%d %H:%M:%S} UTC, having waited {duration_in_words(other.wait_s)}"
        f"{_difference(other.wait_s, story.wait_s)}."
        for other in story.beside
    ]


def _difference(other_s: int, mine_s: int) -> str:
    if other_s == mine_s:
        return ": no difference"
    return f": {duration_in_words(abs(other_s - mine_s))} {'longer' if other_s > mine_s else 'shorter'}"


def _run_time(story: WaitExplanation) -> str:
    parts = []
    if story.believed_s is not None:
        parts.append(f"the order believed {duration_in_words(story.believed_s)}")
    if story.planned_s is not None:
        source = {"limit": "its time limit", "predicted": "predicted", "expected": "expected", "true": "the truth"}.get(
            story.planned_by, ""
        )
        parts.append(f"backfill planned with {duration_in_words(story.planned_s)}{f' ({source})' if source else ''}")
    believed = f"; {', '.join(parts)}" if parts else ""
    return f"It ran {duration_in_words(story.run_time_s)}{believed}."


def _recorded(story: WaitExplanation) -> list[str]:
    if story.recorded_wait_s is None:
        return []
    return [
        f"In truth it waited {duration_in_words(story.recorded_wait_s)}: a replay knows no fairshare, limits "
        f"or drained "
        "nodes."
    ]


def _table(story: WaitExplanation) -> Table:
    """Return the wait phase by phase, a phase being stretches in a row with one cause; the longest ones."""
    phases = [list(phase) for _, phase in groupby(story.intervals, key=lambda interval: interval.cause)]
    kept = sorted(phases, key=lambda phase: -total_s(phase))[:ROWS]
    table = Table(box=None, pad_edge=False)
    table.add_column("From (UTC)")
    table.add_column("Lasted", justify="right")
    table.add_column(f"{story.unit}s free", justify="right")
    table.add_column("What held it")
    for phase in sorted(kept, key=lambda phase: phase[0].began_at):
        free = _span(phase, "free").replace(" to ", "-")
        table.add_row(
            f"{phase[0].began_at:%m-%d %H:%M:%S}", duration(total_s(phase)), free, escape(_held(story, phase))
        )
    if left := len(phases) - len(kept):
        rest_s = story.wait_s - sum(total_s(phase) for phase in kept)
        table.add_row("", duration(rest_s), "", f"{left:,} shorter phase{'' if left == 1 else 's'}")
    return table


def _held(story: WaitExplanation, phase: list[WaitInterval]) -> str:
    cause, last = phase[0].cause, phase[-1]
    if cause is Cause.PRIORITY:
        return f"priority: {_in_cycle(story, phase)} first"
    if cause is Cause.RESERVED:
        by = f", expected by {last.reserved_at:%m-%d %H:%M}" if last.reserved_at is not None else ""
        return f"backfill: it fits, but could delay {_in_cycle(story, phase)}{by}"
    if cause is Cause.PIECES:
        return f"resources: next in line; the largest job that fits is {_span(phase, 'room')}"
    return "resources: next in line"


def _in_cycle(story: WaitExplanation, phase: list[WaitInterval]) -> str:
    jobs = list(dict.fromkeys(interval.blocker for interval in phase if interval.blocker is not None))
    if len(jobs) == 1:
        return jobs[0].named(story.unit)
    return f"{len(jobs):,} jobs in turn, {jobs[0].named(story.unit)} to {jobs[-1].named(story.unit)}"
