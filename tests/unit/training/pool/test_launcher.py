"""What a program is started with, and agents that end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helios.training.model import PoolAction, PoolSnapshot, StartTrial, TrialState
from tests.unit.training.pool.test_coordinator import a_sweep, pool_processes, run


def test_a_program_gets_its_trial_device_and_threads_of_a_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    program = "import json, os\nopen('seen', 'w').write(json.dumps(dict(os.environ)))"
    run(a_sweep(tmp_path, program, env={"MINE": "1"}))
    seen = json.loads((tmp_path / "seen").read_text())
    assert (seen["HELIOS_TRIAL"], seen["HELIOS_DEVICE"], seen["MINE"]) == ("0", "cpu:0", "1")
    assert seen["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert seen["MKL_NUM_THREADS"] == "7"
    assert Path(seen["HELIOS_CHECKPOINTS"]).is_dir()


def test_threads_that_the_sweep_says_hold_for_all_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    program = "import json, os\nopen('seen', 'w').write(json.dumps(dict(os.environ)))"
    run(a_sweep(tmp_path, program, env={"OMP_NUM_THREADS": "77"}))
    seen = json.loads((tmp_path / "seen").read_text())
    assert (seen["OMP_NUM_THREADS"], seen["MKL_NUM_THREADS"]) == ("77", "77")


def test_what_a_trial_leaves_running_ends_with_it(tmp_path: Path) -> None:
    program = """
import subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & sleep 1000"])
"""
    _, trials = run(a_sweep(tmp_path, program))
    assert trials[0].state is TrialState.FINISHED
    assert pool_processes(tmp_path / "pool") == []


def test_trials_of_a_killed_agent_are_started_again(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, time
if not pathlib.Path("once").exists():
    pathlib.Path("once").touch()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)
"""
    end, trials = run(a_sweep(tmp_path, program))
    assert (trials[0].state, trials[0].attempts) == (TrialState.FINISHED, 2)
    assert any("was killed" in note for note in end.notes)
    assert pool_processes(tmp_path / "pool") == []


def test_a_service_cannot_put_more_on_a_device_than_it_has_slots(tmp_path: Path) -> None:
    most: list[int] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        most.append(sum(trial.state is TrialState.RUNNING for trial in snapshot.trials))
        return [
            StartTrial(number=trial.number, devices=("cpu:0",), memory_limit_mib=None, reason="all")
            for trial in snapshot.trials
        ] + [StartTrial(number=99, devices=("nowhere",), memory_limit_mib=None, reason="wrong")]

    _, trials = run(a_sweep(tmp_path, "import time; time.sleep(0.2)", range(6)), decide=decide)
    assert {trial.state for trial in trials.values()} == {TrialState.FINISHED}
    assert max(most) <= 2


WARM = """
import os, random, sys, subprocess
import {module}
assert __name__ == "__main__" and sys.argv[0] == "program.py"
with open("seen", "a") as file:
    file.write(f"{{os.getpid()}} {{os.environ['HELIOS_TRIAL']}} {{{module}.IMPORTED_BY}} {{random.random()}}\\n")
print("to the log")
subprocess.Popen(["sleep", "1000"], start_new_session=True)
sys.exit(3 if sys.argv[1] == "3" else 0)
"""


def test_trials_of_a_warm_process_share_its_imports_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "heavy_module.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    sweep = a_sweep(
        tmp_path, WARM.format(module="heavy_module"), [1, 2, 3], attempts=1, env={"PYTHONPATH": str(tmp_path)}
    )
    _, trials = run(sweep, warm=["heavy_module"])
    states = [TrialState.FINISHED, TrialState.FINISHED, TrialState.FAILED]
    assert [trial.state for trial in trials.values()] == states
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len({pid for pid, *_ in seen}) == 3
    assert sorted(number for _, number, *_ in seen) == ["0", "1", "2"]
    assert len({importer for _, _, importer, _ in seen}) == 1
    assert len({drawn for *_, drawn in seen}) == 3
    assert (tmp_path / "pool/trials/00001/log.txt").read_text() == "to the log\n"
    assert pool_processes(tmp_path / "pool") == []


def test_a_warm_trial_is_limited_and_started_again_when_killed(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, sys
if sys.argv[1] == "1" and not pathlib.Path("once").exists():
    pathlib.Path("once").touch()
    os.kill(os.getpid(), signal.SIGKILL)
taken = [bytearray(2**20) for _ in range(300 if sys.argv[1] == "2" else 1)]
"""
    _, trials = run(a_sweep(tmp_path, program, [1, 2], memory_mib=200.0), warm=["json"])
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 2
    assert (trials[0].attempts, trials[0].failures) == (2, 0)
    assert trials[1].memory_kills >= 1


def test_without_the_warm_process_trials_start_as_ever(tmp_path: Path) -> None:
    (tmp_path / "deadly_module.py").write_text("import os\nos._exit(1)\n")
    sweep = a_sweep(tmp_path, "print('ran')", [1, 2], env={"PYTHONPATH": str(tmp_path)})
    end, trials = run(sweep, warm=["deadly_module"])
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 2
    assert any("warm process ended" in note for note in end.notes)
