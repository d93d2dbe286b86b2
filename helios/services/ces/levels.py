"""How many nodes a pool is to have awake, from its demand: under Helios' rule, or under a control."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from helios.model import STEP_S, Demand
from helios.services.ces.controls import Published, most_plus_levels, published_levels
from helios.services.ces.options import CesOptions
from helios.services.ces.rule import Setting
from helios.services.ces.tuning import DAY, Goal, Known, Memo, days_of, planned

LARGE = 300
"""Nodes from which on the published rule is run with the values of its largest cluster (Philly), else Earth's."""
RUN_IN_DAYS = 3
"""Days over which a rule is run again to know where it stands; its hold-off and dead band reach back hours."""


def level_now(
    demand: Demand, place: int, options: CesOptions, *, memo: Memo | None = None
) -> tuple[float, Setting | None]:
    """Return how many nodes of a pool are to be awake after the last step, and Helios' setting, if it has one."""
    # From a midnight on: a start that slid along with each step would change what came of it.
    days = days_of(demand.ended_s, demand.busy.shape[1])
    first = int(np.searchsorted(days, demand.ended_s // 86_400 - RUN_IN_DAYS))
    levels, setting = levels_of(demand, place, options, from_step=first, memo=memo)
    return float(levels[-1]) if len(levels) else float("inf"), setting


def levels_of(
    demand: Demand, place: int, options: CesOptions, *, from_step: int, memo: Memo | None = None
) -> tuple[NDArray[np.float64], Setting | None]:
    """Return the nodes to be awake from the end of each step on, and the last of Helios' settings.

    Parameters
    ----------
    place : int
        Of the pool, in ``demand.pools``.
    from_step : int
        First step of the answer; then all nodes are awake.
    """
    if options.rule == "helios":
        plan = planned(known_of(demand, place, options), goal_of(options), from_step=from_step, memo=memo)
        return plan.levels[from_step:], plan.setting
    busy, total = demand.busy[place], demand.total[place]
    if options.rule == "max_3h":
        return most_plus_levels(busy, total)[from_step:], None
    return published_of(demand, place, options, from_step=from_step), None


def published_of(demand: Demand, place: int, options: CesOptions, *, from_step: int) -> NDArray[np.float64]:
    """Return the nodes awake under the published rule after each step from ``from_step`` on."""
    soon, later = (mean_within(demand, place, times * options.f_s)[from_step:] for times in (1, 2))
    busy, total = demand.busy[place, from_step:], demand.total[place, from_step:]
    return published_levels(busy, total, soon, later, published_values(options))


def published_options(options: CesOptions, nodes: float) -> CesOptions:
    """Return the published rule with the values that its authors used on a cluster of about so many nodes."""
    if nodes >= LARGE:
        return replace(options, rule="published", sigma=20.0, h_s=1_200, f_s=18_000, xi_h=0.1, xi_p=0.0, hold_s=6_000)
    return replace(options, rule="published", sigma=5.0, h_s=3_600, f_s=10_800, xi_h=1.0, xi_p=1.0, hold_s=7_200)


def known_of(demand: Demand, place: int, options: CesOptions) -> Known:
    """Return what was known of one pool."""
    return Known(
        busy=demand.busy[place],
        total=demand.total[place],
        most=demand.most[place],
        ahead_s=demand.ahead_s,
        levels=demand.levels,
        ended_s=demand.ended_s,
        yardstick=_yardstick(demand, place, options),
    )


def _yardstick(demand: Demand, place: int, options: CesOptions) -> NDArray[np.float64]:
    """Return 1 where the published rule wakes nodes; it begins with the first midnight of which there are forecasts."""
    woke = np.zeros(demand.busy.shape[1])
    forecast = np.flatnonzero(~np.isnan(demand.mean[place, :, 0]))
    if options.wake_ups_per_day is None and len(forecast):
        into_day = (demand.ended_s // STEP_S - (demand.busy.shape[1] - 1 - forecast)) % DAY
        if (midnights := forecast[into_day == 0]).size:
            rule = published_options(options, float(demand.total[place].max()))
            levels = published_of(demand, place, rule, from_step=int(midnights[0]))
            woke[midnights[0] + 1 :] = np.diff(levels) > 0
    return woke


def goal_of(options: CesOptions) -> Goal:
    """Return what Helios' settings are picked for."""
    return Goal(
        risk=options.risk,
        wake_ups_per_day=options.wake_ups_per_day,
        worth=options.worth,
        spare=float(options.spare),
        weeks=options.weeks,
    )


def published_values(options: CesOptions) -> Published:
    """Return the values of the published rule."""
    return Published(
        recent_steps=options.h_s // STEP_S,
        xi_h=options.xi_h,
        xi_p=options.xi_p,
        reserve=options.sigma,
        least=1.0,
        hold_steps=options.hold_s // STEP_S,
    )


def mean_within(demand: Demand, place: int, within_s: float) -> NDArray[np.float64]:
    """Return the busy nodes expected on average over the next ``within_s``, between the horizons by interpolation."""
    # Of an average over time the sum runs on in a straight line, as far as one knows.
    ahead_s, sums = (0, *demand.ahead_s), np.zeros((demand.mean.shape[1], len(demand.ahead_s) + 1))
    sums[:, 1:] = demand.mean[place] * np.array(demand.ahead_s)
    for number, (before_s, after_s) in enumerate(pairwise(ahead_s)):
        if within_s <= after_s:
            share = (within_s - before_s) / (after_s - before_s)
            reached: NDArray[np.float64] = sums[:, number] + share * (sums[:, number + 1] - sums[:, number])
            return reached / within_s
    return demand.mean[place, :, -1]


def most_within(demand: Demand, place: int, *, hours: int = 6, level: float = 0.9) -> float | None:
    """Return the last quantile of the most nodes needed within some hours; None: nobody forecast it."""
    if hours * 3_600 not in demand.ahead_s or level not in demand.levels or not demand.busy.shape[1]:
        return None
    most = demand.most[place, -1, demand.ahead_s.index(hours * 3_600), demand.levels.index(level)]
    return None if np.isnan(most) else float(most)
