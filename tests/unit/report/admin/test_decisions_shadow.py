"""The counterfactual of a shadow's day: on a cluster of one GPU every start can be told beforehand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.reports import shadow_day
from helios.model import in_submission_order
from helios.report.admin.decisions import ShadowDay, decided_urgencies, moved_table, replayed_urgencies, shadow_table
from tests.builders import a_job, jobs_frame
from tests.unit.report.admin.frames import DAY, at, decisions_frame


def a_run(job_id: str, submitted: str, hours: float, **overrides: Any) -> dict[str, Any]:
    return a_job(
        **{
            "job_id": job_id,
            "submitted_at": at(submitted),
            "started_at": at(submitted),
            "run_time_s": 3600.0 * hours,
            "time_limit_s": 3600.0 * hours,
        }
        | overrides
    )


LONG_FIRST = (a_run("1", "08:00", 1), a_run("2", "08:10", 10), a_run("3", "08:20", 1))
"""The second keeps the third waiting, on one GPU."""


def shadowed(*jobs: dict[str, Any], decided: tuple[dict[str, Any], ...] = (), nodes: int | None = 1) -> ShadowDay:
    return shadow_day(
        in_submission_order(jobs_frame(*jobs)),
        decisions_frame(*decided),
        begin=DAY,
        end=DAY + pd.Timedelta(days=1),
        nodes=None if nodes is None else {"gpu": nodes},
        gpus_per_node=1,
        default_time_limit_s=86_400,
    )


def urgent(job_id: str, urgency: float, **overrides: Any) -> dict[str, Any]:
    return {"target": job_id, "after": f"urgency {urgency:.3g}"} | overrides


def test_the_decided_order_is_replayed_beside_the_site_s_own() -> None:
    day = shadowed(*LONG_FIRST, decided=(urgent("2", -0.8), urgent("3", 0.8)))
    assert day.without is not None and day.with_decisions is not None
    # 1 runs from 8 to 9; then the long one and the short one, or the short one and the long one.
    assert day.without.mean_wait_s == pytest.approx((0 + 50 * 60 + 10 * 3600 + 40 * 60) / 3)
    assert day.with_decisions.mean_wait_s == pytest.approx((0 + 3600 + 50 * 60 + 40 * 60) / 3)
    assert (day.decided, day.earlier, day.later) == (2, 1, 1)


def test_who_would_have_moved_is_named_the_furthest_first() -> None:
    moved = shadowed(*LONG_FIRST, decided=(urgent("2", -0.8), urgent("3", 0.8))).moved
    assert moved["job_id"].tolist() == ["3", "2"]
    assert moved["difference_s"].tolist() == [-36_000, 3_600]
    assert moved["urgency"].tolist() == [0.8, -0.8]


def test_without_a_decision_nothing_moves_and_that_is_said() -> None:
    day = shadowed(*LONG_FIRST)
    assert day.moved.empty
    assert day.without == day.with_decisions
    assert day.sentences == ["No shadow decided another place for any job that day."]


def test_the_recorded_waits_stand_beside_the_replays() -> None:
    day = shadowed(*LONG_FIRST, a_run("4", "20:00", 1, started_at=at("20:30")), decided=(urgent("3", 0.8),))
    assert day.recorded is not None
    assert (day.recorded.jobs, day.recorded.max_wait_s) == (4, 1800)
    answer = shadow_table(day, title="")
    assert answer.rows["line"].tolist() == ["as recorded", "replayed, plain FIFO + EASY", "replayed, as decided"]
    assert answer.rows["max_wait_s"].tolist()[0] == 1800


def test_jobs_of_earlier_days_are_in_the_way_but_do_not_count() -> None:
    before = a_run("9", "00:00", 30, submitted_at=DAY - pd.Timedelta(hours=12))
    day = shadowed(before, *LONG_FIRST)
    assert day.without is not None
    assert day.without.jobs == 3
    assert day.without.mean_wait_s > 10 * 3600


def test_only_the_shadow_s_own_would_be_orders_count() -> None:
    frame = decisions_frame(
        urgent("1", 0.5, mode="active", outcome="done"),
        urgent("2", 0.5, action="SoftLimit"),
        urgent("3", 0.5, outcome="refused: held"),
        urgent("4", 0.5),
    )
    assert decided_urgencies(frame) == {"4": 0.5}


def test_the_first_urgency_decided_for_a_job_counts() -> None:
    frame = decisions_frame(urgent("1", 0.25), urgent("1", 1.0, decided_at=at("18:00")))
    assert decided_urgencies(frame) == {"1": 0.25}


@pytest.mark.parametrize(
    ("text", "urgency"),
    [("urgency 0.4", 0.4), ("urgency -0.25", -0.25), ("urgency 1e-05", 1e-05), ("SiteFactor -2537", -2537)],
)
def test_an_urgency_is_read_as_control_and_slurm_write_it(text: str, urgency: float) -> None:
    assert decided_urgencies(decisions_frame({"after": text})) == {"1": urgency}


def test_an_order_written_down_without_a_number_is_left_out() -> None:
    assert decided_urgencies(decisions_frame({"after": None}, {"after": "first"})) == {}


def test_tasks_of_an_array_have_the_urgency_of_their_record() -> None:
    jobs = jobs_frame(
        a_run("101", "08:00", 1, array_job_id="100"),
        a_run("102", "08:00", 1, array_job_id="100"),
        a_run("103", "08:00", 1),
    )
    assert replayed_urgencies(jobs, {"100": 0.5, "102": 0.1}).tolist() == [0.5, 0.1, 0.0]


def test_where_nothing_can_be_replayed_the_reason_is_said() -> None:
    job = a_run("1", "08:00", 1, run_time_s=float("nan"), ended_at=None)
    day = shadowed(job, decided=(urgent("1", 0.5),))
    assert day.without is None
    assert "have not ended" in day.notes[0]
    assert day.sentences == ["A shadow would have given 1 job another place."]


def test_an_empty_day_is_no_error() -> None:
    day = shadowed()
    assert day.recorded is None and day.without is None
    assert shadow_table(day, title="").rows.empty
    assert day.to_json()["moved"] == []


def test_jobs_of_a_partition_without_nodes_are_left_out_and_said() -> None:
    day = shadowed(*LONG_FIRST, a_run("5", "09:00", 1, partition="debug"))
    assert day.without is not None and day.without.jobs == 3
    assert any("debug" in note for note in day.notes)


def test_what_the_replay_cannot_tell_is_said() -> None:
    notes = " ".join(shadowed(*LONG_FIRST).notes)
    assert "fairshare" in notes and "promotions" in notes and "by the end of the day" in notes


def test_an_unlimited_job_is_planned_with_the_default_limit() -> None:
    # Two GPUs: 1 holds one; 2 wants both; 3 may pass it only if it is planned to end before 1 does.
    jobs = [
        a_run("1", "08:00", 10),
        a_run("2", "08:10", 1, gpus=2),
        a_run("3", "08:20", 1, time_limit_s=float("inf")),
    ]
    day = shadowed(*jobs, nodes=2)
    assert day.without is not None
    assert day.without.max_wait_s > 9 * 3600
    assert day.without.queued_jobs == 2


def test_sentences_say_who_gains_and_what_the_longest_wait_becomes() -> None:
    first, second, third = shadowed(*LONG_FIRST, decided=(urgent("2", -0.8), urgent("3", 0.8))).sentences
    assert first == "A shadow would have given 2 jobs another place."
    assert second.startswith(
        "In the replay the mean wait falls from 3 h 50 min to 50 min; jobs that start earlier: 1, later: 1."
    )
    assert third == (
        "Mean wait by size: one node 50 min instead of 3 h 50 min (-78 %). "
        "Longest wait: 1 h 50 min instead of 10 h 40 min (-83 %)."
    )


def test_the_moved_are_shown_up_to_a_number() -> None:
    day = shadowed(*LONG_FIRST, decided=(urgent("3", 0.8),))
    assert len(moved_table(day, most=1).rows) == 1
    assert np.isclose(moved_table(day, most=1).rows["urgency"].iloc[0], 0.8)
