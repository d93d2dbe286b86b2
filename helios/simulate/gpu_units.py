"""Whole units in which replays count parts of GPUs.

The compiled cores count in integers. Where jobs hold parts of GPUs, a GPU is as many units as make all sizes whole: 4
for quarters, 7 for slices of an A100. What a replay is given and returns is in GPUs. Parts of a GPU are units of their
node, not of one of its GPUs: what is free on two GPUs of a node may add up to a whole one, which no cluster can give.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.model import Sizes

MOST_UNITS = 2_520
"""Units of a GPU at most, the least common multiple of 1 to 10. A node takes memory for each of its units."""
ROUNDED_UNITS = 100
"""Units of a GPU where jobs would need more: sizes are then rounded up."""
MOST_TOTAL = 10_000_000
"""Units of a cluster at most. Its tables have a row for each."""
ERROR = 1e-6
"""Difference of a size to whole units that is an error of rounding, GPUs."""


def replay_sizes(gpus: NDArray[Any]) -> Sizes:
    """Return sizes as integers, unless one has a part of a GPU."""
    whole = gpus.astype(np.int32)
    return whole if np.array_equal(whole, gpus) else gpus.astype(np.float64)


def choose_units(gpus: NDArray[Any], *, total: int) -> int:
    """Return the units of a GPU, the fewest that make all sizes whole.

    Parameters
    ----------
    gpus : array of shape (n_jobs,)
        Sizes of jobs, GPUs.
    total : int
        GPUs of the cluster.
    """
    if gpus.dtype.kind in "iu":
        return 1
    most, units = max(1, min(MOST_UNITS, MOST_TOTAL // max(total, 1))), 1
    for part in np.unique(gpus % 1).tolist():
        units = lcm(units, Fraction(part).limit_denominator(MOST_UNITS).denominator)
        if units > most:
            return min(ROUNDED_UNITS, most)
    return units


def in_units(gpus: NDArray[Any], units: int) -> NDArray[np.int64]:
    """Return sizes in whole units, rounded up."""
    if units == 1 and gpus.dtype.kind in "iu":
        return gpus.astype(np.int64)
    return np.ceil(gpus * units - ERROR * units).astype(np.int64)


def rounding_note(gpus: NDArray[Any], *, total: int) -> str:
    """Return the note on sizes that a replay rounds up, if any."""
    units = choose_units(gpus, total=total)
    rounded = in_units(gpus, units) - gpus * units > ERROR * units
    if not rounded.any():
        return ""
    return (
        f"Parts of GPUs are replayed in units of 1/{units}: the sizes of {int(rounded.sum()):,} jobs, such as "
        f"{gpus[int(rounded.argmax())]:.4g} GPUs, are rounded up to them."
    )
