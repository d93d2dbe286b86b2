"""The simulated cluster runs trainings as the published setting says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.training.elastic_sim import simulator
from helios.training.elastic_sim.learned_profile import learn_profile
from helios.training.elastic_sim.simulator import CHANGE_S, AllocationInvalid, ElasticJob, simulate
from helios.training.model import PauseTrial, PoolAction, PoolSnapshot, ResizeTrial, StartTrial, Trial, node_name
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.model import BatchLimits, ElasticState, Gradient, StepRun, StepTime
from tests.examples import examples
from tests.unit.training.elastic_sim.models import model

STEPS = {1: 0.6, 2: 0.4, 4: 0.3}
"""Seconds of a step of 40 samples, by GPUs of a node."""


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


class Plan:
    """Service that gives each training devices at stated times."""

    every = timedelta(seconds=60)

    def __init__(self, plan: dict[int, dict[int, tuple[str, ...]]]) -> None:
        self.plan = plan

    def decide(self, snapshot: PoolSnapshot) -> Iterator[PoolAction]:
        held = {trial.number: trial.devices for trial in snapshot.trials}
        for number, devices in self.plan.get(int(snapshot.now_s), {}).items():
            yield give(number, held[number], devices)


class Chance:
    """Service that starts, resizes and pauses trainings by chance, and looks that no device is held twice."""

    every = timedelta(seconds=60)

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def decide(self, snapshot: PoolSnapshot) -> Iterator[PoolAction]:
        held = [name for trial in snapshot.trials for name in trial.devices]
        assert len({*held}) == len(held)
        free = {device.name for device in snapshot.devices} - {*held}
        for trial in snapshot.trials:
            if trial.devices and self.random.random() < 0.7:
                continue
            free |= {*trial.devices}
            node, size = self.random.randrange(2), self.random.choice([0, *STEPS])
            names = tuple(sorted(name for name in free if node_name(name) == f"node{node}")[:size])
            names = names if len(names) == size else ()
            free -= {*names}
            if names != trial.devices:
                yield give(trial.number, trial.devices, names)


def give(number: int, held: tuple[str, ...], devices: tuple[str, ...]) -> PoolAction:
    if not devices:
        return PauseTrial(number=number, reason="a test")
    if held:
        return ResizeTrial(number=number, devices=devices, reason="a test")
    return StartTrial(number=number, devices=devices, memory_limit_mib=None, reason="a test")


def gpus(node: int, count: int) -> tuple[str, ...]:
    return tuple(f"node{node}/gpu:{place}" for place in range(count))


def job(
    folder: Path, *, epochs: int = 2, batch: int = 10, fixed: bool = True, epoch_steps: float = 100.0
) -> ElasticJob:
    profile = model(folder, epochs=epochs, epoch_steps=epoch_steps)
    return ElasticJob(name="a", submit_s=0, profile=profile, gpus=1, batch=batch, fixed_batch=fixed)


@cache
def alike(epochs: int) -> ElasticJob:
    """Return a job whose batch stays 40, of 100 steps an epoch."""
    with TemporaryDirectory() as folder:
        return job(Path(folder), epochs=epochs, batch=40)


def test_a_start_costs_the_pause_of_a_change(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path)], Give(gpus(0, 1)))
    assert outcome.end_s == 60 + 30 + 40  # 200 steps of .2 s


def test_every_change_of_nodes_costs_a_pause(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path)], Give(gpus(0, 1), gpus(1, 1)))
    assert (outcome.end_s, outcome.restarts) == (120 + 30 + 10, 1)


@pytest.mark.parametrize(("then", "saved_s"), [((0, 2), 15), ((1, 1), 0)])
def test_a_change_on_a_node_may_cost_less_than_a_start(then: tuple[int, int], saved_s: int) -> None:
    ends = [
        simulate([alike(4)], Give(gpus(0, 1), gpus(*then)), change_s=change_s, start_s=20)[0].end_s
        for change_s in (20, 5)
    ]
    assert ends[0] - ends[1] == pytest.approx(saved_s, abs=1)


def test_three_jobs_of_two_sizes_end_as_on_paper(tmp_path: Path) -> None:
    """Simulate what was calculated by hand, with pauses of 30 s and two GPUs.

    A step of 40 samples takes .6 s on one GPU (two passes of .3 s), and .4 s on two (one of .3 s, and .1 s).

    - A, 100 steps: starts at 60, trains from 90 for 60 s, ends at 150. It held one GPU for 90 s.
    - B, 200 steps: starts at 60, trains from 90 for 120 s, ends at 210. It held one GPU for 150 s.
    - C, 200 steps: starts on A's at 180, trains from 210, has 50 steps at 240 as it grows to both, trains from 270 for
      150 x .4 s, ends at 330. It held one GPU for 60 s and two for 90 s, 240 GPU seconds.
    """
    jobs = [job(tmp_path / name, epochs=epochs, batch=40) for name, epochs in (("a", 1), ("b", 2), ("c", 2))]
    first, second = gpus(0, 2)
    plan = Plan({60: {0: (first,), 1: (second,)}, 180: {2: (first,)}, 240: {2: (first, second)}})
    outcomes = simulate(jobs, plan)
    assert [outcome.end_s for outcome in outcomes] == [150, 210, 330]
    assert [outcome.gpu_s for outcome in outcomes] == [90, 150, 240]
    assert [outcome.restarts for outcome in outcomes] == [0, 0, 1]


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 600)), min_size=1, max_size=6), st.integers(0, 999))
def test_time_and_work_are_conserved_whatever_is_decided(jobs: list[tuple[int, int]], seed: int) -> None:
    for outcome in simulate([replace(alike(epochs), submit_s=submit_s) for epochs, submit_s in jobs], Chance(seed)):
        spans = pairwise([*outcome.shapes, (outcome.end_s, ())])
        held = [(sum(shape), end_s - begin_s) for (begin_s, shape), (end_s, _) in spans if shape]
        assert outcome.gpu_s == sum(count * seconds for count, seconds in held)
        done = sum(max(seconds - CHANGE_S, 0) / STEPS[count] for count, seconds in held)
        epochs = outcome.job.profile.epochs
        assert done == pytest.approx(100 * epochs, abs=2 * epochs)  # epochs end on whole seconds


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


@pytest.mark.parametrize("trials", [2, 3, 4])
def test_equal_trials_do_not_lose_by_tries_of_a_second_device(trials: int) -> None:
    # A second device brings nothing, and can be given back only after a minute.
    limits, steps = BatchLimits(64, 64, 1, 64), tuple((StepRun(1, n, 64 // n), StepTime(1.0, 0.5)) for n in (1, 2))
    shown = ElasticState(
        asked=1, most=1, limits=limits, submit_s=0.0, measured=steps, gradient=Gradient(1.0, 64.0), batch=64, work=120.0
    )
    profile = learn_profile("train.py", limits, [shown])
    asked = ElasticJob("a", 0, profile, gpus=1, batch=64, most_gpus=2, every_s=60.0, family="train.py")
    changing, kept = (
        simulate(
            [asked] * trials,
            Elastic(ElasticOptions(rule=rule)),
            devices=simulator.make_devices((2,)),
            change_s=1,
            start_s=10,
        )
        for rule in ("soonest", "fixed")
    )
    assert fmean(each.completion_s for each in changing) < 1.01 * fmean(each.completion_s for each in kept)
