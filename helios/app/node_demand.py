"""Demand for nodes of a live cluster, observed and forecast."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Thread
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.config import Settings
from helios.control.observed import observed_nodes
from helios.errors import NoSuchCluster
from helios.metrics.node_usage import busy_intervals, most_at_once
from helios.model import JOBS, NODE_STATES, STEP_S, Demand, Snapshot, node_pools
from helios.predict.demand.features import state_of_jobs
from helios.predict.demand.forecaster import DemandForecaster, walk_forward
from helios.predict.demand.types import Calendar, DemandJobState, Forecasts, assemble, parse_holidays
from helios.warehouse import Warehouse

DAY = 86_400 // STEP_S
"""Steps of a day."""
WEEKS_LOOKED_BACK = 8
"""Weeks of past forecasts that services see; CES chooses its rule on them."""
REFIT_S = 7 * 86_400
"""Time between refits along those weeks, s; the time that a start takes depends on it."""
PLACED_AT_LEAST = 0.95
"""Share of the ended jobs whose nodes must be known. A node whose jobs are missing looks idle, and would sleep."""

_SUSPENDED_LEARNING = (
    "the forecasters still learn from the history, which takes minutes after a start; the next cycles have it"
)
_NO_NODES = "no node of the cluster is in service"


class NodeDemand:
    """Adds the demand for nodes to snapshots.

    The forecasters are trained once a day, and forecast once a step.

    Parameters
    ----------
    cluster : str
        Its name in the warehouse.
    settings : Settings
        The configuration in force.
    synchronous : bool
        Whether the first call waits until the forecasters are trained, which takes seconds to minutes. Otherwise they
        are trained in a thread, and until then there is no forecast, so that no node is put to sleep.

    Attributes
    ----------
    why_not : str
        Why there is no forecast, and what to do, for a person; empty: there is one.
    """

    def __init__(self, cluster: str, settings: Settings, *, synchronous: bool = True) -> None:
        self._cluster, self._settings = cluster, settings
        self._learned: dict[str, _Learned] = {}
        self._learned_s: int | None = None
        self._demand: Demand | None = None
        self._looked_s: int | None = None
        self._synchronous = synchronous
        self.why_not = ""
        self._learning: Future[dict[str, _Learned]] | None = None

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Return ``snapshot`` with ``demand``.

        ``demand`` is None as long as there is no forecast; see ``why_not``.

        Raises
        ------
        WarehouseUnavailable
            The history cannot be read.
        """
        ended_s = int(snapshot.taken_at.timestamp()) // STEP_S * STEP_S
        if self._looked_s != ended_s or (self._demand is None and self._learning is not None and self._learning.done()):
            self._demand = self._forecast(snapshot, ended_s)
            self._looked_s = ended_s
        return replace(snapshot, demand=self._demand)

    def _forecast(self, snapshot: Snapshot, ended_s: int) -> Demand | None:
        history, zone = self._history(snapshot)
        self.why_not = _why_no_nodes(history)
        if self.why_not:
            return None
        demand = busy_by_pool(history, snapshot, ended_s=ended_s)
        calendar = Calendar(zone=zone, holidays=parse_holidays(self._settings.demand.holidays))
        self._learn(demand, calendar)
        forecasts = {}
        for at, pool in enumerate(demand.pools):
            if pool in self._learned:
                self._learned[pool] = learned = self._learned[pool].followed(demand, at)
                forecasts[pool] = (demand.busy[at], demand.total[at], learned.forecasts)
        if not forecasts:
            self.why_not = _SUSPENDED_LEARNING if self._learning is not None else _NO_NODES
        return assemble(forecasts, ended_s=ended_s) if forecasts else None

    def _learn(self, demand: ObservedDemand, calendar: Calendar) -> None:
        """Retrain the forecasters where they are missing or a day old.

        The result of a training that has ended in the thread is taken over first.
        """
        if self._learning is not None and self._learning.done():
            learning, self._learning = self._learning, None
            self._learned = learning.result()
        new_pools = any(pool not in self._learned for pool in demand.pools)
        old = self._learned_s is None or demand.ended_s - self._learned_s >= DAY * STEP_S
        if self._learning is not None or not (old or new_pools):
            return
        self._learned_s = demand.ended_s
        if self._synchronous:
            self._learned = _learned(demand, calendar)
        else:
            self._learning = _in_thread(lambda: _learned(demand, calendar))

    def _history(self, snapshot: Snapshot) -> tuple[pd.DataFrame, ZoneInfo]:
        since = snapshot.taken_at - timedelta(days=self._settings.demand.history_days)
        with Warehouse.open(self._settings.database.url) as warehouse:
            try:
                jobs = warehouse.jobs(self._cluster, since=since)
                return jobs, ZoneInfo(warehouse.timezone(self._cluster) or "UTC")
            except NoSuchCluster:
                return JOBS.empty(), ZoneInfo("UTC")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Learned:
    """Forecaster of a pool and its forecasts so far.

    There is one forecast for each step up to ``forecast_until_s``.
    """

    forecaster: DemandForecaster
    forecasts: Forecasts
    forecast_until_s: int

    def followed(self, demand: ObservedDemand, at: int) -> _Learned:
        """Return it with the forecast of now added.

        Steps that were missed have NaN.
        """
        if self.forecast_until_s >= demand.ended_s:
            return self
        now = self.forecaster.forecast(
            demand.busy[at], demand.total[at], start_s=demand.first_s, state=demand.states[at]
        )
        missed = (demand.ended_s - self.forecast_until_s) // STEP_S - 1

        def joined(name: str) -> NDArray[np.float64]:
            before, last = getattr(self.forecasts, name), getattr(now, name)[-1:]
            return np.concatenate([before, np.full((missed, *last.shape[1:]), np.nan), last])

        forecasts = replace(now, point=joined("point"), mean=joined("mean"), most=joined("most"))
        return replace(self, forecasts=forecasts, forecast_until_s=demand.ended_s)


def _why_no_nodes(history: pd.DataFrame) -> str:
    """Return why the history does not say which nodes were busy.

    Empty: it does, or no job has ended.
    """
    ran = history[history["ended_at"].notna() & history["started_at"].notna()]
    placed = int(ran["node_list"].notna().sum())
    if placed >= PLACED_AT_LEAST * len(ran):
        return ""
    return (
        f"of {len(ran):,} ended jobs only {placed:,} say on which nodes they ran. Load the history again with Slurm's "
        "NodeList (sacct --format=...,NodeList; helios trace load), or have Helios read it: helios trace sync"
    )


def _in_thread(learns: Callable[[], dict[str, _Learned]]) -> Future[dict[str, _Learned]]:
    """Train in a daemon thread and return the future result.

    The end of the process does not wait for this thread, as it would for that of an executor.
    """
    learning: Future[dict[str, _Learned]] = Future()

    def work() -> None:
        try:
            learning.set_result(learns())
        except BaseException as defect:  # raised again by the future's result()
            learning.set_exception(defect)

    Thread(target=work, name="node-demand", daemon=True).start()
    return learning


def _learned(demand: ObservedDemand, calendar: Calendar) -> dict[str, _Learned]:
    """Fit forecasters and forecast the last weeks."""
    learned = {}
    n_steps = demand.busy.shape[1]
    for pool, busy, total, state in zip(demand.pools, demand.busy, demand.total, demand.states, strict=True):
        forecasts = walk_forward(
            busy,
            total,
            start_s=demand.first_s,
            from_step=max(n_steps - WEEKS_LOOKED_BACK * 7 * DAY, 0),
            until_step=n_steps,
            calendar=calendar,
            state=state,
            refit_every_s=REFIT_S,
        )
        forecaster = DemandForecaster.fit(busy, total, start_s=demand.first_s, calendar=calendar, state=state)
        learned[pool] = _Learned(forecaster=forecaster, forecasts=forecasts, forecast_until_s=demand.ended_s)
    return learned


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedDemand:
    """Busy nodes of a cluster's pools in each step.

    Attributes
    ----------
    pools : tuple of str
        Those with nodes in service.
    first_s, ended_s : int
        Begin of the first step, end of the last, s since the epoch.
    busy, total : float64 arrays of shape (n_pools, n_steps)
        Most nodes with a job at once in each step; nodes in service, as there are now.
    states : tuple of DemandJobState
        State of the jobs of each pool at the end of each step.
    """

    pools: tuple[str, ...]
    first_s: int
    ended_s: int
    busy: NDArray[np.float64]
    total: NDArray[np.float64]
    states: tuple[DemandJobState, ...]


def busy_by_pool(history: pd.DataFrame, snapshot: Snapshot, *, ended_s: int) -> ObservedDemand:
    """Count the busy nodes of each pool in each step.

    Parameters
    ----------
    history : DataFrame
        Columns of ``JOBS``. Only ended jobs are taken from it; running jobs are taken from the snapshot.
    ended_s : int
        End of the last step to count.
    """
    nodes = NODE_STATES.check(snapshot.nodes)
    demand = observed_nodes(snapshot)
    in_service = nodes[np.array([demand[name].in_service for name in nodes["name"]], dtype=np.bool_)]
    pool_of = node_pools(in_service)
    names = tuple(sorted(set(pool_of)))
    columns = ["job_id", "user", "name", "partition", "submitted_at", "started_at", "time_limit_s", "nodes", "gpus"]
    columns.append("node_list")
    ended = history.loc[history["ended_at"].notna() & history["started_at"].notna(), [*columns, "ended_at"]]
    frames = [ended, *(JOBS.conform(frame[columns]) for frame in (snapshot.running, snapshot.pending))]
    jobs = JOBS.conform(pd.concat([frame[[*columns, "ended_at"]] for frame in frames], ignore_index=True))
    held = busy_intervals(jobs, until_s=ended_s).merged()
    first_s = int(held.start_s.min(initial=ended_s - STEP_S)) // STEP_S * STEP_S
    n_steps = max((ended_s - first_s) // STEP_S, 1)
    number = dict(zip(in_service["name"], (names.index(pool) for pool in pool_of), strict=True))
    group = np.array([number.get(name, -1) for name in held.names], dtype=np.int64)
    sizes = np.array([float((pool_of == name).sum()) for name in names])
    busy = most_at_once(held, group=group, n_groups=len(names), first_s=first_s, step_s=STEP_S, n_steps=n_steps)
    total = np.repeat(sizes[:, None], n_steps, axis=1)
    steps_s = first_s + STEP_S * np.arange(1, n_steps + 1, dtype=np.int64)
    return ObservedDemand(
        pools=names,
        first_s=first_s,
        ended_s=ended_s,
        busy=np.minimum(busy, total),
        total=total,
        states=tuple(_state(jobs, in_service[pool_of == name], steps_s) for name in names),
    )


def _state(jobs: pd.DataFrame, nodes: pd.DataFrame, steps_s: NDArray[np.int64]) -> DemandJobState:
    """Return the state of a pool's jobs at each step."""
    partitions = set(str(nodes["partitions"].iloc[0]).split(","))
    shared = [bool(partitions & set(str(one).split(","))) for one in jobs["partition"].astype(object)]
    pool_jobs = jobs[np.array(shared, dtype=np.bool_)]
    gpus = max(float(nodes["gpus"].max()), 1.0)
    of_gpus = np.where(pool_jobs["gpus"] > 0, pool_jobs["gpus"] / gpus, pool_jobs["nodes"].fillna(1.0))
    limit_s = pool_jobs["time_limit_s"].to_numpy()
    return state_of_jobs(
        pool_jobs,
        nodes=np.asarray(of_gpus, dtype=np.float64),
        # The limit says which jobs end alike, and better than a prediction: on KTH-SP2 what ends within 3 h is off by
        # 8.8 nodes with limits and by 13.8 with shrinkage's medians; on SDSC-BLUE by 123 and 159 CPUs. Predictions of
        # running jobs beside the limits of ended ones are worse still: the hazard of one is not that of the other.
        predicted_s=np.where(np.isfinite(limit_s), limit_s, np.nan),
        ends_of_steps_s=steps_s,
    )
