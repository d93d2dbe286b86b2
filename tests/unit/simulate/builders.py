"""Small workloads and clusters that name only what matters."""

import numpy as np
import pandas as pd

from helios.model import JOBS
from helios.simulate import ClusterShape, SimCluster, Workload


def a_workload(rows):
    """Build from (submitted_s, run_time_s, gpus) or (submitted_s, run_time_s, gpus, partition)."""
    full = [(*row, 0)[:4] for row in rows]
    submitted, run_time, gpus, partition = (
        np.array(column) for column in (zip(*full, strict=True) if full else [()] * 4)
    )
    return Workload(
        job_id=np.array([str(i) for i in range(len(full))], dtype=object),
        submitted_s=submitted.astype(np.int64),
        run_time_s=run_time.astype(np.int64),
        gpus=gpus.astype(np.int32),
        partition=partition.astype(np.int32),
    )


def a_shape(*partitions):
    """Build from (nodes, gpus_per_node) of each partition, named a, b, c, ..."""
    nodes, gpus = zip(*partitions, strict=True)
    return ClusterShape(
        partitions=tuple("abcdefgh"[: len(partitions)]),
        nodes=np.array(nodes, dtype=np.int32),
        gpus_per_node=np.array(gpus, dtype=np.int32),
    )


def jobs_of(workload, shape, **columns):
    """Build the rows of JOBS that a workload came from: alice's, with a limit of twice the run time."""
    submitted_at = pd.to_datetime(workload.submitted_s, unit="s", utc=True)
    known = {
        "job_id": list(workload.job_id),
        "user": "alice",
        "name": "train",
        "partition": [shape.partitions[partition] for partition in workload.partition],
        "submitted_at": submitted_at,
        "eligible_at": submitted_at,
        "run_time_s": workload.run_time_s.astype(float),
        "time_limit_s": 2.0 * workload.run_time_s,
        "gpus": workload.gpus,
        "cpus": 4.0 * workload.gpus,
    }
    return JOBS.conform(pd.DataFrame(known | columns))


def a_sim_cluster(rows, shape=None, *, columns=None, estimates_s=None, **options):
    """Build a simulated cluster from rows as for a workload; backfill plans with the true run times unless told."""
    workload, shape = a_workload(rows), shape or a_shape((1, 8))
    estimates_s = workload.run_time_s if estimates_s is None else np.array(estimates_s, dtype=np.int64)
    return SimCluster(workload, shape, jobs_of(workload, shape, **(columns or {})), estimates_s=estimates_s, **options)


def a_busy_cluster(*, pending=5, **options):
    """Build a cluster at second 100, where job 0 holds everything until 10,000 and ``pending`` more wait, 1 first.

    Fit for the contract suite: nothing is held, nothing is set, limits are two hours.
    """
    rows = [(0, 10_000, 8), *((second, 3_600, 1) for second in range(1, pending + 1))]
    cluster = a_sim_cluster(rows, **options)
    cluster.advance(0)
    cluster.advance(100)
    return cluster
