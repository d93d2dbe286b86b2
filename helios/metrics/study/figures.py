"""The figures of a study by audience."""

from __future__ import annotations

from collections.abc import Callable

from helios.metrics.study import figures_of_jobs as of_jobs
from helios.metrics.study import figures_of_time as of_time
from helios.metrics.study.figure_data import FigureData, FigureSource

FIGURES: dict[str, Callable[[FigureSource], FigureData]] = {
    "run_times": of_jobs.run_times,
    "sizes": of_jobs.sizes,
    "waits": of_jobs.waits,
    "waits_by_group": of_jobs.waits_by_group,
    "waits_by_size": of_jobs.waits_by_size,
    "wait_share": of_jobs.wait_share,
    "states": of_jobs.states,
    "limits": of_jobs.limits,
    "users": of_jobs.users,
    "repetition": of_jobs.repetition,
    "holders": of_jobs.holders,
    "hour_of_day": of_time.hour_of_day,
    "months": of_time.months,
    "partitions": of_time.partitions,
    "used_and_waited": of_time.used_and_waited,
    "idle_beside": of_time.idle_beside,
    "fragmentation": of_time.fragmentation,
    "idle_nodes": of_time.idle_nodes,
    "energy": of_time.energy,
    "before_after": of_time.before_after,
    "queue": of_time.queue,
    "demand": of_time.demand,
    "group_hours": of_time.group_hours,
    "hours_lost": of_time.hours_lost,
    "arrivals": of_time.arrivals,
    "drift": of_time.drift,
}
ORDER = {
    "admin": (
        *("idle_beside", "used_and_waited", "waits", "partitions", "queue", "states", "limits"),
        *("fragmentation", "holders", "idle_nodes", "repetition", "drift"),
    ),
    "manager": (
        *("used_and_waited", "waits_by_group", "group_hours", "hours_lost", "waits_by_size", "demand"),
        *("before_after", "holders", "energy", "run_times"),
    ),
    "paper": (
        *("run_times", "sizes", "hour_of_day", "months", "partitions", "waits_by_size", "wait_share", "states"),
        *("users", "repetition", "arrivals", "limits"),
    ),
}
"""Figures of each audience; ``paper`` is the author of a paper."""


def study_figures(source: FigureSource) -> list[FigureData]:
    """Return the figures of the source's audience in order, missing ones too."""
    return [FIGURES[key](source) for key in ORDER[source.audience]]
