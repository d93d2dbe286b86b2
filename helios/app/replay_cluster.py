"""Cluster on which a trace is replayed.

A person describes it, or it is as large as the capacity that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import JobLargerThanPartition, PartitionUnknown, UsageError
from helios.metrics.capacity import WHOLE, ClusterCapacity, capacity_of_jobs
from helios.model import Sizes, with_sizes_requested
from helios.ports import Order
from helios.simulate import Backfill, ClusterShape, Replay, Workload, replay
from helios.simulate.gpu_units import ERROR, replay_sizes, rounding_note
from helios.units import best_unit, in_number, write_count

POOL = WHOLE
POOL_NAMES = frozenset({POOL, "*"})
MOST = 10_000_000
"""Most nodes and GPUs of a replayed cluster. Every node takes memory, and counts have 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCluster:
    """Shape of a cluster, with a trace's jobs assigned to its partitions.

    Attributes
    ----------
    shape : ClusterShape
        Partitions, nodes and GPUs a node.
    jobs : DataFrame
        The jobs that are replayed, columns of ``JOBS``.
    partition : array of shape (len(jobs),)
        Each job's partition, an index into ``shape.partitions``.
    size : array of shape (len(jobs),)
        GPUs (or CPUs) that each job holds, integers unless a job holds a part of one.
    resource : str
        ``gpus`` or ``cpus``.
    notes : tuple of str
        Assumptions, for a person.
    """

    shape: ClusterShape
    jobs: pd.DataFrame
    partition: NDArray[np.int32]
    size: Sizes
    resource: str
    notes: tuple[str, ...]

    @property
    def nodes(self) -> dict[str, int]:
        """Nodes of each partition."""
        return dict(zip(self.shape.partitions, self.shape.nodes.tolist(), strict=True))

    def workload(self) -> Workload:
        """Return the jobs as a workload."""
        requested = _sizes(with_sizes_requested(self.jobs), self.resource)
        return Workload(
            job_id=self.jobs["job_id"].to_numpy(dtype=object),
            submitted_s=self.jobs["submitted_at"].to_numpy(dtype="datetime64[s]").astype(np.int64),
            run_time_s=self.jobs["run_time_s"].to_numpy().astype(np.int64),
            gpus=self.size,
            partition=self.partition,
            requested_gpus=requested,
        )

    def limits_s(self, default_s: int) -> NDArray[np.int64]:
        """Return each job's time limit, s.

        Jobs without a limit, or with UNLIMITED, get the default.
        """
        limit_s = self.jobs["time_limit_s"].to_numpy(dtype=np.float64)
        return np.where(np.isfinite(limit_s), limit_s, default_s).astype(np.int64)

    def replay(self, order: Order, *, default_limit_s: int, **options: Any) -> Replay:
        """Replay the jobs in an order, with EASY backfill by time limits.

        ``options`` are more of those of :func:`helios.simulate.replay`.
        """
        return replay(
            self.workload(),
            self.shape,
            backfill=Backfill.EASY,
            order=order,
            estimate_s=self.limits_s(default_limit_s),
            **options,
        )


def parse_nodes(text: str) -> dict[str, int]:
    """Parse ``PARTITION=N[,PARTITION=N...]`` into nodes per partition.

    A bare ``N`` pools all jobs on N nodes.

    Raises
    ------
    UsageError
        The text has another form.
    """
    nodes: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().rpartition("=")
        if not count.isdecimal() or int(count) < 1 or (name or POOL) in nodes:
            raise UsageError(
                f"--nodes {text!r} is not understood.",
                hint="Write --nodes PARTITION=N[,PARTITION=N...], or --nodes N to pool all jobs on N nodes.",
            )
        nodes[name or POOL] = int(count)
    return nodes


def replay_cluster_for(
    jobs: pd.DataFrame,
    *,
    resource: str,
    nodes: Mapping[str, int] | None,
    gpus_per_node: int,
    skip_oversized: bool = False,
    capacity: ClusterCapacity | None = None,
) -> ReplayCluster:
    """Assign a trace's jobs to a cluster.

    Parameters
    ----------
    jobs : DataFrame
        Jobs with a known run time that hold some of ``resource``.
    resource : str
        ``gpus`` or ``cpus``: which column is the size.
    nodes : mapping, optional
        Nodes of each partition. ``all`` pools every job there, and so does any name where no job has a partition.
        None derives the cluster from its capacity.
    skip_oversized : bool
        Leave out jobs larger than their partition instead of refusing.
    capacity : ClusterCapacity, optional
        That of the cluster. None takes what these jobs held at once.

    Raises
    ------
    PartitionUnknown
        Some jobs have no partition although several are described, or a described partition has no jobs and a name
        near to one that has.
    JobLargerThanPartition
        A job could never start.
    UsageError
        The cluster is larger than a replay can be.
    """
    named = jobs["partition"].astype("str")
    if nodes is None:
        if capacity is not None and capacity.resource == resource:
            return _from_capacity(jobs, named, gpus_per_node, capacity, skip=skip_oversized)
        capacity = capacity_of_jobs(jobs, resource=resource)
        machine = _from_capacity(jobs, named, gpus_per_node, capacity, skip=skip_oversized)
        return replace(machine, notes=(capacity.line(), *machine.notes))
    notes: list[str] = []
    name = next(iter(nodes), "")
    # Names of a derived cluster may stand for several partitions.
    named = named.replace({part: pool for pool in nodes if "," in pool for part in pool.split(",")})
    named = named.fillna(POOL) if POOL in nodes else named
    if len(nodes) == 1 and (name in POOL_NAMES or named.isna().all()):
        if named.nunique() > 1:
            notes.append(f"All {named.nunique()} partitions of the trace are pooled into one queue.")
        named = pd.Series(name, index=jobs.index, dtype="str")
    elif named.isna().any():
        raise PartitionUnknown(
            in_number(
                int(named.isna().sum()), f"jobs have no partition, and the cluster is described with {len(nodes)}."
            ),
            hint="Pool all jobs with --nodes N.",
        )
    notes += _refuse_mistyped(nodes, sorted(named.dropna().unique()))
    kept = named.isin(list(nodes))
    if not kept.all():
        left_out = ", ".join(sorted(named[~kept].unique())[:10])
        notes.append(in_number(int((~kept).sum()), f"jobs of partitions without nodes were left out: {left_out}."))
    shape = _shape(nodes, gpus_per_node)
    machine = _machine(jobs[kept], named[kept], shape, resource, notes)
    return _within_size(machine, skip=skip_oversized)


def _refuse_mistyped(nodes: Mapping[str, int], there: Sequence[str]) -> list[str]:
    """Raise PartitionUnknown where a described partition is mistyped, or none has jobs.

    Returns notes on partitions without a job whose names are near to no other: those may well be empty.
    """
    unused = [name for name in nodes if name not in there]
    rest = [name for name in there if name not in nodes]
    near = {name: found[0] for name in unused if (found := get_close_matches(name, rest, n=1))}
    if not near and len(unused) < len(nodes):
        return [f"No job belongs to partition {name}." for name in unused]
    meant = f"Did you mean {', '.join(near.values())}? " if near else ""
    raise PartitionUnknown(
        f"No job belongs to partition {', '.join(near or unused)} of --nodes.",
        hint=f"{meant}The jobs have: {', '.join(there[:20])}. Or pool all: --nodes N",
    )


def sized_jobs(jobs: pd.DataFrame, resource: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the jobs that hold ``resource``, with notes on the others."""
    size, unit = jobs[resource], best_unit(resource)
    notes = []
    if (unknown := size.isna().to_numpy()).any():
        example = jobs["job_id"].iloc[int(unknown.argmax())]
        left_out = f"jobs have no record of their {unit}s, such as {example}, and were left out."
        notes.append(in_number(int(unknown.sum()), left_out))
    if without := int((size == 0).sum()):
        notes.append(in_number(without, f"jobs that hold no {unit} were left out."))
    return jobs[size > 0], notes


def _shape(nodes: Mapping[str, int], gpus_per_node: int) -> ClusterShape:
    if (total := max(sum(nodes.values()), 1) * gpus_per_node) > MOST:
        raise UsageError(
            f"{sum(nodes.values()):,} nodes of {gpus_per_node:,} are {total:,}, and a replay can have {MOST:,}.",
            hint="Check --nodes and --gpus-per-node.",
        )
    counts = np.array(list(nodes.values()), dtype=np.int32)
    return ClusterShape(
        partitions=tuple(nodes),
        nodes=counts,
        gpus_per_node=np.full(len(counts), gpus_per_node, dtype=np.int32),
    )


def _machine(
    jobs: pd.DataFrame, named: pd.Series, shape: ClusterShape, resource: str, notes: list[str]
) -> ReplayCluster:
    partition = pd.Categorical(named, categories=list(shape.partitions)).codes.astype(np.int32)
    size = _sizes(jobs, resource)
    return ReplayCluster(
        shape=shape,
        jobs=jobs.reset_index(drop=True),
        partition=partition,
        size=size,
        resource=resource,
        notes=(*notes, *filter(None, [rounding_note(size, total=shape.total_gpus)])),
    )


def _sizes(jobs: pd.DataFrame, resource: str) -> Sizes:
    """Return what jobs hold, in whole CPUs."""
    size = jobs[resource].to_numpy()  # some traces have means of CPUs
    return replay_sizes(size) if resource == "gpus" else size.astype(np.int32)


def _within_size(machine: ReplayCluster, *, skip: bool) -> ReplayCluster:
    capacity = (machine.shape.nodes * machine.shape.gpus_per_node)[machine.partition]
    fits = machine.size <= capacity
    if fits.all():
        return machine
    worst = int(np.argmax(np.where(fits, 0, machine.size - capacity)))
    partition = machine.shape.partitions[machine.partition[worst]]
    message = (
        in_number(int((~fits).sum()), "jobs are larger than their whole partition")
        + f"; job {machine.jobs['job_id'].iloc[worst]} asks for {write_count(machine.size[worst])}, "
        f"{partition} has {capacity[worst]}"
    )
    if not skip:
        raise JobLargerThanPartition(
            f"{message}.", hint=f"Give it more: --nodes {partition}=N, or leave them out: --oversized skip"
        )
    return replace(
        machine,
        jobs=machine.jobs[fits].reset_index(drop=True),
        partition=machine.partition[fits],
        size=machine.size[fits],
        notes=(*machine.notes, f"Left out: {message}."),
    )


def _from_capacity(
    jobs: pd.DataFrame, named: pd.Series, gpus_per_node: int, capacity: ClusterCapacity, *, skip: bool
) -> ReplayCluster:
    """Return the cluster of a capacity that no person gave.

    Where that is what jobs held, it fits the largest job.
    """
    resource = capacity.resource
    pool_of = {partition: pool.name for pool in capacity.pools for partition in pool.name.split(",")}
    named = named.fillna(POOL)
    pools = pd.Series(POOL, index=jobs.index, dtype="str") if list(pool_of) == [POOL] else named.map(pool_of)
    notes: list[str] = []
    if (without := pools.isna()).any():
        left_out = ", ".join(sorted(named[without].unique())[:10])
        notes.append(in_number(int(without.sum()), f"jobs of partitions without nodes were left out: {left_out}."))
        jobs, pools = jobs[~without], pools[~without]
    units = {pool.name: pool.units for pool in capacity.pools}
    if capacity.at_least or capacity.is_assumed:
        largest = pd.Series(_sizes(jobs, resource), index=jobs.index).groupby(pools.astype(object)).max()
        units |= {str(name): max(float(size), units[str(name)]) for name, size in largest.items()}
    nodes = {name: max(1, ceil(count / gpus_per_node - ERROR)) for name, count in units.items()}
    advice = " Hardly a job queues on so large a cluster: describe the real one with --nodes."
    notes.insert(
        0,
        f"Replayed on {_list_nodes(nodes)} nodes of {gpus_per_node} {best_unit(resource)}s."
        f"{advice if capacity.is_assumed else ''}",
    )
    return _within_size(_machine(jobs, pools, _shape(nodes, gpus_per_node), resource, notes), skip=skip)


def _list_nodes(nodes: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name}={count}" for name, count in list(nodes.items())[:12])
    return shown if len(nodes) <= 12 else f"{shown}, ... ({len(nodes)} partitions, {sum(nodes.values())} nodes)"
