"""How far a training task is from its target.

The target itself is in :mod:`helios.targets`, because Slurm jobs have one too.
"""

from __future__ import annotations

from dataclasses import dataclass

from helios.targets import Target, parse_target

__all__ = ["StepsToTarget", "Target", "parse_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsToTarget:
    """How many more steps a task needs to a target, from its last report.

    Attributes
    ----------
    p10, p50, p90 : float
        Quantiles where it is reached, steps. 0 where it was reached.
    reached : float
        Probability that it is reached at all, 0 to 1.
    """

    p10: float
    p50: float
    p90: float
    reached: float = 1.0
