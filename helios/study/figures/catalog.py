"""The figures of a study by audience."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from helios.study.figures import jobs as of_jobs
from helios.study.figures import time as of_time
from helios.study.figures.source import FigureData, FigureSource

FIGURES: dict[str, tuple[str, Callable[[FigureSource], FigureData | str]]] = {
    "run_times": ("How long {unit} jobs run", of_jobs.run_times),
    "sizes": ("How many {unit}s jobs ask for", of_jobs.sizes),
    "waits": ("Who waits how long", partial(of_jobs.waits, by=("partition", "size", "week"))),
    "waits_by_size": ("How the wait grows with {unit}s", partial(of_jobs.waits, by=("size",))),
    "wait_share": ("Who waits longest beside how long they run", of_jobs.wait_share),
    "states": ("How jobs end", of_jobs.states),
    "limits": ("How much longer time limits are than runs", of_jobs.limits),
    "users": ("How unequal users are", of_jobs.users),
    "repetition": ("How often jobs repeat earlier ones", of_jobs.repetition),
    "holders": ("Who holds, who waits", of_jobs.holders),
    "hour_of_day": ("When {unit}s are in use", of_time.hour_of_day),
    "months": ("How much each month", of_time.months),
    "partitions": ("How partitions differ", of_time.partitions),
    "used_and_waited": ("{unit}s used, idle and waited for", of_time.used_and_waited),
    "idle_beside": ("{unit}s that idle in one partition while jobs that fit wait in others", of_time.idle_beside),
    "fragmentation": ("Free {unit}s that no waiting job could use", of_time.fragmentation),
    "idle_nodes": ("How long nodes idle", of_time.idle_nodes),
    "energy": ("Energy, money and carbon dioxide", of_time.energy),
    "hours_lost": ("Where hours are lost", of_time.hours_lost),
    "arrivals": ("How submissions come", of_time.arrivals),
    "drift": ("How the work changes", of_time.drift),
}
"""Question and function of each figure. The function returns the figure, or why the history cannot give it."""
ORDER = {
    "admin": (
        *("idle_beside", "used_and_waited", "waits", "partitions", "states", "limits"),
        *("fragmentation", "holders", "idle_nodes", "repetition", "drift"),
    ),
    "manager": (
        *("used_and_waited", "hours_lost", "waits_by_size"),
        *("holders", "energy", "run_times"),
    ),
    "paper": (
        *("run_times", "sizes", "hour_of_day", "months", "partitions", "waits_by_size", "wait_share", "states"),
        *("users", "repetition", "arrivals", "limits"),
    ),
}
"""Figures of each audience. ``paper`` is for the author of a paper."""


def study_figure(key: str, source: FigureSource) -> FigureData:
    """Return a figure, or a missing one that says why."""
    question, draw = FIGURES[key]
    figure = draw(source)
    if isinstance(figure, str):
        return FigureData(key=key, title=question.format(unit=source.history.unit), missing=figure)
    return replace(figure, key=key)


def study_figures(source: FigureSource) -> list[FigureData]:
    """Return the figures of the source's audience in order, missing ones too."""
    return [study_figure(key, source) for key in ORDER[source.audience]]
