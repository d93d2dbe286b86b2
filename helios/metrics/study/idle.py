"""GPUs that idle while jobs wait, by one sweep over the events.

A job waits from the moment it could start until it starts. At a moment the jobs that wait are placed, oldest first, on
what is free: in their own partitions, then on other nodes. What could be placed elsewhere idled beside waiting jobs.

Where the nodes of a cluster and of its jobs are known, a job needs free GPUs, CPUs and memory on as many nodes as it
asks for, of the type it asks for. Elsewhere the GPUs of a pool are counted, and a job fits where enough of them are
free: an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, inline_jit
from helios.metrics.study.blocks import WEEK_HOURS, Finding, unknown_finding
from helios.metrics.study.capacity import LEAST_PLACED, Capacity, HeldNodes, NodeShapes
from helios.metrics.study.history import NEVER_S, Floats, Seconds, StudyHistory
from helios.units import HOUR_S

IDLE, WAITING, SAME_POOL, OWN, BEHIND_OLDEST, LENT, SENT, UNUSABLE = range(8)
"""Columns of what is measured in each pool, GPU seconds each.

SAME_POOL is the smaller of what idles and what waits in the pool. OWN is what its waiting jobs could use there,
BEHIND_OLDEST the part of it that younger jobs could use while the oldest of their partition does not fit. LENT idles in
the pool and could be used by jobs that may not run there, SENT is what jobs of the pool could use elsewhere. UNUSABLE
is what remains free while jobs of the partition still wait, none of which fits.
"""
TYPE, TOO_FEW, SCATTERED, CPUS, MEMORY, OTHER_NODES = range(8, 14)
"""Columns with the reasons of UNUSABLE, of several that which comes closest to a fit."""
MEASURES = 14
REASONS = {
    "another GPU type": (TYPE,),
    "too few free": (TOO_FEW,),
    "scattered over nodes": (SCATTERED, OTHER_NODES),
    "CPUs taken": (CPUS,),
    "memory taken": (MEMORY,),
}
POOLED, BOTH_S, MEASURED_S = range(3)
"""Columns of what is measured over all pools: the smaller of all that idles and waits; time with both; time."""
TOTALS = 3
MISSING_STARTS = "when jobs started"
MISSING_CAPACITY = "what was in service"
MISSING_PARTITIONS = "several partitions with nodes of their own"
NOT_KNOWN_HERE = "not known here"
_NONE = -1
_OTHER_TYPE, _OWN, _ELSEWHERE, _OWN_OTHER_TYPE = range(4)
"""What a node is to a kind of job: nothing, its own, another partition's, its own with another type of GPU."""
_LITTLE = 1e-6
_GRAINS_S = (1, 7, 29, 61, 127, 307, 601)
"""Distances of the moments that are looked at, s: primes, so that they meet no rhythm of submissions."""
_MOST_WORK = 5e6
"""Moments x nodes above which fewer moments are looked at."""


Places = NDArray[np.int32]
"""Positions of many jobs or changes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Queue(Table):
    """Waiting jobs by eligible time, with their shapes.

    Attributes
    ----------
    eligible_s, until_s : int64 arrays of shape (n_waiting + 1,)
        From when to when a job waited, the second later than the first; ``NEVER_S`` at the end of each.
    by_end : int32 array of shape (n_waiting + 1,)
        The jobs in the order of ``until_s``.
    shape : int32 array of shape (n_waiting,)
        Row in the arrays below.
    nodes : int64 array of shape (n_shapes,)
        Nodes that a job needs; 1 where pools are counted.
    need : float64 array of shape (n_shapes, n_resources)
        What it needs of each of them.
    size : float64 array of shape (n_shapes,)
        GPUs that it would hold.
    kind, pool, partition : int64 arrays of shape (n_shapes,)
        Row of ``Machines.relation``, and what it belongs to.
    """

    eligible_s: Seconds
    until_s: Seconds
    by_end: Places
    shape: Places
    nodes: Seconds
    need: Floats
    size: Floats
    kind: Seconds
    pool: Seconds
    partition: Seconds


@dataclass(frozen=True, kw_only=True, eq=False)
class Machines(Table):
    """What is free, and how that changes.

    A machine is a node, or a whole pool where nodes are not known.

    Attributes
    ----------
    free : float64 array of shape (n_machines, n_resources)
        At the beginning; the first resource is the one of the study.
    pool : int64 array of shape (n_machines,)
    relation : int64 array of shape (n_kinds, n_machines)
        What each machine is to each kind of job.
    at_s : int64 array of shape (n_changes + 1,)
        When what is free changes, in order; ``NEVER_S`` at the end.
    machine : int32 array of shape (n_changes,)
    change : float64 array of shape (n_changes, n_resources)
    """

    free: Floats
    pool: Seconds
    relation: Seconds
    at_s: Seconds
    machine: Places
    change: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdleByDay:
    """Idle units beside waiting jobs, by day.

    Attributes
    ----------
    pools : float64 array of shape (n_days, n_pools, MEASURES)
        GPU seconds.
    totals : float64 array of shape (n_days, TOTALS)
        GPU seconds, and seconds.
    level : str
        ``nodes`` or ``counts``: how true it is to the shape of nodes.
    waited : int
        Jobs that waited.
    coverage : float
        Share of the jobs submitted in the window whose wait is known.
    """

    pools: Floats
    totals: Floats
    level: str
    waited: int
    coverage: float


def idle_by_day(history: StudyHistory, capacity: Capacity) -> IdleByDay:
    """Return the idle units beside waiting jobs by day."""
    waits = _Waits.of(history, capacity)
    if capacity.nodes is not None and capacity.placement is not None:
        queue, machines = _count_by_node(history, capacity, waits, capacity.nodes, capacity.placement)
        level = "nodes"
    else:
        queue, machines = _count_by_pool(history, capacity, waits)
        level = "counts"
    state = _State.before(queue, machines, n_pools=len(capacity.pools), are_pools=level == "counts")
    pools, totals = _measured(queue, machines, state, capacity.edges_s)
    return IdleByDay(pools=pools, totals=totals, level=level, waited=len(waits.job), coverage=waits.coverage)


def idle_beside_waiting(
    history: StudyHistory, capacity: Capacity, found: IdleByDay | None = None
) -> tuple[Finding, ...]:
    """Return findings 1, 2 and 3, each in GPU hours a week.

    They are what could be used by jobs of other partitions, what no waiting job could use, and what younger jobs could
    use while the oldest does not fit.

    Parameters
    ----------
    found : IdleByDay, optional
        What ``idle_by_day`` returned, where it is known already.
    """
    if not history.has_starts:
        return tuple(unknown_finding(number, MISSING_STARTS) for number in (1, 2, 3))
    if not len(capacity.pools) or not capacity.total.any():
        return tuple(unknown_finding(number, MISSING_CAPACITY) for number in (1, 2, 3))
    found = found or idle_by_day(history, capacity)
    weeks, why, known = history.weeks, found.pools.sum(axis=(0, 1)) / HOUR_S, found.level == "nodes"
    reasons = {name: float(why[list(columns)].sum()) / weeks for name, columns in REASONS.items()}
    unusable = {
        "reasons": reasons if known else None,
        "reasons_missing": "" if known else NOT_KNOWN_HERE,
        "by_partition": _hours_by_pool(capacity, found, UNUSABLE, weeks),
    }
    behind_oldest = {
        "fits_at_all": float(found.pools[:, :, OWN].sum()) / HOUR_S / weeks,
        "by_partition": _hours_by_pool(capacity, found, BEHIND_OLDEST, weeks),
    }
    return (
        _finding_elsewhere(history, capacity, found),
        _finding(2, UNUSABLE, history, capacity, found, more=unusable),
        _finding(3, BEHIND_OLDEST, history, capacity, found, more=behind_oldest),
    )


def _measured(queue: Queue, machines: Machines, state: _State, edges_s: Seconds) -> tuple[Floats, Floats]:
    """Return the measures of each step, by pool and in total."""
    n_steps, n_events = len(edges_s) - 1, len(machines.machine) + 2 * len(queue.shape)
    pools, totals = np.zeros((n_steps, *state.rates.shape)), np.zeros((n_steps, TOTALS))
    grain_s = _sampling_step_s(int(edges_s[-1] - edges_s[0]), n_events, len(machines.free) + len(queue.nodes) // 10)
    _sweep(queue, machines, state, edges_s, grain_s, pools, totals)
    if grain_s > 1:
        measured = totals[:, MEASURED_S]
        scale = np.divide(np.diff(edges_s), measured, out=np.zeros(n_steps), where=measured > 0)
        pools *= scale[:, None, None]
        totals *= scale[:, None]
    return pools, totals


def _sampling_step_s(window_s: int, n_events: int, work: int) -> int:
    """Return the sampling interval, at least 1 s."""
    for grain_s in _GRAINS_S:
        if min(n_events, window_s // grain_s) * (20 + work) <= _MOST_WORK:
            return grain_s
    return _GRAINS_S[-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waits:
    """Jobs that waited in the window, by eligible time."""

    job: Seconds
    eligible_s: Seconds
    until_s: Seconds
    coverage: float

    @classmethod
    def of(cls, history: StudyHistory, capacity: Capacity) -> _Waits:
        until_s = history.waiting_until_s
        asked = (history.size > 0) & (capacity.pools_of(history) >= 0)
        waited = asked & (until_s > np.maximum(history.eligible_s, history.first_s))
        job = np.flatnonzero(waited)
        job = job[np.argsort(history.eligible_s[job], kind="stable")]
        here = history.submitted & (history.size > 0)
        coverage = float((asked & (until_s > _NONE))[here].mean()) if here.any() else 1.0
        return cls(
            job=job,
            eligible_s=np.append(history.eligible_s[job], NEVER_S),
            until_s=np.append(until_s[job], NEVER_S),
            coverage=coverage,
        )


def _count_by_pool(history: StudyHistory, capacity: Capacity, waits: _Waits) -> tuple[Queue, Machines]:
    """Return the queue and the machines where only counts are known."""
    pool_of = capacity.pools_of(history)
    n_pools = len(capacity.pools)
    per_node = np.array(capacity.units_per_node or [0] * n_pools, dtype=np.int64)[pool_of[waits.job]]
    size = history.size[waits.job]
    # What is larger than a node comes in whole nodes.
    need = np.where((per_node > 0) & (size > per_node), -(-size // np.maximum(per_node, 1)) * per_node, size)
    shapes, shape = _distinct([pool_of[waits.job], size, need])
    queue = Queue(
        eligible_s=waits.eligible_s,
        until_s=waits.until_s,
        by_end=np.argsort(waits.until_s, kind="stable").astype(np.int32),
        shape=shape,
        nodes=np.ones(len(shapes), dtype=np.int64),
        need=np.ascontiguousarray(shapes[:, 2:3]),
        size=np.ascontiguousarray(shapes[:, 1]),
        kind=shapes[:, 0].astype(np.int64),
        pool=shapes[:, 0].astype(np.int64),
        partition=shapes[:, 0].astype(np.int64),
    )
    # Of 10^7 jobs each of these takes 80 MB.
    del size, need, per_node
    held = (history.size > 0) & (pool_of >= 0) & (history.ended_s > history.first_s)
    held &= (history.started_s < history.end_s) & (history.ended_s > history.started_s)
    number = np.arange(n_pools)
    steps_s = np.repeat(capacity.edges_s[1:-1], n_pools)
    rises = np.diff(capacity.units, axis=1).T.ravel()
    changed = rises != 0
    return queue, _machines(
        free=capacity.units[:, :1],
        pool=number,
        relation=np.where(number[:, None] == number, _OWN, _ELSEWHERE),
        holds=(
            history.started_s[held],
            history.ended_s[held],
            pool_of[held].astype(np.int32),
            history.size[held][:, None],
        ),
        steps=(steps_s[changed], np.tile(number, len(capacity.edges_s) - 2)[changed], rises[changed][:, None]),
    )


def _count_by_node(
    history: StudyHistory, capacity: Capacity, waits: _Waits, nodes: NodeShapes, placement: HeldNodes
) -> tuple[Queue, Machines]:
    """Return the queue and the machines where jobs' nodes are known."""
    total = np.column_stack([nodes.units, *_other_resources(history, nodes, placement)])
    shapes, shape = _shapes_of_nodes(history, capacity, waits, nodes, n_resources=total.shape[1])
    kinds, kind = _distinct(list(shapes[:, :2].T))
    type_name = ("", *history.gpu_type.values)
    relation = np.zeros((len(kinds), len(nodes.names)), dtype=np.int64)
    types = [set(text.split(",")) for text in nodes.gpu_type]
    for row, (partition, kind_of_gpu) in enumerate(kinds.astype(np.int64)):
        own = nodes.member[:, partition] if partition >= 0 else np.ones(len(nodes.names), dtype=np.bool_)
        wanted = set(type_name[kind_of_gpu + 1].split(","))
        # A type that is not known, of either, is taken to fit.
        fits = np.array(["" in wanted | has or not wanted.isdisjoint(has) for has in types], dtype=np.bool_)
        relation[row] = np.where(fits, np.where(own, _OWN, _ELSEWHERE), np.where(own, _OWN_OTHER_TYPE, _OTHER_TYPE))
    partition = shapes[:, 0].astype(np.int64)
    queue = Queue(
        eligible_s=waits.eligible_s,
        until_s=waits.until_s,
        by_end=np.argsort(waits.until_s, kind="stable").astype(np.int32),
        shape=shape,
        nodes=shapes[:, 3].astype(np.int64),
        need=np.ascontiguousarray(shapes[:, 4:]),
        size=np.ascontiguousarray(shapes[:, 2]),
        kind=kind.astype(np.int64),
        pool=capacity.pool_of[partition],
        partition=np.where(partition >= 0, partition, len(history.partition.values)),
    )
    place = pd.Index(nodes.names).get_indexer(pd.Index(placement.names))[placement.node].astype(np.int64)
    begins_s, ends_s = history.started_s[placement.job], history.ended_s[placement.job]
    held = (place >= 0) & (ends_s > np.maximum(begins_s, history.first_s)) & (begins_s < history.end_s)
    job = placement.job[held]
    columns = [history.size, history.cpus, history.memory_mib][: total.shape[1]]
    amounts = np.column_stack([np.nan_to_num(column[job]) * placement.share[held] for column in columns])
    out = nodes.out
    return queue, _machines(
        free=total,
        pool=nodes.pool,
        relation=relation,
        holds=(
            np.concatenate([begins_s[held], out.start_s]),
            np.concatenate([ends_s[held], out.end_s]),
            np.concatenate([place[held], out.node]),
            np.concatenate([amounts, total[out.node]]),
        ),
        steps=(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros((0, total.shape[1]))),
    )


def _other_resources(history: StudyHistory, nodes: NodeShapes, placement: HeldNodes) -> list[Floats]:
    """Return CPUs and memory of nodes, where known."""
    if history.resource == "cpus" or not np.isfinite(nodes.cpus).all() or not nodes.cpus.all():
        return []
    if np.isfinite(history.cpus[placement.job]).mean() < LEAST_PLACED:
        return []
    known = np.isfinite(nodes.memory_mib).all() and bool(nodes.memory_mib.all())
    if not known or np.isfinite(history.memory_mib[placement.job]).mean() < LEAST_PLACED:
        return [nodes.cpus]
    return [nodes.cpus, nodes.memory_mib]


def _shapes_of_nodes(
    history: StudyHistory, capacity: Capacity, waits: _Waits, nodes: NodeShapes, *, n_resources: int
) -> tuple[Floats, Places]:
    """Return the distinct job shapes, and each job's index.

    Columns are the partition, the GPU type, the size, the nodes, and what is needed of each resource on each node.
    """
    job = waits.job
    largest = np.array([nodes.units[nodes.pool == number].max(initial=1) for number in range(len(capacity.pools))])
    per_node = largest[capacity.pools_of(history)[job]]
    size = history.size[job]
    asked = np.nan_to_num(history.nodes[job], nan=1.0)
    count = np.maximum(np.maximum(asked, 1.0), np.ceil(size / per_node))
    # A job of fewer GPUs than nodes still needs one of them.
    count = np.minimum(count, np.maximum(size, 1))
    wanted = history.gpu_type.code[job].astype(np.int64)
    if "tres_requested" in history.jobs.columns:
        # The type of a job that ran may be what it was given, not what it asked for.
        texts = history.jobs["tres_requested"]
        untyped = [text is not None and "gpu" in text and "gpu:" not in text for text in map(str, texts.cat.categories)]
        wanted = np.where(np.array([*untyped, False])[texts.cat.codes.to_numpy()[job]], _NONE, wanted)
    needs = [
        np.ceil(size / count),
        *(np.nan_to_num(column[job]) / count for column in (history.cpus, history.memory_mib)),
    ]
    return _distinct([history.partition.code[job], wanted, size, count, *needs[:n_resources]])


def _distinct(columns: Sequence[NDArray[Any]]) -> tuple[Floats, Places]:
    """Return distinct rows, and the index of each row."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        place, values = pd.factorize(column)
        # Numbered anew after each column, so that numbers stay below the number of rows times that of values.
        code = pd.factorize(code * len(values) + place)[0].astype(np.int64)
    first = np.zeros(int(code.max(initial=-1)) + 1, dtype=np.int64)
    first[code] = np.arange(len(code))
    return np.column_stack([column[first] for column in columns]).astype(np.float64), code.astype(np.int32)


def _machines(
    *,
    free: Floats,
    pool: Seconds,
    relation: Seconds,
    holds: tuple[Seconds, Seconds, Seconds, NDArray[Any]],
    steps: tuple[Seconds, Seconds, Floats],
) -> Machines:
    begins_s, ends_s, machine, amount = holds
    at_s = np.concatenate([begins_s, ends_s, steps[0]])
    order = np.argsort(at_s).astype(np.int32)
    at_s = np.append(at_s[order], NEVER_S)
    return Machines(
        free=np.array(free, dtype=np.float64, order="C"),
        pool=pool.astype(np.int64),
        relation=np.ascontiguousarray(relation, dtype=np.int64),
        at_s=at_s,
        machine=np.concatenate([machine, machine, steps[1]], dtype=np.int32, casting="same_kind")[order],
        change=np.concatenate([-amount, amount, steps[2]], dtype=np.float64)[order],
    )


def _finding(
    number: int, column: int, history: StudyHistory, capacity: Capacity, found: IdleByDay, *, more: dict[str, Any]
) -> Finding:
    """Return the finding of one measure, in hours a week.

    ``more`` are the parts that this finding alone has.
    """
    by_day = found.pools[:, :, column].sum(axis=1)
    hours = history.blocks.sum(capacity.edges_s[:-1], by_day / HOUR_S)
    estimate = history.blocks.ratio(hours, history.blocks.seconds / (WEEK_HOURS * HOUR_S)).bounded()
    served = float(capacity.unit_hours.sum()) * HOUR_S
    parts = {
        "level": found.level,
        "share_of_service": float(by_day.sum()) / served if served else None,
        "mean": float(by_day.sum()) / (history.end_s - history.first_s),
        "capacity": capacity.source,
        "at_least": capacity.at_least,
    }
    return Finding(
        number=number,
        estimate=estimate,
        n=found.waited,
        coverage=found.coverage,
        hours_per_week=estimate.value or 0.0,
        parts=parts | more,
    )


def _finding_elsewhere(history: StudyHistory, capacity: Capacity, found: IdleByDay) -> Finding:
    window_s = history.end_s - history.first_s
    pools, totals = found.pools.sum(axis=0) / window_s, found.totals.sum(axis=0) / window_s
    names = ("idle", "waiting", "same_partition", "lent", "sent")
    columns = (IDLE, WAITING, SAME_POOL, LENT, SENT)
    parts = {
        "mean_idle": float(pools[:, IDLE].sum()),
        "mean_waiting": float(pools[:, WAITING].sum()),
        "share_of_time_with_both": float(totals[BOTH_S]),
        "pooled": float(totals[POOLED]),
        "same_partition": float(pools[:, SAME_POOL].sum()),
        "own_partition_fits": float(pools[:, OWN].sum()),
        "other_partition_fits": float(pools[:, LENT].sum()),
        "by_partition": {
            name: {what: float(pools[place, column]) for what, column in zip(names, columns, strict=True)}
            for place, name in enumerate(capacity.pools)
        },
    }
    finding = _finding(1, LENT, history, capacity, found, more=parts)
    if _has_others(capacity, found):
        return finding
    parts = {**finding.parts, "share_of_service": None, "mean": None, "other_partition_fits": None}
    return Finding(number=1, n=found.waited, coverage=found.coverage, missing=MISSING_PARTITIONS, parts=parts)


def _has_others(capacity: Capacity, found: IdleByDay) -> bool:
    """Return whether a node may be without jobs of some partition."""
    if found.level == "nodes" and capacity.nodes is not None:
        return not capacity.nodes.member[:, capacity.nodes.member.any(axis=0)].all()
    return len(capacity.pools) > 1


def _hours_by_pool(capacity: Capacity, found: IdleByDay, column: int, weeks: float) -> dict[str, float]:
    hours = found.pools[:, :, column].sum(axis=0) / HOUR_S / weeks
    return {name: float(value) for name, value in zip(capacity.pools, hours, strict=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class _State(Table):
    """Lists and scratch space of a sweep.

    ``head``, ``tail`` (of shape (n_shapes,)), ``following`` and ``previous`` (of shape (n_waiting,)) are the jobs that
    wait, one linked list for each shape. ``cursor`` is the next one to place; ``rest`` what is free then. ``active``
    lists the shapes of which jobs wait. ``wanted`` is what all that wait in a pool need together, infinite where nodes
    are known, because there it does not say whether they fit. ``oldest`` and ``blocked`` are of each partition.
    """

    head: Seconds
    tail: Seconds
    following: Places
    previous: Places
    cursor: Seconds
    active: Seconds
    alive: NDArray[np.bool_]
    own_free: Floats
    oldest: Seconds
    blocked: NDArray[np.bool_]
    chosen: Seconds
    free: Floats
    rest: Floats
    idle: Floats
    waiting: Floats
    wanted: Floats
    rates: Floats

    @classmethod
    def before(cls, queue: Queue, machines: Machines, *, n_pools: int, are_pools: bool) -> _State:
        n_shapes, n_jobs = len(queue.nodes), len(queue.shape)
        n_partitions = int(queue.partition.max(initial=-1)) + 1
        idle = np.bincount(machines.pool, weights=np.maximum(machines.free[:, 0], 0.0), minlength=n_pools)
        return cls(
            head=np.full(n_shapes, _NONE),
            tail=np.full(n_shapes, _NONE),
            following=np.full(n_jobs, _NONE, dtype=np.int32),
            previous=np.full(n_jobs, _NONE, dtype=np.int32),
            cursor=np.full(n_shapes, _NONE),
            active=np.zeros(n_shapes, dtype=np.int64),
            alive=np.zeros(n_shapes, dtype=np.bool_),
            own_free=np.zeros(n_shapes),
            oldest=np.full(n_partitions, _NONE),
            blocked=np.zeros(n_partitions, dtype=np.bool_),
            chosen=np.zeros(len(machines.free), dtype=np.int64),
            free=machines.free.copy(),
            rest=np.zeros_like(machines.free),
            idle=idle.astype(np.float64),
            waiting=np.zeros(n_pools),
            wanted=np.full(n_pools, 0.0 if are_pools else np.inf),
            rates=np.zeros((n_pools, MEASURES)),
        )


@cached_jit
def _sweep(  # noqa: PLR0917 - numba kernels are called by position
    queue: Any, machines: Any, state: Any, edges_s: Any, grain_s: int, answer: Any, totals: Any
) -> None:
    """Sweep over the events and sum up the measures.

    Between events the state is sampled every ``grain_s``.
    """
    changed, arrived, left, stale, both = 0, 0, 0, True, 0.0
    for step in range(len(answer)):
        now = edges_s[step]
        while now < edges_s[step + 1]:
            while machines.at_s[changed] <= now:
                _change(machines, state, changed)
                changed, stale = changed + 1, True
            while queue.eligible_s[arrived] <= now:
                _append(queue, state, arrived)
                arrived, stale = arrived + 1, True
            while queue.until_s[queue.by_end[left]] <= now:
                _remove(queue, state, queue.by_end[left])
                left, stale = left + 1, True
            next_s = min(queue.eligible_s[arrived], queue.until_s[queue.by_end[left]])
            until = min(edges_s[step + 1], machines.at_s[changed], next_s)
            passed_s = grain_s * ((until - 1 - edges_s[0]) // grain_s - (now - 1 - edges_s[0]) // grain_s)
            now = until
            if passed_s <= 0:
                continue
            if stale:
                both = _measure(queue, machines, state)
                stale = False
            totals[step, POOLED] += both * passed_s
            totals[step, MEASURED_S] += passed_s
            if both > _LITTLE:
                totals[step, BOTH_S] += passed_s
            for pool in range(len(state.rates)):
                for measure in range(MEASURES):
                    answer[step, pool, measure] += state.rates[pool, measure] * passed_s


@inline_jit
def _change(machines: Any, state: Any, number: int) -> None:
    """Change what is free on a machine."""
    machine = machines.machine[number]
    pool, before = machines.pool[machine], max(state.free[machine, 0], 0.0)
    for resource in range(state.free.shape[1]):
        state.free[machine, resource] += machines.change[number, resource]
    state.idle[pool] += max(state.free[machine, 0], 0.0) - before


@inline_jit
def _append(queue: Any, state: Any, job: int) -> None:
    """Add a job to those that wait."""
    shape = queue.shape[job]
    last = state.tail[shape]
    state.previous[job] = last
    if last == _NONE:
        state.head[shape] = job
    else:
        state.following[last] = job
    state.tail[shape] = job
    state.waiting[queue.pool[shape]] += queue.size[shape]
    state.wanted[queue.pool[shape]] += queue.need[shape, 0]


@inline_jit
def _remove(queue: Any, state: Any, job: int) -> None:
    """Take a job from those that wait."""
    shape = queue.shape[job]
    before, after = state.previous[job], state.following[job]
    if before == _NONE:
        state.head[shape] = after
    else:
        state.following[before] = after
    if after == _NONE:
        state.tail[shape] = before
    else:
        state.previous[after] = before
    state.waiting[queue.pool[shape]] -= queue.size[shape]
    state.wanted[queue.pool[shape]] -= queue.need[shape, 0]


@inline_jit
def _measure(queue: Any, machines: Any, state: Any) -> float:
    """Update the current idle units and return their sum."""
    rates = state.rates
    all_idle, all_waiting = 0.0, 0.0
    for pool in range(len(rates)):
        rates[pool, :] = 0.0
        idle, waiting = state.idle[pool], state.waiting[pool]
        rates[pool, IDLE], rates[pool, WAITING], rates[pool, SAME_POOL] = idle, waiting, min(idle, waiting)
        all_idle, all_waiting = all_idle + idle, all_waiting + waiting
    if min(all_idle, all_waiting) <= _LITTLE:
        return 0.0
    for machine in range(len(state.rest)):
        for resource in range(state.rest.shape[1]):
            state.rest[machine, resource] = max(state.free[machine, resource], 0.0)
    for pool in range(len(rates)):
        # Where all that wait fit, there is no need to walk through them.
        if 0.0 < state.wanted[pool] <= state.idle[pool]:
            state.rest[pool, 0] -= state.wanted[pool]
            rates[pool, OWN] = state.waiting[pool]
    n_active = 0
    for shape in range(len(state.head)):
        pool = queue.pool[shape]
        if state.head[shape] != _NONE and state.wanted[pool] > state.idle[pool]:
            state.active[n_active] = shape
            state.cursor[shape] = state.head[shape]
            n_active += 1
    _find_blocked(queue, machines, state, n_active)
    # A call for each would compile the placing twice.
    for code in range(_OWN, _ELSEWHERE + 1):
        _place(queue, machines, state, n_active, code)
        if code == _OWN:
            _find_unusable(queue, machines, state, n_active)
    return min(all_idle, all_waiting)


@inline_jit
def _fits(queue: Any, machines: Any, state: Any, shape: int, code: int) -> bool:
    """Find nodes for a job, by best fit."""
    found, nodes, kind = 0, queue.nodes[shape], queue.kind[shape]
    for machine in range(len(state.rest)):
        enough = machines.relation[kind, machine] == code
        for resource in range(state.rest.shape[1]):
            enough = enough and state.rest[machine, resource] + _LITTLE >= queue.need[shape, resource]
        if not enough:
            continue
        if nodes > 1:
            state.chosen[found] = machine
            found += 1
            if found == nodes:
                return True
        elif found == 0 or state.rest[machine, 0] < state.rest[state.chosen[0], 0]:
            state.chosen[0] = machine
            found = 1
    return bool(found == nodes)


@inline_jit
def _find_blocked(queue: Any, machines: Any, state: Any, n_active: int) -> None:
    """Find the partitions whose oldest job does not fit."""
    state.oldest[:] = _NONE
    for place in range(n_active):
        shape = state.active[place]
        before = state.oldest[queue.partition[shape]]
        if before == _NONE or state.cursor[shape] < state.cursor[before]:
            state.oldest[queue.partition[shape]] = shape
    for number in range(len(state.oldest)):
        shape = state.oldest[number]
        if shape != _NONE:
            state.blocked[number] = not _fits(queue, machines, state, shape, _OWN)


@inline_jit
def _place(queue: Any, machines: Any, state: Any, n_active: int, code: int) -> None:
    """Place waiting jobs, oldest first, on their own nodes or on others."""
    cursor = state.cursor
    state.alive[:] = True
    while True:
        best, second = _NONE, len(state.following)
        for place in range(n_active):
            shape = state.active[place]
            if not state.alive[shape] or cursor[shape] == _NONE:
                continue
            if best == _NONE or cursor[shape] < cursor[best]:
                second = cursor[best] if best != _NONE else second
                best = shape
            elif cursor[shape] < second:
                second = cursor[shape]
        if best == _NONE:
            return
        while cursor[best] != _NONE and cursor[best] < second:
            # What did not fit does not fit later either: what is free only shrinks.
            if not _fits(queue, machines, state, best, code):
                state.alive[best] = False
                break
            cursor[best] = state.following[cursor[best]]
            _take(queue, machines, state, best, code)


@inline_jit
def _take(queue: Any, machines: Any, state: Any, shape: int, code: int) -> None:
    """Allocate a job on the nodes found for it."""
    size, nodes, pool = queue.size[shape], queue.nodes[shape], queue.pool[shape]
    for place in range(nodes):
        machine = state.chosen[place]
        for resource in range(state.rest.shape[1]):
            state.rest[machine, resource] -= queue.need[shape, resource]
        if code == _ELSEWHERE:
            state.rates[machines.pool[machine], LENT] += size / nodes
    if code == _ELSEWHERE:
        state.rates[pool, SENT] += size
    else:
        state.rates[pool, OWN] += size
        if state.blocked[queue.partition[shape]]:
            state.rates[pool, BEHIND_OLDEST] += size


@inline_jit
def _find_unusable(queue: Any, machines: Any, state: Any, n_active: int) -> None:
    """Add the free units of partitions with waiting jobs."""
    for place in range(n_active):
        shape = state.active[place]
        state.own_free[shape] = 0.0
        for machine in range(len(state.rest)):
            if machines.relation[queue.kind[shape], machine] == _OWN:
                state.own_free[shape] += state.rest[machine, 0]
    for machine in range(len(state.rest)):
        unused, reason = state.rest[machine, 0], _NONE
        if unused > _LITTLE:
            for place in range(n_active):
                if state.cursor[state.active[place]] != _NONE:
                    reason = max(reason, _reason(queue, machines, state, state.active[place], machine))
        if reason != _NONE:
            state.rates[machines.pool[machine], UNUSABLE] += unused
            state.rates[machines.pool[machine], reason] += unused


@inline_jit
def _reason(queue: Any, machines: Any, state: Any, shape: int, machine: int) -> int:
    """Return why a job fits on no node.

    The later the reason, the closer it comes.
    """
    relation = machines.relation[queue.kind[shape], machine]
    if relation == _OWN_OTHER_TYPE:
        return TYPE
    if relation != _OWN:
        return _NONE
    need = queue.need[shape, 0]
    if state.rest[machine, 0] + _LITTLE < need:
        return SCATTERED if state.own_free[shape] + _LITTLE >= queue.nodes[shape] * need else TOO_FEW
    for resource in range(1, state.rest.shape[1]):
        if state.rest[machine, resource] + _LITTLE < queue.need[shape, resource]:
            return CPUS + resource - 1
    # With all that it needs here, it lacks other nodes like it.
    return OTHER_NODES
