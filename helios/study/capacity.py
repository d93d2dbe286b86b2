"""GPUs or CPUs in service, and the nodes that jobs held.

Nodes are in service unless an event says that they are down, drained or in maintenance. A node that is powered down to
save energy is in service, because Slurm wakes it for a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.blocks import local_edges, mean_levels
from helios.metrics.capacity import LEAST_AT_ONCE, LEAST_PLACED, WHOLE, connected, units_of_nodes
from helios.metrics.history import MISSING, NEVER_S, Flags, StudyHistory
from helios.metrics.node_usage import BusyIntervals, NodesOfJobs, whole_seconds
from helios.metrics.queue import Weights
from helios.units import count_in_words

OUT_OF_SERVICE = frozenset(
    {
        *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "MAINT", "UNKNOWN", "FUTURE"),
        *("REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "NOT_RESPONDING", "INVALID", "INVALID_REG", "PERFCTRS"),
    }
)
"""Words of a Slurm node state (slurm.h ``enum node_states`` and flags) in which a node takes no jobs."""
POOL_NAMES = frozenset({"all", "*"})
NO_PARTITION = "no partition"
ROLLING_DAYS = 28
"""Days over which the most in use stands for the capacity, half before and half after a day."""
LEAST_EXCESS = 0.005
"""Share of the capacity by which use has to exceed it on a day to be told."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldNodes:
    """Nodes of the jobs of a history.

    Attributes
    ----------
    of_jobs : NodesOfJobs
        Of those that ran.
    coverage : float
        Share of the hours held by jobs whose nodes are known.
    """

    of_jobs: NodesOfJobs
    coverage: float

    @property
    def names(self) -> tuple[str, ...]:
        """Node names."""
        return self.of_jobs.names

    @property
    def job(self) -> NDArray[np.int64]:
        """Position of the job in the history, for each node of a job."""
        return self.of_jobs.job

    @property
    def node(self) -> NDArray[np.int64]:
        """Position of the node in ``names``, for each node of a job."""
        return self.of_jobs.node

    @property
    def share(self) -> NDArray[np.float64]:
        """Part of a job on each of its nodes.

        Its resources are assumed to be spread evenly.
        """
        return 1.0 / self.of_jobs.count[self.job]

    def intervals(self, history: StudyHistory) -> BusyIntervals:
        """Return when the nodes held jobs, cut at the window."""
        begins_s = np.maximum(history.started_s[self.job], history.first_s)
        ends_s = np.minimum(history.ended_s[self.job], history.end_s)
        some = ends_s > begins_s
        return BusyIntervals(names=self.names, node=self.node[some], start_s=begins_s[some], end_s=ends_s[some])


def find_placement(history: StudyHistory) -> HeldNodes | None:
    """Return the nodes of the jobs that ran.

    None where too few of them are known. An invalid list counts as unknown.
    """
    lists = history.jobs["node_list"]
    ran = history.started_s < NEVER_S
    if not history.has_starts or not (ran & lists.notna().to_numpy()).any():
        return None
    of_jobs = NodesOfJobs.of(lists, ran=ran)
    hours = history.hours(weight=np.where(history.size > 0, history.size, 1))
    coverage = float(hours[of_jobs.count > 0].sum() / hours.sum()) if hours.sum() > 0 else 0.0
    return HeldNodes(of_jobs=of_jobs, coverage=coverage) if coverage >= LEAST_PLACED else None


def nodes_seen(history: StudyHistory, placement: HeldNodes) -> pd.DataFrame:
    """Return the nodes of jobs, with the peak held on each.

    The columns are those of ``NODES``. The other resource and the memory are not known.
    """
    ends_s, size = np.minimum(history.ended_s, history.end_s), history.size.astype(np.float64)
    node, partition, units = units_of_nodes(placement.of_jobs, history.started_s, ends_s, size, history.partition.code)
    values = np.array([*history.partition.values, None], dtype=object)
    return pd.DataFrame(
        {
            "name": np.array(placement.names, dtype=object)[node],
            "partition": values[partition],
            "cpus": units if history.resource == "cpus" else np.nan,
            "gpus": units.astype(np.int64) if history.resource == "gpus" else 0,
            "gpu_type": None,
            "memory_mib": np.nan,
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeShapes:
    """Nodes of a cluster.

    Arrays of shape (n_nodes,).

    Attributes
    ----------
    names : tuple of str
    pool : int64 array
        Position in ``Capacity.pools``.
    member : bool array of shape (n_nodes, n_partition_names)
        Whether the node belongs to a partition, in the order of ``StudyHistory.partition.values``.
    units : float64 array
        GPUs or CPUs, the resource of the study.
    cpus, memory_mib : float64 arrays
        NaN where unknown.
    gpu_type : tuple of str
        Empty where unknown.
    share_with : float64 array of shape (n_partition_names,)
        Share of the nodes of each partition that have the resource. NaN where the cluster does not say which it has.
    out : BusyIntervals
        When nodes were out of service, disjoint on each node.
    """

    names: tuple[str, ...]
    pool: NDArray[np.int64]
    member: NDArray[np.bool_]
    units: NDArray[np.float64]
    cpus: NDArray[np.float64]
    memory_mib: NDArray[np.float64]
    gpu_type: tuple[str, ...]
    share_with: NDArray[np.float64]
    out: BusyIntervals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capacity:
    """What is in service on each day, in each pool.

    A pool is a partition, or several that share nodes: a node counts once.

    Attributes
    ----------
    pools : tuple of str
        Names of the pools, partitions that share nodes joined by a comma.
    pool_of : int64 array of shape (n_partition_names + 1,)
        Pool of each partition in the order of ``StudyHistory.partition.values``; the last one is the pool of jobs
        without a partition. -1 where it has no capacity.
    edges_s : int64 array of shape (n_days + 1,)
        Local midnights, with the window's first and last moment.
    units : float64 array of shape (n_pools, n_days)
        GPUs or CPUs in service.
    source : str
        ``nodes``, ``given`` or ``jobs``.
    at_least : bool
        Whether it is the most that was ever in use, so that the true capacity may be higher.
    notes : tuple of str
        What a reader should know of how it was found.
    units_per_node : tuple of int
        GPUs or CPUs of a node in each pool, of the largest one. 0 where unknown. Empty where unknown in all.
    nodes : NodeShapes, optional
        The nodes, where they are known one by one.
    placement : HeldNodes, optional
        On which of them jobs ran, where that is known.
    """

    pools: tuple[str, ...]
    pool_of: NDArray[np.int64]
    edges_s: NDArray[np.int64]
    units: NDArray[np.float64]
    source: str
    at_least: bool
    notes: tuple[str, ...] = ()
    units_per_node: tuple[int, ...] = ()
    nodes: NodeShapes | None = None
    placement: HeldNodes | None = None

    @property
    def total(self) -> NDArray[np.float64]:
        """Units in service on each day, over all pools."""
        found: NDArray[np.float64] = self.units.sum(axis=0)
        return found

    def pools_of(self, history: StudyHistory) -> NDArray[np.int64]:
        """Return the pool of each job, -1 where it has none."""
        # The code of a job without a partition is -1, which is the last place.
        return self.pool_of[history.partition.code]

    def in_service(self, edges_s: NDArray[np.int64], pools: tuple[int, ...] | None = None) -> NDArray[np.float64]:
        """Return the units in service in the middle of each step.

        They are those of all pools, or of some.
        """
        units = self.total if pools is None else self.units[list(pools)].sum(axis=0)
        day = np.searchsorted(self.edges_s, edges_s[:-1] + np.diff(edges_s) // 2, side="right") - 1
        found: NDArray[np.float64] = units[np.clip(day, 0, len(units) - 1)]
        return found

    @property
    def unit_hours(self) -> NDArray[np.float64]:
        """Hours in service on each day, over all pools."""
        return np.asarray(self.total * np.diff(self.edges_s) / 3600)


def find_capacity(
    history: StudyHistory,
    *,
    nodes: pd.DataFrame | None = None,
    events: pd.DataFrame | None = None,
    given: Mapping[str, int] | None = None,
    units_per_node: float = 1,
) -> Capacity:
    """Return the capacity in service in a window.

    What a person gives comes first, then the nodes of the cluster, then what jobs used.

    Parameters
    ----------
    nodes : DataFrame, optional
        Columns of ``NODES``. Nodes that jobs ran on and that are not among them are added as they were used.
    events : DataFrame, optional
        Columns of ``NODE_EVENTS``.
    given : mapping, optional
        Nodes of each partition. One name that no job uses, or ``all``, pools every job there.
    units_per_node : float
        GPUs or CPUs of each node of ``given``, on average.
    """
    edges_s = local_edges(history.first_s, history.end_s, timezone=history.timezone)
    if given:
        names, n_days = tuple(given), len(edges_s) - 1
        only = len(names) == 1 and (names[0] in POOL_NAMES or names[0] not in history.partition.values)
        pool_of = np.full(len(history.partition.values) + 1, 0 if len(names) == 1 else MISSING, dtype=np.int64)
        if not only:
            number = {name: position for position, name in enumerate(names)}
            pool_of[:-1] = [_first_pool(value, number) for value in history.partition.values]
        units = np.array([count * units_per_node for count in given.values()], dtype=np.float64)
        found = Capacity(
            pools=names,
            pool_of=pool_of,
            edges_s=edges_s,
            units=np.repeat(units[:, None], n_days, axis=1),
            source="given",
            at_least=False,
            units_per_node=(ceil(units_per_node) if units_per_node > 1 else 0,) * len(names),
        )
    else:
        placement = find_placement(history)
        known = nodes is not None and bool((nodes[history.resource] > 0).any())
        if known or placement is not None:
            found = _from_nodes(history, nodes if known else None, events, placement, edges_s)
        else:
            found = _from_use(history, edges_s)
    notes = list(found.notes)
    pool = found.pools_of(history)
    homeless = (history.size > 0) & (pool < 0)
    if homeless.any():
        jobs = count_in_words(int(homeless.sum()), "job")
        notes.append(f"{jobs} ran or waited in partitions whose capacity is not known, and are left out of levels.")
    if history.has_starts:
        excess = _days_of_excess(history, found, pool)
        if excess:
            more = f", and {len(excess) - _MOST_NAMED} more" if len(excess) > _MOST_NAMED else ""
            notes.append(f"More in use than in service, shown as it is: {'; '.join(excess[:_MOST_NAMED])}{more}.")
    return replace(found, notes=tuple(notes))


def takes_no_jobs(state: str) -> bool:
    """Return whether a node in a Slurm state is out of service."""
    words = {re.sub(r"[^A-Z_].*$", "", word) for word in state.upper().split("+")}
    return not words.isdisjoint(OUT_OF_SERVICE)


def _first_pool(partition: str, number: Mapping[str, int]) -> int:
    """Return the pool of the first known partition."""
    return next((number[name] for name in partition.split(",") if name in number), MISSING)


def _from_nodes(
    history: StudyHistory,
    nodes: pd.DataFrame | None,
    events: pd.DataFrame | None,
    placement: HeldNodes | None,
    edges_s: NDArray[np.int64],
) -> Capacity:
    notes, seen = [], None if placement is None else nodes_seen(history, placement)
    table = seen if nodes is None else nodes
    assert table is not None
    table = table[(table[history.resource] > 0) & table["partition"].notna()]
    added = 0
    if nodes is None:
        notes.append(f"Nodes are those that jobs ran on, each with the most {history.unit}s that were ever held there.")
    elif seen is not None:
        gone = seen[~seen["name"].isin(nodes["name"]) & (seen[history.resource] > 0) & seen["partition"].notna()]
        added = int(gone["name"].nunique())
        table = pd.concat([table, gone], ignore_index=True) if added else table
    if added:
        notes.append(f"{count_in_words(added, 'node')} that jobs ran on and the cluster no longer has were added.")
    pool_name = connected(zip(table["name"], table["partition"].astype(str), strict=True))
    pools = tuple(sorted(set(pool_name.values())))
    number = {partition: pools.index(name) for partition, name in pool_name.items()}
    one = table.drop_duplicates("name").reset_index(drop=True)
    names = tuple(one["name"].astype(str))
    position = {name: place for place, name in enumerate(names)}
    member = np.zeros((len(names), len(history.partition.values)), dtype=np.bool_)
    of_partition = {
        name: rows["name"].map(position).to_numpy() for name, rows in table.groupby("partition", observed=True)
    }
    for column, value in enumerate(history.partition.values):
        for name in value.split(","):
            member[of_partition.get(name, []), column] = True
    always = len(pools) == 1 and not history.partition.known.all()
    pool_of = [*(_first_pool(value, number) for value in history.partition.values), 0 if always else MISSING]
    units = one[history.resource].to_numpy(dtype=np.float64)
    pool = np.array([number[str(partition)] for partition in one["partition"]], dtype=np.int64)
    is_gone = np.zeros(len(names), dtype=np.bool_) if nodes is None else ~one["name"].isin(nodes["name"]).to_numpy()
    out, late = _out_of_service(history, names, events, placement, is_gone=is_gone, all_seen=nodes is None)
    if late:
        notes.append(f"{count_in_words(late, 'node')} without a job in the first {ROLLING_DAYS} days count from then.")
    if events is None or events.empty:
        notes.append("Nothing is known of nodes that were down or drained.")
    shapes = NodeShapes(
        names=names,
        pool=pool,
        member=member,
        units=units,
        cpus=one["cpus"].to_numpy(dtype=np.float64),
        memory_mib=one["memory_mib"].to_numpy(dtype=np.float64),
        gpu_type=tuple("" if pd.isna(kind) else str(kind) for kind in one["gpu_type"]),
        share_with=_share_with_resource(history, nodes),
        out=out,
    )
    return Capacity(
        pools=pools,
        pool_of=np.array(pool_of, dtype=np.int64),
        edges_s=edges_s,
        units=_in_service(shapes, len(pools), edges_s),
        source="jobs" if nodes is None else "nodes",
        at_least=nodes is None,
        notes=tuple(notes),
        units_per_node=tuple(int(units[pool == place].max(initial=0)) for place in range(len(pools))),
        nodes=shapes,
        placement=placement,
    )


def _share_with_resource(history: StudyHistory, nodes: pd.DataFrame | None) -> NDArray[np.float64]:
    """Return the share of nodes with the resource in each partition.

    It is NaN where its nodes are not known.
    """
    shares = dict[str, float]()
    if nodes is not None:
        has_it = nodes[history.resource].fillna(0) > 0
        shares = {str(name): float(share) for name, share in has_it.groupby(nodes["partition"]).mean().items()}
    values = [[shares.get(name, np.nan) for name in value.split(",")] for value in history.partition.values]
    return np.array([np.mean(value) for value in values], dtype=np.float64)


def _out_of_service(
    history: StudyHistory,
    names: tuple[str, ...],
    events: pd.DataFrame | None,
    placement: HeldNodes | None,
    *,
    is_gone: Flags,
    all_seen: bool,
) -> tuple[BusyIntervals, int]:
    """Return when nodes were out of service.

    Also the number of nodes that appeared after the window began.
    """
    position = {name: place for place, name in enumerate(names)}
    node, begins_s, ends_s = (np.zeros(0, dtype=np.int64) for _ in range(3))
    first_sign_s = np.full(len(names), NEVER_S, dtype=np.int64)
    if events is not None and not events.empty:
        states = events["state"].astype("category")
        out = np.array([*(takes_no_jobs(str(state)) for state in states.cat.categories), False])[states.cat.codes]
        place = events["node"].map(position).to_numpy(dtype=np.float64, na_value=-1).astype(np.int64)
        node, began_s = place, whole_seconds(events["started_at"], otherwise=history.first_s)
        ends_s = whole_seconds(events["ended_at"], otherwise=NEVER_S)
        np.minimum.at(first_sign_s, place[place >= 0], began_s[place >= 0])
        kept = out & (place >= 0)
        node, begins_s, ends_s = node[kept], began_s[kept], ends_s[kept]
    late = np.zeros(0, dtype=np.int64)
    if placement is not None:
        of_name = np.array([position.get(name, MISSING) for name in placement.names], dtype=np.int64)
        place = of_name[placement.node]
        known = place >= 0
        job_starts, job_ends = history.started_s[placement.job][known], history.ended_s[placement.job][known]
        np.minimum.at(first_sign_s, place[known], job_starts)
        last_s = np.zeros(len(names), dtype=np.int64)
        np.maximum.at(last_s, place[known], np.minimum(job_ends, history.end_s))
        margin_s = ROLLING_DAYS * 86_400
        comes_late = (first_sign_s > history.first_s + margin_s) & (first_sign_s < NEVER_S)
        late = np.flatnonzero(comes_late)
        # A node that is no longer there was taken away at some time after its last job.
        gone_early = is_gone | (all_seen & (last_s < history.end_s - margin_s))
        left = np.flatnonzero(gone_early & (last_s > 0))
        node = np.concatenate([node, late, left])
        begins_s = np.concatenate([begins_s, np.full(len(late), history.first_s), last_s[left]])
        ends_s = np.concatenate([ends_s, first_sign_s[late], np.full(len(left), NEVER_S)])
    begins_s, ends_s = np.maximum(begins_s, history.first_s), np.minimum(ends_s, history.end_s)
    some = ends_s > begins_s
    cut = BusyIntervals(names=names, node=node[some], start_s=begins_s[some], end_s=ends_s[some])
    return cut.merged(), len(late)


def _in_service(nodes: NodeShapes, n_pools: int, edges_s: NDArray[np.int64]) -> NDArray[np.float64]:
    units, out = np.zeros((n_pools, len(edges_s) - 1)), nodes.out
    for number in range(n_pools):
        mine = nodes.pool[out.node] == number
        weight = np.rint(nodes.units[out.node[mine]]).astype(np.int64)
        away = mean_levels(out.start_s[mine], out.end_s[mine], weight, edges_s)
        units[number] = nodes.units[nodes.pool == number].sum() - away
    return units


def _from_use(history: StudyHistory, edges_s: NDArray[np.int64]) -> Capacity:
    """Return the capacity from the rolling peak of use.

    It is taken by partition, over ``ROLLING_DAYS``. Partitions that share nodes reach their most at different times,
    and it would count those nodes several times. So where less was in use at once than these add up to, all are one
    pool.
    """
    values = history.partition.values
    held = history.hours() > 0
    used = np.unique(history.partition.code[held]) if history.has_starts else np.zeros(0, dtype=np.int64)
    pools = [values[number] if number >= 0 else NO_PARTITION if values else WHOLE for number in used]
    pool_of = np.full(len(values) + 1, MISSING, dtype=np.int64)
    pool_of[used] = np.arange(len(used))
    units = np.array([_rolling_peak(history, held & (history.partition.code == number), edges_s) for number in used])
    units = units.reshape(len(used), len(edges_s) - 1)
    note = f"At least: the most {history.unit}s that were in use in each partition within {ROLLING_DAYS} days."
    if not history.has_starts:
        note = "Not known: the history does not say when jobs started."
    elif len(used) > 1:
        at_once = _rolling_peak(history, held, edges_s)
        if at_once.sum() < LEAST_AT_ONCE * units.sum():
            note = (
                f"At least: the most {history.unit}s that were in use within {ROLLING_DAYS} days, of all partitions "
                "together. They seem to share nodes, for each had far more at some time than was left to it."
            )
            pools, units = [WHOLE], at_once[None, :]
            pool_of = np.zeros_like(pool_of)
    return Capacity(
        pools=tuple(pools), pool_of=pool_of, edges_s=edges_s, units=units, source="jobs", at_least=True, notes=(note,)
    )


def _rolling_peak(history: StudyHistory, chosen: Flags, edges_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the rolling peak of what jobs held at once."""
    peak = peak_in_steps(history.started_s[chosen], history.ended_s[chosen], history.size[chosen], edges_s)
    return np.asarray(pd.Series(peak).rolling(ROLLING_DAYS, center=True, min_periods=1).max(), dtype=np.float64)


def peak_in_steps(
    begins_s: NDArray[np.int64], ends_s: NDArray[np.int64], size: Weights, edges_s: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the peak of what was held in each step."""
    begins_s, ends_s = np.clip(begins_s, edges_s[0], edges_s[-1]), np.clip(ends_s, edges_s[0], edges_s[-1])
    at_s = np.concatenate([begins_s, ends_s, edges_s[:-1]])
    change = np.concatenate([size, -size, np.zeros(len(edges_s) - 1, dtype=np.int64)])
    order = np.argsort(at_s, kind="stable")
    at_s, level = at_s[order], np.cumsum(change[order])
    # Between events of one moment there is no time; only the level after the last of them counts.
    settled = np.append(at_s[1:] > at_s[:-1], True)
    day = np.minimum(np.searchsorted(edges_s, at_s[settled], side="right") - 1, len(edges_s) - 2)
    peak = np.zeros(len(edges_s) - 1)
    np.maximum.at(peak, day, level[settled])
    return peak


def _days_of_excess(history: StudyHistory, found: Capacity, pool: NDArray[np.int64]) -> list[str]:
    """Return pools with more in use than in service, and the days."""
    excess = list[str]()
    for number, name in enumerate(found.pools):
        mine = (pool == number) & (history.size > 0)
        used = mean_levels(history.started_s[mine], history.ended_s[mine], history.size[mine], found.edges_s)
        days = np.flatnonzero(used > found.units[number] * (1 + LEAST_EXCESS))
        if len(days):
            at = pd.to_datetime(found.edges_s[days[:_MOST_NAMED]], unit="s", utc=True).tz_convert(history.timezone)
            more = f" and {len(days) - _MOST_NAMED} more days" if len(days) > _MOST_NAMED else ""
            excess.append(f"{name} on {', '.join(at.strftime('%Y-%m-%d'))}{more}")
    return excess
