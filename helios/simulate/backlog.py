"""A bound on waiting that follows what stands in the queue: known at every moment from what has happened by then.

How long the last in a first-come queue would wait is the work before it over the GPUs that do it, whatever the order of
the queue really is. The longest such time so far is what a bound can be a share of without knowing the future, which
:meth:`helios.simulate.guard.Guard.beside` has to. What is predicted enters only where it is less than what jobs that
have ended took: a predictor that believes everything long cannot lift the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import Misuse
from helios.simulate.state import NEVER, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Go first after max(``least_s``, ``share`` x the longest backlog so far, or ``known_s`` if that is longer).

    A partition's backlog is ``(min(pending GPUs x predicted, pending GPUs x mean) + running GPUs x elapsed) / GPUs``
    in GPU seconds over GPUs, 0 where nothing waits; ``mean`` is what all runs there have taken so far, those that go on
    included, over the GPUs of those that have ended. The longest over all partitions counts for each: a site has one
    longest wait, and on Philly a bound from each partition's own past doubles the mean (docs/ordering.md).

    Parameters
    ----------
    least_s : int
        The bound is never shorter, s.
    share : float
        Of the longest backlog.
    known_s : int
        The longest wait of the site's past under the queue that is to be compared with, s; 0: none is known.
    every_s : int
        How often the backlog is looked at, s.

    Raises
    ------
    Misuse
        A number is negative, or ``every_s`` is 0.

    Notes
    -----
    **The bound.** Let ``P`` be the largest value that the above has taken by the time a job goes to the front. In a
    strict queue the job starts at the latest once all that ran then, and all that was submitted before it and waited,
    has run one after the other. With backfill ``nodes`` and estimates that no run exceeds (time limits), nothing that
    is started later can move the reservation of the first in the queue: each of the jobs before it, and it itself, is
    at the front no longer than the longest estimate ``E`` in its partition. With ``n`` such jobs waiting before it,

    ``wait <= P + (n + 2) x E``,

    one ``E`` for itself and one because jobs are promoted in passes, which come when something ends. ``P`` in turn is
    at most ``max(least_s, share x max(known_s, (G x m + R) / C))`` with ``G`` the GPUs asked for by what waits, ``m``
    the mean above, ``R`` the GPU seconds run so far by what runs, ``C`` the GPUs: there is no prediction in it. Where
    estimates are exceeded, or backfill counts GPUs only (``easy``), a promoted job may see its nodes go to others and
    the second sum fails; what is measured then stands in docs/ordering.md.
    """

    least_s: int = 3 * 3_600
    share: float = 0.9
    known_s: int = 0
    every_s: int = 3_600

    def __post_init__(self) -> None:
        if min(self.least_s, self.share, self.known_s) < 0 or self.every_s < 1:
            raise Misuse(
                "A bound by the backlog takes times and a share that are not negative, and every_s of at least 1.",
                remedy="Look at least_s, share, known_s and every_s.",
            )

    def patience_s(self, longest_s: float) -> int:
        """Return the bound after a longest backlog of ``longest_s``, s."""
        return int(max(self.least_s, self.share * max(longest_s, self.known_s)))


class Keeper:
    """Carries a replay on, and keeps the one bound in its guard up to date with the backlog."""

    def __init__(
        self, state: State, backlog: Backlog, believed_s: NDArray[np.float64], carry: Callable[..., bool]
    ) -> None:
        self._state, self._backlog, self._believed_s, self._carry = state, backlog, believed_s, carry
        self._due_s = int(state.jobs["submitted_s"][0]) + backlog.every_s if len(state.jobs) else NEVER
        self._first_waiting = self._told = 0
        self._ended_gpus, self._ended_gpu_s = (np.zeros(len(state.partitions)) for _ in range(2))
        self._gpus = _gpus_of(state)
        self.longest_s = 0.0

    def run(self, state: State, *, scored: int, budget: int, until_s: int = NEVER) -> bool:
        """Do as :func:`helios.simulate.engine.run`."""
        while self._carry(state, scored=scored, budget=budget, until_s=min(until_s, self._due_s)):
            next_s = int(state.clock["next_s"][0])
            if next_s >= until_s or next_s < self._due_s:
                return True
            self._look(next_s)
        return False

    def _look(self, now: int) -> None:
        self._due_s = now + self._backlog.every_s
        self.longest_s = max(self.longest_s, float(self._backlogs_s(now).max(initial=0.0)))
        self._state.guard["patience_s"] = self._backlog.patience_s(self.longest_s)

    def _backlogs_s(self, now: int) -> NDArray[np.float64]:
        self._learn()
        jobs, n_running = self._state.jobs, int(self._state.clock["running"][0])
        waiting, running = self._waiting(), self._state.ends[:n_running]
        return backlogs_s(
            capacity=self._gpus,
            waiting=(jobs["partition"][waiting], jobs["gpus"][waiting], self._believed_s[waiting]),
            running=(jobs["partition"][running], jobs["gpus"][running], now - jobs["resumed_s"][running]),
            ended=(self._ended_gpus, self._ended_gpu_s),
        )

    def _learn(self) -> None:
        jobs, ended = self._state.jobs, int(self._state.clock["ended"][0])
        fresh = self._state.ended[self._told : ended]
        run_s = jobs["ends_s"][fresh] - jobs["resumed_s"][fresh]
        np.add.at(self._ended_gpus, jobs["partition"][fresh], jobs["gpus"][fresh])
        np.add.at(self._ended_gpu_s, jobs["partition"][fresh], jobs["gpus"][fresh] * run_s)
        self._told = ended

    def _waiting(self) -> NDArray[np.int64]:
        arrived = int(self._state.clock["arrived"][0])
        waits = np.flatnonzero(self._state.jobs["started_s"][self._first_waiting : arrived] == NEVER)
        waits += self._first_waiting
        self._first_waiting = int(waits[0]) if len(waits) else arrived
        return waits


def backlogs_s(
    *,
    capacity: NDArray[np.int64],
    waiting: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]],
    running: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]],
    ended: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return how long the work before a newcomer would take, s, of shape (n_partitions,); see :class:`Backlog`.

    Parameters
    ----------
    capacity : array of shape (n_partitions,)
        GPUs.
    waiting : three arrays of shape (n_waiting,)
        Partition, GPUs and predicted run time (s; NaN: none) of each job that waits.
    running : three arrays of shape (n_running,)
        Partition, GPUs and time since the start (s) of each job that runs.
    ended : two arrays of shape (n_partitions,)
        GPUs of the jobs that have ended, and GPU seconds that they ran.
    """
    n, (at, gpus, predicted_s) = len(capacity), waiting
    running_gpu_s = np.bincount(running[0], weights=running[1] * running[2], minlength=n)
    gpus_ended, ended_gpu_s = ended
    run_s = np.divide(ended_gpu_s + running_gpu_s, gpus_ended, out=np.zeros(n), where=gpus_ended > 0)
    at_mean = np.bincount(at, weights=gpus, minlength=n) * run_s
    predicted = np.where(np.isnan(predicted_s), run_s[at], predicted_s)
    as_predicted = np.bincount(at, weights=gpus * predicted, minlength=n)
    waits = np.bincount(at, minlength=n) > 0
    return np.where(waits, np.minimum(at_mean, as_predicted) + running_gpu_s, 0.0) / capacity


def _gpus_of(state: State) -> NDArray[np.int64]:
    gpus: NDArray[np.int64] = state.partitions["nodes"] * state.partitions["gpus_per_node"]
    return gpus
