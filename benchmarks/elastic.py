"""What sizes decided again and again are worth, on the published workloads of Pollux (OSDI'21).

    OMP_NUM_THREADS=1 python -m benchmarks.elastic PROFILES [--loads 0.5,1.0,1.5,2.0] [--workloads 1-4]
        [--rules soonest,pollux] [--change-s 30] [--size-error 0.5] [--by-model] [--large]

Sixteen nodes of four GPUs, a decision every 60 s, epochs known, in the setting that the profiles' README gives. For
each workload: the mean completion time, s, the 99th percentile and the longest, each against the published one of the
same rule (for rules that are published) or of `pollux` (for others); restarts of a job; the worst slowdown, which is
the completion time of a job over that alone on an equal share of the GPUs, as many as jobs were there in the mean; the
seconds of the processor without decisions, and the mean of a decision, ms. Workloads 3 and 4 are kept back from
tuning. `tiresias` and `optimus` reproduce what is published; `pollux` maximises the published objective exactly where
its authors searched, so that it differs.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.elastic_published import TUNED
from helios.training.elastic_sim.profiles import ModelProfile, NotMeasured, read_profile
from helios.training.elastic_sim.simulator import CHANGE_S, GPUS_PER_NODE, NODES, ElasticJob, JobOutcome, simulate
from helios.training.model import Device, PoolAction, PoolSnapshot, Trial, TrialState
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.model import ElasticState, StepRun, StepTime, statistical_gain
from helios.training.sizes.rules import RULES

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL = {"yolov3": 8}
"""Samples of a GPU that fit, where they are fewer than were measured."""
PUBLISHED = ("tiresias", "optimus", "pollux")
ONE_GPU = {"ncf": 32_768}
"""Models that keep one GPU, and their batch; the published runs of Pollux do so."""
BATCHES = 30
"""Global batches that are tried for the time of a job alone."""
KEPT_BACK = (3, 4)
LARGE = 1000, 500
"""Jobs, each of its own speed, and nodes of four GPUs of the large decision."""


class Timed:
    """Service that tells how long its decisions take."""

    def __init__(self, service: Elastic) -> None:
        self.service, self.every, self.times_s = service, service.every, list[float]()

    def decide(self, snapshot: PoolSnapshot) -> list[PoolAction]:
        """Decide, and take the time."""
        started = time.process_time()
        actions = self.service.decide(snapshot)
        self.times_s.append(time.process_time() - started)
        return actions


def read_profiles(folder: Path) -> dict[str, ModelProfile]:
    """Return the profile of each model."""
    return {
        name: read_profile(folder / name, epochs=epochs, largest_local=MOST_LOCAL.get(name))
        for name, epochs in EPOCHS.items()
    }


def read_workload(path: Path, profiles: dict[str, ModelProfile], *, tuned: bool) -> list[ElasticJob]:
    """Return the jobs of a workload.

    Parameters
    ----------
    tuned : bool
        Whether jobs keep the batch that their owners tuned, as in the runs of Tiresias and Optimus.
    """
    return [
        ElasticJob(
            name=str(row["name"]),
            submit_s=row.time,
            profile=profiles[row.application],
            gpus=row.num_replicas,
            batch=row.batch_size if tuned else ONE_GPU.get(row.application, row.batch_size),
            fixed_batch=tuned or row.application in ONE_GPU,
            most_gpus=1 if row.application in ONE_GPU else NODES * GPUS_PER_NODE,
        )
        for _, row in pd.read_csv(path).iterrows()
    ]


def mistake_sizes(jobs: Sequence[ElasticJob], sigma: float, *, seed: int) -> list[ElasticJob]:
    """Return jobs whose owners are wrong by a log-normal factor."""
    factors = np.random.default_rng(seed).lognormal(0.0, sigma, len(jobs))
    return [replace(job, stated_epochs=job.profile.epochs * factor) for job, factor in zip(jobs, factors, strict=True)]


def summarise(outcomes: Sequence[JobOutcome]) -> tuple[float, float, float, float]:
    """Return the mean, 99th percentile and longest completion time, and the mean number of restarts."""
    times = np.array([outcome.completion_s for outcome in outcomes], dtype=float)
    restarts = float(np.mean([outcome.restarts for outcome in outcomes]))
    return float(times.mean()), float(np.quantile(times, 0.99)), float(times.max()), restarts


def worst_slowdown(outcomes: Sequence[JobOutcome]) -> float:
    """Return the largest completion time of a job over that on an equal share."""
    spans = [(outcome.job.submit_s, outcome.end_s) for outcome in outcomes]
    worst = 0.0
    for outcome, (begin, end) in zip(outcomes, spans, strict=True):
        there = sum(max(0, min(end, last) - max(begin, first)) for first, last in spans) / max(end - begin, 1)
        share = max(1, int(NODES * GPUS_PER_NODE / there))
        gpus = min(share // GPUS_PER_NODE * GPUS_PER_NODE or 2 ** int(math.log2(share)), outcome.job.most_gpus)
        worst = max(worst, outcome.completion_s / (CHANGE_S + _time_alone(outcome.job.profile.name, gpus)))
    return worst


_PROFILES: dict[str, ModelProfile] = {}


@cache
def _time_alone(model: str, gpus: int) -> float:
    """Return how long a training takes with the best batches, s."""
    profile = _PROFILES[model]
    limits, full = profile.limits, GPUS_PER_NODE
    shape = (full,) * (gpus // full) + ((gpus % full,) if gpus % full else ())
    steps = {}
    smallest = max(limits.smallest, limits.smallest_local * gpus)
    for batch in np.geomspace(smallest, limits.largest, BATCHES):
        local, passes = limits.split(batch, gpus)
        try:
            step_s, sync_s = profile.step_time(shape, local)
        except NotMeasured:
            continue
        steps[gpus * local * (passes + 1)] = step_s + (step_s - sync_s) * passes
    total_s = 0.0
    for epoch in range(profile.epochs):
        rates = [
            statistical_gain(profile.gradient(batch, epoch), batch / limits.smallest) / step_s
            for batch, step_s in steps.items()
            if batch >= limits.smallest
        ]
        total_s += (profile.progress_after(epoch + 1) - profile.progress_after(epoch)) / max(rates)
    return total_s


def time_large(rule: str) -> tuple[float, float]:
    """Return the seconds of a large decision, and those of another one.

    Models are fitted in the first.
    """
    jobs, nodes = LARGE
    speeds = np.random.default_rng(1).uniform(0.1, 0.2, jobs)
    limits = next(iter(_PROFILES.values())).limits
    rng = np.random.default_rng(1)
    devices = [
        Device(name=f"n{n}/gpu:{g}", kind="gpu", memory_mib=1.0, slots=1) for n in range(nodes) for g in range(4)
    ]
    trials = []
    for number in range(jobs):
        measured = tuple(
            (StepRun(1, gpus, limits.smallest_local), StepTime(float(speeds[number]), 0.05)) for gpus in (1, 2)
        )
        held = devices[2 * number : 2 * number + 2]
        state = ElasticState(
            asked=1,
            most=4,
            limits=limits,
            submit_s=0.0,
            remaining=float(rng.lognormal(8, 2)),
            measured=measured,
            gradient=next(iter(_PROFILES.values())).gradient(limits.smallest, 0),
        )
        names = tuple(device.name for device in held)
        trials.append(Trial(number=number, parameters={}, state=TrialState.RUNNING, devices=names, elastic=state))
    service = Timed(Elastic(ElasticOptions(rule=rule)))
    for _ in range(2):
        service.decide(PoolSnapshot(now_s=3600.0, devices=tuple(devices), trials=tuple(trials)))
    return service.times_s[0], service.times_s[1]


def main() -> None:
    """Print a line for each workload and rule, and means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path, help="the folder pollux of the profiles")
    parser.add_argument("--loads", default="0.5,1.0,1.5,2.0")
    parser.add_argument("--workloads", default="1-4")
    parser.add_argument("--rules", default=",".join([*TUNED, *RULES]))
    parser.add_argument("--change-s", type=int, default=CHANGE_S)
    parser.add_argument("--size-error", type=float, default=0.0, help="sigma of the log-normal error of epochs")
    parser.add_argument("--by-model", action="store_true", help="print mean completion times of each model")
    parser.add_argument("--large", action="store_true", help="time a decision for 1,000 jobs on 2,000 GPUs instead")
    chosen = parser.parse_args()
    _PROFILES.update(read_profiles(chosen.profiles))
    if chosen.large:
        for rule in chosen.rules.split(","):
            first_s, again_s = time_large(rule)
            print(f"{rule:14} first {first_s:.2f} s, again {again_s:.2f} s")
        return
    print("rule           load workload   mean s  against     p99  longest restarts slowdown  cpu s decision ms")
    for rule in chosen.rules.split(","):
        for load in map(float, chosen.loads.split(",")):
            _compare(rule, load, chosen)


def _compare(rule: str, load: float, chosen: argparse.Namespace) -> None:
    """Print a rule on the workloads of a load."""
    first, _, last = chosen.workloads.partition("-")
    published = pd.read_csv(chosen.profiles / "published_jct.csv").set_index(["load", "policy", "workload"])
    folder = chosen.profiles / ("workloads" if load == 1 else f"workloads-{load}")
    policy = rule if rule in PUBLISHED else "pollux"
    rows, by_model = {}, defaultdict[str, list[int]](list)
    for number in range(int(first), int(last or first) + 1):
        jobs = read_workload(folder / f"workload-{number}.csv", _PROFILES, tuned=rule in {*TUNED, "fixed"})
        if chosen.size_error:
            jobs = mistake_sizes(jobs, chosen.size_error, seed=number)
        service = Elastic(ElasticOptions(), TUNED[rule](jobs)) if rule in TUNED else Elastic(ElasticOptions(rule=rule))
        timed, started = Timed(service), time.process_time()
        outcomes = simulate(jobs, timed, change_s=chosen.change_s)
        spent_s = time.process_time() - started - sum(timed.times_s)
        for outcome in outcomes:
            by_model[outcome.job.profile.name].append(outcome.completion_s)
        *times, restarts = summarise(outcomes)
        theirs: Any = published.xs((load, policy, f"workload-{number}"))
        against = [
            time_s / float(theirs[column]) - 1
            for time_s, column in zip(times, ("mean_jct_s", "p99_jct_s", "max_jct_s"), strict=True)
        ]
        decision_ms = 1000 * float(np.mean(timed.times_s))
        rows[number] = [times[0], *against, restarts, worst_slowdown(outcomes), spent_s, decision_ms]
        _print(rule, load, f"{number}", rows[number])
    _print(rule, load, "mean", np.mean([*rows.values()], axis=0).tolist())
    if kept := [rows[number] for number in KEPT_BACK if number in rows]:
        _print(rule, load, "kept back", np.mean(kept, axis=0).tolist())
    if chosen.by_model:
        total = sum(map(sum, by_model.values()))
        for model, times_s in sorted(by_model.items()):
            share = sum(times_s) / total
            print(f"{rule:14} {load:4} {model:>11} {np.mean(times_s):8,.0f} s, {len(times_s)} jobs, {share:.0%} of all")


def _print(rule: str, load: float, name: str, row: Sequence[float]) -> None:
    mean, against, high, longest, restarts, slowdown, spent_s, decision_ms = row
    print(
        f"{rule:14} {load:4} {name:>9} {mean:8,.0f} {against:+8.1%} {high:+7.1%} {longest:+8.1%} {restarts:8.1f} "
        f"{slowdown:8.2f} {spent_s:6.1f} {decision_ms:6.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
