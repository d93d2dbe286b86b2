"""The simulated cluster runs trainings as the published setting says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from helios.training.elastic_sim import simulator
from helios.training.elastic_sim.simulator import AllocationInvalid, Decide, ElasticJob, simulate
from helios.training.sizes.snapshot import ElasticSnapshot, Placement, TrainingState
from tests.unit.training.elastic_sim.models import model


def give(placement: Placement) -> Decide:
    return lambda snapshot: {job.name: placement for job in snapshot.jobs}


def job(
    folder: Path, *, epochs: int = 2, batch: int = 10, fixed: bool = True, epoch_steps: float = 100.0
) -> ElasticJob:
    profile = model(folder, epochs=epochs, epoch_steps=epoch_steps)
    return ElasticJob(name="a", submit_s=0, profile=profile, gpus=1, batch=batch, fixed_batch=fixed)


def test_a_start_costs_the_pause_of_a_change(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path)], give((0,)))
    assert outcome.end_s == 60 + 30 + 40  # 200 steps of .2 s


def test_every_change_of_nodes_costs_a_pause(tmp_path: Path) -> None:
    places = iter([(0,), (1,)])

    def decide(snapshot: ElasticSnapshot) -> Mapping[str, Placement]:
        return {"a": next(places, (1,))}

    (outcome,) = simulate([job(tmp_path)], decide)
    assert (outcome.end_s, outcome.restarts) == (120 + 30 + 10, 1)


def test_epochs_end_on_whole_seconds(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path, epoch_steps=102.0)], give((0,)))
    assert outcome.end_s == 90 + 20 + 20  # 20.4 s each


def test_several_passes_synchronise_once(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path, batch=160)], give((0, 0)))
    assert outcome.end_s == 90 + round(100 * 1.1) * 2  # passes of .5 s, and .1 s of communication


def test_gpu_seconds_count_the_pause(tmp_path: Path) -> None:
    (outcome,) = simulate([job(tmp_path, batch=20)], give((0, 0)))
    assert outcome.gpu_s == 2 * (outcome.end_s - 60)


def test_a_training_may_grow_to_twice_what_it_ran_on(tmp_path: Path) -> None:
    most = []

    def decide(snapshot: ElasticSnapshot) -> Mapping[str, Placement]:
        (state,) = snapshot.jobs
        most.append(state.most_gpus)
        return {"a": (0,) * min(state.most_gpus, 4)}

    simulate([job(tmp_path, epochs=3, fixed=False, epoch_steps=1000)], decide)
    assert most[:4] == [1, 2, 4, 8]


def test_rules_learn_nothing_before_the_first_step(tmp_path: Path) -> None:
    seen: list[TrainingState] = []

    def decide(snapshot: ElasticSnapshot) -> Mapping[str, Placement]:
        seen.extend(snapshot.jobs)
        return {"a": (0,)}

    simulate([job(tmp_path)], decide)
    assert seen[0].goodput is None
    assert seen[0].remaining == 200


def test_remaining_work_follows_the_stated_epochs(tmp_path: Path) -> None:
    stated = ElasticJob(name="a", submit_s=0, profile=model(tmp_path), gpus=1, batch=10, stated_epochs=3)
    seen: list[float] = []

    def decide(snapshot: ElasticSnapshot) -> Mapping[str, Placement]:
        seen.append(snapshot.jobs[0].remaining)
        return {"a": (0,)}

    simulate([stated], decide)
    assert seen[0] == 300


@pytest.mark.parametrize("placement", [(0,) * 5, (16,), (-1,)])
def test_gpus_that_are_not_there_are_refused(tmp_path: Path, placement: Placement) -> None:
    with pytest.raises(AllocationInvalid, match="At 60 s node"):
        simulate([job(tmp_path)], give(placement))


def test_a_rule_that_starts_nothing_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "LONGEST_S", 86_400)
    with pytest.raises(AllocationInvalid, match="not ended after 1 days"):
        simulate([job(tmp_path)], give(()))
