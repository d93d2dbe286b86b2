"""What marks cost jobs that are submitted between two cycles: orders of the queue with and without the priority hook.

Without the hook a new job has SiteFactor 0 until the next cycle, behind every pending job that has a positive one. Here
the same jobs run on the same nodes under Slurm's rules in six ways, drawn many times:

- plain: Slurm alone, first come, first served;
- no hook: qssf, each job at 0 until the next cycle;
- hook: qssf, each job submitted with the value that the next cycle would give it;
- hook, half: the same, but that half of the jobs find no row in the hook's table;
- shifted: no hook, all values moved down so that none is above 0 and only promoted jobs have 0;
- clipped: no hook, positive values are left out.

Cycles come at a fixed period with the cap on one user's share, as live ones.

python -m benchmarks.new_jobs [--draws 24] [--turn-s 60]   (about five minutes)
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.app.replay_guards import ReplayGuards
from helios.app.slurm_whatif_jobs import SlurmJobs, slurm_jobs
from helios.config import Control
from helios.model import JOBS, in_submission_order
from helios.model.slurm_site import NodeGroup, PartitionRules, PriorityRules, SchedulingRules, SlurmSite
from helios.services.qssf import MOST_URGENT, PROMOTED, Qssf
from helios.simulate.slurm import SlurmLatency
from helios.simulate.slurm.cluster import SimulatedSlurm
from helios.simulate.snapshot import Predictions, moment

N_JOBS, NODES, GPUS = 300, 4, 8
BEGAN = pd.Timestamp("2026-01-01T00:00:00Z")
RUNS_S = (20.0, 60.0, 180.0, 600.0, 3600.0)
"""Mean run times of the jobs: with the default turn of 60 s, from a third of a cycle to sixty cycles."""
LOAD = 1.15
"""GPU seconds asked for while jobs arrive, as a part of what the nodes have: a queue that grows, then drains."""
SPREAD, ERROR = 1.5, 0.7
"""Of the logarithms of run times, and of predicted over true ones."""
SIZES, SHARES = (1, 2, 4, 8), (0.6, 0.15, 0.15, 0.1)
USERS = 8
LARGE = 8
MOST = 10_000
Floats = NDArray[np.float64]
Shape = Callable[[Floats], Floats]

NAMES = tuple(f"n{number}" for number in range(NODES))
SITE = SlurmSite(
    nodes=(NodeGroup(names=NAMES, cpus=64, memory_mib=512_000, gpus={"a100": GPUS}),),
    partitions=(PartitionRules(name="gpu", nodes=NAMES, is_default=True),),
    priority=PriorityRules(partition=100_000, calc_period_s=60),
    scheduling=SchedulingRules(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Jobs as they are submitted, what is predicted of them, and when the first cycle comes."""

    jobs: SlurmJobs
    predictions: Predictions
    finds_row: Floats
    first_cycle_s: float


def draw(run_s: float, cycle_s: float, seed: int) -> Draw:
    """Draw one stretch of jobs of a mean run time."""
    rng = np.random.default_rng([seed, int(run_s)])
    run_time_s = np.maximum(run_s * rng.lognormal(-(SPREAD**2) / 2, SPREAD, N_JOBS), 1.0)
    gpus = rng.choice(SIZES, p=SHARES, size=N_JOBS)
    gap_s = float((run_time_s * gpus).mean()) / (LOAD * NODES * GPUS)
    submitted_at = BEGAN + pd.to_timedelta(np.cumsum(rng.exponential(gap_s, N_JOBS)), unit="s")
    frame = pd.DataFrame(
        {
            "job_id": np.arange(1, N_JOBS + 1).astype(str),
            "user": [f"user{number}" for number in (USERS * rng.random(N_JOBS) ** 2).astype(int)],
            **{"account": "root", "partition": "gpu", "nodes": 1, "state": "COMPLETED"},
            **{"cpus": gpus, "gpus": gpus, "memory_mib": 100.0 * gpus},
            **dict.fromkeys(("submitted_at", "eligible_at", "started_at"), submitted_at),
            "ended_at": submitted_at + pd.to_timedelta(run_time_s, unit="s"),
            "run_time_s": run_time_s,
            "time_limit_s": np.ceil(run_time_s * rng.uniform(1.2, 6.0, N_JOBS) / 60) * 60,
        }
    )
    p50_s = run_time_s * rng.lognormal(0, ERROR, N_JOBS)
    return Draw(
        jobs=slurm_jobs(in_submission_order(JOBS.conform(frame)), SITE),
        predictions=Predictions(
            run_times=np.column_stack((p50_s / 3, p50_s, p50_s * 3, p50_s, p50_s, p50_s, np.log1p(p50_s))),
            source=np.zeros(N_JOBS, dtype=np.int16),
            sources=["drawn"],
        ),
        finds_row=rng.random(N_JOBS),
        first_cycle_s=cycle_s * rng.random(),
    )


def waits_s(drawn: Draw, cycle_s: float, shape: Shape | None, *, hook: float, patience_s: float) -> Floats:
    """Return the wait of each job in one replay, s.

    Parameters
    ----------
    shape : callable, optional
        Makes what is written of qssf's urgencies; None: Slurm alone.
    hook : float
        Part of the jobs that find a row in the hook's table.
    patience_s : float
        After what waiting a job is promoted.
    """
    workload, qssf = drawn.jobs.workload, Qssf(Qssf.Options(promote_after_s=patience_s))

    def wished(door: SimulatedSlurm, jobs: NDArray[np.int64], now_s: int) -> Floats:
        urgency = qssf.changes(door.rows(jobs, drawn.predictions).values, moment(now_s)).urgency
        return urgency if shape is None else shape(urgency)

    if shape is not None and hook:
        whole = SimulatedSlurm(workload, SITE, drawn.jobs.jobs, site_factor_most=MOST)
        first = [wished(whole, np.array([job]), int(workload.submitted_s[job]))[0] for job in range(N_JOBS)]
        factors = ownership.site_factors(np.array(first), n_steps=ownership.steps(MOST))
        workload = replace(workload, site_factor=np.where(drawn.finds_row < hook, factors, 0))
    latency = SlurmLatency(controller_started_s=BEGAN.timestamp() - 3600 - drawn.first_cycle_s)
    door = SimulatedSlurm(workload, SITE, drawn.jobs.jobs, site_factor_most=MOST, latency=latency)
    guards = ReplayGuards(door, 1, Control().most_of_one_user)
    now_s = int(BEGAN.timestamp() + drawn.first_cycle_s)
    while len(door.ended) < N_JOBS:
        door.advance(now_s)
        jobs = door.waiting()
        if shape is not None and len(jobs):
            guards.change(0, jobs, wished(door, jobs, now_s))
        now_s += int(cycle_s)
    waited: Floats = door.timeline.result().started_s - workload.submitted_s
    return waited


def as_it_is(urgency: Floats) -> Floats:
    """Write what qssf says."""
    return urgency


def shifted(urgency: Floats) -> Floats:
    """Move all down: promoted jobs to 0, where new ones are, the most urgent others below."""
    return np.where(urgency == PROMOTED, 0.0, (urgency - MOST_URGENT) / 2 - 0.05)


def clipped(urgency: Floats) -> Floats:
    """Leave out what is positive."""
    return np.minimum(urgency, 0.0)


WAYS: dict[str, tuple[Shape, float]] = {
    "no hook": (as_it_is, 0.0),
    "hook": (as_it_is, 1.0),
    "hook, half": (as_it_is, 0.5),
    "shifted": (shifted, 0.0),
    "clipped": (clipped, 0.0),
}


def measured(waited: Floats, gpus: NDArray[np.int64]) -> Floats:
    """Return the mean wait, the 95th percentile, the longest, and the mean of large jobs, s."""
    return np.array([waited.mean(), np.percentile(waited, 95), waited.max(), waited[gpus >= LARGE].mean()])


def table(run_s: float, cycle_s: float, draws: int) -> list[str]:
    """Return the lines for jobs of a mean run time, the way with the worst draw first."""
    plain, ways = [], {name: [] for name in WAYS}  # type: tuple[list[Floats], dict[str, list[Floats]]]
    for seed in range(draws):
        drawn = draw(run_s, cycle_s, seed)
        gpus = drawn.jobs.workload.column("gpus")
        plain.append(measured(waits_s(drawn, cycle_s, None, hook=0.0, patience_s=0.0), gpus))
        patience_s = max(float(plain[-1][2]), 1.0)  # the longest wait in order of submission
        for name, (shape, hook) in WAYS.items():
            ways[name].append(measured(waits_s(drawn, cycle_s, shape, hook=hook, patience_s=patience_s), gpus))
    mean, p95, longest, large = np.mean(plain, axis=0)
    lines = [
        f"mean run time {run_s:,.0f} s, a cycle each {cycle_s:g} s, {draws} draws; plain, mean of the draws: "
        f"mean wait {mean:,.0f} s, 95th {p95:,.0f} s, longest {longest:,.0f} s, large jobs {large:,.0f} s",
        f"  {'% against plain':<16} {'mean wait':>20} {'95th':>20} {'longest':>20} {'large jobs':>20}  worse mean in",
    ]
    against = {name: 100 * (np.array(rows) / np.maximum(plain, 1e-3) - 1) for name, rows in ways.items()}
    for name, found in sorted(against.items(), key=lambda item: -item[1][:, 0].max()):
        cells = (f"{np.median(one):+.0f} ({one.min():+.0f} to {one.max():+.0f})" for one in found.T)
        lines.append(f"  {name:<16} {' '.join(f'{cell:>20}' for cell in cells)}  {(found[:, 0] > 0).sum()} draws")
    return lines


def main(words: list[str] | None = None) -> None:
    """Draw, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.new_jobs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=24, help="of each mean run time (default 24)")
    parser.add_argument("--turn-s", type=float, default=60.0, help="between cycles, s (default 60)")
    asked = parser.parse_args(words)
    print("median (least to most) over the draws; the way with the worst draw first")
    for run_s in RUNS_S:
        print("\n".join(table(run_s, asked.cycle_s, asked.draws)), flush=True)


if __name__ == "__main__":
    main()
