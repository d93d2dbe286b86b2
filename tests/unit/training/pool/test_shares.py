"""Trials that get shares of their device's time: real processes, real time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helios.training.model import (
    Device,
    PoolAction,
    PoolSnapshot,
    ShareTrial,
    StopTrial,
    Trial,
    TrialState,
)
from helios.training.pool import agent, launcher
from helios.training.pool.coordinator import fixed_slots
from tests.unit.training.pool.test_coordinator import a_sweep, pool_processes, run

THREE = Device(name="cpu:0", kind="cpu", memory_mib=3_000.0, slots=3)
SLICES = """
import sys
from helios.training.pool import agent
agent.cpu_groups = lambda prefix: None
agent.main(*sys.argv[1:])
"""
"""An agent whose account may not make control groups for the CPU."""
BURNS = """
import os, sys
while not os.path.exists(os.environ["HELIOS_REQUESTS"]):
    sum(range(10_000))
"""


@pytest.fixture
def one_core() -> Iterator[None]:
    """What a pool starts has one core, so that trials compete for it."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(params=["weights", "slices", "gpu"])
def device(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device of which time is shared by weights, by time slices, and by those of a GPU."""
    if request.param == "weights" and agent.cpu_groups("helios-test-") is None:
        pytest.skip("no control groups for the CPU can be made here")
    if request.param == "weights":
        return THREE
    return by_slices(tmp_path, monkeypatch, on_gpu=request.param == "gpu")


def by_slices(folder: Path, monkeypatch: pytest.MonkeyPatch, *, on_gpu: bool = False) -> Device:
    (folder / "agent.py").write_text(SLICES)
    monkeypatch.setattr(agent, "__file__", str(folder / "agent.py"))
    if not on_gpu:
        return THREE
    # No driver knows this one, so that memory is 0; all else is as on a GPU.
    monkeypatch.setattr(launcher, "gpu_id", lambda device: "GPU-none")
    monkeypatch.setattr(launcher, "device_environment", lambda device: {})
    return Device(name="gpu:0", kind="gpu", memory_mib=3_000.0, slots=3)


def cpu_seconds(folder: Path) -> dict[int, float]:
    """CPU time of the processes of each trial."""
    used: dict[int, float] = {}
    for process in pool_processes(folder):
        number = process.environ().get(agent.TRIAL)
        if number is not None:
            times = process.cpu_times()
            used[int(number)] = used.get(int(number), 0.0) + times.user + times.system
    return used


@dataclass
class Shares:
    """A service that gives shares one after another, each for some seconds of CPU time, and then ends the trials.

    Attributes
    ----------
    got : list of dict of int to float
        Part of the CPU time that each trial had of all, while each shares were in force.
    """

    folder: Path
    plan: Sequence[Mapping[int, float | None]]
    seconds: float
    got: list[dict[int, float]] = field(default_factory=list)
    since: dict[int, float] | None = None
    seen: list[Trial] = field(default_factory=list)

    def __call__(self, pool: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in pool.trials if trial.state is TrialState.RUNNING]
        used = cpu_seconds(self.folder)
        self.seen = running
        if len(running) < 3 or len(used) < 3 or min(used.values()) < 0.1:
            return fixed_slots(pool)
        if self.since is not None:
            change = {number: used[number] - self.since[number] for number in used}
            if sum(change.values()) < self.seconds:
                return []
            self.got.append({number: seconds / sum(change.values()) for number, seconds in change.items()})
        if len(self.got) == len(self.plan):
            return [StopTrial(number=trial.number, reason="enough", finished=True) for trial in running]
        self.since = used
        return [
            ShareTrial(number=number, share=share, reason="a test")
            for number, share in self.plan[len(self.got)].items()
        ]


@pytest.mark.usefixtures("one_core")
def test_trials_get_the_shares_of_the_cpu_that_a_service_gives(tmp_path: Path, device: Device) -> None:
    plan: list[Mapping[int, float | None]] = [{0: 0.6, 1: 0.3, 2: 0.1}, {0: 0.1, 2: None}]
    service = Shares(tmp_path / "pool", plan, seconds=6.0)
    _, trials = run(a_sweep(tmp_path, BURNS, range(3)), devices=[device], decide=service)
    assert service.got[0] == pytest.approx({0: 0.6, 1: 0.3, 2: 0.1}, abs=0.06)
    assert service.got[1] == pytest.approx({0: 0.1, 1: 0.3, 2: 0.6}, abs=0.06)
    assert {trial.state for trial in trials.values()} == {TrialState.FINISHED}
    assert pool_processes(tmp_path / "pool") == []
