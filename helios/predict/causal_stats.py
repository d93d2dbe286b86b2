"""Features of jobs from what was known at their submission.

They are computed in one pass over submissions and ends, in the order of time. For every group of similar jobs (same
user, same user and size, ...) the pass keeps a few decayed sums. The features of a job are read from them at its
submission, before anything later is learned. The same kernel processes a whole recorded trace at once and a replay job
by job, so that the two cannot differ.

Shrinkage: the mean of each group is mixed with that of the wider group above it, which counts as a fixed number of
pseudo-observations (empirical Bayes; James and Stein 1961, Buhlmann and Straub 1970).
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.jit import Table, cached_jit, inline_jit

FEATURES = (
    *("gpus", "log_cpus", "log_nodes", "log_limit", "log_memory", "hour", "weekday"),
    *("anchor", "anchor_sd", "global_mean", "partition_mean", "request_mean", "account_mean", "user_mean"),
    *("user_limit_mean", "user_any_limit_mean", "user_size_mean", "user_family_mean", "user_name_mean"),
    *("user_any_limit_sd", "user_by_limit", "user_limit_by_limit", "user_any_limit_by_limit"),
    *("user_last_1", "user_last_2", "user_last_3", "user_any_limit_last_1", "user_any_limit_last_2"),
    *("user_size_last_1", "user_size_last_2", "user_size_last_3", "user_name_last_1"),
    *("request_last_1", "request_last_2", "partition_last_1"),
    *("user_recent_median", "user_recent_least", "user_recent_most"),
    *("neighbour_mean", "neighbour_sd", "neighbour_weight", "nearest", "nearest_distance"),
    *("user_limit_share", "user_last_share", "user_failed_share", "user_last_failed"),
    *("user_ended", "user_size_ended", "user_end_gap", "user_any_limit_end_gap"),
    *("user_submitted", "user_unended", "user_size_unended", "user_unended_age", "user_size_unended_age"),
    *("user_submission_gap", "user_size_submission_gap", "user_burst"),
)
"""Columns of a row of features. The job's request comes first, then its history."""
COLUMN: Any = namedtuple("FeatureColumns", FEATURES)(*range(len(FEATURES)))
"""Position of each of ``FEATURES``. Kernels read them as constants."""
REQUEST_FEATURES, HISTORY_FEATURES = FEATURES[: COLUMN.anchor], FEATURES[COLUMN.anchor :]
LEVELS = (
    *("global", "partition", "request", "account", "user", "user_limit"),
    *("user_any_limit", "user_size", "user_family", "user_stem", "user_name"),
)
"""Kinds of groups of similar jobs, from the widest to the narrowest. Shrinkage goes through them in this order."""
GLOBAL, PARTITION, REQUEST, ACCOUNT, USER, USER_LIMIT = range(6)
USER_ANY_LIMIT, USER_SIZE, USER_FAMILY, USER_STEM, USER_NAME = range(6, len(LEVELS))
# By level: factor of the older weights at each further end in the group, and number of pseudo-observations of the wider
# group. Both were set once and used on six real logs, but never varied.
DECAY = np.array([0.9995, 0.995, 0.995, 0.98, 0.95, 0.93, 0.90, 0.90, 0.92, 0.90, 0.85])
PSEUDO_JOBS = np.array([1.0, 8.0, 8.0, 8.0, 4.0, 3.0, 3.0, 2.0, 2.0, 2.0, 1.5])
# Whether the shrunk mean of a level is the wider mean for the next ones. The means of other levels are only features.
IN_CHAIN = np.array([level not in {PARTITION, USER_ANY_LIMIT} for level in range(len(LEVELS))])
# Prior before anything has ended: half an hour, with a standard deviation of a factor of about seven.
PRIOR_LOG_RUN, PRIOR_VARIANCE = np.log1p(1800.0), 4.0
NEIGHBOURS = 48
"""Length of the ring buffer of a user's last ended jobs."""
NEIGHBOUR_PSEUDO_JOBS = 1.0
RECENT = 10
"""Number of the user's last ended jobs whose median and extremes are features."""
BURST_GAP_S = 600
NEVER_S = np.iinfo(np.int64).max

# Columns of CausalStats.sums: of log run times, of shares of the time limit that were used, of failures, and of logs of
# run time over time limit. A weight is the number of values, decayed like their sum.
RUN_WEIGHT, RUN_SUM, _RUN_SQUARES, _LAST_1, _LAST_2, _LAST_3, _SHARE_WEIGHT, _SHARE_SUM = range(8)
_FAILED_WEIGHT, _FAILED_SUM, _RATIO_WEIGHT, _RATIO_SUM, _LAST_RATIO, _LAST_FAILED, _N_SUMS = range(8, 15)
# Columns of CausalStats.counts.
N_ENDED, N_SUBMITTED, N_UNENDED, UNENDED_SUM_S, LAST_SUBMIT_S, BURST_LENGTH, LAST_END_S, _N_COUNTS = range(8)
# Columns of CausalStats.rings.
_RUN, _SIZE, _LIMIT, _PARTITION, _STEM = range(5)


@dataclass(frozen=True, eq=False)
class Events(Table):
    """Requests of jobs, and what their ends tell.

    There is one entry per job.

    Attributes
    ----------
    submitted_s : int64, s since the epoch, ascending
    log_run : float64, log1p of the run time in s, NaN if unknown
    limit_share : float64, run time over time limit, NaN if unknown
    failed : float64, 1 if failed, 0 if not, NaN if unknown
    request : float32 of shape (n, len(REQUEST_FEATURES))
    traits : float64 of shape (n, 4): log size, log limit, partition and name stem as numbers
    groups : int32 of shape (n, len(LEVELS)), the number of the job's group at each level, -1 for none
    """

    submitted_s: NDArray[np.int64]
    log_run: NDArray[np.float64]
    limit_share: NDArray[np.float64]
    failed: NDArray[np.float64]
    request: NDArray[np.float32]
    traits: NDArray[np.float64]
    groups: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class CausalStats(Table):
    """Statistics of past jobs by group.

    The columns have names in this module.

    Attributes
    ----------
    sums : float64 array of shape (n_groups, _N_SUMS)
    counts : int64 array of shape (n_groups, _N_COUNTS)
    rings : float64 array of shape (n_users, NEIGHBOURS, 5)
        Run times and traits of each user's last ended jobs.
    ring_index : int32 array of shape (n_groups,)
        Row of ``rings`` for a group that is a user, else -1.
    ring_length : int64 array of shape (n_users,)
        How many jobs were added to each ring.
    """

    sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    rings: NDArray[np.float64]
    ring_index: NDArray[np.int32]
    ring_length: NDArray[np.int64]


def empty_stats(events: Events) -> CausalStats:
    """Return the statistics before the first job, with room for all groups."""
    n_groups = int(events.groups.max(initial=-1)) + 1
    sums = np.zeros((n_groups, _N_SUMS))
    sums[:, _LAST_1 : _LAST_3 + 1] = np.nan
    sums[:, _LAST_RATIO] = sums[:, _LAST_FAILED] = np.nan
    users = np.unique(events.groups[:, USER])
    users = users[users >= 0]
    ring_index = np.full(n_groups, -1, dtype=np.int32)
    ring_index[users] = np.arange(len(users), dtype=np.int32)
    return CausalStats(
        sums=sums,
        counts=np.zeros((n_groups, _N_COUNTS), dtype=np.int64),
        rings=np.zeros((len(users), NEIGHBOURS, 5)),
        ring_index=ring_index,
        ring_length=np.zeros(len(users), dtype=np.int64),
    )


@cached_jit
def replay_events(  # noqa: PLR0917 - numba kernels are called by position
    history: Any, events: Any, submissions: Any, ends: Any, ends_s: Any, next_end: int, features: Any
) -> int:
    """Process submissions in order, and fill in their features.

    Each end that lies strictly before a submission is learned before it.

    Parameters
    ----------
    submissions : int64 array
        Submitted jobs (rows of ``events``), in order.
    ends, ends_s : int64 arrays of equal length
        Jobs that end and when, ordered by time, then job.
    next_end : int
        First entry of ``ends`` that is not yet learned.
    features : float32 array of shape (n, len(FEATURES))
        The rows of ``submissions`` are filled in.

    Returns
    -------
    int
        The first entry of ``ends`` that is not yet learned.
    """
    for job in submissions:
        while next_end < len(ends) and ends_s[next_end] < events.submitted_s[job]:
            count_end(history, events, ends[next_end], ends_s[next_end])
            next_end += 1
        describe_job(history, events, job, features[job])
        count_submission(history, events, job)
    return next_end


@inline_jit
def describe_job(history: Any, events: Any, job: int, features: Any) -> None:
    """Fill in all features of a job at its submission."""
    features[:] = np.nan
    features[: len(REQUEST_FEATURES)] = events.request[job]
    describe_means(history, events, job, features)
    describe_last_runs(history, events.groups[job], features)
    describe_outcomes(history, events, job, events.submitted_s[job], features)
    describe_activity(history, events.groups[job], events.submitted_s[job], features)


@inline_jit
def describe_means(history: Any, events: Any, job: int, features: Any) -> None:
    """Fill in the shrunk means of the job's groups and of similar jobs."""
    mean, variance = PRIOR_LOG_RUN, PRIOR_VARIANCE
    for level in range(len(LEVELS)):
        group = events.groups[job, level]
        if group >= 0:
            shrunk_mean, spread = _shrunk(history.sums[group], PSEUDO_JOBS[level], mean, variance)
            if level <= USER_FAMILY:
                features[COLUMN.global_mean + level] = shrunk_mean
            elif level == USER_NAME:
                features[COLUMN.user_name_mean] = shrunk_mean
            if level == USER_ANY_LIMIT:
                features[COLUMN.user_any_limit_sd] = np.sqrt(spread)
            if IN_CHAIN[level]:
                mean, variance = shrunk_mean, spread
    account, user = events.groups[job, ACCOUNT], events.groups[job, USER]
    features[COLUMN.account_mean] = _share(history.sums[account], RUN_WEIGHT) if account >= 0 else np.nan
    if user >= 0:
        near, spread, weight = _neighbours(history, history.ring_index[user], events.traits[job], features)
        features[COLUMN.neighbour_weight] = weight
        if weight > 0.0:
            features[COLUMN.neighbour_mean], features[COLUMN.neighbour_sd] = near, np.sqrt(spread)
            part = weight / (weight + NEIGHBOUR_PSEUDO_JOBS)
            variance = (1.0 - part) * variance + part * spread + part * (1.0 - part) * (near - mean) ** 2
            mean += part * (near - mean)
    features[COLUMN.anchor], features[COLUMN.anchor_sd] = mean, np.sqrt(variance)


@inline_jit
def describe_last_runs(history: Any, groups: Any, features: Any) -> None:
    """Fill in the last run times of the job's groups."""
    _copy_last(history, groups[PARTITION], 1, features[COLUMN.partition_last_1 :])
    _copy_last(history, groups[REQUEST], 2, features[COLUMN.request_last_1 :])
    _copy_last(history, groups[USER], 3, features[COLUMN.user_last_1 :])
    _copy_last(history, groups[USER_ANY_LIMIT], 2, features[COLUMN.user_any_limit_last_1 :])
    _copy_last(history, groups[USER_SIZE], 3, features[COLUMN.user_size_last_1 :])
    _copy_last(history, groups[USER_NAME], 1, features[COLUMN.user_name_last_1 :])


@inline_jit
def describe_outcomes(history: Any, events: Any, job: int, now: int, features: Any) -> None:
    """Fill in number, use of limits and failures of the user's ended jobs."""
    groups = events.groups[job]
    user, key, any_limit = groups[USER], groups[USER_SIZE], groups[USER_ANY_LIMIT]
    if user < 0:
        return
    limit = float(events.request[job, COLUMN.log_limit])
    features[COLUMN.user_by_limit] = limit + _share(history.sums[user], _RATIO_WEIGHT)
    features[COLUMN.user_limit_by_limit] = limit + _share(history.sums[groups[USER_LIMIT]], _RATIO_WEIGHT)
    features[COLUMN.user_any_limit_by_limit] = limit + _share(history.sums[any_limit], _RATIO_WEIGHT)
    features[COLUMN.user_limit_share] = _share(history.sums[user], _SHARE_WEIGHT)
    features[COLUMN.user_last_share] = history.sums[user, _LAST_RATIO]
    features[COLUMN.user_failed_share] = _share(history.sums[user], _FAILED_WEIGHT)
    features[COLUMN.user_last_failed] = history.sums[user, _LAST_FAILED]
    features[COLUMN.user_ended] = np.log1p(float(history.counts[user, N_ENDED]))
    features[COLUMN.user_size_ended] = np.log1p(float(history.counts[key, N_ENDED]))
    features[COLUMN.user_end_gap] = _since_last_end(history.counts[user], now)
    features[COLUMN.user_any_limit_end_gap] = _since_last_end(history.counts[any_limit], now)


@inline_jit
def describe_activity(history: Any, groups: Any, now: int, features: Any) -> None:
    """Fill in the user's submissions, and those that have not ended."""
    user, key = groups[USER], groups[USER_SIZE]
    if user < 0:
        return
    user_counts, key_counts = history.counts[user], history.counts[key]
    features[COLUMN.user_submitted] = np.log1p(float(user_counts[N_SUBMITTED]))
    features[COLUMN.user_unended] = np.log1p(float(user_counts[N_UNENDED]))
    features[COLUMN.user_size_unended] = np.log1p(float(key_counts[N_UNENDED]))
    if user_counts[N_UNENDED] > 0:
        features[COLUMN.user_unended_age] = np.log1p(now - user_counts[UNENDED_SUM_S] / user_counts[N_UNENDED])
    if key_counts[N_UNENDED] > 0:
        features[COLUMN.user_size_unended_age] = np.log1p(now - key_counts[UNENDED_SUM_S] / key_counts[N_UNENDED])
    if user_counts[N_SUBMITTED] > 0:
        features[COLUMN.user_submission_gap] = np.log1p(float(now - user_counts[LAST_SUBMIT_S]))
    if key_counts[N_SUBMITTED] > 0:
        features[COLUMN.user_size_submission_gap] = np.log1p(float(now - key_counts[LAST_SUBMIT_S]))
    gap = now - user_counts[LAST_SUBMIT_S]
    features[COLUMN.user_burst] = np.log1p(float(user_counts[BURST_LENGTH] if gap <= BURST_GAP_S else 0))


@inline_jit
def count_submission(history: Any, events: Any, job: int) -> None:
    """Add a submission to the statistics of the job's groups."""
    now = events.submitted_s[job]
    for group in events.groups[job]:
        if group < 0:
            continue
        count = history.counts[group]
        gap = now - count[LAST_SUBMIT_S]
        count[BURST_LENGTH] = count[BURST_LENGTH] + 1 if gap <= BURST_GAP_S else 1
        count[N_SUBMITTED] += 1
        count[N_UNENDED] += 1
        count[UNENDED_SUM_S] += now
        count[LAST_SUBMIT_S] = now


@inline_jit
def count_end(history: Any, events: Any, job: int, ended_s: int) -> None:
    """Add an ended job to the statistics of its groups."""
    run = events.log_run[job]
    # With an unlimited or unknown limit this is not finite, and is not used.
    ratio = run - float(events.request[job, COLUMN.log_limit])
    for level in range(events.groups.shape[1]):
        group = events.groups[job, level]
        if group < 0:
            continue
        count = history.counts[group]
        count[N_UNENDED] -= 1
        count[UNENDED_SUM_S] -= events.submitted_s[job]
        if np.isnan(run):
            continue
        count[N_ENDED] += 1
        count[LAST_END_S] = ended_s
        _add_run(history.sums[group], run, DECAY[level])
        if np.isfinite(ratio):
            _add_share(history.sums[group], ratio, _RATIO_WEIGHT, DECAY[level])
        if level == USER:
            history.sums[group, _LAST_RATIO] = ratio if np.isfinite(ratio) else np.nan
            history.sums[group, _LAST_FAILED] = events.failed[job]
            _add_share(history.sums[group], events.limit_share[job], _SHARE_WEIGHT, DECAY[level])
            _add_share(history.sums[group], events.failed[job], _FAILED_WEIGHT, DECAY[level])
            ring = history.ring_index[group]
            entry = history.rings[ring, history.ring_length[ring] % NEIGHBOURS]
            entry[_RUN] = run
            entry[_SIZE:] = events.traits[job]
            history.ring_length[ring] += 1


@inline_jit
def _add_run(sums: Any, run: float, decay: float) -> None:
    sums[RUN_WEIGHT] = sums[RUN_WEIGHT] * decay + 1.0
    sums[RUN_SUM] = sums[RUN_SUM] * decay + run
    sums[_RUN_SQUARES] = sums[_RUN_SQUARES] * decay + run * run
    sums[_LAST_3] = sums[_LAST_2]
    sums[_LAST_2] = sums[_LAST_1]
    sums[_LAST_1] = run


@inline_jit
def _add_share(sums: Any, value: float, column: int, decay: float) -> None:
    if not np.isnan(value):
        sums[column] = sums[column] * decay + 1.0
        sums[column + 1] = sums[column + 1] * decay + value


@inline_jit
def _share(sums: Any, column: int) -> float:
    return sums[column + 1] / sums[column] if sums[column] > 0.0 else np.nan


@inline_jit
def _shrunk(sums: Any, pseudo: float, mean: float, variance: float) -> tuple[float, float]:
    """Return a group's mean and variance, shrunk towards the wider group's."""
    weight = sums[RUN_WEIGHT] + pseudo
    shrunk = (sums[RUN_SUM] + pseudo * mean) / weight
    spread = sums[_RUN_SQUARES] - 2.0 * shrunk * sums[RUN_SUM] + sums[RUN_WEIGHT] * shrunk * shrunk
    return shrunk, max((spread + pseudo * (variance + (mean - shrunk) ** 2)) / weight, 0.0)


@inline_jit
def _neighbours(history: Any, ring: int, traits: Any, features: Any) -> tuple[float, float, float]:
    """Return mean, variance and weight of the user's last ended jobs.

    More similar and more recent jobs weigh more. The features of the nearest and of the most recent jobs are set too.
    """
    total_weight, total, squares = 0.0, 0.0, 0.0
    length = history.ring_length[ring]
    for age in range(min(length, NEIGHBOURS)):
        entry = history.rings[ring, (length - 1 - age) % NEIGHBOURS]
        distance = abs(entry[_SIZE] - traits[0]) + abs(entry[_LIMIT] - traits[1])
        distance += (entry[_PARTITION] != traits[2]) + 2.0 * (entry[_STEM] != traits[3])
        if age == 0 or distance < features[COLUMN.nearest_distance]:
            features[COLUMN.nearest], features[COLUMN.nearest_distance] = entry[_RUN], distance
        weight = 1.0 / ((1.0 + 3.0 * distance) ** 2 * (1.0 + 0.15 * age))
        total_weight += weight
        total += weight * entry[_RUN]
        squares += weight * entry[_RUN] * entry[_RUN]
    if total_weight == 0.0:
        return np.nan, np.nan, 0.0
    _describe_recent(history.rings[ring], length, features)
    mean = total / total_weight
    return mean, max(squares / total_weight - mean * mean, 0.0), total_weight


@inline_jit
def _describe_recent(entries: Any, length: int, features: Any) -> None:
    n = min(length, RECENT)
    runs = np.empty(n)
    for age in range(n):
        runs[age] = entries[(length - 1 - age) % NEIGHBOURS, _RUN]
    runs.sort()
    features[COLUMN.user_recent_least], features[COLUMN.user_recent_most] = runs[0], runs[-1]
    features[COLUMN.user_recent_median] = 0.5 * (runs[(n - 1) // 2] + runs[n // 2])


@inline_jit
def _copy_last(history: Any, group: int, how_many: int, features: Any) -> None:
    if group >= 0:
        features[:how_many] = history.sums[group, _LAST_1 : _LAST_1 + how_many]


@inline_jit
def _since_last_end(count: Any, now: int) -> float:
    return np.log1p(float(now - count[LAST_END_S])) if count[N_ENDED] > 0 else np.nan
