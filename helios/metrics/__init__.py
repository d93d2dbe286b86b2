"""Metrics of queues, nodes, energy and backlog.

Each is defined once, for recorded and replayed history alike.
"""
