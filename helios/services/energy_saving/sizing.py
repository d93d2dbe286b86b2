"""Options of CES, and its sizing rules as computations on arrays.

One kernel runs all rules, the published rule and the idle timer included. Nodes above a floor and a reserve are put to
sleep, with a dead band and a hold-off so that the level does not oscillate. The floor is the recent maximum or an upper
quantile of future demand. More nodes may be woken than are needed at the moment, as a node woken early costs less than
a job that waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.jit import cached_jit, inline_jit
from helios.model import STEP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CesOptions:
    """Options of the energy-saving service (CES).

    Attributes
    ----------
    every_s : int
        Time between two decisions, s.
    rule : str
        ``helios``, chosen by replay each day; ``published``, the rule of the paper, made causal; or ``max_3h``, the
        maximum of the last three hours plus five nodes, without a forecast. The last two are baselines.
    mechanism : str
        ``sleep`` to power nodes down, or ``keep_awake`` to let the cluster's idle timer do it, except for listed nodes.
    risk : float, optional
        Largest share of time in which fewer nodes are awake than are needed, so that a job waits for a boot. None for
        that of the published rule.
    wake_ups_per_day : float, optional
        How often a day, on average, nodes of a pool may be woken. None for no oftener than the published rule in any
        past week, with no more nodes short.
    penalty : float
        Node hours of sleep that one node hour short outweighs.
    spare : int
        Number of idle nodes of a pool below which nodes are woken ahead of need.
    weeks : int
        Most weeks of history on which a rule is chosen.
    sigma : float, optional
        Published rule: nodes kept in reserve. None, here and below, for its authors' value for a pool of this size.
    hold_s : int, optional
        Published rule: hold-off after a wake, s.
    xi_h, xi_p : float, optional
        Published rule: nodes by which use must have fallen, and be expected to fall.
    h_s, f_s : int, optional
        Published rule: the horizons of both, s.
    """

    every_s: int = STEP_S
    rule: Literal["helios", "published", "max_3h"] = "helios"
    mechanism: Literal["sleep", "keep_awake"] = "sleep"
    risk: float | None = None
    wake_ups_per_day: float | None = None
    penalty: float = 100.0
    spare: int = 2
    weeks: int = 8
    sigma: float | None = None
    hold_s: int | None = None
    xi_h: float | None = None
    xi_p: float | None = None
    h_s: int | None = None
    f_s: int | None = None

    def __post_init__(self) -> None:
        for valid, message in (
            (self.every_s > 0, "every_s must be positive"),
            (self.risk is None or 0 < self.risk < 1, "risk must lie between 0 and 1"),
            (0 < (self.wake_ups_per_day or 1.0) < np.inf, "wake_ups_per_day must be positive and finite"),
            (0 <= self.penalty < np.inf, "penalty must be finite and not negative"),
            (self.spare >= 0, "spare must not be negative"),
            (1 <= self.weeks <= 26, "weeks must lie between 1 and 26"),
            (0 <= (self.sigma or 0.0) < np.inf, "sigma must be finite and not negative"),
            ((self.hold_s or 0) >= 0, "hold_s must not be negative"),
            (self.h_s is None or self.h_s >= STEP_S, f"h_s must be at least {STEP_S}"),
            (self.f_s is None or self.f_s >= STEP_S, f"f_s must be at least {STEP_S}"),
        ):
            if not valid:
                raise ValueError(message)


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
def _next_level(  # noqa: PLR0917 - numba kernels are called by position
    busy: float, total: float, floor: float, setting: SizingParameters, powered: float, held_until: int, step: int
) -> tuple[float, int]:
    """Return the level after a step, and the step at which the hold-off ends."""
    # The level is not clipped to the nodes in service, as nodes that fail and return were not put to sleep.
    if busy + setting.margin > powered and powered < total:
        return max(powered, min(total, busy + setting.up)), step + setting.hold_steps
    if step >= held_until:
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
        Level and end of the hold-off (a step number) before the first step.
    first : int
        Number of the first step.
    levels : float64 array of shape (n_steps,)
        Output: the nodes to be awake from the end of each step on.

    Returns
    -------
    powered, held_until : float, int
        The same after the last step.
    """
    for t in range(len(busy)):
        powered, held_until = _next_level(busy[t], total[t], floor[t], setting, powered, held_until, first + t)
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
    _score_rows(busy, total, np.ascontiguousarray(floors), grid, powered, week_steps, out)
    return SizingScore(asleep=out[:, :, 0], wakes=out[:, :, 1], missing=out[:, :, 2], short=out[:, :, 3])


@cached_jit
def _score_rows(  # noqa: PLR0917 - numba kernels are called by position
    busy: NDArray[np.float64],
    total: NDArray[np.float64],
    floors: NDArray[np.float64],
    grid: NDArray[np.float64],
    start: float,
    week_steps: int,
    out: NDArray[np.float64],
) -> None:
    for row in range(len(grid)):
        floor = int(grid[row, 0])
        setting = SizingParameters(floor, grid[row, 1], grid[row, 2], grid[row, 3], int(grid[row, 4]), grid[row, 5])
        powered, held_until = start, 0
        for t in range(len(busy)):
            week = out[row, t // week_steps]
            missing = min(busy[t], total[t]) - powered
            if missing > 0:
                week[2] += missing
                week[3] += 1.0
            level, held_until = _next_level(busy[t], total[t], floors[floor, t], setting, powered, held_until, t)
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


# The published rule puts nodes to sleep only where use has fallen and is expected to fall. In this form its floor is
# infinite everywhere else.
#
# Source: Hu, Sun, Yan, Wen, Zhang, "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
# Datacenters", SC'21, section 4.3, doi 10.1145/3458817.3476223, with the values of its released scripts. Their forecast
# for three hours ahead contains true values of two of these hours. Here it uses only what was known.


class PublishedRule(NamedTuple):
    """Parameters of the published rule.

    Attributes
    ----------
    recent_steps : int
        Steps of the recent mean that the number of busy nodes is compared with.
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
