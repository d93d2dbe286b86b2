"""Six real trainings of PyTorch on two cores, with targets, beside equal shares and beside nice.

python -m benchmarks.targets_live [--repeats 3] [--ways equal nice targets]

Each is a sweep with one trial and a target (``benchmarks/pool_targets/train.py``); all six start at once, with one
thread each, and go on to their last step. The ways, in turn in each repeat:

equal
    A pool that runs all six side by side, so that the kernel gives them equal shares.
nice
    The same programs without a pool. Whoever starts them knows which needs least and gives that one nice 0, the next
    one 3, and so on to 15. The service is not told what they need.
targets
    The pool with the service ``targets``, which learns from the curves what each still needs.

Times are from the start to the report that reaches a target, with imports and the start of the pool. Work is the CPU
time of all six until then, by cores: what the time would be if nothing else ran here, so that it can be compared on a
machine with other load. Steps to a target are the same in every run, so CPU seconds of all steps show what sharing
costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median

from helios.training.pool.state import trial_folder
from helios.training.run import run_pools
from helios.training.target import parse_target

HERE = Path(__file__).parent
PROGRAM = HERE / "pool_targets" / "train.py"
TASKS = {
    "mlp": ("val_acc>=0.92,0.945", 24_000),
    "logistic": ("val_loss<=0.195,0.186", 96_000),
    "autoencoder": ("val_rmse<=0.126,0.1225", 28_000),
    "cnn": ("val_acc>=0.93,0.935", 14_000),
    "gru": ("val_bits<=2.25,2.2", 5_000),
    "transformer": ("val_bits<=2.45,2.4", 5_600),
}
"""Target and steps of each task, in the order of CPU time to the first target: 10 to 50 s."""
CORES = 2
NAMES = {
    "first": "time to the first target",
    "second": "time to the second target",
    "first work": "work to the first target",
    "second work": "work to the second target",
}
MEMORY_MIB = 12_288.0
"""Memory to share, in which all six fit with the limits that packing gives them."""
NICE = 3
"""Difference in niceness between a task and the next one; a step is a quarter of the weight."""
ENVIRONMENT = {"PYTHONPATH": str(HERE.parent / "task"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
WAYS = ("equal", "nice", "targets")


def in_pool(folder: Path, service: str | None) -> dict[str, Path]:
    """Run the tasks in a pool, and return their reports."""
    paths = []
    for task, (text, steps) in TASKS.items():
        target = parse_target(text)
        direction = "maximize" if target.maximize else "minimize"
        path = folder / f"{task}.toml"
        path.write_text(
            f"command = {json.dumps([sys.executable, str(PROGRAM), task, '--steps', '{steps}'])}\n"
            f'memory = "1G"\n[parameters]\nsteps = [{steps}]\n[env]\n'
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in ENVIRONMENT.items())
            + f'[target]\nmetric = "{target.metric}"\nfirst = {target.first}\nsecond = {target.second}\n'
            f'direction = "{direction}"\n'
        )
        paths.append(path)
    results = run_pools(paths, slots=len(TASKS), kind="cpu", memory_mib=MEMORY_MIB, service=service)
    for result in results:
        assert result.exit_code == 0, result
    return {path.stem: trial_folder(path.with_suffix(".pool"), 0) / "report.jsonl" for path in paths}


def with_nice(folder: Path) -> dict[str, Path]:
    """Run the tasks with the nearest one first in niceness, and return their reports."""
    running = []
    for place, (task, (_, steps)) in enumerate(TASKS.items()):
        command = ["nice", "-n", str(NICE * place), sys.executable, str(PROGRAM), task, "--steps", str(steps)]
        own = {"HELIOS_REPORT": str(folder / f"{task}.jsonl"), "HELIOS_CHECKPOINTS": str(folder / task)}
        running.append(subprocess.Popen(command, env={**os.environ, **ENVIRONMENT, **own}))
    for process in running:
        assert process.wait() == 0
    return {task: folder / f"{task}.jsonl" for task in TASKS}


def run(way: str) -> dict[str, dict[str, float]]:
    """Return what each task took by a way, s."""
    with tempfile.TemporaryDirectory() as name:
        folder, began_s = Path(name), time.time()
        files = with_nice(folder) if way == "nice" else in_pool(folder, "targets" if way == "targets" else None)
        reports = {task: [json.loads(line) for line in path.read_text().splitlines()] for task, path in files.items()}
    reports = {task: [line for line in lines if "cpu_s" in line] for task, lines in reports.items()}
    return {task: _times(task, reports, began_s) for task in TASKS}


def _times(task: str, reports: Mapping[str, list[dict[str, float]]], began_s: float) -> dict[str, float]:
    target, own = parse_target(TASKS[task][0]), reports[task]
    reached = [next((line for line in own if target.is_reached(tier, line[target.metric])), None) for tier in (0, 1)]
    assert reached[0] and reached[1], f"{task} ends at {own[-1]}, before {target}"
    first, second = (line["time_s"] for line in reached if line)
    times_s = {"first": first - began_s, "second": second - began_s, "end": own[-1]["time_s"] - began_s}
    work_s = {"first work": _work_s(reports, first), "second work": _work_s(reports, second)}
    return {**times_s, **work_s, "need": reached[0]["cpu_s"], "cpu": own[-1]["cpu_s"]}


def _work_s(reports: Mapping[str, list[dict[str, float]]], until_s: float) -> float:
    """Return the CPU time of all tasks until a time, by cores, s."""
    used_s = [
        max((line["cpu_s"] for line in lines if line["time_s"] <= until_s), default=0.0) for lines in reports.values()
    ]
    return sum(used_s) / CORES


def show(found: Mapping[str, list[dict[str, dict[str, float]]]]) -> None:
    """Print each task and the means, as medians over the repeats, and the ratios of each repeat."""

    def middle(way: str, task: str, what: str) -> float:
        return median(each[task][what] for each in found[way])

    print(f"seconds, median of {len(next(iter(found.values())))}; need is CPU seconds to the first target")
    print(f"{'':18}{'to the first target':{10 * len(found)}}  to the second")
    print(f"{'task':12}{'need':>6}{''.join(f'{way:>10}' for way in [*found, *found])}")
    for task in TASKS:
        cells = "".join(f"{middle(way, task, what):10.1f}" for what in ("first", "second") for way in found)
        print(f"{task:12}{middle(next(iter(found)), task, 'need'):6.1f}{cells}")
    for way, rounds in found.items():
        if way == "equal" or "equal" not in found:
            continue
        print(f"{way} over equal, median (and each repeat):")
        for what, name in NAMES.items():
            ratios = [
                _mean(ours, what) / _mean(equal, what) for ours, equal in zip(rounds, found["equal"], strict=True)
            ]
            print(f"  mean {name:28} {_words(ratios)}")
        worst = [
            _most(ours, "first") / _most(equal, "first") for ours, equal in zip(rounds, found["equal"], strict=True)
        ]
        print(f"  worst task's first target         {_words(worst)}")
        end = [_most(ours, "end") / _most(equal, "end") for ours, equal in zip(rounds, found["equal"], strict=True)]
        print(f"  makespan                          {_words(end)}")
        cost = [_mean(ours, "cpu") / _mean(equal, "cpu") for ours, equal in zip(rounds, found["equal"], strict=True)]
        print(f"  CPU seconds of the same steps     {_words(cost)}")


def _mean(tasks: Mapping[str, Mapping[str, float]], what: str) -> float:
    return mean(each[what] for each in tasks.values())


def _most(tasks: Mapping[str, Mapping[str, float]], what: str) -> float:
    return max(each[what] for each in tasks.values())


def _words(ratios: list[float]) -> str:
    return f"{median(ratios):.3f}  ({', '.join(f'{ratio:.3f}' for ratio in ratios)})"


def main() -> None:
    """Run the ways in turn, and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    asked = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    found: dict[str, list[dict[str, dict[str, float]]]] = {way: [] for way in asked.ways}
    for repeat in range(asked.repeats):
        for way, rounds in found.items():
            began_s, load = time.monotonic(), os.getloadavg()[0]
            rounds.append(run(way))
            print(f"{way} {repeat + 1}: {time.monotonic() - began_s:.0f} s, load before {load:.1f}", flush=True)
    show(found)


if __name__ == "__main__":
    main()
