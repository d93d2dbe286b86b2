"""Groups of repeated small jobs, and what packing them saves.

Alike jobs have the same user, account, size and name. A job can be predicted only from alike jobs that had ended by its
submission. Tasks of an array are submitted together, so that the job submitted just before has mostly not ended (see
docs/predictions.md).

A group is several alike jobs that were submitted within minutes, for instance an array or a sweep. The accounting has
names and times, but not what a program does, so there are two bounds. Surely repeated are arrays and jobs of equal
names. Possibly repeated are all alike jobs, which without names are all of one user and size.

Neither memory nor use of a GPU is in the accounting. So the gain of sharing is a parameter. It is the sum of the speeds
of two trials on one GPU, each as a share of its speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.metrics.history import NEVER_S, Flags, Floats, Seconds, StudyHistory

FEW_GPUS = 4
"""Most GPUs of a trial, which is half of a usual node."""
SENT_WITHIN_S = 600
"""Longest time between the submissions of two successive jobs of a group, s."""
FEWEST_TRIALS = 3
"""Fewest jobs of a group, because two alike jobs are often one job and its correction."""
PAIR_GAINS = (1.0, 1.87)
"""Smallest and largest gain of sharing a GPU. Measured means over pairs of programs: 1.87 on a card of 24 GB of the
2020s, 1.31 on a V100 (22 % of pairs lose), 1.20 on a P100, 1.07 on a K80 (the last three: Gavel, OSDI'20). A pool
separates pairs that lose, so the smallest gain is 1."""
GAINS = (1.0, 1.26)
"""The same for two of the same program, as repeated jobs are: 1.26 on a V100, 1.09 on a P100, .98 on a K80."""


def alike_keys(history: StudyHistory) -> NDArray[np.int64]:
    """Return a number for each job, equal for jobs that are alike.

    It is -1 where the user is unknown.
    """
    key = history.user.code.astype(np.int64)
    size, sizes = pd.factorize(history.size)
    for code, n_codes in (
        (history.account.code + 1, len(history.account.values) + 1),
        (history.stem.code + 1, len(history.stem.values) + 1),
        (size, len(sizes)),
    ):
        # Numbers stay small, so that products cannot overflow.
        key, _ = pd.factorize(key * n_codes + code)
    return np.where(history.user.known, key, -1).astype(np.int64)


def ends_s(history: StudyHistory) -> Seconds:
    """Return the ends of jobs, s.

    Where no starts are recorded, a job is taken to start at its submission.
    """
    if history.has_starts:
        return history.ended_s
    has_run_time = np.isfinite(history.run_time_s)
    return np.where(has_run_time, history.submitted_s + np.nan_to_num(history.run_time_s).astype(np.int64), NEVER_S)


def last_alike(history: StudyHistory) -> NDArray[np.int64]:
    """Return the last alike job that had ended by each submission.

    It is -1 where there is none.
    """
    key, ended_s, n = alike_keys(history), ends_s(history), len(history.size)
    ran = np.isfinite(history.run_time_s) & (ended_s < NEVER_S)
    ends = np.flatnonzero(ran)
    at_s = np.concatenate([ended_s[ends], history.submitted_s])
    subject = np.concatenate([ends, np.arange(n)])
    is_end = np.repeat([True, False], [len(ends), n])  # a job that ends in the same second had not ended yet
    order = np.lexsort((subject, is_end, at_s, key[subject]))
    # Position of the last end so far. It counts only if it has the same key, which is checked below.
    last_end = np.maximum.accumulate(np.where(is_end[order], np.arange(len(order)), -1))
    last = np.where(last_end >= 0, subject[order][last_end], -1)
    submitted = ~is_end[order]
    position_of_last = np.full(n, -1, dtype=np.int64)
    position_of_last[subject[order][submitted]] = last[submitted]
    valid = (position_of_last >= 0) & (key >= 0)
    valid[valid] = key[position_of_last[valid]] == key[valid]
    return np.where(valid, position_of_last, -1)


def next_alike(history: StudyHistory) -> Floats:
    """Return the time from each job's end to the next alike submission, s.

    It is inf where there is none.
    """
    key, ended_s, n = alike_keys(history), ends_s(history), len(history.size)
    at_s = np.concatenate([history.submitted_s, ended_s])
    subject = np.concatenate([np.arange(n), np.arange(n)])
    is_submission = np.repeat([True, False], [n, n])  # an end comes before a submission in the same second
    order = np.lexsort((subject, is_submission, at_s, key[subject]))[::-1]
    next_submission = np.maximum.accumulate(np.where(is_submission[order], np.arange(len(order)), -1))
    next_job = np.where(next_submission >= 0, subject[order][next_submission], -1)
    ended = ~is_submission[order]
    position_of_next = np.full(n, -1, dtype=np.int64)
    position_of_next[subject[order][ended]] = next_job[ended]
    valid = (position_of_next >= 0) & (key >= 0) & (ended_s < NEVER_S)
    valid[valid] = key[position_of_next[valid]] == key[valid]
    gap_s = np.full(n, np.inf)
    gap_s[valid] = history.submitted_s[position_of_next[valid]] - ended_s[valid]
    return gap_s


def check_gains(gains: tuple[float, float]) -> None:
    """Refuse impossible gains of sharing.

    Raises
    ------
    UsageError
        They are not between .5 and 2, or not in ascending order.
    """
    low, high = gains
    if not 0.5 <= low <= high <= 2.0:
        raise UsageError(
            f"A gain from sharing of {low:g} to {high:g} is not possible.",
            hint="Two trials on one GPU do .5 to 2 times the work of one: --gain 1.0,1.87",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trials:
    """Group of each job, -1 for none.

    Attributes
    ----------
    sure : int64 array
        Groups of arrays and of equal names.
    possible : int64 array
        Groups of all alike jobs. Each group of ``sure`` is a part of one of these.
    of_array : bool array
        Whether a job belongs to an array.
    """

    sure: NDArray[np.int64]
    possible: NDArray[np.int64]
    of_array: Flags


def find_trials(history: StudyHistory) -> Trials:
    """Return the groups of repeated jobs of few GPUs.

    Jobs of unknown users are in none. A job that was submitted after all jobs of its group had ended begins another
    group, because it is a repetition and not part of a sweep.
    """
    name = history.name.astype(np.int64)
    array, _ = pd.factorize(history.jobs["array_job_id"])
    alike_key = alike_keys(history)
    is_small = (alike_key >= 0) & (history.size > 0) & (history.size <= FEW_GPUS)
    # Tasks of an array mostly share their name. Where names are not recorded, the array is used instead.
    evidence = np.where(name >= 0, name, np.where(array >= 0, array + len(name), -1))
    equal_name_key = alike_key * (evidence.max(initial=0) + 1) + evidence
    return Trials(
        sure=_bursts(np.where(is_small & (evidence >= 0), equal_name_key, -1), history),
        possible=_bursts(np.where(is_small, alike_key, -1), history),
        of_array=array >= 0,
    )


def pair_trials(
    group: NDArray[np.int64], partition: NDArray[np.int32], submitted_s: Seconds, may_share: Flags
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of jobs that share a GPU.

    Jobs of one group and partition are paired in the order of submission, because run times are not known then.

    Parameters
    ----------
    group : int64 array of shape (n_jobs,)
        -1 for none.
    partition : int32 array of shape (n_jobs,)
    submitted_s : int64 array of shape (n_jobs,)
        Ascending.
    may_share : bool array of shape (n_jobs,)
        Jobs of one GPU that ran.
    """
    rows = np.flatnonzero((group >= 0) & may_share)
    rows = rows[np.lexsort((rows, partition[rows], group[rows]))]
    if not len(rows):
        return rows, rows
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (np.diff(group[rows]) != 0) | (np.diff(partition[rows]) != 0)
    is_new[1:] |= np.diff(submitted_s[rows]) > SENT_WITHIN_S
    rank = np.arange(len(rows)) - np.flatnonzero(is_new)[np.cumsum(is_new) - 1]
    second = np.flatnonzero(rank % 2 == 1)
    return rows[second - 1], rows[second]


def may_share(history: StudyHistory) -> Flags:
    """Return the first runs of jobs that used one GPU."""
    result: Flags = (history.size == 1) & history.ran & (history.restart == 0)
    return result


def saved_hours(history: StudyHistory, group: NDArray[np.int64], gain: float) -> Floats:
    """Return the GPU hours saved by packing.

    They are counted at the first job of each pair. Two trials share a GPU until the shorter ends. Only the part of a
    pair in the window counts.

    Parameters
    ----------
    group : int64 array of shape (n_jobs,)
        -1 for none.
    gain : float
        Sum of the speeds of two trials on one GPU.
    """
    first, second = pair_trials(group, history.partition.code, history.submitted_s, may_share(history))
    hours = history.hours()
    saved = np.zeros(len(hours))
    saved[first] = 2 * np.minimum(hours[first], hours[second]) * (1 - 1 / gain)
    return saved


def repeated_amounts(history: StudyHistory, trials: Trials, chosen: Flags, gains: tuple[float, float]) -> pd.DataFrame:
    """Return the chosen jobs with what each adds to the sums.

    The user is empty where it is unknown.
    """
    hours, one = history.hours(), history.size == 1
    sure, possible = trials.sure >= 0, trials.possible >= 0
    in_window = history.submitted | (hours > 0)
    job_ids = history.jobs["job_id"] if in_window.all() else history.jobs["job_id"].where(in_window)
    counted = in_window & ~job_ids.duplicated().to_numpy()  # a requeued job once
    names = np.array([*history.user.values, ""], dtype=object)
    table = pd.DataFrame(
        {
            "user": names[history.user.code],
            "group": trials.possible,
            "jobs": possible & counted,
            "gpu_hours": hours,
            "one_gpu_hours": hours * one,
            "repeated_hours_low": hours * sure,
            "repeated_hours_high": hours * possible,
            "fusible_hours_low": hours * (sure & one),
            "fusible_hours_high": hours * (possible & one),
            "saved_hours_low": saved_hours(history, trials.sure, gains[0]),
            "saved_hours_high": saved_hours(history, trials.possible, gains[1]),
            "sure": sure,
            "position": np.arange(len(hours)),
        }
    )
    return table[chosen & (history.size > 0)]


def sum_by_user(amounts: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of ``repeated_amounts`` and the number of groups by user."""
    sums = amounts.drop(columns=["group", "position", "sure"]).groupby("user", sort=False).sum()
    groups = amounts[amounts["group"] >= 0].groupby("user", sort=False)["group"].nunique()
    sums["groups"] = groups.reindex(sums.index, fill_value=0)
    return sums.reset_index()


def shared_run_times(first_s: Floats, second_s: Floats, gain: float) -> tuple[Floats, Floats]:
    """Return the ends of two trials that start together on one GPU.

    Ends are in s after the start.
    """
    shorter_s = np.minimum(first_s, second_s)
    together_s = 2 * shorter_s / gain
    return together_s + first_s - shorter_s, together_s + second_s - shorter_s


def _bursts(key: NDArray[np.int64], history: StudyHistory) -> NDArray[np.int64]:
    """Return each job's burst of submissions with the same key.

    Groups are numbered in the order of their first jobs. A job is in none (-1) without a key, or among too few jobs.
    """
    rows = np.flatnonzero(key >= 0)
    rows = rows[np.argsort(key[rows], kind="stable")]
    submitted_s = history.submitted_s[rows]
    is_new = np.diff(key[rows], prepend=-1) != 0
    is_new[1:] |= np.diff(submitted_s) > SENT_WITHIN_S
    burst = np.cumsum(is_new)
    if history.has_starts and len(rows):
        latest_s = pd.Series(history.ended_s[rows]).groupby(burst).cummax().to_numpy()
        is_new[1:] |= latest_s[:-1] <= submitted_s[1:]
        burst = np.cumsum(is_new)
    is_first = np.ones(len(rows), dtype=bool)
    if (history.restart > 0).any():  # the runs of a requeued job are one job
        job_ids = history.jobs["job_id"]
        requeued = np.flatnonzero(job_ids.isin(job_ids[history.restart > 0]).to_numpy()[rows])
        runs = pd.DataFrame({"burst": burst[requeued], "job": job_ids.iloc[rows[requeued]].to_numpy()})
        is_first[requeued] = ~runs.duplicated().to_numpy()
    is_large_enough = np.bincount(burst[is_first], minlength=int(burst.max(initial=0)) + 1) >= FEWEST_TRIALS
    group = np.full(len(key), -1, dtype=np.int64)
    group[rows] = np.where(is_large_enough[burst], burst, -1)
    numbers, _ = pd.factorize(group[group >= 0])
    group[group >= 0] = numbers
    return group
