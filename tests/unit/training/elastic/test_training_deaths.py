"""Kills at random moments lose no step, and leave all workers in the same state."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.training.elastic.runs import Run

KILLS = 50


@pytest.mark.nightly
def test_kills_at_random_moments_lose_no_step(tmp_path: Path) -> None:
    draw = random.Random(0)
    with Run(tmp_path, 4, "--epochs", "100000") as run:
        run.wait_for_steps()
        for kill in range(KILLS):
            if kill % 2 == 0 and kill:
                run.resize(4)
            run.wait_for_steps(draw.randrange(1, 4))
            listed = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True, check=True)
            os.kill(int(draw.choice(listed.stdout.split())), signal.SIGKILL)
            run.wait_for_steps(3)
        assert run.end("stop") == 0, run.log
    steps = run.steps()
    assert [step for step, workers in steps.items() if len({each["digest"] for each in workers}) > 1] == []
    assert sorted(steps) == list(range(1, max(steps) + 1))
    reported = [report["step"] for report in run.reports() if "step" in report]
    assert reported == sorted(reported)
