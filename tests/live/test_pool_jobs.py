"""Pools as jobs of a real Slurm: on several nodes, and several of them over one sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helios.training.pool.state import FILE
from tests.live.rig import Rig, roomy_folder, skip_without_slurm
from tests.unit.training.pool.test_devices import PYNVML
from tests.waiting import TEST_TIMEOUT_S

PROGRAM = """
import json, os, pathlib, sys, time
with open(f"ran-{sys.argv[1]}", "a") as file:
    file.write(os.environ["SLURM_JOB_ID"] + " " + os.environ["SLURMD_NODENAME"] + "\\n")
while not pathlib.Path("go").exists() and float(sys.argv[1]) < float(os.environ.get("HELD", 0)):
    time.sleep(0.05)
time.sleep(0.1)
with open(os.environ["HELIOS_REPORT"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": float(sys.argv[1])}) + "\\n")
"""
SHOW = """
from helios.training.pool.devices import device_environment, find_devices
for device in find_devices():
    cuda = device_environment(device)["CUDA_VISIBLE_DEVICES"]
    print(device.name, device.model, device.memory_mib, device.slots, cuda)
"""
GRID = "x = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]"
SEARCH = """x = { low = 1.0, high = 9.0 }
[search]
trials = 12
metric = "loss"
seed = 1
"""


@pytest.fixture
def folder() -> Path:
    return roomy_folder()


def submit(rig: Rig, folder: Path, *words: str, space: str = GRID, held: int = 0) -> list[str]:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "sweep.toml").write_text(
        f'command = "{sys.executable} program.py {{x}}"\nenv = {{ HELD = "{held}" }}\n[parameters]\n{space}\n'
    )
    command = [sys.executable, "-m", "helios", "pool", "submit", "sweep.toml", "--json", "--time", "10", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=rig.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    jobs: list[str] = json.loads(done.stdout)["jobs"]
    return jobs


def result(folder: Path, job: str) -> dict[str, Any]:
    text = (folder / "sweep.pool" / f"slurm-{job}.log").read_text()
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    return found


def ran(folder: Path) -> list[list[str]]:
    """Job and node of each start of a trial."""
    return [line.split() for file in sorted(folder.glob("ran-*")) for line in file.read_text().splitlines()]


def finished(folder: Path) -> Counter[int]:
    """How often each trial has a result in the state file."""
    lines = map(json.loads, (folder / "sweep.pool" / FILE).read_text().splitlines())
    return Counter(line["trial"] for line in lines if line.get("what") == "finished")


def wait(rig: Rig) -> None:
    rig.until(lambda: not rig.lines("squeue", "-h", "-o", "%i"))


def test_a_pool_of_two_nodes_runs_trials_in_steps_on_both(rig: Rig, folder: Path) -> None:
    (job,) = submit(rig, folder, "--nodes", "2", "--cpus", "2", "--slots", "2")
    wait(rig)
    found = result(folder, job)
    assert {trial["state"] for trial in found["trials"]} == {"finished"}
    nodes = {node for _, node in ran(folder)}
    assert len(nodes) == 2
    assert {device["name"].rpartition("/")[0] for device in found["devices"]} == {"", max(nodes)}
    assert set(finished(folder).values()) == {1}


@pytest.mark.parametrize("space", [GRID, SEARCH], ids=["grid", "search"])
def test_pools_share_a_sweep_and_run_each_trial_once(rig: Rig, folder: Path, space: str) -> None:
    pytest.importorskip("optuna")
    jobs = submit(rig, folder, "--pools", "3", "--cpus", "1", "--slots", "1", space=space)
    wait(rig)
    assert finished(folder) == dict.fromkeys(range(12), 1)
    assert {job for job, _ in ran(folder)} <= set(jobs)
    assert len({job for job, _ in ran(folder)}) > 1
    assert len(ran(folder)) == 12
    # Pools that draw at the same moment may draw the same point of a search; a grid has each once.
    assert len(list(folder.glob("ran-*"))) == 12 or space == SEARCH


def test_trials_of_a_pool_that_was_killed_are_taken_over(rig: Rig, folder: Path) -> None:
    jobs = submit(rig, folder, "--pools", "2", "--cpus", "1", "--slots", "1", held=2)
    rig.until(lambda: len({job for job, _ in ran(folder)}) == 2)  # each holds one of the first two
    victim = (folder / "ran-0").read_text().split()[0]
    rig.run("scancel", "--full", f"--signal={signal.SIGKILL.name[3:]}", victim)
    rig.until(lambda: rig.lines("squeue", "-h", "-o", "%i") == [other for other in jobs if other != victim])
    (folder / "go").touch()
    wait(rig)
    assert finished(folder) == dict.fromkeys(range(12), 1)
    assert {job for job, _ in ran(folder)} == set(jobs)
    assert len((folder / "ran-0").read_text().splitlines()) == 2


def test_a_job_of_shards_has_their_part_of_a_gpu() -> None:
    skip_without_slurm()
    settings = {"NAME": "shards", "NODES": "1", "GPUS": "2", "SHARDS": "8", "CPUS": "4"}
    rig, stand_in = Rig(roomy_folder(), settings=settings), roomy_folder()
    (stand_in / "pynvml.py").write_text(PYNVML)
    path = os.pathsep.join([str(stand_in), str(Path(__file__).parents[2])])
    try:
        rig.control("up")
        seen = rig.run("srun", "--gres=shard:2", "env", f"PYTHONPATH={path}", sys.executable, "-c", SHOW)
        assert seen == "gpu:0 Toy 800.0 1 GPU-a\n"  # 2 of its 4 shards are half of 1,600 MiB
        whole = rig.run("srun", "--gres=gpu:1", "env", f"PYTHONPATH={path}", sys.executable, "-c", SHOW)
        assert whole == "gpu:0 Toy 1000.0 1 GPU-a\n"
    finally:
        rig.control("wipe")
