"""What jobs of the same burst that run, or have ended, say of one that waits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from helios.predict.bursts import LEAST_DOUBT, SIBLING_GAP_S, SIBLINGS, SPREAD, BurstUpdate
from helios.predict.causal_stats import LEVELS, NEVER_S, REQUEST, USER_SIZE

NOW_S = 100_000
PREDICTED = np.array([[60.0, 300.0, 1500.0]])


def groups_of(*codes, level=USER_SIZE):
    groups = np.full((len(codes), len(LEVELS)), -1, dtype=np.int32)
    groups[:, REQUEST] = 0
    groups[:, level] = codes
    return groups


def revised(siblings, *, groups=None, submitted_s=None, job=None, say=1.0):
    """Return the quantiles of the last job; each sibling is ("ran", s), ("runs", s) or ("waits",)."""
    n = len(siblings) + 1
    since_s, log_run = np.full(n, NEVER_S), np.full(n, np.nan)
    for number, (kind, *seconds) in enumerate(siblings):
        if kind == "ran":
            log_run[number] = np.log1p(seconds[0])
        elif kind == "runs":
            since_s[number] = NOW_S - seconds[0]
    return BurstUpdate(groups_of(*[3] * n) if groups is None else groups, say=say).revised(
        PREDICTED,
        np.array([n - 1 if job is None else job]),
        now_s=NOW_S,
        submitted_s=np.zeros(n, dtype=np.int64) if submitted_s is None else np.array(submitted_s),
        since_s=since_s,
        log_run=log_run,
    )[0]


def test_a_job_without_siblings_is_predicted_as_before():
    np.testing.assert_array_equal(revised([]), PREDICTED[0])
    np.testing.assert_array_equal(revised([("waits",)] * 3), PREDICTED[0])


def test_with_half_a_say_the_answer_lies_half_way_in_log_time():
    alone, whole, half = (np.log1p(revised([("runs", 36_000)] * 5, say=say)) for say in (0.0, 1.0, 0.5))
    np.testing.assert_allclose(half, (alone + whole) / 2, rtol=1e-12)
    np.testing.assert_allclose(alone, np.log1p(PREDICTED[0]), rtol=1e-12)


def test_siblings_that_have_run_for_hours_make_a_job_longer_though_none_has_ended():
    assert revised([("runs", 36_000)] * 5)[1] > 20_000


def test_the_longer_they_have_run_the_longer_it_is_expected_to_run():
    medians = [revised([("runs", seconds)] * 3)[1] for seconds in (1, 60, 600, 6_000, 60_000)]
    assert medians == sorted(medians)
    assert medians[-1] > 10 * medians[0]


def test_siblings_that_have_only_begun_say_next_to_nothing():
    assert revised([("runs", 1)] * 4)[1] == pytest.approx(PREDICTED[0, 1], rel=0.15)


def test_siblings_that_ended_pull_towards_their_run_time():
    assert revised([("ran", 20)] * 8)[1] == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize(
    ("groups", "submitted_s"),
    [(groups_of(1, 2), [0, 0]), (groups_of(3, 3), [0, SIBLING_GAP_S + 1])],
    ids=["another group", "too long before"],
)
def test_who_is_no_sibling_does_not_count(groups, submitted_s):
    apart = revised([("runs", 36_000)], groups=groups, submitted_s=submitted_s)
    np.testing.assert_array_equal(apart, PREDICTED[0])


def test_a_burst_goes_on_as_long_as_no_gap_is_too_long():
    chain = [("runs", 36_000), ("waits",), ("waits",)]
    times = [0, SIBLING_GAP_S, 2 * SIBLING_GAP_S, 3 * SIBLING_GAP_S]
    assert revised(chain, submitted_s=times)[1] > 2 * PREDICTED[0, 1]
    times[2:] = [2 * SIBLING_GAP_S + 1] * 2
    np.testing.assert_array_equal(revised(chain, submitted_s=times), PREDICTED[0])


def test_jobs_submitted_later_do_not_count():
    np.testing.assert_array_equal(revised([("waits",), ("runs", 36_000)], job=0), PREDICTED[0])


def test_without_users_those_that_ask_for_the_same_are_siblings():
    strangers = groups_of(0, 0, level=REQUEST)
    assert revised([("runs", 36_000)], groups=strangers)[1] > 2 * PREDICTED[0, 1]


kinds = st.one_of(
    st.tuples(st.just("ran"), st.integers(0, 10**5)),
    st.tuples(st.just("runs"), st.integers(1, 90_000)),
    st.tuples(st.just("waits")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(kinds, min_size=1, max_size=12))
def test_the_answer_is_the_posterior_by_numerical_integration(siblings):
    seen = [sibling for sibling in siblings[::-1] if sibling[0] != "waits"][:SIBLINGS]
    theta = np.log1p(PREDICTED[0, 1]) + LEAST_DOUBT * np.linspace(-4, 4, 4001)
    log_density = norm.logpdf(theta, np.log1p(PREDICTED[0, 1]), LEAST_DOUBT)
    for kind, seconds in seen:
        if kind == "ran":
            log_density += norm.logpdf(np.log1p(seconds), theta, SPREAD)
        else:
            log_density += norm.logsf(np.log1p(seconds), theta, SPREAD)
    density = np.exp(log_density - log_density.max())
    mean = np.average(theta, weights=density)
    spread = np.sqrt(np.average((theta - mean) ** 2, weights=density) + SPREAD**2)
    if not seen:
        np.testing.assert_array_equal(revised(siblings), PREDICTED[0])
        return
    expected = mean + spread * norm.ppf([0.1, 0.5, 0.9])
    np.testing.assert_allclose(np.log1p(revised(siblings)), np.maximum(expected, 0), atol=0.05)
