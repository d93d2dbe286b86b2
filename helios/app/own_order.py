"""Longest wait in a site's own queue order.

Ageing and the wait bound of Helios depend on the longest wait in the site's own order. Helios' own changes must not
affect that figure. So it is computed by a replay of the last four weeks, first in first out with EASY backfill by time
limits.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import Snapshot, seconds_of
from helios.simulate import ORDERS, Backfill, ClusterShape, LongestWaits, Workload, replay
from helios.simulate.ageing import MEMORY_S
from helios.simulate.gpu_units import replay_sizes
from helios.units import DAY_S

LOOKS_BACK = timedelta(seconds=MEMORY_S)
"""Period of the replayed jobs."""
DEFAULT_LIMIT_S = 7 * DAY_S
"""Time limit of a job that has none, s."""
_COLUMNS = ("job_id", "since_s", "run_time_s", "limit_s", "gpus", "partition")


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


def _waits(jobs: pd.DataFrame, shape: ClusterShape) -> LongestWaits:
    capacity = shape.nodes.astype(np.int64) * shape.gpus_per_node
    fits = jobs["gpus"].to_numpy() <= capacity[jobs["partition"].to_numpy()]
    jobs = jobs[fits].sort_values(["since_s", "job_id"], key=_by_value, kind="stable")
    workload = Workload(
        job_id=np.arange(len(jobs)).astype(str).astype(object),  # a restarted job is there twice
        submitted_s=jobs["since_s"].to_numpy(dtype=np.int64),
        run_time_s=jobs["run_time_s"].to_numpy(dtype=np.int64),
        gpus=replay_sizes(jobs["gpus"].to_numpy()),
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
