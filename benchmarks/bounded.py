"""What keeps QSSF's mean wait and bounds the longest: the policy `balanced` beside its controls and what was tried.

    python -m benchmarks.bounded TRACE --nodes 100 [--since D --until D] [--runs 1,2,3] [--in-place] [--only ROWS]

Every run is the trace perturbed by a seed: whole weeks in another order (the first and last ``--keep`` stay), submit
times moved by N(0, 10 min), run times by a factor e^N(0, 0.2); run 0 is the trace as it is. Run times are predicted
causally by the model that `helios whatif` uses, at submission: once for each run, along its QSSF + EASY timeline, and
these answers stand for all rows that do not say `again`. Rows that do ask in their own timeline, each hour anew about
what still waits, as `helios whatif --policy balanced` does. Printed: mean wait against QSSF + EASY's, the longest wait
and the mean of jobs of more than 8 GPUs against FIFO + EASY's (time limits; 7 days where none); ratios of means over
runs, and in brackets the worst run. Rows that say `bad` replace the predictions.

With --in-place the weeks stay where they are (submissions N(0, 30 min), run times e^N(0, 0.3)).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.history import read_file
from helios.app.replay_cluster import parse_nodes
from helios.app.service_replay import PREDICT_AGAIN_S, ReplayedService, backlog_estimator_for, replay_services
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.config import Control
from helios.errors import NotEnoughHistory
from helios.model import in_submission_order
from helios.predict.duration import train
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.services.qssf import Qssf
from helios.services.queue_orders import balanced, shortest_service_first
from helios.simulate import ORDERS, Backfill, Backlog, Reservation, SimCluster, WaitBound, Workload, replay

DAY_S, WEEK_S = 86_400, 7 * 86_400
LARGE = 8
LIVE_CAP = Control().most_of_one_user


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerturbedRun:
    """One workload, what was predicted of it, and the longest waits that the bounds are to be measured by."""

    setup: ReplaySetup
    workload: Workload
    limit_s: np.ndarray
    quantiles_s: np.ndarray
    seed: int
    jobs: pd.DataFrame
    model: Any

    def predictor(self) -> ReplayTrainedPredictor:
        """Return a predictor that knows what came before the run."""
        setup = self.setup
        return ReplayTrainedPredictor(
            self.jobs, history=setup.before, model=self.model, refit_every_s=WEEK_S, timezone=setup.timezone
        )

    def again(self, order: Any, backfill: Backfill, **options: Any) -> Any:
        """Replay by what is predicted on the way, each hour anew for what waits; plan with what is expected."""
        own: dict[str, Any] = {"predictor": self.predictor(), "predict_again_s": 3_600, "plan_quantile": None}
        return replay(self.workload, self.setup.machine.shape, backfill=backfill, order=order, **(own | options))

    def replayed(self, order: Any, backfill: Backfill, **options: Any) -> Any:
        """Replay by what was predicted and by limits, unless told otherwise."""
        options = {"run_time_s": self.quantiles_s[:, 1], "estimate_s": self.limit_s} | options
        return replay(self.workload, self.setup.machine.shape, backfill=backfill, order=order, **options)


class Noting:
    """A predictor whose answers are kept."""

    def __init__(self, predictor: ReplayTrainedPredictor, n_jobs: int) -> None:
        self._predictor = predictor
        self.ended, self.waiting = predictor.ended, predictor.waiting
        self.quantiles_s = np.full((n_jobs, 3), np.nan)

    def submitted(self, jobs: np.ndarray, now_s: int) -> np.ndarray:
        """Answer as the predictor does."""
        self.quantiles_s[jobs] = self._predictor.submitted(jobs, now_s)
        return self.quantiles_s[jobs]


def a_run(setup: ReplaySetup, model: Any, seed: int, keep: int | None) -> PerturbedRun:
    """Perturb (``keep`` None: weeks in place), predict."""
    jobs, size, partition, limit_s = perturbed(setup, seed, keep) if seed else as_recorded(setup)
    workload = Workload(
        job_id=jobs["job_id"].to_numpy(dtype=object),
        submitted_s=jobs["submitted_at"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=jobs["run_time_s"].to_numpy().astype(np.int64),
        gpus=size,
        partition=partition,
    )
    predictor = Noting(
        ReplayTrainedPredictor(jobs, history=setup.before, model=model, refit_every_s=WEEK_S, timezone=setup.timezone),
        len(jobs),
    )
    replay(
        workload,
        setup.machine.shape,
        backfill=Backfill.EASY,
        order=shortest_service_first,
        estimate_s=limit_s,
        predictor=predictor,
    )
    return PerturbedRun(
        setup=setup,
        workload=workload,
        limit_s=limit_s,
        quantiles_s=predictor.quantiles_s,
        seed=seed,
        jobs=jobs,
        model=model,
    )


def as_recorded(setup: ReplaySetup) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return jobs, sizes, partitions and limits as they are."""
    return setup.machine.jobs, setup.workload.gpus, setup.workload.partition, setup.limit_s


def perturbed(
    setup: ReplaySetup, seed: int, keep: int | None
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return the same with weeks in another order, moved submissions and longer or shorter runs."""
    rng, jobs = np.random.default_rng(seed), setup.machine.jobs.copy()
    first = jobs["submitted_at"].iloc[0].floor("D")
    week = ((jobs["submitted_at"] - first) // pd.Timedelta(days=7)).to_numpy()
    place = np.arange(week.max() + 1)
    if keep is not None:
        inner = slice(keep, len(place) - keep)
        place[inner] = rng.permutation(place[inner])
    by_s, spread = (1_800, 0.3) if keep is None else (600, 0.2)
    moved_s = (place[week] - week) * WEEK_S + np.clip(rng.normal(0, by_s, len(jobs)), -7_200, 7_200).astype(int)
    moved = jobs["submitted_at"] + pd.to_timedelta(moved_s, unit="s")
    jobs["submitted_at"] = moved.clip(lower=jobs["submitted_at"].iloc[0]).astype(jobs["submitted_at"].dtype)
    jobs["run_time_s"] = np.round(jobs["run_time_s"] * np.exp(rng.normal(0, spread, len(jobs))))
    for column in ("started_at", "ended_at"):
        jobs[column] = pd.Series(pd.NaT, index=jobs.index, dtype=jobs[column].dtype)
    jobs["_row"] = np.arange(len(jobs))
    jobs = in_submission_order(jobs).reset_index(drop=True)
    rows = jobs.pop("_row").to_numpy()
    return jobs, setup.workload.gpus[rows], setup.workload.partition[rows], setup.limit_s[rows]


def whole(values: np.ndarray) -> np.ndarray:
    """Return run times as estimates."""
    return np.minimum(np.ceil(values), 2**40).astype(np.int64)


def by_size(exponent: float, favour: float) -> Callable[..., np.ndarray]:
    """Return the order run time x GPUs^``exponent``, of large jobs divided by e^``favour``."""

    def order(*, submitted_s: np.ndarray, gpus: np.ndarray, run_time_s: np.ndarray) -> np.ndarray:  # noqa: ARG001
        return run_time_s * gpus.astype(float) ** exponent * np.where(gpus > LARGE, np.exp(-favour), 1)

    return order


def beside(run: PerturbedRun, share: float, backfill: Backfill) -> WaitBound:
    """Return the yardstick that knows the future: a shadow queue run with true run times."""
    shadow = run.replayed(ORDERS["fifo"], backfill)
    return WaitBound.beside(started_s=shadow.started_s, wait_s=shadow.wait_s, least_s=3 * 3_600, share=share)


BAD: dict[str, Callable[[PerturbedRun], np.ndarray]] = {
    "log error sd 2.5": lambda run: (
        run.workload.run_time_s * np.exp(np.random.default_rng(run.seed).normal(0, 2.5, len(run.workload)))
    ),
    "anti-correlated": lambda run: 1e9 / np.maximum(run.workload.run_time_s, 1),
    "constant": lambda run: np.full(len(run.workload), 3_600.0),
}
EASY, NODES, CLOSED = Backfill.EASY, Backfill.NODES, Reservation(closed=True)
FIFO, QSSF = "FIFO + EASY", "QSSF + EASY"


def shipped(run: PerturbedRun, **options: Any) -> Any:
    """Replay `balanced` as `helios whatif` does by itself."""
    own: dict[str, Any] = {"backfill": NODES, "guard": Backlog(), "reservation": CLOSED}
    return run.again(balanced, **(own | options))


def lied_to(run: PerturbedRun, bad: Callable[[PerturbedRun], np.ndarray]) -> Any:
    """Replay `balanced` on predictions that are bad, for the order and for the plans."""
    told = bad(run).astype(float)
    return run.replayed(balanced, NODES, run_time_s=told, estimate_s=whole(told), guard=Backlog(), reservation=CLOSED)


def acted(run: PerturbedRun, backfill: Backfill = NODES, *, most_of_one_user: float = LIVE_CAP, **options: Any) -> Any:
    """Rehearse the service `qssf` as it acts live: backfill with limits, urgencies on the grid of the SiteFactor."""
    service, shape = Qssf(Qssf.Options(**options)), run.setup.machine.shape
    cluster = SimCluster(run.workload, shape, run.jobs, estimates_s=run.limit_s, backfill=backfill)
    replay_services(
        cluster,
        [ReplayedService(name="qssf", service=service, every=service.every)],
        predictor=run.predictor(),
        predict_again_s=PREDICT_AGAIN_S,
        estimator=backlog_estimator_for(run.workload, shape),
        most_of_one_user=most_of_one_user,
    )
    return SimpleNamespace(wait_s=cluster.started_s - run.workload.submitted_s)


SERVICE: dict[str, dict[str, Any]] = {
    "": {},
    ", order service": {"order": "service"},
    ", bound of 12 h": {"promote_after_s": 43_200.0, "fades": False},
    ", not fading": {"fades": False},
    ", no cap": {"most_of_one_user": 1.0},
}
TRIED: dict[str, Callable[[PerturbedRun], Any]] = {
    FIFO: lambda run: run.replayed(ORDERS["fifo"], EASY),
    QSSF: lambda run: run.replayed(shortest_service_first, EASY),
    "QSSF strict": lambda run: run.replayed(shortest_service_first, Backfill.NONE),
    "QSSF + EASY, again": lambda run: run.again(shortest_service_first, EASY, estimate_s=run.limit_s),
    "QSSF + EASY, bound": lambda run: run.replayed(shortest_service_first, EASY, guard=Backlog()),
    "QSSF + nodes": lambda run: run.replayed(shortest_service_first, NODES),
    "FIFO + nodes": lambda run: run.replayed(ORDERS["fifo"], NODES),
    "balanced (nodes, expected, bound, fading, again)": shipped,
    "balanced, no bound": lambda run: shipped(run, guard=None, reservation=None),
    "balanced, not fading": lambda run: shipped(run, guard=Backlog(fades=False)),
    "balanced, not again": lambda run: shipped(run, predict_again_s=None),
    "balanced, plan with limits": lambda run: shipped(run, estimate_s=run.limit_s),
    "balanced, plan with medians": lambda run: shipped(run, plan_quantile=0.5),
    "balanced, EASY with limits": lambda run: shipped(run, backfill=EASY, estimate_s=run.limit_s, reservation=None),
    "balanced, reservations not closed": lambda run: shipped(run, reservation=None),
    "balanced, 32 idle GPUs": lambda run: shipped(run, reservation=Reservation(closed=True, idle_gpus=32)),
    **{
        f"balanced, {share} x the backlog": lambda run, s=share: shipped(run, guard=Backlog(share=s))
        for share in (0.7, 0.8, 0.9, 1.2)
    },
    **{
        f"balanced, constant {hours} h": lambda run, h=hours: shipped(run, guard=WaitBound.constant(h * 3_600))
        for hours in (12, 168)
    },
    "balanced, shadow FIFO + EASY (knows the future)": lambda run: shipped(run, guard=beside(run, 1, EASY)),
    **{
        f"x gpus^{power}, large / {favour}": lambda run, p=power, f=favour: run.again(
            by_size(p, np.log(f)), NODES, guard=Backlog(), reservation=CLOSED
        )
        for power, favour in ((1, 1), (1, 33), (1, 300), (-0.5, 7))
    },
    **{
        f"service qssf{said}, {name}": lambda run, b=backfill, o=options: acted(run, b, **o)
        for said, options in SERVICE.items()
        for name, backfill in (("nodes", NODES), ("EASY", EASY))
    },
    **{
        f"bad, {name}: QSSF + EASY": lambda run, bad=bad: run.replayed(
            shortest_service_first, EASY, run_time_s=bad(run).astype(float)
        )
        for name, bad in BAD.items()
    },
    **{f"bad, {name}: balanced": lambda run, bad=bad: lied_to(run, bad) for name, bad in BAD.items()},
}


def figures(result: Any, run: PerturbedRun) -> np.ndarray:
    """Return mean wait, longest wait, and mean wait of large jobs (0 where there is none), s."""
    large = run.workload.gpus > LARGE
    return np.array([result.wait_s.mean(), result.wait_s.max(), result.wait_s[large].mean() if large.any() else 0.0])


def staged(given: argparse.Namespace) -> tuple[ReplaySetup, Any]:
    """Return the stage, and a model of what came before it if there is enough."""
    history = read_file(given.trace, timezone=given.timezone)
    request = WhatIfRequest(
        plans=[],
        since=given.since,
        until=given.until,
        nodes=parse_nodes(given.nodes),
        gpus_per_node=given.gpus_per_node,
        skip_oversized=True,
    )
    setup = prepare_replay(history, request)
    try:
        opening = setup.machine.jobs["submitted_at"].iloc[0].to_pydatetime()
        return setup, train(setup.before, cluster=history.cluster, until=opening, timezone=history.timezone)
    except NotEnoughHistory:
        return setup, None


def a_day(text: str) -> datetime:
    """Read a day."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--timezone")
    parser.add_argument("--since", type=a_day)
    parser.add_argument("--until", type=a_day)
    parser.add_argument("--runs", default="1,2,3,4,5")
    parser.add_argument("--keep", type=int, default=0, help="Weeks that stay first, and last")
    parser.add_argument("--in-place", action="store_true", help="Leave all weeks where they are")
    parser.add_argument("--only", help="Names of rows by semicolons; else all")
    given = parser.parse_args()
    setup, model = staged(given)
    runs = [
        a_run(setup, model, seed, None if given.in_place else given.keep) for seed in map(int, given.runs.split(","))
    ]
    fifo, qssf = (np.array([figures(TRIED[name](run), run) for run in runs]) for name in (FIFO, QSSF))
    print(f"{len(setup.workload):,} jobs, {len(runs)} runs; mean/QSSF, longest/FIFO, >8/FIFO (worst run each)")
    for name, tried in TRIED.items():
        if given.only and name not in given.only.split(";"):
            continue
        began = time.process_time()
        rows = np.array([figures(tried(run), run) for run in runs])
        against = np.column_stack((qssf[:, 0], fifo[:, 1:]))
        ratio = rows.mean(axis=0) / np.maximum(against.mean(axis=0), 1)
        worst = (rows / np.maximum(against, 1)).max(axis=0)
        shown = "  ".join(f"{one:5.2f} ({most:5.2f})" for one, most in zip(ratio, worst, strict=True))
        print(f"{name:<46}{shown}{(time.process_time() - began) / len(runs):7.1f} s", flush=True)


if __name__ == "__main__":
    main()
