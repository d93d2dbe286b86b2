"""How far trees are believed: as far as they were right on what was held back, and as there is evidence."""

import numpy as np
import pytest

from helios.predict.demand.forecaster import (
    DemandForecaster,
    held_back,
    point_weights,
    quantile_corrections,
    quantile_weights,
)
from helios.predict.demand.types import AHEAD, DAY, LEVELS
from tests.unit.predict.demand.worlds import START_S, UTC, a_demand

RNG = np.random.default_rng(0)
CHANGE = RNG.normal(0, 5, (28 * DAY, len(AHEAD)))


def test_what_was_right_is_believed_more_than_what_was_wrong() -> None:
    right, nothing, wrong = (point_weights(CHANGE, share * CHANGE, history=60 * DAY) for share in (1.0, 0.0, -1.0))
    assert (right > nothing).all() and (wrong <= nothing).all()
    assert (right <= 1).all() and (wrong >= 0).all()


def test_the_longer_the_horizon_the_less_a_month_says() -> None:
    wrong = point_weights(CHANGE, -CHANGE, history=60 * DAY)
    assert (np.diff(wrong) > 0).all()


def test_bounds_are_moved_by_what_they_missed_as_far_as_there_is_evidence() -> None:
    rise = RNG.normal(0, 1, (28 * DAY, len(AHEAD)))
    told = np.broadcast_to(np.quantile(rise, LEVELS) - 5.0, (28 * DAY, len(AHEAD), len(LEVELS)))
    moves = quantile_corrections(rise, told)
    evident = 28 * DAY / AHEAD[0] * 0.1
    assert moves[0, 1] == pytest.approx(5 * evident / (evident + 20), abs=0.3)
    assert (np.diff(moves[:, 1]) < 0).all() and (np.diff(moves[0]) < 0).all() and (moves >= 0).all()


def test_trees_have_at_most_half_a_say_and_less_where_exceedances_are_few() -> None:
    month = quantile_weights(30 * DAY)
    assert (month < 0.5).all() and (np.diff(month, axis=0) < 0).all() and (np.diff(month, axis=1) < 0).all()
    assert (quantile_weights(180 * DAY) > month).all()


def test_a_fit_tries_itself_on_the_last_weeks() -> None:
    busy, total = a_demand(9)
    assert 0 < held_back(9 * DAY) <= 3 * DAY
    assert DemandForecaster.fit(busy, total, start_s=START_S, calendar=UTC)._corrections.any()
