"""Settings and snapshots of the jobs of a simulated Slurm cluster.

Helios sets SiteFactor and TimeMin, in Slurm's own values. A SiteFactor without Helios' mark is an administrator's, a
TimeMin that Helios did not set is the user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.actions import JobAction, JobSetting, Outcome, Ranking, Reorder, Result
from helios.changes import GONE, ChangeContext, SettingChange, judge_change, setting_changes, slurm_value_mapping
from helios.model import JOBS, NODE_STATES, QUEUE, JobState
from helios.model.slurm_site import SlurmSite
from helios.simulate.cluster import urgency_steps
from helios.simulate.slurm.replay import SlurmTimeline
from helios.simulate.slurm.state import NEVER, NOBODY, NOW, YEAR_MIN, SlurmState
from helios.simulate.slurm.tables import node_names
from helios.simulate.slurm.workload import SlurmWorkload
from helios.simulate.snapshot import Jobs, LazySnapshot, PendingRows, Predictions, QueueFacts, encode, nodes_held, times

_DONE, _UNCHANGED, _REFUSED, _GONE = 0, 1, 2, 3
_RESULTS = (Result.DONE, Result.UNCHANGED, Result.REFUSED, Result.GONE)


class SimulatedSettings:
    """Settings of the pending jobs of a timeline under Slurm's rules.

    Parameters
    ----------
    started_s : int64 array of shape (n_jobs,)
        Start of each job, s since the epoch; ``NEVER`` where it has not started. The caller keeps it up to date.
    arrived : callable
        Returns how many jobs were submitted so far.
    job_ids : list of str
        Distinct.
    excluded_reason : dict of int to str
        By position, why a job is excluded for good.
    tolerance : int
        Bound of the SiteFactor.
    soft_limits : bool
        Whether the site takes TimeMin as a soft limit.
    time_min : callable
        Returns the TimeMin, min, for a soft limit.
    """

    def __init__(
        self,
        timeline: SlurmTimeline,
        facts: QueueFacts,
        *,
        started_s: Jobs,
        arrived: Callable[[], int],
        job_ids: list[str],
        excluded_reason: dict[int, str],
        tolerance: int,
        soft_limits: bool,
        time_min: Callable[[timedelta], int],
    ) -> None:
        self._timeline, self._facts = timeline, facts
        self._started_s, self._arrived, self._excluded_reason = started_s, arrived, excluded_reason
        self._job_ids = job_ids
        self._position = {job_id: position for position, job_id in enumerate(job_ids)}
        self.steps = urgency_steps(tolerance)
        self._soft_limits = soft_limits
        self._terms = slurm_value_mapping(site_factor=partial(ownership.site_factor, most=tolerance), time_min=time_min)
        # Columns of the tables, which live as long as the timeline.
        jobs = timeline.state.jobs
        self._site: Jobs = jobs["site"]
        self._minutes: Jobs = jobs["time_min"]
        self._is_held: Jobs = jobs["is_held"]
        self._own_minutes = np.zeros(len(jobs), dtype=np.int64)
        self._kept = np.zeros(len(jobs), dtype=np.bool_)
        self._kept[list(excluded_reason)] = True

    # Values in force.

    def urgency(self, jobs: Jobs) -> NDArray[np.float64]:
        """Return the urgency that the SiteFactor of each of ``jobs`` means.

        0 where the SiteFactor is not Helios'.
        """
        return ownership.urgencies(self._site[jobs], n_steps=self.steps)

    def soft_limit_s(self, jobs: Jobs) -> NDArray[np.float64]:
        """Return the soft limits that Helios has set, s.

        NaN: none.
        """
        ours = self._has_our_minutes(jobs)
        return np.where(ours, self._minutes[jobs] * 60.0, np.nan)

    def user_soft_limit_s(self, jobs: Jobs) -> NDArray[np.float64]:
        """Return the users' own TimeMin, s.

        NaN: none.
        """
        users = (self._minutes[jobs] > 0) & ~self._has_our_minutes(jobs)
        return np.where(users, self._minutes[jobs] * 60.0, np.nan)

    def held(self, jobs: Jobs) -> NDArray[np.bool_]:
        """Return which of ``jobs`` are held."""
        held: NDArray[np.bool_] = self._is_held[jobs] != 0
        return held

    def excluded_reason(self, jobs: Jobs) -> list[str | None] | None:
        """Return why each of ``jobs`` is excluded.

        None in the list: it is not; None instead of the list: none of them is.
        """
        if not self._barred(jobs).any():
            return None
        return [self._why(job) or None for job in jobs.tolist()]

    def _has_our_minutes(self, jobs: Jobs) -> NDArray[np.bool_]:
        ours: NDArray[np.bool_] = (self._own_minutes[jobs] > 0) & (self._minutes[jobs] == self._own_minutes[jobs])
        return ours

    def _barred(self, jobs: Jobs) -> NDArray[np.bool_]:
        site = self._site[jobs]
        barred: NDArray[np.bool_] = (
            self._kept[jobs] | self.held(jobs) | ((site != 0) & ~ownership.have_helios_mark(site))
        )
        return barred

    def _why(self, job: int) -> str:
        if job in self._excluded_reason:
            return self._excluded_reason[job]
        if self._is_held[job]:
            return "it is held"
        site = int(self._site[job])
        return "" if site == 0 or ownership.has_helios_mark(site) else f"an admin set SiteFactor {site}"

    # Changes.

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Apply actions and return an outcome for each job that they name."""
        return [outcome for action in actions for outcome in self._carried_out(action)]

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position and return the number of each result.

        An urgency of NaN leaves its job as it is.
        """
        named = ~np.isnan(urgency)
        results = self._order(jobs[named], urgency[named])
        counts = np.bincount(results, minlength=len(_RESULTS)).tolist()
        return {result: n for result, n in zip(_RESULTS, counts, strict=True) if n}

    def _order(self, jobs: Jobs, urgency: NDArray[np.float64]) -> NDArray[np.int64]:
        """Write the SiteFactors of distinct jobs, and return the result of each."""
        before, wanted = self._site[jobs], ownership.site_factors(urgency, n_steps=self.steps)
        results = np.where(before == wanted, _UNCHANGED, _DONE)
        results[self._barred(jobs)] = _REFUSED
        results[~self._is_pending(jobs)] = _GONE
        written = results == _DONE
        if written.any():
            self._timeline.set_site_factor(jobs[written], wanted[written])
        return results

    def _is_pending(self, jobs: Jobs) -> NDArray[np.bool_]:
        pending: NDArray[np.bool_] = (jobs >= 0) & (jobs < self._arrived()) & (self._started_s[jobs] == NEVER)
        return pending

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that a new order names, each once, and their urgencies.

        Jobs are positions; NOBODY: there is no job of that id.
        """
        if isinstance(reorder, Ranking) and isinstance(reorder.snapshot, LazySnapshot):
            jobs = reorder.snapshot.positions(reorder.rows, self._facts)
            if jobs is not None:
                return jobs, reorder.urgency
        last = {place.job_id: place.urgency for place in reorder.order}
        jobs = np.array([self._position.get(job_id, NOBODY) for job_id in last], dtype=np.int64)
        return jobs, np.array([*last.values()], dtype=np.float64)

    def _carried_out(self, action: JobAction) -> Iterator[Outcome]:
        changes = setting_changes(
            action,
            self._terms,
            pending=self._changed,
            is_set=lambda setting, job_id: self._is_our(setting, self._position[job_id]),
        )
        return map(self._became, changes)

    def _became(self, change: SettingChange[int]) -> Outcome:
        job = self.pending_position(change.job_id)
        if job is None:
            return change.outcome(Result.GONE, remark=GONE)
        return judge_change(change, self._ground(change, job)) or self._written(change, job)

    def _ground(self, change: SettingChange[int], job: int) -> ChangeContext:
        state = self._timeline.state
        limit = int(state.choices["limit_min"][state.jobs["first_choice"][job]])
        return ChangeContext(
            before=self._value(change.setting, job),
            is_set=self._is_our(change.setting, job),
            excluded_reason=self._why(job),
            soft_limits=self._soft_limits,
            time_limit=limit if limit < YEAR_MIN else 0,
        )

    def _changed(self) -> list[str]:
        """Return the ids of the pending jobs on which Helios has set something."""
        waiting = np.flatnonzero(self._started_s[: self._arrived()] == NEVER)
        ours = waiting[ownership.have_helios_mark(self._site[waiting]) | self._has_our_minutes(waiting)]
        return [self._job_ids[job] for job in ours.tolist()]

    def _written(self, change: SettingChange[int], job: int) -> Outcome:
        its, before = np.array([job]), self._value(change.setting, job)
        if change.setting is JobSetting.ORDER:
            self._timeline.set_site_factor(its, np.array([change.wanted]))
        else:
            self._own_minutes[job] = change.wanted
            self._timeline.set_time_min(its, np.array([60.0 * change.wanted]))
        return change.outcome(Result.DONE, before=before, after=change.wanted)

    def _is_our(self, setting: JobSetting, job: int) -> bool:
        if setting is JobSetting.ORDER:
            return ownership.has_helios_mark(int(self._site[job]))
        return bool(self._has_our_minutes(np.array([job]))[0])

    def _value(self, setting: JobSetting, job: int) -> int:
        return int((self._site if setting is JobSetting.ORDER else self._minutes)[job])

    def pending_position(self, job_id: str) -> int | None:
        """Return the position of a pending job.

        None: there is none of this id.
        """
        job = self._position.get(job_id)
        return job if job is not None and job < self._arrived() and self._started_s[job] == NEVER else None


# Snapshots of a simulated Slurm: rows of the queue and of the nodes, from the tables of a replay.

_FIXED = [
    name
    for name in JOBS.names
    if name in QUEUE.by_name and name not in ("job_id", "state", "started_at", "node_list", "partition")
]


class SlurmSnapshotBuilder:
    """Builder of the frames ``QUEUE`` and ``NODE_STATES`` under Slurm's rules.

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
        self.facts = QueueFacts(_queue(workload, jobs, job_ids))
        self._state = state
        self._names, self._nodes = node_names(site), _nodes(site)

    def pending(
        self, jobs: Jobs, setting_kinds: SimulatedSettings, predictions: Predictions | None
    ) -> SlurmPendingRows:
        """Return the rows of pending ``jobs``, in that order, as of now."""
        held = setting_kinds.held(jobs)
        first = self._state.jobs["first_choice"][jobs]
        return SlurmPendingRows(
            facts=self.facts,
            jobs=jobs,
            urgency=setting_kinds.urgency(jobs),
            soft_limit_s=setting_kinds.soft_limit_s(jobs),
            steps=setting_kinds.steps,
            excluded_reason=setting_kinds.excluded_reason(jobs),
            held=held,
            quantiles_s=None if predictions is None else predictions.quantiles_s.take(jobs, axis=0),
            source=None if predictions is None else predictions.source.take(jobs),
            sources=() if predictions is None else tuple(predictions.sources),
            longest_backlog_s=math.nan if predictions is None else float(predictions.longest_backlog_s),
            known_priority=np.where(held, 0.0, self._state.choices["priority"][first].astype(np.float64)),
            user_soft_limit_s=setting_kinds.user_soft_limit_s(jobs),
        )

    def running(
        self, jobs: Jobs, *, started_s: Jobs, user_soft_limit_s: NDArray[np.float64]
    ) -> Callable[[], pd.DataFrame]:
        """Return a function that makes the frame of running ``jobs``.

        Its rows are in that order and as of now.
        """
        first, holdings = self._state.jobs["first_share"][jobs], self._state.holdings.copy()

        def made() -> pd.DataFrame:
            held = [sorted(set(nodes_held(holdings, share))) for share in first.tolist()]
            places = [",".join(self._names[node] for node in nodes) for nodes in held]
            state = encode(np.zeros(len(jobs), dtype=np.int8), (JobState.RUNNING.value,))
            reason = encode(np.full(len(jobs), -1, dtype=np.int8), ())
            own = {"started_at": times(started_s).array, "node_list": pd.Categorical(places), "state": state}
            return self.facts.frame(jobs, own | {"reason": reason, "user_soft_limit_s": user_soft_limit_s})

        return made

    def nodes(self) -> Callable[[], pd.DataFrame]:
        """Return a function that makes the frame of all nodes as of now."""
        free = self._state.free["cpus"][NOW].copy()
        by_type = self._state.free_gpus[NOW].reshape(len(self._names), -1)
        free_gpus = by_type.sum(axis=1)

        def made() -> pd.DataFrame:
            cpus_held = self._nodes["cpus"].to_numpy() - free
            level = (cpus_held > 0).astype(np.int8) + ((free == 0) & (cpus_held > 0))
            gpus_held = self._nodes["gpus"].to_numpy() - free_gpus
            return NODE_STATES.conform(
                self._nodes.assign(
                    state=encode(level, ("IDLE", "MIXED", "ALLOCATED")),
                    cpus_held=cpus_held.astype(np.float64),
                    gpus_held=gpus_held,
                )
            )

        return made


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmPendingRows(PendingRows):
    """Pending jobs of a replay with Slurm's priorities and users' soft limits."""

    known_priority: NDArray[np.float64]
    user_soft_limit_s: NDArray[np.float64]

    def frame(self) -> pd.DataFrame:
        """Return columns of ``QUEUE``."""
        # No super(): a dataclass with slots is a new class, and super() would refer to the one that it was made from.
        made = PendingRows.frame(self)
        made["user_soft_limit_s"] = self.user_soft_limit_s
        return made

    def values(self, name: str) -> NDArray[Any]:
        """Return one column, as ``pending_values`` does."""
        return self.user_soft_limit_s if name == "user_soft_limit_s" else PendingRows.values(self, name)

    @property
    def priority(self) -> NDArray[np.float64]:
        """Slurm's priority of each job, in the first partition that it asks for."""
        return self.known_priority


def _queue(workload: SlurmWorkload, jobs: pd.DataFrame, job_ids: list[str]) -> pd.DataFrame:
    """Return all jobs as they are while they are pending and unchanged."""
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
    """Return times cut off to whole seconds, as Slurm shows them."""
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
