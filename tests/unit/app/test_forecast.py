"""Demand from jobs or files, and its judgement: counted as it was, said where it was assumed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from helios.predict.demand.features import NAMES
from helios.predict.demand.types import DAY, Calendar
from hypothesis import given
from hypothesis import strategies as st

from helios.app.demand_history import (
    DemandHistory,
    ForecastRequest,
    RequestedClusterShape,
    evaluate_forecasts,
    watch_cluster,
    watch_files,
)
from helios.app.history import LoadedHistory
from helios.errors import NotEnoughHistory
from helios.metrics.node_usage import most_held
from helios.model import NodeSeries
from tests.builders import a_job, jobs_frame

START = pd.Timestamp("2020-01-01", tz="UTC")
CALENDAR = Calendar(zone=ZoneInfo("UTC"))


def at(minute: float, *, run_min: float = 30, **job: Any) -> dict[str, Any]:
    submitted_at = START + timedelta(minutes=minute)
    times = {"started_at": submitted_at, "ended_at": submitted_at + timedelta(minutes=run_min)}
    return a_job(**{"submitted_at": submitted_at, "run_time_s": 60 * run_min, **times, **job})


def watched(*jobs: dict[str, Any], **asked: Any) -> DemandHistory:
    history = LoadedHistory(cluster="venus", jobs=jobs_frame(*jobs), timezone="UTC")
    return watch_cluster(history, RequestedClusterShape(**asked))


def test_nodes_are_counted_one_by_one_where_jobs_say_where_they_ran() -> None:
    jobs = [at(0, node_list="n[1-2]"), at(5, node_list="n2"), at(12, node_list="n3"), at(60, node_list="n1")]
    seen = watched(*jobs)
    assert seen.series.active.tolist() == [2, 3, 3, 2, 1, 0]
    assert seen.series.total.tolist() == [3] * 6 and "3 nodes that jobs ran on" in seen.series.notes[0]


def test_else_nodes_are_gpus_by_those_of_a_node_and_it_is_said() -> None:
    seen = watched(at(0, gpus=8), at(0, gpus=1), at(12, gpus=16), at(60), nodes={"all": 7})
    assert seen.series.active.tolist() == [2, 4, 4, 2, 2, 0]
    assert seen.series.total.tolist() == [7] * 6
    assert any("their GPUs by 8" in note for note in seen.series.notes)


def test_gpus_can_be_counted_instead() -> None:
    seen = watched(at(0, gpus=8), at(0, gpus=1), at(12, gpus=16), at(60), nodes={"all": 7}, in_gpus=True)
    assert seen.series.active.tolist() == [9, 25, 25, 16, 16, 0]
    assert (seen.unit, seen.series.total[0]) == ("GPU", 56)


def test_jobs_without_starts_are_replayed_and_it_is_said() -> None:
    unknown = {"started_at": None, "ended_at": None, "gpus": 8}
    # One node: the second waits for the first, the third for the second.
    seen = watched(at(0, **unknown), at(0, **unknown), at(1, **unknown), at(90, **unknown), nodes={"all": 1})
    assert seen.series.active.tolist() == [1] * 9
    assert any("replayed, first in first out" in note for note in seen.series.notes)


def test_one_partition_can_be_asked_for() -> None:
    jobs = [at(0, partition="gpu", gpus=8), at(0, partition="big", gpus=16), at(60, partition="gpu")]
    assert watched(*jobs, partition="gpu").series.active.tolist() == [1, 1, 1, 0, 0, 0]
    with pytest.raises(NotEnoughHistory, match="Its partitions: big, gpu"):
        watched(*jobs, partition="none")


def test_what_jobs_tell_is_told_beside_each_step() -> None:
    seen = watched(at(0, gpus=8), at(12, gpus=16), at(60))
    assert seen.state is not None
    assert seen.state.values[:, NAMES.index("held")].tolist() == [1, 3, 3, 2, 0, 0]


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


def request(since: datetime | None = None, until: datetime | None = None) -> ForecastRequest:
    return ForecastRequest(since=since, until=until, calendar=CALENDAR, history_days=180)


def test_the_answer_has_every_method_at_every_horizon_and_a_verdict() -> None:
    series = DemandHistory(series=a_series(14), state=None, kind="series")
    since, until = datetime(2020, 1, 9, tzinfo=UTC), datetime(2020, 1, 14, tzinfo=UTC)
    answer = evaluate_forecasts(series, request(since, until)).to_json()
    assert list(answer)[:4] == ["series", "from", "to", "step_s"]
    assert (answer["from"], answer["to"]) == (since.isoformat(), until.isoformat())
    methods = {"helios", "persistence", "same_hour_last_week", "max_of_last_3_h"}
    assert {(row["method"], row["horizon_h"]) for row in answer["rows"]} == {
        (method, hour) for method in methods for hour in (1, 3, 6, 24)
    }
    assert {(row["method"], row["level"]) for row in answer["most_needed"]} == {
        (method, level) for method in ("helios", "now_plus_empirical_quantile") for level in (0.5, 0.9, 0.99)
    }
    assert answer["notes"][0] == "said" and "beats persistence" in answer["verdict"][0]


def test_nothing_after_the_window_has_a_part_in_the_answer() -> None:
    until = datetime(2020, 1, 12, tzinfo=UTC)
    series = a_series(14)
    whole = evaluate_forecasts(DemandHistory(series=series, state=None, kind="series"), request(None, until))
    series.active[11 * DAY :] = 0
    assert evaluate_forecasts(DemandHistory(series=series, state=None, kind="series"), request(None, until)) == whole


def test_a_window_outside_of_the_series_is_refused_with_what_there_is() -> None:
    with pytest.raises(NotEnoughHistory, match="2020-01-01 00:00 to 2020-01-03 00:00"):
        evaluate_forecasts(
            DemandHistory(series=a_series(2), state=None, kind="series"), request(datetime(2021, 1, 1, tzinfo=UTC))
        )


def test_files_are_added_up_and_share_the_total_told(tmp_path) -> None:
    for name in ("a.csv", "b.csv"):
        rows = [f"2020-01-01 00:{minute:02d}:00,3" for minute in range(20)]
        (tmp_path / name).write_text("\n".join(["time,active", *rows]), encoding="utf-8")
    both = watch_files([tmp_path / "a.csv", tmp_path / "b.csv"], timezone="UTC", total=10).series
    assert both.active.tolist() == [6, 6] and both.total.tolist() == [10, 10]
