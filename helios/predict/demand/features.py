"""Features for demand forecasts, from busy nodes and from jobs.

Trees cannot predict values that were not in training. So every number of nodes is given as its difference from the
current one, and the target is the change from it. Each row is computed by looking back from its own step, so that the
row of a live cycle and that of a backtest over a year cannot differ.
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
"""Number of steps that a row looks back. With a shorter history some features are unknown (NaN)."""

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
_DECAYS = np.exp(-STEP_S / np.array(EWMA_S))
_EWMA_STEPS = 12 * EWMA_S[-1] // STEP_S  # older values weigh less than 1e-5

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

# Starts and ends of the intervals of ages in which the hazard is constant, s. From a minute to a month, each start is a
# quarter later than the one before.
_AGES = np.concatenate([[0.0], 60.0 * 1.25 ** np.arange(50)])
_ENDS = np.append(_AGES[1:], 1.25 * _AGES[-1])
_SIZES, _LENGTHS = 3, 15
# Pseudo-ends by which the hazard of a class is shrunk towards that of all jobs, and that of all jobs towards a prior
# (half of the jobs that have run for a time end within that time again). Chosen beforehand, not varied.
_PSEUDO_ENDS = 3.0
_REFRESH_S = 6 * 3_600
_HALF_LIFE_S = 30 * 86_400.0
_DAY_S = 86_400
_WEEK = 7
# A campaign recurs if it was submitted within half an hour of this time on two of the last seven days.
_RECURS_WITHIN_S, _RECURS_DAYS = 1_800, 2

_RUNNING, _ARRIVED, _STARTED, _ENDED, _QUEUED, _OLDEST = range(6)


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
    _fill_series_features(busy, total, rows, series)
    parts = [series, calendar.describe(start_s + (rows + 1) * STEP_S)]
    if state is not None:
        parts.append(state.values[rows])
    return np.hstack(parts).astype(np.float32)


def names(state: DemandJobState | None) -> tuple[str, ...]:
    """Return the names of the columns of ``matrix``."""
    return (*SERIES_FEATURES, *CALENDAR_FEATURES, *(state.names if state is not None else ()))


@cached_jit
def _fill_series_features(busy: Any, total: Any, rows: Any, out: Any) -> None:
    for i in range(len(rows)):
        row, now = rows[i], busy[rows[i]]
        out[i, 0] = total[row] - now
        column = 1
        for decay in _DECAYS:
            out[i, column] = _decayed_mean(busy, row, decay, _EWMA_STEPS) - now
            column += 1
        for lag in _LAGS:
            if row >= lag:
                out[i, column] = busy[row - lag] - now
            column += 1
        column = _fill_windows(busy, row, out[i], column)
        out[i, column] = _hourly_change(busy, row, DAY)
        out[i, column + 1] = _hourly_change(busy, row, 7 * DAY)
        _fill_daily_changes(busy, row, out[i], column + 2)


@inline_jit
def _decayed_mean(busy: Any, row: int, decay: float, steps: int) -> float:
    total_weight, total, weight = 0.0, 0.0, 1.0
    for back in range(min(row + 1, steps)):
        total += weight * busy[row - back]
        total_weight += weight
        weight *= decay
    return total / total_weight


@inline_jit
def _fill_windows(busy: Any, row: int, out: Any, column: int) -> int:
    """Fill in mean, maximum and minimum of ``WINDOWS``, and return the next column."""
    now, total, highest, lowest, back = busy[row], 0.0, -np.inf, np.inf, 0
    for window in _WINDOWS:
        while back < window and back <= row:
            value = busy[row - back]
            total += value
            highest, lowest = max(highest, value), min(lowest, value)
            back += 1
        out[column] = total / back - now
        out[column + 1] = highest - now
        out[column + 2] = lowest - now
        column += 3
    return column


@inline_jit
def _hourly_change(busy: Any, row: int, steps: int) -> float:
    """Return the mean absolute change from hour to hour over the last ``steps``."""
    total, n = 0.0, 0
    for back in range(0, steps, 6):
        if row - back - 6 < 0:
            break
        total += abs(busy[row - back] - busy[row - back - 6])
        n += 1
    return total / n if n else np.nan


@inline_jit
def _fill_daily_changes(busy: Any, row: int, out: Any, column: int) -> None:
    """Fill in what followed at this time of day on the last seven days.

    For each horizon it is the mean change, and the mean rise to the maximum in between.
    """
    for k, steps in enumerate(_AHEAD):
        total, rise, n = 0.0, 0.0, 0
        for day in range(1, 8):
            start = row - day * DAY
            if start < 0:
                break
            total += busy[start + steps] - busy[start]
            rise += busy[start + 1 : start + steps + 1].max() - busy[start]
            n += 1
        if n:
            out[column + k] = total / n
            out[column + len(_AHEAD) + k] = rise / n


# Features of jobs: expected ends, waiting jobs, recent arrivals and ends, and daily campaigns.
#
# They are computed in one pass over submissions, starts and ends in the order of time. The probability that a running
# job ends within the next hours follows from the hazard of run times (ends per second at risk, by age; Nelson 1969,
# Aalen 1978). The hazard is learned from ended jobs and from the ages of running ones, for each class of size and
# predicted run time. As predictions only classify jobs, a job that runs longer than predicted is no special case.


@dataclass(frozen=True, eq=False)
class _Jobs(Table):
    submitted_s: NDArray[np.int64]
    started_s: NDArray[np.int64]
    ended_s: NDArray[np.int64]
    nodes: NDArray[np.float64]
    hazard_class: NDArray[np.int64]
    is_recurring: NDArray[np.bool_]


def campaigns(jobs: pd.DataFrame) -> NDArray[np.int64]:
    """Return the number of each job's campaign, jobs of one user, name and GPU count."""
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
        s since the epoch, jobs in any order; ``NEVER_S`` where it has not happened or is unknown. A job with an unknown
        start counts as submitted only, one with an unknown end as running.
    nodes : float64 array of shape (n_jobs,)
        Nodes that the job holds, with a fraction for a part of a node.
    predicted_s : float64 array of shape (n_jobs,)
        Run time predicted at submission, s; NaN without a prediction.
    group : int64 array of shape (n_jobs,), optional
        Number of the job's campaign (see ``campaigns``); -1 where it is unknown.
    ends_of_steps_s : int64 array of shape (n_steps,)
        Ends of the steps, ascending. Only what happened strictly before is used.

    Raises
    ------
    FrameInvalid
        The columns differ in length, or the steps do not ascend.
    """
    columns = (submitted_s, started_s, ended_s, nodes, predicted_s)
    if len({len(column) for column in columns}) > 1 or (np.diff(ends_of_steps_s) <= 0).any():
        raise FrameInvalid("jobs for a job state differ in length, or its steps do not ascend")
    order = np.argsort(submitted_s, kind="stable")
    begin_s = np.maximum(started_s, submitted_s)
    end_s = np.maximum(ended_s, np.where(begin_s < NEVER_S, begin_s, submitted_s))
    campaign = np.full(len(order), -1) if group is None else np.asarray(group)[order]
    jobs = _Jobs(
        submitted_s=submitted_s[order],
        started_s=begin_s[order],
        ended_s=end_s[order],
        nodes=nodes[order].astype(np.float64),
        hazard_class=_hazard_classes(nodes[order], predicted_s[order]),
        is_recurring=_is_recurring(submitted_s[order], campaign),
    )
    values = np.zeros((len(ends_of_steps_s), len(NAMES)), dtype=np.float32)
    if len(order):
        starts = np.argsort(jobs.started_s, kind="stable")
        ends = np.argsort(jobs.ended_s, kind="stable")
        _process_events(jobs, starts, ends, np.asarray(ends_of_steps_s), _empty_state(len(order)), values)
        _fill_recent(jobs, ends, ends_of_steps_s, values)
        _fill_campaigns(jobs, ends_of_steps_s, values)
    return DemandJobState(names=NAMES, values=values)


def _hazard_classes(nodes: NDArray[np.float64], predicted_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the hazard class of each job.

    Classes are by size (below a node, a node, more) and by powers of two of the predicted run time.
    """
    size = np.where(nodes < 1, 0, np.where(nodes <= 1, 1, 2))
    known = np.isfinite(predicted_s)
    length = np.log2(np.maximum(np.where(known, predicted_s, 0.0), 60.0) / 60.0).astype(np.int64).clip(0, _LENGTHS - 2)
    return np.asarray(size * _LENGTHS + np.where(known, length, _LENGTHS - 1), dtype=np.int64)


def _is_recurring(submitted_s: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which jobs belong to a recurring campaign.

    Jobs of the campaign were submitted at about this time of day on at least two of the last seven days.
    """
    # The keys of each campaign are apart from those of others, so that one search finds times within the campaign.
    order = np.lexsort((submitted_s, group))
    times, groups = submitted_s[order], group[order]
    offset = int(times.max(initial=0)) + 2 * _WEEK * _DAY_S
    key = (groups + 1) * offset + times
    days = np.zeros(len(times), dtype=np.int64)
    for day in range(1, _WEEK + 1):
        earlier = key - day * _DAY_S
        first = np.searchsorted(key, np.maximum(earlier - _RECURS_WITHIN_S, (groups + 1) * offset), side="left")
        days += first < np.searchsorted(key, earlier + _RECURS_WITHIN_S, side="right")
    is_recurring = np.empty(len(times), dtype=np.bool_)
    is_recurring[order] = (days >= _RECURS_DAYS) & (groups >= 0)
    return is_recurring


def _fill_recent(jobs: _Jobs, ends: NDArray[np.int64], at_s: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Fill in the nodes of recently submitted and ended jobs."""
    arrived, ended = NAMES.index("arrived_1_h"), NAMES.index("ended_1_h")
    began = jobs.started_s[ends] < NEVER_S
    for k, span_s in enumerate(_RECENT_S):
        values[:, arrived + k] = _nodes_between(jobs.submitted_s, jobs.nodes, at_s - span_s, at_s)
        values[:, ended + k] = _nodes_between(
            jobs.ended_s[ends], np.where(began, jobs.nodes[ends], 0.0), at_s - span_s, at_s
        )


def _fill_campaigns(jobs: _Jobs, at_s: NDArray[np.int64], values: NDArray[np.float32]) -> None:
    """Fill in the nodes that recurring campaigns are expected to request.

    They are the mean at this time of day over the last seven days.
    """
    column = NAMES.index("recurring_1_h")
    nodes = np.where(jobs.is_recurring, jobs.nodes, 0.0)
    for k, ahead_s in enumerate(AHEAD_S):
        for day in range(1, _WEEK + 1):
            start_s = at_s - day * _DAY_S
            values[:, column + k] += _nodes_between(jobs.submitted_s, nodes, start_s, start_s + ahead_s) / _WEEK


def _nodes_between(
    times: NDArray[np.int64], nodes: NDArray[np.float64], first: NDArray[np.int64], after: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the nodes of events in [first, after), for each pair of them.

    ``times`` must ascend.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(nodes)])
    return np.asarray(cumulative[np.searchsorted(times, after)] - cumulative[np.searchsorted(times, first)])


@dataclass(frozen=True, eq=False)
class _PassState(Table):
    """State of the pass over the jobs of a pool.

    Attributes
    ----------
    running : int64 array of shape (n_jobs,)
        The first ``counts[_RUNNING]`` entries are running jobs, in any order.
    position : int64 array of shape (n_jobs,)
        Position of each job in ``running``; -1 for a job that does not run.
    counts : int64 array
        Number of jobs running, submitted, started, ended and queued, and the first job that may still wait.
    queued : float64 array of shape (1,)
        Nodes that waiting jobs request.
    n_ended, at_risk_s : float64 arrays of shape (n_classes, n_ages)
        Ends, and seconds at risk, of ended jobs, by hazard class and interval of ages.
    """

    running: NDArray[np.int64]
    position: NDArray[np.int64]
    counts: NDArray[np.int64]
    queued: NDArray[np.float64]
    n_ended: NDArray[np.float64]
    at_risk_s: NDArray[np.float64]


def _empty_state(n_jobs: int) -> _PassState:
    n_classes = _SIZES * _LENGTHS
    return _PassState(
        running=np.empty(n_jobs, dtype=np.int64),
        position=np.full(n_jobs, -1, dtype=np.int64),
        counts=np.zeros(6, dtype=np.int64),
        queued=np.zeros(1),
        n_ended=np.zeros((n_classes, len(_AGES))),
        at_risk_s=np.zeros((n_classes, len(_AGES))),
    )


@cached_jit
def _process_events(jobs: Any, starts: Any, ends: Any, at_s: Any, state: Any, values: Any) -> None:  # noqa: PLR0917 - kernels are called by position
    hazards = _cumulative_hazard(state.n_ended, state.at_risk_s)
    refresh_s = jobs.submitted_s[0] // _REFRESH_S * _REFRESH_S + _REFRESH_S
    step = 0
    while step < len(at_s):
        now = min(refresh_s, at_s[step])
        _process_submissions(jobs, state, now)
        _process_starts(jobs, starts, state, now)
        _process_ends(jobs, ends, state, now)
        running = state.running[: state.counts[_RUNNING]]
        if now == refresh_s:
            hazards = _refresh_hazards(jobs, running, now, state.n_ended, state.at_risk_s)
            refresh_s += _REFRESH_S
        if now == at_s[step]:
            _fill_running(jobs, running, now, hazards, values[step])
            _fill_queue(jobs, state, now, values[step, 2 * len(AHEAD_S) + 3 :])
            step += 1


@inline_jit
def _process_submissions(jobs: Any, state: Any, now: int) -> None:
    counts = state.counts
    while counts[_ARRIVED] < len(jobs.nodes) and jobs.submitted_s[counts[_ARRIVED]] < now:
        state.queued[0] += jobs.nodes[counts[_ARRIVED]]
        counts[_QUEUED] += 1
        counts[_ARRIVED] += 1


@inline_jit
def _process_starts(jobs: Any, starts: Any, state: Any, now: int) -> None:
    counts = state.counts
    while counts[_STARTED] < len(starts) and jobs.started_s[starts[counts[_STARTED]]] < now:
        job = starts[counts[_STARTED]]
        state.queued[0] -= jobs.nodes[job]
        counts[_QUEUED] -= 1
        state.position[job] = counts[_RUNNING]
        state.running[counts[_RUNNING]] = job
        counts[_RUNNING] += 1
        counts[_STARTED] += 1


@inline_jit
def _process_ends(jobs: Any, ends: Any, state: Any, now: int) -> None:
    counts = state.counts
    while counts[_ENDED] < len(ends) and jobs.ended_s[ends[counts[_ENDED]]] < now:
        job = ends[counts[_ENDED]]
        counts[_ENDED] += 1
        i = state.position[job]
        if i < 0:  # cancelled while it waited
            state.queued[0] -= jobs.nodes[job]
            counts[_QUEUED] -= 1
            continue
        counts[_RUNNING] -= 1
        last = state.running[counts[_RUNNING]]
        state.running[i], state.position[last], state.position[job] = last, i, -1
        age = float(jobs.ended_s[job] - jobs.started_s[job])
        _add_time_at_risk(state.at_risk_s[jobs.hazard_class[job]], age)
        state.n_ended[jobs.hazard_class[job], _age_interval(age)] += 1.0


@inline_jit
def _fill_queue(jobs: Any, state: Any, now: int, row: Any) -> None:
    """Fill in nodes and number of waiting jobs, and how long the oldest has waited."""
    counts = state.counts
    while counts[_OLDEST] < counts[_ARRIVED]:
        if min(jobs.started_s[counts[_OLDEST]], jobs.ended_s[counts[_OLDEST]]) >= now:
            break
        counts[_OLDEST] += 1
    row[0] = max(state.queued[0], 0.0)
    row[1] = counts[_QUEUED]
    row[2] = (now - jobs.submitted_s[counts[_OLDEST]]) / 3600.0 if counts[_OLDEST] < counts[_ARRIVED] else 0.0


@inline_jit
def _fill_running(jobs: Any, running: Any, now: int, hazards: Any, row: Any) -> None:
    """Fill in the nodes of running jobs, and those expected to become free."""
    held, large = 0.0, 0.0
    n_ahead = len(_AHEAD_SECONDS)
    for job in running:
        nodes = jobs.nodes[job]
        held += nodes
        large += nodes if nodes >= 1.0 else 0.0
        hazard = hazards[jobs.hazard_class[job]]
        age = float(now - jobs.started_s[job])
        hazard_so_far = _hazard_at(hazard, age)
        for k in range(n_ahead):
            released = nodes * (1.0 - np.exp(hazard_so_far - _hazard_at(hazard, age + _AHEAD_SECONDS[k])))
            row[1 + k] += released
            if nodes >= 1.0:
                row[1 + n_ahead + k] += released
    row[0] = held
    row[1 + 2 * n_ahead] = len(running)
    row[2 + 2 * n_ahead] = large


@inline_jit
def _age_interval(age: float) -> int:
    """Return the index of the interval of ages that contains ``age``."""
    if age < _AGES[1]:
        return 0
    return min(int(np.log(age / 60.0) / np.log(1.25) + 1e-9) + 1, len(_AGES) - 1)


@inline_jit
def _add_time_at_risk(at_risk_s: Any, age: float) -> None:
    """Add the time that a job spent in each interval of ages."""
    last = _age_interval(age)
    for interval in range(last):
        at_risk_s[interval] += _AGES[interval + 1] - _AGES[interval]
    at_risk_s[last] += age - _AGES[last]


@inline_jit
def _refresh_hazards(jobs: Any, running: Any, now: int, n_ended: Any, at_risk_s: Any) -> Any:
    """Decay the counts, and return the cumulative hazards with the running jobs."""
    share = 0.5 ** (_REFRESH_S / _HALF_LIFE_S)
    n_ended *= share
    at_risk_s *= share
    exposed_s = at_risk_s.copy()
    for job in running:
        _add_time_at_risk(exposed_s[jobs.hazard_class[job]], float(now - jobs.started_s[job]))
    return _cumulative_hazard(n_ended, exposed_s)


@inline_jit
def _cumulative_hazard(n_ended: Any, at_risk_s: Any) -> Any:
    """Return the cumulative hazard of each class at the start of each interval of ages.

    The last column is at the end of the last interval.
    """
    n_classes, n_ages = n_ended.shape
    cumulative = np.zeros((n_classes, n_ages + 1))
    for interval in range(n_ages):
        start, end = _AGES[interval], _ENDS[interval]
        prior = 0.7 / max(0.5 * (start + end), 600.0)
        overall = (n_ended[:, interval].sum() + _PSEUDO_ENDS) / (at_risk_s[:, interval].sum() + _PSEUDO_ENDS / prior)
        for hazard_class in range(n_classes):
            own = (n_ended[hazard_class, interval] + _PSEUDO_ENDS) / (
                at_risk_s[hazard_class, interval] + _PSEUDO_ENDS / overall
            )
            cumulative[hazard_class, interval + 1] = cumulative[hazard_class, interval] + own * (end - start)
    return cumulative


@inline_jit
def _hazard_at(cumulative: Any, age: float) -> float:
    """Return the cumulative hazard of a class at an age."""
    interval = _age_interval(age)
    start, end = _AGES[interval], _ENDS[interval]
    return float(
        cumulative[interval] + (cumulative[interval + 1] - cumulative[interval]) * (age - start) / (end - start)
    )
