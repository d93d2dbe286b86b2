"""A profile gives the time of a step and the noise of gradients between what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.training.elastic_sim.profiles import NotMeasured, ProfileInvalid, read_profile
from helios.training.sizes.model import BatchLimits, GpuBatch, Gradient, statistical_gain
from tests.unit.training.elastic_sim.models import model, write_model

LIMITS = BatchLimits(smallest=10, largest=640, smallest_local=10, largest_local=40)


def test_step_times_are_linear_between_measured_batches(tmp_path: Path) -> None:
    assert model(tmp_path).step_time((1,), 30) == pytest.approx((0.4, 0.0))


def test_a_placement_is_the_same_from_any_of_its_nodes(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    with (folder / "placements.csv").open("a") as file:
        file.write("\n24,10,9.0,1.0\n24,20,9.0,1.0\n")
    profile = read_profile(folder, epochs=2)
    assert profile.step_time((4, 2), 10) == profile.step_time((2, 4), 10) == pytest.approx((9.0, 1.0))


def test_unmeasured_placements_are_linear_in_nodes_and_gpus(tmp_path: Path) -> None:
    assert model(tmp_path).step_time((4,) * 6, 20) == pytest.approx((0.4, 0.1))


@pytest.mark.parametrize(("placement", "local"), [((1,), 41), ((1, 1), 10), ((4,), 9)])
def test_steps_outside_the_measurements_are_refused(tmp_path: Path, placement: tuple[int, ...], local: int) -> None:
    with pytest.raises(NotMeasured, match="was not measured"):
        model(tmp_path).step_time(placement, local)


def test_a_batch_that_was_not_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="batch of 641"):
        model(tmp_path).gradient(641, 0)


def test_one_gpu_takes_two_passes_for_a_larger_batch() -> None:
    assert LIMITS.split(20, 1) == GpuBatch(10, 1)
    assert LIMITS.split(10, 1) == GpuBatch(10, 0)


def test_a_batch_above_the_memory_is_accumulated() -> None:
    assert LIMITS.split(320, 2) == GpuBatch(40, 3)


def test_rounding_never_exceeds_the_largest_batch() -> None:
    batch = LIMITS.split(640, 17)
    assert batch.local * 17 * (batch.accumulation + 1) <= 640


def test_progress_of_a_step_grows_with_the_noise() -> None:
    assert statistical_gain(Gradient(1.0, 0.0), 4) == 1.0
    assert statistical_gain(Gradient(1.0, 3.0), 4) == pytest.approx(4 / 1.75)


def test_the_missing_part_of_a_profile_is_named(tmp_path: Path) -> None:
    (write_model(tmp_path) / "scalability.csv").unlink()
    with pytest.raises(ProfileInvalid, match=r"scalability\.csv"):
        read_profile(tmp_path, epochs=2)


def test_more_epochs_than_were_trained_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileInvalid, match="fewer than 3 epochs"):
        read_profile(write_model(tmp_path, epochs=2), epochs=3)
