"""Alike jobs, which have the same user, account, size and name.

A job can be predicted only from alike jobs that had ended by its submission. Tasks of an array are submitted together,
so that the job submitted just before has mostly not ended (see docs/predictions.md).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.study.history import NEVER_S, Floats, Seconds, StudyHistory


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
