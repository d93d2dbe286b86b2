"""Trials that change their size over the nodes of a job of a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helios.training.pool.state import FILE
from tests.live.rig import Rig, roomy_folder
from tests.live.test_pool_jobs import result, wait
from tests.unit.training.pool.sizes_service import add_sizes_service
from tests.unit.training.pool.test_resizing import PROGRAM, seen
from tests.waiting import TEST_TIMEOUT_S

ROOT = Path(__file__).parents[2]


def lines_of(folder: Path, what: str) -> list[dict[str, Any]]:
    path = folder / "sweep.pool" / FILE
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if line.get("what") == what]


TRAINS = """
import torch
from helios.training.elastic import Training
import helios_task, pathlib, time

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
model = torch.nn.Linear(8, 1)
training = Training(model, torch.optim.SGD(model.parameters(), lr=0.01), data, batch=32, epochs=100_000)
for epoch in training:
    for x, y in epoch:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        training.step()
    if training.first:
        training.save()
        if helios_task.report(step=training.updates, loss=loss) or pathlib.Path("go").exists():
            pathlib.Path("ended").write_text(str(training.workers))
    time.sleep(0.2)
    if pathlib.Path("ended").exists():
        break
"""


def submit(rig: Rig, folder: Path, command: str) -> str:
    """Submit a trial that is to have four devices of two nodes, then one, and return its job."""
    add_sizes_service(folder / "site")
    (folder / "sweep.toml").write_text(
        f'command = "{command} {{how}}"\n[parameters]\nhow = ["takes"]\n'
        "[elastic]\nmost = 4\nbatch = [32, 256]\nlocal_batch = [8, 64]\nevery_s = 1\n"
    )
    words = [sys.executable, "-m", "helios", "pool", "submit", "sweep.toml", "--json", "--time", "10"]
    words += ["--nodes", "2", "--cpus", "2", "--slots", "2", "--service", "sizes"]
    path = os.pathsep.join([str(folder / "site"), str(ROOT), str(ROOT / "task")])
    environment = rig.environment | {"PYTHONPATH": path}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    return str(job)


def test_a_trial_spreads_over_the_nodes_of_a_job_and_comes_back(rig: Rig) -> None:
    folder = roomy_folder()
    shutil.copy(PROGRAM, folder / "program.py")
    job = submit(rig, folder, f"{sys.executable} program.py")
    rig.until(lambda: len(lines_of(folder, "resized")) == 2)
    (folder / "go").touch()
    wait(rig)
    sizes = [(len(line["devices"]), line["in_place"]) for line in lines_of(folder, "resized")]
    assert sizes == [(4, False), (1, False)]
    assert {line["given"].get("node") for line in seen(folder) if "given" in line} == {0, 1}
    (trial,) = result(folder, job)["trials"]
    assert (trial["state"], trial["changes"], trial["attempts"]) == ("finished", 2, 3)


@pytest.mark.nightly
def test_a_training_spreads_over_the_nodes_of_a_job_and_comes_back(rig: Rig) -> None:
    pytest.importorskip("torch")
    folder = roomy_folder()
    (folder / "train.py").write_text(TRAINS)
    job = submit(rig, folder, f"{sys.executable} -m helios.training.elastic train.py")
    rig.until(lambda: len(lines_of(folder, "resized")) == 2 or lines_of(folder, "failed"))
    (folder / "go").touch()
    wait(rig)
    (trial,) = result(folder, job)["trials"]
    assert (trial["state"], trial["changes"]) == ("finished", 2)
    reports = (folder / "sweep.pool/trials/00000/report.jsonl").read_text().splitlines()
    told = [json.loads(line).get("elastic", {}) for line in reports]
    assert {(each.get("devices"), each.get("nodes")) for each in told} >= {(4, 2), (1, 1)}
