"""The door to the jobs of a simulated cluster: what comes of an action on one, and of holding it.

Urgencies are written by one compiled call; each outcome is put into words only for whoever asks for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from helios import marks
from helios.actions import JobAction, Lever, Outcome, Ranking, Reorder, Result
from helios.asked_of_jobs import GONE as NOT_PENDING
from helios.asked_of_jobs import TOO_LONG, Terms, Wish, wishes_of
from helios.errors import Misuse
from helios.simulate.asked import BARRED, DONE, GONE, HELD, REFUSED, UNCHANGED, UNNAMED, Orders, order
from helios.simulate.asking import LONGEST_ESTIMATE_S
from helios.simulate.glance import Glance
from helios.simulate.rows import Facts, Jobs
from helios.simulate.state import NEVER, NOBODY, State
from helios.simulate.steering import admit, withdraw
from helios.simulate.view import Marks

_RESULTS = {DONE: Result.DONE, UNCHANGED: Result.UNCHANGED, REFUSED: Result.REFUSED, GONE: Result.GONE}


def steps_of(resolution: int | None) -> int:
    """Return the steps between 0 and 1 that a SiteFactor of this bound has; 0: urgencies are not rounded.

    Raises
    ------
    Misuse
        It leaves no step.
    """
    steps = 0 if resolution is None else marks.steps(resolution)
    if resolution is not None and steps < 1:
        raise Misuse(f"a resolution of {resolution} leaves no step", remedy=f"Use at least {marks.STEP + marks.MARK}.")
    return steps


class JobDoor:
    """Acts on the pending jobs of a replay.

    Parameters
    ----------
    marks : Marks
        What is set on the jobs, which acting changes.
    facts : Facts
        By which an order says whose rows it means.
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
        state: State,
        marks: Marks,
        facts: Facts,
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
        self._orders.bar[list(marks.hands_off)] |= BARRED
        # Columns of the tables, which taking out anew for every job that an action names would cost as much as acting.
        self._started_s: Jobs = state.jobs["started_s"]
        self._n_arrived: Jobs = state.clock["arrived"]

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, and say what became of each job that an action names."""
        changed: set[int] = set()
        outcomes = [outcome for action in actions for outcome in self._carried_out(action, changed)]
        self._requeue(changed)
        return outcomes

    def wish(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position, NaN: of none; say how many jobs ended in each way."""
        *_, counts = order(self._state, self._orders, jobs, urgency, steps=self._marks.steps)
        return {_RESULTS[code]: n for code, n in enumerate(counts[:UNNAMED]) if n}

    def hold(self, job_id: str, *, why: str = "held") -> None:
        """Hold a pending job: it does not start, and is ``hands_off``.

        Raises
        ------
        Misuse
            It is not pending, or held already.
        """
        job = self._pending_position(job_id)
        if job is None or job in self._marks.held:
            raise Misuse(f"job {job_id} is not pending, or held already")
        withdraw(self._state, np.array([job]))
        self._marks.held.add(job)
        self._marks.hands_off[job] = why
        self._orders.bar[job] = BARRED | HELD

    def release(self, job_id: str) -> None:
        """Release a held job.

        Raises
        ------
        Misuse
            It is not held.
        """
        job = self._pending_position(job_id)
        if job is None or job not in self._marks.held:
            raise Misuse(f"job {job_id} is not held")
        del self._marks.hands_off[job]
        self._marks.held.remove(job)
        self._orders.bar[job] = 0
        self._admit(np.array([job]))

    # What comes of an action.

    def _carried_out(self, action: JobAction, changed: set[int]) -> Iterator[Outcome]:
        wishes = wishes_of(action, _TERMS, pending=self._pending_ids, is_set=self._is_set)
        if isinstance(action, Reorder):
            yield from self._reordered([*wishes])
        else:
            yield from (self._written(wish, changed) for wish in wishes)

    def _reordered(self, wishes: Sequence[Wish[float]]) -> Iterator[Outcome]:
        jobs = np.array([self._position.get(wish.job_id, NOBODY) for wish in wishes], dtype=np.int64)
        wished = np.array([wish.wanted for wish in wishes], dtype=np.float64)
        results, before, _ = order(self._state, self._orders, jobs, wished, steps=self._marks.steps)
        for wish, job, code, was in zip(wishes, jobs.tolist(), results.tolist(), before.tolist(), strict=True):
            yield self._told(wish, job, code, was)

    def _told(self, wish: Wish[float], job: int, code: int, was: float) -> Outcome:
        if code == GONE:
            return wish.outcome(Result.GONE, remark=NOT_PENDING)
        if code == REFUSED:
            return wish.outcome(Result.REFUSED, before=was, remark=self._marks.hands_off[job])
        return wish.outcome(_RESULTS[code], before=was, after=float(self._marks.urgency[job]))

    def ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that an order names by position, and their urgencies."""
        if isinstance(reorder, Ranking) and isinstance(reorder.snapshot, Glance):
            jobs = reorder.snapshot.positions(reorder.rows, self._facts)
            if jobs is not None:
                return jobs, reorder.urgency
        places = reorder.order
        jobs = np.array([self._position.get(place.job_id, NOBODY) for place in places], dtype=np.int64)
        return jobs, np.array([place.urgency for place in places], dtype=np.float64)

    def _written(self, wish: Wish[float], changed: set[int]) -> Outcome:
        job = self._pending_position(wish.job_id)
        if job is None:
            return wish.outcome(Result.GONE, remark=NOT_PENDING)
        if not wish.takes_back and wish.wanted >= self._limit_s[job]:
            return wish.outcome(Result.REFUSED, remark=TOO_LONG)
        values = self._values(wish.lever)
        before = float(values[job])
        if _alike(before, wish.wanted):
            return wish.outcome(Result.UNCHANGED, before=before, after=before)
        if job in self._marks.hands_off and not wish.takes_back:
            return wish.outcome(Result.REFUSED, before=before, remark=self._marks.hands_off[job])
        values[job] = wish.wanted
        changed.add(job)
        return wish.outcome(Result.DONE, before=before, after=wish.wanted)

    def _requeue(self, changed: set[int]) -> None:
        queued = np.array(sorted(changed - self._marks.held), dtype=np.int64)
        if len(queued):
            withdraw(self._state, queued)
            self._admit(queued)

    def _admit(self, jobs: Jobs) -> None:
        """Put ``jobs``, which are in no queue, into theirs, by what stands on them now."""
        marks, pending = self._marks, self._state.pending
        urgency, soft_s, plans_s = marks.urgency[jobs], marks.soft_limit_s[jobs], self._estimates_s[jobs]
        pending["key"][jobs] = -urgency
        pending["estimate_s"][jobs] = np.where(np.isnan(soft_s), plans_s, np.fmin(soft_s, plans_s))
        admit(self._state, jobs)

    # What is asked of the tables.

    def _values(self, lever: Lever) -> NDArray[np.float64]:
        return self._marks.urgency if lever is Lever.ORDER else self._marks.soft_limit_s

    def _pending_ids(self) -> list[str]:
        return [self._job_ids[job] for job in self._pending()]

    def _is_set(self, lever: Lever, job_id: str) -> bool:
        return not _alike(self._values(lever)[self._position[job_id]], _nothing(lever))

    def _pending_position(self, job_id: str) -> int | None:
        job = self._position.get(job_id)
        return (
            job if job is not None and job < self._state.clock["arrived"][0] and self._started_s[job] == NEVER else None
        )


def _nothing(lever: Lever) -> float:
    return 0.0 if lever is Lever.ORDER else math.nan


def _alike(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


@lru_cache(maxsize=4_096)
def _worded(lever: Lever, value: float) -> str:
    if lever is Lever.ORDER:
        return f"urgency {value:.4g}"
    return "no soft limit" if math.isnan(value) else f"soft limit {value:.0f} s"


_TERMS = Terms(
    of_urgency=float,
    of_run_time=lambda run_time: float(math.ceil(run_time / timedelta(seconds=1))),
    nothing=_nothing,
    words=_worded,
)
"""What is held here: an urgency as such, and a soft limit in s; NaN: none."""
