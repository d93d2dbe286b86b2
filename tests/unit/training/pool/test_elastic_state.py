"""What is learned from the reports of programs that change their size, whatever these hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.model import Device, PoolSnapshot, StartTrial, Trial, TrialState
from helios.training.pool.elastic_state import MOST_RECORDED, begin_with, describe_shown, learn
from helios.training.pool.sweep import ElasticProgram
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.model import BatchLimits, ElasticState

PROGRAM = ElasticProgram(least=1, most=4, batch=(128, 1024), local_batch=(32, 256), epochs=30)
UNKNOWN = ElasticState(asked=1, most=1, limits=BatchLimits(128, 1024, 32, 256), submit_s=0.0)
USUAL: dict[str, Any] = {
    "devices": 1, "nodes": 1, "local": 128, "step_s": 0.1, "sync_s": 0.0, "square": 1.0, "variance": 1.0, "epoch": 3,
    "progress": 100,
}  # fmt: skip
NUMBERS = st.sampled_from([-1, 0, 1e-320, 1e-300, 1e-9, 1, 3, 1e9, 1e300, 10**400, math.nan, math.inf, True, "1", None])


def after(**told: Any) -> ElasticState:
    return learn(UNKNOWN, PROGRAM, {**USUAL, **told}, progress=None)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(USUAL)), NUMBERS), st.sampled_from(["soonest", "pollux", "ones"]))
def test_no_report_keeps_other_trials_from_devices(told: dict[str, Any], rule: str) -> None:
    honest = [Trial(number=n, parameters={}, state=TrialState.WAITING, elastic=after()) for n in (0, 1)]
    liar = Trial(number=2, parameters={}, state=TrialState.WAITING, elastic=after(**told))
    devices = tuple(Device(name=f"cpu:{place}", kind="cpu", memory_mib=1000.0, slots=1) for place in range(3))
    snapshot = PoolSnapshot(now_s=1000.0, devices=devices, trials=(*honest, liar))
    started = {a.number for a in Elastic(ElasticOptions(rule=rule)).decide(snapshot) if isinstance(a, StartTrial)}
    assert started & {0, 1}


@pytest.mark.parametrize("told", [{"devices": 10**400}, {"devices": 1e9}, {"devices": -1}, {"local": 1e300}])
def test_steps_that_cannot_have_been_are_not_learned(told: dict[str, Any]) -> None:
    assert after(**told).measured == ()


def shown(**told: Any) -> ElasticState:
    """What another trial is expected to be after one that told this has ended."""
    return begin_with(UNKNOWN, PROGRAM, [describe_shown(after(accumulation=0, **told))])


def test_a_trial_is_expected_to_be_like_another_of_its_family() -> None:
    # A tenth of 30 epochs was done in 100 steps of the smallest batch.
    expected, told = shown(), after()
    assert (expected.measured, expected.gradient, expected.remaining) == (told.measured, told.gradient, 1_000.0)
    assert (expected.most, expected.gpu_s, expected.restarts) == (2, 0.0, 0)


def test_other_epochs_make_other_work() -> None:
    known = [describe_shown(after())]
    assert begin_with(UNKNOWN, replace(PROGRAM, epochs=60), known).remaining == 2_000.0


def test_noise_and_work_are_counted_in_the_smallest_batch_of_each_sweep() -> None:
    half = replace(PROGRAM, batch=(64, 1024))
    expected = begin_with(UNKNOWN, half, [describe_shown(after())])
    assert expected.gradient == (1.0, 2.0)
    # A step of 128 is worth 3 / 2 of one of 64, where the noise of the latter is twice the gradient.
    assert expected.remaining == pytest.approx(1_500.0)


def test_sizes_that_a_sweep_does_not_allow_are_not_expected() -> None:
    known = [describe_shown(after(devices=4, local=32)), describe_shown(after())]
    measured = begin_with(UNKNOWN, replace(PROGRAM, most=2), known).measured
    assert [run.gpus for run, _ in measured] == [1]


def test_what_a_trial_shows_is_recorded_in_bounds() -> None:
    state = UNKNOWN
    for local in range(32, 132):
        state = learn(state, PROGRAM, {**USUAL, "local": local}, progress=None)
    assert len(describe_shown(state)["steps"]) <= MOST_RECORDED


@pytest.mark.parametrize("shown", [{}, {"smallest": 10}, {"smallest": 10, "steps": [[1, 2], "x", None]}, {"steps": []}])
def test_what_no_pool_stored_is_ignored(shown: dict[str, Any]) -> None:
    assert begin_with(UNKNOWN, PROGRAM, [shown]) == UNKNOWN
