"""What Helios sets on the jobs of a simulated Slurm, in Slurm's own values: SiteFactor and TimeMin, and whose they are.

A SiteFactor that bears no mark of Helios is an admin's, a TimeMin that Helios did not set is the user's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.actions import JobAction, Lever, Outcome, Ranking, Reorder, Restore, Result, SoftLimit
from helios.simulate.jobs import steps_of
from helios.simulate.slurmlike.state import NEVER, NOBODY, YEAR_MIN
from helios.simulate.slurmlike.timeline import SlurmTimeline
from helios.simulate.view import MARK, STEP, Facts, Glance, Jobs

_DONE, _UNCHANGED, _REFUSED, _GONE = 0, 1, 2, 3
_RESULTS = (Result.DONE, Result.UNCHANGED, Result.REFUSED, Result.GONE)
_NOT_SOFT = "SchedulerParameters lacks time_min_as_soft_limit: here a TimeMin would let Slurm shorten the job"


def whole_minutes(run_time: timedelta) -> int:
    """Return the TimeMin, min, that is no shorter than ``run_time``."""
    return math.ceil(run_time / timedelta(minutes=1))


class Levers:
    """Acts on the pending jobs of a timeline under Slurm's rules.

    Parameters
    ----------
    started_s : int64 array of shape (n_jobs,)
        ``NEVER`` where a job has not started; kept up to date by whoever moves the time.
    arrived : callable
        Returns how many jobs were submitted so far.
    job_ids : list of str
        Distinct.
    hands_off : dict of int to str
        By position, why to leave a job alone for good.
    resolution : int
        Bound of the SiteFactor.
    soft_limits : bool
        Whether the site takes TimeMin as a soft limit.
    time_min : callable
        Returns the TimeMin, min, that stands for a soft limit.
    """

    def __init__(
        self,
        timeline: SlurmTimeline,
        facts: Facts,
        *,
        started_s: Jobs,
        arrived: Callable[[], int],
        job_ids: list[str],
        hands_off: dict[int, str],
        resolution: int,
        soft_limits: bool,
        time_min: Callable[[timedelta], int],
    ) -> None:
        self._timeline, self._facts = timeline, facts
        self._started_s, self._arrived, self._hands_off = started_s, arrived, hands_off
        self._job_ids = job_ids
        self._position = {job_id: position for position, job_id in enumerate(job_ids)}
        self.steps = steps_of(resolution)
        self._soft_limits, self._time_min = soft_limits, time_min
        # Columns of the tables, which live as long as the timeline.
        jobs = timeline.state.jobs
        self._site: Jobs = jobs["site"]
        self._minutes: Jobs = jobs["time_min"]
        self._is_held: Jobs = jobs["is_held"]
        self._own_minutes = np.zeros(len(jobs), dtype=np.int64)
        self._kept = np.zeros(len(jobs), dtype=np.bool_)
        self._kept[list(hands_off)] = True

    # What stands.

    def urgency(self, jobs: Jobs) -> NDArray[np.float64]:
        """Return the urgency that the SiteFactor of each of ``jobs`` stands for; 0 where it is not Helios'."""
        site = self._site[jobs]
        level = np.where(_is_ours(site), np.minimum(np.abs(site) // STEP, self.steps), 0)
        urgency: NDArray[np.float64] = np.sign(site) * level / self.steps
        return urgency

    def soft_limit_s(self, jobs: Jobs) -> NDArray[np.float64]:
        """Return the soft limits that Helios has set, s; NaN: none."""
        ours = self._has_our_minutes(jobs)
        return np.where(ours, self._minutes[jobs] * 60.0, np.nan)

    def user_soft_limit_s(self, jobs: Jobs) -> NDArray[np.float64]:
        """Return the users' own TimeMin, s; NaN: none."""
        users = (self._minutes[jobs] > 0) & ~self._has_our_minutes(jobs)
        return np.where(users, self._minutes[jobs] * 60.0, np.nan)

    def held(self, jobs: Jobs) -> NDArray[np.bool_]:
        """Say which of ``jobs`` are held."""
        held: NDArray[np.bool_] = self._is_held[jobs] != 0
        return held

    def hands_off(self, jobs: Jobs) -> list[str | None] | None:
        """Return why each of ``jobs`` is to be left alone; None: all of them may be changed."""
        if not self._barred(jobs).any():
            return None
        return [self._why(job) or None for job in jobs.tolist()]

    def _has_our_minutes(self, jobs: Jobs) -> NDArray[np.bool_]:
        ours: NDArray[np.bool_] = (self._own_minutes[jobs] > 0) & (self._minutes[jobs] == self._own_minutes[jobs])
        return ours

    def _barred(self, jobs: Jobs) -> NDArray[np.bool_]:
        site = self._site[jobs]
        barred: NDArray[np.bool_] = self._kept[jobs] | self.held(jobs) | ((site != 0) & ~_is_ours(site))
        return barred

    def _why(self, job: int) -> str:
        if job in self._hands_off:
            return self._hands_off[job]
        if self._is_held[job]:
            return "it is held"
        site = int(self._site[job])
        return "" if site == 0 or abs(site) % STEP == MARK else f"an admin set SiteFactor {site}"

    # Acting.

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, and say what became of each job that an action names."""
        return [outcome for action in actions for outcome in self._carried_out(action)]

    def act(self, actions: Sequence[JobAction]) -> Mapping[Result, int]:
        """Act, and say only how many jobs ended in each way."""
        counts: Counter[Result] = Counter()
        for action in actions:
            if isinstance(action, Reorder):
                counts.update(self.wish(*self._ranked(action)))
            else:
                counts.update(outcome.result for outcome in self._carried_out(action))
        return counts

    def wish(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position, NaN: of none; say how many jobs ended in each way."""
        named = ~np.isnan(urgency)
        results, _, _ = self._order(jobs[named], urgency[named])
        counts = np.bincount(results, minlength=len(_RESULTS)).tolist()
        return {result: n for result, n in zip(_RESULTS, counts, strict=True) if n}

    def _order(self, jobs: Jobs, urgency: NDArray[np.float64]) -> tuple[NDArray[np.int64], Jobs, Jobs]:
        """Write the SiteFactors of distinct jobs; return what became of each, what stood and what was wished."""
        level = np.rint(np.abs(urgency) * self.steps).astype(np.int64)
        wanted = np.sign(urgency).astype(np.int64) * np.where(level > 0, level * STEP + MARK, 0)
        before = self._site[jobs]
        results = np.where(before == wanted, _UNCHANGED, _DONE)
        results[self._barred(jobs)] = _REFUSED
        results[~self._is_pending(jobs)] = _GONE
        written = results == _DONE
        if written.any():
            self._timeline.set_site_factor(jobs[written], wanted[written])
        return results, before, wanted

    def _is_pending(self, jobs: Jobs) -> NDArray[np.bool_]:
        pending: NDArray[np.bool_] = (jobs >= 0) & (jobs < self._arrived()) & (self._started_s[jobs] == NEVER)
        return pending

    def _ranked(self, reorder: Reorder) -> tuple[Jobs, NDArray[np.float64]]:
        """Return the jobs that an order names by position, each once, and their urgencies."""
        if isinstance(reorder, Ranking) and isinstance(reorder.snapshot, Glance):
            jobs = reorder.snapshot.positions(reorder.rows, self._facts)
            if jobs is not None:
                return jobs, reorder.urgency
        last = {place.job_id: place.urgency for place in reorder.order}
        jobs = np.array([self._position.get(job_id, NOBODY) for job_id in last], dtype=np.int64)
        return jobs, np.array([*last.values()], dtype=np.float64)

    def _carried_out(self, action: JobAction) -> Iterator[Outcome]:
        if isinstance(action, Reorder):
            yield from self._reordered(action)
        elif isinstance(action, SoftLimit):
            yield self._softened(action)
        else:
            yield from self._restored(action)

    def _reordered(self, reorder: Reorder) -> Iterator[Outcome]:
        for place in reorder.order:
            change = _Change("Reorder", Lever.ORDER, place.job_id, place.reason)
            job = self._position.get(place.job_id, NOBODY)
            (code,), (before,), (wanted,) = self._order(np.array([job]), np.array([place.urgency]))
            if code == _GONE:
                yield change.gone()
            elif code == _REFUSED:
                yield change.outcome(Result.REFUSED, before=int(before), remark=self._why(job))
            else:
                yield change.outcome(_RESULTS[code], before=int(before), after=int(wanted))

    def _softened(self, limit: SoftLimit) -> Outcome:
        change = _Change("SoftLimit", Lever.SOFT_LIMIT, limit.job_id, limit.reason)
        job = self.pending_position(limit.job_id)
        if job is None:
            return change.gone()
        before, wanted = int(self._minutes[job]), self._time_min(limit.run_time)
        if why := self._why(job) or self._why_not_soft(job, wanted):
            return change.outcome(Result.REFUSED, before=before, remark=why)
        return self._written(change, job, before, wanted)

    def _why_not_soft(self, job: int, wanted: int) -> str:
        if not self._soft_limits:
            return _NOT_SOFT
        if self._minutes[job] and not self._has_our_minutes(np.array([job]))[0]:
            return "the user set a --time-min"
        state = self._timeline.state
        limit = int(state.choices["limit_min"][state.jobs["first_choice"][job]])
        return "it is not below the time limit" if limit < YEAR_MIN and wanted >= limit else ""

    def _restored(self, restore: Restore) -> Iterator[Outcome]:
        levers = tuple(Lever) if restore.lever is None else (restore.lever,)
        named = restore.job_ids is not None
        for job_id in restore.job_ids if restore.job_ids is not None else self._changed():
            for lever in levers:
                change = _Change("Restore", lever, job_id, restore.reason)
                job = self.pending_position(job_id)
                if job is None:
                    yield change.gone()
                elif self._is_our(lever, job):
                    yield self._written(change, job, self._value(lever, job), 0)
                elif named:
                    yield self._left_alone(change, job)

    def _changed(self) -> list[str]:
        """Return the ids of the pending jobs on which Helios has set something."""
        waiting = np.flatnonzero(self._started_s[: self._arrived()] == NEVER)
        ours = waiting[_is_ours(self._site[waiting]) | self._has_our_minutes(waiting)]
        return [self._job_ids[job] for job in ours.tolist()]

    def _left_alone(self, change: _Change, job: int) -> Outcome:
        before, why = self._value(change.lever, job), self._why(job)
        if before and why:
            return change.outcome(Result.REFUSED, before=before, remark=why)
        return change.outcome(Result.UNCHANGED, before=before, after=before)

    def _written(self, change: _Change, job: int, before: int, wanted: int) -> Outcome:
        if before == wanted:
            return change.outcome(Result.UNCHANGED, before=before, after=before)
        its = np.array([job])
        if change.lever is Lever.ORDER:
            self._timeline.set_site_factor(its, np.array([wanted]))
        else:
            self._own_minutes[job] = wanted
            self._timeline.set_time_min(its, np.array([60.0 * wanted]))
        return change.outcome(Result.DONE, before=before, after=wanted)

    def _is_our(self, lever: Lever, job: int) -> bool:
        its = np.array([job])
        return bool(_is_ours(self._site[its])[0] if lever is Lever.ORDER else self._has_our_minutes(its)[0])

    def _value(self, lever: Lever, job: int) -> int:
        return int((self._site if lever is Lever.ORDER else self._minutes)[job])

    def pending_position(self, job_id: str) -> int | None:
        """Return the position of a pending job; None: there is none of this id."""
        job = self._position.get(job_id)
        return job if job is not None and job < self._arrived() and self._started_s[job] == NEVER else None


def _is_ours(site: Jobs) -> NDArray[np.bool_]:
    ours: NDArray[np.bool_] = np.abs(site) % STEP == MARK
    return ours


class _Change(NamedTuple):
    action: str
    lever: Lever
    job_id: str
    reason: str

    def gone(self) -> Outcome:
        return self.outcome(Result.GONE, remark="no longer pending")

    def outcome(
        self, result: Result, *, before: int | None = None, after: int | None = None, remark: str = ""
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


def _worded(lever: Lever, value: int | None) -> str:
    if value is None:
        return ""
    return f"SiteFactor {value}" if lever is Lever.ORDER else f"TimeMin {value} min"
