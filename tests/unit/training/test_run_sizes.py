"""Pools of trials of changing size that know what earlier pools of a program have shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from helios.errors import UsageError
from helios.training.plan import plan_pools
from helios.training.pool.coordinator import Coordinator
from helios.training.pool.devices import Node
from helios.training.pool.orders import RETRY, give_order
from helios.training.run import run_pool, run_pools
from helios.warehouse import Warehouse
from tests.unit.training.pool.test_coordinator import Watched
from tests.unit.training.pool.test_resizing import FOUR, PROGRAM, of_kind, seen
from tests.unit.training.pool.test_resizing_nodes import another

SWEEP = f"""
command = "{sys.executable} {PROGRAM} {{how}} {{lr}}"
[parameters]
how = ["takes"]
lr = [0.1]
[elastic]
most = 4
batch = [32, 256]
local_batch = [8, 64]
epochs = 100
every_s = 1
"""


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    with Warehouse.open(url):
        return url


class UntilMeasured(Watched):
    """Makes a file once a program has told how long its steps take."""

    def __init__(self, name: str = "go") -> None:
        super().__init__()
        self._name = name

    def refresh(self, pool: Coordinator) -> None:
        if any(
            trial.elastic is not None and trial.elastic.measured for trial in pool.snapshot().trials if trial.devices
        ):
            (pool.sweeps[0].sweep.cwd / self._name).touch()


def run_elastic(folder: Path, makes: str = "go", **given: Any) -> list[Mapping[str, Any]]:
    """Run a pool on four devices, and return the starts of its trials."""
    watched = UntilMeasured(makes)
    run_pool(folder / "sweep.toml", watcher=watched, **{"kind": "cpu", "slots": 4, "service": "elastic", **given})
    return of_kind(watched.events, "started")


def first_devices(folder: Path, text: str = SWEEP, **given: Any) -> int:
    """Run a pool, and return on how many devices its first trial starts."""
    folder.mkdir()
    (folder / "sweep.toml").write_text(text)
    return len(run_elastic(folder, **given)[0]["devices"])


def test_a_second_pool_decides_by_what_the_first_measured(tmp_path: Path, database: str) -> None:
    assert first_devices(tmp_path / "a", database=database) == 1
    assert first_devices(tmp_path / "b", SWEEP.replace("[0.1]", "[0.2]"), database=database) == 2


def notes(folder: Path, *nodes: Node, text: str = SWEEP, **given: Any) -> str:
    """Return what a pool of four devices and other nodes would tell about a sweep."""
    (folder / "sweep.toml").write_text(text)
    with patch("helios.training.plan.find_nodes", return_value=nodes):
        (plan,) = plan_pools(**{"paths": [folder / "sweep.toml"], "kind": "cpu", "slots": 4, **given})
    return "\n".join(plan.lines())


@pytest.mark.parametrize(
    ("least", "most", "is_told"), [(5, 7, True), (5, 8, False), (1, 3, False), (9, 11, True), (9, 12, False)]
)
def test_sizes_without_whole_nodes_are_told(tmp_path: Path, least: int, most: int, is_told: bool) -> None:
    others = [another(tuple(replace(device, name=f"{node}/{device.name}") for device in FOUR)) for node in ("n2", "n3")]
    text = SWEEP.replace("most = 4", f"least = {least}\nmost = {most}").replace("[32, 256]", "[128, 256]")
    told = notes(tmp_path, *others, text=text, service="elastic")
    assert ("whole nodes of 4 devices" in told) == is_told


@pytest.mark.parametrize(("slots", "is_told"), [(1, True), (2, False)])
def test_a_pool_in_which_no_size_can_change_is_told(tmp_path: Path, slots: int, is_told: bool) -> None:
    told = notes(tmp_path, slots=slots, service="elastic")
    assert ("keep one device, since the pool has no more" in told) == is_told


def test_a_run_tells_it_as_well(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "go").touch()
    found = run_pool(tmp_path / "sweep.toml", kind="cpu", slots=1, service="elastic")
    assert any("keep one device" in note for note in found.notes)


@pytest.mark.parametrize("service", ["packing", "targets"])
def test_a_service_of_one_device_a_trial_is_refused_for_larger_ones(tmp_path: Path, service: str) -> None:
    with pytest.raises(UsageError, match=f"{service} starts each trial on one device"):
        notes(tmp_path, text=SWEEP.replace("most = 4", "least = 2\nmost = 4"), service=service)


DIES = """
import os, pathlib, sys, threading, time

def watch():
    while not pathlib.Path("die").exists():
        time.sleep(0.02)
    os._exit(3)

threading.Thread(target=watch, daemon=True).start()
del sys.argv[0]
exec(pathlib.Path(sys.argv[0]).read_text())
"""


def test_a_retried_trial_goes_on_with_what_it_has_measured(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    text = SWEEP.replace(str(PROGRAM), f"dies.py {PROGRAM}")
    (tmp_path / "sweep.toml").write_text(f"attempts = 1\n{text}")
    (first, *_) = run_elastic(tmp_path, "die")
    give_order(tmp_path / "sweep.pool", RETRY, [0], who="somebody")
    (tmp_path / "die").unlink()
    (second, *_) = run_elastic(tmp_path)
    assert [len(each["devices"]) for each in (first, second)] == [1, 2]
    begun = [line["step"] for line in seen(tmp_path) if "given" in line]
    assert begun[0] < begun[1]


def test_a_sweep_of_fixed_size_has_devices_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "fixed.toml").write_text(
        f'command = "{sys.executable} {PROGRAM} {{how}}"\n[parameters]\nhow = ["plain", "plain "]\n'
    )
    (tmp_path / "sweep.toml").write_text(SWEEP)
    watched = UntilMeasured()
    paths = [tmp_path / "sweep.toml", tmp_path / "fixed.toml"]
    found = run_pools(paths, kind="cpu", slots=4, service="elastic", watcher=watched)
    started = of_kind(watched.events, "started")
    devices = [name for event in started for name in event["devices"]]
    assert sorted(event["sweep"] for event in started) == ["fixed.toml", "fixed.toml", "sweep.toml"]
    assert len({*devices}) == len(devices)
    assert {trial["state"] for result in found for trial in result.trials} == {"finished"}
