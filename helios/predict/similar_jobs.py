"""Past jobs behind a prediction, the most similar and the last ones.

The basis is the narrowest group of past jobs in which a job has ended. It follows from a row of features alone, so that
a live prediction, a replay and an explanation cannot disagree. It shows which jobs were available. The weight of each
group follows from the shrinkage (:mod:`helios.predict.causal_stats`) and the model.

The distance between jobs is that of the features, but over the whole past instead of the user's last jobs. Size and
limit count by their ratio, partition and name by whether they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.causal_stats import COLUMN, LEVELS
from helios.predict.job_table import JobTable, job_groups, job_traits

BASES = ("user+size", "user", "group", "size", "all")
"""Groups of past jobs, from the narrowest to the widest.

They are jobs of the user with the same size and limit, all jobs of the user, of the account, with the same request by
anyone, and all jobs.
"""

BASIS_LEVELS = {"user+size": "user_size", "user": "user", "group": "account", "size": "request", "all": "global"}
"""The level in ``LEVELS`` of each of ``BASES``."""
LAST = 12
"""Number of last ended jobs that are shown for the basis of a prediction."""

AGE = 0.1
"""Distance for each factor e in the number of jobs with the same request and user that ended since."""

OTHER_PARTITION, OTHER_STEM, OTHER_NAME, OTHER_USER, OTHER_ACCOUNT = 1.0, 2.0, 0.3, 1.5, 1.0
"""Distances for other values, where 0.69 is a size or limit twice as large.

Those for partition and stem are as in the features. The others were chosen.
"""


def fallback_level(features: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the position in ``BASES`` of the basis of each prediction.

    Parameters
    ----------
    features : float32 array of shape (n, len(FEATURES))
        Result of :func:`helios.predict.job_table.causal_features`.

    Returns
    -------
    int8 array of shape (n,)
        For an unknown user, never the position of jobs of the user.
    """
    # log1p of the number of ended jobs. For an unknown user it is NaN, which is not above 0.
    user_size, user = features[:, COLUMN.user_size_ended] > 0, features[:, COLUMN.user_ended] > 0
    group, size = (~np.isnan(features[:, column]) for column in (COLUMN.account_mean, COLUMN.request_last_1))
    return np.asarray(np.select([user_size, user, group, size], range(4), len(BASES) - 1), dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarJob:
    """Past job that is similar to the explained one.

    Attributes
    ----------
    row : int
        Position in the history.
    ended_s : int
        s since the epoch.
    run_time_s : float
    distance : float
        0 for the same request and user, if no other such job has ended since.
    differs : tuple of str
        Properties that differ, of "size", "limit", "partition", "name", "user" and "account".
    """

    row: int
    ended_s: int
    run_time_s: float
    distance: float
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentInGroup:
    """Last ended jobs of the basis of a prediction.

    Attributes
    ----------
    jobs : int
        Number of all ended jobs of the group.
    last : int
        Number of the last of them, at most ``LAST``.
    shortest_s, longest_s : float
        Shortest and longest run time of the last ones.
    """

    jobs: int
    last: int
    shortest_s: float
    longest_s: float


def narrowest_group(table: JobTable) -> tuple[str, RecentInGroup | None]:
    """Return the narrowest basis with an ended job at the last submission.

    The other value has its last jobs, or is None without an ended job.
    """
    groups = job_groups(table)
    for basis in BASES:
        if recent := recent_in_group(table, groups, basis):
            return basis, recent
    return BASES[-1], None


def similar_jobs(table: JobTable, *, most: int = 5) -> tuple[SimilarJob, ...]:
    """Return the past jobs most similar to the last job, nearest first.

    Those of the same user come first, whatever their distance. If there are fewer than ``most``, jobs of other users
    with the same account, size or name stem follow. O(n log n) in the number of jobs.
    """
    ended = _ended_before_last(table)
    same_user = (table.user[ended] == table.user[-1]) & (table.user[-1] >= 0)
    nearest = _nearest(table, ended[same_user], most)
    if len(nearest) < most:
        others = ended[~same_user]
        same_account = (table.account[others] == table.account[-1]) & (table.account[-1] >= 0)
        same_stem = (table.stem[others] == table.stem[-1]) & (table.stem[-1] >= 0)
        size = job_traits(table)[:, 0]
        candidates = others[same_account | same_stem | (size[others] == size[-1])]
        nearest += _nearest(table, candidates, most - len(nearest))
    return tuple(nearest)


def recent_in_group(table: JobTable, groups: NDArray[np.int32], basis: str) -> RecentInGroup | None:
    """Return the last ended jobs of a basis, or None."""
    group = groups[:, LEVELS.index(BASIS_LEVELS[basis])]
    ended = _ended_before_last(table)
    members = ended[(group[ended] == group[-1]) & (group[-1] >= 0)]
    if not len(members):
        return None
    last = members[np.argsort(table.ended_s[members], kind="stable")][-LAST:]
    run_s = table.run_time_s[last]
    return RecentInGroup(jobs=len(members), last=len(last), shortest_s=float(run_s.min()), longest_s=float(run_s.max()))


def _ended_before_last(table: JobTable) -> NDArray[np.int64]:
    """Return jobs of known run time ended by the last submission."""
    return np.flatnonzero((table.ended_s < table.submitted_s[-1]) & np.isfinite(table.run_time_s))


def _nearest(table: JobTable, rows: NDArray[np.int64], most: int) -> list[SimilarJob]:
    rows = rows[np.argsort(-table.ended_s[rows], kind="stable")]
    distances = _distances(table, rows)
    distance = sum(distances.values()) + AGE * np.log1p(_n_newer_similar(table, rows))
    return [
        SimilarJob(
            row=int(rows[i]),
            ended_s=int(table.ended_s[rows[i]]),
            run_time_s=float(table.run_time_s[rows[i]]),
            distance=float(distance[i]),
            differs=tuple(name for name, values in distances.items() if values[i] > 0),
        )
        for i in np.argsort(distance, kind="stable")[:most]
    ]


def _n_newer_similar(table: JobTable, newest_first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many jobs of its request and user ended later.

    By this age, an old job with a rare request is not displaced by many newer jobs with a common one.
    """
    same_stem = table.stem == table.stem[-1]  # not the stem: if all names differed, all jobs would have age 0
    columns = (*job_traits(table)[:, :3].T, same_stem, table.user)
    group = np.zeros(len(newest_first), dtype=np.int64)
    for column in columns:
        codes, values = pd.factorize(column[newest_first])
        group = pd.factorize(group * (len(values) + 1) + codes)[0]
    return np.asarray(pd.Series(group).groupby(group).cumcount(), dtype=np.int64)


def _distances(table: JobTable, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return the distances of ``rows`` from the last job, by property."""
    size, limit = job_traits(table)[:, :2].T
    other_unit = (table.gpus[rows] > 0) != (table.gpus[-1] > 0)  # size in GPUs or in CPUs
    other_stem = table.stem[rows] != table.stem[-1]
    other_name = table.name[rows] != table.name[-1]
    return {
        "size": np.abs(size[rows] - size[-1]) + other_unit,
        "limit": np.abs(limit[rows] - limit[-1]),
        "partition": OTHER_PARTITION * (table.partition[rows] != table.partition[-1]),
        "name": np.where(other_stem, OTHER_STEM, OTHER_NAME * other_name),
        "user": OTHER_USER * ((table.user[rows] != table.user[-1]) & (table.user[-1] >= 0)),
        "account": OTHER_ACCOUNT * (table.account[rows] != table.account[-1]),
    }
