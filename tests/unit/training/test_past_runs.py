"""Runs of trials that a pool stores in the warehouse while it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from helios.training import past_runs
from helios.training.model import Device, TrialState
from helios.training.past_runs import shown_sizes
from helios.training.pool.state import read_runs
from helios.training.run import run_pool
from helios.warehouse import Warehouse
from tests.waiting import until

PROGRAM = """
import pathlib, sys, time
while sys.argv[1] == "1" and not pathlib.Path("go").exists():
    time.sleep(0.02)
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(past_runs, "KEEP_S", 0.1)
    monkeypatch.setattr(past_runs, "COST", 1)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "sweep.toml").write_text(f'command = "{sys.executable} train.py {{x}}"\n[parameters]\nx = [0, 1]\n')
    return tmp_path / "sweep.toml"


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    with Warehouse.open(f"sqlite:///{tmp_path / 'helios.db'}") as opened:
        yield opened


def test_a_running_pool_is_in_the_warehouse(sweep: Path, warehouse: Warehouse) -> None:
    database = f"sqlite:///{sweep.with_name('helios.db')}"
    pool = Thread(target=run_pool, args=[sweep], kwargs={"kind": "cpu", "slots": 2, "database": database})
    pool.start()
    try:
        until(lambda: [run.number for run in warehouse.trial_runs()] == [0])
    finally:
        sweep.with_name("go").touch()
        pool.join()
    assert sorted(run.number for run in warehouse.trial_runs()) == [0, 1]


def test_a_database_that_fails_does_not_fail_the_pool(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(database: str | None, folder: Path) -> str:
        tried.append(folder)
        if len(tried) == 1:
            raise OSError("no database")
        sweep.with_name("go").touch()
        return "it failed"

    monkeypatch.setattr(past_runs, "keep_if_possible", fail)
    found = run_pool(sweep, kind="cpu", slots=2, database="sqlite:///none.db")
    assert {trial["state"] for trial in found.trials} == {TrialState.FINISHED}
    assert len(tried) >= 2


def test_sizes_shown_on_other_devices_are_left_out(sweep: Path) -> None:
    sweep.with_name("go").touch()
    run_pool(sweep, kind="cpu", slots=2)
    run, *_ = read_runs(sweep.with_suffix(".pool"))
    device = Device(name="cpu:0", kind=run.device_kind, memory_mib=1.0, model=run.device_model)
    known = [replace(run, sizes={"smallest": 32})]
    assert shown_sizes(known, device) == {run.family: [{"smallest": 32}]}
    assert shown_sizes(known, replace(device, model="another")) == {}
