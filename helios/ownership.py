"""Values that Helios writes into Slurm, and how it recognises them.

Every SiteFactor that Helios writes ends in 37, and every TimeMin in a minute that ends in 7. Users and admins may write
such a value too, so it is Helios' own only if there is a record as well (``helios.slurm.undo_file``).
``job_submit.lua`` and ``helios-release.sh`` recognise the values without Helios and repeat these numbers.
"""

from __future__ import annotations

import math
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

MARK = 37
"""Last two digits of every non-zero SiteFactor that Helios writes."""
STEP = 100
"""Distance of two neighbouring SiteFactors that Helios writes, as the mark takes the last two digits."""
MINUTE_MARK = 7
"""Last digit of every TimeMin, in minutes, that Helios writes."""
MINUTE_STEP = 10
"""Distance of two neighbouring TimeMin that Helios writes, as the mark takes the last digit, min."""


def steps(most: int) -> int:
    """Return the number of urgency levels on either side of 0.

    ``most`` is the largest SiteFactor that may be written.
    """
    return (most - MARK) // STEP


def site_factor(urgency: float, *, most: int) -> int:
    """Return the SiteFactor that stands for ``urgency``, between ``-most`` and ``most``."""
    level = round(abs(urgency) * steps(most))
    return int(math.copysign(level * STEP + MARK, urgency)) if level else 0


def site_factors(urgency: NDArray[np.float64], *, n_steps: int) -> NDArray[np.int64]:
    """Return the SiteFactor of each urgency, ``n_steps`` levels to either side."""
    level = np.rint(np.abs(urgency) * n_steps).astype(np.int64)
    factors: NDArray[np.int64] = np.sign(urgency).astype(np.int64) * np.where(level > 0, level * STEP + MARK, 0)
    return factors


def urgency(site_factor: int, *, most: int) -> float:
    """Return the urgency of a SiteFactor, or 0 without Helios' mark."""
    if not has_helios_mark(site_factor):
        return 0.0
    return math.copysign(min(abs(site_factor) // STEP / steps(most), 1.0), site_factor)


def urgencies(site_factors: NDArray[np.int64], *, n_steps: int) -> NDArray[np.float64]:
    """Return the urgency of each SiteFactor, ``n_steps`` levels to either side."""
    level = np.where(have_helios_mark(site_factors), np.minimum(np.abs(site_factors) // STEP, n_steps), 0)
    values: NDArray[np.float64] = np.sign(site_factors) * level / n_steps
    return values


def has_helios_mark(site_factor: int) -> bool:
    """Return whether a SiteFactor bears Helios' mark, which 0 does not."""
    return abs(site_factor) % STEP == MARK


def have_helios_mark(site_factors: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which SiteFactors bear Helios' mark."""
    marked: NDArray[np.bool_] = np.abs(site_factors) % STEP == MARK
    return marked


def whole_minutes(run_time: timedelta) -> int:
    """Return ``run_time`` in minutes, rounded up, which need not bear Helios' mark."""
    return math.ceil(run_time / timedelta(minutes=1))


def time_min(run_time: timedelta) -> int:
    """Return a soft limit as a TimeMin with Helios' mark, min."""
    minutes = whole_minutes(run_time)
    return minutes + (MINUTE_MARK - minutes) % MINUTE_STEP


def has_helios_time_min(minutes: int) -> bool:
    """Return whether a TimeMin, in minutes, bears Helios' mark."""
    return minutes % MINUTE_STEP == MINUTE_MARK
