"""Daily tuning of the sizing rule by replaying the last weeks.

The tuning is causal: the setting of a day is chosen from the steps before its midnight (UTC), and the level follows
from use and forecasts as they were known at each step. So the whole state of the rule is a function of the history of
demand, and a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product

import numpy as np
from numpy.typing import NDArray

from helios.model import STEP_S
from helios.services.energy_saving.sizing import SizingParameters, highest_of_last, score_levels, walk_levels

DAY = 86_400 // STEP_S
"""Steps of a day."""
LEAST_DAYS = 7
"""Days of history below which nothing is put to sleep, so that a whole week is known."""
MARGIN_OF_TUNING = 0.6
"""Share of the target number of wake-ups that is allowed in the replay, because the best of thousands of settings is
also a lucky one. With three quarters, a month of Philly had 1.4 times as many as targeted (docs/power.md)."""
YARDSTICK = (0.5, 2.0)
"""Fewest and most wake-ups a day in the target that is taken from the published rule."""
DEAR = 0.6
"""Per cent more sleep that one per cent more wake-ups than the target must bring. A hard bound did worse: after weeks
with outages only the largest reserves complied with it, which give little sleep."""
WINDOWS = (1, 3, 6, 18)
"""Steps over which the recent maximum is taken, 10 min to 3 h."""
FLOOR_LEVELS, LONGEST_FLOOR_S = (0.5, 0.9), 12 * 3_600
DOWNS = (0.0, 1.0, 2.0, 4.0, 7.0, 12.0, 18.0, 25.0)
UPS = (1.0, 3.0, 6.0, 12.0, 20.0, 30.0)
"""Nodes in addition to ``down``, so that a wake-up is sufficient for a while."""
BANDS, HOLDS = (1.0, 4.0, 10.0), (12, 24)
MOST_RESERVE = 0.12
"""Largest reserve that is tried, as a share of the pool, except for the smallest reserves."""

Memo = MutableMapping[bytes, SizingParameters | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Goal of the tuning.

    Attributes
    ----------
    risk : float
        Largest share of steps in which fewer nodes are awake than needed, which is the chance that a job at any time
        meets a shortage.
    wake_ups_per_day : float, optional
        Target on average. More must bring much more sleep. None for the number of the published rule, within
        ``YARDSTICK``.
    worth : float
        Per cent more sleep that one per cent more wake-ups must bring, up to the target.
    spare : float
        Number of idle nodes below which some are woken ahead of need.
    weeks : int
        Weeks of history over which settings are replayed.
    """

    risk: float
    wake_ups_per_day: float | None
    worth: float
    spare: float
    weeks: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownDemand:
    """Demand and forecasts of one pool at the end of each step.

    See :class:`helios.model.Demand`.

    Attributes
    ----------
    busy, total : float64 arrays of shape (n_steps,)
    most : float64 array of shape (n_steps, n_ahead, n_levels)
    ahead_s : tuple of int
    levels : tuple of float
    ended_s : int
        End of the last step.
    yardstick : float64 array of shape (n_steps,)
        1 where the published rule wakes nodes.
    """

    busy: NDArray[np.float64]
    total: NDArray[np.float64]
    most: NDArray[np.float64]
    ahead_s: tuple[int, ...]
    levels: tuple[float, ...]
    ended_s: int
    yardstick: NDArray[np.float64]

    @property
    def day_of(self) -> NDArray[np.int64]:
        """Day of each step's end, days since the epoch."""
        return training_days(self.ended_s, len(self.busy))

    def steps(self, first: int, after: int) -> KnownDemand:
        """Return the steps ``first`` to ``after`` - 1."""
        return replace(
            self,
            busy=self.busy[first:after],
            total=self.total[first:after],
            most=self.most[first:after],
            ended_s=self.ended_s - STEP_S * (len(self.busy) - after),
            yardstick=self.yardstick[first:after],
        )


def training_days(ended_s: int, n_steps: int) -> NDArray[np.int64]:
    """Return the day of each step's end, days since the epoch.

    The last step ends at ``ended_s``.
    """
    return (ended_s - STEP_S * np.arange(n_steps - 1, -1, -1, dtype=np.int64)) // 86_400


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizingPlan:
    """Levels and settings of the rule over a period.

    Attributes
    ----------
    levels : float64 array of shape (n_steps,)
        Nodes to be awake from the end of each step on.
    settings : tuple of (int, SizingParameters or None)
        First step of each day and the setting chosen for it. None where nothing may sleep.
    """

    levels: NDArray[np.float64]
    settings: tuple[tuple[int, SizingParameters | None], ...]

    @property
    def setting(self) -> SizingParameters | None:
        """The last chosen setting."""
        return self.settings[-1][1] if self.settings else None


def plan_sizing(known: KnownDemand, goal: Goal, *, from_step: int = 0, memo: Memo | None = None) -> SizingPlan:
    """Run the rule from ``from_step`` on, with a setting chosen at each midnight.

    Before it all nodes are awake.
    """
    levels = known.total.copy()
    day_of = known.day_of
    if from_step >= len(day_of):
        return SizingPlan(levels=levels, settings=())
    starts = [from_step, *(np.flatnonzero(np.diff(day_of[from_step:])) + from_step + 1).tolist()]
    settings: list[tuple[int, SizingParameters | None]] = []
    powered, held_until = float(known.total[from_step]), 0
    for first, after in zip(starts, [*starts[1:], len(known.busy)], strict=True):
        setting = tune(_weeks_before(known, day_of, int(day_of[first]), goal.weeks), goal, memo=memo)
        settings.append((first, setting))
        if setting is None:
            powered, held_until = float(known.total[first:after].max(initial=powered)), 0
            continue
        today = known.steps(first, after)
        with_before = known.steps(max(0, first - max(WINDOWS)), after)
        floor = lower_bounds(with_before, rows=(setting.floor,))[0, -len(today.busy) :]
        powered, held_until = walk_levels(
            today.busy, today.total, floor, setting, powered, held_until, first, levels[first:after]
        )
    return SizingPlan(levels=levels, settings=tuple(settings))


def tune(known: KnownDemand, goal: Goal, *, memo: Memo | None = None) -> SizingParameters | None:
    """Return the best setting over the given steps.

    None with too few steps, or if no setting meets the goal.

    The best setting has the most sleep for its wake-ups, ``log(asleep) - worth x log(wake-ups)``. Ratios make it
    independent of the size of the pool. Wake-ups beyond the target cost ``DEAR`` more.
    """
    if len(known.busy) < LEAST_DAYS * DAY:
        return None
    memo = {} if memo is None else memo
    key = _key(known, goal)
    if key not in memo:
        memo[key] = _picked(known, goal)
    return memo[key]


def lower_bounds(known: KnownDemand, *, rows: tuple[int, ...] | None = None) -> NDArray[np.float64]:
    """Return lower bounds of the level, of shape (n_floors, n_steps).

    There is one row for each combination of window and quantile.

    Parameters
    ----------
    rows : tuple of int, optional
        Rows to return; None for all.
    """
    ways = list(product(WINDOWS, _quantiles(known)))
    chosen = range(len(ways)) if rows is None else rows
    recent = {window: highest_of_last(known.busy, window) for window in {ways[row][0] for row in chosen}}
    coming = {ways[row][1]: _coming(known, *ways[row][1]) for row in chosen}
    return np.array([np.maximum(recent[ways[row][0]], coming[ways[row][1]]) for row in chosen])


def _weeks_before(known: KnownDemand, day_of: NDArray[np.int64], day: int, weeks: int) -> KnownDemand:
    """Return whole days before ``day``.

    With a partial first day each further step would change the chosen setting.
    """
    first_day = max(day - 7 * weeks, int(day_of[0]) + 1)
    first, after = np.searchsorted(day_of, [first_day, day])
    return known.steps(int(min(first, after)), int(after))


def _picked(known: KnownDemand, goal: Goal) -> SizingParameters | None:
    grid = grid_for(n_floors=len(WINDOWS) * len(_quantiles(known)), total=float(known.total.max()), spare=goal.spare)
    if not len(grid):
        return None
    score = score_levels(known.busy, known.total, lower_bounds(known), grid)
    good = (score.short <= goal.risk * len(known.busy)) & (score.asleep > 0)
    if not good.any():
        return None
    # Half a wake-up is added, because none in some weeks does not mean none ever.
    wakes, wanted = score.wakes + 0.5, _wanted_wakes(known, goal) + 0.5
    value = np.log(np.maximum(score.asleep, 1e-9)) - goal.worth * np.log(wakes)
    value -= DEAR * np.maximum(np.log(wakes / wanted), 0.0)
    floor, down, up, band, hold_steps, margin = grid[np.argmax(np.where(good, value, -np.inf))].tolist()
    return SizingParameters(int(floor), down, up, band, int(hold_steps), margin)


def _wanted_wakes(known: KnownDemand, goal: Goal) -> float:
    days = len(known.busy) / DAY
    per_day = goal.wake_ups_per_day
    if per_day is None:
        per_day = float(np.clip(known.yardstick.sum() / days, *YARDSTICK))
    return MARGIN_OF_TUNING * per_day * days


def grid_for(*, n_floors: int, total: float, spare: float) -> NDArray[np.float64]:
    """Return the settings to try, as rows."""
    most = max(MOST_RESERVE * total, 2.0)
    downs = [max(down, spare) for down in DOWNS if down <= most]
    ups = [up for up in UPS if up <= total]
    rows = product(range(n_floors), sorted(set(downs)), ups, BANDS, HOLDS)
    return np.array([(floor, down, down + up, band, hold, spare) for floor, down, up, band, hold in rows])


def _quantiles(known: KnownDemand) -> list[tuple[int, int]]:
    """Return positions of the horizons and levels that serve as floors."""
    horizons = [place for place, ahead_s in enumerate(known.ahead_s) if ahead_s <= LONGEST_FLOOR_S]
    levels = [place for place, level in enumerate(known.levels) if level in FLOOR_LEVELS]
    return list(product(horizons, levels))


def _coming(known: KnownDemand, horizon: int, level: int) -> NDArray[np.float64]:
    """Return a quantile of future demand.

    Where there is no forecast, it is the maximum of an equally long time before.
    """
    coming = known.most[:, horizon, level]
    if not np.isnan(coming).any():
        return coming
    before = highest_of_last(known.busy, known.ahead_s[horizon] // STEP_S)
    return np.where(np.isnan(coming), before, coming)


def _key(known: KnownDemand, goal: Goal) -> bytes:
    digest = blake2b(repr((goal, known.ahead_s, known.levels)).encode(), digest_size=16)
    for values in (known.busy, known.total, known.most, known.yardstick):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.digest()
