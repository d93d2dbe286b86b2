"""Features of the series: right by an independent count, and deaf to the future."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.predict.demand.features import LAGS, SERIES_FEATURES, WINDOWS, matrix, names
from helios.predict.demand.types import AHEAD, DAY
from tests.examples import examples
from tests.unit.predict.demand.worlds import START_S, UTC, a_demand, a_state

DAYS = 9


def told(busy: np.ndarray, total: np.ndarray, rows: np.ndarray, state=None) -> np.ndarray:
    return matrix(busy, total, start_s=START_S, rows=rows, calendar=UTC, state=state)


def feature(name: str, row: int) -> float:
    busy, total = a_demand(DAYS)
    return float(told(busy, total, np.array([row]))[0, SERIES_FEATURES.index(name)])


@settings(max_examples=examples(25), deadline=None)
@given(now=st.integers(1, DAYS * DAY - 2), seed=st.integers(0, 99))
def test_no_feature_changes_when_the_future_does(now: int, seed: int) -> None:
    busy, total = a_demand(DAYS)
    others = np.random.default_rng(seed).uniform(0, 100, len(busy))
    changed, changed_total = busy.copy(), total.copy()
    changed[now + 1 :], changed_total[now + 1 :] = others[now + 1 :], others[now + 1 :]
    rows = np.arange(max(now - 5, 0), now + 1)
    np.testing.assert_array_equal(told(busy, total, rows), told(changed, changed_total, rows))


def test_every_feature_is_told_somewhere_and_has_a_name() -> None:
    state = a_state(DAYS * DAY)
    busy, total = a_demand(DAYS)
    known = told(busy, total, np.arange(DAYS * DAY), state)
    assert known.shape[1] == len(names(state)) == len(set(names(state)))
    assert np.isfinite(known[8 * DAY :]).all()


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_tell_mean_most_and_least_relative_to_now(window: int) -> None:
    row, (busy, _) = 8 * DAY + 17, a_demand(DAYS)
    seen = busy[row - window + 1 : row + 1] - busy[row]
    for what, value in (("mean", seen.mean()), ("most", seen.max()), ("least", seen.min())):
        assert feature(f"{what}_{window}", row) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("lag", LAGS)
def test_lags_tell_what_was_relative_to_now_and_nothing_before_there_was_anything(lag: int) -> None:
    row, (busy, _) = 8 * DAY + 17, a_demand(DAYS)
    assert feature(f"lag_{lag}", row) == pytest.approx(busy[row - lag] - busy[row])
    assert np.isnan(feature(f"lag_{lag}", lag - 1))


@pytest.mark.parametrize("ahead", AHEAD)
def test_seasons_tell_what_followed_at_this_hour_of_the_last_seven_days(ahead: int) -> None:
    row, (busy, _) = 8 * DAY + 17, a_demand(DAYS)
    days = [row - day * DAY for day in range(1, 8)]
    changes = [busy[then + ahead] - busy[then] for then in days]
    rises = [busy[then + 1 : then + ahead + 1].max() - busy[then] for then in days]
    assert feature(f"daily_change_{ahead}", row) == pytest.approx(np.mean(changes), abs=1e-4)
    assert feature(f"daily_rise_{ahead}", row) == pytest.approx(np.mean(rises), abs=1e-4)


def test_the_decayed_mean_is_an_exponentially_weighted_one() -> None:
    row, (busy, _) = 8 * DAY, a_demand(DAYS)
    weights = np.exp(-600 / 900) ** np.arange(200)
    mean = np.average(busy[row - 199 : row + 1][::-1], weights=weights)
    assert feature("ewma_15_min", row) == pytest.approx(mean - busy[row], abs=1e-3)


def test_free_nodes_are_those_in_service_less_the_busy() -> None:
    busy, total = a_demand(DAYS)
    assert feature("free", 500) == total[500] - busy[500]
