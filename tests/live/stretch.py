"""What is recorded on a real Slurm: a stretch of a real trace, compressed, as sleeping jobs, and a cluster to match."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tests.live.rig import Rig
from tests.traces import TRACES

TRACE = TRACES / "helios_venus_mar-aug2020.csv.gz"
GPUS_PER_NODE = 8
ACCOUNTS = {"alice": "vision", "bob": "speech", "carol": "vision"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Which jobs are recorded, on how large a cluster, and how much shorter all is than it was.

    Attributes
    ----------
    jobs : int
    first : int
        Where in Venus (jobs with GPUs, by submission) it begins; the default one has jobs of all sizes, in bursts.
    shortest_s : float
        Run times are from here to 35 times that, in the order that they had, s.
    nodes : int
        Of 8 GPUs; the second half is also the partition debug. The largest jobs take a quarter of the cluster.
    bf_interval : int
        From one backfill pass to the next, s; Slurm's default is 30.
    offered : float
        GPU seconds submitted for each that the cluster has. At 1 a queue grows, and most of the time something can
        start.
    seed : int
    """

    jobs: int = 260
    first: int = 52_000
    shortest_s: float = 4.0
    nodes: int = 8
    bf_interval: int = 2
    offered: float = 1.0
    seed: int = 1

    @property
    def settings(self) -> dict[str, str]:
        """The cluster: Slurm's own defaults, but for what has to be as short as the jobs are, minutes for days.

        With an epilog, as most sites have one, an end makes a pass at once; without, it is a race that nobody can
        foretell.
        """
        longer = max(1, round(self.shortest_s / 4))
        return {
            "NAME": "fidelity",
            "NODES": str(self.nodes),
            "GPUS": str(GPUS_PER_NODE),
            "CPUS": "32",
            "MEMORY": "256000",
            "PARTITIONS": f"PartitionName=gpu Nodes=n[1-{self.nodes}] Default=YES MaxTime=2:00:00 DefMemPerCPU=1000 "
            f"PriorityJobFactor=1\nPartitionName=debug Nodes=n[{self.nodes // 2 + 1}-{self.nodes}] MaxTime=30 "
            "DefMemPerCPU=1000 PriorityJobFactor=10",
            "CONF": f"SchedulerParameters=bf_interval={self.bf_interval},bf_resolution={min(60, 5 * self.bf_interval)},"
            f"bf_window={min(1440, 120 * longer)},bf_continue,bf_max_job_test=200\n"
            f"PriorityWeightAge=5000\nPriorityMaxAge={20 * longer}\nPriorityWeightFairshare=2000\n"
            "PriorityWeightJobSize=1000\nPriorityWeightPartition=500\nPriorityWeightQOS=2000\n"
            f"PriorityCalcPeriod={min(5, longer)}\nPriorityDecayHalfLife={5 * longer}\n"
            "Epilog=/bin/true\nSlurmctldDebug=debug\nDebugFlags=Backfill",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is asked of Slurm, ``after_s`` the first."""

    after_s: float
    user: str
    gpus: int
    cpus_per_gpu: int
    run_time_s: float
    limit_min: int
    partition: str = "gpu"
    qos: str = "normal"
    nice: int = 0
    begin_s: int = 0
    tasks: int = 0

    def submit(self, rig: Rig) -> str:
        """Hand it in, and return the job's id."""
        nodes = max(1, -(-self.gpus // GPUS_PER_NODE))
        each = self.gpus // nodes
        asked = [f"--gres=gpu:{each}"] if self.gpus else []
        asked += [f"--nice={self.nice}"] if self.nice else []
        asked += [f"--begin=now+{self.begin_s}"] if self.begin_s else []
        asked += [f"--array=0-{self.tasks - 1}"] if self.tasks else []
        return rig.run(
            "sbatch",
            "--parsable",
            "--output=/dev/null",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            f"--cpus-per-task={max(1, each) * self.cpus_per_gpu}",
            f"--time={self.limit_min}",
            f"--partition={self.partition}",
            f"--qos={self.qos}",
            *asked,
            f"--wrap=sleep {self.run_time_s:g}",
            user=self.user,
        ).strip()


def submissions(stretch: Stretch) -> list[Submission]:
    """Return the jobs of a stretch of Venus, squeezed."""
    rng, all_gpus = np.random.default_rng(stretch.seed), GPUS_PER_NODE * stretch.nodes
    trace = pd.read_csv(TRACE, parse_dates=["submit_time"]).query("gpu_num > 0")
    chosen = trace.sort_values(["submit_time", "job_id"]).iloc[stretch.first : stretch.first + stretch.jobs]
    gpus = np.minimum(chosen["gpu_num"].to_numpy(), all_gpus // 4)
    gpus = np.where(gpus > GPUS_PER_NODE, -(-gpus // GPUS_PER_NODE) * GPUS_PER_NODE, gpus)
    run_time_s = np.round(stretch.shortest_s * np.maximum(chosen["duration"].to_numpy() / 16, 1) ** 0.38, 1)
    gap_s = np.minimum(np.diff(chosen["submit_time"].to_numpy().astype("datetime64[s]").astype(np.int64)), 1800)
    after_s = np.concatenate([[0.0], np.cumsum(gap_s)])
    after_s *= float((gpus * run_time_s).sum()) / all_gpus / stretch.offered / after_s[-1]
    return [
        _dressed(rng, after_s=float(at), gpus=int(size), run_time_s=float(runs), tasks=8 * (place == stretch.jobs // 3))
        for place, (at, size, runs) in enumerate(zip(after_s, gpus, run_time_s, strict=True))
    ]


def _dressed(rng: np.random.Generator, *, after_s: float, gpus: int, run_time_s: float, tasks: int) -> Submission:
    """Give a job of the trace what the trace does not tell."""
    partition = rng.choice(["gpu", "debug", "gpu,debug"], p=[0.8, 0.14, 0.06])
    shortest_min = int(np.ceil((run_time_s + 5) / 60))
    over = [0, 1, 3, 8, 25] if partition == "gpu" else [0, 1, 3]
    return Submission(
        after_s=after_s,
        user=str(rng.choice(list(ACCOUNTS), p=[0.5, 0.3, 0.2])),
        gpus=1 if tasks else int(gpus * (rng.random() > 0.04)),
        cpus_per_gpu=int(rng.choice([1, 2, 4], p=[0.2, 0.5, 0.3])),
        run_time_s=run_time_s,
        limit_min=shortest_min + int(rng.choice(over)),
        partition=str(partition),
        qos=str(rng.choice(["normal", "high"], p=[0.92, 0.08])),
        nice=int(rng.choice([0, 500], p=[0.95, 0.05])),
        begin_s=int(rng.choice([0, 45], p=[0.98, 0.02])),
        tasks=tasks,
    )
