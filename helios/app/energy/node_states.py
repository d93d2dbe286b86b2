"""State of each node over time.

What slurmdbd records of sleep (seen on 22.05.8 and 26.05.5): a sleeping node has an event whose state ends in ``~``.
The event begins when Slurm counts the node as powered down and ends when Slurm starts to power it up. No event covers
falling asleep before it and waking after it, so these are taken to last as long as the configuration says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_OUT = re.compile(r"DOWN|DRAIN|DRNG|FAIL|ERROR|FUTURE|NOT_?RESP", re.IGNORECASE)
_ASLEEP = re.compile(r"~|POWERED_DOWN|POWER_?SAVING", re.IGNORECASE)
LONGEST_WAKE_S = 7_200
"""A node that is down within this time after its power-up, s, is taken to have failed to wake."""


class NodePowerState(IntEnum):
    """State of a node at one moment."""

    BUSY = 0
    IDLE = 1
    ASLEEP = 2
    FALLING_ASLEEP = 3
    WAKING = 4
    OUT = 5
    """Out of service: down, drained, failed."""
    UNSEEN = 6
    """No job ran there, but node events were not read: idle, asleep or out of service."""
    UNKNOWN = 7
    """Nothing was read of that time."""


SPARE = (NodePowerState.IDLE, NodePowerState.ASLEEP, NodePowerState.FALLING_ASLEEP, NodePowerState.WAKING)
"""States of a node without a job, between which a policy of sleep chooses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Time intervals of nodes, which may overlap.

    Attributes
    ----------
    node : int64 array of shape (n,)
        Position of the node.
    start_s, end_s : int64 arrays of shape (n,)
        s since the epoch.
    weight : float64 array of shape (n,), optional
        Weight of each interval; None for one.
    """

    node: NDArray[np.int64]
    start_s: NDArray[np.int64]
    end_s: NDArray[np.int64]
    weight: NDArray[np.float64] | None = None

    def within(self, begin_s: int, end_s: int) -> Spans:
        """Return the parts of the intervals in [begin_s, end_s)."""
        start, end = np.maximum(self.start_s, begin_s), np.minimum(self.end_s, end_s)
        kept = start < end
        weight = None if self.weight is None else self.weight[kept]
        return Spans(node=self.node[kept], start_s=start[kept], end_s=end[kept], weight=weight)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeTimes:
    """State of every node at every moment, as intervals.

    They are sorted by node and time, without gaps or overlaps.

    Attributes
    ----------
    node, start_s, end_s : int64 arrays of shape (n,)
        As in ``Spans``.
    state : int8 array of shape (n,)
        A ``NodePowerState``.
    by_helios : bool array of shape (n,)
        Whether Helios is known to have put the node to sleep. Only meaningful where the state is ``ASLEEP``.
    """

    node: NDArray[np.int64]
    start_s: NDArray[np.int64]
    end_s: NDArray[np.int64]
    state: NDArray[np.int8]
    by_helios: NDArray[np.bool_]

    def where(self, chosen: NDArray[np.bool_]) -> Spans:
        """Return the intervals selected by a mask."""
        return Spans(node=self.node[chosen], start_s=self.start_s[chosen], end_s=self.end_s[chosen])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PowerSpans:
    """Intervals of sleep and of being out of service, from node events."""

    asleep: Spans
    falling: Spans
    waking: Spans
    out: Spans


def job_spans(jobs: pd.DataFrame, nodes_of_jobs: Sequence[Sequence[int]], *, known_until_s: int) -> tuple[Spans, Spans]:
    """Return when each node held jobs, by GPUs and CPUs.

    A job's GPUs and CPUs are spread evenly over its nodes.

    Parameters
    ----------
    jobs : DataFrame
        Jobs that started, with ``started_at``, ``ended_at``, ``gpus`` and ``cpus``.
    nodes_of_jobs : sequence of sequence of int
        Positions of the nodes of each job.
    known_until_s : int
        A job without an end holds its nodes until then.
    """
    counts = np.array([len(nodes) for nodes in nodes_of_jobs], dtype=np.int64)
    start_s = seconds(jobs["started_at"])
    runs = jobs["ended_at"].isna().to_numpy()
    end_s = np.where(runs, max(known_until_s, 0), seconds(jobs["ended_at"].fillna(jobs["started_at"])))
    node = np.array([node for nodes in nodes_of_jobs for node in nodes], dtype=np.int64)
    each = np.maximum(counts, 1)
    spans = [
        Spans(
            node=node,
            start_s=np.repeat(start_s, counts),
            end_s=np.repeat(end_s, counts),
            weight=np.repeat(jobs[held].fillna(0).to_numpy(dtype=np.float64) / each, counts),
        )
        for held in ("gpus", "cpus")
    ]
    return spans[0], spans[1]


def power_spans(
    events: pd.DataFrame, places: Mapping[str, int], *, known_until_s: int, boot_s: float, shutdown_s: float
) -> PowerSpans:
    """Return the intervals of sleep and outage in node events.

    Falling asleep and waking are in no event. They get the durations ``shutdown_s`` and ``boot_s`` around each sleep.

    Parameters
    ----------
    events : DataFrame
        Columns of ``NODE_EVENTS``.
    places : mapping of str to int
        Position of each node; events of others are left out.
    known_until_s : int
        An event without an end lasts until then.
    """
    known = events[events["node"].isin(list(places)) & events["started_at"].notna()].sort_values(
        ["node", "started_at"], kind="stable"
    )
    node = np.array([places[name] for name in known["node"]], dtype=np.int64)
    start_s, lasts = seconds(known["started_at"]), known["ended_at"].isna().to_numpy(dtype=bool)
    end_s = np.where(lasts, known_until_s, seconds(known["ended_at"].fillna(known["started_at"]))).astype(np.int64)
    text = known["state"].astype("str").fillna("")
    out = text.str.contains(_OUT).to_numpy(dtype=bool)
    asleep = text.str.contains(_ASLEEP).to_numpy(dtype=bool) & ~out
    # The node failed to wake where its next event says soon after that it is out of service.
    next_s, next_node, next_out = np.append(start_s, 0)[1:], np.append(node, -1)[1:], np.append(out, 0)[1:]
    soon = (next_s >= end_s) & (next_s - end_s <= LONGEST_WAKE_S)
    failed = (next_node == node) & (next_out > 0) & soon
    awake_s = np.where(failed, next_s, end_s + int(boot_s)).astype(np.int64)
    return PowerSpans(
        asleep=_spans(asleep, node, start_s, end_s),
        falling=_spans(asleep, node, start_s - int(shutdown_s), start_s),
        waking=_spans(asleep & ~lasts, node, end_s, awake_s),
        out=_spans(out, node, start_s, end_s),
    )


def sleep_reasons(asleep: Spans, orders: Spans, *, within_s: int) -> Spans:
    """Return the sleeps that began soon after an order to sleep.

    Soon means at most ``within_s`` after the last order for the same node.
    """
    order = np.lexsort((orders.start_s, orders.node))
    node, at_s = orders.node[order], orders.start_s[order]
    chosen = np.zeros(len(asleep.node), dtype=bool)
    for place, (which, start_s) in enumerate(zip(asleep.node, asleep.start_s, strict=True)):
        low, high = np.searchsorted(node, [which, which + 1])
        last = np.searchsorted(at_s[low:high], start_s, side="right") - 1
        chosen[place] = last >= 0 and start_s - at_s[low + last] <= within_s
    return _spans(chosen, asleep.node, asleep.start_s, asleep.end_s)


def unread_spans(covered: Sequence[tuple[int, int]], *, n_nodes: int, begin_s: int, end_s: int) -> Spans:
    """Return every node's parts of [begin_s, end_s) outside of ``covered``."""
    gaps, at = [], begin_s
    for first, last in sorted(covered):
        if at < min(first, end_s):
            gaps.append((at, min(first, end_s)))
        at = max(at, last)
    if at < end_s:
        gaps.append((at, end_s))
    starts, ends = (np.array([gap[side] for gap in gaps], dtype=np.int64) for side in (0, 1))
    nodes = np.arange(n_nodes, dtype=np.int64)
    return Spans(node=np.repeat(nodes, len(gaps)), start_s=np.tile(starts, n_nodes), end_s=np.tile(ends, n_nodes))


def node_times(
    *,
    n_nodes: int,
    begin_s: int,
    end_s: int,
    busy: Spans,
    power: PowerSpans,
    unread_jobs: Spans,
    unread_events: Spans,
    by_helios: Spans,
) -> NodeTimes:
    """Return the state of each node at each moment of [begin_s, end_s).

    A node that holds a job is awake, whatever an event says. Events outside of the time for which events were read do
    not count. Where neither jobs nor events say anything, a node is idle if both were read.
    """
    layers = [busy, unread_events, power.asleep, power.falling, power.waking, power.out, unread_jobs, by_helios]
    node, at_s, counts = _swept([layer.within(begin_s, end_s) for layer in layers], n_nodes, begin_s, end_s)
    within = node[:-1] == node[1:]
    kept = within & (at_s[:-1] < at_s[1:])
    works, no_events, asleep, falling, waking, out, no_jobs, helios = (count[:-1][kept] > 0 for count in counts)
    state = np.select(
        [works, no_events & no_jobs, no_events, asleep, falling, waking, out, no_jobs],
        [
            NodePowerState.BUSY,
            NodePowerState.UNKNOWN,
            NodePowerState.UNSEEN,
            NodePowerState.ASLEEP,
            NodePowerState.FALLING_ASLEEP,
            NodePowerState.WAKING,
            NodePowerState.OUT,
            NodePowerState.UNKNOWN,
        ],
        default=NodePowerState.IDLE,
    )
    return NodeTimes(
        node=node[:-1][kept],
        start_s=at_s[:-1][kept],
        end_s=at_s[1:][kept],
        state=state.astype(np.int8),
        by_helios=helios,
    )


def count_wakes(times: NodeTimes, *, begin_s: int) -> int:
    """Return how often a sleeping node came back into service.

    Counts sleeps that ended at ``begin_s`` or later.
    """
    last = (
        (times.state[:-1] == NodePowerState.ASLEEP)
        & (times.node[1:] == times.node[:-1])
        & (times.end_s[:-1] >= begin_s)
    )
    return int(
        (last & np.isin(times.state[1:], (NodePowerState.WAKING, NodePowerState.BUSY, NodePowerState.IDLE))).sum()
    )


def sum_by_bin(
    spans: Spans, *, edges_s: NDArray[np.int64], group: NDArray[np.int64], n_groups: int
) -> NDArray[np.float64]:
    """Return the weighted seconds of each node group in each time bin.

    Parameters
    ----------
    edges_s : int64 array of shape (n_bins + 1,)
        Ascending.
    group : int64 array of shape (n_nodes,)
        The group of each node.

    Returns
    -------
    float64 array of shape (n_groups, n_bins)
    """
    n_bins = len(edges_s) - 1
    inside = spans.within(int(edges_s[0]), int(edges_s[-1]))
    weight = np.ones(len(inside.node)) if inside.weight is None else inside.weight
    row = group[inside.node]
    first = np.searchsorted(edges_s, inside.start_s, side="right") - 1
    last = np.searchsorted(edges_s, inside.end_s, side="left") - 1
    shape = (n_groups, n_bins + 1)
    # Count all bins from the first to the last as full, then subtract what lies outside of the span at both ends.
    began = _summed(row, first, weight, shape) - _summed(row, last + 1, weight, shape)
    full = np.cumsum(began, axis=1)[:, :n_bins] * np.diff(edges_s)
    too_early = _summed(row, first, weight * (inside.start_s - edges_s[first]), shape)
    too_late = _summed(row, last, weight * (edges_s[last + 1] - inside.end_s), shape)
    # Differences of large sums leave rounding errors of 1e-12 around zero.
    found: NDArray[np.float64] = np.maximum(full - (too_early + too_late)[:, :n_bins], 0.0)
    return found


def seconds(moments: pd.Series[Any]) -> NDArray[np.int64]:
    """Return moments as whole seconds since the epoch."""
    found: NDArray[np.int64] = moments.to_numpy(dtype="datetime64[s]").astype(np.int64)
    return found


def _swept(
    layers: Sequence[Spans], n_nodes: int, begin_s: int, end_s: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return all moments of change, with the open spans of each layer.

    Sorted by node and time. The last item has, for each layer, how many of its spans hold from each moment on.
    """
    nodes = np.arange(n_nodes, dtype=np.int64)
    node = np.concatenate([nodes, nodes, *(layer.node for layer in layers for _ in range(2))])
    at_s = np.concatenate(
        [
            np.full(n_nodes, begin_s, dtype=np.int64),
            np.full(n_nodes, end_s, dtype=np.int64),
            *(side for layer in layers for side in (layer.start_s, layer.end_s)),
        ]
    )
    order = np.lexsort((at_s, node))
    counts, offset = [], 2 * n_nodes
    for layer in layers:
        size = len(layer.node)
        steps = np.zeros(len(node), dtype=np.int64)
        steps[offset : offset + size], steps[offset + size : offset + 2 * size] = 1, -1
        # Each span ends on its own node, so that one cumulative sum over all nodes starts at 0 for each.
        counts.append(np.cumsum(steps[order]))
        offset += 2 * size
    return node[order], at_s[order], counts


def _spans(
    chosen: NDArray[np.bool_], node: NDArray[np.int64], start_s: NDArray[np.int64], end_s: NDArray[np.int64]
) -> Spans:
    chosen = chosen & (start_s < end_s)
    return Spans(node=node[chosen], start_s=start_s[chosen], end_s=end_s[chosen])


def _summed(
    row: NDArray[np.int64], column: NDArray[np.int64], values: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.float64]:
    flat: NDArray[np.float64] = np.bincount(
        row * shape[1] + column, weights=values, minlength=shape[0] * shape[1]
    ).astype(np.float64)
    return flat.reshape(shape)
