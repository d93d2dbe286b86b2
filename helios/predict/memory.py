"""What ended jobs have taught, in a form that a live predictor adds to and asks without changing it.

The sums are those of :mod:`helios.predict.history`, and its kernels keep them. Here they get room for groups to come,
may be told of submissions in any order, and are asked through a small copy of the groups concerned: what a question
assumes (jobs that run, jobs that wait) is gone with the copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.kernels import kept
from helios.predict.history import (
    _BURST,
    _LAST_SUBMIT_S,
    _SUBMITTED,
    _UNENDED,
    _UNENDED_SUM_S,
    BURST_GAP_S,
    FEATURES,
    LEVELS,
    NEVER_S,
    REQUEST_FEATURES,
    USER,
    Events,
    History,
    nothing_known,
    walk,
)

_ROOM = 1024
_NO_JOBS = np.empty(0, dtype=np.int64)
# An arrival that belongs to no group: the walk brings everything up to date before it, and it changes nothing itself.
_NOBODY = Events(
    submitted_s=np.array([NEVER_S]),
    log_run=np.full(1, np.nan),
    limit_share=np.full(1, np.nan),
    failed=np.full(1, np.nan),
    request=np.zeros((1, len(REQUEST_FEATURES)), dtype=np.float32),
    nearness=np.zeros((1, 4)),
    groups=np.full((1, len(LEVELS)), -1, dtype=np.int32),
)


class Memory:
    """A :class:`helios.predict.history.History` of jobs that have all ended, with room for more groups."""

    def __init__(self) -> None:
        # One group and one user of whom nothing is known: every group that is yet to come looks like it.
        self._blank = nothing_known(_NOBODY._replace(groups=np.zeros_like(_NOBODY.groups)))
        self._history = _padded(self._blank, groups=_ROOM, users=_ROOM)
        self._n_groups = self._n_users = 0
        self._submissions: dict[int, NDArray[np.int64]] = {}

    def learn(self, events: Events, ended_s: NDArray[np.int64]) -> None:
        """Take in jobs that have ended.

        Older submissions may come after younger ones. Ends count in the order in which they are told: those of one
        call by their time, then by row.

        Parameters
        ----------
        events : Events
            In submission order.
        ended_s : int64 array, s since the epoch
        """
        self._make_room(events.groups)
        _submit(self._history.counts, events.groups, events.submitted_s)
        order = np.argsort(ended_s, kind="stable")
        with_nobody = Events(*_joined(_NOBODY, events))
        unread = np.empty((1, len(FEATURES)), dtype=np.float32)
        walk(self._history, with_nobody, np.zeros(1, dtype=np.int64), order + 1, ended_s[order], 0, unread)
        for user, submitted_s in _by_group(events.groups[:, USER], events.submitted_s):
            earlier = self._submissions.get(user, _NO_JOBS)
            self._submissions[user] = np.sort(np.concatenate((earlier, submitted_s)))

    def describe(
        self, asked: Events, *, unended: NDArray[np.int32], unended_submitted_s: NDArray[np.int64], now_s: int
    ) -> NDArray[np.float32]:
        """Return the features of jobs submitted now, one after the other; nothing is learned from them.

        Parameters
        ----------
        asked : Events
            Groups beyond those that were learned of are new ones.
        unended : int32 array of shape (n, len(LEVELS))
            Groups of jobs that have been submitted and have not ended.
        unended_submitted_s : int64 array of shape (n,)

        Returns
        -------
        float32 array of shape (len(asked.submitted_s), len(FEATURES))
        """
        numbers = np.unique(asked.groups[asked.groups >= 0])
        near = _renumbered(asked.groups, numbers)
        history = self._copy_of(numbers, users=np.unique(near[near[:, USER] >= 0, USER]))
        others = _renumbered(unended, numbers)
        _submit(history.counts, others, unended_submitted_s)
        self._count_bursts(history, numbers, others[:, USER], unended_submitted_s, now_s)
        features = np.empty((len(near), len(FEATURES)), dtype=np.float32)
        walk(history, asked._replace(groups=near), np.arange(len(near)), _NO_JOBS, _NO_JOBS, 0, features)
        return features

    def _make_room(self, groups: NDArray[np.int32]) -> None:
        users = np.unique(groups[groups[:, USER] >= 0, USER])
        n_groups, n_users = max(self._n_groups, int(groups.max(initial=-1)) + 1), self._n_users + len(users)
        # One more than are needed: the row behind the last is what nothing is known of.
        more_groups = _more(len(self._history.sums), n_groups + 1)
        more_users = _more(len(self._history.rings), n_users + 1)
        if more_groups or more_users:
            more = _padded(self._blank, groups=more_groups, users=more_users)
            self._history = History(*_joined(self._history, more))
        fresh = users[self._history.ring_of[users] < 0]
        self._history.ring_of[fresh] = np.arange(self._n_users, self._n_users + len(fresh), dtype=np.int32)
        self._n_groups, self._n_users = n_groups, self._n_users + len(fresh)

    def _copy_of(self, numbers: NDArray[np.int32], *, users: NDArray[np.int32]) -> History:
        """Return the history of groups ``numbers`` under their positions there; ``users`` are such positions."""
        rows = np.minimum(numbers, self._n_groups)
        rings = self._history.ring_of[rows[users]]
        rings = np.where(rings < 0, self._n_users, rings)
        ring_of = np.full(len(rows), -1, dtype=np.int32)
        ring_of[users] = np.arange(len(users), dtype=np.int32)
        return History(
            sums=self._history.sums[rows],
            counts=self._history.counts[rows],
            rings=self._history.rings[rings],
            ring_of=ring_of,
            ring_length=self._history.ring_length[rings],
        )

    def _count_bursts(
        self,
        history: History,
        numbers: NDArray[np.int32],
        users: NDArray[np.int32],
        submitted_s: NDArray[np.int64],
        now_s: int,
    ) -> None:
        """Set how many jobs each user has submitted in a row: of other groups that is never read."""
        unended = dict(_by_group(users, submitted_s))
        lately = (history.ring_of >= 0) & (history.counts[:, _LAST_SUBMIT_S] >= now_s - BURST_GAP_S)
        for user in np.flatnonzero(lately).tolist():
            known = self._submissions.get(int(numbers[user]), _NO_JOBS)
            times = np.sort(np.concatenate((known, unended.get(user, _NO_JOBS))))
            apart = np.flatnonzero(np.diff(times) > BURST_GAP_S)
            history.counts[user, _BURST] = len(times) - (apart[-1] + 1 if len(apart) else 0)


def _padded(blank: History, *, groups: int, users: int) -> History:
    """Return a history of so many groups and users of whom nothing is known."""
    return History(
        sums=np.repeat(blank.sums, groups, axis=0),
        counts=np.repeat(blank.counts, groups, axis=0),
        rings=np.repeat(blank.rings, users, axis=0),
        ring_of=np.full(groups, -1, dtype=np.int32),
        ring_length=np.repeat(blank.ring_length, users),
    )


def _joined(first: Any, second: Any) -> list[Any]:
    return [np.concatenate(pair) for pair in zip(first, second, strict=True)]


def _more(room: int, needed: int) -> int:
    """Return by how much to enlarge; by half at least, so that room is rarely made."""
    return 0 if needed <= room else max(needed - room, room // 2)


def _renumbered(groups: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return groups as positions in ``numbers``, which ascend; -1: none, or not among them."""
    if not len(numbers):
        return np.full_like(groups, -1)
    found = np.minimum(np.searchsorted(numbers, groups), len(numbers) - 1)
    return np.where(numbers[found] == groups, found, -1).astype(np.int32)


def _by_group(groups: NDArray[np.int32], values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the values of each group but -1."""
    order = np.argsort(groups, kind="stable")
    found, first = np.unique(groups[order], return_index=True)
    parts = np.split(values[order], first[1:]) if len(found) else []
    return [(group, part) for group, part in zip(found.tolist(), parts, strict=True) if group >= 0]


@kept
def _submit(counts: Any, groups: Any, submitted_s: Any) -> None:
    for job in range(len(groups)):
        for group in groups[job]:
            if group < 0:
                continue
            count = counts[group]
            count[_SUBMITTED] += 1
            count[_UNENDED] += 1
            count[_UNENDED_SUM_S] += submitted_s[job]
            count[_LAST_SUBMIT_S] = max(count[_LAST_SUBMIT_S], submitted_s[job])
