"""GPUs that idle while jobs wait, by one sweep over the events.

A job waits from its eligible time until it starts. At each moment the waiting jobs are placed on the free nodes, oldest
first: in their own partitions, then on other nodes. GPUs that jobs could use on other nodes idled while jobs waited.

Where the nodes of a cluster and of its jobs are known, a job needs free GPUs, CPUs and memory on as many nodes as it
requests, of the type it requests. Otherwise the GPUs of a pool are counted, and a job fits where enough of them are
free. This is an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, inline_jit
from helios.metrics.blocks import WEEK_HOURS, Finding, Question, unknown_finding
from helios.metrics.capacity import LEAST_PLACED
from helios.metrics.history import NEVER_S, Floats, Seconds, StudyHistory
from helios.study.capacity import Capacity, HeldNodes, NodeShapes
from helios.units import HOUR_S

IDLE, WAITING, SAME_POOL, OWN, BEHIND_OLDEST, LENT, SENT, UNUSABLE = range(8)
"""Columns with the measures of each pool, GPU seconds each.

- SAME_POOL: the smaller of IDLE and WAITING.
- OWN: what waiting jobs of the pool could use there.
- BEHIND_OLDEST: the part of OWN for younger jobs, while the oldest job of their partition does not fit.
- LENT: idle in the pool, and usable by jobs that may not run there.
- SENT: what jobs of the pool could use in other pools.
- UNUSABLE: still free while jobs of the partition wait, because none of them fits.
"""
TYPE, TOO_FEW, SCATTERED, CPUS, MEMORY, OTHER_NODES = range(8, 14)
"""Columns with UNUSABLE by reason. Of several reasons, the one that comes closest to a fit counts."""
MEASURES = 14
REASONS = {
    "another GPU type": (TYPE,),
    "too few free": (TOO_FEW,),
    "scattered over nodes": (SCATTERED, OTHER_NODES),
    "CPUs taken": (CPUS,),
    "memory taken": (MEMORY,),
}
POOLED, BOTH_S, MEASURED_S = range(3)
"""Columns with the measures over all pools: the smaller of all IDLE and all WAITING, seconds with both, seconds."""
TOTALS = 3
QUESTIONS = (Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE, Question.UNUSABLE_IDLE, Question.IDLE_BEHIND_OLDEST_JOB)
MISSING_STARTS = "when jobs started"
MISSING_CAPACITY = "what was in service"
MISSING_PARTITIONS = "several partitions with nodes of their own"
NOT_KNOWN_HERE = "not known here"
_NONE = -1
_OTHER_TYPE, _OWN, _ELSEWHERE, _OWN_OTHER_TYPE = range(4)
"""Relation of a node to a kind of job: of another GPU type, its own, another partition's, its own of another type."""
_TOLERANCE = 1e-6
_SAMPLING_STEPS_S = (1, 7, 29, 61, 127, 307, 601)
"""Possible sampling intervals, s. They are primes, so that they do not coincide with periodic submissions."""
_MAX_WORK = 5e6
"""Samples x nodes above which a longer sampling interval is used."""

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
        Row of ``Machines.relation``, and the pool and partition of the job.
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
    """Free resources, and their changes.

    A machine is a node, or a whole pool where nodes are not known.

    Attributes
    ----------
    free : float64 array of shape (n_machines, n_resources)
        At the beginning; the first resource is the one of the study.
    pool : int64 array of shape (n_machines,)
    relation : int64 array of shape (n_kinds, n_machines)
        Relation of each machine to each kind of job.
    at_s : int64 array of shape (n_changes + 1,)
        Times of changes, in order; ``NEVER_S`` at the end.
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
        ``nodes`` where the shape of nodes was considered, otherwise ``counts``.
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
    waits = _Waits.from_history(history, capacity)
    if capacity.nodes is not None and capacity.placement is not None:
        queue, machines = _count_by_node(history, capacity, waits, capacity.nodes, capacity.placement)
        level = "nodes"
    else:
        queue, machines = _count_by_pool(history, capacity, waits)
        level = "counts"
    state = _State.from_queue(queue, machines, n_pools=len(capacity.pools), are_pools=level == "counts")
    pools, totals = _measure_steps(queue, machines, state, capacity.edges_s)
    return IdleByDay(pools=pools, totals=totals, level=level, waited=len(waits.job), coverage=waits.coverage)


def idle_beside_waiting(
    history: StudyHistory, capacity: Capacity, idle: IdleByDay | None = None
) -> tuple[Finding, ...]:
    """Return findings 1, 2 and 3, each in GPU hours a week.

    They are the idle units that jobs of other partitions could use, those that no waiting job could use, and those that
    younger jobs could use while the oldest does not fit.

    Parameters
    ----------
    idle : IdleByDay, optional
        Result of :func:`idle_by_day`, which is computed if it is not given.
    """
    if not history.has_starts:
        return tuple(unknown_finding(question, MISSING_STARTS) for question in QUESTIONS)
    if not len(capacity.pools) or not capacity.total.any():
        return tuple(unknown_finding(question, MISSING_CAPACITY) for question in QUESTIONS)
    idle = idle or idle_by_day(history, capacity)
    weeks, hours_by_measure, nodes_known = history.weeks, idle.pools.sum(axis=(0, 1)) / HOUR_S, idle.level == "nodes"
    reasons = {name: float(hours_by_measure[list(columns)].sum()) / weeks for name, columns in REASONS.items()}
    unusable = {
        "reasons": reasons if nodes_known else None,
        "reasons_missing": "" if nodes_known else NOT_KNOWN_HERE,
        "lower_bound": not nodes_known,
        "by_partition": _hours_by_pool(capacity, idle, UNUSABLE, weeks),
    }
    behind_oldest = {
        "fits_at_all": float(idle.pools[:, :, OWN].sum()) / HOUR_S / weeks,
        "by_partition": _hours_by_pool(capacity, idle, BEHIND_OLDEST, weeks),
        "upper_bound": not nodes_known,
    }
    return (
        _finding_elsewhere(history, capacity, idle),
        _finding(Question.UNUSABLE_IDLE, UNUSABLE, history, capacity, idle, more=unusable),
        _finding(Question.IDLE_BEHIND_OLDEST_JOB, BEHIND_OLDEST, history, capacity, idle, more=behind_oldest),
    )


def _measure_steps(queue: Queue, machines: Machines, state: _State, edges_s: Seconds) -> tuple[Floats, Floats]:
    """Return the measures of each step, by pool and in total."""
    n_steps, n_events = len(edges_s) - 1, len(machines.machine) + 2 * len(queue.shape)
    pools, totals = np.zeros((n_steps, *state.rates.shape)), np.zeros((n_steps, TOTALS))
    sampling_step_s = _choose_sampling_step_s(
        int(edges_s[-1] - edges_s[0]), n_events, len(machines.free) + len(queue.nodes) // 10
    )
    _sweep(queue, machines, state, edges_s, sampling_step_s, pools, totals)
    if sampling_step_s > 1:
        measured = totals[:, MEASURED_S]
        scale = np.divide(np.diff(edges_s), measured, out=np.zeros(n_steps), where=measured > 0)
        pools *= scale[:, None, None]
        totals *= scale[:, None]
    return pools, totals


def _choose_sampling_step_s(window_s: int, n_events: int, work: int) -> int:
    """Return the sampling interval, at least 1 s."""
    for sampling_step_s in _SAMPLING_STEPS_S:
        if min(n_events, window_s // sampling_step_s) * (20 + work) <= _MAX_WORK:
            return sampling_step_s
    return _SAMPLING_STEPS_S[-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waits:
    """Jobs that waited in the window, by eligible time."""

    job: Seconds
    eligible_s: Seconds
    until_s: Seconds
    coverage: float

    @classmethod
    def from_history(cls, history: StudyHistory, capacity: Capacity) -> _Waits:
        until_s = history.waiting_until_s
        can_wait = (history.size > 0) & (capacity.pools_of(history) >= 0)
        waited = can_wait & (until_s > np.maximum(history.eligible_s, history.first_s))
        job = np.flatnonzero(waited)
        job = job[np.argsort(history.eligible_s[job], kind="stable")]
        is_counted = history.submitted & (history.size > 0)
        coverage = float((can_wait & (until_s > _NONE))[is_counted].mean()) if is_counted.any() else 1.0
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
    partition = history.partition.code[waits.job]
    shapes, shape = _distinct([pool_of[waits.job], size, need, partition])
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
        partition=np.where(shapes[:, 3] >= 0, shapes[:, 3], len(history.partition.values)).astype(np.int64),
    )
    # Of 10^7 jobs each of these takes 80 MB.
    del size, need, per_node, partition
    is_held = (history.size > 0) & (pool_of >= 0) & (history.ended_s > history.first_s)
    is_held &= (history.started_s < history.end_s) & (history.ended_s > history.started_s)
    pools = np.arange(n_pools)
    steps_s = np.repeat(capacity.edges_s[1:-1], n_pools)
    unit_changes = np.diff(capacity.units, axis=1).T.ravel()
    changed = unit_changes != 0
    return queue, _machines(
        free=capacity.units[:, :1],
        pool=pools,
        relation=np.where(pools[:, None] == pools, _OWN, _ELSEWHERE),
        holds=(
            history.started_s[is_held],
            history.ended_s[is_held],
            pool_of[is_held].astype(np.int32),
            history.size[is_held][:, None],
        ),
        steps=(steps_s[changed], np.tile(pools, len(capacity.edges_s) - 2)[changed], unit_changes[changed][:, None]),
    )


def _count_by_node(
    history: StudyHistory, capacity: Capacity, waits: _Waits, nodes: NodeShapes, placement: HeldNodes
) -> tuple[Queue, Machines]:
    """Return the queue and the machines where jobs' nodes are known."""
    total = np.column_stack([nodes.units, *_other_resources(history, nodes, placement)])
    shapes, shape = _shapes_of_nodes(history, capacity, waits, nodes, n_resources=total.shape[1])
    kinds, kind = _distinct(list(shapes[:, :2].T))
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
    node_index = pd.Index(nodes.names).get_indexer(pd.Index(placement.names))[placement.node].astype(np.int64)
    begins_s, ends_s = history.started_s[placement.job], history.ended_s[placement.job]
    is_held = (node_index >= 0) & (ends_s > np.maximum(begins_s, history.first_s)) & (begins_s < history.end_s)
    job = placement.job[is_held]
    columns = [history.size, history.cpus, history.memory_mib][: total.shape[1]]
    amounts = np.column_stack([np.nan_to_num(column[job]) * placement.share[is_held] for column in columns])
    out = nodes.out
    return queue, _machines(
        free=total,
        pool=nodes.pool,
        relation=_node_relations(kinds.astype(np.int64), history, nodes),
        holds=(
            np.concatenate([begins_s[is_held], out.start_s]),
            np.concatenate([ends_s[is_held], out.end_s]),
            np.concatenate([node_index[is_held], out.node]),
            np.concatenate([amounts, total[out.node]]),
        ),
        steps=(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros((0, total.shape[1]))),
    )


def _node_relations(kinds: Seconds, history: StudyHistory, nodes: NodeShapes) -> Seconds:
    """Return the relation of each node to each kind of job.

    A kind of job is a partition and a GPU type.
    """
    type_names = ("", *history.gpu_type.values)
    node_types = [set(text.split(",")) for text in nodes.gpu_type]
    relation = np.zeros((len(kinds), len(nodes.names)), dtype=np.int64)
    for row, (partition, gpu_type) in enumerate(kinds):
        own = nodes.member[:, partition] if partition >= 0 else np.ones(len(nodes.names), dtype=np.bool_)
        wanted = set(type_names[gpu_type + 1].split(","))
        # An unknown type, of the job or of the node, is taken to fit.
        fits = np.array(["" in wanted | types or not wanted.isdisjoint(types) for types in node_types], dtype=np.bool_)
        relation[row] = np.where(fits, np.where(own, _OWN, _ELSEWHERE), np.where(own, _OWN_OTHER_TYPE, _OTHER_TYPE))
    return relation


def _other_resources(history: StudyHistory, nodes: NodeShapes, placement: HeldNodes) -> list[Floats]:
    """Return CPUs and memory of nodes, where known."""
    if history.resource == "cpus" or not np.isfinite(nodes.cpus).all() or not nodes.cpus.all():
        return []
    if np.isfinite(history.cpus[placement.job]).mean() < LEAST_PLACED:
        return []
    memory_known = np.isfinite(nodes.memory_mib).all() and bool(nodes.memory_mib.all())
    if not memory_known or np.isfinite(history.memory_mib[placement.job]).mean() < LEAST_PLACED:
        return [nodes.cpus]
    return [nodes.cpus, nodes.memory_mib]


def _shapes_of_nodes(
    history: StudyHistory, capacity: Capacity, waits: _Waits, nodes: NodeShapes, *, n_resources: int
) -> tuple[Floats, Places]:
    """Return the distinct job shapes, and each job's index.

    Columns are the partition, the GPU type, the size, the nodes, and the need of each resource on each node.
    """
    job = waits.job
    largest = np.array([nodes.units[nodes.pool == number].max(initial=1) for number in range(len(capacity.pools))])
    per_node = largest[capacity.pools_of(history)[job]]
    size = history.size[job]
    requested_nodes = np.nan_to_num(history.nodes[job], nan=1.0)
    count = np.maximum(np.maximum(requested_nodes, 1.0), np.ceil(size / per_node))
    # A job of fewer GPUs than nodes still needs one of them.
    count = np.minimum(count, np.maximum(size, 1))
    gpu_type = history.gpu_type.code[job].astype(np.int64)
    if "tres_requested" in history.jobs.columns:
        # The recorded type of a job that ran may be the allocated one, not the requested one.
        texts = history.jobs["tres_requested"]
        untyped = [text is not None and "gpu" in text and "gpu:" not in text for text in map(str, texts.cat.categories)]
        gpu_type = np.where(np.array([*untyped, False])[texts.cat.codes.to_numpy()[job]], _NONE, gpu_type)
    needs = [
        np.ceil(size / count),
        *(np.nan_to_num(column[job]) / count for column in (history.cpus, history.memory_mib)),
    ]
    return _distinct([history.partition.code[job], gpu_type, size, count, *needs[:n_resources]])


def _distinct(columns: Sequence[NDArray[Any]]) -> tuple[Floats, Places]:
    """Return distinct rows, and the index of each row."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        column_code, values = pd.factorize(column)
        # Renumbered after each column, so that numbers stay below the number of rows times that of values.
        code = pd.factorize(code * len(values) + column_code)[0].astype(np.int64)
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
    question: Question, column: int, history: StudyHistory, capacity: Capacity, idle: IdleByDay, *, more: dict[str, Any]
) -> Finding:
    """Return the finding of one measure, in hours a week.

    ``more`` are the parts that only this finding has.
    """
    by_day = idle.pools[:, :, column].sum(axis=1)
    hours = history.blocks.sum(capacity.edges_s[:-1], by_day / HOUR_S)
    estimate = history.blocks.ratio(hours, history.blocks.seconds / (WEEK_HOURS * HOUR_S)).bounded()
    served = float(capacity.unit_hours.sum()) * HOUR_S
    parts = {
        "level": idle.level,
        "share_of_service": float(by_day.sum()) / served if served else None,
        "service_hours_per_week": float(capacity.unit_hours.sum()) / history.weeks,
        "mean": float(by_day.sum()) / (history.end_s - history.first_s),
        "capacity": capacity.source,
        "at_least": capacity.at_least,
    }
    return Finding(
        question=question,
        estimate=estimate,
        n=idle.waited,
        coverage=idle.coverage,
        hours_per_week=estimate.value or 0.0,
        parts=parts | more,
    )


def _finding_elsewhere(history: StudyHistory, capacity: Capacity, idle: IdleByDay) -> Finding:
    window_s = history.end_s - history.first_s
    pools, totals = idle.pools.sum(axis=0) / window_s, idle.totals.sum(axis=0) / window_s
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
    finding = _finding(
        Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE,
        LENT,
        history,
        capacity,
        idle,
        more=parts | {"upper_bound": idle.level == "counts"},
    )
    if _has_others(capacity, idle):
        return finding
    parts = {**finding.parts, "share_of_service": None, "mean": None, "other_partition_fits": None}
    return Finding(
        question=Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE,
        n=idle.waited,
        coverage=idle.coverage,
        missing=MISSING_PARTITIONS,
        parts=parts,
    )


def _has_others(capacity: Capacity, idle: IdleByDay) -> bool:
    """Return whether a node may be without jobs of some partition."""
    if idle.level == "nodes" and capacity.nodes is not None:
        return not capacity.nodes.member[:, capacity.nodes.member.any(axis=0)].all()
    return len(capacity.pools) > 1


def _hours_by_pool(capacity: Capacity, idle: IdleByDay, column: int, weeks: float) -> dict[str, float]:
    hours = idle.pools[:, :, column].sum(axis=0) / HOUR_S / weeks
    return {name: float(value) for name, value in zip(capacity.pools, hours, strict=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class _State(Table):
    """Lists and scratch space of a sweep.

    Attributes
    ----------
    head, tail : arrays of shape (n_shapes,)
        First and last waiting job of each shape, which are a linked list.
    next_job, previous_job : arrays of shape (n_waiting,)
        Links of these lists.
    cursor : array of shape (n_shapes,)
        Next job to place.
    active : array of shape (n_shapes,)
        Shapes with waiting jobs.
    oldest, blocked : arrays of shape (n_partitions,)
        Shape of the oldest waiting job, and whether that does not fit.
    free, remaining : arrays of shape (n_machines, n_resources)
        Free resources, before and while waiting jobs are placed.
    needed : array of shape (n_pools,)
        What the waiting jobs of a pool need together. It is infinite where nodes are known, because there the sum does
        not say whether they fit.
    """

    head: Seconds
    tail: Seconds
    next_job: Places
    previous_job: Places
    cursor: Seconds
    active: Seconds
    alive: NDArray[np.bool_]
    own_free: Floats
    oldest: Seconds
    blocked: NDArray[np.bool_]
    chosen: Seconds
    free: Floats
    remaining: Floats
    idle: Floats
    waiting: Floats
    needed: Floats
    rates: Floats

    @classmethod
    def from_queue(cls, queue: Queue, machines: Machines, *, n_pools: int, are_pools: bool) -> _State:
        n_shapes, n_jobs = len(queue.nodes), len(queue.shape)
        n_partitions = int(queue.partition.max(initial=-1)) + 1
        idle = np.bincount(machines.pool, weights=np.maximum(machines.free[:, 0], 0.0), minlength=n_pools)
        return cls(
            head=np.full(n_shapes, _NONE),
            tail=np.full(n_shapes, _NONE),
            next_job=np.full(n_jobs, _NONE, dtype=np.int32),
            previous_job=np.full(n_jobs, _NONE, dtype=np.int32),
            cursor=np.full(n_shapes, _NONE),
            active=np.zeros(n_shapes, dtype=np.int64),
            alive=np.zeros(n_shapes, dtype=np.bool_),
            own_free=np.zeros(n_shapes),
            oldest=np.full(n_partitions, _NONE),
            blocked=np.zeros(n_partitions, dtype=np.bool_),
            chosen=np.zeros(len(machines.free), dtype=np.int64),
            free=machines.free.copy(),
            remaining=np.zeros_like(machines.free),
            idle=idle.astype(np.float64),
            waiting=np.zeros(n_pools),
            needed=np.full(n_pools, 0.0 if are_pools else np.inf),
            rates=np.zeros((n_pools, MEASURES)),
        )


@cached_jit
def _sweep(  # noqa: PLR0917 - numba kernels are called by position
    queue: Any, machines: Any, state: Any, edges_s: Any, sampling_step_s: int, answer: Any, totals: Any
) -> None:
    """Sweep over the events and sum up the measures.

    Between events the state is sampled every ``sampling_step_s``.
    """
    changed, arrived, departed, stale, both_units = 0, 0, 0, True, 0.0
    for step in range(len(answer)):
        now = edges_s[step]
        while now < edges_s[step + 1]:
            while machines.at_s[changed] <= now:
                _change(machines, state, changed)
                changed, stale = changed + 1, True
            while queue.eligible_s[arrived] <= now:
                _append(queue, state, arrived)
                arrived, stale = arrived + 1, True
            while queue.until_s[queue.by_end[departed]] <= now:
                _remove(queue, state, queue.by_end[departed])
                departed, stale = departed + 1, True
            next_s = min(queue.eligible_s[arrived], queue.until_s[queue.by_end[departed]])
            until = min(edges_s[step + 1], machines.at_s[changed], next_s)
            passed_s = sampling_step_s * (
                (until - 1 - edges_s[0]) // sampling_step_s - (now - 1 - edges_s[0]) // sampling_step_s
            )
            now = until
            if passed_s <= 0:
                continue
            if stale:
                both_units = _measure(queue, machines, state)
                stale = False
            totals[step, POOLED] += both_units * passed_s
            totals[step, MEASURED_S] += passed_s
            if both_units > _TOLERANCE:
                totals[step, BOTH_S] += passed_s
            for pool in range(len(state.rates)):
                for measure in range(MEASURES):
                    answer[step, pool, measure] += state.rates[pool, measure] * passed_s


@inline_jit
def _change(machines: Any, state: Any, number: int) -> None:
    """Apply a change to the free resources of a machine."""
    machine = machines.machine[number]
    pool, idle_before = machines.pool[machine], max(state.free[machine, 0], 0.0)
    for resource in range(state.free.shape[1]):
        state.free[machine, resource] += machines.change[number, resource]
    state.idle[pool] += max(state.free[machine, 0], 0.0) - idle_before


@inline_jit
def _append(queue: Any, state: Any, job: int) -> None:
    """Add a job to those that wait."""
    shape = queue.shape[job]
    last = state.tail[shape]
    state.previous_job[job] = last
    if last == _NONE:
        state.head[shape] = job
    else:
        state.next_job[last] = job
    state.tail[shape] = job
    state.waiting[queue.pool[shape]] += queue.size[shape]
    state.needed[queue.pool[shape]] += queue.need[shape, 0]


@inline_jit
def _remove(queue: Any, state: Any, job: int) -> None:
    """Take a job from those that wait."""
    shape = queue.shape[job]
    before, after = state.previous_job[job], state.next_job[job]
    if before == _NONE:
        state.head[shape] = after
    else:
        state.next_job[before] = after
    if after == _NONE:
        state.tail[shape] = before
    else:
        state.previous_job[after] = before
    state.waiting[queue.pool[shape]] -= queue.size[shape]
    state.needed[queue.pool[shape]] -= queue.need[shape, 0]


@inline_jit
def _measure(queue: Any, machines: Any, state: Any) -> float:
    """Update the measures, and return the smaller of idle and waiting units."""
    rates = state.rates
    all_idle, all_waiting = 0.0, 0.0
    for pool in range(len(rates)):
        rates[pool, :] = 0.0
        idle, waiting = state.idle[pool], state.waiting[pool]
        rates[pool, IDLE], rates[pool, WAITING], rates[pool, SAME_POOL] = idle, waiting, min(idle, waiting)
        all_idle, all_waiting = all_idle + idle, all_waiting + waiting
    if min(all_idle, all_waiting) <= _TOLERANCE:
        return 0.0
    for machine in range(len(state.remaining)):
        for resource in range(state.remaining.shape[1]):
            state.remaining[machine, resource] = max(state.free[machine, resource], 0.0)
    for pool in range(len(rates)):
        # Where all waiting jobs fit, they need not be placed one by one.
        if 0.0 < state.needed[pool] <= state.idle[pool]:
            state.remaining[pool, 0] -= state.needed[pool]
            rates[pool, OWN] = state.waiting[pool]
    n_active = 0
    for shape in range(len(state.head)):
        pool = queue.pool[shape]
        if state.head[shape] != _NONE and state.needed[pool] > state.idle[pool]:
            state.active[n_active] = shape
            state.cursor[shape] = state.head[shape]
            n_active += 1
    _find_blocked(queue, machines, state, n_active)
    # Two calls would compile _place twice.
    for code in range(_OWN, _ELSEWHERE + 1):
        _place(queue, machines, state, n_active, code)
        if code == _OWN:
            _find_unusable(queue, machines, state, n_active)
    return min(all_idle, all_waiting)


@inline_jit
def _fits(queue: Any, machines: Any, state: Any, shape: int, code: int) -> bool:
    """Return whether a job fits, and select its nodes into ``chosen``."""
    n_found, nodes, kind = 0, queue.nodes[shape], queue.kind[shape]
    for machine in range(len(state.remaining)):
        enough = machines.relation[kind, machine] == code
        for resource in range(state.remaining.shape[1]):
            enough = enough and state.remaining[machine, resource] + _TOLERANCE >= queue.need[shape, resource]
        if not enough:
            continue
        if nodes > 1:
            state.chosen[n_found] = machine
            n_found += 1
            if n_found == nodes:
                return True
        elif n_found == 0 or state.remaining[machine, 0] < state.remaining[state.chosen[0], 0]:
            state.chosen[0] = machine
            n_found = 1
    return bool(n_found == nodes)


@inline_jit
def _find_blocked(queue: Any, machines: Any, state: Any, n_active: int) -> None:
    """Find the partitions whose oldest job does not fit."""
    state.oldest[:] = _NONE
    for place in range(n_active):
        shape = state.active[place]
        oldest = state.oldest[queue.partition[shape]]
        if oldest == _NONE or state.cursor[shape] < state.cursor[oldest]:
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
        oldest, next_arrival = _NONE, len(state.next_job)
        for place in range(n_active):
            shape = state.active[place]
            if not state.alive[shape] or cursor[shape] == _NONE:
                continue
            if oldest == _NONE or cursor[shape] < cursor[oldest]:
                next_arrival = cursor[oldest] if oldest != _NONE else next_arrival
                oldest = shape
            elif cursor[shape] < next_arrival:
                next_arrival = cursor[shape]
        if oldest == _NONE:
            return
        while cursor[oldest] != _NONE and cursor[oldest] < next_arrival:
            # A shape that did not fit does not fit later either, because placing only takes resources.
            if not _fits(queue, machines, state, oldest, code):
                state.alive[oldest] = False
                break
            cursor[oldest] = state.next_job[cursor[oldest]]
            _take(queue, machines, state, oldest, code)


@inline_jit
def _take(queue: Any, machines: Any, state: Any, shape: int, code: int) -> None:
    """Allocate a job on the nodes found for it."""
    size, nodes, pool = queue.size[shape], queue.nodes[shape], queue.pool[shape]
    for place in range(nodes):
        machine = state.chosen[place]
        for resource in range(state.remaining.shape[1]):
            state.remaining[machine, resource] -= queue.need[shape, resource]
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
        for machine in range(len(state.remaining)):
            if machines.relation[queue.kind[shape], machine] == _OWN:
                state.own_free[shape] += state.remaining[machine, 0]
    for machine in range(len(state.remaining)):
        unused, reason = state.remaining[machine, 0], _NONE
        if unused > _TOLERANCE:
            for place in range(n_active):
                if state.cursor[state.active[place]] != _NONE:
                    reason = max(reason, _reason(queue, machines, state, state.active[place], machine))
        if reason != _NONE:
            state.rates[machines.pool[machine], UNUSABLE] += unused
            state.rates[machines.pool[machine], reason] += unused


@inline_jit
def _reason(queue: Any, machines: Any, state: Any, shape: int, machine: int) -> int:
    """Return the column of the reason why a job fits nowhere.

    Later columns are closer to a fit.
    """
    relation = machines.relation[queue.kind[shape], machine]
    if relation == _OWN_OTHER_TYPE:
        return TYPE
    if relation != _OWN:
        return _NONE
    need = queue.need[shape, 0]
    if state.remaining[machine, 0] + _TOLERANCE < need:
        return SCATTERED if state.own_free[shape] + _TOLERANCE >= queue.nodes[shape] * need else TOO_FEW
    for resource in range(1, state.remaining.shape[1]):
        if state.remaining[machine, resource] + _TOLERANCE < queue.need[shape, resource]:
            return CPUS + resource - 1
    # This node has all that the job needs, but there are too few such nodes.
    return OTHER_NODES
