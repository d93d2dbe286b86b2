"""Tasks with targets under the service ``targets`` and other rules, beside an oracle.

    python -m benchmarks.targets [--settings turns,gpus] [--data pollux,own,never] [--tasks 4,8,16]
        [--arrivals once,time] [--draws 0-29] [--set floor=0.1] [--processes 2] [--save FILE]
    python -m benchmarks.targets decision

Set ``OPENBLAS_NUM_THREADS=1``. Each task is a client with one trial, and ends by itself at its second target, so that
nothing is gained by work that nobody wants. Its curve is a measured one: of Pollux's artifact (OSDI'21; all models but
bert, whose curves have two points), or of ``own`` trainings (``benchmarks/learning_curves.csv``). Of the way from the
first value to the best, the first target is at 70 to 95 %, the second at 96 to 99.5 %; with ``never`` one task in five
has a first target that it never reaches, and runs to its planned end. Planned lengths are lognormal (median 1 h, sigma
.7) and reported as progress, as a program does that knows its last step. Needs and speeds are not known at first.

``turns`` is one device on which tasks side by side gain nothing. ``gpus`` are one GPU for four tasks with pairs of
Gavel (V100; those that were not measured are taken for a half). ``targets`` has needs from its curve model, whose prior
is of other models than the task's. ``wrong`` has true ones times a lognormal factor of sigma .7 that stays. The oracle
is the best of several plans that know all needs.

Constants of the service were chosen on draws from 100 on; 0 to 29 are judged. With ``--save`` each draw is added to a
file of JSON lines, and those that are there are not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.pair_profiles import read_pair_profiles
from helios.model.trial_runs import CurvePoint, TrialRun
from helios.targets import Target
from helios.training.forecast import TrialModel
from helios.training.learning_curve import NO_CURVES, EarlierCurves, expect_targets, learn_prior
from helios.training.model import Device, PoolSnapshot, SharedSpeed, StepsToTarget, Trial, TrialForecast, TrialState
from helios.training.services.targets import TargetOptions, Targets
from helios.training.sharing_rules import simulate_rules
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import Decide
from helios.training.target_rules import EQUAL, compare_target_rules, needs_known
from tests.traces import TRACES

PROFILES = TRACES.parent / "profiles"
OWN = Path(__file__).with_name("learning_curves.csv")
MAXIMIZE = {"cifar10": True, "deepspeech2": False, "imagenet": True, "ncf": True, "yolov3": False}
"""Pollux's models, and whether a larger value of their metric is better."""
GPUS, GPU_MIB = 4, 16_384.0
WRONG, NORMAL_90 = 0.7, 1.2816
"""Standard deviation of the logarithm of factors on needs that are wrong, and the 90th percentile of a normal one."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A measured curve: shares of the work, and values."""

    model: str
    maximize: bool
    points: tuple[tuple[float, float], ...]


def read_pollux() -> list[Curve]:
    """Return Pollux's curves."""
    curves = []
    for path in sorted((PROFILES / "pollux").glob("*/validation-*.csv")):
        if (model := path.parent.name) in MAXIMIZE:
            rows = pd.read_csv(path)
            work = rows["progress"] / rows["progress"].iloc[-1]
            points = tuple(zip(work.tolist(), rows["metric"].tolist(), strict=True))
            curves.append(Curve(model=model, maximize=MAXIMIZE[model], points=points))
    return curves


def read_own() -> list[Curve]:
    """Return the curves that were recorded here to judge by, but those that never gain."""
    curves = []
    with OWN.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values = [float(value) for value in row["values"].split()]
            maximize = not row["metric"].endswith("loss")
            known = [value for value in values if np.isfinite(value)]
            gained = max(known) - known[0] if maximize else known[0] - min(known)
            if row["half"] == "judge" and gained > 0:
                points = tuple(((place + 1) / len(values), value) for place, value in enumerate(values))
                curves.append(Curve(model=row["kind"], maximize=maximize, points=points))
    return curves


@lru_cache(maxsize=1)
def pollux_priors() -> dict[str, EarlierCurves]:
    """Return for each model what the curves of the others tell."""
    curves = read_pollux()
    others = {
        model: [
            (tuple(CurvePoint(round(1e4 * work), 0.0, value) for work, value in curve.points), curve.maximize)
            for curve in curves
            if curve.model != model
        ]
        for model in MAXIMIZE
    }
    return {model: EarlierCurves(prior=learn_prior(known)) for model, known in others.items()}


def draw(
    curves: Sequence[Curve], count: int, seed: int, *, over_time: bool, never: bool = False
) -> tuple[list[SimulatedTrial], list[Curve]]:
    """Return tasks, and the curve of each."""
    random = np.random.default_rng((seed, count))
    trials, drawn = list[SimulatedTrial](), list[Curve]()
    for number in range(count):
        curve = curves[int(random.integers(len(curves)))]
        drawn.append(curve)
        values = [value for _, value in curve.points if np.isfinite(value)]
        start, best = values[0], max(values) if curve.maximize else min(values)
        ways = (1.05, 1.1) if never and number % 5 == 4 else (random.uniform(0.7, 0.95), random.uniform(0.96, 0.995))
        first, second = (start + way * (best - start) for way in ways)
        trials.append(
            SimulatedTrial(
                family=number,
                seconds=float(np.exp(random.normal(np.log(3_600), 0.7))),
                memory_mib=float(random.uniform(0.1, 0.24) * GPU_MIB),
                curve=curve.points,
                target=Target(metric="value", first=first, second=second, maximize=curve.maximize),
                ends_at_target=True,
                sweep=f"task {number}",
                parameters={"task": f"task {number}"},
            )
        )
    if not over_time:
        return trials, drawn
    total_s = sum(trial.seconds * min(1.0, trial.work_to_targets[1]) for trial in trials)
    arrivals = np.sort(random.uniform(0, 0.6 * total_s, count))
    return [replace(t, arrives_s=float(at)) for t, at in zip(trials, arrivals - arrivals[0], strict=True)], drawn


def misled(decide: Decide, count: int, seed: int) -> Decide:
    """Return a rule for which each need is wrong by a log-normal factor, which stays."""
    wrong = np.exp(WRONG * np.random.default_rng(seed).standard_normal((count, 2)))
    spread = math.exp(NORMAL_90 * WRONG)

    def mislead(need: StepsToTarget | None, factor: float) -> StepsToTarget | None:
        if need is None or not need.reached:
            return need
        return replace(need, p10=need.p10 * factor / spread, p50=need.p50 * factor, p90=need.p90 * factor * spread)

    def told(trial: Trial) -> Trial:
        first, second = map(float, wrong[trial.number])
        steps = trial.forecast
        steps = replace(steps, first=mislead(steps.first, first), second=mislead(steps.second, second))
        return replace(trial, forecast=steps)

    return lambda snapshot: decide(replace(snapshot, trials=tuple(map(told, snapshot.trials))))


def judge(
    setting: str,
    data: str,
    count: int,
    arrivals: str,
    seed: int,
    *,
    options: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Simulate one draw under all rules, and return what each reaches beside equal share."""
    curves = read_own() if data == "own" else read_pollux()
    trials, drawn = draw(curves, count, seed, over_time=arrivals == "time", never=data == "never")
    priors = {} if data == "own" else pollux_priors()
    names = tuple(f"program {number}" for number in range(count))
    random = np.random.default_rng((seed, 1))
    alone = np.exp(random.normal(1.0, 0.5, count))
    if setting == "turns":
        beside = np.full((count, count), 0.5)
        devices = [Device(name="cpu:0", kind="cpu", memory_mib=16 * GPU_MIB, slots=count)]
    else:
        pairs = read_pair_profiles(PROFILES / "gavel" / "throughputs.csv", gpu="v100").beside
        chosen = random.integers(len(pairs), size=count)
        # Pairs that do not fit there are taken for a half, as of larger cards.
        beside = np.nan_to_num(np.minimum(1.0, pairs[np.ix_(chosen, chosen)]), nan=0.5)
        devices = [Device(name=f"gpu:{place}", kind="gpu", memory_mib=GPU_MIB, slots=4) for place in range(GPUS)]
        devices = devices[: max(1, count // 4)]
    profiles = PairProfiles(families=names, alone=alone, beside=beside)
    ours = Targets(TargetOptions(**options)).decide  # type: ignore[arg-type]  # because they are numbers
    model = TrialModel([], now_s=np.inf)
    needs: dict[tuple[int, int, int], tuple[StepsToTarget | None, StepsToTarget | None]] = {}
    """By trial, points and targets reached. All rules see the same points, but after other times."""

    def forecast(seen: Sequence[Trial], runs: Sequence[TrialRun]) -> list[TrialForecast]:
        found = model.expect("", [replace(trial, target=None) for trial in seen], runs)
        keys = [(trial.number, len(trial.curve), trial.targets_reached) for trial in seen]
        for key, trial in zip(keys, seen, strict=True):
            if key not in needs:
                needs[key] = expect_targets(trial, priors.get(drawn[trial.number].model, NO_CURVES))
        steps = [needs[key] for key in keys]
        return [replace(each, first=first, second=second) for each, (first, second) in zip(found, steps, strict=True)]

    began = time.process_time()
    about: dict[str, Any] = {"progress": lambda _: None, "seed": seed, "forecast": forecast}
    found = compare_target_rules(trials, devices, profiles, rules={"targets": ours}, **about)
    wrong = {"wrong": needs_known(misled(ours, count, seed), trials, profiles)}
    missed = simulate_rules(wrong, trials, devices, profiles, **about)
    found = replace(found, outcomes={**found.outcomes, **missed})
    took_s = time.process_time() - began
    equal, base = [found.times_s(EQUAL, tier) for tier in (0, 1)], found.outcomes[EQUAL]
    result = {}
    for rule, outcome in found.outcomes.items():
        first, second = (found.times_s(rule, tier) for tier in (0, 1))
        result[rule] = {
            "first": float(np.nanmean(first) / np.nanmean(equal[0])),
            "second": float(np.nanmean(second) / np.nanmean(equal[1])),
            "makespan": outcome.makespan_s / base.makespan_s,
            "latest": float(np.nanmax(first) / np.nanmax(equal[0])),
            "later": float(np.mean(first > 1.05 * equal[0])),
            "by": float(np.nanmax(first / equal[0])),
            "share": found.share_of_gain(rule),
            "pauses": float(outcome.pauses),
            "took_s": took_s,
        }
    return result


def show(title: str, results: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    """Print one setting."""
    print(f"\n{title}, {len(results)} draws ({np.mean([one[EQUAL]['took_s'] for one in results]):.1f} s of CPU each)")
    columns = [name for name in results[0][EQUAL] if name != "took_s"]
    highest = ("first", "second", "makespan", "latest", "by")
    print(f"  {'rule':<18}" + "".join(f"{name:>10}" for name in (*columns, *(f"^{name}" for name in highest))))
    for rule in sorted(results[0], key=lambda rule: -np.nanmean([one[rule]["first"] for one in results])):
        means = [float(np.nanmean([one[rule][name] for one in results])) for name in columns]
        worst = [max(one[rule][name] for one in results) for name in highest]
        print(f"  {rule:<18}" + "".join(f"{value:>10.3f}" for value in (*means, *worst)), flush=True)
    first = {rule: np.mean([one[rule]["first"] for one in results]) for rule in ("targets", "oracle")}
    print(f"  of the oracle's gain in the mean of all draws: {(1 - first['targets']) / (1 - first['oracle']):.3f}")


def decision_time() -> None:
    """Print the time of one decision for 200 tasks on 64 GPUs, worst of several worlds."""
    for families, running in ((1, 128), (26, 128), (200, 128), (200, 0)):
        trials = [
            Trial(
                number=number,
                parameters={"width": number % families},
                family=f"f{number % families}",
                sweep=f"s{number}",
                state=TrialState.RUNNING if number < running else TrialState.WAITING,
                devices=(f"gpu:{number % 64}",) if number < running else (),
                memory_limit_mib=2_200.0,
                peak_memory_mib=2_000.0,
                steps_per_s=5.0,
                target=Target(metric="value", first=0.9, second=0.95),
                targets_reached=number % 3 // 2,
                forecast=TrialForecast(
                    memory_p95_mib=2_000.0,
                    seconds_p50=600.0 + number,
                    first=StepsToTarget(p10=100.0, p50=500.0 + number, p90=3_000.0),
                    second=StepsToTarget(p10=200.0, p50=900.0 + number, p90=9_000.0),
                ),
            )
            for number in range(200)
        ]
        speeds = [SharedSpeed(family=f"f{own}", beside=(), steps_per_s=10.0, samples=3) for own in range(families)]
        speeds += [
            SharedSpeed(family=f"f{own}", beside=(f"f{other}",), steps_per_s=4.0 + (own * other) % 5, samples=2)
            for own in range(families)
            for other in range(own % 7, families, 7)
        ][:600]
        devices = tuple(Device(name=f"gpu:{place}", kind="gpu", memory_mib=GPU_MIB) for place in range(64))
        taken = []
        for turn in range(5):
            new = SharedSpeed(family="f0", beside=("x",), steps_per_s=1.0 + turn, samples=1)
            pool = PoolSnapshot(now_s=float(turn), devices=devices, trials=tuple(trials), speeds=(*speeds, new))
            began = time.process_time()
            actions = Targets(TargetOptions()).decide(pool)
            taken.append(1e3 * (time.process_time() - began))
        title = f"{families} families, {running} of 200 running"
        print(f"decision, {title}: worst {max(taken):.0f} ms of 5, {len(actions)} actions (asked: 50 ms)")


def main() -> None:
    """Print all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["tasks", "decision"], default="tasks")
    parser.add_argument("--settings", default="turns,gpus")
    parser.add_argument("--data", default="pollux")
    parser.add_argument("--tasks", default="4,8,16")
    parser.add_argument("--arrivals", default="once,time")
    parser.add_argument("--draws", default="0-29", metavar="FIRST-LAST")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    if asked.what == "decision":
        decision_time()
        return
    first, last = map(int, asked.draws.split("-"))
    options = {name: float(value) for name, value in (each.split("=") for each in asked.set)}
    run = partial(judge, options=options)
    lists = (
        asked.settings.split(","),
        asked.data.split(","),
        map(int, asked.tasks.split(",")),
        asked.arrivals.split(","),
    )
    lines = asked.save.read_text().splitlines() if asked.save and asked.save.exists() else []
    known = {tuple(about): result for about, result in map(json.loads, lines)}
    with ProcessPoolExecutor(asked.processes) as pool:
        for setting, data, count, arrivals in product(*lists):
            draws = [(setting, data, count, arrivals, seed) for seed in range(first, last + 1)]
            missing = [each for each in draws if each not in known]
            for each, result in zip(
                missing, pool.map(run, *zip(*missing, strict=True)) if missing else (), strict=True
            ):
                known[each] = result
                if asked.save:
                    with asked.save.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([each, result]) + "\n")
            title = f"{setting}, {data}, {count} tasks, {'over time' if arrivals == 'time' else 'at once'}"
            show(title, [known[each] for each in draws])


if __name__ == "__main__":
    main()
