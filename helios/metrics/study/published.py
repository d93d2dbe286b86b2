"""Published values of other clusters, for comparison.

Sources, licences and definitions: ``data/README.md``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.metrics.study.figure_data import FigureSource, Series
from helios.metrics.study.history import CANCELLED, COMPLETED, NOT_ENDED, UNKNOWN, Flags
from helios.units import duration, percent

DATA = Path(__file__).parent / "data" / "published.csv"
CLUSTERS = ("Venus", "Earth", "Saturn", "Uranus", "Helios", "Seren", "Kalos", "Philly")
NOT_COMPARED = {"gpu_run_time": ("Kalos", "Philly"), "cpu_run_time": ("Kalos",), "size_hours": ("Kalos", "Philly")}
"""Clusters whose definition differs."""
KALOS = "Kalos is not drawn: it states run times from the submission."
PHILLY = "Philly is not drawn: its run times hold retries and the waits between them."
FOOTNOTES = {
    "run_times": f"Grey: published GPU clusters, jobs of all final states over whole logs. {KALOS} {PHILLY}",
    "cpu_run_times": f"Grey: jobs without GPUs of published GPU clusters, all final states. {KALOS}",
    "sizes": (
        "Grey: published GPU clusters; their GPU time is of whole runs, ours inside the window. In the second panel "
        "Kalos and Philly are not drawn: their run times hold waiting."
    ),
    "hour_of_day": (
        "Grey: published GPU clusters, April to September 2020. They count a job in its first and in its last minute, "
        "which adds .2 to .5 points of utilisation."
    ),
}
CITATION = "Hu et al., SC'21 (doi 10.1145/3458817.3476223); Hu et al., NSDI'24; Jeon et al., USENIX ATC'19"


@cache
def _rows() -> tuple[tuple[str, str, str, str, float], ...]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return tuple(
            (row["figure"], row["cluster"], row["series"], row["x"], float(row["y"])) for row in csv.DictReader(file)
        )


def published(figure: str) -> tuple[Series, ...]:
    """Return the published series of a figure by cluster.

    Parameters
    ----------
    figure : str
        A ``figure`` of the data file. For one with several series, names are ``cluster: series``.
    """
    points: dict[str, list[tuple[float | str, float]]] = {}
    several = len({row[2] for row in _rows() if row[0] == figure}) > 1
    for name, cluster, what, x, y in _rows():
        if name == figure and cluster not in NOT_COMPARED.get(figure, ()):
            place: float | str = x if "-" in x else float(x)
            points.setdefault(f"{cluster}: {what}" if several else cluster, []).append((place, y))
    return tuple(
        Series(name=name, x=tuple(x for x, _ in found), y=tuple(y for _, y in found)) for name, found in points.items()
    )


@cache
def summary(cluster: str) -> dict[str, float]:
    """Return the published totals of a cluster by name."""
    return {what: y for name, of_cluster, what, _, y in _rows() if name == "summary" and of_cluster == cluster}


@dataclass(frozen=True, slots=True, kw_only=True)
class HereAndThere:
    """Comparison of a cluster with published ones.

    Attributes
    ----------
    header : tuple of str
        Names of the clusters, the site's own first.
    rows : tuple of (str, tuple of str)
        A measure with its values as text, a dash where one is not known.
    values : tuple of (str, float or None)
        The site's own values, plain.
    notes : tuple of str
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    values: tuple[tuple[str, float | None], ...]
    notes: tuple[str, ...]


def here_and_there(source: FigureSource) -> HereAndThere:
    """Compare a history's totals with published ones."""
    history, kind = source.history, "gpu" if source.history.resource == "gpus" else "cpu"
    run_times = source.run_times(source.sized)
    waited_s = history.wait_s[source.first_waits]
    waited_s = np.maximum(waited_s[np.isfinite(waited_s)], 0)
    ended = (history.state != UNKNOWN) & (history.state != NOT_ENDED)
    ran_s = history.run_time_s[source.sized & ~source.never_ran]
    units = np.zeros(0) if source.capacity is None or not source.capacity.units.size else source.capacity.total
    rows: list[tuple[str, str, float | None, Callable[[float], str]]] = [
        (f"{history.unit}s in service", f"{kind}_num", _mean(units), _whole),
        (f"Jobs with {history.unit}s", f"{kind}_job_num", float(source.n), _whole),
        ("Mean run time", f"avg_run_time_{kind}", _mean(ran_s), duration),
        ("Median run time", f"med_run_time_{kind}", _known(run_times.quantile(0.5)), duration),
        ("Mean wait", f"avg_que_time_{kind}", _mean(waited_s), duration),
        ("Median wait", f"med_que_time_{kind}", float(np.median(waited_s)) if len(waited_s) else None, duration),
        (
            f"{history.unit}s of a job, mean",
            f"avg_{kind}_num",
            _mean(history.size[source.sized]),
            lambda size: f"{size:.1f}",
        ),
        ("Jobs that completed", f"complete_rate_{kind}", _rate(source, ended, COMPLETED), percent),
        ("Jobs that were cancelled", f"cancel_rate_{kind}", _rate(source, ended, CANCELLED), percent),
        ("Jobs that failed otherwise", f"fail_rate_{kind}", _rate(source, ended, None), percent),
    ]
    if kind == "gpu":
        rows += [
            ("GPU hours that completed", "complete_gpu_time", _rate(source, ended, COMPLETED, hours=True), percent),
            ("GPU hours that were cancelled", "cancel_gpu_time", _rate(source, ended, CANCELLED, hours=True), percent),
            ("GPU hours that failed otherwise", "fail_gpu_time", _rate(source, ended, None, hours=True), percent),
        ]
    return HereAndThere(
        header=(history.cluster, *CLUSTERS),
        rows=tuple(
            (label, tuple("-" if value is None else write(value) for value in (own, *_others(name))))
            for label, name, own, write in rows
        ),
        values=tuple((label, own) for label, _, own, _ in rows),
        notes=(
            "Definitions of the published tables: failed is all that neither completed nor was cancelled, jobs at "
            "their time limit included. Helios is Venus, Earth, Saturn and Uranus together.",
            "Not alike: Philly's run times hold retries and the waits between them, Kalos' may hold the wait.",
            *(
                ("Jobs without GPUs of GPU clusters stand beside the jobs of this cluster, which has none with GPUs.",)
                if kind == "cpu"
                else ()
            ),
            f"Sources: {CITATION}.",
        ),
    )


def _others(name: str) -> list[float | None]:
    found: list[float | None] = []
    for cluster in CLUSTERS:
        values = summary(cluster)
        if name.endswith("_gpu_time"):
            total = sum(values[what] for what in ("complete_gpu_time", "cancel_gpu_time", "fail_gpu_time"))
            found.append(values[name] / total)
        else:
            found.append(values.get(name) or (0.0 if name.startswith("med_") and name in values else None))
    return found


def _rate(source: FigureSource, ended: Flags, state: int | None, *, hours: bool = False) -> float | None:
    """Return the share of jobs or hours with a final state.

    None is any but completed and cancelled.
    """
    history, weight = source.history, source.hours if hours else source.sized.astype(np.float64)
    in_state = history.state == state if state is not None else ~np.isin(history.state, (COMPLETED, CANCELLED))
    total = float(weight[ended].sum())
    return float(weight[ended & in_state].sum()) / total if total > 0 else None


def _mean(values: NDArray[Any]) -> float | None:
    """Return the mean of the finite values, None without any."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _whole(number: float) -> str:
    return f"{number:,.0f}"
