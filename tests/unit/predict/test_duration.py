from dataclasses import replace
from datetime import UTC, datetime

import lightgbm
import numpy as np
import pandas as pd
import pytest

from helios.errors import ModelUnreadable, NotEnoughHistory
from helios.predict.causal_stats import FEATURES
from helios.predict.duration import HistoryPredictor, train
from helios.predict.job_table import JobTable, causal_features
from helios.predict.model_record import from_record, to_record
from helios.predict.trees import parse_trees, predict_trees
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace

NOW = datetime(2024, 4, 1, tzinfo=UTC)


def features(jobs):
    return causal_features(JobTable.from_frame(jobs)).X


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
    jobs = a_campaign(1500, users=3)
    # Jobs with 8 GPUs run eight times as long, whoever the user: shrinkage must see it user by user.
    big = np.random.default_rng(2).random(len(jobs)) < 0.3
    jobs["gpus"] = np.where(big, 8, 1).astype(np.int32)
    jobs.loc[big, "run_time_s"] *= 8
    jobs["ended_at"] = jobs["started_at"] + pd.to_timedelta(jobs["run_time_s"], unit="s")
    until = jobs["submitted_at"].iloc[1000].to_pydatetime()
    model = train(jobs, cluster="lab", until=until)
    asked, truth = features(jobs)[1000:], np.log1p(jobs["run_time_s"].to_numpy()[1000:])

    def error(predictor):
        return np.abs(np.log1p(predictor.predict(asked)[:, 1]) - truth).mean()

    assert error(model) < error(HistoryPredictor())


def test_quantiles_ascend_and_are_not_negative():
    jobs = a_campaign(400)
    predicted = train(jobs, cluster="lab").predict(features(jobs))
    assert (np.diff(predicted, axis=1) >= 0).all()
    assert (predicted >= 0).all()


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


def test_too_little_history_is_refused_with_how_much_there_is_and_how_much_it_takes():
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
    asked = features(a_campaign(50, seed=3))
    np.testing.assert_array_equal(back.predict(asked), model.predict(asked))


def test_lightgbm_itself_reads_the_stored_trees():
    model = train(a_campaign(300), cluster="lab")
    asked = features(a_campaign(50, seed=3))
    anchor = asked[:, FEATURES.index("anchor")].astype(np.float64)
    p10, p50, p90, level = (lightgbm.Booster(model_str=text).predict(asked) for text in model.texts)
    logs = np.column_stack((anchor + p10, (anchor + p50 + level) / 2, anchor + p90))
    expected = np.sort(np.maximum(np.expm1(logs), 0), axis=1)
    np.testing.assert_allclose(replace(model, trust=1.0).predict(asked), expected, rtol=1e-12)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:200],
        lambda text: "null",
        lambda text: text.replace('"user_last_1"', '"user_shoe_size"'),
        lambda text: text.replace("end of trees", ""),
        lambda text: text.replace("helios-duration-2", "helios-duration-0"),
    ],
    ids=["cut", "empty", "other features", "broken trees", "other format"],
)
def test_a_damaged_or_foreign_model_is_refused(spoil):
    record = to_record(train(a_campaign(300), cluster="lab"), trained_at=NOW)
    with pytest.raises(ModelUnreadable, match="cannot be read"):
        from_record(replace(record, artifact=spoil(record.artifact)))


def test_shrinkage_predicts_at_most_the_time_limit():
    jobs = a_trace({"run": 5000.0}, {"submit": 9000, "time_limit_s": 100.0})
    assert HistoryPredictor().predict(features(jobs))[1].max() == pytest.approx(100.0)


def test_shrinkage_without_a_limit_is_not_cut():
    jobs = a_trace({"run": 5000.0, "time_limit_s": np.nan}, {"submit": 9000, "time_limit_s": np.nan})
    p10, p50, p90 = HistoryPredictor().predict(features(jobs))[1]
    assert 0 < p10 < p50 < p90


def test_what_a_backtest_is_judged_by_knows_nothing_of_the_jobs_held_back_from_it():
    model = replace(train(a_campaign(600, noise=1.0), cluster="lab"), trust=0.25)
    judged = model.as_judged()
    assert (judged.trust, judged.calibration, judged.texts) == (1.0, None, model.backtest.texts)
