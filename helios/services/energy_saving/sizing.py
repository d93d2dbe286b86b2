"""Sizing rules of CES, as computations on arrays.

One kernel runs them all, the published rule and the idle timer included: nodes above a floor and a reserve are put to
sleep, beyond a dead band and after a hold-off, so that the level does not oscillate. The floor is the recent maximum,
an upper quantile of future demand, or where use falls. More may be woken than are needed at the moment, because a node
woken early costs less than a job that waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit


class SizingParameters(NamedTuple):
    """Parameters of the rule for one pool.

    Attributes
    ----------
    floor : int
        Row of the array of floors, below which the level never falls.
    down, up : float
        Nodes kept above the floor when others are put to sleep, and above the busy ones when some are woken.
    band : float
        Fewer nodes than this are not put to sleep.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    margin : float
        Nodes are woken as soon as fewer than this are idle.
    """

    floor: int
    down: float
    up: float
    band: float
    hold_steps: int
    margin: float


class SizingScore(NamedTuple):
    """Results of settings over some weeks.

    Each array has the shape (n_settings, n_weeks).

    Attributes
    ----------
    asleep : array
        Nodes asleep, summed over steps.
    wakes : array
        Number of steps in which nodes were woken.
    missing : array
        Nodes that were needed and not awake, summed over steps.
    short : array
        Number of steps in which some were missing.
    """

    asleep: NDArray[np.float64]
    wakes: NDArray[np.float64]
    missing: NDArray[np.float64]
    short: NDArray[np.float64]


@inline_jit
def _next(  # noqa: PLR0917 - numba kernels are called by position
    busy: float, total: float, floor: float, setting: SizingParameters, powered: float, held_until: int, at: int
) -> tuple[float, int]:
    """Return the level after step ``at``, and the end of the hold-off.

    The latter is the first step at which nodes may be put to sleep again.
    """
    # The level is not clipped to the nodes in service, because nodes that fail and return were not put to sleep.
    if busy + setting.margin > powered and powered < total:
        return max(powered, min(total, busy + setting.up)), at + setting.hold_steps
    if at >= held_until:
        target = max(floor + setting.down, busy + setting.margin)
        if target <= powered - setting.band:
            return target, held_until
    return powered, held_until


@cached_jit
def walk_levels(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floor: NDArray[np.float64],
    setting: SizingParameters,
    powered: float,
    held_until: int,
    first: int,
    levels: NDArray[np.float64],
) -> tuple[float, int]:
    """Run the rule over consecutive steps.

    Parameters
    ----------
    busy, total, floor : float64 arrays of shape (n_steps,)
        Most nodes busy in each step, nodes in service, and lower bound of the level, as known at its end.
    powered, held_until : float, int
        State of the rule before the first step. The latter is a step number.
    first : int
        Number of the first step.
    levels : float64 array of shape (n_steps,)
        Output: the nodes to be awake from the end of each step on.

    Returns
    -------
    tuple of (float, int)
        State of the rule after the last step.
    """
    for t in range(len(busy)):
        powered, held_until = _next(busy[t], total[t], floor[t], setting, powered, held_until, first + t)
        levels[t] = powered
    return powered, held_until


def score_levels(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floors: NDArray[np.float64],
    grid: NDArray[np.float64],
    *,
    powered: float,
    week_steps: int,
) -> SizingScore:
    """Run every row of ``grid`` and return scores week by week.

    Rows are :class:`SizingParameters`. ``powered`` nodes are awake at first; the steps are a multiple of
    ``week_steps``.
    """
    out = np.zeros((len(grid), len(busy) // week_steps, 4))
    _score(busy, total, np.ascontiguousarray(floors), grid, powered, week_steps, out)
    return SizingScore(asleep=out[:, :, 0], wakes=out[:, :, 1], missing=out[:, :, 2], short=out[:, :, 3])


@cached_jit
def _score(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floors: NDArray[np.float64],
    grid: NDArray[np.float64],
    start: float,
    week_steps: int,
    out: NDArray[np.float64],
) -> None:
    for row in range(len(grid)):
        which = int(grid[row, 0])
        setting = SizingParameters(which, grid[row, 1], grid[row, 2], grid[row, 3], int(grid[row, 4]), grid[row, 5])
        powered, held_until = start, 0
        for t in range(len(busy)):
            week = out[row, t // week_steps]
            missing = min(busy[t], total[t]) - powered
            if missing > 0:
                week[2] += missing
                week[3] += 1.0
            level, held_until = _next(busy[t], total[t], floors[which, t], setting, powered, held_until, t)
            if level > powered:
                week[1] += 1.0
            powered = level
            week[0] += max(total[t] - level, 0.0)


def highest_of_last(values: NDArray[np.float64], n_steps: int) -> NDArray[np.float64]:
    """Return the maximum over the last ``n_steps`` at each position.

    At the beginning it is over as many values as there are.
    """
    highest: NDArray[np.float64] = pd.Series(values).rolling(n_steps, min_periods=1).max().to_numpy(copy=True)
    return highest


# The published rule, made causal, in the same form: nodes are put to sleep only where use has fallen and is expected to
# fall, which is a floor that is infinite everywhere else.
#
# Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
# Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223, with the values of its released scripts. There the
# forecast for three hours ahead contains true values of two of them; here it uses only what was known.


class PublishedRule(NamedTuple):
    """Parameters of the published rule.

    Attributes
    ----------
    recent_steps : int
        Steps of the recent trend, which is their mean less the number of busy nodes now.
    xi_h, xi_p : float
        Nodes by which use must have fallen, and be expected to fall, for some to be put to sleep.
    reserve : float
        Nodes kept above the busy ones, the paper's sigma.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    """

    recent_steps: int
    xi_h: float
    xi_p: float
    reserve: float
    hold_steps: int

    def setting(self, floor: int) -> SizingParameters:
        """Return the rule as a setting over the given row of floors."""
        return SizingParameters(floor, self.reserve, self.reserve, 1.0, self.hold_steps, 0.0)


def published_floor(
    busy: NDArray[np.float64], soon: NDArray[np.float64], later: NDArray[np.float64], rule: PublishedRule
) -> NDArray[np.float64]:
    """Return the floor of the published rule.

    It is inf where nothing may be put to sleep.

    Parameters
    ----------
    busy : float64 array of shape (n_steps,)
        Most nodes busy in each step.
    soon, later : float64 arrays of shape (n_steps,)
        Expected mean of busy nodes over the horizon of the rule, and over twice that; NaN without a forecast.
    """
    recent = np.full(len(busy), np.nan)
    summed = np.concatenate([[0.0], np.cumsum(busy)])
    steps = min(rule.recent_steps, len(busy))
    recent[steps:] = (summed[steps:-1] - summed[: -1 - steps]) / steps
    falls = (recent - busy >= rule.xi_h) & (busy - soon >= rule.xi_p) & ~(soon < later)
    return np.where(falls, busy, np.inf)
