"""The rule of CES for the size of a pool, as arithmetic on arrays.

The form is the one that did best in Helios' own study on two clusters: never below the most that was needed lately, nor
below an upper quantile of what will be; asleep only past a dead band and a hold-off, so that the level does not saw;
awake again to more than is needed now, so that one shortage does not bring the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit


class SizingParameters(NamedTuple):
    """What the rule is run with, for one pool.

    Attributes
    ----------
    floor : int
        Which of the floors (rows of an array) the level never falls below.
    down, up : float
        Nodes kept above the floor when others are put to sleep, and above what is busy when some are woken.
    band : float
        Fewer nodes than this are not put to sleep.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    margin : float
        Some are woken as soon as fewer than this are idle.
    """

    floor: int
    down: float
    up: float
    band: float
    hold_steps: int
    margin: float


class SizingScore(NamedTuple):
    """What settings did over some steps: arrays of one value for each setting.

    Attributes
    ----------
    asleep : array
        Nodes asleep, summed over steps.
    wakes : array
        Steps in which some were woken.
    short : array
        Steps in which fewer were awake than were needed.
    """

    asleep: NDArray[np.float64]
    wakes: NDArray[np.float64]
    short: NDArray[np.float64]


@inline_jit
def _next(  # noqa: PLR0917 - numba kernels are called by position
    busy: float, total: float, floor: float, setting: SizingParameters, powered: float, held_until: int, at: int
) -> tuple[float, int]:
    """Decide at the end of step ``at``.

    Return how many are to be awake, and from which step on some may sleep.
    """
    # What is awake is not clipped to what is in service: nodes that break and return were not put to sleep.
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
        Most nodes busy in each step, nodes in service, and what the level must not fall below, as known at its end.
    powered, held_until : float, int
        Where the rule stood before; the latter as a step's number.
    first : int
        Number of the first step.
    levels : float64 array of shape (n_steps,)
        Written to: the nodes to be awake from the end of each step on.

    Returns
    -------
    tuple of (float, int)
        Where it stands after.
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
) -> SizingScore:
    """Run every row of ``grid`` (:class:`SizingParameters`) over the same steps, all nodes awake at first."""
    out = np.zeros((len(grid), 3))
    _score(busy, total, np.ascontiguousarray(floors), grid, out)
    return SizingScore(asleep=out[:, 0], wakes=out[:, 1], short=out[:, 2])


@cached_jit
def _score(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floors: NDArray[np.float64],
    grid: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    for row in range(len(grid)):
        which = int(grid[row, 0])
        setting = SizingParameters(which, grid[row, 1], grid[row, 2], grid[row, 3], int(grid[row, 4]), grid[row, 5])
        powered, held_until = total[0], 0
        asleep, wakes, short = 0.0, 0.0, 0.0
        for t in range(len(busy)):
            if min(busy[t], total[t]) > powered:
                short += 1.0
            level, held_until = _next(busy[t], total[t], floors[which, t], setting, powered, held_until, t)
            if level > powered:
                wakes += 1.0
            powered = level
            asleep += max(total[t] - level, 0.0)
        out[row, 0], out[row, 1], out[row, 2] = asleep, wakes, short


@cached_jit
def highest_of_last(values: NDArray[np.float64], n_steps: int) -> NDArray[np.float64]:
    """Return the highest of each value and the ``n_steps`` - 1 before it, as far as there are."""
    highest = values.copy()
    for t in range(len(values)):
        for back in range(1, min(n_steps, t + 1)):
            highest[t] = max(highest[t], values[t - back])
    return highest


# The rules that CES is held against, made causal: as published, and the most of three hours plus five nodes.
#
# Source of the first: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-
# Scale GPU Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223, with the values of its released scripts.
# There the forecast for three hours ahead contains true values of two of them; here it is whatever was known.


class PublishedRule(NamedTuple):
    """Values of the published rule.

    Attributes
    ----------
    recent_steps : int
        Steps of the recent trend: the mean of these less what is busy now.
    xi_h, xi_p : float
        Nodes by which use must have fallen, and be expected to fall, for some to be put to sleep.
    reserve : float
        Nodes kept above what is busy: the paper's sigma.
    least : float
        Fewer nodes than this are not put to sleep.
    hold_steps : int
        Nothing is put to sleep for so many steps after a wake.
    """

    recent_steps: int
    xi_h: float
    xi_p: float
    reserve: float
    least: float
    hold_steps: int


@cached_jit
def published_levels(
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    soon: NDArray[np.float64],
    later: NDArray[np.float64],
    values: PublishedRule,
) -> NDArray[np.float64]:
    """Return the nodes awake after each step under the published rule.

    It begins with its reserve, as its authors do.

    Parameters
    ----------
    busy, total : float64 arrays of shape (n_steps,)
        Most nodes busy in each step, and nodes in service.
    soon, later : float64 arrays of shape (n_steps,)
        Busy nodes expected on average over the horizon of the rule, and over twice that; NaN: nothing was expected.
    """
    levels = np.minimum(busy + values.reserve, total)
    powered, held_until = levels[: values.recent_steps].max(), 0
    for t in range(values.recent_steps, len(busy)):
        if min(busy[t], total[t]) > powered:
            powered, held_until = min(total[t], busy[t] + values.reserve), t + values.hold_steps
        recent = busy[t - values.recent_steps : t].mean() - busy[t]
        falls = recent >= values.xi_h and busy[t] - soon[t] >= values.xi_p and not soon[t] < later[t]
        wanted = busy[t] + values.reserve
        if falls and t >= held_until and powered - wanted >= values.least:
            powered = wanted
        levels[t] = powered
    return levels


def most_plus_levels(
    busy: NDArray[np.float64], total: NDArray[np.float64], *, steps: int = 18, plus: float = 5.0
) -> NDArray[np.float64]:
    """Return the most that was busy in the last ``steps``, plus some nodes.

    No model, no memory.
    """
    return np.minimum(highest_of_last(busy, steps) + plus, total)
