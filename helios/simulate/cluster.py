"""A cluster made of arithmetic behind the same door as a real one: look at it, act on it, let time pass.

Its own order is first in, first out; an urgency goes before that, on the steps that Slurm's SiteFactor would have. A
soft limit changes what backfill plans with from the job's start on; the true run time is untouched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import (
    JobAction,
    Lever,
    NodeAction,
    NodeOutcome,
    Outcome,
    Place,
    Reorder,
    Restore,
    Result,
    SoftLimit,
)
from helios.errors import Misuse, WorkloadInvalid
from helios.model import STEP_S
from helios.simulate.asking import LONGEST_ESTIMATE_S
from helios.simulate.holding import Tally, holding_of, tally_of
from helios.simulate.nodes import NodeDoor, Sleep
from helios.simulate.state import NEVER, new_state
from helios.simulate.steering import Census, admit, carry_on, count_up, settle, withdraw
from helios.simulate.timeline import MODES, PLACES, Backfill, Placement
from helios.simulate.view import BASE_PRIORITY, Glance, Jobs, Marks, Predictions, View, unique_ids
from helios.simulate.workload import ClusterShape, Workload, refuse_misfits

STEP, MARK = 100, 37
"""A SiteFactor of Helios is a multiple of the one plus the other: what an urgency is counted in."""


class SimCluster:
    """A :class:`helios.ports.Cluster` and :class:`helios.ports.NodeCluster` that lives in the timeline of a workload.

    At the moment that :meth:`advance` goes to, jobs end and arrive, and the scheduling pass waits until time is asked
    to go on: a service that looks and acts there is as quick as a policy built into the scheduler.

    Parameters
    ----------
    workload, shape
        As for :func:`helios.simulate.replay`.
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload: names, users and limits for the snapshot. A component of a
        heterogeneous job is ``hands_off``.
    estimates_s : int64 array of shape (n_jobs,)
        Run time that EASY plans with where no soft limit is set, s: the users' limits.
    backfill : Backfill
        What may pass a blocked head.
    name : str
        The cluster's name.
    resolution : int
        Bound of the SiteFactor that a real cluster would be given (``slurm.site_factor_most``): urgencies are rounded
        to its steps.
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
        resolution: int = 10_000,
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
        self._estimates_s = estimates_s.clip(0, LONGEST_ESTIMATE_S).astype(np.int64)
        self._state.pending["estimate_s"] = self._estimates_s
        self._limit_s = jobs["time_limit_s"].to_numpy(dtype=np.float64)
        self._steps = (resolution - MARK) // STEP
        if self._steps < 1:
            raise Misuse(f"a resolution of {resolution} leaves no step", remedy=f"Use at least {STEP + MARK}.")
        job_ids = unique_ids(workload)
        self._position = {job_id: position for position, job_id in enumerate(job_ids)}
        self._job_ids = job_ids
        self._view = View(workload, shape, jobs, job_ids=job_ids, resource=resource)
        self._resource, self._partitions = resource, shape.partitions
        self._door = NodeDoor(self._state, self._view.names, sleep)
        self._marks = Marks(
            urgency=np.zeros(len(jobs)),
            soft_limit_s=np.full(len(jobs), np.nan),
            priority=np.full(len(jobs), BASE_PRIORITY),
            hands_off={int(job): "part of a heterogeneous job" for job in np.flatnonzero(jobs["het_job_id"].notna())},
        )
        self._census = Census(self._state)
        # Columns of the tables, which taking out anew for every job that an action names would cost as much as acting.
        self._started_s: Jobs = self._state.jobs["started_s"]
        self._n_arrived: Jobs = self._state.clock["arrived"]
        self._held: set[int] = set()

    # Time.

    def next_event_s(self) -> int | None:
        """Let start what can start now, and return when the next job ends or arrives: perhaps now; None: never."""
        moment_s = settle(self._state, now=self.now_s)
        return None if moment_s == NEVER else int(moment_s)

    def advance(self, until_s: int) -> None:
        """Let time pass up to ``until_s``, the ends and arrivals of that second included.

        What they make possible starts when time goes on.

        Raises
        ------
        Misuse
            ``until_s`` lies in the past.
        """
        if until_s < self.now_s:
            raise Misuse(f"the clock stands at {self.now_s}; it cannot go back to {until_s}")
        carry_on(self._state, now=self.now_s, until=until_s)
        self.now_s = until_s

    @property
    def arrived(self) -> int:
        """How many jobs were submitted so far: the first ones of the workload."""
        return int(self._n_arrived[0])

    @property
    def ended(self) -> Jobs:
        """Positions of the jobs that have ended, in order of time."""
        return self._state.ended[: int(self._state.clock["ended"][0])]

    @property
    def started_s(self) -> Jobs:
        """Start of each job, s since the epoch; ``NEVER`` where it has not started."""
        return self._started_s

    @property
    def ended_s(self) -> Jobs:
        """End of each job; meaningless where it has not started."""
        return self._state.jobs["ends_s"]

    def has_choice(self) -> bool:
        """Say whether something may start now, and more than what has just arrived on its own could be meant.

        As far as counting free GPUs tells: where it says no, nothing that is done to the queue now starts a job.
        """
        return self._census.has_choice(self.now_s)

    # The socket.

    def snapshot(self) -> Glance:
        """Look."""
        return self.look(None)

    def look(self, predictions: Predictions | None) -> Glance:
        """Look, with predictions already in the columns of the pending jobs."""
        running = np.sort(self._state.ends[: int(self._state.clock["running"][0])])
        by_start = running[np.argsort(self.started_s[running], kind="stable")]
        return Glance.at(
            self.now_s,
            cluster=self.name,
            pending=self._view.pending(self._queue(), self._marks, predictions),
            running=self._view.running(by_start, self._state),
            nodes=self._view.nodes(self._state, self._door.columns()),
            power=self._door.settings,
        )

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, and say what became of each job that an action names."""
        changed: set[int] = set()
        outcomes = [outcome for action in actions for outcome in self._carried_out(action, changed)]
        self._requeue(changed)
        return outcomes

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Act on nodes, and say what became of each that an action names; see :class:`helios.ports.NodeCluster`."""
        return self._door.steer(actions, now=self.now_s)

    # What is counted.

    def busy_nodes(self, step_s: int = STEP_S) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """Return how many nodes of each partition held a job until now, by steps; see :meth:`Holding.in_steps`."""
        return holding_of(self._state, until_s=self.now_s).in_steps(step_s)

    def tally(self) -> Tally:
        """Return what nodes have done until now."""
        count_up(self._state, now=self.now_s)
        return tally_of(self._state, self._partitions, resource=self._resource)

    @property
    def late_s(self) -> Jobs:
        """How long each job waited for nodes that it was given to get up, s; meaningless where it has not started."""
        return self._state.jobs["late_s"]

    # What an admin does.

    def forbid(self, node: str, *, why: str | None) -> None:
        """Have Helios leave a node's power alone, as if it were drained or reserved; None: it may act again.

        Raises
        ------
        Misuse
            There is no such node.
        """
        number = self._door.number(node)
        self._door.hands_off.pop(number, None)
        if why is not None:
            self._door.hands_off[number] = why

    def hold(self, job_id: str, *, why: str = "held") -> None:
        """Hold a pending job: it does not start, and is ``hands_off``.

        Raises
        ------
        Misuse
            It is not pending, or held already.
        """
        job = self._pending_position(job_id)
        if job is None or job in self._held:
            raise Misuse(f"job {job_id} is not pending, or held already")
        withdraw(self._state, np.array([job]))
        self._held.add(job)
        self._marks.priority[job] = 0.0
        self._marks.hands_off[job] = why

    def release(self, job_id: str) -> None:
        """Release a held job.

        Raises
        ------
        Misuse
            It is not held.
        """
        job = self._pending_position(job_id)
        if job is None or job not in self._held:
            raise Misuse(f"job {job_id} is not held")
        del self._marks.hands_off[job]
        self._held.remove(job)
        self._admit(np.array([job]))

    # What comes of an action.

    def _carried_out(self, action: JobAction, changed: set[int]) -> Iterator[Outcome]:
        if isinstance(action, Reorder):
            for place in action.order:
                yield self._written(_placed(place, steps=self._steps), changed)
        elif isinstance(action, SoftLimit):
            yield self._softened(action, changed)
        else:
            yield from self._restored(action, changed)

    def _softened(self, limit: SoftLimit, changed: set[int]) -> Outcome:
        bound_s = float(math.ceil(limit.run_time / timedelta(seconds=1)))
        change = _Change(
            action="SoftLimit", lever=Lever.SOFT_LIMIT, job_id=limit.job_id, reason=limit.reason, wanted=bound_s
        )
        job = self._pending_position(limit.job_id)
        if job is not None and bound_s >= self._limit_s[job]:
            return change.outcome(Result.REFUSED, remark="not below the time limit")
        return self._written(change, changed)

    def _restored(self, restore: Restore, changed: set[int]) -> Iterator[Outcome]:
        levers = tuple(Lever) if restore.lever is None else (restore.lever,)
        named = restore.job_ids is not None
        ids = restore.job_ids if restore.job_ids is not None else [self._job_ids[job] for job in self._queue()]
        for job_id in ids:
            for lever in levers:
                nothing = 0.0 if lever is Lever.ORDER else math.nan
                change = _Change(action="Restore", lever=lever, job_id=job_id, reason=restore.reason, wanted=nothing)
                if named or not _alike(self._values(lever)[self._position[job_id]], nothing):
                    yield self._written(change, changed)

    def _written(self, change: _Change, changed: set[int]) -> Outcome:
        job = self._pending_position(change.job_id)
        if job is None:
            return change.outcome(Result.GONE, remark="no longer pending")
        values = self._values(change.lever)
        before = float(values[job])
        if _alike(before, change.wanted):
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        if job in self._marks.hands_off and change.action != "Restore":
            return change.outcome(Result.REFUSED, before=before, remark=self._marks.hands_off[job])
        values[job] = change.wanted
        changed.add(job)
        return change.outcome(Result.DONE, before=before, after=change.wanted)

    def _requeue(self, changed: set[int]) -> None:
        queued = np.array(sorted(changed - self._held), dtype=np.int64)
        if len(queued):
            withdraw(self._state, queued)
            self._admit(queued)

    def _admit(self, jobs: Jobs) -> None:
        """Put ``jobs``, which are in no queue, into theirs, by what stands on them now."""
        marks, pending = self._marks, self._state.pending
        urgency, soft_s, plans_s = marks.urgency[jobs], marks.soft_limit_s[jobs], self._estimates_s[jobs]
        marks.priority[jobs] = BASE_PRIORITY + np.rint(urgency * self._steps) * STEP + np.sign(urgency) * MARK
        pending["key"][jobs] = -urgency
        pending["estimate_s"][jobs] = np.where(np.isnan(soft_s), plans_s, np.fmin(soft_s, plans_s))
        admit(self._state, jobs)

    # What is asked of the tables.

    def _values(self, lever: Lever) -> NDArray[np.float64]:
        return self._marks.urgency if lever is Lever.ORDER else self._marks.soft_limit_s

    def _pending_position(self, job_id: str) -> int | None:
        job = self._position.get(job_id)
        return job if job is not None and job < self.arrived and self._started_s[job] == NEVER else None

    def _queue(self) -> Jobs:
        """Return the pending jobs in the cluster's order, held ones last."""
        jobs, marks = self._census.waiting(), self._marks
        return jobs[np.lexsort((jobs, -marks.urgency[jobs], marks.priority[jobs] == 0))]


class _Change(NamedTuple):
    action: str
    lever: Lever
    job_id: str
    reason: str
    wanted: float

    def outcome(
        self, result: Result, *, before: float | None = None, after: float | None = None, remark: str = ""
    ) -> Outcome:
        return Outcome(
            action=self.action,
            lever=self.lever,
            job_id=self.job_id,
            result=result,
            reason=self.reason,
            before=_worded(self.lever, before),
            after=_worded(self.lever, after),
            remark=remark,
        )


def _placed(place: Place, *, steps: int) -> _Change:
    level = round(place.urgency * steps)
    return _Change(action="Reorder", lever=Lever.ORDER, job_id=place.job_id, reason=place.reason, wanted=level / steps)


def _alike(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


@lru_cache(maxsize=4_096)
def _worded(lever: Lever, value: float | None) -> str:
    if value is None:
        return ""
    if lever is Lever.ORDER:
        return f"urgency {value:.4g}"
    return "no soft limit" if math.isnan(value) else f"soft limit {value:.0f} s"
