"""Findings on how jobs end, with failures, time limits and requeues.

A cancelled job is not counted as a failure, and neither is one that reached its time limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from helios.metrics.study.blocks import Finding, unknown_finding
from helios.metrics.study.history import (
    COMPLETED,
    FAILED,
    NODE_FAILED,
    NOT_ENDED,
    TIMEOUT,
    UNKNOWN,
    Flags,
    Floats,
    StudyHistory,
    share,
)
from helios.metrics.study.trials import last_alike, next_alike
from helios.units import HOUR_S

LONG_FAILURE_S = HOUR_S
AT_LIMIT = 0.98
"""Share of its time limit from which on a job counts as one that reached it."""
SENT_AGAIN_S = HOUR_S
MOST_PARTITIONS = 20


def reached_limit(history: StudyHistory) -> Flags:
    """Return which jobs ended at their time limit.

    Not only TIMEOUT: many logs call a job that was cut at its limit failed or cancelled. One that completed just below
    its limit had asked for what it needed.
    """
    limited = np.isfinite(history.time_limit_s) & (history.time_limit_s > 0)
    close = limited & (history.run_time_s >= AT_LIMIT * history.time_limit_s)
    found: Flags = (history.state == TIMEOUT) | (close & ~np.isin(history.state, (COMPLETED, NOT_ENDED)))
    return found


def failed_late(history: StudyHistory) -> Flags:
    """Return which jobs failed after more than an hour.

    Jobs that reached their time limit are left out.
    """
    failed = np.isin(history.state, (FAILED, NODE_FAILED)) & (history.run_time_s > LONG_FAILURE_S)
    return failed & ~reached_limit(history)


def long_failures(history: StudyHistory) -> Finding:
    """Return the share of hours in late failures."""
    known = history.state != UNKNOWN
    hours = history.hours_by_block(known)
    if not known.any() or hours.sum() <= 0:
        return unknown_finding(7, "how jobs ended", n=int(history.sized.sum()), coverage=0.0)
    failed = failed_late(history)
    by_nodes = failed & (history.state == NODE_FAILED)
    lost = history.hours_by_block(failed)
    return Finding(
        number=7,
        estimate=history.blocks.ratio(lost, hours).bounded(most=1.0),
        n=int((failed & (history.size > 0)).sum()),
        coverage=share(history.hours()[known], history.hours()),
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={"share_of_hours_by_nodes": share(history.hours_by_block(by_nodes), hours)},
    )


def repeated_failures(history: StudyHistory) -> Finding:
    """Return how often jobs fail after an alike failure."""
    known = (history.state != UNKNOWN) & (history.state != NOT_ENDED) & history.sized
    if not known.any():
        return unknown_finding(8, "how jobs ended", n=int(history.sized.sum()), coverage=0.0)
    if not history.user.known.any():
        return unknown_finding(8, "users", n=int(known.sum()), coverage=0.0)
    before = last_alike(history)
    failed = (history.state == FAILED) | (history.state == NODE_FAILED)
    seen = known & (before >= 0)
    seen[seen] = history.state[before[seen]] != UNKNOWN
    after_failure = np.zeros(len(failed), dtype=bool)
    after_failure[seen] = failed[before[seen]]
    streak = failed & after_failure
    streak[streak] = after_failure[before[streak]]
    again, chances = (
        history.blocks.sum(history.submitted_s[jobs]) for jobs in (failed & after_failure & seen, after_failure & seen)
    )
    if not chances.any():
        return unknown_finding(8, "failed jobs that were repeated", n=0, coverage=1.0)
    hours = history.hours_by_block(history.state != UNKNOWN)
    lost = history.hours_by_block(streak)
    return Finding(
        number=8,
        estimate=history.blocks.ratio(again, chances).bounded(most=1.0),
        n=int(chances.sum()),
        coverage=float(seen.sum() / max(1, history.sized.sum())),
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={
            "share_that_fails": _mean(failed[known]),
            "share_that_fails_after_success": _mean(failed[seen & ~after_failure]),
            "share_of_hours_in_streaks": share(lost, hours),
        },
    )


def hours_at_limit(history: StudyHistory) -> Finding:
    """Return the share of hours in timed-out jobs."""
    limited = np.isfinite(history.time_limit_s) & (history.time_limit_s > 0)
    known = (history.state != UNKNOWN) | limited
    hours = history.hours_by_block(known)
    if not known.any() or hours.sum() <= 0:
        return unknown_finding(9, "time limits and how jobs ended", n=int(history.sized.sum()), coverage=0.0)
    at_limit = reached_limit(history)
    lost = history.hours_by_block(at_limit)
    again = at_limit & (next_alike(history) <= SENT_AGAIN_S) if history.user.known.any() else None
    return Finding(
        number=9,
        estimate=history.blocks.ratio(lost, hours).bounded(most=1.0),
        n=int((at_limit & (history.size > 0)).sum()),
        coverage=share(history.hours()[known], history.hours()),
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={
            "share_of_these_hours_sent_again": None if again is None else share(history.hours_by_block(again), lost)
        },
    )


def long_limits(history: StudyHistory) -> Finding:
    """Return how many times longer limits are than runs, by hours."""
    ended = (history.state == COMPLETED) | (history.state == TIMEOUT)
    limited = np.isfinite(history.time_limit_s) & (history.time_limit_s > 0)
    chosen = history.sized & ended & limited & (np.nan_to_num(history.run_time_s) > 0)
    unlimited = history.sized & np.isinf(history.time_limit_s)
    if not chosen.any():
        return unknown_finding(10, "time limits of jobs with a known end", n=int(history.sized.sum()), coverage=0.0)
    ratio = history.time_limit_s[chosen] / history.run_time_s[chosen]
    hours = history.size[chosen] * history.run_time_s[chosen] / HOUR_S
    code = history.partition.code[chosen]
    found: list[dict[str, Any]] = []
    for number in np.unique(code[code >= 0]):
        inside = code == number
        found.append(
            {
                "partition": history.partition.values[number],
                "jobs": int(inside.sum()),
                "hours": float(hours[inside].sum()),
                "median": weighted_median(ratio[inside], hours[inside]),
            }
        )
    found.sort(key=lambda row: (-row["hours"], row["partition"]))
    return Finding(
        number=10,
        estimate=history.blocks.weighted_median(ratio, history.submitted_s[chosen], hours).bounded(least=1.0),
        n=int(chosen.sum()),
        coverage=float(chosen.sum() / max(1, (history.sized & ended).sum())),
        parts={
            "share_of_jobs_unlimited": _mean(unlimited[history.sized]),
            "median_by_jobs": float(np.median(ratio)),
            "by_partition": found[:MOST_PARTITIONS],
        },
    )


def lost_to_requeues(history: StudyHistory) -> Finding:
    """Return the share of hours in runs that were started again."""
    if not (history.restart > 0).any():
        return unknown_finding(19, "runs that were started again", n=int(history.sized.sum()), coverage=0.0)
    again = started_again(history)
    lost, hours = history.hours_by_block(again), history.hours_by_block()
    return Finding(
        number=19,
        estimate=history.blocks.ratio(lost, hours).bounded(most=1.0),
        n=int(again.sum()),
        coverage=1.0,
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={"jobs": int((history.restart == 1).sum())},
    )


def started_again(history: StudyHistory) -> Flags:
    """Return whether a later run of the same job is recorded."""
    keys = history.jobs[["job_id", "submitted_at"]].assign(restart=history.restart)
    newest = keys.groupby(["job_id", "submitted_at"], sort=False, observed=True)["restart"].transform("max")
    return history.restart < newest.to_numpy()


def weighted_median(values: Floats, weight: Floats) -> float:
    """Return the weighted median."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    place = int(np.searchsorted(reached, reached[-1] / 2)) if len(values) else 0
    return float(values[order][min(place, len(values) - 1)]) if len(values) else float("nan")


def _mean(flags: Flags) -> float | None:
    return float(flags.mean()) if len(flags) else None
