"""The first day of a cluster, a user, a name, a size; days without work; a clock that jumps; an hour of unknowns.

Each prediction must be one that an operator can live with, and say which past jobs it rests on.
"""

import numpy as np
import pandas as pd
import pytest

from helios.predict.causal_stats import FEATURES
from helios.predict.duration import train
from helios.predict.similar_jobs import BASES, fallback_level
from helios.predict.timeline import GRACE_S
from tests.unit.predict.traces_of import a_campaign, a_trace
from tests.unit.predict.walks import walked

HOUR, DAY = 3_600, 86_400
HALF_AN_HOUR = 1_800.0
YEAR = 366 * DAY


def told(jobs, *, predictor=None, **options):
    """Return the features of ``jobs``, their quantiles (s) and what these rest on."""
    walk = walked(jobs, model=predictor, **options)
    features, quantiles = walk.timeline.state.features, walk.predicted[:, :3]
    assert np.isfinite(quantiles).all()
    assert (np.diff(quantiles, axis=1) >= 0).all()
    assert ((quantiles >= 0) & (quantiles < YEAR)).all()
    return pd.DataFrame(features, columns=list(FEATURES)), quantiles, [BASES[code] for code in fallback_level(features)]


def many(n, **columns):
    """Return rows of ``n`` jobs, a minute apart, each ended before the next is submitted."""
    return [{"submit": 60 * number, "run": 30.0} | columns for number in range(n)]


@pytest.fixture(scope="module")
def model():
    """Return one that has learned from five users, none of whom the tests know."""
    return train(a_campaign(700), cluster="lab")


@pytest.fixture(params=["shrinkage", "model"])
def predictor(request, model):
    return model if request.param == "model" else None


def test_jobs_on_a_new_cluster_are_expected_to_run_half_an_hour():
    _, quantiles, bases = told(a_trace({"time_limit_s": np.inf}))
    low, median, high = quantiles[0]
    assert bases == ["all"]
    assert median == pytest.approx(HALF_AN_HOUR, rel=0.01)
    assert low < HALF_AN_HOUR / 5
    assert high > 5 * HALF_AN_HOUR


def test_on_a_new_cluster_no_job_is_expected_to_outlast_its_limit():
    _, quantiles, _ = told(a_trace({"time_limit_s": 600.0}))
    assert quantiles.max() <= (600.0 + GRACE_S) * 1.0001


def test_the_first_jobs_to_end_are_learned_from_at_once():
    _, quantiles, bases = told(a_trace(*many(6)))
    assert bases == ["all"] + 5 * ["user+size"]
    assert (np.diff(np.abs(quantiles[:, 1] - 30.0)) < 0).all()


def test_a_new_user_without_an_account_rests_on_the_request(predictor):
    _, quantiles, bases = told(
        a_trace(*many(40), {"submit": DAY, "user": "new"}, {"submit": DAY, "user": "new", "gpus": 7}),
        predictor=predictor,
    )
    assert bases[-2:] == ["size", "all"]
    assert quantiles[-2, 1] < HALF_AN_HOUR / 4


def test_a_new_user_of_a_known_account_rests_on_its_jobs():
    # The same request runs for seconds in one account and for hours in the other.
    short = many(40, user="bob", account="chemistry", run=20.0, gpus=2)
    long = many(40, user="ada", account="physics", run=6000.0, gpus=2)
    rows = sorted([*short, *long], key=lambda row: row["submit"])
    new = [{"submit": DAY, "user": f"new {lab}", "account": lab, "gpus": 4} for lab in ("physics", "chemistry")]
    features, quantiles, bases = told(a_trace(*rows, *new))
    assert bases[-2:] == ["group", "group"]
    assert features["account_mean"].iloc[-2] == pytest.approx(np.log1p(6000.0))
    assert quantiles[-2, 1] > 4 * quantiles[-1, 1]


def test_a_name_never_seen_changes_nothing_that_its_user_is_known_for(predictor):
    _, quantiles, bases = told(
        a_trace(
            *many(40, name="fit7"), {"submit": DAY, "name": "fit7"}, {"submit": DAY, "name": "never seen before \0 é"}
        ),
        predictor=predictor,
    )
    assert bases[-2:] == ["user+size", "user+size"]
    assert quantiles[-1, 1] == pytest.approx(quantiles[-2, 1], rel=0.5)


def test_a_size_never_asked_for_rests_on_the_users_other_jobs(predictor):
    _, quantiles, bases = told(a_trace(*many(40), {"submit": DAY, "gpus": 4096}), predictor=predictor)
    assert bases[-1] == "user"
    assert quantiles[-1, 1] < 600.0


def test_an_unknown_user_is_predicted_from_the_request(predictor):
    _, quantiles, bases = told(a_trace(*many(40), {"submit": DAY, "user": None}), predictor=predictor)
    assert bases[-1] == "size"
    assert quantiles[-1, 1] < HALF_AN_HOUR / 4


@pytest.mark.parametrize("days", [1, 4, 16])
def test_days_without_a_submission_change_nothing_but_the_gap(days, predictor):
    worked = many(40)
    before = 60 * 40
    features, quantiles, bases = told(
        a_trace(*worked, {"submit": before + days * DAY, "ended": False}), predictor=predictor
    )
    _, straight_on, _ = told(a_trace(*worked, {"submit": before, "ended": False}), predictor=predictor)
    last = features.iloc[-1]
    assert np.expm1(last["user_submission_gap"]) == pytest.approx(days * DAY + 60, rel=1e-3)
    assert (last["user_burst"], last["user_unended"]) == (0, 0)
    assert bases[-1] == "user+size"
    np.testing.assert_allclose(np.log(quantiles[-1]), np.log(straight_on[-1]), atol=np.log(2))


def test_a_job_that_ran_through_the_holidays_is_learned_at_its_end():
    features, _, bases = told(
        a_trace(
            {"run": 4.0 * DAY, "time_limit_s": np.inf},
            {"submit": 3 * DAY, "time_limit_s": np.inf},
            {"submit": 5 * DAY, "time_limit_s": np.inf},
        )
    )
    assert bases == ["all", "all", "user+size"]
    assert np.expm1(features["user_unended_age"].iloc[1]) == pytest.approx(3 * DAY, rel=1e-3)
    assert np.isfinite(features["user_last_2"].iloc[2])


def test_when_the_clocks_go_forward_hours_jump_and_gaps_do_not():
    # Stockholm, 31 March 2024: 01:59:59 is followed by 03:00:00.
    features, _, _ = told(hourly(pd.Timestamp("2024-03-30T23:30:00Z"), 4), timezone="Europe/Stockholm")
    assert features["hour"].tolist() == [0, 1, 3, 4]
    np.testing.assert_allclose(np.expm1(features["user_submission_gap"][1:]), HOUR, rtol=1e-3)


def test_the_hour_that_comes_twice_is_in_order():
    # Stockholm, 27 October 2024: 02:59:59 is followed by 02:00:00.
    features, _, bases = told(hourly(pd.Timestamp("2024-10-26T23:30:00Z"), 4), timezone="Europe/Stockholm")
    assert features["hour"].tolist() == [1, 2, 2, 3]
    assert bases[1:] == ["user+size"] * 3
    np.testing.assert_allclose(np.expm1(features["user_submission_gap"][1:]), HOUR, rtol=1e-3)


def test_after_an_hour_in_which_everything_is_missing_predictions_are_as_before(predictor):
    unknown = ("user", "account", "partition", "state", "name", "qos")
    nothing = dict.fromkeys(unknown) | {"cpus": np.nan, "time_limit_s": np.nan, "gpus": 0, "run": None, "ended": False}
    worked, then = many(40), {"submit": 2 * HOUR + 60 * 40}
    hour = [nothing | {"submit": 60 * (40 + number)} for number in range(60)]
    _, quantiles, bases = told(a_trace(*worked, *hour, then), predictor=predictor)
    _, undisturbed, _ = told(a_trace(*worked, then), predictor=predictor)
    assert set(bases[40:100]) == {"all"}
    assert bases[-1] == "user+size"
    np.testing.assert_array_equal(quantiles[-1], undisturbed[-1])


def hourly(begin, n):
    """Return ``n`` jobs of one user, an hour apart."""
    jobs = a_trace(*({"submit": HOUR * number} for number in range(n)))
    shift = begin - jobs["submitted_at"].iloc[0]
    for column in ("submitted_at", "started_at", "ended_at"):
        jobs[column] += shift
    return jobs
