"""The longest backlog of a live cluster, from its history and its queue: nothing of it has to be remembered."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.backlog import EVERY_S, EXPECTED, Past, Reckoning, longest_backlog_s
from helios.model import Snapshot, seconds_of

LOOKS_BACK = timedelta(days=60)
"""How far back a backlog counts: a jam of last year says nothing of how long one should wait today."""
_ENDED = ("partition", "gpus", "submitted_at", "eligible_at", "started_at", "ended_at")


class BacklogWatch:
    """Reckons the longest backlog anew each hour of the cluster's own clock, and knows it in between."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._longest_s = math.nan

    def __call__(self, snapshot: Snapshot, history: pd.DataFrame) -> float:
        """Return the longest backlog of the weeks before ``snapshot``, s; see :func:`longest_of`."""
        now = snapshot.taken_at
        if self._at is None or not timedelta(0) <= now - self._at < timedelta(seconds=EVERY_S):
            self._at, self._longest_s = now, longest_of(snapshot, history)
        return self._longest_s


def longest_of(snapshot: Snapshot, history: pd.DataFrame) -> float:
    """Return the longest backlog of the last ``LOOKS_BACK``, s; NaN: no GPU job has ended in it.

    It reaches back no further than ``history``. Partitions that share nodes count as one, with the GPUs that all of its
    nodes have when they work. What cannot start yet, or is held, stands in nobody's way; a job that wants no GPU, or a
    partition that there is not, does not count.

    Parameters
    ----------
    snapshot : Snapshot
        With predictions.
    history : DataFrame
        Columns of ``JOBS``.
    """
    now = pd.Timestamp(snapshot.taken_at)
    group_of, capacity = _groups(snapshot.nodes)
    ended = history.loc[
        (history["ended_at"] > now - LOOKS_BACK) & history["started_at"].notna() & (history["gpus"] > 0), [*_ENDED]
    ]
    known = (ended, _queued(snapshot.running), _queued(_ready(snapshot.pending, now)))
    jobs = pd.concat([_plain(frame, group_of) for frame in known], ignore_index=True)
    jobs = jobs[(jobs["group"] >= 0) & (jobs["gpus"] > 0)]
    if not jobs["ended_s"].notna().any() or not capacity.any():
        return math.nan
    past = Past(
        partition=jobs["group"].to_numpy(dtype=np.int64),
        gpus=jobs["gpus"].to_numpy(dtype=np.int64),
        since_s=jobs["since_s"].to_numpy(),
        started_s=jobs["started_s"].to_numpy(),
        ended_s=jobs["ended_s"].to_numpy(),
        predicted_s=jobs["predicted_s"].to_numpy(),
    )
    now_s = now.timestamp()
    first_s = max(float(past.since_s.min()), now_s - LOOKS_BACK.total_seconds())
    return longest_backlog_s(past, capacity=capacity, now_s=now_s, first_s=first_s)


def reckoning_on(nodes: pd.DataFrame, jobs: pd.DataFrame) -> Reckoning | None:
    """Return what reckons the backlog of a replay of ``JOBS`` on ``NODE_STATES`` as it goes on; None: without GPUs."""
    group_of, capacity = _groups(nodes)
    if not capacity.any():
        return None
    return Reckoning(partition=_group_of_each(jobs, group_of), gpus=jobs["gpus"].to_numpy(), capacity=capacity)


def _ready(pending: pd.DataFrame, now: pd.Timestamp) -> pd.DataFrame:
    return pending[(pending["eligible_at"] <= now) & (pending["priority"] != 0)]


def _queued(queue: pd.DataFrame) -> pd.DataFrame:
    """Return jobs of ``QUEUE`` with all tasks of their records and what is expected of them."""
    expected_s = queue[["p10_s", "p50_s", "p90_s"]].to_numpy(dtype=np.float64) @ np.array(EXPECTED)
    return queue.assign(gpus=queue["gpus"] * queue["tasks"], predicted_s=expected_s)


def _plain(jobs: pd.DataFrame, group_of: dict[str, int]) -> pd.DataFrame:
    since = jobs["eligible_at"].fillna(jobs["submitted_at"])
    columns = {
        "group": _group_of_each(jobs, group_of),
        "gpus": jobs["gpus"].to_numpy(),
        "since_s": seconds_of(since),
        "started_s": seconds_of(jobs["started_at"]),
        "ended_s": seconds_of(jobs["ended_at"]) if "ended_at" in jobs else np.nan,
        "predicted_s": jobs["predicted_s"].to_numpy() if "predicted_s" in jobs else np.nan,
    }
    return pd.DataFrame(columns, index=range(len(jobs)))


def _group_of_each(jobs: pd.DataFrame, group_of: dict[str, int]) -> NDArray[np.int64]:
    partition = jobs["partition"].astype("category")
    groups = np.array([_group(str(name), group_of) for name in partition.cat.categories] + [-1], dtype=np.int64)
    return groups[partition.cat.codes]


def _group(partition: str, group_of: dict[str, int]) -> int:
    """Return the group of the first known one of the partitions that a job would take; -1: none."""
    return next((group_of[name] for name in partition.split(",") if name in group_of), -1)


def _groups(nodes: pd.DataFrame) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Return which group each partition is part of, and the GPUs of each: partitions that share nodes are one."""
    named = nodes[nodes["partitions"].notna() & (nodes["partitions"].astype(object) != "")]
    texts = named["partitions"].astype(str)
    groups: list[set[str]] = []
    for text in texts.unique():
        names = set(text.split(","))
        touched = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names] + [names.union(*touched)]
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    of_node = texts.map(lambda text: group_of[text.split(",")[0]]).to_numpy(dtype=np.int64)
    gpus = np.bincount(of_node, weights=named["gpus"], minlength=len(groups))
    return group_of, gpus.astype(np.int64)
