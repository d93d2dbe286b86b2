"""Findings on requests, waits, repetition and ends of jobs.

A cancelled job is not counted as a failure, and neither is one that reached its time limit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.blocks import Estimate, Finding, Question, local_edges, mean_levels, unknown_finding
from helios.metrics.history import (
    COMPLETED,
    FAILED,
    NEVER_S,
    NODE_FAILED,
    NOT_ENDED,
    TIMEOUT,
    UNKNOWN,
    Flags,
    Floats,
    Seconds,
    StudyHistory,
    follows_run,
    share,
)
from helios.metrics.statistics import mean_interval, weighted_median
from helios.metrics.trials import find_trials, last_alike, next_alike
from helios.model import SIZE_CLASSES, size_class
from helios.study.capacity import Capacity
from helios.units import DAY_S, HOUR_S, MINUTE_S

LONG_FAILURE_S = HOUR_S
AT_LIMIT = 0.98
"""Share of its time limit from which on a job counts as one that reached it."""
SENT_AGAIN_S = HOUR_S
MOST_PARTITIONS = 20
TOP_SHARE = 0.05
FEWEST_USERS = 5
"""Fewest users for statements about shares of users."""
SHORT_S, LONG_S = 15 * MINUTE_S, 6 * HOUR_S
SMALL_PART = 1 / 8
"""Share of a node's CPUs and memory up to which a job counts as a small one."""
WEEK_DAYS = 7
AWAY_S = 28 * DAY_S
MONTH_DAYS = 365.25 / 12


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
        return unknown_finding(Question.LONG_FAILURES, "how jobs ended", n=int(history.sized.sum()), coverage=0.0)
    failed = failed_late(history)
    by_nodes = failed & (history.state == NODE_FAILED)
    lost = history.hours_by_block(failed)
    return Finding(
        question=Question.LONG_FAILURES,
        estimate=history.blocks.ratio(lost, hours).bounded(most=1.0),
        n=int((failed & (history.size > 0)).sum()),
        coverage=share(history.hours()[known], history.hours()),
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={
            "share_of_hours_by_nodes": share(history.hours_by_block(by_nodes), hours),
            "failed_hours": float(history.hours()[np.isin(history.state, (FAILED, NODE_FAILED))].sum()),
        },
    )


def repeated_failures(history: StudyHistory) -> Finding:
    """Return the share of hours in third and later repeated failures.

    Its parts are how often jobs fail after an alike failure, and otherwise.
    """
    known = (history.state != UNKNOWN) & (history.state != NOT_ENDED) & history.sized
    if not known.any():
        return unknown_finding(Question.REPEATED_FAILURES, "how jobs ended", n=int(history.sized.sum()), coverage=0.0)
    if not history.user.known.any():
        return unknown_finding(Question.REPEATED_FAILURES, "users", n=int(known.sum()), coverage=0.0)
    before = last_alike(history)
    failed = (history.state == FAILED) | (history.state == NODE_FAILED)
    seen = known & (before >= 0)
    seen[seen] = history.state[before[seen]] != UNKNOWN
    after_failure = np.zeros(len(failed), dtype=bool)
    after_failure[seen] = failed[before[seen]]
    streak = failed & after_failure
    streak[streak] = after_failure[before[streak]]
    if not (after_failure & seen).any():
        return unknown_finding(Question.REPEATED_FAILURES, "failed jobs that were repeated", n=0, coverage=1.0)
    hours = history.hours_by_block(history.state != UNKNOWN)
    lost = history.hours_by_block(streak)
    return Finding(
        question=Question.REPEATED_FAILURES,
        estimate=history.blocks.ratio(lost, hours).bounded(most=1.0),
        n=int((after_failure & seen).sum()),
        coverage=float(seen.sum() / max(1, history.sized.sum())),
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={
            "share_that_fails": _mean(failed[known]),
            "share_that_fails_after_failure": _mean(failed[seen & after_failure]),
            "share_that_fails_after_success": _mean(failed[seen & ~after_failure]),
        },
    )


def hours_at_limit(history: StudyHistory) -> Finding:
    """Return the share of hours in timed-out jobs."""
    limited = np.isfinite(history.time_limit_s) & (history.time_limit_s > 0)
    known = (history.state != UNKNOWN) | limited
    hours = history.hours_by_block(known)
    if not known.any() or hours.sum() <= 0:
        return unknown_finding(
            Question.HOURS_AT_TIME_LIMIT, "time limits and how jobs ended", n=int(history.sized.sum()), coverage=0.0
        )
    at_limit = reached_limit(history)
    lost = history.hours_by_block(at_limit)
    again = at_limit & (next_alike(history) <= SENT_AGAIN_S) if history.user.known.any() else None
    return Finding(
        question=Question.HOURS_AT_TIME_LIMIT,
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
        return unknown_finding(
            Question.LONG_TIME_LIMITS, "time limits of jobs with a known end", n=int(history.sized.sum()), coverage=0.0
        )
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
        question=Question.LONG_TIME_LIMITS,
        estimate=history.blocks.weighted_median(ratio, history.submitted_s[chosen], hours).bounded(),
        n=int(chosen.sum()),
        coverage=float(chosen.sum() / max(1, (history.sized & ended).sum())),
        parts={
            "share_of_jobs_unlimited": _mean(unlimited[history.sized]),
            "median_by_jobs": float(np.median(ratio)),
            "by_partition": found[:MOST_PARTITIONS],
        },
    )


def lost_to_requeues(history: StudyHistory) -> Finding:
    """Return the share of hours in runs that were started again.

    All hours of the runs that were submitted in the window count, since the window of a history ends with its last
    submission, before the last run of a job.
    """
    if not (history.restart > 0).any():
        return unknown_finding(
            Question.REQUEUES, "runs that were started again", n=int(history.sized.sum()), coverage=0.0
        )
    again = started_again(history)
    until_s = np.where(history.ended_s < NEVER_S, history.ended_s, np.maximum(history.end_s, history.started_s))
    held_s = np.where(history.started_s < NEVER_S, until_s - history.started_s, np.nan_to_num(history.run_time_s))
    held = history.size * held_s / HOUR_S
    lost, hours = (history.blocks.sum(history.submitted_s, of_runs) for of_runs in (np.where(again, held, 0), held))
    return Finding(
        question=Question.REQUEUES,
        estimate=history.blocks.ratio(lost, hours).bounded(most=1.0),
        n=int(again.sum()),
        coverage=1.0,
        hours_per_week=float(lost.sum()) / history.weeks,
        parts={"jobs": int((history.restart == 1).sum())},
    )


def started_again(history: StudyHistory) -> Flags:
    """Return whether a later run of the same job is recorded.

    The parts of a job that was resized are one run.
    """
    before = follows_run(history.jobs["job_id"], history.submitted_s, history.restart)
    found: Flags = (history.state != NOT_ENDED).copy()
    found &= np.isin(np.arange(len(found)), before)
    return found


def _mean(flags: Flags) -> float | None:
    return float(flags.mean()) if len(flags) else None


def concentration(history: StudyHistory) -> Finding:
    """Return the share of hours of the top 5 % of users."""
    hours, known = history.hours(), history.user.known
    if not known.any():
        return unknown_finding(Question.CONCENTRATION, "users", n=int(history.sized.sum()), coverage=0.0)
    by_user = history.user.sum(hours)
    active = by_user > 0
    n = int(active.sum())
    if n < FEWEST_USERS:
        return unknown_finding(Question.CONCENTRATION, f"at least {FEWEST_USERS} users with {history.unit} hours", n=n)
    table = history.hours_of_groups(history.user.code, len(history.user.values))[active]
    total = by_user[active]
    without = [top_share(total - table[:, block]) for block in range(table.shape[1]) if table[:, block].any()]
    top = np.argsort(-by_user, kind="stable")[: top_count(n)]
    waited = history.user.sum(history.waited_hours) if history.has_starts else None
    return Finding(
        question=Question.CONCENTRATION,
        estimate=history.blocks.estimate(top_share(total), np.array(without)).bounded(most=1.0),
        n=n,
        coverage=share(hours[known], hours),
        parts={
            "top_users": len(top),
            "gini": gini(total),
            "share_of_waiting_of_top_users": None if waited is None else share(waited[top], waited),
        },
    )


def top_count(users: int) -> int:
    """Return how many users the top 5 % are, at least one."""
    return max(1, round(TOP_SHARE * users))


def top_share(hours: Floats) -> float:
    """Return the share of hours of the top 5 % of users."""
    held = hours[hours > 0]
    if not len(held):
        return 0.0
    return float(np.sort(held)[::-1][: top_count(len(held))].sum() / held.sum())


def gini(values: Floats) -> float:
    """Return the Gini coefficient of positive values, 0 where all are equal."""
    ordered, n = np.sort(values), len(values)
    return float(np.sum((2 * np.arange(1, n + 1) - n - 1) * ordered) / (n * ordered.sum()))


def who_waits(history: StudyHistory, capacity: Capacity) -> Finding:
    """Return how large a share of their JCT short jobs wait.

    It is the median over the shorter half of the jobs. The waits are also those of jobs that ended as they began.
    """
    known = _first_runs(history) & np.isfinite(history.wait_s) & np.isfinite(history.run_time_s)
    chosen = known & (history.run_time_s > 0)
    if not chosen.any():
        return unknown_finding(Question.WHO_WAITS, "when jobs started", n=int(history.sized.sum()), coverage=0.0)
    wait_s, run_time_s = np.maximum(history.wait_s[chosen], 0), history.run_time_s[chosen]
    spent, submitted_s = wait_s / (wait_s + run_time_s), history.submitted_s[chosen]
    short = run_time_s <= np.median(run_time_s)
    node = np.array(capacity.units_per_node or [0] * len(capacity.pools), dtype=np.int64)
    sizes = size_class(history.size[chosen], np.append(node, 0)[capacity.pools_of(history)[chosen]])
    waited, all_waits_s = history.waited_hours[chosen], np.maximum(history.wait_s[known], 0)
    by_size = {
        name: {
            "share_of_jobs": float((sizes == number).mean()),
            "share_of_waiting": share(waited[sizes == number], waited) or 0.0,
        }
        for number, name in enumerate(SIZE_CLASSES)
    }
    return Finding(
        question=Question.WHO_WAITS,
        estimate=history.blocks.quantile(spent[short], submitted_s[short], 0.5).bounded(most=1.0),
        n=int(chosen.sum()),
        coverage=float(chosen.sum() / max(1, _first_runs(history).sum())),
        parts={
            "median_run_time_s": float(np.median(run_time_s)),
            "short_p90": float(np.quantile(spent[short], 0.9)),
            "long_p50": float(np.quantile(spent[~short], 0.5)) if (~short).any() else None,
            "long_p90": float(np.quantile(spent[~short], 0.9)) if (~short).any() else None,
            "mean_wait_s": float(all_waits_s.mean()),
            "wait_p50_s": float(np.quantile(all_waits_s, 0.5)),
            "wait_p90_s": float(np.quantile(all_waits_s, 0.9)),
            "wait_p99_s": float(np.quantile(all_waits_s, 0.99)),
            "longest_wait_s": float(all_waits_s.max()),
            "by_size": by_size,
        },
    )


def short_behind_long(history: StudyHistory) -> Finding:
    """Return the share of waiting of short jobs behind long ones.

    In each quarter of an hour and partition, the waiting of jobs that run below 15 minutes counts by the share of the
    units in use that jobs above 6 hours hold.
    """
    ran = np.nan_to_num(history.run_time_s) > 0
    if not (history.has_starts and (history.sized & ran).any()):
        return unknown_finding(
            Question.SHORT_BEHIND_LONG, "when jobs started", n=int(history.sized.sum()), coverage=0.0
        )
    edges_s = history.step_edges_s
    until_s = history.waiting_until_s
    counted = (history.restart == 0) & (until_s >= 0)
    asking = np.flatnonzero(history.size > 0)
    asking = asking[np.argsort(history.partition.code[asking], kind="stable")]
    waiting, behind, short_waiting = (np.zeros(len(edges_s) - 1) for _ in range(3))
    for inside in np.split(asking, np.flatnonzero(np.diff(history.partition.code[asking])) + 1):
        in_use = history.held(edges_s, inside)
        held_by_long = history.held(edges_s, inside[history.run_time_s[inside] > LONG_S])
        first = inside[counted[inside]]
        is_short = ran[first] & (history.run_time_s[first] < SHORT_S)
        short = _waiting(history, first[is_short], until_s, edges_s)
        waiting += _waiting(history, first, until_s, edges_s)
        short_waiting += short
        behind += short * np.divide(held_by_long, in_use, out=np.zeros_like(in_use), where=in_use > 0)
    if not waiting.any():
        return unknown_finding(Question.SHORT_BEHIND_LONG, "jobs that waited", n=0, coverage=1.0)
    lasted_s = np.diff(edges_s)
    by_block = [history.blocks.sum(edges_s[:-1], level * lasted_s) for level in (behind, waiting)]
    return Finding(
        question=Question.SHORT_BEHIND_LONG,
        estimate=history.blocks.ratio(*by_block).bounded(most=1.0),
        n=int((history.sized & ran & (history.run_time_s < SHORT_S)).sum()),
        coverage=float((history.sized & ran).sum() / max(1, history.sized.sum())),
        parts={"share_of_waiting_of_short_jobs": share(short_waiting * lasted_s, waiting * lasted_s)},
    )


def repetition(history: StudyHistory) -> Finding:
    """Return the rank correlation of run times with the last alike job's.

    Its parts are how many jobs have such a job, one that had ended before. The value is a lower bound of what
    predictions reach, since they also learn from other jobs.
    """
    if not history.user.known.any():
        return unknown_finding(Question.REPETITION, "users", n=int(history.sized.sum()), coverage=0.0)
    before, chosen = last_alike(history), history.sized & history.user.known
    repeats = chosen & (before >= 0)
    both = repeats & np.isfinite(history.run_time_s)
    last_s = np.where(both, history.run_time_s[before], np.nan)
    both &= np.isfinite(last_s)
    estimate = history.blocks.rank_correlation(history.run_time_s[both], last_s[both], history.submitted_s[both])
    if estimate.value is None:
        return unknown_finding(
            Question.REPETITION, "repeated jobs with different run times", n=int(both.sum()), coverage=0.0
        )
    return Finding(
        question=Question.REPETITION,
        estimate=estimate.bounded(-1.0, 1.0),
        n=int(both.sum()),
        coverage=float(both.sum() / max(1, history.sized.sum())),
        parts={
            "share_of_jobs": share(repeats, chosen),
            "lower_bound": True,
            "ends_assumed": not history.has_starts,
            "names_known": bool(history.stem.known.any()),
        },
    )


def bursts(history: StudyHistory) -> Finding:
    """Return the variance of hourly submissions as a multiple of their mean."""
    chosen = history.sized
    hours = np.arange(history.first_s // HOUR_S * HOUR_S, history.end_s + HOUR_S, HOUR_S)
    counts = np.histogram(history.submitted_s[chosen], bins=hours)[0].astype(np.float64)
    if len(counts) < 2 or not counts.any():
        return unknown_finding(Question.BURSTS, "more than an hour of submissions", n=int(chosen.sum()))
    array = history.jobs["array_job_id"]
    is_array = array.notna().to_numpy() if array.notna().any() else None
    block = np.maximum(history.blocks.number(np.maximum(hours[:-1], history.first_s)), 0)
    without = [dispersion(counts[block != one]) for one in np.unique(block)]
    return Finding(
        question=Question.BURSTS,
        estimate=history.blocks.estimate(dispersion(counts), np.array(without)).bounded(),
        n=int(chosen.sum()),
        coverage=1.0,
        parts={
            "most_in_an_hour": int(counts.max()),
            "mean_in_an_hour": float(counts.mean()),
            "share_of_array_jobs": None if is_array is None else float(is_array[chosen].mean()),
            "submissions": None if is_array is None else _submissions(array[chosen & is_array], chosen & ~is_array),
        },
    )


def dispersion(counts: Floats) -> float:
    """Return the index of dispersion of counts.

    It is variance over mean, and 1 for independent arrivals.
    """
    return float(counts.var() / counts.mean()) if counts.any() else 0.0


def small_work(history: StudyHistory, *, node_cpus: float | None, node_memory_mib: float | None) -> Finding:
    """Return the share of GPU hours in jobs of one GPU.

    The finding also has the share in groups of repeated jobs, at least and at most
    (:mod:`helios.metrics.trials`).

    Parameters
    ----------
    node_cpus, node_memory_mib : float, optional
        Size of an ordinary GPU node. None where unknown.
    """
    if history.resource != "gpus":
        return unknown_finding(Question.ONE_GPU_JOBS, "jobs with GPUs", n=0)
    single = history.size == 1
    known = [(history.cpus, node_cpus), (history.memory_mib, node_memory_mib)]
    limits = [held <= SMALL_PART * whole for held, whole in known if whole is not None and np.isfinite(held).any()]
    hours, of_single = history.hours_by_block(), history.hours_by_block(single)
    small = history.hours_by_block(single & np.logical_and.reduce(limits)) if limits else None
    if hours.sum() <= 0:
        return unknown_finding(Question.ONE_GPU_JOBS, "run times", n=int(history.sized.sum()), coverage=0.0)
    repeated: list[float | None] = [None, None]
    if history.user.known.any():
        trials, held = find_trials(history), history.hours()
        repeated = [share(held * ((group >= 0) & single), held) for group in (trials.sure, trials.possible)]
    return Finding(
        question=Question.ONE_GPU_JOBS,
        estimate=history.blocks.ratio(of_single, hours).bounded(most=1.0),
        n=int((history.sized & single).sum()),
        coverage=1.0,
        hours_per_week=float(of_single.sum()) / history.weeks,
        parts={
            "share_of_jobs": share((history.sized & single).astype(np.float64), history.sized.astype(np.float64)),
            "share_of_hours_small": None if small is None else share(small, hours),
            "share_of_hours_repeated_low": repeated[0],
            "share_of_hours_repeated_high": repeated[1],
        },
    )


def drift(history: StudyHistory) -> Finding:
    """Return the weekly change of run times, 0 to 1."""
    edges_s = local_edges(history.first_s, history.end_s, timezone=history.timezone, days=WEEK_DAYS)
    whole = np.flatnonzero(np.diff(edges_s) >= (WEEK_DAYS - 1) * DAY_S)
    chosen = history.sized & (np.nan_to_num(history.run_time_s) > 0)
    week = np.searchsorted(edges_s, history.submitted_s, side="right") - 1
    of_week = np.bincount(week[chosen], minlength=len(edges_s))
    weeks = [int(number) for number in whole if of_week[number]]
    if len(weeks) < 2:
        return unknown_finding(Question.DRIFT, "two whole weeks with run times", n=int(chosen.sum()))
    run_times = np.floor(np.log2(np.maximum(np.nan_to_num(history.run_time_s), 1))).astype(np.int64)
    sizes = np.ceil(np.log2(np.maximum(history.size, 1))).astype(np.int64)
    changes = _changes(run_times[chosen], week[chosen], weeks)
    low, high = mean_interval(changes) if len(changes) >= FEWEST_USERS else (None, None)
    hours = history.hours()
    inside = week >= 0
    by_week = np.bincount(week[inside], hours[inside], len(edges_s))[weeks].tolist()
    return Finding(
        question=Question.DRIFT,
        estimate=Estimate(value=float(changes.mean()), low=low, high=high).bounded(most=1.0),
        n=len(weeks),
        coverage=float(chosen.sum() / max(1, history.sized.sum())),
        parts={
            "by_chance": _change_by_chance(run_times[chosen], week[chosen], weeks),
            "of_sizes": float(_changes(sizes[chosen], week[chosen], weeks).mean()),
            "share_of_hours_of_new_users": _new_users(history, hours),
            "growth_of_hours_a_month": _growth(by_week),
        },
    )


def jensen_shannon(one: Floats, other: Floats) -> float:
    """Return the Jensen-Shannon divergence of two histograms, 0 to 1.

    Logarithms are to base 2 (Lin, IEEE Trans. IT 37(1), 1991).
    """
    p, q = one / one.sum(), other / other.sum()
    middle = (p + q) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(part > 0, part * np.log2(part / middle), 0.0).sum() for part in (p, q)]
    return max(0.0, float(sum(parts)) / 2)


def _changes(bins: NDArray[np.int64], week: Seconds, weeks: list[int]) -> Floats:
    size, n_weeks = int(bins.max()) + 1, int(week.max()) + 1
    counts = np.bincount(week * size + bins, minlength=n_weeks * size).reshape(n_weeks, size)[weeks].astype(np.float64)
    return np.array([jensen_shannon(one, other) for one, other in pairwise(counts)])


def _change_by_chance(bins: NDArray[np.int64], week: Seconds, weeks: list[int]) -> float:
    """Return the divergence expected if nothing changed and jobs were independent."""
    used = len(np.unique(bins))
    jobs = np.bincount(week)[weeks].tolist()
    pairs = [1 / one + 1 / other for one, other in pairwise(jobs)]
    return min(1.0, float((used - 1) / (8 * np.log(2)) * np.mean(pairs)))


def _new_users(history: StudyHistory, hours: Floats) -> float | None:
    """Return the share of hours of users new within a week.

    A user is new after four weeks without a submission. The result is None for a shorter history.
    """
    since_s = history.first_s + AWAY_S
    if not history.user.known.any() or history.end_s <= since_s + WEEK_DAYS * DAY_S:
        return None
    order = np.lexsort((history.submitted_s, history.user.code))
    user, at_s = history.user.code[order], history.submitted_s[order]
    is_new = np.ones(len(user), dtype=bool)
    is_new[1:] = (user[1:] != user[:-1]) | (np.diff(at_s) > AWAY_S)
    # A user stays new for a week, so that the work that begins with the first job counts.
    first_job = np.maximum.accumulate(np.where(is_new, np.arange(len(user)), 0))
    new = np.zeros(len(user), dtype=bool)
    new[order] = at_s - at_s[first_job] < WEEK_DAYS * DAY_S
    later = (history.submitted_s >= since_s) & history.submitted & history.user.known
    return share(hours[new & later], hours[later])


def _growth(by_week: list[float]) -> float | None:
    """Return the growth of hours a month, as a share.

    It comes from a straight line through the logarithms of the weekly hours.
    """
    if len(by_week) < 2 * FEWEST_USERS or min(by_week) <= 0:
        return None
    slope = np.polyfit(np.arange(len(by_week)), np.log(by_week), 1)[0]
    return float(np.expm1(slope * MONTH_DAYS / WEEK_DAYS))


def _first_runs(history: StudyHistory) -> Flags:
    """Return the jobs of the window whose wait counts, the first runs."""
    found: Flags = history.sized & (history.restart == 0)
    return found


def _waiting(history: StudyHistory, jobs: Seconds, until_s: Seconds, edges_s: Seconds) -> Floats:
    """Return how many of the jobs wait in each step."""
    return mean_levels(history.eligible_s[jobs], until_s[jobs], np.ones(len(jobs), dtype=np.int64), edges_s)


def _submissions(arrays: pd.Series[Any], singles: Flags) -> int:
    """Return how often something was submitted, an array once."""
    return int(arrays.nunique() + singles.sum())
