"""Made-up demand: a day that repeats itself, with noise that a seed repeats."""

from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from helios.predict.demand.features import NEVER_S, job_state
from helios.predict.demand.types import DAY, Calendar, DemandJobState

UTC = Calendar(zone=ZoneInfo("UTC"))
START_S = 1_600_000_200 // 600 * 600
TOTAL = 100.0


def a_demand(days: float, *, seed: int = 0, noise: float = 3.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return busy and total nodes: between 30 and 70 over the day, and a noise that lasts about an hour."""
    steps = np.arange(int(days * DAY))
    rng = np.random.default_rng(seed)
    shocks, wander = rng.normal(size=len(steps)), np.zeros(len(steps))
    for step in range(1, len(steps)):
        wander[step] = 0.85 * wander[step - 1] + noise * shocks[step]
    busy = np.clip(np.round(50 + 20 * np.sin(2 * np.pi * steps / DAY) + wander), 0, TOTAL)
    return busy, np.full(len(steps), TOTAL)


def some_jobs(n: int, *, seed: int = 0, days: float = 9.0) -> dict[str, NDArray[np.generic]]:
    """Return the columns of jobs of all kinds: they wait, run, are cancelled while they wait, last on.

    Half of all that happens does so at the very end of a step.
    """
    rng = np.random.default_rng(seed)
    sharp = np.where(rng.random(n) < 0.5, 600, 1)
    submitted_s = START_S + rng.integers(0, int(days * 86_400), n) // sharp * sharp
    started_s = submitted_s + rng.integers(0, 7_200, n) // sharp * sharp
    ended_s = started_s + rng.exponential(9_000, n).astype(np.int64) // sharp * sharp
    cancelled, lasting = rng.random(n) < 0.1, rng.random(n) < 0.05
    ended_s[cancelled] = submitted_s[cancelled] + 1_800
    started_s[cancelled] = NEVER_S
    ended_s[lasting] = NEVER_S
    started_s[rng.random(n) < 0.02] = NEVER_S
    predicted_s = np.where(rng.random(n) < 0.2, np.nan, rng.exponential(9_000, n))
    return {
        "submitted_s": submitted_s,
        "started_s": started_s,
        "ended_s": ended_s,
        "nodes": rng.choice([0.125, 0.5, 1.0, 4.0], n),
        "predicted_s": predicted_s,
        "group": rng.integers(-1, 5, n),
    }


def ends_of_steps(n_steps: int) -> NDArray[np.int64]:
    return START_S + 600 * np.arange(1, n_steps + 1, dtype=np.int64)


def a_state(n_steps: int, *, seed: int = 0) -> DemandJobState:
    return job_state(**some_jobs(400, seed=seed), ends_of_steps_s=ends_of_steps(n_steps))
