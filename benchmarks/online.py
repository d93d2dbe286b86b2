"""Predictions inside a replayed timeline, one submission at a time, beside LightGBM's own call for a job's grid.

Usage: python -m benchmarks.online [JOBS]
"""

import sys
import time

import lightgbm
import numpy as np
import pandas as pd

from helios.model import JOBS
from helios.predict.distribution import GRID, PAIR_FEATURES
from helios.predict.duration import DurationModel, train
from helios.predict.job_table import JobTable
from helios.predict.replay_predictor import ReplayTrainedPredictor


def a_campaign(n: int, *, seed: int = 0) -> pd.DataFrame:
    """Return ``n`` jobs of 200 users who each have their own typical run time."""
    rng = np.random.default_rng(seed)
    user = np.minimum(rng.zipf(1.3, n), 200)
    run_s = np.ceil(np.exp(rng.normal(5 + user % 7 / 2, 1)))
    submitted = pd.Timestamp("2024-01-01T00:00:00Z") + pd.to_timedelta(np.cumsum(rng.integers(0, 60, n)), unit="s")
    started = submitted + pd.to_timedelta(rng.integers(0, 3600, n), unit="s")
    return JOBS.conform(
        pd.DataFrame(
            {
                "job_id": np.arange(n).astype(str),
                "user": user.astype(str),
                "submitted_at": submitted,
                "started_at": started,
                "ended_at": started + pd.to_timedelta(run_s, unit="s"),
                "run_time_s": run_s,
                "gpus": 2 ** rng.integers(0, 5, n).astype(np.int32),
            }
        )
    )


def play(predictor: ReplayTrainedPredictor, table: JobTable) -> float:
    """Feed the recorded events, each submission by itself, and return the seconds it took."""
    ends = table.ends()
    ends_s = table.ended_s[ends]
    until = np.searchsorted(ends_s, table.submitted_s, side="right")
    told = 0
    started = time.perf_counter()
    for job in range(table.n):
        if until[job] > told:
            predictor.ended(ends[told : until[job]], ends_s[told : until[job]])
            told = until[job]
        predictor.submitted(np.array([job]), int(table.submitted_s[job]))
    return time.perf_counter() - started


def by_lightgbm(model: DurationModel, n: int) -> float:
    """Return the seconds that LightGBM's public ``predict`` takes for the grids of ``n`` jobs, one after the other."""
    booster = lightgbm.Booster(model_str=model.trees.text)
    grid = np.random.default_rng(0).normal(3, 3, (GRID, len(PAIR_FEATURES))).astype(np.float32)
    started = time.perf_counter()
    for _ in range(n):
        booster.predict(grid, num_threads=1)
    return time.perf_counter() - started


def main() -> None:
    """Print the figures."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    jobs = a_campaign(n)
    table = JobTable.from_frame(jobs)
    play(ReplayTrainedPredictor(jobs.iloc[:1500]), JobTable.from_frame(jobs.iloc[:1500]))
    model = train(jobs.iloc[: n // 2], cluster="suspension")
    fixed = ReplayTrainedPredictor(jobs, model=model, refit=False)
    fixed_s = play(fixed, table)
    learning = ReplayTrainedPredictor(jobs, refit=True)
    learning_s = play(learning, table)
    peer_s = by_lightgbm(model, 500)
    print(f"fixed model, {n:,} jobs one at a time             {n / fixed_s:10,.0f} jobs/s")
    print(f"the same, with {len(learning.sources) - 1} trainings inside the timeline   {n / learning_s:10,.0f} jobs/s")
    print(f"LightGBM's public predict alone, a grid at a time  {500 / peer_s:10,.0f} jobs/s")


if __name__ == "__main__":
    main()
