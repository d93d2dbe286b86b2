"""Rules for tasks with targets are compared on the same tasks, beside an oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from helios.targets import Target
from helios.training.model import Device
from helios.training.services.targets import TargetOptions, Targets
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.target_rules import EQUAL, FIRST_COME, GROWTH, ORACLE, TargetComparison, compare_target_rules

CPU = Device(name="cpu:0", kind="cpu", memory_mib=16_000.0, slots=8)
TARGET = Target(metric="acc", first=0.5, second=0.9)
LENGTHS = (4_000.0, 400.0, 2_000.0)
"""Alone the tasks need half of it to the first target, s."""


@pytest.fixture(scope="module")
def comparison() -> TargetComparison:
    return compare("abc")


def compare(names: Sequence[str]) -> TargetComparison:
    curve = tuple((part / 10, part / 10) for part in range(1, 11))
    trials = [
        SimulatedTrial(family=place, seconds=seconds, curve=curve, target=TARGET, sweep=name, ends_at_target=True)
        for place, (name, seconds) in enumerate(zip(names, LENGTHS, strict=True))
    ]
    profiles = PairProfiles(families=("a", "b", "c"), alone=np.ones(3), beside=np.full((3, 3), 0.5))
    rules = {"targets": Targets(TargetOptions()).decide}
    return compare_target_rules(trials, [CPU], profiles, rules=rules)


def test_tasks_that_come_first_are_served_first(comparison: TargetComparison) -> None:
    assert comparison.times_s(FIRST_COME, 0)[0] == pytest.approx(2_000.0, rel=0.05)
    assert comparison.times_s(FIRST_COME, 0)[1] == pytest.approx(3_600.0 + 200.0, rel=0.05)


def test_under_equal_share_the_shortest_needs_as_many_turns_as_tasks(comparison: TargetComparison) -> None:
    assert comparison.times_s(EQUAL, 0)[1] == pytest.approx(3 * 200.0, rel=0.1)


def test_an_oracle_serves_the_shortest_need_first(comparison: TargetComparison) -> None:
    first = comparison.times_s(ORACLE, 0)
    assert first[1] < first[2] < first[0]
    assert first.mean() == pytest.approx((200 + 1_200 + 3_200) / 3, rel=0.12)


def test_no_rule_does_better_than_the_oracle(comparison: TargetComparison) -> None:
    best = comparison.mean_s(ORACLE, 0)
    assert all(comparison.mean_s(rule, 0) >= best for rule in comparison.outcomes)
    assert comparison.share_of_gain(ORACLE) == 1.0
    assert comparison.share_of_gain(EQUAL) == 0.0


def test_who_gains_equally_has_equal_shares_by_growth(comparison: TargetComparison) -> None:
    assert comparison.mean_s(GROWTH, 0) == pytest.approx(comparison.mean_s(EQUAL, 0), rel=0.5)


def test_all_rules_do_all_work(comparison: TargetComparison) -> None:
    work = 0.9 * sum(LENGTHS)
    assert all(outcome.makespan_s >= work for outcome in comparison.outcomes.values())
    assert comparison.outcomes["targets"].makespan_s == pytest.approx(work, rel=0.02)


def test_trials_without_a_sweep_are_tasks_of_their_own(comparison: TargetComparison) -> None:
    unnamed = compare(["", "", ""])
    assert list(unnamed.times_s("targets", 0)) == list(comparison.times_s("targets", 0))
