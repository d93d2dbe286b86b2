"""Queue orders of a what-if, their ageing and their wait bound.

The simple orders here are controls. Ties go by submit time, then job id.

A key ages as ``ln(key) + submitted / tau``. So a job of R times the service of another is overtaken by it only if the
other comes within ``tau ln R``. ``tau`` is a share of the longest recent wait in another replay of the same jobs, first
in, first out, so that one number means the same on every site.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.model import Sizes
from helios.ports import Order
from helios.simulate.core.state import NEVER
from helios.units import DAY_S

EVERY_S = 3_600
"""Time between two values of the longest wait, s."""
MEMORY_S = 28 * DAY_S
"""How long a wait counts after its job has started, s, live too (docs/research/experiments.md compares values)."""
LEAST_TAU_S = 3_600
"""Shortest ageing time, s."""
LEAST_BOUND_S = 3 * 3_600
"""Shortest wait bound, s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongestWaits:
    """Longest recent wait, as a step function of time.

    Attributes
    ----------
    at_s : int64 array of shape (n_steps,)
        When each value comes into force, s since the epoch, ascending; the first is in force from the beginning.
    longest_s : int64 array of shape (n_steps,)
        Longest recent wait, s.
    """

    at_s: NDArray[np.int64]
    longest_s: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        *,
        submitted_s: NDArray[np.int64],
        started_s: NDArray[np.int64],
        until_s: int = NEVER,
        memory_s: int = MEMORY_S,
    ) -> LongestWaits:
        """Return the longest waits of a replay, hour by hour.

        At each hour the waits of pending jobs count, and of those that started within ``memory_s`` before.

        Parameters
        ----------
        submitted_s, started_s : int64 arrays of shape (n_jobs,)
            In order of submission.
        until_s : int
            Later waits do not count, s since the epoch.
        memory_s : int
            How long a wait counts after the start, s, whole hours.
        """
        if not len(submitted_s):
            return cls(at_s=np.array([-NEVER]), longest_s=np.array([0]))
        n_hours = memory_s // EVERY_S
        hours = np.arange(submitted_s[0] + EVERY_S, min(int(started_s.max()) + EVERY_S, until_s + 1), EVERY_S)
        # A start counts at the first hour that is not before it.
        longest = np.zeros(len(hours) + n_hours, dtype=np.int64)
        counted_at = np.searchsorted(hours, started_s)
        counted = counted_at < len(hours)
        np.maximum.at(longest, counted_at[counted], (started_s - submitted_s)[counted])
        # The oldest job that still waits at an hour is the first that starts later.
        oldest = np.searchsorted(np.maximum.accumulate(started_s), hours, side="right")
        waiting_s = hours - submitted_s[np.minimum(oldest, len(submitted_s) - 1)]
        longest[: len(hours)] = np.maximum(longest[: len(hours)], np.where(oldest < len(submitted_s), waiting_s, 0))
        recent = np.lib.stride_tricks.sliding_window_view(np.pad(longest, (n_hours - 1, 0)), n_hours).max(axis=1)
        at_s = submitted_s[0] + EVERY_S * np.arange(1, len(longest) + 1)
        return cls._steps(np.concatenate(([-NEVER], at_s)), np.concatenate(([0], recent)))

    @classmethod
    def _steps(cls, at_s: NDArray[np.int64], longest_s: NDArray[np.int64]) -> LongestWaits:
        """Return the steps at which the value changes."""
        changes = np.diff(longest_s, prepend=-1) != 0
        return cls(at_s=at_s[changes].astype(np.int64), longest_s=longest_s[changes].astype(np.int64))

    def at(self, now_s: int) -> int:
        """Return the longest wait at ``now_s``, s."""
        return int(self.longest_s[np.searchsorted(self.at_s, now_s, side="right") - 1])

    def with_earlier(self, earlier: LongestWaits) -> LongestWaits:
        """Return the longer waits of two replays at each moment."""
        at_s = np.union1d(self.at_s, earlier.at_s)
        waits = [
            waits_of.longest_s[np.searchsorted(waits_of.at_s, at_s, side="right") - 1] for waits_of in (self, earlier)
        ]
        return self._steps(at_s, np.maximum(*waits))

    def wait_bound(self, share: float) -> WaitBound:
        """Return the wait bound from the longest recent wait.

        It is ``share`` x that wait, and at least ``LEAST_BOUND_S``.
        """
        return WaitBound(at_s=self.at_s, bound_s=np.maximum(share * self.longest_s, LEAST_BOUND_S).astype(np.int64))

    def ageing(self, share: float) -> Ageing:
        """Return the ageing by ``share`` x the longest recent wait."""
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


# Every Order takes all three arguments.
def first_in_first_out(
    *,
    submitted_s: NDArray[np.int64],
    gpus: Sizes,  # noqa: ARG001
    run_time_s: NDArray[np.float64],  # noqa: ARG001
) -> NDArray[np.float64]:
    """Order by submit time, s since the epoch."""
    return submitted_s.astype(np.float64)


def shortest_job_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001
    gpus: Sizes,  # noqa: ARG001
    run_time_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Order by the given run time, s."""
    return run_time_s


def fewest_gpus_first(
    *,
    submitted_s: NDArray[np.int64],  # noqa: ARG001
    gpus: Sizes,
    run_time_s: NDArray[np.float64],  # noqa: ARG001
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
