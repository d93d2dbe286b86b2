"""What the queue asks for now: nodes that jobs wait for, pool by pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from helios.model import Snapshot
from helios.services.ces.choice import Node

WAITS_FOR_NODES = frozenset({"Resources", "Priority", "None", ""})
"""Slurm's reasons under which a job would start if there were nodes; under a limit of its user or QOS it would not."""
_COLUMNS = ("partition", "gpu_type", "reason", "gpus", "cpus", "nodes", "tasks")


def queued_nodes(snapshot: Snapshot, nodes: Sequence[Node]) -> dict[str, float]:
    """Return the nodes that eligible pending jobs wait for, by pool; pools that nobody asks for are missing.

    A job that several pools could serve counts for the one with the most room. Jobs smaller than a node share nodes.
    """
    pools = _pools(nodes)
    eligible = snapshot.pending_values("eligible_at") <= np.datetime64(snapshot.taken_at.replace(tzinfo=None), "us")
    columns = (snapshot.pending_values(name)[eligible].tolist() for name in _COLUMNS)
    wanted: dict[str, float] = {}
    served: dict[tuple[str, str, bool], _Pool | None] = {}
    for partition, gpu_type, reason, gpus, cpus, asked, tasks in zip(*columns, strict=True):
        if _text(reason) not in WAITS_FOR_NODES:
            continue
        kind = (_text(partition), _text(gpu_type), gpus > 0)
        if kind not in served:
            served[kind] = _pool_for(*kind, pools)
        if (pool := served[kind]) is not None:
            each = pool.nodes_for(gpus=gpus, cpus=cpus, asked=asked)
            wanted[pool.name] = wanted.get(pool.name, 0.0) + each * max(tasks, 1)
    return {name: math.ceil(round(count, 6)) for name, count in sorted(wanted.items())}


@dataclass(slots=True, kw_only=True)
class _Pool:
    name: str
    partitions: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    gpus: float = 0.0
    cpus: float = 0.0
    room: int = 0

    def nodes_for(self, *, gpus: float, cpus: float, asked: float) -> float:
        """Return the nodes that one job needs: whole ones if it asks for several, else the share that it fills."""
        share = gpus / self.gpus if gpus and self.gpus else _known(cpus) / self.cpus if self.cpus else 0.0
        whole = _known(asked)
        return max(whole, share) if whole > 1 else share or whole or 1.0


def _pools(nodes: Sequence[Node]) -> list[_Pool]:
    pools: dict[str, _Pool] = {}
    for node in nodes:
        pool = pools.setdefault(node.pool, _Pool(name=node.pool))
        pool.partitions |= node.partitions
        pool.kinds |= node.kinds
        pool.gpus, pool.cpus = max(pool.gpus, node.gpus), max(pool.cpus, node.cpus)
        pool.room += node.idle or node.asleep
    return list(pools.values())


def _pool_for(partition: str, gpu_type: str, needs_gpus: bool, pools: Sequence[_Pool]) -> _Pool | None:
    asked = set(partition.split(","))
    fits = [
        pool
        for pool in pools
        if pool.partitions & asked and (pool.gpus or not needs_gpus) and (not gpu_type or gpu_type in pool.kinds)
    ]
    return min(fits, key=lambda pool: (-pool.room, pool.name), default=None)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _known(value: float) -> float:
    return 0.0 if pd.isna(value) or math.isinf(value) else float(value)
