"""Trials that get shares of their device's time: real processes, real time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from helios.training.model import (
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    ShareTrial,
    StopTrial,
    Trial,
    TrialState,
)
from helios.training.pool import agent, containers, launcher, warm
from helios.training.pool.control_groups import cpu_groups
from helios.training.pool.processes import TRIAL
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import read_runs
from tests.unit.training.pool.sharing import share_by
from tests.unit.training.pool.test_coordinator import Watched, a_sweep, pool_processes, run

BURNS = """
import os
with open(os.environ["HELIOS_TRIAL_FOLDER"] + "/pid", "w") as file:
    file.write(str(os.getpid()))
while not os.path.exists(os.environ["HELIOS_REQUESTS"]):
    sum(range(10_000))
"""
pytestmark = pytest.mark.usefixtures("one_core")
"""With more cores than programs nobody would have to wait for a turn."""
AT_NIGHT_ON_A_GPU = pytest.param("gpu", marks=pytest.mark.nightly)
"""Its turns are those of the CPU but for their length and what they are charged by."""


@pytest.fixture
def one_core() -> Iterator[None]:
    """What a pool starts has one core, so that trials compete for it."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def device(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device of three slots; by default its time is shared by time slices."""
    how = getattr(request, "param", "slices")
    if how == "weights" and cpu_groups("helios-test-") is None:
        pytest.skip("no control groups for the CPU can be made here")
    for module, name in ((agent, "__file__"), (launcher, "gpu_id"), (launcher, "device_environment")):
        monkeypatch.setattr(module, name, getattr(module, name))  # as before, after the test
    return share_by(how, tmp_path, slots=3)


def cpu_seconds(folder: Path) -> dict[int, float]:
    """CPU time of each trial's program."""
    used = {}
    for file in folder.glob("trials/*/pid"):
        with suppress(psutil.Error, ValueError):
            times = psutil.Process(int(file.read_text())).cpu_times()
            used[int(file.parent.name)] = times.user + times.system
    return used


def running_processes(folder: Path) -> dict[int, list[psutil.Process]]:
    """The processes of each trial."""
    found: dict[int, list[psutil.Process]] = {}
    for process in pool_processes(folder):
        with suppress(psutil.Error):
            if (number := process.environ().get(TRIAL)) is not None:
                found.setdefault(int(number), []).append(process)
    return found


def shares(given: Mapping[int, float | None]) -> list[PoolAction]:
    return [ShareTrial(number=number, share=share, reason="a test") for number, share in given.items()]


def stop_all(running: Sequence[Trial]) -> list[PoolAction]:
    return [StopTrial(number=trial.number, reason="enough", finished=True) for trial in running]


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
    seconds: float = 3.0
    got: list[dict[int, float]] = field(default_factory=list)
    since: dict[int, float] | None = None
    seen: list[Trial] = field(default_factory=list)

    def __call__(self, pool: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in pool.trials if trial.state is TrialState.RUNNING]
        used = cpu_seconds(self.folder)
        if len(running) < 3 or len(used) < 3 or min(used.values()) < 0.1:
            return fixed_slots(pool)
        if self.since is not None:
            change = {number: used[number] - self.since[number] for number in used}
            if sum(change.values()) < self.seconds:
                return []
            self.got.append({number: seconds / sum(change.values()) for number, seconds in change.items()})
            self.seen = running
        if len(self.got) == len(self.plan):
            return stop_all(running)
        self.since = used
        return shares(self.plan[len(self.got)])


@pytest.mark.parametrize("device", ["weights", "slices", AT_NIGHT_ON_A_GPU], indirect=True)
def test_trials_get_the_shares_of_the_cpu_that_a_service_gives(tmp_path: Path, device: Device) -> None:
    plan: list[Mapping[int, float | None]] = [{0: 0.6, 1: 0.3, 2: 0.1}, {0: 0.1, 2: None}]
    service = Shares(tmp_path / "pool", plan)
    _, trials = run(a_sweep(tmp_path, BURNS, range(3)), devices=[device], decide=service)
    assert service.got[0] == pytest.approx({0: 0.6, 1: 0.3, 2: 0.1}, abs=0.13)
    assert service.got[1] == pytest.approx({0: 0.1, 1: 0.3, 2: 0.6}, abs=0.13)
    assert {trial.number: trial.share for trial in service.seen} == pytest.approx({0: 0.1, 1: 0.3, 2: 0.6})
    assert {trial.state for trial in trials.values()} == {TrialState.FINISHED}
    assert pool_processes(tmp_path / "pool") == []


@pytest.mark.parametrize("device", ["slices", pytest.param("weights", marks=pytest.mark.nightly)], indirect=True)
def test_a_trial_that_sleeps_keeps_nobody_off_the_cpu(tmp_path: Path, device: Device) -> None:
    program = """
import sys, time
while sys.argv[1] == "0" and time.process_time() < 0.2:
    pass
""" + BURNS.replace("sum(range(10_000))", "time.sleep(0.01) if sys.argv[1] == '0' else sum(range(10_000))")
    service = Shares(tmp_path / "pool", [{0: 0.8, 1: 0.1, 2: 0.1}])
    run(a_sweep(tmp_path, program, range(3)), devices=[device], decide=service)
    assert service.got[0][0] < 0.1
    assert service.got[0][1] == pytest.approx(service.got[0][2], abs=0.12)
    held = {run.number: run.seconds for run in read_runs(tmp_path / "pool")}
    assert held[0] > 0.8 * max(held.values())


FAMILY = (
    """
import os, subprocess, sys
burn = "while True: sum(range(10_000))"
subprocess.Popen([sys.executable, "-c", burn], start_new_session=True)
subprocess.Popen(["setsid", "sh", "-c", f"{sys.executable} -c '{burn}' & exit 0"])
"""
    + BURNS
)


@dataclass
class HeldBack:
    """A service that leaves little to trial 1, and once its processes are stopped calls ``act`` with them.

    That says what to do with it. Then all others end.
    """

    folder: Path
    act: Callable[[list[psutil.Process]], Sequence[PoolAction] | None]
    processes: int = 1
    done: bool = False

    def __call__(self, pool: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in pool.trials if trial.state is TrialState.RUNNING]
        if self.done:
            return stop_all([trial for trial in running if trial.number != 1 or trial.attempts > 1])
        if len(running) < 2:
            return fixed_slots(pool)
        own = running_processes(self.folder).get(1, [])
        if len(own) < self.processes or {each.status() for each in own} != {psutil.STATUS_STOPPED}:
            return shares({0: 0.98, 1: 0.02})
        self.done = True
        return list(self.act(own) or ())


def test_all_that_a_trial_started_is_held_back_and_ended(tmp_path: Path, device: Device) -> None:
    service = HeldBack(tmp_path / "pool", lambda own: [StopTrial(number=1, reason="enough")], processes=3)
    run(a_sweep(tmp_path, FAMILY, range(2)), devices=[device], decide=service)
    assert service.done
    assert pool_processes(tmp_path / "pool") == []


@pytest.mark.parametrize("device", ["slices", AT_NIGHT_ON_A_GPU], indirect=True)
def test_a_held_trial_goes_on_when_asked_to_pause(tmp_path: Path, device: Device) -> None:
    folder, used_s = tmp_path / "pool", dict[str, float]()
    service = HeldBack(folder, lambda own: [PauseTrial(number=1, reason="a test")])

    def decide(pool: PoolSnapshot) -> Sequence[PoolAction]:
        """Let the other run until this one has paused."""
        return [] if service.done and "paused" not in used_s else service(pool)

    def note(pool: object, event: Mapping[str, Any]) -> None:
        """Note how long the other has run."""
        if event.get("number") == 1 and event["event"] in {"asked", "paused"} - used_s.keys():
            used_s[event["event"]] = cpu_seconds(folder)[0]

    answer = """
import json
request = json.load(open(os.environ["HELIOS_REQUESTS"]))["request"]
open(os.environ["HELIOS_REPORT"], "a").write(json.dumps({"answer": request}) + "\\n")
"""
    run(a_sweep(tmp_path, BURNS + answer, range(2)), devices=[device], decide=decide, watched=Watched(note))
    assert used_s["paused"] - used_s["asked"] < 8.0  # its turn would have come after ten of the other's CPU time


def test_a_trial_that_is_held_back_gets_its_grace(tmp_path: Path, device: Device) -> None:
    program = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path("ended").write_text("by itself")))
while True: sum(range(10_000))
"""
    service = HeldBack(tmp_path / "pool", lambda own: [StopTrial(number=1, reason="a test")])
    _, trials = run(a_sweep(tmp_path, program, range(2), grace_s=0.1), devices=[device], decide=service)
    assert trials[1].state is TrialState.PRUNED
    assert (tmp_path / "ended").exists()


def test_who_was_held_back_by_a_killed_agent_is_started_again(tmp_path: Path, device: Device) -> None:
    def kill(own: list[psutil.Process]) -> None:
        os.kill(own[0].ppid(), signal.SIGKILL)
        own[0].wait(60)
        (tmp_path / "ends").touch()

    program = BURNS.replace("while not", "while not os.path.exists('ends') and not")
    _, trials = run(a_sweep(tmp_path, program, range(2)), devices=[device], decide=HeldBack(tmp_path / "pool", kill))
    assert [(trial.state, trial.attempts) for trial in trials.values()] == [(TrialState.FINISHED, 2)] * 2
    assert pool_processes(tmp_path / "pool") == []


def test_a_second_interrupt_ends_who_is_held_back(tmp_path: Path, device: Device) -> None:
    def interrupt(own: list[psutil.Process]) -> None:
        del own
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)

    end, _ = run(a_sweep(tmp_path, BURNS, range(2)), devices=[device], decide=HeldBack(tmp_path / "pool", interrupt))
    assert end.signal == signal.SIGTERM
    assert pool_processes(tmp_path / "pool") == []


def test_what_somebody_else_stopped_stays_stopped(tmp_path: Path, device: Device) -> None:
    program = (
        """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"])
os.kill(child.pid, signal.SIGSTOP)
"""
        + BURNS
        + """
with open(f"/proc/{child.pid}/stat") as file:
    open(f"state {sys.argv[1]}", "w").write(file.read().rpartition(")")[2].split()[0])
"""
    )
    service = HeldBack(tmp_path / "pool", lambda own: [PauseTrial(number=1, reason="a test")], processes=2)
    run(a_sweep(tmp_path, program, range(2)), devices=[device], decide=service)
    assert (tmp_path / "state 1").read_text() == "T"


def test_a_program_that_handles_its_continuation_runs_on(tmp_path: Path, device: Device) -> None:
    program = (
        """
import os, signal
signal.signal(signal.SIGTSTP, signal.SIG_IGN)
signal.signal(signal.SIGCONT, lambda *_: open("continued", "a").write("x"))
"""
        + BURNS
    )
    service = Shares(tmp_path / "pool", [{0: 0.4, 1: 0.3, 2: 0.3}], seconds=2.0)
    _, trials = run(a_sweep(tmp_path, program, range(3)), devices=[device], decide=service)
    assert {trial.state for trial in trials.values()} == {TrialState.FINISHED}
    assert (tmp_path / "continued").exists()


STEPS = """
import json, os, sys, time
step = 0
while not os.path.exists(os.environ["HELIOS_REQUESTS"]):
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    step += 1
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1.0}) + "\\n")
"""


@pytest.mark.parametrize("device", ["slices", pytest.param("weights", marks=pytest.mark.nightly)], indirect=True)
def test_speed_and_length_count_only_while_a_trial_runs(tmp_path: Path, device: Device) -> None:
    measured: dict[int, float] = {}
    learnt: list[SharedSpeed] = []

    def decide(pool: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in pool.trials if trial.state is TrialState.RUNNING]
        if len(running) < 3:
            return fixed_slots(pool)
        learnt.extend(pool.speeds)
        measured.update(
            {trial.number: trial.steps_per_s for trial in running if trial.steps_per_s is not None and trial.share}
        )
        return stop_all(running) if len(measured) == 3 else shares({0: 0.8, 1: 0.1, 2: 0.1})

    _, trials = run(a_sweep(tmp_path, STEPS, range(3), objectives={"loss": True}), devices=[device], decide=decide)
    assert learnt == []
    # By the clock the first would be eight times as fast. Other load of the machine slows one more than the other.
    assert max(measured.values()) < 3 * min(measured.values())
    runs = {each.number: each for each in read_runs(tmp_path / "pool")}
    assert runs[0].seconds > 1.3 * runs[1].seconds  # by the clock they are equal
    assert all(each.speeds[0].seconds == 0 for each in runs.values())
    assert all(trials[number].seconds > runs[number].seconds + 1.0 for number in (1, 2))


class InThisRoot:
    """A container that is none: what starts trials in it runs here."""

    def segment(self, *_: Any, **__: Any) -> dict[str, Any]:
        serve = [sys.executable, "-c", containers._SERVE, Path(warm.__file__).read_text(), warm.SEGMENT]
        return {"command": [], "serve": serve, "remove": [], "root_file": "", "keeps_limit": False}

    def remove_left(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("how", [{"container": InThisRoot()}, {"warm": ["json"]}], ids=["container", "warm"])
def test_trials_in_containers_and_forks_get_their_shares(tmp_path: Path, device: Device, how: dict[str, Any]) -> None:
    service = Shares(tmp_path / "pool", [{0: 0.6, 1: 0.3, 2: 0.1}])
    run(a_sweep(tmp_path, BURNS, range(3)), devices=[device], decide=service, **how)
    # In a container turns count by the clock, in which other load of the machine leaves more or less of the core.
    assert service.got[0] == pytest.approx({0: 0.6, 1: 0.3, 2: 0.1}, abs=0.15)
    assert pool_processes(tmp_path / "pool") == []
