"""Busy intervals of nodes and their energy.

Busy intervals are computed from jobs with their nodes. All times are int64 seconds since the epoch; an interval holds
its start and not its end.

Energy follows a stated linear model. The same functions serve real, simulated and imagined node hours. A node awake
draws ``node_idle_w``, and each GPU or CPU that a job holds adds to it; a node asleep draws ``node_sleep_w``, one on the
way ``boot_w``; the building draws ``cooling_factor`` times all of it. More cannot be known from states alone; a site
that has measured its nodes writes its own figures in the configuration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.config import Energy
from helios.model import JOBS, JobState
from helios.model.nodes import expand_valid

Seconds = NDArray[np.int64]

J_PER_KWH = 3.6e6
NEVER_S = 2**60
"""A time after all others, s: what has not happened, or at an unknown time."""
ACTIVE_STATES = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.RESIZING})
"""States of jobs that have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BusyIntervals:
    """Intervals in which nodes held jobs.

    Arrays of shape (n_intervals,).

    Attributes
    ----------
    names : tuple of str
        Node names.
    node : int64 array
        Position in ``names``.
    start_s, end_s : int64 arrays
    """

    names: tuple[str, ...]
    node: NDArray[np.int64]
    start_s: Seconds
    end_s: Seconds

    def merged(self) -> BusyIntervals:
        """Merge overlapping intervals of each node.

        The result is disjoint, and ordered by node and start.
        """
        if not len(self.node):
            return self
        order = np.lexsort((self.start_s, self.node))
        node, start_s, end_s = self.node[order], self.start_s[order], self.end_s[order]
        # Each node gets its own range of one common axis, so that a running maximum of ends never crosses from one
        # node to the next.
        origin_s = int(start_s.min())
        range_s = int(end_s.max()) - origin_s + 1
        shifted_start, shifted_end = start_s - origin_s + node * range_s, end_s - origin_s + node * range_s
        latest_end = np.maximum.accumulate(shifted_end)
        is_first = np.concatenate([[True], shifted_start[1:] > latest_end[:-1]])
        begins = np.flatnonzero(is_first)
        last = np.concatenate([begins[1:], [len(node)]]) - 1
        ends_s = latest_end[last] - node[begins] * range_s + origin_s
        return BusyIntervals(names=self.names, node=node[begins], start_s=start_s[begins], end_s=ends_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodesOfJobs:
    """Nodes of jobs, one entry for each node of a job.

    Attributes
    ----------
    names : tuple of str
        Node names, sorted.
    count : int64 array of shape (n_jobs,)
        Nodes of each job, 0 where they are unknown.
    job, node : int64 arrays of shape (n_entries,)
        Position of the job, and of the node in ``names``.
    """

    names: tuple[str, ...]
    count: NDArray[np.int64]
    job: NDArray[np.int64]
    node: NDArray[np.int64]

    @classmethod
    def of(cls, lists: pd.Series[Any], *, ran: NDArray[np.bool_] | None = None) -> NodesOfJobs:
        """Return the nodes of lists.

        Parameters
        ----------
        lists : Series of shape (n_jobs,)
            Categories. An invalid list counts as unknown.
        ran : bool array of shape (n_jobs,), optional
            The nodes of other jobs are left out.
        """
        expanded = [expand_valid(str(text)) for text in lists.cat.categories]
        names = tuple(sorted({name for members in expanded for name in members}))
        number = {name: position for position, name in enumerate(names)}
        # The code of a missing list is -1, which selects the last size.
        sizes = np.array([*(len(members) for members in expanded), 0], dtype=np.int64)
        members = np.array([number[name] for one in expanded for name in one], dtype=np.int64)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        codes = lists.cat.codes.to_numpy().astype(np.int64)
        count = sizes[codes] if ran is None else np.where(ran, sizes[codes], 0)
        job = np.repeat(np.arange(len(count)), count)
        within = np.arange(len(job)) - np.repeat(np.cumsum(count) - count, count)
        return cls(names=names, count=count, job=job, node=members[first[codes[job]] + within])


def busy_intervals(jobs: pd.DataFrame, *, until_s: int) -> BusyIntervals:
    """Return where and when jobs ran.

    There is an interval for each node of each job. Jobs that never ran are left out.

    Parameters
    ----------
    jobs : DataFrame
        Columns ``started_at``, ``ended_at`` and ``node_list`` as in ``JOBS``. A job without an end runs until
        ``until_s``. An invalid node list counts as empty.
    until_s : int
        Intervals are cut there.
    """
    JOBS.check(jobs, columns=["started_at", "ended_at", "node_list"])
    started_s, ended_s = (whole_seconds(jobs[name], otherwise=until_s) for name in ("started_at", "ended_at"))
    ended_s = np.minimum(ended_s, until_s)
    held = NodesOfJobs.of(jobs["node_list"].astype("category"), ran=started_s < ended_s)
    return BusyIntervals(names=held.names, node=held.node, start_s=started_s[held.job], end_s=ended_s[held.job])


def most_at_once(
    intervals: BusyIntervals, *, group: NDArray[np.int64], n_groups: int, first_s: int, step_s: int, n_steps: int
) -> NDArray[np.float64]:
    """Return the most simultaneous intervals, in each step and group.

    Parameters
    ----------
    intervals : BusyIntervals
        To count nodes they must be disjoint on each node, as :meth:`BusyIntervals.merged` returns them.
    group : int64 array of shape (len(intervals.names),)
        Group of each node. -1 for none.
    first_s, step_s, n_steps : int
        Steps of equal length from ``first_s`` on.

    Returns
    -------
    float64 array of shape (n_groups, n_steps)
    """
    most = np.zeros((n_groups, n_steps))
    group_of_interval = group[intervals.node] if len(intervals.node) else np.zeros(0, dtype=np.int64)
    for number in range(n_groups):
        in_group = (group_of_interval == number) & (intervals.end_s > first_s)
        start_s, end_s = intervals.start_s[in_group], intervals.end_s[in_group]
        size = np.ones(len(start_s))
        most[number] = most_held(start_s, end_s, size, first_s=first_s, step_s=step_s, n_steps=n_steps)
    return most


def most_held(
    start_s: Seconds, end_s: Seconds, size: NDArray[np.float64], *, first_s: int, step_s: int, n_steps: int
) -> NDArray[np.float64]:
    """Return the peak of simultaneous holdings in each step.

    Parameters
    ----------
    start_s, end_s : int64 arrays of shape (n,)
        From when to when something is held.
    size : float64 array of shape (n,)
        How much of it.
    first_s, step_s, n_steps : int
        As for :func:`most_at_once`.
    """
    at_s, change = np.concatenate([start_s, end_s]), np.concatenate([size, -size])
    order = np.argsort(at_s, kind="stable")
    moments, last = np.unique(at_s[order], return_index=True)
    held = np.add.accumulate(np.add.reduceat(change[order], last)) if len(moments) else np.zeros(0)
    edges = first_s + step_s * np.arange(n_steps, dtype=np.int64)
    before = np.searchsorted(moments, edges, side="right") - 1
    most = np.where(before >= 0, held[before] if len(held) else 0.0, 0.0)
    within = (moments >= first_s) & (moments < first_s + step_s * n_steps)
    np.maximum.at(most, (moments[within] - first_s) // step_s, held[within])
    return np.maximum(most, 0.0)


def whole_seconds(times: pd.Series[Any], *, otherwise: int) -> Seconds:
    """Return times as s since the epoch, rounded down.

    A missing time becomes ``otherwise``.
    """
    seconds = times.astype("int64").to_numpy() // 1_000_000
    return np.where(times.isna().to_numpy(), otherwise, seconds)


def held_times(jobs: pd.DataFrame) -> tuple[Seconds, Seconds]:
    """Return when jobs began and ended to hold resources, s.

    ``NEVER_S`` stands for what did not happen. A job in a final state whose end is unknown is taken to have held
    nothing, else it would hold its nodes for ever.

    Parameters
    ----------
    jobs : DataFrame
        Columns ``started_at``, ``ended_at``, ``run_time_s`` and ``state`` as in ``JOBS``.
    """
    started_s, ended_s = (whole_seconds(jobs[name], otherwise=NEVER_S) for name in ("started_at", "ended_at"))
    run_s = jobs["run_time_s"].to_numpy(dtype=np.float64)
    open_ended = (started_s < NEVER_S) & (ended_s == NEVER_S)
    final = (jobs["state"].notna() & ~jobs["state"].isin(list(ACTIVE_STATES))).to_numpy()
    derived = open_ended & (np.isfinite(run_s) | final)
    ended_s[derived] = started_s[derived] + np.maximum(np.nan_to_num(run_s[derived]), 0).astype(np.int64)
    return started_s, ended_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeconds:
    """How long nodes were in each state, summed over nodes, s.

    Attributes
    ----------
    busy, idle : float
        Awake, with a job and without.
    asleep, falling_asleep, waking : float
        Not able to run a job at once.
    gpus_busy, cpus_busy : float
        GPUs and CPUs held by jobs, times the time they were, s.
    """

    busy: float = 0.0
    idle: float = 0.0
    asleep: float = 0.0
    falling_asleep: float = 0.0
    waking: float = 0.0
    gpus_busy: float = 0.0
    cpus_busy: float = 0.0

    def __add__(self, other: NodeSeconds) -> NodeSeconds:
        return NodeSeconds(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(NodeSeconds)}
        )

    def __sub__(self, other: NodeSeconds) -> NodeSeconds:
        return NodeSeconds(
            **{field.name: getattr(self, field.name) - getattr(other, field.name) for field in fields(NodeSeconds)}
        )

    @property
    def powered(self) -> float:
        """Node seconds that were not spent asleep."""
        return self.busy + self.idle + self.falling_asleep + self.waking

    @property
    def utilization(self) -> float:
        """Busy node seconds over powered ones, the node utilisation of CES.

        NaN where none was powered.
        """
        return self.busy / self.powered if self.powered else float("nan")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def energy_kwh(seconds: NodeSeconds, model: Energy) -> float:
    """Return the energy of the building for node seconds, kWh."""
    awake_j = (seconds.busy + seconds.idle) * model.node_idle_w
    load_j = seconds.gpus_busy * model.gpu_busy_w + seconds.cpus_busy * model.cpu_busy_w
    rest_j = seconds.asleep * model.node_sleep_w + (seconds.falling_asleep + seconds.waking) * model.boot_w
    return (awake_j + load_j + rest_j) * model.cooling_factor / J_PER_KWH


def payback_s(model: Energy) -> float:
    """Return the shortest sleep of a node that saves energy, s.

    It is compared with a node that stays awake. The result is inf where no sleep saves energy.
    """
    saved_w = model.node_idle_w - model.node_sleep_w
    extra_j = (model.boot_s + model.shutdown_s) * max(model.boot_w - model.node_idle_w, 0.0)
    return extra_j / saved_w if saved_w > 0 else float("inf")
