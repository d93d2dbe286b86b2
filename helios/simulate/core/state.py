"""Workload, cluster shape and state of a replay in plain arrays.

Everything that the compiled core reads or writes is here, so that it can stop at any moment, let Python read and
decide, and go on. Tables are arrays of records: the fields of one job that are read together share a cache line, and a
compiled function takes few arguments, which keeps compilation short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import JobLargerThanPartition, PartitionUnknown, WorkloadInvalid
from helios.jit import Table
from helios.model import Sizes
from helios.simulate.gpu_units import choose_units, in_units

NOBODY = -1
NEVER = np.iinfo(np.int64).max

WORD_BITS = 64
"""Nodes in a word of a set of nodes."""

N_SETS = 4
"""Number of power states, for each of which the nodes of a partition are kept in sets."""

JOB = np.dtype(
    [
        ("submitted_s", np.int64),
        ("started_s", np.int64),  # the first start; NEVER: not yet
        ("ends_s", np.int64),  # end of the present run, in truth
        ("remaining_s", np.int64),  # run time left when it was last started or stopped
        ("resumed_s", np.int64),  # start of the present run
        ("granted_s", np.int64),  # estimate that backfill plans with; it grows when it proves too small
        ("expected_s", np.int64),  # end of the present run by that estimate
        ("boot_wait_s", np.int64),  # how long its present run waited for nodes to boot
        ("gpus", np.int32),
        ("partition", np.int32),
        ("queue", np.int32),
        ("first_share", np.int32),  # first of the list of its shares of nodes
        ("heap_index", np.int32),  # in ``ends``
    ],
    align=True,
)

RECENT_CHECKS = 180
"""Most checks whose peaks a rule for nodes awake remembers: 3 h of minutes."""

NODE = np.dtype(
    [
        ("until_s", np.int64),  # when it will be awake, or asleep
        ("idle_since_s", np.int64),  # when its last job ended, or when it was up
        ("free", np.int32),  # GPUs
        ("power", np.int32),  # AWAKE, ...
        ("rank", np.int32),  # in its partition's fill order
        ("tier_end", np.int32),  # the first rank of a higher weight
        ("earlier", np.int32),  # in the list of idle nodes that the idle timer may put to sleep
        ("later", np.int32),
        ("kept", np.int32),  # excluded from the idle timer
        ("ranked", np.int32),  # not of this node: entry i of a partition holds the node of rank i
        ("waking", np.int32),  # not of this node: ring buffer of the nodes that wake, first awake first
        ("falling", np.int32),  # the same of the nodes that fall asleep
        ("reserved", np.int32),  # not of this node: list of the nodes reserved for its partition's head
    ],
    align=True,
)

NO_BACKFILL, SKIP, EASY, NODES = 0, 1, 2, 3
AWAKE, WAKING, ASLEEP, FALLING = 0, 1, 2, 3
"""Power states of a node."""
PACKED, SPREAD, RANDOM, WEIGHTED = 0, 1, 2, 3
"""Which of the fitting nodes is taken: the fullest, the emptiest, any, the first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Jobs to replay, in submission order.

    The order is by submit time, then job id (numbers by value), then restart.

    Parameters
    ----------
    job_id : array of str, shape (n_jobs,)
        The site's ids; not unique where a job was requeued.
    submitted_s : int64 array of shape (n_jobs,)
        Submission, s since the epoch.
    run_time_s : int64 array of shape (n_jobs,)
        True run time, s; 0 is allowed.
    gpus : int32 or float64 array of shape (n_jobs,)
        GPUs (or whatever resource is replayed) each job holds, more than 0; float64 where a job holds a part of one.
    partition : int32 array of shape (n_jobs,)
        Position of each job's partition in :attr:`ClusterShape.partitions`.
    requested_gpus : int32 or float64 array of shape (n_jobs,), optional
        GPUs that each job asked for, which is what a queue order may know of it; None: as many as it holds.

    Raises
    ------
    WorkloadInvalid
        The arrays differ in length, have another type, are out of order, or a job has no GPU or a
        negative run time.
    """

    job_id: NDArray[np.object_]
    submitted_s: NDArray[np.int64]
    run_time_s: NDArray[np.int64]
    gpus: Sizes
    partition: NDArray[np.int32]
    requested_gpus: Sizes | None = None

    def __post_init__(self) -> None:
        _check_column("submitted_s", self.submitted_s, np.int64)
        _check_column("run_time_s", self.run_time_s, np.int64)
        _check_column("gpus", self.gpus, np.int32, np.float64)
        _check_column("partition", self.partition, np.int32)
        _check_column("requested_gpus", self.order_gpus, np.int32, np.float64)
        columns = (self.job_id, self.submitted_s, self.run_time_s, self.gpus, self.partition, self.order_gpus)
        if len({column.shape for column in columns}) > 1:
            raise WorkloadInvalid("the columns of a workload differ in length")
        _refuse_where("run time is negative", self.run_time_s < 0, self.job_id)
        _refuse_where("number of GPUs is not positive", ~(self.gpus > 0), self.job_id)
        self._check_order()

    def __len__(self) -> int:
        return len(self.submitted_s)

    @property
    def order_gpus(self) -> Sizes:
        """GPUs of each job that a queue order goes by."""
        return self.gpus if self.requested_gpus is None else self.requested_gpus

    def _check_order(self) -> None:
        step = np.diff(self.submitted_s)
        _refuse_where("submit time is before that of the job above it", step < 0, self.job_id[1:])
        same = np.flatnonzero(step == 0)
        earlier, later = self.job_id[same], self.job_id[same + 1]
        length_difference = _lengths(later) - _lengths(earlier)
        wrong = (length_difference < 0) | ((length_difference == 0) & (later < earlier))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise WorkloadInvalid(
                f"jobs {earlier[first]} and {later[first]}, submitted in the same second, are not in the order of "
                "their ids",
                hint="Order the jobs with helios.model.in_submission_order.",
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterShape:
    """Partitions of a cluster and their nodes.

    A node belongs to one partition. The nodes of a partition are alike.

    Parameters
    ----------
    partitions : tuple of str
        Names.
    nodes, gpus_per_node : int32 arrays of shape (n_partitions,)
        Number of nodes, and GPUs on each of them; at least 1.

    Raises
    ------
    WorkloadInvalid
        The arrays differ in length or have another type, or a partition has nothing in it.
    """

    partitions: tuple[str, ...]
    nodes: NDArray[np.int32]
    gpus_per_node: NDArray[np.int32]

    def __post_init__(self) -> None:
        _check_column("nodes", self.nodes, np.int32)
        _check_column("gpus_per_node", self.gpus_per_node, np.int32)
        if not len(self.partitions) == len(self.nodes) == len(self.gpus_per_node):
            raise WorkloadInvalid("the columns of a cluster's shape differ in length")
        empty = (self.nodes < 1) | (self.gpus_per_node < 1)
        if empty.any():
            name = self.partitions[int(np.argmax(empty))]
            raise WorkloadInvalid(f"partition {name!r} has no nodes, or nodes without GPUs")

    @property
    def capacity(self) -> NDArray[np.int64]:
        """GPUs of each partition."""
        return self.nodes.astype(np.int64) * self.gpus_per_node

    @property
    def total_gpus(self) -> int:
        """GPUs of the whole cluster."""
        return int(self.capacity.sum())

    def in_units(self, units: int) -> ClusterShape:
        """Return the shape with each GPU as so many units."""
        return self if units == 1 else replace(self, gpus_per_node=self.gpus_per_node * np.int32(units))


def refuse_misfits(workload: Workload, shape: ClusterShape) -> None:
    """Raise if a job cannot start even on an empty cluster.

    Raises
    ------
    PartitionUnknown
        A job's partition code is outside ``shape.partitions``.
    JobLargerThanPartition
        A job asks for more GPUs than its partition has.
    """
    unknown = (workload.partition < 0) | (workload.partition >= len(shape.partitions))
    if unknown.any():
        raise PartitionUnknown(
            f"{int(unknown.sum()):,} jobs (the first is {workload.job_id[np.argmax(unknown)]}) name a "
            "partition that the cluster does not have",
            hint=f"It has {', '.join(shape.partitions)}. Name every partition with --nodes PARTITION=N[,..].",
        )
    excess = workload.gpus - shape.capacity[workload.partition]
    if (excess > 0).any():
        raise _too_large(workload, shape, excess)


def _too_large(workload: Workload, shape: ClusterShape, excess: NDArray[Any]) -> JobLargerThanPartition:
    largest = int(np.argmax(np.where(excess > 0, workload.gpus, 0)))
    partition = workload.partition[largest]
    return JobLargerThanPartition(
        f"{int((excess > 0).sum()):,} jobs are larger than their partition; the largest, {workload.job_id[largest]}, "
        f"asks for {workload.gpus[largest]:,g} GPUs of partition {shape.partitions[partition]!r}, which has "
        f"{shape.capacity[partition]:,} ({shape.nodes[partition]} nodes x {shape.gpus_per_node[partition]})",
        hint="Give the partition more nodes with --nodes, or leave such jobs out with --oversized skip.",
    )


def _lengths(words: NDArray[np.object_]) -> NDArray[np.int64]:
    return np.fromiter(map(len, words), dtype=np.int64, count=len(words))


def _check_column(name: str, column: NDArray[Any], *dtypes: type[np.number[Any]]) -> None:
    if column.ndim != 1 or column.dtype not in dtypes:
        wanted = " or ".join(dtype.__name__ for dtype in dtypes)
        raise WorkloadInvalid(f"{name} is {column.dtype} of {column.ndim} dimensions, not {wanted} of one")


def _refuse_where(what: str, wrong: NDArray[np.bool_], job_id: NDArray[np.object_]) -> None:
    if wrong.any():
        raise WorkloadInvalid(f"{int(wrong.sum()):,} jobs' {what}; the first is {job_id[np.argmax(wrong)]}")


def integers(*names: str) -> list[tuple[str, type[np.int64]]]:
    """Return int64 fields of a record."""
    return [(name, np.int64) for name in names]


PENDING = np.dtype(  # a job as a node of its queue's treap
    [
        ("key", np.float64),
        ("estimate_s", np.int64),
        ("least_s", np.int64),  # smallest estimate in the subtree
        *integers("left", "right", "priority"),
    ],
    align=True,
)
QUEUE = np.dtype(integers("gpus", "root", "head"), align=True)
PARTITION = np.dtype(
    [
        ("free_gpus", np.int64),
        ("first_word", np.int64),
        ("words", np.int64),  # of each set of nodes
        *integers("first_level", "first_node", "nodes", "gpus_per_node", "first_queue", "end_queue", "first_running"),
        ("running", np.int64),
        ("pass_due", np.int64),  # whether a pass is due
        ("due_list", np.int64),  # not of this partition: row i holds the partition number i with a pass due
        # How many nodes are in each state since counted_s, and node seconds until then.
        ("counted_s", np.int64),
        ("holding", np.int64),  # with a job, awake or not
        ("busy", np.int64),  # with a job, awake
        *integers("awake", "waking", "asleep", "falling"),
        ("gpus", np.int64),  # GPUs held on nodes that are awake
        *integers("busy_node_s", "awake_node_s", "waking_node_s", "asleep_node_s", "falling_node_s", "gpu_s"),
        ("short_node_s", np.int64),  # of nodes that boot while a job waits for them
        ("row", np.int64),  # its last row in ``holding``
        ("next_by_submission", np.int64),  # in ``by_submission``, the first of its jobs within the wait bound
        ("end_by_submission", np.int64),
        ("overdue", np.int64),  # running jobs past their estimates, where they have a list of their own
        ("reserved", np.int64),  # number of reserved nodes
        # The last reservation: its job (NOBODY: none is valid), its begin, and the GPUs that it leaves free then.
        *integers("reserved_for", "shadow_s", "extra"),
        # The rule for how many nodes stay awake, of which ``helios.simulate.core.awake`` says what the fields mean.
        *integers("spare", "memory_checks", "least_idle_s", "wakes", "is_floor", "surplus"),
        ("most_holding", np.int64),  # most nodes with a job at once since the last check
        ("was_short", np.int64),  # whether a job has had to wake a node since the last check
    ],
    align=True,
)
GUARD = np.dtype(integers("at_s", "bound_s"), align=True)
"""From ``at_s`` on, a job goes to the front once it has waited longer than ``bound_s``."""
SHARE = np.dtype(integers("node", "gpus", "next"), align=True)
HOLDING = np.dtype(integers("at_s", "partition", "nodes"), align=True)
"""Number of nodes of a partition that hold a job from ``at_s`` on."""
CLOCK = np.dtype(
    [
        *integers("now_s", "backfill", "preemptive", "arrived", "running", "ended", "backfilled", "n_passes_due"),
        ("tracks_nodes", np.int64),  # whether nodes sleep, differ in weight or are counted, which takes a little longer
        ("next_s", np.int64),  # the moment before which the core stopped
        ("bounds", np.int64),  # entries of ``guard`` that have come into force
        *integers("free_share", "placement", "seed", "rows", "boot_s", "shutdown_s"),
        ("suspend_s", np.int64),  # time of the idle timer; NEVER: off
        ("check_s", np.int64),  # next check of the rules for nodes awake; NEVER: there are none
        ("check_every_s", np.int64),
        *integers("first_waking", "waking", "first_falling", "falling", "idle_first", "idle_last"),
        ("sleeps", np.int64),  # nodes put to sleep, and the number of moments at which that happened
        *integers("sleep_moments", "last_sleep_s", "wakes", "wake_moments", "last_wake_s"),
        ("delays", np.int64),  # starts that waited for a node to boot
        ("delay_moments", np.int64),
        ("last_delay_s", np.int64),
        ("closed", np.int64),  # whether no other job may use what is reserved for a promoted head
        ("idle_gpus", np.int64),  # most free GPUs kept for a head that was not promoted; NEVER: no bound
        ("units", np.int64),  # of a GPU: GPUs of all tables are counted in them
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class EngineState(Table):
    """Tables of a replay.

    The record types of this module describe the fields of the others.

    Attributes
    ----------
    bits, level_nodes
        Sets of nodes, as bits by rank, and their sizes: for each partition, each power state and each number of free
        GPUs (level).
    ends
        Heap of running jobs by true end.
    expected
        Running jobs by expected end, those of a partition from its ``first_running`` on. With NODES, jobs past their
        estimates are at the end of the partition's part instead, last started last.
    ended
        Jobs that have ended, in order.
    path
        Scratch space.
    holding
        Log of the nodes that hold a job.
    recent
        Most nodes with a job at once before each of the last checks of the rule for nodes awake, a ring buffer for each
        partition.
    guard
        The wait bound; empty: none.
    by_submission
        Jobs of each partition, first submitted first; empty without a wait bound.
    """

    clock: NDArray[np.void]
    jobs: NDArray[np.void]
    pending: NDArray[np.void]
    queues: NDArray[np.void]
    partitions: NDArray[np.void]
    shares: NDArray[np.void]
    nodes: NDArray[np.void]
    bits: NDArray[np.uint64]
    level_nodes: NDArray[np.int64]
    ends: NDArray[np.int64]
    expected: NDArray[np.int64]
    ended: NDArray[np.int64]
    path: NDArray[np.int64]
    holding: NDArray[np.void]
    recent: NDArray[np.int64]
    guard: NDArray[np.void]
    by_submission: NDArray[np.int64]


def new_state(
    workload: Workload,
    shape: ClusterShape,
    *,
    backfill: int,
    preemptive: bool,
    placement: int = PACKED,
    seed: int = 0,
    tracks_nodes: bool = False,
    guard: NDArray[np.void] | None = None,
) -> EngineState:
    """Return the state of an empty cluster before the first submission.

    All nodes are awake. With ``tracks_nodes`` nodes can sleep and differ in weight, and are counted; without it jobs go
    to the fullest node first, which is faster. ``guard`` is of type ``GUARD``; None: no job is promoted for waiting.
    """
    units = choose_units(workload.gpus, total=shape.total_gpus)
    shape, size = shape.in_units(units), in_units(workload.gpus, units)
    total, n_jobs = shape.total_gpus, len(workload)
    partitions, levels = _partitions(shape)
    partitions["counted_s"] = workload.submitted_s[0] - 1 if n_jobs else 0
    jobs = np.zeros(n_jobs, dtype=JOB)
    jobs["submitted_s"], jobs["remaining_s"] = workload.submitted_s, workload.run_time_s
    jobs["gpus"], jobs["partition"] = size, workload.partition
    jobs["started_s"], jobs["ends_s"], jobs["first_share"] = NEVER, NEVER, NOBODY
    by_size = size if backfill != NO_BACKFILL else np.zeros_like(size)
    queues, jobs["queue"] = _queues(workload, partitions, by_size)
    pending = np.zeros(n_jobs, dtype=PENDING)
    # The seed shapes the treaps, never the outcome.
    pending["priority"] = np.random.default_rng(0).integers(2**32, size=n_jobs, dtype=np.int64)
    clock = np.zeros(1, dtype=CLOCK)
    clock["backfill"], clock["preemptive"], clock["placement"], clock["seed"] = backfill, preemptive, placement, seed
    clock["tracks_nodes"], clock["units"] = tracks_nodes, units
    clock["suspend_s"], clock["idle_first"], clock["idle_last"], clock["idle_gpus"] = NEVER, NOBODY, NOBODY, NEVER
    clock["check_s"] = NEVER
    shares = np.zeros(total, dtype=SHARE)
    shares["next"] = np.arange(1, total + 1)
    by_submission = np.empty(0, dtype=np.int64)
    if guard is not None:
        by_submission = np.argsort(jobs["partition"], kind="stable")
        edges = np.searchsorted(jobs["partition"][by_submission], np.arange(len(partitions) + 1))
        partitions["next_by_submission"], partitions["end_by_submission"] = edges[:-1], edges[1:]
    # A job is counted where it starts and where it ends; starts and ends of one moment share a row.
    n_rows = 2 * n_jobs + len(partitions) if tracks_nodes else 0
    return EngineState(
        clock=clock,
        jobs=jobs,
        pending=pending,
        queues=queues,
        partitions=partitions,
        shares=shares,
        nodes=_nodes(shape),
        bits=_full_sets(partitions, levels, shape),
        level_nodes=levels,
        ends=np.empty(total, dtype=np.int64),
        expected=np.empty(total, dtype=np.int64),
        ended=np.empty(n_jobs, dtype=np.int64),
        path=np.empty(n_jobs + 1, dtype=np.int64),
        holding=np.empty(n_rows, dtype=HOLDING),
        recent=np.zeros(len(partitions) * RECENT_CHECKS if tracks_nodes else 0, dtype=np.int64),
        guard=np.empty(0, dtype=GUARD) if guard is None else guard,
        by_submission=by_submission,
    )


def _nodes(shape: ClusterShape) -> NDArray[np.void]:
    nodes = np.zeros(int(shape.nodes.sum()), dtype=NODE)
    nodes["ranked"] = np.arange(len(nodes))
    nodes["free"] = np.repeat(shape.gpus_per_node, shape.nodes)
    nodes["rank"] = np.arange(len(nodes)) - np.repeat(_starts(shape.nodes), shape.nodes)
    nodes["tier_end"] = np.repeat(shape.nodes, shape.nodes)
    nodes["until_s"], nodes["idle_since_s"] = NEVER, NEVER
    nodes["earlier"], nodes["later"] = NOBODY, NOBODY
    return nodes


def _partitions(shape: ClusterShape) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Return the records of the partitions, and empty counts of their sets."""
    partitions = np.zeros(len(shape.partitions), dtype=PARTITION)
    levels = shape.gpus_per_node.astype(np.int64) + 1
    words = -(-shape.nodes.astype(np.int64) // WORD_BITS)
    partitions["free_gpus"], partitions["gpus_per_node"] = shape.capacity, shape.gpus_per_node
    partitions["words"], partitions["first_word"] = words, _starts(words * levels * N_SETS)
    partitions["first_level"], partitions["first_node"] = _starts(levels * N_SETS), _starts(shape.nodes)
    partitions["first_running"], partitions["nodes"] = _starts(shape.capacity), shape.nodes
    partitions["awake"], partitions["row"], partitions["reserved_for"] = shape.nodes, NOBODY, NOBODY
    return partitions, np.zeros(int(levels.sum()) * N_SETS, dtype=np.int64)


def _starts(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    return np.cumsum(lengths, dtype=np.int64) - lengths


def _full_sets(partitions: NDArray[np.void], levels: NDArray[np.int64], shape: ClusterShape) -> NDArray[np.uint64]:
    """Return an idle cluster's sets of nodes, and write their sizes to ``levels``."""
    bits = np.zeros(int((partitions["words"] * (shape.gpus_per_node + 1)).sum()) * N_SETS, dtype=np.uint64)
    for partition, nodes in zip(partitions, shape.nodes.tolist(), strict=True):
        top, words = int(partition["gpus_per_node"]), int(partition["words"])
        levels[partition["first_level"] + top] = nodes
        first = int(partition["first_word"]) + top * words
        bits[first : first + words] = ~np.uint64(0)
        if nodes % WORD_BITS:
            bits[first + words - 1] = np.uint64(2 ** (nodes % WORD_BITS) - 1)
    return bits


def _queues(
    workload: Workload, partitions: NDArray[np.void], size: NDArray[np.int64]
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Return the queues of all partitions, and the queue of each job.

    A partition has one queue for each ``size`` of job in it, smallest first. Whether a job can be placed depends on its
    size alone, so a pass with backfill checks the first job of each size instead of every job. A strict pass checks one
    head only, and ``size`` is 0 for all.
    """
    stride = int(size.max(initial=0)) + 1
    codes, queue = np.unique(workload.partition * stride + size, return_inverse=True)
    queues = np.zeros(len(codes), dtype=QUEUE)
    queues["gpus"], queues["root"], queues["head"] = codes % stride, NOBODY, NOBODY
    edges = np.searchsorted(codes, np.arange(len(partitions) + 1, dtype=np.int64) * stride)
    partitions["first_queue"], partitions["end_queue"] = edges[:-1], edges[1:]
    return queues, queue
