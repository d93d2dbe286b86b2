"""Which past jobs a prediction rests on, told from its features."""

import numpy as np
import pytest

from helios.predict.causal_stats import FEATURES
from helios.predict.job_table import JobTable, causal_features
from helios.predict.similar_jobs import BASES, fallback_level
from tests.unit.predict.traces_of import a_trace

ASKED = {"user": "ada", "account": "physics", "gpus": 8, "time_limit_s": 7200.0, "submit": 9000}


def rests_on(*earlier, **asked):
    """Return the basis of a job submitted after ``earlier``."""
    features = causal_features(JobTable.from_frame(a_trace(*earlier, ASKED | asked))).X
    return BASES[fallback_level(features)[-1]]


@pytest.mark.parametrize(
    ("earlier", "basis"),
    [
        ({}, "user+size"),
        ({"gpus": 1}, "user"),
        ({"time_limit_s": 60.0}, "user"),
        ({"user": "bob"}, "group"),
        ({"user": "bob", "account": "chemistry"}, "size"),
        ({"user": "bob", "account": "chemistry", "gpus": 1}, "all"),
        ({"user": "bob", "account": None, "partition": "other"}, "all"),
    ],
)
def test_a_prediction_rests_on_the_narrowest_group_with_an_ended_job(earlier, basis):
    wider = {"user": "eve", "account": "history", "gpus": 2}
    assert rests_on(wider | {"submit": 0}, ASKED | earlier | {"submit": 1}) == basis


def test_a_prediction_does_not_rest_on_a_running_job():
    assert rests_on(ASKED | {"submit": 0, "ended": False}) == "all"


def test_on_the_first_day_of_a_cluster_predictions_rest_on_all_jobs():
    assert rests_on() == "all"


def test_an_unknown_user_rests_on_jobs_of_the_same_request():
    assert rests_on(ASKED | {"submit": 0, "user": None, "account": None}, user=None, account=None) == "size"


def test_own_jobs_come_before_those_of_the_account():
    assert rests_on(ASKED | {"submit": 0, "gpus": 1}, ASKED | {"submit": 1, "user": "bob"}) == "user"


def test_bases_are_told_of_many_rows_at_once_and_of_none():
    known = np.full((3, len(FEATURES)), np.nan, dtype=np.float32)
    known[1, FEATURES.index("user_ended")] = np.log1p(4)
    known[1, FEATURES.index("user_size_ended")] = 0
    known[2, FEATURES.index("account_mean")] = 3.0
    assert [BASES[code] for code in fallback_level(known)] == ["all", "user", "group"]
    assert fallback_level(known[:0]).shape == (0,)
