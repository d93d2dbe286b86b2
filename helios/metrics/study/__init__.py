"""Statements about a recorded history of a cluster, with intervals over weeks."""
