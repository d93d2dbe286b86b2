"""A simulated pool says when trials reach their targets."""

from __future__ import annotations

import dataclasses

import pytest

from helios.training.model import Device, PoolSnapshot, ShareTrial
from helios.training.sharing_rules import share_fixed
from helios.training.simulated_trials import SimulatedTrial
from helios.training.simulator import SimulatedPool
from helios.training.target import Target
from tests.unit.training.test_simulator import FREE, GPU, profiles
from tests.unit.training.test_simulator_effects import once, start

TRIAL = SimulatedTrial(
    family=0,
    seconds=100.0,
    curve=((0.1, 0.2), (0.3, 0.8), (0.6, 0.9), (1.0, 0.85)),
    target=Target(metric="acc", first=0.7, second=0.9),
    sweep="a",
)
"""It reaches its targets after 30 and 60 s alone."""


def test_it_tells_when_each_target_was_reached() -> None:
    never = dataclasses.replace(TRIAL, sweep="b", target=Target(metric="acc", first=0.85, second=0.99))
    found = SimulatedPool([TRIAL, never], [GPU], profiles([[0.5]]), costs=FREE).run(share_fixed(2))
    assert found.reached_s[0] == pytest.approx((60.0, 120.0))
    assert found.reached_s[1] == pytest.approx((120.0, float("nan")), nan_ok=True)
    assert found.ended_s == pytest.approx((200.0, 200.0))


def test_a_rule_sees_what_its_sweep_has_reached() -> None:
    seen: list[PoolSnapshot] = []
    slow = dataclasses.replace(TRIAL, seconds=400.0)
    rule = once((0.0, start(0)), (0.0, start(1)), seen=seen)
    SimulatedPool([TRIAL, slow], [GPU], profiles([[0.5]]), costs=FREE).run(rule)
    assert all(
        [trial.targets_reached for trial in pool.trials] == [(pool.now_s >= 60) + (pool.now_s >= 120)] * 2
        for pool in seen
        if len(pool.trials) == 2 and pool.now_s not in {60.0, 120.0}
    )


def test_the_points_of_a_curve_are_reported_when_they_are_passed() -> None:
    seen: list[PoolSnapshot] = []
    SimulatedPool([TRIAL], [GPU], profiles([[0.5]]), costs=FREE).run(once((0.0, start(0)), seen=seen))
    points = {pool.now_s: [(point.step, point.value) for point in pool.trials[0].curve] for pool in seen}
    assert points[30.0] == [(10, 0.2), (30, 0.8)]
    assert [point.seconds for point in seen[-1].trials[0].curve] == pytest.approx([10.0, 30.0, 60.0])


def test_a_program_may_end_at_its_last_target() -> None:
    ends = dataclasses.replace(TRIAL, ends_at_target=True)
    found = SimulatedPool([ends], [GPU], profiles([[0.5]]), costs=FREE).run(share_fixed(1))
    assert found.ended_s == pytest.approx((60.0,))


def test_shares_of_several_places_run_as_many_at_a_time() -> None:
    cpu = Device(name="cpu:0", kind="cpu", memory_mib=16_000.0, places=2)
    trials = [SimulatedTrial(family=0, seconds=60.0)] * 3
    given = [
        (0.0, ShareTrial(number=number, share=share, reason="test")) for number, share in enumerate((0.5, 0.25, 0.25))
    ]
    starts = [(0.0, start(number, "cpu:0")) for number in range(3)]
    found = SimulatedPool(trials, [cpu], profiles([[1.0]]), costs=FREE).run(once(*starts, *given))
    # The first has a place for itself, and the others the second one by turns, until they have one each.
    assert found.ended_s == pytest.approx((60.0, 90.0, 90.0))


def test_a_speed_by_turns_is_that_alone_and_not_kept() -> None:
    seen: list[PoolSnapshot] = []
    trials = [SimulatedTrial(family=0, seconds=100.0)] * 2
    shares = [(0.0, ShareTrial(number=number, share=0.5, reason="test")) for number in (0, 1)]
    rule = once((0.0, start(0)), (0.0, start(1)), *shares, seen=seen)
    SimulatedPool(trials, [GPU], profiles([[0.9]]), costs=FREE).run(rule)
    shown = {trial.steps_per_s for pool in seen for trial in pool.trials if len(pool.trials) == 2}
    assert shown == {None, 1.0}
    assert not seen[-1].speeds
