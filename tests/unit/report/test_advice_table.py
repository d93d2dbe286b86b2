"""Advice is summed by kind and by user."""

from __future__ import annotations

from typing import Any

import pytest

from helios.report.admin.sacct_format import as_json
from helios.report.advice import Advice, Interval
from helios.report.advice_table import KINDS, NONE, advice_by_kind, advice_groups


def a_piece(kind: str, user: str, hours: float, **values: Any) -> Advice:
    interval = Interval(meaning="the middle 8 of 10 ran", low=60.0, high=120.0, unit="s")
    plain = {"which": "Jobs in gpu", "sentence": "95 in 100 ran at most 2 min.", "jobs": 20, "resource": "GPU"}
    return Advice(**{"kind": kind, "user": user, "hours": hours, "interval": interval} | plain | values)  # type: ignore[arg-type]  # plain values of its fields


PIECES = (
    a_piece("limit_too_long", "alice", 5.0, example="7", option="--time=01:00:00"),
    a_piece("limit_too_long", "bob", 9.0, example="8", option="--time=02:00:00"),
    a_piece("limit_too_long", "bob", 1.0),
    a_piece("cpus_unused", "bob", 99.0, resource="CPU"),
)


def test_a_kind_is_one_row_with_its_largest_group_as_example() -> None:
    rows = as_json(advice_by_kind(PIECES))["rows"]
    assert [(row["found"], row["gpu_hours"], row["cpu_hours"], row["jobs"], row["users"]) for row in rows] == [
        ("Time limit far above the run time", 15.0, None, 60, 2),
        ("CPUs that are not used", None, 99.0, 20, 1),
    ]
    assert (rows[0]["example"], rows[0]["option"], rows[0]["groups"]) == ("8", "--time=02:00:00", 3)


def test_each_user_has_a_row_for_each_kind() -> None:
    rows = as_json(advice_by_kind(PIECES, by_user=True))["rows"]
    assert [(row["user"], row["gpu_hours"]) for row in rows] == [("bob", 10.0), ("alice", 5.0), ("bob", None)]


def test_groups_have_their_evidence() -> None:
    rows = as_json(advice_groups(PIECES))["rows"]
    assert [row["gpu_hours"] for row in rows] == [9.0, 5.0, 1.0, None]
    assert rows[0]["evidence"] == "the middle 8 of 10 ran: 1 min to 2 min"


@pytest.mark.parametrize("by_user", [False, True])
def test_without_advice_the_tables_are_empty(by_user: bool) -> None:
    table = advice_by_kind([], by_user=by_user)
    assert (len(table.rows), table.empty) == (0, NONE)
    assert as_json(advice_groups([]))["rows"] == []


def test_every_kind_of_advice_has_words() -> None:
    assert set(KINDS) == {
        *("limit_too_long", "limit_too_short", "memory_too_large", "memory_too_small"),
        *("cpus_unused", "packing", "gpus_idle", "gpus_idle_inside", "session_idle"),
    }
