"""What Helios sets on the jobs of a simulated Slurm, in Slurm's own values: SiteFactor and TimeMin, and whose they are.

A SiteFactor that bears no mark of Helios is an admin's, a TimeMin that Helios did not set is the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

import numpy as np
from numpy.typing import NDArray

from helios import marks
from helios.actions import JobAction, Lever, Outcome, Ranking, Reorder, Result
from helios.asked_of_jobs import GONE, Ground, Wish, slurms_terms, verdict, wishes_of
from helios.simulate.glance import Glance
from helios.simulate.jobs import steps_of
from helios.simulate.rows import Facts, Jobs
from helios.simulate.slurmlike.state import NEVER, NOBODY, YEAR_MIN
from helios.simulate.slurmlike.timeline import SlurmTimeline

_DONE, _UNCHANGED, _REFUSED, _GONE = 0, 1, 2, 3
_RESULTS = (Result.DONE, Result.UNCHANGED, Result.REFUSED, Result.GONE)


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
        self._soft_limits = soft_limits
        self._terms = slurms_terms(site_factor=partial(marks.site_factor, most=resolution), time_min=time_min)
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
        return marks.urgencies(self._site[jobs], n_steps=self.steps)

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
        barred: NDArray[np.bool_] = self._kept[jobs] | self.held(jobs) | ((site != 0) & ~marks.are_ours(site))
        return barred

    def _why(self, job: int) -> str:
        if job in self._hands_off:
            return self._hands_off[job]
        if self._is_held[job]:
            return "it is held"
        site = int(self._site[job])
        return "" if site == 0 or marks.is_ours(site) else f"an admin set SiteFactor {site}"

    # Acting.

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, and say what became of each job that an action names."""
        return [outcome for action in actions for outcome in self._carried_out(action)]

    def wish(self, jobs: Jobs, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies by position, NaN: of none; say how many jobs ended in each way."""
        named = ~np.isnan(urgency)
        results = self._order(jobs[named], urgency[named])
        counts = np.bincount(results, minlength=len(_RESULTS)).tolist()
        return {result: n for result, n in zip(_RESULTS, counts, strict=True) if n}

    def _order(self, jobs: Jobs, urgency: NDArray[np.float64]) -> NDArray[np.int64]:
        """Write the SiteFactors of distinct jobs, and return what became of each."""
        before, wanted = self._site[jobs], marks.site_factors(urgency, n_steps=self.steps)
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
        """Return the jobs that an order names by position, each once, and their urgencies."""
        if isinstance(reorder, Ranking) and isinstance(reorder.snapshot, Glance):
            jobs = reorder.snapshot.positions(reorder.rows, self._facts)
            if jobs is not None:
                return jobs, reorder.urgency
        last = {place.job_id: place.urgency for place in reorder.order}
        jobs = np.array([self._position.get(job_id, NOBODY) for job_id in last], dtype=np.int64)
        return jobs, np.array([*last.values()], dtype=np.float64)

    def _carried_out(self, action: JobAction) -> Iterator[Outcome]:
        wishes = wishes_of(
            action,
            self._terms,
            pending=self._changed,
            is_set=lambda lever, job_id: self._is_our(lever, self._position[job_id]),
        )
        return map(self._became, wishes)

    def _became(self, wish: Wish[int]) -> Outcome:
        job = self.pending_position(wish.job_id)
        if job is None:
            return wish.outcome(Result.GONE, remark=GONE)
        return verdict(wish, self._ground(wish, job)) or self._written(wish, job)

    def _ground(self, wish: Wish[int], job: int) -> Ground:
        state = self._timeline.state
        limit = int(state.choices["limit_min"][state.jobs["first_choice"][job]])
        return Ground(
            before=self._value(wish.lever, job),
            is_set=self._is_our(wish.lever, job),
            hands_off=self._why(job),
            soft_limits=self._soft_limits,
            time_limit=limit if limit < YEAR_MIN else 0,
        )

    def _changed(self) -> list[str]:
        """Return the ids of the pending jobs on which Helios has set something."""
        waiting = np.flatnonzero(self._started_s[: self._arrived()] == NEVER)
        ours = waiting[marks.are_ours(self._site[waiting]) | self._has_our_minutes(waiting)]
        return [self._job_ids[job] for job in ours.tolist()]

    def _written(self, wish: Wish[int], job: int) -> Outcome:
        its, before = np.array([job]), self._value(wish.lever, job)
        if wish.lever is Lever.ORDER:
            self._timeline.set_site_factor(its, np.array([wish.wanted]))
        else:
            self._own_minutes[job] = wish.wanted
            self._timeline.set_time_min(its, np.array([60.0 * wish.wanted]))
        return wish.outcome(Result.DONE, before=before, after=wish.wanted)

    def _is_our(self, lever: Lever, job: int) -> bool:
        if lever is Lever.ORDER:
            return marks.is_ours(int(self._site[job]))
        return bool(self._has_our_minutes(np.array([job]))[0])

    def _value(self, lever: Lever, job: int) -> int:
        return int((self._site if lever is Lever.ORDER else self._minutes)[job])

    def pending_position(self, job_id: str) -> int | None:
        """Return the position of a pending job; None: there is none of this id."""
        job = self._position.get(job_id)
        return job if job is not None and job < self._arrived() and self._started_s[job] == NEVER else None
