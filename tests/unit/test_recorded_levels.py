"""What idled beside waiting jobs by levels alone, and holes in a record."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.recorded_levels import RecordedLevels, find_holes, idle_beside_waiting_levels, read_partition_levels
from tests.traces import TRACES, needs_traces

EARTH = TRACES / "helios_earth_vc_may2020"
PUBLISHED = TRACES.parent / "published" / "earth_may_idle_beside_waiting.csv"
DAY_STEPS, STEP_S = 24, 3600


def levels(used: list[list[float]], waiting: list[list[float]] | None = None, total: float = 8) -> RecordedLevels:
    there = np.array(used, dtype=np.float64)
    return RecordedLevels(
        names=tuple(f"vc{number}" for number in range(len(used))),
        timezone="UTC",
        start_s=0,
        step_s=STEP_S,
        used=there,
        waiting=np.zeros_like(there) if waiting is None else np.array(waiting, dtype=np.float64),
        capacity=np.full_like(there, total),
        gaps=np.zeros(there.shape[1], dtype=np.bool_),
    )


def test_pooled_and_same_partition_are_the_smaller_of_idle_and_waiting() -> None:
    found = idle_beside_waiting_levels(levels([[8, 6], [2, 8]], [[4, 1], [0, 0]])).parts
    assert (found["mean_idle"], found["mean_waiting"]) == (4, 2.5)
    assert (found["pooled"], found["same_partition"]) == (2.5, 0.5)
    assert found["share_of_time_with_both"] == 1


def test_a_fall_of_all_partitions_at_once_begins_a_hole() -> None:
    found = find_holes(levels([[4, 4, 0, 0, 2], [3, 3, 0, 0, 3], [1, 1, 0, 0, 0]]))
    assert found.tolist() == [False, False, True, True, False]


def test_partitions_that_fall_empty_one_after_the_other_are_no_hole() -> None:
    assert not find_holes(levels([[4, 4, 0, 0, 0], [3, 0, 0, 0, 0], [1, 1, 1, 0, 0], [5, 5, 5, 5, 0]])).any()


def test_two_partitions_may_end_at_one_moment() -> None:
    assert not find_holes(levels([[4, 4, 0, 4], [3, 3, 0, 3]])).any()


def test_a_record_that_begins_with_nothing_has_no_hole_there() -> None:
    assert not find_holes(levels([[0, 4, 4, 4], [0, 3, 3, 4], [0, 1, 1, 4]])).any()


def test_a_day_in_a_hole_is_left_out_and_told() -> None:
    day, hole = [4.0] * DAY_STEPS, [0.0] * DAY_STEPS
    used = [day + hole + day] * 3
    waiting = [[1.0] * len(used[0])] * 3
    found = idle_beside_waiting_levels(levels(used, waiting))
    assert found.parts["days_left_out"] == ["1970-01-02"]
    assert found.parts["mean_idle"] == 12
    assert "1970-01-02: 1440 minutes, the day is left out" in found.parts["notes"][-1]
    assert found.coverage == pytest.approx(2 / 3)


def test_a_record_of_holes_alone_is_not_known() -> None:
    empty = replace(levels([[4.0]]), gaps=np.ones(1, dtype=np.bool_))
    assert idle_beside_waiting_levels(empty).missing == "a day without holes"


@needs_traces
@pytest.mark.skipif(not PUBLISHED.is_file(), reason=f"the published figures are not at {PUBLISHED}")
def test_earth_is_as_published_without_the_day_that_is_a_hole() -> None:
    found = idle_beside_waiting_levels(read_partition_levels(sorted(EARTH.glob("*.csv.gz")), timezone="Asia/Shanghai"))
    parts = found.parts
    assert parts["days_left_out"] == ["2020-05-10"]
    with PUBLISHED.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["x"] == "16 VCs"]
    published = {row["series"]: float(row["y"]) for row in rows}
    share_in_use = 100 * (1 - parts["mean_idle"] / parts["mean_capacity"])
    here = {
        "capacity": parts["mean_capacity"],
        "GPUs in use": share_in_use,
        "idle": parts["mean_idle"],
        "asked by waiting jobs": parts["mean_waiting"],
        "min(idle, waiting) over the pool": parts["pooled"],
        "of that within one VC": parts["same_partition"],
        "minutes in which both idle and waiting > 0": 100 * parts["share_of_time_with_both"],
    }
    assert here == pytest.approx(published, abs=0.0006)
    assert round(100 * parts["same_partition_share"]) == 18
