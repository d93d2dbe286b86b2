"""Kills at random moments lose no step, and leave all workers in the same state."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.training.elastic.runs import Run
from tests.waiting import until

WORKERS = 3


def is_gone(group: int) -> bool:
    """Return whether no process of a launcher is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def kill(run: Run, victim: int) -> bool:
    """Kill a process, and return whether that ended the program."""
    with suppress(ProcessLookupError):  # it was to end at this moment
        os.kill(victim, signal.SIGKILL)
    goal, is_launcher = run.last() + 3, victim == run.process.pid
    until(lambda: run.process.poll() is not None or (run.last() >= goal and not is_launcher))
    if run.process.returncode is None:
        return False
    assert is_launcher or run.steps()[run.last()][0]["workers"] == 1, run.log
    until(lambda: is_gone(run.process.pid))
    return True


def kill_some(run: Run, draw: random.Random, kills: int) -> int:
    """Kill workers until the launcher or the only member is hit, and return how many processes were."""
    for killed in range(kills):
        run.wait_for_steps(draw.randrange(1, 40))
        if draw.random() < 0.5:
            run.request("checkpoint")
        else:
            run.number += 1  # whose answer is not waited for, so that kills come amid changes as well
            run.request("resize", number=run.number, devices=[{}] * WORKERS)
        run.wait_for_steps(draw.randrange(1, 10))
        listed = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True, check=True)
        workers = listed.stdout.split()
        victim = run.process.pid if len(workers) == 1 else int(draw.choice([*workers, str(run.process.pid)]))
        if kill(run, victim):
            return killed + 1
    assert run.end("stop") == 0, run.log
    return kills


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.nightly)])
def test_kills_at_random_moments_lose_no_step(tmp_path: Path, kills: int) -> None:
    draw, left, starts, saved, seen, ended = random.Random(kills), kills, 0, 0, {0}, False
    while not ended:
        with Run(tmp_path, WORKERS, "--epochs", "100000", start=starts) as run:
            run.wait_for_steps()
            left -= kill_some(run, draw, left)
            ended = run.process.returncode == 0
        steps, reports = run.steps(), run.reports()
        assert [step for step, workers in steps.items() if len({each["digest"] for each in workers}) > 1] == []
        assert sorted(steps) == list(range(min(steps), max(steps) + 1))
        assert saved < min(steps) <= max(seen) + 1
        seen |= {*steps}
        assert {report["step"] for report in reports if "step" in report} <= seen
        saved = max([0, *(report["step"] for report in reports if "checkpoint" in report)])
        starts += 1
    assert left == 0
