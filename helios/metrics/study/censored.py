"""Kaplan-Meier estimate of a distribution of times, some of them censored.

Source: Kaplan and Meier, J. Am. Stat. Assoc. 53, 1958.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from helios.metrics.study.history import Flags, Floats


@dataclass(frozen=True, slots=True, eq=False)
class CensoredTimes:
    """Distribution of times, some of them censored.

    A censored time is a lower bound, since the job was not over when last observed.

    Attributes
    ----------
    times_s : float64 array of shape (n,)
        Ascending.
    reached : float64 array of shape (n,)
        Share that is over by each time.
    censored : int
        How many were not over.
    """

    times_s: Floats
    reached: Floats
    censored: int

    @classmethod
    def of(cls, times_s: ArrayLike, over: Flags) -> CensoredTimes:
        """Return the distribution of complete and censored times."""
        times_s, n = np.asarray(times_s, dtype=np.float64), len(over)
        if bool(over.all()):
            return cls(np.sort(times_s), np.linspace(1 / max(n, 1), 1, n), 0)
        # What is over at a moment counts before what was last seen then.
        order = np.lexsort((~over, times_s))
        at_risk = np.arange(n, 0, -1)
        reached: Floats = 1 - np.cumprod(np.where(over[order], 1 - 1 / at_risk, 1.0), dtype=np.float64)
        return cls(times_s[order], reached, int((~over).sum()))

    @property
    def n(self) -> int:
        """How many times there are."""
        return len(self.times_s)

    def share_within(self, limits_s: ArrayLike) -> Floats:
        """Return the share that is over by each of the limits."""
        place = np.searchsorted(self.times_s, np.asarray(limits_s, dtype=np.float64), side="right")
        return np.concatenate([[0.0], self.reached])[place].astype(np.float64)

    def quantile(self, share: float) -> float:
        """Return a quantile of the times, NaN where unknown."""
        place = int(np.searchsorted(self.reached, share - 1e-12))
        return float(self.times_s[place]) if place < self.n else float("nan")
