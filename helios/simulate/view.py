"""What a simulated cluster shows of itself: rows of the queue and of the nodes, from the tables of a replay.

Running jobs and nodes, which few services look at, are made when somebody does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS, NODE_STATES, QUEUE, JobState
from helios.simulate.rows import Facts, Jobs, Predictions, Rows, coded
from helios.simulate.slurmlike.workload import SlurmWorkload
from helios.simulate.state import State
from helios.simulate.workload import ClusterShape, Workload

_FIXED = [name for name in JOBS.names if name in QUEUE.by_name and name not in ("state", "started_at", "node_list")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """What somebody set on the jobs; arrays of shape (n_jobs,), and by position why to leave a job alone.

    ``steps`` are those of the grid between 0 and 1 that urgencies lie on; 0: on none.
    """

    urgency: NDArray[np.float64]
    soft_limit_s: NDArray[np.float64]
    steps: int
    hands_off: dict[int, str]
    held: set[int]


def unique_ids(workload: Workload | SlurmWorkload) -> list[str]:
    """Return a name for each job that no other has: the site's id, and -2, -3, ... where it was used again."""
    taken: set[str] = set()
    return [_fresh(str(job_id), taken) for job_id in workload.job_id]


def _fresh(job_id: str, taken: set[str]) -> str:
    if job_id in taken:
        job_id = next(name for again in count(2) if (name := f"{job_id}-{again}") not in taken)
    taken.add(job_id)
    return job_id


class View:
    """Frames of ``QUEUE`` and ``NODE_STATES`` for a replay.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload.
    resource : str
        ``gpus`` or ``cpus``: what the workload's GPUs are in truth.
    """

    def __init__(
        self, workload: Workload, shape: ClusterShape, jobs: pd.DataFrame, *, job_ids: list[str], resource: str
    ) -> None:
        self._facts = Facts(_queue(workload, shape, jobs, job_ids, resource))
        self._nodes = _nodes(shape, resource)
        self._size = np.repeat(shape.gpus_per_node.astype(np.int64), shape.nodes)
        self._names = self._nodes["name"].tolist()
        self._resource = resource

    def pending(self, jobs: Jobs, marks: Marks, predictions: Predictions | None) -> Rows:
        """Return ``jobs``, which wait, in that order, as they are marked now."""
        return Rows(
            facts=self._facts,
            jobs=jobs,
            urgency=marks.urgency.take(jobs),
            soft_limit_s=marks.soft_limit_s.take(jobs),
            steps=marks.steps,
            hands_off=[marks.hands_off.get(job) for job in jobs.tolist()] if marks.hands_off else None,
            held=np.array([job in marks.held for job in jobs.tolist()], dtype=bool) if marks.held else None,
            quantiles_s=None if predictions is None else predictions.quantiles_s.take(jobs, axis=0),
            source=None if predictions is None else predictions.source.take(jobs),
            sources=() if predictions is None else tuple(predictions.sources),
            longest_backlog_s=math.nan if predictions is None else float(predictions.longest_backlog_s),
        )

    def running(self, jobs: Jobs, tables: State) -> Callable[[], pd.DataFrame]:
        """Return what makes the frame of ``jobs``, which run, in that order, as of now."""
        # A job whose nodes are still waking is shown as started when it got them: when they will be up is not over yet.
        late = tables.jobs["resumed_s"][jobs] > tables.clock["now_s"][0]
        started_s = tables.jobs["started_s"][jobs] - np.where(late, tables.jobs["late_s"][jobs], 0)
        held = tables.jobs["first_share"][jobs]
        shares = tables.shares.copy()

        def made() -> pd.DataFrame:
            places = pd.Categorical([self._place(shares, share) for share in held.tolist()])
            first = np.zeros(len(jobs), dtype=np.int8)
            state = coded(first, (JobState.RUNNING.value,))
            own = {"started_at": times(started_s).array, "node_list": places, "state": state}
            return self._facts.frame(jobs, own | {"reason": coded(first - 1, ())})

        return made

    @property
    def facts(self) -> Facts:
        """What no event changes of all jobs."""
        return self._facts

    @property
    def names(self) -> list[str]:
        """Names of the nodes, as the state numbers them."""
        return self._names

    def nodes(self, tables: State, changing: Callable[[], dict[str, Any]]) -> Callable[[], pd.DataFrame]:
        """Return what makes the frame of all nodes as of now, given what makes its columns about power and weight."""
        free = tables.nodes["free"].copy()

        def made() -> pd.DataFrame:
            held = self._size - free
            level = (held > 0).astype(np.int8) + (free == 0)
            seen = self._nodes.copy()
            seen["state"] = coded(level, ("IDLE", "MIXED", "ALLOCATED"))
            seen[f"{self._resource}_held"] = held.astype(np.int32 if self._resource == "gpus" else np.float64)
            return NODE_STATES.conform(seen.assign(**changing()))

        return made

    def _place(self, shares: NDArray[np.void], share: int) -> str:
        """Return the nodes of the shares that ``share`` is the first of."""
        return ",".join(self._names[node] for node in sorted(nodes_held(shares, share)))


def _queue(
    workload: Workload, shape: ClusterShape, jobs: pd.DataFrame, job_ids: list[str], resource: str
) -> pd.DataFrame:
    """Return all jobs as they are while they wait and nobody has set anything."""
    known = jobs[_FIXED].reset_index(drop=True)
    submitted_at = times(workload.submitted_s)
    known = known.assign(
        job_id=job_ids,
        tasks=1,
        partition=coded(workload.partition, tuple(shape.partitions)),
        state=JobState.PENDING.value,
        reason="Priority",
        submitted_at=submitted_at,
        eligible_at=submitted_at,
    )
    known[resource] = workload.gpus
    return QUEUE.conform(known)


def _nodes(shape: ClusterShape, resource: str) -> pd.DataFrame:
    names = [
        f"{partition}{number}"
        for partition, nodes in zip(shape.partitions, shape.nodes.tolist(), strict=True)
        for number in range(1, nodes + 1)
    ]
    frame = {
        "name": names,
        "partitions": np.repeat(np.array(shape.partitions, dtype=object), shape.nodes),
        resource: np.repeat(shape.gpus_per_node, shape.nodes),
        f"{resource}_held": 0,
        "weight": 1.0,
    }
    return NODE_STATES.conform(pd.DataFrame(frame))


def nodes_held(shares: NDArray[np.void], share: int) -> list[int]:
    """Return the nodes of ``share`` and those chained to it, in that order; -1 ends the chain."""
    held = []
    while share >= 0:
        held.append(int(shares["node"][share]))
        share = int(shares["next"][share])
    return held


def times(seconds: NDArray[np.int64]) -> pd.DatetimeIndex:
    """Return times given in s since the epoch."""
    return pd.DatetimeIndex((seconds * 1_000_000).view("datetime64[us]")).tz_localize("UTC")
