"""Training pools, which run many trials in one allocation."""
