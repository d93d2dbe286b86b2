"""Curves of trials, as a pool records them over all attempts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helios.model.trial_runs import CurvePoint
from helios.training.model import PauseTrial, PoolAction, PoolSnapshot, ShareTrial, TrialState
from helios.training.pool import agent, launcher
from helios.training.pool.curve import MOST_POINTS
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import read_runs
from tests.unit.training.pool.sharing import share_by
from tests.unit.training.pool.test_coordinator import a_sweep, run
from tests.unit.training.pool.test_reports import record, scalar
from tests.waiting import until

STEPS = """
import json, os, sys, time
def report(**fields):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"time_s": time.time(), **fields}) + "\\n")
def wait(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
"""


def curves(folder: Path) -> list[tuple[CurvePoint, ...]]:
    """The curves of all attempts, in the order in which they ended."""
    return [attempt.curve for attempt in read_runs(folder / "pool")]


def values(curve: tuple[CurvePoint, ...]) -> list[tuple[int, float | None]]:
    return [(point.step, point.value) for point in curve]


def test_a_trial_keeps_its_metric_by_step(tmp_path: Path) -> None:
    program = STEPS + "for step in range(5):\n    report(step=step, loss=5 - step)\n    wait(0.2)"
    run(a_sweep(tmp_path, program, objectives={"loss": False}))
    (curve,) = curves(tmp_path)
    assert values(curve) == [(step, 5 - step) for step in range(5)]
    assert 0.7 < curve[-1].seconds - curve[0].seconds < 30


def test_a_long_curve_is_thinned(tmp_path: Path) -> None:
    program = STEPS + "for step in range(5_000):\n    report(step=step, loss=5_000 - step)"
    run(a_sweep(tmp_path, program, objectives={"loss": False}))
    (curve,) = curves(tmp_path)
    assert MOST_POINTS / 2 <= len(curve) <= MOST_POINTS
    assert (values(curve)[0], values(curve)[-1]) == ((0, 5_000), (4_999, 1))


def test_a_value_that_is_not_finite_is_a_point_without_one(tmp_path: Path) -> None:
    program = STEPS + "for step in range(3):\n    report(step=step, loss=[1.0, float('nan'), 0.5][step])"
    run(a_sweep(tmp_path, program, objectives={"loss": False}))
    assert values(curves(tmp_path)[0]) == [(0, 1.0), (1, None), (2, 0.5)]


RESUMED = (
    STEPS
    + """
import pathlib, signal
again = pathlib.Path("once").exists()
pathlib.Path("once").touch()
for step in range(3 if again else 0, 6 if again else 5):
    report(step=step, loss=(10 if again else 1) * step)
    wait(0.3)
if not again:
    os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_a_restart_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    run(a_sweep(tmp_path, RESUMED, objectives={"loss": False}))
    first, both = curves(tmp_path)
    assert values(first) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert values(both) == [(0, 0), (1, 1), (2, 2), (3, 30), (4, 40), (5, 50)]
    assert both[:3] == first[:3]
    assert both[3].seconds > first[-1].seconds


PAUSED = """
import pathlib
saved = pathlib.Path(os.environ["HELIOS_CHECKPOINTS"]) / "step"
step = int(saved.read_text()) if saved.exists() else 0
while step < 4:
    report(step=step, loss=step)
    step += 1
    wait(0.3)
    if os.path.exists(os.environ["HELIOS_REQUESTS"]):
        saved.write_text(str(step))
        report(answer="pause")
        sys.exit()
"""


def test_a_pause_does_not_count_as_time(tmp_path: Path) -> None:
    ended_s: list[float] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        trial = next((trial for trial in snapshot.trials if trial.number == 0), None)
        if trial is None:
            (tmp_path / "end").touch()
        elif trial.state is TrialState.RUNNING and trial.attempts == 1 and trial.curve:
            return [PauseTrial(number=0, reason="test")]
        elif trial.state is TrialState.PAUSED:
            ended_s.append(snapshot.now_s)
            if snapshot.now_s - ended_s[0] < 3.0:
                return []
        return fixed_slots(snapshot)

    other = "import sys\nwhile sys.argv[1] == '1':\n    wait(0.1)\n    if os.path.exists('end'):\n        sys.exit()\n"
    run(a_sweep(tmp_path, STEPS + other + PAUSED, (0, 1), objectives={"loss": False}), decide=decide)
    before, after = (attempt for attempt in read_runs(tmp_path / "pool") if attempt.number == 0)
    assert [point.step for point in after.curve] == [0, 1, 2, 3]
    assert after.started_s - before.ended_s > 2.5
    assert after.curve[-1].seconds < before.seconds + after.seconds + 0.1


SLICED = """
import os, sys, time
program = sys.argv[1]
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1_000))
for step in range(20):
    report(step=step, loss=step)
    burn(0.05)
    while program == "1" and not os.path.exists("end"):
        burn(0.1)
open("end", "w").close()
"""


def test_time_in_which_a_trial_is_held_back_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((agent, "__file__"), (launcher, "gpu_id"), (launcher, "device_environment")):
        monkeypatch.setattr(module, name, getattr(module, name))  # as before, after the test

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING]
        if len(running) == 2 and all(trial.share is None for trial in running):
            shares = zip(running, (0.2, 0.8), strict=True)
            return [ShareTrial(number=trial.number, share=share, reason="test") for trial, share in shares]
        return fixed_slots(snapshot)

    device = share_by("slices", tmp_path, slots=2)
    run(a_sweep(tmp_path, STEPS + SLICED, (0, 1), objectives={"loss": True}), devices=[device], decide=decide)
    little = next(attempt for attempt in read_runs(tmp_path / "pool") if attempt.number == 0)
    assert len(little.curve) == 20
    assert little.curve[-1].seconds < little.seconds + 1.0


KILLED = """
import sys
from pathlib import Path
from helios.training.pool.sweep import TrainingSweep
from tests.unit.training.pool.sharing import share_by
from tests.unit.training.pool.test_coordinator import a_sweep, run
run(a_sweep(Path(sys.argv[1]), Path(sys.argv[2]).read_text(), objectives={"loss": False}))
"""


def test_a_curve_outlives_a_killed_pool(tmp_path: Path) -> None:
    program = (
        STEPS
        + """
import pathlib
saved = pathlib.Path(os.environ["HELIOS_CHECKPOINTS"]) / "step"
begin = int(saved.read_text()) if saved.exists() else 0
for step in range(begin, begin + 4):
    report(step=step, loss=step)
    saved.write_text(str(step + 1))
    wait(0.3)
while begin < 8:
    time.sleep(0.1)
"""
    )
    (tmp_path / "source").write_text(program)
    for kill in (1, 2):
        pool = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(tmp_path / "source")])
        reports = tmp_path / "pool/trials/00000/report.jsonl"
        until(lambda: reports.exists() and len(reports.read_text().splitlines()) == 4 * kill)  # noqa: B023 - called here
        pool.send_signal(signal.SIGKILL)
        pool.wait()
    run(a_sweep(tmp_path, program, objectives={"loss": False}))
    (curve,) = curves(tmp_path)
    assert values(curve) == [(step, step) for step in range(12)]
    seconds = [point.seconds for point in curve]
    assert seconds == sorted(seconds)
    assert 0.6 < seconds[3] - seconds[0] < seconds[7] - seconds[0] < seconds[11] - seconds[0]


def test_a_service_sees_the_curves_of_running_trials(tmp_path: Path) -> None:
    seen: list[list[tuple[int, float | None]]] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.extend(values(trial.curve) for trial in snapshot.trials)
        return fixed_slots(snapshot)

    run(a_sweep(tmp_path, STEPS + "report(step=1, loss=0.5)\nwait(2)", objectives={"loss": False}), decide=decide)
    assert [(1, 0.5)] in seen


def test_a_curve_is_read_from_event_files(tmp_path: Path) -> None:
    (tmp_path / "events").write_bytes(b"".join(record(scalar(step, step / 2)) for step in range(5)))
    program = "import os\nos.mkdir('runs')\nos.rename('events', 'runs/events.out.tfevents.1')"
    run(a_sweep(tmp_path, program, objectives={"a": True}, events="runs"))
    assert values(curves(tmp_path)[0]) == [(step, step / 2) for step in range(5)]
