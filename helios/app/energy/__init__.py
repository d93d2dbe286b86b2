"""Energy saved by sleeping nodes, recorded and replayed."""
