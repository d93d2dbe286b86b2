"""Of which jobs a jobwise service may wish something else than when it was asked last."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from helios.simulate.playable import Playable
from helios.simulate.state import NEVER

Positions = NDArray[np.int64]
_SECOND_US = 1_000_000
_FOR_EVER = np.iinfo(np.int64).min  # as NaT


class Standing:
    """What a jobwise service has been asked about: new jobs, jobs predicted again and expired wishes are outdated."""

    def __init__(self, cluster: Playable) -> None:
        self._cluster = cluster
        self._upto = 0
        self._again: list[Positions] = []
        self._all = False
        self._expires_s = np.full(len(cluster.started_s), NEVER)
        self._expiries: list[tuple[int, int]] = []  # a heap of when, and which job

    def changed(self, jobs: Positions) -> None:
        """Take note that a column of ``jobs`` says something else."""
        self._again.append(jobs)

    def disturbed(self) -> None:
        """Take note that another service has acted on some jobs."""
        self._all = True

    def next_s(self) -> int:
        """Return from when on it may have something new to say, s since the epoch."""
        if self._all or self._again or self._upto < self._cluster.arrived:
            return -NEVER
        while self._expiries and not self._is_live(*self._expiries[0]):
            heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else NEVER

    def outdated(self, now_s: int) -> Positions:
        """Return the pending jobs about which it is to be asked; they stay outdated until they are :meth:`told`."""
        arrived = self._cluster.arrived
        if self._all:
            jobs = self._cluster.waiting()
        else:
            jobs = np.arange(self._upto, arrived)
            if others := [*self._again, *self._expired(now_s)]:
                jobs = np.unique(np.concatenate((*others, jobs)))
            jobs = jobs[self._cluster.started_s[jobs] == NEVER]
        self._upto, self._all = arrived, False
        self._again = [jobs] if len(jobs) else []
        return jobs

    def told(self, jobs: Positions, until: NDArray[np.datetime64]) -> None:
        """Take note that it was asked about ``jobs``, all that were outdated, and until when its wishes hold."""
        self._again = []
        # One by one: most often there is one.
        for job, until_us in zip(jobs.tolist(), until.view(np.int64).tolist(), strict=True):
            expires_s = NEVER if until_us == _FOR_EVER else until_us // _SECOND_US + 1
            if expires_s != self._expires_s[job]:
                self._expires_s[job] = expires_s
                if expires_s < NEVER:
                    heappush(self._expiries, (expires_s, job))

    def _expired(self, now_s: int) -> list[Positions]:
        jobs = []
        while self._expiries and self._expiries[0][0] <= now_s:
            expires_s, job = heappop(self._expiries)
            if self._is_live(expires_s, job):
                jobs.append(job)
        return [np.array(jobs, dtype=np.int64)] if jobs else []

    def _is_live(self, expires_s: int, job: int) -> bool:
        return bool(self._expires_s[job] == expires_s and self._cluster.started_s[job] == NEVER)
