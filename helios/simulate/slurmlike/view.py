"""What a simulated Slurm shows of itself: rows of the queue and of the nodes, from the tables of a replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS, NODE_STATES, QUEUE, JobState
from helios.model.site import SlurmSite
from helios.simulate.rows import Facts, Jobs, Predictions, Rows, coded
from helios.simulate.slurmlike.levers import Levers
from helios.simulate.slurmlike.state import NOW, SlurmState
from helios.simulate.slurmlike.tables import node_names
from helios.simulate.slurmlike.workload import SlurmWorkload
from helios.simulate.view import nodes_held, times

_FIXED = [
    name
    for name in JOBS.names
    if name in QUEUE.by_name and name not in ("job_id", "state", "started_at", "node_list", "partition")
]


class SlurmView:
    """Frames of ``QUEUE`` and ``NODE_STATES`` for a replay under Slurm's rules.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload.
    state : SlurmState
        The tables, which live as long as the timeline.
    """

    def __init__(
        self,
        workload: SlurmWorkload,
        site: SlurmSite,
        jobs: pd.DataFrame,
        state: SlurmState,
        *,
        job_ids: list[str],
    ) -> None:
        self.facts = Facts(_queue(workload, jobs, job_ids))
        self._state = state
        self._names, self._nodes = node_names(site), _nodes(site)

    def pending(self, jobs: Jobs, levers: Levers, predictions: Predictions | None) -> SlurmRows:
        """Return ``jobs``, which wait, in that order, as they are now."""
        held = levers.held(jobs)
        first = self._state.jobs["first_choice"][jobs]
        return SlurmRows(
            facts=self.facts,
            jobs=jobs,
            urgency=levers.urgency(jobs),
            soft_limit_s=levers.soft_limit_s(jobs),
            steps=levers.steps,
            hands_off=levers.hands_off(jobs),
            held=held,
            quantiles_s=None if predictions is None else predictions.quantiles_s.take(jobs, axis=0),
            source=None if predictions is None else predictions.source.take(jobs),
            sources=() if predictions is None else tuple(predictions.sources),
            longest_backlog_s=math.nan if predictions is None else float(predictions.longest_backlog_s),
            known_priority=np.where(held, 0.0, self._state.choices["priority"][first].astype(np.float64)),
            user_soft_limit_s=levers.user_soft_limit_s(jobs),
        )

    def running(
        self, jobs: Jobs, *, started_s: Jobs, user_soft_limit_s: NDArray[np.float64]
    ) -> Callable[[], pd.DataFrame]:
        """Return what makes the frame of ``jobs``, which run, in that order, as of now."""
        first, holdings = self._state.jobs["first_share"][jobs], self._state.holdings.copy()

        def made() -> pd.DataFrame:
            held = [sorted(set(nodes_held(holdings, share))) for share in first.tolist()]
            places = [",".join(self._names[node] for node in nodes) for nodes in held]
            state = coded(np.zeros(len(jobs), dtype=np.int8), (JobState.RUNNING.value,))
            reason = coded(np.full(len(jobs), -1, dtype=np.int8), ())
            own = {"started_at": times(started_s).array, "node_list": pd.Categorical(places), "state": state}
            return self.facts.frame(jobs, own | {"reason": reason, "user_soft_limit_s": user_soft_limit_s})

        return made

    def nodes(self) -> Callable[[], pd.DataFrame]:
        """Return what makes the frame of all nodes as of now."""
        free = self._state.free["cpus"][NOW].copy()
        by_type = self._state.free_gpus[NOW].reshape(len(self._names), -1)
        free_gpus = by_type.sum(axis=1)

        def made() -> pd.DataFrame:
            cpus_held = self._nodes["cpus"].to_numpy() - free
            level = (cpus_held > 0).astype(np.int8) + ((free == 0) & (cpus_held > 0))
            gpus_held = self._nodes["gpus"].to_numpy() - free_gpus
            return NODE_STATES.conform(
                self._nodes.assign(
                    state=coded(level, ("IDLE", "MIXED", "ALLOCATED")),
                    cpus_held=cpus_held.astype(np.float64),
                    gpus_held=gpus_held,
                )
            )

        return made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmRows(Rows):
    """Some jobs of a replay at one moment, with the priority that Slurm gives them and what their users set."""

    known_priority: NDArray[np.float64]
    user_soft_limit_s: NDArray[np.float64]

    def frame(self) -> pd.DataFrame:
        """Return columns of ``QUEUE``."""
        made = Rows.frame(self)  # no super(): a dataclass with slots is not the class that its methods were born in
        made["user_soft_limit_s"] = self.user_soft_limit_s
        return made

    def values(self, name: str) -> NDArray[Any]:
        """Return one column, as :meth:`helios.model.Snapshot.pending_values` does."""
        return self.user_soft_limit_s if name == "user_soft_limit_s" else Rows.values(self, name)

    @property
    def priority(self) -> NDArray[np.float64]:
        """Slurm's priority of each job, in the first partition that it asks for."""
        return self.known_priority


def _queue(workload: SlurmWorkload, jobs: pd.DataFrame, job_ids: list[str]) -> pd.DataFrame:
    """Return all jobs as they are while they wait and nobody has set anything."""
    partitions = [",".join(workload.partitions[code] for code in workload.choices(job)) for job in range(len(jobs))]
    known = jobs[_FIXED].reset_index(drop=True)
    return QUEUE.conform(
        known.assign(
            job_id=job_ids,
            tasks=1,
            partition=partitions,
            state=JobState.PENDING.value,
            reason="Priority",
            submitted_at=_in_whole_seconds(workload.submitted_s),
            eligible_at=_in_whole_seconds(workload.column("eligible_s")),
        )
    )


def _in_whole_seconds(seconds: NDArray[np.float64]) -> pd.DatetimeIndex:
    """Return times as Slurm tells them."""
    return times(np.floor(seconds).astype(np.int64))


def _nodes(site: SlurmSite) -> pd.DataFrame:
    homes: dict[str, list[str]] = {}
    for rules in site.partitions:
        for node in rules.nodes:
            homes.setdefault(node, []).append(rules.name)
    rows = [
        {
            "name": node,
            "partitions": ",".join(homes.get(node, ())),
            "power": "awake",
            "kept_awake": 0,
            "cpus": group.cpus,
            "gpus": sum(group.gpus.values()),
            "gpu_type": ",".join(kind for kind in group.gpus if kind) or None,
            "memory_mib": group.memory_mib,
            "weight": group.weight,
        }
        for group in site.nodes
        for node in group.names
    ]
    return NODE_STATES.conform(pd.DataFrame(rows).assign(state="IDLE", cpus_held=0.0, gpus_held=0))
