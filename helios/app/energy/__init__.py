"""Energy saved by sleeping nodes, as recorded and as it would have been."""
