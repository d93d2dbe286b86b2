"""The scheduling simulator that the SC'21 paper published, exact to the second.

Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters", SC'21, and its published artifact (S-Lab-System-Group/HeliosArtifact, MIT), whose behaviour is described
here and was written anew. That one steps through every second of every virtual cluster; this one goes from event to
event and gives the same second for every start and end. What it computes, and where it differs from
:mod:`helios.simulate`:

Cluster
    Every partition by itself, empty at first, strict queues: the first job in the order that does not fit ends the
    pass. A job needs enough whole nodes and one more for the rest; up to a node's GPUs it takes the fullest node that
    fits, and the rest of a larger one goes to the *emptiest* node left (ours: to the fullest). The lowest node wins
    ties; the artifact's sort is stable here.
One second
    First all ends, then all arrivals, then one pass. What ends frees its GPUs for that second's pass.
Order
    FIFO by submission, SJF by true run time; ties by place in the trace. The artifact sorts the trace by submission
    with an unstable sort, so that jobs of one second come in any order: ``tie_rank`` draws another one.
QSSF
    By priority, then GPUs, then place in the trace; but in a second in which nobody has waited since before, new jobs
    go by GPUs alone, and priorities have no say.
SRTF
    Not what its name says elsewhere. Each second running and waiting jobs are listed by remaining run time, waiting
    ones first among equals, those who came to their list first before others. Down the list each that the GPUs left
    *by count* suffice for is elected. Who runs and is not elected is stopped, and has 7 s (1 GPU), 30 s (to 8) or
    60 s more to run. Then the elected who wait are placed, each if it fits; one that does not waits on,
    although others may have been stopped for it. A stopped job is tried again in the next second at the earliest. A
    run takes a second longer than its run time, since an end is seen a second late.
Length 0
    The artifact's loop never ends a job of length 0 but under SRTF, nor itself then; such jobs are refused.
Measures
    Queue: waiting until the first start, and under SRTF between a stop and the next start. JCT: end - submission.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError, WorkloadInvalid
from helios.jit import entry_point, kernel
from helios.simulate.core.state import ClusterShape, Workload, refuse_misfits

NEVER = np.iinfo(np.int64).max  # a time that does not come
NONE = -1  # no node, no share
# The artifact's cost of a checkpoint, s: of 1 GPU, of up to 8, of more.
ONE_GPU_S, ONE_NODE_S, SEVERAL_S, ONE_NODE_GPUS = 7, 30, 60, 8


class PublishedPolicy(StrEnum):
    """A policy of the artifact."""

    FIFO = "fifo"
    SJF = "sjf"
    QSSF = "qssf"
    SRTF = "srtf"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedReplay:
    """The fate of each job.

    All are int64 arrays of shape (n_jobs,) in the order of the workload.

    Attributes
    ----------
    started_s, ended_s : array
        First start, and end, s since the epoch.
    queue_s : array
        Time that it waited, as the artifact counts it, s.
    jct_s : array
        End - submission, s.
    stops : array
        How often SRTF stopped it.
    """

    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    queue_s: NDArray[np.int64]
    jct_s: NDArray[np.int64]
    stops: NDArray[np.int64]


def replay_as_published(
    workload: Workload,
    shape: ClusterShape,
    *,
    policy: PublishedPolicy,
    priority: NDArray[np.float64] | None = None,
    tie_rank: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] | None = None,
) -> PublishedReplay:
    """Replay ``workload`` on ``shape`` exactly as the published artifact would.

    Parameters
    ----------
    priority : float64 array of shape (n_jobs,), optional
        What QSSF orders by, smallest first: GPUs x predicted run time, in the artifact.
    tie_rank : int64 array of shape (n_jobs,), optional
        The order of jobs submitted in the same second, smallest first; None: that of the workload.
    progress : callable, optional
        Called after each partition with the number of jobs that have been replayed.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    WorkloadInvalid
        A job has length 0, which the artifact never ends.
    UsageError
        QSSF without priorities, or another policy with them; an array of another length.
    """
    refuse_misfits(workload, shape)
    _refuse_endless(workload, policy)
    _refuse_unusable_arguments(workload, policy, priority, tie_rank)
    ties = np.arange(len(workload)) if tie_rank is None else tie_rank
    arrival = np.lexsort((ties, workload.submitted_s, workload.partition))
    jobs = _job_arrays(workload, arrival, _keys(workload, policy, priority))
    _replay_partitions(jobs, shape, workload.partition[arrival], policy, progress)
    return _result(jobs, arrival)


def _refuse_endless(workload: Workload, policy: PublishedPolicy) -> None:
    endless = workload.run_time_s < 1
    if endless.any() and policy is not PublishedPolicy.SRTF:
        raise WorkloadInvalid(
            f"{int(endless.sum()):,} jobs have length 0; the first is {workload.job_id[np.argmax(endless)]}. The "
            "published simulator would wait for their end for ever",
            hint="Leave jobs of length 0 out.",
        )


def _refuse_unusable_arguments(
    workload: Workload,
    policy: PublishedPolicy,
    priority: NDArray[np.float64] | None,
    tie_rank: NDArray[np.int64] | None,
) -> None:
    if (policy is PublishedPolicy.QSSF) != (priority is not None):
        raise UsageError("QSSF, and it alone, goes by priorities.", hint="Give priority with QSSF, and only there.")
    for column in (priority, tie_rank):
        if column is not None and column.shape != (len(workload),):
            raise UsageError(f"{len(column):,} priorities or ranks were given for {len(workload):,} jobs.")


def _keys(
    workload: Workload, policy: PublishedPolicy, priority: NDArray[np.float64] | None
) -> tuple[NDArray[np.float64] | NDArray[np.int64] | NDArray[np.int32], ...]:
    """Return the sort keys before the order of arrival, the last one first."""
    if policy is PublishedPolicy.SJF:
        return (workload.run_time_s,)
    return () if priority is None else (workload.gpus, priority)


def _job_arrays(workload: Workload, arrival: NDArray[np.int64], keys: tuple[NDArray[np.generic], ...]) -> JobArrays:
    """Return the jobs in the order of ``arrival``, before anything happened."""
    n = len(workload)
    submitted_s, run_time_s = workload.submitted_s[arrival], workload.run_time_s[arrival]
    gpus, partition = workload.gpus[arrival].astype(np.int64), workload.partition[arrival]
    order = np.lexsort((np.arange(n), *(key[arrival] for key in keys)))
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    lists = [np.zeros(n, dtype=np.int64) for _ in range(8)]
    return JobArrays(
        submitted_s=submitted_s,
        run_time_s=run_time_s,
        gpus=gpus,
        rank=rank,
        by_size=np.lexsort((gpus, submitted_s, partition)),
        started_s=lists[0],
        ended_s=lists[1],
        queued_s=lists[2],
        left_s=run_time_s.copy(),
        last_s=np.full(n, NEVER, dtype=np.int64),
        stopped_s=lists[3],
        stops=np.zeros(n, dtype=np.int64),
        waiting=lists[4],
        running=lists[5],
        elected=lists[6],
        refused=lists[7],
    )


def _replay_partitions(
    jobs: JobArrays,
    shape: ClusterShape,
    partition: NDArray[np.int32],
    policy: PublishedPolicy,
    progress: Callable[[int], None] | None,
) -> None:
    state = new_partition(nodes=int(shape.nodes.max()), gpus=int(shape.capacity.max()), jobs=len(partition))
    for index, (nodes, gpus_per_node) in enumerate(zip(shape.nodes, shape.gpus_per_node, strict=True)):
        first, end = np.searchsorted(partition, [index, index + 1])
        state.size[["nodes", "gpus_per_node", "first", "end"]] = nodes, gpus_per_node, first, end
        if policy is PublishedPolicy.SRTF:
            replay_preemptive(jobs, state)
        else:
            replay_strict(jobs, state, policy is PublishedPolicy.QSSF)
        if progress is not None:
            progress(int(end))


def _result(jobs: JobArrays, arrival: NDArray[np.int64]) -> PublishedReplay:
    place = np.argsort(arrival)
    return PublishedReplay(
        started_s=jobs.started_s[place],
        ended_s=jobs.ended_s[place],
        queue_s=jobs.queued_s[place],
        jct_s=(jobs.ended_s - jobs.submitted_s)[place],
        stops=jobs.stops[place],
    )


# The jobs as the compiled loops read and write them.


class JobArrays(NamedTuple):
    """One value for each job, a partition's jobs together and in the order in which they arrive."""

    submitted_s: NDArray[np.int64]
    run_time_s: NDArray[np.int64]
    gpus: NDArray[np.int64]
    rank: NDArray[np.int64]  # place in the order of the policy
    by_size: NDArray[np.int64]  # jobs, those of one second from the smallest to the largest
    started_s: NDArray[np.int64]  # the first start
    ended_s: NDArray[np.int64]
    queued_s: NDArray[np.int64]
    left_s: NDArray[np.int64]  # of a waiting job: run time left
    last_s: NDArray[np.int64]  # of a running job: when nothing will be left
    stopped_s: NDArray[np.int64]  # the last time
    stops: NDArray[np.int64]
    waiting: NDArray[np.int64]  # room for a list of jobs, as are the others
    running: NDArray[np.int64]
    elected: NDArray[np.int64]
    refused: NDArray[np.int64]


# The nodes of one partition, and what each running job holds of them.
#
# Nodes are looked through one by one: a partition has some dozens, and the published rule is then read off the code.

SIZE = np.dtype(
    [
        ("nodes", np.int64),
        ("gpus_per_node", np.int64),
        ("first", np.int64),  # of its jobs
        ("end", np.int64),
        ("free_gpus", np.int64),
        ("free_share", np.int64),
    ],
    align=True,
)
SHARE = np.dtype([("node", np.int64), ("gpus", np.int64), ("next", np.int64)], align=True)


class PartitionState(NamedTuple):
    """One partition: its size, the free GPUs of each node, the shares of each job."""

    size: NDArray[np.void]
    free: NDArray[np.int64]
    shares: NDArray[np.void]
    first_share: NDArray[np.int64]


def new_partition(*, nodes: int, gpus: int, jobs: int) -> PartitionState:
    """Return an empty state with room for so many nodes, GPUs and jobs."""
    return PartitionState(
        size=np.zeros(1, dtype=SIZE),
        free=np.zeros(nodes, dtype=np.int64),
        shares=np.zeros(gpus, dtype=SHARE),  # a share has at least one GPU
        first_share=np.full(jobs, NONE, dtype=np.int64),
    )


@kernel
def clear(state: PartitionState) -> None:
    """Empty the partition."""
    size = state.size[0]
    size.free_gpus, size.free_share = size.nodes * size.gpus_per_node, 0
    for node in range(size.nodes):
        state.free[node] = size.gpus_per_node
    for share in range(size.free_gpus):
        state.shares[share].next = share + 1


@kernel
def place(state: PartitionState, job: int, gpus: int) -> bool:
    """Give ``job`` its nodes, and return whether it fits."""
    if gpus > state.size[0].free_gpus:
        return False
    if gpus <= state.size[0].gpus_per_node:
        return _place_on_one(state, job, gpus)
    return _place_on_several(state, job, gpus)


@kernel
def vacate(state: PartitionState, job: int) -> None:
    """Free what ``job`` holds."""
    size, share = state.size[0], state.first_share[job]
    while share != NONE:
        gpus, following = state.shares[share].gpus, state.shares[share].next
        state.free[state.shares[share].node] += gpus
        size.free_gpus += gpus
        state.shares[share].next = size.free_share
        size.free_share, share = share, following
    state.first_share[job] = NONE


@kernel
def _place_on_one(state: PartitionState, job: int, gpus: int) -> bool:
    """Take the fullest node that fits, the lowest among equals."""
    best = NONE
    for node in range(state.size[0].nodes):
        free = state.free[node]
        if free >= gpus and (best == NONE or free < state.free[best]):
            best = node
            if free == gpus:
                break
    if best == NONE:
        return False
    _take(state, job, best, gpus)
    return True


@kernel
def _place_on_several(state: PartitionState, job: int, gpus: int) -> bool:
    """Take the lowest wholly free nodes, and for the rest the emptiest of the others."""
    full = state.size[0].gpus_per_node
    whole, rest = gpus // full, gpus % full
    seen, other = 0, NONE
    for node in range(state.size[0].nodes):
        seen += state.free[node] == full
        passed_over = state.free[node] == full and seen <= whole
        if not passed_over and (other == NONE or state.free[node] > state.free[other]):
            other = node
    if seen < whole or (rest > 0 and (other == NONE or state.free[other] < rest)):
        return False
    if rest > 0:
        _take(state, job, other, rest)
    node = 0
    while whole > 0:
        if state.free[node] == full:
            _take(state, job, node, full)
            whole -= 1
        node += 1
    return True


@kernel
def _take(state: PartitionState, job: int, node: int, gpus: int) -> None:
    size = state.size[0]
    share = size.free_share
    size.free_share = state.shares[share].next
    state.shares[share].node, state.shares[share].gpus = node, gpus
    state.shares[share].next, state.first_share[job] = state.first_share[job], share
    state.free[node] -= gpus
    size.free_gpus -= gpus


# The published loops of FIFO, SJF and QSSF, from event to event.
#
# Between events nothing starts: the head of the queue stays blocked while nobody ends. Under QSSF the order may change
# a second after new jobs went by their GPUs, but then the fewest GPUs did not fit, and more GPUs do not fit either.


@entry_point
def replay_strict(jobs: JobArrays, state: PartitionState, new_jobs_by_size: bool) -> None:
    """Replay the jobs of the partition at hand, from empty to empty."""
    clear(state)
    end = state.size[0].end
    arrived, n_waiting, n_running = state.size[0].first, 0, 0
    while arrived < end or n_running > 0:
        now = NEVER if arrived == end else jobs.submitted_s[arrived]
        if n_running > 0:
            now = min(now, jobs.ended_s[jobs.running[0]])
        while n_running > 0 and jobs.ended_s[jobs.running[0]] == now:
            vacate(state, jobs.running[0])
            n_running = _pull(jobs.running, n_running, jobs.ended_s)
        new, none_waited = arrived, n_waiting == 0
        while arrived < end and jobs.submitted_s[arrived] == now:
            arrived += 1
        if new_jobs_by_size and none_waited:
            while new < arrived and _start_strict(jobs, state, jobs.by_size[new], now):
                n_running = _put(jobs.running, n_running, jobs.ended_s, jobs.by_size[new])
                new += 1
            for late in range(new, arrived):
                n_waiting = _put(jobs.waiting, n_waiting, jobs.rank, jobs.by_size[late])
            continue
        for late in range(new, arrived):
            n_waiting = _put(jobs.waiting, n_waiting, jobs.rank, late)
        while n_waiting > 0 and _start_strict(jobs, state, jobs.waiting[0], now):
            n_running = _put(jobs.running, n_running, jobs.ended_s, jobs.waiting[0])
            n_waiting = _pull(jobs.waiting, n_waiting, jobs.rank)


@kernel
def _start_strict(jobs: JobArrays, state: PartitionState, job: int, now: int) -> bool:
    if not place(state, job, jobs.gpus[job]):
        return False
    jobs.started_s[job], jobs.ended_s[job] = now, now + jobs.run_time_s[job]
    jobs.queued_s[job] = now - jobs.submitted_s[job]
    return True


@kernel
def _put(heap: NDArray[np.int64], size: int, keys: NDArray[np.int64], job: int) -> int:
    """Add ``job`` to a heap with the smallest key on top, and return its new size."""
    hole = size
    while hole > 0 and keys[heap[(hole - 1) // 2]] > keys[job]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = job
    return size + 1


@kernel
def _pull(heap: NDArray[np.int64], size: int, keys: NDArray[np.int64]) -> int:
    """Drop the top of a heap, and return its new size."""
    size -= 1
    job, hole, child = heap[size], 0, 1
    while child < size:
        if child + 1 < size and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[heap[child]] >= keys[job]:
            break
        heap[hole] = heap[child]
        hole, child = child, 2 * child + 1
    heap[hole] = job
    return size


# The published loop of SRTF, second by second where something can change and over the rest in one step.
#
# Waiting and running jobs are kept in the order of the published list. All running jobs come nearer to their end
# alike, so that a second in which nobody is stopped or started is followed by others just like it until a job arrives,
# ends, or a running job overtakes a waiting one that was elected and did not fit. To overtake any other waiting job
# changes nothing: that one was not elected, hence took no GPUs away.


@entry_point
def replay_preemptive(jobs: JobArrays, state: PartitionState) -> None:
    """Replay the jobs of the partition at hand, from empty to empty."""
    clear(state)
    arrived, end, n_gpus = state.size[0].first, state.size[0].end, state.size[0].free_gpus
    n_waiting, n_running, now = 0, 0, _arrival(jobs, arrived, end)
    while now != NEVER:
        n_running = _end_due(jobs, state, n_running, now)
        while arrived < end and jobs.submitted_s[arrived] == now:
            n_waiting = _insert(jobs.waiting, n_waiting, jobs.left_s, arrived)
            arrived += 1
        n_elected, n_kept = _elect(jobs, n_waiting, n_running, n_gpus, now)
        n_stopped = n_running - n_kept
        n_waiting = _stop(jobs, state, n_waiting, n_stopped, now)
        n_started, n_refused = 0, 0
        for index in range(n_elected):
            job = jobs.elected[index]
            if _start_preemptive(jobs, state, job, now):
                n_started += 1
                n_kept = _insert(jobs.running, n_kept, jobs.last_s, job)
            else:
                jobs.refused[n_refused] = job
                n_refused += 1
        n_running = n_kept
        if n_started > 0:
            n_waiting = _without_started(jobs, n_waiting)
        if n_started > 0 or n_stopped > 0:
            now += 1
        else:
            now = min(_arrival(jobs, arrived, end), _next_change(jobs, n_running, n_refused, now))


@kernel
def _end_due(jobs: JobArrays, state: PartitionState, n_running: int, now: int) -> int:
    """End jobs that had nothing left a second ago, and return how many run on."""
    n_ended = 0
    while n_ended < n_running and jobs.last_s[jobs.running[n_ended]] < now:
        jobs.ended_s[jobs.running[n_ended]] = now
        vacate(state, jobs.running[n_ended])
        n_ended += 1
    if n_ended > 0:
        for index in range(n_ended, n_running):
            jobs.running[index - n_ended] = jobs.running[index]
    return n_running - n_ended


@kernel
def _elect(jobs: JobArrays, n_waiting: int, n_running: int, quota: int, now: int) -> tuple[int, int]:
    """Decide which jobs may run.

    Waiting ones that may go into ``elected``, running ones that may not into ``refused``. Returns how many waiting jobs
    are elected, and how many running ones, which stay in ``running``.
    """
    waiter, runner, n_elected, n_kept, n_stopped = 0, 0, 0, 0, 0
    while runner < n_running or (waiter < n_waiting and quota > 0):
        if waiter < n_waiting and quota > 0:
            job = jobs.waiting[waiter]
            if runner == n_running or jobs.left_s[job] <= jobs.last_s[jobs.running[runner]] - now:
                waiter += 1
                if jobs.gpus[job] <= quota:
                    quota -= jobs.gpus[job]
                    jobs.elected[n_elected] = job
                    n_elected += 1
                continue
        job = jobs.running[runner]
        runner += 1
        if jobs.gpus[job] <= quota:
            quota -= jobs.gpus[job]
            jobs.running[n_kept] = job
            n_kept += 1
        else:
            jobs.refused[n_stopped] = job
            n_stopped += 1
    return n_elected, n_kept


@kernel
def _stop(jobs: JobArrays, state: PartitionState, n_waiting: int, n_stopped: int, now: int) -> int:
    """Stop the running jobs in ``refused``, and return how many jobs wait then."""
    for index in range(n_stopped):
        job = jobs.refused[index]
        vacate(state, job)
        cost_s = SEVERAL_S if jobs.gpus[job] > ONE_NODE_GPUS else ONE_NODE_S if jobs.gpus[job] > 1 else ONE_GPU_S
        jobs.left_s[job] = jobs.last_s[job] - now + cost_s
        jobs.stopped_s[job] = now
        jobs.stops[job] += 1
        jobs.last_s[job] = NEVER
        n_waiting = _insert(jobs.waiting, n_waiting, jobs.left_s, job)
    return n_waiting


@kernel
def _start_preemptive(jobs: JobArrays, state: PartitionState, job: int, now: int) -> bool:
    if not place(state, job, jobs.gpus[job]):
        return False
    if jobs.stops[job] == 0:
        jobs.started_s[job], jobs.queued_s[job] = now, now - jobs.submitted_s[job]
    else:
        jobs.queued_s[job] += now - jobs.stopped_s[job]
    jobs.last_s[job] = now + jobs.left_s[job]
    return True


@kernel
def _without_started(jobs: JobArrays, n_waiting: int) -> int:
    """Drop started jobs from the waiting ones, and return how many are left."""
    n_left = 0
    for index in range(n_waiting):
        job = jobs.waiting[index]
        if jobs.last_s[job] == NEVER:
            jobs.waiting[n_left] = job
            n_left += 1
    return n_left


@kernel
def _arrival(jobs: JobArrays, job: int, end: int) -> int:
    """Return when ``job`` arrives, or NEVER behind the last job."""
    return NEVER if job == end else int(jobs.submitted_s[job])


@kernel
def _next_change(jobs: JobArrays, n_running: int, n_refused: int, now: int) -> int:
    """Return the next second that is not like ``now`` though nobody arrives, or NEVER."""
    soonest = NEVER if n_running == 0 else jobs.last_s[jobs.running[0]] + 1
    for index in range(n_refused):
        left_s = jobs.left_s[jobs.refused[index]]
        next_to_overtake = _first_from(jobs.running, n_running, jobs.last_s, now + left_s)
        if next_to_overtake < n_running:
            soonest = min(soonest, jobs.last_s[jobs.running[next_to_overtake]] - left_s + 1)
    return soonest


@kernel
def _insert(line: NDArray[np.int64], n: int, keys: NDArray[np.int64], job: int) -> int:
    """Insert ``job`` into a sorted line behind its equals, and return the new length."""
    behind = _first_from(line, n, keys, keys[job] + 1)
    for index in range(n, behind, -1):
        line[index] = line[index - 1]
    line[behind] = job
    return n + 1


@kernel
def _first_from(line: NDArray[np.int64], n: int, keys: NDArray[np.int64], key: int) -> int:
    """Return the first place in a line of ``n`` jobs whose key is ``key`` or more, or ``n``."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if keys[line[middle]] < key:
            low = middle + 1
        else:
            high = middle
    return low
