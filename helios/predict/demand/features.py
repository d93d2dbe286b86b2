"""Features for demand forecasts, from busy nodes and from jobs.

Trees cannot predict values that they have not seen, so every level is given as its difference from the current value,
and the target is the change from it. Each row is computed by looking back from its own step, so that the row of a live
cycle and that of a backtest over a year cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import FrameInvalid
from helios.jit import Table, cached_jit, inline_jit
from helios.metrics.node_usage import whole_seconds
from helios.model import STEP_S
from helios.predict.demand.types import AHEAD, AHEAD_S, DAY, Calendar, DemandJobState

LAGS = (1, 2, 3, 6, 12, 18, 36, 72, DAY, 7 * DAY)
WINDOWS = (6, 18, 36, 72, DAY, 7 * DAY)
"""Lengths of the windows, in steps, whose mean, maximum and minimum are features."""
EWMA_S = (900, 3_600, 3 * 3_600)
"""Time constants of the decayed means, s."""
REACH = 7 * DAY
"""Steps that a row looks back. With fewer steps some features are unknown (NaN)."""

SERIES_FEATURES = (
    "free",
    *(f"ewma_{constant_s // 60}_min" for constant_s in EWMA_S),
    *(f"lag_{lag}" for lag in LAGS),
    *(f"{what}_{window}" for window in WINDOWS for what in ("mean", "most", "least")),
    "roughness_day",
    "roughness_week",
    *(f"daily_change_{ahead}" for ahead in AHEAD),
    *(f"daily_rise_{ahead}" for ahead in AHEAD),
)
CALENDAR_FEATURES = ("hour", "weekday", "holiday", "holiday_tomorrow")
_LAGS, _WINDOWS, _AHEAD = np.array(LAGS), np.array(WINDOWS), np.array(AHEAD)
_KEPT = np.exp(-STEP_S / np.array(EWMA_S))
_EWMA_STEPS = 12 * EWMA_S[-1] // STEP_S  # older values weigh less than 1e-5


def matrix(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    *,
    start_s: int,
    rows: NDArray[np.int64],
    calendar: Calendar,
    state: DemandJobState | None,
) -> NDArray[np.float32]:
    """Return the features of the steps ``rows``, of shape (len(rows), n_features)."""
    series = np.full((len(rows), len(SERIES_FEATURES)), np.nan, dtype=np.float32)
    _describe(busy, total, rows, series)
    parts = [series, calendar.describe(start_s + (rows + 1) * STEP_S)]
    if state is not None:
        parts.append(state.values[rows])
    return np.hstack(parts).astype(np.float32)


def names(state: DemandJobState | None) -> tuple[str, ...]:
    """Return the names of the columns of ``matrix``."""
    return (*SERIES_FEATURES, *CALENDAR_FEATURES, *(state.names if state is not None else ()))


@cached_jit
def _describe(busy: Any, total: Any, rows: Any, out: Any) -> None:
    for place in range(len(rows)):
        row, now = rows[place], busy[rows[place]]
        out[place, 0] = total[row] - now
        column = 1
        for kept in _KEPT:
            out[place, column] = _decayed(busy, row, kept, _EWMA_STEPS) - now
            column += 1
        for lag in _LAGS:
            if row >= lag:
                out[place, column] = busy[row - lag] - now
            column += 1
        column = _windows(busy, row, out[place], column)
        out[place, column] = _roughness(busy, row, DAY)
        out[place, column + 1] = _roughness(busy, row, 7 * DAY)
        _seasons(busy, row, out[place], column + 2)


@inline_jit
def _decayed(busy: Any, row: int, kept: float, steps: int) -> float:
    weight, total, share = 0.0, 0.0, 1.0
    for back in range(min(row + 1, steps)):
        total += share * busy[row - back]
        weight += share
        share *= kept
    return total / weight


@inline_jit
def _windows(busy: Any, row: int, out: Any, column: int) -> int:
    """Set mean, maximum and minimum of the ascending ``WINDOWS``."""
    now, total, most, least, back = busy[row], 0.0, -np.inf, np.inf, 0
    for window in _WINDOWS:
        while back < window and back <= row:
            value = busy[row - back]
            total += value
            most, least = max(most, value), min(least, value)
            back += 1
        out[column] = total / back - now
        out[column + 1] = most - now
        out[column + 2] = least - now
        column += 3
    return column


@inline_jit
def _roughness(busy: Any, row: int, steps: int) -> float:
    """Return the mean change from hour to hour over the last ``steps``."""
    total, seen = 0.0, 0
    for back in range(0, steps, 6):
        if row - back - 6 < 0:
            break
        total += abs(busy[row - back] - busy[row - back - 6])
        seen += 1
    return total / seen if seen else np.nan


@inline_jit
def _seasons(busy: Any, row: int, out: Any, column: int) -> None:
    """Set what followed at this hour on the last seven days.

    It is the mean change, and the mean rise to the maximum in between.
    """
    for number, steps in enumerate(_AHEAD):
        total, rise, seen = 0.0, 0.0, 0
        for day in range(1, 8):
            then = row - day * DAY
            if then < 0:
                break
            total += busy[then + steps] - busy[then]
            rise += busy[then + 1 : then + steps + 1].max() - busy[then]
            seen += 1
        if seen:
            out[column + number] = total / seen
            out[column + len(_AHEAD) + number] = rise / seen


# Features of jobs: expected ends, waiting jobs, recent arrivals and ends, and daily campaigns.
#
# They are computed in one pass over submissions, starts and ends in the order of time. The chance that a running job
# ends within the next hours follows from the hazard of run times (ends per second at risk, by age; Nelson 1969, Aalen
# 1978). The hazard is learned from ended jobs and from the ages of running ones, separately by size and by predicted
# run time. So a prediction shows which jobs are alike, not when a job must end, and a job beyond its prediction is not
# a special case.

NEVER_S = np.iinfo(np.int64).max
NAMES = (
    "held",
    *(f"released_{ahead_s // 3600}_h" for ahead_s in AHEAD_S),
    *(f"whole_released_{ahead_s // 3600}_h" for ahead_s in AHEAD_S),
    "running",
    "large_held",
    "queued",
    "queued_jobs",
    "queued_since_h",
    *(f"arrived_{hours}_h" for hours in (1, 3, 24)),
    *(f"ended_{hours}_h" for hours in (1, 3, 24)),
    *(f"recurring_{ahead_s // 3600}_h" for ahead_s in AHEAD_S),
)
_RECENT_S = np.array([3_600, 3 * 3_600, 86_400])
_AHEAD_SECONDS = np.array(AHEAD_S, dtype=np.float64)

# Ages at which the hazard may change, each a quarter longer than the one before, from a minute to a month.
_AGES = np.concatenate([[0.0], 60.0 * 1.25 ** np.arange(50)])
_ENDS = np.append(_AGES[1:], 1.25 * _AGES[-1])
_SIZES, _LENGTHS = 3, 15
# Pseudo-ends by which a class's hazard is shrunk towards that of all jobs, and that of all jobs towards a rule of thumb
# (half of the jobs that have run for a time end within that time again). Chosen beforehand, not varied.
_PSEUDO_ENDS = 3.0
_REFRESH_S = 6 * 3_600
_HALF_LIFE_S = 30 * 86_400.0
_DAY_S = 86_400
_WEEK = 7
# A campaign recurs if it was submitted within half an hour of this time on two of the last seven days.
_RECURS_WITHIN_S, _RECURS_DAYS = 1_800, 2


@dataclass(frozen=True, eq=False)
class _Jobs(Table):
    submitted_s: NDArray[np.int64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    nodes: NDArray[np.float64]
    kind: NDArray[np.int64]
    recurs: NDArray[np.bool_]


def campaigns(jobs: pd.DataFrame) -> NDArray[np.int64]:
    """Return the number of each job's campaign.

    A campaign is the jobs of one user with one name and GPU count.
    """
    return np.asarray(jobs.groupby(["user", "name", "gpus"], observed=True, dropna=False).ngroup(), dtype=np.int64)


def state_of_jobs(
    jobs: pd.DataFrame,
    *,
    nodes: NDArray[np.float64],
    predicted_s: NDArray[np.float64],
    ends_of_steps_s: NDArray[np.int64],
) -> DemandJobState:
    """Return the state of the jobs in a frame at each step.

    See :func:`job_state`; ``jobs`` has columns of ``JOBS``.
    """
    submitted_s, started_s, ended_s = (
        whole_seconds(jobs[name], otherwise=NEVER_S) for name in ("submitted_at", "started_at", "ended_at")
    )
    return job_state(
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s,
        nodes=nodes,
        predicted_s=predicted_s,
        group=campaigns(jobs),
        ends_of_steps_s=ends_of_steps_s,
    )


def job_state(
    *,
    submitted_s: NDArray[np.int64],
    started_s: NDArray[np.int64],
    ended_s: NDArray[np.int64],
    nodes: NDArray[np.float64],
    predicted_s: NDArray[np.float64],
    group: NDArray[np.int64] | None = None,
    ends_of_steps_s: NDArray[np.int64],
) -> DemandJobState:
    """Return features of a pool's jobs at the end of each step.

    Parameters
    ----------
    submitted_s, started_s, ended_s : int64 arrays of shape (n_jobs,)
        s since the epoch, jobs in any order; ``NEVER_S`` where it has not happened or is unknown. A job with unknown
        start counts as an arrival only, one with unknown end as running.
    nodes : float64 array of shape (n_jobs,)
        Nodes that the job holds, a part of a node as a fraction.
    predicted_s : float64 array of shape (n_jobs,)
        Run time predicted at submission, s; NaN without a prediction.
    group : int64 array of shape (n_jobs,), optional
        Number of the job's campaign (same user, size and name); -1 where it is unknown.
    ends_of_steps_s : int64 array of shape (n_steps,)
        Ends of the steps, ascending. Only what had happened before is used.

    Raises
    ------
    FrameInvalid
        The columns differ in length, or the steps do not ascend.
    """
    columns = (submitted_s, started_s, ended_s, nodes, predicted_s)
    if len({len(column) for column in columns}) > 1 or (np.diff(ends_of_steps_s) <= 0).any():
        raise FrameInvalid("jobs for a job state differ in length, or its steps do not ascend")
    order = np.argsort(submitted_s, kind="stable")
    begun_s = np.maximum(started_s, submitted_s)
    over_s = np.maximum(ended_s, np.where(begun_s < NEVER_S, begun_s, submitted_s))
    grouped = np.full(len(order), -1) if group is None else np.asarray(group)[order]
    jobs = _Jobs(
        submitted_s=submitted_s[order],
        started_s=begun_s[order],
        ended_s=over_s[order],
        nodes=nodes[order].astype(np.float64),
        kind=_kinds(nodes[order], predicted_s[order]),
        recurs=_recurring(submitted_s[order], grouped),
    )
    values = np.zeros((len(ends_of_steps_s), len(NAMES)), dtype=np.float32)
    if len(order):
        starts = np.argsort(jobs.started_s, kind="stable")
        ends = np.argsort(jobs.ended_s, kind="stable")
        _walk(jobs, starts, ends, np.asarray(ends_of_steps_s), _nothing_yet(len(order)), values)
        _recent(jobs, ends, ends_of_steps_s, values)
        _campaigns(jobs, ends_of_steps_s, values)
    return DemandJobState(names=NAMES, values=values)


def _kinds(nodes: NDArray[np.float64], predicted_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the class of each job's hazard.

    Classes are by size (below a node, a node, more) and by powers of two of the predicted run time.
    """
    size = np.where(nodes < 1, 0, np.where(nodes <= 1, 1, 2))
    known = np.isfinite(predicted_s)
    length = np.log2(np.maximum(np.where(known, predicted_s, 0.0), 60.0) / 60.0).astype(np.int64).clip(0, _LENGTHS - 2)
    return np.asarray(size * _LENGTHS + np.where(known, length, _LENGTHS - 1), dtype=np.int64)


def _recurring(submitted_s: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which jobs belong to a recurring campaign.

    Jobs of the same campaign were then submitted at this time of day on enough of the last seven days.
    """
    order = np.lexsort((submitted_s, group))
    times, groups = submitted_s[order], group[order]
    reach = int(times.max(initial=0)) + 2 * _WEEK * _DAY_S
    key = (groups + 1) * reach + times
    days = np.zeros(len(times), dtype=np.int64)
    for day in range(1, _WEEK + 1):
        then = key - day * _DAY_S
        first = np.searchsorted(key, np.maximum(then - _RECURS_WITHIN_S, (groups + 1) * reach), side="left")
        days += first < np.searchsorted(key, then + _RECURS_WITHIN_S, side="right")
    recurs = np.empty(len(times), dtype=np.bool_)
    recurs[order] = (days >= _RECURS_DAYS) & (groups >= 0)
    return recurs


def _recent(jobs: _Jobs, ends: NDArray[np.int64], at_s: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    arrived, ended = NAMES.index("arrived_1_h"), NAMES.index("ended_1_h")
    began = jobs.started_s[ends] < NEVER_S
    for number, span_s in enumerate(_RECENT_S):
        values[:, arrived + number] = _between(jobs.submitted_s, jobs.nodes, at_s - span_s, at_s)
        values[:, ended + number] = _between(
            jobs.ended_s[ends], np.where(began, jobs.nodes[ends], 0.0), at_s - span_s, at_s
        )


def _campaigns(jobs: _Jobs, at_s: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Set the nodes that recurring campaigns are expected to request.

    It is the mean at this time of day over the last seven days.
    """
    column = NAMES.index("recurring_1_h")
    nodes = np.where(jobs.recurs, jobs.nodes, 0.0)
    for number, ahead_s in enumerate(AHEAD_S):
        for day in range(1, _WEEK + 1):
            then = at_s - day * _DAY_S
            values[:, column + number] += _between(jobs.submitted_s, nodes, then, then + ahead_s) / _WEEK


def _between(
    times: NDArray[np.int64], nodes: NDArray[np.float64], first: NDArray[np.int64], after: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the nodes of events in [first, after), for each pair.

    ``times`` must ascend.
    """
    so_far = np.concatenate([[0.0], np.cumsum(nodes)])
    return np.asarray(so_far[np.searchsorted(times, after)] - so_far[np.searchsorted(times, first)])


@dataclass(frozen=True, eq=False)
class _Moment(Table):
    """State of the pass over the jobs of a pool.

    It has running and waiting jobs, and the hazard so far.

    Attributes
    ----------
    running : int64 array of shape (n_jobs,)
        The first ``counts[_RUNNING]`` entries are running jobs, in any order.
    place_of : int64 array of shape (n_jobs,)
        Position of each job in ``running``; -1 for a job that does not run.
    counts : int64 array
        Number of jobs running, arrived, begun, over and queued, and the first job that may still wait.
    queued : float64 array of shape (1,)
        Nodes that waiting jobs request.
    died, risked : float64 arrays of shape (n_kinds, n_ages)
        Ends, and seconds at risk, of the jobs that ended.
    """

    running: NDArray[np.int64]
    place_of: NDArray[np.int64]
    counts: NDArray[np.int64]
    queued: NDArray[np.float64]
    died: NDArray[np.float64]
    risked: NDArray[np.float64]


_RUNNING, _ARRIVED, _BEGUN, _OVER, _QUEUED, _OLDEST = range(6)


def _nothing_yet(n_jobs: int) -> _Moment:
    n_kinds = _SIZES * _LENGTHS
    return _Moment(
        running=np.empty(n_jobs, dtype=np.int64),
        place_of=np.full(n_jobs, -1, dtype=np.int64),
        counts=np.zeros(6, dtype=np.int64),
        queued=np.zeros(1),
        died=np.zeros((n_kinds, len(_AGES))),
        risked=np.zeros((n_kinds, len(_AGES))),
    )


@cached_jit
def _walk(jobs: Any, starts: Any, ends: Any, at_s: Any, moment: Any, values: Any) -> None:  # noqa: PLR0917 - kernels are called by position
    cumulated = _cumulated(moment.died, moment.risked)
    refresh_s = jobs.submitted_s[0] // _REFRESH_S * _REFRESH_S + _REFRESH_S
    step = 0
    while step < len(at_s):
        now = min(refresh_s, at_s[step])
        _arrive(jobs, moment, now)
        _begin(jobs, starts, moment, now)
        _end(jobs, ends, moment, now)
        running = moment.running[: moment.counts[_RUNNING]]
        if now == refresh_s:
            cumulated = _refreshed(jobs, running, now, moment.died, moment.risked)
            refresh_s += _REFRESH_S
        if now == at_s[step]:
            _tell(jobs, running, now, cumulated, values[step])
            _tell_queue(jobs, moment, now, values[step, 2 * len(AHEAD_S) + 3 :])
            step += 1


@inline_jit
def _arrive(jobs: Any, moment: Any, now: int) -> None:
    counts = moment.counts
    while counts[_ARRIVED] < len(jobs.nodes) and jobs.submitted_s[counts[_ARRIVED]] < now:
        moment.queued[0] += jobs.nodes[counts[_ARRIVED]]
        counts[_QUEUED] += 1
        counts[_ARRIVED] += 1


@inline_jit
def _begin(jobs: Any, starts: Any, moment: Any, now: int) -> None:
    counts = moment.counts
    while counts[_BEGUN] < len(starts) and jobs.started_s[starts[counts[_BEGUN]]] < now:
        job = starts[counts[_BEGUN]]
        moment.queued[0] -= jobs.nodes[job]
        counts[_QUEUED] -= 1
        moment.place_of[job] = counts[_RUNNING]
        moment.running[counts[_RUNNING]] = job
        counts[_RUNNING] += 1
        counts[_BEGUN] += 1


@inline_jit
def _end(jobs: Any, ends: Any, moment: Any, now: int) -> None:
    counts = moment.counts
    while counts[_OVER] < len(ends) and jobs.ended_s[ends[counts[_OVER]]] < now:
        job = ends[counts[_OVER]]
        counts[_OVER] += 1
        place = moment.place_of[job]
        if place < 0:  # cancelled while it waited
            moment.queued[0] -= jobs.nodes[job]
            counts[_QUEUED] -= 1
            continue
        counts[_RUNNING] -= 1
        last = moment.running[counts[_RUNNING]]
        moment.running[place], moment.place_of[last], moment.place_of[job] = last, place, -1
        age = float(jobs.ended_s[job] - jobs.started_s[job])
        _expose(moment.risked[jobs.kind[job]], age)
        moment.died[jobs.kind[job], _age(age)] += 1.0


@inline_jit
def _tell_queue(jobs: Any, moment: Any, now: int, row: Any) -> None:
    counts = moment.counts
    while counts[_OLDEST] < counts[_ARRIVED]:
        if min(jobs.started_s[counts[_OLDEST]], jobs.ended_s[counts[_OLDEST]]) >= now:
            break
        counts[_OLDEST] += 1
    row[0] = max(moment.queued[0], 0.0)
    row[1] = counts[_QUEUED]
    row[2] = (now - jobs.submitted_s[counts[_OLDEST]]) / 3600.0 if counts[_OLDEST] < counts[_ARRIVED] else 0.0


@inline_jit
def _tell(jobs: Any, running: Any, now: int, cumulated: Any, row: Any) -> None:
    held, large = 0.0, 0.0
    n_ahead = len(_AHEAD_SECONDS)
    for job in running:
        nodes = jobs.nodes[job]
        held += nodes
        large += nodes if nodes >= 1.0 else 0.0
        hazard = cumulated[jobs.kind[job]]
        age = float(now - jobs.started_s[job])
        so_far = _at(hazard, age)
        for number in range(n_ahead):
            gone = nodes * (1.0 - np.exp(so_far - _at(hazard, age + _AHEAD_SECONDS[number])))
            row[1 + number] += gone
            if nodes >= 1.0:
                row[1 + n_ahead + number] += gone
    row[0] = held
    row[1 + 2 * n_ahead] = len(running)
    row[2 + 2 * n_ahead] = large


@inline_jit
def _age(age: float) -> int:
    """Return the index of the interval of ages that contains ``age``."""
    if age < _AGES[1]:
        return 0
    return min(int(np.log(age / 60.0) / np.log(1.25) + 1e-9) + 1, len(_AGES) - 1)


@inline_jit
def _expose(risked: Any, age: float) -> None:
    last = _age(age)
    for stretch in range(last):
        risked[stretch] += _AGES[stretch + 1] - _AGES[stretch]
    risked[last] += age - _AGES[last]


@inline_jit
def _refreshed(jobs: Any, running: Any, now: int, died: Any, risked: Any) -> Any:
    """Decay the past, and return the cumulated hazards.

    They include the time at risk of the running jobs so far.
    """
    share = 0.5 ** (_REFRESH_S / _HALF_LIFE_S)
    died *= share
    risked *= share
    lived = risked.copy()
    for job in running:
        _expose(lived[jobs.kind[job]], float(now - jobs.started_s[job]))
    return _cumulated(died, lived)


@inline_jit
def _cumulated(died: Any, risked: Any) -> Any:
    """Return the cumulated hazard at the start of each interval of ages.

    The last column is at the end of the last interval.
    """
    n_kinds, n_ages = died.shape
    summed = np.zeros((n_kinds, n_ages + 1))
    for stretch in range(n_ages):
        start, end = _AGES[stretch], _ENDS[stretch]
        thumb = 0.7 / max(0.5 * (start + end), 600.0)
        of_all = (died[:, stretch].sum() + _PSEUDO_ENDS) / (risked[:, stretch].sum() + _PSEUDO_ENDS / thumb)
        for kind in range(n_kinds):
            own = (died[kind, stretch] + _PSEUDO_ENDS) / (risked[kind, stretch] + _PSEUDO_ENDS / of_all)
            summed[kind, stretch + 1] = summed[kind, stretch] + own * (end - start)
    return summed


@inline_jit
def _at(summed: Any, age: float) -> float:
    stretch = _age(age)
    start, end = _AGES[stretch], _ENDS[stretch]
    return float(summed[stretch] + (summed[stretch + 1] - summed[stretch]) * (age - start) / (end - start))
