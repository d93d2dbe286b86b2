"""What a forecast of node demand costs: to learn from half a year of steps with jobs, and to answer one step.

Usage: python -m benchmarks.forecast [DAYS]
"""

import sys
import time
from collections.abc import Callable
from typing import TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from helios.predict.demand.features import job_state
from helios.predict.demand.forecaster import DemandForecaster
from helios.predict.demand.types import DAY, Calendar, DemandJobState

Answer = TypeVar("Answer")

START_S = 1_600_000_200 // 600 * 600


def main(days: int) -> None:
    """Print seconds for the state of jobs, a fit, and one forecast."""
    rng = np.random.default_rng(0)
    n_steps, n_jobs = days * DAY, 600 * days
    submitted_s = START_S + np.sort(rng.integers(0, n_steps * 600, n_jobs))
    started_s = submitted_s + rng.integers(0, 3_600, n_jobs)
    ends_s = START_S + 600 * np.arange(1, n_steps + 1, dtype=np.int64)
    busy = np.clip(np.round(60 + np.cumsum(rng.normal(0, 1, n_steps)) % 60), 0, 133)
    total, calendar = np.full(n_steps, 133.0), Calendar(zone=ZoneInfo("Asia/Shanghai"))

    def state(asked_s: np.ndarray) -> DemandJobState:
        return job_state(
            submitted_s=submitted_s,
            started_s=started_s,
            ended_s=started_s + rng.exponential(9_000, n_jobs).astype(np.int64),
            nodes=rng.choice([0.125, 0.5, 1.0, 4.0], n_jobs),
            predicted_s=np.full(n_jobs, 3_600.0),
            ends_of_steps_s=asked_s,
        )

    state(ends_s[:10])  # compile
    _, told = _timed(f"state of {n_jobs:,} jobs at {n_steps:,} steps", lambda: state(ends_s))
    _timed("warm-up (compiles)", lambda: DemandForecaster.fit(busy[:1500], total[:1500], start_s=0, calendar=calendar))
    _, fitted = _timed(
        f"fit on {days} days",
        lambda: DemandForecaster.fit(busy, total, start_s=START_S, calendar=calendar, state=told),
    )
    seconds = [_timed("", lambda: fitted.forecast(busy, total, start_s=START_S, state=told))[0] for _ in range(50)]
    print(f"one forecast: {1000 * np.median(seconds):.2f} ms (median of 50)")


def _timed(what: str, work: Callable[[], Answer]) -> tuple[float, Answer]:
    before = time.perf_counter(), time.process_time()
    done = work()
    wall_s, cpu_s = time.perf_counter() - before[0], time.process_time() - before[1]
    if what:
        print(f"{what}: {wall_s:.2f} s, of processors {cpu_s:.2f} s")
    return wall_s, done


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 180)
