"""Waits, use, energy and backlog: each defined once, for recorded and replayed history alike."""
