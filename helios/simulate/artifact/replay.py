"""The door to the published simulator: the same workloads and shapes as the other one takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError, WorkloadInvalid
from helios.simulate.artifact.book import NEVER, Book
from helios.simulate.artifact.floor import new_floor
from helios.simulate.artifact.preemptive import play_preemptive
from helios.simulate.artifact.strict import play_strict
from helios.simulate.workload import ClusterShape, Workload, refuse_misfits


class PublishedPolicy(StrEnum):
    """What the artifact can replay."""

    FIFO = "fifo"
    SJF = "sjf"
    QSSF = "qssf"
    SRTF = "srtf"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublishedReplay:
    """What became of each job; int64 arrays of shape (n_jobs,) in the order of the workload.

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
    """Replay ``workload`` on ``shape`` exactly as the published artifact would; see :mod:`helios.simulate.artifact`.

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
    Misuse
        QSSF without priorities, or another policy with them; an array of another length.
    """
    refuse_misfits(workload, shape)
    _refuse_endless(workload, policy)
    _refuse_misuse(workload, policy, priority, tie_rank)
    ties = np.arange(len(workload)) if tie_rank is None else tie_rank
    arrival = np.lexsort((ties, workload.submitted_s, workload.partition))
    book = _book(workload, arrival, _keys(workload, policy, priority))
    _play(book, shape, workload.partition[arrival], policy, progress or _nobody)
    return _outcome(book, arrival)


def _refuse_endless(workload: Workload, policy: PublishedPolicy) -> None:
    endless = workload.run_time_s < 1
    if endless.any() and policy is not PublishedPolicy.SRTF:
        raise WorkloadInvalid(
            f"{int(endless.sum()):,} jobs have length 0; the first is {workload.job_id[np.argmax(endless)]}. The "
            "published simulator would wait for their end for ever",
            hint="Leave jobs of length 0 out.",
        )


def _refuse_misuse(
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
    """Return by what the queue is ordered before the order of arrival, the last one first."""
    if policy is PublishedPolicy.SJF:
        return (workload.run_time_s,)
    return () if priority is None else (workload.gpus, priority)


def _book(workload: Workload, arrival: NDArray[np.int64], keys: tuple[NDArray[np.generic], ...]) -> Book:
    """Return the jobs in the order of ``arrival``, nothing having happened yet."""
    n = len(workload)
    submitted_s, run_time_s = workload.submitted_s[arrival], workload.run_time_s[arrival]
    gpus, partition = workload.gpus[arrival].astype(np.int64), workload.partition[arrival]
    order = np.lexsort((np.arange(n), *(key[arrival] for key in keys)))
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    lists = [np.zeros(n, dtype=np.int64) for _ in range(8)]
    return Book(
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


def _play(
    book: Book,
    shape: ClusterShape,
    partition: NDArray[np.int32],
    policy: PublishedPolicy,
    tell: Callable[[int], None],
) -> None:
    floor = new_floor(nodes=int(shape.nodes.max()), gpus=int(shape.capacity.max()), jobs=len(partition))
    for index, (nodes, gpus_per_node) in enumerate(zip(shape.nodes, shape.gpus_per_node, strict=True)):
        first, end = np.searchsorted(partition, [index, index + 1])
        floor.hall[["nodes", "gpus_per_node", "first", "end"]] = nodes, gpus_per_node, first, end
        if policy is PublishedPolicy.SRTF:
            play_preemptive(book, floor)
        else:
            play_strict(book, floor, policy is PublishedPolicy.QSSF)
        tell(int(end))


def _outcome(book: Book, arrival: NDArray[np.int64]) -> PublishedReplay:
    place = np.argsort(arrival)
    return PublishedReplay(
        started_s=book.started_s[place],
        ended_s=book.ended_s[place],
        queue_s=book.queued_s[place],
        jct_s=(book.ended_s - book.submitted_s)[place],
        stops=book.stops[place],
    )


def _nobody(done: int) -> None:
    """Hear of progress, and tell nobody."""
