"""The remaining time of a job that has run for some time, against plain inversion and against drawing lots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.predict.remaining_time import LIMIT_GRACE_S, TAIL_SLOPE, remaining_run_time

USUAL = (600.0, 3600.0, 36_000.0)
_seconds = st.floats(0.0, 1e9, allow_subnormal=False)
_quantiles = st.lists(_seconds, min_size=3, max_size=3).map(sorted)


def remaining(quantiles=USUAL, *, elapsed=0.0, limit=None):
    """Return p10, p50, p90 of the remaining time of one job, s."""
    limits = None if limit is None else np.array([limit])
    return remaining_run_time(np.array([quantiles]), np.array([elapsed]), limit_s=limits)[0]


def survival(time_s, quantiles=USUAL):
    """Return the chance to run longer: log-odds in straight lines through the quantiles, by plain interpolation."""
    low, median, high = np.log(quantiles)
    knots = [median + 60 * (low - median), median, high, high + 60 * TAIL_SLOPE]
    odds = np.interp(np.log(time_s), knots, [-60 * np.log(9), 0, np.log(9), np.log(9) + 60])
    return 1 / (1 + np.exp(odds))


def by_bisection(chance, elapsed):
    """Return the remaining time that is exceeded with ``1 - chance``, by halving."""
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        ended = 1 - survival(elapsed + middle) / survival(elapsed)
        low, high = (middle, high) if ended < chance else (low, middle)
    return low


@pytest.mark.parametrize("elapsed", [1.0, 60.0, 600.0, 3600.0, 20_000.0, 36_000.0, 200_000.0, 3e6])
def test_it_is_the_conditional_quantile_of_the_distribution_through_the_three(elapsed):
    expected = [by_bisection(chance, elapsed) for chance in (0.1, 0.5, 0.9)]
    np.testing.assert_allclose(remaining(elapsed=elapsed), expected, rtol=1e-6)


@pytest.mark.parametrize("elapsed", [300.0, 5_000.0, 60_000.0])
def test_the_remaining_time_is_that_of_random_draws(elapsed):
    rng = np.random.default_rng(5)
    times = np.exp(np.linspace(0, 40, 400_001))
    lots = np.interp(rng.uniform(size=1_000_000), 1 - survival(times), times)
    expected = np.quantile(lots[lots > elapsed] - elapsed, [0.1, 0.5, 0.9])
    np.testing.assert_allclose(remaining(elapsed=elapsed), expected, rtol=0.05)


def test_of_a_job_that_has_just_begun_all_remains():
    np.testing.assert_allclose(remaining(elapsed=0.0), USUAL)


def test_long_before_p10_time_passes_off_what_was_expected():
    sharp = (3400.0, 3600.0, 3800.0)
    np.testing.assert_allclose(remaining(sharp, elapsed=600.0), np.array(sharp) - 600.0, rtol=1e-6)


def test_far_beyond_p90_what_remains_is_in_proportion_to_what_has_passed():
    month = 30 * 86_400.0
    np.testing.assert_allclose(remaining(elapsed=100 * month) / remaining(elapsed=month), 100.0, rtol=0.01)
    assert remaining(elapsed=100 * month)[1] == pytest.approx((2**TAIL_SLOPE - 1) * 100 * month, rel=0.01)


def test_a_job_past_a_narrow_prediction_may_last_on():
    assert remaining((3500.0, 3600.0, 3700.0), elapsed=36_000.0)[1] > 3600.0


@given(quantiles=_quantiles, elapsed=st.floats(0.0, 1e12), limit=st.one_of(st.none(), _seconds))
def test_it_is_ascending_finite_and_never_negative_whatever_was_predicted(quantiles, elapsed, limit):
    left = remaining(quantiles, elapsed=elapsed, limit=limit)
    assert np.isfinite(left).all()
    assert (left >= 0).all()
    assert (np.diff(left) >= 0).all()


@given(quantiles=_quantiles, elapsed=st.floats(0.0, 1e9), more=st.floats(0.0, 1e9))
def test_the_whole_run_time_expected_never_falls_as_time_goes_by(quantiles, elapsed, more):
    before = elapsed + remaining(quantiles, elapsed=elapsed)
    after = elapsed + more + remaining(quantiles, elapsed=elapsed + more)
    assert (after >= before * (1 - 1e-9)).all()


def test_nothing_remains_beyond_the_limit_but_the_time_it_takes_to_end():
    assert remaining(elapsed=3000.0, limit=3600.0).tolist()[1:] == [600.0 + LIMIT_GRACE_S] * 2
    assert remaining(elapsed=3600.0, limit=3600.0)[2] == LIMIT_GRACE_S
    assert remaining(elapsed=9000.0, limit=3600.0).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("limit", [np.nan, np.inf])
def test_a_job_without_a_limit_is_not_cut(limit):
    np.testing.assert_array_equal(remaining(elapsed=5000.0, limit=limit), remaining(elapsed=5000.0))


def test_where_nothing_was_predicted_nothing_is_said_and_others_are_not_disturbed():
    both = remaining_run_time(np.array([[np.nan] * 3, USUAL]), np.array([10.0, 10.0]))
    assert np.isnan(both[0]).all()
    np.testing.assert_array_equal(both[1], remaining(elapsed=10.0))


def test_a_job_that_began_in_the_future_has_just_begun():
    np.testing.assert_array_equal(remaining(elapsed=-2.0), remaining(elapsed=0.0))


def test_no_jobs_have_no_remaining_time():
    assert remaining_run_time(np.empty((0, 3)), np.empty(0)).shape == (0, 3)
