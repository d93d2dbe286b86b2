"""Sweeps of which one process trains many trials: real processes, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from helios.errors import UsageError
from helios.training.fused import task
from helios.training.fused.configurations import NOT_FUSIBLE, OPTIMIZERS, OTHER_KEYS
from helios.training.model import (
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ShareTrial,
    StopTrial,
    Trial,
    TrialState,
    fuse,
)
from helios.training.pool import sweep
from helios.training.pool.coordinator import Coordinator, Decide, PoolEnd
from helios.training.pool.fusing import Fusion
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import FILE, TrialRecord, read_runs
from helios.training.pool.sweep import FUSED_TASK, FusedProgram
from helios.training.pool.sweep_file import read_training_sweep
from tests.unit.training.pool.test_coordinator import Watched, pool_processes, run
from tests.waiting import until

ONE = Device(name="cpu:0", kind="cpu", memory_mib=4_000.0, slots=1)

MODELS = """
import time
import torch
from torch import nn

class Reads(nn.Module):
    def forward(self, inputs):
        return inputs * (1.0 if inputs.sum().item() > 0 else -1.0)

def build(configuration):
    model = configuration["model"]
    if model.get("kind") == "odd":
        raise ValueError("there is no odd model")
    layers = [Reads()] if model.get("kind") == "reads" else []
    return nn.Sequential(*layers, nn.Linear(4, 8), nn.Tanh(), nn.Dropout(model.get("dropout", 0.0)), nn.Linear(8, 2))

loss = nn.functional.cross_entropy

def data():
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    return (inputs, (inputs[:, 0] > 0).long()), (inputs[:16], (inputs[:16, 0] > 0).long())

def metrics(output, target):
    time.sleep(PAUSE)
    return {"accuracy": (output.argmax(1) == target).float().mean()}
"""


HELD_UP = """
from pathlib import Path
counted, epochs = metrics, 0

def metrics(output, target):
    global epochs
    epochs += 1
    while epochs > 3 and not Path({free!r}).exists():
        time.sleep(0.01)
    return counted(output, target)
"""


def a_sweep(
    folder: Path, trials: list[dict[str, Any]], fused: str = "", *, rest: str = "", epochs: int = 3, pause: float = 0.0
) -> Path:
    """A sweep file over the trials given."""
    (folder / "models.py").write_text(MODELS.replace("PAUSE", str(pause)))
    (folder / "trials.jsonl").write_text("\n".join(map(json.dumps, trials)) + "\n")
    path = folder / "sweep.toml"
    path.write_text(
        f'trials_file = "trials.jsonl"\n{rest}\n[fused]\nprogram = "models.py"\nepochs = {epochs}\nbatch_size = 16\n'
        f"{fused}\n[env]\nOMP_NUM_THREADS = '1'\n"
    )
    return path


def run_sweep(
    path: Path, *, slots: int = 1, decide: Decide = fixed_slots, watched: Watched | None = None, **more: Any
) -> tuple[PoolEnd, dict[int, TrialRecord]]:
    device = Device(name="cpu:0", kind="cpu", memory_mib=4_000.0, slots=slots)
    return run(read_training_sweep(path), devices=[device], decide=decide, watched=watched, **more)


def reports(folder: Path, number: int) -> list[dict[str, Any]]:
    lines = (folder / f"pool/trials/{number:05d}/report.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def steps(folder: Path, number: int) -> list[int]:
    return [each["step"] for each in reports(folder, number) if "step" in each]


def processes(folder: Path) -> list[list[int]]:
    """The trials that each process was told of."""
    told = []
    for file in sorted((folder / "pool/fused").glob("*/trials.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        told.append([line["trial"] for line in lines if "trial" in line])
    return told


DIGITS = """
import torch
from sklearn.datasets import load_digits
from torch import nn

def build(configuration):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10))

loss = nn.functional.cross_entropy

def data():
    images, digits = load_digits(return_X_y=True)
    images, digits = torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16, torch.tensor(digits)
    return (images[:1200], digits[:1200]), (images[1200:], digits[1200:])

def metrics(output, target):
    return {"accuracy": (output.argmax(1) == target).float().mean()}
"""


def test_a_sweep_over_digits_gives_the_same_fused_and_apart(tmp_path: Path) -> None:
    sweep = """
        [parameters]
        lr = [0.01, 0.03, 0.1]
        [search]
        metric = "accuracy"
        [fused]
        program = "models.py"
        epochs = 3
        batch_size = 32
        momentum = 0.9
        [env]
        OMP_NUM_THREADS = "1"
    """
    found: dict[str, dict[int, TrialRecord]] = {}
    for way, slots, together in (("fused", 1, 3), ("apart", 2, 1)):
        folder = tmp_path / way
        folder.mkdir()
        (folder / "models.py").write_text(DIGITS)
        (folder / "sweep.toml").write_text(sweep.replace("epochs", f"together = {together}\n        epochs"))
        _, found[way] = run_sweep(folder / "sweep.toml", slots=slots)
        assert len(processes(folder)) == slots
    for trials in found.values():
        assert [trial.state for trial in trials.values()] == [TrialState.FINISHED] * 3
        assert max(trials, key=lambda number: trials[number].value or 0.0) == 2
        for number, trial in trials.items():
            assert dict(trial.metrics) == pytest.approx(dict(found["apart"][number].metrics), rel=0.005)
    assert (found["fused"][2].value or 0.0) > 0.8


@dataclass
class Mixed:
    """A sweep that was run, with trials of every kind."""

    folder: Path
    end: PoolEnd
    trials: dict[int, TrialRecord]
    watched: Watched


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    folder, watched = tmp_path_factory.mktemp("mixed"), Watched()
    usual: dict[str, Any] = {"lr": 0.1, "dropout": 0.0, "batch_size": 16, "kind": "plain"}
    changes: list[dict[str, Any]] = [
        {},
        {"lr": 0.2},
        {"dropout": 0.5},  # seen when the models are built
        {"batch_size": 32},  # seen before
        {"kind": "odd"},
        {"lr": 1e38},
        {"lr": -1.0},
        {"kind": "reads"},
        {"kind": "reads", "lr": 0.2},
        {"lr": 0.3},
    ]
    path = a_sweep(folder, [usual | change for change in changes], rest="attempts = 1")
    end, trials = run_sweep(path, watched=watched)
    return Mixed(folder, end, trials, watched)


def test_what_cannot_be_fused_is_parted_and_each_trial_is_trained_once(mixed: Mixed) -> None:
    assert [mixed.watched.kinds(number) for number in (0, 1, 3, 9)] == [["started", "finished"]] * 4
    assert mixed.watched.kinds(2) == ["started", "interrupted", "started", "finished"]
    assert all(steps(mixed.folder, number) == [0, 1, 2] for number in (0, 1, 2, 3, 7, 8, 9))
    assert (mixed.folder / "pool/trials/00009/checkpoints/model.pt").exists()


def test_the_next_part_goes_to_a_process_without_work(mixed: Mixed) -> None:
    (told,) = processes(mixed.folder)
    assert told[:6] == [0, 1, 2, 5, 6, 9]


def test_what_cannot_be_fused_is_said_and_trained_in_turn(mixed: Mixed) -> None:
    assert any("are not fused: 0" in note and "item" in note for note in mixed.end.notes)
    assert [mixed.trials[number].state for number in (7, 8)] == [TrialState.FINISHED] * 2
    assert mixed.watched.kinds(8) == ["started", "interrupted", "started", "finished"]


@pytest.mark.parametrize(
    ("number", "state", "reason"),
    [(4, "failed", "there is no odd model"), (5, "diverged", "is not finite"), (6, "failed", "'lr'")],
)
def test_a_model_that_fails_or_diverges_leaves_alone(mixed: Mixed, number: int, state: str, reason: str) -> None:
    assert mixed.trials[number].state == state
    assert reason in mixed.trials[number].reason


def test_the_next_trial_takes_the_place_of_a_pruned_one(tmp_path: Path) -> None:
    path = a_sweep(tmp_path, [{"x": 0}], "together = 3\nseed = 1", epochs=8, pause=0.1)
    path.write_text(
        path.read_text().replace('trials_file = "trials.jsonl"', "")
        + "[parameters]\nlr = { low = 1e-5, high = 0.5, log = true }\n"
        + '[search]\ntrials = 9\nmetric = "validation_loss"\ndirection = "minimize"\nseed = 1\n'
        + 'sampler = "Random"\npruner = { name = "SuccessiveHalving", min_resource = 1, reduction_factor = 3 }\n'
    )
    _, found = run_sweep(path)
    states = Counter(trial.state for trial in found.values())
    assert set(states) == {TrialState.FINISHED, TrialState.PRUNED}
    assert (len(found), states[TrialState.FINISHED] >= 1) == (9, True)
    assert processes(tmp_path) == [[*range(9)]]
    pruned = [number for number, trial in found.items() if trial.state is TrialState.PRUNED]
    assert min(len(steps(tmp_path, number)) for number in pruned) < 8
    results = [json.loads(line) for line in (tmp_path / "pool" / FILE).read_text().splitlines()]
    assert Counter(entry["trial"] for entry in results if entry.get("what") in {"finished", "pruned"}) == Counter(
        [*found]
    )


def test_trials_of_one_process_have_a_curve_each(tmp_path: Path) -> None:
    path = a_sweep(tmp_path, [{"lr": 0.1}, {"lr": 0.5}], rest='[search]\nmetric = "validation_loss"', epochs=4)
    run_sweep(path)
    curves = [[point.step for point in attempt.curve] for attempt in read_runs(tmp_path / "pool")]
    assert (curves, processes(tmp_path)) == ([[0, 1, 2, 3]] * 2, [[0, 1]])


def test_a_fused_trial_may_be_stopped_as_finished_with_its_value(tmp_path: Path) -> None:
    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING and trial.progress]
        stops = [StopTrial(number=1, reason="enough", finished=True) for trial in running if trial.number == 1]
        return [*stops, *fixed_slots(snapshot)]

    path = a_sweep(tmp_path, [{"lr": 0.1}, {"lr": 0.2}], "together = 2\nseed = 1", epochs=8, pause=0.3)
    path.write_text(path.read_text() + '[search]\nmetric = "accuracy"\n')
    _, found = run_sweep(path, decide=decide)
    assert [(trial.state, trial.reason) for trial in found.values()] == [
        (TrialState.FINISHED, ""),
        (TrialState.FINISHED, "enough"),
    ]
    assert found[1].value is not None
    assert len(steps(tmp_path, 1)) < len(steps(tmp_path, 0)) == 8


def test_the_share_of_a_fused_trial_is_that_of_its_process(tmp_path: Path) -> None:
    seen: dict[int, float | None] = {}

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        running = [trial for trial in snapshot.trials if trial.state is TrialState.RUNNING]
        if len(running) == 4:
            seen.update({trial.number: trial.share for trial in running})
        return [
            *fixed_slots(snapshot),
            *(ShareTrial(number=trial.number, share=0.8, reason="a test") for trial in running[:1]),
        ]

    path = a_sweep(tmp_path, [{"lr": 0.1 * (1 + number)} for number in range(4)], "together = 2", epochs=8, pause=0.3)
    end, found = run_sweep(path, slots=2, decide=decide)
    assert seen == pytest.approx({0: 0.8, 1: 0.8, 2: 0.2, 3: 0.2})
    assert any("cannot be held back one by one" in note for note in end.notes)
    assert {trial.state for trial in found.values()} == {TrialState.FINISHED}


@pytest.mark.parametrize(
    "request_line", ['{"request": "resize", "devices": []}', '{"request": "pause", "by_s": 1, "new": {}}']
)
def test_a_fused_trial_heeds_known_requests_alone(tmp_path: Path, request_line: str) -> None:
    trial = task.FusedTrial(number=0, folder=tmp_path)
    (tmp_path / "requests").write_text(request_line)
    known = "pause" if "pause" in request_line else None
    assert trial.requested() == known
    assert (tmp_path / "report.jsonl").exists() == (known is not None)


def a_task(folder: Path) -> psutil.Process | None:
    """The process that trains, once it has kept checkpoints."""
    if len([*folder.glob("pool/trials/*/checkpoints/model.pt")]) < 3:
        return None
    return next((each for each in pool_processes(folder / "pool") if FUSED_TASK in each.cmdline()), None)


def hold_up(folder: Path) -> Path:
    """Have each process train three epochs and then wait for the file that is returned, however late it comes."""
    free = folder / "free"
    with (folder / "models.py").open("a") as models:
        models.write(HELD_UP.format(free=str(free)))
    return free


def test_after_kills_trials_go_on_from_checkpoints_to_one_result(tmp_path: Path) -> None:
    trials = [{"lr": lr} for lr in (0.1, 0.2, 0.3)]
    path = a_sweep(tmp_path, trials, "checkpoint_s = 0.001", epochs=12)
    free = hold_up(tmp_path)
    command = [sys.executable, "-m", "helios", "pool", "run", str(path), "--slots", "1", "--folder", "pool"]
    environment = {**os.environ, "HELIOS_NO_PLUGINS": ""}
    pool = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    until(lambda: pool.poll() is not None or a_task(tmp_path))
    pool.kill()
    pool.wait()
    until(lambda: not pool_processes(tmp_path / "pool"))
    before = [len(steps(tmp_path, number)) for number in range(3)]
    killed: list[int] = []

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        there = a_task(tmp_path)
        if there is not None and not killed and len(steps(tmp_path, 0)) > before[0]:
            killed.append(there.pid)
            free.touch()
            there.send_signal(signal.SIGKILL)
        return fixed_slots(snapshot)

    _, found = run_sweep(path, decide=decide)
    assert len(killed) == 1
    assert [(trial.state, trial.attempts) for trial in found.values()] == [(TrialState.FINISHED, 3)] * 3
    results = [json.loads(line) for line in (tmp_path / "pool" / FILE).read_text().splitlines()]
    assert Counter(entry["trial"] for entry in results if entry.get("what") == "finished") == Counter(range(3))
    for number in range(3):
        assert set(steps(tmp_path, number)) == {*range(12)}
        assert steps(tmp_path, number).count(0) == 1


def test_a_paused_trial_leaves_its_process_and_later_goes_on(tmp_path: Path) -> None:
    path = a_sweep(tmp_path, [{"lr": lr} for lr in (0.1, 0.2)], epochs=15, pause=0.1)
    free = hold_up(tmp_path)

    class Frees(Watched):
        def refresh(self, pool: Coordinator) -> None:
            if "asked" in self.kinds(1):
                free.touch()

    class Ends(Watched):
        def refresh(self, pool: Coordinator) -> None:
            if pool.ends_s is None and (tmp_path / "pool/trials/00001/report.jsonl").exists() and steps(tmp_path, 1):
                pool.ends_s = time.time() + 30.0  # within the margin
                free.touch()

    end, found = run_sweep(path, watched=Ends(), margin_s=60.0)
    assert end.reason == "the time of the allocation is up"
    assert [(trial.state, trial.attempts) for trial in found.values()] == [(TrialState.WAITING, 1)] * 2
    before, paused = len(steps(tmp_path, 0)), list[int]()
    free.unlink()

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        if not paused and len(steps(tmp_path, 0)) > before:
            paused.append(1)
            return [PauseTrial(number=1, reason="a test")]
        return fixed_slots(snapshot)

    watched = Frees()
    _, found = run_sweep(path, decide=decide, watched=watched)
    assert watched.kinds(0) == ["started", "finished"]
    assert watched.kinds(1) == ["started", "asked", "paused", "started", "finished"]
    for number in (0, 1):
        assert found[number].state is TrialState.FINISHED
        assert sorted(set(steps(tmp_path, number))) == [*range(15)]
        assert steps(tmp_path, number).count(0) == 1


NORMALISED = """
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return inputs

def build(configuration):
    made = {"weight": lambda: weight_norm(nn.Linear(4, 4)), "spectral": lambda: spectral_norm(nn.Linear(4, 4)),
            "old": lambda: nn.utils.spectral_norm(nn.Linear(4, 4)), "calls": Calls}
    return nn.Sequential(made[configuration["model"]["kind"]](), nn.Linear(4, 2))
"""


AT_NIGHT = [pytest.param(kind, marks=pytest.mark.nightly) for kind in ("weight", "old")]


@pytest.mark.parametrize("kind", ["spectral", "calls", *AT_NIGHT])
def test_modules_of_a_class_or_count_of_their_own_are_trained(tmp_path: Path, kind: str) -> None:
    path = a_sweep(tmp_path, [{"lr": lr, "kind": kind} for lr in (0.1, 0.2, 0.3)], rest="attempts = 1")
    with (tmp_path / "models.py").open("a") as models:
        models.write(NORMALISED)
    _, found = run_sweep(path)
    assert [trial.state for trial in found.values()] == [TrialState.FINISHED] * 3
    assert max(trial.attempts for trial in found.values()) <= 2


# With a program in place of the one that trains.

STANDS_IN = """
import json, os, sys
told = [json.loads(line) for line in open(sys.argv[2])]
trials = [each for each in told if "trial" in each]
def end(trial, how):
    with open(trial["folder"] + "/report.jsonl", "a") as file:
        file.write(json.dumps({"fused": {"ended": how, "reason": ""}}) + "\\n")
"""


def with_stand_in(folder: Path, rates: list[float], program: str, **more: Any) -> tuple[PoolEnd, dict[int, Any]]:
    package = folder / "stand_in/helios/training/fused"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for parent in (package.parent, package.parents[1]):
        (parent / "__init__.py").touch()
    (package / "task.py").write_text(STANDS_IN + program)
    path = a_sweep(folder, [{"lr": lr} for lr in rates], rest="attempts = 1")
    sweep = replace(read_training_sweep(path), env={"PYTHONPATH": str(folder / "stand_in")})
    device = Device(name="cpu:0", kind="cpu", memory_mib=700.0, slots=1)
    return run(sweep, devices=[device], **more)


def test_where_a_process_crashes_each_of_its_trials_is_started_alone(tmp_path: Path) -> None:
    program = """
if any(each["parameters"]["lr"] == 666 for each in trials):
    os._exit(3)
end(trials[0], "finished")
"""
    _, found = with_stand_in(tmp_path, [1, 666, 2], program)
    assert [(trial.state, trial.failures) for trial in found.values()] == [
        ("finished", 0),
        ("failed", 1),
        ("finished", 0),
    ]
    assert "exit status 3" in found[1].reason
    assert sorted(processes(tmp_path)) == [[0], [0, 1, 2], [1], [2]]


def test_a_process_killed_for_memory_restarts_with_half_the_trials(tmp_path: Path) -> None:
    program = """
import time
taken = [b"x" * (200 << 20) for _ in trials]
time.sleep(5 if len(trials) > 2 else 0.3)
for each in trials:
    end(each, "finished")
"""
    _, found = with_stand_in(tmp_path, [1, 2, 3, 4], program)
    assert [(trial.state, trial.memory_kills) for trial in found.values()] == [(TrialState.FINISHED, 0)] * 4
    first, second, *_ = processes(tmp_path)
    assert (first, second[:2]) == ([0, 1, 2, 3], [0, 1])


def test_a_process_that_leaves_its_trials_again_and_again_fails_them(tmp_path: Path) -> None:
    _, found = with_stand_in(tmp_path, [1, 2], "")
    assert [trial.state for trial in found.values()] == [TrialState.FAILED] * 2
    assert "left by its process" in found[0].reason


# Without processes.


def trial(number: int, part: str = "a", *, process: int | None = None, most: int = 8, **more: Any) -> Trial:
    state = TrialState.WAITING if process is None else TrialState.RUNNING
    devices = () if process is None else ("gpu:0",)
    known: dict[str, Any] = {
        "state": state,
        "devices": devices,
        "process": process,
        "fusible": part,
        "most_fused": most,
    }
    return Trial(number=number, parameters={}, **(known | more))


def starts(trials: list[Trial], **free: int) -> list[tuple[int, str, int | None]]:
    devices = tuple(Device(name=f"gpu:{n}", kind="gpu", memory_mib=100.0, slots=1) for n in range(2))
    snapshot = PoolSnapshot(now_s=0.0, devices=devices, trials=tuple(trials))
    told = fuse(snapshot, {f"gpu:{name[1:]}": count for name, count in free.items()})
    return [(start.number, start.devices[0], start.into) for start in told]


def test_trials_are_spread_evenly_over_new_processes() -> None:
    told = starts([trial(number) for number in range(5)], g0=1, g1=1)
    assert told == [(0, "gpu:0", None), (1, "gpu:0", 0), (2, "gpu:0", 0), (3, "gpu:1", None), (4, "gpu:1", 3)]


def test_a_process_has_no_more_trials_than_may_be() -> None:
    assert [into for _, _, into in starts([trial(number, most=2) for number in range(5)], g0=1)] == [None, 0]


def test_a_free_slot_goes_to_the_part_that_has_no_process() -> None:
    running = [trial(0, process=-1), trial(1, process=-1)]
    told = starts([*running, trial(2), trial(3, "b")], g1=1)
    assert told == [(2, "gpu:0", 0), (3, "gpu:1", None)]


def test_without_a_free_slot_a_part_without_a_process_waits() -> None:
    assert starts([trial(0, process=-1), trial(1, "b")]) == []


def test_a_single_trial_left_starts_on_a_free_slot() -> None:
    running = [trial(number, process=-1) for number in range(4)]
    assert starts([*running, trial(4)], g1=1) == [(4, "gpu:1", None)]


def test_trials_are_taken_to_be_alike_until_their_models_were_built() -> None:
    fusion = Fusion(FusedProgram(program="m.py", settings={"batch_size": 8}), searched=False)

    def part(**parameters: Any) -> str:
        return fusion.group_key(0, parameters)[0]

    assert part(lr=0.1, width=8, dropout=0.0) == part(lr=0.2, width=8, dropout=0.5)
    assert part(width=8) != part(width=9)
    assert part(batch_size=8) == part()
    assert part(batch_size=16) != part()
    fusion.learn({"width": 8, "dropout": 0.0}, {"structure": "s"})
    assert part(width=8, dropout=0.0) == part(width=8, dropout=0.5)
    fusion.learn({"width": 8, "dropout": 0.5}, {"structure": "t", "ended": "apart"})
    assert len({part(width=8, dropout=0.0), part(width=8, dropout=0.5), part(width=8, dropout=0.7)}) == 3
    fusion.learn({"width": 9}, {"structure": "s"})  # a whole number that changes no shape
    assert part(width=8, dropout=0.0) == part(width=9)


def test_the_memory_caps_a_part_and_not_the_others() -> None:
    fusion = Fusion(FusedProgram(program="m.py", together=8), searched=False)
    fusion.learn({"width": 8}, {"structure": "s", "most": 3})
    assert [fusion.group_key(0, {"width": width})[1] for width in (8, 9)] == [3, 8]
    fusion.learn({"width": 8}, {"structure": "s", "obstacle": "0: it reads numbers"})
    assert fusion.group_key(0, {"width": 8}) == ("", 1)


def test_parameters_are_for_the_optimiser_the_process_or_the_model() -> None:
    settings = {"lr": 0.1, "betas": [0.9, 0.999], "schedule": {"name": "cosine"}, "batch_size": 8, "checkpoint_s": 1.0}
    parameters = {"lr": 0.2, "betas.1": 0.99, "schedule.T_max": 5, "width": 32, "optimizer": "adam", "epochs": 2}
    common, configuration = task.configure(settings, parameters)
    assert common == {"batch_size": 8, "optimizer": "adam"}
    assert configuration == {
        "lr": 0.2,
        "betas": [0.9, 0.99],
        "schedule": {"name": "cosine", "T_max": 5},
        "epochs": 2,
        "model": {"width": 32},
    }


def test_the_keys_of_a_sweep_are_those_of_the_trainer() -> None:
    keys = {key for _, keys in OPTIMIZERS.values() for key in keys} | {*OTHER_KEYS}
    assert {*sweep.FUSIBLE} == keys - {"model"} | {"epochs"}
    assert {*sweep.COMMON} == {*task.COMMON}
    assert {*sweep.COMMON} - {"on_nan"} <= {*NOT_FUSIBLE}


@pytest.mark.parametrize(
    ("fused", "message"),
    [
        ('program = "models.py"\nbatch_size = 1\n', "nothing says epochs or steps"),
        ('program = "nowhere.py"\nepochs = 1\nbatch_size = 1\n', "nowhere.py is not in"),
        ('program = "models.py"\nepcohs = 1\nbatch_size = 1\n', "'epcohs' is unknown"),
        ('program = "models.py"\nepochs = 0\nbatch_size = 1\n', "epochs"),
        ('program = "models.py"\nepochs = 1\nbatch_size = 1\n[env]\n', ""),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path: Path, fused: str, message: str) -> None:
    (tmp_path / "models.py").touch()
    path = tmp_path / "sweep.toml"
    path.write_text(f"[parameters]\nlr = [0.1]\n[fused]\n{fused}")
    if not message:
        assert read_training_sweep(path).fused == FusedProgram(
            program="models.py", settings={"epochs": 1, "batch_size": 1, "checkpoint_s": 30.0}
        )
        return
    with pytest.raises(UsageError, match=message) as refused:
        read_training_sweep(path)
    assert "line " in refused.value.message


def test_a_command_and_a_fused_program_exclude_each_other(tmp_path: Path) -> None:
    path = a_sweep(tmp_path, [{"lr": 0.1}], rest='command = "python x.py {lr}"')
    with pytest.raises(UsageError, match="exclude each other"):
        read_training_sweep(path)


LOADERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        inputs = self.inputs[index]
        return {"inputs": inputs + 0.1 * torch.randn(4), "target": (inputs[0] > 0).long()}

def build(configuration):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

def step(model, batch):
    output = model(batch["inputs"])
    decay = sum(own.square().sum() for own in model.parameters())
    loss = nn.functional.cross_entropy(output, batch["target"]) + 1e-3 * decay
    return {"loss": loss, "accuracy": (output.argmax(1) == batch["target"]).float().mean()}

def data():
    return DataLoader(Noisy(60), batch_size=16, shuffle=True), DataLoader(Noisy(40), batch_size=16)
"""


def loader_sweep(folder: Path, together: int) -> Path:
    """A sweep file of models that train on loaders by a step of their own."""
    folder.mkdir()
    (folder / "models.py").write_text(LOADERS)
    path = folder / "sweep.toml"
    path.write_text(
        "[parameters]\nlr = [0.05, 0.1]\nseed = [1, 2]\n[search]\nmetric = 'accuracy'\n[fused]\n"
        f"program = 'models.py'\nepochs = 4\ncheckpoint_s = 0.01\ntogether = {together}\n"
        "[env]\nOMP_NUM_THREADS = '1'\n"
    )
    return path


def test_loaders_and_a_step_give_the_same_fused_and_alone(tmp_path: Path) -> None:
    _, fused = run_sweep(loader_sweep(tmp_path / "fused", 4))
    _, alone = run_sweep(loader_sweep(tmp_path / "alone", 1))
    assert processes(tmp_path / "fused") == [[0, 1, 2, 3]]
    for number in range(4):
        assert fused[number].state is alone[number].state is TrialState.FINISHED
        mine, theirs = (
            [each for each in reports(tmp_path / kind, number) if "step" in each] for kind in ("fused", "alone")
        )
        for epoch, other in zip(mine, theirs, strict=True):
            assert epoch == pytest.approx({**other, "time_s": epoch["time_s"]}, rel=1e-4)
    assert len({reports(tmp_path / "alone", number)[-3]["training_loss"] for number in range(4)}) == 4


def test_a_batch_size_beside_that_of_a_loader_fails_the_trial(tmp_path: Path) -> None:
    path = loader_sweep(tmp_path / "one", 1)
    path.write_text(path.read_text().replace("epochs = 4", "epochs = 4\nbatch_size = 8").replace("[1, 2]", "[1]"))
    _, trials = run_sweep(path)
    assert "batch_size is 8, and that of the loader 16" in trials[0].reason
