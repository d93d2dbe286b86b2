"""The forecaster of nodes: nothing from the future, and better than no model where use repeats."""

from zoneinfo import ZoneInfo

import numpy as np
import pytest

from helios.errors import FrameInvalid
from helios.predict.node_demand import (
    AS_NOW,
    DAY,
    FEWEST,
    HELIOS,
    HOUR,
    HOURS,
    JUDGED_H,
    WEEK,
    WEEK_AGO,
    NodeHours,
    expect_all,
    forecast_hours,
    mean_of_hour,
    most_of_hour,
    score,
)

START_S = 1_767_571_200  # Monday, 2026-01-05, 00:00 UTC
UTC = ZoneInfo("UTC")


def in_use(weeks, *, seed=0):
    """Return nodes in use by step: many on working days, few at night, with noise that lasts."""
    step = np.arange(weeks * WEEK)
    works = (step // DAY % 7 < 5) * np.sin(np.pi * (step % DAY) / DAY)
    noise = np.repeat(np.random.default_rng(seed).normal(0, 4, size=len(step) // (6 * HOUR)), 6 * HOUR)
    return np.round(20 + 25 * works + noise).clip(0)


def a_history(weeks=6, **options):
    return NodeHours.of(mean_of_hour(in_use(weeks, **options)), start_s=START_S, zone=UTC)


@pytest.fixture(scope="module")
def history():
    return a_history()


def test_hours_are_averaged_or_the_most_is_taken():
    busy = np.array([0.0, 6.0, 0.0, 0.0, 0.0, 0.0, 12.0])
    assert mean_of_hour(busy).tolist() == [0, 3, 2, 1.5, 1.2, 1, 3]
    assert most_of_hour(busy).tolist() == [0, 6, 6, 6, 6, 6, 12]


def test_what_follows_a_step_changes_nothing_in_its_forecast():
    busy, after = in_use(4), 3 * WEEK + 100
    other = np.where(np.arange(len(busy)) < after, busy, 60.0)
    one, two = (
        expect_all(
            NodeHours.of(mean_of_hour(series), start_s=START_S, zone=UTC),
            from_step=after - 50,
            until_step=after,
            hours=10,
        )
        for series in (busy, other)
    )
    assert np.array_equal(one, two)


def test_eight_weeks_of_history_give_the_same_as_more():
    busy = in_use(10)
    one, two = (
        expect_all(
            NodeHours.of(mean_of_hour(busy[cut:]), start_s=START_S + 600 * cut, zone=UTC),
            from_step=9 * WEEK - cut,
            until_step=9 * WEEK + 50 - cut,
            hours=10,
        )
        for cut in (0, WEEK + 36)
    )
    assert np.array_equal(one, two)


def test_models_of_a_week_are_kept_and_used_again(history):
    models = {}
    one, two = (
        expect_all(history, from_step=5 * WEEK, until_step=5 * WEEK + 20, hours=5, models=models) for _ in range(2)
    )
    assert len(models) == 1
    assert np.array_equal(one, two)


def test_weeks_with_too_little_before_them_have_no_forecast(history):
    expected = expect_all(history, from_step=0, until_step=3 * WEEK, hours=3)
    known = np.isfinite(expected).all(axis=1)
    assert not known[:FEWEST].any()
    assert known[-1]


def test_a_calendar_is_that_of_the_hour_forecast_in_local_time():
    hours = NodeHours.of(np.zeros(2 * DAY), start_s=START_S, zone=ZoneInfo("Asia/Shanghai"))
    features = hours.features(np.array([DAY - 1]), 24)
    # At midnight UTC it is 8 o'clock in Shanghai on Tuesday; the next hour begins then.
    assert features[0, 3:5].tolist() == [8.0, 1.0]
    assert features[16, 3:5].tolist() == [0.0, 2.0]


def test_use_that_repeats_is_forecast_better_than_without_a_model(history):
    errors = {(row.method, row.ahead_h): row.error for row in score(history, from_step=4 * WEEK)}
    assert set(errors) == {(method, hours) for method in (HELIOS, AS_NOW, WEEK_AGO) for hours in JUDGED_H}
    for hours in (6, 12, 24):
        assert errors[HELIOS, hours] < min(errors[AS_NOW, hours], errors[WEEK_AGO, hours])


def test_nine_of_ten_hours_lie_within_the_range(history):
    within = [row.within for row in score(history, from_step=4 * WEEK) if row.method == HELIOS]
    assert all(0.75 < share <= 1 for share in within)


def test_hours_without_data_are_not_evaluated(history):
    gaps = np.zeros(6 * WEEK, dtype=np.bool_)
    gaps[4 * WEEK :] = True
    assert not score(history, from_step=4 * WEEK, gaps=gaps)


def test_hours_up_to_two_days_ahead_have_a_range(history):
    found = forecast_hours(history, until=5 * WEEK, most=40.0)
    assert found is not None
    assert found.made_at_s == START_S + 600 * 5 * WEEK
    assert len(found.expected) == HOURS
    assert (found.low <= found.high).all() and found.high.max() <= 40 and found.low.min() >= 0


def test_two_weeks_are_the_least_for_a_range(history):
    assert forecast_hours(history, until=2 * WEEK - 1, most=40.0) is None
    assert forecast_hours(history, until=2 * WEEK, most=40.0) is not None


def test_a_history_with_gaps_is_refused():
    with pytest.raises(FrameInvalid, match="has gaps"):
        NodeHours.of(np.array([1.0, np.nan]), start_s=START_S, zone=UTC)
