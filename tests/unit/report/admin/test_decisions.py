from typing import Any

import pandas as pd
import pytest

from helios.actions import Result
from helios.report.admin.decisions import decision_rows, service_days, with_results
from tests.unit.report.admin.frames import at, cycles_frame, decisions_frame


def targets(frame: pd.DataFrame, **chosen: Any) -> list[str]:
    return decision_rows(frame, title="", **chosen).rows["target"].tolist()


LINES = decisions_frame(
    {"target": "1", "service": "qssf", "outcome": "would"},
    {"target": "2", "service": "qssf", "outcome": "refused: the job is held", "mode": "active"},
    {"target": "3", "service": "soft_limits", "action": "SoftLimit", "outcome": "done", "mode": "active"},
)


def test_an_outcome_is_its_result_and_a_remark() -> None:
    rows = with_results(LINES)
    assert rows["result"].tolist() == ["would", "refused", "done"]
    assert rows["remark"].tolist() == ["", "the job is held", ""]


def test_a_remark_may_hold_colons() -> None:
    assert with_results(decisions_frame({"outcome": "failed: scontrol: error: denied"}))["remark"].tolist() == [
        "scontrol: error: denied"
    ]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, ["1", "2", "3"]),
        ({"services": ["qssf"]}, ["1", "2"]),
        ({"targets": ["2", "3"]}, ["2", "3"]),
        ({"results": ["REFUSED", "done"]}, ["2", "3"]),
        ({"results": ["mismatch"]}, []),
    ],
)
def test_lines_are_chosen_by_what_they_say(chosen: dict[str, list[str]], found: list[str]) -> None:
    assert targets(LINES, **chosen) == found


def test_nothing_decided_and_nothing_so_are_told_apart() -> None:
    assert decision_rows(decisions_frame(), title="").empty == "Nothing was decided in this window."
    assert decision_rows(LINES, title="", services=["ces"]).empty == "No such decision in this window."


def days(frame: pd.DataFrame, cycles: pd.DataFrame | None = None, **options: Any) -> list[dict[str, Any]]:
    return service_days(frame, cycles=cycles, title="", **options).rows.to_dict(orient="records")


def test_each_result_is_counted_for_its_service() -> None:
    frame = decisions_frame(*({"outcome": f"{result}: so", "target": str(result)} for result in Result))
    (row,) = days(frame)
    assert row["proposed"] == len(Result)
    assert {name: row[name] for name in map(str, Result)} == dict.fromkeys(map(str, Result), 1)


def test_lines_of_one_cycle_are_one_cycle() -> None:
    frame = decisions_frame({"target": "1"}, {"target": "2"}, {"target": "1", "decided_at": at("12:05")})
    (row,) = days(frame)
    assert (row["cycles"], row["proposed"], row["would"]) == (2, 3, 3)


def test_a_line_that_is_no_outcome_is_no_proposal() -> None:
    (row,) = days(decisions_frame({"outcome": "about to"}, {"outcome": "done"}))
    assert (row["proposed"], row["done"]) == (1, 1)


def test_suspended_cycles_and_their_commonest_reason_come_from_the_cycles() -> None:
    cycles = cycles_frame("the lease is lost", "paused\nby alice", "paused\nby alice", None)
    (row,) = days(decisions_frame(), cycles)
    assert (row["service"], row["cycles"], row["suspended"], row["suspended_reason"]) == (
        "helios",
        4,
        3,
        "paused; by alice",
    )


def test_a_suspended_cycle_in_record_and_audit_counts_once() -> None:
    line = {"service": "helios", "mode": "suspended", "action": "Cycle", "target": "venus"}
    line |= {"outcome": "nothing was done"}
    (row,) = days(decisions_frame(line), cycles_frame("no predictions"))
    assert (row["suspended"], row["cycles"]) == (1, 1)


def test_without_recorded_cycles_lines_of_the_audit_are_counted() -> None:
    line = {"service": "helios", "mode": "suspended", "action": "Cycle", "outcome": "nothing was done"}
    line |= {"reason": "paused"}
    answer = service_days(decisions_frame(line), title="")
    assert (answer.rows["suspended"].tolist(), answer.rows["suspended_reason"].tolist()) == ([1], ["paused"])
    assert "Only cycles with an entry in the audit log" in answer.notes[0]
    assert service_days(decisions_frame(line), cycles=cycles_frame(None), title="").notes == ()


def test_a_failed_service_is_no_suspended_cycle() -> None:
    (row,) = days(decisions_frame({"action": "Cycle", "outcome": "failed: ValueError", "reason": "asked and failed"}))
    assert (row["failed"], row["suspended"], row["proposed"]) == (1, 0, 0)


def test_changes_of_mode_are_counted_and_the_last_mode_is_shown() -> None:
    frame = decisions_frame(
        *(
            {"mode": mode, "decided_at": at(f"{hour:02d}:00")}
            for hour, mode in enumerate(["shadow", "shadow", "canary", "active"])
        )
    )
    (row,) = days(frame)
    assert (row["mode"], row["mode_changes"]) == ("active", 2)


def test_a_mode_of_one_service_is_no_change_of_another_s() -> None:
    frame = decisions_frame(
        {"service": "qssf", "mode": "shadow"}, {"service": "ces", "mode": "active"}, {"mode": "shadow"}
    )
    assert [row["mode_changes"] for row in days(frame)] == [0, 0]


def test_days_are_those_of_the_cluster_s_clock() -> None:
    frame = decisions_frame({"decided_at": at("15:59")}, {"decided_at": at("16:00")})
    assert [row["day"] for row in days(frame, timezone="Asia/Shanghai")] == ["2026-11-20", "2026-11-21"]


def test_services_can_be_chosen() -> None:
    frame = decisions_frame({"service": "qssf"}, {"service": "ces"})
    assert [row["service"] for row in days(frame, services=["ces"])] == ["ces"]


def test_no_decision_is_no_error() -> None:
    answer = service_days(decisions_frame(), cycles=cycles_frame(), title="")
    assert answer.rows.empty
    assert answer.empty == "Nothing was decided in this window."
