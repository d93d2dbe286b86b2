"""Small sites and workloads that name only what matters."""

import numpy as np

from helios.model.slurm_site import NodeGroup, PartitionRules, PriorityRules, SchedulingRules, SlurmSite
from helios.simulate.slurm import SlurmLatency, SlurmWorkload

AT_ONCE = SlurmLatency(
    release_s=0.0, tick_s=1.0, backfill_s=0.0, backfill_job_s=0.0, loop_phase_s=0.0, controller_started_s=-60.0
)
"""A controller without latency of its own: its loop ticks on whole seconds, since a minute before 0."""


def a_site(*, nodes=1, cpus=8, gpus=0, partitions=None, priority=None, scheduling=None, **rest):
    """Build one group of alike nodes n0, n1, ... in one partition p, with an epilog and no wait between passes."""
    names = tuple(f"n{number}" for number in range(nodes))
    return SlurmSite(
        nodes=(NodeGroup(names=names, cpus=cpus, memory_mib=1000, gpus={"": gpus} if gpus else {}),),
        partitions=partitions or (PartitionRules(name="p", nodes=names),),
        priority=PriorityRules(**(priority or {})),
        scheduling=SchedulingRules(**({"epilog": True, "batch_sched_delay_s": 0} | (scheduling or {}))),
        **rest,
    )


def a_workload(rows, **columns):
    """Build from (submitted_s, run_time_s) or (submitted_s, run_time_s, cpus) or (..., time limit in s)."""
    full = [(*row, *(1, 0)[len(row) - 2 :]) for row in rows]
    submitted, run_time, cpus, limit = zip(*full, strict=True) if full else [()] * 4
    named = {
        "partitions": ("p",),
        "partition": np.zeros(len(full)),
        "cpus": np.array(cpus, dtype=int),
        "time_limit_s": np.array(limit, dtype=float),
    } | {name: np.array(value) if isinstance(value, list) else value for name, value in columns.items()}
    return SlurmWorkload(
        job_id=np.array([str(number) for number in range(len(full))], dtype=object),
        submitted_s=np.array(submitted, dtype=float),
        run_time_s=np.array(run_time, dtype=float),
        **named,
    )
