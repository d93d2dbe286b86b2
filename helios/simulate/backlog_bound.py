"""Wait bound that follows the backlog of the queue.

It is known at every moment from what has happened by then: a bound can be a share of the longest backlog so far
(:mod:`helios.metrics.backlog`) without knowing the future, which
:meth:`helios.simulate.core.wait_bound.WaitBound.beside` has to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.metrics.backlog import EVERY_S, LEAST_S, BacklogEstimator, age_discount
from helios.simulate.core.events import put_anew
from helios.simulate.core.state import NEVER, EngineState
from helios.simulate.predictor_feed import JobKeys, PendingIndex

LEAST_WEIGHT = 1e-6
"""Weight of the key of a job that has waited for as long as the bound, until the next pass promotes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Wait bound as a share of the longest backlog so far.

    The bound is max(``least_s``, ``share`` x max(the longest backlog so far, ``known_s``)). A job that has waited
    longer goes first.

    Before that a job moves nearer to the front (``fades``): its key is multiplied by the square of the share of the
    bound that is left to it. Then many long jobs start in quiet hours before they have to.

    How the backlog is computed is in :mod:`helios.metrics.backlog`. The longest over all partitions counts for each: a
    site has one longest wait, and on Philly a bound from each partition's own past doubles the mean (docs/ordering.md).

    Parameters
    ----------
    least_s : int
        The shortest bound, s.
    share : float
        Share of the longest backlog.
    known_s : int
        The longest wait of the site's past under the queue that is to be compared with, s; 0: none is known.
    every_s : int
        How often the backlog is computed, s.
    fades : bool
        Whether keys shrink while their jobs wait. The order's keys must not be negative.

    Raises
    ------
    UsageError
        A number is negative, or ``every_s`` is 0.

    Notes
    -----
    **How long a job waits at most.** Let ``P`` be the largest value that the bound has taken by the time a job goes to
    the front. In a strict queue the job starts at the latest once all that ran then, and all that was submitted before
    it and waited, has run one after the other. With backfill ``nodes`` and estimates that no run exceeds (time limits),
    nothing that is started later can move the reservation of the first in the queue: each of the jobs before it, and it
    itself, is at the front no longer than the longest estimate ``E`` in its partition. With ``n`` such jobs waiting
    before it,

    ``wait <= P + (n + 2) x E``,

    one ``E`` for itself and one because jobs are promoted in passes, which come when something ends. ``P`` in turn is
    at most ``max(least_s, share x max(known_s, (G x m + H + 1.5 x R) / C))``. ``G`` are the GPUs that pending jobs ask
    for, ``m`` is the mean run time defined in :mod:`helios.metrics.backlog`, ``R`` the GPU seconds that running jobs
    have run so far, ``H`` those that jobs which have ended since still had before them at the longest backlog, ``C``
    the number of GPUs. There is no prediction in it. Where estimates are exceeded, or backfill counts GPUs only
    (``easy``), the nodes of a promoted job may go to others, and the inequality does not hold; docs/ordering.md has
    what is measured then.
    """

    least_s: int = LEAST_S
    share: float = 1.0
    known_s: int = 0
    every_s: int = EVERY_S
    fades: bool = True

    def __post_init__(self) -> None:
        if min(self.least_s, self.share, self.known_s) < 0 or self.every_s < 1:
            raise UsageError(
                "A bound by the backlog takes times and a share that are not negative, and every_s of at least 1.",
                hint="Look at least_s, share, known_s and every_s.",
            )

    def patience_s(self, longest_s: float) -> int:
        """Return the bound for a longest backlog of ``longest_s``, s."""
        return int(max(self.least_s, self.share * max(longest_s, self.known_s)))


class BacklogBound:
    """Runner of a replay that keeps its wait bound up to date."""

    def __init__(self, state: EngineState, backlog: Backlog, scores: JobKeys, carry: Callable[..., bool]) -> None:
        self._state, self._backlog, self._scores, self._carry = state, backlog, scores, carry
        self._due_s = int(state.jobs["submitted_s"][0]) + backlog.every_s if len(state.jobs) else NEVER
        self._told = 0
        self._index = PendingIndex(state.jobs["started_s"])
        self._estimator = BacklogEstimator(
            partition=state.jobs["partition"],
            gpus=state.jobs["gpus"],
            capacity=state.partitions["nodes"] * state.partitions["gpus_per_node"],
        )

    def run(self, state: EngineState, *, scored: int, budget: int, until_s: int = NEVER) -> bool:
        """Run the replay as ``run`` does, updating the bound."""
        while self._carry(state, scored=scored, budget=budget, until_s=min(until_s, self._due_s)):
            next_s = int(state.clock["next_s"][0])
            if next_s >= until_s or next_s < self._due_s:
                return True
            self._look(next_s)
        return False

    def _look(self, now: int) -> None:
        self._due_s = now + self._backlog.every_s
        jobs, arrived = self._state.jobs, int(self._state.clock["arrived"][0])
        waiting = self._index.waiting(arrived)
        running = self._state.ends[: int(self._state.clock["running"][0])]
        ended = self._ended_since()
        longest_s = self._estimator.look(
            arrived=arrived,
            ended=(ended, jobs["ends_s"][ended] - jobs["resumed_s"][ended]),
            waiting=(waiting, self._scores.expected_s[waiting]),
            running=(running, now - jobs["resumed_s"][running]),
        )
        patience_s = self._backlog.patience_s(longest_s)
        self._state.guard["patience_s"] = patience_s
        if self._backlog.fades and len(waiting):
            self._fade(waiting, now, patience_s)

    def _fade(self, waiting: NDArray[np.int64], now: int, patience_s: int) -> None:
        waited_s = now - self._state.jobs["submitted_s"][waiting]
        keys = self._scores.weigh(waiting, age_discount(waited_s, patience_s) + LEAST_WEIGHT)
        put_anew(self._state, waiting, keys, self._scores.plans[waiting])

    def _ended_since(self) -> NDArray[np.int64]:
        """Return the jobs that have ended since the last update."""
        told, self._told = self._told, int(self._state.clock["ended"][0])
        return self._state.ended[told : self._told]
