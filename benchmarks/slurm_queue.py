"""Speed of a replay under Slurm's rules: jobs per second, beside the tests' plain Python reference in the same run.

    python -m benchmarks.slurm_queue

KTH and Philly from the folder of traces, with Slurm's default settings and age as the only weight; Philly with one
partition for each virtual cluster, on all of its nodes and with 40 % of them. CPU time, the compilation not counted.
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.model.slurm_site import NodeGroup, PartitionRules, PriorityRules, SchedulingRules, SlurmSite
from helios.simulate.slurm import SlurmLatency, SlurmWorkload, replay_slurm, startable
from tests.traces import TRACES
from tests.unit.simulate.slurm.reference import Reference

PHILLY_NODES = {
    **{"6214e9": 64, "7f04ca": 32, "11cb48": 16, "b436b2": 64, "ee9e8c": 64, "e13805": 16},
    **{"6c71a0": 32, "2869ce": 16, "ed69ec": 8, "103959": 8, "0e4a51": 32},
}
"""Nodes of 8 GPUs of each virtual cluster, by the beginning of its name; 8 where it is not known."""
PLAIN_JOBS = 150
Case = tuple[SlurmWorkload, SlurmSite]


def a_site(groups: dict[str, NodeGroup]) -> SlurmSite:
    """Make a partition of each group of nodes."""
    return SlurmSite(
        nodes=tuple(groups.values()),
        partitions=tuple(PartitionRules(name=name, nodes=group.names) for name, group in groups.items()),
        priority=PriorityRules(age=1000),
        scheduling=SchedulingRules(epilog=True),
    )


def kth() -> Case:
    """Return 100 nodes of one CPU, with the users' own limits."""
    with gzip.open(TRACES / "KTH-SP2-1996-2.1-cln.swf.gz", "rt") as lines:
        jobs = np.array([line.split() for line in lines if not line.startswith(";")], dtype=float)
    jobs = jobs[jobs[:, 3] >= 0]
    jobs = jobs[np.argsort(jobs[:, 1], kind="stable")]
    site = a_site({"p": NodeGroup(names=tuple(f"n{number:03d}" for number in range(100)))})
    workload = SlurmWorkload(
        job_id=jobs[:, 0].astype(int).astype(str).astype(object),
        submitted_s=jobs[:, 1],
        run_time_s=jobs[:, 3],
        time_limit_s=np.maximum(jobs[:, 8], 60),
        partitions=("p",),
        partition=np.zeros(len(jobs), dtype=np.int64),
        nodes=np.zeros(len(jobs), dtype=np.int64),
        cpus=jobs[:, 4].clip(1).astype(np.int64),
    )
    return workload.kept(startable(workload, site)), site


def philly(part: float) -> Case:
    """Return virtual clusters with that part of their nodes; the time limit is twice the run time, in whole hours."""
    jobs = pd.read_csv(TRACES / "philly_vc_aug-oct2017.csv.gz").sort_values(["submit_time", "job_id"], kind="stable")
    names = sorted(jobs["vc"].unique())
    groups = {}
    for name in names:
        nodes = next((nodes for start, nodes in PHILLY_NODES.items() if name.startswith(start)), 8)
        hosts = tuple(f"{name}-{number:03d}" for number in range(round(nodes * part)))
        groups[name] = NodeGroup(names=hosts, cpus=8, gpus={"": 8})
    gpus = jobs["gpu_num"].to_numpy(np.int64)
    run_time_s = jobs["duration"].to_numpy(np.float64)
    submitted_s = (pd.to_datetime(jobs["submit_time"]) - pd.Timestamp(0)).dt.total_seconds()
    workload = SlurmWorkload(
        job_id=jobs["job_id"].astype(str).to_numpy(object),
        submitted_s=submitted_s.to_numpy().astype(np.float64),
        run_time_s=run_time_s,
        time_limit_s=np.ceil(run_time_s * 2 / 3600) * 3600,
        partitions=tuple(names),
        partition=jobs["vc"].map({name: code for code, name in enumerate(names)}).to_numpy(np.int64),
        nodes=np.zeros(len(jobs), dtype=np.int64),
        cpus=np.maximum(gpus, 1),
        gpus=gpus,
    )
    site = a_site(groups)
    return workload.kept(startable(workload, site)), site


def compare(name: str, workload: SlurmWorkload, site: SlurmSite) -> None:
    """Print the rate of the whole and, of the first jobs, that of the reference."""
    begin = time.process_time()
    replay = replay_slurm(workload, site)
    rate = len(workload) / (time.process_time() - begin)
    first = workload.kept(np.arange(len(workload)) < PLAIN_JOBS)
    booted_s = float(first.submitted_s[0])
    begin = time.process_time()
    horizon_s = float(first.submitted_s[-1] - first.submitted_s[0]) + 3600.0
    Reference(first, site, SlurmLatency(controller_started_s=booted_s)).run(most_s=min(horizon_s, 7200.0))
    plain = PLAIN_JOBS / (time.process_time() - begin)
    wait_s = float(np.nanmean(replay.started_s - workload.submitted_s))
    print(
        f"{name:<16}{len(workload):>9,}{rate:>12,.0f}{plain:>22,.1f}{wait_s:>14,.0f}{replay.backfilled.mean():>12.0%}"
        f"{replay.main_passes:>12,}{replay.backfill_passes:>12,}"
    )


def main() -> None:
    """Print the table."""
    workload, site = kth()
    replay_slurm(workload.kept(np.arange(len(workload)) < PLAIN_JOBS), site)
    head = f"{'':<16}{'jobs':>9}{'jobs/s':>12}{f'plain, first {PLAIN_JOBS}':>22}{'mean wait, s':>14}{'backfilled':>12}"
    print(f"{head}{'main':>12}{'backfill':>12} passes")
    compare("KTH", workload, site)
    for part in (1.0, 0.4):
        compare(f"Philly {part:.0%}", *philly(part))


if __name__ == "__main__":
    main()
