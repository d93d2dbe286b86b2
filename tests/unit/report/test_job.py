from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from helios.model import DECISIONS
from helios.report.job import JobExplanation, places
from helios.testing import a_pending_job, a_snapshot


def a_why(**overrides: Any) -> JobExplanation:
    told: dict[str, Any] = {
        "job_id": "7",
        "state": "PENDING",
        "user": "alice",
        "partition": "gpu",
        "waited_s": 300.0,
        "gpus": 2,
        "tasks": 1,
        "time_limit_s": 3600.0,
        "p10_s": 240.0,
        "p50_s": 720.0,
        "p90_s": 2400.0,
        "source": "venus-20260101-abc",
        "reason": "Priority",
        "rank": 3,
        "rank_without": 9,
        "queued": 12,
    }
    return JobExplanation(**(told | overrides))


def text(why: JobExplanation) -> str:
    return "\n".join(why.lines())


def test_a_waiting_user_reads_what_is_predicted_and_where_the_job_stands() -> None:
    said = text(a_why())
    assert "Predicted run time: 12 min; 8 of 10 such jobs take 4 min to 40 min" in said
    assert "number 3 of 12" in said
    assert "other jobs come before it" in said
    assert "Without Helios it would be number 9." in said


def test_what_the_prediction_rests_on_is_told_after_it() -> None:
    lines = a_why(rests_on="It rests on 12 ended jobs of alice.").lines()
    assert lines[2] == "It rests on 12 ended jobs of alice."
    assert lines[1].startswith("Predicted run time")


def test_a_running_job_is_told_what_remains_of_it() -> None:
    said = text(a_why(state="RUNNING", remaining_s=(60.0, 600.0, 7200.0)))
    assert "by now 10 min remain, in 8 of 10 such cases 1 min to 2 h." in said
    assert "remain" not in text(a_why())


def a_decision(**overrides: Any) -> pd.DataFrame:
    line = {
        "decided_at": datetime(2026, 1, 5, 8, 30, tzinfo=UTC),
        "service": "qssf",
        "mode": "active",
        "action": "Reorder",
        "target": "7",
        "after": "urgency 0.4",
        "reason": "24 GPU-minutes predicted",
        "outcome": "done",
    }
    return DECISIONS.conform(pd.DataFrame([line | overrides]))


def test_what_was_set_is_told_with_when_who_and_why() -> None:
    why = a_why(stands=("SiteFactor 4037",), decisions=a_decision())
    assert "Helios has set SiteFactor 4037." in text(why)
    assert "Last decision, 2026-01-05 08:30 UTC: qssf (active) set urgency 0.4: 24 GPU-minutes predicted" in text(why)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"mode": "shadow", "outcome": "would"}, "qssf (shadow) would have set urgency 0.4: 24 GPU-minutes"),
        ({"outcome": "refused: it is held"}, "qssf (active) requested urgency 0.4 and was refused: 24 GPU-minutes"),
        (
            {"service": "helios", "mode": "paused", "action": "Revert", "after": None, "reason": "paused by eve"},
            "helios reverted what Helios had set, if anything: paused by eve",
        ),
    ],
)
def test_what_was_not_set_is_not_told_as_if_it_were(line: dict[str, str], told: str) -> None:
    assert told in text(a_why(decisions=a_decision(**line)))


def test_a_job_that_is_left_alone_says_why() -> None:
    said = text(a_why(excluded_reason="its user holds it", reason="JobHeldUser"))
    assert "Helios leaves it alone: its user holds it." in said
    assert "has set nothing" not in said


def test_a_reason_that_is_not_known_is_given_in_slurms_word() -> None:
    assert "Slurm says NewInSlurm27" in text(a_why(reason="NewInSlurm27"))


def test_what_slurm_adds_to_its_word_does_not_make_it_another_word() -> None:
    reason = "ReqNodeNotAvail, May be reserved for other job"
    assert "nodes that it needs are down, drained or reserved." in text(a_why(reason=reason))


def test_a_job_that_ended_shows_prediction_and_truth() -> None:
    said = text(a_why(state="COMPLETED", rank=0, rank_without=0, queued=0, run_time_s=660.0, reason=""))
    assert "It ran 11 min." in said
    assert "number" not in said


def test_json_has_no_numbers_that_json_does_not_know() -> None:
    why = a_why(
        time_limit_s=float("inf"), p50_s=float("nan"), decisions=DECISIONS.conform(pd.DataFrame([{"service": "qssf"}]))
    )
    answer = json.loads(json.dumps(why.to_json(), allow_nan=False, default=str))
    assert answer["time_limit_s"] is None
    assert answer["p50_s"] is None
    assert answer["decisions"][0]["after"] is None


def without_a_hundred(jobs: pd.DataFrame) -> NDArray[np.float64]:
    return np.asarray(jobs["priority"] - 100 * jobs["urgency"])


def test_the_place_without_helios_is_by_the_priority_that_would_be() -> None:
    jobs = [
        a_pending_job(job_id="1", priority=200.0, urgency=1.0),
        a_pending_job(job_id="2", priority=150.0),
        a_pending_job(job_id="3", priority=120.0),
    ]
    snapshot = a_snapshot(pending=jobs)
    assert places(snapshot, snapshot.pending.iloc[0], without=without_a_hundred) == (1, 3, 3)
    assert places(snapshot, snapshot.pending.iloc[1], without=without_a_hundred) == (2, 1, 3)


def test_only_jobs_that_share_a_partition_are_counted() -> None:
    jobs = [
        a_pending_job(job_id="1", partition="cpu"),
        a_pending_job(job_id="2", partition="gpu,cpu"),
        a_pending_job(job_id="3", partition="gpu"),
    ]
    snapshot = a_snapshot(pending=jobs)
    assert places(snapshot, snapshot.pending.iloc[2], without=without_a_hundred)[::2] == (2, 2)


def test_jobs_of_one_second_stand_in_the_order_of_their_ids() -> None:
    jobs = [
        a_pending_job(job_id="10", priority=200.0, urgency=1.0, submitted_at="2026-01-05T11:00:00Z"),
        a_pending_job(job_id="9", priority=100.0, submitted_at="2026-01-05T11:00:00Z"),
    ]
    snapshot = a_snapshot(pending=jobs)
    assert places(snapshot, snapshot.pending.iloc[0], without=without_a_hundred) == (1, 2, 2)
