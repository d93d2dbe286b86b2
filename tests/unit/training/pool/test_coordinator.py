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
from helios.training.pool.agent import POOL
from helios.training.pool.coordinator import Coordinator, Decide, PoolEnd, fixed_slots
from helios.training.pool.search import open_search
from helios.training.pool.state import FILE, StateFile, TrialRecord, read_runs
from helios.training.pool.sweep import SearchMethod, TrainingSweep
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
    **more: Any,
) -> tuple[PoolEnd, dict[int, TrialRecord]]:
    folder = sweep.cwd / "pool"
    watcher = watched or Watched()
    with StateFile(folder, sweep.fingerprint()) as state:
        search = open_search(sweep, folder / "search")
        try:
            pool = Coordinator(
                sweep=sweep,
                search=search,
                state=state,
                devices=devices,
                decide=decide,
                folder=folder,
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
    end, trials = run(a_sweep(tmp_path, REPORTS, [0.5, 0.25, 1.0], metric="loss", maximize=False))
    assert end == PoolEnd()
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 3
    assert [trial.metrics for trial in trials.values()] == [{"loss": 0.5}, {"loss": 0.25}, {"loss": 1.0}]
    assert [(trial.attempts, trial.device) for trial in trials.values()] == [(1, "cpu:0")] * 3
    assert all(trial.peak_memory_mib > 1 and trial.seconds > 0 for trial in trials.values())


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


def test_garbage_in_a_report_file_is_skipped_and_said(tmp_path: Path) -> None:
    program = "import os\nwith open(os.environ['HELIOS_REPORT'], 'wb') as file:\n"
    program += "    file.write(os.urandom(30_000_000))\n    file.write(b'\\n{\"loss\": 0.5}\\n')\n"
    end, trials = run(a_sweep(tmp_path, program, metric="loss"))
    assert (trials[0].state, trials[0].value) == (TrialState.FINISHED, 0.5)
    assert any("skipped" in note for note in end.notes)


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


def test_an_error_about_memory_in_the_log_is_told_from_other_errors(tmp_path: Path) -> None:
    program = "import sys\nif sys.argv[1] == '1': sys.exit('torch.OutOfMemoryError: CUDA out of memory.')\nsys.exit(1)"
    watched = Watched()
    _, trials = run(a_sweep(tmp_path, program, [0, 1], attempts=1), watched=watched)
    assert (trials[0].failures, trials[0].memory_kills) == (1, 0)
    assert (trials[1].failures, trials[1].state) == (0, TrialState.FAILED)
    assert watched.kinds(1) == ["started", "out_of_memory"] * 3


def test_what_a_trial_leaves_running_ends_with_it(tmp_path: Path) -> None:
    program = """
import subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & sleep 1000"])
"""
    _, trials = run(a_sweep(tmp_path, program))
    assert trials[0].state is TrialState.FINISHED
    assert pool_processes(tmp_path / "pool") == []


def test_a_killed_trial_is_started_again_without_a_failure(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal
if not pathlib.Path("once").exists():
    pathlib.Path("once").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    _, trials = run(a_sweep(tmp_path, program, attempts=1))
    assert (trials[0].state, trials[0].attempts, trials[0].failures) == (TrialState.FINISHED, 2, 0)


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


def test_a_second_pool_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    sweep = a_sweep(tmp_path, "")
    with StateFile(tmp_path / "pool", sweep.fingerprint()), pytest.raises(UsageError, match="Another pool is running"):
        run(sweep)


def test_another_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run(a_sweep(tmp_path, ""))
    with pytest.raises(UsageError, match="another command"):
        run(a_sweep(tmp_path, "", [1, 2]))


def test_more_trials_go_on_where_the_last_ones_ended(tmp_path: Path) -> None:
    _, trials = run(a_sweep(tmp_path, "raise SystemExit(1)", [1, 2], attempts=1))
    assert [trial.state for trial in trials.values()] == [TrialState.FAILED] * 2
    watched = Watched()
    _, again = run(a_sweep(tmp_path, "", [1, 2], attempts=1), watched=watched)
    assert again == trials
    assert watched.events == []


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


def test_no_trial_is_started_that_will_probably_not_end(tmp_path: Path) -> None:
    def end_soon(pool: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "finished":
            pool._trials.usual_s = 1000.0
            pool.ends_s = time.time() + 500.0

    one = Device(name="cpu:0", kind="cpu", memory_mib=500.0, slots=1)
    end, trials = run(a_sweep(tmp_path, "", [1, 2]), devices=[one], watched=Watched(end_soon), margin_s=1.0)
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED, TrialState.WAITING]
    assert "too short" in end.reason


def test_a_search_prunes_and_finds_the_best(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra [search] is not installed")
    program = """
import json, os, sys, time
for step in range(30):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"step": step, "accuracy": float(sys.argv[1])}) + "\\n")
    if float(sys.argv[1]) > 0.4:
        break
    time.sleep(0.1)
"""
    from optuna.pruners import BasePruner  # noqa: F401, PLC0415 - only with the extra

    sweep = a_sweep(
        tmp_path,
        program,
        [0.9, 0.8, 0.7, 0.3, 0.2],
        metric="accuracy",
        search=SearchMethod(
            trials=5, pruner="ThresholdPruner", pruner_options={"lower": 0.4}, sampler="", sampler_options={}, seed=1
        ),
    )
    _, trials = run(sweep)
    states = {trial.parameters["x"]: trial.state for trial in trials.values()}
    assert {x: state for x, state in states.items() if x > 0.4} == dict.fromkeys([0.9, 0.8, 0.7], TrialState.FINISHED)
    assert {x: state for x, state in states.items() if x < 0.4} == dict.fromkeys([0.3, 0.2], TrialState.PRUNED)


def test_a_service_that_starts_nothing_does_not_stop_the_pool(tmp_path: Path) -> None:
    end, trials = run(a_sweep(tmp_path, ""), decide=lambda snapshot: snapshot.trials[:0])
    assert trials[0].state is TrialState.FINISHED
    assert any("slots are fixed" in note for note in end.notes)


def test_a_service_cannot_put_more_on_a_device_than_it_has_slots(tmp_path: Path) -> None:
    most: list[int] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        most.append(sum(trial.state is TrialState.RUNNING for trial in snapshot.trials))
        return [
            StartTrial(number=trial.number, device="cpu:0", memory_limit_mib=None, reason="all")
            for trial in snapshot.trials
        ] + [StartTrial(number=99, device="nowhere", memory_limit_mib=None, reason="wrong")]

    _, trials = run(a_sweep(tmp_path, "import time; time.sleep(0.2)", range(6)), decide=decide)
    assert {trial.state for trial in trials.values()} == {TrialState.FINISHED}
    assert max(most) <= 2


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
        assert one.program == "program.py"
        assert one.progress == 1.0
        assert one.peak_memory_mib
        assert 0 < (one.start_up_s or 0.0) < one.seconds
        assert 0 <= (one.utilization or 0.0) <= 1
        (speed,) = one.speeds
        assert speed.beside == (f"program.py x={2 - one.number}",)
        assert 1.0 < speed.steps_per_s < 15.0  # ten, on a machine that is not busy


@pytest.mark.parametrize("first_batch", [1, 500])
def test_steps_made_before_the_first_reading_do_not_count_as_speed(tmp_path: Path, first_batch: int) -> None:
    program = f"""
import json, os, time
def report(first, after):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.writelines(json.dumps({{"step": step}}) + "\\n" for step in range(first, after))
report(0, {first_batch})
for step in range(25):
    time.sleep(0.1)
    report({first_batch} + step, {first_batch} + step + 1)
"""
    run(a_sweep(tmp_path, program, (1,)))
    ((speed,),) = (one.speeds for one in read_runs(tmp_path / "pool"))
    assert speed.steps_per_s < 25.0


def test_a_service_is_told_what_earlier_and_own_trials_needed(tmp_path: Path) -> None:
    earlier = SharedSpeed(family="program.py x=9", beside=(), steps_per_s=2.0, samples=1)
    seen: list[PoolSnapshot] = []

    def one_at_a_time(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.append(snapshot)
        if any(trial.state is TrialState.RUNNING for trial in snapshot.trials):
            return []
        return fixed_slots(snapshot)[:1]

    model = TrialModel([], now_s=0.0)
    run(
        a_sweep(tmp_path, STEPS, (1, 1)),
        decide=one_at_a_time,
        forecast=partial(model.expect, "program.py"),
        known_speeds=[earlier],
    )
    assert all(earlier in snapshot.speeds for snapshot in seen)
    first = next(trial for trial in seen[0].trials if trial.number == 1)
    assert first.forecast == TrialForecast()
    later = next(t for s in seen for t in s.trials if t.number == 1 and t.state is TrialState.RUNNING)
    assert 2.5 < (later.forecast.seconds_p50 or 0.0) < 30.0
    assert 1.0 < (later.forecast.steps_per_s or 0.0) < 15.0
    assert (later.forecast.memory_p95_mib or 0.0) > (later.forecast.memory_p50_mib or 0.0) > 1.0
