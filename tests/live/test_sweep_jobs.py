"""A sweep whose workers are jobs of a real Slurm: asked for, used, and gone when it is over."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helios.app.history import read_file
from helios.app.sweep import SweepWorker, cross_options, fingerprint_history, read_sweep_plan
from helios.app.whatif import WhatIfRequest
from helios.ingest import write_helios_csv
from tests.live.rig import Rig
from tests.unit.app.test_resampling import a_site
from tests.waiting import TEST_TIMEOUT_S

pytest.importorskip("dask_jobqueue", reason="the extra [jobqueue] is not installed")
PLAN = """
policies = ["fifo", "sjf"]
backfills = ["none"]
run_times = ["true"]
settings = {{ nodes = ["gpu=1", "gpu=2"] }}
[slurm]
jobs = 2
cores = 1
memory = "1GB"
walltime = "00:10:00"
queue = "{queue}"
local_directory = "{folder}"
log_directory = "{folder}/logs"
"""


def swept(rig: Rig, folder: Path, *, queue: str) -> subprocess.CompletedProcess[str]:
    """Sweep on the rig's Slurm."""
    (folder / "plan.toml").write_text(PLAN.format(folder=folder, queue=queue))
    write_helios_csv(a_site(1.0, jobs=100).jobs, folder / "lab.csv")
    command = "whatif --trace lab.csv --gpus-per-node 4 --sweep plan.toml --dask slurm"
    return subprocess.run(
        [sys.executable, "-m", "helios", *command.split()],
        cwd=folder,
        env=rig.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_TIMEOUT_S,
    )


def test_a_sweep_runs_as_jobs_of_this_slurm_and_leaves_none(rig: Rig, tmp_path: Path) -> None:
    done = swept(rig, tmp_path, queue="gpu")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "plan.results.jsonl").read_text().splitlines()]
    history = read_file(tmp_path / "lab.csv")
    cells = cross_options(
        read_sweep_plan(tmp_path / "plan.toml"),
        base=WhatIfRequest(scenarios=(), gpus_per_node=4),
        timezone=history.timezone,
    ).cells
    here = {cell.key(fingerprint_history(history)): SweepWorker(history).run(cell)["figures"] for cell in cells}
    assert {line["key"]: line["figures"] for line in lines} == here
    assert len(here) == 8
    rig.until(lambda: not rig.lines("squeue", "-h", "-o", "%i"))
    ran = ("sacct", "-n", "-X", "-P", "-o", "JobName,Partition", "--name=dask-worker")
    rig.until(lambda: rig.lines(*ran))  # the accounting learns of them when it learns of them
    assert {*rig.lines(*ran)} == {"dask-worker|gpu"}


def test_what_slurm_refuses_is_told(rig: Rig, tmp_path: Path) -> None:
    done = swept(rig, tmp_path, queue="nowhere")
    assert done.returncode == 1, done.stderr
    assert "Slurm refuses such jobs" in done.stderr
    assert "nvalid partition" in done.stderr
    assert "Traceback" not in done.stderr
