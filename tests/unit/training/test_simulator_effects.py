"""A simulated pool has what a real one has: growing memory, loud starts, rare reports, stops, shares and sizes."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from helios.training.model import Device, PoolAction, PoolSnapshot, ShareTrial, StartTrial, StopTrial, TrialState
from helios.training.sharing_rules import share_fixed
from helios.training.simulated_trials import SimulatedTrial
from helios.training.simulator import Decide, SimulatedPool
from tests.unit.training.test_simulator import FREE, GPU, gpus, profiles

GROWS = SimulatedTrial(family=0, seconds=100.0, memory_mib=9_000.0, first_memory=0.2)


def start(number: int, *devices: str) -> StartTrial:
    return StartTrial(number=number, devices=devices or ("gpu:0",), memory_limit_mib=None, reason="test")


def once(*actions: tuple[float, PoolAction], seen: list[PoolSnapshot] | None = None) -> Decide:
    """Return a rule that takes each action at its time."""
    left = list(actions)

    def decide(pool: PoolSnapshot) -> list[PoolAction]:
        if seen is not None:
            seen.append(pool)
        due = [action for at_s, action in left if at_s <= pool.now_s]
        left[:] = [(at_s, action) for at_s, action in left if at_s > pool.now_s]
        return due

    return decide


def test_of_trials_that_outgrow_their_device_one_starts_again() -> None:
    # At half speed both have 8,000 MiB after 172 s. The other ends 14 s later; the killed one has lost all.
    found = SimulatedPool([GROWS, GROWS], [GPU], profiles([[0.5]]), costs=FREE).run(share_fixed(2))
    assert sorted(found.ended_s) == pytest.approx([186.11, 286.11], abs=0.01)
    assert (found.out_of_memory, found.starts) == (1, 3)


def test_the_faster_memory_grows_the_likelier_is_the_kill() -> None:
    slow = dataclasses.replace(GROWS, first_memory=0.8)
    kills: Counter[int] = Counter()
    for seed in range(40):
        seen: list[PoolSnapshot] = []

        def decide(pool: PoolSnapshot, seen: list[PoolSnapshot] = seen) -> list[PoolAction]:
            seen.append(pool)
            return list(share_fixed(2)(pool))

        SimulatedPool([GROWS, slow], [GPU], profiles([[0.5]]), costs=FREE, seed=seed).run(decide)
        kills.update({trial.number for now in seen for trial in now.trials if trial.out_of_memory_mib})
    assert sum(kills.values()) == 40
    assert kills[0] > 2 * kills[1] > 0


def test_a_trial_that_outgrows_its_limit_is_killed_beside_nobody() -> None:
    limits: list[float | None] = []

    def decide(pool: PoolSnapshot) -> list[PoolAction]:
        (trial,) = pool.trials
        if trial.state is not TrialState.WAITING:
            return []
        limits.append(trial.out_of_memory_mib)
        return [dataclasses.replace(start(0), memory_limit_mib=None if trial.out_of_memory_mib else 5_000.0)]

    found = SimulatedPool([GROWS], [GPU], profiles([[0.5]]), costs=FREE).run(decide)
    assert limits == [None, 5_000.0]
    assert found.ended_s[0] == pytest.approx(144.44, abs=0.01)


def test_a_start_slows_the_trials_of_its_node() -> None:
    trials = [SimulatedTrial(family=0, seconds=100.0), SimulatedTrial(family=0, seconds=100.0, arrives_s=50.0)]
    costs = dataclasses.replace(FREE, start_s=20.0, start_load=1.0)
    found = SimulatedPool(trials, gpus(2), profiles([[0.5]]), costs=costs).run(share_fixed(1))
    assert found.ended_s == pytest.approx((130.0, 170.0))
    elsewhere = [GPU, dataclasses.replace(GPU, name="n2/gpu:0")]
    found = SimulatedPool(trials, elsewhere, profiles([[0.5]]), costs=costs).run(share_fixed(1))
    assert found.ended_s == pytest.approx((120.0, 170.0))


@pytest.mark.parametrize("finished", [True, False])
def test_a_stopped_trial_ends_and_frees_its_device(finished: bool) -> None:
    stops = [StopTrial(number=number, reason="test", finished=finished) for number in (0, 1)]
    seen: list[PoolSnapshot] = []
    trials = [SimulatedTrial(family=0, seconds=100.0)] * 3
    costs = dataclasses.replace(FREE, pause_s=4.0)
    found = SimulatedPool(trials, [GPU], profiles([[0.5]]), costs=costs).run(
        once((0.0, start(0)), (30.0, stops[0]), (30.0, stops[1]), (34.0, start(2)), seen=seen)
    )
    assert found.ended_s == pytest.approx((34.0, 30.0, 134.0))
    assert (found.stops, found.pauses) == (2, 0)
    ended = {trial.state for pool in seen for trial in pool.trials if trial.number < 2} & {*TrialState} - {
        TrialState.WAITING,
        TrialState.RUNNING,
    }
    assert ended == {TrialState.FINISHED if finished else TrialState.PRUNED}


def test_trials_with_shares_take_turns() -> None:
    share = ShareTrial(number=0, share=0.75, reason="test")
    trials = [SimulatedTrial(family=0, seconds=75.0), SimulatedTrial(family=0, seconds=75.0)]
    found = SimulatedPool(trials, [GPU], profiles([[0.9]]), costs=FREE).run(
        once((0.0, start(0)), (0.0, start(1)), (0.0, share))
    )
    # The first has three quarters of the device for 100 s; then the second, with 50 s left, has it alone.
    assert found.ended_s == pytest.approx((100.0, 150.0))


def test_a_trial_on_two_devices_has_the_speed_of_that_size() -> None:
    seen: list[PoolSnapshot] = []
    large = SimulatedTrial(family=0, seconds=180.0, speed_ups={(1,): 1.0, (2,): 1.8})
    trials = [large, SimulatedTrial(family=0, seconds=200.0)]
    rule = once((0.0, start(0, "gpu:0", "gpu:1")), (0.0, start(1, "gpu:2")), seen=seen)
    found = SimulatedPool(trials, gpus(3), profiles([[0.5]]), costs=FREE).run(rule)
    assert found.ended_s == pytest.approx((100.0, 200.0))
    speeds = {speed.placement: speed.steps_per_s for speed in seen[-1].speeds}
    assert speeds == {(1,): pytest.approx(1.0), (2,): pytest.approx(1.8)}


def test_a_size_that_was_not_measured_is_refused() -> None:
    pool = SimulatedPool([GROWS], gpus(2), profiles([[0.5]]), costs=FREE)
    with pytest.raises(RuntimeError, match="not known"):
        pool.run(once((0.0, start(0, "gpu:0", "gpu:1"))))


def test_what_shares_with_a_large_trial_slows_all_of_it() -> None:
    large = SimulatedTrial(family=0, seconds=90.0, speed_ups={(2,): 1.8})
    trials = [large, SimulatedTrial(family=0, seconds=25.0)]
    rule = once((0.0, start(0, "gpu:0", "gpu:1")), (0.0, start(1, "gpu:1")))
    found = SimulatedPool(trials, gpus(2), profiles([[0.5]]), costs=FREE).run(rule)
    assert found.ended_s == pytest.approx((75.0, 50.0))


def test_a_seed_decides_all_chance() -> None:
    devices: list[Device] = gpus(2)
    trials = [dataclasses.replace(GROWS, first_memory=0.3 + 0.1 * number) for number in range(6)]
    first, again = (
        SimulatedPool(trials, devices, profiles([[0.7]]), costs=FREE, seed=5).run(share_fixed(2)) for _ in range(2)
    )
    assert repr(first) == repr(again)
