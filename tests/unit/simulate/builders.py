"""Small workloads and clusters that name only what matters."""

import numpy as np

from helios.simulate import ClusterShape, Workload


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
