"""The rule on arrays: against a plain loop, never from the future, and with the controls it is held against."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helios.services.energy_saving.sizing import (
    PublishedRule,
    SizingParameters,
    SizingScore,
    highest_of_last,
    published_floor,
    score_levels,
    walk_levels,
)
from tests.examples import examples

TOTAL = 20.0

demands = st.lists(st.integers(0, 20), min_size=2, max_size=60).map(lambda values: np.array(values, dtype=np.float64))
rules = st.builds(
    SizingParameters,
    floor=st.just(0),
    down=st.integers(0, 4).map(float),
    up=st.integers(0, 8).map(float),
    band=st.integers(1, 5).map(float),
    hold_steps=st.integers(0, 9),
    margin=st.integers(0, 3).map(float),
)


def run(
    busy: NDArray[np.float64], setting: SizingParameters, *, floor: NDArray[np.float64] | None = None
) -> list[float]:
    levels = np.zeros(len(busy))
    walk_levels(busy, np.full(len(busy), TOTAL), busy if floor is None else floor, setting, TOTAL, 0, 0, levels)
    return levels.tolist()


def by_hand(busy: NDArray[np.float64], rule: SizingParameters) -> tuple[list[float], int, int, float]:
    """Return levels, wakes, steps short and nodes missing, written down as one would say it."""
    powered, may_sleep_at, levels, wakes, short, missing = TOTAL, 0, [], 0, 0, 0.0
    for step, need in enumerate(busy.tolist()):
        short += need > powered
        missing += max(need - powered, 0)
        if need + rule.margin > powered and powered < TOTAL:
            before, powered = powered, max(powered, min(TOTAL, need + rule.up))
            wakes += powered > before
            may_sleep_at = step + rule.hold_steps
        elif step >= may_sleep_at:
            wanted = max(need + rule.down, need + rule.margin)
            if powered - wanted >= rule.band:
                powered = wanted
        levels.append(powered)
    return levels, wakes, short, missing


def scored(
    busy: NDArray[np.float64], total: NDArray[np.float64], rule: SizingParameters, *, weeks: int = 1
) -> SizingScore:
    grid = np.array([rule], dtype=np.float64)
    return score_levels(busy, total, busy[None], grid, powered=TOTAL, week_steps=len(busy) // weeks)


@settings(max_examples=examples(50))
@given(busy=demands, rule=rules)
def test_it_does_what_a_plain_loop_does(busy: NDArray[np.float64], rule: SizingParameters) -> None:
    assert run(busy, rule) == by_hand(busy, rule)[0]


@settings(max_examples=examples(25))
@given(busy=demands, rule=rules)
def test_a_score_counts_what_a_plain_loop_counts(busy: NDArray[np.float64], rule: SizingParameters) -> None:
    levels, wakes, short, missing = by_hand(busy, rule)
    score = scored(busy, np.full(len(busy), TOTAL), rule)
    assert (score.wakes[0, 0], score.short[0, 0], score.missing[0, 0]) == (wakes, short, missing)
    assert score.asleep[0, 0] == sum(TOTAL - level for level in levels)


@settings(max_examples=examples(30))
@given(busy=demands, rule=rules)
def test_the_weeks_of_a_score_add_up_to_one_run(busy: NDArray[np.float64], rule: SizingParameters) -> None:
    twice = np.concatenate([busy, busy])
    total = np.full(len(twice), TOTAL)
    weekly, whole = scored(twice, total, rule, weeks=2), scored(twice, total, rule)
    assert [values.sum() for values in weekly] == [values.sum() for values in whole]


@settings(max_examples=examples(20))
@given(busy=demands, rule=rules, data=st.data())
def test_no_level_depends_on_a_later_step(
    busy: NDArray[np.float64], rule: SizingParameters, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(busy)))
    changed = busy.copy()
    changed[cut:] = data.draw(st.lists(st.integers(0, 20), min_size=len(busy) - cut, max_size=len(busy) - cut))
    assert run(busy, rule)[:cut] == run(changed, rule)[:cut]


def test_after_a_shortage_it_wakes_more_than_is_needed_and_holds() -> None:
    rule = SizingParameters(0, 1.0, 5.0, 1.0, 3, 0.0)
    assert run(np.array([4.0, 4, 9, 4, 4, 4, 4]), rule) == [5, 5, 14, 14, 14, 5, 5]


def test_fewer_nodes_than_the_band_are_left_awake() -> None:
    rule = SizingParameters(0, 0.0, 1.0, 4.0, 0, 0.0)
    assert run(np.array([10.0, 7, 6, 6]), rule) == [10, 10, 6, 6]


def test_some_wake_before_the_last_idle_node_is_taken() -> None:
    rule = SizingParameters(0, 3.0, 6.0, 1.0, 2, 2.0)
    assert run(np.array([4.0, 6.0, 6.0]), rule) == [7, 12, 12]


def test_nodes_that_return_to_service_are_no_wake() -> None:
    busy, total = np.full(4, 5.0), np.array([20.0, 6, 6, 20])
    assert scored(busy, total, SizingParameters(0, 2.0, 4.0, 1.0, 0, 0.0)).wakes.sum() == 0


@given(busy=demands, steps=st.integers(1, 10))
def test_the_highest_of_the_last_steps(busy: NDArray[np.float64], steps: int) -> None:
    expected = [busy[max(0, place - steps + 1) : place + 1].max() for place in range(len(busy))]
    assert highest_of_last(busy, steps).tolist() == expected


# The published rule.


def published(busy: list[float], *, soon: list[float], later: list[float], **values: float) -> list[float]:
    rule = {"recent_steps": 1, "xi_h": 1.0, "xi_p": 1.0, "reserve": 2.0, "hold_steps": 2} | values
    of = PublishedRule(int(rule["recent_steps"]), rule["xi_h"], rule["xi_p"], rule["reserve"], int(rule["hold_steps"]))
    needed, low, lower, total = (
        np.array(values, dtype=np.float64) for values in (busy, soon, later, [TOTAL] * len(busy))
    )
    levels = np.zeros(len(needed))
    floor = published_floor(needed, low, lower, of)
    walk_levels(needed, total, floor, of.setting(0), min(busy[0] + of.reserve, TOTAL), 0, 0, levels)
    return levels.tolist()


def as_its_authors_wrote_it(busy: list[float], soon: list[float], later: list[float], of: PublishedRule) -> list[float]:
    """Return the levels of the released script, but for what it could not know."""
    powered, held_until, levels = min(busy[0] + of.reserve, TOTAL), 0, []
    for t, need in enumerate(busy):
        if need > powered:
            powered, held_until = min(TOTAL, need + of.reserve), t + of.hold_steps
        elif t >= max(held_until, of.recent_steps):
            recent = np.mean(busy[t - of.recent_steps : t]) - need
            falls = recent >= of.xi_h and need - soon[t] >= of.xi_p and not soon[t] < later[t]
            if falls and powered - (need + of.reserve) >= 1:
                powered = need + of.reserve
        levels.append(powered)
    return levels


@settings(max_examples=examples(50))
@given(busy=demands, data=st.data())
def test_the_published_rule_is_one_setting_of_the_kernel(busy: NDArray[np.float64], data: st.DataObject) -> None:
    forecast = st.lists(st.integers(0, 20), min_size=len(busy), max_size=len(busy))
    soon, later = data.draw(forecast), data.draw(forecast)
    of = PublishedRule(1, 1.0, 1.0, 2.0, data.draw(st.integers(0, 4)))
    found = published(busy.tolist(), soon=soon, later=later, hold_steps=of.hold_steps)
    assert found == as_its_authors_wrote_it(busy.tolist(), soon, later, of)


def test_the_published_rule_sleeps_when_use_fell_and_is_expected_to_fall_on() -> None:
    assert published([10, 8, 8], soon=[5, 5, 5], later=[5, 5, 5]) == [12, 10, 10]


@pytest.mark.parametrize(
    ("soon", "later"), [([8, 8, 8], [8, 8, 8]), ([5, 5, 5], [6, 6, 6]), ([np.nan] * 3, [np.nan] * 3)]
)
def test_the_published_rule_waits_where_no_fall_or_a_later_rise_is_expected(
    soon: list[float], later: list[float]
) -> None:
    assert published([10, 8, 8], soon=soon, later=later) == [12, 12, 12]


def test_the_published_rule_holds_off_after_a_wake() -> None:
    low = [0.0] * 6
    assert published([4, 9, 8, 7, 6, 5], soon=low, later=low) == [6, 11, 11, 9, 8, 7]
