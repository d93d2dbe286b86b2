"""Curves that a simulation goes through are those of a file, else of earlier runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helios.errors import UsageError
from helios.model.trial_runs import CurvePoint, TrialRun
from helios.training.pool.sweep import TrainingSweep, family, program
from helios.training.pool.sweep_file import read_training_sweep
from helios.training.recorded_curves import find_curves, read_curves

NAMES = ["cnn", "gru"]


@pytest.fixture
def sweep(tmp_path: Path) -> TrainingSweep:
    path = tmp_path / "gru.toml"
    path.write_text(
        'command = "true {layers} {lr}"\n[parameters]\nlayers = [1, 2]\nlr = [0.1, 0.2]\n'
        '[target]\nmetric = "acc"\nfirst = 0.8\nsecond = 0.9\n'
    )
    return read_training_sweep(path)


def a_run(sweep: TrainingSweep, number: int, parameters: dict[str, Any], best: float, **values: Any) -> TrialRun:
    usual: dict[str, Any] = {"outcome": "finished", "progress": 1.0, "metric": "acc", "started_s": 0.0, "seconds": 9.0}
    return TrialRun(
        pool="p", number=number, attempt=1, program=program(sweep), family=family(sweep, parameters),
        parameters=parameters, device_kind="gpu",
        curve=(CurvePoint(5, 4.0, best / 2), CurvePoint(10, 9.0, best)),
        **usual | values,
    )  # fmt: skip


def best_of(sweep: TrainingSweep, parameters: dict[str, Any], runs: list[TrialRun]) -> float:
    """Return the last value of the curve that a trial gets."""
    asked = [(program(sweep), family(sweep, parameters), parameters)]
    [curve], _ = find_curves([("gru", 0)], [sweep], asked, runs, None, seed=0)
    return curve.points[-1][1]


def test_a_curve_is_by_share_of_the_work(tmp_path: Path) -> None:
    (tmp_path / "curves.csv").write_text("task,step,value,seconds\ngru,0,0.1,0\ngru,5,nan,10\ngru,20,0.9,40\n")
    curve = read_curves(tmp_path / "curves.csv", NAMES)["gru"]
    assert (curve.points, curve.steps, curve.seconds) == (((0.0, 0.1), (1.0, 0.9)), 20.0, 40.0)


def test_one_trial_may_have_a_curve_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "curves.csv").write_text("task,step,value\ngru,2,0.1\ngru/1,2,0.3\n")
    assert {task: curve.points[0][1] for task, curve in read_curves(tmp_path / "curves.csv", NAMES).items()} == {
        "gru": 0.1,
        "gru/1": 0.3,
    }


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ("task,step\ngru,1\n", "no column value"),
        ("task,step,value\ngru,1,0.1\ngur,2,0.2\n", "line 3: task gur is none of cnn, gru"),
        ("task,step,value\ngru,1,0.1\ngru,x,0.2\n", "line 3: step x is no whole number"),
        ("task,step,value\ngru,1.5,0.1\n", "line 2: step 1.5 is no whole number"),
        ("task,step,value\ngru,1,0.1\ncnn,1,0.1\ngru,1,0.2\n", "line 4: step 1 is not after"),
        ("task,step,value\ngru,1,high\n", "line 2: value high is no number"),
        ("task,step,value,seconds\ngru,1,0.1,inf\n", "line 2: seconds inf is no number"),
        ("task,step,value,seconds\ngru,1,0.1,5\ngru,2,0.1,4\n", "line 3: seconds 4 is before"),
        ("task,step,value\ngru,0,0.1\n", "nothing of gru after its beginning"),
        ("", "cannot be read"),
        ("task,step,value\n", "no rows"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: str, fault: str) -> None:
    (tmp_path / "curves.csv").write_text(rows)
    with pytest.raises(UsageError, match=fault):
        read_curves(tmp_path / "curves.csv", NAMES)


def test_a_run_of_the_same_parameters_comes_first(sweep: TrainingSweep) -> None:
    runs = [
        a_run(sweep, 0, {"layers": 1, "lr": 0.1}, best=0.7),
        a_run(sweep, 1, {"layers": 1, "lr": 0.2}, best=0.8),
        a_run(sweep, 2, {"layers": 2, "lr": 0.1}, best=0.9),
    ]
    assert best_of(sweep, {"layers": 1, "lr": 0.2}, runs) == 0.8
    assert best_of(sweep, {"layers": 2, "lr": 0.3}, runs) == 0.9


def test_a_run_that_was_cut_off_has_a_part_of_its_work(sweep: TrainingSweep) -> None:
    run = a_run(sweep, 0, {"layers": 1, "lr": 0.1}, best=0.7, outcome="killed", progress=0.25)
    asked = [(run.program, run.family, run.parameters)]
    [curve], _ = find_curves([("gru", 0)], [sweep], asked, [run], None, seed=0)
    assert (curve.points[-1], curve.steps) == ((0.25, 0.7), 40.0)


def test_curves_of_another_metric_do_not_count(sweep: TrainingSweep) -> None:
    run = a_run(sweep, 0, {"layers": 1, "lr": 0.1}, best=0.7, metric="loss")
    with pytest.raises(UsageError, match=r"How acc of gru.toml gets better is not known") as told:
        best_of(sweep, {"layers": 1, "lr": 0.1}, [run])
    assert "--curves FILE.csv" in told.value.hint
