"""What has drifted: indices as they are defined, chance and the usual weeks told apart from change."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.predict.causal_stats import FEATURES
from helios.predict.drift import (
    _LEAST_SHARE,
    CHANGED,
    FEWEST_JOBS,
    MOVED,
    NOT_COMPARED,
    WEEK_S,
    FeatureShift,
    Inputs,
    Spread,
    Steadiness,
    _spread,
    new_names,
    new_users,
    shifted_features,
    stability_index,
    training_inputs,
    weeks_of_errors,
)
from helios.predict.job_table import JobTable, causal_features
from tests.run_times import in_columns
from tests.unit.predict.traces_of import a_campaign, a_trace

floats = st.one_of(st.just(np.nan), st.sampled_from([0.0, 1.0, 2.0, 5.0]), st.floats(-100, 100, width=32))


def described(jobs):
    table = JobTable.from_frame(jobs)
    return table, causal_features(table).X


def index_by_definition(spread, values):
    """Count each bin by comparing every value with every edge."""
    edges = [-np.inf, *spread.edges, np.inf]
    known = [float(value) for value in values if not np.isnan(value)]
    missing = 1 - len(known) / len(values)
    q = [
        sum(low < value <= high for value in known) / max(len(known), 1) * (1 - missing)
        for low, high in pairwise(edges)
    ]
    p = [share * (1 - spread.missing) for share in spread.shares]
    p, q = (
        [max(share, _LEAST_SHARE) for share in (*shares, last)] for shares, last in ((p, spread.missing), (q, missing))
    )
    return sum((b / sum(q) - a / sum(p)) * np.log((b / sum(q)) / (a / sum(p))) for a, b in zip(p, q, strict=True))


@given(st.lists(floats, min_size=1, max_size=60), st.lists(floats, min_size=1, max_size=60))
def test_the_index_is_the_sum_over_bins_of_its_definition(trained, later):
    spread = _spread(np.array(trained, np.float32))
    assert stability_index(spread, np.array(later, np.float32)) == pytest.approx(
        index_by_definition(spread, np.array(later, np.float32)), abs=1e-9
    )


@given(st.lists(floats, min_size=1, max_size=60))
def test_what_has_not_changed_has_index_zero(values):
    array = np.array(values, np.float32)
    assert stability_index(_spread(array), array) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    "later",
    [np.full(500, 3.0), np.full(500, 9.0), np.full(500, np.nan), np.full(500, np.inf)],
    ids=["smaller", "larger", "missing", "infinite"],
)
def test_a_constant_that_becomes_another_has_changed(later):
    spread = _spread(np.full(500, 5.0, np.float32))
    assert stability_index(spread, later.astype(np.float32)) > CHANGED


def test_half_a_spread_moves_a_feature_and_two_spreads_change_it():
    rng = np.random.default_rng(0)
    spread = _spread(rng.standard_normal(20_000).astype(np.float32))
    later = rng.standard_normal(20_000).astype(np.float32)
    assert stability_index(spread, later) < 0.01
    assert MOVED < stability_index(spread, later + np.float32(0.4)) < CHANGED
    assert stability_index(spread, later + np.float32(2.0)) > CHANGED


@pytest.mark.parametrize(
    ("index", "usual", "word", "unusual"),
    [
        (0.05, None, Steadiness.STEADY, False),
        (0.2, 0.1, Steadiness.MOVED, False),
        (0.3, None, Steadiness.CHANGED, True),
        (0.3, 0.2, Steadiness.CHANGED, True),
        (0.3, 0.4, Steadiness.CHANGED, False),
    ],
)
def test_unusual_is_what_changed_by_more_than_the_weeks_of_training(index, usual, word, unusual):
    one = FeatureShift(feature="gpus", index=index, usual=usual)
    assert (one.steadiness, one.is_unusual) == (word, unusual)


def test_a_new_kind_of_job_shows_in_the_features_it_touches_first():
    jobs = a_campaign(3000, time_limit_s=3600.0)
    jobs.loc[2000:, "time_limit_s"] = 86_400.0
    table, features = described(jobs)
    inputs = training_inputs(features, table, np.arange(2000))
    found = shifted_features(inputs, features, np.arange(2000, 3000))
    assert found[0].feature == "log_limit"
    assert found[0].is_unusual
    by_name = {one.feature: one for one in found}
    assert by_name["gpus"].steadiness is Steadiness.STEADY
    assert [one.index for one in found] == sorted((one.index for one in found), reverse=True)


def test_too_few_jobs_are_not_compared():
    table, features = described(a_campaign(600))
    inputs = training_inputs(features, table, np.arange(400))
    assert shifted_features(inputs, features, np.arange(400, 400 + FEWEST_JOBS - 1)) == ()
    assert len(shifted_features(inputs, features, np.arange(400, 600))) == len(FEATURES) - len(NOT_COMPARED)


def test_a_feature_that_training_did_not_know_is_left_out():
    table, features = described(a_campaign(600))
    told = training_inputs(features, table, np.arange(400)).to_json()
    del told["spreads"]["gpus"]
    found = shifted_features(Inputs.from_json(told), features, np.arange(400, 600))
    assert "gpus" not in {one.feature for one in found}


def test_the_usual_index_is_that_of_the_weeks_of_training():
    # Every second week all jobs are large: a week of large jobs is nothing unusual.
    week = np.repeat(np.arange(8), 300)
    jobs = a_trace(*({"submit": int(w) * WEEK_S + n % 300, "gpus": 8 if w % 2 else 1} for n, w in enumerate(week)))
    table, features = described(jobs)
    spread = training_inputs(features, table, np.arange(len(jobs))).spreads["gpus"]
    large = stability_index(spread, np.full(300, 8, np.float32))
    assert spread.usual == pytest.approx(large)
    assert large > CHANGED
    assert not FeatureShift(feature="gpus", index=large, usual=spread.usual).is_unusual


def test_what_grows_by_its_nature_is_not_compared():
    assert set(FEATURES) > NOT_COMPARED


def test_a_short_training_has_no_usual_week():
    table, features = described(a_campaign(300))
    assert training_inputs(features, table, np.arange(300)).spreads["gpus"].usual is None


def test_new_users_and_names_are_counted():
    jobs = a_trace(
        {"submit": 0, "user": "ada", "name": "fit"},
        {"submit": 100, "user": "ada", "name": "fit"},
        {"submit": 200, "user": "bob", "name": "fit"},
        {"submit": 300, "user": "bob", "name": "cook"},
        {"submit": 310, "user": None, "name": None},
    )
    table, features = described(jobs)
    rows = np.array([1, 2, 3, 4])
    assert new_users(features, rows) == pytest.approx(1 / 3)
    assert new_names(table, rows) == pytest.approx(1 / 3)
    nobody, unknown = described(a_trace({"user": None}, {"user": None}))
    assert new_users(unknown, np.arange(2)) is None
    assert new_names(nobody, np.arange(2)) is None


def test_inputs_come_back_from_their_json():
    table, features = described(a_campaign(800))
    inputs = training_inputs(features, table, np.arange(700))
    assert Inputs.from_json(json.loads(json.dumps(inputs.to_json(), allow_nan=False))) == inputs


def test_an_unlimited_time_limit_is_described_without_infinity():
    table, features = described(a_campaign(300, time_limit_s=np.inf))
    spread = training_inputs(features, table, np.arange(300)).spreads["log_limit"]
    assert np.isfinite(spread.edges).all()
    assert stability_index(spread, features[:, FEATURES.index("log_limit")]) == pytest.approx(0.0)


def test_weeks_end_at_the_given_moment_and_hold_their_submissions():
    end_s = 10 * WEEK_S
    submitted_s = np.array([end_s - 3 * WEEK_S, end_s - WEEK_S, end_s - 1, end_s])
    truth = np.array([10.0, 20.0, 30.0, 40.0])
    right, wrong = (in_columns(np.column_stack([truth * 0.5, truth, truth * 2]) * factor) for factor in (1, 10))
    weeks = weeks_of_errors(right, wrong, truth, submitted_s=submitted_s, end_s=end_s)
    assert [week.jobs for week in weeks] == [1, 2]
    assert [week.begin.timestamp() for week in weeks] == [end_s - 3 * WEEK_S, end_s - WEEK_S]
    assert weeks[0].model.median_abs_log_error == 0
    assert weeks[0].shrinkage.median_abs_log_error > 2
    assert weeks[1].model.coverage_p10_p90 == 1.0


def test_a_spread_knows_what_is_missing():
    assert _spread(np.array([1, np.nan, np.nan, np.nan], np.float32)) == Spread(
        edges=(float(np.nextafter(1.0, -np.inf)), 1.0), shares=(0.0, 1.0, 0.0), missing=0.75, usual=None
    )
