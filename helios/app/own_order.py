"""Longest wait and nightly check of a site's own queue order.

Ageing and the wait bound of Helios depend on the longest wait in the site's own order. Helios' own changes must not
affect that figure. So it is computed by a replay of the last four weeks, first in first out with EASY backfill by time
limits.

The nightly check compares orders on the last weeks. Where predictions are not better than the size of a job beyond
chance, jobs are ordered by size until a later check. Where nothing has been better than the site's own order for four
weeks, shadow mode is proposed. Only an admin changes a mode or an option.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.config import Settings
from helios.errors import HeliosError
from helios.model import Snapshot, seconds_of
from helios.ports import Progress, no_progress
from helios.report.significance import CheckedOrder
from helios.simulate import ORDERS, Backfill, ClusterShape, LongestWaits, Workload, replay
from helios.simulate.ageing import MEMORY_S
from helios.units import DAY_S
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.whatif import WhatIfRequest


CHECKS = "order checks"
"""Name under which the warehouse keeps the last checks."""
KEPT = timedelta(weeks=5)
"""Time for which checks are kept."""
FRESH = timedelta(days=8)
"""Age at which a check no longer applies to the live queue."""
PATIENCE = timedelta(weeks=4)
"""Time without any better order than the site's own after which shadow mode is proposed."""
MOST_JOBS = 50_000
"""Most jobs to replay, the last ones."""
DRAWS = 10
LOOKS_BACK = timedelta(seconds=MEMORY_S)
"""Period of the replayed jobs."""
DEFAULT_LIMIT_S = 7 * DAY_S
"""Time limit of a job that has none, s."""
_COLUMNS = ("job_id", "since_s", "run_time_s", "limit_s", "gpus", "partition")


class NoGpuMachine(HeliosError):
    """There are no GPUs whose queue could be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCheck:
    """Result of one check.

    Attributes
    ----------
    at : datetime
    best : CheckedOrder
    sentences : tuple of str
        Its sentences.
    """

    at: datetime
    best: CheckedOrder
    sentences: tuple[str, ...]


def order_checks(warehouse: Warehouse, cluster: str) -> list[PastCheck]:
    """Return the kept checks of a cluster, oldest first."""
    text = warehouse.remembered(cluster, CHECKS)
    return [
        PastCheck(
            at=datetime.fromisoformat(entry["at"]), best=CheckedOrder(entry["best"]), sentences=tuple(entry["said"])
        )
        for entry in (json.loads(text) if text else [])
    ]


def size_orders(checks: Sequence[PastCheck], now: datetime) -> bool:
    """Return whether the last check found predictions no better than size.

    A check older than ``FRESH`` does not count.
    """
    return bool(checks) and checks[-1].best is CheckedOrder.SIZE and now - checks[-1].at < FRESH


def proposal(checks: Sequence[PastCheck], now: datetime) -> str:
    """Return the proposal of shadow mode, or an empty text."""
    vain = list(takewhile(lambda check: check.best is CheckedOrder.OWN, reversed(checks)))
    if not vain or now - vain[-1].at < PATIENCE:
        return ""
    return (
        f"In {len(vain)} checks over four weeks neither predictions nor size was better than the site's own order. "
        "Shadow mode loses nothing and goes on measuring: helios mode qssf shadow"
    )


def check_tonight(
    history: LoadedHistory,
    nodes: pd.DataFrame,
    *,
    settings: Settings,
    now: datetime,
    progress: Progress = no_progress,
) -> PastCheck:
    """Replay the last weeks and store the result.

    Parameters
    ----------
    history : LoadedHistory
        All jobs of the cluster.
    nodes : DataFrame
        Columns of ``NODE_STATES``, the machine of today.

    Raises
    ------
    NoGpuMachine
        The cluster has no GPUs.
    NotEnoughHistory
        No job of the last weeks can be replayed.
    """
    from helios.app.order_check import check_order  # noqa: PLC0415 - it compiles, and a live queue only reads checks

    result = check_order(*_last_weeks(history, nodes, settings, now), draws=DRAWS, progress=progress)
    check = PastCheck(at=now, best=result.best, sentences=tuple(result.sentences()))
    with Warehouse.open(settings.database.url) as warehouse:
        earlier = [each for each in order_checks(warehouse, history.cluster) if now - KEPT < each.at < now]
        entries = [{"at": each.at.isoformat(), "best": each.best, "said": each.sentences} for each in (*earlier, check)]
        warehouse.remember(history.cluster, CHECKS, json.dumps(entries), at=now)
    return check


def longest_own_wait(snapshot: Snapshot, history: pd.DataFrame) -> float:
    """Return the longest recent wait in the site's own order, s.

    NaN where no recent GPU job has ended. Partitions that share nodes count as one. Running and pending jobs count with
    their predicted mean run time. Jobs that are held or cannot start yet do not count, because they delay nobody.

    Parameters
    ----------
    snapshot : Snapshot
        With predictions.
    history : DataFrame
        Columns of ``JOBS``.
    """
    now = pd.Timestamp(snapshot.taken_at)
    recent = history[(history["submitted_at"] > now - LOOKS_BACK) & history["run_time_s"].notna()]
    group_of, shape = gpu_machine(snapshot.nodes)
    ended = _as_numbers(recent, group_of)
    if ended.empty or shape is None:
        return math.nan
    pending = snapshot.pending
    can_start = pending[(pending["eligible_at"] <= now) & (pending["priority"] != 0)]
    running = _as_numbers(_queued(snapshot.running, now), group_of)
    jobs = pd.concat(
        [ended, running[~running["job_id"].isin(ended["job_id"])], _as_numbers(_queued(can_start, now), group_of)]
    )
    return float(_waits(jobs, shape).at(int(now.timestamp())))


def own_order_waits(jobs: pd.DataFrame, nodes: pd.DataFrame) -> LongestWaits | None:
    """Return a workload's longest waits in the site's own order.

    None where the cluster has no GPUs, or no job asks for one.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, all jobs of a replay.
    nodes : DataFrame
        Columns of ``NODE_STATES``.
    """
    group_of, shape = gpu_machine(nodes)
    numbers = _as_numbers(jobs[jobs["run_time_s"].notna()], group_of)
    return None if shape is None or numbers.empty else _waits(numbers, shape)


def gpu_machine(nodes: pd.DataFrame) -> tuple[dict[str, int], ClusterShape | None]:
    """Return the group of each partition, and the machine of the groups.

    Partitions that share nodes are one group. Its nodes are taken to be equal. The machine is None without GPUs.
    """
    gpu_nodes = nodes[nodes["partitions"].notna() & (nodes["partitions"].astype(object) != "") & (nodes["gpus"] > 0)]
    texts = gpu_nodes["partitions"].astype(str)
    groups: list[set[str]] = []
    for text in texts.unique():
        names = set(text.split(","))
        overlapping = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names] + [names.union(*overlapping)]
    if not groups:
        return {}, None
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    group_of_node = texts.map(lambda text: group_of[text.split(",")[0]]).to_numpy(dtype=np.int64)
    gpus = gpu_nodes["gpus"].to_numpy(dtype=np.int64)
    gpus_per_node = np.zeros(len(groups), dtype=np.int64)
    np.maximum.at(gpus_per_node, group_of_node, gpus)
    total = np.bincount(group_of_node, weights=gpus, minlength=len(groups))
    shape = ClusterShape(
        partitions=tuple(",".join(sorted(group)) for group in groups),
        nodes=np.ceil(total / gpus_per_node).astype(np.int32),
        gpus_per_node=gpus_per_node.astype(np.int32),
    )
    return group_of, shape


def _last_weeks(
    history: LoadedHistory, nodes: pd.DataFrame, settings: Settings, now: datetime
) -> tuple[LoadedHistory, WhatIfRequest]:
    """Return the history and the window to replay.

    Partitions that share nodes become one.
    """
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above

    group_of, shape = gpu_machine(nodes)
    if shape is None:
        raise NoGpuMachine("The cluster has no GPU nodes with partitions, so no order of GPU jobs can be checked.")
    jobs = history.jobs
    partition = jobs["partition"].astype("str").str.split(",").str[0].map(group_of)
    names = dict(enumerate(shape.partitions))
    submitted = jobs["submitted_at"]
    recent = submitted[submitted >= pd.Timestamp(now) - LOOKS_BACK].iloc[-MOST_JOBS:]
    since = recent.min().to_pydatetime() if len(recent) else now - LOOKS_BACK
    per_node = int(shape.gpus_per_node.max())
    gpus = shape.nodes.astype(int) * shape.gpus_per_node
    request = WhatIfRequest(
        plans=(),
        since=since,
        until=now,
        nodes={names[group]: int(-(-total // per_node)) for group, total in enumerate(gpus)},
        gpus_per_node=per_node,
        resource="gpus",
        skip_oversized=True,
        default_time_limit_s=settings.whatif.default_time_limit_s,
    )
    jobs_by_group = jobs.assign(partition=partition.map(names).fillna("none").astype("category"))
    return replace(history, jobs=jobs_by_group), request


def _waits(jobs: pd.DataFrame, shape: ClusterShape) -> LongestWaits:
    capacity = shape.nodes.astype(np.int64) * shape.gpus_per_node
    fits = jobs["gpus"].to_numpy() <= capacity[jobs["partition"].to_numpy()]
    jobs = jobs[fits].sort_values(["since_s", "job_id"], key=_by_value, kind="stable")
    workload = Workload(
        job_id=np.arange(len(jobs)).astype(str).astype(object),  # a restarted job is there twice
        submitted_s=jobs["since_s"].to_numpy(dtype=np.int64),
        run_time_s=jobs["run_time_s"].to_numpy(dtype=np.int64),
        gpus=np.ceil(jobs["gpus"].to_numpy()).astype(np.int32),
        partition=jobs["partition"].to_numpy(dtype=np.int32),
    )
    limit_s = jobs["limit_s"].to_numpy(dtype=np.int64)
    result = replay(workload, shape, backfill=Backfill.EASY, order=ORDERS["fifo"], estimate_s=limit_s)
    return LongestWaits.of(submitted_s=workload.submitted_s, started_s=result.started_s)


def _by_value(column: pd.Series) -> pd.Series:
    return column.str.zfill(20) if column.name == "job_id" else column


def _queued(queue: pd.DataFrame, now: pd.Timestamp) -> pd.DataFrame:
    """Return the jobs of a ``QUEUE`` frame with their run times.

    GPUs are those of all tasks, and run times are expected ones. A running job is expected to run at least as long as
    it has.
    """
    elapsed_s = (now - queue["started_at"]).dt.total_seconds().fillna(0.0)
    expected_s = queue["mean_s"].fillna(0.0)
    return queue.assign(gpus=queue["gpus"] * queue["tasks"], run_time_s=np.maximum(expected_s, elapsed_s))


def _as_numbers(jobs: pd.DataFrame, group_of: dict[str, int]) -> pd.DataFrame:
    """Return the GPU jobs of known partitions as numbers."""
    limit_s = jobs["time_limit_s"].to_numpy(dtype=np.float64)
    columns: dict[str, Any] = {
        "job_id": jobs["job_id"].to_numpy(dtype=object),
        "since_s": seconds_of(jobs["eligible_at"].fillna(jobs["submitted_at"])),
        "run_time_s": np.maximum(jobs["run_time_s"].to_numpy(dtype=np.float64), 0.0),
        "limit_s": np.where(np.isfinite(limit_s), limit_s, DEFAULT_LIMIT_S),
        "gpus": jobs["gpus"].to_numpy(),
        "partition": _group_of_each(jobs, group_of),
    }
    numbers = pd.DataFrame(columns, columns=_COLUMNS)
    return numbers[(numbers["partition"] >= 0) & (numbers["gpus"] > 0) & numbers["since_s"].notna()]


def _group_of_each(jobs: pd.DataFrame, group_of: dict[str, int]) -> NDArray[np.int64]:
    partition = jobs["partition"].astype("category")
    # The group of a job that names several partitions is that of the first known one, -1 where none is known.
    groups = [
        next((group_of[name] for name in str(names).split(",") if name in group_of), -1)
        for names in partition.cat.categories
    ]
    return np.array([*groups, -1], dtype=np.int64)[partition.cat.codes]
