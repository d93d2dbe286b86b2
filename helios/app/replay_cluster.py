"""Cluster on which a trace is replayed.

A person describes it, or it is derived from the trace's peak demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import JobLargerThanPartition, PartitionUnknown, UsageError
from helios.model import with_sizes_requested
from helios.ports import Order
from helios.simulate import Backfill, ClusterShape, Replay, Workload, replay
from helios.units import best_unit

POOL = "all"
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
        GPUs (or CPUs) that each job holds.
    resource : str
        ``gpus`` or ``cpus``.
    notes : tuple of str
        Assumptions, for a person.
    """

    shape: ClusterShape
    jobs: pd.DataFrame
    partition: NDArray[np.int32]
    size: NDArray[np.int32]
    resource: str
    notes: tuple[str, ...]

    @property
    def nodes(self) -> dict[str, int]:
        """Nodes of each partition."""
        return dict(zip(self.shape.partitions, self.shape.nodes.tolist(), strict=True))

    def workload(self) -> Workload:
        """Return the jobs as a workload."""
        requested = with_sizes_requested(self.jobs)[self.resource].to_numpy()
        return Workload(
            job_id=self.jobs["job_id"].to_numpy(dtype=object),
            submitted_s=self.jobs["submitted_at"].to_numpy(dtype="datetime64[s]").astype(np.int64),
            run_time_s=self.jobs["run_time_s"].to_numpy().astype(np.int64),
            gpus=self.size,
            partition=self.partition,
            requested_gpus=requested.astype(np.int32),
        )

    def limits_s(self, default_s: int) -> NDArray[np.int64]:
        """Return each job's time limit, s, the default where it has none or UNLIMITED."""
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
) -> ReplayCluster:
    """Assign a trace's jobs to a described cluster, or one of their peak demand.

    Parameters
    ----------
    jobs : DataFrame
        Jobs with a known run time that hold some of ``resource``.
    resource : str
        ``gpus`` or ``cpus``: which column is the size.
    nodes : mapping, optional
        Nodes of each partition. One name that no job uses, or ``all``, pools every job there. None derives the cluster
        from the peak demand.
    skip_oversized : bool
        Leave out jobs larger than their partition instead of refusing.

    Raises
    ------
    PartitionUnknown
        Some jobs have no partition although several are described, or no job's partition is described.
    JobLargerThanPartition
        A job could never start.
    UsageError
        The cluster is larger than a replay can be.
    """
    named = jobs["partition"].astype("str")
    if nodes is None:
        return _from_peak(jobs, named, resource, gpus_per_node)
    notes: list[str] = []
    name = next(iter(nodes), "")
    if len(nodes) == 1 and (name in POOL_NAMES or not bool((named == name).any())):
        if named.nunique() > 1:
            why = "" if name in POOL_NAMES else f", for none is called {name}"
            notes.append(f"All {named.nunique()} partitions of the trace are pooled into one queue{why}.")
        named = pd.Series(name, index=jobs.index, dtype="str")
    elif named.isna().any():
        raise PartitionUnknown(
            f"{int(named.isna().sum()):,} jobs have no partition, and the cluster is described with {len(nodes)}.",
            hint="Pool all jobs with --nodes N.",
        )
    kept = named.isin(list(nodes))
    if not kept.any():
        raise PartitionUnknown(
            f"No job belongs to a partition of --nodes ({', '.join(nodes)}).",
            hint=f"The trace has: {', '.join(sorted(named.dropna().unique())[:20])}. Or pool all: --nodes N.",
        )
    if not kept.all():
        left_out = ", ".join(sorted(named[~kept].unique())[:10])
        notes.append(f"{int((~kept).sum()):,} jobs of partitions without nodes were left out: {left_out}.")
    shape = _shape(nodes, gpus_per_node)
    machine = _machine(jobs[kept], named[kept], shape, resource, notes)
    return _within_size(machine, skip=skip_oversized)


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
    return ReplayCluster(
        shape=shape,
        jobs=jobs.reset_index(drop=True),
        partition=partition,
        size=jobs[resource].to_numpy().astype(np.int32),
        resource=resource,
        notes=tuple(notes),
    )


def _within_size(machine: ReplayCluster, *, skip: bool) -> ReplayCluster:
    capacity = (machine.shape.nodes * machine.shape.gpus_per_node)[machine.partition]
    fits = machine.size <= capacity
    if fits.all():
        return machine
    worst = int(np.argmax(np.where(fits, 0, machine.size - capacity)))
    partition = machine.shape.partitions[machine.partition[worst]]
    message = (
        f"{int((~fits).sum()):,} jobs are larger than their whole partition; job "
        f"{machine.jobs['job_id'].iloc[worst]} asks for {machine.size[worst]}, {partition} has {capacity[worst]}"
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


def _from_peak(jobs: pd.DataFrame, named: pd.Series, resource: str, gpus_per_node: int) -> ReplayCluster:
    named = named.fillna(POOL)
    recorded = jobs["started_at"].notna() & jobs["ended_at"].notna()
    start = jobs["started_at"].where(recorded, jobs["submitted_at"]).astype("int64").to_numpy() // 1_000_000
    end = start + np.maximum(jobs["run_time_s"].to_numpy(), 1)
    size = jobs[resource].to_numpy()
    nodes = {
        str(partition): int(max(1, -(-_peak(start[rows], end[rows], size[rows]) // gpus_per_node)))
        for partition, rows in sorted(named.groupby(named).indices.items())
    }
    basis = "as recorded" if recorded.all() else "if every job without a recorded start had started at once"
    advice = "" if recorded.all() else " Hardly a job queues on so large a cluster: describe the real one with --nodes."
    note = (
        f"No --nodes given: the cluster is taken from the peak demand {basis}: "
        f"{_listed(nodes)} nodes of {gpus_per_node} {best_unit(resource)}s.{advice}"
    )
    return _machine(jobs, named, _shape(nodes, gpus_per_node), resource, [note])


def _listed(nodes: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name}={count}" for name, count in list(nodes.items())[:12])
    return shown if len(nodes) <= 12 else f"{shown}, ... ({len(nodes)} partitions, {sum(nodes.values())} nodes)"


def _peak(start: NDArray[np.integer], end: NDArray[np.float64], size: NDArray[np.floating]) -> int:
    at = np.concatenate([start, end])
    change = np.concatenate([size, -size])
    # At equal times, ends are processed before starts, as in the simulator.
    order = np.lexsort((change, at))
    return int(np.cumsum(change[order]).max(initial=0))
