"""Pools on this machine: real processes, real memory, real kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from helios.errors import FileUnreadable, UsageError
from helios.training.forecast import TrialModel
from helios.training.model import (
    Device,
    Forecast,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    SharedSpeed,
    StartTrial,
    StopTrial,
    Trial,
    TrialForecast,
    TrialState,
)
from helios.training.pool.coordinator import Coordinator, Decide, PoolEnd
from helios.training.pool.growth import describe, take_over
from helios.training.pool.processes import POOL
from helios.training.pool.search import open_search
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import FILE, StateFile, TrialRecord, read_runs
from helios.training.pool.sweep import TrainingSweep
from helios.training.pool.trials import PoolSweep
from helios.training.services.packing import Packing
from tests.waiting import until

CPU = Device(name="cpu:0", kind="cpu", memory_mib=1000.0, slots=2)


class Watched:
    """What a pool tells, and a place to act while it runs."""

    def __init__(self, act: Callable[[Coordinator, Mapping[str, Any]], None] | None = None) -> None:
        self.events: list[Mapping[str, Any]] = []
        self._act, self._pool = act, None

    def of(self, pool: Coordinator) -> None:
        self._pool = pool

    def event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)
        if self._act is not None:
            self._act(self._pool, event)

    def refresh(self, pool: Coordinator) -> None:
        pass

    def kinds(self, number: int) -> list[str]:
        return [str(event["event"]) for event in self.events if event.get("number") == number]


def a_sweep(
    folder: Path, program: str, values: Sequence[Any] = (0,), *, words: Sequence[str] = (), **more: Any
) -> TrainingSweep:
    (folder / "program.py").write_text(program)
    return TrainingSweep(
        path=folder / "sweep.toml",
        command=(sys.executable, "program.py", "{x}", *words),
        parameters={"x": tuple(values)},
        cwd=folder,
        **more,
    )


def run(
    sweep: TrainingSweep,
    *,
    devices: Sequence[Device] = (CPU,),
    decide: Decide = fixed_slots,
    watched: Watched | None = None,
    forecast: Forecast | None = None,
    known_speeds: Sequence[SharedSpeed] = (),
    container: Any = None,
    **more: Any,
) -> tuple[PoolEnd, dict[int, TrialRecord]]:
    folder = sweep.cwd / "pool"
    watcher = watched or Watched()
    with StateFile(folder, describe(sweep)) as state:
        take_over(sweep, state)
        search = open_search(sweep, folder / "search", [trial.parameters for trial in state.trials.values()])
        try:
            pool = Coordinator(
                sweeps=[
                    PoolSweep(
                        sweep=sweep,
                        search=search,
                        state=state,
                        folder=folder,
                        forecast=forecast,
                        known_speeds=known_speeds,
                        container=container,
                    )
                ],
                devices=devices,
                decide=decide,
                watcher=watcher,
                **more,
            )
            watcher.of(pool)
            end = pool.run()
        finally:
            search.close()
        return end, state.trials


def pool_processes(folder: Path) -> list[psutil.Process]:
    """Everything that runs of the pool in a folder."""
    header = json.loads((folder / FILE).read_text().splitlines()[0])
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(POOL) == header["pool"] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


REPORTS = """
import json, os, sys
with open(os.environ["HELIOS_REPORT"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": float(sys.argv[1])}) + "\\n")
"""


def test_each_trial_of_a_grid_has_metrics_memory_and_device(tmp_path: Path) -> None:
    end, trials = run(a_sweep(tmp_path, REPORTS, [0.5, 0.25, 1.0], objectives={"loss": False}))
    assert end == PoolEnd()
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 3
    assert [trial.metrics for trial in trials.values()] == [{"loss": 0.5}, {"loss": 0.25}, {"loss": 1.0}]
    assert [(trial.attempts, trial.devices) for trial in trials.values()] == [(1, ("cpu:0",))] * 3
    assert all(trial.peak_memory_mib > 1 and trial.seconds > 0 for trial in trials.values())


def test_memory_of_all_processes_of_a_trial_counts(tmp_path: Path) -> None:
    program = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        break
taken = bytearray(100 * 2**20)
for place in range(0, len(taken), 4096):
    taken[place] = 1
time.sleep(8)  # memory is looked at every two seconds at least
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""
    _, trials = run(a_sweep(tmp_path, program))
    assert trials[0].state is TrialState.FINISHED
    assert trials[0].peak_memory_mib > 350


def test_a_second_pool_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, "")
    with StateFile(tmp_path / "pool", describe(sweep)), pytest.raises(UsageError, match="Another pool is running"):
        run(sweep)


def test_a_trial_whose_line_was_cut_off_is_run_again(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, "open('runs', 'a').write('x')", [1, 2, 3])
    run(sweep)
    path = tmp_path / "pool" / FILE
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    _, trials = run(sweep)
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 3
    assert (tmp_path / "runs").read_text() == "xxxx"
    assert b"".join(path.read_bytes().splitlines(keepends=True)) == path.read_bytes()


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / FILE).write_text("{}\nmine\n")
    with pytest.raises(FileUnreadable, match="line 1, is not of a pool"):
        run(a_sweep(tmp_path, ""))
    assert (tmp_path / "pool" / FILE).read_text() == "{}\nmine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_on_a_full_disk_trials_run_on_and_none_starts(tmp_path: Path) -> None:
    disk = tmp_path / "pool"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        program = """
import os, time
filling = os.environ["HELIOS_TRIAL_FOLDER"] + "/../../filling"
if os.environ["HELIOS_TRIAL"] == "0":
    with open(filling, "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break
"""
        seen: list[str] = []

        def make_room(_: Coordinator, event: Mapping[str, Any]) -> None:
            if event["event"] == "note":
                seen.append(event["note"])
                (disk / "filling").unlink(missing_ok=True)

        one = Device(name="cpu:0", kind="cpu", memory_mib=500.0, slots=1)
        _, trials = run(a_sweep(tmp_path, program, [1, 2, 3]), devices=[one], watched=Watched(make_room))
        assert any("No trial is started" in note for note in seen)
        assert [(trial.state, trial.attempts) for trial in trials.values()] == [(TrialState.FINISHED, 1)] * 3
        ends = [json.loads(line) for line in (disk / FILE).read_text().splitlines()]
        assert sorted(entry["trial"] for entry in ends if entry.get("what") == "finished") == [0, 1, 2]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


COUNTS = """
import json, os, pathlib, signal, sys, time
checkpoints = pathlib.Path(os.environ["HELIOS_CHECKPOINTS"])
requests = pathlib.Path(os.environ["HELIOS_REQUESTS"])
def asked_to_pause():
    return requests.exists() and b"pause" in requests.read_bytes()
def report(**told):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps(told) + "\\n")
last = checkpoints / "step"
first = int(last.read_text()) if last.exists() else 0
for step in range(first, 40):
    report(step=step, accuracy=step / 40, progress=step / 40)
    with open("steps", "a") as file:
        file.write(f"{step}\\n")
    while first == 0 and step == 10 and not asked_to_pause():
        time.sleep(0.02)
    if asked_to_pause():
        last.write_text(str(step + 1))
        report(answer="pause", checkpoint="step")
        sys.exit(0)
"""


COUNTED = """
import json, os, time
for step in range(20):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / (step + 1), "progress": (step + 1) / 20}) + "\\n")
    time.sleep(0.1)
"""


def test_a_paused_trial_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    paused: list[int] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING and trial.progress]
        if running and not paused:
            paused.append(running[0].number)
            return [PauseTrial(number=running[0].number, reason="a test")]
        return fixed_slots(snapshot)

    watched = Watched()
    _, trials = run(a_sweep(tmp_path, COUNTS), decide=decide, watched=watched)
    assert watched.kinds(0) == ["started", "asked", "paused", "started", "finished"]
    assert (trials[0].state, trials[0].attempts) == (TrialState.FINISHED, 2)
    assert [int(step) for step in (tmp_path / "steps").read_text().split()] == list(range(40))


def test_a_trial_that_the_service_stops_is_pruned(tmp_path: Path) -> None:
    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING]
        return [StopTrial(number=trial.number, reason="a test") for trial in running] or fixed_slots(snapshot)

    program = "import os, time\nwhile not os.path.exists(os.environ['HELIOS_REQUESTS']): time.sleep(0.02)"
    _, trials = run(a_sweep(tmp_path, program), decide=decide)
    assert trials[0].state is TrialState.PRUNED


def test_at_the_time_limit_trials_are_checkpointed_and_later_go_on(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, COUNTS)

    def end_soon(pool: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "started":
            until((tmp_path / "steps").exists)
            pool.ends_s = time.time() + 30.0

    end, trials = run(sweep, watched=Watched(end_soon), margin_s=60.0)
    assert end.reason == "the time of the allocation is up"
    assert trials[0].state is TrialState.WAITING
    assert 0 < len((tmp_path / "steps").read_text().split()) < 40
    _, trials = run(sweep)
    assert trials[0].state is TrialState.FINISHED
    assert [int(step) for step in (tmp_path / "steps").read_text().split()] == list(range(40))


def test_a_service_that_starts_nothing_does_not_stop_the_pool(tmp_path: Path) -> None:
    end, trials = run(a_sweep(tmp_path, ""), decide=lambda snapshot: snapshot.trials[:0])
    assert trials[0].state is TrialState.FINISHED
    assert any("slots are fixed" in note for note in end.notes)


def waiting(number: int, **more: Any) -> Trial:
    return Trial(number=number, parameters={}, **more)


def test_fixed_slots_give_equal_parts_and_more_to_who_was_killed() -> None:
    found = fixed_slots(
        PoolSnapshot(now_s=0.0, devices=(CPU,), trials=(waiting(0, out_of_memory_mib=500.0), waiting(1)))
    )
    assert [(start.number, start.memory_limit_mib) for start in found if isinstance(start, StartTrial)] == [(1, 500.0)]
    found = fixed_slots(PoolSnapshot(now_s=0.0, devices=(CPU,), trials=(waiting(0, out_of_memory_mib=500.0),)))
    assert [(start.number, start.memory_limit_mib) for start in found if isinstance(start, StartTrial)] == [(0, 750.0)]
    known = waiting(2, forecast=TrialForecast(memory_p95_mib=100.0))
    found = fixed_slots(PoolSnapshot(now_s=0.0, devices=(CPU,), trials=(known,)))
    assert [(start.number, start.memory_limit_mib) for start in found if isinstance(start, StartTrial)] == [(2, 100.0)]


SET_BACK = """
import os, time
real = time.time
time.time = lambda: real() - 3600 * os.path.exists({flag!r})
"""


def test_a_clock_that_is_set_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, real = tmp_path / "set back", time.time
    (tmp_path / "sitecustomize.py").write_text(SET_BACK.format(flag=str(flag)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of the process that starts trials
    monkeypatch.setattr(time, "time", lambda: real() - 3600 * flag.exists())
    program = """
import json, os, time
for step in range(20):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
    if step == 5:
        open("set back", "w").close()
    time.sleep(0.1)
"""
    seen: list[int] = []

    class Sees(Watched):
        def refresh(self, pool: Coordinator) -> None:
            seen.extend(attempt.step for attempt in pool._attempts.running.values() if attempt.step is not None)

    _, trials = run(a_sweep(tmp_path, program), watched=Sees())
    assert 1.0 < trials[0].seconds < 300.0
    assert max(seen) > 6, "reports are read on"
    (one,) = read_runs(tmp_path / "pool")
    assert 0.0 <= (one.start_up_s or 0.0) < one.seconds


def test_the_packing_service_runs_a_pool(tmp_path: Path) -> None:
    packing = Packing(Packing.Options())
    watched = Watched()
    end, trials = run(a_sweep(tmp_path, COUNTED, [1, 2, 3, 4]), decide=packing.decide, watched=watched)
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 4
    assert end.notes == ()


STEPS = """
import json, os, time
for step in range(30):
    time.sleep(0.1)
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step, "progress": (step + 1) / 30}) + "\\n")
"""


def test_what_each_attempt_used_is_read_back(tmp_path: Path) -> None:
    run(a_sweep(tmp_path, STEPS, (1, 2)))
    runs = read_runs(tmp_path / "pool")
    assert [(one.number, one.attempt, one.outcome, one.family) for one in sorted(runs, key=lambda one: one.number)] == [
        (0, 1, "finished", "program.py x=1"),
        (1, 1, "finished", "program.py x=2"),
    ]
    for one in runs:
        assert one.program == str(tmp_path / "program.py")
        assert one.progress == 1.0
        assert one.peak_memory_mib
        assert 0 < (one.start_up_s or 0.0) < one.seconds
        assert 0 <= (one.utilization or 0.0) <= 1
        (speed,) = one.speeds
        assert speed.beside == (f"program.py x={2 - one.number}",)
        assert 0.5 * 30 / one.seconds < speed.steps_per_s < 15.0  # ten, on a machine that is not busy


def test_a_service_is_told_what_earlier_and_own_trials_needed(tmp_path: Path) -> None:
    earlier = SharedSpeed(family="program.py x=9", beside=(), steps_per_s=2.0, samples=1)
    seen: list[PoolSnapshot] = []

    def one_at_a_time(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.append(snapshot)
        for trial in snapshot.trials:
            if trial.state is TrialState.RUNNING:
                (tmp_path / f"seen-{trial.number:05}").touch()
                return []
        return fixed_slots(snapshot)[:1]

    until_seen = """
while not os.path.exists("seen-" + os.environ["HELIOS_REPORT"].split("/")[-2]):
    time.sleep(0.1)
"""
    model = TrialModel([], now_s=0.0)
    run(
        a_sweep(tmp_path, STEPS + until_seen, (1, 1)),
        decide=one_at_a_time,
        forecast=partial(model.expect, str(tmp_path / "program.py")),
        known_speeds=[earlier],
    )
    assert all(earlier in snapshot.speeds for snapshot in seen)
    first = next(trial for trial in seen[0].trials if trial.number == 1)
    assert first.forecast == TrialForecast()
    later = next(t for s in seen for t in s.trials if t.number == 1 and t.state is TrialState.RUNNING)
    (took_s,) = (one.seconds for one in read_runs(tmp_path / "pool") if one.number == 0)
    assert 0.5 * took_s < (later.forecast.seconds_p50 or 0.0) < 10.0 * took_s
    assert 0.5 * 30 / took_s < (later.forecast.steps_per_s or 0.0) < 15.0
    assert (later.forecast.memory_p95_mib or 0.0) > (later.forecast.memory_p50_mib or 0.0) > 1.0
