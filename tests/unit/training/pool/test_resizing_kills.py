"""Pools of trials of changing size that are killed at random moments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from helios.training.pool.state import FILE
from tests.json_lines import whole_lines
from tests.unit.training.pool.sizes_service import add_sizes_service
from tests.unit.training.pool.test_coordinator import pool_processes
from tests.unit.training.pool.test_resizing import PROGRAM, seen
from tests.waiting import until

SWEEP = f"""
command = "{sys.executable} {PROGRAM} {{how}}"
[parameters]
how = ["takes"]
[elastic]
most = 4
batch = [32, 256]
local_batch = [8, 64]
every_s = 1
[service]
name = "sizes"
sizes = "3,2,4,1"
again = true
"""


def reports(folder: Path) -> list[dict[str, Any]]:
    return whole_lines(folder / "sweep.pool" / "trials" / "00000" / "report.jsonl")


def kill_at_random(folder: Path, *, kills: int, seed: int) -> None:
    """Kill the coordinator, the program or a worker so often, and check that nothing reported was lost."""
    random = Random(seed)
    add_sizes_service(folder / "site")
    (folder / "sweep.toml").write_text(SWEEP)
    path = os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[4])])
    words = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--slots", "4", "--device", "cpu"]

    def start() -> subprocess.Popen[bytes]:
        log = (folder / "pool.log").open("ab")
        with log:
            return subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": path})

    def goes_on(more: int) -> Callable[[], bool]:
        before = len(reports(folder))
        return lambda: len(reports(folder)) >= before + more

    pool = start()
    for _ in range(kills):
        until(goes_on(random.randrange(1, 60)))
        victim = random.choice(["coordinator", "program", "worker"])
        if victim == "coordinator":
            pool.send_signal(signal.SIGKILL)
            pool.wait()
            pool = start()
        elif victim == "program":
            with suppress(ProcessLookupError):
                os.kill(seen(folder)[-1]["pid"], signal.SIGKILL)
        else:
            (folder / "lose").touch()
    until(goes_on(5))
    (folder / "go").touch()
    assert pool.wait() == 0, (folder / "pool.log").read_text()
    steps = [line["step"] for line in reports(folder) if "loss" in line]
    assert steps == sorted({*steps})  # none was made twice, so none that was reported was lost
    entries = [json.loads(line) for line in (folder / "sweep.pool" / FILE).read_text().splitlines()]
    whats = [entry.get("what") for entry in entries]
    assert whats.count("finished") == 1
    assert "resized" in whats
    assert pool_processes(folder / "sweep.pool") == []


def test_killed_at_random_no_reported_step_is_lost(tmp_path: Path) -> None:
    kill_at_random(tmp_path, kills=5, seed=3)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_fifty_moments_no_reported_step_is_lost(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, kills=10, seed=100 + seed)
