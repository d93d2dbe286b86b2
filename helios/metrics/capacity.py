"""Size of a cluster in nodes and in GPUs or CPUs.

Every command takes it from here. What a person says comes first, then the nodes that the cluster is known to have, then
what jobs held, which is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.node_usage import NEVER_S, NodesOfJobs, held_times, whole_seconds
from helios.units import best_unit, count_in_words, percent, write_count

Seconds = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEAST_PLACED = 0.9
"""Smallest share of hours with known nodes for a record whose nodes count as known."""
LEAST_STARTED = 0.5
"""Smallest share of jobs with a recorded start, of those that ran, for a record to have starts."""
LEAST_AT_ONCE = 0.6
"""Share of the sum of the most in each partition that has to be in use at once, or they are taken to share nodes.

Virtual clusters of nodes of their own reach .9 where they are busy (Earth, May 2020), queues of one machine .15 (SDSC
BLUE).
"""
LEAST_GPU_HOURS = 0.05
"""Share of the hours of all jobs from which GPUs are replayed and not CPUs. GPUs are what a site is short of."""
WHOLE = "all"
"""Name of the pool of jobs without a partition, and of partitions that share nodes in an unknown way."""
ROUNDING = 1e-9
"""Error of sums of parts of a unit."""


class CapacitySource(StrEnum):
    """How a capacity is known."""

    GIVEN = "given"
    NODES = "nodes"
    SITE = "site"
    HEADER = "header"
    NODE_LISTS = "node lists"
    USE = "use"
    DEMAND = "demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """Size of a partition, or of several that share nodes.

    Their names are joined by commas. ``nodes`` is None where only the units are known.
    """

    name: str
    nodes: int | None
    units: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCapacity:
    """Size of a cluster, and how it is known.

    Attributes
    ----------
    resource : str
        ``gpus`` or ``cpus``: what the units are.
    pools : tuple of PoolCapacity
    source : CapacitySource
    per_node : int, optional
        Units of a node: those of the nodes with most units together. None where no node is known.
    where : str
        File that the nodes were read from; empty where it is none.
    """

    resource: str
    pools: tuple[PoolCapacity, ...]
    source: CapacitySource
    per_node: int | None = None
    where: str = ""

    @property
    def nodes(self) -> int | None:
        """Number of nodes, None where unknown."""
        counts = [pool.nodes for pool in self.pools if pool.nodes is not None]
        return sum(counts) if len(counts) == len(self.pools) and counts else None

    @property
    def units(self) -> float:
        """GPUs or CPUs of all nodes."""
        return sum(pool.units for pool in self.pools)

    @property
    def at_least(self) -> bool:
        """Whether there may be more, since it is what jobs held."""
        return self.source in {CapacitySource.NODE_LISTS, CapacitySource.USE}

    @property
    def is_assumed(self) -> bool:
        """Whether it is not known, and stands for what jobs asked for."""
        return self.source is CapacitySource.DEMAND

    def line(self) -> str:
        """Return it with its source, in one line."""
        unit = best_unit(self.resource)
        units = f"{write_count(self.units)} {unit}{'' if self.units == 1 else 's'}"
        if self.is_assumed:
            return (
                f"Capacity: not known, since no starts are recorded. {units} would have been in use at once if every "
                "job had started at its submission."
            )
        size = units
        if self.nodes is not None:
            nodes = count_in_words(self.nodes, "node")
            even = self.per_node is not None and self.nodes * self.per_node == self.units
            size = f"{nodes} of {count_in_words(self.per_node or 0, unit)}" if even else f"{nodes} with {units}"
        source = {
            CapacitySource.GIVEN: "--nodes",
            CapacitySource.NODES: "the nodes of the cluster",
            CapacitySource.SITE: self.where,
            CapacitySource.HEADER: "the header of the file",
            CapacitySource.NODE_LISTS: f"the nodes that jobs ran on, each with the most {unit}s ever held there",
            CapacitySource.USE: "the most ever in use at once",
        }[self.source]
        return f"Capacity: {'at least ' if self.at_least else ''}{size} ({source})."

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "resource": self.resource,
            "nodes": self.nodes,
            "units": None if self.is_assumed else self.units,
            "at_least": self.at_least,
            "source": str(self.source),
            "partitions": {pool.name: {"nodes": pool.nodes, "units": pool.units} for pool in self.pools},
        }


def choose_resource(jobs: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the resource to replay, and a note.

    It is used where the user names none. It is ``gpus`` if the jobs with GPUs have at least ``LEAST_GPU_HOURS`` of all
    hours, otherwise ``cpus``. There is no note where few other jobs are left out.
    """
    holds = (jobs["gpus"] > 0).fillna(False).to_numpy(dtype=bool)
    if not holds.any():
        return "cpus", []
    run_time_s = jobs["run_time_s"].fillna(0.0).to_numpy(dtype=np.float64)
    total_s = float(run_time_s.sum())
    share = float(run_time_s[holds].sum()) / total_s if total_s else 1.0
    chosen = "gpus" if share >= LEAST_GPU_HOURS else "cpus"
    if share >= 0.5:
        return chosen, []
    return chosen, [
        f"Jobs that hold GPUs have {percent(share)} of the hours of all jobs: {best_unit(chosen)}s are counted."
    ]


def given_capacity(nodes: Mapping[str, int], *, resource: str, per_node: int) -> ClusterCapacity:
    """Return the capacity that a person gives, as nodes of each partition."""
    pools = tuple(PoolCapacity(name=name, nodes=count, units=count * per_node) for name, count in nodes.items())
    return ClusterCapacity(resource=resource, pools=pools, source=CapacitySource.GIVEN, per_node=per_node)


def header_capacity(nodes: int, cpus: int) -> ClusterCapacity:
    """Return the capacity that the header of a file names, CPUs."""
    pools = (PoolCapacity(name=WHOLE, nodes=nodes, units=cpus),)
    per_node = -(-cpus // nodes)
    return ClusterCapacity(resource="cpus", pools=pools, source=CapacitySource.HEADER, per_node=per_node)


def capacity_of_nodes(
    nodes: pd.DataFrame, *, resource: str, source: CapacitySource, where: str = ""
) -> ClusterCapacity:
    """Return the capacity of nodes.

    Parameters
    ----------
    nodes : DataFrame
        Columns ``name``, ``partition`` and the resource, a row for each node and partition. Nodes without the resource
        do not count.
    """
    table = nodes[(nodes[resource] > 0) & nodes["partition"].notna()]
    pool_of = connected(zip(table["name"].astype(str), table["partition"].astype(str), strict=True))
    one = table.drop_duplicates("name")
    units = one[resource].to_numpy(dtype=np.float64)
    by_pool = one.assign(pool=one["partition"].astype(str).map(pool_of)).groupby("pool")[resource].agg(["size", "sum"])
    sizes, count = np.unique(np.ceil(units - ROUNDING), return_counts=True)
    return ClusterCapacity(
        resource=resource,
        pools=tuple(
            PoolCapacity(name=str(name), nodes=int(n), units=float(held)) for name, n, held in by_pool.itertuples()
        ),
        source=source,
        per_node=int(sizes[np.argmax(sizes * count)]) if len(sizes) else None,
        where=where,
    )


def capacity_of_jobs(
    jobs: pd.DataFrame, *, resource: str, since_s: int | None = None, until_s: int | None = None
) -> ClusterCapacity:
    """Return the capacity that jobs held in a window, a lower bound.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    since_s, until_s : int, optional
        The window, s since the epoch.
    """
    size = np.nan_to_num(jobs[resource].to_numpy(dtype=np.float64))
    started_s, ended_s = held_times(jobs)
    run_s = np.nan_to_num(jobs["run_time_s"].to_numpy(dtype=np.float64))
    ran = run_s > 0
    has_starts = bool((started_s[ran] < NEVER_S).mean() >= LEAST_STARTED) if ran.any() else False
    if not has_starts:
        started_s = whole_seconds(jobs["submitted_at"], otherwise=NEVER_S)
        # A job that ran for less than a second needed room, too.
        ended_s = started_s + np.where(jobs["run_time_s"].notna(), np.maximum(run_s, 1), 0).astype(np.int64)
    since_s = 0 if since_s is None else since_s
    if until_s is None:
        until_s = int(max((times[times < NEVER_S].max(initial=0) for times in (started_s, ended_s)), default=0)) + 1
    inside = (size > 0) & (started_s < until_s) & (ended_s > since_s)
    begins_s, ends_s = np.maximum(started_s, since_s)[inside], np.minimum(ended_s, until_s)[inside]
    held, partition = size[inside], jobs["partition"].astype("str").fillna(WHOLE)[inside].astype("category")
    if has_starts:
        nodes = NodesOfJobs.of(jobs["node_list"].astype("category")[inside])
        hours = held * (ends_s - begins_s)
        if hours.sum() > 0 and hours[nodes.count > 0].sum() >= LEAST_PLACED * hours.sum():
            node, of_node, units = units_of_nodes(nodes, begins_s, ends_s, held, partition.cat.codes.to_numpy())
            seen = {"name": np.array(nodes.names, dtype=object)[node], resource: units}
            seen["partition"] = np.asarray(partition.cat.categories, dtype=object)[of_node]
            return capacity_of_nodes(pd.DataFrame(seen), resource=resource, source=CapacitySource.NODE_LISTS)
    names = [str(name) for name in partition.cat.categories]
    most = most_in_groups(partition.cat.codes.to_numpy().astype(np.int64), begins_s, ends_s, held, len(names))
    at_once = most_in_groups(np.zeros(len(held), dtype=np.int64), begins_s, ends_s, held, 1)
    if at_once.sum() < LEAST_AT_ONCE * most.sum():
        names, most = [WHOLE], at_once
    return ClusterCapacity(
        resource=resource,
        pools=tuple(
            PoolCapacity(name=name, nodes=None, units=float(np.ceil(units - ROUNDING)))
            for name, units in zip(names, most, strict=True)
            if units > 0
        ),
        source=CapacitySource.USE if has_starts else CapacitySource.DEMAND,
    )


def units_of_nodes(
    nodes: NodesOfJobs, begins_s: Seconds, ends_s: Seconds, held: Floats, partition: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Return the nodes that jobs ran on, with the most ever held there.

    A job's resources are taken to be spread evenly over its nodes.

    Parameters
    ----------
    begins_s, ends_s, held, partition : arrays of shape (n_jobs,)
        When each job held how much, and the number of its partition.

    Returns
    -------
    node, partition : int64 arrays of shape (n_pairs,)
        Each node with each partition of its jobs.
    units : float64 array of shape (n_pairs,)
        Whole units of the node.
    """
    job = nodes.job
    most = most_in_groups(nodes.node, begins_s[job], ends_s[job], held[job] / nodes.count[job], len(nodes.names))
    node, of_node = np.unique(np.column_stack([nodes.node, partition[job]]), axis=0).astype(np.int64).T
    return node, of_node, np.ceil(most - ROUNDING)[node]


def most_in_groups(group: Seconds, begins_s: Seconds, ends_s: Seconds, held: Floats, n_groups: int) -> Floats:
    """Return the most that was held at once in each group."""
    some = ends_s > begins_s
    group, begins_s, ends_s, held = group[some], begins_s[some], ends_s[some], held[some]
    at_s, event_group = np.concatenate([ends_s, begins_s]), np.concatenate([group, group])
    change = np.concatenate([-held, held])
    # Ends come before starts of the same moment.
    order = np.lexsort((change, at_s, event_group))
    level, event_group = np.cumsum(change[order]), event_group[order]
    most = np.zeros(n_groups)
    # Every group ends at the level it began with, 0, so that one running sum serves all.
    np.maximum.at(most, event_group, level)
    return np.maximum(most, 0.0)


def connected(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pool of each partition, from pairs of node and partition.

    Partitions that share a node are one pool, with their names by commas.
    """
    leader = dict[str, str]()

    def first(partition: str) -> str:
        while leader[partition] != partition:
            partition = leader[partition]
        return partition

    of_node = dict[str, str]()
    for node, partition in pairs:
        leader.setdefault(partition, partition)
        leader[first(of_node.setdefault(node, partition))] = first(partition)
    members = dict[str, list[str]]()
    for partition in sorted(leader):
        members.setdefault(first(partition), []).append(partition)
    return {partition: ",".join(members[first(partition)]) for partition in leader}
