"""What sizes decided again and again are worth, on the published workloads of Pollux (OSDI'21).

    python -m benchmarks.elastic PROFILES [--loads 0.5,1.0,1.5,2.0] [--workloads 1-4]
        [--rules tiresias,optimus,pollux] [--change-s 30]

Sixteen nodes of four GPUs, a decision every 60 s, epochs known, in the setting that the profiles' README gives.
For each workload: the mean completion time, s, and what it is against the published one of the same rule (for rules
that are published) or of `pollux` (for others); the 99th percentile, the longest, restarts of a job, and seconds of
the processor. `tiresias` and `optimus` reproduce what is published; `pollux` maximises the published objective
exactly where its authors searched, so that it differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.training.elastic_sim.profiles import ModelProfile, read_profile
from helios.training.elastic_sim.published_rules import TUNED, PublishedService
from helios.training.elastic_sim.simulator import CHANGE_S, GPUS_PER_NODE, NODES, ElasticJob, JobOutcome, simulate
from helios.training.services.elastic import Elastic, ElasticOptions
from helios.training.sizes.rules import RULES

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MOST_LOCAL = {"yolov3": 8}
"""Samples of a GPU that fit, where they are fewer than were measured."""
PUBLISHED = ("tiresias", "optimus", "pollux")
ONE_GPU = {"ncf": 32_768}
"""Models that keep one GPU, and their batch; the published runs of Pollux do so."""


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


def summarise(outcomes: Sequence[JobOutcome]) -> tuple[float, float, float, float]:
    """Return the mean, 99th percentile and longest completion time, and the mean number of restarts."""
    times = np.array([outcome.completion_s for outcome in outcomes], dtype=float)
    restarts = float(np.mean([outcome.restarts for outcome in outcomes]))
    return float(times.mean()), float(np.quantile(times, 0.99)), float(times.max()), restarts


def main() -> None:
    """Print a line for each workload and rule, and means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", type=Path, help="the folder pollux of the profiles")
    parser.add_argument("--loads", default="0.5,1.0,1.5,2.0")
    parser.add_argument("--workloads", default="1-4")
    parser.add_argument("--rules", default=",".join([*TUNED, *RULES]))
    parser.add_argument("--change-s", type=int, default=CHANGE_S)
    chosen = parser.parse_args()
    profiles = read_profiles(chosen.profiles)
    first, _, last = chosen.workloads.partition("-")
    published = pd.read_csv(chosen.profiles / "published_jct.csv")
    print("rule           load   workload   mean s  against     p99  longest restarts cpu s")
    for rule in chosen.rules.split(","):
        for load in map(float, chosen.loads.split(",")):
            folder = chosen.profiles / ("workloads" if load == 1 else f"workloads-{load}")
            ratios = []
            for number in range(int(first), int(last or first) + 1):
                name = f"workload-{number}"
                jobs = read_workload(folder / f"{name}.csv", profiles, tuned=rule in {*TUNED, "fixed"})
                started = time.process_time()
                service = PublishedService(TUNED[rule](jobs)) if rule in TUNED else Elastic(ElasticOptions(rule=rule))
                mean, high, longest, restarts = summarise(simulate(jobs, service, change_s=chosen.change_s))
                spent = time.process_time() - started
                policy = rule if rule in PUBLISHED else "pollux"
                (row,) = published.query(f"load == {load} and workload == {name!r} and policy == {policy!r}").index
                ratios.append(mean / float(published["mean_jct_s"][row]))
                print(
                    f"{rule:14} {load:4} {name:>10} {mean:8,.0f} {ratios[-1] - 1:+8.2%} {high:7,.0f} {longest:8,.0f} "
                    f"{restarts:8.1f} {spent:5.1f}",
                    flush=True,
                )
            print(f"{rule:14} {load:4} {'mean':>10} {'':8} {np.mean(ratios) - 1:+8.2%}")


if __name__ == "__main__":
    main()
