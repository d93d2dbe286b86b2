"""How well the use of runs is predicted, on measurements of real clusters, and what reading and reporting use costs.

Each run is predicted from those that had ended when it was submitted; the last part of each file counts. ``violet``
(a company's containers, no GPU memory, no users but teams) is predicted at submission; ``supercloud`` (75 jobs of MIT
SuperCloud, no users, no requests) after 15 minutes. Neither can judge the memory of a user's next job: a site judges
that itself, ``helios study sharing`` prints it.

The cost is in CPU seconds of commands, on invented jobs of one GPU: loading them, their use from accounting, reports on
it, and the use of others from a real Prometheus on this machine. The goals are 1.3 times the load, and 20 ms a job.

Usage: python -m benchmarks.job_use DIRECTORY [DAY]   (with violet/ and supercloud/; DAY: first that counts of violet)
       python -m benchmarks.job_use cost [JOBS [JOBS_OF_PROMETHEUS]]   (100000, and 2000; 0: none)
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import (  # type: ignore[import-untyped]  # because scikit-learn ships no types
    precision_recall_curve,
    roc_auc_score,
)

from helios.predict.job_use import RunsWithUse, kinds_of_runs, predict_use, predict_use_again
from tests.prometheus_rig import RealPrometheus, Samples
from tests.use_files import comment, of_node, summary

FIRST_DAY = "2023-12-11"
SAMPLE_S = 300
EARLY = 3
"""Samples of the first 15 minutes."""

Floats = NDArray[np.float64]


def violet(directory: Path) -> pd.DataFrame:
    """Return the runs of violet, in the columns of ``JOBS`` that predictions read, with what they used."""
    rows = pd.read_csv(next(directory.glob("violet/*.csv.gz")), parse_dates=["start", "finish"])
    keys = ["pod_name", "pod_type", "project", "user_team", "start", "finish"]
    runs = rows.groupby(keys).agg(gpus=("node", "size"), utilization=("gpu_utilization", "mean")).reset_index()
    runs = runs.sort_values(["start", "finish", "pod_name"], ignore_index=True)
    named = {"pod_name": "name", "pod_type": "partition", "project": "user", "user_team": "account"}
    hours = (runs["finish"] - runs["start"]).dt.total_seconds() / 3600 * runs["gpus"]
    return runs.rename(columns=named).assign(gpu_hours=hours, memory_mib=np.nan)


def supercloud(directory: Path) -> pd.DataFrame:
    """Return the jobs of supercloud, with what they used and what was known after 15 minutes."""
    rows = pd.read_csv(next(directory.glob("supercloud/*.csv.gz")), parse_dates=["time"])
    rows = rows.sort_values(["id_job", "time"]).assign(sample=lambda table: table.groupby("id_job").cumcount())
    jobs = rows.groupby("id_job").agg(
        start=("time", "min"),
        finish=("time", "max"),
        utilization=("utilization_gpu_pct_mean", "mean"),
        memory_mib=("memory_used_MiB_max", "max"),
        gpus=("num_gpus", "max"),
        samples=("time", "size"),
    )
    early = rows[rows["sample"] < EARLY].groupby("id_job")
    loaded = rows[(rows["sample"] < EARLY) & (rows["sample"] > 0)].groupby("id_job")["utilization_gpu_pct_mean"].mean()
    jobs["early_memory_mib"], jobs["early_utilization"] = early["memory_used_MiB_max"].max(), loaded
    jobs["finish"] += pd.Timedelta(seconds=SAMPLE_S)
    jobs["gpu_hours"] = jobs["samples"] * SAMPLE_S / 3600 * jobs["gpus"]
    jobs = jobs[jobs["samples"] > EARLY].sort_values("start")
    unknown = pd.Series([None] * len(jobs), index=jobs.index, dtype="str")
    return jobs.assign(user=unknown, account=unknown, partition=unknown, name=unknown)


def runs_of(jobs: pd.DataFrame) -> RunsWithUse:
    """Return the runs for a prediction."""
    asked_s, ended_s = (jobs[name].to_numpy(dtype="datetime64[s]").astype(np.int64) for name in ("start", "finish"))
    utilization, memory = (jobs[name].to_numpy(dtype=np.float64) for name in ("utilization", "memory_mib"))
    return RunsWithUse(
        kinds=kinds_of_runs(jobs), asked_s=asked_s, ended_s=ended_s, utilization=utilization, memory_mib=memory
    )


def print_utilization(name: str, expected: Floats, jobs: pd.DataFrame, counted: NDArray[np.bool_]) -> None:
    """Print the mean error, points, by GPU hours and by runs."""
    counted = counted & ~np.isnan(expected)
    error = np.abs(expected - jobs["utilization"].to_numpy())[counted]
    hours = jobs["gpu_hours"].to_numpy()[counted]
    print(f"  {name:34s} {np.average(error, weights=hours):5.1f} a GPU hour {error.mean():5.1f} a run, n {len(error)}")


def print_idle(name: str, chance: Floats, jobs: pd.DataFrame, counted: NDArray[np.bool_]) -> None:
    """Print how well idle runs are told from others."""
    counted = counted & ~np.isnan(chance)
    is_idle, hours = (jobs["utilization"] < 1)[counted], jobs["gpu_hours"][counted]
    precision, recall, _ = precision_recall_curve(is_idle, chance[counted], sample_weight=hours)
    print(
        f"  {name:34s} AUC {roc_auc_score(is_idle, chance[counted], sample_weight=hours):.3f} by GPU hours "
        f"{roc_auc_score(is_idle, chance[counted]):.3f} by runs; precision at recall .9 of hours "
        f"{precision[recall >= 0.9].max():.2f} (all: {np.average(is_idle, weights=hours):.2f})"
    )


def last_of_kind(runs: RunsWithUse, values: Floats) -> Floats:
    """Return the value of the last ended run of the narrowest kind that has one."""
    found = np.full(len(values), np.nan)
    for kind in runs.kinds:
        for run in range(len(values)):
            ended = np.flatnonzero((kind == kind[run]) & (kind >= 0) & (runs.ended_s < runs.asked_s[run]))
            if len(ended):
                found[run] = values[ended[np.argmax(runs.ended_s[ended])]]
    return found


def judge_violet(directory: Path, first_day: str) -> None:
    """Print the predictions at submission."""
    jobs = violet(directory)
    runs, counted = runs_of(jobs), (jobs["start"] >= pd.Timestamp(first_day, tz="UTC")).to_numpy()
    found, last = predict_use(runs), last_of_kind(runs, runs.utilization)
    before = ~counted & (runs.ended_s < runs.asked_s[counted].min())
    mean = np.full(len(jobs), np.average(runs.utilization[before], weights=jobs["gpu_hours"][before]))
    print(f"violet, at submission, from {first_day}: error of the utilization, points")
    for name, expected in (("last few of the kind", found.utilization), ("last of the kind", last), ("mean", mean)):
        print_utilization(name, expected, jobs, counted)
    print_idle("idle: last few of the kind", found.idle_chance, jobs, counted)
    print_idle("idle: last of the kind", (last < 1).astype(np.float64), jobs, counted)


def print_memory(name: str, bound: Floats, jobs: pd.DataFrame) -> None:
    """Print how often a bound of memory held."""
    known = ~np.isnan(bound)
    if not known.any():
        print(f"  {name:34s} no bound yet")
        return
    held, hours = (jobs["memory_mib"].to_numpy() <= bound)[known], jobs["gpu_hours"].to_numpy()[known]
    print(
        f"  {name:34s} covers {held.mean():.1%} of runs, {np.average(held, weights=hours):.1%} of GPU hours, n "
        f"{len(held)}; median bound {np.median(bound[known]):,.0f} MiB"
    )


def judge_supercloud(directory: Path) -> None:
    """Print the predictions after 15 minutes."""
    jobs = supercloud(directory)
    runs, everybody = runs_of(jobs), np.ones(len(jobs), dtype=bool)
    before = predict_use(runs)
    early_utilization, early_mib = jobs["early_utilization"].to_numpy(), jobs["early_memory_mib"].to_numpy()
    after = predict_use_again(
        runs, after_s=EARLY * SAMPLE_S, utilization=early_utilization, memory_mib=early_mib, before=before
    )
    print("supercloud, after 15 minutes: error of the utilization, points")
    ways = (("at submission", before), ("after 15 minutes", after))
    for name, found in ways:
        print_utilization(name, found.utilization, jobs, everybody)
    longest = jobs["gpu_hours"].to_numpy() < jobs["gpu_hours"].max()
    print_utilization("after 15 minutes, but the longest", after.utilization, jobs, longest)
    print_utilization("its first 15 minutes", early_utilization, jobs, everybody)
    ratio = np.abs(np.log((jobs["memory_mib"].to_numpy() + 256) / (early_mib + 256)))
    busy = (jobs["early_utilization"] >= 1).to_numpy()
    print(
        f"  memory beside that after 15 minutes: mean |log| {ratio.mean():.2f}, median {np.median(ratio):.2f}; of "
        f"{busy.sum()} busy by then {ratio[busy].mean():.2f}, of {(~busy).sum()} idle {ratio[~busy].mean():.2f}"
    )
    for name, found in ways:
        print_memory(f"95 % of memory, {name}", found.memory_mib, jobs)


FIELDS = "JobIDRaw|User|Account|Partition|JobName|State|Submit|Start|End|Timelimit|AllocTRES|NTasks|MaxRSS|AdminComment"
TRES = "cpu=4,mem=16G,gres/gpu=1"
RUN_S = 1_200
ON_A_GPU_S = 1_800
GPUS = 200


def write_sacct(path: Path, jobs: int, end: datetime) -> None:
    """Write jobs that ended before a time as sacct does, each with a summary of jobstats and a step."""
    with path.open("w") as file:
        print(FIELDS, file=file)
        for number in range(1, jobs + 1):
            begin = end - timedelta(seconds=(jobs - number) // GPUS * ON_A_GPU_S + RUN_S)
            times = "|".join(f"{at:%Y-%m-%dT%H:%M:%S}" for at in (begin, begin, begin + timedelta(seconds=RUN_S)))
            said = comment(summary(of_node(gpu_utilization={"0": number % 1000 / 10}), total_time=RUN_S))
            print(f"{number}|u{number % 50}|a|gpu|x{number}|COMPLETED|{times}|02:00:00|{TRES}|||{said}", file=file)
            print(f"{number}.batch|||||COMPLETED|{times}||{TRES}|1|1G|", file=file)


def scraped(jobs: int, end: datetime) -> Samples:
    """Return the samples of the same jobs in the format of jobstats' exporters."""
    samples = Samples()
    for number in range(1, jobs + 1):
        begin_s = end.timestamp() - (jobs - number) // GPUS * ON_A_GPU_S - RUN_S
        gpu = {"instance": f"n{number % GPUS}:9445", "minor_number": "0", "uuid": f"G{number % GPUS}"}
        for name, value in (("duty_cycle", number % 100), ("memory_used_bytes", 2**30), ("memory_total_bytes", 2**35)):
            labels = gpu | {"jobid": str(number)}
            samples.add(f"nvidia_gpu_{name}", labels, begin_s, begin_s + RUN_S, partial(_always, value))
    return samples


def _always(value: float, _: float) -> float:
    return value


def cpu_s(environment: dict[str, str], *words: str, times: int = 1) -> tuple[float, str]:
    """Return the CPU seconds of a command of Helios, the least of some runs, and what it prints."""
    found, command = [], [sys.executable, "-m", "helios", *words]
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(command, env=os.environ | environment, check=True, capture_output=True, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found), said


def measure_cost(jobs: int, of_prometheus: int) -> None:
    """Print the CPU seconds of commands, of which some 1 is their start."""
    end = datetime.fromtimestamp(time.time() // 30 * 30, UTC) - timedelta(hours=1)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for name, number in (("accounting", jobs), ("prometheus", of_prometheus)):
            write_sacct(folder / name, number, end)
        at = {"HELIOS_DATABASE_URL": f"sqlite:///{folder / 'accounting.db'}"}
        cpu_s(at, "db", "upgrade")
        load, _ = cpu_s(at, "trace", "load", str(folder / "accounting"), "--cluster", "venus")
        use, _ = cpu_s(at, "trace", "use", str(folder / "accounting"), times=3)
        print(f"{jobs:,} jobs: load {load:.1f} s, use from accounting {use:.1f} s, {use / load:.2f} times (asked: 1.3)")
        first = end - timedelta(seconds=jobs / GPUS * ON_A_GPU_S)
        window = ("-S", f"{first:%Y-%m-%d}", "-E", f"{end:%Y-%m-%d}")
        for by in ("user", "week", "kind", "job"):
            cost, _ = cpu_s(at, "report", "use", "--by", by, "--json", *window, times=3)
            print(f"  report use --by {by}: {cost:.1f} s")
        if not of_prometheus:
            return
        at = {"HELIOS_DATABASE_URL": f"sqlite:///{folder / 'prometheus.db'}"}
        cpu_s(at, "db", "upgrade")
        cpu_s(at, "trace", "load", str(folder / "prometheus"), "--cluster", "venus")
        with RealPrometheus(folder, samples=scraped(of_prometheus, end)) as server:
            at |= {"HELIOS_PROMETHEUS_URL": server.url, "HELIOS_PROMETHEUS_DIALECT": "jobstats"}
            cost, said = cpu_s(at, "trace", "use")
        print(f"{said.strip()}; {1000 * cost / of_prometheus:.1f} ms a job (asked: 20)")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if sys.argv[1] == "cost":
        measure_cost(*(int(word) for word in [*sys.argv[2:4], "100000", "2000"][:2]))
        raise SystemExit
    judge_violet(Path(sys.argv[1]), *(sys.argv[2:3] or [FIRST_DAY]))
    judge_supercloud(Path(sys.argv[1]))
