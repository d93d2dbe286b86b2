"""Data of the figures of a study, and their source.

Values published of other clusters stand beside for comparison. Their sources, licences and definitions:
``data/README.md``.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helios.config import Energy
from helios.metrics.blocks import Finding, mean_levels
from helios.metrics.history import (
    CANCELLED,
    COMPLETED,
    NEVER_S,
    NOT_ENDED,
    UNKNOWN,
    CensoredTimes,
    Flags,
    Floats,
    Names,
    Seconds,
    StudyHistory,
)
from helios.metrics.queue import Weights
from helios.study.capacity import Capacity
from helios.units import DAY_S, duration, percent

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
SIZES = ("<1", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", ">64")
SIZE_EDGES = (np.nextafter(1, 0), 1, 2, 4, 8, 16, 32, 64)
MOST_NAMES = 10
"""Partitions, groups and users that a figure names."""
FEWEST_PEOPLE = 5
"""Users below which a group is not named."""
FEW_PEOPLE = f"groups of fewer than {FEWEST_PEOPLE} users"
THE_REST = "all others"


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
class ClusterComparison:
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


def compare_clusters(source: FigureSource) -> ClusterComparison:
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
    return ClusterComparison(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line, or a row of bars.

    Attributes
    ----------
    x : tuple of float or str
        In the unit of the panel; moments are s since the epoch.
    y : tuple of float
        Finite: what is not known is left out of both.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]


class Axis(NamedTuple):
    """What an axis shows.

    ``kind`` is ``duration``, ``size``, ``hour``, ``date``, ``name``, ``percent``, ``ratio`` or ``number``.
    """

    kind: str
    unit: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes
    ----------
    kind : str
        ``line``, ``bars`` beside each other, ``stack`` on each other, or ``range``: quantiles of each name, a series
        for each quantile in ascending order.
    beside : sequence of Series
        Series of published clusters, where definitions agree.
    """

    kind: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    beside: Sequence[Series] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureData:
    """Data of one figure.

    Attributes
    ----------
    key : str
        Name of its files.
    title : str
        The finding, as a sentence.
    n : int
        Jobs, or users, that it rests on.
    coverage : float, optional
        Share of the jobs, or of their hours, about which enough is known; ``covered`` says of which.
    missing : str
        Why there is no figure; empty where there is one.
    """

    key: str = ""
    title: str
    definition: str = ""
    n: int = 0
    noun: str = "jobs"
    coverage: float | None = None
    covered: str = "jobs"
    panels: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str = ""

    @property
    def series(self) -> tuple[Series, ...]:
        """The site's own series of all panels."""
        return tuple(series for panel in self.panels for series in panel.series)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedLevel:
    """A level over time, such as what idles in a partition.

    Attributes
    ----------
    edges_s : int64 array of shape (n_steps + 1,)
    level : float64 array of shape (n_steps,)
        Mean in each step.
    """

    name: str
    edges_s: Seconds
    level: Floats


def series(name: str, x: ArrayLike | Sequence[str], y: ArrayLike) -> Series:
    """Return a series without the points that are not known."""
    values = np.asarray(y, dtype=np.float64)
    places = np.asarray(x)
    known = np.isfinite(values)
    return Series(name=name, x=tuple(places[known].tolist()), y=tuple(values[known].tolist()))


def quantile_series(
    names: ArrayLike | Sequence[str],
    groups: Iterable[Callable[[float], float]],
    parts: Mapping[str, float],
    label: str = "{}",
) -> list[Series]:
    """Return a series for each quantile in ``parts``.

    ``groups`` are functions that return a quantile of a group, one for each name.
    """
    quantiles = list(groups)
    return [
        series(label.format(name), names, [quantile(part) for quantile in quantiles]) for name, part in parts.items()
    ]


def divide(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Return a ratio, NaN where the whole is not above 0."""
    found: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return found


class FigureSource:
    """A history with what several figures are computed from, each computed once.

    Parameters
    ----------
    audience : str
        ``admin``, ``manager`` or ``paper``. Only the admin's figures name users.
    idle_beside : sequence of NamedLevel
        What idles in each partition while jobs that fit wait in others.
    unusable : sequence of NamedLevel
        What is free while jobs wait that do not fit, by reason.
    findings : sequence of Finding
        Of the same history; what a figure needs of them and does not get is not shown.
    energy : Energy, optional
        Draw of nodes, and prices.
    """

    def __init__(
        self,
        history: StudyHistory,
        capacity: Capacity | None = None,
        *,
        audience: str = "admin",
        idle_beside: Sequence[NamedLevel] = (),
        unusable: Sequence[NamedLevel] = (),
        findings: Sequence[Finding] = (),
        energy: Energy | None = None,
    ) -> None:
        self.history = history
        self.capacity = capacity
        self.audience = audience
        self.idle_beside = idle_beside
        self.unusable = unusable
        self.findings = {finding.question: finding for finding in findings}
        self.energy = energy or Energy()

    @cached_property
    def sized(self) -> Flags:
        """Jobs of the window that ask for the resource."""
        return self.history.sized

    @cached_property
    def n(self) -> int:
        """How many jobs of the window ask for the resource."""
        return int(self.sized.sum())

    @cached_property
    def hours(self) -> Floats:
        """Hours that each job held in the window."""
        return self.history.hours()

    @cached_property
    def never_ran(self) -> Flags:
        """Jobs that were cancelled while they waited, whatever run time is recorded."""
        history = self.history
        without_run = ~(np.nan_to_num(history.run_time_s) > 0) & (history.started_s == NEVER_S)
        found: Flags = without_run & (history.state == CANCELLED) & history.has_starts
        return found

    @cached_property
    def _run_times(self) -> tuple[Floats, Flags]:
        """Run time of each job, and whether it is over.

        That of running ones is so far. NaN where unknown.
        """
        history = self.history
        over: Flags = np.isfinite(history.run_time_s) & ~self.never_ran
        running = (history.started_s < history.end_s) & (history.ended_s == NEVER_S) & (history.state == NOT_ENDED)
        so_far_s = np.where(running, history.end_s - history.started_s, np.nan)
        return np.where(over, history.run_time_s, so_far_s), over

    def run_times(self, chosen: NDArray[Any]) -> CensoredTimes:
        """Return the run times of jobs, those of running ones so far.

        Parameters
        ----------
        chosen : array
            A flag for each job, or positions of jobs.
        """
        times_s, over = self._run_times[0][chosen], self._run_times[1][chosen]
        known = ~np.isnan(times_s)
        return CensoredTimes.from_observations(times_s[known], over[known])

    @cached_property
    def sized_by_block(self) -> list[Seconds]:
        """Jobs that ask for the resource, by block of submission."""
        blocks, jobs = self.history.blocks, np.flatnonzero(self.sized)
        number = blocks.number(self.history.submitted_s[jobs])
        jobs, number = jobs[number >= 0], number[number >= 0]
        counts = np.bincount(number, minlength=blocks.n)
        return np.split(jobs[np.argsort(number, kind="stable")], np.cumsum(counts)[:-1])

    @cached_property
    def wait_ends_s(self) -> Seconds:
        """Until when each job waited.

        At most to the window's end. -1 where not known.
        """
        return self.history.waiting_until_s

    @cached_property
    def wait_known(self) -> Flags:
        """Jobs with a known wait, over or not."""
        return (self.wait_ends_s >= 0) & (self.history.size > 0) & self.history.has_starts

    @cached_property
    def first_waits(self) -> Flags:
        """Jobs of the window whose wait counts.

        Only the first run of a requeued job counts.
        """
        found: Flags = self.sized & (self.history.restart == 0) & self.wait_known
        return found

    def waits(self, chosen: NDArray[Any] | None = None) -> CensoredTimes:
        """Return the waits of jobs for their first start.

        Who was cancelled or still waits waited at least so long.

        Parameters
        ----------
        chosen : array, optional
            A flag for each job, or positions of jobs; by default all.
        """
        history = self.history
        jobs = np.arange(len(history.size))[... if chosen is None else chosen]
        jobs = jobs[self.first_waits[jobs]]
        started = history.started_s[jobs] < NEVER_S
        until_s = np.where(started, history.started_s[jobs], self.wait_ends_s[jobs])
        return CensoredTimes.from_observations(
            np.maximum(until_s - history.eligible_s[jobs], 0).astype(np.float64), started
        )

    @cached_property
    def wait_hours(self) -> Floats:
        """Hours that each job waited in the window for its first start."""
        return self.history.waited_hours

    @cached_property
    def size_class(self) -> NDArray[np.int16]:
        """Each job's place in ``SIZES``, for jobs with the resource."""
        return np.searchsorted(SIZE_EDGES, self.history.size, side="left").astype(np.int16)

    @cached_property
    def sizes(self) -> list[int]:
        """Places in ``SIZES`` that have jobs."""
        return [int(place) for place in np.unique(self.size_class[self.sized])]

    @cached_property
    def edges_s(self) -> Seconds:
        """Edges of the steps, of 15 min or longer."""
        return self.history.step_edges_s

    @cached_property
    def step_s(self) -> Floats:
        """Length of each step."""
        return np.diff(self.edges_s).astype(np.float64)

    @cached_property
    def in_pools(self) -> Flags:
        """Jobs that ask for the resource where capacity is known.

        All of them if it is known nowhere.
        """
        flags: Flags = self.history.size > 0
        if self.capacity is None or not len(self.capacity.units):
            return flags
        return flags & (self.capacity.pools_of(self.history) >= 0)

    def held(self, chosen: Flags | None = None, edges_s: Seconds | None = None) -> Floats:
        """Return the mean units held in each step."""
        jobs = self.in_pools if chosen is None else chosen & self.in_pools
        return self.history.held(self.edges_s if edges_s is None else edges_s, jobs)

    def asked(self, *, weight: Weights | None = None, edges_s: Seconds | None = None) -> Floats:
        """Return the mean units waited for in each step."""
        history, jobs = self.history, self.wait_known & self.in_pools
        weight = history.size if weight is None else weight
        edges_s = self.edges_s if edges_s is None else edges_s
        return mean_levels(history.eligible_s[jobs], self.wait_ends_s[jobs], weight[jobs], edges_s)

    @cached_property
    def in_use(self) -> Floats:
        """Units in use in each step."""
        return self.held()

    def in_service(self, edges_s: Seconds, pools: tuple[int, ...] | None = None) -> Floats | None:
        """Return the units in service in each step, None where unknown."""
        if self.capacity is None or not len(self.capacity.units):
            return None
        found = self.capacity.in_service(edges_s, pools)
        return found if float(found.sum()) > 0 else None

    @cached_property
    def hour_of_step(self) -> NDArray[np.int64]:
        """Hour of the week of each step on the cluster's clock.

        0 is Monday from midnight on.
        """
        local = pd.to_datetime(self.edges_s[:-1], unit="s", utc=True).tz_convert(self.history.timezone)
        return (24 * local.day_of_week + local.hour).to_numpy().astype(np.int64)

    def calendar_edges(self, frequency: str) -> Seconds:
        """Return the local edges of calendar periods.

        ``MS`` stands for months. The window's own bounds are the first and the last edge.
        """
        first, end = (
            pd.Timestamp(at_s, unit="s", tz="UTC").tz_convert(self.history.timezone)
            for at_s in (self.history.first_s, self.history.end_s)
        )
        begins = pd.date_range(first.normalize(), end, freq=frequency).as_unit("s").asi8
        inside = begins[(begins > self.history.first_s) & (begins < self.history.end_s)]
        return np.concatenate([[self.history.first_s], inside, [self.history.end_s]]).astype(np.int64)

    @cached_property
    def partitions(self) -> list[tuple[str, Flags, tuple[int, ...] | None]]:
        """Partitions or pools with jobs, most hours first.

        Each with name, jobs, and places among the pools of the capacity. Those of fewer than ``FEWEST_PEOPLE`` users
        are pooled for all but the admin.
        """
        history, capacity = self.history, self.capacity
        names, pooled = history.partition, capacity is not None and len(capacity.pools) and len(capacity.pool_of)
        if pooled and capacity is not None:
            names = Names(code=capacity.pools_of(history).astype(np.int32), values=capacity.pools)
        n_pools = len(names.values)
        if self.audience != "admin" and history.user.known.any():
            names = _pool_small_groups(names, history.user)
        used = np.unique(names.code[self.sized & names.known]).tolist()
        weight = names.sum(self.hours)
        found: list[tuple[str, Flags, tuple[int, ...] | None]] = []
        for one in sorted(used, key=lambda one: -weight[one])[:MOST_NAMES]:
            jobs: Flags = names.code == one
            places: tuple[int, ...] | None = None
            if pooled and capacity is not None:
                places = (one,) if one < n_pools else tuple(np.unique(capacity.pools_of(history)[jobs]).tolist())
            found.append((names.values[one], jobs, places))
        return found

    @cached_property
    def groups(self) -> tuple[str, Names] | None:
        """Name of the grouping, and each job's group.

        None where no group is recorded. Groups of fewer than ``FEWEST_PEOPLE`` users are pooled for all but the admin.
        """
        history = self.history
        for noun, names in (("account", history.account), ("partition", history.partition)):
            if not (names.known & self.sized).any():
                continue
            if self.audience == "admin" or not history.user.known.any():
                return noun, names
            return noun, _pool_small_groups(names, history.user)
        return None

    def leading(self, names: Names, weight: Floats, *, most: int = MOST_NAMES) -> tuple[list[str], NDArray[np.int16]]:
        """Return the names with the most weight and each job's place.

        The last place is of all others.
        """
        known = names.code >= 0
        total = np.bincount(names.code[known], weights=weight[known], minlength=len(names.values))
        order = [int(place) for place in np.argsort(-total, kind="stable") if total[place] > 0][:most]
        place = np.full(len(names.values) + 1, len(order), dtype=np.int16)
        place[order] = np.arange(len(order))
        return [*(names.values[one] for one in order), THE_REST], place[names.code]


def _pool_small_groups(names: Names, user: Names) -> Names:
    """Return the groups with those of few users as one."""
    both = names.known & user.known
    pairs = np.unique(np.stack([names.code[both], user.code[both]]), axis=1)
    people = np.bincount(pairs[0], minlength=len(names.values))
    small = np.append(people < FEWEST_PEOPLE, False)
    if not small.any():
        return names
    code = np.where(small[names.code] & names.known, len(names.values), names.code).astype(np.int32)
    return Names(code=code, values=(*names.values, FEW_PEOPLE))


def listed(names: Iterable[str]) -> str:
    """Join names as in a sentence."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def days(edges_s: Seconds) -> Floats:
    """Return the length of each step in days."""
    return np.diff(edges_s) / DAY_S
