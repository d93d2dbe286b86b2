"""Groups of repeated small jobs, and what packing them saves.

Alike jobs have the same user, account, size and name. A job can be predicted only from alike jobs that had ended by its
submission. Tasks of an array are submitted together, so that the job submitted just before has mostly not ended (see
docs/predictions.md).

A group is several alike jobs that were sent within minutes: an array, a sweep. The accounting shows names and times,
not what a program does, so there are two bounds. Surely repeated are arrays and jobs of equal names; perhaps repeated
are all that are alike, which without names is all of one user and size.

Neither memory nor use of a GPU is in the accounting. How much sharing gains is therefore a parameter: the sum of the
speeds of two trials on one GPU, each as a share of its speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.metrics.study.history import NEVER_S, Flags, Floats, Seconds, StudyHistory


def alike_keys(history: StudyHistory) -> NDArray[np.int64]:
    """Return a number for each job, equal for jobs that are alike.

    It is -1 where the user is unknown.
    """
    key = history.user.code.astype(np.int64)
    size, sizes = pd.factorize(history.size)
    for place, distinct in (
        (history.account.code + 1, len(history.account.values) + 1),
        (history.stem.code + 1, len(history.stem.values) + 1),
        (size, len(sizes)),
    ):
        # Numbers stay small, so that products cannot overflow.
        key, _ = pd.factorize(key * distinct + place)
    return np.where(history.user.known, key, -1).astype(np.int64)


def ends_s(history: StudyHistory) -> Seconds:
    """Return when jobs ended, s.

    Where no starts are recorded, each job counts as started at its submission.
    """
    if history.has_starts:
        return history.ended_s
    known = np.isfinite(history.run_time_s)
    return np.where(known, history.submitted_s + np.nan_to_num(history.run_time_s).astype(np.int64), NEVER_S)


def last_alike(history: StudyHistory) -> NDArray[np.int64]:
    """Return the last alike job that had ended by each submission.

    It is given by its position, or -1 where there is none.
    """
    key, ended_s, n = alike_keys(history), ends_s(history), len(history.size)
    ran = np.isfinite(history.run_time_s) & (ended_s < NEVER_S)
    ends = np.flatnonzero(ran)
    at_s = np.concatenate([ended_s[ends], history.submitted_s])
    subject = np.concatenate([ends, np.arange(n)])
    is_end = np.repeat([True, False], [len(ends), n])  # what ends in the same second had not ended yet
    order = np.lexsort((subject, is_end, at_s, key[subject]))
    # The place of the last end so far, which counts only if it is of the same key.
    place = np.maximum.accumulate(np.where(is_end[order], np.arange(len(order)), -1))
    last = np.where(place >= 0, subject[order][place], -1)
    submitted = ~is_end[order]
    answer = np.full(n, -1, dtype=np.int64)
    answer[subject[order][submitted]] = last[submitted]
    valid = (answer >= 0) & (key >= 0)
    valid[valid] = key[answer[valid]] == key[valid]
    return np.where(valid, answer, -1)


def next_alike(history: StudyHistory) -> Floats:
    """Return the time to the next alike submission, s.

    It is counted from the job's end, and inf where there is none.
    """
    key, ended_s, n = alike_keys(history), ends_s(history), len(history.size)
    at_s = np.concatenate([history.submitted_s, ended_s])
    subject = np.concatenate([np.arange(n), np.arange(n)])
    is_submission = np.repeat([True, False], [n, n])  # an end comes before a submission in the same second
    order = np.lexsort((subject, is_submission, at_s, key[subject]))[::-1]
    following = np.maximum.accumulate(np.where(is_submission[order], np.arange(len(order)), -1))
    found = np.where(following >= 0, subject[order][following], -1)
    ended = ~is_submission[order]
    answer = np.full(n, -1, dtype=np.int64)
    answer[subject[order][ended]] = found[ended]
    valid = (answer >= 0) & (key >= 0) & (ended_s < NEVER_S)
    valid[valid] = key[answer[valid]] == key[valid]
    gap_s = np.full(n, np.inf)
    gap_s[valid] = history.submitted_s[answer[valid]] - ended_s[valid]
    return gap_s


FEW_GPUS = 4
"""Most GPUs of a trial, half an ordinary node."""
SENT_WITHIN_S = 600
"""Longest time between the submissions of two successive jobs of a group, s."""
FEWEST_TRIALS = 3
"""Fewest jobs of a group: two are as often one job and its correction."""
GAINS = (1.0, 1.87)
"""Least and most that sharing a GPU gains. Measured means over pairs of programs: 1.87 on a card of 24 GB of the 2020s,
1.31 on a V100 (22 % of pairs lose), 1.20 on a P100, 1.07 on a K80 (the last three: Gavel, OSDI'20). Two of the same
program: 1.26, 1.09, and .98. A pool takes back what loses, so the least is 1."""


def check_gains(gains: tuple[float, float]) -> None:
    """Refuse gains from sharing that cannot be.

    Raises
    ------
    UsageError
        They do not lie between .5 and 2, the least first.
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
        Groups of all alike jobs. Each group of ``sure`` lies in one of these.
    of_array : bool array
        Whether a job belongs to an array.
    """

    sure: NDArray[np.int64]
    possible: NDArray[np.int64]
    of_array: Flags


def find_trials(history: StudyHistory) -> Trials:
    """Return the groups of repeated jobs of few GPUs.

    Jobs of unknown users are in none. A job that was sent after all jobs of its group had ended begins another group:
    that is a job sent again, not a sweep.
    """
    name = history.name.astype(np.int64)
    array, _ = pd.factorize(history.jobs["array_job_id"])
    alike = alike_keys(history)
    few = (alike >= 0) & (history.size >= 1) & (history.size <= FEW_GPUS)
    # An array's tasks mostly share their name. Where names are not recorded, the array stands for it.
    evidence = np.where(name >= 0, name, np.where(array >= 0, array + len(name), -1))
    equal = alike * (evidence.max(initial=0) + 1) + evidence
    return Trials(
        sure=_bursts(np.where(few & (evidence >= 0), equal, -1), history),
        possible=_bursts(np.where(few, alike, -1), history),
        of_array=array >= 0,
    )


def _bursts(key: NDArray[np.int64], history: StudyHistory) -> NDArray[np.int64]:
    """Return groups of jobs submitted within minutes.

    They are numbered in the order of their first jobs, -1 where there are too few jobs or the key is -1.
    """
    rows = np.flatnonzero(key >= 0)
    rows = rows[np.argsort(key[rows], kind="stable")]
    submitted_s = history.submitted_s[rows]
    begins = np.diff(key[rows], prepend=-1) != 0
    begins[1:] |= np.diff(submitted_s) > SENT_WITHIN_S
    burst = np.cumsum(begins)
    if history.has_starts and len(rows):
        latest_s = pd.Series(history.ended_s[rows]).groupby(burst).cummax().to_numpy()
        begins[1:] |= latest_s[:-1] <= submitted_s[1:]
        burst = np.cumsum(begins)
    first = np.ones(len(rows), dtype=bool)
    if (history.restart > 0).any():  # the runs of a requeued job are one job
        job_ids = history.jobs["job_id"]
        again = np.flatnonzero(job_ids.isin(job_ids[history.restart > 0]).to_numpy()[rows])
        runs = pd.DataFrame({"burst": burst[again], "job": job_ids.iloc[rows[again]].to_numpy()})
        first[again] = ~runs.duplicated().to_numpy()
    large = np.bincount(burst[first], minlength=int(burst.max(initial=0)) + 1) >= FEWEST_TRIALS
    group = np.full(len(key), -1, dtype=np.int64)
    group[rows] = np.where(large[burst], burst, -1)
    found, _ = pd.factorize(group[group >= 0])
    group[group >= 0] = found
    return group


def pair_trials(
    group: NDArray[np.int64], partition: NDArray[np.int32], submitted_s: Seconds, may_share: Flags
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs of jobs that share a GPU.

    Jobs of one group and partition are paired in the order of submission, as nobody knows then how long they will run.

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
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (np.diff(group[rows]) != 0) | (np.diff(partition[rows]) != 0)
    begins[1:] |= np.diff(submitted_s[rows]) > SENT_WITHIN_S
    place = np.arange(len(rows)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    second = np.flatnonzero(place % 2 == 1)
    return rows[second - 1], rows[second]


def may_share(history: StudyHistory) -> Flags:
    """Return the jobs that could share a GPU.

    They used one GPU, and ran. Of a requeued job it is the first run.
    """
    found: Flags = (history.size == 1) & history.ran & (history.restart == 0)
    return found


def saved_hours(history: StudyHistory, group: NDArray[np.int64], gain: float) -> Floats:
    """Return the GPU hours saved by packing.

    They are counted at the first job of each pair. Two trials share a GPU while both run; what the longer has left it
    runs alone. Only that part of a pair counts that lies in the window.

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


def shared_run_times(one_s: Floats, other_s: Floats, gain: float) -> tuple[Floats, Floats]:
    """Return the ends of two trials that start together on one GPU.

    In s after the start.
    """
    shorter_s = np.minimum(one_s, other_s)
    together_s = 2 * shorter_s / gain
    return together_s + one_s - shorter_s, together_s + other_s - shorter_s
