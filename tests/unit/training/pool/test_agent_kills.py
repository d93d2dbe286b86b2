"""Kills at random moments of everything that a pool consists of, with shares in force."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from helios.training.pool.control_groups import cpu_groups
from helios.training.pool.state import FILE
from tests.unit.training.pool.test_coordinator import pool_processes
from tests.waiting import until

ROOT = Path(__file__).parents[4]
TRIALS = 6
LONGEST_PAUSE_S = 2.0
"""Longest time between two kills."""
PROGRAM = """
import json, os, subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
folder, steps = os.environ["HELIOS_CHECKPOINTS"], int(sys.argv[2])
saved = os.path.join(folder, "step")
step = int(open(saved).read()) if os.path.exists(saved) else 0
while step < steps:
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass
    step += 1
    with open(saved + ".new", "w") as file:
        file.write(str(step))
    os.replace(saved + ".new", saved)
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step, "progress": step / steps, "loss": int(sys.argv[1]) + 1 / step}) + "\\n")
    if os.path.exists(os.environ["HELIOS_REQUESTS"]):
        break
"""


def those(processes: Iterable[psutil.Process], claim: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The processes of which it is so, without those that end meanwhile."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if claim(process):
                found.append(process)
    return found


def is_child(parent: int, process: psutil.Process) -> bool:
    return bool(process.ppid() == parent and process.status() != psutil.STATUS_ZOMBIE)


def start(folder: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.training.pool.sharing", str(folder), how],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "errors").open("ab"),
    )


def survive(folder: Path, how: str, *, kills: int, seed: int, steps: int) -> Counter[str]:
    """Kill what a pool consists of, so often and at random, and let it end.

    Returns how often each part was killed, and at how many kills any trial was stopped.
    """
    chance, done = random.Random(seed), Counter[str]()
    (folder / "program.py").write_text(PROGRAM)
    (folder / "sweep.toml").write_text(
        f'command = ["{sys.executable}", "program.py", "{{x}}", "{steps}"]\nattempts = 100\n'
        f'[parameters]\nx = {[*range(TRIALS)]}\n[search]\nmetric = "loss"\ndirection = "minimize"\n'
    )
    pool = start(folder, how)
    until((folder / "pool" / FILE).exists)
    while done["kills"] < kills and pool.poll() != 0:
        time.sleep(chance.uniform(0.0, LONGEST_PAUSE_S))
        if pool.poll():  # five agents of one run were killed, so that it gave up
            pool = start(folder, how)
        trials = those(pool_processes(folder / "pool"), lambda each: "HELIOS_TRIAL_FOLDER" in each.environ())
        agents = those(psutil.process_iter(), partial(is_child, pool.pid))
        # A coordinator without an agent has nobody beside it who ends what an agent that was killed has left.
        both = trials and agents
        parts = {"trial": trials, "agent": agents, "coordinator": [pool] if both else [], "both": both}
        part = chance.choice([*parts])
        targets = parts[part]
        if not targets:
            continue
        target = chance.choice(targets)
        done["stopped"] += len(those(trials, lambda each: each.status() == psutil.STATUS_STOPPED)) > 0
        try:
            os.kill(target.pid, signal.SIGKILL)
            if part == "both":
                pool.kill()
        except ProcessLookupError:
            continue
        done.update(["kills", part])
        if part in {"coordinator", "both"}:
            pool.wait()
            if part == "coordinator" and agents:  # which kill all, whether they are stopped or not
                until(lambda: not pool_processes(folder / "pool"))
            pool = start(folder, how)
    until(lambda: pool.poll() is not None)
    if pool.returncode:
        assert start(folder, how).wait() == 0
    return done


def check(folder: Path, *, steps: int) -> None:
    """No trial is lost, doubled or left stopped."""
    assert pool_processes(folder / "pool") == []
    entries = [json.loads(line) for line in (folder / "pool" / FILE).read_text().splitlines()]
    ended = Counter(entry["trial"] for entry in entries if entry.get("state") in {"finished", "failed", "diverged"})
    assert ended == Counter(range(TRIALS))
    values = {entry["trial"]: entry["value"] for entry in entries if entry.get("state") == "finished"}
    assert values == {number: number + 1 / steps for number in range(TRIALS)}


@pytest.mark.parametrize("how", ["slices", pytest.param("weights", marks=pytest.mark.nightly)])
def test_after_some_kills_no_trial_is_lost_or_stopped(tmp_path: Path, how: str) -> None:
    if how == "weights" and cpu_groups("helios-test-") is None:
        pytest.skip("no control groups for the CPU can be made here")
    survive(tmp_path, how, kills=6, seed=1, steps=20)
    check(tmp_path, steps=20)


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["weights", "slices", "gpu"])
def test_after_many_kills_no_trial_is_lost_or_stopped(tmp_path: Path, how: str) -> None:
    if how == "weights" and cpu_groups("helios-test-") is None:
        pytest.skip("no control groups for the CPU can be made here")
    survive(tmp_path, how, kills=100, seed=2, steps=200)
    check(tmp_path, steps=200)
