"""A door to a small simulated Slurm, that names only what matters."""

import numpy as np
import pandas as pd

from helios.model import JOBS
from helios.simulate.slurm.cluster import SimulatedSlurm

from .builders import AT_ONCE, a_site, a_workload


def jobs_of(workload, **columns):
    """Build the rows of JOBS that a workload came from: alice's."""
    limit_s = workload.column("time_limit_s")
    known = {
        "job_id": list(workload.job_id),
        "user": "alice",
        "name": "train",
        "partition": [workload.partitions[code] for code in workload.partition],
        "submitted_at": pd.to_datetime(workload.submitted_s, unit="s", utc=True),
        "eligible_at": pd.to_datetime(workload.column("eligible_s"), unit="s", utc=True),
        "run_time_s": workload.run_time_s,
        "time_limit_s": np.where(limit_s > 0, limit_s, np.inf),
        "gpus": workload.column("gpus"),
        "cpus": workload.column("cpus").astype(float),
    }
    return JOBS.conform(pd.DataFrame(known | columns))


def a_door(rows, site=None, *, latency=AT_ONCE, columns=None, **options):
    """Build from rows as for a workload; one node of eight CPUs unless told."""
    workload = a_workload(rows, **(columns or {}))
    return SimulatedSlurm(workload, site or a_site(), jobs_of(workload), latency=latency, **options)


def a_busy_door(*, pending=5, soft=True, **options):
    """Build a cluster at second 10, where job 0 holds everything and ``pending`` more wait, limits two hours."""
    rows = [(0, 5_000, 8, 7_200), *((second, 3_600, 8, 7_200) for second in range(1, pending + 1))]
    # Weights leave room below: Slurm's priority is never less than 1, however small the SiteFactor.
    site = a_site(scheduling={"time_min_is_soft": soft}, priority={"partition": 100_000})
    door = a_door(rows, site, **options)
    door.advance(10)
    return door
