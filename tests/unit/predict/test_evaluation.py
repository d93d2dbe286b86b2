from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from helios.errors import NotEnoughHistory, UsageError
from helios.model import JOBS, in_submission_order
from helios.predict.evaluation import evaluate
from helios.predict.job_table import JobTable, causal_features
from helios.predict.scores import EvaluationSet, evaluation_set, find_bursts, misallocated, scores_for, spearman
from tests.run_times import in_columns
from tests.unit.predict.traces_of import a_campaign, a_trace

FIGURES = {
    "spearman",
    "spearman_90",
    "spearman_by_burst",
    "coverage_p90",
    "coverage_p90_by_group",
    "pinball_log",
    "log_width",
    "median_abs_log_error",
    "mae_s",
    "within_10pct",
    "within_50pct",
    "within_100pct",
    "coverage_p10_p90",
    "bias_log",
    "misallocated",
}


def judged(truth, *, unit=None, burst=None, groups=None):
    """Return jobs that all stand by themselves, unless said otherwise."""
    alone = np.arange(len(truth))
    return EvaluationSet(
        run_time_s=np.array(truth, dtype=float),
        unit=alone if unit is None else np.asarray(unit),
        burst=alone if burst is None else np.asarray(burst),
        groups=groups or {},
    )


def test_figures_are_those_worked_out_by_hand():
    figures = scores_for(
        in_columns([[90.0, 105.0, 120.0], [0.0, 20.0, 30.0], [50.0, 60.0, 70.0]]),
        judged([100.0, 40.0, 20.0], groups={"burst": np.array([True, True, False]), "large": np.zeros(3, dtype=bool)}),
    )
    assert figures.mae_s == pytest.approx((5 + 20 + 40) / 3)
    assert (figures.within_10pct, figures.within_50pct, figures.within_100pct) == pytest.approx((1 / 3, 2 / 3, 2 / 3))
    assert figures.coverage_p10_p90 == pytest.approx(1 / 3)
    logs = np.log([106 / 101, 21 / 41, 61 / 21])
    assert figures.bias_log == pytest.approx(logs.mean())
    assert figures.median_abs_log_error == pytest.approx(np.median(np.abs(logs)))
    assert figures.spearman == pytest.approx(0.5)
    assert figures.coverage_p90 == pytest.approx(2 / 3)
    assert figures.coverage_p90_by_group["burst"].share == 0.5
    assert (figures.coverage_p90_by_group["large"].jobs, figures.coverage_p90_by_group["large"].share) == (0, None)
    assert figures.log_width == pytest.approx(np.log([121 / 91, 31, 71 / 51]).mean())
    off = np.log([[101 / 91, 101 / 106, 101 / 121], [41, 41 / 21, 41 / 31], [21 / 51, 21 / 61, 21 / 71]])
    losses = [[max(q * x, (q - 1) * x) for q, x in zip((0.1, 0.5, 0.9), row, strict=True)] for row in off]
    assert figures.pinball_log == pytest.approx(np.mean(losses))


def test_guess_rank_and_means_are_scored_by_their_own_columns():
    predicted = in_columns([[1.0, 50.0, 900.0], [1.0, 50.0, 900.0], [1.0, 50.0, 900.0]])
    predicted[:, 3], predicted[:, 6] = [10.0, 20.0, 30.0], [3.0, 2.0, 1.0]
    figures = scores_for(predicted, judged([10.0, 20.0, 30.0]))
    assert (figures.median_abs_log_error, figures.spearman) == (0.0, pytest.approx(-1.0))
    assert figures.misallocated == pytest.approx(90 / 60)


def test_seconds_are_misallocated_by_tenths():
    predicted, truth = np.repeat([1.0, 5.0], 50), np.repeat([5.0, 1.0], 50)
    assert misallocated(predicted, truth) == pytest.approx((50 * 4 + 50 * 4) / 300)
    assert misallocated(truth, truth) == 0.0
    assert misallocated(predicted, np.zeros(100)) is None


def test_rank_correlation_with_ties_is_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 200).astype(float), rng.integers(0, 9, 200).astype(float)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)


def test_a_constant_has_no_rank_correlation():
    assert spearman(np.ones(5), np.arange(5.0)) is None


def test_the_figures_of_medians_alone_say_nothing_of_intervals():
    figures = scores_for(np.array([1.0, 2.0]), judged([1.0, 3.0], groups={"burst": np.ones(2, dtype=bool)}))
    assert (figures.coverage_p10_p90, figures.coverage_p90, figures.pinball_log, figures.log_width) == (None,) * 4
    assert figures.coverage_p90_by_group == {}


def test_an_array_counts_once_in_the_correlation_by_burst():
    truth, predicted = [10.0] * 50 + [100.0, 1000.0, 10000.0], np.r_[np.linspace(2000, 4000, 50), [30, 40, 5000]]
    figures = scores_for(predicted, judged(truth, burst=[0] * 50 + [1, 2, 3]))
    assert figures.spearman_by_burst == pytest.approx(spearmanr([3000, 30, 40, 5000], [1, 2, 3, 4]).statistic)
    assert figures.spearman < 0


def test_bursts_are_cut_where_six_hours_pass():
    alike = np.array([7, 3, 7, 7, 3])
    assert find_bursts(alike, np.array([0, 1, 21600, 43201, 43202])).tolist() == [0, 1, 0, 2, 3]


def brute_force_interval(predicted, truth, unit):
    """Resample jobs one by one, as lists, and ask scipy."""
    random, found = np.random.default_rng(0), []
    n_units = max(unit) + 1
    for _ in range(200):
        drawn = [job for one in random.integers(0, n_units, n_units) for job in np.flatnonzero(unit == one)]
        if len(set(truth[drawn])) > 1 and len(set(predicted[drawn])) > 1:
            found.append(spearmanr(predicted[drawn], truth[drawn]).statistic)
    return np.percentile(found, [5, 95])


def test_the_interval_is_that_of_resampled_users():
    rng = np.random.default_rng(1)
    unit = rng.integers(0, 6, 60)
    truth = rng.integers(1, 9, 60) * 10.0 ** unit.clip(0, 3)
    predicted = truth * rng.integers(1, 50, 60)
    figures = scores_for(predicted, judged(truth, unit=unit))
    assert figures.spearman_90 == pytest.approx(tuple(brute_force_interval(predicted, truth, unit)))


def test_one_user_has_no_interval():
    assert scores_for(np.array([1.0, 2.0, 3.0]), judged([1.0, 2.0, 3.0], unit=[0, 0, 0])).spearman_90 is None


def test_where_no_user_is_known_days_are_resampled():
    jobs = a_trace(*({"submit": hour * 3600, "user": None if hour < 48 else "ada"} for hour in range(72)))
    table = JobTable.from_frame(jobs)
    unit = evaluation_set(table, causal_features(table).X, np.arange(72)).unit
    assert unit.tolist() == [0] * 24 + [1] * 24 + [2] * 24


def test_the_groups_are_new_users_bursts_large_jobs_and_the_busiest_user():
    rows = [{"submit": 30000 * i, "user": "ada"} for i in range(12)]
    rows += [{"submit": 400000, "user": "bob", "gpus": 9}, {"submit": 400599, "user": "bob", "gpus": 8}]
    table = JobTable.from_frame(a_trace(*rows))
    groups = evaluation_set(table, causal_features(table).X, np.arange(2, 14)).groups
    assert {name: np.flatnonzero(member).tolist() for name, member in groups.items()} == {
        "new_user": [0, 1, 2, 3, 4, 5, 6, 7, 10, 11],
        "burst": [11],
        "large": [10],
        "top_user": list(range(10)),
    }


def test_on_a_log_without_gpus_large_is_more_than_8_cpus():
    table = JobTable.from_frame(a_trace({"gpus": 0, "cpus": 8.0}, {"gpus": 0, "cpus": 9.0}))
    assert evaluation_set(table, causal_features(table).X, np.arange(2)).groups["large"].tolist() == [False, True]


def test_about_eight_of_ten_run_times_lie_within_the_interval():
    found = evaluate(a_campaign(1500, users=30, noise=1.0), cluster="lab", test_fraction=0.5)
    assert found.figures.coverage_p10_p90 == pytest.approx(0.8, abs=0.06)


def waiting(jobs, wait_s):
    """Return ``jobs``, each submitted so much earlier."""
    moved = jobs["submitted_at"] - pd.to_timedelta(wait_s, unit="s")
    return in_submission_order(JOBS.conform(jobs.assign(submitted_at=moved)))


def test_where_no_job_waited_nothing_is_judged_at_its_start():
    jobs = a_campaign(600)
    jobs = waiting(jobs.assign(submitted_at=jobs["started_at"]), 0)
    assert evaluate(jobs, cluster="lab", test_fraction=0.5).figures_at_start is None


def test_at_their_start_jobs_that_waited_long_are_predicted_better():
    # Each user's first job to be judged is submitted when little of his has ended, and starts hours later.
    jobs = a_campaign(1200, noise=0.3, users=150)
    jobs = waiting(jobs.assign(submitted_at=jobs["started_at"]), np.linspace(0, 60 * 600, 1200))
    found = evaluate(jobs, cluster="lab", test_fraction=0.4)
    assert found.figures_at_start.spearman >= found.figures.spearman
    assert found.to_json()["at_start"]["spearman"] == found.figures_at_start.spearman


def test_a_zero_length_job_is_judged_against_one_second():
    assert scores_for(np.array([1.0]), judged([0.0])).within_100pct == 1.0


def test_the_relative_error_of_a_job_is_against_its_own_run_time():
    assert scores_for(np.array([3.2]), judged([2.0])).within_50pct == 0.0


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
    jobs["gpus"] = np.resize([1.0, 4.0], 500)
    found = evaluate(jobs, cluster="lab", test_fraction=0.2)
    gone = jobs[jobs["ended_at"] < found.train_until]
    medians = gone.groupby("gpus")["run_time_s"].median()
    errors = np.abs(jobs["gpus"].map(medians) - jobs["run_time_s"]).iloc[400:]
    assert found.controls["size_only"].mae_s == pytest.approx(errors.mean())


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
    with pytest.raises(UsageError):
        evaluate(a_campaign(300), cluster="lab", **split)


def test_too_short_a_trace_is_refused_with_its_counts():
    with pytest.raises(NotEnoughHistory, match=r"\d+ jobs ended before .* at least 200"):
        evaluate(a_campaign(150), cluster="lab", test_fraction=0.3)


def test_no_jobs_at_all_are_refused():
    with pytest.raises(NotEnoughHistory, match="There are no jobs"):
        evaluate(a_campaign(1).iloc[:0], cluster="lab", test_fraction=0.3)


def test_nothing_to_judge_on_is_refused():
    jobs = a_campaign(400)
    jobs.loc[jobs.index[280:], "run_time_s"] = np.nan
    with pytest.raises(NotEnoughHistory, match="No job with a known run time"):
        evaluate(jobs, cluster="lab", test_fraction=0.3)


def test_a_control_that_orders_better_is_named() -> None:
    # Limits begin to tell the run time only after the split, so that the model cannot have learned it.
    jobs = a_campaign(400, noise=1.0)
    jobs["time_limit_s"] = jobs["run_time_s"].where(jobs.index >= 280, 3600.0)
    found = evaluate(jobs, cluster="lab", test_fraction=0.3)
    assert found.controls["time_limit"].spearman == pytest.approx(1)
    assert "time_limit (1.00)" in found.notes[0]
