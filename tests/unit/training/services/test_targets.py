"""Resources go first to who brings a model to its target soonest, and nobody is left without any."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest

from helios.services.registry import POOL_GROUP, find
from helios.targets import Target
from helios.training.check_service import NOW_S, a_pool, a_trial, check_pool_service, find_pool_faults, pool_situations
from helios.training.model import (
    NUMBERS,
    Device,
    PauseTrial,
    PoolSnapshot,
    SharedSpeed,
    ShareTrial,
    StartTrial,
    StepsToTarget,
    Trial,
    TrialForecast,
    TrialState,
)
from helios.training.services.packing import Packing, PackingOptions
from helios.training.services.targets import TargetOptions, Targets, trial_claims
from tests.machine import slowness

CPU = Device(name="cpu:0", kind="cpu", memory_mib=64_000.0, slots=16)
TARGET = Target(metric="acc", first=0.9, second=0.95)


def needs(p50: float, *, spread: float = 1.5, reached: float = 1.0) -> StepsToTarget:
    return StepsToTarget(p10=p50 / spread, p50=p50, p90=p50 * spread, reached=reached)


def task(place: int, need: StepsToTarget | None, *, reached: int = 0, **values: Any) -> Trial:
    """Return a trial that runs on the CPU, the only one of its sweep."""
    fields: dict[str, Any] = {
        "family": f"f{place}",
        "state": TrialState.RUNNING,
        "devices": ("cpu:0",),
        "attempts": 1,
        "target": TARGET,
        "targets_reached": reached,
        "forecast": TrialForecast(
            steps_per_s=1.0, first=need if reached == 0 else None, second=need if reached else None
        ),
    }
    return a_trial(place * NUMBERS, **fields | values)


def shares(*trials: Trial, device: Device = CPU, **options: Any) -> dict[int, float]:
    """Return the share of each sweep's trial."""
    actions = Targets(TargetOptions(**options)).decide(a_pool(list(trials), devices=(device,)))
    return {
        action.number // NUMBERS: action.share for action in actions if isinstance(action, ShareTrial) and action.share
    }


def test_it_keeps_the_promises_of_a_service() -> None:
    check_pool_service(Targets)


def test_it_is_installed() -> None:
    assert find("targets", POOL_GROUP) is Targets


@pytest.mark.parametrize(("title", "pool"), [*pool_situations()])
def test_with_targets_no_pool_makes_it_break_the_rules(title: str, pool: PoolSnapshot) -> None:
    forecasts = (None, needs(100), needs(9_000, reached=0.3))
    trials = [
        replace(
            trial,
            target=TARGET if trial.number % 4 else None,
            targets_reached=trial.number % 3,
            forecast=replace(trial.forecast, first=forecasts[place % 3], second=forecasts[place % 3]),
        )
        for place, trial in enumerate(pool.trials)
    ]
    wanted = replace(pool, trials=tuple(trials))
    assert [*find_pool_faults(Targets(TargetOptions()).decide(wanted), wanted)] == []


@pytest.mark.parametrize(("title", "pool"), [*pool_situations()])
def test_without_targets_it_decides_like_packing(title: str, pool: PoolSnapshot) -> None:
    assert Targets(TargetOptions()).decide(pool) == Packing(PackingOptions()).decide(pool)


def test_the_nearest_to_its_first_target_gets_most() -> None:
    found = shares(task(0, needs(1_000)), task(1, needs(100)), task(2, needs(500)))
    assert found[1] > 0.75
    assert found[1] > found[2] > found[0]


def test_what_is_between_targets_gets_little_while_others_wait() -> None:
    found = shares(task(0, needs(900)), task(1, needs(900), reached=1), task(2, needs(900), reached=1))
    assert found[0] >= 1 - TargetOptions().floor


def test_a_very_near_second_target_goes_before_a_far_first() -> None:
    found = shares(task(0, needs(5_000)), task(1, needs(10), reached=1))
    assert found[1] > 0.4


def test_half_is_of_who_waits_for_a_first_target() -> None:
    found = shares(task(0, needs(90_000)), task(1, needs(10), reached=1), task(2, needs(10), reached=1))
    assert found[0] >= 0.5


def test_a_wide_need_counts_as_near() -> None:
    found = shares(task(0, needs(900, spread=4)), task(1, needs(900, spread=1.1)))
    assert found[0] > found[1]


def test_what_is_between_targets_gets_all_once_nobody_waits() -> None:
    found = shares(task(0, needs(50), reached=1), task(1, needs(900), reached=1), task(2, needs(9), reached=2))
    assert found[0] > 0.7


def test_a_target_that_will_not_be_reached_holds_nobody_up() -> None:
    found = shares(task(0, needs(10, reached=0.01)), task(1, needs(900)), task(2, needs(900)))
    assert found[0] == pytest.approx(TargetOptions().floor / 3)


def test_unknown_needs_share_equally() -> None:
    found = shares(task(0, None), task(1, None), task(2, None, targets_reached=0))
    assert [*found.values()] == pytest.approx([1 / 3] * 3, abs=1e-3)


@pytest.mark.parametrize("running", [0, 1])
def test_each_sweep_has_a_trial_before_one_has_two(running: int) -> None:
    trials = [
        replace(
            task(sweep, None), number=sweep * NUMBERS + number, state=TrialState.WAITING, devices=(), family=f"f{sweep}"
        )
        for sweep in (0, 1)
        for number in (0, 1)
    ]
    trials[:running] = [replace(trial, state=TrialState.RUNNING, devices=("cpu:0",)) for trial in trials[:running]]
    pool = a_pool(trials, devices=(replace(CPU, slots=2),))
    started = [
        action.number // NUMBERS for action in Targets(TargetOptions()).decide(pool) if isinstance(action, StartTrial)
    ]
    assert started == [0, 1][running:]


def test_what_is_not_known_yet_is_tried() -> None:
    found = shares(task(0, needs(900)), task(1, None), task(2, needs(900)))
    assert found[1] > 0.5


def test_a_diverged_trial_holds_nobody_up() -> None:
    lost = StepsToTarget(p10=math.inf, p50=math.inf, p90=math.inf, reached=0.0)
    found = shares(task(0, lost), task(1, needs(900)), task(2, needs(900)))
    assert found[0] == pytest.approx(TargetOptions().floor / 3)


def test_a_deadline_that_is_near_raises_its_share() -> None:
    tight: dict[str, Any] = {"target": replace(TARGET, deadline_s=1_200.0), "started_s": NOW_S - 200}
    found = shares(task(0, needs(500), **tight), task(1, needs(100)), task(2, needs(100)))
    assert found[0] > 0.7
    late: dict[str, Any] = {"target": replace(TARGET, deadline_s=100.0), "started_s": NOW_S - 200}
    assert shares(task(0, needs(500), **late), task(1, needs(100)), task(2, needs(100)))[0] < 0.2


def test_the_nearest_trial_of_a_sweep_counts_for_it() -> None:
    search = [replace(task(0, needs(need)), number=number) for number, need in enumerate((2_000, 100, 2_000))]
    pool = a_pool([*search, task(1, needs(400))], devices=(CPU,))
    claims = trial_claims(pool.trials, pool, TargetOptions())
    assert sum(claims[number].part for number in range(3)) > 0.8
    assert claims[1].part > 0.9 * sum(claims[number].part for number in range(3))


def test_small_changes_of_a_share_are_not_given() -> None:
    before = shares(task(0, needs(300)), task(1, needs(310)))
    again = shares(task(0, needs(290), share=before[0]), task(1, needs(300), share=before[1]))
    assert not again


def test_side_by_side_on_a_gpu_where_that_does_more() -> None:
    trials = [replace(task(place, needs(900)), devices=("gpu:0",)) for place in range(2)]
    assert not gpu_shares(trials, beside=0.9)
    assert gpu_shares(trials, beside=0.4)


def test_turns_on_a_gpu_where_one_is_much_nearer() -> None:
    trials = [replace(task(place, needs(10**place * 90)), devices=("gpu:0",)) for place in range(2)]
    assert gpu_shares(trials, beside=0.65)
    assert not gpu_shares(trials, beside=0.99)


def test_shares_are_taken_back_where_side_by_side_does_more() -> None:
    trials = [
        replace(task(place, needs(900)), devices=("gpu:0",), share=share) for place, share in ((0, 0.6), (1, 0.4))
    ]
    assert gpu_shares(trials, beside=0.9) == [None, None]


def gpu_shares(trials: list[Trial], *, beside: float) -> list[float | None]:
    """Return the shares of trials on one GPU, whose speeds are known."""
    speeds = [
        SharedSpeed(family=f"f{place}", beside=others, steps_per_s=rate, samples=3)
        for place in range(2)
        for others, rate in (((), 1.0), ((f"f{1 - place}",), beside))
    ]
    actions = Targets(TargetOptions()).decide(a_pool(trials, devices=1, speeds=tuple(speeds)))
    return [action.share for action in actions if isinstance(action, ShareTrial)]


def pauses(*trials: Trial, device: Device) -> list[int]:
    """Return the places of tasks that are paused."""
    actions = Targets(TargetOptions()).decide(a_pool(list(trials), devices=(device,)))
    return [action.number // NUMBERS for action in actions if isinstance(action, PauseTrial)]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_far_task_makes_room_for_a_near_one(kind: str) -> None:
    device = replace(CPU, name=f"{kind}:0", kind=kind, slots=2)
    there: dict[str, Any] = {"devices": (device.name,), "started_s": NOW_S - 900, "memory_limit_mib": 32_000.0}
    far = [task(place, needs(9_000 + place), **there) for place in range(2)]
    near = task(2, needs(300), state=TrialState.WAITING, devices=(), attempts=0)
    assert pauses(*far, near, device=device) == [1]
    assert pauses(far[0], replace(far[1], target=None), near, device=device) == [0]
    assert pauses(*far, replace(near, forecast=far[0].forecast), device=device) == []


def in_the_way(place: int, **values: Any) -> Trial:
    """Return a trial that takes nearly half of the memory of CPU, and is far from its target."""
    there: dict[str, Any] = {"started_s": NOW_S - 900, "memory_limit_mib": 30_000.0}
    return task(place, needs(90_000 + place), **there | values)


def large(place: int) -> Trial:
    """Return a trial that waits, needs nearly all memory, and is near to its target."""
    forecast = TrialForecast(
        steps_per_s=1.0, first=needs(300), memory_p50_mib=55_000.0, memory_p95_mib=60_000.0, seconds_p50=900.0
    )
    return task(place, None, state=TrialState.WAITING, devices=(), attempts=0, forecast=forecast)


def test_who_is_in_the_way_together_is_paused_together() -> None:
    assert sorted(pauses(in_the_way(0), in_the_way(1), large(2), device=CPU)) == [0, 1]


def test_nobody_is_paused_for_what_would_not_fit_then() -> None:
    assert pauses(in_the_way(0), in_the_way(1, target=None), large(2), device=CPU) == []


def test_a_trial_without_a_target_keeps_an_equal_part() -> None:
    found = shares(task(0, needs(10)), task(1, needs(900)), task(2, None, target=None), task(3, needs(900)))
    assert found[2] == pytest.approx(0.25, abs=0.01)


def test_the_weight_of_a_sweep_holds() -> None:
    found = shares(task(0, needs(500), weight=3.0), task(1, needs(500)))
    assert found[0] == pytest.approx(3 * found[1], rel=0.01)


def test_a_fused_process_has_the_share_of_all_its_trials() -> None:
    fused: dict[str, Any] = {"fusible": "one", "most_fused": 4, "process": -1}
    together = [replace(task(0, needs(500)), number=number, **fused) for number in range(3)]
    found = shares(*together, task(1, needs(500)))
    assert found[0] == pytest.approx(found[1], abs=0.01)


def test_a_decision_for_200_tasks_on_64_devices_is_fast() -> None:
    trials = [
        task(
            place,
            needs(100 + place),
            state=TrialState.RUNNING if place < 128 else TrialState.WAITING,
            devices=(f"gpu:{place % 64}",) if place < 128 else (),
            memory_limit_mib=2_000.0,
            peak_memory_mib=2_000.0,
            steps_per_s=1.0,
        )
        for place in range(200)
    ]
    speeds = [
        SharedSpeed(family=f"f{place}", beside=others, steps_per_s=1.0, samples=1)
        for place in range(200)
        for others in ((), (f"f{(place + 64) % 200}",))
    ]
    pool, taken = a_pool(trials, devices=64, speeds=tuple(speeds)), []
    for _ in range(3):
        start = time.process_time()
        Targets(TargetOptions()).decide(pool)
        taken.append(time.process_time() - start)
    assert min(taken) < 0.05 * slowness()


def test_places_for_all_need_no_shares() -> None:
    assert not shares(task(0, needs(10)), task(1, needs(900)), device=Device(**PLACES))


PLACES: dict[str, Any] = {"name": "cpu:0", "kind": "cpu", "memory_mib": 64_000.0, "slots": 16, "places": 2}
