"""Replay speed: jobs per second of the compiled simulator, and of the plain Python event loop in the same run.

    python benchmarks/replay.py [philly|made|growth|nodes|predicting]...

Philly is real, where the traces are at hand, with all of its nodes and with 40 % of them; the other traces are made up
here from a fixed seed. Times are processor times, since the machine may be shared, and the best of three; of the
plain loop one. Compilation is not counted, and printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.published.compare import PHILLY
from helios.ports import RUN_TIME, Order
from helios.services.qssf import shortest_service_first
from helios.simulate import Backfill, ClusterShape, Replay, Workload, replay
from helios.simulate.ageing import first_in_first_out, shortest_job_first
from tests.traces import TRACES
from tests.unit.simulate.reference import reference_replay

SIZES, SHARES = [1, 2, 4, 8, 16, 32], [0.62, 0.10, 0.09, 0.14, 0.03, 0.02]
PLAIN_JOBS = 3_000
PHILLY_FILE = "philly_vc_aug-oct2017.csv.gz"
COLUMNS = ("job_id", "submitted_s", "run_time_s", "gpus", "partition")
GIVEN = [
    ("fifo", first_in_first_out, Backfill.NONE),
    ("qssf", shortest_service_first, Backfill.NONE),
    ("fifo", first_in_first_out, Backfill.EASY),
    ("qssf", shortest_service_first, Backfill.EASY),
    ("fifo", first_in_first_out, Backfill.NODES),
    ("qssf", shortest_service_first, Backfill.NODES),
    ("qssf", shortest_service_first, Backfill.SKIP),
]


def a_cluster(partitions: int, nodes: int) -> ClusterShape:
    """Describe ``partitions`` of ``nodes`` with 8 GPUs each."""
    return ClusterShape(
        partitions=tuple(f"p{i}" for i in range(partitions)),
        nodes=np.full(partitions, nodes, dtype=np.int32),
        gpus_per_node=np.full(partitions, 8, dtype=np.int32),
    )


def a_trace(n_jobs: int, shape: ClusterShape, *, load: float, backlog: int = 0) -> Workload:
    """Make ``n_jobs`` that ask for ``load`` of the cluster over time, ``backlog`` of them at the very start."""
    rng = np.random.default_rng(7)
    gpus = rng.choice(SIZES, p=SHARES, size=n_jobs).astype(np.int32)
    run_time = np.minimum(rng.lognormal(np.log(600), 1.8, n_jobs), 172_800).astype(np.int64)
    arriving = (gpus * run_time)[backlog:].sum()
    submitted = rng.integers(0, int(arriving / shape.total_gpus / load) + 1, size=n_jobs)
    submitted[:backlog] = 0
    submitted.sort()
    return Workload(
        job_id=np.array([f"{i:09d}" for i in range(n_jobs)], dtype=object),
        submitted_s=submitted,
        run_time_s=run_time,
        gpus=gpus,
        partition=rng.integers(0, len(shape.partitions), size=n_jobs).astype(np.int32),
    )


def philly(share: float) -> tuple[ClusterShape, Workload]:
    """Read Philly's jobs, and ``share`` of its nodes; jobs larger than their partition is then are left out."""
    names = tuple(PHILLY.nodes)
    jobs = pd.read_csv(TRACES / PHILLY_FILE, dtype={"job_id": str}, parse_dates=["submit_time"])
    jobs = jobs[jobs["vc"].isin(names) & (jobs["gpu_num"] > 0)].sort_values("submit_time", kind="stable")
    shape = ClusterShape(
        partitions=names,
        nodes=np.array([max(1, round(share * n)) for n in PHILLY.nodes.values()], dtype=np.int32),
        gpus_per_node=np.full(len(names), 8, dtype=np.int32),
    )
    partition = pd.Categorical(jobs["vc"], categories=names).codes.astype(np.int32)
    fits = jobs["gpu_num"].to_numpy() <= shape.capacity[partition]
    jobs, partition = jobs[fits], partition[fits]
    return shape, Workload(
        job_id=np.array([f"{i:06d}" for i in range(len(jobs))], dtype=object),
        submitted_s=jobs["submit_time"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=jobs["duration"].to_numpy(dtype=np.int64),
        gpus=jobs["gpu_num"].to_numpy(dtype=np.int32),
        partition=partition,
    )


def first_of(workload: Workload, n_jobs: int) -> Workload:
    """Return the first jobs."""
    return Workload(**{name: getattr(workload, name)[:n_jobs] for name in COLUMNS})


class Constant:
    """A predictor that costs next to nothing."""

    answer = np.full((1, len(RUN_TIME)), 600.0)

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Learn nothing."""

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:  # noqa: ARG002  because of the port
        """Say the same of every job."""
        return np.repeat(self.answer, len(jobs), axis=0)

    def waiting(self, jobs: NDArray[np.int64], now_s: int, **_: NDArray[np.int64]) -> NDArray[np.float64]:
        """Say it again."""
        return self.submitted(jobs, now_s)


def given(workload: Workload, shape: ClusterShape, order: Order, backfill: Backfill) -> Replay:
    """Replay with true run times, known beforehand."""
    true = workload.run_time_s
    return replay(workload, shape, backfill=backfill, order=order, run_time_s=true.astype(np.float64), estimate_s=true)


def timed(work: Callable[..., Replay], times: int = 3) -> tuple[float, Replay]:
    """Return the least of several times, s, and the last result."""
    best = np.inf
    for _ in range(times):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def plain(workload: Workload, shape: ClusterShape, order: Order, backfill: Backfill) -> float:
    """Return jobs per second of the reference, which re-sorts the queue in every pass."""
    keys = order(
        submitted_s=workload.submitted_s, gpus=workload.gpus, run_time_s=workload.run_time_s.astype(np.float64)
    )
    start = time.process_time()
    reference_replay(workload, shape, backfill=backfill, keys=keys, estimates=workload.run_time_s)
    return len(workload) / (time.process_time() - start)


def pending(workload: Workload, result: Replay) -> float:
    """Return the mean number of pending jobs while jobs arrive."""
    last = workload.submitted_s[-1]
    waited = np.minimum(result.started_s, last) - workload.submitted_s
    return float(waited.sum() / max(1, last - workload.submitted_s[0]))


def compare(title: str, shape: ClusterShape, workload: Workload, small: Workload) -> None:
    """Print rates beside those of the plain event loop."""
    print(f"\n{title}: {len(workload):,} jobs, {len(shape.partitions)} partitions, {shape.total_gpus:,} GPUs")
    control_name = f"plain Python, {len(small):,} jobs"
    print(f"  {'':<12}{'jobs/s':>12}{'mean pending':>14}{control_name:>29}{'ratio':>8}")
    for name, order, backfill in GIVEN:
        seconds, result = timed(lambda order=order, backfill=backfill: given(workload, shape, order, backfill))
        rate, control = len(workload) / seconds, plain(small, shape, order, backfill)
        print(
            f"  {name + ' ' + backfill:<12}{rate:>12,.0f}{pending(workload, result):>14,.0f}"
            f"{control:>22,.0f} jobs/s{rate / control:>7,.0f}x"
        )


def growth() -> None:
    """Print the time per job for ever longer traces."""
    print("\nTime per job (ns) against the number of jobs; load 1.3, so that the queue grows with it")
    sizes = [10_000, 100_000, 1_000_000]
    print(f"  {'':<12}" + "".join(f"{size:>14,}" for size in sizes))
    shape = a_cluster(1, 133)
    traces = [a_trace(size, shape, load=1.3) for size in sizes]
    for name, order, backfill in GIVEN:
        row = []
        for trace in traces:
            seconds, result = timed(lambda trace=trace, o=order, b=backfill: given(trace, shape, o, b), 1)
            row.append(f"{seconds / len(trace) * 1e9:,.0f} ({pending(trace, result):,.0f})")
        print(f"  {name + ' ' + backfill:<12}" + "".join(f"{cell:>14}" for cell in row))
    print("  in brackets: jobs pending on average")


def many_nodes() -> None:
    """Print the time of a replay of a million jobs against the number of nodes."""
    print("\nCPU seconds of 1,000,000 jobs, FIFO, one partition at load .95, against the number of nodes")
    for nodes in (1_000, 10_000, 100_000):
        shape = a_cluster(1, nodes)
        trace = a_trace(1_000_000, shape, load=0.95)
        easy, by_nodes = (
            timed(lambda shape=shape, trace=trace, b=b: given(trace, shape, first_in_first_out, b), 1)[0]
            for b in (Backfill.EASY, Backfill.NODES)
        )
        print(f"  {nodes:>9,} nodes: EASY {easy:6.1f} s, nodes {by_nodes:6.1f} s")


def predicting() -> None:
    """Print the rate at which a timeline can be stopped for a predictor."""
    shape = a_cluster(11, 32)
    trace = a_trace(100_000, shape, load=0.8)
    print(f"\nPredictions in the timeline, a constant predictor asked at each of {len(trace):,} submissions")
    for backfill in Backfill:
        seconds, _ = timed(
            lambda backfill=backfill: replay(
                trace, shape, backfill=backfill, order=shortest_service_first, predictor=Constant()
            ),
            2,
        )
        print(f"  qssf {backfill:<7}{len(trace) / seconds:>12,.0f} jobs/s")


def preemptive(shape: ClusterShape, trace: Workload) -> None:
    """Print the rates of SRTF."""
    for backfill in (Backfill.NONE, Backfill.SKIP):
        seconds, _ = timed(
            lambda backfill=backfill: replay(
                trace, shape, backfill=backfill, order=shortest_job_first, preemptive=True
            ),
            1,
        )
        print(f"  srtf {backfill:<7}{len(trace) / seconds:>12,.0f}")


def main() -> None:
    """Print everything."""
    wanted = sys.argv[1:] or ["philly", "made", "growth", "nodes", "predicting"]
    start = time.perf_counter()
    tiny = a_cluster(1, 4)
    given(a_trace(10, tiny, load=1.0), tiny, first_in_first_out, Backfill.EASY)
    print(f"first call, compiling or reading the cache: {time.perf_counter() - start:.1f} s")
    if "philly" in wanted:
        real()
    if "made" in wanted:
        made()
    if "growth" in wanted:
        growth()
    if "nodes" in wanted:
        many_nodes()
    if "predicting" in wanted:
        predicting()


def real() -> None:
    """Print the rates on Philly."""
    if not (TRACES / PHILLY_FILE).is_file():
        print(f"\nPhilly: left out, there is no {PHILLY_FILE} in {TRACES}")
        return
    for share in (1.0, 0.4):
        shape, jobs = philly(share)
        compare(f"Philly by virtual cluster, {share:.0%} of its nodes", shape, jobs, first_of(jobs, PLAIN_JOBS))


def made() -> None:
    """Print the rates on traces that are made up."""
    moderate, deep = a_cluster(11, 32), a_cluster(1, 133)
    calm = a_trace(500_000, moderate, load=0.8)
    compare("Moderate load, like Philly", moderate, calm, a_trace(PLAIN_JOBS, moderate, load=0.8))
    preemptive(moderate, calm)
    crowded = a_trace(800_000, deep, load=1.35)
    compare("Deep overload", deep, crowded, a_trace(PLAIN_JOBS, deep, load=1.35, backlog=PLAIN_JOBS - 500))
    preemptive(deep, crowded)


if __name__ == "__main__":
    main()
