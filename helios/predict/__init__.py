"""Run times and node demand, predicted from what was known at the time."""
