"""Two-tier target of a training task.

At the first target a model is good enough to be delivered; training goes on towards the second. Source: TRADL, HPEC'19,
doi 10.1109/HPEC.2019.8916403. Tasks of pools and jobs of Slurm have one. It is apart from the model of a cluster, whose
package imports pandas, which who asks how a pool is does not need.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

TIERS = ("first", "second")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TEXT = re.compile(rf"\s*([\w./-]+)\s*(>=|<=)\s*({_NUMBER})\s*(?:,\s*({_NUMBER})\s*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Values of a metric that a task is to reach.

    Attributes
    ----------
    metric : str
        Name of the metric, as the program reports it.
    first : float
        Value from which the model may be delivered.
    second : float, optional
        Value towards which training goes on. None where there is none.
    maximize : bool
        Whether a larger value is better.
    deadline_s : float, optional
        Time in which the first target is wanted, s since the task was first started.

    Raises
    ------
    ValueError
        A value is not finite, the second is not harder than the first, or the deadline is not positive.
    """

    metric: str
    first: float
    second: float | None = None
    maximize: bool = True
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError("a target must be a finite number")
        if self.second is not None and (self.second == self.first or self.is_reached(0, self.second) is False):
            raise ValueError(f"the second target {self.second:g} is not harder than the first, {self.first:g}")
        if self.deadline_s is not None and not 0 < self.deadline_s < math.inf:
            raise ValueError("the deadline of a target must be positive and finite")

    @property
    def values(self) -> tuple[float, ...]:
        """The first and, where there is one, the second target."""
        return (self.first,) if self.second is None else (self.first, self.second)

    def is_reached(self, tier: int, value: float | None) -> bool:
        """Return whether a value reaches the target of a tier, 0 or 1.

        A value that is unknown or not finite reaches none.
        """
        if value is None or not math.isfinite(value):
            return False
        return value >= self.values[tier] if self.maximize else value <= self.values[tier]

    def best(self, values: Iterable[tuple[float, int]]) -> tuple[float, int] | None:
        """Return the best of values with their trials, the first of equal ones."""
        return (max if self.maximize else min)(values, key=itemgetter(0), default=None)

    def __str__(self) -> str:
        """Write it so that ``parse_target`` reads it."""
        return f"{self.metric}{'>=' if self.maximize else '<='}{','.join(map(write_number, self.values))}"


def write_number(value: float) -> str:
    """Write a number so that it is read as the same."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value).removesuffix(".0")


def parse_target(text: str) -> Target:
    """Read a target such as ``val_acc>=0.90,0.95`` or ``loss<=0.3``.

    Raises
    ------
    ValueError
        It is not written like that, or contradicts itself.
    """
    if not (found := _TEXT.fullmatch(text)):
        raise ValueError(f"{text!r} is not a target; write it as val_acc>=0.90,0.95 or loss<=0.3")
    metric, sign, first, second = found.groups()
    return Target(
        metric=metric,
        first=float(first),
        second=None if second is None else float(second),
        maximize=sign == ">=",
    )
