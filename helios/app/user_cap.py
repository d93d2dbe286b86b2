"""The cap on one user's share in a rehearsal: the guard of a live turn (``control.guards.capped``), over columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.control.guards import allowance
from helios.kernels import kept
from helios.simulate.playable import Playable
from helios.simulate.state import NEVER

Positions = NDArray[np.int64]
Floats = NDArray[np.float64]
_SECOND_US = 1_000_000


class UserCap:
    """What of a service's wishes a live turn would let pass, and what it would make neutral.

    Parameters
    ----------
    cluster : Playable
        Only what waits, and could start, is put ahead of others or behind.
    seats : int
        Services, which go by number; each has its own cap, as live.
    share : float
        ``control.most_of_one_user``.
    """

    def __init__(self, cluster: Playable, seats: int, share: float) -> None:
        self._cluster, self._share = cluster, share
        every = cluster.rows(np.arange(len(cluster.started_s)), None)
        # Who is not known is nobody in particular: all such are one, as live.
        self._user, self._partition = (pd.factorize(every.values(name))[0] for name in ("user", "partition"))
        self._eligible_s = every.values("eligible_at").astype("datetime64[us]").view(np.int64) // _SECOND_US
        jobs = len(every.jobs) + 1  # the last in place of NOBODY, whose position is -1
        self._asked, self._passed = (np.full((seats, jobs), np.nan) for _ in range(2))

    @property
    def binds(self) -> bool:
        """Whether there is more than one user, so that anything could be made neutral."""
        return bool((self._user != self._user[:1]).any())

    def passed(self, seat: int, jobs: Positions, urgency: Floats) -> tuple[Positions, Floats]:
        """Take what a service wishes anew, NaN: no longer; return that as it passes, and with it what it changes."""
        asked, passed = self._asked[seat], self._passed[seat]
        asked[jobs] = urgency
        asked[-1] = np.nan
        waiting = self._cluster.waiting()
        effective = asked[waiting]
        effective[self._excess(waiting, effective)] = 0.0
        unlike = (effective != passed[waiting]) & ~(np.isnan(effective) & np.isnan(passed[waiting]))
        passed[waiting] = effective
        others = np.setdiff1d(waiting[unlike], jobs, assume_unique=True)
        # The place of NOBODY, or of a job that has started, stays as it was asked: who carries it out says so.
        pending = (jobs >= 0) & (self._cluster.started_s[jobs] == NEVER)
        its = np.where(pending, passed[jobs], urgency)
        return np.concatenate((jobs, others)), np.concatenate((its, passed[others]))

    def _excess(self, waiting: Positions, urgency: Floats) -> Positions:
        """Return which of ``waiting`` are beyond the share of their user."""
        value = np.nan_to_num(urgency)
        able = np.flatnonzero(self._eligible_s[waiting] <= self._cluster.now_s)
        jobs = waiting[able]
        oldest_first = np.lexsort((self._eligible_s[jobs], self._partition[jobs]))
        able, jobs = able[oldest_first], jobs[oldest_first]
        is_ahead = _ahead_of_others(self._partition[jobs], self._eligible_s[jobs], self._user[jobs], value[able])
        ahead = np.sort(able[is_ahead])
        home = self._partition[waiting[ahead]]
        beyond = [self._beyond(waiting, ahead[home == partition], value) for partition in np.unique(home)]
        return np.concatenate(beyond) if beyond else np.empty(0, dtype=np.int64)

    def _beyond(self, waiting: Positions, ahead: Positions, value: Floats) -> Positions:
        users, number, count = np.unique(self._user[waiting[ahead]], return_inverse=True, return_counts=True)
        most = allowance(dict(enumerate(count.tolist())), self._share)
        left = np.array([most[user] for user in range(len(users))])
        ranked = np.lexsort((ahead, -value[ahead], number))
        first = np.concatenate(([0], np.cumsum(count)[:-1]))
        rank = np.arange(len(ahead)) - first[number[ranked]]
        return ahead[ranked][rank >= left[number[ranked]]]


@kept
def _ahead_of_others(partition: Positions, eligible_s: Positions, user: Positions, value: Floats) -> NDArray[np.bool_]:
    """Say of which jobs more than nothing is wished, and less of another user's that was eligible before.

    Jobs by partition, the oldest first. Of the older ones, the least that is wished, and the least of anybody else's.
    """
    found = np.zeros(len(user), dtype=np.bool_)
    least, whose, another = np.inf, -2, np.inf
    begins = 0
    for job in range(len(user)):
        if job > 0 and partition[job] != partition[job - 1]:
            least, whose, another, begins = np.inf, -2, np.inf, job
        while eligible_s[begins] < eligible_s[job]:
            if user[begins] == whose:
                least = min(least, value[begins])
            elif value[begins] < least:
                least, whose, another = value[begins], user[begins], least
            else:
                another = min(another, value[begins])
            begins += 1
        found[job] = value[job] > 0 and (another if user[job] == whose else least) < value[job]
    return found
