"""Workload and cluster shape of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import JobLargerThanPartition, PartitionUnknown, WorkloadInvalid


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
    gpus : int32 array of shape (n_jobs,)
        GPUs (or whatever resource is replayed) each job holds; at least 1.
    partition : int32 array of shape (n_jobs,)
        Position of each job's partition in :attr:`ClusterShape.partitions`.
    requested_gpus : int32 array of shape (n_jobs,), optional
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
    gpus: NDArray[np.int32]
    partition: NDArray[np.int32]
    requested_gpus: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        _check_column("submitted_s", self.submitted_s, np.int64)
        _check_column("run_time_s", self.run_time_s, np.int64)
        _check_column("gpus", self.gpus, np.int32)
        _check_column("partition", self.partition, np.int32)
        _check_column("requested_gpus", self.order_gpus, np.int32)
        columns = (self.job_id, self.submitted_s, self.run_time_s, self.gpus, self.partition, self.order_gpus)
        if len({column.shape for column in columns}) > 1:
            raise WorkloadInvalid("the columns of a workload differ in length")
        _refuse_where("run time is negative", self.run_time_s < 0, self.job_id)
        _refuse_where("number of GPUs is not positive", self.gpus < 1, self.job_id)
        self._check_order()

    def __len__(self) -> int:
        return len(self.submitted_s)

    @property
    def order_gpus(self) -> NDArray[np.int32]:
        """GPUs of each job that a queue order goes by."""
        return self.gpus if self.requested_gpus is None else self.requested_gpus

    def _check_order(self) -> None:
        step = np.diff(self.submitted_s)
        _refuse_where("submit time is before that of the job above it", step < 0, self.job_id[1:])
        same = np.flatnonzero(step == 0)
        earlier, later = self.job_id[same], self.job_id[same + 1]
        longer = _lengths(later) - _lengths(earlier)
        wrong = (longer < 0) | ((longer == 0) & (later < earlier))
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


def _too_large(workload: Workload, shape: ClusterShape, excess: NDArray[np.int64]) -> JobLargerThanPartition:
    largest = int(np.argmax(np.where(excess > 0, workload.gpus, 0)))
    home = workload.partition[largest]
    return JobLargerThanPartition(
        f"{int((excess > 0).sum()):,} jobs are larger than their partition; the largest, {workload.job_id[largest]}, "
        f"asks for {workload.gpus[largest]:,} GPUs of partition {shape.partitions[home]!r}, which has "
        f"{shape.capacity[home]:,} ({shape.nodes[home]} nodes x {shape.gpus_per_node[home]})",
        hint="Give the partition more nodes with --nodes, or leave such jobs out with --oversized skip.",
    )


def _lengths(words: NDArray[np.object_]) -> NDArray[np.int64]:
    return np.fromiter(map(len, words), dtype=np.int64, count=len(words))


def _check_column(name: str, column: NDArray[Any], dtype: type[np.integer[Any]]) -> None:
    if column.ndim != 1 or column.dtype != dtype:
        raise WorkloadInvalid(f"{name} is {column.dtype} of {column.ndim} dimensions, not {dtype.__name__} of one")


def _refuse_where(what: str, wrong: NDArray[np.bool_], job_id: NDArray[np.object_]) -> None:
    if wrong.any():
        raise WorkloadInvalid(f"{int(wrong.sum()):,} jobs' {what}; the first is {job_id[np.argmax(wrong)]}")
