"""Distribution of run times, learned from pairs of job and threshold.

One binary LightGBM model learns P(T <= t). For training, each job is paired with a few thresholds t, which are drawn
from earlier jobs and never from its own run time. A pair can be used once the job's age exceeds the threshold, whether
the job has ended or not. The features of a pair are those of the job, the threshold, its difference from earlier run
times, and the untrained distributions of :mod:`helios.predict.past_runs` at the threshold. The trees can so learn that
a job takes as long as the one before: a step where t equals the last run time.

All features that depend on the threshold rise with it. So for one job each tree is a step function of the threshold,
and is evaluated for a whole grid of thresholds at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from helios.jit import inline_jit
from helios.ports import HORIZON_S, RUN_TIME
from helios.predict.causal_stats import COLUMN, FEATURES
from helios.predict.past_runs import (
    ANCHOR,
    ANCHORS,
    KEY,
    LONGEST,
    NEAR,
    SAMPLES,
    SHORTEST,
    STARTED,
    STARTED_ALIKE,
    distributions,
)

JOB_FEATURES = (
    *("gpus", "log_cpus", "log_nodes", "log_memory", "log_limit", "hour"),
    *("anchor", "anchor_sd", "user_mean", "request_mean"),
    *("user_any_limit_sd", "neighbour_sd", "neighbour_weight", "nearest_distance", "user_limit_share"),
    *("user_last_share", "user_failed_share", "user_last_failed", "user_ended", "user_size_ended", "user_end_gap"),
    *("user_any_limit_end_gap", "user_submitted", "user_unended", "user_size_unended", "user_unended_age"),
    *("user_size_unended_age", "user_submission_gap", "user_size_submission_gap", "user_burst"),
)
"""Features of a job that do not depend on the threshold."""
JOB_ANCHORS = (
    *("running", "running_alike", "near_weight", "started_weight", "request_weight", "key_ended"),
    "last_two_apart",
)
"""Anchors of a job that are features and do not depend on the threshold."""
SINCE_FEATURES = (
    *("anchor", "user_last_1", "user_last_2", "user_last_3", "user_recent_median", "user_recent_most"),
    *("neighbour_mean", "nearest", "log_limit", "user_by_limit", "user_mean", "request_last_1", "partition_last_1"),
    "user_name_last_1",
)
"""Features of a job that are subtracted from the threshold."""
SINCE_ANCHORS = (
    *("key_last_1", "key_last_2", "near_p10", "near_p50", "near_p90", "started_p50", "request_p50"),
    *("running_longest", "running_alike_longest", "running_alike_mean"),
)
_JOB_COLUMNS = np.array([COLUMN[FEATURES.index(name)] for name in JOB_FEATURES])
_JOB_ANCHOR_COLUMNS = np.array([ANCHORS.index(name) for name in JOB_ANCHORS])
_SINCE_COLUMNS = np.array([FEATURES.index(name) for name in SINCE_FEATURES])
_SINCE_ANCHOR_COLUMNS = np.array([ANCHORS.index(name) for name in SINCE_ANCHORS])
N_SINCE = len(_SINCE_COLUMNS) + len(_SINCE_ANCHOR_COLUMNS)
N_THRESHOLD = 1 + N_SINCE + 1 + 6 + 1
N_JOB = len(_JOB_COLUMNS) + len(_JOB_ANCHOR_COLUMNS)
PAIR_FEATURES = (
    "threshold",
    *(f"since_{name}" for name in (*SINCE_FEATURES, *SINCE_ANCHORS)),
    "since_anchor_in_sd",
    *(f"by_{name}" for name in (*SAMPLES, "mixture")),
    "odds_by_mixture",
    *JOB_FEATURES,
    *JOB_ANCHORS,
)
"""Names of the columns of a pair: those that rise with the threshold, then those of the job."""
THRESHOLDS = 6
"""Number of thresholds that each job is paired with for training."""
N_FIXED, GRID = 32, 60
"""Number of fixed thresholds at which a job is predicted, and of all."""
GRID_WIDTH = 64
"""Length of a row of grid features, a multiple of a vector register. Entries from ``GRID`` on are NaN."""
_FIXED_TIMES = np.linspace(0.7, LONGEST, N_FIXED)

DENSE = 0.3
"""Half width, in log time, of the densest window, whose middle is ``typical``."""


@inline_jit
def _uniform(seed: int) -> float:
    """Return a number in [0, 1) that follows from ``seed`` alone (splitmix64)."""
    z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@inline_jit
def _from_sample(samples: Any, sample: int, share: float) -> Any:
    """Return the value at a share of the length of a sorted sample."""
    n = samples.length[sample]
    return samples.value[sample, min(int(share * n), n - 1)]


@inline_jit
def draw_thresholds(samples: Any, last: float, job: int, out: Any) -> None:
    """Draw ascending thresholds to train with, from the runs of earlier jobs.

    Most are at a random earlier run time, plus normal noise. ``last`` is the user's last run time.
    """
    for k in range(len(out)):
        seed = (job * len(out) + k) * 4
        choice, share = _uniform(seed), _uniform(seed + 1)
        noise = np.sqrt(-2.0 * np.log(_uniform(seed + 2) + 1e-12)) * np.cos(2.0 * np.pi * _uniform(seed + 3))
        if choice < 0.25 and samples.length[NEAR] > 0:
            t = _from_sample(samples, NEAR, share) + 0.5 * noise
        elif choice < 0.42 and not np.isnan(last):
            t = last + 0.2 * noise
        elif choice < 0.5 and samples.length[KEY] > 0:
            t = _from_sample(samples, KEY, share) + 0.2 * noise
        elif choice < 0.67 and samples.length[STARTED_ALIKE] > 0:
            t = _from_sample(samples, STARTED_ALIKE, share) + 0.6 * noise
        elif choice < 0.92 and samples.length[STARTED] > 0:
            t = _from_sample(samples, STARTED, share) + 0.8 * noise
        else:
            t = 0.5 + share * (LONGEST - 0.5)
        out[k] = min(max(t, 0.3 + 0.4 * share), LONGEST)
    out.sort()


@inline_jit
def choose_grid(samples: Any, features: Any, out: Any) -> None:
    """Fill in the ascending thresholds at which a job is predicted.

    Some are fixed, and some are at earlier run times. An unknown one is replaced by a fixed one.
    """
    anchors = samples.anchors
    first, last = _FIXED_TIMES[0], _FIXED_TIMES[-1]
    out[:N_FIXED] = _FIXED_TIMES
    i = N_FIXED
    # The first seven anchors: the last runs of the same size and limit, and quantiles of near jobs.
    for k in range(7):
        t = anchors[k] if not np.isnan(anchors[k]) else first + (last - first) * (k + 1.2) / 9.0
        out[i], out[i + 1] = t - 0.1, t + 0.1
        i += 2
    t = features[COLUMN.user_last_1] if not np.isnan(features[COLUMN.user_last_1]) else _FIXED_TIMES[3] + 0.2
    out[i], out[i + 1], out[i + 2], out[i + 3] = t - 0.1, t + 0.1, t - 0.4, t + 0.4
    i += 4
    anchor, spread = features[COLUMN.anchor], max(features[COLUMN.anchor_sd], 0.1)
    for k in range(5):
        t = anchors[ANCHOR.request_p10 + k]
        out[i] = t if not np.isnan(t) else anchor + (k - 2) * 0.5 * spread
        i += 1
    out[i] = anchor
    limit = features[COLUMN.log_limit] if np.isfinite(features[COLUMN.log_limit]) else last - 0.2
    out[i + 1], out[i + 2] = limit - 0.05, limit + 0.02
    i += 3
    for k in range(i, len(out)):
        out[k] = first + (last - first) * (k - 54 + 0.5) / 7.0
    for k in range(len(out)):
        out[k] = min(max(out[k], SHORTEST), LONGEST)
    out.sort()


@inline_jit
def describe_thresholds(times: Any, samples: Any, features: Any, cdfs: Any, out: Any) -> None:
    """Fill in the features of ascending thresholds, a column each.

    Each row ascends too. ``cdfs`` is filled in as by :func:`helios.predict.past_runs.distributions`.
    """
    distributions(times, samples, features[COLUMN.anchor], features[COLUMN.anchor_sd], cdfs)
    spread = max(features[COLUMN.anchor_sd], 0.1)
    m = len(times)
    for i in range(m):
        out[0, i] = times[i]
        out[1 + N_SINCE, i] = (times[i] - features[COLUMN.anchor]) / spread
        cdf = min(max(cdfs[5, i], 1e-4), 1.0 - 1e-4)
        out[8 + N_SINCE, i] = np.log(cdf / (1.0 - cdf))
    for k in range(len(_SINCE_COLUMNS)):
        for i in range(m):
            out[1 + k, i] = times[i] - features[_SINCE_COLUMNS[k]]
    for k in range(len(_SINCE_ANCHOR_COLUMNS)):
        for i in range(m):
            out[1 + len(_SINCE_COLUMNS) + k, i] = times[i] - samples.anchors[_SINCE_ANCHOR_COLUMNS[k]]
    for k in range(6):
        for i in range(m):
            out[2 + N_SINCE + k, i] = cdfs[k, i]


@inline_jit
def describe_pair_job(samples: Any, features: Any, out: Any) -> None:
    """Fill in a job's features that do not depend on the threshold."""
    for k in range(len(_JOB_COLUMNS)):
        out[k] = features[_JOB_COLUMNS[k]]
    for k in range(len(_JOB_ANCHOR_COLUMNS)):
        out[len(_JOB_COLUMNS) + k] = samples.anchors[_JOB_ANCHOR_COLUMNS[k]]


@inline_jit
def place_threshold_splits(forest: Any, features: Any, split_at: Any) -> None:
    """Find the positions on the grid of splits on features of the threshold.

    Parameters
    ----------
    features : float32 array of shape (N_THRESHOLD, GRID_WIDTH)
    split_at : int32 array of shape (n_splits,)
        For each split, the first threshold of the grid that does not go left. All nodes with the same split share it.
    """
    for split in range(len(split_at)):
        feature, threshold = forest.feature[split], forest.threshold[split]
        if feature >= N_THRESHOLD:
            return
        values = features[feature]
        if np.isnan(values[0]):
            split_at[split] = GRID if forest.missing_left[split] else 0
        else:
            # Counting takes half the time of a binary search.
            count = np.int32(0)
            for i in range(GRID_WIDTH):
                count += np.int32(values[i] <= threshold)
            split_at[split] = count


@inline_jit
def place_job_splits(forest: Any, job_features: Any, split_at: Any) -> bool:
    """Find the splits on the job's features, and whether any moved.

    All thresholds go the same way, so each position is at one end of the grid. ``split_at`` is that of
    :func:`place_threshold_splits`.
    """
    changed = False
    for split in range(len(split_at) - 1, -1, -1):
        feature, threshold = forest.feature[split], forest.threshold[split]
        if feature < N_THRESHOLD:
            break
        value = job_features[feature - N_THRESHOLD]
        goes_left = forest.missing_left[split] if np.isnan(value) else value <= threshold
        position = np.int32(GRID) if goes_left else np.int32(0)
        changed |= position != split_at[split]
        split_at[split] = position
    return changed


@inline_jit
def add_trees(forest: Any, split_at: Any, raw_steps: Any, stack: Any) -> None:
    """Add up the leaves of all trees at all thresholds of the grid.

    Each tree is descended once. A node whose split lies within its range of thresholds divides the range.

    Parameters
    ----------
    split_at : int32 array of shape (n_splits,)
        As of :func:`place_threshold_splits` and :func:`place_job_splits`.
    raw_steps : float64 array of shape (GRID + 1,)
        Differences of the raw score from one threshold to the next; filled in.
    stack : int64 array of shape (MOST_LEAVES, 3)
        A buffer for nodes and their ranges.
    """
    raw_steps[:] = 0.0
    for tree in range(len(forest.root)):
        stack[0, 0], stack[0, 1], stack[0, 2] = forest.root[tree], 0, GRID
        top = 1
        while top > 0:
            top -= 1
            node, low, high = stack[top, 0], stack[top, 1], stack[top, 2]
            while node >= 0:
                position = np.int64(split_at[forest.split[node]])
                if position >= high:
                    node = forest.left[node]
                elif position <= low:
                    node = forest.right[node]
                else:
                    stack[top, 0], stack[top, 1], stack[top, 2] = forest.right[node], position, high
                    top += 1
                    node, high = forest.left[node], position
            leaf = forest.leaf[~node]
            raw_steps[low] += leaf
            raw_steps[high] -= leaf


@inline_jit
def pool_violators(values: Any, weights: Any) -> None:
    """Make ``values`` ascend, in place, by pooling adjacent violators.

    ``weights`` is a buffer of the same length.
    """
    n_blocks = 0
    for i in range(len(values)):
        value, weight = values[i], 1.0
        while n_blocks > 0 and values[n_blocks - 1] > value:
            last, last_weight = values[n_blocks - 1], weights[n_blocks - 1]
            value = (last * last_weight + value * weight) / (last_weight + weight)
            weight += last_weight
            n_blocks -= 1
        values[n_blocks], weights[n_blocks] = value, weight
        n_blocks += 1
    i = len(values)
    for block in range(n_blocks - 1, -1, -1):
        value = values[block]
        for _ in range(int(weights[block])):
            i -= 1
            values[i] = value


@inline_jit
def interpolate(xs: Any, ys: Any, x: float) -> Any:
    """Return the value at ``x`` of the line through ascending points.

    It begins at (0, 0), and is constant after the last point. With times and probabilities it is P(T <= x), and with
    the two exchanged the quantile at level ``x``.
    """
    return interpolate_at(xs, ys, x, int(np.searchsorted(xs, x)))


@inline_jit
def search_from(xs: Any, x: float, i: int) -> int:
    """Return the first position from ``i`` on whose value is not below ``x``.

    For several ascending ``x`` it is faster than a binary search for each.
    """
    while i < len(xs) and xs[i] < x:
        i += 1
    return i


@inline_jit
def interpolate_at(xs: Any, ys: Any, x: float, i: int) -> Any:
    """Return what ``interpolate`` does, where ``i`` is the first position not below ``x``."""
    if i == 0:
        return ys[0] * x / max(xs[0], 1e-9)
    if i >= len(xs):
        return ys[-1]
    width = xs[i] - xs[i - 1]
    return ys[i - 1] + (ys[i] - ys[i - 1]) * ((x - xs[i - 1]) / width if width > 0.0 else 0.5)


@inline_jit
def extend_tail(times: Any, cdf: Any, tail: Any) -> None:
    """Replace a distribution beyond the time at which the tail begins.

    ``tail`` is that of a :class:`helios.predict.timeline.Model`.
    """
    tail_times, survival = tail[0], tail[1]
    cdf_at_tail = interpolate(times, cdf, tail_times[0])
    n = tail.shape[1]
    for i in range(len(times)):
        if times[i] > tail_times[0]:
            k = np.searchsorted(tail_times, times[i])
            if k >= n:
                left = survival[n - 1] * np.exp(-(times[i] - tail_times[n - 1]) / 0.5)
            else:
                share = (times[i] - tail_times[k - 1]) / max(tail_times[k] - tail_times[k - 1], 1e-12)
                left = survival[k - 1] + (survival[k] - survival[k - 1]) * share
            cdf[i] = 1.0 - (1.0 - cdf_at_tail) * min(left, 1.0)


@inline_jit
def _typical(times: Any, cdf: Any) -> float:
    """Return the middle of the window of +-``DENSE`` with the most mass."""
    most, densest = -1.0, 0.0
    middle, first, last = 0, 0, 0
    for k in range(47):
        level = 0.04 + 0.02 * k
        middle = search_from(cdf, level, middle)
        t = interpolate_at(cdf, times, level, middle)
        last = search_from(times, t + DENSE, last)
        first = search_from(times, max(t - DENSE, 0.0), first)
        within = interpolate_at(times, cdf, t + DENSE, last) - interpolate_at(times, cdf, max(t - DENSE, 0.0), first)
        if within > most + 1e-6:
            most, densest = within, t
    return densest


@inline_jit
def _means(times: Any, cdf: Any, untrained: Any, out: Any) -> None:
    """Fill in the mean and the mean truncated at ``HORIZON_S``.

    The survival is the geometric mean of the trained and the untrained one, so that a long run needs both.
    """
    mean, truncated, last_s, last_p = 0.0, 0.0, 0.0, 0.0
    for i in range(len(times)):
        time_s = np.expm1(times[i])
        survival_product = max(1.0 - cdf[i], 0.0) * min(max(1.0 - untrained[i], 1e-5), 1.0)
        p = max(1.0 - np.sqrt(survival_product), last_p)
        if p == last_p:
            last_s = time_s
            continue
        # The mass between two times is spread evenly in log time.
        low, high = max(last_s, 0.3), max(time_s, 0.31)
        middle = (high - low) / np.log(high / low) if high > low * 1.0001 else low
        mean += (p - last_p) * middle
        if high <= HORIZON_S:
            truncated += (p - last_p) * middle
        elif low >= HORIZON_S:
            truncated += (p - last_p) * HORIZON_S
        else:
            width = np.log(high / low)
            truncated += (p - last_p) * ((HORIZON_S - low) + HORIZON_S * np.log(high / HORIZON_S)) / width
        last_s, last_p = time_s, p
    left = max(1.0 - last_p, 0.0)
    out[RUN_TIME.mean] = mean + left * last_s
    out[RUN_TIME.truncated_mean] = truncated + left * min(last_s, HORIZON_S)


@inline_jit
def read_prediction(times: Any, cdf: Any, untrained: Any, low: float, high: float, out: Any) -> None:  # noqa: PLR0917 - kernels are called by position
    """Fill in the columns of ``RunTime``.

    p10 and p90 are the quantiles at the levels ``low`` and ``high``.
    """
    median = interpolate(cdf, times, 0.5)
    out[RUN_TIME.p10] = np.expm1(min(interpolate(cdf, times, low), median))
    out[RUN_TIME.p50] = np.expm1(median)
    out[RUN_TIME.p90] = np.expm1(max(interpolate(cdf, times, high), median))
    out[RUN_TIME.typical] = np.expm1(_typical(times, cdf))
    total, i = 0.0, 0
    for k in range(19):
        i = search_from(cdf, 0.05 + 0.05 * k, i)
        total += interpolate_at(cdf, times, 0.05 + 0.05 * k, i)
    out[RUN_TIME.log_mean] = total / 19.0
    _means(times, cdf, untrained, out)
