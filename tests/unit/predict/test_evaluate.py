from datetime import UTC, datetime

import numpy as np
import pytest
from scipy.stats import spearmanr

from helios.errors import Misuse, NotEnoughHistory
from helios.predict import evaluate
from helios.predict.evaluation import _judge, spearman
from tests.unit.predict.traces_of import a_campaign

FIGURES = {
    "spearman",
    "median_abs_log_error",
    "mae_s",
    "within_10pct",
    "within_50pct",
    "within_100pct",
    "coverage_p10_p90",
    "bias_log",
}


def test_figures_are_those_worked_out_by_hand():
    figures = _judge(
        np.array([[90.0, 105.0, 120.0], [0.0, 20.0, 30.0], [50.0, 60.0, 70.0]]), np.array([100.0, 40.0, 20.0])
    )
    assert figures.mae_s == pytest.approx((5 + 20 + 40) / 3)
    assert (figures.within_10pct, figures.within_50pct, figures.within_100pct) == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    assert figures.coverage_p10_p90 == pytest.approx(1 / 3)
    logs = np.log([106 / 101, 21 / 41, 61 / 21])
    assert figures.bias_log == pytest.approx(logs.mean())
    assert figures.median_abs_log_error == pytest.approx(np.median(np.abs(logs)))
    assert figures.spearman == pytest.approx(0.5)


def test_rank_correlation_with_ties_is_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 200).astype(float), rng.integers(0, 9, 200).astype(float)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)


def test_a_constant_has_no_rank_correlation():
    assert spearman(np.ones(5), np.arange(5.0)) is None


def test_a_zero_length_job_is_judged_against_one_second():
    assert _judge(np.array([1.0]), np.array([0.0])).within_100pct == 1.0


def test_the_relative_error_of_a_short_job_is_against_its_own_run_time():
    assert _judge(np.array([3.2]), np.array([2.0])).within_50pct == 0.0


def test_the_published_keys_are_there_for_the_model_and_each_control():
    found = evaluate(a_campaign(600), cluster="lab", test_fraction=0.3).to_json()
    assert {"cluster", "train_until", "train_jobs", "jobs", "model", "controls"} | FIGURES <= set(found)
    assert set(found["controls"]) == {"user_last", "time_limit", "size_only", "shrinkage"}
    assert all(set(figures) == FIGURES for figures in found["controls"].values())


def test_a_fraction_splits_by_submission_order():
    jobs = a_campaign(600)
    found = evaluate(jobs, cluster="lab", test_fraction=0.25)
    assert found.jobs == 150
    assert found.train_until == jobs["submitted_at"].iloc[450]


def test_only_jobs_that_ended_before_the_split_are_learned_from():
    jobs = a_campaign(600)
    found = evaluate(jobs, cluster="lab", train_until=jobs["submitted_at"].iloc[450].to_pydatetime())
    assert found.train_jobs == (jobs["ended_at"] < jobs["submitted_at"].iloc[450]).sum()


def test_user_last_predicts_the_last_job_of_the_user_that_had_ended():
    jobs = a_campaign(500)
    found = evaluate(jobs, cluster="lab", test_fraction=0.2).controls["user_last"]
    predicted = []
    for job in jobs.iloc[400:].itertuples():
        gone = jobs[(jobs["user"] == job.user) & (jobs["ended_at"] < job.submitted_at)]
        predicted.append(gone.sort_values(["ended_at", "submitted_at"], kind="stable")["run_time_s"].iloc[-1])
    errors = np.abs(np.array(predicted) - jobs["run_time_s"].to_numpy()[400:])
    assert found.mae_s == pytest.approx(errors.mean(), rel=1e-5)


def test_time_limit_predicts_the_limit_and_the_median_where_there_is_none():
    jobs = a_campaign(500)
    jobs.loc[450:, "time_limit_s"] = np.nan
    found = evaluate(jobs, cluster="lab", test_fraction=0.2)
    median = jobs["run_time_s"][jobs["ended_at"] < found.train_until].median()
    predicted = np.where(np.arange(400, 500) < 450, 7200.0, median)
    errors = np.abs(predicted - jobs["run_time_s"].to_numpy()[400:])
    assert found.controls["time_limit"].mae_s == pytest.approx(errors.mean())


def test_size_only_predicts_the_median_of_the_size():
    jobs = a_campaign(500)
    jobs["gpus"] = np.resize([1, 4], 500).astype(np.int32)
    found = evaluate(jobs, cluster="lab", test_fraction=0.2)
    gone = jobs[jobs["ended_at"] < found.train_until]
    medians = gone.groupby("gpus")["run_time_s"].median()
    errors = np.abs(jobs["gpus"].map(medians) - jobs["run_time_s"]).iloc[400:]
    assert found.controls["size_only"].mae_s == pytest.approx(errors.mean())


def test_gpu_only_judges_gpu_jobs_and_learns_from_all():
    jobs = a_campaign(600)
    jobs["gpus"] = np.resize([0, 0, 1], 600).astype(np.int32)
    everyone = evaluate(jobs, cluster="lab", test_fraction=0.3)
    gpu = evaluate(jobs, cluster="lab", test_fraction=0.3, gpu_only=True)
    assert (gpu.jobs, gpu.train_jobs) == (everyone.jobs // 3, everyone.train_jobs)


def test_one_user_is_noted():
    notes = evaluate(a_campaign(400, users=1), cluster="lab", test_fraction=0.3).notes
    assert any("One user submitted 100%" in note for note in notes)


def test_unknown_users_are_noted_and_have_no_rank():
    found = evaluate(a_campaign(400, user=None), cluster="lab", test_fraction=0.3)
    assert found.controls["user_last"].spearman is None
    assert any("No user is known" in note for note in found.notes)


@pytest.mark.parametrize(
    "split", [{}, {"test_fraction": 1.0}, {"test_fraction": 0.3, "train_until": datetime.now(UTC)}]
)
def test_a_split_that_makes_no_sense_is_refused(split):
    with pytest.raises(Misuse):
        evaluate(a_campaign(300), cluster="lab", **split)


def test_too_short_a_trace_is_refused_with_its_counts():
    with pytest.raises(NotEnoughHistory, match=r"\d+ jobs ended before .* at least 200"):
        evaluate(a_campaign(150), cluster="lab", test_fraction=0.3)


def test_no_jobs_at_all_are_refused():
    with pytest.raises(NotEnoughHistory, match="There are no jobs"):
        evaluate(a_campaign(1).iloc[:0], cluster="lab", test_fraction=0.3)


def test_nothing_to_judge_on_is_refused():
    with pytest.raises(NotEnoughHistory, match="No GPU job"):
        evaluate(a_campaign(400, gpus=0), cluster="lab", test_fraction=0.3, gpu_only=True)


def test_a_control_that_orders_better_is_named() -> None:
    # Limits begin to tell the run time only after the split, so that the model cannot have learned it.
    jobs = a_campaign(400, noise=1.0)
    jobs["time_limit_s"] = jobs["run_time_s"].where(jobs.index >= 280, 3600.0)
    found = evaluate(jobs, cluster="lab", test_fraction=0.3)
    assert found.controls["time_limit"].spearman == pytest.approx(1)
    assert "time_limit (1.00)" in found.notes[0]
