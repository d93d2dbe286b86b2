"""Sweeps whose trials may change their size, checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from helios.errors import UsageError
from helios.training.plan import plan_pools
from helios.training.pool.devices import find_devices
from helios.training.pool.sweep import ElasticProgram
from tests.unit.training.pool.sweeps import GRID, Reader

pytestmark = pytest.mark.usefixtures("python_is_found")
ELASTIC = GRID + "[elastic]\nmost = 4\nbatch = [64, 512]\nlocal_batch = [32, 128]\n"


def test_sizes_and_batches_of_an_elastic_sweep_are_read(sweep: Reader) -> None:
    assert sweep(ELASTIC + "epochs = 30\nleast = 2\nevery_s = 90\n").elastic == ElasticProgram(
        least=2, most=4, batch=(64, 512), local_batch=(32, 128), epochs=30, every_s=90.0
    )


def test_a_sweep_without_the_table_has_a_fixed_size(sweep: Reader) -> None:
    assert sweep(GRID).elastic is None


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (ELASTIC.replace("most = 4", "most = 0"), 6, "most"),
        (ELASTIC.replace("most = 4\n", ""), 5, "the key 'most' is missing"),
        (ELASTIC.replace("[64, 512]", "[512, 64]"), 7, "batch = [512, 64] is no range"),
        (ELASTIC.replace("[32, 128]", "[0, 128]"), 8, "local_batch = [0, 128] is no range"),
        (ELASTIC.replace("[64, 512]", "[64]"), 7, "batch"),
        (ELASTIC + "least = 5\n", 9, "least is 5 and most is 4"),
        (ELASTIC + "least = 3\n", 9, "3 devices of at least 32 samples are more than the smallest batch, 64"),
        (ELASTIC.replace("most = 4", "most = 17"), 6, "17 devices of at least 32 samples are more than the largest"),
        (ELASTIC + "every_s = 0\n", 9, "every_s"),
        (ELASTIC + "sizes = 3\n", 9, "the key 'sizes' is unknown"),
        ('container = "image"\n' + ELASTIC, 1, "[elastic] and container exclude each other"),
    ],
)
def test_a_size_that_cannot_be_meant_is_refused(sweep: Reader, text: str, line: int, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        sweep(text)
    assert f"line {line}: " in refused.value.message
    assert said in refused.value.message


def test_a_fused_sweep_cannot_be_elastic(sweep: Reader) -> None:
    pytest.importorskip("torch")
    text = '[fused]\nprogram = "models.py"\nepochs = 2\n' + ELASTIC.partition("\n")[2]
    with pytest.raises(UsageError, match=r"\[elastic\] and fused exclude each other"):
        sweep(text)


def test_a_pool_with_fewer_devices_than_a_trial_needs_is_refused(sweep: Reader, tmp_path: Path) -> None:
    sweep(ELASTIC + "least = 2\n")
    with pytest.raises(UsageError, match="need at least 2 devices, and 1 are there"):
        plan_pools([tmp_path / "sweep.toml"], kind="cpu", slots=1)
    assert len(plan_pools([tmp_path / "sweep.toml"], kind="cpu", slots=2)[0].devices) == 2


def test_each_slot_of_a_cpu_is_a_device_where_sizes_change() -> None:
    devices = find_devices(kind="cpu", slots=4, memory_mib=4000.0, split=True)
    assert [device.name for device in devices] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert {(device.slots, device.memory_mib, device.places) for device in devices} == {(1, 1000.0, 1)}
