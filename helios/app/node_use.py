"""Nodes in use by minute on a live cluster, by recorded jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.controller_state import read_until
from helios.config import Settings
from helios.control.observed import observed_nodes
from helios.errors import NoSuchCluster
from helios.metrics.node_usage import BusyIntervals, busy_intervals, most_at_once, whole_seconds
from helios.metrics.spare_nodes import CHECK_S, MEMORIES_S, WEEKS, use_by_minute
from helios.model import JOBS, STEP_S, NodeForecast, NodeUse, PoolUse, Snapshot, node_pools
from helios.model.nodes import expand
from helios.units import DAY_S
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.node_forecast import NodeForecasts

PLACED_AT_LEAST = 0.95
"""Share of the ended jobs whose nodes must be known. A node whose jobs are missing looks idle, and would sleep."""
HOLE_S = 6 * 3_600
"""Time without any job, waiting or running, from which the record counts as missing, unless it was read live, s."""
LONGEST_JOB_S = 28 * DAY_S
"""Time before the record within whose submissions jobs that ran in it are looked for, s."""
RECENT_S = max(MEMORIES_S)
"""Least time until now of which the use is counted by minute, s; it begins at the last midnight."""
JOB_COLUMNS = ["submitted_at", "started_at", "ended_at", "node_list"]


class NodeUseRecord:
    """Source of the use of nodes for snapshots.

    The weeks before the last midnight (in the time zone of the cluster's history, else UTC) are read and counted once a
    day, and what ended lately after each reading of the accounting. Nothing else is kept, so that a restart changes
    nothing.

    Parameters
    ----------
    cluster : str
        Its name in the warehouse.
    settings : Settings
        The configuration in force.

    Attributes
    ----------
    why_not : str
        Why the use is not known, and what to do, for a person; empty: it is known.
    """

    def __init__(self, cluster: str, settings: Settings) -> None:
        self._cluster, self._settings = cluster, settings
        self._read_as: object = None
        self._recent = JOBS.empty()[JOB_COLUMNS]
        self._counted_as: object = None
        self._past: dict[str, PoolUse] = {}
        self._past_ended_s: int | None = None
        self._submissions: dict[str, int] = {}
        self._zone = ZoneInfo("UTC")
        self._forecast: NodeForecast | None = None
        self._forecasts: NodeForecasts | None = None
        self.why_not = ""

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return ``snapshot`` with ``use``.

        ``use`` is None where too few jobs say on which nodes they ran; see ``why_not``.

        Raises
        ------
        WarehouseUnavailable
            The history cannot be read.
        """
        now_s = int(snapshot.taken_at.timestamp())
        places = _Places.of(snapshot)
        running = JOBS.conform(snapshot.running[["submitted_at", "started_at", "node_list"]])
        with Warehouse.open(self._settings.database.url) as warehouse:
            self._read(warehouse, snapshot.taken_at, places, running)
        if self.why_not:
            return replace(snapshot, use=None)
        since_s = now_s - RECENT_S if self._past_ended_s is None else min(self._past_ended_s, now_s - RECENT_S)
        use = NodeUse(
            ended_s=now_s,
            recent=_use_since(since_s, _joined(self._recent, running), snapshot, places, now_s),
            past=self._past,
            energy=self._settings.energy.model_dump(exclude_unset=True),
            submissions=self._submissions,
        )
        return replace(snapshot, use=use, forecast=self._forecast_of(use))

    def _forecast_of(self, use: NodeUse) -> NodeForecast | None:
        """Return this step's forecast, read only by the paper's rule."""
        if all(options.get("rule") != "published" for options in self._settings.services.values()):
            return None
        from helios.app.node_forecast import NodeForecasts  # noqa: PLC0415 - LightGBM is needed by this rule alone

        if self._forecasts is None:
            self._forecasts = NodeForecasts(self._zone)
        if self._forecast is None or self._forecast.ended_s != use.ended_s // STEP_S * STEP_S:
            today = slice(-((use.ended_s - (self._past_ended_s or 0)) // CHECK_S), None)
            known = {
                pool: np.concatenate([self._past[pool].most, most[today]]) if pool in self._past else most
                for pool, most in use.recent.items()
            }
            self._forecast = self._forecasts(known, ended_s=use.ended_s)
        return self._forecast

    def _read(self, warehouse: Warehouse, now: datetime, places: _Places, running: pd.DataFrame) -> None:
        """Read and count what has changed since the last call."""
        try:
            edition, zone = warehouse.edition(self._cluster), warehouse.timezone(self._cluster) or "UTC"
        except NoSuchCluster:
            self._past, self._recent, self.why_not = {}, JOBS.empty()[JOB_COLUMNS], ""
            return
        # The last hours of a day are known once the accounting was read past its end.
        known_until = min(now, read_until(warehouse, self._cluster) or now)
        self._zone = ZoneInfo(zone)
        midnight = known_until.astimezone(self._zone).replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
        is_new = edition != self._read_as
        if self._counted_as != (midnight, places.pool_of) or (is_new and self.why_not):
            since = midnight - timedelta(weeks=WEEKS)
            jobs = self._ended_since(warehouse, since, until=midnight)
            self.why_not = _why_no_nodes(jobs)
            covered = warehouse.coverage(self._cluster)
            begin_s, end_s = int(since.timestamp()), int(midnight.timestamp())
            self._past = past_use(_joined(jobs, running), places, covered, begin_s=begin_s, end_s=end_s)
            self._counted_as, self._past_ended_s, is_new = (midnight, places.pool_of), end_s, True
        if is_new:
            self._recent = self._ended_since(warehouse, min(midnight, now - timedelta(seconds=RECENT_S)))
            week = warehouse.jobs(self._cluster, since=now - timedelta(days=7), columns=JOB_COLUMNS)
            minute = whole_seconds(week["submitted_at"], otherwise=0) // CHECK_S
            pool = places.of_jobs(week["node_list"])
            self._submissions = {
                name: len(np.unique(minute[pool == number])) for number, name in enumerate(places.pools)
            }
            self._read_as = edition

    def _ended_since(self, warehouse: Warehouse, since: datetime, *, until: datetime | None = None) -> pd.DataFrame:
        """Return jobs that ended since a time, submitted not long before."""
        first = since - timedelta(seconds=LONGEST_JOB_S)
        jobs = warehouse.jobs(self._cluster, since=first, until=until, columns=JOB_COLUMNS, unended_at=since)
        return jobs[jobs["ended_at"].notna() & jobs["started_at"].notna()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Pool of each node, and the nodes on which jobs may start.

    ``pool_of`` has pairs of names; ``serving`` is a part of its nodes.
    """

    pool_of: tuple[tuple[str, str], ...]
    serving: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Places:
        names, nodes = snapshot.nodes["name"].tolist(), observed_nodes(snapshot)
        serving = (name for name, node in nodes.items() if node.in_service and "RESERVED" not in node.flags)
        return cls(
            pool_of=tuple(zip(names, node_pools(snapshot.nodes).tolist(), strict=True)), serving=frozenset(serving)
        )

    @property
    def pools(self) -> list[str]:
        return sorted({pool for _, pool in self.pool_of})

    def groups(self, names: tuple[str, ...], *, only_serving: bool = False) -> NDArray[np.int64]:
        """Return the position of each node's pool, -1 for none."""
        number = {pool: position for position, pool in enumerate(self.pools)}
        group = {name: number[pool] for name, pool in self.pool_of if not only_serving or name in self.serving}
        return np.array([group.get(name, -1) for name in names], dtype=np.int64)

    def of_jobs(self, node_lists: pd.Series[Any]) -> NDArray[np.int64]:
        """Return the pool of each job's first node, -1 for none."""
        lists = node_lists.astype("category")
        first = tuple(next(iter(expand(str(text))), "") for text in lists.cat.categories)
        return np.append(self.groups(first), -1)[lists.cat.codes.to_numpy()]


def past_use(
    jobs: pd.DataFrame, places: _Places, covered: pd.DataFrame, *, begin_s: int, end_s: int
) -> dict[str, PoolUse]:
    """Count the nodes in use by pool and minute.

    A job counts as submitted to the pool of its first node. A node that is out of service now counts too, so that what
    is chosen does not depend on when.

    Parameters
    ----------
    jobs : DataFrame
        Jobs that ran. Those without an end still do.
    covered : DataFrame
        Columns of ``COVERAGE``: what was read live.
    begin_s, end_s : int
        The record begins with the first job, where that is later than ``begin_s``.
    """
    if jobs.empty:
        return {}
    submitted_s = whole_seconds(jobs["submitted_at"], otherwise=end_s)
    ended_s = whole_seconds(jobs["ended_at"], otherwise=end_s)
    begin_s = max(begin_s, int(submitted_s.min()) // CHECK_S * CHECK_S)
    has_holes = _has_holes(submitted_s, ended_s, covered, begin_s=begin_s, end_s=end_s)
    held = busy_intervals(jobs, until_s=end_s).merged()
    group, sizes = places.groups(held.names), pd.Series([pool for _, pool in places.pool_of]).value_counts()
    group_of_job = places.of_jobs(jobs["node_list"])
    uses = {}
    for number, pool in enumerate(places.pools):
        at_s, in_use = _changes(held, group[held.node] == number)
        uses[pool] = use_by_minute(
            at_s,
            in_use,
            nodes=int(sizes[pool]),
            begin_s=begin_s,
            end_s=end_s,
            submitted_s=submitted_s[group_of_job == number],
            has_holes=has_holes,
        )
    return uses


def _changes(held: BusyIntervals, members: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when the nodes in use change, and their number from then."""
    at_s = np.concatenate([held.start_s[members], held.end_s[members]])
    change = np.repeat(np.array([1, -1], dtype=np.int64), int(members.sum()))
    moments, position = np.unique(at_s, return_inverse=True)
    return moments, np.cumsum(np.bincount(position, weights=change, minlength=len(moments))).astype(np.int64)


def _use_since(
    first_s: int, jobs: pd.DataFrame, snapshot: Snapshot, places: _Places, now_s: int
) -> dict[str, NDArray[np.int64]]:
    """Return the most nodes in use in each minute until now, by pool.

    When the last job left an idle node is known also where the accounting was not read since.
    """
    left = snapshot.nodes.loc[snapshot.nodes["idle_since"].notna(), ["name", "idle_since"]]
    left_s = whole_seconds(left["idle_since"], otherwise=now_s)
    ran = busy_intervals(jobs, until_s=now_s)
    number = {name: position for position, name in enumerate(dict.fromkeys([*ran.names, *left["name"]]))}
    held = BusyIntervals(
        names=tuple(number),
        node=np.concatenate([ran.node, np.array([number[name] for name in left["name"]], dtype=np.int64)]),
        start_s=np.concatenate([ran.start_s, left_s - 1]),
        end_s=np.concatenate([ran.end_s, left_s]),
    ).merged()
    most = most_at_once(
        held,
        group=places.groups(held.names, only_serving=True),
        n_groups=len(places.pools),
        first_s=first_s,
        step_s=CHECK_S,
        n_steps=(now_s - first_s) // CHECK_S,
    )
    return dict(zip(places.pools, most.astype(np.int64), strict=True))


def _has_holes(
    submitted_s: NDArray[np.int64], ended_s: NDArray[np.int64], covered: pd.DataFrame, *, begin_s: int, end_s: int
) -> bool:
    """Return whether the record has holes.

    For long no job is known there, and the time was not read live.
    """
    read = covered[covered["source"] == "jobs"]
    starts = np.concatenate([submitted_s, whole_seconds(read["started_at"], otherwise=end_s), [end_s]])
    ends = np.concatenate([ended_s, whole_seconds(read["ended_at"], otherwise=end_s), [end_s]])
    order = np.argsort(starts, kind="stable")
    known_until_s = np.maximum.accumulate(np.append(begin_s, ends[order]))[:-1]
    return bool((np.minimum(starts[order], end_s) - known_until_s >= HOLE_S).any())


def _joined(ended: pd.DataFrame, running: pd.DataFrame) -> pd.DataFrame:
    jobs = pd.concat([ended[JOB_COLUMNS], running[JOB_COLUMNS]], ignore_index=True)
    return jobs.astype({"node_list": "category"})


def _why_no_nodes(ran: pd.DataFrame) -> str:
    """Return why jobs do not say which nodes were in use.

    Empty: they do, or no job has ended.
    """
    placed = int(ran["node_list"].notna().sum())
    if placed >= PLACED_AT_LEAST * len(ran):
        return ""
    return (
        f"of {len(ran):,} ended jobs only {placed:,} say on which nodes they ran. Load the history again with Slurm's "
        "NodeList (sacct --format=...,NodeList; helios trace load), or have Helios read it: helios trace sync"
    )
