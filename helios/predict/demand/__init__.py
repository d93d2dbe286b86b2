"""Forecasts of the number of nodes needed.

They are made at 10-minute steps, up to a day ahead, with quantiles, from what was known only.

``walk_forward`` forecasts over a stretch of the past as it would have been done then; ``DemandForecaster`` is learned
once a day and asked at each step, live and in simulation. Both give the same for the same history.
"""
