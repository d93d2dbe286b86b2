import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FrameInvalid
from helios.predict.causal_stats import FEATURES, NEVER_S
from helios.predict.job_table import JobTable, causal_features
from tests.examples import examples
from tests.unit.predict.oracle import features_of
from tests.unit.predict.traces_of import EPOCH, a_trace, traces


def features(jobs, **options):
    return causal_features(JobTable.from_frame(jobs, **options)).X


@settings(max_examples=examples(37), deadline=None)
@given(traces())
def test_each_feature_equals_its_plain_recomputation(jobs):
    plain = pd.DataFrame([features_of(jobs, number) for number in range(len(jobs))], columns=list(FEATURES))
    computed = pd.DataFrame(features(jobs), columns=list(FEATURES))
    pd.testing.assert_frame_equal(computed, plain, check_dtype=False, rtol=1e-4, atol=2e-4)


@settings(max_examples=examples(37), deadline=None)
@given(traces(), st.data())
def test_jobs_that_end_later_change_no_feature_before(jobs, data):
    moment = data.draw(st.sampled_from(sorted(jobs["submitted_at"].unique())))
    open_suspended = ~(JobTable.from_frame(jobs).ended_s < moment.timestamp())
    other = jobs.copy()
    late = EPOCH + pd.Timedelta(days=1)
    other.loc[open_suspended, ["started_at", "ended_at"]] = [moment, late]
    other.loc[open_suspended, "run_time_s"] = (late - moment).total_seconds()
    other["state"] = other["state"].astype(object).where(~open_suspended, "NODE_FAIL").astype("category")
    known = (jobs["submitted_at"] <= moment).to_numpy()
    np.testing.assert_array_equal(features(jobs)[known], features(other)[known])


@settings(max_examples=examples(25), deadline=None)
@given(traces(), st.integers(0, 24))
def test_later_jobs_change_no_feature(jobs, cut):
    first = jobs.iloc[: min(cut, len(jobs))]
    np.testing.assert_array_equal(features(first), features(jobs)[: len(first)])


def test_an_end_in_the_second_of_a_submission_is_not_yet_known():
    same, later = features(a_trace({"run": 60.0}, {"submit": 60})), features(a_trace({"run": 60.0}, {"submit": 61}))
    last = FEATURES.index("user_last_1")
    assert np.isnan(same[1, last])
    assert later[1, last] == np.float32(np.log1p(60.0))


def test_strangers_are_not_taken_for_one_user():
    known = features(a_trace({"user": None}, {"user": None, "submit": 1000}))[1]
    assert np.isnan(known[[FEATURES.index(name) for name in FEATURES if name.startswith("user_")]]).all()


def test_hour_and_weekday_are_those_of_the_site():
    there = features(a_trace({"submit": 0}), timezone="Asia/Shanghai")[0]
    assert (there[FEATURES.index("hour")], there[FEATURES.index("weekday")]) == (8, 0)


def test_a_job_without_start_ends_its_run_time_after_its_submission():
    jobs = a_trace({"submit": 100, "run": 7.0, "started_at": pd.NaT, "ended_at": pd.NaT})
    assert JobTable.from_frame(jobs).ended_s[0] == int(EPOCH.timestamp()) + 107


def test_a_job_without_end_and_run_time_never_ends():
    assert JobTable.from_frame(a_trace({"ended": False})).ended_s[0] == NEVER_S


def test_a_frame_out_of_submission_order_is_refused():
    with pytest.raises(FrameInvalid, match="submission order"):
        JobTable.from_frame(a_trace({"submit": 5}, {"submit": 4}))


def test_no_jobs_have_no_features():
    assert features(a_trace({}).iloc[:0]).shape == (0, len(FEATURES))
