"""What a simulated cluster shows of itself: rows of the queue and of the nodes, from the tables of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS, NODE_STATES, QUEUE, JobState
from helios.simulate.state import State
from helios.simulate.workload import ClusterShape, Workload

BASE_PRIORITY = 100_000.0
"""Priority of a job that nobody moved; what of it Helios changes is the SiteFactor that Slurm would have."""
_FIXED = [name for name in JOBS.names if name in QUEUE.by_name and name not in ("state", "started_at", "node_list")]

Jobs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What is expected of each job of a workload; filled in as the timeline goes on.

    Attributes
    ----------
    quantiles_s : float64 array of shape (n_jobs, 3)
        p10, p50, p90 of the run time, s; NaN: not predicted.
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` said so; -1: none.
    sources : list of str
        Model ids and fallbacks, distinct.
    """

    quantiles_s: NDArray[np.float64]
    source: NDArray[np.int16]
    sources: list[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """What somebody set on the jobs; arrays of shape (n_jobs,), and why to leave a job alone, by position."""

    urgency: NDArray[np.float64]
    soft_limit_s: NDArray[np.float64]
    priority: NDArray[np.float64]
    hands_off: dict[int, str]


def unique_ids(workload: Workload) -> list[str]:
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
        self._facts = _facts(workload, shape, jobs, job_ids, resource)
        self._nodes = _nodes(shape, resource)
        self._size = np.repeat(shape.gpus_per_node.astype(np.int64), shape.nodes)
        self._names = self._nodes["name"].tolist()
        self._places: dict[int, str] = {}
        self._resource = resource

    def pending(self, jobs: Jobs, marks: Marks, predictions: Predictions | None) -> pd.DataFrame:
        """Return ``jobs``, which wait, in that order."""
        seen = self._rows(jobs, JobState.PENDING)
        seen["reason"] = _same("Priority", len(jobs))
        seen["urgency"], seen["soft_limit_s"] = marks.urgency[jobs], marks.soft_limit_s[jobs]
        seen["priority"] = marks.priority[jobs]
        if marks.hands_off:
            seen["hands_off"] = pd.Categorical([marks.hands_off.get(job) for job in jobs.tolist()])
        if predictions is not None:
            for place, name in enumerate(("p10_s", "p50_s", "p90_s")):
                seen[name] = predictions.quantiles_s[jobs, place]
            seen["source"] = _coded(predictions.source[jobs], predictions.sources)
        return pd.DataFrame(seen)

    def running(self, jobs: Jobs, state: State) -> pd.DataFrame:
        """Return ``jobs``, which run, in that order."""
        seen = self._rows(jobs, JobState.RUNNING)
        seen["started_at"] = _times(state.jobs["started_s"][jobs])
        seen["node_list"] = pd.Categorical([self._place(state, job) for job in jobs.tolist()])
        return pd.DataFrame(seen)

    def nodes(self, state: State) -> pd.DataFrame:
        """Return all nodes, in the order in which they are filled."""
        held = self._size - state.free
        level = (held > 0).astype(np.int8) + (state.free == 0)
        seen = self._nodes.copy()
        seen["state"] = _coded(level, ["IDLE", "MIXED", "ALLOCATED"])
        seen[f"{self._resource}_held"] = held.astype(np.int32 if self._resource == "gpus" else np.float64)
        return seen

    def _rows(self, jobs: Jobs, state: JobState) -> dict[str, Any]:
        seen: dict[str, Any] = {name: column.take(jobs) for name, column in self._facts.items()}
        seen["state"] = _same(state.value, len(jobs))
        return seen

    def _place(self, state: State, job: int) -> str:
        """Return the nodes that ``job`` runs on; they stay the same while it does."""
        if job not in self._places:
            self._places[job] = ",".join(self._names[node] for node in sorted(_nodes_held(state, job)))
        return self._places[job]


def moment(seconds: int) -> datetime:
    """Return a time given in s since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)


def _facts(
    workload: Workload, shape: ClusterShape, jobs: pd.DataFrame, job_ids: list[str], resource: str
) -> dict[str, Any]:
    """Return the columns that no event changes, of all jobs."""
    known = jobs[_FIXED].reset_index(drop=True)
    submitted_at = _times(workload.submitted_s)
    known = known.assign(
        job_id=job_ids,
        tasks=1,
        partition=_coded(workload.partition, list(shape.partitions)),
        submitted_at=submitted_at,
        eligible_at=submitted_at,
    )
    known[resource] = workload.gpus
    facts = QUEUE.conform(known)
    return {name: facts[name].array for name in QUEUE.names}


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


def _nodes_held(state: State, job: int) -> list[int]:
    held, share = [], int(state.jobs["first_share"][job])
    while share >= 0:
        held.append(int(state.shares["node"][share]))
        share = int(state.shares["next"][share])
    return held


def _times(seconds: NDArray[np.int64]) -> pd.DatetimeIndex:
    return pd.DatetimeIndex((seconds * 1_000_000).view("datetime64[us]")).tz_localize("UTC")


def _same(word: str, times: int) -> Any:
    return _coded(np.zeros(times, dtype=np.int8), (word,))


def _coded(codes: NDArray[Any], words: Sequence[str]) -> Any:
    return pd.Categorical.from_codes(
        codes,
        dtype=_category(tuple(words)),
    )


@lru_cache(maxsize=64)
def _category(words: tuple[str, ...]) -> Any:
    """Return the type with these words, of which checking that they are distinct is the slow part."""
    return pd.CategoricalDtype(list(words))
