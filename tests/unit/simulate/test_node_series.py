"""A count of powered nodes over a series of demand: against a plain loop, and the optimum against every other way."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helios.simulate.node_series import SeriesRun, fewest_levels, idle_timer_levels, oracle_levels, replay_levels
from tests.examples import examples

MINUTE = 60
TOTAL = 12

series = st.lists(st.integers(0, TOTAL), min_size=1, max_size=50)


def replayed(
    busy: list[float], levels: list[float], *, total: list[float] | None = None, **options: object
) -> SeriesRun:
    how = {"step_s": MINUTE, "decide_every": 1, "boot_s": 120.0, "shutdown_s": 60.0} | options
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


def by_hand(
    busy: list[int], levels: list[int], *, every: int, boot: int, shutdown: int, between: bool
) -> dict[str, float]:
    """Follow each node for itself."""
    nodes = Nodes()
    told = dict.fromkeys(("busy", "idle", "asleep", "falling", "waking", "short", "woken", "wakes", "sleeps"), 0)
    woke = slept = False
    for step, (need, level) in enumerate(zip(busy, levels, strict=True)):
        nodes.a_step_later()
        decided, ready = 0, nodes.count("awake", "waking")
        if level > ready:
            decided = nodes.cycle(level - ready, "asleep", "waking", boot)
        elif step % every == 0 or between:
            slept |= nodes.cycle(min(ready - level, nodes.count("awake") - need), "awake", "falling", shutdown) > 0
        woke |= decided > 0
        if step % every == 0:
            told["wakes"], told["sleeps"], woke, slept = told["wakes"] + woke, told["sleeps"] + slept, False, False
        at_once = nodes.cycle(need - nodes.count("awake", "waking"), "asleep", "waking", boot)
        woke |= at_once > 0
        told["woken"] += decided + at_once
        told["busy"] += min(need, nodes.count("awake"))
        told["short"] += max(need - nodes.count("awake"), 0)
        told["idle"] += max(nodes.count("awake") - need, 0)
        for state in ("asleep", "falling", "waking"):
            told[state] += nodes.count(state)
    told["wakes"], told["sleeps"] = told["wakes"] + woke, told["sleeps"] + slept
    return told


@settings(max_examples=examples(60))
@given(
    both=st.lists(st.tuples(st.integers(0, TOTAL), st.integers(0, TOTAL)), min_size=1, max_size=50),
    every=st.integers(1, 5),
    boot=st.integers(0, 4),
    shutdown=st.integers(0, 3),
    between=st.booleans(),
)
def test_it_is_what_following_each_node_gives(
    both: list[tuple[int, int]], every: int, boot: int, shutdown: int, between: bool
) -> None:
    busy, levels = ([pair[place] for pair in both] for place in (0, 1))
    expected = by_hand(busy, levels, every=every, boot=boot, shutdown=shutdown, between=between)
    run = replayed(
        busy,
        levels,
        decide_every=every,
        boot_s=boot * MINUTE,
        shutdown_s=shutdown * MINUTE,
        may_sleep_between=between,
    )
    found = {
        "busy": run.seconds.busy / MINUTE,
        "idle": run.seconds.idle / MINUTE,
        "asleep": run.seconds.asleep / MINUTE,
        "falling": run.seconds.falling_asleep / MINUTE,
        "waking": run.seconds.waking / MINUTE,
        "short": run.short_s / MINUTE,
        "woken": run.woken,
        "wakes": run.wakes,
        "sleeps": run.sleeps,
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
    assert (run.shortages, run.short_s, run.wakes, run.woken) == (1, 3 * 2 * MINUTE, 1, 3)


def test_waking_ahead_there_is_no_shortage() -> None:
    assert replayed([4, 4, 4, 7, 7, 7, 7], [4, 7, 7, 7, 7, 7, 7], boot_s=120.0).shortages == 0


def test_a_wake_of_the_cluster_and_the_decision_that_follows_are_one() -> None:
    busy = [4.0] * 10 + [4, 4, 6] + [6.0] * 17
    levels = [4.0] * 20 + [9.0] * 10
    assert replayed(busy, levels, decide_every=10).wakes == 1


def test_a_node_that_falls_asleep_cannot_be_called_back() -> None:
    run = replayed([4, 4, 12, 12, 12, 12], [12, 4, 12, 12, 12, 12], boot_s=0.0, shutdown_s=180.0)
    assert run.short_s == 8 * 2 * MINUTE


def test_nodes_that_break_and_return_are_neither_a_sleep_nor_a_wake() -> None:
    run = replayed([3.0] * 5, [float("inf")] * 5, total=[12.0, 5.0, 5.0, 12.0, 12.0])
    assert (run.wakes, run.sleeps, run.mean_asleep) == (0, 0, 0.0)


def test_only_what_comes_after_the_run_in_counts() -> None:
    run = replayed([4, 9, 4, 4], [4, 4, 4, 4], count_from=2)
    assert (run.wakes, run.shortages) == (0, 0)
    assert run.utilization_before == 4 / TOTAL


@given(busy=series, steps=st.integers(0, 12))
def test_a_timer_leaves_awake_what_was_needed_within_its_time(busy: list[int], steps: int) -> None:
    levels = idle_timer_levels(np.array(busy, dtype=np.float64), steps=steps)
    assert levels.tolist() == [max(busy[max(0, place - steps) : place + 1]) for place in range(len(busy))]


# What knows the future.


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


def wakes(levels: NDArray[np.float64]) -> int:
    return int((np.diff(levels) > 0).sum())


@settings(max_examples=examples(20), deadline=None)
@given(needed=st.lists(st.integers(0, 3), min_size=1, max_size=7), most=st.integers(0, 3))
def test_no_other_plan_needs_fewer_nodes_without_more_wakes(needed: list[int], most: int) -> None:
    need = np.array(needed, dtype=np.float64)
    found = fewest_levels(need, most_wakes=most)
    others = (np.array(way, dtype=np.float64) for way in product(range(4), repeat=len(needed)))
    best = min(way.sum() for way in others if (way >= need).all() and wakes(way) <= wakes(found))
    assert (found >= need).all()
    assert wakes(found) <= most
    assert found.sum() == best


def test_the_optimum_sleeps_in_a_valley_only_if_it_may_wake() -> None:
    valley = np.array([5.0, 5, 1, 1, 1, 5, 2, 2])
    assert fewest_levels(valley, most_wakes=0).tolist() == [5, 5, 5, 5, 5, 5, 2, 2]
    assert fewest_levels(valley, most_wakes=1).tolist() == [5, 5, 1, 1, 1, 5, 2, 2]
