"""Answers of real clusters, and the small script that recorded them."""
