"""Targets in sweep files and on the command line, checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helios.errors import UsageError
from helios.training.pool.sweep_file import check_training_sweep, read_training_sweep
from helios.training.run import run_pool
from helios.training.submit import Allocation, job_script
from helios.training.target import Target
from tests.unit.training.pool.sweeps import GRID, Reader

pytestmark = pytest.mark.usefixtures("python_is_found")
TARGET = GRID + '[target]\nmetric = "val_acc"\nfirst = 0.9\n'
LOSS = GRID + '[search]\nmetric = "loss"\ndirection = "minimize"\n'


def test_a_target_is_read_with_the_direction_of_its_values(sweep: Reader) -> None:
    read = sweep(TARGET + 'second = 0.95\ndeadline = "6h"\non_target = "notify --to \'a b\'"\n')
    assert read.target == Target(metric="val_acc", first=0.9, second=0.95, deadline_s=6 * 3600)
    assert read.on_target == ("notify", "--to", "a b")
    assert read.objectives == {"val_acc": True}


def test_falling_values_are_a_target_downwards(sweep: Reader) -> None:
    read = sweep(GRID + '[target]\nmetric = "loss"\nfirst = 1\nsecond = 0.3\n')
    assert read.target == Target(metric="loss", first=1.0, second=0.3, maximize=False)


def test_a_target_has_the_direction_of_the_search(sweep: Reader) -> None:
    read = sweep(LOSS + '[target]\nmetric = "loss"\nfirst = 0.5\n')
    assert read.target == Target(metric="loss", first=0.5, maximize=False)


def test_the_command_line_stands_above_the_file(sweep: Reader, tmp_path: Path) -> None:
    sweep(TARGET + 'direction = "maximize"\ndeadline = "6h"\non_target = ["notify"]\n')
    read = read_training_sweep(tmp_path / "sweep.toml", target="loss<=0.5,0.3")
    assert read.target == Target(metric="loss", first=0.5, second=0.3, maximize=False, deadline_s=6 * 3600)
    assert read.on_target == ("notify",)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (TARGET, 5, "nothing says whether more of 'val_acc' is better"),
        (TARGET + "second = 0.9\n", 5, "the second target 0.9 is not harder than the first, 0.9"),
        (TARGET + 'second = 0.8\ndirection = "maximize"\n', 5, "is not harder than the first"),
        (LOSS + '[target]\nmetric = "loss"\nfirst = 0.5\nsecond = 0.6\n', 8, "is not harder than the first"),
        (LOSS + '[target]\nmetric = "los"\nfirst = 1\nsecond = 0.3\n', 8, "compared by 'loss'"),
        (LOSS + '[target]\nmetric = "loss"\nfirst = 0.5\ndirection = "maximize"\n', 8, "contradicts [search]"),
        (TARGET.replace("0.9", "nan") + "second = 0.9\n", 5, "finite number"),
        (TARGET.replace("0.9", "inf") + 'direction = "maximize"\n', 5, "finite number"),
        (TARGET + 'direction = "up"\n', 8, "'up' is no direction"),
        (TARGET + 'second = 1.0\ndeadline = "soon"\n', 9, "'soon' is not a length of time"),
        (TARGET + "second = 1.0\nweight = 2\n", 9, "the key 'weight' is unknown"),
        (TARGET + "third = 1.0\n", 8, "the key 'third' is unknown"),
        (TARGET + 'second = 1.0\non_target = "a \'b"\n', 5, "No closing quotation"),
    ],
)
def test_a_wrong_target_is_refused_with_its_line(sweep: Reader, text: str, line: int, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        sweep(text)
    assert f", line {line}: " in refused.value.message
    assert said in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("val_acc", "is not a target; write it as val_acc>=0.90,0.95"),
        ("loss<=0.5,0.6", "is not harder than the first"),
        ("los<=0.5", "the target is of 'los', and trials are compared by 'loss'"),
        ("loss>=0.5", "the target loss>=0.5 contradicts [search], which is to minimize it"),
    ],
)
def test_a_wrong_target_of_the_command_line_is_refused(sweep: Reader, tmp_path: Path, target: str, said: str) -> None:
    sweep(LOSS)
    with pytest.raises(UsageError) as refused:
        read_training_sweep(tmp_path / "sweep.toml", target=target)
    assert said in refused.value.message
    assert refused.value.hint


def test_a_sweep_of_python_has_a_target(tmp_path: Path) -> None:
    content: dict[str, Any] = {"command": "true {x}", "parameters": {"x": [1]}}
    content["target"] = {"metric": "acc", "first": 0.9, "direction": "maximize"}
    assert str(check_training_sweep(tmp_path / "sweep.toml", content).target) == "acc>=0.9"


def test_a_submitted_job_has_the_target(sweep: Reader, tmp_path: Path) -> None:
    sweep(GRID)
    assert "--target 'loss<=0.5'" in job_script([tmp_path / "sweep.toml"], Allocation(), target="loss<=0.5")


def test_a_grid_may_get_a_target_later_and_lose_it(sweep: Reader, tmp_path: Path) -> None:
    sweep('command = "true {x}"\n[parameters]\nx = [1]\n')
    path = tmp_path / "sweep.toml"
    run_pool(path)
    assert run_pool(path, target="acc>=0.9").notes[0].endswith("target: acc>=0.9, was none")
    assert run_pool(path).notes[0].endswith("target: none, was acc>=0.9")
