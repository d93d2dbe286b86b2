"""Queue orders of a what-if, their ageing and their wait bound.

The simple orders are its controls; ties go by submit time, then job id. A key ages as ``ln(key) + submitted / tau``: a
job of R times the service is passed only by jobs that come within ``tau ln R`` of it. ``tau`` is a share of the longest
wait that another replay of the same jobs, first in, first out, has caused so far, so that one number means the same on
every site.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.ports import Order
from helios.simulate.core.state import NEVER

EVERY_S = 3_600
"""Time between two values of the longest wait, s."""
LEAST_TAU_S = 3_600
"""Shortest ageing time, s."""
LEAST_BOUND_S = 3 * 3_600
"""Shortest wait bound, s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongestWaits:
    """Longest wait so far, as a step function of time.

    Attributes
    ----------
    at_s : int64 array of shape (n_steps,)
        When each value comes into force, s since the epoch, ascending; the first is in force from the beginning.
    longest_s : int64 array of shape (n_steps,)
        s, ascending.
    """

    at_s: NDArray[np.int64]
    longest_s: NDArray[np.int64]

    @classmethod
    def of(cls, *, submitted_s: NDArray[np.int64], started_s: NDArray[np.int64]) -> LongestWaits:
        """Return the longest waits of a replay, hour by hour.

        At each hour it counts the jobs that had started by then, and how long those had waited that still waited.

        Parameters
        ----------
        submitted_s, started_s : int64 arrays of shape (n_jobs,)
            In order of submission.
        """
        if not len(submitted_s):
            return cls(at_s=np.array([-NEVER]), longest_s=np.array([0]))
        hours = np.arange(submitted_s[0] + EVERY_S, started_s.max() + EVERY_S, EVERY_S)
        by_start = np.argsort(started_s, kind="stable")
        longest = np.maximum.accumulate((started_s - submitted_s)[by_start])
        n_started = np.searchsorted(started_s[by_start], hours, side="right")
        started_wait = np.where(n_started > 0, longest[np.maximum(n_started - 1, 0)], 0)
        # The first job that starts later than an hour is the oldest that still waits then.
        oldest = np.searchsorted(np.maximum.accumulate(started_s), hours, side="right")
        waiting_s = hours - submitted_s[np.minimum(oldest, len(submitted_s) - 1)]
        so_far = np.maximum(started_wait, np.where(oldest < len(submitted_s), waiting_s, 0))
        so_far = np.maximum.accumulate(np.maximum(so_far, 0))
        rises = np.flatnonzero(np.diff(so_far, prepend=0) > 0)
        return cls(
            at_s=np.concatenate(([-NEVER], hours[rises])).astype(np.int64),
            longest_s=np.concatenate(([0], so_far[rises])).astype(np.int64),
        )

    def at(self, now_s: int) -> int:
        """Return the longest wait by ``now_s``, s."""
        return int(self.longest_s[np.searchsorted(self.at_s, now_s, side="right") - 1])

    def at_least(self, longest_s: int) -> LongestWaits:
        """Return these waits, and ``longest_s`` while they are shorter."""
        return replace(self, longest_s=np.maximum(self.longest_s, longest_s))

    def wait_bound(self, share: float) -> WaitBound:
        """Return the wait bound from the longest wait so far.

        It is ``share`` x that wait, and at least ``LEAST_BOUND_S``.
        """
        return WaitBound(at_s=self.at_s, bound_s=np.maximum(share * self.longest_s, LEAST_BOUND_S).astype(np.int64))

    def ageing(self, share: float) -> Ageing:
        """Return the ageing by ``share`` x the longest wait so far."""
        return Ageing(at_s=self.at_s, tau_s=np.maximum(share * self.longest_s, LEAST_TAU_S))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ageing:
    """Ageing time of a queue's keys, as a step function.

    Parameters
    ----------
    at_s : int64 array of shape (n_steps,)
        When each value comes into force, s since the epoch, ascending; the first is in force from the beginning.
    tau_s : float64 array of shape (n_steps,)
        Wait that counts as much as e times the key, s.

    Raises
    ------
    UsageError
        The arrays differ in length, are empty, times descend, or a ``tau_s`` is not positive.
    """

    at_s: NDArray[np.int64]
    tau_s: NDArray[np.float64]

    def __post_init__(self) -> None:
        descends = (self.at_s[1:] < self.at_s[:-1]).any()
        if not len(self.at_s) or self.at_s.shape != self.tau_s.shape or descends or (self.tau_s <= 0).any():
            raise UsageError(
                "The ageing times are not a step function of time.",
                hint="Give as many times tau, all positive, as moments, and the moments in ascending order.",
            )

    @classmethod
    def constant(cls, tau_s: float) -> Ageing:
        """Return an ageing time that is the same at all times."""
        return cls(at_s=np.array([-NEVER]), tau_s=np.array([float(tau_s)]))

    def at(self, now_s: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the ageing time at each moment."""
        tau_s: NDArray[np.float64] = self.tau_s[np.maximum(np.searchsorted(self.at_s, now_s, side="right") - 1, 0)]
        return tau_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitBound:
    """Wait bound as a step function of time.

    A job that has waited longer goes to the front of its queue.

    Parameters
    ----------
    at_s : int64 array of shape (n_steps,)
        When each bound comes into force, s since the epoch, ascending. Before the first no job is promoted.
    bound_s : int64 array of shape (n_steps,)
        The bound from then on, s; not negative. A job is promoted once it has waited longer.

    Raises
    ------
    UsageError
        The arrays differ in length, times descend, or a bound is negative.
    """

    at_s: NDArray[np.int64]
    bound_s: NDArray[np.int64]

    def __post_init__(self) -> None:
        descends = (self.at_s[1:] < self.at_s[:-1]).any()
        if self.at_s.shape != self.bound_s.shape or descends or (self.bound_s < 0).any():
            raise UsageError(
                "The bounds on waiting are not a step function of time.",
                hint="Give as many bounds, none negative, as times, and the times in ascending order.",
            )

    @classmethod
    def constant(cls, bound_s: int) -> WaitBound:
        """Return a bound that is the same at all times."""
        return cls(at_s=np.array([-NEVER]), bound_s=np.array([bound_s]))


# ruff: noqa: ARG001  because every Order takes all three arguments


def first_in_first_out(
    *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order by submit time, s since the epoch."""
    return submitted_s.astype(np.float64)


def shortest_job_first(
    *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order by the given run time, s."""
    return run_time_s


def fewest_gpus_first(
    *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Order by the number of GPUs.

    It needs no model, and is the control that QSSF has to beat.
    """
    return gpus.astype(np.float64)


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "sjf": shortest_job_first,
    "fewest_gpus": fewest_gpus_first,
}
