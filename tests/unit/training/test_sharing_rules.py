"""Rules of sharing are compared with an oracle on the same trials."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.sharing_rules import compare_pool_rules, longest_first
from helios.training.simulated_trials import SimulatedTrial
from tests.examples import examples
from tests.unit.training.test_simulator import FREE, gpus, profiles


@given(
    seconds=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    count=st.integers(1, 3),
)
@settings(max_examples=examples(40), deadline=None)
def test_longest_first_alone_is_no_worse_than_four_thirds_of_the_best(seconds: list[int], count: int) -> None:
    """Graham's bound, against every assignment."""
    trials = [SimulatedTrial(family=0, seconds=float(length)) for length in seconds]
    found = compare_pool_rules(trials, gpus(count), profiles([[0.4]]), rules={}, planners={}, fixed=(2,), costs=FREE)
    best = min(_list_scheduled(order, count) for order in permutations(seconds))
    assert best - 1e-6 <= found.outcomes["oracle"].makespan_s <= (4 / 3 - 1 / (3 * count)) * best + 1e-6


def _list_scheduled(order: tuple[int, ...], count: int) -> float:
    free = [0.0] * count
    for length in order:
        free[free.index(min(free))] += length
    return max(free)


def test_a_comparison_is_json_and_shares_the_oracles_gain() -> None:
    trials = [SimulatedTrial(family=0, seconds=100.0)] * 4
    found = compare_pool_rules(
        trials, gpus(1), profiles([[0.9]]), rules={"first": longest_first}, planners={}, fixed=(2,), costs=FREE
    )
    assert found.outcomes["oracle"].makespan_s == pytest.approx(400.0 / 1.8)
    rules = found.to_json()["rules"]
    assert rules["fixed 2"]["share_of_oracle_gain"] == pytest.approx(1.0)
    assert rules["first"]["share_of_oracle_gain"] == pytest.approx(0.0)
    assert rules["fixed 2"]["unused_reserved"] is None
