"""The textbook control of a what-if under a site's own Slurm.

It is FIFO with EASY backfill by time limits, all of a site's GPUs as one pool.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.slurm_whatif_jobs import SlurmJobs, capacity, units_of
from helios.model import largest_nodes
from helios.model.slurm_site import SlurmSite
from helios.simulate import Backfill, ClusterShape, Workload, replay
from helios.simulate.ageing import first_in_first_out
from helios.simulate.gpu_units import replay_sizes

POOL = "all"
TEXTBOOK_NAME = "FIFO + EASY (limit), all GPUs pooled"


def pooled_easy(jobs: SlurmJobs, site: SlurmSite, *, resource: str, default_time_limit_s: int) -> NDArray[np.float64]:
    """Replay jobs under FIFO and EASY backfill on one pool of nodes.

    Only jobs that hold some of ``resource`` are replayed. Partitions, priorities, types and shares of a node by CPUs
    and memory are ignored: that makes it the naive control.

    Returns
    -------
    array of shape (n_jobs,)
        Start of each job, s since the epoch; of jobs that hold nothing of it, or are larger than the pool, the time
        they could start.
    """
    workload, shape = jobs.workload, job_pools(site, resource)
    eligible_s, size = workload.column("eligible_s"), workload.column(resource)
    started_s = eligible_s.copy()
    chosen = np.flatnonzero((size > 0) & (size <= shape.total_gpus))
    if not len(chosen):
        return started_s
    # Whole seconds, in the order in which jobs could start: the textbook algorithm knows no other times.
    chosen = chosen[np.lexsort((chosen, eligible_s[chosen]))]
    limit_s = workload.column("time_limit_s")[chosen]
    result = replay(
        Workload(
            job_id=np.array([f"{place:012d}" for place in range(len(chosen))], dtype=object),
            submitted_s=np.rint(eligible_s[chosen]).astype(np.int64),
            run_time_s=np.rint(workload.run_time_s[chosen]).astype(np.int64),
            gpus=replay_sizes(size[chosen]),
            partition=np.zeros(len(chosen), dtype=np.int32),
        ),
        shape,
        backfill=Backfill.EASY,
        order=first_in_first_out,
        estimate_s=np.where(limit_s > 0, limit_s, default_time_limit_s).astype(np.int64),
    )
    started_s[chosen] = result.started_s
    return started_s


def job_pools(site: SlurmSite, resource: str) -> ClusterShape:
    """Return one partition with all GPUs or CPUs.

    All its nodes are as large as the site's largest.
    """
    largest = max((units_of(group, resource) for group in site.nodes), default=1) or 1
    return ClusterShape(
        partitions=(POOL,),
        nodes=np.array([max(1, -(-capacity(site, resource) // largest))], dtype=np.int32),
        gpus_per_node=np.array([largest], dtype=np.int32),
    )


def site_nodes(jobs: SlurmJobs, site: SlurmSite, resource: str) -> NDArray[np.int64]:
    """Return the units of the largest node each job may use."""
    nodes = [
        {"partitions": partition.name, "gpus": units_of(group, resource)}
        for partition in site.partitions
        for group in site.nodes
        if set(group.names) & set(partition.nodes)
    ]
    default = next((partition.name for partition in site.partitions if partition.is_default), "")
    partitions = jobs.jobs["partition"].astype("object").fillna(default).to_numpy(dtype=object)
    return largest_nodes(partitions, pd.DataFrame(nodes, columns=["partitions", "gpus"]))
