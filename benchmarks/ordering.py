"""What an order is worth, and what was tried to make it worth more: shares of the oracle's gain in mean wait.

    python -m benchmarks.ordering TRACE --nodes 100 --gpus-per-node 1 [--timezone Z] [--sizes 1,1.02,1.04] [--only ROWS]

The last 30 % of a trace are replayed on machines of several sizes, for one replay alone says little: its mean hangs on
a few busy days. Every replay has EASY backfill by time limits; the share is of what QSSF with true run times and
without a guard saves against FIFO. Printed beside it: the longest wait, and the mean wait of jobs of more than 8 GPUs,
against FIFO's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.history import read_file
from helios.app.prediction_value import PREDICTED
from helios.app.replay_cluster import parse_nodes
from helios.app.scenarios import ORDERS, Policy
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay, train_predictor
from helios.predict.replay_predictor import ReplayTrainedPredictor, UserLast
from helios.simulate import Backfill, Replay, WaitBound, replay

DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One machine: the jobs on it, today's queue, and what predicts."""

    setup: ReplaySetup
    today: Replay
    model: Any

    def predictor(self, forecaster: Any, **options: Any) -> ReplayTrainedPredictor:
        """Return a predictor that begins with ``forecaster``."""
        setup = self.setup
        return ReplayTrainedPredictor(
            setup.machine.jobs, history=setup.before, model=forecaster, timezone=setup.timezone, **options
        )

    def user_last(self) -> UserLast:
        """Return the rule that repeats the user's last run."""
        return UserLast(self.setup.machine.jobs, history=self.setup.before)

    def model_online(self, **options: Any) -> ReplayTrainedPredictor:
        """Return the trained model, which goes on learning."""
        return self.predictor(self.model, **options)

    def guard(self, share: float) -> WaitBound:
        """Return the bound that is this share of the longest wait so far under FIFO, 3 h at least."""
        return WaitBound.beside(
            started_s=self.today.started_s, wait_s=self.today.wait_s, least_s=3 * 3_600, share=share
        )


class Believing:
    """A predictor of whose quantiles the order believes another number than the median."""

    def __init__(self, predictor: ReplayTrainedPredictor, number: Callable[[np.ndarray], np.ndarray]) -> None:
        self._predictor, self._number = predictor, number
        self.ended = predictor.ended

    def submitted(self, *asked: Any) -> np.ndarray:
        """Answer as the predictor does, with the other number in the median's place."""
        return self._other(self._predictor.submitted(*asked))

    def waiting(self, *asked: Any, **running: Any) -> np.ndarray:
        """Answer in the same way about jobs that wait."""
        return self._other(self._predictor.waiting(*asked, **running))

    def _other(self, quantiles: np.ndarray) -> np.ndarray:
        quantiles = quantiles.copy()
        quantiles[:, 1] = self._number(quantiles)
        return quantiles


def swanson(quantiles: np.ndarray) -> np.ndarray:
    """Return the mean of a skewed distribution from its quantiles: 0.3, 0.4, 0.3 (Swanson's rule)."""
    return quantiles @ np.array([0.3, 0.4, 0.3])


def by_size(exponent: float) -> Callable[..., np.ndarray]:
    """Return the order run time x GPUs^``exponent``."""
    return lambda *, submitted_s, gpus, run_time_s: run_time_s * gpus.astype(float) ** exponent  # noqa: ARG005 - Order


def noise(suspension: Bench) -> np.ndarray:
    """Return the true run times off by e^N(0, 1.5)."""
    true = suspension.setup.workload.run_time_s
    return true * np.exp(np.random.default_rng(0).normal(0, 1.5, len(true)))


AGAIN = {"predict_again_s": 600}
TRIED: dict[str, Callable[..., dict[str, Any]]] = {
    "true, no guard": lambda _: {},
    **{f"true, guard {share:g}": lambda b, s=share: {"guard": b.guard(s)} for share in (0.5, 0.7, 1.0, 1.5)},
    "true, guard 12 h": lambda _: {"guard": WaitBound.constant(DAY_S // 2)},
    "true, guard 48 h": lambda _: {"guard": WaitBound.constant(2 * DAY_S)},
    "off by e^N(0,1.5)": lambda b: {"run_time_s": noise(b), "guard": b.guard(1)},
    "smallest first": lambda b: {"order": ORDERS[Policy.FEWEST_GPUS], "guard": b.guard(1)},
    "user's last": lambda b: {"predictor": b.user_last(), "guard": b.guard(1)},
    "shrinkage": lambda b: {"predictor": b.predictor(None, refit=False), "guard": b.guard(1)},
    "model": lambda b: {"predictor": b.model_online(), "guard": b.guard(1)},
    "model, no guard": lambda b: {"predictor": b.model_online()},
    "model, again": lambda b: {"predictor": b.model_online(), "guard": b.guard(1), **AGAIN},
    "model, again, no guard": lambda b: {"predictor": b.model_online(), **AGAIN},
    "model, again, guard 0.7": lambda b: {"predictor": b.model_online(), "guard": b.guard(0.7), **AGAIN},
    "model, again, guard 12 h": lambda b: {
        "predictor": b.model_online(),
        "guard": WaitBound.constant(DAY_S // 2),
        **AGAIN,
    },
    "model, again hourly": lambda b: {"predictor": b.model_online(), "guard": b.guard(1), "predict_again_s": 3_600},
    "shrinkage, again": lambda b: {"predictor": b.predictor(None, refit=False), "guard": b.guard(1), **AGAIN},
    "model, again, weekly": lambda b: {
        "predictor": b.model_online(refit_every_s=7 * DAY_S),
        "guard": b.guard(1),
        **AGAIN,
    },
    "model, again, by mean": lambda b: {
        "predictor": Believing(b.model_online(), swanson),
        "guard": b.guard(1),
        **AGAIN,
    },
    **{
        f"model, again, x gpus^{power:g}": lambda b, p=power: {
            "predictor": b.model_online(),
            "guard": b.guard(1),
            "order": by_size(p),
            **AGAIN,
        }
        for power in (-0.5, 0.0, 0.5)
    },
}


def replayed(setup: ReplaySetup, **options: Any) -> Replay:
    """Replay with EASY by limits, by service, unless told otherwise; true run times unless predicted."""
    order = options.pop("order", ORDERS[Policy.QSSF])
    if "predictor" not in options:
        options.setdefault("run_time_s", setup.workload.run_time_s.astype(float))
    return replay(
        setup.workload, setup.machine.shape, backfill=Backfill.EASY, order=order, estimate_s=setup.limit_s, **options
    )


def figures(result: Replay, suspension: Bench, oracle: Replay) -> list[float]:
    """Return the share of the oracle's gain, and the longest wait and that of large jobs against today's."""
    today, large = suspension.today, suspension.setup.workload.gpus > 8
    share = (today.wait_s.mean() - result.wait_s.mean()) / (today.wait_s.mean() - oracle.wait_s.mean())
    of_large = result.wait_s[large].mean() / today.wait_s[large].mean() if large.any() else np.nan
    return [share, result.wait_s.max() / today.wait_s.max(), of_large]


def benches(given: argparse.Namespace) -> list[Bench]:
    """Return the machines of all sizes; the model is trained once."""
    history = read_file(given.trace, timezone=given.timezone)
    since = history.jobs["submitted_at"].iloc[int(len(history.jobs) * 0.7)].to_pydatetime()
    request = WhatIfRequest(
        plans=[PREDICTED],
        since=since,
        gpus_per_node=given.gpus_per_node,
        skip_oversized=True,
    )
    made: list[Bench] = []
    for size in map(float, given.sizes.split(",")):
        nodes = {name: max(1, round(size * count)) for name, count in parse_nodes(given.nodes).items()}
        setup = prepare_replay(history, replace(request, nodes=nodes))
        model = made[0].model if made else train_predictor(history, setup, request, lambda _setup, _done: None)
        made.append(Bench(setup=setup, today=replayed(setup, order=ORDERS[Policy.FIFO]), model=model))
    return made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--timezone")
    parser.add_argument("--sizes", default="1")
    parser.add_argument("--only", help="Names of rows by semicolons; else all")
    given = parser.parse_args()
    machines = benches(given)
    oracles = [replayed(suspension.setup) for suspension in machines]
    jobs = len(machines[0].setup.workload)
    print(f"{jobs:,} jobs; share of the oracle's gain, longest and >8 against FIFO + EASY; shares by size", flush=True)
    for name, options in TRIED.items():
        if given.only and name not in given.only.split(";"):
            continue
        started = time.perf_counter()
        rows = [
            figures(replayed(suspension.setup, **options(suspension)), suspension, oracle)
            for suspension, oracle in zip(machines, oracles, strict=True)
        ]
        share, longest, large = np.mean(rows, axis=0)
        took = (time.perf_counter() - started) / len(machines)
        each = " ".join(f"{row[0]:.2f}" for row in rows)
        print(f"{name:<26}{share:7.3f}{longest:7.2f}{large:7.2f}{took:8.1f} s   {each}", flush=True)


if __name__ == "__main__":
    main()
