"""Draws of a trace, and what an order of the queue makes of them against the site's own order.

One replay is no evidence: a seed moves the mean wait of three weeks by up to 40 %. A draw moves each user's jobs by a
whole number of days, around the end of the trace, so that what belongs together stays together. Where users are not
known, or a window of a longer trace is replayed, it moves submissions by half an hour and run times by e^N(0, .3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.replay_cluster import parse_nodes
from helios.app.scenarios import BOUND_SHARE, NEVER, WAIT_SHARE, Policy, RunTimes, Scenario, read_options
from helios.app.whatif import (
    ReplaySetup,
    WhatIfRequest,
    predictor_for,
    prepare_replay,
    replay_scenario,
    train_predictor,
)
from helios.model import in_submission_order
from helios.ports import no_progress
from helios.predict.duration import DurationModel
from helios.simulate import Backfill, Replay

DAY_S = 86_400
BUSY = 0.85
"""Share of a machine of unknown size that the jobs of a window would keep busy."""
MOVES_S = 1_800.0
MOST_S = 7_200.0
LOG_ERROR = 0.3
LARGE_GPUS, GPUS_PER_NODE = 8, 8
LARGEST_KEPT = 0.999
"""Quantile of the sizes that a machine of unknown size is made to hold."""
LARGEST_SHARE = 0.9
"""Quantile of the sizes from which a job is large where a node has one GPU, as in a CPU log."""


def _default(policy: Policy, run_times: RunTimes | None) -> Scenario:
    options = read_options(policy.value, {"wait_share": WAIT_SHARE, "bound_share": BOUND_SHARE or NEVER})
    return Scenario(
        policy=policy, backfill=Backfill.EASY, run_times=run_times, estimates=RunTimes.LIMIT, options=options
    )


OURS, SIZE = _default(Policy.QSSF, RunTimes.PREDICTED), _default(Policy.FEWEST_GPUS, None)
"""The default order and size, equally aged and bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of a trace on a machine."""

    name: str
    file: str
    nodes: str
    gpus_per_node: int = 8
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the whole trace is replayed."""
        return self.since is None and self.until is None


def day(text: str) -> datetime:
    """Return midnight of a day, UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def draw(history: LoadedHistory, window: Window, seed: int) -> LoadedHistory:
    """Return the history with its jobs moved; seed 0: as it is."""
    if seed == 0:
        return history
    has_users = float((history.jobs["user"].cat.codes >= 0).mean()) > 0.5
    move = _users_by_days if has_users and window.is_whole else _each_by_minutes
    return replace(history, jobs=move(history.jobs, np.random.default_rng(seed)))


def _users_by_days(jobs: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    since_s = _since_first_s(jobs)
    days = int(np.ceil(since_s.max() / DAY_S))
    user = jobs["user"].cat.codes.to_numpy()
    moved_days = rng.integers(0, days, user.max() + 2)[user]
    return _submitted_at(jobs, (since_s + DAY_S * moved_days) % (DAY_S * days))


def _each_by_minutes(jobs: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    moved_s = np.clip(rng.normal(0, MOVES_S, len(jobs)), -MOST_S, MOST_S)
    run_time_s = np.round(jobs["run_time_s"] * np.exp(rng.normal(0, LOG_ERROR, len(jobs))))
    return _submitted_at(jobs.assign(run_time_s=run_time_s), np.maximum(_since_first_s(jobs) + moved_s, 0))


def _since_first_s(jobs: pd.DataFrame) -> np.ndarray:
    return (jobs["submitted_at"] - jobs["submitted_at"].iloc[0]).dt.total_seconds().to_numpy()


def _submitted_at(jobs: pd.DataFrame, since_s: np.ndarray) -> pd.DataFrame:
    dtype = jobs["submitted_at"].dtype
    submitted = jobs["submitted_at"].iloc[0] + pd.to_timedelta(np.round(since_s).astype(np.int64), unit="s")
    unknown = {name: pd.Series(pd.NaT, index=jobs.index, dtype=jobs[name].dtype) for name in ("started_at", "ended_at")}
    moved = jobs.assign(submitted_at=pd.Series(submitted, index=jobs.index).astype(dtype), **unknown)
    return in_submission_order(moved).reset_index(drop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Waits under an order over those under the site's own."""

    mean: float
    longest: float
    large: float


class Bench:
    """A draw on its machine, and the replay under the site's own order.

    Attributes
    ----------
    setup : ReplaySetup
    own : Replay
        First in, first out with EASY backfill by time limits.
    """

    def __init__(self, history: LoadedHistory, window: Window) -> None:
        own = Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)
        predicted = replace(own, policy=Policy.QSSF, run_times=RunTimes.PREDICTED)
        self._request = WhatIfRequest(
            plans=[predicted],
            since=window.since,
            until=window.until,
            nodes=parse_nodes(window.nodes),
            gpus_per_node=window.gpus_per_node,
            skip_oversized=True,
        )
        self.setup: ReplaySetup = prepare_replay(history, self._request)
        self._model: DurationModel | None = train_predictor(history, self.setup, self._request, no_progress)
        self.own = self.replay(own)
        gpus = self.setup.workload.gpus
        self._large = gpus > LARGE_GPUS if window.gpus_per_node > 1 else gpus >= np.quantile(gpus, LARGEST_SHARE)

    def replay(self, plan: Scenario) -> Replay:
        """Replay one scenario."""
        predictor = predictor_for(self.setup, self._model, self._request) if plan.uses_predictions else None
        return replay_scenario(plan, self.setup, predictor, no_progress, request=self._request)

    def ratios(self, plan: Scenario) -> Ratios:
        """Replay one scenario and compare its waits."""
        return self.compare(self.replay(plan).wait_s)

    def compare(self, wait_s: np.ndarray) -> Ratios:
        """Return waits over those under the site's own order."""
        own_s, large = self.own.wait_s, self._large
        return Ratios(
            mean=float(wait_s.mean() / max(own_s.mean(), 1)),
            longest=float(wait_s.max() / max(own_s.max(), 1)),
            large=float(wait_s[large].mean() / max(own_s[large].mean(), 1)) if large.any() else float("nan"),
        )


def machine_for(jobs: pd.DataFrame) -> tuple[str, int]:
    """Return a pool that these jobs keep ``BUSY``, as ``Window`` takes it: nodes, and GPUs (or CPUs) of a node."""
    has_gpus = bool((jobs["gpus"] > 0).any())
    size = (jobs["gpus"] if has_gpus else jobs["cpus"]).to_numpy(dtype=np.float64)
    run_s = jobs["run_time_s"].to_numpy(dtype=np.float64)
    known = np.isfinite(size * run_s)
    span_s = max((jobs["submitted_at"].iloc[-1] - jobs["submitted_at"].iloc[0]).total_seconds(), 1.0)
    per_node = GPUS_PER_NODE if has_gpus else 1
    needed = float((size[known] * run_s[known]).sum()) / span_s / BUSY
    return str(int(np.ceil(max(needed, np.nanquantile(size, LARGEST_KEPT)) / per_node))), per_node


def rows(
    name: str, history: LoadedHistory, spans: Sequence[tuple[int, int]], *, draws: int
) -> Iterator[dict[str, Any]]:
    """Yield the figures of the default order in each window: against the site's own, and against size, equally aged.

    Parameters
    ----------
    spans : sequence of (int, int)
        Windows, s since the epoch.
    """
    for begin_s, end_s in spans:
        since, until = (datetime.fromtimestamp(moment, UTC) for moment in (begin_s, end_s))
        jobs = history.jobs
        inside = jobs[(jobs["submitted_at"] >= since) & (jobs["submitted_at"] < until)]
        nodes, per_node = machine_for(inside)
        window = Window(name=name, file=name, nodes=nodes, gpus_per_node=per_node, since=since, until=until)
        found: dict[str, list[Ratios]] = {"ours": [], "size": []}
        for seed in range(1, draws + 1):
            bench = Bench(draw(history, window, seed), window)
            found["ours"].append(bench.ratios(OURS))
            found["size"].append(bench.ratios(SIZE))
        where = {"trace": name, "window": f"{since:%Y-%m-%d} to {until:%Y-%m-%d}", "nodes": int(nodes), "draws": draws}
        ours, size = (
            {key: geometric(ratios, key) for key in ("mean", "longest", "large")} for ratios in found.values()
        )
        for question, key in (("mean wait", "mean"), ("longest wait", "longest"), ("large jobs", "large")):
            if np.isfinite(ours[key]):
                own = {"ours": ours[key], "control": 1.0, "ratio": ours[key], "best": "the site's own order"}
                yield {"question": question, **where, **own}
        beside = {"ours": ours["mean"], "control": size["mean"], "ratio": ours["mean"] / size["mean"]}
        yield {"question": "mean wait beside size", **where, **beside, "best": "size, equally aged"}


def geometric(ratios: Sequence[Ratios], key: str) -> float:
    """Return the geometric mean of a figure over draws."""
    values = np.maximum([getattr(one, key) for one in ratios], 1e-3)
    return float(np.exp(np.log(values).mean()))
