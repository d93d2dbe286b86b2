"""Tasks with targets under the service ``targets`` and other rules, beside an oracle.

python -m benchmarks.targets [--settings turns,gpus] [--data pollux,own] [--tasks 4,8,16] [--arrivals once,time]
    [--draws 0-29] [--models NAME,...] [--set floor=0.1] [--processes 2] [decision]

Each task is a client with one trial, and ends by itself at its second target. Its curve is one that was measured:
``pollux`` has the validation curves of Pollux's artifact (OSDI'21; all models but bert, whose curves have two points).
The first target lies at 70 to 95 % of the way from the first value to the best, the second at 96 to 99.5 %. Planned
lengths are lognormal (median 1 h, sigma .7), which no rule knows; nor does any know needs or speeds at first.

``turns`` is one device on which tasks side by side gain nothing. ``gpus`` are four GPUs with Gavel's pairs (V100).
The service gets the needs from its curve model. ``wrong`` gets true ones times a lognormal factor of sigma .7 that
stays. The oracle is the best of several plans that know the needs.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.pair_profiles import read_pair_profiles
from helios.training.forecast import TrialModel
from helios.training.model import Device, PoolSnapshot, SharedSpeed, Trial, TrialForecast, TrialState
from helios.training.services.targets import TargetOptions, Targets
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.target import StepsToTarget, Target
from helios.training.target_rules import EQUAL, compare_target_rules, needs_known
from tests.traces import TRACES

PROFILES = TRACES.parent / "profiles"
MAXIMIZE = {"cifar10": True, "deepspeech2": False, "imagenet": True, "ncf": True, "yolov3": False}
"""Pollux's models, and whether a larger value of their metric is better."""
GPUS, GPU_MIB = 4, 16_384.0
Curve = tuple[tuple[float, float], ...]


@lru_cache
def read_pollux(models: tuple[str, ...]) -> list[tuple[bool, Curve]]:
    """Return the curves of models, as shares of their work and values."""
    curves = []
    for model in models:
        for path in sorted((PROFILES / "pollux" / model).glob("validation-*.csv")):
            with path.open() as file:
                rows = list(csv.DictReader(file))
            end = float(rows[-1]["progress"])
            curves.append(
                (MAXIMIZE[model], tuple((float(row["progress"]) / end, float(row["metric"])) for row in rows))
            )
    return curves


def draw(curves: Sequence[tuple[bool, Curve]], count: int, seed: int, *, over_time: bool) -> list[SimulatedTrial]:
    """Return tasks."""
    random = np.random.default_rng((seed, count))
    trials = []
    for number in range(count):
        maximize, curve = curves[random.integers(len(curves))]
        values = [value for _, value in curve]
        start, best = values[0], max(values) if maximize else min(values)
        first, second = (
            start + part * (best - start) for part in (random.uniform(0.7, 0.95), random.uniform(0.96, 0.995))
        )
        trials.append(
            SimulatedTrial(
                family=number,
                seconds=float(np.exp(random.normal(np.log(3_600), 0.7))),
                memory_mib=float(random.uniform(0.1, 0.24) * GPU_MIB),
                curve=curve,
                target=Target(metric="value", first=first, second=second, maximize=maximize),
                ends_at_target=True,
                sweep=f"task {number}",
                parameters={"task": f"task {number}"},
            )
        )
    if not over_time:
        return trials
    total_s = sum(trial.seconds * trial.work_to_targets[1] for trial in trials)
    arrivals = np.sort(random.uniform(0, 0.6 * total_s, count))
    return [replace(trial, arrives_s=float(at)) for trial, at in zip(trials, arrivals - arrivals[0], strict=True)]


def judge(
    setting: str,
    data: str,
    count: int,
    arrivals: str,
    seed: int,
    *,
    models: tuple[str, ...],
    options: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Simulate one draw under all rules, and return what each reaches beside equal share."""
    trials = draw(read_pollux(models), count, seed, over_time=arrivals == "time")
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
    rules = {"targets": ours, "wrong": needs_known(ours, trials, profiles, sigma=0.7, seed=seed)}
    forecast = partial(TrialModel([], now_s=np.inf).expect, "")
    began = time.process_time()
    found = compare_target_rules(trials, devices, profiles, rules=rules, seed=seed, forecast=forecast)
    took_s = time.process_time() - began
    equal, base = [found.times_s(EQUAL, tier) for tier in (0, 1)], found.outcomes[EQUAL]
    result = {}
    for rule, outcome in found.outcomes.items():
        first, second = (found.times_s(rule, tier) for tier in (0, 1))
        result[rule] = {
            "first": float(first.mean() / equal[0].mean()),
            "second": float(second.mean() / equal[1].mean()),
            "makespan": outcome.makespan_s / base.makespan_s,
            "latest": float(first.max() / equal[0].max()),
            "p95": float(np.quantile(first, 0.95) / np.quantile(equal[0], 0.95)),
            "one task": float((first / equal[0]).max()),
            "share": found.share_of_gain(rule),
            "pauses": float(outcome.pauses),
            "took_s": took_s,
        }
    return result


def show(title: str, results: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
    """Print one setting."""
    print(f"\n{title}, {len(results)} draws ({np.mean([one[EQUAL]['took_s'] for one in results]):.1f} s of CPU each)")
    columns = [name for name in results[0][EQUAL] if name != "took_s"]
    print(f"  {'rule':<18}" + "".join(f"{name:>10}" for name in columns) + f"{'worst first':>13}{'worst latest':>13}")
    for rule in results[0]:
        means = [float(np.nanmean([one[rule][name] for one in results])) for name in columns]
        worst = [max(one[rule][name] for one in results) for name in ("first", "latest")]
        print(
            f"  {rule:<18}" + "".join(f"{mean:>10.3f}" for mean in means) + f"{worst[0]:>13.3f}{worst[1]:>13.3f}",
            flush=True,
        )


def main() -> None:
    """Print all settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["tasks", "decision"], default="tasks")
    parser.add_argument("--settings", default="turns,gpus")
    parser.add_argument("--data", default="pollux")
    parser.add_argument("--tasks", default="4,8,16")
    parser.add_argument("--arrivals", default="once,time")
    parser.add_argument("--draws", default="0-29", metavar="FIRST-LAST")
    parser.add_argument("--models", default=",".join(MAXIMIZE))
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    first, last = map(int, asked.draws.split("-"))
    options = {name: float(value) for name, value in (each.split("=") for each in asked.set)}
    run = partial(judge, models=tuple(asked.models.split(",")), options=options)
    lists = (
        asked.settings.split(","),
        asked.data.split(","),
        map(int, asked.tasks.split(",")),
        asked.arrivals.split(","),
    )
    with ProcessPoolExecutor(asked.processes) as pool:
        for setting, data, count, arrivals in product(*lists):
            draws = range(first, last + 1)
            found = pool.map(run, *zip(*[(setting, data, count, arrivals, seed) for seed in draws], strict=True))
            show(f"{setting}, {data}, {count} tasks, {'over time' if arrivals == 'time' else 'at once'}", list(found))


if __name__ == "__main__":
    main()
