from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import UsageError
from helios.model import in_submission_order
from helios.predict.job_table import JobTable, causal_features
from helios.report.admin.predictions import last_ended_run_s, prediction_accuracy, worst_predictions
from helios.report.admin.sacct_format import ReportTable
from tests.builders import a_job, jobs_frame
from tests.examples import examples
from tests.unit.report.admin.frames import DAY, at, predicted, predictions_frame


def ran(run_time_s: float, submitted: str = "08:00", **overrides: Any) -> dict[str, Any]:
    moment = at(submitted)
    return a_job(submitted_at=moment, started_at=moment, run_time_s=run_time_s, **overrides)


def judged(
    *pairs: tuple[dict[str, Any], float], by: str | None = "all", past: tuple[Any, ...] = (), **kw: Any
) -> ReportTable:
    jobs = [job for job, _ in pairs]
    return prediction_accuracy(
        jobs_frame(*jobs),
        predictions=predictions_frame(*(predicted(job, p50_s) for job, p50_s in pairs)),
        past=jobs_frame(*past, *jobs),
        title="",
        by=by,
        **kw,
    )


def test_off_by_is_the_median_factor_either_way() -> None:
    row = judged((ran(99), 199), (ran(199), 99), (ran(99), 99)).rows.iloc[0]
    assert row["off_by"] == pytest.approx(2.0)
    assert row["bias"] == pytest.approx(1.0)
    assert row["median_abs_log_error"] == pytest.approx(np.log(2))


def test_bias_above_one_is_predicted_too_long() -> None:
    assert judged((ran(99), 399)).rows["bias"].iloc[0] == pytest.approx(4.0)


def test_inside_is_between_p10_and_p90_and_above_is_longer() -> None:
    row = judged((ran(50), 100), (ran(200), 100), (ran(201), 100), (ran(49), 100)).rows.iloc[0]
    assert (row["inside"], row["above"]) == (0.5, 0.25)


def test_jobs_that_have_not_ended_or_were_not_predicted_are_not_judged() -> None:
    running = ran(float("nan"), ended_at=None)
    answer = judged((running, 100), (ran(100), float("nan")))
    assert answer.rows.empty
    assert "none has been predicted and has ended" in answer.empty


def test_without_any_prediction_that_is_said() -> None:
    answer = prediction_accuracy(jobs_frame(ran(1)), predictions=predictions_frame(), past=jobs_frame(), title="")
    assert answer.empty == "Jobs submitted in this window: 1; none was predicted."


def test_the_first_prediction_of_a_job_counts() -> None:
    job = ran(99)
    predictions = predictions_frame(predicted(job, 99, made_at=at("09:00")), predicted(job, 199, made_at=at("08:00")))
    answer = prediction_accuracy(jobs_frame(job), predictions=predictions, past=jobs_frame(job), title="", by="all")
    assert answer.rows["off_by"].tolist() == pytest.approx([2.0])


def test_a_requeued_job_is_not_taken_for_its_first_run() -> None:
    first, second = ran(99, job_id="7"), ran(999, job_id="7", restart=1)
    answer = prediction_accuracy(
        jobs_frame(first, second),
        predictions=predictions_frame(predicted(first, 99)),
        past=jobs_frame(),
        title="",
        by="all",
    )
    assert (answer.rows["jobs"].iloc[0], answer.rows["off_by"].iloc[0]) == (1, pytest.approx(1.0))


def test_the_naive_rule_is_the_user_s_last_job_that_had_ended() -> None:
    past = (
        ran(10, "01:00", user="alice"),
        ran(20, "02:00", user="alice"),
        ran(30, "03:00", user="bob"),
        ran(9 * 3600, "04:00", user="alice"),
    )
    job = ran(99, "08:00", user="alice")
    assert last_ended_run_s(jobs_frame(job), jobs_frame(*past, job)).tolist() == [20]


def test_a_job_that_ends_in_the_very_second_is_not_known_yet() -> None:
    past, job = ran(3600, "07:00"), ran(99, "08:00")
    assert np.isnan(last_ended_run_s(jobs_frame(job), jobs_frame(past))).all()


def test_an_array_does_not_tell_its_own_run_time() -> None:
    tasks = [ran(600, "08:00", job_id=str(number)) for number in range(5)]
    assert np.isnan(last_ended_run_s(jobs_frame(*tasks), jobs_frame(*tasks))).all()


def test_jobs_without_a_user_have_no_naive_prediction() -> None:
    past, job = ran(10, "07:00", user=None), ran(99, "08:00", user=None)
    assert np.isnan(last_ended_run_s(jobs_frame(job), jobs_frame(past))).all()


@st.composite
def a_past(draw: st.DrawFn) -> pd.DataFrame:
    rows = []
    for number in range(draw(st.integers(1, 15))):
        submitted = DAY + pd.Timedelta(seconds=draw(st.integers(0, 40)))
        rows.append(
            a_job(
                job_id=str(number + 1),
                user=draw(st.sampled_from(["alice", "bob"])),
                submitted_at=submitted,
                started_at=submitted,
                # Distinct run times and so, mostly, distinct ends: of equal ends either may be called the last.
                run_time_s=float(draw(st.integers(0, 30))) + number / 64,
            )
        )
    return in_submission_order(jobs_frame(*rows))


@settings(max_examples=examples(20))
@given(a_past())
def test_the_naive_rule_is_that_of_a_plain_loop(jobs: pd.DataFrame) -> None:
    found = last_ended_run_s(jobs, jobs)
    for place, job in enumerate(jobs.itertuples()):
        known = jobs[(jobs["user"] == job.user) & (jobs["ended_at"] < job.submitted_at)].sort_values("ended_at")
        if known.empty:
            assert np.isnan(found[place])
        else:
            assert found[place] == known["run_time_s"].iloc[-1]


def test_the_naive_rule_is_the_one_that_models_are_judged_by() -> None:
    rng = np.random.default_rng(7)
    rows = [
        a_job(
            job_id=str(number + 1),
            user=f"user{rng.integers(4)}",
            submitted_at=DAY + pd.Timedelta(seconds=int(second)),
            started_at=DAY + pd.Timedelta(seconds=int(second)),
            run_time_s=float(rng.integers(1, 5_000)),
        )
        for number, second in enumerate(np.sort(rng.integers(0, 50_000, 400)))
    ]
    jobs = in_submission_order(jobs_frame(*rows))
    features = causal_features(JobTable.from_frame(jobs))
    kernel = np.expm1(features.X[:, features.names.index("user_last_1")].astype(np.float64))
    mine = last_ended_run_s(jobs, jobs)
    assert np.array_equal(np.isnan(kernel), np.isnan(mine))
    known = ~np.isnan(mine)
    # Jobs of one user that end in the same second may be taken in either order.
    assert (np.abs(kernel[known] - mine[known]) <= 1e-3 * mine[known] + 1e-3).mean() > 0.99


def test_the_prediction_is_compared_on_the_jobs_where_the_rule_says_something() -> None:
    past = ran(99, "01:00", user="alice")
    answer = judged((ran(99, user="alice"), 199), (ran(99, user="bob"), 99 * 50), past=(past,))
    row = answer.rows.iloc[0]
    assert row["same_off_by"] == pytest.approx(2.0)
    assert row["naive_off_by"] == pytest.approx(1.0)
    assert row["better"] == 0.0
    assert "1 of 2 jobs have no ended job" in answer.notes[0]


def test_a_draw_speaks_for_neither() -> None:
    assert judged((ran(99), 99), past=(ran(99, "01:00"),)).rows["better"].tolist() == [0.5]


def test_by_default_all_sources_sizes_and_days_are_listed() -> None:
    answer = judged((ran(99, gpus=1), 99), (ran(99, gpus=16), 99), by=None, timezone="Asia/Shanghai")
    assert answer.rows["by"].tolist() == ["all", "source", "size", "size", "day"]
    assert answer.rows["group"].tolist() == ["", "model-1", "1", "9-16", "2026-11-20"]


def test_sizes_are_listed_by_size_and_users_by_jobs() -> None:
    sizes = judged((ran(9, gpus=16), 9), (ran(9, gpus=2), 9), (ran(9, gpus=0), 9), by="size")
    assert sizes.rows["group"].tolist() == ["0", "2", "9-16"]
    users = judged((ran(9, user="alice"), 9), (ran(9, user="bob"), 9), (ran(9, user="bob"), 9), by="user")
    assert users.rows["group"].tolist() == ["bob", "alice"]


def test_days_are_those_of_the_cluster_s_clock() -> None:
    assert judged((ran(9, "20:00"), 9), by="day", timezone="Asia/Shanghai").rows["group"].tolist() == ["2026-11-21"]


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(UsageError, match="partition"):
        judged((ran(9), 9), by="weather")


def test_the_worst_predictions_are_those_that_missed_the_most_gpu_hours() -> None:
    small, large, cpu = ran(36_000, gpus=1), ran(7_200, gpus=64), ran(3_600, gpus=0)
    predictions = predictions_frame(predicted(small, 1), predicted(large, 3_600), predicted(cpu, 1))
    worst = worst_predictions(jobs_frame(small, large, cpu), predictions, most=2)
    assert worst["job_id"].tolist() == [large["job_id"], small["job_id"]]
    assert worst["missed_hours"].iloc[0] == 64.0
