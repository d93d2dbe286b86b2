"""Distribution of a run time, learned from jobs paired with thresholds.

One binary LightGBM model learns P(T <= t). A job teaches with a few thresholds, drawn from the past alone and never
from its own run time. A pair teaches once the job's age exceeds the threshold, ended or not. Its features are the job's
own, the threshold, its distance from earlier run times, and the untrained distributions of
:mod:`helios.predict.past_runs` at the threshold. "The same again" is a step in t less the last run time, which trees
find.

For one job all features of the threshold rise with it. So each tree is a step function of the threshold, and is
evaluated for a whole grid of thresholds at once.
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
"""Features of a job at every threshold alike."""
JOB_ANCHORS = (
    *("running", "running_alike", "near_weight", "started_weight", "request_weight", "key_ended"),
    "last_two_apart",
)
"""Anchors of a job that are features of every threshold alike."""
SINCE_FEATURES = (
    *("anchor", "user_last_1", "user_last_2", "user_last_3", "user_recent_median", "user_recent_most"),
    *("neighbour_mean", "nearest", "log_limit", "user_by_limit", "user_mean", "request_last_1", "partition_last_1"),
    "user_name_last_1",
)
"""Features that a threshold is measured from."""
SINCE_ANCHORS = (
    *("key_last_1", "key_last_2", "near_p10", "near_p50", "near_p90", "started_p50", "request_p50"),
    *("running_longest", "running_alike_longest", "running_alike_mean"),
)
_JOB = np.array([COLUMN[FEATURES.index(name)] for name in JOB_FEATURES])
_JOB_ANCHOR = np.array([ANCHORS.index(name) for name in JOB_ANCHORS])
_SINCE = np.array([FEATURES.index(name) for name in SINCE_FEATURES])
_SINCE_ANCHOR = np.array([ANCHORS.index(name) for name in SINCE_ANCHORS])
N_SINCE = len(_SINCE) + len(_SINCE_ANCHOR)
N_THRESHOLD = 1 + N_SINCE + 1 + 6 + 1
N_JOB = len(_JOB) + len(_JOB_ANCHOR)
PAIR_FEATURES = (
    "threshold",
    *(f"since_{name}" for name in (*SINCE_FEATURES, *SINCE_ANCHORS)),
    "since_anchor_in_sd",
    *(f"by_{name}" for name in (*SAMPLES, "mixture")),
    "odds_by_mixture",
    *JOB_FEATURES,
    *JOB_ANCHORS,
)
"""Names of the columns of a pair: those that rise with the threshold, then the job's own."""

THRESHOLDS = 6
"""Thresholds that each job teaches with."""
FIXED, GRID = 32, 60
"""Thresholds that a job is predicted at: fixed ones, and all."""
GRID_WIDTH = 64
"""Length of a row of features of the grid; what is beyond ``GRID`` is NaN. Vector instructions take it whole."""
_FIXED = np.linspace(0.7, LONGEST, FIXED)


@inline_jit
def _uniform(seed: int) -> float:
    """Return a number in [0, 1) that follows from ``seed`` alone (splitmix64)."""
    z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@inline_jit
def _from_sample(samples: Any, sample: int, share: float) -> Any:
    """Return the value at a share of a sample's places."""
    n = samples.length[sample]
    return samples.value[sample, min(int(share * n), n - 1)]


@inline_jit
def draw_thresholds(samples: Any, last: float, job: int, out: Any) -> None:
    """Draw ascending thresholds for a job that teaches, from the past alone."""
    for k in range(len(out)):
        seed = (job * len(out) + k) * 4
        which, r = _uniform(seed), _uniform(seed + 1)
        z = np.sqrt(-2.0 * np.log(_uniform(seed + 2) + 1e-12)) * np.cos(2.0 * np.pi * _uniform(seed + 3))
        if which < 0.25 and samples.length[NEAR] > 0:
            t = _from_sample(samples, NEAR, r) + 0.5 * z
        elif which < 0.42 and not np.isnan(last):
            t = last + 0.2 * z
        elif which < 0.5 and samples.length[KEY] > 0:
            t = _from_sample(samples, KEY, r) + 0.2 * z
        elif which < 0.67 and samples.length[STARTED_ALIKE] > 0:
            t = _from_sample(samples, STARTED_ALIKE, r) + 0.6 * z
        elif which < 0.92 and samples.length[STARTED] > 0:
            t = _from_sample(samples, STARTED, r) + 0.8 * z
        else:
            t = 0.5 + r * (LONGEST - 0.5)
        out[k] = min(max(t, 0.3 + 0.4 * r), LONGEST)
    out.sort()


@inline_jit
def lay_grid(samples: Any, row: Any, out: Any) -> None:
    """Fill in the ascending thresholds at which a job is predicted.

    Some are fixed, and some are at earlier run times.
    """
    a = samples.anchors
    first, last = _FIXED[0], _FIXED[-1]
    out[:FIXED] = _FIXED
    c = FIXED
    for k in range(7):
        v = a[k] if not np.isnan(a[k]) else first + (last - first) * (k + 1.2) / 9.0
        out[c], out[c + 1] = v - 0.1, v + 0.1
        c += 2
    v = row[COLUMN.user_last_1] if not np.isnan(row[COLUMN.user_last_1]) else _FIXED[3] + 0.2
    out[c], out[c + 1], out[c + 2], out[c + 3] = v - 0.1, v + 0.1, v - 0.4, v + 0.4
    c += 4
    anchor, spread = row[COLUMN.anchor], max(row[COLUMN.anchor_sd], 0.1)
    for k in range(5):
        v = a[ANCHOR.request_p10 + k]
        out[c] = v if not np.isnan(v) else anchor + (k - 2) * 0.5 * spread
        c += 1
    out[c] = anchor
    limit = row[COLUMN.log_limit] if np.isfinite(row[COLUMN.log_limit]) else last - 0.2
    out[c + 1], out[c + 2] = limit - 0.05, limit + 0.02
    c += 3
    for k in range(c, len(out)):
        out[k] = first + (last - first) * (k - 54 + 0.5) / 7.0
    for k in range(len(out)):
        out[k] = min(max(out[k], SHORTEST), LONGEST)
    out.sort()


@inline_jit
def describe_thresholds(at: Any, samples: Any, row: Any, by: Any, out: Any) -> None:
    """Fill in the features of m thresholds, the first m columns of ``out``.

    Each row rises with the threshold.
    """
    distributions(at, samples, row[COLUMN.anchor], row[COLUMN.anchor_sd], by)
    spread = max(row[COLUMN.anchor_sd], 0.1)
    m = len(at)
    for place in range(m):
        out[0, place] = at[place]
        out[1 + N_SINCE, place] = (at[place] - row[COLUMN.anchor]) / spread
        p = min(max(by[5, place], 1e-4), 1.0 - 1e-4)
        out[8 + N_SINCE, place] = np.log(p / (1.0 - p))
    for k in range(len(_SINCE)):
        for place in range(m):
            out[1 + k, place] = at[place] - row[_SINCE[k]]
    for k in range(len(_SINCE_ANCHOR)):
        for place in range(m):
            out[1 + len(_SINCE) + k, place] = at[place] - samples.anchors[_SINCE_ANCHOR[k]]
    for k in range(6):
        for place in range(m):
            out[2 + N_SINCE + k, place] = by[k, place]


@inline_jit
def describe_pair_job(samples: Any, row: Any, out: Any) -> None:
    """Fill in a job's features that do not depend on the threshold."""
    for k in range(len(_JOB)):
        out[k] = row[_JOB[k]]
    for k in range(len(_JOB_ANCHOR)):
        out[len(_JOB) + k] = samples.anchors[_JOB_ANCHOR[k]]


@inline_jit
def find_splits(forest: Any, of_thresholds: Any, ends: Any) -> None:
    """Fill in where the splits on rising features lie among the thresholds of a job.

    Parameters
    ----------
    of_thresholds : float32 array of shape (N_THRESHOLD, GRID_WIDTH)
    ends : int32 array of shape (n_splits,)
        The first place that does not go left, once for all nodes with the same split.
    """
    for split in range(len(ends)):
        feature, threshold = forest.feature[split], forest.threshold[split]
        if feature >= N_THRESHOLD:
            return
        values = of_thresholds[feature]
        if np.isnan(values[0]):
            ends[split] = GRID if forest.missing_left[split] else 0
        else:
            # To count takes half the time of a binary search.
            count = np.int32(0)
            for place in range(GRID_WIDTH):
                count += np.int32(values[place] <= threshold)
            ends[split] = count


@inline_jit
def decide_splits(forest: Any, of_job: Any, ends: Any) -> bool:
    """Fill in where the splits on a job's own features lie, at either end.

    ``ends`` are as of :func:`find_splits`. The result is whether any has changed.
    """
    changed = False
    for split in range(len(ends) - 1, -1, -1):
        feature, threshold = forest.feature[split], forest.threshold[split]
        if feature < N_THRESHOLD:
            break
        value = of_job[feature - N_THRESHOLD]
        left = forest.missing_left[split] if np.isnan(value) else value <= threshold
        end = np.int32(GRID) if left else np.int32(0)
        changed |= end != ends[split]
        ends[split] = end
    return changed


@inline_jit
def step_trees(forest: Any, ends: Any, diff: Any, stack: Any) -> None:
    """Add up the trees' leaves at all thresholds of a job.

    ``ends`` are as of :func:`find_splits` and :func:`decide_splits`. ``diff`` has the differences from one threshold to
    the next.
    """
    diff[:] = 0.0
    for tree in range(len(forest.root)):
        stack[0, 0], stack[0, 1], stack[0, 2] = forest.root[tree], 0, GRID
        top = 1
        while top > 0:
            top -= 1
            node, low, high = stack[top, 0], stack[top, 1], stack[top, 2]
            while node >= 0:
                end = np.int64(ends[forest.split[node]])
                if end >= high:
                    node = forest.left[node]
                elif end <= low:
                    node = forest.right[node]
                else:
                    stack[top, 0], stack[top, 1], stack[top, 2] = forest.right[node], end, high
                    top += 1
                    node, high = forest.left[node], end
            leaf = forest.leaf[~node]
            diff[low] += leaf
            diff[high] -= leaf


@inline_jit
def pool(values: Any, weights: Any) -> None:
    """Make ``values`` ascend, in place, by pooling adjacent violators."""
    n, m = len(values), 0
    for j in range(n):
        v, w = values[j], 1.0
        while m > 0 and values[m - 1] > v:
            v = (values[m - 1] * weights[m - 1] + v * w) / (weights[m - 1] + w)
            w += weights[m - 1]
            m -= 1
        values[m], weights[m] = v, w
        m += 1
    place = n
    for block in range(m - 1, -1, -1):
        v = values[block]
        for _ in range(int(weights[block])):
            place -= 1
            values[place] = v


DENSE = 0.3
"""Half width, in log time, of the window that ``typical`` is the middle of."""


@inline_jit
def interpolate(xs: Any, ys: Any, x: float) -> Any:
    """Return the height at ``x`` of a line through ascending points.

    It rises from 0 at 0 to the first point, and is level after the last. With times and probabilities it is P(T <= x),
    with the two exchanged the time by which a run has ended with probability ``x``.
    """
    return height_before(xs, ys, x, int(np.searchsorted(xs, x)))


@inline_jit
def place_after(xs: Any, x: float, place: int) -> int:
    """Return the first place from ``place`` on whose value is not below ``x``.

    For ascending questions it is faster than a search for each.
    """
    while place < len(xs) and xs[place] < x:
        place += 1
    return place


@inline_jit
def height_before(xs: Any, ys: Any, x: float, j: int) -> Any:
    """Return what ``interpolate`` does, where ``j`` is the first place not below ``x``."""
    if j == 0:
        return ys[0] * x / max(xs[0], 1e-9)
    if j >= len(xs):
        return ys[-1]
    width = xs[j] - xs[j - 1]
    return ys[j - 1] + (ys[j] - ys[j - 1]) * ((x - xs[j - 1]) / width if width > 0.0 else 0.5)


@inline_jit
def splice_tail(at: Any, p: Any, tail: Any) -> None:
    """Extend a distribution beyond the time that few runs outlast.

    ``tail`` has times and survival from there.
    """
    times, survival = tail[0], tail[1]
    there = interpolate(at, p, times[0])
    n = tail.shape[1]
    for place in range(len(at)):
        if at[place] > times[0]:
            j = np.searchsorted(times, at[place])
            if j >= n:
                left = survival[n - 1] * np.exp(-(at[place] - times[n - 1]) / 0.5)
            else:
                share = (at[place] - times[j - 1]) / max(times[j] - times[j - 1], 1e-12)
                left = survival[j - 1] + (survival[j] - survival[j - 1]) * share
            p[place] = 1.0 - (1.0 - there) * min(left, 1.0)


@inline_jit
def _typical(at: Any, p: Any) -> float:
    """Return the middle of the densest window of +-``DENSE``."""
    most, found = -1.0, 0.0
    middle, first, last = 0, 0, 0
    for k in range(47):
        level = 0.04 + 0.02 * k
        middle = place_after(p, level, middle)
        t = height_before(p, at, level, middle)
        last = place_after(at, t + DENSE, last)
        first = place_after(at, max(t - DENSE, 0.0), first)
        within = height_before(at, p, t + DENSE, last) - height_before(at, p, max(t - DENSE, 0.0), first)
        if within > most + 1e-6:
            most, found = within, t
    return found


@inline_jit
def _means(at: Any, p: Any, untrained: Any, out: Any) -> None:
    """Fill in the mean and the mean up to ``HORIZON_S``.

    The survival is the geometric mean of the trained and the untrained one: a long run must be believed by both.
    """
    mean, truncated, before_s, before_p = 0.0, 0.0, 0.0, 0.0
    for place in range(len(at)):
        now_s = np.expm1(at[place])
        left = max(1.0 - p[place], 0.0) * min(max(1.0 - untrained[place], 1e-5), 1.0)
        now_p = max(1.0 - np.sqrt(left), before_p)
        if now_p == before_p:
            before_s = now_s
            continue
        low, high = max(before_s, 0.3), max(now_s, 0.31)
        middle = (high - low) / np.log(high / low) if high > low * 1.0001 else low
        mean += (now_p - before_p) * middle
        if high <= HORIZON_S:
            truncated += (now_p - before_p) * middle
        elif low >= HORIZON_S:
            truncated += (now_p - before_p) * HORIZON_S
        else:
            # The mass is spread evenly in log time.
            span = np.log(high / low)
            truncated += (now_p - before_p) * ((HORIZON_S - low) + HORIZON_S * np.log(high / HORIZON_S)) / span
        before_s, before_p = now_s, now_p
    rest = max(1.0 - before_p, 0.0)
    out[RUN_TIME.mean] = mean + rest * before_s
    out[RUN_TIME.truncated_mean] = truncated + rest * min(before_s, HORIZON_S)


@inline_jit
def read_off(at: Any, p: Any, untrained: Any, low: float, high: float, out: Any) -> None:  # noqa: PLR0917 - kernels are called by position
    """Fill in the columns of ``RunTime``.

    p10 and p90 are read off at the levels ``low`` and ``high``.
    """
    median = interpolate(p, at, 0.5)
    out[RUN_TIME.p10] = np.expm1(min(interpolate(p, at, low), median))
    out[RUN_TIME.p50] = np.expm1(median)
    out[RUN_TIME.p90] = np.expm1(max(interpolate(p, at, high), median))
    out[RUN_TIME.typical] = np.expm1(_typical(at, p))
    total, place = 0.0, 0
    for k in range(19):
        place = place_after(p, 0.05 + 0.05 * k, place)
        total += height_before(p, at, 0.05 + 0.05 * k, place)
    out[RUN_TIME.log_mean] = total / 19.0
    _means(at, p, untrained, out)
