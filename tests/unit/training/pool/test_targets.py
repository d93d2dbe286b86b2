"""Targets of sweeps, as programs reach them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helios.model.trial_runs import CurvePoint
from helios.targets import Target, parse_target
from helios.training.model import PoolAction, PoolSnapshot, StepsToTarget, Trial, TrialForecast
from helios.training.pool import curve
from helios.training.pool.curve import thin
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import FILE, read_records
from helios.training.pool.targets import looks_reversed
from helios.training.status import read_status
from tests.unit.training.pool.test_coordinator import a_sweep, run

REPORTS = """
import json, os, sys, time
def report(**values):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps({"time_s": time.time(), **values}) + "\\n")
"""


def a_program(*values: float | str, name: str = "acc") -> str:
    """A program that reports these values of a metric, one a step."""
    return REPORTS + "".join(f"report(step={step}, {name}=float('{value}'))\n" for step, value in enumerate(values))


def a_target_sweep(folder: Path, program: str, target: str, values: Sequence[Any] = (0,), **more: Any) -> Any:
    said = parse_target(target)
    return a_sweep(folder, program, values, objectives={said.metric: said.maximize}, target=said, **more)


def reached(folder: Path) -> list[dict[str, Any]]:
    """The lines of targets in the state file."""
    lines = [json.loads(line) for line in (folder / "pool" / FILE).read_text().splitlines()]
    return [line for line in lines if line.get("what") == "target"]


def test_the_step_that_reaches_a_target_is_found_among_many(tmp_path: Path) -> None:
    run(a_target_sweep(tmp_path, a_program(0.5, 0.8, 0.91, 0.93, 0.96, 0.97), "acc>=0.9,0.95"))
    assert [(line["tier"], line["step"], line["value"]) for line in reached(tmp_path)] == [(0, 2, 0.91), (1, 4, 0.96)]


def test_reports_that_reach_nothing_cost_no_look_at_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[int]()

    def look(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
        looks.append(len(points))
        return thin(points)

    monkeypatch.setattr(curve, "thin", look)
    program = REPORTS + "for step in range(1000): report(step=step, acc=step / 1000)\n"
    run(a_target_sweep(tmp_path, program, "acc>=0.9"))
    assert [line["step"] for line in reached(tmp_path)] == [900]
    assert 0 < len(looks) < 200


def test_the_first_trial_that_reaches_a_target_is_recorded_once(tmp_path: Path) -> None:
    sweep = a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9", range(4))
    run(sweep)
    run(sweep)
    assert len(reached(tmp_path)) == 1
    assert reached(tmp_path)[0]["seconds"] > 0


def test_a_wrong_direction_is_said_of_trials_that_had_ended(tmp_path: Path) -> None:
    program = a_program(2.0, 0.4, name="loss")
    run(a_sweep(tmp_path, program, [0], objectives={}))
    end, _ = run(a_target_sweep(tmp_path, program, "loss>=0.3"))
    assert (reached(tmp_path), (tmp_path / "pool" / "deliverable").exists()) == ([], False)
    assert any("so that <= may be meant" in note for note in end.notes)


def test_a_target_is_reached_downwards(tmp_path: Path) -> None:
    run(a_target_sweep(tmp_path, a_program(2.0, 0.4, 0.2, name="loss"), "loss<=0.3"))
    assert [line["step"] for line in reached(tmp_path)] == [2]


def test_services_see_the_target_and_how_far_the_sweep_is(tmp_path: Path) -> None:
    seen = list[Trial]()

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.extend(snapshot.trials)
        return list(fixed_slots(snapshot))

    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9,0.99", range(3)), decide=decide)
    assert {trial.target for trial in seen} == {parse_target("acc>=0.9,0.99")}
    assert (seen[0].targets_reached, seen[-1].targets_reached) == (0, 1)


def test_what_an_earlier_run_reached_is_known(tmp_path: Path) -> None:
    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9", [0]))
    seen = list[int]()

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        seen.extend(trial.targets_reached for trial in snapshot.trials)
        return list(fixed_slots(snapshot))

    run(a_target_sweep(tmp_path, a_program(0.5), "acc>=0.9", [0, 1]), decide=decide)
    assert set(seen) == {1}


def test_a_target_said_later_finds_what_finished(tmp_path: Path) -> None:
    run(a_sweep(tmp_path, a_program(0.5, 0.95)))
    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9"))
    assert [(line["trial"], line["value"]) for line in reached(tmp_path)] == [(0, 0.95)]


def notes(folder: Path, program: str, target: str, **more: Any) -> tuple[str, Target | None]:
    """What is said of a target, and the one that the trial had last."""
    last: Target | None = None

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        nonlocal last
        for trial in snapshot.trials:
            last = trial.target
        return list(fixed_slots(snapshot))

    end, _ = run(a_target_sweep(folder, program, target, **more), decide=decide)
    return " ".join(end.notes), last


def test_a_target_passed_at_the_start_is_reached_and_said(tmp_path: Path) -> None:
    said, last = notes(tmp_path, a_program(0.93, 0.95), "acc>=0.9")
    assert "passed at the start, since the first acc of trial 0 is 0.93" in said
    assert len(reached(tmp_path)) == 1
    assert last is not None


@pytest.mark.parametrize(
    ("target", "values"), [("loss>=0.3", (2.3, 0.2)), ("val_acc<=0.9", (0.1, 0.8)), ("x>=0.3", (2.3, 0.2))]
)
def test_a_target_of_the_wrong_direction_is_said(tmp_path: Path, target: str, values: tuple[float, float]) -> None:
    said, last = notes(tmp_path, a_program(*values, name=parse_target(target).metric), target)
    assert "may be meant" in said
    assert (reached(tmp_path), last) == ([], None)


def test_a_good_first_value_is_no_wrong_direction() -> None:
    assert not looks_reversed(parse_target("acc>=0.3"), 0.9)
    assert not looks_reversed(parse_target("loss<=3"), 0.1)


def test_a_target_that_is_never_reported_is_said_with_near_names(tmp_path: Path) -> None:
    said, last = notes(tmp_path, a_program(*[0.1] * 30, name="val_accuracy"), "val_acc>=0.9")
    assert "without the target val_acc>=0.9: 20 reports had no val_acc, but val_accuracy" in said
    assert last is None


def test_a_target_reported_late_counts_again(tmp_path: Path) -> None:
    program = a_program(*[0.1] * 30, name="loss") + "report(step=40, acc=0.95)\n"
    said, last = notes(tmp_path, program, "acc>=0.9")
    assert "20 reports had no acc" in said
    assert len(reached(tmp_path)) == 1
    assert last is not None


def test_a_trial_whose_metric_is_nan_has_no_target(tmp_path: Path) -> None:
    said, last = notes(tmp_path, a_program(0.5, "nan"), "acc>=0.9")
    assert "acc of trial 0 is not a finite number" in said
    assert last is None


def test_a_nan_reaches_nothing_and_a_later_value_does(tmp_path: Path) -> None:
    run(a_target_sweep(tmp_path, a_program("nan", "inf", 0.95), "acc>=0.9"))
    assert [line["step"] for line in reached(tmp_path)] == [2]


def test_what_was_reached_is_read_without_the_pool(tmp_path: Path) -> None:
    run(a_target_sweep(tmp_path, a_program(0.5, 0.95), "acc>=0.9"))
    records, _ = read_records(tmp_path / "pool")
    assert records.reached[0]["goal"] == 0.9


WAITS = """
import pathlib
report(step=0, {0})
until = time.monotonic() + 30
while not pathlib.Path("go").exists() and time.monotonic() < until:
    time.sleep(0.01)
"""


def shown(folder: Path, report: str, target: str, forecast: Any = None) -> dict[str, Any]:
    """What a pool shows of its target while a trial has reported."""
    found = dict[str, Any]()

    def decide(snapshot: PoolSnapshot) -> list[PoolAction]:
        for live in read_status(folder / "pool").live.values():
            if live.get("target"):
                found.update(live["target"])
                if found.keys() & {"need", "problem"}:
                    (folder / "go").touch()
        return list(fixed_slots(snapshot))

    run(a_target_sweep(folder, REPORTS + WAITS.format(report), target), decide=decide, forecast=forecast)
    return found


def test_a_running_pool_shows_when_the_target_is_expected(tmp_path: Path) -> None:
    steps = StepsToTarget(p10=10, p50=20, p90=40, reached=0.8)

    def forecast(trials: Sequence[Trial], runs: Any) -> list[TrialForecast]:
        return [TrialForecast(first=steps, steps_per_s=10.0) for _ in trials]

    found = shown(tmp_path, "acc=0.1", "acc>=0.9", forecast)
    assert found["need"] == {"trial": 0, "seconds": [1.0, 2.0, 4.0], "reached": 0.8}


def test_a_pool_shows_why_trials_are_without_the_target(tmp_path: Path) -> None:
    found = shown(tmp_path, "loss=2.3", "loss>=0.3")
    assert found["problem"] == "the first loss of trial 0 is 2.3, so that <= may be meant"


def test_the_best_value_so_far_is_shown_and_not_the_last_one(tmp_path: Path) -> None:
    found = shown(tmp_path, "loss=0.2); report(step=1, loss=2.3", "loss>=0.1")
    assert found["best"] == [2.3, 0]
