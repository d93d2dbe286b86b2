"""Rules give GPUs to trainings by what these have shown."""

from __future__ import annotations

from typing import Any

import pytest

from helios.training.sizes.model import Gradient, StepRun, StepTime
from helios.training.sizes.rules import RULES
from helios.training.sizes.snapshot import ElasticSnapshot, Training
from tests.unit.training.sizes.test_placing import training

NODES = (4, 4)
MEASURED = ((StepRun(1, 1, 10), StepTime(0.2, 0.0)),)
NOISY = Gradient(square=0.001, variance=1.0)
BY_LENGTH = sorted(RULES.keys() - {"pollux"})


def learned(number: int, remaining: float | None, **known: Any) -> Training:
    return training(number, measured=MEASURED, gradient=NOISY, remaining=remaining, **known)


def sizes(rule: str, *jobs: Training, now_s: float = 3600.0) -> list[int]:
    placed = RULES[rule](ElasticSnapshot(now_s, jobs, NODES))
    return [len(placed.get(job.name, ())) for job in jobs]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_jobs_that_never_ran_get_one_gpu_each(rule: str) -> None:
    assert sizes(rule, training(0, most=1), training(1, most=1)) == [1, 1]


@pytest.mark.parametrize("rule", BY_LENGTH)
def test_the_shortest_job_has_the_most_gpus(rule: str) -> None:
    long, short, _ = sizes(rule, learned(0, 1e6), learned(1, 1e3), learned(2, 1e5))
    assert short > long


def test_pollux_shares_between_jobs_of_any_length() -> None:
    assert sizes("pollux", learned(0, 1e6), learned(1, 1e3)) == [4, 4]
