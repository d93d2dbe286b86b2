"""A live queue through the public API, frame in, frame out: one job, 10,000 jobs, and what has ended since.

Job names count: jobs of one user that share all but their names are predicted together where nothing is known of these.
The names of a history are numbers of ``train``, 5,000 of them, or there are none.

Beside it, in the same run: LightGBM's own ``predict`` of the same trees on made-up features, and a predictor made anew
from the whole history for each question. Times are the processor's, of one thread, the least of several rounds: what
else the machine does then matters little.

Usage: python -m benchmarks.predictions [HISTORY] [PENDING]
"""

import sys
import time
from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import lightgbm
import numpy as np
import pandas as pd

from benchmarks.online import a_campaign
from helios.model import JOBS, QUEUE
from helios.predict.distribution import GRID, PAIR_FEATURES
from helios.predict.duration import DurationModel, train
from helios.predict.live_predictor import LivePredictor

RUNNING = 500
FEW, MANY = {"rounds": 40, "times": 5}, {"rounds": 4}


def in_queue(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return ``jobs`` as the queue would show them."""
    shared = [name for name in QUEUE.names if name in JOBS.by_name]
    return QUEUE.conform(jobs[shared].reset_index(drop=True))


def named(jobs: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return ``jobs`` with other names."""
    return jobs.assign(name=pd.array(names, dtype="str"))


def milliseconds(function: Callable[[], Any], *, rounds: int, times: int = 1) -> float:
    """Return the least processor time of a call over ``rounds``, each of so many ``times``."""
    least = np.inf
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(times):
            function()
        least = min(least, (time.process_time() - started) / times)
    return 1e3 * least


def by_lightgbm(model: DurationModel, n: int) -> Callable[[], Any]:
    """Return what asks LightGBM itself for the grids of ``n`` jobs, on one thread."""
    booster = lightgbm.Booster(model_str=model.trees.text)
    grid = np.random.default_rng(0).normal(3, 3, (GRID * n, len(PAIR_FEATURES))).astype(np.float32)
    return lambda: booster.predict(grid, num_threads=1)


def main() -> None:
    """Print the figures."""
    n, waiting = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 100_000), (2, 10_000)))
    jobs = a_campaign(n + RUNNING + waiting)
    history, running, pending = jobs.iloc[:n], in_queue(jobs.iloc[n : n + RUNNING]), in_queue(jobs.iloc[n + RUNNING :])
    now = max(history["ended_at"].max(), running["submitted_at"].max()).to_pydatetime()
    model = train(history, cluster="suspension")
    live = LivePredictor(history, model=model)
    one = pending.iloc[:1]
    words = ["".join(word) for word in np.random.default_rng(0).choice(list(ascii_lowercase), (waiting, 8))]
    numbered = [f"train_{job}" for job in range(5_000, 5_000 + waiting)]
    half_known = [f"train_{job % 10_000}" for job in range(waiting)]
    of_known = LivePredictor(named(history, [f"train_{job % 5_000}" for job in range(n)]), model=model)
    live.predict(pending, now=now, running=running)

    end = 0

    def told_of_one() -> None:
        nonlocal end
        end += 1
        live.learn(jobs.iloc[n + RUNNING + end : n + RUNNING + end + 1])
        live.predict(one, now=now, running=running)

    print(f"a history of {n:,} jobs, {RUNNING} running; ms of one processor")
    for what, function, rounds in (
        ("one job", ask(live, one, now, running), FEW),
        ("one job, nothing running", ask(live, one, now, None), FEW),
        ("one job has ended, one is predicted", told_of_one, FEW),
        (f"{waiting:,} jobs without names", ask(live, pending, now, running), MANY),
        ("the same, a name each: new numbers", ask(live, named(pending, numbered), now, running), MANY),
        ("the same, new words", ask(live, named(pending, words), now, running), MANY),
        ("the same, new numbers of a known name", ask(of_known, named(pending, numbered), now, running), MANY),
        ("the same, numbers of which half are known", ask(of_known, named(pending, half_known), now, running), MANY),
        ("naive: LightGBM's predict, the grid of 1 job", by_lightgbm(model, 1), FEW),
        (f"naive: LightGBM's predict, {waiting:,} grids", by_lightgbm(model, waiting), MANY),
        ("naive: a predictor made anew, one job", anew(history, model, one, now), MANY),
    ):
        print(f"{what:<44} {milliseconds(function, **rounds):10.2f}", flush=True)


def ask(live: LivePredictor, queue: pd.DataFrame, now: Any, running: pd.DataFrame | None) -> Callable[[], Any]:
    """Return what predicts ``queue``."""
    return lambda: live.predict(queue, now=now, running=running)


def anew(history: pd.DataFrame, model: DurationModel, queue: pd.DataFrame, now: Any) -> Callable[[], Any]:
    """Return what predicts ``queue`` from a history that nothing is known of yet."""
    return lambda: LivePredictor(history, model=model).predict(queue, now=now)


if __name__ == "__main__":
    main()
