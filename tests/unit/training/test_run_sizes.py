"""Pools of trials of changing size that know what earlier pools of a program have shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from helios.training.pool.coordinator import Coordinator
from helios.training.run import run_pool
from helios.warehouse import Warehouse
from tests.unit.training.pool.test_coordinator import Watched
from tests.unit.training.pool.test_resizing import PROGRAM, of_kind

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
    """Lets programs end once one has told how long its steps take."""

    def refresh(self, pool: Coordinator) -> None:
        if any(
            trial.progress is not None and trial.elastic.measured for trial in pool.snapshot().trials if trial.elastic
        ):
            (pool.sweeps[0].sweep.cwd / "go").touch()


def first_devices(folder: Path, text: str = SWEEP, **given: Any) -> int:
    """Run a pool on four devices, and return on how many its first trial starts."""
    folder.mkdir()
    (folder / "sweep.toml").write_text(text)
    watched = UntilMeasured()
    given = {"kind": "cpu", "slots": 4, "service": "elastic", **given}
    run_pool(folder / "sweep.toml", watcher=watched, **given)
    return len(of_kind(watched.events, "started")[0]["devices"])


def test_a_second_pool_decides_by_what_the_first_measured(tmp_path: Path, database: str) -> None:
    assert first_devices(tmp_path / "a", database=database) == 1
    assert first_devices(tmp_path / "b", SWEEP.replace("[0.1]", "[0.2]"), database=database) == 2
