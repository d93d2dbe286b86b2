"""Trials that change their size over the nodes of a job of a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from helios.training.pool.state import FILE
from tests.live.rig import Rig, roomy_folder
from tests.live.test_pool_jobs import result, wait
from tests.unit.training.pool.sizes_service import add_sizes_service
from tests.unit.training.pool.test_resizing import PROGRAM, seen
from tests.waiting import TEST_TIMEOUT_S


def lines_of(folder: Path, what: str) -> list[dict[str, Any]]:
    path = folder / "sweep.pool" / FILE
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if line.get("what") == what]


def test_a_trial_spreads_over_the_nodes_of_a_job_and_comes_back(rig: Rig) -> None:
    folder = roomy_folder()
    add_sizes_service(folder / "site")
    shutil.copy(PROGRAM, folder / "program.py")
    (folder / "sweep.toml").write_text(
        f'command = "{sys.executable} program.py {{how}}"\n[parameters]\nhow = ["takes"]\n'
        "[elastic]\nmost = 4\nbatch = [32, 256]\nlocal_batch = [8, 64]\nevery_s = 1\n"
    )
    command = [sys.executable, "-m", "helios", "pool", "submit", "sweep.toml", "--json", "--time", "10"]
    command += ["--nodes", "2", "--cpus", "2", "--slots", "2", "--service", "sizes"]
    path = os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[2])])
    environment = rig.environment | {"PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["jobs"]
    rig.until(lambda: len(lines_of(folder, "resized")) == 2)
    (folder / "go").touch()
    wait(rig)
    sizes = [(len(line["devices"]), line["in_place"]) for line in lines_of(folder, "resized")]
    assert sizes == [(4, False), (1, False)]
    assert {line["given"].get("node") for line in seen(folder) if "given" in line} == {0, 1}
    (trial,) = result(folder, job)["trials"]
    assert (trial["state"], trial["changes"], trial["attempts"]) == ("finished", 2, 3)
