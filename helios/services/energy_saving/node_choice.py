"""The choice of nodes to put to sleep or to wake, once their number is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from helios.model import NodePower, pools

_LATEST = pd.Timestamp.max.tz_localize("UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What the choice looks at in a node; see ``NODE_STATES``.

    Attributes
    ----------
    power : str
        A NodePower; empty: it is down.
    idle, asleep : bool
        It is so, and nothing says to leave it alone.
    busy : bool
        It holds a job.
    kept_awake : bool
        The cluster's keep-awake list names it.
    cpus, gpus : float
        In all.
    kinds : frozenset of str
        Its features and its type of GPU.
    idle_since : Timestamp
        The latest there is, if unknown.
    turn : int
        Place in a round that moves on by one each day, so that of equal nodes not always the same one is taken.
    """

    name: str
    pool: str
    partitions: frozenset[str]
    power: str
    idle: bool
    asleep: bool
    busy: bool
    kept_awake: bool
    cpus: float
    gpus: float
    kinds: frozenset[str]
    rack: str
    weight: float
    idle_since: pd.Timestamp
    cycle: int

    @property
    def powered(self) -> bool:
        """Whether it can run jobs, or will without being told to."""
        return self.power in {NodePower.AWAKE, NodePower.WAKING}


def pool_nodes(frame: pd.DataFrame, at: datetime) -> list[Node]:
    """Read a ``NODE_STATES`` frame, in its order."""
    day, count = int(at.timestamp()) // 86_400, max(len(frame), 1)
    rows = zip(frame.itertuples(index=False), pools(frame), strict=True)
    return [_node(row, str(pool), (place - day) % count) for place, (row, pool) in enumerate(rows)]


def to_sleep(pool: Iterable[Node], count: int, *, everywhere: Sequence[Node]) -> list[Node]:
    """Return up to ``count`` idle nodes of one pool, first to sleep first.

    A rack that is nearly asleep is emptied before the next is begun; in a rack those go first that the cluster fills
    last, then the longest idle. Of each feature and type of GPU one node stays awake in the cluster.

    Parameters
    ----------
    everywhere : sequence of Node
        All nodes of the cluster.
    """
    awake = [node for node in everywhere if node.power == NodePower.AWAKE]
    kinds = Counter(kind for node in awake for kind in node.kinds)
    held = Counter(node.rack for node in awake if not node.idle)
    dark = Counter(node.rack for node in everywhere if node.power in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP})
    chosen: list[Node] = []

    def first(node: Node) -> tuple[Any, ...]:
        racks = (held[node.rack], -dark[node.rack], node.rack) if node.rack else ()
        return not node.rack, racks, -node.weight, node.idle_since, node.cycle

    for node in sorted((node for node in pool if node.idle), key=first):
        if len(chosen) >= count:
            break
        if all(kinds[kind] > 1 for kind in node.kinds):
            kinds.subtract(node.kinds)
            chosen.append(node)
    return chosen


def to_wake(pool: Iterable[Node], count: int, *, everywhere: Sequence[Node]) -> list[Node]:
    """Return up to ``count`` sleeping nodes of one pool, first to wake first.

    Those of racks that are awake anyway go first, then those that the cluster fills first, then the longest without a
    job, so that cycles are shared out.
    """
    light = Counter(node.rack for node in everywhere if node.rack and node.powered)
    asleep = sorted(
        (node for node in pool if node.asleep),
        key=lambda node: (-light[node.rack], node.rack, node.weight, node.idle_since, node.cycle),
    )
    return asleep[: max(count, 0)]


def _node(row: Any, pool: str, cycle: int) -> Node:
    busy = bool(row.cpus_held > 0 or row.gpus_held > 0) or row.state in {"ALLOCATED", "MIXED"}
    alone = bool(_text(row.excluded_reason))
    return Node(
        name=row.name,
        pool=pool,
        partitions=_words(row.partitions),
        power=_text(row.power),
        idle=row.power == NodePower.AWAKE and row.state == "IDLE" and not (_text(row.flags) or alone or busy),
        asleep=row.power == NodePower.ASLEEP and not alone,
        busy=busy,
        kept_awake=bool(row.kept_awake),
        cpus=0.0 if pd.isna(row.cpus) else float(row.cpus),
        gpus=float(row.gpus),
        kinds=_words(row.features) | _words(row.gpu_type),
        rack=_text(row.rack),
        weight=0.0 if pd.isna(row.weight) else float(row.weight),
        idle_since=_LATEST if pd.isna(row.idle_since) else row.idle_since,
        cycle=cycle,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in _text(value).split(","))))
