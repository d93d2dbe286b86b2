"""Nodes that pending jobs wait for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from helios.model import Snapshot
from helios.services.energy_saving.nodes import NodeCandidate, text_of

WAITS_FOR_NODES = frozenset({"Resources", "Priority", "None", ""})
"""Reasons that Slurm gives for jobs that more nodes would let start."""
_COLUMNS = ("partition", "gpu_type", "reason", "gpus", "cpus", "nodes", "tasks")


def nodes_wanted_by_queue(snapshot: Snapshot, nodes: Sequence[NodeCandidate]) -> dict[str, float]:
    """Return the number of nodes that eligible pending jobs wait for, by pool.

    Pools without such jobs are missing. A job that fits several pools counts for the one with the most free nodes. Jobs
    smaller than a node share nodes.
    """
    eligible = snapshot.pending_values("eligible_at") <= np.datetime64(snapshot.taken_at.replace(tzinfo=None), "us")
    if not eligible.any():
        return {}
    pools = _pools(nodes)
    columns = (snapshot.pending_values(name)[eligible].tolist() for name in _COLUMNS)
    wanted: dict[str, float] = {}
    pool_of: dict[tuple[str, str, bool], _NodePool | None] = {}
    for partition, gpu_type, reason, gpus, cpus, requested_nodes, tasks in zip(*columns, strict=True):
        if text_of(reason) not in WAITS_FOR_NODES:
            continue
        key = (text_of(partition), text_of(gpu_type), gpus > 0)
        if key not in pool_of:
            pool_of[key] = _pool_for(*key, pools)
        if (pool := pool_of[key]) is not None:
            nodes_per_job = pool.nodes_for(gpus=gpus, cpus=cpus, requested_nodes=requested_nodes)
            wanted[pool.name] = wanted.get(pool.name, 0.0) + nodes_per_job * max(tasks, 1)
    return {name: math.ceil(round(count, 6)) for name, count in sorted(wanted.items())}


@dataclass(slots=True, kw_only=True)
class _NodePool:
    name: str
    partitions: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    gpus: float = 0.0
    cpus: float = 0.0
    free_nodes: int = 0

    def nodes_for(self, *, gpus: float, cpus: float, requested_nodes: float) -> float:
        """Return the nodes that one job needs, or its share of a node."""
        share = gpus / self.gpus if gpus and self.gpus else _finite_or_zero(cpus) / self.cpus if self.cpus else 0.0
        n_nodes = _finite_or_zero(requested_nodes)
        return max(n_nodes, share) if n_nodes > 1 else share or n_nodes or 1.0


def _pools(nodes: Sequence[NodeCandidate]) -> list[_NodePool]:
    pools: dict[str, _NodePool] = {}
    for node in nodes:
        pool = pools.setdefault(node.pool, _NodePool(name=node.pool))
        pool.partitions |= node.partitions
        pool.kinds |= node.kinds
        pool.gpus, pool.cpus = max(pool.gpus, node.gpus), max(pool.cpus, node.cpus)
        pool.free_nodes += node.idle or node.asleep
    return list(pools.values())


def _pool_for(partition: str, gpu_type: str, needs_gpus: bool, pools: Sequence[_NodePool]) -> _NodePool | None:
    partitions = set(partition.split(","))
    fits = [
        pool
        for pool in pools
        if pool.partitions & partitions and (pool.gpus or not needs_gpus) and (not gpu_type or gpu_type in pool.kinds)
    ]
    return min(fits, key=lambda pool: (-pool.free_nodes, pool.name), default=None)


def _finite_or_zero(value: float) -> float:
    return 0.0 if pd.isna(value) or math.isinf(value) else float(value)
