"""Small clusters with more to do than they can, few different values, so that ties and fragments abound."""

import numpy as np
from hypothesis import strategies as st

from helios.simulate import ClusterShape, Workload


@st.composite
def crowds(draw, *, most_partitions, most_nodes, least_s, most_s, besides):
    """Draw a shape, a workload, and one int64 array of shape (n_jobs,) from each strategy in ``besides``.

    Run times lie from ``least_s`` to one of ``most_s``.
    """
    n_partitions = draw(st.integers(1, most_partitions))
    ints = lambda low, high: st.lists(  # noqa: E731  because it names a strategy used twice
        st.integers(low, high), min_size=n_partitions, max_size=n_partitions
    )
    shape = ClusterShape(
        partitions=tuple("abc"[:n_partitions]),
        nodes=np.array(draw(ints(1, most_nodes)), dtype=np.int32),
        gpus_per_node=np.array(draw(ints(1, 8)), dtype=np.int32),
    )
    job = st.tuples(
        st.integers(0, draw(st.sampled_from([0, 5, 60]))),
        st.integers(least_s, draw(st.sampled_from(most_s))),
        st.floats(0, 1),
        st.integers(0, n_partitions - 1),
        *besides,
    )
    rows = sorted(draw(st.lists(job, min_size=1, max_size=30)))
    submitted, run_time, size, partition, *rest = (np.array(column) for column in zip(*rows, strict=True))
    sizes = 1 + (size**2 * (shape.capacity[partition] - 1)).round()
    workload = Workload(
        job_id=np.array([str(i) for i in range(len(rows))], dtype=object),
        submitted_s=submitted.astype(np.int64),
        run_time_s=run_time.astype(np.int64),
        gpus=sizes.astype(np.int32),
        partition=partition.astype(np.int32),
    )
    return (shape, workload, *(column.astype(np.int64) for column in rest))


def clusters_with_jobs():
    """Draw a shape, a workload and estimates, s; some jobs end as they start."""
    return crowds(most_partitions=3, most_nodes=4, least_s=0, most_s=[3, 12, 80], besides=(st.integers(0, 90),))
