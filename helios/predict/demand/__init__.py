"""How many nodes will be needed: at 10-minute steps, up to a day ahead, with quantiles, from what was known only.

``walk_forward`` forecasts over a stretch of the past as it would have been done then; ``DemandForecaster`` is learned
once a day and asked at each step, live and in simulation. Both give the same for the same history.
"""

from helios.predict.demand.features import NEVER_S, job_state
from helios.predict.demand.forecaster import FEWEST_STEPS, HISTORY_STEPS, DemandForecaster, walk_forward
from helios.predict.demand.types import (
    AHEAD,
    AHEAD_S,
    DAY,
    LEVELS,
    Calendar,
    DemandJobState,
    Forecasts,
    assemble,
    parse_holidays,
)

__all__ = [
    "AHEAD",
    "AHEAD_S",
    "DAY",
    "FEWEST_STEPS",
    "HISTORY_STEPS",
    "LEVELS",
    "NEVER_S",
    "Calendar",
    "DemandForecaster",
    "DemandJobState",
    "Forecasts",
    "assemble",
    "job_state",
    "parse_holidays",
    "walk_forward",
]
