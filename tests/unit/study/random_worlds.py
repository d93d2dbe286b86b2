"""Random histories of a few jobs, as plain rows, for oracles of the statements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from helios.metrics.history import StudyHistory
from tests.unit.study.worlds import a_history, at, job

STEP_S = 900
"""Length of a step, s: all times of these worlds are whole steps."""
HOUR = 4
DAY = 24 * HOUR
DAYS = 6
END = DAYS * DAY
ENDS = ("COMPLETED", "COMPLETED", "FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "CANCELLED", "PREEMPTED")


@dataclass(frozen=True)
class Row:
    """A run of a job, in steps from the begin of the window."""

    submitted: int
    eligible: int
    started: int | None
    ended: int | None
    state: str | None
    gpus: int
    partition: str | None = "p"
    user: str | None = "a"
    limit: float | None = None
    number: int = 0
    restart: int = 0
    nodes: int = 1
    held: tuple[str, ...] = ()

    @property
    def run(self) -> int | None:
        """Run time of a run that is over."""
        return None if self.started is None or self.ended is None else self.ended - self.started

    def steps(self, first: int = 0, end: int = END) -> range:
        """The steps of a part of the window in which it held its GPUs."""
        if self.started is None:
            return range(0)
        return range(max(self.started, first), max(min(end if self.ended is None else self.ended, end), first))

    @property
    def waits(self) -> range:
        """The steps of the window in which it waited; none where that is not known."""
        if self.started is not None:
            until = self.started
        elif self.state == "CANCELLED" and self.ended is not None:
            until = self.ended
        elif self.state == "PENDING":
            until = END
        else:
            return range(0)
        return range(max(self.eligible, 0), max(min(until, END), 0))

    @property
    def hours(self) -> float:
        """GPU hours inside the window."""
        return len(self.steps()) * self.gpus / HOUR

    @property
    def counted(self) -> bool:
        """Whether it has GPUs and was submitted in the window."""
        return 0 <= self.submitted < END and self.gpus > 0


@st.composite
def rows(draw: st.DrawFn, *, partitions: tuple[str, ...] = ("p", "q"), within: int = END + 2 * DAY) -> list[Row]:
    """Runs of jobs, some of which began before the window, wait, run on, or were started again.

    They are submitted ``within`` so many steps.
    """
    found = [Row(0, 0, 0, 1, "COMPLETED", 1, partitions[0])]  # so that starts are recorded
    for number in range(1, draw(st.integers(3, 12))):
        submitted = draw(st.integers(-2 * DAY, within - 2 * DAY - 1))
        eligible = submitted + draw(st.sampled_from([0, 0, 0, HOUR]))
        one = Row(
            submitted,
            eligible,
            draw(st.none() | st.integers(eligible, eligible + DAY)),
            None,
            None,
            draw(st.sampled_from([0, 1, 1, 1, 2, 4])),
            draw(st.sampled_from([*partitions, partitions[0]])),
            draw(st.sampled_from(["a", "a", "b", None])),
            draw(st.sampled_from([None, float("inf"), 2 * HOUR, 12 * HOUR, 30 * HOUR])),
            number,
            nodes=draw(st.sampled_from([1, 1, 2])),
        )
        found += draw(st.sampled_from([_pending, _finished, _finished, _finished, _finished, _again]))(draw, one)
    return sorted(found, key=lambda row: row.submitted)


def _pending(draw: st.DrawFn, row: Row) -> list[Row]:
    if row.started is not None:
        return [replace(row, state="RUNNING")]
    if draw(st.booleans()):
        return [replace(row, state="CANCELLED", ended=row.eligible + draw(st.integers(1, DAY)))]
    return [replace(row, state="PENDING")]


def _finished(draw: st.DrawFn, row: Row) -> list[Row]:
    if row.started is None:
        return _pending(draw, row)
    long = draw(st.sampled_from([2, 2 * HOUR, 8 * HOUR, 30 * HOUR]))
    return [replace(row, ended=row.started + draw(st.integers(1, long)), state=draw(st.sampled_from([*ENDS, None])))]


def _again(draw: st.DrawFn, row: Row) -> list[Row]:
    """Two runs of one job; the second may be submitted with the first, or when that had ended."""
    if row.started is None:
        return _pending(draw, row)
    first = replace(row, ended=row.started + draw(st.integers(1, 8 * HOUR)), state="NODE_FAIL")
    assert first.ended is not None
    submitted = draw(st.sampled_from([first.submitted, first.ended]))
    started = first.ended + draw(st.integers(0, 2 * HOUR))
    again = replace(
        row, submitted=submitted, eligible=first.ended, started=started, ended=None, state="RUNNING", restart=1
    )
    return [first, *([again] if submitted < END else [])]


def history_of(rows: list[Row], *, end: int = END) -> StudyHistory:
    """The rows as a history; the eligible time of a later run is left to the history."""
    return a_history(*(frame_row(row) for row in rows), end=end * STEP_S)


def frame_row(row: Row) -> dict[str, Any]:
    """A row of ``JOBS``."""
    eligible = row.submitted if row.restart else row.eligible
    return job(
        row.submitted * STEP_S,
        None if row.started is None else row.started * STEP_S,
        None if row.ended is None else row.ended * STEP_S,
        row.gpus,
        eligible_at=at(eligible * STEP_S),
        state=row.state,
        partition=row.partition,
        user=row.user,
        account=None,
        name=None,
        time_limit_s=float("nan") if row.limit is None else row.limit * STEP_S,
        job_id=f"j{row.number}",
        restart=row.restart,
        nodes=float(row.nodes),
        node_list=",".join(row.held) or None,
    )
