"""Forecasts of the number of nodes needed.

They are made at 10-minute steps, up to a day ahead, with quantiles, and only from what was known at the time.

``walk_forward`` forecasts a past period as it would have been done then. ``DemandForecaster`` is fitted once a day and
used at each step, live and in simulation. Both give the same for the same history.
"""
