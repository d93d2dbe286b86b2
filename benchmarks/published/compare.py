"""The published simulator's answer beside ours, and beside the table that it printed.

    python -m benchmarks.published.compare --trace philly.csv.gz --by-partition          # the printed table of Philly
    python -m benchmarks.published.compare --trace sacct.txt --nodes gpu=16,long=4       # your own cluster

Without --nodes the jobs are held against the artifact's table of Philly, October and November 2017, on its virtual
clusters. With --nodes it is your own cluster: how far would the published simulator's answer be from ours?

Source of the table: S-Lab-System-Group/HeliosArtifact (MIT, Copyright (c) 2021-present NTU S-Lab): the tables
``jct_avg`` and ``que_avg`` that ``framework/QSSF Service/plot/result_plot.ipynb`` shows, ``data/philly_vc.csv`` for the
nodes, and ``simulator.py`` for the window. Means over the jobs of a virtual cluster, s, cut to whole seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.published.simulator import PublishedPolicy, PublishedReplay, replay_as_published
from helios.app.history import LoadedHistory, read_file
from helios.app.record import refuse_reversed
from helios.app.replay_cluster import ReplayCluster, parse_nodes, replay_cluster_for
from helios.app.scenarios import ORDERS
from helios.choices import Policy
from helios.cli.options import AsJson, IfOversized, Oversized, Since, Until, moment
from helios.cli.output import print_error, print_notes, progress_bars, show, show_json
from helios.cli.trace import Format, Timezone
from helios.config import zone
from helios.errors import HeliosError, NotEnoughHistory
from helios.ports import Progress, no_progress
from helios.simulate import Backfill, Workload, replay

# The table that the artifact published, and the jobs and nodes that it was computed on.

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """Mean JCT and mean queue of each policy on each virtual cluster.

    Attributes
    ----------
    name : str
        What it is called here.
    opens : str
        Local date from which jobs are taken.
    lasts : timedelta
        How long after the *first job* the last is taken, both ends included: the artifact counts from that job.
    nodes : mapping
        Nodes of each virtual cluster, of 8 GPUs each; jobs of others are left out.
    jct_s, queue_s : mapping of mapping
        s, by policy, then by virtual cluster, ``all`` for all jobs.
    """

    name: str
    opens: str
    lasts: timedelta
    nodes: Mapping[str, int]
    jct_s: Mapping[str, Mapping[str, int]]
    queue_s: Mapping[str, Mapping[str, int]]

    @property
    def run_time_s(self) -> int:
        """Mean run time of its jobs, s: under FIFO, JCT less queue."""
        return self.jct_s["fifo"][ALL] - self.queue_s["fifo"][ALL]


_POLICIES = ("fifo", "sjf", "srtf", "service")
_PHILLY = {  # nodes; mean JCT and mean queue under each of _POLICIES
    "6214e9": (64, (97_501, 23_337, 19_532, 26_022), (78_659, 4_494, 685, 7_179)),
    "7f04ca": (32, (133_826, 133_271, 132_980, 133_941), (1_412, 857, 565, 1_527)),
    "11cb48": (16, (82_540, 14_444, 9_057, 21_051), (74_040, 5_944, 554, 12_550)),
    "b436b2": (64, (28_732, 28_610, 28_291, 28_642), (544, 421, 100, 454)),
    "ee9e8c": (64, (243_144, 130_493, 122_609, 132_367), (127_270, 14_619, 6_720, 16_493)),
    "e13805": (16, (87_265, 85_949, 85_314, 85_886), (2_331, 1_015, 378, 953)),
    "6c71a0": (32, (31_088, 31_030, 31_020, 31_019), (220, 162, 150, 151)),
    "2869ce": (16, (70_215, 56_388, 53_128, 58_088), (21_171, 7_344, 4_071, 9_044)),
    "ed69ec": (8, (28_345, 28_346, 28_346, 28_346), (28, 28, 27, 28)),
    "103959": (8, (24_743, 23_283, 22_735, 23_219), (2_391, 932, 380, 867)),
    "0e4a51": (32, (233_539, 168_747, 146_023, 196_886), (101_473, 36_682, 13_953, 64_820)),
    ALL: (0, (86_072, 34_272, 30_683, 37_324), (56_531, 4_731, 1_138, 7_783)),
}

PHILLY = PublishedTable(
    name="Philly, October and November 2017",
    opens="2017-10-01",
    lasts=timedelta(days=61) - timedelta(minutes=1),
    nodes={name: row[0] for name, row in _PHILLY.items() if name != ALL},
    jct_s={policy: {name: row[1][i] for name, row in _PHILLY.items()} for i, policy in enumerate(_POLICIES)},
    queue_s={policy: {name: row[2][i] for name, row in _PHILLY.items()} for i, policy in enumerate(_POLICIES)},
)


# The comparison.

POLICIES = (Policy.FIFO, Policy.SJF, Policy.SERVICE, Policy.FEWEST_GPUS, Policy.SRTF)
"""The four of the artifact, and fewest GPUs first, without which QSSF means nothing."""

# The artifact's QSSF on Philly goes by the true run time, off by a factor drawn thus (estimators/philly_estimate.py):
# up to which share of jobs, least and most error relative to the truth; either way.
ERRORS = ((0.1, 0.0, 0.1), (0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))
SAME_RUN_TIME_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """The jobs and the cluster to replay.

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
class ComparisonRow:
    """One policy, as published, as we replay it, and as printed.

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
class Comparison:
    """The rows of all policies, and the jobs that they are of.

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
    rows: tuple[ComparisonRow, ...]
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


def compare_published(
    history: LoadedHistory, request: ComparisonRequest, *, progress: Progress = no_progress
) -> Comparison:
    """Replay a history as published and as we do, under each policy.

    Raises
    ------
    NotEnoughHistory
        No job in the window can be replayed.
    JobLargerThanPartition, PartitionUnknown
        The jobs do not fit the cluster as described.
    """
    table = PHILLY if request.nodes is None else None
    jobs, notes = _jobs_to_replay(history, request, table)
    cluster = replay_cluster_for(
        jobs,
        resource="gpus",
        nodes=request.nodes or PHILLY.nodes,
        gpus_per_node=request.gpus_per_node,
        skip_oversized=request.skip_oversized,
    )
    if cluster.jobs.empty:
        raise NotEnoughHistory("Every job of the window was left out.", hint="\n".join(cluster.notes))
    workload = _workload(cluster)
    setup = _Setup(cluster=cluster, workload=workload, request=request, table=table)
    rows = tuple(_row(policy, setup, progress) for policy in POLICIES)
    run_time_s = float(workload.run_time_s.mean())
    same_jobs = table is not None and abs(run_time_s - table.run_time_s) <= SAME_RUN_TIME_S
    if table is not None and not same_jobs:
        notes.append(
            f"These are not the jobs of the published table: they run for {run_time_s:,.0f} s on average, its jobs "
            f"for {table.run_time_s:,} s (JCT less queue). Figures cannot agree with it."
        )
    submitted = cluster.jobs["submitted_at"]
    return Comparison(
        cluster=history.cluster,
        partitions=dict(zip(cluster.shape.partitions, cluster.shape.nodes.tolist(), strict=True)),
        jobs=len(workload),
        window=(submitted.iloc[0].to_pydatetime(), submitted.iloc[-1].to_pydatetime()),
        run_time_s=run_time_s,
        rows=rows,
        table=table,
        same_jobs=same_jobs,
        notes=(*history.notes, *cluster.notes, *notes),
    )


def drawn_errors(run_time_s: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return run times as the artifact's predictor of Philly errs.

    Some are negative, as there.

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


def _jobs_to_replay(
    history: LoadedHistory, request: ComparisonRequest, table: PublishedTable | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the jobs of the window that have GPUs and a run time, and notes."""
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


def _workload(cluster: ReplayCluster) -> Workload:
    return Workload(
        job_id=cluster.jobs["job_id"].to_numpy(dtype=object),
        submitted_s=cluster.jobs["submitted_at"].to_numpy(dtype="datetime64[s]").astype(np.int64),
        run_time_s=cluster.jobs["run_time_s"].to_numpy().astype(np.int64),
        gpus=cluster.size,
        partition=cluster.partition,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    cluster: ReplayCluster
    workload: Workload
    request: ComparisonRequest
    table: PublishedTable | None


def _row(policy: Policy, setup: _Setup, progress: Progress) -> ComparisonRow:
    found, draws = [], setup.request.draws + 1
    for draw in range(draws):
        progress(f"Replaying {policy} as published", draw / draws)
        found.append(_as_artifact(policy, setup, draw))
    progress(f"Replaying {policy} as published", 1.0)
    means = [_means(one.jct_s, one.queue_s) for one in found]
    printed = setup.table is not None and policy.value in setup.table.jct_s
    return ComparisonRow(
        policy=policy,
        found=_each(np.mean, means) if policy is Policy.SERVICE else means[0],
        lowest=_each(np.min, means),
        highest=_each(np.max, means),
        queued_jobs=int((found[0].queue_s > 0).sum()),
        ours=_as_ours(policy, setup),
        printed=_printed(setup.table, policy, ALL) if setup.table is not None and printed else None,
        by_partition={
            name: _means(found[0].jct_s[mine], found[0].queue_s[mine])
            for code, name in enumerate(setup.cluster.shape.partitions)
            if (mine := setup.workload.partition == code).any()
        },
    )


def _as_artifact(policy: Policy, setup: _Setup, draw: int) -> PublishedReplay:
    """Replay once, with ties in the order of the history in draw 0."""
    workload, seed = setup.workload, setup.request.seed
    ties = np.random.default_rng((seed, draw)).permutation(len(workload)) if draw else None
    published, priority = PublishedPolicy.QSSF, None
    if policy is Policy.FEWEST_GPUS:
        priority = workload.gpus.astype(np.float64)
    elif policy is Policy.SERVICE:
        priority = (workload.gpus * drawn_errors(workload.run_time_s, seed + draw)).astype(np.float64)
    else:
        published = PublishedPolicy(policy.value)
    return replay_as_published(workload, setup.cluster.shape, policy=published, priority=priority, tie_rank=ties)


def _as_ours(policy: Policy, setup: _Setup) -> Means:
    """Replay with our own semantics and strict queues, QSSF with draw 0."""
    workload = setup.workload
    believed = (
        drawn_errors(workload.run_time_s, setup.request.seed) if policy is Policy.SERVICE else workload.run_time_s
    )
    result = replay(
        workload,
        setup.cluster.shape,
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


# What a person sees of it.

NAMES = {
    "fifo": "FIFO",
    "sjf": "SJF, true run times",
    "service": "QSSF, true x noise",
    "fewest_gpus": "Fewest GPUs, no model",
    "srtf": "SRTF, true run times",
}
LEGEND = (
    "Mean seconds, by the semantics of the SC'21 artifact. Draws: lowest to highest over orders of jobs of one second, "
    "and for QSSF over its errors. Queued: jobs that did not start at once. Helios: same jobs and order, strict queue, "
    "our semantics.{printed} What differs: docs/research/measured.md."
)
PRINTED = " Printed: the artifact's own table, Philly, October and November 2017."


def comparison_table(answer: Comparison) -> RenderableType:
    """Return the table of policies."""
    printed = any(row.printed for row in answer.rows)
    names = ["JCT", "Draws", "Queue", "Draws", "Queued", "Helios: JCT", "Queue"]
    names += ["Printed: JCT", "Queue"] if printed else []
    table = _plain("Policy", names)
    for row in answer.rows:
        cells = [
            _seconds(row.found.jct_s),
            _range(row.lowest.jct_s, row.highest.jct_s),
            _seconds(row.found.queue_s),
            _range(row.lowest.queue_s, row.highest.queue_s),
            f"{row.queued_jobs:,}",
            _seconds(row.ours.jct_s),
            _seconds(row.ours.queue_s),
        ]
        if printed:
            cells += [_seconds(row.printed.jct_s), _seconds(row.printed.queue_s)] if row.printed else ["-", "-"]
        table.add_row(NAMES[row.policy.value], *cells)
    first, last = answer.window
    caption = (
        f"{escape(answer.cluster)}: {answer.jobs:,} jobs from {first:%Y-%m-%d} to {last:%Y-%m-%d} (UTC), "
        f"{answer.run_time_s:,.0f} s each on average, on {sum(answer.partitions.values()):,} nodes in "
        f"{len(answer.partitions)} partitions."
    )
    legend = LEGEND.format(printed=PRINTED if printed else "")
    return Group(caption, "", table, "", f"[dim]{legend}[/]")


def partition_table(answer: Comparison) -> RenderableType:
    """Return mean JCT / mean queue of every partition under each policy."""
    table = _plain("Partition", [NAMES[row.policy.value].split(",")[0] for row in answer.rows])
    for name in answer.partitions:
        table.add_row(escape(name), *(_pair(row, name) for row in answer.rows))
        if answer.table is not None:
            cells = (_printed_pair(answer, row, name) for row in answer.rows)
            table.add_row("  printed", *cells, style="dim")
    return Group("Mean JCT / mean queue, s:", table)


def _plain(first: str, others: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _pair(row: ComparisonRow, partition: str) -> str:
    means = row.by_partition.get(partition)
    return "-" if means is None else f"{_seconds(means.jct_s)} / {_seconds(means.queue_s)}"


def _printed_pair(answer: Comparison, row: ComparisonRow, partition: str) -> str:
    if answer.table is None or row.printed is None:
        return "-"
    policy = row.policy.value
    return f"{answer.table.jct_s[policy][partition]:,} / {answer.table.queue_s[policy][partition]:,}"


def _seconds(mean_s: float) -> str:
    """Format a mean as the artifact does, cut and not rounded."""
    return f"{int(mean_s):,}"


def _range(lowest_s: float, highest_s: float) -> str:
    return f"{int(lowest_s):,}..{int(highest_s):,}"


def main(  # noqa: PLR0917 - an option of a command is a parameter
    trace: Annotated[Path, typer.Option("--trace", help="Trace file of the jobs.")],
    trace_format: Format = None,
    timezone: Timezone = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes", help="Nodes of each partition, as gpu=16,cpu=4; or N to pool all jobs. Else the published ones."
        ),
    ] = None,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of a node.")] = 8,
    since: Since = None,
    until: Until = None,
    draws: Annotated[
        int, typer.Option("--draws", min=0, help="How often ties, and the errors of QSSF, are drawn anew.")
    ] = 10,
    oversized: IfOversized = Oversized.FAIL,
    by_partition: Annotated[
        bool, typer.Option("--by-partition", help="Show every partition, beside what was printed of it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay with the semantics of the published simulator, beside ours and beside its table."""
    with progress_bars() as progress:
        history = read_file(trace, timezone=timezone, trace_format=trace_format, progress=progress)
        request = ComparisonRequest(
            nodes=parse_nodes(nodes) if nodes is not None else None,
            gpus_per_node=gpus_per_node,
            since=moment(since, timezone=history.timezone),
            until=moment(until, timezone=history.timezone),
            skip_oversized=oversized is Oversized.SKIP,
            draws=draws,
        )
        answer = compare_published(history, request, progress=progress)
    print_notes(answer.notes)
    if as_json:
        show_json(answer.to_json())
        return
    show(comparison_table(answer))
    if by_partition:
        show("", partition_table(answer))


if __name__ == "__main__":
    try:
        typer.run(main)
    except HeliosError as error:
        print_error(error)
        sys.exit(error.exit_code)
