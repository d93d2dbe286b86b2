from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.report.admin.usage import MOST_STEPS, levels, queue_at, queue_over_time, running_at, steps, waiting_at
from tests.builders import a_job, jobs_frame
from tests.examples import examples
from tests.unit.report.admin.frames import DAY, at, predicted, predictions_frame

END = DAY + pd.Timedelta(days=1)


def a_stay(submitted: str, started: str | None, ended: str | None = None, **overrides: Any) -> dict[str, Any]:
    state = "PENDING" if started is None else "RUNNING" if ended is None else "COMPLETED"
    return a_job(
        **{
            "state": state,
            "submitted_at": at(submitted),
            "started_at": at(started) if started else None,
            "ended_at": at(ended) if ended else None,
            "run_time_s": (at(ended) - at(started)).total_seconds() if started and ended else float("nan"),
        }
        | overrides
    )


def test_the_queue_at_a_moment_is_who_had_come_and_not_started() -> None:
    jobs = jobs_frame(
        a_stay("08:00", "12:00", "13:00", user="alice", gpus=4),
        a_stay("09:00", None, user="bob", gpus=2),
        a_stay("11:00", None, user="carol"),
    )
    answer = queue_at(jobs, predictions=predictions_frame(), at=at("10:00"), title="")
    assert answer.rows["user"].tolist() == ["alice", "bob"]
    assert answer.rows["oldest_wait_s"].tolist() == [7200, 3600]
    assert answer.total is not None
    assert (answer.total["waiting"], answer.total["waiting_gpus"], answer.total["oldest_wait_s"]) == (2, 6, 7200)
    assert answer.total["mean_wait_s"] == 5400


def test_beside_who_waits_stands_what_they_run() -> None:
    jobs = jobs_frame(a_stay("08:00", "08:00", gpus=4), a_stay("08:00", "08:30", "09:00"), a_stay("09:00", None))
    row = queue_at(jobs, predictions=predictions_frame(), at=at("10:00"), title="").rows.iloc[0]
    assert (row["waiting"], row["running"], row["running_gpus"]) == (1, 1, 4)


def test_the_oldest_job_is_named() -> None:
    jobs = jobs_frame(a_stay("09:00", None, job_id="11"), a_stay("08:00", None, job_id="12"))
    assert queue_at(jobs, predictions=predictions_frame(), at=END, title="").rows["oldest_job"].tolist() == ["12"]


def test_who_only_runs_has_no_oldest_job() -> None:
    rows = queue_at(jobs_frame(a_stay("08:00", "08:00")), predictions=predictions_frame(), at=END, title="").rows
    assert rows["waiting"].tolist() == [0]
    assert pd.isna(rows["oldest_job"].iloc[0])


def test_predicted_gpu_hours_are_of_waiting_jobs_that_were_predicted() -> None:
    waits, runs, unknown = a_stay("08:00", None, gpus=4), a_stay("08:00", "08:00", gpus=1), a_stay("08:00", None)
    predictions = predictions_frame(predicted(waits, 7200), predicted(runs, 7200))
    rows = queue_at(jobs_frame(waits, runs, unknown), predictions=predictions, at=END, title="").rows
    assert rows["predicted_gpu_hours"].tolist() == [8.0]


def test_a_job_cancelled_while_it_waited_waited_until_then() -> None:
    job = a_stay("08:00", None, "10:00", state="CANCELLED")
    assert waiting_at(jobs_frame(job), at("09:00")).tolist() == [True]
    assert waiting_at(jobs_frame(job), at("11:00")).tolist() == [False]


def test_an_unknown_start_is_no_wait() -> None:
    job = a_stay("08:00", None, state=None)
    assert waiting_at(jobs_frame(job), END).tolist() == [False]
    assert running_at(jobs_frame(job), END).tolist() == [False]


def test_an_old_history_is_said_to_be_old() -> None:
    jobs = jobs_frame(a_stay("08:00", None))
    assert queue_at(jobs, predictions=predictions_frame(), at=at("09:00"), title="").notes == ()
    assert "2026-11-20 08:00" in queue_at(jobs, predictions=predictions_frame(), at=END, title="").notes[0]


def test_nobody_there_is_no_error() -> None:
    answer = queue_at(jobs_frame(), predictions=predictions_frame(), at=END, title="")
    assert answer.rows.empty and answer.empty == "Nothing waits and nothing runs."
    over_time = queue_over_time(jobs_frame(), since=DAY, until=END, title="")
    assert over_time.rows.empty and over_time.empty == "No job waited or ran in this window."


def test_levels_over_time_are_means_of_each_step() -> None:
    jobs = jobs_frame(a_stay("08:00", "08:30", "10:00", gpus=4))
    edges = np.array([int(at(clock).timestamp()) for clock in ("08:00", "09:00", "10:00", "11:00")])
    rows = levels(jobs, edges_s=edges)
    assert rows["waiting"].tolist() == [0.5, 0, 0]
    assert rows["waiting_gpus"].tolist() == [2, 0, 0]
    assert rows["running"].tolist() == [0.5, 1, 0]
    assert rows["running_gpus"].tolist() == [2, 4, 0]
    assert (rows["submitted"].tolist(), rows["started"].tolist()) == ([1, 0, 0], [1, 0, 0])
    assert rows["mean_wait_s"].iloc[0] == rows["longest_wait_s"].iloc[0] == 1800


def test_jobs_still_open_count_to_the_end_of_the_window() -> None:
    jobs = jobs_frame(a_stay("08:00", None), a_stay("08:00", "08:00"))
    rows = levels(jobs, edges_s=np.array([int(at(clock).timestamp()) for clock in ("09:00", "10:00")]))
    assert (rows["waiting"].tolist(), rows["running"].tolist()) == ([1.0], [1.0])


@st.composite
def some_stays(draw: st.DrawFn) -> list[tuple[int, int | None, int | None]]:
    stays: list[tuple[int, int | None, int | None]] = []
    for _ in range(draw(st.integers(1, 8))):
        submitted = draw(st.integers(0, 60))
        started = draw(st.none() | st.integers(submitted, 70))
        stays.append((submitted, started, draw(st.none() | st.integers(started, 80)) if started is not None else None))
    return stays


@settings(max_examples=examples(20))
@given(some_stays())
def test_levels_agree_with_looking_at_every_second(stays: list[tuple[int, int | None, int | None]]) -> None:
    second = pd.Timedelta(seconds=1)
    jobs = jobs_frame(
        *(
            a_job(
                state="PENDING" if started is None else "RUNNING" if ended is None else "COMPLETED",
                submitted_at=DAY + submitted * second,
                started_at=None if started is None else DAY + started * second,
                ended_at=None if ended is None else DAY + ended * second,
                gpus=number,
            )
            for number, (submitted, started, ended) in enumerate(stays)
        )
    )
    begin = int(DAY.timestamp())
    rows = levels(jobs, edges_s=np.array([begin + 10, begin + 30, begin + 75]))
    moments = [DAY + tick * second for tick in range(10, 75)]
    waiting = np.array([waiting_at(jobs, moment) for moment in moments])
    running = np.array([running_at(jobs, moment) for moment in moments])
    gpus = jobs["gpus"].to_numpy()
    for step, ticks in enumerate((slice(0, 20), slice(20, 65))):
        assert rows["waiting"].iloc[step] == pytest.approx(waiting[ticks].sum(axis=1).mean())
        assert rows["running"].iloc[step] == pytest.approx(running[ticks].sum(axis=1).mean())
        assert rows["waiting_gpus"].iloc[step] == pytest.approx((waiting[ticks] * gpus).sum(axis=1).mean())
        assert rows["running_gpus"].iloc[step] == pytest.approx((running[ticks] * gpus).sum(axis=1).mean())


@pytest.mark.parametrize(
    ("length", "step_s"),
    [("6h", 900), ("1D", 3_600), ("2D", 3_600), ("7D", 21_600), ("28D", 86_400), ("300D", 7 * 86_400)],
)
def test_a_window_has_as_many_steps_as_a_person_reads(length: str, step_s: int) -> None:
    edges = steps(DAY, DAY + pd.Timedelta(length), timezone="UTC")
    assert len(edges) - 1 <= MOST_STEPS
    assert int(np.median(np.diff(edges))) == step_s
    assert edges[0] == DAY.timestamp() and edges[-1] == (DAY + pd.Timedelta(length)).timestamp()


def test_days_begin_at_the_clock_s_midnight_even_where_it_is_changed() -> None:
    begin = pd.Timestamp("2026-10-12", tz="Europe/Berlin")
    edges = steps(begin, begin + pd.DateOffset(days=20), timezone="Europe/Berlin")
    hours = pd.to_datetime(edges, unit="s", utc=True).tz_convert("Europe/Berlin").hour
    assert set(hours) == {0}
    assert set(np.diff(edges)) == {86_400, 90_000}


def test_a_window_within_a_step_begins_where_asked() -> None:
    edges = steps(at("08:20"), at("12:00") + pd.Timedelta(days=1), timezone="UTC")
    assert edges[0] == at("08:20").timestamp()
    assert edges[1] == at("09:00").timestamp()
