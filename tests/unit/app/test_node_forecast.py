"""Forecasts of a live cluster's nodes: whole steps, the same after a restart."""

from zoneinfo import ZoneInfo

import numpy as np

from helios.app.node_forecast import STATE_STEPS, NodeForecasts
from helios.predict.node_demand import WEEK
from tests.unit.predict.test_node_demand import START_S, in_use


def by_minute(weeks):
    return np.repeat(in_use(weeks), 10).astype(np.int64)


def test_the_last_whole_steps_are_forecast():
    minutes = np.append(by_minute(3), [99, 99, 99])
    ended_s = START_S + 60 * len(minutes)
    found = NodeForecasts(ZoneInfo("UTC"))({"gpu": minutes}, ended_s=ended_s)
    assert found.ended_s == START_S + 600 * 3 * WEEK
    assert found.busy["gpu"].tolist() == in_use(3)[-STATE_STEPS:].tolist()
    assert np.isfinite(found.expected["gpu"][-1]).all()


def test_a_restart_gives_the_same_forecast():
    minutes = by_minute(9)
    forecasts, half = NodeForecasts(ZoneInfo("UTC")), len(minutes) - 700
    forecasts({"gpu": minutes[:half]}, ended_s=START_S + 60 * half)
    # The record of a live cluster goes eight weeks back, and forgets the rest.
    before, after = (
        found({"gpu": minutes[7 * 1_440 - 50 :]}, ended_s=START_S + 60 * len(minutes))
        for found in (forecasts, NodeForecasts(ZoneInfo("UTC")))
    )
    assert np.array_equal(before.expected["gpu"], after.expected["gpu"])


def test_a_pool_without_a_past_has_no_forecast():
    found = NodeForecasts(ZoneInfo("UTC"))(
        {"new": np.zeros(25, dtype=np.int64), "none": np.zeros(0, dtype=np.int64)}, ended_s=START_S
    )
    assert np.isnan(found.expected["new"]).all()
    assert "none" not in found.expected
