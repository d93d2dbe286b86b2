"""Simulated cluster that Slurm's own rules schedule.

It implements the same port as a real one. Unlike :class:`helios.simulate.SimCluster` it does not start at once what can
start: passes come in Slurm's own rhythm, and an urgency is a SiteFactor among the other terms of the priority.

Helios sets SiteFactor and TimeMin, in Slurm's own values. A SiteFactor without Helios' mark is an administrator's, a
TimeMin that Helios did not set is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from math import ceil

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.actions import JobSetting, Outcome, Result
from helios.changes import Change, ChangeContext, check_change, slurm_value_mapping
from helios.errors import UsageError
from helios.model import NODE_STATES
from helios.model.slurm_site import SlurmSite
from helios.simulate.core.events import DONE, GONE, REFUSED, UNCHANGED
from helios.simulate.simulated_cluster import SimulatedCluster, StopPoint, refuse_unequal
from helios.simulate.slurm.events import NOBODY_AWAITED, is_over, run_until
from helios.simulate.slurm.replay import SlurmTimeline
from helios.simulate.slurm.tables import SlurmLatency
from helios.simulate.slurm.workload import FUTURE, MS, NEVER, NOW, YEAR_MIN, SlurmState, SlurmWorkload
from helios.simulate.snapshot import Frames, Jobs, OwnColumns, times


class SimulatedSlurm(SimulatedCluster):
    """Simulated ``Cluster`` in a workload's timeline under Slurm's rules.

    Times are given in whole seconds, rounded down, and kept in milliseconds. Where it stops, jobs have ended and been
    submitted, and the passes that this makes due come when time goes on. Each task of an array is a row of its own,
    though Slurm keeps one record: what is set on the first pending task, the next ones get as they are split off.

    Parameters
    ----------
    workload, site
        As for :func:`helios.simulate.slurm.replay_slurm`. A site factor in the workload is an administrator's, a
        TimeMin the user's own.
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload: names and users for the snapshot. A component of a
        heterogeneous job is ``excluded_reason``.
    name : str
        The cluster's name.
    site_factor_most : int
        Bound of the SiteFactor (``slurm.site_factor_most``).
    latency : SlurmLatency, optional
        How quickly the controller reacts.
    time_min : callable
        Returns the TimeMin, min, for a soft limit.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    WorkloadInvalid
        ``jobs`` has not one row for each job.
    """

    _state: SlurmState

    def __init__(
        self,
        workload: SlurmWorkload,
        site: SlurmSite,
        jobs: pd.DataFrame,
        *,
        name: str = "replay",
        site_factor_most: int = 10_000,
        latency: SlurmLatency | None = None,
        time_min: Callable[[timedelta], int] = ownership.whole_minutes,
    ) -> None:
        refuse_unequal(jobs=len(workload), rows=len(jobs))
        self.timeline = SlurmTimeline(workload, site, latency=latency)
        self._state = self.timeline.state
        self._submitted_ms: Jobs = np.rint(workload.submitted_s * MS).astype(np.int64)
        self._now_ms: Jobs = self._state.clock["now_ms"]
        self.now_s = int(self._now_ms[0]) // MS
        self.started_s, self.ended_s = np.full(len(jobs), NEVER), np.full(len(jobs), NEVER)
        self._n_started = self._n_ended = self._n_arrived = 0
        self._nodes = _nodes(site)
        partition_names = workload.partitions
        # Times are cut off to whole seconds, as Slurm shows them.
        super().__init__(
            name,
            workload,
            jobs,
            self._nodes,
            site_factor_most=site_factor_most,
            partition=[",".join(partition_names[code] for code in workload.choices(job)) for job in range(len(jobs))],
            submitted_at=times(np.floor(workload.submitted_s).astype(np.int64)),
            eligible_at=times(np.floor(workload.column("eligible_s")).astype(np.int64)),
        )
        self._soft_limits = site.scheduling.time_min_is_soft
        site_factor = partial(ownership.site_factor, most=site_factor_most)
        self._mapping = slurm_value_mapping(site_factor=site_factor, time_min=time_min)
        # Columns of the tables, which live as long as the timeline.
        self._site: Jobs = self._state.jobs["site_factor"]
        self._time_min: Jobs = self._state.jobs["time_min"]
        self._is_held: Jobs = self._state.jobs["is_held"]
        self._helios_time_min = np.zeros(len(jobs), dtype=np.int64)
        self._kept = np.zeros(len(jobs), dtype=np.bool_)
        self._kept[list(self._excluded_reason)] = True
        self._array = workload.column("array")
        self._node_gpus = self._state.gpus.reshape(len(self._nodes), -1).sum(axis=1) / self._state.clock["units"]
        self._all_want_gpus = bool((workload.column("gpus") > 0).all())

    # Time.

    def next_event_s(self) -> float | None:
        """Return when nodes are freed or a job enters the queue next.

        Only jobs that run already are known to free nodes: a job that starts later may end before that. None: never.
        """
        return self.timeline.next_event_s()

    def _advance(self, until_s: int) -> None:
        if until_s * MS >= self._now_ms[0]:
            self._run_until(until_s * MS, first_event=False)

    @property
    def submitted_s(self) -> Jobs:
        """When each job is submitted, s since the epoch."""
        return self._submitted_ms // MS

    def advance_to_decision(
        self,
        *,
        arrivals: bool = True,
        choices_from_s: int = NEVER,
        alarm_s: int = NEVER,
        alarm_from_s: int = NEVER,
        before_s: int = NEVER,
        again_s: int = NEVER,
        again_every_s: int = NEVER,  # noqa: ARG002  here it always stops
    ) -> StopPoint | None:
        """Advance to the next moment at which a service may have to decide.

        It does as :meth:`helios.simulate.SimCluster.advance_to_decision`, except that it stops before ``before_s``
        itself while jobs wait, since a pass may start one at any time. None: nothing is left to happen.
        """
        before_s = min(before_s, again_s)
        while not self._is_over():
            before_ms = _in_ms(before_s)
            if before_s != NEVER and self._state.clock["queued"][0] == 0:
                before_ms = max(before_ms, self._next_ms())
            alarm_ms = max(_in_ms(alarm_s), int(self._now_ms[0]))
            arrived = self._n_arrived
            if not self._carried_before(before_ms, alarm_ms):
                return StopPoint(before_ms // MS, True, False, alarm_s, again_s)
            choice, now_s, came = self.has_choice(), self.now_s, self._n_arrived > arrived
            if (arrivals and came) or (choice and now_s >= choices_from_s):
                return StopPoint(now_s, False, choice, NEVER, again_s)
            alarm_s = alarm_from_s if choice else NEVER
        return None

    def _carried_before(self, before_ms: int, alarm_ms: int) -> bool:
        """Advance to the next event, submission or alarm before ``before_ms``.

        Returns whether there was one.
        """
        until_ms = min(alarm_ms, self._next_submission_ms())
        if before_ms > until_ms or before_ms == NEVER:
            self._run_until(until_ms, first_event=True)
            return True
        now_ms, events = int(self._now_ms[0]), self._events()
        if before_ms > now_ms:
            self._run_until(before_ms - 1, first_event=True)
        return self._events() > events

    def _run_until(self, until_ms: int, *, first_event: bool) -> None:
        self._freeze_snapshots()
        run_until(self._state, until_ms, True, first_event, NOBODY_AWAITED)
        self.now_s = int(self._now_ms[0]) // MS
        self._n_arrived = int(np.searchsorted(self._submitted_ms, self._now_ms[0], side="right"))
        self._note_starts()

    def _note_starts(self) -> None:
        clock, jobs = self._state.clock[0], self._state.jobs
        if clock["starts"] > self._n_started:
            started = np.concatenate((self._state.ends[: clock["running"]], self.ended[self._n_ended :]))
            self.started_s[started] = jobs["started_ms"][started] // MS
        newly_ended = self.ended[self._n_ended :]
        self.ended_s[newly_ended] = jobs["ended_ms"][newly_ended] // MS
        self._n_started, self._n_ended = int(clock["starts"]), int(clock["ended"])

    def _events(self) -> int:
        clock = self._state.clock[0]
        return int(clock["ended"] + clock["entered"])

    def _next_submission_ms(self) -> int:
        return int(self._submitted_ms[self._n_arrived]) if self._n_arrived < len(self._submitted_ms) else NEVER

    def _next_ms(self) -> int:
        event_s = self.timeline.next_event_s()
        return min(NEVER if event_s is None else round(event_s * MS), self._next_submission_ms())

    def _is_over(self) -> bool:
        n_jobs = len(self.started_s)
        return self._n_ended == n_jobs or (self._n_arrived == n_jobs and is_over(self._state))

    @property
    def arrived(self) -> int:
        """Number of jobs submitted so far.

        They are the first ones of the workload.
        """
        return self._n_arrived

    def has_choice(self) -> bool:
        """Return whether jobs are queued and something is free.

        Where not, nothing that is done to the queue now starts a job before the next end. Only counts are compared:
        there may be one job only, and what is free may fit none.
        """
        if self._state.clock["queued"][0] == 0 or not (self._state.free["cpus"][NOW] > 0).any():
            return False
        return not self._all_want_gpus or bool((self._state.free_gpus[NOW] > 0).any())

    # Contents of snapshots.

    def _run_since_s(self) -> Jobs:
        return self.started_s

    def _queue(self) -> Jobs:
        """Return the pending jobs in Slurm's order.

        Tasks are behind the first of their array, held jobs last.
        """
        queued, waiting = self.timeline.pending(), self.waiting()
        rank = np.full(len(self.started_s), len(queued))
        rank[queued] = np.arange(len(queued))
        rank_by_array = dict(zip(self._array[queued][::-1].tolist(), rank[queued][::-1].tolist(), strict=True))
        later_tasks = waiting[(self._state.jobs["status"][waiting] == FUTURE) & (self._array[waiting] >= 0)]
        rank[later_tasks] = [rank_by_array.get(array, len(queued)) for array in self._array[later_tasks].tolist()]
        return waiting[np.lexsort((waiting, rank[waiting], self._is_held[waiting] != 0))]

    def _settings(self, jobs: Jobs) -> OwnColumns:
        priority = self._state.choices["priority"][self._state.jobs["first_choice"][jobs]].astype(np.float64)
        columns: OwnColumns = {
            "urgency": ownership.urgencies(self._site[jobs], n_steps=self._steps),  # 0 where it is not Helios'
            "soft_limit_s": np.where(self._has_helios_time_min(jobs), self._time_min[jobs] * 60.0, np.nan),
            "priority": np.where(self._is_held[jobs] != 0, 0.0, priority),
            "user_soft_limit_s": self._user_soft_limit_s(jobs),
        }
        if not self._excluded_jobs(jobs).any():
            return columns
        why = [self._why_excluded(job) or np.nan for job in jobs.tolist()]
        return {**columns, "excluded_reason": np.array(why, dtype=np.object_)}

    def _user_soft_limit_s(self, jobs: Jobs) -> NDArray[np.float64]:
        users = (self._time_min[jobs] > 0) & ~self._has_helios_time_min(jobs)
        return np.where(users, self._time_min[jobs] * 60.0, np.nan)

    def _frames(self) -> Frames:
        state = self._state
        running = np.sort(state.ends[: int(state.clock["running"][0])])
        by_start = running[np.argsort(state.jobs["started_ms"][running], kind="stable")]
        free = state.free["cpus"][NOW].copy()
        held = self._nodes["cpus"].to_numpy() - free
        free_gpus = state.free_gpus[NOW].reshape(len(free), -1).sum(axis=1) / state.clock["units"]
        gpus_held = self._node_gpus - free_gpus
        return {
            "running": self._view.running(
                by_start,
                started_s=self.started_s[by_start],
                shares=state.holdings,
                first_share=state.jobs["first_share"][by_start],
                own={"user_soft_limit_s": self._user_soft_limit_s(by_start)},
            ),
            "nodes": self._view.nodes(
                free,
                held,
                {"cpus_held": held.astype(np.float64), "gpus_held": gpus_held},
            ),
        }

    def _has_helios_time_min(self, jobs: Jobs) -> NDArray[np.bool_]:
        helios = self._helios_time_min[jobs]
        is_helios: NDArray[np.bool_] = (helios > 0) & (self._time_min[jobs] == helios)
        return is_helios

    def _excluded_jobs(self, jobs: Jobs) -> NDArray[np.bool_]:
        site = self._site[jobs]
        excluded: NDArray[np.bool_] = (
            self._kept[jobs] | (self._is_held[jobs] != 0) | ((site != 0) & ~ownership.have_helios_mark(site))
        )
        return excluded

    def _why_excluded(self, job: int) -> str:
        if job in self._excluded_reason:
            return self._excluded_reason[job]
        if self._is_held[job]:
            return "it is held"
        site = int(self._site[job])
        return "" if site == 0 or ownership.has_helios_mark(site) else f"an admin set SiteFactor {site}"

    # Changes.

    def _set_urgencies(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Sequence[int]:
        is_given = ~np.isnan(urgency)
        jobs, wanted = jobs[is_given], ownership.site_factors(urgency[is_given], n_steps=self._steps)
        results = np.where(self._site[jobs] == wanted, UNCHANGED, DONE)
        results[self._excluded_jobs(jobs)] = REFUSED
        results[~self._is_pending(jobs)] = GONE
        written = results == DONE
        if written.any():
            self.timeline.set_site_factor(jobs[written], wanted[written])
        counts: list[int] = np.bincount(results, minlength=GONE + 1).tolist()
        return counts

    def _is_pending(self, jobs: Jobs) -> NDArray[np.bool_]:
        pending: NDArray[np.bool_] = (jobs >= 0) & (jobs < self.arrived) & (self.started_s[jobs] == NEVER)
        return pending

    def _apply_change(self, change: Change[float], job: int) -> Outcome:
        setting = JobSetting(change.setting)
        if (outcome := check_change(change, self._change_context(setting, job))) is not None:
            return outcome
        jobs, before, wanted = np.array([job]), self._value(setting, job), self._mapping.wanted(change)
        if setting is JobSetting.ORDER:
            self.timeline.set_site_factor(jobs, np.array([wanted]))
        else:
            self._helios_time_min[job] = wanted
            self.timeline.set_time_min(jobs, np.array([60.0 * wanted]))
        return self._mapping.outcome(change, Result.DONE, before=before, after=wanted)

    def _change_context(self, setting: JobSetting, job: int) -> ChangeContext:
        state = self._state
        limit = int(state.choices["limit_min"][state.jobs["first_choice"][job]])
        return ChangeContext(
            mapping=self._mapping,
            before=self._value(setting, job),
            is_set=self._is_set(setting, job),
            excluded_reason=self._why_excluded(job),
            soft_limits=self._soft_limits,
            time_limit=limit if limit < YEAR_MIN else 0,
        )

    def _changed_jobs(self) -> list[str]:
        waiting = np.flatnonzero(self.started_s[: self.arrived] == NEVER)
        changed = waiting[ownership.have_helios_mark(self._site[waiting]) | self._has_helios_time_min(waiting)]
        return [self._job_ids[job] for job in changed.tolist()]

    def _is_set(self, setting: JobSetting, job: int) -> bool:
        if setting is JobSetting.ORDER:
            return ownership.has_helios_mark(int(self._site[job]))
        return bool(self._has_helios_time_min(np.array([job]))[0])

    def _value(self, setting: JobSetting, job: int) -> int:
        return int((self._site if setting is JobSetting.ORDER else self._time_min)[job])

    # Changes by users and administrators.

    def hold(self, job_id: str) -> None:
        """Hold a pending job.

        It does not start, and has an ``excluded_reason``.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self.timeline.set_held(self._pending_id(job_id), held=True)

    def release(self, job_id: str) -> None:
        """Release a pending job.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self.timeline.set_held(self._pending_id(job_id), held=False)

    def set_site_factor(self, job_id: str, value: int) -> None:
        """Set the SiteFactor of a pending job as an administrator would.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self.timeline.set_site_factor(self._pending_id(job_id), np.array([value]))

    def set_time_min(self, job_id: str, minutes: int) -> None:
        """Set the TimeMin of a pending job, min, as its user would.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self.timeline.set_time_min(self._pending_id(job_id), np.array([60.0 * minutes]))

    def _pending_id(self, job_id: str) -> Jobs:
        job = self._pending_position(job_id)
        if job is None:
            raise UsageError(f"job {job_id} is not pending")
        return np.array([job])


def _in_ms(seconds: int) -> int:
    return NEVER if seconds == NEVER else seconds * MS


def _nodes(site: SlurmSite) -> pd.DataFrame:
    partitions_by_node: dict[str, list[str]] = {}
    for rules in site.partitions:
        for node in rules.nodes:
            partitions_by_node.setdefault(node, []).append(rules.name)
    rows = [
        {
            "name": node,
            "partitions": ",".join(partitions_by_node.get(node, ())),
            "power": "awake",
            "kept_awake": 0,
            "cpus": group.cpus,
            "gpus": ceil(round(group.whole_gpus, 6)),
            "gpu_type": ",".join(kind for kind in group.gpus if kind) or None,
            "memory_mib": group.memory_mib,
            "weight": group.weight,
        }
        for group in site.nodes
        for node in group.names
    ]
    return NODE_STATES.conform(pd.DataFrame(rows).assign(state="IDLE", cpus_held=0.0, gpus_held=0.0))
