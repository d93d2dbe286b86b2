"""Picking a setting a day: from the past alone, on whole days, the best of those that keep to the goal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from helios.services.energy_saving import tuning
from helios.services.energy_saving.sizing import SizingParameters, score_levels
from helios.services.energy_saving.tuning import DAY, Goal, KnownDemand, grid_for, lower_bounds, plan_sizing, tune

GOAL = Goal(risk=0.01, wake_ups_per_day=1.0, worth=0.1, spare=1.0, weeks=1)
MIDNIGHT_S = 19_723 * 86_400


def a_working_day(days: int, *, seed: int = 1) -> NDArray[np.float64]:
    """Return busy nodes that rise by day and fall by night, with noise."""
    hour = np.arange(days * DAY) % DAY / DAY
    wave = 20 + 10 * np.sin(2 * np.pi * hour) + np.random.default_rng(seed).integers(0, 3, size=days * DAY)
    return np.asarray(np.floor(wave), dtype=np.float64)


def known(busy: NDArray[np.float64], *, total: float = 50.0, ended_s: int = MIDNIGHT_S) -> KnownDemand:
    """Return what was known where the forecast is that all stays as it is."""
    most = np.repeat(np.repeat(busy[:, None, None], 2, axis=1), 3, axis=2)
    return KnownDemand(
        busy=busy,
        total=np.full(len(busy), total),
        most=most,
        ahead_s=(3_600, 21_600),
        levels=(0.5, 0.9, 0.99),
        ended_s=ended_s,
        yardstick=np.zeros(len(busy)),
    )


def test_less_than_a_week_is_too_little() -> None:
    assert tune(known(a_working_day(6)), GOAL) is None
    assert (plan_sizing(known(a_working_day(7)), GOAL).levels == 50).all()


def test_the_setting_is_the_best_of_the_grid_that_keeps_to_the_risk() -> None:
    past = known(a_working_day(7))
    setting = tune(past, replace(GOAL, wake_ups_per_day=4.0))
    grid = grid_for(n_floors=len(lower_bounds(past)), total=50.0, spare=1.0)
    score = score_levels(past.busy, past.total, lower_bounds(past), grid)
    value = np.log(score.asleep + 1e-9) - 0.1 * np.log(score.wakes + 0.5)
    within = (score.short <= 0.01 * len(past.busy)) & (score.wakes <= tuning.MARGIN_OF_TUNING * 4 * 7)
    (chosen,) = np.flatnonzero((grid == np.array(setting)).all(axis=1))
    assert within[chosen]
    assert value[chosen] == value[within].max()


def test_fewer_wake_ups_wanted_are_fewer_wake_ups() -> None:
    past = known(a_working_day(21))

    def wakes(per_day: float) -> int:
        levels = plan_sizing(past, replace(GOAL, wake_ups_per_day=per_day, weeks=2), from_step=14 * DAY).levels
        return int((np.diff(levels[14 * DAY :]) > 0).sum())

    assert wakes(0.2) < wakes(4.0)


def test_where_no_setting_keeps_to_the_risk_nothing_sleeps() -> None:
    every_hour = np.where(np.arange(8 * DAY) % 6 == 0, 50.0, 2.0)
    assert tune(known(every_hour), replace(GOAL, risk=1e-6, wake_ups_per_day=0.01)) is None


def test_the_measure_of_wake_ups_is_the_published_rule_within_bounds() -> None:
    past = known(a_working_day(7))
    often = replace(past, yardstick=(np.arange(len(past.busy)) % 10 == 0).astype(np.float64))
    goal = replace(GOAL, wake_ups_per_day=None)
    assert tune(past, goal) == tune(past, replace(goal, wake_ups_per_day=tuning.YARDSTICK[0]))
    assert tune(often, goal) == tune(often, replace(goal, wake_ups_per_day=tuning.YARDSTICK[1]))


def test_nothing_before_now_depends_on_what_comes() -> None:
    busy = a_working_day(12)
    for cut in (9 * DAY, 9 * DAY + 77, 11 * DAY - 1):
        changed = busy.copy()
        changed[cut:] = 45.0
        before, after = (plan_sizing(known(values), GOAL, from_step=7 * DAY).levels[:cut] for values in (busy, changed))
        assert before.tolist() == after.tolist()


def test_a_day_is_planned_with_one_setting_picked_at_its_midnight() -> None:
    plan = plan_sizing(known(a_working_day(12), ended_s=MIDNIGHT_S + 7_200), GOAL, from_step=9 * DAY)
    starts = [first for first, _ in plan.settings]
    assert starts == [9 * DAY, *range(10 * DAY - 13, 12 * DAY, DAY)]


def test_a_longer_history_than_the_weeks_changes_nothing() -> None:
    busy = a_working_day(30)
    long, short = (plan_sizing(known(busy[-days * DAY :]), GOAL, from_step=days * DAY - DAY) for days in (30, 12))
    assert long.levels[-DAY:].tolist() == short.levels[-DAY:].tolist()


@pytest.mark.parametrize("weeks", [1, 3])
def test_one_step_later_the_day_keeps_its_setting(weeks: int) -> None:
    busy = a_working_day(13)
    memo: dict[bytes, SizingParameters | None] = {}
    settings = []
    for more in range(1, 4):
        seen = known(busy[more : 12 * DAY + more], ended_s=MIDNIGHT_S + 600 * more)
        settings.append(plan_sizing(seen, replace(GOAL, weeks=weeks), from_step=11 * DAY, memo=memo).setting)
    assert len(set(settings)) == 1
    assert len(memo) == 2


def test_where_nothing_was_forecast_the_past_stands_in() -> None:
    past = known(a_working_day(2))
    blind = replace(past, most=np.full_like(past.most, np.nan))
    floors = lower_bounds(blind)
    assert not np.isnan(floors).any()
    assert (floors >= past.busy).all()
