"""A million jobs from file to replay: seconds of each step, and the peak memory of the whole process.

    python benchmarks/million.py [JOBS] [MORE]

The jobs are synthetic months of the Saturn profile, written and read back as a trace file, as a site would.
The naive control is a plain read of that file into pandas: what it costs merely to hold the jobs. At last ten times
as many (MORE), made up in memory, go through the compiled core alone, strict, in a process of its own; beside it the
plain Python event loop of the tests, on a few thousand, says what that would take.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.replay import PLAIN_JOBS, a_cluster, a_trace, given, pending, plain
from helios.app.history import ingest, load_history
from helios.app.scenarios import Scenario
from helios.app.whatif import WhatIfRequest, whatif
from helios.choices import Policy, RunTimes
from helios.ingest import synthetic_nodes, synthetic_trace, write_helios_csv
from helios.model import JOBS
from helios.predict.duration import train
from helios.simulate import Backfill
from helios.simulate.ageing import first_in_first_out

START = datetime(2020, 1, 1, tzinfo=UTC)
JOBS_A_DAY = 698_896 / 183
Answer = TypeVar("Answer")


def peak_mib() -> float:
    """Return the peak resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(step: str, work: Callable[..., Answer]) -> Answer:
    """Do ``work`` and print how long it took and how high memory has risen."""
    began = time.perf_counter()
    answer = work()
    print(f"{step:<52} {time.perf_counter() - began:8.1f} s   peak so far {peak_mib():7,.0f} MiB", flush=True)
    return answer


def write_trace(path: Path, n_jobs: int) -> None:
    """Write ``n_jobs`` synthetic jobs, made in a process of their own so that their memory is not counted."""
    apart(_write, path, n_jobs)


def apart(work: Callable[..., None], *arguments: Any) -> None:
    """Do ``work`` in a process of its own, for its memory to be counted apart."""
    import multiprocessing  # noqa: PLC0415 - only the parent needs it

    child = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    child.start()
    child.join()


def _write(path: Path, n_jobs: int) -> None:
    days = int(n_jobs / JOBS_A_DAY) + 2
    write_helios_csv(JOBS.conform(synthetic_trace(profile="saturn", start=START, days=days).head(n_jobs)), path)


def main() -> None:
    """Run every step once."""
    n_jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        trace, url = Path(folder) / "saturn.csv", f"sqlite:///{folder}/helios.db"
        timed(f"(made {n_jobs:,} jobs, {trace.name})", lambda: write_trace(trace, n_jobs))
        control = timed("control: pandas.read_csv of the file", lambda: len(pd.read_csv(trace)))
        report = timed("load into SQLite", lambda: ingest(trace, url=url, timezone="UTC", cluster="saturn"))
        assert report.jobs_new == control
        history = timed("read all columns back", lambda: load_history(url=url, cluster="saturn"))
        timed("train (features of all, the last 300,000 to learn)", lambda: train(history.jobs, cluster="saturn"))
        for backfill in (Backfill.NONE, Backfill.EASY, Backfill.NODES):
            plan = Scenario(
                policy=Policy.QSSF,
                backfill=backfill,
                run_times=RunTimes.TRUE,
                estimates=None if backfill is Backfill.NONE else RunTimes.LIMIT,
            )
            request = WhatIfRequest(scenarios=[plan], nodes=synthetic_nodes("saturn"), gpus_per_node=8)
            timed(f"replay QSSF, backfill {backfill}", lambda request=request: whatif(history, request))
    print(f"peak {peak_mib():,.0f} MiB for {n_jobs:,} jobs", flush=True)
    apart(replay_many, int(sys.argv[2]) if len(sys.argv) > 2 else 10 * n_jobs)


def replay_many(n_jobs: int) -> None:
    """Replay ``n_jobs`` strictly, at a moderate load and in deep overload."""
    shape = a_cluster(1, 262)
    few = a_trace(PLAIN_JOBS, shape, load=0.9)
    warm_up = given(few, shape, first_in_first_out, Backfill.NONE)
    print(f"plain Python event loop, {len(warm_up.wait_s):,} jobs: ", end="")
    print(f"{plain(few, shape, first_in_first_out, Backfill.NONE):,.0f} jobs/s")
    for load in (0.9, 1.2):
        jobs = a_trace(n_jobs, shape, load=load)
        work = partial(given, jobs, shape, first_in_first_out, Backfill.NONE)
        result = timed(f"replay FIFO, strict, {n_jobs:,} jobs, load {load}", work)
        print(f"{'':<54}{pending(jobs, result):,.0f} jobs pending on average", flush=True)


if __name__ == "__main__":
    main()
