"""Waits, use, energy and backlog.

Each is defined once, for recorded and replayed history alike.
"""
