"""What jobs really used, as others measured it.

A wing: the core does not import it, and finds its commands, pages and readers by tables. What it stores and what
several parts of Helios ask of it are in the core (``helios.model.job_use``, ``helios.metrics.job_use``).
"""
