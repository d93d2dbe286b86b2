"""Resampled workloads that the same site might have had.

The counted jobs of a window are resampled in one of these ways:

- Users: the jobs of each user move together by a whole number of days, cyclically in the window. No job comes twice.
- Weeks, where users are not known: whole weeks are drawn with replacement and put one after the other. Each job keeps
  its weekday and hour, user, size, limit and run time.
- Days, in windows of fewer than four weeks, or where whole weeks make another queue: days are drawn, working days for
  working days.
- Seeds, in windows of fewer than seven days: each burst of arrivals is moved within its hour.

Jobs before the window stay as they are. Days and weeks begin at the hour at which the window does, which is that of
--from, or of the history's first submission.

Predictions are made in the new timeline, from what has ended in it. So a user of the third week may come first, and
then has no history. Of a week that is drawn twice only the first copy is predicted and learned from
(:class:`DeduplicatingPredictor`), because the predictor would already know the jobs of the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.whatif import ReplaySetup, WhatIfRequest, predictor_for
from helios.choices import ResampledUnit
from helios.metrics.queue import DAY_S
from helios.model import in_submission_order
from helios.ports import RUN_TIME, ReplayPredictor
from helios.predict.duration import DurationModel
from helios.units import HOUR_S

WEEK_S = 7 * DAY_S
FEWEST_WEEKS = 4
"""Fewest weeks to resample. With fewer, days are resampled."""
FEWEST_DAYS = 7
KNOWN_USERS = 0.5
"""Smallest share of counted jobs with a known user for users to be moved."""
MISSING_S = 3 * HOUR_S
"""Time that may be missing of the last day for it to count as whole, s. Of the last week a day may be missing."""
TIMES = ("submitted_at", "eligible_at", "started_at", "ended_at")
IDS = ("job_id", "array_job_id", "het_job_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampler:
    """Blocks of the counted jobs that can be drawn.

    Attributes
    ----------
    over : ResampledUnit
    begins_s : int
        Begin of the first block, s since the epoch.
    block_s : int
        Length of a block, s.
    kind : array of shape (n_blocks,)
        A block can only replace one of its own kind. With users, jobs move by whole blocks instead.
    """

    over: ResampledUnit
    begins_s: int
    block_s: int
    kind: NDArray[np.int64]

    @property
    def blocks(self) -> int:
        """Number of blocks, 0 with seeds."""
        return len(self.kind)


def resamplers_for(setup: ReplaySetup) -> list[Resampler]:
    """Return the ways to draw a setup, the best first.

    Users where most are known, then whole weeks where there are enough, then days. Seeds only where there are too few
    days for any of these: they say nothing of other jobs that might have come.
    """
    _, span_s = _begin_and_span(setup)
    weeks, days = (span_s + DAY_S) // WEEK_S, (span_s + MISSING_S) // DAY_S
    if days < FEWEST_DAYS:
        return [resampler_for(setup, ResampledUnit.SEEDS)]
    known = {
        ResampledUnit.USERS: float((_users(setup)[setup.counted] >= 0).mean()) >= KNOWN_USERS,
        ResampledUnit.WEEKS: weeks >= FEWEST_WEEKS,
        ResampledUnit.DAYS: True,
    }
    return [resampler_for(setup, over) for over, is_known in known.items() if is_known]


def resampler_for(setup: ReplaySetup, over: ResampledUnit | None = None) -> Resampler:
    """Return the resampler of a unit, even if there are few.

    By default the first of :func:`resamplers_for`.
    """
    if over is None:
        return resamplers_for(setup)[0]
    begins_s, span_s = _begin_and_span(setup)
    weeks, days = (span_s + DAY_S) // WEEK_S, (span_s + MISSING_S) // DAY_S
    block_s, blocks = {
        ResampledUnit.WEEKS: (WEEK_S, max(weeks, 1)),
        ResampledUnit.DAYS: (DAY_S, max(days, 1)),
        ResampledUnit.USERS: (DAY_S, -(-span_s // DAY_S)),
        ResampledUnit.SEEDS: (HOUR_S, 0),
    }[over]
    kind = np.zeros(blocks, dtype=np.int64)
    if over is ResampledUnit.DAYS:
        # A block of 24 h counts as a weekend if its middle is on a Saturday or Sunday.
        middle = begins_s + DAY_S // 2 + DAY_S * np.arange(blocks)
        weekday = pd.to_datetime(middle, unit="s", utc=True).tz_convert(setup.timezone).day_of_week
        kind = np.asarray(weekday >= 5, dtype=np.int64)
    return Resampler(over=over, begins_s=begins_s, block_s=block_s, kind=kind)


def redraw(setup: ReplaySetup, resampler: Resampler, *, repeat: int, seed: int) -> ReplaySetup:
    """Return the setup with users, weeks, days or arrivals drawn again.

    The result depends only on ``repeat`` and ``seed``.
    """
    rng = np.random.default_rng([seed, repeat])
    if resampler.over is ResampledUnit.USERS:
        # Shift the jobs of each user by whole days, cyclically. Jobs without a user move together.
        user, since_s = _users(setup), setup.workload.submitted_s - resampler.begins_s
        shift_s = DAY_S * rng.integers(0, resampler.blocks, size=int(user.max()) + 2)[user]
        later_s = np.where(setup.counted, (since_s + shift_s) % (DAY_S * resampler.blocks) - since_s, 0)
        return _take_jobs(setup, np.arange(len(later_s)), later_s)
    if resampler.over is ResampledUnit.SEEDS:
        return _jitter_bursts(setup, rng)
    return _concatenate_blocks(setup, resampler, rng)


def resampled_predictor(setup: ReplaySetup, model: DurationModel | None, request: WhatIfRequest) -> ReplayPredictor:
    """Return a predictor for a setup that learns from no job twice."""
    if setup.first is None:
        return predictor_for(setup, model, request)
    is_first = setup.first == np.arange(len(setup.first))
    firsts = replace(setup, machine=replace(setup.machine, jobs=setup.machine.jobs[is_first].reset_index(drop=True)))
    return DeduplicatingPredictor(predictor_for(firsts, model, request), setup.first)


class DeduplicatingPredictor:
    """Predictor that learns from each resampled job only once.

    It is a :class:`helios.ports.ReplayPredictor` around another one. If it also learned from copies of a job, orders by
    predictions would look better than they are: on Venus the rank correlation is .46 on copies of known jobs, and .20
    on new jobs (benchmarks/sweep.py). A copy gets the prediction of its first job.

    Parameters
    ----------
    inner : ReplayPredictor
        Its jobs are numbered without the copies.
    first : int64 array of shape (n_jobs,)
        For each job of the workload the position of the job that it is a copy of, or its own.
    """

    def __init__(self, inner: ReplayPredictor, first: NDArray[np.int64]) -> None:
        self._inner = inner
        self._first = first
        self._is_first = first == np.arange(len(first))
        self._position = np.cumsum(self._is_first) - 1
        self._predictions = np.full((len(first), len(RUN_TIME)), np.nan)

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Report ended jobs to the inner predictor, copies excepted.

        See ``ReplayPredictor``.
        """
        known = self._is_first[jobs]
        self._inner.ended(self._position[jobs[known]], ended_s[known])

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict submitted jobs, copies as their first job.

        See ``ReplayPredictor``.
        """
        new = jobs[self._is_first[jobs]]
        if len(new):
            self._predictions[new] = self._inner.submitted(self._position[new], now_s)
        return self._predictions[self._first[jobs]]

    def waiting(
        self,
        jobs: NDArray[np.int64],
        now_s: int,
        *,
        running: NDArray[np.int64],
        since_s: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Predict pending jobs again, copies excepted.

        Copies keep the latest prediction of their first job. See ``ReplayPredictor``.
        """
        quantiles = self._predictions[self._first[jobs]]
        new, known = self._is_first[jobs], self._is_first[running]
        if new.any():
            quantiles[new] = self._inner.waiting(
                self._position[jobs[new]], now_s, running=self._position[running[known]], since_s=since_s[known]
            )
        return quantiles


def _concatenate_blocks(setup: ReplaySetup, resampler: Resampler, rng: np.random.Generator) -> ReplaySetup:
    submitted_s = setup.workload.submitted_s
    block = np.where(setup.counted, (submitted_s - resampler.begins_s) // resampler.block_s, -1)
    rows_by_block = [np.flatnonzero(block == number) for number in range(resampler.blocks)]
    same_kind = [np.flatnonzero(resampler.kind == kind) for kind in resampler.kind]
    while True:
        drawn = [int(rng.choice(candidates)) for candidates in same_kind]
        if any(len(rows_by_block[number]) for number in drawn):
            break
    early = np.flatnonzero(~setup.counted)
    rows = np.concatenate([early, *(rows_by_block[number] for number in drawn)])
    shifts = [(position - number) * resampler.block_s for position, number in enumerate(drawn)]
    sizes = [len(rows_by_block[number]) for number in drawn]
    later_s = np.concatenate([np.zeros(len(early), dtype=np.int64), np.repeat(shifts, sizes)])
    copy_number = np.concatenate(
        [np.zeros(len(early), dtype=np.int64), np.repeat(1 + np.arange(resampler.blocks), sizes)]
    )
    return _take_jobs(setup, rows, later_s.astype(np.int64), copy_number)


def _users(setup: ReplaySetup) -> NDArray[np.int64]:
    """Return the code of each job's user, -1 where unknown."""
    return setup.machine.jobs["user"].cat.codes.to_numpy().astype(np.int64)


def _jitter_bursts(setup: ReplaySetup, rng: np.random.Generator) -> ReplaySetup:
    """Move each burst of arrivals to another second of its hour.

    A burst is the jobs that one user submits in one second.
    """
    submitted_s = setup.workload.submitted_s
    _, burst = np.unique(np.stack([submitted_s, _users(setup)]), axis=1, return_inverse=True)
    within_s = rng.integers(0, HOUR_S, size=int(burst.max()) + 1)[burst]
    # No job moves before the begin of the replay, because earlier jobs are the predictor's history.
    drawn_s = np.maximum(submitted_s // HOUR_S * HOUR_S + within_s, submitted_s[0])
    return _take_jobs(setup, np.arange(len(drawn_s)), np.where(setup.counted, drawn_s - submitted_s, 0))


def _take_jobs(
    setup: ReplaySetup,
    rows: NDArray[np.int64],
    later_s: NDArray[np.int64],
    copy_number: NDArray[np.int64] | None = None,
) -> ReplaySetup:
    """Return the setup with the jobs of ``rows``, submitted ``later_s`` later.

    Where ``copy_number`` is above 0, the job's ids end in that number.
    """
    copy_number = np.zeros_like(later_s) if copy_number is None else copy_number
    jobs = setup.machine.jobs.iloc[rows].reset_index(drop=True)
    later = pd.Series(pd.to_timedelta(later_s, unit="s"), index=jobs.index).astype("timedelta64[us]")
    ending = pd.Series(
        np.where(copy_number > 0, "~" + copy_number.astype(str).astype(object), ""), index=jobs.index, dtype="str"
    )
    shifted = {name: jobs[name] + later for name in TIMES} | {name: jobs[name] + ending for name in IDS}
    jobs = in_submission_order(jobs.assign(**shifted, position=np.arange(len(jobs))))
    order = jobs.pop("position").to_numpy().astype(np.int64)
    jobs, rows = jobs.reset_index(drop=True), rows[order]
    _, earliest, unit = np.unique(rows, return_index=True, return_inverse=True)
    machine = setup.machine
    return replace(
        setup,
        machine=replace(machine, jobs=jobs, partition=machine.partition[rows], size=machine.size[rows]),
        counted=setup.counted[rows],
        first=earliest[unit].astype(np.int64),
    )


def _begin_and_span(setup: ReplaySetup) -> tuple[int, int]:
    begin_s, end_s = setup.window_s
    return begin_s, end_s - begin_s
