"""When pending jobs start: forecasts at random moments of replayed queues, judged by what happened in the replay.

A trace is replayed under Slurm's own rules with its true run times. At random moments of its last part the replay is
stopped, and pending jobs are asked when they start, knowing only what was known by then. Beside: Slurm's own plan
(what squeue --start prints: backfill with time limits), and as long as jobs like it waited lately.

    python -m benchmarks.start_forecast DIRECTORY [--worlds NAME ...] [--moments N] [--jobs N]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import read_file
from helios.app.predictions import with_predictions
from helios.app.slurm_whatif_jobs import slurm_jobs
from helios.app.start_forecast import (
    FEWEST,
    LOOKS_BACK,
    WIDER,
    QueueForecast,
    calibrate,
    compare_forecasts,
    wait_quantiles,
)
from helios.model import JOBS, Snapshot
from helios.model.slurm_site import DAY_S, NodeGroup, PartitionRules, PriorityRules, SlurmSite
from helios.predict.duration import train
from helios.predict.live_predictor import LivePredictor
from helios.simulate.slurm.cluster import SimulatedSlurm

Floats = NDArray[np.float64]
LATELY = 50
"""Jobs of the same partition and size whose waits the second control looks at."""
LIMITS_S = np.array([1, 4, 12, 24, 48, 96, 168, 336]) * 3600.0
MOST_S = 14.0 * DAY_S
"""What counts for later than the simulations where a point is needed, s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A trace, and the cluster that it is replayed on."""

    file: str
    timezone: str
    nodes: int
    per_node: int
    resource: str = "gpus"
    first: float = 0.0
    last: float = 1.0
    shares: dict[str, int] | None = None


PHILLY_NODES = {
    "6214e9": 64, "7f04ca": 32, "11cb48": 16, "b436b2": 64, "ee9e8c": 64, "e13805": 16, "6c71a0": 32, "2869ce": 16,
    "ed69ec": 8, "103959": 8, "0e4a51": 32,
}  # fmt: skip
WORLDS = {
    "venus80": World(file="helios_venus_users_may-jun2020.csv.gz", timezone="Asia/Shanghai", nodes=80, per_node=8),
    "venus90": World(file="helios_venus_users_may-jun2020.csv.gz", timezone="Asia/Shanghai", nodes=90, per_node=8),
    "philly40": World(
        file="philly_vc_aug-oct2017.csv.gz", timezone="America/Los_Angeles", nodes=0, per_node=8,
        shares={name: max(1, int(0.4 * nodes)) for name, nodes in PHILLY_NODES.items()},
    ),
    "kth": World(
        file="KTH-SP2-1996-2.1-cln.swf.gz", timezone="Europe/Stockholm", nodes=100, per_node=1, resource="cpus"
    ),
    "blue": World(
        file="SDSC-BLUE-2000-4.2-cln.swf.gz", timezone="America/Los_Angeles", nodes=144, per_node=8, resource="cpus",
        first=0.7, last=0.9,
    ),
}  # fmt: skip


def site_and_jobs(world: World, directory: Path) -> tuple[SlurmSite, pd.DataFrame]:
    """Return the cluster, and the jobs as they are submitted to it."""
    jobs = read_file(directory / world.file, timezone=world.timezone).jobs
    size = jobs[world.resource].fillna(0).to_numpy(dtype=np.float64)
    keep = (size > 0) & (jobs["run_time_s"].to_numpy(dtype=np.float64) > 0)
    jobs, size = jobs[keep].reset_index(drop=True), size[keep]
    jobs = jobs.iloc[int(world.first * len(jobs)) : int(world.last * len(jobs))].reset_index(drop=True)
    size = jobs[world.resource].to_numpy(dtype=np.float64)
    if world.shares is None:
        jobs["partition"] = pd.Series(["all"] * len(jobs), dtype="str")
        shares = {"all": world.nodes}
    else:
        shares = world.shares
    limit_s = jobs["time_limit_s"].to_numpy(dtype=np.float64)
    if np.isnan(limit_s).all():  # no trace of these has limits: each user's is that of the user's longest job
        owner = jobs["user"] if jobs["user"].notna().any() else jobs["partition"]
        longest_s = jobs.groupby(owner.astype("str"))["run_time_s"].transform("max").to_numpy(dtype=np.float64)
        limit_s = LIMITS_S[np.minimum(np.searchsorted(LIMITS_S, longest_s), len(LIMITS_S) - 1)]
    run_time_s = np.minimum(jobs["run_time_s"].to_numpy(dtype=np.float64), np.where(limit_s > 0, limit_s, np.inf))
    jobs = jobs.assign(
        run_time_s=run_time_s, time_limit_s=limit_s, nodes=np.ceil(size / world.per_node), cpus=size,
        started_at=None, ended_at=None, eligible_at=jobs["submitted_at"], memory_mib=np.nan,
    )  # fmt: skip
    first = 0
    groups: list[NodeGroup] = []
    partitions: list[PartitionRules] = []
    for name, count in shares.items():
        names = tuple(f"n{number}" for number in range(first, first + count))
        first += count
        gpus = {"": world.per_node} if world.resource == "gpus" else {}
        groups.append(NodeGroup(names=names, cpus=world.per_node, gpus=gpus))
        partitions.append(PartitionRules(name=name, nodes=names, is_default=len(partitions) == 0))
    jobs = jobs[jobs["partition"].astype("str").isin(list(shares))].reset_index(drop=True)
    site = SlurmSite(
        nodes=tuple(groups), partitions=tuple(partitions), priority=PriorityRules(age=10_000, job_size=1_000)
    )
    return site, JOBS.conform(jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One pending job at one moment: what is said of its wait, and what it is, s."""

    at_s: float
    truth_s: float
    p10_s: float
    p50_s: float
    p90_s: float
    plan_s: float
    lately_s: float
    pending: int
    cpu_s: float


def ask(world: World, directory: Path, *, moments: int, jobs_each: int, seed: int = 0, draws: int = 24) -> list[Answer]:
    """Replay a trace, and ask at random moments of its last half."""
    site, recorded = site_and_jobs(world, directory)
    laid = slurm_jobs(recorded, site)
    jobs, chance = laid.jobs, np.random.default_rng(seed)
    submitted_s = laid.workload.submitted_s
    cluster = SimulatedSlurm(laid.workload, site, jobs)
    begin_s, end_s = np.quantile(submitted_s, [0.5, 0.97])
    at_s = np.sort(chance.integers(int(begin_s), int(end_s), moments))
    cluster.advance(int(begin_s) - 1)
    known = history(jobs, cluster)
    model = train(known, cluster="c", seed=0)
    predictor = LivePredictor(known, model=model)
    asked: list[tuple[int, Answer]] = []
    for now_s in at_s.tolist():
        cluster.advance(now_s)
        seen = cluster.snapshot()
        if not len(seen.pending):
            continue
        past = history(jobs, cluster)
        predictor.learn(past)
        running = seen.running
        now = datetime.fromtimestamp(now_s, UTC)
        whole = Snapshot(taken_at=now, cluster="c", pending=seen.pending, running=running, nodes=seen.nodes)
        whole = with_predictions(whole, partial(predictor.predict, now=now, running=running))
        planned = cluster.timeline.result().planned_s
        chosen = chance.permutation(len(seen.pending))[:jobs_each]
        began = time.process_time()
        forecast = QueueForecast(whole, site, past, draws=draws)
        names = [str(name) for name in seen.pending["job_id"].iloc[chosen]]
        positions = [forecast.position(name) for name in names]
        waits = forecast.starts([position for position in positions if position is not None]).started_s - now_s
        spent = time.process_time() - began
        for name, wait in zip(names, waits.T, strict=True):
            job = cluster._position[name]
            low, middle, high = wait_quantiles(wait)
            answer = Answer(
                at_s=now_s, truth_s=0.0, p10_s=low, p50_s=middle, p90_s=high,
                plan_s=max(planned[job] - now_s, 0.0) if np.isfinite(planned[job]) else np.nan,
                lately_s=waited_lately(jobs, cluster, job, now_s, world.resource),
                pending=len(seen.pending), cpu_s=spent,
            )  # fmt: skip
            asked.append((job, answer))
        del seen
    while cluster.advance_to_decision() is not None:
        pass
    truth = cluster.started_s.astype(np.float64)
    return [replace(answer, truth_s=truth[job] - answer.at_s) for job, answer in asked]


def history(jobs: pd.DataFrame, cluster: SimulatedSlurm) -> pd.DataFrame:
    """Return the jobs that have ended by now, with the starts and ends of the replay."""
    ended = np.sort(cluster.ended)
    rows = jobs.iloc[ended]
    return JOBS.conform(
        rows.assign(
            started_at=pd.to_datetime(cluster.started_s[ended], unit="s", utc=True),
            ended_at=pd.to_datetime(cluster.ended_s[ended], unit="s", utc=True),
            run_time_s=(cluster.ended_s[ended] - cluster.started_s[ended]).astype(np.float64),
        )
    )


def waited_lately(jobs: pd.DataFrame, cluster: SimulatedSlurm, job: int, now_s: int, resource: str) -> float:
    """Return the wait left by the median of recent jobs of its partition and size that waited longer than it, s."""
    submitted_s = cluster._submitted_ms / 1000
    known = np.flatnonzero((cluster.started_s <= now_s) & (np.arange(len(jobs)) < cluster.arrived))
    size, where = np.floor(np.log2(jobs[resource].to_numpy(dtype=np.float64))), jobs["partition"].to_numpy()
    alike = known[(size[known] == size[job]) & (where[known] == where[job])]
    recent = alike[np.argsort(cluster.started_s[alike], kind="stable")][-LATELY:]
    waits, waited = cluster.started_s[recent] - submitted_s[recent], now_s - submitted_s[job]
    longer = waits[waits > waited]
    return float(np.median(longer) - waited) if len(longer) >= 3 else float(max(waited, 60.0))


def error(said_s: Floats, truth_s: Floats) -> Floats:
    """Return the absolute log error of waits, with an additive minute."""
    return np.abs(np.log((said_s + 60) / (truth_s + 60)))


def covers(quantiles_s: Floats, truth_s: Floats) -> NDArray[np.bool_]:
    """Return whether p10 to p90 hold the true waits; Slurm's own rhythm is a minute."""
    covered: NDArray[np.bool_] = (quantiles_s[0] <= truth_s + 60) & (truth_s <= quantiles_s[2] + 60)
    return covered


def show(name: str, answers: list[Answer]) -> None:
    """Print the figures of one trace."""

    def column(key: str) -> Floats:
        return np.array([getattr(answer, key) for answer in answers])

    truth, plan = column("truth_s"), column("plan_s")
    says, later = np.isfinite(plan), np.arange(len(truth)) >= len(truth) // 2
    raw = np.stack([column("p10_s"), column("p50_s"), column("p90_s")])
    middle = np.minimum(raw[1], MOST_S)
    ours, lately = error(middle, truth), error(column("lately_s"), truth)
    print(
        f"{name}: {len(answers)} answers, median wait left {np.median(truth) / 60:,.0f} min, "
        f"median queue {np.median(column('pending')):.0f}"
    )
    print(
        f"  median abs log error: ours {np.median(ours):.2f}, lately {np.median(lately):.2f}; "
        f"bias of ours {np.median(np.log((middle + 60) / (truth + 60))):+.2f}"
    )
    print(
        f"  squeue --start says nothing of {1 - says.mean():.0%}; where it speaks: ours {np.median(ours[says]):.2f}, "
        f"squeue {np.median(error(plan, truth)[says]):.2f}, lately {np.median(lately[says]):.2f}"
    )
    at = column("at_s")
    followed = np.zeros(len(truth), dtype=bool)
    for answer in np.flatnonzero(later):
        known = (at + truth <= at[answer]) & (at >= at[answer] - LOOKS_BACK.total_seconds())
        wider = compare_forecasts(raw[:, known], truth[known]).wider if known.sum() >= FEWEST else WIDER
        followed[answer] = covers(calibrate(raw[:, [answer]], wider=wider), truth[[answer]])[0]
    shares = [held[later].mean() for held in (covers(raw, truth), covers(calibrate(raw), truth), followed)]
    moment = pd.Series(followed[later]).groupby(at[later]).mean()
    print(
        f"  p10-p90 covers in the later half {shares[0]:.0%} of the simulations alone, {shares[1]:.0%} widened as "
        f"usual, {shares[2]:.0%} (+- {moment.std() / np.sqrt(len(moment)):.0%}) by what the forecasts of the three "
        "weeks before give, as the nightly check does"
    )
    spent = column("cpu_s")
    print(f"  CPU s of a moment's answers: median {np.median(spent):.2f}, most {spent.max():.2f}")


def main() -> None:
    """Print the figures of each trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--moments", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the answers as CSV")
    parser.add_argument("--again", action="store_true", help="judge the answers in --keep again")
    asked = parser.parse_args()
    for name in asked.worlds:
        if asked.again:
            rows = pd.read_csv(asked.keep / f"{name}.csv").to_dict("records")
            show(name, [Answer(**{str(key): value for key, value in row.items()}) for row in rows])
            continue
        answers = ask(WORLDS[name], asked.directory, moments=asked.moments, jobs_each=asked.jobs)
        show(name, answers)
        if asked.keep:
            pd.DataFrame([asdict(answer) for answer in answers]).to_csv(asked.keep / f"{name}.csv", index=False)


if __name__ == "__main__":
    main()
