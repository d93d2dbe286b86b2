"""What a trial will need is told from trials that ended before, and from nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helios.model.trial_runs import CurvePoint, MeasuredSpeed, TrialRun
from helios.training.forecast import ENOUGH, TrialModel, measured_speeds, trial_facts
from helios.training.model import Trial, TrialForecast, peak_hardly_exceeded
from helios.training.target import StepsToTarget, Target
from tests.examples import examples


def a_run(number: int = 0, **values: Any) -> TrialRun:
    usual: dict[str, Any] = {
        "pool": "p",
        "attempt": 1,
        "program": "train.py",
        "family": "train.py",
        "parameters": {},
        "device_kind": "gpu",
        "device_model": "V100",
        "outcome": "finished",
        "started_s": 1_000.0 + number,
        "seconds": 100.0,
        "progress": 1.0,
        "peak_memory_mib": 2_000.0,
    }
    return TrialRun(number=number, **(usual | values))


def alone(steps_per_s: float, seconds: float = 100.0) -> tuple[MeasuredSpeed, ...]:
    return (MeasuredSpeed(beside=(), steps_per_s=steps_per_s, seconds=seconds),)


def batch(number: int, size: int, **values: Any) -> TrialRun:
    return a_run(number, parameters={"batch_size": size}, family=f"train.py batch_size={size}", **values)


def forecast(runs: list[TrialRun], now_s: float = 1e9, **parameters: Any) -> TrialForecast:
    words = [f"{name}={value}" for name, value in parameters.items() if not isinstance(value, float)]
    asked = ("train.py", " ".join(["train.py", *words]), parameters)
    return TrialModel(runs, now_s=now_s).forecasts([asked])[0]


def test_without_any_run_nothing_is_expected() -> None:
    assert forecast([]) == TrialForecast()
    assert forecast([a_run(program="other.py")]) == TrialForecast()


def test_a_family_that_ran_tells_its_next_trial() -> None:
    found = forecast([a_run(number, seconds=90.0 + number, speeds=alone(5.0)) for number in range(21)])
    assert found.seconds_p50 == pytest.approx(100.0)
    assert found.steps_per_s == pytest.approx(5.0)
    assert found.memory_p50_mib == pytest.approx(2_000.0)
    assert 2_000.0 < (found.memory_p95_mib or 0.0) < 2_200.0


def test_two_batch_sizes_give_a_line() -> None:
    """Memory 1,000 + 10 b, a step of .1 + .01 b seconds, and 10,000 samples."""
    runs = []
    for number, size in enumerate((16, 64)):
        step_s = 0.1 + 0.01 * size
        needs = {"peak_memory_mib": 1_000.0 + 10 * size, "seconds": 10_000 / size * step_s}
        runs.append(batch(number, size, speeds=alone(1 / step_s), **needs))
    found = forecast(runs, batch_size=128)
    assert found.memory_p50_mib == pytest.approx(1_000.0 + 1_280)
    assert found.steps_per_s == pytest.approx(1 / 1.38)
    assert found.seconds_p50 == pytest.approx(10_000 / 128 * 1.38)
    assert forecast(runs[:1], batch_size=128) == TrialForecast()
    assert forecast(runs, batch_size=128, layers=3) == TrialForecast()


def test_time_beside_others_counts_by_the_speed_there() -> None:
    beside = (*alone(10.0, 50.0), MeasuredSpeed(beside=("b",), steps_per_s=4.0, seconds=100.0))
    assert trial_facts([a_run(seconds=150.0, speeds=beside)])[0].seconds == pytest.approx(50.0 + 40.0)


def test_a_trial_of_several_attempts_is_one() -> None:
    attempts = [
        a_run(attempt=1, outcome="paused", seconds=30.0, progress=0.3),
        a_run(attempt=2, outcome="killed", seconds=5.0, progress=0.3),
        a_run(attempt=3, seconds=70.0, peak_memory_mib=2_500.0),
    ]
    (fact,) = trial_facts(attempts)
    assert (fact.seconds, fact.memory_mib) == (100.0, 2_500.0)


def test_a_trial_killed_for_memory_needs_more_than_its_limit() -> None:
    (fact,) = trial_facts([a_run(outcome="out_of_memory", memory_limit_mib=1_000.0, peak_memory_mib=990.0)])
    assert fact.memory_mib == 1_500.0


def test_a_trial_that_goes_on_tells_its_length_by_its_progress() -> None:
    (fact,) = trial_facts([a_run(outcome="running", seconds=30.0, progress=0.25)])
    assert fact.seconds == pytest.approx(120.0)
    assert trial_facts([a_run(outcome="running", progress=0.01)])[0].seconds is None


def test_eight_finished_trials_tell_what_hardly_another_one_needs() -> None:
    alike = [a_run(number, peak_memory_mib=2_000.0 + 10 * (number % 2)) for number in range(8)]
    assert forecast(alike).memory_most_mib == pytest.approx(2_010.0 * 1.01)
    assert forecast(alike[:7]).memory_most_mib is None
    assert forecast([*alike[:7], a_run(7, outcome="running", peak_memory_mib=2_000.0)]).memory_most_mib is None
    spread = [a_run(number, peak_memory_mib=1_000.0 + 100 * number) for number in range(9)]
    assert forecast(spread).memory_most_mib == pytest.approx(1_800.0 * (1_800.0 / 1_400.0) ** (12 / 9))


def test_hardly_any_trial_needs_more_than_is_expected_at_most() -> None:
    random = np.random.default_rng(0)
    for finished in (8, 16, 40):
        peaks = 1_000.0 * np.exp(random.normal(0.0, 0.03, (2_000, finished + 1)))
        most = [peak_hardly_exceeded(row[:-1].tolist()) for row in peaks]
        assert np.mean(peaks[:, -1] > np.array(most, dtype=np.float64)) < 0.016  # about 1 in 100


def test_the_memory_of_a_trial_that_just_began_is_not_its_peak() -> None:
    young = a_run(outcome="running", seconds=2.0, progress=0.0, peak_memory_mib=10.0)
    assert trial_facts([young])[0].memory_mib is None
    assert trial_facts([dataclasses.replace(young, progress=0.2)])[0].memory_mib == 10.0
    assert trial_facts([dataclasses.replace(young, seconds=90.0)])[0].memory_mib == 10.0


def test_only_runs_on_the_same_kind_of_device_tell() -> None:
    runs = [a_run(0), a_run(1, device_model="K80", seconds=900.0)]
    found = TrialModel(runs, now_s=1e9, device_model="K80").forecasts([("train.py", "train.py", {})])
    assert found[0].seconds_p50 == pytest.approx(900.0)


def many(count: int, seed: int) -> list[TrialRun]:
    random = np.random.default_rng(seed)
    runs = []
    for number in range(count):
        width, kind = int(random.integers(1, 200)), str(random.choice(["sgd", "adam"]))
        memory = (500 + 20 * width) * (1.5 if kind == "adam" else 1.0) * float(np.exp(random.normal(0, 0.03)))
        parameters = {"width": width, "kind": kind, "lr": float(random.random())}
        family = f"train.py kind={kind} width={width}"
        runs.append(a_run(number, parameters=parameters, family=family, peak_memory_mib=memory, seconds=float(width)))
    return runs


def test_many_trials_tell_of_parameters_that_never_ran() -> None:
    learned, judged = many(300, 0), many(200, 1)
    model = TrialModel(learned, now_s=1e9)
    found = model.forecasts([(run.program, run.family, run.parameters) for run in judged])
    ratio = np.array([run.peak_memory_mib / f.memory_p50_mib for run, f in zip(judged, found, strict=True)])  # type: ignore[operator]  # because all are told
    assert float(np.median(np.abs(np.log(ratio)))) < 0.1
    within = np.mean([run.peak_memory_mib <= f.memory_p95_mib for run, f in zip(judged, found, strict=True)])  # type: ignore[operator]  # because all are told
    assert within >= 0.85


@given(later=st.lists(st.floats(1.0, 1e5), min_size=1, max_size=5), cut=st.integers(1, 60))
@settings(max_examples=examples(10), deadline=None)
def test_what_ends_later_changes_nothing(later: list[float], cut: int) -> None:
    past = many(cut, 2)
    now_s = max(run.ended_s for run in past)
    future = [a_run(1_000 + place, started_s=now_s + 1, peak_memory_mib=mib) for place, mib in enumerate(later)]
    asked = [("train.py", "train.py", {}), ("train.py", past[0].family, past[0].parameters)]
    asked.append(("train.py", "train.py kind=sgd width=50", {"width": 50, "kind": "sgd", "lr": 0.5}))
    told = TrialModel([*past, *future], now_s=now_s).forecasts(asked)
    assert told == TrialModel(past, now_s=now_s).forecasts(asked)


@given(sizes=st.lists(st.integers(1, 512), min_size=2, max_size=6, unique=True), size=st.integers(1, 1_024))
@settings(max_examples=examples(40), deadline=None)
def test_a_larger_batch_never_needs_less_by_the_line(sizes: list[int], size: int) -> None:
    random = np.random.default_rng(sum(sizes))
    runs = [batch(n, s, peak_memory_mib=float(random.uniform(500, 5_000))) for n, s in enumerate(sizes)]
    small, large = (forecast(runs, batch_size=s).memory_p50_mib for s in (2_000 + size, 2_001 + size))
    assert small is not None
    assert large is not None
    assert 0 < small <= large * (1 + 1e-9)


@given(values=st.lists(st.floats(100.0, 1e4), min_size=1, max_size=12))
@settings(max_examples=examples(40), deadline=None)
def test_quantiles_are_in_order_and_narrow_with_equal_runs(values: list[float]) -> None:
    found = forecast([a_run(n, peak_memory_mib=mib, seconds=mib) for n, mib in enumerate(values)])
    assert (found.memory_p50_mib or 0) < (found.memory_p95_mib or 0)
    assert (found.seconds_p50 or 0) < (found.seconds_p90 or 0)
    more = forecast([a_run(n, peak_memory_mib=values[0]) for n in range(len(values) + ENOUGH)])
    one = forecast([a_run(peak_memory_mib=values[0])])
    assert (more.memory_p95_mib or 0) < (one.memory_p95_mib or 0)


def test_speeds_are_means_by_time() -> None:
    runs = [
        a_run(0, speeds=alone(2.0, 10.0)),
        a_run(1, speeds=alone(4.0, 30.0)),
        dataclasses.replace(a_run(2), speeds=()),
    ]
    (speed,) = measured_speeds(runs)
    assert (speed.steps_per_s, speed.samples) == (3.5, 2)


def test_runs_on_two_devices_tell_nothing_of_one() -> None:
    runs = [a_run(number, placement=(2,), speeds=alone(20.0)) for number in range(5)]
    assert forecast(runs) == TrialForecast()


def test_measured_speeds_are_kept_by_placement() -> None:
    runs = [a_run(0, speeds=alone(10.0)), a_run(1, placement=(2,), speeds=alone(20.0))]
    assert {(speed.placement, speed.steps_per_s) for speed in measured_speeds(runs)} == {((1,), 10.0), ((2,), 20.0)}


def test_earlier_trials_of_a_program_are_told_with_their_curves() -> None:
    curve = (CurvePoint(0, 1.0, 0.5), CurvePoint(1, 2.0, 0.25))
    part, whole = (a_run(attempt=n, metric="loss", curve=curve[:n], started_s=n) for n in (1, 2))
    others = [a_run(1, metric="loss"), a_run(2, metric="acc", curve=curve)]
    others += [a_run(3, metric="loss", curve=curve, program="other.py"), a_run(4, metric="loss", curve=curve)]
    model = TrialModel([part, whole, *others], now_s=1_103.5)  # the last one had not ended
    assert model.curves("train.py", "loss") == [whole]


RISING = tuple(CurvePoint(10 * n, float(n), 1 - 0.8 * 0.9**n) for n in range(1, 41))


def trial_with_target(points: int, **values: Any) -> Trial:
    target = Target(metric="acc", first=0.9, second=0.97)
    return Trial(number=7, parameters={}, family="train.py", target=target, curve=RISING[:points], **values)


def test_trial_with_a_target_is_expected_to_need_steps_to_it() -> None:
    [expected] = TrialModel([], now_s=1e9).expect("train.py", [trial_with_target(10)], [])
    assert expected.first is not None
    assert expected.second is not None
    assert expected.first.p10 < 100 < expected.first.p90
    assert expected.first.p50 < expected.second.p50


def test_target_that_was_reached_needs_no_more_steps() -> None:
    [expected] = TrialModel([], now_s=1e9).expect("train.py", [trial_with_target(22, targets_reached=1)], [])
    assert expected.first == StepsToTarget(p10=0, p50=0, p90=0)
    assert expected.second is not None
    assert expected.second.p50 > 0


def test_progress_says_where_a_training_ends() -> None:
    [expected] = TrialModel([], now_s=1e9).expect("train.py", [trial_with_target(10, progress=0.8)], [])
    assert expected.second is not None
    assert expected.second.p90 <= 25


def test_waiting_trial_is_expected_to_need_what_earlier_ones_did() -> None:
    ended = {"metric": "acc", "direction": "maximize", "curve": RISING}
    runs = [a_run(number, pool="now", **ended) for number in range(2)]
    model = TrialModel([a_run(number, **ended) for number in range(3)], now_s=1e9)
    [expected] = model.expect("train.py", [trial_with_target(0)], runs)
    assert expected.first is not None
    assert expected.first.p50 == pytest.approx(200, rel=0.3)


def test_trial_without_a_target_has_no_steps_to_one() -> None:
    trial = Trial(number=0, parameters={}, curve=RISING)
    [expected] = TrialModel([], now_s=1e9).expect("train.py", [trial], [])
    assert (expected.first, expected.second) == (None, None)


def test_forecast_to_a_target_loads_no_trees() -> None:
    code = "import sys, helios.training.learning_curve; print('lightgbm' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
