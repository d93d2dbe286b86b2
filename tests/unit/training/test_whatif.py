"""A sweep is simulated from what earlier runs needed, and from what a person says."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helios.errors import FileUnreadable, UsageError
from helios.model.trial_runs import MeasuredSpeed, TrialRun
from helios.training.past_runs import keep_runs
from helios.training.pool.provenance import own_name
from helios.training.run import run_pool
from helios.training.whatif import pool_whatif
from helios.training.whatif_report import pool_whatif_table
from helios.warehouse import Warehouse

SWEEP = """
command = "sleep {seconds} {lr}"
memory = "4G"
[parameters]
seconds = [1, 2]
lr = [0.1, 0.2, 0.3, 0.4]
"""
TOLD: dict[str, Any] = {"gpus": 2, "memory_mib": 16_384.0, "run_time_s": 1_000.0}
RULES = {"exclusive", "fixed 2", "fixed 4", "fixed 8", "packing", "oracle"}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def a_run(number: int, seconds: int, **values: Any) -> TrialRun:
    usual: dict[str, Any] = {
        "pool": "p",
        "attempt": 1,
        "program": "sleep",
        "family": f"sleep seconds={seconds}",
        "parameters": {"seconds": seconds, "lr": 0.1 * number},
        "device_kind": "gpu",
        "outcome": "finished",
        "started_s": 0.0,
        "seconds": 500.0 * seconds,
        "peak_memory_mib": 3_000.0,
    }
    return TrialRun(number=number, **(usual | values))


def pair(first: int, second: int, share: float) -> tuple[MeasuredSpeed, ...]:
    """Speeds alone, 10 steps a second, and beside another family."""
    beside = (f"sleep seconds={second}",)
    return (
        MeasuredSpeed(beside=(), steps_per_s=10.0 * first, seconds=60.0),
        MeasuredSpeed(beside=beside, steps_per_s=10.0 * first * share, seconds=60.0),
    )


def stored(sweep: Path, runs: list[TrialRun], name: str = "helios.db") -> str:
    """Store runs as those of who runs the tests, and return the database."""
    database = f"sqlite:///{sweep.with_name(name)}"
    with Warehouse.open(database) as warehouse:
        warehouse.add_trial_runs(runs, user=own_name())
    return database


def test_every_rule_is_told_with_its_range(sweep: Path) -> None:
    found = pool_whatif(sweep, watts=(50.0, 300.0), **TOLD).to_json()
    low, high = found["comparisons"]
    assert (low["gain_of_unmeasured_pairs"], high["gain_of_unmeasured_pairs"]) == (1.0, 1.87)
    assert set(low["rules"]) == set(high["rules"]) == RULES
    assert low["rules"]["exclusive"] == high["rules"]["exclusive"] | {"share_of_oracle_gain": 0.0}
    # Eight trials of 980 s after their start on two GPUs.
    exclusive = high["rules"]["exclusive"]
    assert exclusive["makespan_s"] == pytest.approx(4 * 1_000.0)
    assert exclusive["energy_kwh"] == pytest.approx(2 * 4_000 * 300 / 3.6e6, rel=0.01)
    assert high["rules"]["oracle"]["makespan_s"] < 0.65 * exclusive["makespan_s"]
    json.dumps(found, allow_nan=False)


def test_what_nothing_tells_is_asked_for(sweep: Path) -> None:
    with pytest.raises(UsageError, match="its run time, the memory of a GPU") as told:
        pool_whatif(sweep, gpus=2)
    assert "--run-time 20min" in told.value.hint
    assert "--memory 16G" in told.value.hint
    sweep.write_text(SWEEP.replace('memory = "4G"', ""))
    with pytest.raises(UsageError, match="its memory"):
        pool_whatif(sweep, **TOLD)
    with pytest.raises(UsageError, match="not possible"):
        pool_whatif(sweep, gains=(0.1, 3.0), **TOLD)


def test_without_gpus_here_it_asks_how_many(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="what to simulate"):
        pool_whatif(sweep, run_time_s=10.0)


def test_measured_pairs_need_no_range(sweep: Path) -> None:
    known = [
        a_run(0, 1, speeds=(*pair(1, 2, 0.9), *pair(1, 1, 0.9)[1:])),
        a_run(1, 2, speeds=(*pair(2, 1, 0.9), *pair(2, 2, 0.9)[1:])),
    ]
    found = pool_whatif(sweep, gpus=2, memory_mib=16_384.0, database=stored(sweep, known))
    assert list(found.comparisons) == [None]
    outcomes = found.comparisons[None].outcomes
    assert outcomes["fixed 2"].makespan_s < 0.7 * outcomes["exclusive"].makespan_s


def test_run_times_are_those_of_earlier_runs(sweep: Path) -> None:
    known = [a_run(number, 1 + number % 2) for number in range(8)]
    found = pool_whatif(sweep, gpus=1, memory_mib=16_384.0, database=stored(sweep, known))
    outcome = next(iter(found.comparisons.values())).outcomes["exclusive"]
    assert outcome.makespan_s == pytest.approx(4 * (500.0 + 1_000.0), rel=0.35)
    of_another = stored(sweep, [a_run(0, 1, program="other")], "other.db")
    other = pool_whatif(sweep, gpus=1, memory_mib=16_384.0, run_time_s=1.0, database=of_another)
    assert next(iter(other.comparisons.values())).outcomes["exclusive"].makespan_s < 400.0


def test_trials_without_steps_share_gpus_as_in_fixed_sharing(sweep: Path) -> None:
    known = [a_run(number, 1 + number % 2) for number in range(8)]
    found = pool_whatif(sweep, gpus=2, memory_mib=16_384.0, database=stored(sweep, known))
    assert any("no steps" in note for note in found.notes)
    for comparison in found.comparisons.values():
        ours, fixed = comparison.outcomes["packing"], comparison.outcomes["fixed 2"]
        assert ours.makespan_s <= 1.05 * fixed.makespan_s


def test_energy_is_measured_or_told_or_not_known(sweep: Path) -> None:
    assert "not known" in text(pool_whatif(sweep, **TOLD))
    known = [a_run(0, 1, energy_j=500.0 * 200.0)]
    found = pool_whatif(sweep, database=stored(sweep, known), **TOLD)
    assert found.watts is not None
    assert math.isnan(found.watts[0])
    assert found.watts[1] == pytest.approx(200.0)
    assert "idle ones is not known" in text(found)


def test_the_table_fits_a_terminal_also_where_each_cell_is_a_range(sweep: Path) -> None:
    lines = text(pool_whatif(sweep, **TOLD | {"run_time_s": 100_000.0}, watts=(60.0, 300.0))).splitlines()
    table = lines[: lines.index("")]
    assert sum(line.count(" to ") for line in table[2:]) > 5
    assert max(len(line.rstrip()) for line in table) <= 80


def text(found: Any) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - it is recorded
    console.print(pool_whatif_table(found))
    return console.export_text()


def test_too_large_a_device_demand_is_counted(sweep: Path) -> None:
    found = pool_whatif(sweep, gpus=2, memory_mib=7_000.0, run_time_s=1_000.0)
    for comparison in found.comparisons.values():
        assert comparison.outcomes["fixed 2"].out_of_memory > 0
        assert comparison.outcomes["packing"].out_of_memory == 0


def test_a_folder_that_is_no_pool_is_refused(sweep: Path, tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable, match="cannot be read"):
        pool_whatif(sweep, folders=[tmp_path], **TOLD)


def a_project(folder: Path) -> Path:
    """A folder with a program and a sweep of it, whose sweep file is returned."""
    folder.mkdir()
    (folder / "train.py").write_text("")
    command = f'command = "{sys.executable} train.py {{x}}"\nmemory = "1G"\n'
    (folder / "sweep.toml").write_text(command + "[parameters]\nx = [1, 2]\n")
    return folder / "sweep.toml"


def test_a_program_of_the_same_name_elsewhere_tells_nothing(tmp_path: Path) -> None:
    one, other = a_project(tmp_path / "one"), a_project(tmp_path / "other")
    run_pool(one, kind="cpu")
    database = f"sqlite:///{tmp_path}/helios.db"
    keep_runs(database, [tmp_path / "one" / "sweep.pool"])
    pool_whatif(one, gpus=1, memory_mib=2_048.0, database=database)
    with pytest.raises(UsageError, match="run time"):
        pool_whatif(other, gpus=1, memory_mib=2_048.0, database=database)


def test_a_pool_that_was_moved_tells_of_its_program(tmp_path: Path) -> None:
    run_pool(a_project(tmp_path / "before"), kind="cpu")
    (tmp_path / "before").rename(tmp_path / "after")
    found = pool_whatif(tmp_path / "after" / "sweep.toml", gpus=1, memory_mib=2_048.0)
    assert any("2 runs" in note for note in found.notes)


def test_typed_values_stand_above_earlier_runs(sweep: Path) -> None:
    speeds = {number: (*pair(number, 2, 0.6), *pair(number, 1, 0.6)[1:]) for number in (1, 2)}
    known = [a_run(number, 1 + number % 2, speeds=speeds[1 + number % 2]) for number in range(8)]
    known.append(a_run(8, 1, energy_j=500.0 * 200.0))
    database = stored(sweep, known)
    environment = {**os.environ, "HELIOS_DATABASE_URL": database}
    asked = ["pool", "whatif", sweep.name, "--gpus", "2", "--memory", "16G", "--json"]
    typed = ["--run-time", "10min", "--gain", "1.5,1.6", "--watts", "50,300"]
    said = subprocess.run(
        [sys.executable, "-m", "helios", *asked, *typed],
        cwd=sweep.parent, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(said.stdout)
    assert [each["gain_of_unmeasured_pairs"] for each in found["comparisons"]] == [1.5, 1.6]
    alone = found["comparisons"][0]["rules"]["exclusive"]
    assert alone["makespan_s"] == pytest.approx(4 * 600.0)
    assert alone["energy_kwh"] == pytest.approx(2 * 2_400 * 300 / 3.6e6, rel=0.01)
    said_so = "As typed, not as earlier runs had it: --run-time, memory of the sweep file, --gain, --watts."
    assert said_so in " ".join(said.stderr.split())


def test_memory_of_the_sweep_file_stands_above_earlier_runs(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("4G", "10G"))  # of which two do not fit into 16G
    found = pool_whatif(
        sweep, gpus=1, memory_mib=16_384.0, database=stored(sweep, [a_run(n, 1 + n % 2) for n in range(8)])
    )
    for comparison in found.comparisons.values():
        assert comparison.outcomes["oracle"].makespan_s == pytest.approx(comparison.outcomes["exclusive"].makespan_s)
