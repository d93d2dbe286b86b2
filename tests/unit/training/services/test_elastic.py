"""The service of elastic sizes gives devices to trials that may change."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helios.targets import Target
from helios.training.check_service import a_pool, a_trial, check_pool_service
from helios.training.model import (
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ResizeTrial,
    StartTrial,
    Trial,
    TrialState,
)
from helios.training.pool import elastic_state
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.model import ElasticState, StepRun, StepTime
from helios.training.sizes.rules import RULES
from tests.machine import slowness
from tests.unit.training.pool.test_coordinator import Watched, run
from tests.unit.training.pool.test_resizing import FOUR, elastic_sweep, go_on
from tests.unit.training.sizes.test_placing import LIMITS
from tests.unit.training.sizes.test_rules import MEASURED, NOISY

NOW_S = 10_000.0
GPUS = tuple(
    Device(name=f"n{node}/gpu:{place}", kind="gpu", memory_mib=1.0, slots=1) for node in range(2) for place in range(4)
)


def elastic(number: int, *devices: str, remaining: float = 1e5, **known: Any) -> Trial:
    state: dict[str, Any] = {"asked": 1, "most": 8, "limits": LIMITS, "submit_s": 0.0, "remaining": remaining}
    state |= {"measured": MEASURED, "gradient": NOISY} if devices else {"most": 1}
    return a_trial(
        number,
        state=TrialState.RUNNING if devices else TrialState.WAITING,
        devices=devices,
        elastic=ElasticState(**state | known),
    )


def pool(*trials: Trial, devices: tuple[Device, ...] = GPUS) -> PoolSnapshot:
    return a_pool(list(trials), devices=devices, now_s=NOW_S)


def decide(*trials: Trial, devices: tuple[Device, ...] = GPUS, rule: str = "soonest") -> list[PoolAction]:
    return Elastic(ElasticOptions(rule=rule)).decide(pool(*trials, devices=devices))


def after(trials: tuple[Trial, ...], actions: list[PoolAction]) -> dict[int, tuple[str, ...]]:
    """Return the devices of each trial once all is done, if no device is ever given twice."""
    held = {trial.number: trial.devices for trial in trials}
    for action in actions:
        assert isinstance(action, StartTrial | ResizeTrial | PauseTrial)
        held[action.number] = () if isinstance(action, PauseTrial) else action.devices
        used = [name for names in held.values() for name in names]
        assert len({*used}) == len(used)
    return held


@pytest.mark.parametrize("rule", sorted(RULES))
def test_elastic_sizes_keep_the_contract_of_pool_services(rule: str) -> None:
    check_pool_service(Elastic(ElasticOptions(rule=rule)))


def test_a_new_trial_starts_on_one_device() -> None:
    (start,) = decide(elastic(0))
    assert isinstance(start, StartTrial)
    assert start.devices == ("n0/gpu:0",)


def test_a_trial_grows_to_what_it_may_have() -> None:
    (resize,) = decide(elastic(0, "n1/gpu:2", most=2))
    assert isinstance(resize, ResizeTrial)
    assert resize.devices == ("n1/gpu:2", "n1/gpu:0")


def test_devices_are_freed_before_others_take_them() -> None:
    trials = (
        elastic(0, *(gpu.name for gpu in GPUS), remaining=1e7),
        *(elastic(number, remaining=1e3) for number in range(1, 4)),
    )
    held = after(trials, decide(*trials))
    assert all(held[number] for number in range(1, 4))


def test_trials_that_would_swap_devices_are_parted_by_a_pause() -> None:
    trials = elastic(0, "n0/gpu:0"), elastic(1, "n1/gpu:0")
    service = Elastic(ElasticOptions(), lambda _: {0: (1,) * 4, 1: (0,) * 4})
    actions = service.decide(pool(*trials))
    assert [type(action) for action in actions] == [PauseTrial, ResizeTrial]
    assert after(trials, actions)[1] == tuple(gpu.name for gpu in GPUS[:4])


def test_a_trial_that_was_just_resized_keeps_its_devices() -> None:
    assert decide(elastic(0, "n0/gpu:0", kept_until_s=NOW_S + 1)) == []


def test_others_leave_the_devices_of_one_that_keeps_them() -> None:
    trials = elastic(0, "n0/gpu:0", kept_until_s=NOW_S + 1), elastic(1, "n0/gpu:1")
    held = after(trials, decide(*trials))
    assert held[0] == ("n0/gpu:0",)
    assert len(held[1]) == 4


def test_trials_of_a_fixed_size_have_their_part_of_the_devices() -> None:
    actions = decide(elastic(0), a_trial(1), a_trial(2), elastic(3))
    fixed = [action.devices for action in actions if isinstance(action, StartTrial) and action.number in {1, 2}]
    assert {*fixed} <= {(gpu.name,) for gpu in GPUS[:4]}
    assert len({*fixed}) == 2


def test_elastic_trials_leave_devices_for_fixed_ones() -> None:
    trials = elastic(0, *(gpu.name for gpu in GPUS), gpu_s=100.0), a_trial(1)
    (resize,) = decide(*trials)
    assert isinstance(resize, ResizeTrial)
    assert len(resize.devices) == 4


def test_a_trial_past_its_first_target_gets_less() -> None:
    target = Target(metric="accuracy", first=0.5, second=0.9)
    trials = [elastic(number, f"n0/gpu:{number}", most=4) for number in range(2)]
    trials[0] = replace(trials[0], target=target, targets_reached=1)
    held = after(tuple(trials), decide(*trials, devices=GPUS[:4]))
    assert len(held[0]) < len(held[1])


@pytest.mark.parametrize(("weight", "reached", "gets_more"), [(20.0, 0, 0), (1.0, 1, 1), (20.0, 1, 0)])
def test_weights_and_targets_are_multiplied(weight: float, reached: int, gets_more: int) -> None:
    target = Target(metric="accuracy", first=0.5, second=0.9)
    trials = elastic(0, "n0/gpu:0"), elastic(1, "n1/gpu:0")
    trials = (replace(trials[0], weight=weight, target=target, targets_reached=reached), trials[1])
    devices = after(trials, decide(*trials))
    assert len(devices[gets_more]) > len(devices[1 - gets_more])


def test_trials_of_a_fixed_batch_try_two_devices() -> None:
    limits = replace(LIMITS, largest=10, smallest_local=5)
    trials = [elastic(number, f"n0/gpu:{number}", most=2, limits=limits) for number in range(4)]
    held = after(tuple(trials), decide(*trials, devices=GPUS[:4]))
    assert 2 in map(len, held.values())


@pytest.mark.parametrize(("family", "grows"), [("train.py", False), ("other.py", True)])
def test_one_trial_tries_a_size_for_its_family(family: str, grows: bool) -> None:
    slow = (*MEASURED, (StepRun(1, 2, 5), StepTime(0.4, 0.3)))
    limits = replace(LIMITS, largest=10, smallest_local=5)
    seen = elastic(0, "n0/gpu:0", measured=slow, most=1, limits=limits)
    new = elastic(1, "n0/gpu:1", most=2, limits=limits)
    trials = replace(seen, family="train.py"), replace(new, family=family)
    held = after(trials, decide(*trials))
    assert (len(held[1]) == 2) is grows


def test_an_unknown_rule_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"rule must be one of .*soonest"):
        ElasticOptions(rule="largest")


def test_a_thousand_new_speeds_are_decided_in_two_seconds() -> None:
    devices = tuple(replace(GPUS[0], name=f"n{node}/gpu:{place}") for node in range(500) for place in range(4))
    trials = [
        elastic(
            number,
            *(gpu.name for gpu in devices[2 * number : 2 * number + 2]),
            measured=tuple((StepRun(1, gpus, 10), StepTime(0.2 + number / 1e4, 0.05)) for gpus in (1, 2)),
            remaining=1e3 + number**2,
        )
        for number in range(1000)
    ]
    began_s = time.process_time()
    decide(*trials, devices=devices)
    assert time.process_time() - began_s < 2 * slowness()


def test_a_trial_of_a_running_pool_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_state, "CHANGE_S", 1.0)  # a change that takes longer would not pay here
    watched = Watched(go_on(tmp_path, "resized"))
    _, trials = run(elastic_sweep(tmp_path), devices=FOUR, decide=Elastic(ElasticOptions()).decide, watched=watched)
    assert (trials[0].state, len(trials[0].devices)) == (TrialState.FINISHED, 2)
