"""Replay speed beside two peers in one run: a plain Python event loop, and a loop that steps through every second.

    python -m benchmarks.peers            (some five minutes, nearly all of them the peers')

All replay the same jobs, and where they mean the same their results are compared job by job. The event loop is the one
the tests hold the compiled core to (tests/unit/simulate/reference.py); the stepping loop is written the way the
published artifacts are (tests/unit/simulate/stepping.py). Slices: a week of Philly at 40 % of its nodes, where the
real traces are at hand, and a made-up deep overload; the compiled loops alone replay more of each, where fixed costs
weigh less. Rates are by processor time, since the machine may be shared; of the compiled ones the best of five.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.published.compare import PHILLY
from benchmarks.published.simulator import PublishedPolicy, replay_as_published
from benchmarks.replay import a_cluster, a_trace
from helios.simulate import Backfill, ClusterShape, Workload, replay
from helios.simulate.ageing import first_in_first_out
from tests.traces import TRACES
from tests.unit.simulate.reference import reference_replay
from tests.unit.simulate.stepping import stepping_replay

PHILLY_FILE = TRACES / "philly_vc_aug-oct2017.csv.gz"
SHARE_OF_NODES = 0.4
Answer = TypeVar("Answer")


def philly(first: str, end: str) -> tuple[ClusterShape, Workload]:
    """Return the jobs of Philly submitted from ``first`` to before ``end``, on 40 % of its nodes."""
    jobs = pd.read_csv(PHILLY_FILE, dtype={"job_id": str}, parse_dates=["submit_time"])
    jobs = jobs[(jobs["submit_time"] >= first) & (jobs["submit_time"] < end) & jobs["vc"].isin(list(PHILLY.nodes))]
    names = tuple(PHILLY.nodes)
    shape = ClusterShape(
        partitions=names,
        nodes=np.array([int(SHARE_OF_NODES * n) for n in PHILLY.nodes.values()], dtype=np.int32),
        gpus_per_node=np.full(len(names), 8, dtype=np.int32),
    )
    return shape, Workload(
        job_id=jobs["job_id"].to_numpy(dtype=object),
        submitted_s=jobs["submit_time"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=jobs["duration"].to_numpy(dtype=np.int64),
        gpus=jobs["gpu_num"].to_numpy(dtype=np.int32),
        partition=pd.Categorical(jobs["vc"], categories=names).codes.astype(np.int32),
    )


def overload(n_jobs: int, backlog: int) -> tuple[ClusterShape, Workload]:
    """Return ``n_jobs`` of which ``backlog`` are there at once; lengths are at least 1 s."""
    shape = a_cluster(1, 133)
    jobs = a_trace(n_jobs, shape, load=1.35, backlog=backlog)
    return shape, Workload(
        job_id=jobs.job_id,
        submitted_s=jobs.submitted_s,
        run_time_s=jobs.run_time_s.clip(min=1),
        gpus=jobs.gpus,
        partition=jobs.partition,
    )


def timed(work: Callable[..., Answer], times: int = 1) -> tuple[float, Answer]:
    """Return the least of several times, s, and the last answer."""
    best = np.inf
    for _ in range(times):
        began = time.process_time()
        answer = work()
        best = min(best, time.process_time() - began)
    return best, answer


def compiled(shape: ClusterShape, jobs: Workload, backfill: Backfill) -> tuple[float, NDArray[np.int64]]:
    """Replay FIFO with the compiled core; EASY knows the true run times."""
    seconds, found = timed(
        lambda: replay(jobs, shape, backfill=backfill, order=first_in_first_out, estimate_s=jobs.run_time_s), 5
    )
    return seconds, found.started_s


def event_loop(shape: ClusterShape, jobs: Workload, backfill: Backfill) -> tuple[float, NDArray[np.int64]]:
    """Do the same with the plain event loop."""
    seconds, found = timed(lambda: reference_replay(jobs, shape, backfill=backfill, estimates=jobs.run_time_s))
    return seconds, np.array([job.first_start for job in found.jobs])


def line(name: str, n_jobs: int, seconds: float, best_s: float, said: str) -> None:
    """Print one engine's rate, and how much longer it took than the compiled one."""
    print(f"  {name:<44}{n_jobs / seconds:>12,.0f} jobs/s{seconds / best_s:>10,.1f} x   {said}", flush=True)


def agreement(ours: NDArray[np.int64], theirs: Any) -> str:
    """Say for how many jobs two replays differ."""
    differing = int((ours != np.asarray(theirs)).sum())
    return "same starts, all jobs" if differing == 0 else f"{differing:,} of {len(ours):,} starts differ"


def compare(title: str, shape: ClusterShape, jobs: Workload, *, peers: bool = True) -> None:
    """Print rates and agreement of all on one slice, or the rates of the compiled loops alone."""
    print(f"\n{title}: {len(jobs):,} jobs, {len(shape.partitions)} partitions, {shape.total_gpus:,} GPUs, FIFO")
    for backfill in (Backfill.NONE, Backfill.EASY, Backfill.NODES):
        best_s, ours = compiled(shape, jobs, backfill)
        line(f"compiled core, {backfill}", len(jobs), best_s, best_s, "")
        if peers:
            seconds, theirs = event_loop(shape, jobs, backfill)
            line(f"  plain Python event loop, {backfill}", len(jobs), seconds, best_s, agreement(ours, theirs))
    strict = compiled(shape, jobs, Backfill.NONE)[1]
    for policy in (PublishedPolicy.FIFO, PublishedPolicy.SRTF):
        best_s, found = timed(lambda policy=policy: replay_as_published(jobs, shape, policy=policy), 5)
        said = f"{agreement(found.started_s, strict)}, as of the core" if policy is PublishedPolicy.FIFO else ""
        line(f"compiled, published semantics, {policy}", len(jobs), best_s, best_s, said)
        if peers:
            seconds, theirs = timed(lambda policy=policy: stepping_replay(jobs, shape, policy=policy))
            same = agreement(found.ended_s, [job["ended"] for job in theirs]).replace("starts", "ends")
            line(f"  plain Python, one second at a time, {policy}", len(jobs), seconds, best_s, same)


def main() -> None:
    """Print everything."""
    compare("Deep overload, made up, 2,500 jobs queue at the start", *overload(3_000, 2_500))
    compare("The same, 40,000 at the start", *overload(100_000, 40_000), peers=False)
    if not PHILLY_FILE.is_file():
        print(f"\nskipped: the real traces are not at {TRACES}")
        return
    compare("Philly, 1 to 7 October 2017, 40 % of its nodes", *philly("2017-10-01", "2017-10-08"))
    compare("The same, the whole of October", *philly("2017-10-01", "2017-11-01"), peers=False)


if __name__ == "__main__":
    main()
