"""Features and training for 1,000,000 jobs: seconds of each part, LightGBM's own share, and the peak memory.

    python -m benchmarks.training [JOBS | TRACE]

The jobs are synthetic months of the Saturn profile, or those of a trace file. The naive control, in the same run:
LightGBM by its defaults and the same number of rounds, straight on the raw columns of all jobs and one feature by
pandas, the user's mean run time so far (by submission: jobs that have not ended leak into it).
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import lightgbm
import numpy as np
import pandas as pd

from helios.app.history import read_file
from helios.ingest import synthetic_trace
from helios.model import JOBS
from helios.ports import Progress
from helios.predict.duration import ROUNDS, TrainingSet, fit_trees, train_on
from helios.predict.job_table import JobTable
from helios.predict.timeline import RecordedWalk

START = datetime(2020, 1, 1, tzinfo=UTC)
JOBS_A_DAY = 698_896 / 183
QUANTILES = (0.1, 0.5, 0.9)
Answer = TypeVar("Answer")


def peak_mib() -> float:
    """Return the peak resident memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Stopwatch:
    """Adds up what parts take: by the clock on the wall, and by the processor, which a busy machine stretches less."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = {}

    def __call__(self, part: str, work: Callable[[], Answer]) -> Answer:
        """Do ``work`` and print how long it took."""
        wall, cpu = time.perf_counter(), time.process_time()
        answer = work()
        took_s = time.perf_counter() - wall
        self.wall_s[part] = self.wall_s.get(part, 0.0) + took_s
        print(
            f"{part:<58} {took_s:8.2f} s   cpu {time.process_time() - cpu:8.2f} s   peak {peak_mib():6,.0f} MiB",
            flush=True,
        )
        return answer


def write_jobs(path: Path, n_jobs: int) -> None:
    """Write ``n_jobs`` synthetic jobs, made in a process of their own so that their memory is not counted."""
    child = get_context("spawn").Process(target=_write, args=(path, n_jobs))
    child.start()
    child.join()


def _write(path: Path, n_jobs: int) -> None:
    days = int(n_jobs / JOBS_A_DAY) + 2
    JOBS.conform(synthetic_trace(profile="saturn", start=START, days=days).head(n_jobs)).to_parquet(path)


def jobs_to_learn(what: str) -> pd.DataFrame:
    """Return the jobs of the trace ``what``, or that many synthetic ones."""
    if not what.replace(",", "").isdigit():
        return read_file(Path(what), timezone="UTC").jobs
    with tempfile.TemporaryDirectory() as folder:
        write_jobs(Path(folder) / "jobs.parquet", int(what.replace(",", "")))
        return JOBS.conform(pd.read_parquet(Path(folder) / "jobs.parquet"))


def naive(jobs: pd.DataFrame) -> None:
    """Train as a first notebook would, on all rows."""
    log_run = np.log1p(jobs["run_time_s"])
    raw = pd.DataFrame({"user": jobs["user"].cat.codes, "partition": jobs["partition"].cat.codes})
    raw[["gpus", "cpus", "time_limit_s"]] = jobs[["gpus", "cpus", "time_limit_s"]].replace(np.inf, np.nan)
    raw["hour"] = jobs["submitted_at"].dt.hour
    raw["user_mean"] = log_run.groupby(raw["user"]).transform(lambda runs: runs.shift().expanding().mean())
    known = log_run.notna()
    rows = lightgbm.Dataset(raw[known], log_run[known])
    for quantile in QUANTILES:
        lightgbm.train({"objective": "quantile", "alpha": quantile, "verbose": -1}, rows, ROUNDS)


def main() -> None:
    """Print the figures."""
    jobs = jobs_to_learn(sys.argv[1] if len(sys.argv) > 1 else "1000000")
    few = JobTable.from_frame(jobs.head(2000))
    train_on(RecordedWalk(few), few, cluster="few", until=None, seed=0)  # compiles, or reads the cache
    print(f"{len(jobs):,} jobs; peak {peak_mib():,.0f} MiB before the first part")
    watch = Stopwatch()

    def watched(training_set: TrainingSet, *, seed: int, progress: Progress) -> str:
        part = f"  of it LightGBM: {len(training_set.ended):,} pairs, {ROUNDS} trees"
        return watch(part, lambda: fit_trees(training_set, seed=seed, progress=progress))

    began = time.perf_counter()
    table = watch("columns", lambda: JobTable.from_frame(jobs))
    walk = RecordedWalk(table)
    with patch("helios.predict.duration.fit_trees", watched):
        watch("training", lambda: train_on(walk, table, cluster="saturn", until=None, seed=0))
    ours_s, ours_mib = time.perf_counter() - began, peak_mib()
    lightgbm_s = sum(took_s for part, took_s in watch.wall_s.items() if "LightGBM" in part)
    watch("naive: raw columns and one leaking feature, all rows", lambda: naive(jobs))
    print(
        f"features + training of {len(jobs):,} jobs: {ours_s:.1f} s, {lightgbm_s / ours_s:.0%} of it LightGBM's own, "
        f"peak {ours_mib:,.0f} MiB; the naive way {watch.wall_s.popitem()[1]:.1f} s"
    )


if __name__ == "__main__":
    main()
