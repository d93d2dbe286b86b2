"""What the simulator that the SC'21 paper published says of a history, beside what ours says and what it printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.published_table import ALL, PHILLY, PublishedTable
from helios.app.replay_cluster import ReplayCluster, replay_cluster_for
from helios.app.scenarios import ORDERS, Policy
from helios.app.whatif import refuse_reversed
from helios.config import zone
from helios.errors import NotEnoughHistory
from helios.ports import Progress, no_progress
from helios.simulate import Backfill, Workload, replay
from helios.simulate.artifact import PublishedPolicy, PublishedReplay, replay_as_published

POLICIES = (Policy.FIFO, Policy.SJF, Policy.QSSF, Policy.FEWEST_GPUS, Policy.SRTF)
"""The four of the artifact, and the control without which QSSF means nothing: fewest GPUs first, no prediction."""

# The artifact's QSSF on Philly goes by the true run time, off by a factor drawn thus (estimators/philly_estimate.py):
# up to which share of jobs, least and most error relative to the truth; either way.
ERRORS = ((0.1, 0.0, 0.1), (0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))
SAME_RUN_TIME_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedQuestion:
    """What to replay as published.

    Attributes
    ----------
    nodes : mapping, optional
        Nodes of each partition; None: those of the published table, with its window.
    since, until : datetime, optional
        Jobs submitted in [since, until); None: the table's window, or all.
    skip_oversized : bool
        Leave out jobs larger than their partition instead of refusing.
    draws : int
        How often ties (and QSSF's errors) are drawn, besides the history's own order.
    """

    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    since: datetime | None = None
    until: datetime | None = None
    skip_oversized: bool = False
    draws: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_reversed(self.since, self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Mean JCT and mean queue of some jobs, s."""

    jct_s: float
    queue_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One policy: as published, over draws, as we replay it, and what was printed.

    Attributes
    ----------
    found : Means
        In the history's own order; of QSSF the mean over the draws of its errors.
    lowest, highest : Means
        Over the draws of ties, and of QSSF's errors; each figure by itself.
    queued_jobs : int
        Jobs that did not start at once.
    ours : Means
        :func:`helios.simulate.replay`, strict, same order.
    printed : Means or None
        What the published table says; None: nothing, or the history is another.
    by_partition : mapping
        The same for each partition, in the history's own order; of QSSF with the first errors drawn.
    """

    policy: Policy
    found: Means
    lowest: Means
    highest: Means
    queued_jobs: int
    ours: Means
    printed: Means | None
    by_partition: Mapping[str, Means]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAnswer:
    """The table.

    Attributes
    ----------
    table : PublishedTable or None
        The published one that these jobs are to be held against.
    same_jobs : bool
        Whether their mean run time is that of the published jobs, without which nothing else can agree.
    """

    cluster: str
    partitions: Mapping[str, int]
    jobs: int
    window: tuple[datetime, datetime]
    run_time_s: float
    rows: tuple[PublishedRow, ...]
    table: PublishedTable | None
    same_jobs: bool
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {
            "cluster": self.cluster,
            "nodes": dict(self.partitions),
            "jobs": self.jobs,
            "from": self.window[0].isoformat(),
            "to": self.window[1].isoformat(),
            "mean_run_time_s": self.run_time_s,
            "same_jobs_as_published": self.same_jobs,
            "policies": [{**asdict(row), "policy": row.policy.value} for row in self.rows],
            "published": asdict(self.table) | {"lasts": str(self.table.lasts)} if self.table else None,
            "notes": list(self.notes),
        }


def as_published(
    history: LoadedHistory, request: PublishedQuestion, *, progress: Progress = no_progress
) -> PublishedAnswer:
    """Replay a history with the published semantics under each policy, and say how that differs from ours.

    Raises
    ------
    NotEnoughHistory
        No job in the window can be replayed.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    table = PHILLY if request.nodes is None else None
    jobs, notes = _chosen(history, request, table)
    machine = replay_cluster_for(
        jobs,
        resource="gpus",
        nodes=request.nodes or PHILLY.nodes,
        gpus_per_node=request.gpus_per_node,
        skip_oversized=request.skip_oversized,
    )
    if machine.jobs.empty:
        raise NotEnoughHistory("Every job of the window was left out.", hint="\n".join(machine.notes))
    workload = _workload(machine)
    setup = _Stage(machine=machine, workload=workload, request=request, table=table)
    rows = tuple(_row(policy, setup, progress) for policy in POLICIES)
    run_time_s = float(workload.run_time_s.mean())
    same_jobs = table is not None and abs(run_time_s - table.run_time_s) <= SAME_RUN_TIME_S
    if table is not None and not same_jobs:
        notes.append(
            f"These are not the jobs of the published table: they run for {run_time_s:,.0f} s on average, its jobs "
            f"for {table.run_time_s:,} s (JCT less queue). Figures cannot agree with it."
        )
    submitted = machine.jobs["submitted_at"]
    return PublishedAnswer(
        cluster=history.cluster,
        partitions=dict(zip(machine.shape.partitions, machine.shape.nodes.tolist(), strict=True)),
        jobs=len(workload),
        window=(submitted.iloc[0].to_pydatetime(), submitted.iloc[-1].to_pydatetime()),
        run_time_s=run_time_s,
        rows=rows,
        table=table,
        same_jobs=same_jobs,
        notes=(*history.notes, *machine.notes, *notes),
    )


def drawn_errors(run_time_s: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return run times as the artifact's predictor of Philly errs: some are negative, as there.

    The artifact means to seed its draws, but replaces the seeding function instead of calling it (``random.seed = 6``):
    each of its runs has other errors, and its QSSF figures can be met in distribution only.

    Parameters
    ----------
    run_time_s : int64 array of shape (n_jobs,)
        True run times, s.
    """
    draw = np.random.default_rng(seed)
    level, size, sign = draw.random(len(run_time_s)), draw.random(len(run_time_s)), draw.random(len(run_time_s))
    shares, least, most = (np.array(column) for column in zip(*ERRORS, strict=True))
    kind = np.searchsorted(shares, level).clip(max=len(shares) - 1)
    error = least[kind] + size * (most - least)[kind]
    off: NDArray[np.int64] = (run_time_s + np.where(sign < 0.5, -1, 1) * error * run_time_s).astype(np.int64)
    return off


def _chosen(
    history: LoadedHistory, request: PublishedQuestion, table: PublishedTable | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the jobs to replay: with GPUs, and a run time of a second or more, in the window."""
    jobs, notes = history.jobs, []
    since = pd.Timestamp(request.since) if request.since else None
    if since is None and table is not None:
        since = pd.Timestamp(table.opens).tz_localize(zone(history.timezone))
    sized = (jobs["gpus"].fillna(0) > 0) & (jobs["submitted_at"] >= (since or jobs["submitted_at"].min()))
    if table is not None:
        sized &= jobs["partition"].astype("str").isin(list(table.nodes))
    jobs = jobs[sized]
    if request.until:
        jobs = jobs[jobs["submitted_at"] < request.until]
    elif table is not None and len(jobs):
        jobs = jobs[jobs["submitted_at"] <= jobs["submitted_at"].iloc[0] + table.lasts]
    timed = jobs["run_time_s"].fillna(0) >= 1
    if not timed.any():
        raise NotEnoughHistory(
            "No job can be replayed: none in the window has GPUs and a run time"
            + (f" on a partition of the published table ({', '.join(table.nodes)})." if table else "."),
            hint="Describe your own cluster with --nodes, and choose --from and --to.",
        )
    if not timed.all():
        notes.append(f"{int((~timed).sum()):,} jobs without a run time of at least 1 s were left out.")
    if table is not None and jobs["submitted_at"].max() + timedelta(days=1) < jobs["submitted_at"].min() + table.lasts:
        notes.append(
            f"The history ends on {jobs['submitted_at'].max():%Y-%m-%d}: the published table is of "
            f"{table.name}, and later jobs queue behind earlier ones."
        )
    return jobs[timed], notes


def _workload(machine: ReplayCluster) -> Workload:
    return Workload(
        job_id=machine.jobs["job_id"].to_numpy(dtype=object),
        submitted_s=machine.jobs["submitted_at"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=machine.jobs["run_time_s"].to_numpy().astype(np.int64),
        gpus=machine.size,
        partition=machine.partition,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    machine: ReplayCluster
    workload: Workload
    request: PublishedQuestion
    table: PublishedTable | None


def _row(policy: Policy, setup: _Stage, progress: Progress) -> PublishedRow:
    found, draws = [], setup.request.draws + 1
    for draw in range(draws):
        progress(f"Replaying {policy} as published", draw / draws)
        found.append(_as_artifact(policy, setup, draw))
    progress(f"Replaying {policy} as published", 1.0)
    means = [_means(one.jct_s, one.queue_s) for one in found]
    told = setup.table is not None and policy.value in setup.table.jct_s
    return PublishedRow(
        policy=policy,
        found=_each(np.mean, means) if policy is Policy.QSSF else means[0],
        lowest=_each(np.min, means),
        highest=_each(np.max, means),
        queued_jobs=int((found[0].queue_s > 0).sum()),
        ours=_as_ours(policy, setup),
        printed=_printed(setup.table, policy, ALL) if setup.table is not None and told else None,
        by_partition={
            name: _means(found[0].jct_s[mine], found[0].queue_s[mine])
            for code, name in enumerate(setup.machine.shape.partitions)
            if (mine := setup.workload.partition == code).any()
        },
    )


def _as_artifact(policy: Policy, setup: _Stage, draw: int) -> PublishedReplay:
    """Replay once; draw 0 keeps the order of the history, each other one draws ties anew."""
    workload, seed = setup.workload, setup.request.seed
    ties = np.random.default_rng((seed, draw)).permutation(len(workload)) if draw else None
    published, priority = PublishedPolicy.QSSF, None
    if policy is Policy.FEWEST_GPUS:
        priority = workload.gpus.astype(np.float64)
    elif policy is Policy.QSSF:
        priority = (workload.gpus * drawn_errors(workload.run_time_s, seed + draw)).astype(np.float64)
    else:
        published = PublishedPolicy(policy.value)
    return replay_as_published(workload, setup.machine.shape, policy=published, priority=priority, tie_rank=ties)


def _as_ours(policy: Policy, setup: _Stage) -> Means:
    """Replay with our own semantics, strict; QSSF with the errors of draw 0."""
    workload = setup.workload
    believed = drawn_errors(workload.run_time_s, setup.request.seed) if policy is Policy.QSSF else workload.run_time_s
    result = replay(
        workload,
        setup.machine.shape,
        backfill=Backfill.NONE,
        order=ORDERS[policy],
        preemptive=policy is Policy.SRTF,
        run_time_s=believed.astype(np.float64),
    )
    return _means(result.ended_s - workload.submitted_s, result.wait_s)


def _printed(table: PublishedTable, policy: Policy, partition: str) -> Means:
    return Means(jct_s=table.jct_s[policy.value][partition], queue_s=table.queue_s[policy.value][partition])


def _means(jct_s: NDArray[np.int64], queue_s: NDArray[np.int64]) -> Means:
    return Means(jct_s=float(jct_s.mean()), queue_s=float(queue_s.mean()))


def _each(reduce: Any, means: list[Means]) -> Means:
    return Means(
        jct_s=float(reduce([one.jct_s for one in means])), queue_s=float(reduce([one.queue_s for one in means]))
    )
