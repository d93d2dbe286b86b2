"""What becomes of trials that fail, are killed, or need more memory."""

from __future__ import annotations

from pathlib import Path

from helios.training.model import Device, TrialState
from helios.training.pool.sweep import TrainingSweep
from tests.unit.training.pool.test_coordinator import Watched, a_sweep, run


def test_a_failed_trial_is_started_as_often_as_the_sweep_says(tmp_path: Path) -> None:
    end, trials = run(a_sweep(tmp_path, "print('why it failed')\nraise SystemExit(3)", attempts=2))
    assert (trials[0].state, trials[0].attempts, trials[0].failures) == (TrialState.FAILED, 2, 2)
    assert "exit status 3" in trials[0].reason
    assert (tmp_path / "pool/trials/00000/log.txt").read_text() == "why it failed\n" * 2
    assert end.reason == ""


def test_a_program_that_cannot_be_started_fails_with_the_reason(tmp_path: Path) -> None:
    sweep = TrainingSweep(
        path=tmp_path / "s", command=("./nowhere", "{x}"), parameters={"x": (1,)}, cwd=tmp_path, attempts=1
    )
    _, trials = run(sweep)
    assert trials[0].state is TrialState.FAILED
    assert "nowhere" in trials[0].reason


EATS = """
import sys, time
taken = [bytearray(2**20) for _ in range(int(sys.argv[1]))]
time.sleep(0.5)
"""


def test_a_trial_above_its_limit_is_started_with_more_room(tmp_path: Path) -> None:
    watched = Watched()
    _, trials = run(a_sweep(tmp_path, EATS, [5, 600], memory_mib=300.0), watched=watched)
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 2
    assert trials[0].attempts == 1
    assert trials[1].memory_kills >= 1
    assert trials[1].out_of_memory_mib >= 300.0
    assert trials[1].peak_memory_mib > 600
    limits = [event["memory_limit_mib"] for event in watched.events if event["event"] == "started" and event["number"]]
    assert limits == sorted(limits)
    assert limits[0] == 300.0


def test_a_trial_above_a_whole_device_fails_after_running_alone(tmp_path: Path) -> None:
    small = Device(name="cpu:0", kind="cpu", memory_mib=200.0, slots=2)
    _, trials = run(a_sweep(tmp_path, EATS, [5, 400]), devices=[small])
    assert trials[0].state is TrialState.FINISHED
    assert (trials[1].state, trials[1].out_of_memory_mib) == (TrialState.FAILED, 200.0)
    assert "more memory than cpu:0 has" in trials[1].reason


def test_an_error_about_memory_in_the_log_is_told_from_other_errors(tmp_path: Path) -> None:
    program = "import sys\nif sys.argv[1] == '1': sys.exit('torch.OutOfMemoryError: CUDA out of memory.')\nsys.exit(1)"
    watched = Watched()
    _, trials = run(a_sweep(tmp_path, program, [0, 1], attempts=1), watched=watched)
    assert (trials[0].failures, trials[0].memory_kills) == (1, 0)
    assert (trials[1].failures, trials[1].state) == (0, TrialState.FAILED)
    assert watched.kinds(1) == ["started", "out_of_memory"] * 3


def test_a_killed_trial_is_started_again_without_a_failure(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal
if not pathlib.Path("once").exists():
    pathlib.Path("once").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    _, trials = run(a_sweep(tmp_path, program, attempts=1))
    assert (trials[0].state, trials[0].attempts, trials[0].failures) == (TrialState.FINISHED, 2, 0)
