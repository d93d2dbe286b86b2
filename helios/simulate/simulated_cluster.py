"""Common part of both simulated clusters.

They implement the ports of a real cluster, and stop wherever a service may have to decide.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.actions import JobSetting, Outcome, Ranking, Reorder, Result
from helios.changes import GONE, Change, ValueMapping, each_job
from helios.errors import UsageError, WorkloadInvalid
from helios.model import PowerSettings
from helios.simulate.core.state import NEVER, NOBODY, Workload
from helios.simulate.replay import PendingIndex
from helios.simulate.slurm.workload import SlurmWorkload
from helios.simulate.snapshot import (
    Frames,
    Jobs,
    LazySnapshot,
    MomentRows,
    OwnColumns,
    Predictions,
    QueueColumns,
    SnapshotBuilder,
    pending_queue,
    predicted_columns,
)

_RESULTS = (Result.DONE, Result.UNCHANGED, Result.REFUSED, Result.GONE)
"""Results of an urgency, by their codes in :mod:`helios.simulate.core.events`."""


class StopPoint(NamedTuple):
    """Moment at which a ``SimulatedCluster`` stopped.

    Attributes
    ----------
    moment_s : int
        The moment, s since the epoch.
    before : bool
        True: before the ends and arrivals of ``moment_s``. False: after them, and before the pass that they make due.
    choice : bool
        Whether the order of the queue may matter then.
    alarm_s, again_s : int
        Their values for the next call, where it stopped before a moment.
    """

    moment_s: int
    before: bool
    choice: bool
    alarm_s: int
    again_s: int


class SimulatedCluster(ABC):
    """Simulated ``Cluster`` in the timeline of a workload.

    Its clock advances from one cycle of services to the next. Where it stops, jobs have ended and arrived, and the
    scheduling pass that is due then comes when time goes on. So a service that reads and acts there is as quick as a
    policy inside the scheduler. Jobs are given by their positions in the workload.

    Parameters
    ----------
    name : str
        The cluster's name.
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload.
    nodes : DataFrame
        Columns of ``NODE_STATES``, each node while it is idle.
    site_factor_most : int, optional
        Bound of the SiteFactor (``slurm.site_factor_most``), to whose steps urgencies are rounded; None: no rounding.
    queue
        Columns of ``QUEUE`` that replace those of ``jobs``.

    Attributes
    ----------
    now_s : int
        Clock, s since the epoch.
    started_s, ended_s : int64 arrays of shape (n_jobs,)
        Start and end of each job, s since the epoch. Where it has not started, the start is ``NEVER``; where it has not
        ended, the end has no meaning.

    Raises
    ------
    UsageError
        The bound of the SiteFactor leaves no step.
    """

    now_s: int
    started_s: Jobs
    ended_s: Jobs
    _state: Any
    _mapping: ValueMapping[Any]

    def __init__(
        self,
        name: str,
        workload: Workload | SlurmWorkload,
        jobs: pd.DataFrame,
        nodes: pd.DataFrame,
        *,
        site_factor_most: int | None,
        **queue: Any,
    ) -> None:
        self.name = name
        self._job_ids = _unique_ids(workload.job_id)
        self._position = {job_id: position for position, job_id in enumerate(self._job_ids)}
        self._view = SnapshotBuilder(pending_queue(jobs, job_id=self._job_ids, **queue), nodes)
        self._steps = 0 if site_factor_most is None else ownership.steps(site_factor_most)
        if site_factor_most is not None and self._steps < 1:
            raise UsageError(
                f"a bound of the SiteFactor (slurm.site_factor_most) of {site_factor_most} leaves no step for "
                "urgencies",
                hint=f"Use at least {ownership.STEP + ownership.MARK}.",
            )
        het_parts = np.flatnonzero(jobs["het_job_id"].notna()).tolist()
        self._excluded_reason = dict.fromkeys(het_parts, "part of a heterogeneous job")
        self._shared_columns: Callable[[], QueueColumns | None] = _no_columns
        self._index = PendingIndex(self.started_s)

    # Time.

    @property
    @abstractmethod
    def arrived(self) -> int:
        """Number of jobs submitted so far.

        They are the first ones of the workload.
        """

    @property
    @abstractmethod
    def submitted_s(self) -> Jobs:
        """When each job is submitted, s since the epoch."""

    @abstractmethod
    def _advance(self, until_s: int) -> None:
        """Advance to ``until_s``, which does not lie in the past."""

    @abstractmethod
    def advance_to_decision(
        self,
        *,
        arrivals: bool = True,
        choices_from_s: int = NEVER,
        alarm_s: int = NEVER,
        alarm_from_s: int = NEVER,
        before_s: int = NEVER,
        again_s: int = NEVER,
        again_every_s: int = NEVER,
    ) -> StopPoint | None:
        """Advance to the next moment at which a service may have to decide.

        The ends and arrivals of that moment have then happened, and the jobs that they let start do so when time goes
        on. None: nothing is left to happen.

        Parameters
        ----------
        arrivals : bool
            Whether to stop where jobs arrive.
        choices_from_s : int
            Stop also where there is a choice (:meth:`has_choice`), from then on, s since the epoch.
        alarm_s : int
            Check for a choice at this second too, if no event comes before it.
        alarm_from_s : int
            The same, where the event before it was passed with a choice.
        before_s : int
            Stop also before the first moment from then on; the clock stays where it was.
        again_s, again_every_s : int
            Stop also before the first moment from ``again_s`` on. Where no job waits, ``again_s`` may become that
            moment plus ``again_every_s``.
        """

    def advance(self, until_s: int) -> None:
        """Advance the clock to ``until_s``.

        The ends and arrivals of that second happen; the jobs that they let start do so when time goes on.

        Raises
        ------
        UsageError
            ``until_s`` lies in the past.
        """
        if until_s < self.now_s:
            raise UsageError(f"the clock stands at {self.now_s}; it cannot go back to {until_s}")
        self._advance(until_s)

    def _freeze_snapshots(self) -> None:
        """Fix the content of snapshots still in use, before time goes on."""
        if (columns := self._shared_columns()) is not None:
            columns.freeze()
        self._shared_columns = _no_columns

    # Jobs.

    @property
    def ended(self) -> Jobs:
        """Positions of the jobs that have ended, in order of time."""
        ended: Jobs = self._state.ended[: int(self._state.clock["ended"][0])]
        return ended

    def running(self) -> tuple[Jobs, Jobs]:
        """Return the running jobs and when each began to run.

        Jobs are positions, in no order. Times are in s since the epoch.
        """
        running = self._state.ends[: int(self._state.clock["running"][0])].copy()
        return running, self._run_since_s()[running]

    def waiting(self) -> Jobs:
        """Return the positions of the pending jobs, ascending."""
        return self._index.waiting(self.arrived)

    @abstractmethod
    def _run_since_s(self) -> Jobs:
        """Return the start of each current run, s since the epoch."""

    @abstractmethod
    def _queue(self) -> Jobs:
        """Return the pending jobs in the cluster's order, held ones last."""

    def _pending_position(self, job_id: str) -> int | None:
        """Return the position of a pending job, or None if there is none."""
        job = self._position.get(job_id)
        return job if job is not None and job < self.arrived and self.started_s[job] == NEVER else None

    # Snapshots.

    @property
    def _power(self) -> PowerSettings | None:
        """Power settings of the nodes.

        None: they do not sleep.
        """
        return None

    @abstractmethod
    def _settings(self, jobs: Jobs) -> OwnColumns:
        """Return the columns of pending ``jobs`` that may change, as of now."""

    @abstractmethod
    def _frames(self) -> Frames:
        """Return the rows of running jobs and of nodes, as of now."""

    def snapshot(self) -> LazySnapshot:
        """Return a snapshot without predictions."""
        return self.snapshot_with(None)

    def snapshot_with(self, predictions: Predictions | None) -> LazySnapshot:
        """Return a snapshot with predictions in the rows of pending jobs."""
        if (columns := self._shared_columns()) is None:
            columns = QueueColumns(self._frames)
            self._shared_columns = weakref.ref(columns)
        return LazySnapshot.at(
            self.now_s,
            cluster=self.name,
            pending=self.rows(self._queue(), predictions),
            context=columns,
            power=self._power,
            longest_own_wait_s=math.nan if predictions is None else float(predictions.longest_own_wait_s),
        )

    def rows(self, jobs: Jobs, predictions: Predictions | None) -> MomentRows:
        """Return the rows of pending ``jobs``, given by position, as of now."""
        own = {
            **self._settings(jobs),
            **predicted_columns(jobs, predictions),
            "node_gpus": lambda: self._view.node_gpus[jobs],
        }
        return MomentRows(facts=self._view.facts, rows=jobs, own=own)

    # Changes.

    @abstractmethod
    def _changed_jobs(self) -> list[str]:
        """Return the pending jobs that Helios may have changed."""

    @abstractmethod
    def _is_set(self, setting: JobSetting, job: int) -> bool:
        """Return whether Helios has set ``setting`` of a job."""

    @abstractmethod
    def _apply_change(self, change: Change[float], job: int) -> Outcome:
        """Change a setting of a pending job, if that is allowed."""

    @abstractmethod
    def _set_urgencies(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Sequence[int]:
        """Set urgencies by position and return the number of each of ``_RESULTS``."""

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        """Apply changes and return the outcome of each."""
        single = each_job(
            changes,
            pending=self._changed_jobs,
            is_set=lambda setting, job_id: self._is_set(setting, self._position[job_id]),
        )
        return [
            change.outcome(Result.GONE, GONE)
            if (job := self._pending_position(change.target)) is None
            else self._apply_change(change, job)
            for change in single
        ]

    def change(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position and return the number of each result.

        An urgency of NaN leaves its job as it is.
        """
        return {result: n for result, n in zip(_RESULTS, self._set_urgencies(jobs, urgency), strict=True) if n}

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the ordered jobs and their urgencies.

        Jobs are positions; NOBODY: there is no job of that id.
        """
        if isinstance(reorder, Ranking) and isinstance(reorder.snapshot, LazySnapshot):
            jobs = reorder.snapshot.positions(reorder.rows, self._view.facts)
            if jobs is not None:
                return jobs, reorder.urgency
        urgency = np.array([entry.urgency for entry in reorder.order], dtype=np.float64)
        return self.positions([entry.job_id for entry in reorder.order]), urgency

    def positions(self, job_ids: Sequence[str]) -> Jobs:
        """Return the positions of jobs, NOBODY where there is none of that id."""
        return np.array([self._position.get(job_id, NOBODY) for job_id in job_ids], dtype=np.int64)


def refuse_unequal(**lengths: int) -> None:
    """Raise ``WorkloadInvalid`` unless there is one row and one estimate for each job."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise WorkloadInvalid(f"a workload, its rows and its estimates differ in length: {counts}")


def _unique_ids(job_ids: NDArray[np.object_]) -> list[str]:
    """Return the site's ids, numbered where one is used again."""
    ids = list(map(str, job_ids))
    if len(set(ids)) == len(ids):
        return ids
    names: dict[str, None] = {}
    for job_id in ids:
        alternatives = (f"{job_id}-{number}" for number in count(2))
        names[job_id if job_id not in names else next(name for name in alternatives if name not in names)] = None
    return list(names)


def _no_columns() -> None:
    """Return None, as the weak reference to a deleted object does."""
