"""When sweeps reach their targets is simulated on their curves, beside other rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helios.errors import UsageError
from helios.training.run import run_pool
from helios.training.target_tables import target_whatif_tables
from helios.training.whatif import pool_whatif

GPU: dict[str, Any] = {"gpus": 1, "memory_mib": 16_384.0, "gains": (1.0, 1.0)}
SECONDS = {"short": 200, "long": 2_000}
"""Run time of each task; each reaches 0.8 after 0.8 of it."""
RULES = ["equal share", "first come", "shortest need", "growth efficiency", "targets", "oracle"]


@pytest.fixture
def sweeps(tmp_path: Path) -> list[Path]:
    """Two tasks with targets, the long one named first, and a file of their curves."""
    rows = ["task,step,value,seconds"]
    for name, seconds in SECONDS.items():
        rows += [f"{name},{step},{step / 100},{seconds * step / 100}" for step in range(1, 101)]
        (tmp_path / f"{name}.toml").write_text(
            f'command = "true {name} {{x}}"\nmemory = "4G"\n[parameters]\nx = [1]\n'
            '[target]\nmetric = "acc"\nfirst = 0.8\nsecond = 1.5\n'
        )
    (tmp_path / "curves.csv").write_text("\n".join(rows))
    return [tmp_path / "long.toml", tmp_path / "short.toml"]


@pytest.fixture
def found(sweeps: list[Path]) -> Any:
    return pool_whatif(*sweeps, curves=sweeps[0].with_name("curves.csv"), **GPU)


def test_every_rule_tells_the_time_of_each_task(found: Any) -> None:
    [comparison] = json.loads(json.dumps(found.to_json(), allow_nan=False))["comparisons"]
    assert list(comparison["rules"]) == RULES
    first = comparison["rules"]["first come"]["first"]
    # Each starts in 20 s; the short one waits for the long one.
    assert first["tasks_s"] == pytest.approx({"long": 20 + 1_600, "short": 2_020 + 20 + 160})
    assert first["mean_s"] == pytest.approx((1_620 + 2_200) / 2)
    assert (first["worst_task"], first["worst_s"]) == ("short", pytest.approx(2_200))


def test_the_nearest_target_is_reached_sooner(found: Any) -> None:
    rules = found.to_json()["comparisons"][0]["rules"]
    times = {rule: rules[rule]["first"]["mean_s"] for rule in RULES}
    assert times["oracle"] <= times["targets"] < 0.97 * times["equal share"]
    assert times["oracle"] < 0.7 * times["first come"]


def test_a_target_that_is_never_reached_is_no_time(found: Any) -> None:
    second = found.to_json()["comparisons"][0]["rules"]["targets"]["second"]
    assert second == {
        "mean_s": None,
        "p95_s": None,
        "worst_s": None,
        "worst_task": None,
        "tasks_s": {"long": None, "short": None},
    }
    assert "short never reaches its second target in its curve" in text(found)


def test_who_pays_comes_first(found: Any) -> None:
    lines = text(found).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("Who pays"))
    assert [line.split()[0] for line in lines[start + 1 : start + 3]] == ["long", "short"]


def test_the_tables_fit_a_terminal(sweeps: list[Path]) -> None:
    ranges = pool_whatif(*sweeps, curves=sweeps[0].with_name("curves.csv"), **GPU | {"gains": (1.0, 1.8)})
    table = text(ranges, width=200).split(" trials of ")[0].splitlines()
    assert sum(line.count(" to ") for line in table) > 5
    assert max(len(line.rstrip()) for line in table) <= 80


def text(found: Any, *, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123 - it is recorded
    console.print(target_whatif_tables(found))
    return console.export_text()


def test_both_questions_have_the_same_trials(sweeps: list[Path]) -> None:
    plain = pool_whatif(*sweeps, run_time_s=700.0, **GPU)
    asked = pool_whatif(*sweeps, run_time_s=700.0, curves=sweeps[0].with_name("curves.csv"), **GPU)
    [one], [other] = plain.comparisons.values(), asked.comparisons.values()
    assert one.outcomes["exclusive"].ended_s == other.outcomes["first come"].ended_s
    assert one.outcomes["fixed 8"].ended_s == other.outcomes["equal share"].ended_s


def test_a_sweep_without_a_target_is_refused(sweeps: list[Path]) -> None:
    sweeps[0].write_text(sweeps[0].read_text().split("[target]")[0])
    with pytest.raises(UsageError, match="There is no target") as told:
        pool_whatif(sweeps[0], targets=True, run_time_s=10.0, **GPU)
    assert "--target 'val_acc>=0.90,0.95'" in told.value.hint


def test_curves_of_a_pool_that_ran_are_used(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import helios_task\nfor step in range(1, 11):\n"
        "    helios_task.report(step=step, progress=step / 10, acc=step / 10)\n"
    )
    task = Path(__file__).parents[3] / "task"
    (tmp_path / "sweep.toml").write_text(
        f'command = "{sys.executable} train.py {{x}}"\nmemory = "1G"\n[parameters]\nx = [1, 2]\n'
        f'[env]\nPYTHONPATH = "{task}"\n[target]\nmetric = "acc"\nfirst = 0.5\ndirection = "maximize"\n'
    )
    run_pool(tmp_path / "sweep.toml", kind="cpu")
    answer = subprocess.run(
        [sys.executable, "-m", "helios", "pool", "whatif", "sweep.toml", "--target", "acc>=0.4,2.0", "--json",
         "--gpus", "1", "--memory", "4G"],
        cwd=tmp_path, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Curves of 2 of 2 trials are of a run of the same parameters." in " ".join(answer.stderr.split())
    rules = json.loads(answer.stdout)["comparisons"][0]["rules"]
    assert rules["targets"]["first"]["tasks_s"]["sweep"] > 0
    assert rules["targets"]["second"]["tasks_s"] == {"sweep": None}


def test_a_sweep_of_more_weight_comes_first(sweeps: list[Path]) -> None:
    rows = [f"{name},{step},{step / 100},{5 * step}" for name in SECONDS for step in range(1, 101)]
    curves = sweeps[0].with_name("curves.csv")
    curves.write_text("\n".join(["task,step,value,seconds", *rows]))
    sweeps[0].write_text(f"weight = 10\n{sweeps[0].read_text()}")
    found = pool_whatif(*sweeps, curves=curves, **GPU).to_json()["comparisons"][0]["rules"]["targets"]
    assert found["first"]["tasks_s"]["long"] < 0.9 * found["first"]["tasks_s"]["short"]
