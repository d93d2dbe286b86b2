"""Guards and reverts of a replay, over columns.

What services ask for is computed here again, over columns: live it goes over one ``Change`` with its reason for each
pending job, which takes 10 microseconds for each job of the queue in every cycle. A replay at 20,000 jobs a CPU second
has 50 for each job in its whole life, and a cycle at every event. What a ``Revert`` leaves of a service's requests,
and how much one user may have, is computed by the functions of a live cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import JobAction, JobSetting, Reorder, Result, Revert, SoftLimit
from helios.changes import Change, revert_job, to_job_changes
from helios.control.user_share import ahead_of_others, beyond_share
from helios.jit import cached_jit, inline_jit
from helios.simulate.core.state import NEVER
from helios.simulate.simulated_cluster import SimulatedCluster

FREE = np.iinfo(np.int16).max
"""In place of a service's number, where no service has set the job's urgency."""
NOT_NAMED = "the service no longer asks for it"
_APPLIED = frozenset({Result.DONE, Result.UNCHANGED})

SECOND_US = 1_000_000

_AHEAD, _BEYOND = inline_jit(ahead_of_others), inline_jit(beyond_share)

Floats = NDArray[np.float64]

Positions = NDArray[np.int64]


@cached_jit
def _pass_capped(cap: Any, waiting: Any, jobs: Any, urgency: Any, now_s: int, share: float) -> Any:  # noqa: PLR0917 - numba kernels are called by position
    """Take new urgencies, and return the jobs and urgencies that may have changed.

    ``cap`` has the columns of :class:`UserCap`.
    """
    partition, eligible_s, user, started_s, is_named, asked, passed = cap
    asked[jobs] = urgency
    asked[-1] = np.nan
    effective = asked[waiting]
    able = np.flatnonzero(eligible_s[waiting] <= now_s)
    urgencies = effective[able]
    urgencies[np.isnan(urgencies)] = 0.0
    if (urgencies > 0.0).any():
        jobs_able = waiting[able]
        ahead = _AHEAD(partition[jobs_able], eligible_s[jobs_able], user[jobs_able], urgencies)
        effective[able[_BEYOND(partition[jobs_able], user[jobs_able], urgencies, ahead, share)]] = 0.0
    found = np.empty(len(jobs) + len(waiting), dtype=np.int64)
    values = np.empty(len(found))
    is_named[jobs] = True
    n = len(jobs)
    for place in range(len(waiting)):
        job, value, before = waiting[place], effective[place], passed[waiting[place]]
        passed[job] = value
        if value != before and not (np.isnan(value) and np.isnan(before)) and not is_named[job]:
            found[n], values[n] = job, value
            n += 1
    is_named[jobs] = False
    for place in range(len(jobs)):
        job = jobs[place]
        # NOBODY and started jobs keep the urgency that was asked for; applying it gives the right refusal.
        found[place] = job
        values[place] = passed[job] if job >= 0 and started_s[job] == NEVER else urgency[place]
    return found[:n], values[:n]


class UserCap:
    """Cap on one user's share of the jobs put ahead of others'.

    Parameters
    ----------
    cluster : SimulatedCluster
        Only its jobs that wait and could start count.
    active_services : int
        Number of services. They are numbered, and each has its own cap, as live.
    share : float
        ``control.most_of_one_user``.
    """

    def __init__(self, cluster: SimulatedCluster, active_services: int, share: float) -> None:
        self._cluster, self._share = cluster, share
        every = cluster.rows(np.arange(len(cluster.started_s)), None)
        # Jobs without a user count as those of one user, as live.
        self._user, self._partition = (pd.factorize(every.values(name))[0] for name in ("user", "partition"))
        self._eligible_s = every.values("eligible_at").astype("datetime64[us]").view(np.int64) // SECOND_US
        jobs = len(every.rows) + 1  # the last entry is for NOBODY, whose position is -1
        self._is_named = np.zeros(jobs, dtype=np.bool_)
        self._asked, self._passed = (np.full((active_services, jobs), np.nan) for _ in range(2))

    @property
    def binds(self) -> bool:
        """Whether there is more than one user."""
        return bool((self._user != self._user[:1]).any())

    def passed(self, active: int, jobs: Positions, urgency: Floats) -> tuple[Positions, Floats]:
        """Take a service's new urgencies, and return what the cap lets pass.

        A NaN urgency means that the service no longer asks for the job. The result also has other waiting jobs whose
        value changes because of the new ones.
        """
        cluster = self._cluster
        columns = (self._partition, self._eligible_s, self._user, cluster.started_s, self._is_named)
        cap = (*columns, self._asked[active], self._passed[active])
        found: tuple[Positions, Floats] = _pass_capped(
            cap, cluster.waiting(), jobs, urgency, cluster.now_s, self._share
        )
        return found


class ReplayGuards:
    """Applies what services propose to a replay, and reverts what they drop.

    Parameters
    ----------
    cluster : SimulatedCluster
    active_services : int
        Number of services. Each has a number; the service with the smaller number has precedence.
    most_of_one_user : float
        As in ``control.most_of_one_user``; 1 for no cap.
    """

    def __init__(self, cluster: SimulatedCluster, active_services: int, most_of_one_user: float = 1.0) -> None:
        self._cluster, self._alone = cluster, active_services == 1
        jobs = len(cluster.started_s) + 1  # the last entry is for NOBODY, whose position is -1
        self._ordered_by = np.full(jobs, FREE, dtype=np.int16)
        self._is_named = np.zeros(jobs, dtype=np.bool_)
        self._named = [np.empty(0, dtype=np.int64)] * active_services
        self._limited_by: dict[str, int] = {}
        cap = UserCap(cluster, active_services, most_of_one_user) if most_of_one_user < 1 else None
        self._cap = cap if cap is not None and cap.binds else None

    @property
    def follows_the_queue(self) -> bool:
        """Whether starts and submissions change the guards.

        With a cap on one user's share it can, even where no service asks for anything new.
        """
        return self._cap is not None

    def change(self, active: int, jobs: Positions, urgency: NDArray[np.float64]) -> Mapping[Result, int]:
        """Set urgencies of pending jobs by position, and count the results.

        A NaN urgency means that the service does not name the job.
        """
        if self._cap is not None:
            jobs, urgency = self._cap.passed(active, jobs, urgency)
        unnamed = np.isnan(urgency)
        if self._alone and not unnamed.any():
            self._ordered_by[jobs] = active
            self._ordered_by[-1] = FREE
            return self._cluster.change(jobs, urgency)
        owner = self._ordered_by[jobs]
        dropped, another = unnamed & (owner == active), ~unnamed & (owner < active)
        its = ~unnamed & ~another
        self._ordered_by[jobs[its]] = active
        self._ordered_by[jobs[dropped]] = self._ordered_by[-1] = FREE
        outcomes = self._cluster.change(jobs, np.where(its, urgency, np.where(dropped, 0.0, np.nan)))
        return _add_outcome(outcomes, Result.REFUSED, int(another.sum()))

    def act(self, active: int, actions: Sequence[JobAction]) -> Mapping[Result, int]:
        """Apply what a service proposes, revert the rest, and count the results."""
        # A change is made for each limit, and of orders only where a revert leaves something of them.
        is_simple = not any(isinstance(action, Revert) for action in actions)
        changes = to_job_changes([it for it in actions if isinstance(it, SoftLimit)] if is_simple else actions).changes
        limits = [change for change in changes if change.setting is JobSetting.SOFT_LIMIT]
        ranked = [self._cluster.ranked(action) for action in actions if isinstance(action, Reorder)]
        if not is_simple:
            urgency = {change.target: change.value for change in changes if change.setting is JobSetting.ORDER}
            ranked = [(self._cluster.positions([*urgency]), np.array([*urgency.values()]))] if urgency else []
        outcomes = self._order(active, ranked) if ranked or len(self._named[active]) else {}
        if not limits and active not in self._limited_by.values():
            return outcomes
        return Counter(outcomes) + Counter(self._limit(active, limits))

    def release(self, active: int) -> Mapping[Result, int]:
        """Revert all that a service has set."""
        return self.act(active, ())

    def _order(self, active: int, ranked: Sequence[tuple[Positions, Floats]]) -> Mapping[Result, int]:
        jobs, urgency = _last_urgencies(ranked)
        dropped, self._named[active] = self._unnamed(active, jobs), jobs
        if len(dropped):
            jobs, urgency = np.concatenate((jobs, dropped)), np.concatenate((urgency, np.full(len(dropped), np.nan)))
        return self.change(active, jobs, urgency)

    def _unnamed(self, active: int, named: Positions) -> Positions:
        """Return the pending jobs that a service no longer names.

        Only jobs whose urgency this service has set count.
        """
        before = self._named[active]
        self._is_named[named] = True
        unnamed: Positions = before[~self._is_named[before]]
        self._is_named[named] = False
        its: Positions = unnamed[self._ordered_by[unnamed] == active]
        pending: Positions = its[self._cluster.started_s[its] == NEVER]
        return pending

    def _limit(self, active: int, limits: Sequence[Change[float]]) -> Mapping[Result, int]:
        its = [limit for limit in limits if self._limited_by.get(limit.target, active) >= active]
        outcomes = self._cluster.apply(its)
        limited = {outcome.job_id for outcome in outcomes if outcome.result in _APPLIED}
        self._limited_by.update(dict.fromkeys(limited, active))
        counts = Counter(outcome.result for outcome in outcomes) + Counter(self._revert_limits(active, but=limited))
        return _add_outcome(counts, Result.REFUSED, len(limits) - len(its))

    def _revert_limits(self, active: int, *, but: set[str]) -> Iterator[Result]:
        """Revert a service's soft limits except some, and yield the results.

        Jobs that are no longer pending have no result.
        """
        dropped = tuple(job_id for job_id, setter in self._limited_by.items() if setter == active and job_id not in but)
        for job_id in dropped:
            del self._limited_by[job_id]
        if dropped:
            reverts = [revert_job(JobSetting.SOFT_LIMIT, job_id, reason=NOT_NAMED) for job_id in dropped]
            yield from (it.result for it in self._cluster.apply(reverts) if it.result is not Result.GONE)


def _last_urgencies(ranked: Sequence[tuple[Positions, Floats]]) -> tuple[Positions, Floats]:
    """Return the positions and urgencies of all jobs in some orders.

    Each job appears once, with its urgency in the last order that names it.
    """
    if not ranked:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if len(ranked) == 1:
        return ranked[0]
    jobs, urgency = (np.concatenate(parts)[::-1] for parts in zip(*ranked, strict=True))
    distinct, last = np.unique(jobs, return_index=True)
    return distinct, urgency[last]


def _add_outcome(outcomes: Mapping[Result, int], result: Result, jobs: int) -> Mapping[Result, int]:
    return {**outcomes, result: outcomes.get(result, 0) + jobs} if jobs else outcomes
