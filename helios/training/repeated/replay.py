"""Report of repeated jobs, and a replay in which they share GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.replay_cluster import ReplayCluster
from helios.app.reports import WARM_UP, ReportQuery, known_nodes, open_context
from helios.app.resampling import redraw, resampler_for
from helios.app.whatif import ReplaySetup, WhatIfRequest, prepare_replay
from helios.errors import JobLargerThanPartition, NotEnoughHistory, PartitionUnknown
from helios.metrics.history import COLUMNS, read_history
from helios.metrics.trials import GAINS, check_gains, find_trials, pair_trials, shared_run_times
from helios.model import JOBS, in_submission_order
from helios.ports import Progress, no_progress
from helios.report.admin.sacct_format import ReportTable
from helios.report.admin.usage import select_jobs
from helios.simulate import ORDERS
from helios.training.repeated.report import BY_USER, WHAT_IT_IS, PackedReplay, TrialsReport, fields_of_trials, trials_by

READ = (*COLUMNS, "het_job_id", "gpus_requested")
SURE, POSSIBLE = "sure", "possible"
WHICH = {SURE: "Equal names", POSSIBLE: "All alike jobs"}
"""How the replays are named; arrays count as equal names."""
FEWEST_DRAWS = 10
"""Draws below which no range is given."""
MOST_DRAWN = 2_000_000
"""Most jobs of all draws together, so that a year of a large site takes minutes."""
NO_GPUS = "No job names a GPU in this history, so there are no trials to share one."
NO_JOBS = "No job names a GPU in this window."
NO_USERS = "Users are not recorded here, so nobody knows which jobs are repeated."


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCase:
    """How repeated jobs are packed and replayed.

    Attributes
    ----------
    gains : pair of float
        Smallest and largest gain of sharing a GPU, which is the sum of the speeds of two trials on one.
    nodes : mapping, optional
        Nodes of each partition. By default those known to the warehouse, otherwise as many as jobs held at once.
    draws : int
        Draws of the window. 0 for the window alone.
    """

    gains: tuple[float, float] = GAINS
    nodes: Mapping[str, int] | None = None
    gpus_per_node: int = 8
    default_time_limit_s: int = 7 * 86_400
    draws: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_gains(self.gains)


def trials_report(
    query: ReportQuery,
    *,
    by: str = "user",
    most: int | None = None,
    packing: PackingCase | None = None,
    progress: Progress = no_progress,
) -> TrialsReport:
    """Report repeated jobs, and what packing would have changed."""
    packing = packing or PackingCase()
    with open_context(query) as context:
        progress("Reading the warehouse", 0.0)
        jobs = context.warehouse.jobs(
            context.cluster, until=context.until, unended_at=context.since - WARM_UP, columns=READ
        )
        if packing.nodes is None:
            nodes, per_node = known_nodes(context.warehouse, context.cluster)
            packing = replace(packing, nodes=nodes, gpus_per_node=per_node or packing.gpus_per_node)
        progress("Reading the warehouse", 1.0)
        report = find_repeated(
            LoadedHistory(cluster=context.cluster, jobs=JOBS.conform(jobs), timezone=context.timezone),
            since=context.since,
            until=context.until,
            select={"users": query.users, "accounts": query.accounts, "partitions": query.partitions},
            by=by,
            most=most,
            packing=packing,
            title=context.title("Repeated jobs of few GPUs"),
            progress=progress,
        )
        return replace(report, table=context.with_coverage(report.table))


def find_repeated(
    loaded: LoadedHistory,
    *,
    since: datetime,
    until: datetime,
    packing: PackingCase,
    select: Mapping[str, Collection[str]] | None = None,
    by: str = "user",
    most: int | None = None,
    title: str = "",
    progress: Progress = no_progress,
) -> TrialsReport:
    """Report repeated jobs of few GPUs of a history.

    Hours are those held in the window, as in statement 16 of a study, which is about the same jobs. The replay begins
    ``WARM_UP`` before the window, as far as the history goes.

    Parameters
    ----------
    select : mapping, optional
        ``users``, ``accounts`` and ``partitions`` whose jobs are reported and packed; empty for all.
    by : str
        ``user`` or ``group``.
    most : int, optional
        Rows of the table. None for all.
    """
    if not bool((loaded.jobs["gpus"] > 0).any()):
        return _empty_report(by, title, packing, NO_GPUS if len(loaded.jobs) else NO_JOBS)
    jobs = loaded.jobs.reset_index(drop=True).assign(row=np.arange(len(loaded.jobs)))
    history = read_history(
        jobs,
        cluster=loaded.cluster,
        timezone=loaded.timezone,
        since=since,
        until=until,
        resource="gpus",
        keep=("row", "user", "account", "partition"),
    )
    if not history.size.any():
        return _empty_report(by, title, packing, NO_JOBS)
    if not history.user.known.any():
        return _empty_report(by, title, packing, NO_USERS)
    trials = find_trials(history)
    is_selected = np.isin(np.arange(len(history.size)), select_jobs(history.jobs, **(select or {})).index)
    trials = replace(
        trials, sure=np.where(is_selected, trials.sure, -1), possible=np.where(is_selected, trials.possible, -1)
    )
    table, totals = trials_by(by, history, trials, chosen=is_selected, gains=packing.gains, title=title, most=most)
    for name, group in ((SURE, trials.sure), (POSSIBLE, trials.possible)):
        jobs[name] = np.int64(-1)
        jobs.loc[history.jobs["row"].to_numpy(), name] = group
    replays, draws, notes = _replays(replace(loaded, jobs=jobs), since, until, packing, progress)
    return TrialsReport(
        table=replace(table, notes=(*table.notes, *(WHAT_IT_IS if totals["groups"] else ()))),
        totals=totals,
        gains=packing.gains,
        names_known=bool(trials.of_array.any() or (history.name >= 0).any()),
        replays=replays,
        draws=draws,
        replay_notes=notes,
    )


def _empty_report(by: str, title: str, packing: PackingCase, why: str) -> TrialsReport:
    fields = fields_of_trials(by)
    rows = pd.DataFrame(columns=[field.column for field in fields])
    table = ReportTable(title=title, fields=fields, rows=rows, empty=why)
    totals = {field.column: 0 for field in BY_USER if field.column != "user"}
    return TrialsReport(table=table, totals=totals, gains=packing.gains, names_known=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplayWaits:
    """Waits of one replay of FIFO with EASY by time limits.

    Attributes
    ----------
    packed : int
        Number of packed jobs.
    others_s : int64 array
        Waits of jobs that no replay packs, s.
    trials_s : float64 array
        Times from submission to end of jobs that some replay packs, s.
    """

    packed: int
    others_s: NDArray[np.int64]
    trials_s: NDArray[np.float64]


def _replays(
    loaded: LoadedHistory, since: datetime, until: datetime, packing: PackingCase, progress: Progress
) -> tuple[list[PackedReplay], int, tuple[str, ...]]:
    """Replay a window and draws of it, unpacked and packed."""
    request = WhatIfRequest(
        scenarios=(),
        since=max(since, loaded.jobs["submitted_at"].min()),
        until=until,
        warm_up=WARM_UP,
        nodes=packing.nodes,
        gpus_per_node=packing.gpus_per_node,
        resource="gpus",
        skip_oversized=True,
        default_time_limit_s=packing.default_time_limit_s,
        seed=packing.seed,
    )
    try:
        setup = prepare_replay(loaded, request)
    except (NotEnoughHistory, PartitionUnknown, JobLargerThanPartition) as reason:
        return [], 0, (f"Nothing was replayed: {reason.message}",)
    columns = [column for column in (SURE, POSSIBLE) if len(_pairs(setup, column)[0])]
    cases: list[tuple[str, str, float | None]] = [("Nothing packed", POSSIBLE, None)]
    cases += [(f"{WHICH[column]}, gain {gain:.2f}", column, gain) for column in columns for gain in packing.gains]
    if not columns:
        return [], 0, ("Nothing was replayed: no two repeated jobs of one GPU ran.",)
    resampler, draws = resampler_for(setup), min(packing.draws, MOST_DRAWN // len(setup.counted))
    runs: list[list[_ReplayWaits]] = []
    for draw in range(draws + 1):
        redrawn = redraw(setup, resampler, repeat=draw, seed=packing.seed) if draw else setup
        runs.append([_waits(redrawn, column, gain) for _, column, gain in cases])
        progress("Replaying the queue", (draw + 1) / (draws + 1))
    without = [run[0] for run in runs]
    replays = [
        _compare(name, gain, [run[number] for run in runs], without) for number, (name, _, gain) in enumerate(cases)
    ]
    notes = [*setup.notes, *setup.machine.notes, *([f"Draws are of {resampler.over.value}."] if draws else [])]
    if draws < packing.draws:
        notes.append(
            f"Only {draws} draws, as the window has {len(setup.counted):,} jobs; a range needs {FEWEST_DRAWS}."
        )
    return replays, draws, tuple(notes)


def _pairs(setup: ReplaySetup, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    jobs, machine = setup.machine.jobs, setup.machine
    may_share_gpu = (machine.size == 1) & (jobs["restart"] == 0).to_numpy() & (jobs["run_time_s"] > 0).to_numpy()
    return pair_trials(jobs[column].to_numpy(), machine.partition, setup.workload.submitted_s, may_share_gpu)


def _waits(setup: ReplaySetup, column: str, gain: float | None) -> _ReplayWaits:
    jobs, submitted_s = setup.machine.jobs, setup.workload.submitted_s
    is_in_any_pair = np.zeros(len(jobs), dtype=bool)
    is_in_any_pair[np.concatenate([*_pairs(setup, SURE), *_pairs(setup, POSSIBLE)])] = True
    is_other, is_packed = setup.counted & ~is_in_any_pair, setup.counted & is_in_any_pair
    if gain is None:
        result = setup.machine.replay(ORDERS["fifo"], default_limit_s=setup.default_limit_s)
        return _ReplayWaits(
            packed=0,
            others_s=result.wait_s[is_other],
            trials_s=(result.ended_s - submitted_s)[is_packed].astype(np.float64),
        )
    first, second = _pairs(setup, column)
    machine, row = _merge_pairs(setup.machine, first, second, gain)
    result = machine.replay(ORDERS["fifo"], default_limit_s=setup.default_limit_s)
    ended_s = result.ended_s[row].astype(np.float64)
    run_time_s = jobs["run_time_s"].to_numpy(dtype=np.float64)
    for pair, end_s in zip((first, second), shared_run_times(run_time_s[first], run_time_s[second], gain), strict=True):
        ended_s[pair] = result.started_s[row[pair]] + end_s
    is_in_pair = np.zeros(len(jobs), dtype=bool)
    is_in_pair[np.concatenate([first, second])] = True
    return _ReplayWaits(
        packed=int((is_in_pair & setup.counted).sum()),
        others_s=(result.started_s[row] - submitted_s)[is_other],
        trials_s=(ended_s - submitted_s)[is_packed],
    )


def _merge_pairs(
    machine: ReplayCluster, first: NDArray[np.int64], second: NDArray[np.int64], gain: float
) -> tuple[ReplayCluster, NDArray[np.int64]]:
    """Merge each pair into one job.

    A merged job is submitted when both are, and runs until the longer ends. Its time limit is longer by the factor by
    which both are slower. The second value is the row of each original job.
    """
    jobs = machine.jobs.assign(position=np.arange(len(machine.jobs)))
    run_time_s, limit_s = (jobs[name].to_numpy(dtype=np.float64).copy() for name in ("run_time_s", "time_limit_s"))
    run_time_s[first] = np.ceil(np.maximum(*shared_run_times(run_time_s[first], run_time_s[second], gain)))
    limit_s[first] = np.maximum(limit_s[first], limit_s[second]) * 2 / gain
    submitted_at = jobs["submitted_at"].array.copy()
    submitted_at[first] = submitted_at[second]
    is_kept = np.ones(len(jobs), dtype=bool)
    is_kept[second] = False
    jobs = jobs.assign(run_time_s=run_time_s, time_limit_s=limit_s, submitted_at=submitted_at)[is_kept]
    jobs = in_submission_order(jobs)
    order = jobs.pop("position").to_numpy()
    row = np.empty(len(is_kept), dtype=np.int64)
    row[order] = np.arange(len(order))
    row[second] = row[first]
    return replace(machine, jobs=jobs, partition=machine.partition[order], size=machine.size[order]), row


def _compare(
    name: str, gain: float | None, runs: Sequence[_ReplayWaits], without: Sequence[_ReplayWaits]
) -> PackedReplay:
    """Return a replay's waits, and its range over draws."""
    differences = {
        "less": [_mean(base.others_s) - _mean(run.others_s) for run, base in zip(runs, without, strict=True)],
        "trials_less": [_mean(base.trials_s) - _mean(run.trials_s) for run, base in zip(runs, without, strict=True)],
    }
    ranges: dict[str, float] = {}
    for name_of_range, values in differences.items() if gain is not None else ():
        ranges[f"{name_of_range}_s"] = values[0]
        if len(values) > FEWEST_DRAWS:
            low, high = np.quantile(values[1:], (0.05, 0.95))
            ranges |= {f"{name_of_range}_low_s": float(low), f"{name_of_range}_high_s": float(high)}
    window = runs[0]
    return PackedReplay(
        replay=name,
        packed=window.packed,
        gain=gain,
        mean_wait_s=_mean(window.others_s),
        p90_wait_s=float(np.quantile(window.others_s, 0.9)) if len(window.others_s) else 0.0,
        trials_s=_mean(window.trials_s),
        **ranges,
    )


def _mean(values: NDArray[np.float64] | NDArray[np.int64]) -> float:
    return float(values.mean()) if len(values) else 0.0
