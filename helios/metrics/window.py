"""The part of a record of jobs that is complete.

``sacct -S -E`` prints the jobs that were alive in a window. Of those submitted before it only the survivors are there,
some from months before, so the record begins long before it is complete. Levels and waits of that time are of jobs
chosen by how long they took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.node_usage import NEVER_S, held_times, whole_seconds
from helios.units import DAY_S, MINUTE_S, count_in_words

Seconds = NDArray[np.int64]

RECORD_COLUMNS = ("submitted_at", "started_at", "ended_at", "run_time_s", "state")
"""Columns of ``JOBS`` that tell it."""
FEWEST_JOBS = 100
"""Jobs below which nothing is estimated: the rates of fewer cannot be told from chance."""
LEAST_ENDED = 0.5
"""Share of jobs with a known end from which ends are believed. Some public traces have none."""
STRAY = 0.1
"""Share of the usual events a day below which events are strays, such as of a clock that was wrong.

Survivors that public traces without ends begin with have .005 and .007.
"""
SURVIVING = 0.5
"""Share of the later rate of submissions below which jobs are survivors.

Cuts of two public logs have .001 to .2, a public dump .001, and a daily poll of waiting jobs .25.
"""
SHORTEST_CUT = 0.01
"""Share of the record that has to be incomplete, since less changes no figure."""
OUTLASTING = 0.1
"""Share of a usual run by which some job outlasts the end of a record, unless it has ended jobs only."""
FEWEST_RUNNING = 4
"""Jobs that run at once from which it is no chance that none of them outlasts the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWindow:
    """Window in which a record of jobs is complete.

    Attributes
    ----------
    begin_s, end_s : int
        The window, s since the epoch: [begin, end).
    first_s, last_s : int
        First and last submission of the whole record.
    before, after : int
        Jobs submitted before and after the window.
    source : str
        How it is known: ``asked`` (it was asked for), ``ends`` (the earliest end), ``rate`` (submissions become usual),
        or ``whole`` (nothing was cut).
    lacks_running : bool
        Whether jobs that ran at the end are missing, as in an export of ended jobs.
    """

    begin_s: int
    end_s: int
    first_s: int
    last_s: int
    before: int = 0
    after: int = 0
    source: str = "whole"
    lacks_running: bool = False

    @property
    def begin(self) -> datetime:
        """Begin of the window."""
        return datetime.fromtimestamp(self.begin_s, UTC)

    @property
    def end(self) -> datetime:
        """End of the window."""
        return datetime.fromtimestamp(self.end_s, UTC)

    @property
    def span(self) -> str:
        """Days of the first and the last submission, in words."""
        return f"{_day(self.first_s)} to {_day(self.last_s)}"

    def notes(self, *, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """Return what a reader of a window should know of the record.

        Parameters
        ----------
        since, until : datetime, optional
            The window as given. Without them the complete part is meant.
        """
        notes = list[str]()
        reaches_before = since is not None and since.timestamp() < self.begin_s
        reaches_after = until is not None and until.timestamp() > self.end_s
        if self.before and (since is None or reaches_before):
            jobs = count_in_words(self.before, "job")
            why = "as it was read" if self.source == "asked" else "the earliest end"
            said = f"The record is complete from {self.begin:%Y-%m-%d %H:%M} UTC on ({why})."
            if self.source == "rate":
                said = (
                    f"Submissions are rare before {self.begin:%Y-%m-%d %H:%M} UTC: {jobs} from {_day(self.first_s)} on "
                )
                said += "are not counted." if since is None else "are few, so use is too low."
            elif since is None:
                said += f" {jobs} submitted before, from {_day(self.first_s)} on, are not counted: of that time there "
                said += "are only those that lasted."
            else:
                said += f" --from reaches into the time before: of {jobs} submitted then there are only those that "
                said += "lasted, so use is too low and waits are too long."
            notes.append(said)
        if self.after and (until is None or reaches_after):
            jobs = count_in_words(self.after, "job")
            said = f"Submissions become rare after {self.end:%Y-%m-%d %H:%M} UTC: {jobs} until {_day(self.last_s)} "
            notes.append(said + ("are not counted." if until is None else "are strays, so use is too low."))
        if self.lacks_running and (until is None or until.timestamp() > self.end_s - DAY_S):
            notes.append(
                "No job runs on after the record ends: it seems to have only jobs that had ended by then, so use is "
                "too low towards its end. Export running jobs, too."
            )
        return notes


def record_window(jobs: pd.DataFrame, *, asked: tuple[datetime, datetime] | None = None) -> RecordWindow | None:
    """Return the window in which a record of jobs is complete.

    Parameters
    ----------
    jobs : DataFrame
        The ``RECORD_COLUMNS`` of ``JOBS``.
    asked : pair of datetime, optional
        Window of the accounting that was read, all of it.

    Returns
    -------
    RecordWindow or None
        None without any job.
    """
    submitted_s, ended_s = (whole_seconds(jobs[name], otherwise=NEVER_S) for name in ("submitted_at", "ended_at"))
    found = complete_window(submitted_s, ended_s, asked=asked)
    if found is None or found.source == "asked" or len(jobs) < FEWEST_JOBS or not _has_ends(ended_s):
        return found
    return replace(found, lacks_running=_lacks_running(*held_times(jobs), found.begin_s, found.end_s))


def complete_window(
    submitted_s: Seconds, ended_s: Seconds, *, asked: tuple[datetime, datetime] | None = None
) -> RecordWindow | None:
    """Return the window in which submissions and ends are complete.

    It is that of :func:`record_window`, without whether running jobs are lacking.

    Parameters
    ----------
    submitted_s, ended_s : int64 arrays of shape (n_jobs,)
        s since the epoch; ``NEVER_S`` for an end that is not known.
    """
    if not len(submitted_s):
        return None
    first_s, last_s = int(submitted_s.min()), int(submitted_s.max())
    if asked is not None:
        begin_s, end_s = (int(moment.timestamp()) for moment in asked)
        # An older file that was loaded beside tells of jobs that had ended before.
        if not (ended_s < begin_s).any():
            begin_s, end_s = max(begin_s, first_s), max(end_s, last_s + 1)
            before = int((submitted_s < begin_s).sum())
            return RecordWindow(
                begin_s=begin_s, end_s=end_s, first_s=first_s, last_s=last_s, before=before, source="asked"
            )
    whole = RecordWindow(begin_s=first_s, end_s=last_s + 1, first_s=first_s, last_s=last_s)
    if len(submitted_s) < FEWEST_JOBS:
        return whole
    shortest_s = SHORTEST_CUT * (last_s - first_s)
    end_s = -_usual_from(-submitted_s) + 1
    end_s = end_s if last_s + 1 - end_s > shortest_s else last_s + 1
    has_ends = _has_ends(ended_s)
    begin_s = _usual_from(ended_s[ended_s < NEVER_S] if has_ends else submitted_s)
    is_cut = shortest_s < begin_s - first_s and begin_s < end_s
    if is_cut and has_ends:
        is_cut = _rate(submitted_s, first_s, begin_s) < SURVIVING * _rate(submitted_s, begin_s, end_s)
    begin_s = begin_s if is_cut else first_s
    return replace(
        whole,
        begin_s=begin_s,
        end_s=end_s,
        before=int((submitted_s < begin_s).sum()),
        after=int((submitted_s >= end_s).sum()),
        source=("ends" if has_ends else "rate") if is_cut else "whole",
    )


def _has_ends(ended_s: Seconds) -> bool:
    return float((ended_s < NEVER_S).mean()) >= LEAST_ENDED


def _minutes(moments_s: Seconds) -> Seconds:
    """Return the minutes with an event, ascending.

    Arrays submit thousands of jobs in one moment, so minutes say more than jobs of how usual a time is.
    """
    found: Seconds = np.sort(pd.unique(moments_s // MINUTE_S))
    return found


def _usual_from(moments_s: Seconds) -> int:
    """Return the first moment from which events are not rare."""
    minutes = _minutes(moments_s)
    in_a_day = np.searchsorted(minutes, minutes + DAY_S // MINUTE_S) - np.arange(len(minutes))
    usual = minutes[int(np.argmax(in_a_day >= STRAY * np.median(in_a_day)))]
    return int(moments_s[moments_s >= usual * MINUTE_S].min())


def _rate(submitted_s: Seconds, begin_s: int, end_s: int) -> float:
    inside = submitted_s[(submitted_s >= begin_s) & (submitted_s < end_s)]
    return len(_minutes(inside)) / (end_s - begin_s)


def _lacks_running(started_s: Seconds, ended_s: Seconds, begin_s: int, end_s: int) -> bool:
    """Return whether no job outlasts the end of a window.

    Not where hardly a job runs within it, or where it matters for less than ``SHORTEST_CUT`` of the window. What runs
    at some moment takes ``usual_s`` on the mean.
    """
    ran = started_s < NEVER_S
    run_s = np.maximum(np.minimum(ended_s[ran], end_s) - started_s[ran], 0).astype(np.float64)
    usual_s = float((run_s**2).sum() / max(run_s.sum(), 1.0))
    if usual_s <= SHORTEST_CUT * (end_s - begin_s) or bool((ended_s[ran] > end_s + OUTLASTING * usual_s).any()):
        return False
    at_s = np.linspace(begin_s, end_s, 101)
    begun, over = (np.searchsorted(np.sort(times[ran]), at_s, side="right") for times in (started_s, ended_s))
    return bool(np.median(begun - over) >= FEWEST_RUNNING)


def _day(moment_s: int) -> str:
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d}"
