"""Events of a job's life."""

from __future__ import annotations

from typing import Any

import pandas as pd

from helios.app.explain_past import NOTHING_MADE
from helios.model import DECISIONS
from helios.report.job import JobRuns
from helios.report.job_life import job_events
from tests.builders import a_job, jobs_frame

AT = pd.Timestamp("2020-06-01", tz="UTC")
MINUTE = pd.Timedelta(minutes=1)
NOT_ESTIMATED = pd.DataFrame()


def runs(*jobs: dict[str, Any]) -> pd.DataFrame:
    return JobRuns.of(jobs_frame(*jobs), now=AT.to_pydatetime() + 9 * MINUTE).runs


def decisions(*outcomes: str) -> pd.DataFrame:
    rows = [
        {"decided_at": AT + number * MINUTE, "service": "qssf", "mode": "active", "action": "Reorder", "target": "7"}
        | {"reason": "short", "after": "SiteFactor 37", "outcome": outcome}
        for number, outcome in enumerate(outcomes)
    ]
    return DECISIONS.conform(pd.DataFrame(rows).assign(before=None, model_id=None))


def test_each_run_is_submitted_started_and_ended() -> None:
    first = a_job(job_id="7", submitted_at=AT, started_at=AT + MINUTE, run_time_s=60.0, state="NODE_FAIL")
    last = a_job(job_id="7", submitted_at=AT + 2 * MINUTE, started_at=AT + 3 * MINUTE, run_time_s=60.0, restart=1)
    events = job_events(runs(first, last), NOTHING_MADE, DECISIONS.empty(), NOT_ESTIMATED)
    assert [event.kind for event in events] == ["submitted", "started", "ended"] * 2
    assert "NODE_FAIL after 1 min" in events[2].text
    assert "Submitted again, as run 1" in events[3].text


def test_a_job_that_could_start_later_says_when() -> None:
    job = a_job(submitted_at=AT, eligible_at=AT + MINUTE, started_at=AT + 2 * MINUTE, run_time_s=60.0)
    kinds = [event.kind for event in job_events(runs(job), NOTHING_MADE, DECISIONS.empty(), NOT_ESTIMATED)]
    assert kinds == ["submitted", "eligible", "started", "ended"]


def test_equal_decisions_after_each_other_are_one_event() -> None:
    events = job_events(pd.DataFrame(), NOTHING_MADE, decisions("would", "would", "done", "would"), NOT_ESTIMATED)
    assert [event.at for event in events] == [AT, AT + 2 * MINUTE, AT + 3 * MINUTE]
    assert "2 times until 2020-06-01 00:01 UTC" in events[0].text
    assert events[1].text == "qssf (active) set SiteFactor 37: short"


def test_times_that_are_not_known_are_no_events() -> None:
    job = a_job(submitted_at=AT, started_at=None, ended_at=None, run_time_s=60.0)
    assert [event.kind for event in job_events(runs(job), NOTHING_MADE, DECISIONS.empty(), NOT_ESTIMATED)] == [
        "submitted"
    ]
