"""A count of powered nodes over a series of demand, and the levels of rules: against plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.metrics.spare_nodes import AwakeRule, nodes_to_change
from helios.simulate.node_series import SeriesRun, idle_timer_levels, oracle_levels, replay_levels, rule_levels
from tests.examples import examples

MINUTE = 60
TOTAL = 12

series = st.lists(st.integers(0, TOTAL), min_size=1, max_size=50)


def replayed(
    busy: list[float], levels: list[float], *, total: list[float] | None = None, **options: object
) -> SeriesRun:
    how = {"step_s": MINUTE, "boot_s": 120.0, "shutdown_s": 60.0} | options
    there = [float(TOTAL)] * len(busy) if total is None else total
    return replay_levels(*(np.array(values, dtype=np.float64) for values in (busy, there, levels)), **how)  # type: ignore[arg-type]


class Nodes:
    """Nodes one by one: what each does, and how long it still takes."""

    def __init__(self) -> None:
        self.each = [("awake", 0)] * TOTAL

    def a_step_later(self) -> None:
        arrived = {"waking": "awake", "falling": "asleep"}
        self.each = [(arrived.get(state, state), 0) if left <= 1 else (state, left - 1) for state, left in self.each]

    def count(self, *states: str) -> int:
        return sum(state in states for state, _ in self.each)

    def cycle(self, number: int, before: str, on_the_way: str, steps: int) -> int:
        """Send up to ``number`` nodes on their way; without any way they arrive at once."""
        after = (on_the_way, steps) if steps else ("awake" if on_the_way == "waking" else "asleep", 0)
        places = [place for place, (state, _) in enumerate(self.each) if state == before][: max(number, 0)]
        for place in places:
            self.each[place] = after
        return len(places)


def by_hand(busy: list[int], levels: list[int], *, boot: int, shutdown: int) -> dict[str, float]:
    """Follow each node for itself."""
    nodes = Nodes()
    told = dict.fromkeys(("busy", "idle", "asleep", "falling", "waking", "short", "woken"), 0)
    for need, level in zip(busy, levels, strict=True):
        nodes.a_step_later()
        decided, ready = 0, nodes.count("awake", "waking")
        if level > ready:
            decided = nodes.cycle(level - ready, "asleep", "waking", boot)
        else:
            nodes.cycle(min(ready - level, nodes.count("awake") - need), "awake", "falling", shutdown)
        at_once = nodes.cycle(need - nodes.count("awake", "waking"), "asleep", "waking", boot)
        told["woken"] += decided + at_once
        told["busy"] += min(need, nodes.count("awake"))
        told["short"] += max(need - nodes.count("awake"), 0)
        told["idle"] += max(nodes.count("awake") - need, 0)
        for state in ("asleep", "falling", "waking"):
            told[state] += nodes.count(state)
    return told


@settings(max_examples=examples(60))
@given(
    both=st.lists(st.tuples(st.integers(0, TOTAL), st.integers(0, TOTAL)), min_size=1, max_size=50),
    boot=st.integers(0, 4),
    shutdown=st.integers(0, 3),
)
def test_it_is_what_following_each_node_gives(both: list[tuple[int, int]], boot: int, shutdown: int) -> None:
    busy, levels = ([pair[place] for pair in both] for place in (0, 1))
    expected = by_hand(busy, levels, boot=boot, shutdown=shutdown)
    run = replayed(busy, levels, boot_s=boot * MINUTE, shutdown_s=shutdown * MINUTE)
    found = {
        "busy": run.seconds.busy / MINUTE,
        "idle": run.seconds.idle / MINUTE,
        "asleep": run.seconds.asleep / MINUTE,
        "falling": run.seconds.falling_asleep / MINUTE,
        "waking": run.seconds.waking / MINUTE,
        "short": run.short_s / MINUTE,
        "woken": run.woken,
    }
    assert found == expected


@given(busy=series, levels=series, steps=st.integers(0, 20))
def test_every_node_is_somewhere_all_the_time(busy: list[int], levels: list[int], steps: int) -> None:
    levels = (levels * len(busy))[: len(busy)]
    count_from = min(steps, len(busy) - 1)
    run = replayed(busy, levels, count_from=count_from)
    seconds = run.seconds
    assert seconds.powered + seconds.asleep == pytest.approx(TOTAL * MINUTE * (len(busy) - count_from))


def test_a_shortage_lasts_as_long_as_the_boot() -> None:
    run = replayed([4, 4, 4, 7, 7, 7, 7], [4] * 7, boot_s=120.0)
    assert (run.short_s, run.woken) == (3 * 2 * MINUTE, 3)


def test_waking_ahead_there_is_no_shortage() -> None:
    assert replayed([4, 4, 4, 7, 7, 7, 7], [4, 7, 7, 7, 7, 7, 7], boot_s=120.0).short_s == 0


def test_a_node_that_falls_asleep_cannot_be_called_back() -> None:
    run = replayed([4, 4, 12, 12, 12, 12], [12, 4, 12, 12, 12, 12], boot_s=0.0, shutdown_s=180.0)
    assert run.short_s == 8 * 2 * MINUTE


def test_nodes_that_break_and_return_are_neither_a_sleep_nor_a_wake() -> None:
    run = replayed([3.0] * 5, [float("inf")] * 5, total=[12.0, 5.0, 5.0, 12.0, 12.0])
    assert (run.woken, run.mean_asleep) == (0, 0.0)


def test_only_what_comes_after_the_run_in_counts() -> None:
    run = replayed([4, 9, 4, 4], [4, 4, 4, 4], count_from=2)
    assert (run.woken, run.short_s) == (0, 0)
    assert run.utilization_before == 4 / TOTAL


@given(busy=series, steps=st.integers(0, 12))
def test_a_timer_leaves_awake_what_was_needed_within_its_time(busy: list[int], steps: int) -> None:
    levels = idle_timer_levels(np.array(busy, dtype=np.float64), steps=steps)
    assert levels.tolist() == [max(busy[max(0, place - steps) : place + 1]) for place in range(len(busy))]


def rule_by_hand(busy: list[int], rule: AwakeRule) -> list[float]:
    """Follow a rule that is checked each minute."""
    powered, levels = TOTAL, []
    for minute, need in enumerate(busy):
        levels.append(powered)
        short, powered = need > powered, max(powered, need)
        peak = max(busy[max(minute + 1 - max(rule.memory_s // MINUTE, 1), 0) : minute + 1])
        change = nodes_to_change(need, peak, rule.spare, powered, TOTAL)
        if not rule.counts_use:
            change = min(max(rule.spare, need), TOTAL) - powered
        if rule.wakes == "never" or (rule.wakes == "short" and not short):
            change = min(change, 0)
        lately = max(busy[max(minute - rule.least_idle_s // MINUTE, 0) : minute + 1])
        powered = max(powered + change, min(powered, lately))
    return levels


@settings(max_examples=examples(60))
@given(
    busy=series,
    rule=st.builds(
        AwakeRule,
        memory_s=st.sampled_from([0, 60, 300]),
        spare=st.integers(0, TOTAL),
        wakes=st.sampled_from(["ahead", "short", "never"]),
        least_idle_s=st.sampled_from([0, 180]),
        counts_use=st.booleans(),
    ),
)
def test_levels_of_a_rule_are_those_of_its_words(busy: list[int], rule: AwakeRule) -> None:
    there = np.full(len(busy), float(TOTAL))
    assert rule_levels(np.array(busy, dtype=np.float64), there, rule, step_s=MINUTE).tolist() == rule_by_hand(
        busy, rule
    )


def test_a_rule_that_is_checked_seldom_changes_nothing_in_between() -> None:
    rule = AwakeRule(memory_s=600, spare=1, every_s=600)
    levels = rule_levels(np.full(25, 3.0), np.full(25, 12.0), rule, step_s=MINUTE)
    assert levels.tolist() == [12.0] * 10 + [4.0] * 15


@given(busy=series, boot=st.integers(0, 4), least=st.integers(0, 8))
def test_the_oracle_sleeps_through_every_idle_time_that_is_long_enough(busy: list[int], boot: int, least: int) -> None:
    awake = np.zeros(len(busy))
    for node in range(1, TOTAL + 1):
        needed = [place for place, count in enumerate(busy) if count >= node]
        kept = set(needed)
        for before, after in pairwise([*needed, len(busy)]):
            if after - before - 1 <= least:
                kept |= set(range(before, after))
        awake += [any(place in kept for place in range(at, at + boot + 1)) for at in range(len(busy))]
    found = oracle_levels(np.array(busy, dtype=np.float64), boot_steps=boot, least_steps=least)
    assert found.tolist() == awake.tolist()
