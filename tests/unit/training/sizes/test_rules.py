"""Rules give GPUs to trainings by what these have shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helios.training.sizes import rules
from helios.training.sizes.goodput import SpeedModel
from helios.training.sizes.model import ElasticSnapshot, ElasticTraining, Gradient, StepRun, StepTime
from helios.training.sizes.placing import maximise_sum
from helios.training.sizes.rules import RULES
from tests.unit.training.sizes.test_placing import LIMITS, training

NODES = (4, 4)
MEASURED = ((StepRun(1, 1, 10), StepTime(0.2, 0.0)),)
NOISY = Gradient(square=0.001, variance=1.0)


def learned(number: int, remaining: float | None, *placement: int, **known: Any) -> ElasticTraining:
    return training(number, placement, measured=MEASURED, gradient=NOISY, remaining=remaining, **known)


def sizes(rule: str, *jobs: ElasticTraining, now_s: float = 3600.0) -> list[int]:
    placed = RULES[rule](ElasticSnapshot(now_s, jobs, NODES))
    return [len(placed.get(job.name, ())) for job in jobs]


@pytest.mark.parametrize("rule", sorted(RULES))
def test_jobs_that_never_ran_get_one_gpu_each(rule: str) -> None:
    assert sizes(rule, training(0, most=1), training(1, most=1)) == [1, 1]


def test_the_shortest_job_has_the_most_gpus() -> None:
    long, short, _ = sizes("soonest", learned(0, 1e6), learned(1, 1e3), learned(2, 1e5))
    assert short > long


def test_pollux_shares_between_jobs_of_any_length() -> None:
    assert sizes("pollux", learned(0, 1e6), learned(1, 1e3)) == [4, 4]


@pytest.mark.parametrize(("jobs", "gpus"), [(2, (4, 12)), (3, (1, 3, 5))])
def test_prices_lead_to_the_published_optimum(jobs: int, gpus: tuple[int, ...]) -> None:
    # heSRPT (Berg and others, 2019): of m jobs whose speed is a power p of their GPUs, the i-th longest gets
    # (i / m)^(1 / (1 - p)) - ((i - 1) / m)^(1 / (1 - p)) of all. Here p is one half.
    sizes = np.arange(1, sum(gpus) + 1)
    reached = {number: (sizes, np.sqrt(sizes)) for number in range(jobs)}
    prices = rules._plan_prices([training(number) for number in range(jobs)], reached, sum(gpus))
    assert tuple(maximise_sum([(sizes, price * np.sqrt(sizes)) for price in prices], sum(gpus))) == gpus


def test_a_job_that_is_about_to_end_is_not_moved() -> None:
    assert sizes("soonest", learned(0, 100.0, 0)) == [1]
    assert sizes("soonest", learned(0, 1e5, 0)) == [8]


@pytest.mark.parametrize("change_s", [1.0, 30.0, 3000.0])
def test_a_long_job_grows_however_dear_a_change_is(change_s: float) -> None:
    assert sizes("soonest", learned(0, 1e9, 0, change_s=change_s)) == [8]


def test_a_job_of_twice_the_weight_has_more_gpus() -> None:
    first, second = learned(0, 1e5), replace(learned(1, 1e5), weight=4.0)
    first_size, second_size = sizes("soonest", first, second)
    assert second_size > first_size


def test_of_jobs_of_unknown_length_the_newest_has_most() -> None:
    old, new, _ = sizes("soonest", learned(0, None, gpu_s=1e6), learned(1, None, gpu_s=10.0), learned(2, 1e8))
    assert new > old


def test_jobs_share_where_no_length_is_known() -> None:
    assert sizes("size-blind", learned(0, 10.0), learned(1, 1e9)) == [4, 4]


def test_fixed_sizes_are_those_that_owners_ask_for() -> None:
    assert sizes("fixed", training(0, asked=2), training(1, asked=8), training(2, asked=4)) == [2, 0, 4]


def test_goodput_is_what_was_measured_where_a_job_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SpeedModel(0.1, 0.01, 0.1, 1e-8, 0.1, 1e-8, 1.0)
    monkeypatch.setattr(rules, "fit_speed", lambda _: model)
    run = StepRun(1, 1, 10)
    exact, slow = (((run, StepTime(seconds, 0.0)),) for seconds in (0.2, 0.4))
    taken, seen = (rules._corrected(measured, NOISY, LIMITS, (1, 2), 4) for measured in (exact, slow))
    assert (seen / taken).tolist() == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_odd_states_are_decided_without_odd_numbers(rule: str) -> None:
    jobs = (
        learned(0, 0.0, 0, change_s=0.0, submit_s=3600.0),  # at its end, and just submitted
        training(1, (0,), gradient=NOISY),  # tells no times of steps
        training(2, (0,), measured=MEASURED),
        training(3, least=5, most=6),  # no size fits
    )
    with np.errstate(divide="raise", invalid="raise"):
        assert sum(sizes(rule, *jobs)) <= 8
