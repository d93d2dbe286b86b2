"""Rules give GPUs to trainings by what these have shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helios.training.sizes.model import Gradient, StepRun, StepTime
from helios.training.sizes.rules import ELASTIC
from helios.training.sizes.snapshot import ElasticSnapshot, TrainingState
from tests.unit.training.sizes.test_placing import state

MEASURED = ((StepRun(1, 1, 10), StepTime(0.2, 0.0)),)
NOISY = Gradient(square=0.001, variance=1.0)


def learned(name: str, remaining: float) -> TrainingState:
    return replace(state(name), measured=MEASURED, gradient=NOISY, remaining=remaining)


@pytest.mark.parametrize("rule", sorted(ELASTIC))
def test_jobs_that_never_ran_get_one_gpu_each(rule: str) -> None:
    jobs = tuple(replace(state(name), most_gpus=1, submit_s=-60) for name in "ab")
    placed = ELASTIC[rule](ElasticSnapshot(0, jobs))
    assert {name: len(placement) for name, placement in placed.items()} == {"a": 1, "b": 1}


def test_the_shortest_job_has_the_most_gpus() -> None:
    jobs = learned("long", 1e6), learned("short", 1e3), learned("middle", 1e5)
    placed = ELASTIC["shortest-first"](ElasticSnapshot(0, jobs, nodes=2))
    assert len(placed["short"]) > len(placed.get("long", ()))


def test_pollux_shares_between_jobs_of_any_length() -> None:
    jobs = learned("long", 1e6), learned("short", 1e3)
    placed = ELASTIC["pollux"](ElasticSnapshot(3600, jobs, nodes=2))
    assert len(placed["short"]) == len(placed["long"]) == 4
