"""Trials of a sweep between the search and the record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helios.training.model import Device, TrialState
from helios.training.pool.coordinator import Coordinator
from helios.training.pool.sweep import SearchMethod
from tests.unit.training.pool.test_coordinator import Watched, a_sweep, run


def test_more_trials_go_on_where_the_last_ones_ended(tmp_path: Path) -> None:
    _, trials = run(a_sweep(tmp_path, "raise SystemExit(1)", [1, 2], attempts=1))
    assert [trial.state for trial in trials.values()] == [TrialState.FAILED] * 2
    watched = Watched()
    _, again = run(a_sweep(tmp_path, "", [1, 2], attempts=1), watched=watched)
    assert again == trials
    assert watched.events == []


def test_no_trial_is_started_that_will_probably_not_end(tmp_path: Path) -> None:
    def end_soon(pool: Coordinator, event: Mapping[str, Any]) -> None:
        if event["event"] == "finished":
            pool.sweeps[0].usual_s = 1000.0
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
        if os.path.exists(os.environ["HELIOS_REQUESTS"]):
            file.write('{"answer": "stop"}\\n')
            break
    if float(sys.argv[1]) > 0.4:
        break
    time.sleep(0.1)
"""
    from optuna.pruners import BasePruner  # noqa: F401, PLC0415 - only with the extra

    sweep = a_sweep(
        tmp_path,
        program,
        [0.9, 0.8, 0.7, 0.3, 0.2],
        objectives={"accuracy": True},
        search=SearchMethod(
            trials=5, pruner="ThresholdPruner", pruner_options={"lower": 0.4}, sampler="", sampler_options={}, seed=1
        ),
    )
    _, trials = run(sweep)
    states = {trial.parameters["x"]: trial.state for trial in trials.values()}
    assert {x: state for x, state in states.items() if x > 0.4} == dict.fromkeys([0.9, 0.8, 0.7], TrialState.FINISHED)
    assert {x: state for x, state in states.items() if x < 0.4} == dict.fromkeys([0.3, 0.2], TrialState.PRUNED)
