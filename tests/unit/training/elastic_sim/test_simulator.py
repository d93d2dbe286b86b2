"""The simulated cluster runs trainings as the published setting says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from helios.training.elastic_sim import simulator
from helios.training.elastic_sim.simulator import AllocationInvalid, ElasticJob, simulate
from helios.training.model import PoolAction, PoolSnapshot, ResizeTrial, StartTrial, Trial
from tests.unit.training.elastic_sim.models import model


class Give:
    """Service that gives a training devices, others each minute where there are several."""

    every = timedelta(seconds=60)

    def __init__(self, *devices: tuple[str, ...]) -> None:
        self.devices = iter(devices)
        self.seen: list[Trial] = []

    def decide(self, snapshot: PoolSnapshot) -> Iterator[PoolAction]:
        self.seen += snapshot.trials
        devices = next(self.devices, None)
        if devices is not None:
            kind = ResizeTrial if snapshot.trials[0].devices else partial(StartTrial, memory_limit_mib=None)
            yield kind(number=0, devices=devices, reason="a test")


def gpus(node: int, count: int) -> tuple[str, ...]:
    return tuple(f"node{node}/gpu:{place}" for place in range(count))


def job(
    folder: Path, *, epochs: int = 2, batch: int = 10, fixed: bool = True, epoch_steps: float = 100.0
) -> ElasticJob:
    profile = model(folder, epochs=epochs, epoch_steps=epoch_steps)
    return ElasticJob(name="a", submit_s=0, profile=profile, gpus=1, batch=batch, fixed_batch=fixed)


def test_a_start_costs_the_pause_of_a_change(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path)], Give(gpus(0, 1)))
    assert outcome.end_s == 60 + 30 + 40  # 200 steps of .2 s


def test_every_change_of_nodes_costs_a_pause(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path)], Give(gpus(0, 1), gpus(1, 1)))
    assert (outcome.end_s, outcome.restarts) == (120 + 30 + 10, 1)


def test_epochs_end_on_whole_seconds(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path, epoch_steps=102.0)], Give(gpus(0, 1)))
    assert outcome.end_s == 90 + 20 + 20  # 20.4 s each


def test_several_passes_synchronise_once(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path, batch=160)], Give(gpus(0, 2)))
    assert outcome.end_s == 90 + round(100 * 1.1) * 2  # passes of .5 s, and .1 s of communication


def test_gpu_seconds_count_the_pause(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path, batch=20)], Give(gpus(0, 2)))
    assert outcome.gpu_s == 2 * (outcome.end_s - 60)


def test_a_training_may_grow_to_twice_what_it_ran_on(tmp_path: Path) -> None:
    service = Give(gpus(0, 1), gpus(0, 2), gpus(0, 4), gpus(0, 4) + gpus(1, 4))
    simulate([job(tmp_path, epochs=3, fixed=False, epoch_steps=1000)], service)
    assert [trial.elastic.most for trial in service.seen[:4] if trial.elastic] == [1, 2, 4, 8]


def test_services_learn_nothing_before_the_first_step(tmp_path: Path) -> None:
    service = Give(gpus(0, 1))
    simulate([job(tmp_path)], service)
    assert service.seen[0].elastic
    assert service.seen[0].elastic.gradient is None
    assert service.seen[0].elastic.remaining == 200


@pytest.mark.parametrize(("epochs", "remaining"), [(3, 300), (0, None)])
def test_remaining_work_follows_the_stated_epochs(tmp_path: Path, epochs: int, remaining: float | None) -> None:
    service = Give(gpus(0, 1))
    simulate([replace(job(tmp_path), stated_epochs=epochs)], service)
    assert service.seen[0].elastic
    assert service.seen[0].elastic.remaining == remaining


def test_a_gpu_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AllocationInvalid, match="At 60 s a GPU is given twice"):
        simulate([job(tmp_path)], Give(gpus(0, 1) * 2))


def test_a_service_that_starts_nothing_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "LONGEST_S", 86_400)
    with pytest.raises(AllocationInvalid, match="not ended after 1 days"):
        simulate([job(tmp_path)], Give())
