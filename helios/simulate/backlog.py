"""A bound on waiting that follows what stands in the queue: known at every moment from what has happened by then.

How long the last in a first-come queue would wait is the work before it over the GPUs that do it, whatever the order of
the queue really is. The longest such time so far is what a bound can be a share of without knowing the future, which
:meth:`helios.simulate.guard.Guard.beside` has to. How much work stood there a week ago is known much better today,
since most of it has ended; so what is past is reckoned anew at every look. What is predicted enters only for what
still waits, and only where it is less than what jobs that have ended took: a predictor that believes everything long
cannot lift the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import Misuse
from helios.simulate.asking import Scores
from helios.simulate.engine import put_anew
from helios.simulate.state import NEVER, State

GOES_ON = 1.5
"""A running job counts as this many times what it has run so far: half as long again is to come."""
LEAST_WEIGHT = 1e-6
"""Of a job whose time has come, until the next pass promotes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Go first after max(``least_s``, ``share`` x the longest backlog so far, or ``known_s`` if that is longer).

    On the way there a job comes nearer to the front: its key, what the order says of it, is multiplied by the square of
    the share of the bound that is left to it (``fades``). Then many long jobs start in quiet hours before they have to.

    A partition's backlog at a past look is all the work submitted by then, as far as is known now, less the GPU seconds
    done by then, over its GPUs; 0 where nothing waited. What has ended counts as it ran, what runs as ``GOES_ON`` x
    what it has run so far, and what waits as expected by its prediction, all of it together no more than its GPUs x
    ``mean``, which is what all runs there have taken so far, those that go on included, over the GPUs of those that
    have ended. The
    longest over all partitions counts for each: a site has one longest wait, and on Philly a bound from each
    partition's own past doubles the mean (docs/ordering.md).

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
    fades : bool
        Whether keys count less while their jobs wait. The order's keys must not be negative.

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
    at most ``max(least_s, share x max(known_s, (G x m + H + 1.5 x R) / C))`` with ``G`` the GPUs asked for by what
    waits, ``m`` the mean above, ``R`` the GPU seconds run so far by what runs, ``H`` those that ended jobs still had
    before them at the look that was the longest, ``C`` the GPUs: there is no prediction in it. Where estimates are
    exceeded, or backfill counts GPUs only (``easy``), a promoted job may see its nodes go to others and the second sum
    fails; what is measured then stands in docs/ordering.md.
    """

    least_s: int = 3 * 3_600
    share: float = 1.0
    known_s: int = 0
    every_s: int = 3_600
    fades: bool = True

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

    def __init__(self, state: State, backlog: Backlog, scores: Scores, carry: Callable[..., bool]) -> None:
        self._state, self._backlog, self._scores, self._carry = state, backlog, scores, carry
        self._due_s = int(state.jobs["submitted_s"][0]) + backlog.every_s if len(state.jobs) else NEVER
        self._first_waiting = self._told = self._arrived = 0
        self._ended_gpus, self._ended_gpu_s = (np.zeros(len(state.partitions)) for _ in range(2))
        self._looks = Looks(state.partitions["nodes"] * state.partitions["gpus_per_node"])
        self._look_of = np.zeros(len(state.jobs), dtype=np.int64)
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
        self._note_arrived()
        self._learn()
        waiting, running = self._open()
        jobs, n = self._state.jobs, len(self._state.partitions)
        elapsed_gpu_s = jobs["gpus"][running] * (now - jobs["resumed_s"][running])
        done_gpu_s = np.bincount(jobs["partition"][running], weights=elapsed_gpu_s, minlength=n)
        expected_s = expected_run_s(
            ended=(self._ended_gpus, self._ended_gpu_s + done_gpu_s),
            waiting=(jobs["partition"][waiting], jobs["gpus"][waiting], self._scores.expected_s[waiting]),
        )
        self._looks.look(
            waits=np.bincount(jobs["partition"][waiting], minlength=n) > 0,
            done_gpu_s=self._ended_gpu_s + done_gpu_s,
            open_work=(
                np.concatenate((jobs["partition"][waiting], jobs["partition"][running])),
                np.concatenate((self._look_of[waiting], self._look_of[running])),
                np.concatenate((jobs["gpus"][waiting] * expected_s, GOES_ON * elapsed_gpu_s)),
            ),
        )
        self.longest_s = self._looks.longest_s
        patience_s = self._backlog.patience_s(self.longest_s)
        self._state.guard["patience_s"] = patience_s
        if self._backlog.fades and len(waiting):
            self._fade(waiting, now, patience_s)

    def _fade(self, waiting: NDArray[np.int64], now: int, patience_s: int) -> None:
        waited = (now - self._state.jobs["submitted_s"][waiting]) / max(patience_s, 1)
        keys = self._scores.weigh(waiting, np.maximum(1 - waited, 0) ** 2 + LEAST_WEIGHT)
        put_anew(self._state, waiting, keys=keys, estimates_s=self._scores.plans[waiting])

    def _note_arrived(self) -> None:
        arrived = int(self._state.clock["arrived"][0])
        self._look_of[self._arrived : arrived] = self._looks.n
        self._arrived = arrived

    def _learn(self) -> None:
        """Take up what has ended since the last look."""
        jobs, ended = self._state.jobs, int(self._state.clock["ended"][0])
        fresh = self._state.ended[self._told : ended]
        at, gpu_s = jobs["partition"][fresh], jobs["gpus"][fresh] * (jobs["ends_s"][fresh] - jobs["resumed_s"][fresh])
        np.add.at(self._ended_gpus, at, jobs["gpus"][fresh])
        np.add.at(self._ended_gpu_s, at, gpu_s)
        self._looks.settle(at, self._look_of[fresh], gpu_s)
        self._told = ended

    def _open(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the jobs that wait and those that run."""
        started_s = self._state.jobs["started_s"]
        waiting = np.flatnonzero(started_s[self._first_waiting : self._arrived] == NEVER) + self._first_waiting
        self._first_waiting = int(waiting[0]) if len(waiting) else self._arrived
        return waiting, self._state.ends[: int(self._state.clock["running"][0])]


class Looks:
    """What work had been submitted by each look at the partitions, and how much of it was done by then.

    Parameters
    ----------
    gpus : array of shape (n_partitions,)
        GPUs of each partition.

    Attributes
    ----------
    n : int
        Looks so far; a job submitted since the last one belongs to look number ``n``.
    longest_s : float
        The longest backlog at any look, by what was known at the last, s.
    """

    def __init__(self, gpus: NDArray[np.int64]) -> None:
        self._gpus, self._n_partitions = gpus[:, None], len(gpus)
        self._work, self._done = np.zeros((2, len(gpus), 64))
        self._waits = np.zeros((len(gpus), 64), dtype=bool)
        self._first, self._before, self._settled_s = 0, np.zeros(len(gpus)), 0.0
        self.n, self.longest_s = 0, 0.0

    def settle(self, partition: NDArray[np.int32], look: NDArray[np.int64], gpu_s: NDArray[np.float64]) -> None:
        """Take up jobs that have ended: where, since which look they count, and what they ran."""
        np.add.at(self._work, (partition, look - self._first), gpu_s)

    def look(
        self,
        *,
        waits: NDArray[np.bool_],
        done_gpu_s: NDArray[np.float64],
        open_work: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]],
    ) -> None:
        """Look once more.

        Parameters
        ----------
        waits : bool array of shape (n_partitions,)
            Whether a job waits there.
        done_gpu_s : array of shape (n_partitions,)
            GPU seconds done so far.
        open_work : three arrays of the same length
            Partition, first look and expected GPU seconds in all of each job that has not ended.
        """
        place = self.n - self._first
        self._done[:, place], self._waits[:, place] = done_gpu_s, waits
        self.n += 1
        partition, look, gpu_s = open_work
        work = self._work[:, : place + 1].copy()
        np.add.at(work, (partition, look - self._first), gpu_s)
        submitted = self._before[:, None] + np.cumsum(work, axis=1)
        backlog_s = np.where(self._waits[:, : place + 1], submitted - self._done[:, : place + 1], 0) / self._gpus
        self.longest_s = max(self._settled_s, float(backlog_s.max()))
        self._forget(int(look.min(initial=self.n)) - self._first, backlog_s)

    def _forget(self, n: int, backlog_s: NDArray[np.float64]) -> None:
        """Fold the first ``n`` looks, about which nothing is left to learn, into one number."""
        self._settled_s = max(self._settled_s, float(backlog_s[:, :n].max(initial=0.0)))
        self._before += self._work[:, :n].sum(axis=1)
        self._first += n
        room = max(64, 2 * (self.n + 1 - self._first))
        self._work, self._done, self._waits = (
            _moved(table, n, room) for table in (self._work, self._done, self._waits)
        )


def expected_run_s(
    *,
    ended: tuple[NDArray[np.float64], NDArray[np.float64]],
    waiting: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return how long each job that waits is expected to run, s, of shape (n_waiting,); see :class:`Backlog`.

    Parameters
    ----------
    ended : two arrays of shape (n_partitions,)
        GPUs of the jobs that have ended, and GPU seconds that all jobs have run so far.
    waiting : three arrays of shape (n_waiting,)
        Partition, GPUs and predicted run time (s; NaN: none) of each job that waits.
    """
    gpus_ended, ran_gpu_s = ended
    at, gpus, predicted_s = waiting
    n = len(gpus_ended)
    mean_s = np.divide(ran_gpu_s, gpus_ended, out=np.zeros(n), where=gpus_ended > 0)
    expected_s = np.where(np.isnan(predicted_s), mean_s[at], predicted_s)
    at_mean = np.bincount(at, weights=gpus, minlength=n) * mean_s
    as_predicted = np.bincount(at, weights=gpus * expected_s, minlength=n)
    return np.where((as_predicted > at_mean)[at], mean_s[at], expected_s)


def _moved(table: NDArray[Any], n: int, room: int) -> NDArray[Any]:
    """Return ``table`` without its first ``n`` columns, with ``room`` columns in all."""
    kept = table[:, n:][:, :room]
    moved = np.zeros((len(table), room), dtype=table.dtype)
    moved[:, : kept.shape[1]] = kept
    return moved
