"""The textbook beside Slurm: FIFO with EASY backfill by time limits, all of a site's GPUs as one pool."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.app.slurm_jobs import SlurmJobs
from helios.model.site import NodeGroup, SlurmSite
from helios.simulate import Backfill, ClusterShape, Workload, replay
from helios.simulate.policies import first_in_first_out

POOL = "all"


def capacity(site: SlurmSite, resource: str) -> int:
    """Return how many GPUs or CPUs (``gpus``, ``cpus``) the nodes of a site have."""
    return sum(len(group.names) * _each(group, resource) for group in site.nodes)


def pooled_easy(jobs: SlurmJobs, site: SlurmSite, *, resource: str, default_time_limit_s: int) -> NDArray[np.float64]:
    """Replay jobs that hold some of ``resource`` under FIFO + EASY on one pool of equal nodes.

    Partitions, priorities, types and shares of a node by CPUs and memory are left out: that is what makes it the naive
    control.

    Returns
    -------
    array of shape (n_jobs,)
        Start of each job, s since the epoch; of jobs that hold nothing of it, or are larger than the pool, the time
        they could start.
    """
    workload, shape = jobs.workload, pool_of(site, resource)
    eligible_s, size = workload.column("eligible_s"), workload.column(resource)
    started_s = eligible_s.copy()
    chosen = np.flatnonzero((size > 0) & (size <= shape.total_gpus))
    if not len(chosen):
        return started_s
    # Whole seconds, in the order of the times that jobs could start: the textbook knows no others.
    chosen = chosen[np.lexsort((chosen, eligible_s[chosen]))]
    limit_s = workload.column("time_limit_s")[chosen]
    result = replay(
        Workload(
            job_id=np.array([f"{place:012d}" for place in range(len(chosen))], dtype=object),
            submitted_s=np.rint(eligible_s[chosen]).astype(np.int64),
            run_time_s=np.rint(workload.run_time_s[chosen]).astype(np.int64),
            gpus=size[chosen].astype(np.int32),
            partition=np.zeros(len(chosen), dtype=np.int32),
        ),
        shape,
        backfill=Backfill.EASY,
        order=first_in_first_out,
        estimate_s=np.where(limit_s > 0, limit_s, default_time_limit_s).astype(np.int64),
    )
    started_s[chosen] = result.started_s
    return started_s


def pool_of(site: SlurmSite, resource: str) -> ClusterShape:
    """Return one partition of equal nodes that has as much as all nodes of the site: the largest of them, repeated."""
    largest = max((_each(group, resource) for group in site.nodes), default=1) or 1
    return ClusterShape(
        partitions=(POOL,),
        nodes=np.array([max(1, -(-capacity(site, resource) // largest))], dtype=np.int32),
        gpus_per_node=np.array([largest], dtype=np.int32),
    )


def _each(group: NodeGroup, resource: str) -> int:
    return sum(group.gpus.values()) if resource == "gpus" else group.cpus
