"""Backlog of a queue, as the wait of its last job in first-come order.

It is the work before that job over the GPUs that do it. How much work was queued a week ago is known much better today,
since most of it has ended, so past values are computed anew at every observation. A prediction counts only for jobs
that still wait, and only where it is less than the mean of what has run: a predictor that overestimates every job
cannot raise the longest backlog.

A partition's backlog at a past observation is all the work submitted by then, as far as is known now, less the GPU
seconds done by then, over its GPUs; 0 where nothing waited. Jobs that have ended count as they ran, running ones as
``GOES_ON`` x what they have run so far, and waiting ones as predicted. Together the waiting ones of a partition count
at most their GPUs x the mean run time, which is all GPU seconds run there so far, by running jobs too, over the GPUs of
the jobs that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOES_ON = 1.5
"""A running job counts as this many times what it has run so far, as if half as long again is to come."""
EXPECTED = (0.25, 0.5, 0.25)
"""Weights of p10, p50 and p90 in the expected run time (McNamee and Celona, "Decision analysis for the professional",
2nd ed. 2001)."""
EVERY_S = 3_600
"""Time between two observations of the backlog, s."""
LEAST_S = 3 * 3_600
"""Shortest wait bound, s; a job that has waited longer than its bound goes first."""


def age_discount(waited: NDArray[Any], patience: float | NDArray[Any]) -> NDArray[np.float64]:
    """Return the factor by which waiting reduces a job's key.

    The square of the share of its wait bound (``patience``) that is left. A job moves towards the front long before it
    goes first, and many long jobs start in quiet hours.
    """
    left: NDArray[np.float64] = np.maximum(1 - waited / np.maximum(patience, 1), 0) ** 2
    return left


class BacklogEstimator:
    """The longest backlog of a replay so far, updated at each observation.

    Parameters
    ----------
    partition, gpus : arrays of shape (n_jobs,)
        Where each job of the replay runs, and on how many GPUs, in order of submission.
    capacity : array of shape (n_partitions,)
        GPUs of each partition.

    Attributes
    ----------
    longest_s : float
        The longest backlog at any observation, by what was known at the last one, s.
    """

    def __init__(self, *, partition: NDArray[Any], gpus: NDArray[Any], capacity: NDArray[np.int64]) -> None:
        self._partition, self._gpus = partition, gpus
        self._arrived, self._look_of = 0, np.zeros(len(gpus), dtype=np.int64)
        self._ended_gpus, self._ended_gpu_s = (np.zeros(len(capacity)) for _ in range(2))
        self._looks = BacklogWindows(capacity)
        self.longest_s = 0.0

    def look(
        self,
        *,
        arrived: int,
        ended: tuple[NDArray[np.int64], NDArray[np.int64]],
        waiting: tuple[NDArray[np.int64], NDArray[np.float64]],
        running: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> float:
        """Add an observation, and return ``longest_s``.

        Parameters
        ----------
        arrived : int
            How many jobs were submitted so far.
        ended : two arrays of shape (n_ended,)
            The jobs that have ended since the last observation, and how long they ran, s.
        waiting : two arrays of shape (n_waiting,)
            The jobs that wait, and how long they are predicted to run, s; NaN: not predicted.
        running : two arrays of shape (n_running,)
            The jobs that run, and how long they have so far, s.
        """
        self._look_of[self._arrived : arrived] = self._looks.n
        self._arrived = arrived
        self._learn(*ended)
        n, (waits, predicted_s), (runs, elapsed_s) = len(self._ended_gpus), waiting, running
        elapsed_gpu_s = self._gpus[runs] * elapsed_s
        done_gpu_s = self._ended_gpu_s + np.bincount(self._partition[runs], weights=elapsed_gpu_s, minlength=n)
        expected_s = expected_run_s(
            ended=(self._ended_gpus, done_gpu_s), waiting=(self._partition[waits], self._gpus[waits], predicted_s)
        )
        self.longest_s = self._looks.look(
            waits=np.bincount(self._partition[waits], minlength=n) > 0,
            done_gpu_s=done_gpu_s,
            open_work=(
                np.concatenate((self._partition[waits], self._partition[runs])),
                np.concatenate((self._look_of[waits], self._look_of[runs])),
                np.concatenate((self._gpus[waits] * expected_s, GOES_ON * elapsed_gpu_s)),
            ),
        )
        return self.longest_s

    def _learn(self, jobs: NDArray[np.int64], ran_s: NDArray[np.int64]) -> None:
        at, gpus = self._partition[jobs], self._gpus[jobs]
        np.add.at(self._ended_gpus, at, gpus)
        np.add.at(self._ended_gpu_s, at, gpus * ran_s)
        self._looks.settle(at, self._look_of[jobs], gpus * ran_s)


class BacklogWindows:
    """Work submitted and work done by each observation of the partitions.

    Parameters
    ----------
    gpus : array of shape (n_partitions,)
        GPUs of each partition; one that has none has no backlog.

    Attributes
    ----------
    n : int
        Observations so far; a job submitted since the last one counts from observation number ``n`` on.
    longest_s : float
        The longest backlog at any observation, by what was known at the last one, s.
    """

    def __init__(self, gpus: NDArray[np.int64]) -> None:
        self._gpus, self._n_partitions = np.maximum(gpus, 1)[:, None], len(gpus)
        self._work, self._done = np.zeros((2, len(gpus), 64))
        self._waits = np.zeros((len(gpus), 64), dtype=bool)
        self._first, self._before, self._settled_s = 0, np.zeros(len(gpus)), 0.0
        self.n, self.longest_s = 0, 0.0

    def settle(self, partition: NDArray[np.int32], look: NDArray[np.int64], gpu_s: NDArray[np.float64]) -> None:
        """Add jobs that have ended.

        Their partitions, the observations from which they count, and the GPU seconds that they ran.
        """
        np.add.at(self._work, (partition, look - self._first), gpu_s)

    def look(
        self,
        *,
        waits: NDArray[np.bool_],
        done_gpu_s: NDArray[np.float64],
        open_work: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]],
    ) -> float:
        """Add an observation, and return ``longest_s``.

        Parameters
        ----------
        waits : bool array of shape (n_partitions,)
            Whether a job waits there.
        done_gpu_s : array of shape (n_partitions,)
            GPU seconds done so far.
        open_work : three arrays of the same length
            Partition, first observation and expected total GPU seconds of each job that has not ended.
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
        return self.longest_s

    def _forget(self, n: int, backlog_s: NDArray[np.float64]) -> None:
        """Fold the first ``n`` observations into one number.

        All jobs that count in them have ended, so that they no longer change.
        """
        self._settled_s = max(self._settled_s, float(backlog_s[:, :n].max(initial=0.0)))
        self._before += self._work[:, :n].sum(axis=1)
        self._first += n
        room = max(64, 2 * (self.n + 1 - self._first))
        self._work, self._done, self._waits = (
            _moved(table, n, room) for table in (self._work, self._done, self._waits)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTimes:
    """Jobs of a cluster as they are known now, waiting ones too.

    All arrays have the shape (n_jobs,).

    Attributes
    ----------
    partition : int array
        Position in the capacities.
    gpus : int array
    since_s : float64 array
        From when on each could have run, s since the epoch.
    started_s, ended_s : float64 arrays
        s since the epoch; NaN: it has not.
    predicted_s : float64 array
        Expected run time of what waits, s; NaN: not predicted.
    """

    partition: NDArray[np.int64]
    gpus: NDArray[np.int64]
    since_s: NDArray[np.float64]
    started_s: NDArray[np.float64]
    ended_s: NDArray[np.float64]
    predicted_s: NDArray[np.float64]

    def of(self, these: NDArray[np.bool_]) -> JobTimes:
        """Return some of the jobs."""
        return JobTimes(**{name: getattr(self, name)[these] for name in self.__slots__})


def longest_backlog_s(past: JobTimes, *, capacity: NDArray[np.int64], now_s: float, first_s: float) -> float:
    """Return the longest backlog within a window, s.

    At any full ``EVERY_S`` before ``now_s``, not before ``first_s``. It equals that of a :class:`BacklogEstimator` with
    observations at those moments, but is computed from the jobs alone, so that a new process needs no stored state.
    """
    ago_s: NDArray[np.float64] = np.arange(int(max(now_s - first_s, 0) // EVERY_S), -1, -1, dtype=np.float64) * EVERY_S
    longest_s = 0.0
    for number, gpus in enumerate(capacity.tolist()):
        here = past.of(past.partition == number)
        if gpus and len(here.gpus):
            longest_s = max(longest_s, float(_backlog_gpu_s(here, -ago_s, now_s).max()) / gpus)
    return longest_s


def _backlog_gpu_s(jobs: JobTimes, looks_s: NDArray[np.float64], now_s: float) -> NDArray[np.float64]:
    """Return the GPU seconds of work before a partition at each observation.

    ``looks_s`` is relative to ``now_s``; 0 where nothing waited.
    """
    since_s, started_s, ended_s = (at_s - now_s for at_s in (jobs.since_s, jobs.started_s, jobs.ended_s))
    waits, has_ended = np.isnan(started_s), ~np.isnan(ended_s)
    ran_gpu_s = np.where(waits, 0.0, jobs.gpus * (np.where(has_ended, ended_s, 0.0) - started_s))
    work = np.where(has_ended, ran_gpu_s, GOES_ON * ran_gpu_s)
    work[waits] = jobs.gpus[waits] * expected_run_s(
        ended=(np.array([jobs.gpus[has_ended].sum(dtype=np.float64)]), np.array([ran_gpu_s.sum()])),
        waiting=(np.zeros(int(waits.sum()), dtype=np.int64), jobs.gpus[waits], jobs.predicted_s[waits]),
    )
    begun, over = (
        looks_s * _sums(at_s[known], jobs.gpus[known], looks_s) - _sums(at_s[known], (jobs.gpus * at_s)[known], looks_s)
        for at_s, known in ((started_s, ~waits), (ended_s, has_ended))
    )
    one = np.ones(len(work))
    waiting = _sums(since_s, one, looks_s) > _sums(started_s[~waits], one[~waits], looks_s)
    return np.where(waiting, _sums(since_s, work, looks_s) - (begun - over), 0.0)


def _sums(at_s: NDArray[np.float64], what: NDArray[Any], looks_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of ``what`` that had arrived by each observation."""
    order = np.argsort(at_s, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(what[order], dtype=np.float64)))
    return sums[np.searchsorted(at_s[order], looks_s, side="right")]


def expected_run_s(
    *,
    ended: tuple[NDArray[np.float64], NDArray[np.float64]],
    waiting: tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the expected run time of each waiting job, s.

    Shape (n_waiting,).

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
