"""Sweeps are simulated with changing sizes beside fixed ones, from what their programs reported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helios.errors import UsageError
from helios.model.trial_runs import TrialRun
from helios.training.model import TrialState
from helios.training.past_runs import keep_runs
from helios.training.pool.state import StateFile, run_entry
from helios.training.pool.sweep import program
from helios.training.pool.sweep_file import read_training_sweep
from helios.training.whatif_elastic import elastic_whatif
from helios.warehouse import Warehouse
from tests.unit.training.elastic_sim.models import write_model

SWEEP = """
command = "python train.py {lr}"
[parameters]
lr = [0.1, 0.2]
[elastic]
most = 2
batch = [64, 64]
local_batch = [8, 64]
epochs = 100
"""
STEPS = {1: 1.0, 2: 0.5}
"""Seconds of a step by devices, of which a trial takes a thousand."""
START_S = 30.0
"""What a start is taken to cost."""


def write_pool(
    sweep: Path, steps: Mapping[int, float], *, pause_s: float | None = None, start_s: float | None = None
) -> Path:
    """Write a pool where a trial has shown that it takes a thousand steps of these seconds."""
    read = read_training_sweep(sweep)
    assert read.elastic is not None
    smallest = read.elastic.batch[0]
    sizes: dict[str, Any] = {
        "smallest": smallest,
        "batch": 64,
        "work": 1_000.0,
        "epochs": 100,
        "square": 1.0,
        "variance": 64.0,
    }
    sizes |= {"steps": [[1, devices, 64 // devices, step_s, 0.0] for devices, step_s in steps.items()]}
    sizes |= {} if pause_s is None else {"pause_s": pause_s}
    run = TrialRun(
        pool="", number=0, attempt=1, program=program(read), family="train.py", parameters={}, device_kind="cpu",
        device_model="1 core", outcome="interrupted", started_s=0.0, seconds=100.0, start_up_s=start_s, sizes=sizes,
    )  # fmt: skip
    folder = sweep.with_suffix(".pool")
    with StateFile(folder, {"command": ["python", "train.py", "{lr}"]}) as state:
        state.record_created(0, {"lr": 0.1})
        state.record_started(0, devices=["cpu:0"], memory_limit_mib=None)
        ended: dict[str, Any] = {
            "state": TrialState.WAITING,
            "seconds": 100.0,
            "peak_memory_mib": None,
            "metrics": {},
            "value": None,
        }
        state.record_ended(0, what="interrupted", **ended, run=run_entry(run))
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def test_fixed_sizes_end_as_measured_steps_say(sweep: Path) -> None:
    write_pool(sweep, STEPS)
    found = elastic_whatif(sweep, gpus=2).to_json()["rules"]
    assert found["fixed 1"]["trials_s"] == pytest.approx([1_000 + START_S] * 2, abs=1)
    # The second begins at the decision after the end of the first, on both GPUs as that one.
    assert found["fixed 2"]["trials_s"] == pytest.approx([500 + START_S, 540 + 500 + START_S], abs=1)
    assert found["fixed 1"]["gpu_hours"] == pytest.approx(2 * 1_030 / 3_600, rel=1e-3)
    assert found["fixed 1"]["idle_share"] == pytest.approx(0.0, abs=1e-3)
    assert found["fixed 2"]["idle_share"] == pytest.approx(10 / 1_070, abs=2e-3)


def test_slowdown_is_against_an_equal_share(sweep: Path) -> None:
    write_pool(sweep, STEPS)
    found = elastic_whatif(sweep, gpus=2).to_json()["rules"]
    assert found["fixed 1"]["worst_slowdown"] == pytest.approx(1.0)
    assert found["fixed 2"]["worst_slowdown"] == pytest.approx(1_070 / 1_030, rel=2e-3)
    # On one device one waits for the other until the decision at 1,080 s, and 3,140 / 2,110 were there in the mean.
    alone = elastic_whatif(sweep, gpus=1).to_json()["rules"]["fixed 1"]
    assert alone["worst_slowdown"] == pytest.approx(2_110 / (1_030 * 3_140 / 2_110), rel=2e-3)


def test_the_service_is_that_of_a_pool(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("[0.1, 0.2]", "[0.1]"))
    write_pool(sweep, STEPS)
    found = elastic_whatif(sweep, gpus=2)
    # Trials of the family ran on both devices, so that a new one begins there.
    assert [span.gpus for span in found.rules["elastic"].spans] == [2]
    found = elastic_whatif(sweep, gpus=2, options={"rule": "fixed"})
    assert [span.gpus for span in found.rules["elastic"].spans] == [1]
    assert 'elastic has the option rule = "fixed".' in found.notes


def test_equal_trials_end_about_as_soon_as_on_the_best_size(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("[0.1, 0.2]", "[0.1, 0.2, 0.3, 0.4]").replace("most = 2", "most = 4"))
    write_pool(sweep, {devices: 10 / devices for devices in (1, 2, 4)})
    found = elastic_whatif(sweep, gpus=4).to_json()["rules"]
    best_s = min(outcome["mean_s"] for rule, outcome in found.items() if rule != "elastic")
    assert found["elastic"]["mean_s"] < 1.1 * best_s


@pytest.mark.parametrize(("every_s", "sizes"), [(1.0, [2, 4]), (1e5, [2])])
def test_no_trial_changes_more_often_than_its_sweep_allows(sweep: Path, every_s: float, sizes: list[int]) -> None:
    sweep.write_text(SWEEP.replace("[0.1, 0.2]", "[0.1]").replace("most = 2", f"most = 4\nevery_s = {every_s}"))
    write_pool(sweep, {1: 1.0})
    assert [span.gpus for span in elastic_whatif(sweep, gpus=4).rules["elastic"].spans] == sizes


def test_a_trial_never_has_fewer_devices_than_its_least(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("most = 2", "least = 2\nmost = 2"))
    write_pool(sweep, STEPS)
    found = elastic_whatif(sweep, gpus=3)
    assert {span.gpus for outcome in found.rules.values() for span in outcome.spans} == {2}
    assert found.rules.keys() == {"elastic", "fixed 2"}


def test_time_on_sizes_that_never_ran_is_told(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("most = 2", "most = 4"))
    write_pool(sweep, STEPS)
    found = elastic_whatif(sweep, gpus=4)
    assert found.to_json()["rules"]["fixed 2"]["measured_share"] == 1.0
    assert found.to_json()["rules"]["fixed 4"]["measured_share"] == 0.0
    assert any("extrapolated" in note and "fixed 4 0 %" in note for note in found.notes)


def test_perfect_scaling_is_never_assumed_silently(sweep: Path) -> None:
    folder = write_pool(sweep, {1: 1.0})
    assert any("communication is taken to cost nothing" in note for note in elastic_whatif(sweep, gpus=2).notes)
    shutil.rmtree(folder)
    write_pool(sweep, STEPS)
    assert not any("communication" in note for note in elastic_whatif(sweep, gpus=2).notes)


@pytest.mark.parametrize(
    ("pause_s", "start_s", "told"),
    [
        (None, None, "30 s, which is assumed, and so does a change"),
        (None, 8.0, "8 s, and so does a change"),
        (4.2, 8.0, "8 s, and a change on a node 4 s."),
    ],
)
def test_a_change_costs_what_it_did(sweep: Path, pause_s: float | None, start_s: float | None, told: str) -> None:
    write_pool(sweep, STEPS, pause_s=pause_s, start_s=start_s)
    assert any(told in note for note in elastic_whatif(sweep, gpus=2).notes)


def test_a_larger_batch_is_worth_what_its_gradients_say(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("batch = [64, 64]\nlocal_batch", "batch = [32, 64]\nlocal_batch"))
    write_pool(sweep, STEPS)
    # A step of 64 is worth 65 / (64 / 2 + 1) steps of 32, and the progress is told in steps of 32.
    expected_s = 1_000 * 33 / 65 + START_S
    found = elastic_whatif(sweep, gpus=2).to_json()["rules"]
    assert found["fixed 1"]["trials_s"] == pytest.approx([expected_s] * 2, rel=0.02)


def test_what_never_ran_is_refused_with_what_to_do(sweep: Path) -> None:
    with pytest.raises(UsageError, match="is not known") as told:
        elastic_whatif(sweep, gpus=2)
    assert "helios pool run" in told.value.hint
    assert "--profiles" in told.value.hint


def test_a_sweep_of_fixed_size_is_refused(sweep: Path) -> None:
    sweep.write_text(SWEEP.partition("[elastic]")[0])
    with pytest.raises(UsageError, match="may change their size"):
        elastic_whatif(sweep, gpus=2)


def test_a_service_that_changes_no_sizes_is_refused(sweep: Path) -> None:
    with pytest.raises(UsageError, match="changes no sizes"):
        elastic_whatif(sweep, gpus=2, service="packing")


@pytest.mark.parametrize(("gpus", "per_node", "told"), [(6, 4, "no whole nodes"), (1, None, "2 GPUs at least")])
def test_a_pool_that_is_too_small_or_uneven_is_refused(sweep: Path, gpus: int, per_node: int | None, told: str) -> None:
    sweep.write_text(SWEEP.replace("most = 2", "least = 2\nmost = 2"))
    write_pool(sweep, STEPS)
    with pytest.raises(UsageError, match=told):
        elastic_whatif(sweep, gpus=gpus, gpus_per_node=per_node)


def test_profiles_stand_in_for_earlier_runs(sweep: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "sweep")
    sweep.write_text(
        SWEEP.replace("[64, 64]", "[10, 640]").replace("[8, 64]", "[10, 40]").replace("epochs = 100", "epochs = 2")
    )
    found = elastic_whatif(sweep, gpus=2, profiles=tmp_path)
    assert not any("extrapolated" in note for note in found.notes)
    assert found.to_json()["rules"]["elastic"]["mean_s"] > START_S


def test_a_profile_of_other_batches_is_refused(sweep: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "sweep")
    sweep.write_text(SWEEP.replace("epochs = 100", "epochs = 2"))
    with pytest.raises(UsageError, match="is 64, and 10 was measured"):
        elastic_whatif(sweep, gpus=2, profiles=tmp_path)


def helios(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "helios", "pool", "whatif", "sweep.toml", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_command_tells_and_draws(sweep: Path) -> None:
    write_pool(sweep, STEPS)
    answer = helios(sweep.parent, "--elastic", "--gpus", "2", "--report", "sizes.html", "--json")
    assert answer.returncode == 0, answer.stderr
    assert {"elastic", "fixed 1", "fixed 2"} == json.loads(answer.stdout)["rules"].keys()
    assert "<svg" in (sweep.parent / "sizes.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"), [(["--elastic", "--run-time", "20min"], "--run-time"), (["--report", "a.html"], "--elastic")]
)
def test_options_without_a_meaning_are_refused(sweep: Path, words: list[str], told: str) -> None:
    answer = helios(sweep.parent, "--gpus", "2", *words)
    assert answer.returncode == 2
    assert told in answer.stderr


def test_other_questions_import_nothing_of_it() -> None:
    code = "import sys, helios.training.whatif, helios.training.whatif_report; print([*sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "whatif_elastic" not in answer.stdout
    assert "elastic_sim" not in answer.stdout


def test_runs_in_the_warehouse_are_earlier_runs(sweep: Path) -> None:
    database = f"sqlite:///{sweep.parent / 'helios.db'}"
    folder = write_pool(sweep, STEPS)
    with Warehouse.open(database):
        keep_runs(database, [folder])
    shutil.rmtree(folder)
    assert elastic_whatif(sweep, gpus=2, database=database).rules.keys() == {"elastic", "fixed 1", "fixed 2"}
