"""State of a replay in plain arrays.

Everything that the compiled core reads or writes is here, so that it can stop at any moment, let Python read and
decide, and be entered again. Tables are arrays of records: the fields of one job that are read together share a cache
line, and a compiled function takes a handful of tables, which keeps compilation short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table
from helios.simulate.workload import ClusterShape, Workload

NOBODY = -1
NEVER = np.iinfo(np.int64).max
NO_BACKFILL, SKIP, EASY, NODES = 0, 1, 2, 3
WORD_BITS = 64
AWAKE, WAKING, ASLEEP, FALLING = 0, 1, 2, 3
"""Power states of a node; the nodes of a partition are kept in sets by these."""
N_SETS = 4
PACKED, SPREAD, RANDOM, WEIGHTED = 0, 1, 2, 3
"""Which of the fitting nodes is taken: the fullest, the emptiest, any, the first."""


def integers(*names: str) -> list[tuple[str, type[np.int64]]]:
    """Return int64 fields of a record."""
    return [(name, np.int64) for name in names]


JOB = np.dtype(
    [
        ("submitted_s", np.int64),
        ("started_s", np.int64),  # the first start; NEVER: not yet
        ("ends_s", np.int64),  # end of the present run, in truth
        ("remaining_s", np.int64),  # run time not yet done when last started or stopped
        ("resumed_s", np.int64),  # start of the present run
        ("granted_s", np.int64),  # estimate in force, which grows when it proves too small
        ("expected_s", np.int64),  # end of the present run, as planned with
        ("late_s", np.int64),  # how long its present run waited for nodes to boot
        ("gpus", np.int32),
        ("partition", np.int32),
        ("queue", np.int32),
        ("first_share", np.int32),  # of the shares of nodes that it holds
        ("place", np.int32),  # in the heap of ends
    ],
    align=True,
)
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
        ("words", np.int64),  # for each level
        *integers("first_level", "first_node", "nodes", "gpus_per_node", "first_queue", "end_queue", "first_running"),
        ("running", np.int64),
        ("touched", np.int64),  # whether a pass is due
        ("due", np.int64),  # not of this partition: a place in the list of those with a pass due
        # How many nodes are in each state since counted_s, and node seconds until then.
        ("counted_s", np.int64),
        ("holding", np.int64),  # with a job, awake or not
        ("busy", np.int64),  # with a job, awake
        *integers("awake", "waking", "asleep", "falling"),
        ("gpus", np.int64),  # held on nodes that are awake
        *integers("busy_node_s", "awake_node_s", "waking_node_s", "asleep_node_s", "falling_node_s", "gpu_s"),
        ("short_node_s", np.int64),  # of nodes on their way while a job waits for them
        ("row", np.int64),  # the last one in the log of holding nodes
        ("next_by_submission", np.int64),  # in ``by_submission``, the first of its jobs not yet found overdue
        ("end_by_submission", np.int64),
        ("overdue", np.int64),  # running jobs past their estimates, where these are kept apart
        ("reserved", np.int64),  # nodes
        # A reservation that is still right: its job (NOBODY: none), its begin, and what is free beyond it then.
        *integers("planned_for", "shadow_s", "extra"),
    ],
    align=True,
)
GUARD = np.dtype(integers("at_s", "bound_s"), align=True)
"""From ``at_s`` on, a job goes to the front once it has waited longer than ``bound_s``."""
SHARE = np.dtype(integers("node", "gpus", "next"), align=True)
NODE = np.dtype(
    [
        ("until_s", np.int64),  # when it will be awake, or asleep
        ("idle_since_s", np.int64),  # when its last job ended, or when it was up
        ("free", np.int32),  # GPUs
        ("power", np.int32),  # AWAKE, ...
        ("rank", np.int32),  # its place in its partition's order of filling
        ("tier_end", np.int32),  # the first rank of a higher weight
        ("earlier", np.int32),  # in the list of idle nodes that the idle timer may put to sleep
        ("later", np.int32),
        ("kept", np.int32),  # excluded from the idle timer
        ("ranked", np.int32),  # not of this node: the node of its partition that ranks as this one is numbered
        ("waking", np.int32),  # not of this node: a place in the ring of nodes by when they are awake
        ("falling", np.int32),  # the same, of nodes by when they are asleep
        ("reserved", np.int32),  # not of this node: a place in the list of those that its partition's head is to get
    ],
    align=True,
)
HOLDING = np.dtype(integers("at_s", "partition", "nodes"), align=True)
"""Number of nodes of a partition that hold a job from ``at_s`` on."""
CLOCK = np.dtype(
    [
        *integers("now_s", "backfill", "preemptive", "arrived", "running", "ended", "backfilled", "touched"),
        ("versatile", np.int64),  # whether nodes sleep, differ in weight or are counted, which takes a little longer
        ("next_s", np.int64),  # the moment before which the core stopped
        ("bounds", np.int64),  # on waiting that have come into force
        *integers("free_share", "placement", "seed", "rows", "boot_s", "shutdown_s"),
        ("suspend_s", np.int64),  # what the idle timer is set to; NEVER: off
        *integers("first_waking", "waking", "first_falling", "falling", "idle_first", "idle_last"),
        ("sleeps", np.int64),  # nodes that were put to sleep, and at how many moments
        *integers("sleep_moments", "last_sleep_s", "wakes", "wake_moments", "last_wake_s"),
        ("delays", np.int64),  # starts that waited for a node to get up
        ("delay_moments", np.int64),
        ("last_delay_s", np.int64),
        ("closed", np.int64),  # whether no other job may use what is reserved for a promoted head
        ("idle_gpus", np.int64),  # that may be held back for a head that was not promoted; NEVER: any number
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class EngineState(Table):
    """Tables of a replay.

    The record types of this module describe their fields. ``holding`` is a log. ``bits`` and ``level_nodes`` hold, for
    each partition, each of AWAKE, WAKING, ... and each number of free GPUs (level), the set of such nodes, as bits by
    rank, and their count. ``ends`` is a heap of running jobs by true end. ``expected`` holds, from each partition's
    ``first_running`` on, its running jobs by expected end; for NODES those past their estimates are left out of this
    and are stored before the next partition's, last started last. ``ended`` lists the jobs that have ended, in order.
    ``path`` is scratch space. ``guard`` is the wait bound, empty: none. With one, ``by_submission`` lists the jobs of
    each partition, first submitted first.
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
    versatile: bool = False,
    guard: NDArray[np.void] | None = None,
) -> EngineState:
    """Return the state of an empty cluster before the first submission.

    All nodes are awake. Where not ``versatile``, jobs go to the fullest node first; otherwise nodes can sleep and are
    counted. ``guard`` is of type ``GUARD``; None: no job is promoted for waiting.
    """
    total, n_jobs = shape.total_gpus, len(workload)
    partitions, levels = _partitions(shape)
    partitions["counted_s"] = workload.submitted_s[0] - 1 if n_jobs else 0
    jobs = np.zeros(n_jobs, dtype=JOB)
    jobs["submitted_s"], jobs["remaining_s"] = workload.submitted_s, workload.run_time_s
    jobs["gpus"], jobs["partition"] = workload.gpus, workload.partition
    jobs["started_s"], jobs["ends_s"], jobs["first_share"] = NEVER, NEVER, NOBODY
    queues, jobs["queue"] = _queues(workload, partitions, by_size=backfill != NO_BACKFILL)
    pending = np.zeros(n_jobs, dtype=PENDING)
    # The seed shapes the treaps, never the outcome.
    pending["priority"] = np.random.default_rng(0).integers(2**32, size=n_jobs, dtype=np.int64)
    clock = np.zeros(1, dtype=CLOCK)
    clock["backfill"], clock["preemptive"], clock["placement"], clock["seed"] = backfill, preemptive, placement, seed
    clock["versatile"] = versatile
    clock["suspend_s"], clock["idle_first"], clock["idle_last"], clock["idle_gpus"] = NEVER, NOBODY, NOBODY, NEVER
    shares = np.zeros(total, dtype=SHARE)
    shares["next"] = np.arange(1, total + 1)
    by_submission = np.empty(0, dtype=np.int64)
    if guard is not None:
        by_submission = np.argsort(jobs["partition"], kind="stable")
        edges = np.searchsorted(jobs["partition"][by_submission], np.arange(len(partitions) + 1))
        partitions["next_by_submission"], partitions["end_by_submission"] = edges[:-1], edges[1:]
    # A job is counted where it starts and where it ends; starts and ends of one moment share a row.
    n_rows = 2 * n_jobs + len(partitions) if versatile else 0
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
    partitions = np.zeros(len(shape.partitions), dtype=PARTITION)
    levels = shape.gpus_per_node.astype(np.int64) + 1
    words = -(-shape.nodes.astype(np.int64) // WORD_BITS)
    partitions["free_gpus"], partitions["gpus_per_node"] = shape.capacity, shape.gpus_per_node
    partitions["words"], partitions["first_word"] = words, _starts(words * levels * N_SETS)
    partitions["first_level"], partitions["first_node"] = _starts(levels * N_SETS), _starts(shape.nodes)
    partitions["first_running"], partitions["nodes"] = _starts(shape.capacity), shape.nodes
    partitions["awake"], partitions["row"], partitions["planned_for"] = shape.nodes, NOBODY, NOBODY
    return partitions, np.zeros(int(levels.sum()) * N_SETS, dtype=np.int64)


def _starts(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    return np.cumsum(lengths, dtype=np.int64) - lengths


def _full_sets(partitions: NDArray[np.void], levels: NDArray[np.int64], shape: ClusterShape) -> NDArray[np.uint64]:
    """Return an idle cluster's sets of nodes, counted in ``levels``."""
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
    workload: Workload, partitions: NDArray[np.void], *, by_size: bool
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Return the queues of all partitions, and the queue of each job.

    A partition has one queue, or with ``by_size`` one for each size of job in it, smallest first. Whether a job can be
    placed depends on nothing but its size, so a pass with backfill checks the heads of the sizes instead of every job.
    A strict pass checks one head only.
    """
    size = workload.gpus.astype(np.int64) if by_size else np.zeros(len(workload), dtype=np.int64)
    stride = int(size.max(initial=0)) + 1
    names, queue = np.unique(workload.partition * stride + size, return_inverse=True)
    queues = np.zeros(len(names), dtype=QUEUE)
    queues["gpus"], queues["root"], queues["head"] = names % stride, NOBODY, NOBODY
    edges = np.searchsorted(names, np.arange(len(partitions) + 1, dtype=np.int64) * stride)
    partitions["first_queue"], partitions["end_queue"] = edges[:-1], edges[1:]
    return queues, queue
