"""Waits, use, energy and backlog.

Each defined once, for recorded and replayed history alike.
"""
