"""Training pools, in which many trials share one allocation."""
