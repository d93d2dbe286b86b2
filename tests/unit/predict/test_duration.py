from dataclasses import replace
from datetime import UTC, datetime

import lightgbm
import numpy as np
import pandas as pd
import pytest

from helios.errors import ModelUnreadable, NotEnoughHistory
from helios.model import JOBS, in_submission_order
from helios.ports import HORIZON_S, RUN_TIME
from helios.predict.duration import train
from helios.predict.model_record import from_record, to_record
from helios.predict.timeline import GRACE_S
from helios.predict.trees import parse_trees
from tests.forest import predict_trees
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace
from tests.unit.predict.walks import median_log_error, quantiles_of, walked

NOW = datetime(2024, 4, 1, tzinfo=UTC)


def test_the_compiled_trees_give_what_lightgbm_gives_bit_for_bit():
    rng = np.random.default_rng(1)
    known = rng.standard_normal((2000, 6)).astype(np.float32)
    known[rng.random(known.shape) < 0.1] = np.nan
    known[:, 3] = np.nan_to_num(known[:, 3])  # a column in which training sees nothing missing
    known[:, 4] = np.inf
    truth = np.nan_to_num(known[:, 0]) + np.isnan(known[:, 1]) + known[:, 3]
    booster = lightgbm.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(known, truth), 20)
    asked = known.copy()
    asked[::3, 3] = np.nan
    grown = predict_trees(parse_trees((booster.model_to_string(),)), asked)[:, 0]
    np.testing.assert_array_equal(grown, booster.predict(asked))


def test_a_model_of_one_constant_is_understood():
    constant = lightgbm.train(
        {"verbose": -1, "min_data_in_leaf": 1000}, lightgbm.Dataset(np.zeros((50, 2)), np.full(50, 7.0)), 3
    )
    assert predict_trees(parse_trees((constant.model_to_string(),)), np.zeros((1, 2), np.float32))[
        0, 0
    ] == pytest.approx(7.0)


def test_a_model_learns_what_shrinkage_misses():
    jobs = a_campaign(3000, users=40)
    # Who asks for more CPUs runs longer, and hardly any number is asked for twice by the same user.
    cpus = np.random.default_rng(2).integers(1, 500, len(jobs)).astype(np.float64)
    jobs = jobs.assign(gpus=0.0, cpus=cpus, run_time_s=np.round(20 * cpus), partition=None)
    jobs = jobs.assign(ended_at=jobs["started_at"] + pd.to_timedelta(jobs["run_time_s"], unit="s"))
    jobs = in_submission_order(JOBS.conform(jobs))
    until = jobs["submitted_at"].iloc[2000].to_pydatetime()
    model, rows = train(jobs, cluster="lab", until=until), np.arange(2000, 3000)
    assert model.trained
    errors = [median_log_error(walked(jobs, model=one, first=2000).predicted, jobs, rows) for one in (model, None)]
    assert errors[0] < errors[1]


def test_where_trees_are_worse_than_shrinkage_on_held_back_jobs_shrinkage_predicts():
    # Run times that nothing tells, of which those held back are a hundred times as long: the trees believe the past.
    jobs = a_campaign(900, users=300, noise=1.5)
    jobs.loc[700:, "run_time_s"] *= 100
    jobs["ended_at"] = jobs["started_at"] + pd.to_timedelta(jobs["run_time_s"], unit="s")
    model = train(jobs, cluster="lab")
    worse, better = (
        walked(jobs, model=replace(model, trained=trained), first=750).predicted[750:] for trained in (True, False)
    )
    used = walked(jobs, model=model, first=750).predicted[750:]
    np.testing.assert_array_equal(used, worse if model.trained else better)


def test_quantiles_ascend_and_are_not_negative():
    jobs = a_campaign(400)
    predicted = quantiles_of(jobs, model=train(jobs, cluster="lab"))
    assert (np.diff(predicted, axis=1) >= 0).all()
    assert (predicted >= 0).all()


@pytest.mark.parametrize("by", ["model", "shrinkage"])
def test_the_truncated_mean_is_at_most_the_horizon_and_the_mean(by):
    jobs = a_campaign(500, noise=3.0)
    found = walked(jobs, model=train(jobs, cluster="lab") if by == "model" else None).predicted
    truncated, mean = found[:, RUN_TIME.truncated_mean], found[:, RUN_TIME.mean]
    assert (truncated <= HORIZON_S).all()
    assert (truncated <= mean * (1 + 1e-9)).all()
    assert (truncated > 0).all()


def test_what_ended_after_the_moment_of_training_changes_no_model():
    jobs = a_campaign(500)
    until = jobs["submitted_at"].iloc[400]
    late = (jobs["ended_at"] >= until).to_numpy()
    other = jobs.copy()
    other.loc[late, "run_time_s"] *= 9
    other.loc[late, "ended_at"] += pd.Timedelta(days=2)
    one = train(jobs, cluster="lab", until=until.to_pydatetime())
    assert one == train(other, cluster="lab", until=until.to_pydatetime())
    assert one.jobs == (~late).sum()


def test_the_same_seed_grows_the_same_model_and_another_seed_another():
    jobs = a_campaign(300)
    assert train(jobs, cluster="lab", seed=1) == train(jobs, cluster="lab", seed=1)
    assert train(jobs, cluster="lab", seed=1).model_id != train(jobs, cluster="lab", seed=2).model_id


def test_too_little_history_is_refused_with_what_there_is_and_must_be():
    with pytest.raises(NotEnoughHistory, match=r"30 jobs have a known run time.* at least 200"):
        train(a_campaign(30), cluster="lab")


def test_jobs_that_ended_too_late_do_not_count_as_history():
    with pytest.raises(NotEnoughHistory, match="0 jobs ended before 2024-03-04 00:00"):
        train(a_campaign(300), cluster="lab", until=EPOCH.to_pydatetime())


def test_jobs_without_a_run_time_are_not_learned_from():
    jobs = a_campaign(300)
    jobs.loc[:49, "run_time_s"] = np.nan
    assert train(jobs, cluster="lab").jobs == 250


def test_progress_reaches_the_end_and_never_cycles_back():
    heard = []
    train(a_campaign(300), cluster="lab", progress=lambda step, done: heard.append(done))
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_a_model_comes_back_from_its_text_the_same():
    model = train(a_campaign(300), cluster="lab")
    back = from_record(to_record(model, trained_at=NOW, scores={"spearman": 0.5}))
    assert back == model
    assert back.model_id == model.model_id
    asked = a_campaign(50, seed=3)
    np.testing.assert_array_equal(walked(asked, model=back).predicted, walked(asked, model=model).predicted)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:200],
        lambda text: "null",
        lambda text: text.replace('"since_user_last_1"', '"user_shoe_size"'),
        lambda text: text.replace("end of trees", ""),
        lambda text: text.replace("helios-duration-3", "helios-duration-0"),
    ],
    ids=["cut", "empty", "other features", "broken trees", "other format"],
)
def test_a_damaged_or_foreign_model_is_refused(spoil):
    record = to_record(train(a_campaign(300), cluster="lab"), trained_at=NOW)
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        from_record(replace(record, artifact=spoil(record.artifact)))


def test_shrinkage_predicts_at_most_the_time_limit():
    jobs = a_trace({"run": 5000.0, "time_limit_s": 9000.0}, {"submit": 9000, "time_limit_s": 100.0})
    assert quantiles_of(jobs)[1].max() == pytest.approx(100.0 + GRACE_S, rel=1e-5)


def test_a_site_whose_jobs_outlive_their_limits_is_not_cut_there():
    over = [{"submit": 9000 * n, "run": 5000.0, "time_limit_s": 100.0} for n in range(20)]
    assert quantiles_of(a_trace(*over))[-1, 1] == pytest.approx(5000.0, rel=0.3)


def test_shrinkage_without_a_limit_is_not_cut():
    jobs = a_trace({"run": 5000.0, "time_limit_s": np.nan}, {"submit": 9000, "time_limit_s": np.nan})
    p10, p50, p90 = quantiles_of(jobs)[1]
    assert 0 < p10 < p50 < p90


def test_a_backtest_knows_nothing_of_the_jobs_held_back_from_it():
    jobs = a_campaign(600, noise=1.0)
    model = train(jobs, cluster="lab")
    judged = model.backtest_model()
    assert (judged.trained, judged.calibration, judged.trees) == (True, None, model.backtest)
    later = (jobs["ended_at"] >= model.backtest.until).to_numpy()
    other = jobs.copy()
    other.loc[later, "run_time_s"] *= 7
    other.loc[later, "ended_at"] += pd.to_timedelta(6 * jobs.loc[later, "run_time_s"], unit="s")
    again = train(other, cluster="lab", until=jobs["ended_at"].max().to_pydatetime())
    if again.backtest.until == model.backtest.until:
        assert again.backtest == model.backtest
    else:
        assert again.backtest.jobs != model.backtest.jobs


def test_running_jobs_teach_that_runs_are_long():
    """Without those that run, all that is known of a new kind of job is that the ones that ended were short."""
    free = {"user": "ada", "time_limit_s": np.inf}
    ended = [{"submit": 100 * n, "run": 60.0} | free for n in range(5)]
    runs = [{"submit": 100 * n + 1, "run": 500_000.0} | free for n in range(20)]
    asked = {"submit": 80_000} | free
    alone, busy = (
        quantiles_of(a_trace(*sorted([*rows, asked], key=lambda row: row["submit"])))[-1]
        for rows in (ended, ended + runs)
    )
    assert busy[2] > 10 * alone[2]
