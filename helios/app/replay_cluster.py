"""Cluster on which a trace is replayed.

A person describes it, or it is derived from the trace's peak demand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import JobLargerThanPartition, PartitionUnknown, UsageError
from helios.model import with_sizes_requested
from helios.ports import Order
from helios.simulate import Backfill, ClusterShape, Replay, Workload, replay
from helios.units import best_unit, in_number, percent

POOL = "all"
POOL_NAMES = frozenset({POOL, "*"})
LEAST_GPU_HOURS = 0.05
"""Share of the hours of all jobs from which GPUs are replayed and not CPUs. GPUs are what a site is short of."""
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
        requested = _whole_sizes(with_sizes_requested(self.jobs), self.resource)
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
        None derives the cluster from the peak demand.
    skip_oversized : bool
        Leave out jobs larger than their partition instead of refusing.

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
        return _from_peak_demand(jobs, named, resource, gpus_per_node)
    notes: list[str] = []
    name = next(iter(nodes), "")
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
        f"Jobs that hold GPUs have {percent(share)} of the hours of all jobs: {best_unit(chosen)}s are replayed."
    ]


def sized_jobs(jobs: pd.DataFrame, resource: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the jobs that hold some of ``resource``, and notes on those left out."""
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
    return ReplayCluster(
        shape=shape,
        jobs=jobs.reset_index(drop=True),
        partition=partition,
        size=_whole_sizes(jobs, resource),
        resource=resource,
        notes=tuple(notes),
    )


def _whole_sizes(jobs: pd.DataFrame, resource: str) -> NDArray[np.int32]:
    """Return what jobs hold, parts of a GPU rounded up."""
    size = jobs[resource].to_numpy()
    return (np.ceil(size) if resource == "gpus" else size).astype(np.int32)


def _within_size(machine: ReplayCluster, *, skip: bool) -> ReplayCluster:
    capacity = (machine.shape.nodes * machine.shape.gpus_per_node)[machine.partition]
    fits = machine.size <= capacity
    if fits.all():
        return machine
    worst = int(np.argmax(np.where(fits, 0, machine.size - capacity)))
    partition = machine.shape.partitions[machine.partition[worst]]
    message = (
        in_number(int((~fits).sum()), "jobs are larger than their whole partition")
        + f"; job {machine.jobs['job_id'].iloc[worst]} asks for {machine.size[worst]}, "
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


def _from_peak_demand(jobs: pd.DataFrame, named: pd.Series, resource: str, gpus_per_node: int) -> ReplayCluster:
    named = named.fillna(POOL)
    recorded = jobs["started_at"].notna() & jobs["ended_at"].notna()
    start = jobs["started_at"].where(recorded, jobs["submitted_at"]).astype("int64").to_numpy() // 1_000_000
    end = start + np.maximum(jobs["run_time_s"].to_numpy(), 1)
    size = jobs[resource].to_numpy()
    nodes = {
        str(partition): int(max(1, -(-_peak_demand(start[rows], end[rows], size[rows]) // gpus_per_node)))
        for partition, rows in sorted(named.groupby(named).indices.items())
    }
    basis = "as recorded" if recorded.all() else "if every job without a recorded start had started at once"
    advice = "" if recorded.all() else " Hardly a job queues on so large a cluster: describe the real one with --nodes."
    note = (
        f"No --nodes given: the cluster is taken from the peak demand {basis}: "
        f"{_list_nodes(nodes)} nodes of {gpus_per_node} {best_unit(resource)}s.{advice}"
    )
    return _machine(jobs, named, _shape(nodes, gpus_per_node), resource, [note])


def _list_nodes(nodes: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name}={count}" for name, count in list(nodes.items())[:12])
    return shown if len(nodes) <= 12 else f"{shown}, ... ({len(nodes)} partitions, {sum(nodes.values())} nodes)"


def _peak_demand(start: NDArray[np.integer], end: NDArray[np.float64], size: NDArray[np.floating]) -> int:
    at = np.concatenate([start, end])
    change = np.concatenate([size, -size])
    # At equal times, ends are processed before starts, as in the simulator.
    order = np.lexsort((change, at))
    return int(np.cumsum(change[order]).max(initial=0))
