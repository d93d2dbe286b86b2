"""The forecaster: deaf to the future, the same live as on a walk, better than persistence where there is a pattern."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.errors import FrameInvalid
from helios.predict.demand.forecaster import DemandForecaster, outcomes, rises, walk_forward
from helios.predict.demand.types import AHEAD, AHEAD_S, DAY, LEVELS, Forecasts, Wanted
from tests.examples import examples
from tests.unit.predict.demand.worlds import START_S, TOTAL, UTC, a_demand, a_state

FIRST, AFTER = 10 * DAY, 12 * DAY


def walked(busy: np.ndarray, total: np.ndarray, **options) -> Forecasts:
    window = {"from_step": FIRST, "until_step": AFTER} | options
    return walk_forward(busy, total, start_s=START_S, calendar=UTC, **window)


@pytest.fixture(scope="module")
def walk() -> Forecasts:
    return walked(*a_demand(12), state=a_state(12 * DAY))


def values_of(forecasts: Forecasts) -> np.ndarray:
    n = len(forecasts.point)
    return np.hstack([forecasts.point, forecasts.mean, forecasts.most.reshape(n, -1)])


def test_only_what_is_wanted_is_forecast_and_it_is_the_same(walk: Forecasts) -> None:
    wanted = Wanted(point=(), mean=AHEAD_S[1:3], most=AHEAD_S[:4])
    part = walked(*a_demand(12), state=a_state(12 * DAY), wanted=wanted)
    assert np.isnan(part.point).all()
    assert np.isnan(part.mean[:, [0, 3, 4]]).all()
    assert np.isnan(part.most[:, 4]).all()
    np.testing.assert_array_equal(part.mean[:, 1:3], walk.mean[:, 1:3])
    np.testing.assert_array_equal(part.most[:, :4], walk.most[:, :4])


# The window holds two fits; what changes lies before, at and after the second.
@settings(max_examples=examples(6), deadline=None)
@given(now=st.sampled_from([FIRST, FIRST + 50, FIRST + DAY - 1, FIRST + DAY, FIRST + DAY + 70]), seed=st.integers(0, 9))
def test_no_forecast_changes_when_the_future_does(walk: Forecasts, now: int, seed: int) -> None:
    busy, total = a_demand(12)
    state = a_state(12 * DAY)
    rng = np.random.default_rng(seed)
    later = slice(now + 1, None)
    busy[later], total[later] = rng.uniform(0, 50, len(busy[later])), 60.0
    state.values[later] = rng.uniform(0, 50, state.values[later].shape)
    changed = walked(busy, total, state=state)
    until = now + 1 - FIRST
    np.testing.assert_array_equal(values_of(walk)[:until], values_of(changed)[:until])


def test_a_walk_does_not_need_what_comes_after_its_window(walk: Forecasts) -> None:
    busy, total = a_demand(14)
    longer = walked(np.concatenate([a_demand(12)[0], busy[12 * DAY :]]), total, state=a_state(14 * DAY))
    np.testing.assert_array_equal(values_of(longer)[:, :10], values_of(walk)[:, :10])


def test_live_gives_what_the_walk_gives(walk: Forecasts) -> None:
    busy, total = a_demand(12)
    state = a_state(12 * DAY)
    fitted = DemandForecaster.fit(
        busy[:FIRST], total[:FIRST], start_s=START_S, calendar=UTC, state=state.rows(0, FIRST)
    )
    for after in (FIRST + 1, FIRST + DAY):
        live = fitted.forecast(busy[:after], total[:after], start_s=START_S, state=state.rows(0, after))
        np.testing.assert_array_equal(values_of(live)[-1], values_of(walk)[after - 1 - FIRST])


def test_a_live_forecast_needs_no_more_than_the_last_days(walk: Forecasts) -> None:
    busy, total = a_demand(12)
    fitted = DemandForecaster.fit(busy[:FIRST], total[:FIRST], start_s=START_S, calendar=UTC)
    whole = fitted.forecast(busy[:AFTER], total[:AFTER], start_s=START_S, steps=3)
    cut = AFTER - 8 * DAY - 3
    last = fitted.forecast(busy[cut:AFTER], total[cut:AFTER], start_s=START_S + cut * 600, steps=3)
    np.testing.assert_array_equal(values_of(last), values_of(whole))


def test_what_recurs_daily_is_forecast_better_than_by_persistence(walk: Forecasts) -> None:
    busy, _ = a_demand(12)
    point, mean, _ = (values[FIRST:] for values in outcomes(busy))
    now = busy[FIRST:AFTER, None]
    for number in (1, 2, 3):  # 3, 6 and 12 h; after 24 h a day is where it was
        known = np.isfinite(point[:, number])
        ours, naive = np.abs(point - walk.point)[known, number].mean(), np.abs(point - now)[known, number].mean()
        assert ours < 0.75 * naive
        assert np.abs(mean - walk.mean)[known, number].mean() < np.abs(mean - now)[known, number].mean()


def test_upper_quantiles_are_enough_about_as_often_as_they_say(walk: Forecasts) -> None:
    busy, _ = a_demand(12)
    most = outcomes(busy)[2][FIRST:]
    for number in (0, 1, 2):
        known = np.isfinite(most[:, number])
        covered = (most[known, number] <= walk.most[known, number, LEVELS.index(0.9)]).mean()
        assert covered == pytest.approx(0.9, abs=0.08)


def test_quantiles_ascend_in_level_and_in_horizon_and_stay_within_the_cluster(walk: Forecasts) -> None:
    assert (np.diff(walk.most, axis=2) >= 0).all()
    assert (np.diff(walk.most, axis=1) >= 0).all()
    for values in (walk.point, walk.mean, walk.most):
        assert (values >= 0).all() and (values <= TOTAL).all()


def test_quantiles_ascend_even_where_what_was_learned_does_not() -> None:
    busy, total = a_demand(9)
    fitted = DemandForecaster.fit(busy, total, start_s=START_S, calendar=UTC)
    crossing = replace(
        fitted, _corrections=-20.0 * np.arange(len(AHEAD) * len(LEVELS)).reshape(len(AHEAD), len(LEVELS))
    )
    most = crossing.forecast(busy, total, start_s=START_S, steps=20).most
    assert (np.diff(most, axis=2) >= 0).all() and (np.diff(most, axis=1) >= 0).all()


def test_shapes_are_as_declared(walk: Forecasts) -> None:
    n_steps = AFTER - FIRST
    assert (walk.ahead_s, walk.levels) == (AHEAD_S, LEVELS)
    assert walk.point.shape == walk.mean.shape == (n_steps, len(AHEAD))
    assert walk.most.shape == (n_steps, len(AHEAD), len(LEVELS))
    assert "12 days" not in walk.source and "11 days of busy nodes and jobs" in walk.source


def test_with_less_than_a_week_it_is_now_plus_what_was_seen_and_says_so() -> None:
    busy, total = a_demand(3)
    told = walked(busy, total, from_step=2 * DAY, until_step=2 * DAY + 10)
    now = busy[2 * DAY : 2 * DAY + 10]
    np.testing.assert_array_equal(told.point[:, 0], now)
    expected = np.minimum(now[:, None] + rises(busy, until=2 * DAY)[0], TOTAL)
    np.testing.assert_allclose(told.most[:, 0], expected)
    assert "2.0 days" in told.source and "7 days" in told.source


def test_with_nothing_known_every_node_may_be_needed() -> None:
    busy, total = a_demand(1)
    told = walked(busy, total, from_step=0, until_step=5)
    assert (told.most[0, :, 1:] == TOTAL).all()


def test_an_empty_cluster_needs_nothing() -> None:
    busy = np.zeros(9 * DAY)
    told = walked(busy, np.full(9 * DAY, 4.0), from_step=8 * DAY, until_step=8 * DAY + 3)
    assert (told.point == 0).all() and (told.most == 0).all()


def a_gap(busy: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(busy)) == 5, np.nan, busy)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda busy, total: walked(busy, total[:-1]),
        lambda busy, total: walked(a_gap(busy), total),
        lambda busy, total: walked(busy, total, until_step=len(busy) + 1),
        lambda busy, total: walked(busy, total, from_step=5, until_step=5),
        lambda busy, total: walked(busy, total, state=a_state(3)),
    ],
)
def test_series_that_do_not_fit_are_refused(wrong: Callable[..., Forecasts]) -> None:
    with pytest.raises(FrameInvalid):
        wrong(*a_demand(12))


def test_a_forecaster_that_learned_from_jobs_must_be_told_of_jobs() -> None:
    busy, total = a_demand(2)
    fitted = DemandForecaster.fit(busy, total, start_s=START_S, calendar=UTC, state=a_state(2 * DAY))
    with pytest.raises(FrameInvalid, match="jobs"):
        fitted.forecast(busy, total, start_s=START_S)
