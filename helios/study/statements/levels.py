"""Findings on the utilisation of a cluster.

Use is never clipped at the capacity, so it can be above 100 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from helios.metrics.blocks import WEEK_HOURS, Blocks, Estimate, Finding, Question, unknown_finding
from helios.metrics.history import NEVER_S, Flags, Floats, Seconds, StudyHistory, share
from helios.metrics.node_usage import BusyIntervals
from helios.study.capacity import Capacity, NodeShapes, peak_in_steps
from helios.study.statements.idle import MISSING_CAPACITY, MISSING_PARTITIONS, MISSING_STARTS
from helios.units import DAY_S, HOUR_S

LONG_IDLE_S = 3600
"""Time from which on an idle node is worth putting to sleep, s."""
LARGE_SHARE = 0.5
"""Share of its partition above which a job is large."""
LEAST_CAPACITY = 0.05
"""Share of the capacity below which a partition does not count for the range."""
MISSING_NODES = "on which nodes jobs ran"
MISSING_GPUS = "GPUs"


def idle_nodes(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return finding 4, the share of node hours in long idle spells.

    Nodes that are out of service are neither idle nor counted.
    """
    if not history.has_starts:
        return unknown_finding(Question.IDLE_NODES, MISSING_STARTS)
    placement = capacity.placement
    if placement is None or capacity.nodes is None:
        return _idle_nodes_at_least(history, capacity)
    nodes = capacity.nodes
    busy = placement.intervals(history)
    node_of_interval = pd.Index(nodes.names).get_indexer(pd.Index(busy.names)).astype(np.int64)[busy.node]
    is_known, n_nodes = node_of_interval >= 0, len(nodes.names)
    # A spell is between two intervals in which a node was busy or out of service, or a bound of the window.
    every_node = np.arange(n_nodes, dtype=np.int64)
    not_idle = BusyIntervals(
        names=nodes.names,
        node=np.concatenate([node_of_interval[is_known], nodes.out.node, every_node, every_node]),
        start_s=np.concatenate(
            [
                busy.start_s[is_known],
                nodes.out.start_s,
                np.full(n_nodes, history.first_s - 1),
                np.full(n_nodes, history.end_s),
            ]
        ),
        end_s=np.concatenate(
            [
                busy.end_s[is_known],
                nodes.out.end_s,
                np.full(n_nodes, history.first_s),
                np.full(n_nodes, history.end_s + 1),
            ]
        ),
    ).merged()
    same_node = not_idle.node[1:] == not_idle.node[:-1]
    node = not_idle.node[1:][same_node]
    begins_s, ends_s = not_idle.end_s[:-1][same_node], not_idle.start_s[1:][same_node]
    long = ends_s - begins_s > LONG_IDLE_S
    node, begins_s, ends_s = node[long], begins_s[long], ends_s[long]
    ones = np.ones(len(node))
    idle_s = history.blocks.spread(begins_s, ends_s, ones)
    out_s = history.blocks.spread(nodes.out.start_s, nodes.out.end_s, np.ones(len(nodes.out.node)))
    served_s = history.blocks.seconds * n_nodes - out_s
    units_s = history.blocks.spread(begins_s, ends_s, nodes.units[node])
    return _idle_finding(
        history,
        by_block=[idle_s, served_s],
        n=n_nodes,
        coverage=placement.coverage,
        unit_hours=float(units_s.sum()) / HOUR_S,
        spells=len(node),
        mean_spell_h=float((ends_s - begins_s).mean()) / HOUR_S if len(node) else None,
        bounds={"at_least": capacity.at_least, "level": "nodes"},
    )


def utilization(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return finding 5, the mean share in use and its swing."""
    if missing := _missing_levels(history, capacity):
        return unknown_finding(Question.UTILIZATION, missing)
    used, served = _by_block(history, capacity)
    edges_s = history.step_edges_s
    begins_s, in_service = edges_s[:-1], capacity.in_service(edges_s)
    in_use = history.held(edges_s, capacity.pools_of(history) >= 0)
    share = np.divide(in_use, in_service, out=np.full(len(in_use), np.nan), where=in_service > 0)
    by_hour = _by_hour_of_week(share, begins_s, history.timezone)
    known = by_hour[np.isfinite(by_hour)]
    low, high = (history.blocks.quantile(share, begins_s, at).bounded() for at in (0.05, 0.95))
    return Finding(
        question=Question.UTILIZATION,
        estimate=history.blocks.ratio(used.sum(axis=0), served.sum(axis=0)).bounded(),
        n=int(((history.hours() > 0) & (capacity.pools_of(history) >= 0)).sum()),
        coverage=_coverage(history, capacity),
        parts={
            "p5": _plain_estimate(low),
            "p95": _plain_estimate(high),
            "swing": float(known.max() - known.min()) if len(known) else None,
            "by_hour_of_week": [float(value) if np.isfinite(value) else None for value in by_hour],
            "mean_capacity": float(capacity.unit_hours.sum()) * HOUR_S / (history.end_s - history.first_s),
            "capacity": capacity.source,
            "at_least": capacity.at_least,
        },
    )


def imbalance(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return finding 6, the imbalance between partitions, weighted by capacity."""
    if missing := _missing_levels(history, capacity):
        return unknown_finding(Question.IMBALANCE, missing)
    used, served = _by_block(history, capacity)
    in_service = served.sum(axis=1) > 0
    if in_service.sum() < 2:
        return unknown_finding(Question.IMBALANCE, MISSING_PARTITIONS, n=int(in_service.sum()))
    used, served = used[in_service], served[in_service]
    names = [name for name, is_served in zip(capacity.pools, in_service, strict=True) if is_served]
    filled = np.flatnonzero(served.sum(axis=0) > 0)
    total_used, total_served = used.sum(axis=1), served.sum(axis=1)
    deviations = [_deviation(total_used - used[:, block], total_served - served[:, block]) for block in filled]
    leave_one_out = np.array([value for value in deviations if np.isfinite(value)])
    shares, weight = total_used / total_served, total_served / total_served.sum()
    large = shares[weight >= LEAST_CAPACITY]
    return Finding(
        question=Question.IMBALANCE,
        estimate=history.blocks.estimate(_deviation(total_used, total_served), leave_one_out).bounded(),
        n=len(names),
        coverage=_coverage(history, capacity),
        parts={
            "range": float(large.max() - large.min()) if len(large) > 1 else None,
            "by_partition": {
                name: {"utilization": float(share), "share_of_capacity": float(weight_of_pool)}
                for name, share, weight_of_pool in zip(names, shares, weight, strict=True)
            },
            "at_least": capacity.at_least,
        },
    )


def large_and_long(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return finding 17, the share of hours in jobs above a day.

    Its parts are the hours and waits of jobs above half of their partition. A job that still runs has run up to the end
    of the window.
    """
    ran_s = np.where(
        np.isfinite(history.run_time_s),
        history.run_time_s,
        np.where(history.started_s < history.end_s, history.end_s - history.started_s, 0),
    )
    long = ran_s > DAY_S
    hours, all_hours = history.hours_by_block(long), history.hours_by_block()
    estimate = history.blocks.ratio(hours, all_hours).bounded(0.0, 1.0)
    if estimate.value is None:
        return unknown_finding(Question.LARGE_AND_LONG_JOBS, "run times of jobs")
    return Finding(
        question=Question.LARGE_AND_LONG_JOBS,
        estimate=estimate,
        n=int((long & (history.size > 0) & (history.hours() > 0)).sum()),
        coverage=float(
            (np.isfinite(history.run_time_s) | (history.started_s < NEVER_S))[history.sized & history.ran].mean()
        )
        if (history.sized & history.ran).any()
        else None,
        hours_per_week=float(hours.sum()) / history.weeks,
        parts=_above_half(history, capacity, all_hours),
    )


def cpu_jobs_on_gpu_nodes(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return finding 20, CPU jobs on GPU nodes that jobs waited for.

    The unit is node hours a week. Several CPU jobs on a node count once. Where the nodes of jobs are not known, a CPU
    job is taken to hold the nodes that it requested, alone, if all nodes of its partition have GPUs.
    """
    if history.resource != "gpus":
        return unknown_finding(Question.CPU_JOBS_ON_GPU_NODES, MISSING_GPUS)
    if not history.has_starts:
        return unknown_finding(Question.CPU_JOBS_ON_GPU_NODES, MISSING_STARTS)
    placement, nodes = capacity.placement, capacity.nodes
    if nodes is None:
        return unknown_finding(Question.CPU_JOBS_ON_GPU_NODES, MISSING_NODES)
    if placement is None:
        return _cpu_jobs_by_partition(history, capacity, nodes)
    node_number = pd.Index(nodes.names).get_indexer(pd.Index(placement.names)).astype(np.int64)[placement.node]
    begins_s = np.maximum(history.started_s[placement.job], history.first_s)
    ends_s = np.minimum(history.ended_s[placement.job], history.end_s)
    is_cpu_job = (node_number >= 0) & history.without[placement.job] & (ends_s > begins_s)
    held = BusyIntervals(
        names=nodes.names, node=node_number[is_cpu_job], start_s=begins_s[is_cpu_job], end_s=ends_s[is_cpu_job]
    ).merged()
    groups, group_of_node = np.unique(nodes.member, axis=0, return_inverse=True)
    return _beside_queue(
        history,
        capacity,
        held=(held.start_s, held.end_s, np.ones(len(held.node)), group_of_node.ravel()[held.node]),
        wanted_by=groups,
        n=len(np.unique(placement.job[is_cpu_job])),
        coverage=placement.coverage,
        parts={"level": "nodes", "nodes": len(nodes.names)},
    )


def _idle_finding(
    history: StudyHistory,
    *,
    by_block: Sequence[Floats],
    n: int,
    coverage: float | None,
    unit_hours: float,
    spells: int,
    mean_spell_h: float | None,
    bounds: Mapping[str, Any],
) -> Finding:
    """Return finding 4 from node seconds idle and in service by block."""
    idle_s, served_s = by_block
    return Finding(
        question=Question.IDLE_NODES,
        estimate=history.blocks.ratio(idle_s, served_s).bounded(0.0, 1.0),
        n=n,
        coverage=coverage,
        hours_per_week=unit_hours / history.weeks,
        parts={
            "node_hours_per_week": float(idle_s.sum()) / HOUR_S / history.weeks,
            "spells_per_day": spells / ((history.end_s - history.first_s) / DAY_S),
            "mean_spell_h": mean_spell_h,
            "longer_than_h": LONG_IDLE_S / HOUR_S,
            **bounds,
            "hours_by_block": (idle_s / HOUR_S).tolist(),
            "served_hours_by_block": (served_s / HOUR_S).tolist(),
        },
    )


def _idle_nodes_at_least(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return a lower bound of idle nodes where jobs' nodes are unknown.

    A job is taken to hold as many nodes as it requested, at most one for each of its GPUs. Nodes are taken to be filled
    in one order, so that the same ones stay idle. A step counts with its peak use.
    """
    per_node = np.array(capacity.units_per_node, dtype=np.float64)
    per_node = np.maximum(per_node, 1.0) if capacity.source == "given" else per_node
    if not len(per_node) or not (per_node > 0).all() or not capacity.total.any():
        return unknown_finding(Question.IDLE_NODES, MISSING_NODES)
    edges_s, pool = history.step_edges_s, capacity.pools_of(history)
    length_s = np.diff(edges_s)
    idle_s, units_s, n_spells, nodes = np.zeros(len(length_s)), 0.0, 0, 0
    served_s = np.zeros(len(length_s))
    for number in range(len(capacity.pools)):
        in_pool = np.flatnonzero((pool == number) & (history.started_s < history.end_s))
        requested = np.nan_to_num(history.nodes[in_pool], nan=np.inf)
        held = np.maximum(np.minimum(requested, np.maximum(history.size[in_pool], 1)), 1).astype(np.int64)
        busy = peak_in_steps(history.started_s[in_pool], history.ended_s[in_pool], held, edges_s)
        n_nodes = np.floor(capacity.in_service(edges_s, (number,)) / per_node[number])
        idle, max_nodes = np.maximum(n_nodes - busy, 0).astype(np.int64), int(n_nodes.max())
        for rank in range(1, max_nodes + 1):
            begins, ends = _runs(idle >= rank)
            is_long = edges_s[ends] - edges_s[begins] > LONG_IDLE_S
            change = np.bincount(begins[is_long], minlength=len(edges_s)) - np.bincount(
                ends[is_long], minlength=len(edges_s)
            )
            idle_of_node_s = np.cumsum(change)[:-1] * length_s
            idle_s += idle_of_node_s
            units_s += float(idle_of_node_s.sum()) * per_node[number]
            n_spells += int(is_long.sum())
        served_s += n_nodes * length_s
        nodes += max_nodes
    total_s = float(idle_s.sum())
    return _idle_finding(
        history,
        by_block=[history.blocks.sum(edges_s[:-1], seconds) for seconds in (idle_s, served_s)],
        n=nodes,
        coverage=_coverage(history, capacity),
        unit_hours=units_s / HOUR_S,
        spells=n_spells,
        mean_spell_h=total_s / HOUR_S / n_spells if n_spells else None,
        bounds={"at_least": True, "lower_bound": True, "level": "counts"},
    )


def _runs(flags: Flags) -> tuple[Seconds, Seconds]:
    """Return where runs of true flags begin, and where they end."""
    change = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    return np.flatnonzero(change == 1), np.flatnonzero(change == -1)


def _cpu_jobs_by_partition(history: StudyHistory, capacity: Capacity, nodes: NodeShapes) -> Finding:
    """Return finding 20 from the partitions of jobs, an upper bound.

    It is not known where a CPU job ran if its partition has nodes with and without GPUs.
    """
    ran = history.without & (history.started_s < history.end_s) & (history.ended_s > history.first_s)
    share_with = np.append(nodes.share_with, np.nan)[history.partition.code]
    if (ran & (share_with != 0) & (share_with != 1)).any():
        return unknown_finding(Question.CPU_JOBS_ON_GPU_NODES, MISSING_NODES, n=int(ran.sum()))
    cpu_jobs = np.flatnonzero(ran & (share_with == 1))
    requested = history.nodes[cpu_jobs]
    shared = nodes.member.astype(np.int64)
    return _beside_queue(
        history,
        capacity,
        held=(
            history.started_s[cpu_jobs],
            history.ended_s[cpu_jobs],
            np.maximum(np.nan_to_num(requested, nan=1.0), 1.0),
            history.partition.code[cpu_jobs].astype(np.int64),
        ),
        wanted_by=shared.T @ shared > 0,
        n=len(cpu_jobs),
        coverage=float(np.isfinite(requested).mean()) if len(cpu_jobs) else 1.0,
        parts={"level": "partitions", "nodes": None, "upper_bound": True},
    )


def _beside_queue(
    history: StudyHistory,
    capacity: Capacity,
    *,
    held: tuple[Seconds, Seconds, Floats, Seconds],
    wanted_by: Flags,
    n: int,
    coverage: float,
    parts: dict[str, Any],
) -> Finding:
    """Return finding 20 from the nodes held by CPU jobs.

    Parameters
    ----------
    held : tuple of arrays
        Begin and end of each interval, how many nodes, and the group of these nodes.
    wanted_by : bool array of shape (n_groups, n_partition_names)
        Whether jobs of a partition may wait for nodes of the group.
    """
    begins_s, ends_s, nodes, group = held
    code, until_s = history.partition.code, history.waiting_until_s
    in_queue = (history.size > 0) & (until_s > np.maximum(history.eligible_s, history.first_s))
    while_waiting = np.zeros(history.blocks.n)
    for number in np.unique(group):
        mine = group == number
        is_waiting = in_queue & np.append(wanted_by[number], capacity.pool_of[-1] >= 0)[code]
        while_waiting += _overlap(
            (begins_s[mine], ends_s[mine], nodes[mine]),
            (history.eligible_s[is_waiting], until_s[is_waiting]),
            history.blocks,
        )
    all_hours = history.blocks.spread(begins_s, ends_s, nodes) / HOUR_S
    estimate = history.blocks.ratio(while_waiting / HOUR_S, history.blocks.seconds / (WEEK_HOURS * HOUR_S)).bounded()
    return Finding(
        question=Question.CPU_JOBS_ON_GPU_NODES,
        estimate=estimate,
        n=n,
        coverage=coverage,
        hours_per_week=estimate.value,
        parts={"node_hours_per_week": float(all_hours.sum()) / history.weeks} | parts,
    )


def _missing_levels(history: StudyHistory, capacity: Capacity) -> str:
    if not history.has_starts:
        return MISSING_STARTS
    return "" if capacity.total.any() else MISSING_CAPACITY


def _coverage(history: StudyHistory, capacity: Capacity) -> float | None:
    """Return the share of hours held in pools of known capacity."""
    hours = history.hours()
    return share(hours[capacity.pools_of(history) >= 0], hours)


def _by_block(history: StudyHistory, capacity: Capacity) -> tuple[Floats, Floats]:
    """Return used and available hours by pool and block."""
    pool, blocks = capacity.pools_of(history), history.blocks
    used = history.hours_of_groups(pool, len(capacity.pools))
    day_hours = np.diff(capacity.edges_s) / HOUR_S
    served = [blocks.sum(capacity.edges_s[:-1], units * day_hours) for units in capacity.units]
    return used, np.array(served)


def _deviation(used: Floats, served: Floats) -> float:
    """Return the weighted deviation of utilisation."""
    in_service = served > 0
    used, served = used[in_service], served[in_service]
    if not len(served):
        return float("nan")
    share, mean = used / served, used.sum() / served.sum()
    return float(np.sqrt(np.sum(served * (share - mean) ** 2) / served.sum()))


def _by_hour_of_week(share: Floats, begins_s: Seconds, timezone: str) -> Floats:
    """Return the mean of a series in each local hour of the week.

    The first hour is Monday 0 h.
    """
    local = pd.to_datetime(begins_s, unit="s", utc=True).tz_convert(timezone)
    hour = np.asarray(local.day_of_week) * 24 + np.asarray(local.hour)
    known = np.isfinite(share)
    count = np.bincount(hour[known], minlength=WEEK_HOURS)
    total = np.bincount(hour[known], weights=share[known], minlength=WEEK_HOURS)
    means: Floats = np.divide(total, count, out=np.full(WEEK_HOURS, np.nan), where=count > 0)
    return means


def _plain_estimate(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _above_half(history: StudyHistory, capacity: Capacity, all_hours: Floats) -> dict[str, Any]:
    """Return the hours and waits of jobs above half of their partition."""
    pool = capacity.pools_of(history)
    served = capacity.units.mean(axis=1) if len(capacity.pools) else np.zeros(0)
    if not served.any():
        return {"above_half": None, "above_half_missing": MISSING_CAPACITY}
    large = (pool >= 0) & (history.size > LARGE_SHARE * served[pool])
    estimate = history.blocks.ratio(history.hours_by_block(large), all_hours).bounded(0.0, 1.0)
    first = history.sized & (history.restart == 0) & (pool >= 0) & (served[pool] > 0)
    return {
        "above_half": _plain_estimate(estimate),
        "above_half_jobs": int((large & history.sized).sum()),
        "mean_wait_above_half_h": _mean_wait_h(history, first & large),
        "mean_wait_of_others_h": _mean_wait_h(history, first & ~large),
        "drain_hours_per_week": _drain_hours(history, capacity, large) / history.weeks if history.has_starts else None,
        "above_half_missing": "",
    }


def _drain_hours(history: StudyHistory, capacity: Capacity, large: Flags) -> float:
    """Return idle hours while large jobs waited.

    A large job requests more than half of its partition. The result is an upper bound of what was kept free for them.
    """
    pool, until_s, total = capacity.pools_of(history), history.waiting_until_s, 0.0
    begins_s = np.maximum(history.eligible_s, history.first_s)
    waited = large & (until_s > begins_s)
    for number in np.unique(pool[waited]):
        in_pool = waited & (pool == number)
        union = _union(begins_s[in_pool], until_s[in_pool])
        edges_s = np.unique(np.concatenate([union.start_s, union.end_s, capacity.edges_s]))
        idle = capacity.in_service(edges_s, (int(number),)) - history.held(edges_s, pool == number)
        is_waiting = np.searchsorted(union.start_s, edges_s[:-1], side="right") > np.searchsorted(
            union.end_s, edges_s[:-1], side="right"
        )
        total += float(np.sum(np.where(is_waiting, np.maximum(idle, 0.0), 0.0) * np.diff(edges_s)))
    return total / HOUR_S


def _mean_wait_h(history: StudyHistory, chosen: Flags) -> float | None:
    """Return the mean wait of the chosen jobs that started, h."""
    wait_s = history.wait_s[chosen]
    wait_s = wait_s[np.isfinite(wait_s)]
    return float(np.maximum(wait_s, 0).mean()) / HOUR_S if len(wait_s) else None


def _union(from_s: Seconds, to_s: Seconds) -> BusyIntervals:
    """Return the union of intervals."""
    node = np.zeros(len(from_s), dtype=np.int64)
    return BusyIntervals(names=("queue",), node=node, start_s=from_s, end_s=to_s).merged()


def _overlap(held: tuple[Seconds, Seconds, Floats], waits: tuple[Seconds, Seconds], blocks: Blocks) -> Floats:
    """Return the overlap of intervals by block.

    The unit is that of the weight times s.
    """
    begins_s, ends_s, weight = held
    union = _union(*waits)
    edges_s = np.column_stack([union.start_s, union.end_s]).ravel()
    passed_s = np.concatenate([[0], np.cumsum(union.end_s - union.start_s)])

    def until(moment_s: Seconds) -> Seconds:
        """Return how much of the union is before each moment, s."""
        edge = np.searchsorted(edges_s, moment_s, side="right")
        is_inside = edge % 2 == 1
        begun_s = edges_s[np.maximum(edge - 1, 0)] if len(edges_s) else np.zeros(len(moment_s), dtype=np.int64)
        return passed_s[edge // 2] + np.where(is_inside, moment_s - begun_s, 0)

    # On a clock that stops outside the union, every interval is as long as its overlap.
    return replace(blocks, edges_s=until(blocks.edges_s)).spread(until(begins_s), until(ends_s), weight)
