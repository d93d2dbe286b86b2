"""Choice of the nodes that sleep and wake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np

from helios.model import NodePower, Snapshot, pool_names
from helios.model.nodes import OUT_OF_SERVICE

UNAVAILABLE = OUT_OF_SERVICE | {"RESERVED"}
"""Flags of a node that jobs outside of a reservation cannot use."""
_LATEST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCandidate:
    """Properties of a node that the choice of nodes depends on.

    See ``NODE_STATES``.

    Attributes
    ----------
    power : str
        A NodePower; empty for a node that is down.
    idle, asleep : bool
        Whether it is idle or asleep, and not excluded.
    serves : bool
        Whether jobs may start on it, awake or after a wake.
    busy : bool
        Whether it serves and holds a job, or a job that was started waits for it.
    kept_awake : bool
        Whether the cluster's keep-awake list has it.
    cpus, gpus : float
        Total numbers.
    kinds : frozenset of str
        Its features and its type of GPU.
    idle_since : datetime
        The latest possible time if unknown.
    cycle : int
        Position in a rotation that advances by one each day, so that not always the same of equal nodes sleep.
    """

    name: str
    pool: str
    partitions: frozenset[str]
    power: str
    idle: bool
    asleep: bool
    serves: bool
    busy: bool
    kept_awake: bool
    cpus: float
    gpus: float
    kinds: frozenset[str]
    rack: str
    weight: float
    idle_since: datetime
    cycle: int

    @property
    def powered(self) -> bool:
        """Whether it is awake, or waking already."""
        return self.power in {NodePower.AWAKE, NodePower.WAKING}


def pool_nodes(snapshot: Snapshot) -> list[NodeCandidate]:
    """Return the nodes of a snapshot, in its order."""
    rows = list(starmap(_NodeRow, zip(*(_values(snapshot, name) for name in _NodeRow._fields), strict=True)))
    day, count = int(snapshot.taken_at.timestamp()) // 86_400, max(len(rows), 1)
    return [_node(row, (index - day) % count) for index, row in enumerate(rows)]


def to_sleep(pool: Iterable[NodeCandidate], count: int, *, everywhere: Sequence[NodeCandidate]) -> list[NodeCandidate]:
    """Return up to ``count`` idle nodes to put to sleep.

    A rack that is nearly asleep is emptied before the next one. Within a rack the order is that of the highest weight,
    which the cluster fills last, then of the longest idle time. One awake node of each feature and type of GPU is kept
    in the cluster.

    Parameters
    ----------
    everywhere : sequence of NodeCandidate
        All nodes of the cluster.
    """
    if count <= 0:
        return []
    awake = [node for node in everywhere if node.power == NodePower.AWAKE]
    n_awake_of_kind = Counter(kind for node in awake for kind in node.kinds)
    n_held = Counter(node.rack for node in awake if not node.idle)
    n_asleep = Counter(node.rack for node in everywhere if node.power in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP})
    chosen: list[NodeCandidate] = []

    def sort_key(node: NodeCandidate) -> tuple[Any, ...]:
        racks = (n_held[node.rack], -n_asleep[node.rack], node.rack) if node.rack else ()
        return not node.rack, racks, -node.weight, node.idle_since, node.cycle

    for node in sorted((node for node in pool if node.idle), key=sort_key):
        if len(chosen) >= count:
            break
        if all(n_awake_of_kind[kind] > 1 for kind in node.kinds):
            n_awake_of_kind.subtract(node.kinds)
            chosen.append(node)
    return chosen


def to_wake(pool: Iterable[NodeCandidate], count: int, *, everywhere: Sequence[NodeCandidate]) -> list[NodeCandidate]:
    """Return up to ``count`` sleeping nodes to wake.

    Nodes of racks with most awake nodes come first, then the lowest weight, which the cluster fills first, then the
    longest time without a job, so that power cycles are distributed.
    """
    if count <= 0:
        return []
    n_powered = Counter(node.rack for node in everywhere if node.rack and node.powered)
    asleep = sorted(
        (node for node in pool if node.asleep),
        key=lambda node: (-n_powered[node.rack], node.rack, node.weight, node.idle_since, node.cycle),
    )
    return asleep[:count]


class _NodeRow(NamedTuple):
    """Columns of ``NODE_STATES`` of one node.

    A missing number is 0, missing text NaN, and a missing time None.
    """

    name: str
    partitions: Any
    state: Any
    flags: Any
    power: Any
    excluded_reason: Any
    kept_awake: int
    rack: Any
    cpus: float
    cpus_held: float
    gpus: int
    gpus_held: int
    gpu_type: Any
    weight: float
    features: Any
    idle_since: datetime | None


@lru_cache(maxsize=16_384)  # most nodes do not change from one cycle to the next
def _node(row: _NodeRow, cycle: int) -> NodeCandidate:
    holds = bool(row.cpus_held > 0 or row.gpus_held > 0) or row.state in {"ALLOCATED", "MIXED"}
    excluded = bool(text_of(row.excluded_reason))
    power, flags = text_of(row.power), frozenset(text_of(row.flags).split("+"))
    serves = bool(power) and row.state != "DOWN" and not flags & UNAVAILABLE
    return NodeCandidate(
        name=row.name,
        pool=pool_names([row.partitions], [row.gpu_type])[0],
        partitions=_split_words(row.partitions),
        power=power,
        idle=power == NodePower.AWAKE and row.state == "IDLE" and not (text_of(row.flags) or excluded or holds),
        asleep=power == NodePower.ASLEEP and not excluded,
        serves=serves,
        busy=serves and holds,
        kept_awake=bool(row.kept_awake),
        cpus=float(row.cpus),
        gpus=float(row.gpus),
        kinds=_split_words(row.features) | _split_words(row.gpu_type),
        rack=text_of(row.rack),
        weight=float(row.weight),
        idle_since=_LATEST if row.idle_since is None else row.idle_since.replace(tzinfo=UTC),
        cycle=cycle,
    )


def _values(snapshot: Snapshot, name: str) -> list[Any]:
    values = snapshot.node_values(name)
    if values.dtype.kind == "f":  # NaN is not equal to NaN, so a row with one is never found in the cache
        values = np.where(np.isnan(values), 0.0, values)
    result: list[Any] = values.tolist()
    return result


def text_of(value: object) -> str:
    """Return a value of a text column, empty where it is missing."""
    return value if isinstance(value, str) else ""


@lru_cache(maxsize=4_096)
def _split_words(value: object) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in text_of(value).split(","))))
