import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FrameInvalid
from helios.predict import JobTable, OnlinePredictor, causal_features, train
from helios.predict.history import NEVER_S
from tests.unit.predict.traces_of import EPOCH, a_campaign, a_trace, traces


def play(predictor, table, *, first=0):
    """Feed the recorded events of jobs from ``first`` on, one submission moment at a time."""
    submitted_s, ended_s = table.submitted_s[first:], table.ended_s[first:]
    ends = np.lexsort((np.arange(len(ended_s)), ended_s))
    ends = ends[ended_s[ends] != NEVER_S]
    told, predictions = 0, []
    for now_s in np.unique(submitted_s):
        until = int(np.searchsorted(ended_s[ends], now_s, side="right"))
        predictor.ended(ends[told:until], ended_s[ends[told:until]])
        told = until
        predictions.append(predictor.submitted(np.flatnonzero(submitted_s == now_s), int(now_s)))
    return np.concatenate(predictions)


@settings(max_examples=100, deadline=None)
@given(traces(), st.integers(0, 24))
def test_features_in_a_replay_of_the_record_are_those_of_the_record_bit_for_bit(jobs, cut):
    table = JobTable.from_frame(jobs)
    cut = min(cut, len(jobs) - 1)
    predictor = OnlinePredictor(jobs.iloc[cut:], history=jobs.iloc[:cut], refit=False)
    play(predictor, table, first=cut)
    np.testing.assert_array_equal(predictor.features, causal_features(table).X)


def test_a_job_the_replay_has_not_ended_teaches_nothing_though_the_record_says_it_ended():
    jobs = a_trace({"run": 60.0}, {"submit": 5000})
    predictor = OnlinePredictor(jobs, refit=False)
    now_s = int(EPOCH.timestamp())
    predictor.submitted(np.array([0]), now_s)
    before = predictor.submitted(np.array([1]), now_s + 5000)
    alone = OnlinePredictor(jobs.iloc[1:].reset_index(drop=True), refit=False)
    np.testing.assert_array_equal(before, alone.submitted(np.array([0]), now_s + 5000))


def test_a_job_that_ends_later_in_the_replay_than_recorded_is_learned_at_its_end_there():
    jobs = a_trace({"run": 60.0}, {"submit": 5000}, {"submit": 9000})
    predictor = OnlinePredictor(jobs, refit=False)
    now_s = int(EPOCH.timestamp())
    predictor.submitted(np.array([0]), now_s)
    early = predictor.submitted(np.array([1]), now_s + 5000)
    predictor.ended(np.array([0]), np.array([now_s + 8000]))
    late = predictor.submitted(np.array([2]), now_s + 9000)
    assert abs(late[0, 1] - 60) < abs(early[0, 1] - 60)


def test_it_trains_inside_the_timeline_at_1000_ended_jobs_and_at_the_doubling():
    jobs = a_campaign(2600)
    predictor = OnlinePredictor(jobs)
    play(predictor, JobTable.from_frame(jobs))
    assert [predictor.sources[0], len(predictor.sources)] == ["shrinkage", 3]
    first_trained = int(np.argmax(predictor.source == 1))
    table = JobTable.from_frame(jobs)
    assert (table.ended_s < table.submitted_s[first_trained]).sum() >= 1000
    assert (table.ended_s < table.submitted_s[first_trained - 1]).sum() < 1000


def test_a_trained_model_predicts_in_the_replay_as_it_does_on_recorded_features():
    jobs = a_campaign(700)
    table = JobTable.from_frame(jobs)
    opening = EPOCH + pd.Timedelta(seconds=int(table.submitted_s[500] - EPOCH.timestamp()))
    model = train(jobs.iloc[:500], cluster="lab", until=opening.to_pydatetime())
    predictor = OnlinePredictor(jobs.iloc[500:], history=jobs.iloc[:500], model=model, refit=False)
    replayed = play(predictor, table, first=500)
    np.testing.assert_array_equal(replayed, model.predict(causal_features(table).X[500:]))
    assert predictor.sources == ["shrinkage", model.model_id]
    assert set(predictor.source) == {1}


def test_the_future_of_the_replay_changes_no_prediction_even_through_refits():
    jobs = a_campaign(1400)
    table = JobTable.from_frame(jobs)
    other = jobs.copy()
    moment_s = table.submitted_s[1300]
    open_still = ~(table.ended_s < moment_s)
    other.loc[open_still, "run_time_s"] *= 50
    other.loc[open_still, "ended_at"] += pd.Timedelta(days=3)
    known = table.submitted_s <= moment_s
    before = play(OnlinePredictor(jobs), table)[known]
    after = play(OnlinePredictor(other), JobTable.from_frame(other))[known]
    np.testing.assert_array_equal(before, after)


def test_quantiles_ascend():
    jobs = a_campaign(300)
    predicted = play(OnlinePredictor(jobs), JobTable.from_frame(jobs))
    assert (np.diff(predicted, axis=1) >= 0).all()


def test_a_history_from_after_the_workload_is_refused():
    with pytest.raises(FrameInvalid, match="submission order"):
        OnlinePredictor(a_trace({"submit": 0}), history=a_trace({"submit": 9}))
