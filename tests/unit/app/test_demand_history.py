"""Nodes in use from jobs or files, and the forecast of tomorrow's: counted as it was, said where it was assumed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.app.demand_history import RequestedClusterShape, count_nodes, forecast_tomorrow, read_files
from helios.app.history import LoadedHistory
from helios.errors import NotEnoughHistory
from helios.metrics.node_usage import most_held
from helios.model import NodeSeries
from helios.predict.node_demand import DAY
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2020-01-01", tz="UTC")
UTC_ZONE = ZoneInfo("UTC")


def at(minute: float, *, run_min: float = 30, **job: Any) -> dict[str, Any]:
    submitted_at = START + timedelta(minutes=minute)
    times = {"started_at": submitted_at, "ended_at": submitted_at + timedelta(minutes=run_min)}
    return a_job(**{"submitted_at": submitted_at, "run_time_s": 60 * run_min, **times, **job})


def watched(*jobs: dict[str, Any], **asked: Any) -> NodeSeries:
    history = LoadedHistory(cluster="venus", jobs=jobs_frame(*jobs), timezone="UTC")
    return count_nodes(history, RequestedClusterShape(**asked))


def test_nodes_are_counted_one_by_one_where_jobs_say_where_they_ran() -> None:
    jobs = [at(0, node_list="n[1-2]"), at(5, node_list="n2"), at(12, node_list="n3"), at(60, node_list="n1")]
    seen = watched(*jobs)
    assert seen.active.tolist() == [2, 3, 3, 2, 1, 0]
    assert seen.total.tolist() == [3] * 6 and "3 nodes that jobs ran on" in seen.notes[0]


def test_nodes_that_are_not_known_are_assumed_from_gpus() -> None:
    seen = watched(at(0, gpus=8), at(0, gpus=1), at(12, gpus=16), at(60), nodes={"all": 7})
    assert seen.active.tolist() == [2, 4, 4, 2, 2, 0]
    assert seen.total.tolist() == [7] * 6
    assert any("their GPUs by 8" in note for note in seen.notes)


def test_jobs_that_run_hold_their_nodes_to_the_end() -> None:
    running = {"ended_at": None, "run_time_s": None, "state": "RUNNING"}
    jobs = [at(0, node_list="n[1-2]"), at(5, node_list="n3", **running), at(60, node_list="n1")]
    seen = watched(*jobs)
    assert seen.active.tolist() == [3, 3, 3, 1, 1, 1]
    assert "1 job has no end yet: in use up to the end of the record." in seen.notes
    assert watched(*({**job, "node_list": None, "gpus": 8} for job in jobs)).active.tolist() == [2, 2, 2, 1, 1, 1]


def test_jobs_without_starts_are_replayed_and_it_is_said() -> None:
    unknown = {"started_at": None, "ended_at": None, "gpus": 8}
    # One node: the second waits for the first, the third for the second.
    seen = watched(at(0, **unknown), at(0, **unknown), at(1, **unknown), at(90, **unknown), nodes={"all": 1})
    assert seen.active.tolist() == [1] * 9
    assert any("replayed, first in first out" in note for note in seen.notes)


def test_one_partition_can_be_asked_for() -> None:
    jobs = [at(0, partition="gpu", gpus=8), at(0, partition="big", gpus=16), at(60, partition="gpu")]
    assert watched(*jobs, partitions=("gpu",)).active.tolist() == [1, 1, 1, 0, 0, 0]
    with pytest.raises(NotEnoughHistory, match="Its partitions: big, gpu"):
        watched(*jobs, partitions=("none",))


@given(
    st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 3_000), st.integers(1, 3)), max_size=12),
    st.integers(0, 1_200),
)
def test_the_most_held_is_that_of_the_worst_second(jobs: list[tuple[int, int, int]], first_s: int) -> None:
    start_s, run_s, size = (np.array([job[column] for job in jobs], dtype=np.int64) for column in range(3))
    told = most_held(start_s, start_s + run_s, size.astype(np.float64), first_s=first_s, step_s=600, n_steps=5)
    for step in range(5):
        seconds = np.arange(first_s + 600 * step, first_s + 600 * (step + 1))[:, None]
        held = ((start_s <= seconds) & (seconds < start_s + run_s)) @ size
        assert told[step] == held.max(initial=0)


def a_series(days: int, *, gaps: slice = slice(0)) -> NodeSeries:
    steps = np.arange(days * DAY)
    gone = np.zeros(len(steps), dtype=np.bool_)
    gone[gaps] = True
    noise = np.random.default_rng(0).integers(0, 5, len(steps))
    return NodeSeries(
        name="gpu",
        start_s=int(START.timestamp()),
        step_s=600,
        active=np.round(20 + 10 * np.sin(2 * np.pi * steps / DAY)) + noise,
        total=np.full(len(steps), 40.0),
        gaps=gone,
        notes=("said",),
    )


def test_tomorrow_is_forecast_by_the_hours_of_the_local_clock() -> None:
    zone = ZoneInfo("Asia/Kolkata")
    until = datetime(2020, 1, 20, 10, 50, tzinfo=UTC)
    found = forecast_tomorrow(a_series(28), kind="series", zone=zone, until=until)
    assert found.made_at == datetime(2020, 1, 20, 16, tzinfo=zone)
    assert [hour.begin.hour for hour in found.hours] == list(range(24))
    assert {hour.begin.date().isoformat() for hour in found.hours} == {"2020-01-21"}
    assert all(hour.low <= hour.expected <= hour.high <= 40 for hour in found.hours)


def test_the_scores_are_beside_two_without_a_model() -> None:
    answer = forecast_tomorrow(a_series(28), kind="series", zone=UTC_ZONE).to_json()
    assert {(row["method"], row["ahead_h"]) for row in answer["scores"]} == {
        (method, hour) for method in ("helios", "as_now", "same_hour_last_week") for hour in (1, 3, 6, 12, 24, 48)
    }
    assert answer["notes"][0] == "said"


def test_nothing_after_the_moment_has_a_part_in_the_answer() -> None:
    until = datetime(2020, 1, 22, tzinfo=UTC)
    series = a_series(28)
    before = forecast_tomorrow(series, kind="series", zone=UTC_ZONE, until=until)
    series.active[21 * DAY :] = 0
    assert forecast_tomorrow(series, kind="series", zone=UTC_ZONE, until=until) == before


def test_less_than_two_weeks_are_refused_with_what_there_is() -> None:
    with pytest.raises(
        NotEnoughHistory, match="begins on 2020-01-01 00:00, 13 days before the forecast, and it takes 14"
    ):
        forecast_tomorrow(a_series(13), kind="series", zone=UTC_ZONE)


def test_files_are_added_up_and_share_the_total_told(tmp_path) -> None:
    for name in ("a.csv", "b.csv"):
        rows = [f"2020-01-01 00:{minute:02d}:00,3" for minute in range(20)]
        (tmp_path / name).write_text("\n".join(["time,active", *rows]), encoding="utf-8")
    both = read_files(
        [tmp_path / "a.csv", tmp_path / "b.csv"], timezone="UTC", total=10, gpus_per_node=8, in_steps=True
    )
    assert both.active.tolist() == [6, 6] and both.total.tolist() == [10, 10]
