"""Cap on one user's share of jobs put ahead of others'.

It does not refuse a change but makes it neutral. The rule is written for arrays of the movable jobs in the order of the
queue, with numbers for partitions and users. Replays compile it and apply it at every event, so it uses only what Numba
supports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import JobSetting
from helios.changes import Change
from helios.control.observed import PendingJob

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def cap_changes(
    changes: Sequence[Change[float]], *, jobs: Mapping[str, PendingJob], share: float
) -> list[Change[float]]:
    """Make changes neutral that exceed one user's share of a partition.

    Only jobs that are put ahead of others' count, see :func:`ahead_of_others`. The job that has waited longest is put
    ahead of nobody. So a job that a service promotes for its wait stays promoted, even if its user has other jobs. An
    array counts as one job. The least urgent jobs are made neutral first, among equals the last in the queue. Every
    user keeps at least one.
    """
    ordering = {change.target: change for change in changes if change.setting is JobSetting.ORDER}
    movable = [job for job in jobs.values() if job.eligible and not job.excluded_reason]
    partition, user = (
        pd.factorize(np.array(names, dtype=object))[0]
        for names in ([job.partition for job in movable], [job.user for job in movable])
    )
    eligible = np.array([job.eligible_us for job in movable], dtype=np.int64)
    urgency = np.array([ordering[job.job_id].value if job.job_id in ordering else 0.0 for job in movable])
    is_ahead = ahead_of_others(partition, eligible, user, urgency)
    is_beyond = beyond_share(partition, user, urgency, is_ahead, share)
    excess_keys = {ordering[movable[place].job_id].key for place in np.flatnonzero(is_beyond).tolist()}
    return [
        _neutral(change, jobs[change.target].user, share) if change.key in excess_keys else change for change in changes
    ]


def ahead_of_others(partition: Integers, eligible: Integers, user: Integers, urgency: Floats) -> Flags:
    """Return which jobs are put ahead of an older job of another user.

    Such a job has an urgency above 0, and above that of a job of another user that became eligible earlier in the
    partition. The unit of ``eligible`` does not matter. The loop goes from the oldest job on. It keeps the least
    urgency among the older jobs and its user, and the least urgency among the jobs of all other users.
    """
    oldest = np.argsort(eligible, kind="mergesort")
    oldest = oldest[np.argsort(partition[oldest], kind="mergesort")]
    is_ahead = np.zeros(len(user), dtype=np.bool_)
    least, least_user, least_other = np.inf, -2, np.inf
    begins = 0
    for place in range(len(oldest)):
        job = oldest[place]
        if place > 0 and partition[job] != partition[oldest[place - 1]]:
            least, least_user, least_other, begins = np.inf, -2, np.inf, place
        while eligible[oldest[begins]] < eligible[job]:
            older = oldest[begins]
            if user[older] == least_user:
                least = min(least, urgency[older])
            elif urgency[older] < least:
                least, least_user, least_other = urgency[older], user[older], least
            else:
                least_other = min(least_other, urgency[older])
            begins += 1
        is_ahead[job] = urgency[job] > 0 and (least_other if user[job] == least_user else least) < urgency[job]
    return is_ahead


def beyond_share(partition: Integers, user: Integers, urgency: Floats, ahead: Flags, share: float) -> Flags:
    """Return which jobs of those ``ahead`` exceed one user's share of a partition."""
    places = np.flatnonzero(ahead)
    places = places[np.argsort(-urgency[places], kind="mergesort")]
    for column in (user, partition):
        places = places[np.argsort(column[places], kind="mergesort")]
    previous, following = places[:-1], places[1:]
    is_first = np.ones(len(places), dtype=np.int64)
    is_first[1:] = (user[previous] != user[following]) | (partition[previous] != partition[following])
    rank = np.arange(len(places)) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    is_beyond, begins = np.zeros(len(user), dtype=np.bool_), 0
    while begins < len(places):
        ends = begins + int((partition[places[begins:]] == partition[places[begins]]).sum())
        # Each reduction lowers the sum, so repeat until nothing changes. The epsilon keeps 0.1 x 30 at 3.
        n_kept, max_rank, n_before = ends - begins, 0, -1
        while n_kept != n_before:
            n_before, max_rank = n_kept, max(1, math.floor(share * n_kept + 1e-9))
            n_kept = int((rank[begins:ends] < max_rank).sum())
        is_beyond[places[begins:ends]] = rank[begins:ends] >= max_rank
        begins = ends
    return is_beyond


def _neutral(change: Change[float], user: str, share: float) -> Change[float]:
    where = f"the jobs put ahead of others' in partition {change.partition}"
    why = f"neutral: no more than {share:.0%} of {where} may be {user}'s"
    return replace(change, value=0.0, reason=f"{change.reason}; {why}")
