"""The remaining time of running jobs, judged at random moments of real traces beside what is done without it.

A model learns from the first 70 % of a trace and predicts each later job at its submission; at random moments of the
rest, the jobs then running are asked how much longer they run. A job is asked as often as a moment falls into it, so
long jobs count for more than in other tables. Venus and Philly publish no starts: there a job starts when submitted.

Usage: python -m benchmarks.remaining DIRECTORY [MOMENTS]     (the directory of the traces)
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.app.history import read_file
from helios.predict.causal_stats import NEVER_S
from helios.predict.duration import train_on
from helios.predict.job_table import JobTable
from helios.predict.remaining_time import remaining_run_time
from helios.predict.timeline import RecordedWalk

TRACES = (
    ("KTH-SP2", "KTH-SP2-1996-2.1-cln.swf.gz", "Europe/Stockholm"),
    ("SDSC-BLUE", "SDSC-BLUE-2000-4.2-cln.swf.gz", "America/Los_Angeles"),
    ("Philly", "philly_vc_aug-oct2017.csv.gz", "America/Los_Angeles"),
    ("Venus", "helios_venus_mar-aug2020.csv.gz", "Asia/Shanghai"),
)
PAST_ESTIMATE = 0.3
"""What the study of this project gave a job past its estimate, of the time it has run."""

Floats = NDArray[np.float64]


class Asked(NamedTuple):
    """Jobs that run at one of the moments: their prediction, time so far, time left in truth, and limit; all s."""

    quantiles: Floats
    elapsed: Floats
    truth: Floats
    limit: Floats

    def of(self, rows: NDArray[np.bool_]) -> Asked:
        """Return some of them."""
        return Asked(*(column[rows] for column in self))


def asked(path: Path, timezone: str, moments: int, *, seed: int = 0) -> Asked:
    """Predict the last 30 % of the jobs of ``path``, and ask those running at each of ``moments`` random moments."""
    jobs = read_file(path, timezone=timezone).jobs
    table = JobTable.from_frame(jobs, timezone=timezone)
    first = int(table.n * 0.7)
    split_s = int(table.submitted_s[first])
    walk = RecordedWalk(table)
    model = train_on(walk, table, cluster="c", until=datetime.fromtimestamp(split_s, UTC), seed=0)
    walk.to(int(table.submitted_s[-1]) + 1, model=model.kernel)
    quantiles = walk.predicted[first:, :3]
    run_s, limit_s = table.run_time_s[first:], table.time_limit_s[first:]
    ended_s = table.ended_s[first:]
    started_s = ended_s - np.nan_to_num(run_s)
    told = (ended_s != NEVER_S) & (run_s > 0)
    at_s = np.random.default_rng(seed).integers(split_s, int(table.submitted_s[-1]), moments)
    rows = [np.flatnonzero(told & (started_s <= now_s) & (ended_s > now_s)) for now_s in at_s]
    job = np.concatenate(rows)
    elapsed = np.repeat(at_s, [len(one) for one in rows]).astype(np.float64) - started_s[job]
    return Asked(quantiles[job], elapsed, ended_s[job] - started_s[job] - elapsed, limit_s[job])


def table_of(jobs: Asked) -> None:
    """Print the figures of each way to tell the remaining time of ``jobs``."""
    median, elapsed, limited = jobs.quantiles[:, 1], jobs.elapsed, np.isfinite(jobs.limit)
    _print("p50 less elapsed", np.maximum(median - elapsed, 0.0), jobs.truth)
    _print(
        f"... or {PAST_ESTIMATE} of elapsed",
        np.where(elapsed < median, median - elapsed, PAST_ESTIMATE * elapsed),
        jobs.truth,
    )
    if limited.any():
        left = np.maximum(jobs.limit - elapsed, 0.0)[limited]
        _print(f"limit less elapsed ({limited.mean():.0%})", left, jobs.truth[limited])
    _print("conditional", remaining_run_time(jobs.quantiles, elapsed), jobs.truth)
    if limited.any():
        _print("conditional, cut", remaining_run_time(jobs.quantiles, elapsed, limit_s=jobs.limit), jobs.truth)


def _print(label: str, remaining: Floats, truth: Floats) -> None:
    """Print how far the median is off, and how much the interval covers, if there is one."""
    median = remaining if remaining.ndim == 1 else remaining[:, 1]
    error = np.log1p(median) - np.log1p(truth)
    line = f"  {label:<26} abs log error: median {np.median(np.abs(error)):5.2f}, mean {np.abs(error).mean():5.2f}"
    line += f", bias {error.mean():+6.2f}"
    if remaining.ndim == 2:
        covered = (remaining[:, 0] <= truth) & (truth <= remaining[:, 2])
        line += f"; p10-p90 covers {covered.mean():.0%}, below p90 {(truth <= remaining[:, 2]).mean():.0%}"
    print(line)


def main(directory: Path, moments: int) -> None:
    """Print the table of each trace: of all jobs asked, and of those past their p90."""
    for name, file, timezone in TRACES:
        jobs = asked(directory / file, timezone, moments)
        past = jobs.elapsed > jobs.quantiles[:, 2]
        print(f"{name}: {len(past):,} answers at {moments} moments")
        table_of(jobs)
        print(f"  Past their p90 ({past.mean():.0%}):")
        table_of(jobs.of(past))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 300)
