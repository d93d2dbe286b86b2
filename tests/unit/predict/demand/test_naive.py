"""Rules without a model, and what came: by an independent count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helios.predict.demand.forecaster import max_of_last_3_h, outcomes, rises, same_hour_last_week
from helios.predict.demand.types import AHEAD, DAY, LEVELS
from tests.unit.predict.demand.worlds import a_demand


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_outcomes_are_what_came(series: list[int]) -> None:
    busy = np.array(series, dtype=np.float64)
    point, mean, most = outcomes(busy)
    for row in range(len(busy)):
        for number, steps in enumerate(AHEAD):
            came = busy[row + 1 : row + steps + 1]
            if len(came) < steps:
                assert np.isnan([point[row, number], mean[row, number], most[row, number]]).all()
            else:
                told = (point[row, number], mean[row, number], most[row, number])
                assert told == pytest.approx((came[-1], came.mean(), came.max()))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_the_most_of_three_hours_is_of_the_last_eighteen_steps(series: list[int]) -> None:
    busy = np.array(series, dtype=np.float64)
    expected = [busy[max(row - 17, 0) : row + 1].max() for row in range(len(busy))]
    assert max_of_last_3_h(busy)[:, 0].tolist() == expected


def test_the_same_hour_last_week_is_what_followed_then() -> None:
    busy, _ = a_demand(9)
    point, most = same_hour_last_week(busy)
    row, number = 8 * DAY, 2
    then = row - 7 * DAY
    assert point[row, number] == busy[then + AHEAD[number]]
    assert most[row, number] == busy[then + 1 : then + AHEAD[number] + 1].max()
    assert point[5, number] == busy[5]


def test_rises_are_quantiles_of_those_that_were_over_by_then() -> None:
    busy, _ = a_demand(5)
    until = 4 * DAY
    told = rises(busy, until=until)
    for number, steps in enumerate(AHEAD):
        seen = [busy[row + 1 : row + steps + 1].max() - busy[row] for row in range(until - steps)]
        np.testing.assert_allclose(told[number], np.quantile(seen, LEVELS))


def test_rises_that_nobody_saw_have_no_bound() -> None:
    busy, _ = a_demand(1.5)
    assert rises(busy, until=DAY)[-1].tolist() == [0.0, np.inf, np.inf]
