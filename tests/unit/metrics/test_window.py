"""In which window a record of jobs is complete, and what is said of the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from helios.app.history import read_file
from helios.metrics.node_usage import held_times
from helios.metrics.window import FEWEST_JOBS, record_window
from tests.traces import TRACES, needs_traces

FIRST = pd.Timestamp("2026-01-05T00:00:00Z")
DAY = pd.Timedelta(days=1)
CUTS = {
    "first half": (0.0, 0.5),
    "second half": (0.5, 1.0),
    "first third": (0.0, 1 / 3),
    "second third": (1 / 3, 2 / 3),
    "last third": (2 / 3, 1.0),
    "last days": (0.985, 1.0),
}
"""Parts of a log, as shares of its span."""
SAME_USE = 0.01
"""Relative difference of use that the first hours of a window may make."""


def a_record(days: int = 40, *, a_day: int = 60, seed: int = 0) -> pd.DataFrame:
    """Jobs of a busy cluster, most of minutes and some of days, with exact ends."""
    random = np.random.default_rng(seed)
    submitted_s = np.sort(random.uniform(0, days * 86_400, days * a_day)).astype(int)
    run_s = np.exp(random.normal(8, 2, len(submitted_s))).astype(int)
    submitted_at = FIRST + pd.to_timedelta(submitted_s, unit="s")
    started_at = submitted_at + pd.Timedelta(minutes=5)
    times = pd.DataFrame(
        {"submitted_at": submitted_at, "started_at": started_at, "ended_at": started_at + pd.to_timedelta(run_s, "s")}
    ).astype("datetime64[us, UTC]")
    return times.assign(run_time_s=run_s.astype(np.float64), state="COMPLETED")


def as_sacct_prints(jobs: pd.DataFrame, begin: pd.Timestamp, end: pd.Timestamp) -> pd.DataFrame:
    """The jobs that were alive in a window; those that ran at its end have none."""
    alive = jobs[(jobs["submitted_at"] < end) & (jobs["ended_at"].isna() | (jobs["ended_at"] >= begin))]
    alive = alive.reset_index(drop=True)
    runs = alive["ended_at"] > end
    return alive.assign(
        ended_at=alive["ended_at"].mask(runs),
        started_at=alive["started_at"].mask(alive["started_at"] > end),
        run_time_s=alive["run_time_s"].mask(runs),
        state=alive["state"].astype(object).mask(runs, "RUNNING"),
    )


def mean_use(jobs: pd.DataFrame, begin: pd.Timestamp, end: pd.Timestamp) -> float:
    """Mean of what jobs held in a window."""
    started_s, ended_s = held_times(jobs)
    held_s = np.maximum(np.minimum(ended_s, end.timestamp()) - np.maximum(started_s, begin.timestamp()), 0)
    return float((held_s * jobs["cpus"].fillna(0)).sum() / (end - begin).total_seconds())


def test_survivors_of_an_export_are_before_the_window() -> None:
    begin, end = FIRST + 20 * DAY, FIRST + 30 * DAY
    window = record_window(as_sacct_prints(a_record(), begin, end))
    assert window is not None
    assert abs(window.begin - begin) < timedelta(hours=3)
    assert window.before > 0
    assert window.source == "ends"


def test_a_complete_record_is_not_cut() -> None:
    jobs = a_record()
    window = record_window(jobs)
    assert window is not None
    assert (window.begin, window.source) == (jobs["submitted_at"].min(), "whole")
    assert window.notes() == []


def test_strays_of_a_wrong_clock_do_not_move_the_begin() -> None:
    begin = FIRST + 20 * DAY
    cut = as_sacct_prints(a_record(), begin, FIRST + 30 * DAY)
    stray = cut.head(1).assign(submitted_at=FIRST - 400 * DAY, ended_at=FIRST - 399 * DAY)
    window = record_window(pd.concat([stray, cut], ignore_index=True))
    assert window is not None
    assert abs(window.begin - begin) < timedelta(hours=3)


def test_strays_after_the_end_are_cut() -> None:
    jobs = a_record()
    stray = jobs.head(1).assign(submitted_at=FIRST + 900 * DAY, ended_at=FIRST + 901 * DAY)
    window = record_window(pd.concat([jobs, stray], ignore_index=True))
    assert window is not None
    assert window.end <= FIRST + 41 * DAY
    assert "Submissions become rare after" in window.notes()[0]


def test_without_ends_a_record_begins_when_submissions_are_usual() -> None:
    begin = FIRST + 20 * DAY
    cut = as_sacct_prints(a_record(a_day=200), begin, FIRST + 30 * DAY)
    cut[["started_at", "ended_at"]] = cut[["started_at", "ended_at"]].mask(cut["submitted_at"].notna())
    window = record_window(cut)
    assert window is not None
    assert window.source == "rate"
    assert abs(window.begin - begin) < timedelta(days=2)
    (note,) = window.notes()
    assert note.startswith(f"Submissions are rare before {window.begin:%Y-%m-%d}")
    assert "lasted" not in note  # nobody knows how long they ran


def test_the_window_that_was_asked_for_is_taken_as_it_is() -> None:
    begin, end = FIRST + 20 * DAY, FIRST + 30 * DAY
    cut = as_sacct_prints(a_record(), begin, end)
    window = record_window(cut, asked=(begin.to_pydatetime(), end.to_pydatetime()))
    assert window is not None
    assert (window.begin, window.end, window.source) == (begin, end, "asked")


def test_an_older_file_beside_what_was_asked_for_counts() -> None:
    jobs = a_record()
    window = record_window(jobs, asked=((FIRST + 20 * DAY).to_pydatetime(), (FIRST + 40 * DAY).to_pydatetime()))
    assert window is not None
    assert window.begin == jobs["submitted_at"].min()


def test_few_jobs_are_not_cut() -> None:
    cut = as_sacct_prints(a_record(), FIRST + 20 * DAY, FIRST + 30 * DAY).head(FEWEST_JOBS - 1)
    window = record_window(cut)
    assert window is not None
    assert window.begin == cut["submitted_at"].min()


def test_a_given_window_is_told_that_it_reaches_before_the_record() -> None:
    window = record_window(as_sacct_prints(a_record(), FIRST + 20 * DAY, FIRST + 30 * DAY))
    assert window is not None
    told = window.notes(since=datetime(2026, 1, 6, tzinfo=UTC))
    assert "--from reaches into the time before" in told[0]
    assert window.notes(since=datetime(2026, 1, 27, tzinfo=UTC)) == []


def test_an_export_of_ended_jobs_says_that_running_ones_are_missing() -> None:
    jobs = a_record(days=20)
    window = record_window(jobs[jobs["ended_at"] < FIRST + 10 * DAY].reset_index(drop=True))
    assert window is not None
    assert "it seems to have only jobs that had ended by then" in window.notes()[0]


@needs_traces
@pytest.mark.parametrize("part", CUTS)
@pytest.mark.parametrize("name", ["KTH-SP2-1996-2.1-cln.swf.gz", "SDSC-BLUE-2000-4.2-cln.swf.gz"])
def test_parts_of_a_log_give_the_use_of_the_whole(name: str, part: str, whole: dict[str, pd.DataFrame]) -> None:
    jobs = whole[name]
    first, span = jobs["submitted_at"].min(), jobs["submitted_at"].max() - jobs["submitted_at"].min()
    begin, end = (first + span * share for share in CUTS[part])
    cut = as_sacct_prints(jobs, begin, end)
    window = record_window(cut)
    assert window is not None
    found = mean_use(cut, pd.Timestamp(window.begin), pd.Timestamp(window.end))
    assert found == pytest.approx(mean_use(jobs, begin, end), rel=SAME_USE)


@pytest.fixture(scope="module")
def whole() -> dict[str, pd.DataFrame]:
    """Two public logs."""
    names = ("KTH-SP2-1996-2.1-cln.swf.gz", "SDSC-BLUE-2000-4.2-cln.swf.gz")
    return {name: read_file(TRACES / name).jobs for name in names}
