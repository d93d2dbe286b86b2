"""Trials that run on several devices of a node."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helios.training.model import Device, PoolAction, PoolSnapshot, SharedSpeed, StartTrial, TrialState
from helios.training.pool.devices import _visible_gpus, find_devices, join_environments
from helios.training.pool.state import read_runs
from tests.unit.training.pool.test_coordinator import Watched, a_sweep, run
from tests.unit.training.pool.test_devices import PYNVML

TWO = tuple(Device(name=f"cpu:{place}", kind="cpu", memory_mib=1000.0, slots=2) for place in range(2))
BOTH = ("cpu:0", "cpu:1")
Decide = Callable[[PoolSnapshot], Sequence[PoolAction]]


def start_on(*placements: tuple[str, ...], limit_mib: float | None = None) -> Decide:
    """Start each trial on the devices of its number, all at once."""

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        return [
            StartTrial(
                number=trial.number, devices=placements[trial.number], memory_limit_mib=limit_mib, reason="as the test"
            )
            for trial in snapshot.trials
            if trial.state is TrialState.WAITING
        ]

    return decide


SHOWS = "import json, os\nopen('seen', 'w').write(json.dumps(dict(os.environ)))"


def test_a_trial_runs_on_two_devices_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    watched = Watched()
    _, trials = run(a_sweep(tmp_path, SHOWS), devices=TWO, decide=start_on(BOTH), watched=watched)
    assert (trials[0].state, trials[0].devices) == (TrialState.FINISHED, BOTH)
    assert json.loads((tmp_path / "seen").read_text())["HELIOS_DEVICE"] == "cpu:0,cpu:1"
    assert list(watched.events[0]["devices"]) == ["cpu:0", "cpu:1"]
    assert [each.placement for each in read_runs(tmp_path / "pool")] == [(2,)]


def test_environments_of_two_gpus_are_joined_as_cuda_has_it() -> None:
    gpus = [{"HELIOS_DEVICE": f"gpu:{place}", "CUDA_VISIBLE_DEVICES": f"GPU-{place}"} for place in range(2)]
    assert join_environments(gpus) == {"HELIOS_DEVICE": "gpu:0,gpu:1", "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}


def test_threads_of_two_cpu_devices_are_added() -> None:
    slots = [{"HELIOS_DEVICE": name, "OMP_NUM_THREADS": "3"} for name in BOTH]
    assert join_environments(slots)["OMP_NUM_THREADS"] == "6"


def test_a_trial_takes_a_slot_of_each_of_its_devices(tmp_path: Path) -> None:
    one_slot = tuple(Device(name=name, kind="cpu", memory_mib=1000.0, slots=1) for name in BOTH)
    watched, decide = Watched(), start_on(BOTH, ("cpu:1",), ("cpu:0",))
    run(a_sweep(tmp_path, "import time; time.sleep(0.3)", range(3)), devices=one_slot, decide=decide, watched=watched)
    told = [(str(event["event"]), event["number"]) for event in watched.events]
    assert told[:2] == [("started", 0), ("finished", 0)]
    assert {number for event, number in told[2:4] if event == "started"} == {1, 2}


def test_memory_is_limited_and_told_for_each_device(tmp_path: Path) -> None:
    program = "import time\ntaken = [bytearray(2**20) for _ in range(400)]\ntime.sleep(0.5)"
    _, trials = run(a_sweep(tmp_path, program), devices=TWO, decide=start_on(BOTH, limit_mib=300.0))
    assert (trials[0].state, trials[0].memory_kills) == (TrialState.FINISHED, 0)
    assert trials[0].peak_memory_mib is not None
    assert 200 < trials[0].peak_memory_mib < 300


def test_a_trial_killed_for_memory_too_often_has_all_its_devices_alone(tmp_path: Path) -> None:
    small = tuple(Device(name=name, kind="cpu", memory_mib=100.0, slots=2) for name in BOTH)
    program = "import sys, time\ntaken = [bytearray(2**20) for _ in range(400 * int(sys.argv[1]))]\ntime.sleep(0.5)"
    _, trials = run(a_sweep(tmp_path, program, (1, 0)), devices=small, decide=start_on(BOTH, ("cpu:1",)))
    assert trials[0].state is TrialState.FAILED
    assert "more memory than cpu:0 and cpu:1 has" in trials[0].reason
    assert trials[1].state is TrialState.FINISHED


REPORTS = """
import os, sys, time
for step in range(30):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write('{"step": %d}\\n' % step)
    time.sleep(0.1)
"""


def test_a_speed_on_two_devices_is_none_on_one(tmp_path: Path) -> None:
    seen: list[SharedSpeed] = []
    start = start_on(BOTH, ("cpu:0",), ("cpu:1",))

    def decide(snapshot: PoolSnapshot) -> Sequence[PoolAction]:
        seen.extend(snapshot.speeds)
        return start(snapshot)

    run(a_sweep(tmp_path, REPORTS, range(3)), devices=TWO, decide=decide)
    family = "program.py"
    beside = {(speed.placement, len(speed.beside)) for speed in seen if speed.family.startswith(family)}
    # Whoever is on both devices has both others beside it, and each of these has it alone.
    assert {((2,), 2), ((1,), 1)} <= beside


def test_a_start_on_two_nodes_is_refused_with_a_note(tmp_path: Path) -> None:
    nodes = (TWO[0], Device(name="n2/cpu:0", kind="cpu", memory_mib=1000.0, slots=1))
    end, trials = run(a_sweep(tmp_path, "print()"), devices=nodes, decide=start_on(("cpu:0", "n2/cpu:0")))
    assert (trials[0].state, trials[0].devices) == (TrialState.FINISHED, ("cpu:0",))
    assert any("cpu:0 and n2/cpu:0: its size is fixed, and it runs on one node" in note for note in end.notes)


def test_memory_on_two_gpus_is_that_on_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pynvml.py").write_text(PYNVML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)  # where the library finds who uses a GPU
    _visible_gpus.cache_clear()
    program = """
import os, time
open("seen", "w").write(os.environ["CUDA_VISIBLE_DEVICES"])
open("users", "a").write(f"{os.getpid()} 700\\n")
while not os.path.exists("measured"):
    time.sleep(0.02)
"""
    both = start_on(("gpu:0", "gpu:1"), limit_mib=800.0)

    def decide(snapshot: PoolSnapshot) -> Sequence[PoolAction]:
        if any(trial.memory_mib for trial in snapshot.trials):
            (tmp_path / "measured").touch()
        return both(snapshot)

    try:
        _, trials = run(a_sweep(tmp_path, program), devices=find_devices(kind="gpu"), decide=decide)
    finally:
        _visible_gpus.cache_clear()
        sys.modules.pop("pynvml", None)
    assert (trials[0].state, trials[0].peak_memory_mib) == (TrialState.FINISHED, 700.0)
    assert (tmp_path / "seen").read_text() == "GPU-a,GPU-b"
