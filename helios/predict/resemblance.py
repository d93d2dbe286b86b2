"""Past jobs that had ended by a job's submission: those most like it, and the last ones that it rests on.

Likeness is that of the walk through history (:mod:`helios.predict.history`), over the whole past instead of the
user's last few jobs: size and limit by their ratio, partition and name by being the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.predict.basis import BASES
from helios.predict.features import JobTable, groups_of
from helios.predict.history import LEVELS

LEVEL_OF = {"user+size": "user_size", "user": "user", "group": "account", "size": "request", "all": "global"}
"""Which of ``LEVELS`` holds the jobs that each of ``BASES`` means."""
LAST = 12
"""How many of the last ended jobs stand for those a prediction rests on."""

OTHER_PARTITION, OTHER_STEM, OTHER_NAME, OTHER_USER, OTHER_ACCOUNT = 1.0, 2.0, 0.3, 1.5, 1.0
"""Distances; 0.69 is a size or limit twice as large. Partition and stem count as in the walk, the rest we chose."""
AGE = 0.1
"""Distance of each factor e in the number of jobs of its kind (same request and user) that ended since."""
UNKNOWN_LIMIT, UNLIMITED, UNKNOWN_SIZE = -5.0, 20.0, -1.0
"""Stand for a logarithm, as in the walk: an unknown limit is like an unknown one and far from any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """A past job that is like the one explained.

    Attributes
    ----------
    row : int
        Its row in the jobs given.
    ended_s : int
        s since the epoch.
    run_time_s : float
    distance : float
        0: the same request, and no job like it has ended since.
    differs : tuple of str
        In what it is not the same: "size", "limit", "partition", "name", "user", "account".
    """

    row: int
    ended_s: int
    run_time_s: float
    distance: float
    differs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precedent:
    """The last ended jobs of the group that a prediction rests on.

    Attributes
    ----------
    jobs : int
        How many of the group had ended, at any time.
    last : int
        How many of them, the last ones, the run times are of; at most ``LAST``.
    shortest_s, longest_s : float
        Their run times.
    """

    jobs: int
    last: int
    shortest_s: float
    longest_s: float


def precedent(table: JobTable, basis: str) -> Precedent | None:
    """Return the last ended jobs of the last job's ``basis`` (one of ``BASES``); None: none had ended."""
    return _precedent(table, groups_of(table), basis)


def narrowest(table: JobTable) -> tuple[str, Precedent | None]:
    """Return the narrowest of ``BASES`` in which a job had ended by the last job's submission, and its last jobs."""
    groups = groups_of(table)
    found = ((basis, _precedent(table, groups, basis)) for basis in BASES)
    return next(((basis, there) for basis, there in found if there), (BASES[-1], None))


def resembling(table: JobTable, *, most: int = 5) -> tuple[Resemblance, ...]:
    """Return the past jobs most like the last of ``table``, the most alike first.

    The user's own come first, however far; if they are fewer than ``most``, others' of the same account, size or name
    stem follow. O(n log n) in the number of jobs.
    """
    ended = _ended_before_the_last(table)
    own = (table.user[ended] == table.user[-1]) & (table.user[-1] >= 0)
    chosen = _nearest(table, ended[own], most)
    if len(chosen) < most:
        others = ended[~own]
        kin = others[_kin(table, others)]
        chosen += _nearest(table, kin, most - len(chosen))
    return tuple(chosen)


def _precedent(table: JobTable, groups: NDArray[np.int32], basis: str) -> Precedent | None:
    group = groups[:, LEVELS.index(LEVEL_OF[basis])]
    ended = _ended_before_the_last(table)
    alike = ended[(group[ended] == group[-1]) & (group[-1] >= 0)]
    if not len(alike):
        return None
    last = alike[np.argsort(table.ended_s[alike], kind="stable")][-LAST:]
    run_s = table.run_time_s[last]
    return Precedent(jobs=len(alike), last=len(last), shortest_s=float(run_s.min()), longest_s=float(run_s.max()))


def _ended_before_the_last(table: JobTable) -> NDArray[np.int64]:
    """Return the rows that had ended by the last job's submission, with a known run time."""
    return np.flatnonzero((table.ended_s < table.submitted_s[-1]) & np.isfinite(table.run_time_s))


def _kin(table: JobTable, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    account = (table.account[rows] == table.account[-1]) & (table.account[-1] >= 0)
    stem = (table.stem[rows] == table.stem[-1]) & (table.stem[-1] >= 0)
    return np.asarray(account | stem | (_size(table)[rows] == _size(table)[-1]))


def _nearest(table: JobTable, rows: NDArray[np.int64], most: int) -> list[Resemblance]:
    newest_first = rows[np.argsort(-table.ended_s[rows], kind="stable")]
    apart = _apart(table, newest_first)
    distance = sum(apart.values()) + AGE * np.log1p(_newer_alike(table, newest_first))
    near = np.argsort(distance, kind="stable")[:most]
    return [
        Resemblance(
            row=int(newest_first[place]),
            ended_s=int(table.ended_s[newest_first[place]]),
            run_time_s=float(table.run_time_s[newest_first[place]]),
            distance=float(distance[place]),
            differs=tuple(what for what, far in apart.items() if far[place] > 0),
        )
        for place in near
    ]


def _newer_alike(table: JobTable, newest_first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of each one's kind ended after it: an old job of a kind of its own is not crowded out."""
    same_stem = table.stem == table.stem[-1]  # not the stem itself: where every name is another, all would be of age 0
    columns = (_size(table), _limit(table), table.partition, same_stem, table.user)
    kind = np.zeros(len(newest_first), dtype=np.int64)
    for column in columns:
        codes, values = pd.factorize(column[newest_first])
        kind = pd.factorize(kind * (len(values) + 1) + codes)[0]
    return np.asarray(pd.Series(kind).groupby(kind).cumcount(), dtype=np.int64)


def _apart(table: JobTable, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return how far each of ``rows`` is from the last job, by what they differ in."""
    size, limit = _size(table), _limit(table)
    cpu_or_gpu = (table.gpus[rows] > 0) != (table.gpus[-1] > 0)
    other_stem = table.stem[rows] != table.stem[-1]
    other_name = table.name[rows] != table.name[-1]
    return {
        "size": np.abs(size[rows] - size[-1]) + cpu_or_gpu,
        "limit": np.abs(limit[rows] - limit[-1]),
        "partition": OTHER_PARTITION * (table.partition[rows] != table.partition[-1]),
        "name": np.where(other_stem, OTHER_STEM, OTHER_NAME * other_name),
        "user": OTHER_USER * ((table.user[rows] != table.user[-1]) & (table.user[-1] >= 0)),
        "account": OTHER_ACCOUNT * (table.account[rows] != table.account[-1]),
    }


def _size(table: JobTable) -> NDArray[np.float64]:
    return np.nan_to_num(np.log1p(table.size), nan=UNKNOWN_SIZE)


def _limit(table: JobTable) -> NDArray[np.float64]:
    return np.nan_to_num(np.log1p(table.time_limit_s), nan=UNKNOWN_LIMIT, posinf=UNLIMITED)
