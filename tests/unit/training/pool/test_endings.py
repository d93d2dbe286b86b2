"""What becomes of trials that fail, are killed, or need more memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helios_task
import pytest

from helios.training.model import Device, PauseTrial, PoolAction, PoolSnapshot, StopTrial, TrialState
from helios.training.pool.coordinator import Decide
from helios.training.pool.search import JOURNAL, STUDY
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import TrialRecord, read_runs
from helios.training.pool.sweep import SearchMethod, TrainingSweep
from tests.unit.training.pool.test_coordinator import Watched, a_sweep, run
from tests.unit.training.pool.test_search import studied


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


def reporting(text: str) -> str:
    """A program that can report, and see whether something is requested of it."""
    return f"""
import json, os, sys, time
def report(**values):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps(values) + "\\n")
def requested():
    return os.path.exists(os.environ["HELIOS_REQUESTS"])
def wait():
    began = time.monotonic()
    while not requested():
        assert time.monotonic() - began < 60, "nothing was requested"
        time.sleep(0.02)
{text}
"""


OBJECTIVES = {"accuracy": True}


def searched(
    folder: Path, text: str, *, decide: Decide = fixed_slots, objectives: Mapping[str, bool] = OBJECTIVES, **more: Any
) -> tuple[dict[int, TrialRecord], list[str]]:
    """The trials of a search that prunes each whose value is below .4, and how Optuna has them."""
    optuna = pytest.importorskip("optuna", reason="the extra [search] is not installed")
    method = SearchMethod(trials=2, sampler="", pruner="ThresholdPruner", pruner_options={"lower": 0.4})
    sweep = a_sweep(folder, reporting(text), [0.3, 0.9], objectives=objectives, search=method, **more)
    _, trials = run(sweep, decide=decide)
    journal = optuna.storages.journal.JournalFileBackend(str(folder / "pool/search" / JOURNAL))
    study = optuna.load_study(study_name=STUDY, storage=optuna.storages.JournalStorage(journal))
    return trials, [trial.state.name for trial in study.trials]


def test_a_trial_that_ends_in_nan_has_diverged(tmp_path: Path) -> None:
    trials, told = searched(tmp_path, "report(accuracy=0.95)\nreport(accuracy=float('nan'))")
    assert [(trial.state, trial.value, dict(trial.metrics)) for trial in trials.values()] == [
        (TrialState.DIVERGED, None, {})
    ] * 2
    assert "accuracy" in trials[0].reason
    assert told == ["FAIL"] * 2


def test_a_trial_that_was_nan_for_a_while_has_its_last_value(tmp_path: Path) -> None:
    trials, told = searched(tmp_path, "report(accuracy=float('nan'))\nreport(accuracy=0.5)")
    assert [(trial.state, trial.value) for trial in trials.values()] == [(TrialState.FINISHED, 0.5)] * 2
    assert told == ["COMPLETE"] * 2


def test_a_second_metric_that_is_no_number_has_diverged(tmp_path: Path) -> None:
    trials, told = searched(
        tmp_path,
        "report(accuracy=0.9, loss=float('inf'))\nreport(accuracy=0.95)",
        objectives=OBJECTIVES | {"loss": False},
    )
    assert [trial.state for trial in trials.values()] == [TrialState.DIVERGED] * 2
    assert trials[0].reason == "its last loss is not a finite number"
    assert told == ["FAIL"] * 2


def test_a_value_that_is_nan_at_a_step_is_pruned(tmp_path: Path) -> None:
    trials, told = searched(tmp_path, "report(step=1, accuracy=float('nan'))\nwait()\nreport(answer='stop')")
    assert [trial.state for trial in trials.values()] == [TrialState.PRUNED] * 2
    assert told == ["PRUNED"] * 2


def test_a_trial_that_ignores_a_request_to_stop_is_finished(tmp_path: Path) -> None:
    trials, told = searched(
        tmp_path, "x = float(sys.argv[1])\nreport(step=1, accuracy=x)\nx > 0.4 or wait()\nreport(step=2, accuracy=x)"
    )
    assert [(trial.state, trial.value) for trial in trials.values()] == [
        (TrialState.FINISHED, 0.3),
        (TrialState.FINISHED, 0.9),
    ]
    assert told == ["COMPLETE"] * 2


def test_the_search_sees_what_a_trial_reports_after_a_request_to_stop(tmp_path: Path) -> None:
    searched(tmp_path, "report(step=1, accuracy=0.1)\nwait()\n[report(step=s, accuracy=s / 10) for s in (2, 3)]")
    assert [trial.intermediate_values for trial in studied(tmp_path / "pool/search")] == [{1: 0.1, 2: 0.2, 3: 0.3}] * 2


def test_a_trial_that_stops_when_it_is_asked_is_pruned(tmp_path: Path) -> None:
    trials, told = searched(
        tmp_path, "x = float(sys.argv[1])\nreport(step=1, accuracy=x)\nx > 0.4 or wait() or report(answer='stop')"
    )
    assert [trial.state for trial in trials.values()] == [TrialState.PRUNED, TrialState.FINISHED]
    assert told == ["PRUNED", "COMPLETE"]


def test_a_trial_that_is_done_when_it_is_asked_is_finished(tmp_path: Path) -> None:
    text = "report(step=1, progress=1, accuracy=0.3)\nwait()\nreport(answer='stop')"
    trials, _ = searched(tmp_path, text)
    assert [(trial.state, trial.value) for trial in trials.values()] == [(TrialState.FINISHED, 0.3)] * 2


def test_a_trial_whose_reports_are_read_after_its_end_is_finished(tmp_path: Path) -> None:
    trials, _ = searched(tmp_path, "for step in range(9): report(step=step, accuracy=0.3)")
    assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 2


def test_a_trial_has_the_grace_of_the_sweep_file(tmp_path: Path) -> None:
    text = "report(step=1, accuracy=0.3)\nwait()\ntime.sleep(60)"
    trials, _ = searched(tmp_path, text, grace_s=0.1)
    assert [trial.state for trial in trials.values()] == [TrialState.PRUNED] * 2
    assert max(trial.seconds for trial in trials.values()) < 30


def test_a_failure_after_a_request_to_stop_is_pruned(tmp_path: Path) -> None:
    trials, _ = searched(tmp_path, "report(step=1, accuracy=0.3)\nwait()\nraise SystemExit(1)")
    assert [trial.state for trial in trials.values()] == [TrialState.PRUNED] * 2


def test_a_trial_that_heeds_what_its_report_returns_is_pruned(tmp_path: Path) -> None:
    (tmp_path / "helios_task.py").write_bytes(Path(helios_task.__file__).read_bytes())
    text = """
import helios_task
for step in range(200):
    if helios_task.report(step=step, accuracy=0.3):
        break
    wait()
"""
    trials, _ = searched(tmp_path, text)
    assert [trial.state for trial in trials.values()] == [TrialState.PRUNED] * 2


def test_a_trial_that_trains_on_after_its_answer_is_finished(tmp_path: Path) -> None:
    text = "report(step=1, accuracy=0.3)\nwait()\nreport(answer='stop')\nreport(step=2, accuracy=0.35)"
    trials, _ = searched(tmp_path, text)
    assert [(trial.state, trial.value) for trial in trials.values()] == [(TrialState.FINISHED, 0.35)] * 2


def finish_the_first(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Stop trial 0 as finished once it has reported."""
    return [
        StopTrial(number=0, reason="its target is reached", finished=True)
        for trial in snapshot.trials
        if trial.number == 0 and trial.state is TrialState.RUNNING and trial.progress is not None
    ] or fixed_slots(snapshot)


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("wait(); report(answer='stop', accuracy=0.75)", "its target is reached"),
        ("wait(); report(accuracy=0.75); sys.exit(7)", "its target is reached"),
        ("wait(); report(accuracy=0.75); time.sleep(60)", "its target is reached; it did not end by itself"),
    ],
)
def test_a_stop_may_end_a_trial_as_finished_with_its_value(tmp_path: Path, last: str, reason: str) -> None:
    text = "x = float(sys.argv[1])\nreport(step=1, accuracy=x + 0.2, progress=0.25)"
    trials, told = searched(tmp_path, f"{text}\nif x < 0.4:\n    {last}", decide=finish_the_first, grace_s=1.0)
    assert (trials[0].state, trials[0].value, trials[0].reason) == (TrialState.FINISHED, 0.75, reason)
    assert told == ["COMPLETE"] * 2
    assert [(run.outcome, run.progress) for run in read_runs(tmp_path / "pool") if run.number == 0] == [
        ("stopped", 0.25)
    ]


def test_a_paused_trial_may_be_stopped_as_finished_with_its_value(tmp_path: Path) -> None:
    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        first = next((trial for trial in snapshot.trials if trial.number == 0), None)
        if first is not None and first.state is TrialState.PAUSED:
            return [StopTrial(number=0, reason="its target is reached", finished=True)]
        if first is not None and first.state is TrialState.RUNNING and first.progress is not None:
            return [PauseTrial(number=0, reason="a test")]
        return fixed_slots(snapshot)

    text = (
        "x = float(sys.argv[1])\nreport(accuracy=x + 0.2, progress=0.25)\nx > 0.4 or wait() or report(answer='pause')"
    )
    trials, told = searched(tmp_path, text, decide=decide)
    assert (trials[0].state, trials[0].value, trials[0].reason) == (TrialState.FINISHED, 0.5, "its target is reached")
    assert told == ["COMPLETE"] * 2


def test_a_trial_that_is_stopped_as_finished_at_nan_has_diverged(tmp_path: Path) -> None:
    text = "x = float(sys.argv[1])\nreport(accuracy=float('nan') if x < 0.4 else x, progress=0.25)\nx > 0.4 or wait()"
    trials, told = searched(tmp_path, text, decide=finish_the_first, grace_s=1.0)
    assert trials[0].state is TrialState.DIVERGED
    assert told == ["FAIL", "COMPLETE"]
