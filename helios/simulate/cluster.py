"""Simulated cluster in the timeline of a workload.

It implements the same ports as a real one. Its own order is first in, first out. Urgencies come before that, rounded to
the steps that Slurm's SiteFactor would have. A soft limit changes what backfill plans with from the job's start on; the
true run time is untouched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.actions import JobAction, JobSetting, NodeAction, NodeOutcome, Outcome, Ranking, Reorder, Result
from helios.changes import GONE as NOT_PENDING
from helios.changes import TOO_LONG, SettingChange, ValueMapping, setting_changes
from helios.errors import UsageError, WorkloadInvalid
from helios.model import STEP_S
from helios.simulate.cluster_nodes import NodeActions, Sleep
from helios.simulate.core.state import NEVER, NOBODY, EngineState, new_state
from helios.simulate.core.stepping import (
    BARRED,
    BEFORE,
    CHOICE,
    DONE,
    GONE,
    HELD,
    REFUSED,
    UNCHANGED,
    UNNAMED,
    Orders,
    PendingIndex,
    Stops,
    admit,
    advance_replay,
    count_up,
    order,
    withdraw,
)
from helios.simulate.node_usage import NodeTally, node_holding, node_tally
from helios.simulate.predictor_feed import LONGEST_ESTIMATE_S
from helios.simulate.replay import MODES, PLACES, Backfill, Placement
from helios.simulate.snapshot import (
    CachedSnapshot,
    Frames,
    JobMarks,
    Jobs,
    LazySnapshot,
    PendingRows,
    Predictions,
    QueueFacts,
    SnapshotBuilder,
    unique_ids,
)
from helios.simulate.steppable import StopPoint
from helios.simulate.workload import ClusterShape, Workload, refuse_misfits

# Changes to the jobs of a simulated cluster: actions, and holding a job.
#
# Urgencies are written by one compiled call; an outcome is put into words only when it is asked for.

_RESULTS = {DONE: Result.DONE, UNCHANGED: Result.UNCHANGED, REFUSED: Result.REFUSED, GONE: Result.GONE}


def urgency_steps(tolerance: int | None) -> int:
    """Return the steps between 0 and 1 that a SiteFactor can show.

    ``tolerance`` bounds the SiteFactor. 0: urgencies are not rounded.

    Raises
    ------
    UsageError
        The bound leaves no step.
    """
    steps = 0 if tolerance is None else ownership.steps(tolerance)
    if tolerance is not None and steps < 1:
        raise UsageError(
            f"a resolution of {tolerance} leaves no step", hint=f"Use at least {ownership.STEP + ownership.MARK}."
        )
    return steps


class JobActions:
    """Executor of actions on the pending jobs of a replay.

    Parameters
    ----------
    marks : JobMarks
        Values set on the jobs; actions change them in place.
    facts : QueueFacts
        Identify the replay that the rows of an order belong to.
    job_ids : list of str
        Distinct.
    limit_s : float64 array of shape (n_jobs,)
        The users' time limits, s.
    estimates_s : int64 array of shape (n_jobs,)
        Run time that backfill plans with where no soft limit is set, s.
    pending : callable
        Returns the pending jobs in the cluster's order.
    """

    def __init__(
        self,
        state: EngineState,
        marks: JobMarks,
        facts: QueueFacts,
        *,
        job_ids: list[str],
        limit_s: NDArray[np.float64],
        estimates_s: NDArray[np.int64],
        pending: Callable[[], Jobs],
    ) -> None:
        self._state, self._marks, self._facts = state, marks, facts
        self._job_ids, self._limit_s, self._pending = job_ids, limit_s, pending
        self._estimates_s = estimates_s.clip(0, LONGEST_ESTIMATE_S).astype(np.int64)
        state.pending["estimate_s"] = self._estimates_s
        self._position = {job_id: position for position, job_id in enumerate(job_ids)}
        self._orders = Orders(urgency=marks.urgency, bar=np.zeros(len(job_ids), dtype=np.uint8))
        self._orders.bar[list(marks.excluded_reason)] |= BARRED
        # Columns of the tables, looked up once: a lookup for each job that an action names costs as much as the change.
        self._started_s: Jobs = state.jobs["started_s"]
        self._n_arrived: Jobs = state.clock["arrived"]

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Apply actions and return an outcome for each job that they name."""
        changed: set[int] = set()
        outcomes = [outcome for action in actions for outcome in self._carried_out(action, changed)]
        self._requeue(changed)
        return outcomes

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position and return the number of each result.

        An urgency of NaN leaves its job as it is.
        """
        *_, counts = order(self._state, self._orders, jobs, urgency, steps=self._marks.steps)
        return {_RESULTS[code]: n for code, n in enumerate(counts[:UNNAMED]) if n}

    def hold(self, job_id: str, *, why: str = "held") -> None:
        """Hold a pending job.

        It does not start, and has ``why`` as its ``excluded_reason``.

        Raises
        ------
        UsageError
            It is not pending, or held already.
        """
        job = self._pending_position(job_id)
        if job is None or job in self._marks.held:
            raise UsageError(f"job {job_id} is not pending, or held already")
        withdraw(self._state, np.array([job]))
        self._marks.held.add(job)
        self._marks.excluded_reason[job] = why
        self._orders.bar[job] = BARRED | HELD

    def release(self, job_id: str) -> None:
        """Release a held job.

        Raises
        ------
        UsageError
            It is not held.
        """
        job = self._pending_position(job_id)
        if job is None or job not in self._marks.held:
            raise UsageError(f"job {job_id} is not held")
        del self._marks.excluded_reason[job]
        self._marks.held.remove(job)
        self._orders.bar[job] = 0
        self._admit(np.array([job]))

    # Applying one action.

    def _carried_out(self, action: JobAction, changed: set[int]) -> Iterator[Outcome]:
        changes = setting_changes(action, _TERMS, pending=self._pending_ids, is_set=self._is_set)
        if isinstance(action, Reorder):
            yield from self._reordered([*changes])
        else:
            yield from (self._written(change, changed) for change in changes)

    def _reordered(self, changes: Sequence[SettingChange[float]]) -> Iterator[Outcome]:
        jobs = np.array([self._position.get(change.job_id, NOBODY) for change in changes], dtype=np.int64)
        wished = np.array([change.wanted for change in changes], dtype=np.float64)
        results, before, _ = order(self._state, self._orders, jobs, wished, steps=self._marks.steps)
        for change, job, code, was in zip(changes, jobs.tolist(), results.tolist(), before.tolist(), strict=True):
            yield self._told(change, job, code, was)

    def _told(self, change: SettingChange[float], job: int, code: int, was: float) -> Outcome:
        if code == GONE:
            return change.outcome(Result.GONE, remark=NOT_PENDING)
        if code == REFUSED:
            return change.outcome(Result.REFUSED, before=was, remark=self._marks.excluded_reason[job])
        return change.outcome(_RESULTS[code], before=was, after=float(self._marks.urgency[job]))

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that a new order names, and their urgencies.

        Jobs are positions; NOBODY: there is no job of that id.
        """
        if isinstance(reorder, Ranking) and isinstance(reorder.snapshot, LazySnapshot):
            jobs = reorder.snapshot.positions(reorder.rows, self._facts)
            if jobs is not None:
                return jobs, reorder.urgency
        places = reorder.order
        jobs = np.array([self._position.get(place.job_id, NOBODY) for place in places], dtype=np.int64)
        return jobs, np.array([place.urgency for place in places], dtype=np.float64)

    def _written(self, change: SettingChange[float], changed: set[int]) -> Outcome:
        job = self._pending_position(change.job_id)
        if job is None:
            return change.outcome(Result.GONE, remark=NOT_PENDING)
        if not change.takes_back and change.wanted >= self._limit_s[job]:
            return change.outcome(Result.REFUSED, remark=TOO_LONG)
        values = self._values(change.setting)
        before = float(values[job])
        if _alike(before, change.wanted):
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if job in self._marks.excluded_reason and not change.takes_back:
            return change.outcome(Result.REFUSED, before=before, remark=self._marks.excluded_reason[job])
        values[job] = change.wanted
        changed.add(job)
        return change.outcome(Result.DONE, before=before, after=change.wanted)

    def _requeue(self, changed: set[int]) -> None:
        queued = np.array(sorted(changed - self._marks.held), dtype=np.int64)
        if len(queued):
            withdraw(self._state, queued)
            self._admit(queued)

    def _admit(self, jobs: Jobs) -> None:
        """Put ``jobs``, which are in no queue, into theirs.

        Keys and estimates follow from the values set on them now.
        """
        marks, pending = self._marks, self._state.pending
        urgency, soft_s, plans_s = marks.urgency[jobs], marks.soft_limit_s[jobs], self._estimates_s[jobs]
        pending["key"][jobs] = -urgency
        pending["estimate_s"][jobs] = np.where(np.isnan(soft_s), plans_s, np.fmin(soft_s, plans_s))
        admit(self._state, jobs)

    # Lookups.

    def _values(self, setting: JobSetting) -> NDArray[np.float64]:
        return self._marks.urgency if setting is JobSetting.ORDER else self._marks.soft_limit_s

    def _pending_ids(self) -> list[str]:
        return [self._job_ids[job] for job in self._pending()]

    def _is_set(self, setting: JobSetting, job_id: str) -> bool:
        return not _alike(self._values(setting)[self._position[job_id]], _nothing(setting))

    def _pending_position(self, job_id: str) -> int | None:
        job = self._position.get(job_id)
        return (
            job if job is not None and job < self._state.clock["arrived"][0] and self._started_s[job] == NEVER else None
        )


def _nothing(setting: JobSetting) -> float:
    return 0.0 if setting is JobSetting.ORDER else math.nan


def _alike(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


@lru_cache(maxsize=4_096)
def _worded(setting: JobSetting, value: float) -> str:
    if setting is JobSetting.ORDER:
        return f"urgency {value:.4g}"
    return "no soft limit" if math.isnan(value) else f"soft limit {value:.0f} s"


_TERMS = ValueMapping(
    of_urgency=float,
    of_run_time=lambda run_time: float(math.ceil(run_time / timedelta(seconds=1))),
    nothing=_nothing,
    words=_worded,
)
"""Values on this cluster: the urgency itself, and the soft limit in s (NaN: none)."""


class SimCluster:
    """Simulated ``Cluster`` and ``NodeCluster`` in a workload's timeline.

    At the moment that :meth:`advance` goes to, jobs end and arrive, and the scheduling pass waits until time goes on. A
    service that reads and acts there is as quick as a policy built into the scheduler.

    Parameters
    ----------
    workload, shape
        As for :func:`helios.simulate.replay`.
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload: names, users and limits for the snapshot. A component of a
        heterogeneous job is ``excluded_reason``.
    estimates_s : int64 array of shape (n_jobs,)
        Run time that EASY plans with where no soft limit is set, s: the users' limits.
    backfill : Backfill
        What may pass a blocked head.
    name : str
        The cluster's name.
    tolerance : int, optional
        Bound of the SiteFactor that a real cluster would be given (``slurm.site_factor_most``): urgencies are rounded
        to its steps; None: they are not.
    resource : str
        ``gpus`` or ``cpus``: what the workload's GPUs are in truth.
    placement : Placement
        Which of the nodes of equal weight that fit a job gets.
    seed : int
        Of random placement: the same gives a job the same draws, whatever else happens.
    sleep : Sleep, optional
        How nodes sleep; None: they do not.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    WorkloadInvalid
        ``jobs`` or ``estimates_s`` are not one for each job.
    """

    def __init__(
        self,
        workload: Workload,
        shape: ClusterShape,
        jobs: pd.DataFrame,
        *,
        estimates_s: NDArray[np.int64],
        backfill: Backfill = Backfill.EASY,
        name: str = "replay",
        tolerance: int | None = 10_000,
        resource: str = "gpus",
        placement: Placement = Placement.PACKED,
        seed: int = 0,
        sleep: Sleep | None = None,
    ) -> None:
        if not len(workload) == len(jobs) == len(estimates_s):
            raise WorkloadInvalid(f"{len(jobs)} rows and {len(estimates_s)} estimates for {len(workload)} jobs")
        refuse_misfits(workload, shape)
        self.name = name
        self.now_s = int(workload.submitted_s[0]) - 1 if len(workload) else 0
        self._state = new_state(
            workload,
            shape,
            backfill=MODES[backfill],
            preemptive=False,
            placement=PLACES[placement],
            seed=seed,
            versatile=True,
        )
        job_ids = unique_ids(workload)
        self._view = SnapshotBuilder(workload, shape, jobs, job_ids=job_ids, resource=resource)
        self._resource, self._partitions = resource, shape.partitions
        self._door = NodeActions(self._state, self._view.names, sleep)
        self._marks = JobMarks(
            urgency=np.zeros(len(jobs)),
            soft_limit_s=np.full(len(jobs), np.nan),
            steps=urgency_steps(tolerance),
            excluded_reason={
                int(job): "part of a heterogeneous job" for job in np.flatnonzero(jobs["het_job_id"].notna())
            },
            held=set(),
        )
        self._jobs = JobActions(
            self._state,
            self._marks,
            self._view.facts,
            job_ids=job_ids,
            limit_s=jobs["time_limit_s"].to_numpy(dtype=np.float64),
            estimates_s=estimates_s,
            pending=self._queue,
        )
        self._sight = CachedSnapshot()
        self._between = False
        self._census = PendingIndex(self._state)
        # Columns of the tables, looked up once: a lookup for each job that an action names costs as much as the change.
        self._started_s: Jobs = self._state.jobs["started_s"]
        self._ends_s: Jobs = self._state.jobs["ends_s"]
        self._n_arrived: Jobs = self._state.clock["arrived"]
        self._n_ended: Jobs = self._state.clock["ended"]

    # Time.

    def next_event_s(self) -> int | None:
        """Run the passes that are due and return the time of the next event.

        An event is the end or arrival of a job, or a change of a node's power by itself. It may be now. None: nothing
        is left to happen.
        """
        self._leave()
        moment_s, _ = advance_replay(self._state, self._census.seen, Stops(before=-NEVER), now=self.now_s)
        return None if moment_s == NEVER else int(moment_s)

    def advance(self, until_s: int) -> None:
        """Advance the clock to ``until_s``.

        The ends and arrivals of that second happen; what they make possible starts when time goes on.

        Raises
        ------
        UsageError
            ``until_s`` lies in the past.
        """
        if until_s < self.now_s:
            raise UsageError(f"the clock stands at {self.now_s}; it cannot go back to {until_s}")
        self._leave()
        advance_replay(self._state, self._census.seen, Stops(until=until_s), now=self.now_s)
        self.now_s = until_s

    def go_on(
        self, *, asks_from_s: int = NEVER, alarm_s: int = NEVER, alarm_from_s: int = NEVER, before_s: int = NEVER
    ) -> StopPoint | None:
        """Advance to the next moment at which a service may have to decide.

        That is a moment at which jobs arrive, or, from ``asks_from_s`` on, one at which a job may start. Its ends and
        arrivals have then happened, and what they make possible starts when time goes on. None: nothing is left to
        happen.

        Parameters
        ----------
        asks_from_s : int
            Stop also where there is a choice (:meth:`has_choice`), from then on, s since the epoch.
        alarm_s : int
            Check for a choice at this second too, if no event comes before it.
        alarm_from_s : int
            The same, if there was a choice at the event before it, which was passed.
        before_s : int
            Stop also before the first moment from then on; the clock stays where it was.
        """
        stops = Stops(before=before_s, arrivals=True, asks_from=asks_from_s, alarm=alarm_s, alarm_from=alarm_from_s)
        between = self._between
        if not between:
            self._leave()
        moment_s, where = advance_replay(self._state, self._census.seen, stops, now=self.now_s, between=between)
        if moment_s == NEVER:
            return None
        self._between = where == BEFORE
        if not self._between:
            self.now_s = moment_s
        return StopPoint(moment_s, where == BEFORE, where == CHOICE)

    def _leave(self) -> None:
        """Fix the content of snapshots still in use before time goes on."""
        self._between = False
        self._sight.leave()

    @property
    def arrived(self) -> int:
        """Number of jobs submitted so far.

        They are the first ones of the workload.
        """
        return int(self._n_arrived[0])

    @property
    def ended(self) -> Jobs:
        """Positions of the jobs that have ended, in order of time."""
        return self._state.ended[: self._n_ended[0]]

    @property
    def started_s(self) -> Jobs:
        """Start of each job, s since the epoch.

        ``NEVER`` where it has not started.
        """
        return self._started_s

    @property
    def ended_s(self) -> Jobs:
        """End of each job, s since the epoch.

        Of a running job it is the true end, which lies ahead. Meaningless where it has not started.
        """
        return self._ends_s

    def has_choice(self) -> bool:
        """Return whether the order of the queue may matter now.

        That is so if a job that fits by its count of GPUs has waited since before now, or waits beside another of its
        partition. Where it is not, nothing that is done to the queue now makes another job start.
        """
        return self._census.has_choice(self.now_s)

    # The ports.

    def snapshot(self) -> LazySnapshot:
        """Return a snapshot without predictions."""
        return self.look(None)

    def look(self, predictions: Predictions | None) -> LazySnapshot:
        """Return a snapshot with predictions in the rows of pending jobs."""
        return LazySnapshot.at(
            self.now_s,
            cluster=self.name,
            pending=self._view.pending(self._queue(), self._marks, predictions),
            context=self._sight.now(self._frames),
            power=self._door.settings,
        )

    def rows(self, jobs: Jobs, predictions: Predictions | None) -> PendingRows:
        """Return the rows of pending ``jobs``, given by position."""
        return self._view.pending(jobs, self._marks, predictions)

    def waiting(self) -> Jobs:
        """Return the positions of the pending jobs, ascending."""
        return self._census.waiting()

    def running(self) -> tuple[Jobs, Jobs]:
        """Return the running jobs and when each began to run.

        Jobs are positions, in no order. Times are in s since the epoch.
        """
        running = self._state.ends[: int(self._state.clock["running"][0])].copy()
        return running, self._state.jobs["resumed_s"][running]

    def _frames(self) -> Frames:
        running = np.sort(self._state.ends[: int(self._state.clock["running"][0])])
        by_start = running[np.argsort(self.started_s[running], kind="stable")]
        return {
            "running": self._view.running(by_start, self._state),
            "nodes": self._view.nodes(self._state, self._door.columns()),
        }

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Apply actions and return an outcome for each job that they name."""
        return self._jobs.apply(actions)

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that a new order names, and their urgencies.

        Jobs are positions; NOBODY: there is no job of that id.
        """
        return self._jobs.ranked(reorder)

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position and return the number of each result.

        An urgency of NaN leaves its job as it is.
        """
        return self._jobs.change(jobs, urgency)

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Apply actions and return an outcome for each node that they name.

        See :class:`helios.ports.NodeCluster`.
        """
        self._leave()
        return self._door.steer(actions, now=self.now_s)

    # Counts.

    def busy_nodes(self, step_s: int = STEP_S) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return how many nodes of each partition held a job, by steps.

        The count goes until now. See :meth:`NodeHolding.in_steps`.
        """
        return node_holding(self._state, until_s=self.now_s).in_steps(step_s)

    def tally(self) -> NodeTally:
        """Return the counts of what nodes have done until now."""
        count_up(self._state, now=self.now_s)
        return node_tally(self._state, self._partitions, resource=self._resource)

    @property
    def late_s(self) -> Jobs:
        """Time that each job waited for its nodes to boot, s.

        Meaningless where it has not started.
        """
        return self._state.jobs["late_s"]

    # Changes by an administrator.

    def forbid(self, node: str, *, why: str | None) -> None:
        """Exclude the power of a node from control, or include it again.

        It then is as if it were drained or reserved. ``why`` is the reason; None: Helios may act on it again.

        Raises
        ------
        UsageError
            There is no such node.
        """
        self._leave()
        number = self._door.number(node)
        self._door.excluded_reason.pop(number, None)
        if why is not None:
            self._door.excluded_reason[number] = why

    def hold(self, job_id: str, *, why: str = "held") -> None:
        """Hold a pending job.

        It does not start, and has ``why`` as its ``excluded_reason``.

        Raises
        ------
        UsageError
            It is not pending, or held already.
        """
        self._jobs.hold(job_id, why=why)

    def release(self, job_id: str) -> None:
        """Release a held job.

        Raises
        ------
        UsageError
            It is not held.
        """
        self._jobs.release(job_id)

    def _queue(self) -> Jobs:
        """Return the pending jobs in the cluster's order, held ones last."""
        jobs, marks = self._census.waiting(), self._marks
        in_order = jobs[np.argsort(-marks.urgency[jobs], kind="stable")]
        if not marks.held:
            return in_order
        held = np.array([job in marks.held for job in in_order.tolist()])
        return np.concatenate((in_order[~held], in_order[held]))
