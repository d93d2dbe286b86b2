"""Online calibration of prediction intervals.

After each end p10 and p90 are moved, so that they cover as often as they should.

Trained quantiles cover too little, because the workload drifts, new users come, and one array is no sample. Here each
side of the interval has an offset for all jobs, one for each group of the job (new user, burst, large) and one for its
user; their sum moves the bound. When a job ends, every offset that moved it takes a step: up by the nominal coverage if
the run time lies outside, down by a little if inside. So each group, not only the whole, comes to miss as often as it
should, and goes on doing so under drift: subgradient descent on the pinball loss over group memberships. Sources: Gibbs
and Candes 2021 (arXiv:2106.00170, the step), Gibbs, Cherian and Candes 2023 (arXiv:2305.12616, groups), Angelopoulos,
Jordan and Tibshirani 2025 (arXiv:2501.08330, why it holds for any order of jobs).

Two departures. Whether a run time lies outside is decided by the offsets at its end, not at its submission. Otherwise a
thousand jobs submitted at once would overshoot a thousand times. And the n-th end of a burst moves the offsets by only
1/sqrt(n) (a tenth at least), because a burst is one experiment many times over.

It is strictly causal: an interval depends on ends before the job's submission. The median is not changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit
from helios.predict.causal_stats import COLUMN, LEVELS, NEVER_S, REQUEST, USER, USER_SIZE

GROUPS = ("all", "new user", "burst", "more than 8 GPUs", "more than 8 CPUs, no GPU")
"""Groups whose intervals are calibrated separately, besides each user's."""

# How often a run time may lie below p10 and above p90. Schedules depend on the upper bound, and its misses are known
# late (a long job ends late), so that it has a little less to miss, and the lower bound a little more.
MISS_BELOW, MISS_ABOVE = 0.11, 0.09
# Steps, in the job's own spread: a group's never smaller than STEP, at first FIRST_STEP / sqrt(ends). One varied at a
# time (.01 to .03, .1 to .5, .03 to .1), coverage on KTH, SDSC-BLUE, Philly and Venus moved by at most one point.
STEP, FIRST_STEP, USER_STEP = 0.02, 0.4, 0.03
# By how much p90 of a group without ends is raised, in spreads. On Philly 36 of 15,855 evaluated jobs have more than
# 8 GPUs, and so few ends teach little.
START_ABOVE = 0.25
SMALLEST_SPREAD = 0.1
# The n-th end of a burst weighs n ** BURST_POWER, but never less than LEAST_WEIGHT, because where no user is known, one
# kind of job can come for weeks without a gap.
BURST_POWER, LEAST_WEIGHT = -0.5, 0.1
# A burst: jobs of one user within ten minutes, or of one user, size and limit within six hours of the one before.
USER_BURST_GAP_S, ALIKE_BURST_GAP_S = 600, 6 * 3600
FEW_ENDED = 10
MANY = 8
# Slurm lets a job outlive its limit by KillWait (30 s) and until its next check of limits.
GRACE_S = 60.0
# p90 is cut at the limit where fewer than one ended job in a hundred has outlived its own. The share is taken over
# about the last thousand ends and begins too high, so that limits are trusted after some 700 ends that obeyed them.
OUTLIVED_BEFORE, OUTLIVED_AT_MOST, OUTLIVED_DECAY = 0.02, 0.01, 0.999

# Between two whole numbers, because features are logarithms in single precision.
_LOG_FEW = np.log1p(FEW_ENDED - 0.5)
_LOG_MANY = np.log1p(MANY + 0.01)
_LOG_USER_GAP, _LOG_ALIKE_GAP = np.log1p(USER_BURST_GAP_S + 0.5), np.log1p(ALIKE_BURST_GAP_S + 0.5)
_BELOW, _ABOVE = 0, 1


class Calibration(NamedTuple):
    """State of a predictor's calibration, without offsets of users.

    It is small, and kept with a model.

    Attributes
    ----------
    offsets : float64 array of shape (2, len(GROUPS))
        By how many of a job's spreads p10 is lowered (first row) and p90 raised (second).
    ends : float64 array of shape (len(GROUPS),)
        Number of ends that each group has learned from. Those of a burst count 1, 1/sqrt(2), 1/sqrt(3), ...
    outlived : float64 array of shape (1,)
        Share of the last ended jobs that outlived their time limit.
    """

    offsets: NDArray[np.float64]
    ends: NDArray[np.float64]
    outlived: NDArray[np.float64]


class PredictionIntervals(NamedTuple):
    """State of each job's interval until its end, and of each user.

    See :func:`empty_intervals`.

    Attributes
    ----------
    learned : Calibration
        The current calibration.
    of_user : float64 array of shape (n_groups, 2)
        A user's own offsets.
    user, alike : int32 arrays of shape (n,)
        A job's user, -1 if unknown, and the group within which it can be in a burst.
    bounds : float64 array of shape (n, 3)
        log1p of p10, p90 (as predicted) and time limit, s; NaN for a job that was not predicted.
    spread : float64 array of shape (n,)
    member : bool array of shape (n, len(GROUPS))
    burst : int64 array of shape (n,)
        First job of each job's burst.
    burst_ends : int64 array of shape (n,)
        Number of ended jobs of the burst that begins with this job.
    last_s, last_burst : int64 arrays of shape (n_groups,)
        Time of the last submission in a group, and its burst.
    """

    learned: Calibration
    of_user: NDArray[np.float64]
    user: NDArray[np.int32]
    alike: NDArray[np.int32]
    bounds: NDArray[np.float64]
    spread: NDArray[np.float64]
    member: NDArray[np.bool_]
    burst: NDArray[np.int64]
    burst_ends: NDArray[np.int64]
    last_s: NDArray[np.int64]
    last_burst: NDArray[np.int64]


def empty_calibration() -> Calibration:
    """Return the calibration before the first end.

    Quantiles stay as predicted, except for p90 of the groups, which is raised.
    """
    offsets = np.zeros((2, len(GROUPS)))
    offsets[_ABOVE, 1:] = START_ABOVE
    return Calibration(offsets=offsets, ends=np.zeros(len(GROUPS)), outlived=np.array([OUTLIVED_BEFORE]))


def empty_intervals(groups: NDArray[np.int32], *, start: Calibration | None = None) -> PredictionIntervals:
    """Return the state for a pass over jobs, with room for all of them.

    Parameters
    ----------
    groups : int32 array of shape (n, n_levels)
        As :func:`helios.predict.job_table.group_columns` makes them.
    start : Calibration, optional
        An earlier calibration to start from. It is copied.
    """
    n, n_groups = len(groups), int(groups.max(initial=-1)) + 1
    known = groups[:, USER_SIZE] >= 0
    return PredictionIntervals(
        learned=Calibration(*(part.copy() for part in start or empty_calibration())),
        of_user=np.zeros((n_groups, 2)),
        user=groups[:, USER].copy(),
        alike=np.where(known, groups[:, USER_SIZE], groups[:, REQUEST]),
        bounds=np.full((n, 3), np.nan),
        spread=np.zeros(n),
        member=np.zeros((n, len(GROUPS)), dtype=np.bool_),
        burst=np.full(n, -1, dtype=np.int64),
        burst_ends=np.zeros(n, dtype=np.int64),
        last_s=np.full(n_groups, np.iinfo(np.int64).min // 2, dtype=np.int64),
        last_burst=np.full(n_groups, -1, dtype=np.int64),
    )


def calibrate(
    features: NDArray[np.float32],
    quantiles: NDArray[np.float64],
    *,
    groups: NDArray[np.int32],
    submitted_s: NDArray[np.int64],
    ended_s: NDArray[np.int64],
    run_time_s: NDArray[np.float64],
    start: Calibration | None = None,
    until_s: int = NEVER_S,
) -> tuple[NDArray[np.float64], Calibration]:
    """Calibrate a whole recorded trace, each job at its submission.

    Parameters
    ----------
    features : float32 array of shape (n, len(FEATURES))
        In submission order.
    quantiles : float64 array of shape (n, 3)
        p10, p50 and p90 in s, ascending. The end of a job with NaN teaches nothing.
    groups : int32 array of shape (n, n_levels)
        As :func:`helios.predict.job_table.group_columns` makes them.
    ended_s : int64 array of shape (n,)
        ``NEVER_S`` for a job that has not ended.
    run_time_s : float64 array of shape (n,)
        NaN where it is unknown. Such a job teaches nothing.
    start : Calibration, optional
        The calibration before the first of these jobs.
    until_s : int
        Ends at or after this moment, s since the epoch, are not learned from.

    Returns
    -------
    quantiles : float64 array of shape (n, 3)
        Ascending in each row, with the median as given.
    learned : Calibration
        As of ``until_s``.
    """
    ended = np.flatnonzero(ended_s < min(until_s, NEVER_S))
    ended = ended[np.argsort(ended_s[ended], kind="stable")]
    intervals = empty_intervals(groups, start=start)
    found = quantiles.copy()
    _follow(intervals, submitted_s, ended, ended_s[ended], np.log1p(run_time_s), features, found)
    return found, intervals.learned


def calibrate_each(
    features: NDArray[np.float32], quantiles: NDArray[np.float64], learned: Calibration
) -> NDArray[np.float64]:
    """Calibrate predictions by a fixed calibration.

    Offsets of users are not used. Shapes are as in :func:`calibrate`.
    """
    found = quantiles.copy()
    strangers = np.full((len(found), len(LEVELS)), -1, dtype=np.int32)
    calibrate_again(empty_intervals(strangers, start=learned), np.arange(len(found)), features, found)
    return found


@cached_jit
def _follow(  # noqa: PLR0917 - numba kernels are called by position
    intervals: Any, submitted_s: Any, ends: Any, ends_s: Any, log_run: Any, features: Any, quantiles: Any
) -> None:
    next_end = 0
    for job in range(len(submitted_s)):
        while next_end < len(ends) and ends_s[next_end] < submitted_s[job]:
            _learn(intervals, ends[next_end], log_run[ends[next_end]])
            next_end += 1
        _note(intervals, job, submitted_s[job], features[job], quantiles[job])
        _move(intervals, job, intervals.member[job], features[job], quantiles[job])
    for end in ends[next_end:]:
        _learn(intervals, end, log_run[end])


def quantile_columns(features: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of ``GROUPS`` each job is in, of shape (n, len(GROUPS)).

    It follows from the job's row of ``FEATURES``.
    """
    member = np.empty((len(features), len(GROUPS)), dtype=np.bool_)
    _memberships(features, member)
    return member


@cached_jit
def _memberships(features: Any, member: Any) -> None:
    for row in range(len(features)):
        _membership(features[row], member[row])


@cached_jit
def learn_ends(intervals: Any, ends: Any, log_run: Any) -> None:
    """Update the calibration with jobs that ended, in the order of their ends.

    Parameters
    ----------
    ends : int64 array
        Jobs, as rows of the groups given to :func:`empty_intervals`. Jobs that were never predicted are skipped.
    log_run : float64 array of shape (n,)
        log1p of every job's run time, s; NaN where it is unknown.
    """
    for job in ends:
        _learn(intervals, job, log_run[job])


@cached_jit
def calibrate_submitted(intervals: Any, jobs: Any, now_s: int, features: Any, quantiles: Any) -> None:
    """Calibrate predictions of ``jobs`` submitted at ``now_s``, in place.

    Every end before ``now_s`` must have been learned.

    Parameters
    ----------
    jobs : int64 array of shape (m,)
    features : float32 array of shape (m, len(FEATURES))
    quantiles : float64 array of shape (m, 3)
        p10, p50, p90 in s, as predicted; p10 and p90 are replaced.
    """
    for place in range(len(jobs)):
        _note(intervals, jobs[place], now_s, features[place], quantiles[place])
        _move(intervals, jobs[place], intervals.member[jobs[place]], features[place], quantiles[place])


@cached_jit
def calibrate_again(intervals: Any, jobs: Any, features: Any, quantiles: Any) -> None:
    """Calibrate new predictions of waiting ``jobs``, in place.

    Their ends will still update the calibration through their first predictions.
    """
    member = np.zeros(len(GROUPS), dtype=np.bool_)
    for place in range(len(jobs)):
        _membership(features[place], member)
        _move(intervals, jobs[place], member, features[place], quantiles[place])


@inline_jit
def _note(intervals: Any, job: int, now_s: int, row: Any, quantiles: Any) -> None:
    """Store what is needed when the job ends, at its submission."""
    alike = intervals.alike[job]
    if now_s - intervals.last_s[alike] > ALIKE_BURST_GAP_S:
        intervals.last_burst[alike] = job
    intervals.last_s[alike] = now_s
    intervals.burst[job] = intervals.last_burst[alike]
    _membership(row, intervals.member[job])
    intervals.spread[job] = _spread(row)
    intervals.bounds[job, _BELOW] = np.log1p(quantiles[0])
    intervals.bounds[job, _ABOVE] = np.log1p(quantiles[2])
    intervals.bounds[job, 2] = row[COLUMN.log_limit]


@inline_jit
def _membership(row: Any, member: Any) -> None:
    """Set which of ``GROUPS`` a job is in.

    An unknown user is not a new one.
    """
    member[0] = True
    member[1] = row[COLUMN.user_ended] < _LOG_FEW
    member[2] = row[COLUMN.user_submission_gap] < _LOG_USER_GAP or row[COLUMN.user_size_submission_gap] < _LOG_ALIKE_GAP
    member[3] = row[COLUMN.gpus] > MANY
    member[4] = row[COLUMN.gpus] <= 0 and row[COLUMN.log_cpus] > _LOG_MANY


@inline_jit
def _spread(row: Any) -> float:
    spread = float(row[COLUMN.anchor_sd])
    return spread if spread > SMALLEST_SPREAD else SMALLEST_SPREAD


@inline_jit
def _offset(intervals: Any, job: int, member: Any, side: int) -> float:
    offset = 0.0
    for group in range(len(member)):
        if member[group]:
            offset += intervals.learned.offsets[side, group]
    user = intervals.user[job]
    return offset + intervals.of_user[user, side] if user >= 0 else offset


@inline_jit
def _highest(intervals: Any, log_limit: float) -> float:
    """Return log1p of the longest run time that a job's time limit allows.

    Infinite where limits are not obeyed, or the job's is unknown.
    """
    if intervals.learned.outlived[0] > OUTLIVED_AT_MOST or np.isnan(log_limit):
        return np.inf
    return float(np.log1p(np.expm1(log_limit) + GRACE_S))


@inline_jit
def _move(intervals: Any, job: int, member: Any, row: Any, quantiles: Any) -> None:
    if np.isnan(quantiles[1]):
        return
    spread = _spread(row)
    below = np.log1p(quantiles[0]) - spread * _offset(intervals, job, member, _BELOW)
    above = np.log1p(quantiles[2]) + spread * _offset(intervals, job, member, _ABOVE)
    above = min(above, _highest(intervals, row[COLUMN.log_limit]))
    quantiles[0] = max(min(np.expm1(below), quantiles[1]), 0.0)
    quantiles[2] = max(np.expm1(above), quantiles[1])


@inline_jit
def _learn(intervals: Any, job: int, log_run: float) -> None:
    if np.isnan(log_run):
        return
    bounds, member = intervals.bounds[job], intervals.member[job]
    if np.isnan(bounds[_BELOW]):
        return
    first = intervals.burst[job]
    intervals.burst_ends[first] += 1
    weight = max(float(intervals.burst_ends[first]) ** BURST_POWER, LEAST_WEIGHT)
    below = bounds[_BELOW] - intervals.spread[job] * _offset(intervals, job, member, _BELOW)
    above = bounds[_ABOVE] + intervals.spread[job] * _offset(intervals, job, member, _ABOVE)
    above = min(above, _highest(intervals, bounds[2]))
    # A run time of exactly the bound is inside, whatever the last bit of a logarithm.
    _step(intervals, job, _BELOW, weight * ((log_run < below - 1e-9) - MISS_BELOW))
    _step(intervals, job, _ABOVE, weight * ((log_run > above + 1e-9) - MISS_ABOVE))
    intervals.learned.ends[member] += weight
    _learn_limit(intervals.learned.outlived, log_run, bounds[2])


@inline_jit
def _step(intervals: Any, job: int, side: int, missed: float) -> None:
    learned = intervals.learned
    for group in range(len(GROUPS)):
        if intervals.member[job, group]:
            step = max(STEP, FIRST_STEP / np.sqrt(learned.ends[group] + 1.0))
            learned.offsets[side, group] += step * missed
    if intervals.user[job] >= 0:
        intervals.of_user[intervals.user[job], side] += USER_STEP * missed


@inline_jit
def _learn_limit(outlived: Any, log_run: float, log_limit: float) -> None:
    if np.isfinite(log_limit):
        over = log_run > np.log1p(np.expm1(log_limit) + GRACE_S)
        outlived[0] = OUTLIVED_DECAY * outlived[0] + (1.0 - OUTLIVED_DECAY) * over
