"""The rule of the paper: sleep only where use falls and is expected to fall, wake once short, hold off."""

import numpy as np
import pytest

from helios.services.energy_saving.published import (
    EARTH,
    EXPECTED_HOURS,
    LARGE,
    PHILLY,
    published_levels,
    published_values,
)


def levels(busy, expected=None, *, total=50.0, **options):
    busy = np.array(busy, dtype=np.float64)
    ahead = np.zeros((len(busy), EXPECTED_HOURS)) if expected is None else np.asarray(expected, dtype=np.float64)
    return published_levels(busy, np.full(len(busy), total), ahead, EARTH, **options).tolist()


def falling(hours=4):
    """Return use that is constant and then falls by a node a step."""
    return [30.0] * 12 + [30.0 - step for step in range(6 * hours - 12)]


def test_values_are_those_of_the_cluster_of_that_size():
    assert (published_values(LARGE - 1), published_values(LARGE)) == (EARTH, PHILLY)


def test_nodes_beyond_use_and_the_reserve_sleep_where_use_falls():
    assert levels(falling())[-1] == falling()[-1] + EARTH.reserve


def test_constant_use_puts_no_node_to_sleep():
    assert levels([30] * 30, powered=50) == [50] * 30


@pytest.mark.parametrize("expected", [np.nan, 29.5])
def test_without_an_expected_fall_nothing_sleeps(expected):
    busy = falling()
    ahead = np.full((len(busy), EXPECTED_HOURS), expected)
    assert min(levels(busy, ahead)) >= (29.5 if expected == 29.5 else 35)


def test_use_that_will_rise_again_keeps_nodes_awake():
    ahead = np.zeros((24, EXPECTED_HOURS))
    ahead[:, EARTH.ahead_h :] = 40
    assert levels(falling(), ahead) == [35.0] * 24


def test_too_few_awake_nodes_wake_the_reserve_and_hold_off_sleep():
    found = levels([30.0] * 6 + [40.0] + [40.0 - step for step in range(1, 20)])
    assert found[6:19] == [45.0] * 12 + [33.0]


def test_no_more_nodes_wake_than_there_are():
    assert levels([10, 50], total=50.0) == [15, 50]


def test_no_steps_are_no_levels():
    assert levels([]) == []
