"""Forecast of the nodes in use, for the rule of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from zoneinfo import ZoneInfo

import lightgbm
import numpy as np
from numpy.typing import NDArray

from helios.model import STEP_S, NodeForecast
from helios.predict.node_demand import DAY, NodeHours, expect_all, mean_of_hour
from helios.services.energy_saving.published import EXPECTED_HOURS

STATE_STEPS = 3 * DAY
"""Steps that are given to the rule, whose state depends on hours before."""
STEP_MIN = STEP_S // 60


class NodeForecasts:
    """Forecasts the nodes in use, and keeps the model of each week.

    Parameters
    ----------
    zone : ZoneInfo
        The site's, for hours of the day and weekdays.
    """

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._models: dict[str, dict[int, lightgbm.Booster | None]] = {}

    def __call__(self, in_use: Mapping[str, NDArray[np.int64]], *, ended_s: int) -> NodeForecast:
        """Return the forecasts of the last days.

        Parameters
        ----------
        in_use : mapping of str to int64 array
            Most nodes of each pool in use in each of the last minutes, oldest first, eight weeks where they are known.
        ended_s : int
            End of the last minute, s since the epoch.
        """
        end_s = ended_s // STEP_S * STEP_S
        busy, expected = {}, {}
        for pool, minutes in in_use.items():
            whole = len(minutes) - (ended_s - end_s) // 60
            steps = minutes[whole % STEP_MIN : max(whole, 0)].reshape(-1, STEP_MIN).max(axis=1).astype(np.float64)
            if not len(steps):
                continue
            hours = NodeHours.of(mean_of_hour(steps), start_s=end_s - STEP_S * len(steps), zone=self._zone)
            first = max(len(steps) - STATE_STEPS, 0)
            models = self._models.setdefault(pool, {})
            expected[pool] = expect_all(
                hours, from_step=first, until_step=len(steps), hours=EXPECTED_HOURS, models=models
            )
            busy[pool] = steps[first:]
        return NodeForecast(ended_s=end_s, busy=busy, expected=expected)
