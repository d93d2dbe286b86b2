"""Choosing a rule a day: from the past alone, on whole weeks, never worse there than the published rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helios.services.energy_saving.sizing import (
    DAY,
    PUBLISHED,
    TIMERS,
    WEEK,
    Choice,
    KnownDemand,
    PublishedRule,
    SizingParameters,
    candidate_rules,
    choose_rule,
    levels_of,
    plain_rule,
    plan_sizing,
    published_rule,
)
from helios.services.energy_saving.sizing import SizingOptions as Goal

GOAL = Goal(risk=None, wake_ups_per_day=None, penalty=100.0, spare=1.0, weeks=4)
MIDNIGHT_S = 19_723 * 86_400


def a_working_day(days: int, *, seed: int = 1) -> NDArray[np.float64]:
    """Return busy nodes that rise by day and fall by night, with noise."""
    hour = np.arange(days * DAY) % DAY / DAY
    wave = 20 + 10 * np.sin(2 * np.pi * hour) + np.random.default_rng(seed).integers(0, 3, size=days * DAY)
    return np.asarray(np.floor(wave), dtype=np.float64)


def known(busy: NDArray[np.float64], *, total: float = 50.0, ended_s: int = MIDNIGHT_S, **more: Any) -> KnownDemand:
    """Return what was known where the forecast is a small fall from now on."""
    most = np.repeat(np.repeat(busy[:, None, None], 2, axis=1), 3, axis=2)
    return replace(
        KnownDemand(
            busy=busy,
            total=np.full(len(busy), total),
            most=most,
            soon=busy - 2,
            later=busy - 3,
            ahead_s=(3_600, 21_600),
            levels=(0.5, 0.9, 0.99),
            ended_s=ended_s,
            published=PublishedRule(6, 1.0, 1.0, 5.0, 12),
        ),
        **more,
    )


def scores(choice: Choice) -> dict[str, tuple[float, float, float]]:
    return {of.rule: (of.asleep, of.wake_ups_per_day, of.node_hours_short) for of in choice.hindsight}


def test_with_few_weeks_the_published_rule_is_used_and_that_is_said() -> None:
    choice = choose_rule(known(a_working_day(14)), GOAL)
    assert choice.rule == published_rule(known(a_working_day(14)))
    assert "forecasts of 2 whole weeks" in choice.reason


def test_without_forecasts_nothing_sleeps() -> None:
    blind = np.full(30 * DAY, np.nan)
    past = known(np.full(30 * DAY, 10.0), soon=blind, later=blind)
    assert (plan_sizing(past, GOAL, from_step=0).levels >= 15).all()


def test_the_family_has_the_published_rule_the_timers_and_the_plain_rule() -> None:
    rules = {rule.name: rule for rule in candidate_rules(known(a_working_day(7)), spare=2.0)}
    assert next(iter(rules)) == PUBLISHED
    assert set(TIMERS) < set(rules)
    assert rules[plain_rule().name] == plain_rule()
    assert len(rules) > 100


def test_a_timer_of_the_family_is_the_most_of_its_time() -> None:
    past = known(a_working_day(2))
    timer = next(rule for rule in candidate_rules(past, 0.0) if rule.name == "idle timer of 30 min")
    levels = levels_of(past, timer.setting, from_step=0)
    most = [past.busy[max(at - 3, 0) : at + 1].max() for at in range(len(past.busy))]
    assert levels[5:].tolist() == most[5:]


def test_the_plain_rule_wakes_only_when_short() -> None:
    levels = levels_of(known(np.array([10.0, 12, 14, 15, 16, 17])), plain_rule().setting, from_step=0)
    assert levels.tolist() == [15, 15, 15, 15, 21, 21]


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_no_worse_than_the_published_rule_in_any_week_it_was_chosen_on(seed: int) -> None:
    past = known(a_working_day(28, seed=seed))
    choice = choose_rule(past, GOAL)
    assert choice.rule is not None
    ours = choice.hindsight[0]
    published = next(of for of in choice.hindsight if of.rule == PUBLISHED)
    assert ours.asleep >= published.asleep
    assert ours.wake_ups_per_day <= published.wake_ups_per_day
    assert ours.node_hours_short <= published.node_hours_short


def test_where_none_is_as_good_in_every_week_the_published_rule_stays() -> None:
    calm = a_working_day(28)
    calm[3 * WEEK : 3 * WEEK + DAY] = 49.0
    choice = choose_rule(known(calm, soon=np.full(len(calm), -1.0), later=np.full(len(calm), -2.0)), GOAL)
    assert choice.rule is not None
    assert choice.rule.name == PUBLISHED or "no worse than the published rule" in choice.reason


def test_fewer_wake_ups_accepted_are_fewer_wake_ups() -> None:
    past = known(a_working_day(35))

    def wakes(per_day: float) -> int:
        levels = plan_sizing(past, replace(GOAL, wake_ups_per_day=per_day), from_step=28 * DAY).levels
        return int((np.diff(levels[28 * DAY :]) > 0).sum())

    assert wakes(0.2) < wakes(8.0)


def test_a_dearer_shortness_is_less_of_it() -> None:
    past = known(a_working_day(28))
    short = [
        choose_rule(past, replace(GOAL, wake_ups_per_day=20.0, penalty=penalty)).hindsight[0].node_hours_short
        for penalty in (0.0, 1_000.0)
    ]
    assert short[0] > short[1]


def test_where_no_rule_keeps_to_the_risk_nothing_sleeps() -> None:
    every_hour = np.where(np.arange(28 * DAY) % 6 == 0, 50.0, 2.0)
    choice = choose_rule(known(every_hour), replace(GOAL, risk=1e-6, wake_ups_per_day=0.001))
    assert choice.rule is None or scores(choice)[choice.rule.name][1] == 0


def test_nothing_before_now_depends_on_what_comes() -> None:
    busy = a_working_day(26)
    for cut in (23 * DAY, 23 * DAY + 77, 25 * DAY - 1):
        changed = busy.copy()
        changed[cut:] = 45.0
        before, after = (
            plan_sizing(known(values), GOAL, from_step=22 * DAY).levels[:cut] for values in (busy, changed)
        )
        assert before.tolist() == after.tolist()


def test_a_day_is_planned_with_one_rule_chosen_at_its_midnight() -> None:
    plan = plan_sizing(known(a_working_day(12), ended_s=MIDNIGHT_S + 7_200), GOAL, from_step=9 * DAY)
    starts = [first for first, _ in plan.choices]
    assert starts == [9 * DAY, *range(10 * DAY - 13, 12 * DAY, DAY)]


def test_a_longer_history_than_the_weeks_changes_nothing() -> None:
    busy = a_working_day(44)
    long, short = (plan_sizing(known(busy[-days * DAY :]), GOAL, from_step=days * DAY - DAY) for days in (44, 31))
    assert long.levels[-DAY:].tolist() == short.levels[-DAY:].tolist()


def test_one_step_later_the_day_keeps_its_rule() -> None:
    busy = a_working_day(27)
    memo: dict[bytes, Choice] = {}
    rules: list[SizingParameters | None] = []
    for more in range(1, 4):
        seen = known(busy[more : 26 * DAY + more], ended_s=MIDNIGHT_S + 600 * more)
        choice = plan_sizing(seen, replace(GOAL, weeks=3), from_step=25 * DAY, memo=memo).choices[-1][1]
        rules.append(choice.rule.setting if choice.rule else None)
    assert len(set(rules)) == 1
    assert len(memo) == 2


def test_a_plan_with_the_published_rule_is_the_published_rule() -> None:
    past = known(a_working_day(12))
    plan = plan_sizing(past, GOAL, from_step=9 * DAY)
    assert plan.levels[9 * DAY :].tolist() == levels_of(past, published_rule(past).setting, from_step=9 * DAY).tolist()
