"""How coarsely a cluster holds what it is asked to hold: what counts as the same when it is read back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helios import marks
from helios.actions import Lever
from helios.config import Slurm

MINUTES_STEP_S = 60.0 * marks.MINUTE_STEP
"""Distance of two neighbouring soft limits that Helios writes, s."""
ROUNDING = 1e-9
"""What floating point may lose of an urgency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """How far what is read may lie from what was asked.

    Attributes
    ----------
    urgency : float
        Half a step: an urgency is rounded to the nearest.
    soft_limit_s : float
        A whole step, s: a soft limit is rounded up.
    """

    urgency: float
    soft_limit_s: float = MINUTES_STEP_S

    @classmethod
    def of(cls, slurm: Slurm) -> Resolution:
        """Return what a bound of the SiteFactor leaves room for."""
        return cls(urgency=0.5 / (marks.steps(slurm.site_factor_most)) + ROUNDING)

    def same(self, lever: Lever, *, asked: float, read: float) -> bool:
        """Return whether ``read`` (NaN: no soft limit) is what the cluster makes of ``asked``."""
        if lever is Lever.ORDER:
            return abs(asked - read) <= self.urgency
        return -ROUNDING <= read - asked < self.soft_limit_s

    def is_nothing(self, lever: Lever, value: float) -> bool:
        """Return whether ``value`` leaves a job as it would be without Helios."""
        return abs(value) <= self.urgency if lever is Lever.ORDER else math.isnan(value)
