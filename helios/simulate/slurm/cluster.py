"""Simulated cluster that Slurm's own rules schedule.

It implements the same port as a real one. Unlike :class:`helios.simulate.SimCluster` it does not start at once what can
start: passes come in Slurm's own rhythm, and an urgency is a SiteFactor among the other terms of the priority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import JobAction, Outcome, Reorder, Result
from helios.errors import UsageError, WorkloadInvalid
from helios.model.slurm_site import SlurmSite
from helios.ownership import whole_minutes
from helios.simulate.slurm.events import carry_on, is_over
from helios.simulate.slurm.jobs import SimulatedSettings, SlurmSnapshotBuilder
from helios.simulate.slurm.replay import SlurmTimeline
from helios.simulate.slurm.state import FUTURE, MS, NEVER, NOW
from helios.simulate.slurm.tables import SlurmLatency
from helios.simulate.slurm.workload import SlurmWorkload
from helios.simulate.snapshot import CachedSnapshot, Frames, Jobs, LazySnapshot, PendingRows, Predictions, unique_ids
from helios.simulate.steppable import StopPoint


class SimulatedSlurm:
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
    tolerance : int
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

    def __init__(
        self,
        workload: SlurmWorkload,
        site: SlurmSite,
        jobs: pd.DataFrame,
        *,
        name: str = "replay",
        tolerance: int = 10_000,
        latency: SlurmLatency | None = None,
        time_min: Callable[[timedelta], int] = whole_minutes,
    ) -> None:
        if len(workload) != len(jobs):
            raise WorkloadInvalid(f"{len(jobs)} rows for {len(workload)} jobs")
        self.name = name
        self._timeline = SlurmTimeline(workload, site, latency=latency)
        self._state = self._timeline.state
        self._submitted_ms: Jobs = np.rint(workload.submitted_s * MS).astype(np.int64)
        self._now_ms: Jobs = self._state.clock["now_ms"]
        self._started_s = np.full(len(jobs), NEVER)
        self._ended_s = np.full(len(jobs), NEVER)
        self._n_started = self._n_ended = self._n_arrived = self._first_waiting = 0
        job_ids = unique_ids(workload)
        self._view = SlurmSnapshotBuilder(workload, site, jobs, self._state, job_ids=job_ids)
        self._setting_kinds = SimulatedSettings(
            self._timeline,
            self._view.facts,
            started_s=self._started_s,
            arrived=lambda: self._n_arrived,
            job_ids=job_ids,
            excluded_reason={
                int(job): "part of a heterogeneous job" for job in np.flatnonzero(jobs["het_job_id"].notna())
            },
            tolerance=tolerance,
            soft_limits=site.scheduling.time_min_is_soft,
            time_min=time_min,
        )
        self._array = workload.column("array")
        self._all_want_gpus = bool((workload.column("gpus") > 0).all())
        self._sight = CachedSnapshot()

    # Time.

    @property
    def now_s(self) -> int:
        """Clock, s since the epoch."""
        return int(self._now_ms[0]) // MS

    def next_event_s(self) -> float | None:
        """Return when nodes are freed or a job enters the queue next.

        Only jobs that run already are known to free nodes: a job that starts later may end before that. None: never.
        """
        return self._timeline.next_event_s()

    def advance(self, until_s: int) -> None:
        """Advance the clock to ``until_s``.

        The ends and submissions of that moment happen; passes due then wait until time goes on.

        Raises
        ------
        UsageError
            ``until_s`` lies in the past.
        """
        if until_s < self.now_s:
            raise UsageError(f"the clock stands at {self.now_s}; it cannot go back to {until_s}")
        if until_s * MS >= self._now_ms[0]:
            self._carry(until_s * MS, first_event=False)

    def go_on(
        self, *, asks_from_s: int = NEVER, alarm_s: int = NEVER, alarm_from_s: int = NEVER, before_s: int = NEVER
    ) -> StopPoint | None:
        """Advance to the next moment at which a service may have to decide.

        It does as :meth:`helios.simulate.SimCluster.go_on`, except that it stops before ``before_s`` itself while jobs
        wait, since a pass may start one at any time. None: nothing is left to happen.
        """
        while not self._is_over():
            before_ms = _in_ms(before_s)
            if before_s != NEVER and self._state.clock["queued"][0] == 0:
                before_ms = max(before_ms, self._next_ms())
            alarm_ms = max(_in_ms(alarm_s), int(self._now_ms[0]))
            arrived = self._n_arrived
            if not self._carried_before(before_ms, alarm_ms):
                return StopPoint(before_ms // MS, before=True, choice=False)
            choice, now_s = self.has_choice(), self.now_s
            if self._n_arrived > arrived or (choice and now_s >= asks_from_s):
                return StopPoint(now_s, before=False, choice=choice)
            alarm_s = alarm_from_s if choice else NEVER
        return None

    def _carried_before(self, before_ms: int, alarm_ms: int) -> bool:
        """Advance to the next event, submission or alarm before ``before_ms``.

        Returns whether there was one.
        """
        until_ms = min(alarm_ms, self._next_submission_ms())
        if before_ms > until_ms or before_ms == NEVER:
            self._carry(until_ms, first_event=True)
            return True
        now_ms, events = int(self._now_ms[0]), self._events()
        if before_ms > now_ms:
            self._carry(before_ms - 1, first_event=True)
        return self._events() > events

    def _carry(self, until_ms: int, *, first_event: bool) -> None:
        self._sight.leave()
        carry_on(self._state, until_ms=until_ms, leave_due=True, first_event=first_event)
        self._n_arrived = int(np.searchsorted(self._submitted_ms, self._now_ms[0], side="right"))
        self._note_starts()

    def _note_starts(self) -> None:
        clock, jobs = self._state.clock[0], self._state.jobs
        if clock["starts"] > self._n_started:
            started = np.concatenate((self._state.ends[: clock["running"]], self.ended[self._n_ended :]))
            self._started_s[started] = jobs["started_ms"][started] // MS
        fresh = self.ended[self._n_ended :]
        self._ended_s[fresh] = jobs["ended_ms"][fresh] // MS
        self._n_started, self._n_ended = int(clock["starts"]), int(clock["ended"])

    def _events(self) -> int:
        clock = self._state.clock[0]
        return int(clock["ended"] + clock["entered"])

    def _next_submission_ms(self) -> int:
        return int(self._submitted_ms[self._n_arrived]) if self._n_arrived < len(self._submitted_ms) else NEVER

    def _next_ms(self) -> int:
        event_s = self._timeline.next_event_s()
        return min(NEVER if event_s is None else round(event_s * MS), self._next_submission_ms())

    def _is_over(self) -> bool:
        n_jobs = len(self._started_s)
        return self._n_ended == n_jobs or (self._n_arrived == n_jobs and is_over(self._state))

    @property
    def timeline(self) -> SlurmTimeline:
        """Timeline of the cluster."""
        return self._timeline

    @property
    def arrived(self) -> int:
        """Number of jobs submitted so far.

        They are the first ones of the workload.
        """
        return self._n_arrived

    @property
    def ended(self) -> Jobs:
        """Positions of the jobs whose nodes are free again, in order of time."""
        return self._state.ended[: int(self._state.clock["ended"][0])]

    @property
    def started_s(self) -> Jobs:
        """Start of each job, s since the epoch.

        ``NEVER`` where it has not started.
        """
        return self._started_s

    @property
    def ended_s(self) -> Jobs:
        """End of each job, s since the epoch.

        ``NEVER`` where it has not ended.
        """
        return self._ended_s

    def has_choice(self) -> bool:
        """Return whether jobs are queued and something is free.

        Where not, nothing that is done to the queue now starts a job before the next end. Only counts are compared:
        there may be one job only, and what is free may fit none.
        """
        if self._state.clock["queued"][0] == 0 or not (self._state.free["cpus"][NOW] > 0).any():
            return False
        return not self._all_want_gpus or bool((self._state.free_gpus[NOW] > 0).any())

    # The port.

    def snapshot(self) -> LazySnapshot:
        """Return a snapshot without predictions."""
        return self.look(None)

    def look(self, predictions: Predictions | None) -> LazySnapshot:
        """Return a snapshot with predictions in the rows of pending jobs."""
        return LazySnapshot.at(
            self.now_s,
            cluster=self.name,
            pending=self.rows(self._queue(), predictions),
            context=self._sight.now(self._frames),
        )

    def rows(self, jobs: Jobs, predictions: Predictions | None) -> PendingRows:
        """Return the rows of pending ``jobs``, given by position."""
        return self._view.pending(jobs, self._setting_kinds, predictions)

    def waiting(self) -> Jobs:
        """Return the positions of jobs submitted and not started, ascending."""
        jobs = np.flatnonzero(self._started_s[self._first_waiting : self._n_arrived] == NEVER) + self._first_waiting
        self._first_waiting = int(jobs[0]) if len(jobs) else self._n_arrived
        return jobs

    def running(self) -> tuple[Jobs, Jobs]:
        """Return the running jobs and when each began to run.

        Jobs are positions, in no order. Times are in s since the epoch.
        """
        running = self._state.ends[: int(self._state.clock["running"][0])].copy()
        return running, self._started_s[running]

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Apply actions and return an outcome for each job that they name."""
        return self._setting_kinds.apply(actions)

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that a new order names, and their urgencies.

        Jobs are positions; NOBODY: there is no job of that id.
        """
        return self._setting_kinds.ranked(reorder)

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position and return the number of each result.

        An urgency of NaN leaves its job as it is.
        """
        return self._setting_kinds.change(jobs, urgency)

    # Changes by users and administrators.

    def hold(self, job_id: str) -> None:
        """Hold a pending job.

        It does not start, and has an ``excluded_reason``.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self._timeline.set_held(self._known(job_id), held=True)

    def release(self, job_id: str) -> None:
        """Release a pending job.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self._timeline.set_held(self._known(job_id), held=False)

    def set_site_factor(self, job_id: str, value: int) -> None:
        """Set the SiteFactor of a pending job as an administrator would.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self._timeline.set_site_factor(self._known(job_id), np.array([value]))

    def set_time_min(self, job_id: str, minutes: int) -> None:
        """Set the TimeMin of a pending job, min, as its user would.

        Raises
        ------
        UsageError
            It is not pending.
        """
        self._timeline.set_time_min(self._known(job_id), np.array([60.0 * minutes]))

    def _known(self, job_id: str) -> Jobs:
        job = self._setting_kinds.pending_position(job_id)
        if job is None:
            raise UsageError(f"job {job_id} is not pending")
        return np.array([job])

    # Contents of snapshots.

    def _queue(self) -> Jobs:
        """Return the pending jobs in Slurm's order.

        Tasks are behind the first of their array, held jobs last.
        """
        queued, waiting = self._timeline.pending(), self.waiting()
        rank = np.full(len(self._started_s), len(queued))
        rank[queued] = np.arange(len(queued))
        leads = dict(zip(self._array[queued][::-1].tolist(), rank[queued][::-1].tolist(), strict=True))
        behind = waiting[(self._state.jobs["status"][waiting] == FUTURE) & (self._array[waiting] >= 0)]
        rank[behind] = [leads.get(array, len(queued)) for array in self._array[behind].tolist()]
        return waiting[np.lexsort((waiting, rank[waiting], self._setting_kinds.held(waiting)))]

    def _frames(self) -> Frames:
        running = np.sort(self._state.ends[: int(self._state.clock["running"][0])])
        by_start = running[np.argsort(self._state.jobs["started_ms"][running], kind="stable")]
        user_s = self._setting_kinds.user_soft_limit_s(by_start)
        return {
            "running": self._view.running(by_start, started_s=self._started_s[by_start], user_soft_limit_s=user_s),
            "nodes": self._view.nodes(),
        }


def _in_ms(seconds: int) -> int:
    return NEVER if seconds == NEVER else seconds * MS
