"""Packing of trials on measured speeds, beside exclusive devices, fixed sharing and an oracle.

    python -m benchmarks.packing [--gpus v100,p100,k80] [--mixes shape,one,several] [--arrivals once,time]
        [--draws 0-19] [--for results] [--processes 2] [--results FILE.jsonl] [--profiles FILE.csv] [decision]
    python -m benchmarks.packing --gpus lucid-judged --profiles FOLDER --arrivals once --draws 0-9
        --mixes several,four,one,shape,short,silent,seeds

With ``--results`` a run that was ended goes on with the draws that are missing there. Set ``OPENBLAS_NUM_THREADS=1``:
matrices are small, and more threads only wait for each other.

Sweeps of 64 trials on 4 GPUs, from one family of trials (``shape``: one model at one batch size; ``one``: one model at
several) and from ``several``, at once and over time. Speeds are Gavel's (OSDI'20), unknown to the service at first.
Beyond pairs nothing was measured, so a device runs its pairs in turn there (fixed 4 and 8), and ours stays with pairs.
Memory was not published either: it is chosen so that the pairs that were measured fit and the others do not. Lengths
follow from the family (lognormal, median 20 min, sigma .5) and vary by 10 % within it, since trials of a sweep train
for the same number of epochs. Constants were chosen on draws 100 to 103 and 200 to 205; 0 to 19 are judged.

``lucid-judged`` and ``lucid-tuned`` are the pairs that Lucid (ASPLOS'23, doi 10.5281/zenodo.7275326) measured on a card
of 24 GB; the folder has its ``colocate_info.csv`` and ``single_data.csv``. There are more sweeps there: of ``four``
families, of ``short`` trials (mean 180 s), of programs that report nothing (``silent``), and of trials that differ in
the seed alone (``seeds``), with the families that a pool makes of them. Constants were chosen on the models of
``TUNED``, with draws from 100 on; the other models and draws 0 to 9 are judged.

Two oracles are the best of several plans each: ``speeds`` knows every pair's speed, memory, and each family's mean
length; ``oracle`` also how long each single trial takes, which nobody can know before it ran.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linprog

from benchmarks.pair_profiles import read_pair_profiles
from helios.training.model import Device, PoolSnapshot, SharedSpeed, Trial, TrialForecast, TrialState
from helios.training.pool.sweep import TrainingSweep, family
from helios.training.services.packing import Packing, PackingOptions
from helios.training.sharing_rules import compare_pool_rules, with_true_values
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import PoolOutcome, SimulatedPool
from tests.traces import TRACES

PROFILES = TRACES.parent / "profiles" / "gavel" / "throughputs.csv"
"""Beside the traces' folder, which HELIOS_TRACES names."""
MEMORY_MIB = {"k80": 12_288.0, "p100": 16_384.0, "v100": 16_384.0}
MIXES = ("shape", "one", "several", "four", "short", "silent", "seeds")
LUCID, LUCID_MIB = ("lucid-tuned", "lucid-judged"), 24_576.0
TUNED = ("LSTM", "MobileNetV2", "PPO", "PointNet", "VGG")
"""Models of Lucid on which constants were chosen."""
TRIALS, DEVICES = 64, 4
Aim = Literal["makespan", "results"]


def parameters(family: str) -> dict[str, Any]:
    """Return the parameters that a family's name tells."""
    found = re.fullmatch(r"(.*?)(, AMP)? \(batch size (\d+)\)", family)
    if found is None:
        return {"model": family}
    return {"model": found[1], "batch_size": int(found[3])} | ({"amp": 1} if found[2] else {})


def read_lucid(folder: Path, *, tuned: bool) -> tuple[PairProfiles, NDArray[np.float64]]:
    """Return Lucid's pairs and the memory of each family, MiB, of the models ``TUNED`` or of the others."""
    single = pd.read_csv(folder / "single_data.csv")
    pairs = pd.read_csv(folder / "colocate_info.csv")

    def name(rows: pd.DataFrame, end: str = "") -> pd.Series[str]:
        amp = np.where(rows[f"amp{end}"] == 1, ", AMP", "")
        return rows[f"model{end}"] + amp + " (batch size " + rows[f"batchsize{end}"].astype(str) + ")"

    single["family"], pairs["one"], pairs["two"] = name(single), name(pairs, "1"), name(pairs, "2")
    measured = set(pairs["model1"]) - {"NeuMF"}  # which was measured beside itself alone
    taken = single[single["model"].isin(TUNED if tuned else measured - set(TUNED))].set_index("family")
    table = pd.concat(
        [
            pairs.rename(columns={"one": "own", "two": "other", "speed1": "speed"})[["own", "other", "speed"]],
            pairs.rename(columns={"two": "own", "one": "other", "speed2": "speed"})[["own", "other", "speed"]],
        ]
    ).pivot_table(index="own", columns="other", values="speed")
    families = tuple(taken.index)
    beside = table.reindex(index=families, columns=families).to_numpy(dtype=np.float64)
    return PairProfiles(families=families, alone=taken["speed"].to_numpy(), beside=beside), taken["gmem"].to_numpy()


def infer_memory(profiles: PairProfiles, memory_mib: float) -> NDArray[np.float64]:
    """Return memory of each family, MiB, with which measured pairs fit and the others do not, as far as one can.

    Larger batches of a model never need less.
    """
    count = len(profiles.families)
    first, second = np.triu_indices(count)
    fits = ~np.isnan(profiles.beside[first, second])
    rows = np.zeros((len(first), count + len(first)))
    at = np.arange(len(first))
    np.add.at(rows, (at, first), np.where(fits, 1.0, -1.0))
    np.add.at(rows, (at, second), np.where(fits, 1.0, -1.0))
    rows[at, count + at] = -1.0
    limits = np.where(fits, 0.98, -1.02)
    order = []
    named = [parameters(family) for family in profiles.families]
    for one, two in product(range(count), repeat=2):
        if named[one]["model"] == named[two]["model"] and named[one].get("batch_size", 0) < named[two].get(
            "batch_size", 0
        ):
            row = np.zeros(count + len(first))
            row[[one, two]] = 1.0, -1.0
            order.append(row)
    cost = np.concatenate([np.full(count, 1e-3), np.where(fits, 10.0, 1.0)])
    bounds = [(0.05, 0.97)] * count + [(0.0, None)] * len(first)
    answer = linprog(
        cost, A_ub=np.vstack([rows, *order]), b_ub=np.concatenate([limits, np.zeros(len(order))]), bounds=bounds
    )
    return np.asarray(answer.x[:count] * memory_mib)


def split_families(trials: list[Any], profiles: PairProfiles) -> tuple[list[Any], PairProfiles]:
    """Return trials with a seed each, and the families that a pool makes of them."""
    sweep = TrainingSweep(path=Path("sweep.toml"), command=("train.py",), parameters={}, cwd=Path())
    seeded = [replace(trial, parameters={**trial.parameters, "seed": seed}) for seed, trial in enumerate(trials)]
    names = [family(sweep, trial.parameters) for trial in seeded]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    count, own = len(places), trials[0].family
    return [replace(trial, family=places[name]) for trial, name in zip(seeded, names, strict=True)], PairProfiles(
        families=tuple(places),
        alone=np.full(count, profiles.alone[own]),
        beside=np.full((count, count), profiles.beside[own, own]),
    )


def draw(profiles: PairProfiles, mix: str, seed: int, *, over_time: bool, memory: NDArray[np.float64]) -> list[Any]:
    """Return the trials of a sweep."""
    random = np.random.default_rng((seed, MIXES.index(mix)))
    models = sorted({parameters(family)["model"] for family in profiles.families})
    there = list(range(len(profiles.families)))
    if mix in {"shape", "seeds"}:
        there = [int(random.integers(len(there)))]
    elif mix == "four":
        there = list(map(int, random.choice(there, 4, replace=False)))
    elif mix == "one":
        model = models[random.integers(len(models))]
        there = [place for place in there if parameters(profiles.families[place])["model"] == model]
    usual = np.exp(random.normal(np.log(1_200), 0.5, len(profiles.families)))
    families = random.choice(there, TRIALS)
    seconds = usual[families] * np.exp(random.normal(0, 0.1, TRIALS))
    seconds *= (180 if mix == "short" else 1_350) / seconds.mean()
    span = 0.6 * seconds.sum() / DEVICES if over_time else 0.0
    arrivals = np.sort(random.uniform(0, span, TRIALS))
    used = memory[families] * random.uniform(0.95, 1.0, TRIALS)
    return [
        SimulatedTrial(
            family=int(family),
            seconds=float(length),
            memory_mib=float(mib),
            arrives_s=float(arrival),
            parameters=parameters(profiles.families[family]),
            reports=mix != "silent",
        )
        for family, length, mib, arrival in zip(families, seconds, used, arrivals, strict=True)
    ]


def judge(gpu: str, mix: str, arrivals: str, seed: int, *, path: Path, aim: Aim) -> dict[str, Any]:
    """Simulate one draw under all rules."""
    if gpu in LUCID:
        (profiles, memory), memory_mib = read_lucid(path, tuned=gpu == LUCID[0]), LUCID_MIB
    else:
        profiles, memory_mib = read_pair_profiles(path, gpu=gpu), MEMORY_MIB[gpu]
        memory = infer_memory(profiles, memory_mib)
    trials = draw(profiles, mix, seed, over_time=arrivals == "time", memory=memory)
    if mix == "seeds":
        trials, profiles = split_families(trials, profiles)
    devices = [Device(name=f"gpu:{place}", kind="gpu", memory_mib=memory_mib, slots=8) for place in range(DEVICES)]
    ours = Packing(PackingOptions(for_=aim)).decide
    sure = Packing(PackingOptions(optimism=0.0, worth=0.01)).decide
    steady = Packing(PackingOptions(optimism=0.0, worth=0.1)).decide
    planners = {"sure": sure, "steady": steady}
    found = compare_pool_rules(trials, devices, profiles, rules={"ours": ours}, planners=planners, seed=seed)
    plans = [outcome for rule, outcome in found.outcomes.items() if rule not in {"ours", "oracle"}]
    for decide in (ours, sure, steady):
        told_speeds = with_true_values(decide, trials, profiles, lengths=False)
        plans.append(SimulatedPool(trials, devices, profiles, seed=seed).run(told_speeds))
    best = min(plans, key=lambda outcome: outcome.makespan_s)
    outcomes = {rule: asdict(outcome) | {"ended_s": ()} for rule, outcome in {**found.outcomes, "speeds": best}.items()}
    return {"task": [gpu, mix, arrivals, seed], "plan": found.oracle_plan, "outcomes": outcomes}


def decision_time() -> None:
    """Print the time of one decision for 1,000 waiting trials on 256 devices, worst of several worlds."""
    for families, idle, title in (
        (1, False, "one family"),
        (26, False, "26 families"),
        (1_000, False, "a family for each trial"),
        (40, True, "40 families, all devices idle"),
    ):
        names = [f"f{place}" for place in range(families)]
        known = min(families, 300)
        speeds = [SharedSpeed(family=name, beside=(), steps_per_s=10.0, samples=3) for name in names[:known]]
        speeds += [
            SharedSpeed(family=names[place], beside=(names[other],), steps_per_s=4.0 + (place * other) % 5, samples=2)
            for place in range(known)
            for other in range(place % 7, known, 7)
        ][:600]
        trials = []
        for number in range(1_384):
            running = number < 384
            trials.append(
                Trial(
                    number=number,
                    parameters={"width": number % families},
                    family=names[number % families],
                    state=TrialState.RUNNING if running else TrialState.WAITING,
                    devices=(f"gpu:{number % 256}",) if running else (),
                    attempts=int(running),
                    memory_limit_mib=2_200.0 if running else None,
                    peak_memory_mib=2_000.0 if running else None,
                    steps_per_s=5.0 if running else None,
                    progress=0.5 if running else None,
                    forecast=TrialForecast(memory_p95_mib=2_000.0, seconds_p50=600.0 + number % 97),
                )
            )
        devices = tuple(Device(name=f"gpu:{place}", kind="gpu", memory_mib=16_384.0) for place in range(256))
        if idle:
            trials = [trial for trial in trials if trial.state is TrialState.WAITING]
        times = []
        for turn in range(5):
            snapshot = PoolSnapshot(
                now_s=float(turn),
                devices=devices,
                trials=tuple(trials),
                speeds=(*speeds, SharedSpeed(family=names[0], beside=("x",), steps_per_s=1.0 + turn, samples=1)),
            )
            service = Packing(PackingOptions())
            start = time.process_time()
            actions = service.decide(snapshot)
            times.append(time.process_time() - start)
        print(f"decision, {title}: worst {1e3 * max(times):.0f} ms of 5, {len(actions)} actions (asked: 100 ms)")


def show(gpu: str, mix: str, arrivals: str, results: list[dict[str, Any]]) -> None:
    """Print one setting."""
    found = [{rule: PoolOutcome(**values) for rule, values in one["outcomes"].items()} for one in results]
    title = f"{gpu}, {mix}, {'over time' if arrivals == 'time' else 'at once'}, {len(found)} draws"
    base = np.array([one["exclusive"].makespan_s for one in found])
    rows = {}
    for rule in found[0]:
        all_of_rule = [one[rule] for one in found]
        rows[rule] = np.array([outcome.makespan_s for outcome in all_of_rule]) / base
    gain, best, full = (1 - rows[rule].mean() for rule in ("ours", "speeds", "oracle"))
    share, of_full = (gain / most if most > 0.005 else float("nan") for most in (best, full))
    own = sum(one["plan"] == "ours" for one in results)
    note = f"; in {own} draws no plan of the oracle was better than ours, which it took then" if own else ""
    worst = rows["ours"].max()
    missed = "" if share >= 0.85 else " BELOW .85" if share < 0.85 else " (no gain to be had)"
    print(f"\n{title}: worst draw {worst:.3f} x exclusive{' ABOVE 1.02' if worst > 1.02 else ''}, ", end="")
    print(f"share of the gain of an oracle of speeds {share:.2f}{missed}, of one of all {of_full:.2f}{note}")
    fixed = [one["fixed 2"] for one in found]
    makespans = [one["ours"].makespan_s / other.makespan_s for one, other in zip(found, fixed, strict=True)]
    results_s = [one["ours"].mean_result_s / other.mean_result_s for one, other in zip(found, fixed, strict=True)]
    shared = (1 - rows["fixed 2"].mean()) / full
    print(f"  fixed sharing by two: share {shared:.2f} of the gain of one of all; ours over it: ", end="")
    print(f"makespan {np.mean(makespans):.3f}, mean time to a result {np.mean(results_s):.3f}")
    late = 100 * float(np.mean([one["ours"].out_of_memory_late for one in found])) / TRIALS
    unused = float(np.mean([one["ours"].unused_reserved for one in found]))
    print(f"  ours: {late:.1f} % killed for memory after the first ten{' ABOVE 1' if late > 1 else ''}, ", end="")
    print(f"{unused:.0%} of the reserved memory unused{' ABOVE 35 %' if unused > 0.35 else ''}")
    head = f"  {'rule':<10}{'makespan':>9}{'worst':>7}{'result':>8}{'busy':>6}{'held':>6}"
    print(head + f"{'OOM':>6}{'late':>6}{'unused':>8}{'pauses':>8}")
    for rule, ratio in sorted(rows.items(), key=lambda row: -row[1].mean()):
        outs = [one[rule] for one in found]
        plain = [one["exclusive"] for one in found]
        pairs = list(zip(outs, plain, strict=True))
        print(
            f"  {rule:<10}{ratio.mean():>9.3f}{ratio.max():>7.3f}"
            f"{np.mean([a.mean_result_s / b.mean_result_s for a, b in pairs]):>8.3f}"
            f"{np.mean([a.busy_gpu_s / b.busy_gpu_s for a, b in pairs]):>6.2f}"
            f"{np.mean([a.held_gpu_s / b.held_gpu_s for a, b in pairs]):>6.2f}"
            f"{np.mean([a.out_of_memory for a in outs]):>6.1f}"
            f"{100 * np.mean([a.out_of_memory_late for a in outs]) / TRIALS:>5.1f}%"
            f"{np.mean([a.unused_reserved for a in outs]):>8.2f}{np.mean([a.pauses for a in outs]):>8.1f}",
            flush=True,
        )


def main() -> None:
    """Print all settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="?", choices=["sweeps", "decision"], default="sweeps")
    parser.add_argument("--gpus", default="v100,p100,k80")
    parser.add_argument("--mixes", default=",".join(MIXES))
    parser.add_argument("--arrivals", default="once,time")
    parser.add_argument("--for", dest="aim", choices=["makespan", "results"], default="makespan")
    parser.add_argument("--draws", default="0-19", metavar="FIRST-LAST")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="kept draws, one JSON object a line; delete it with new code")
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="file of Gavel, or folder of Lucid")
    asked = parser.parse_args()
    if asked.what == "decision":
        decision_time()
        return
    settings = list(product(asked.gpus.split(","), asked.mixes.split(","), asked.arrivals.split(",")))
    first, last = map(int, asked.draws.split("-"))
    done = {}
    if asked.results is not None and asked.results.exists():
        done = {tuple(one["task"]): one for one in map(json.loads, asked.results.read_text().splitlines())}
    tasks = [(*setting, seed) for seed in range(first, last + 1) for setting in settings]
    with ProcessPoolExecutor(asked.processes) as pool:
        waiting = [pool.submit(judge, *task, path=asked.profiles, aim=asked.aim) for task in tasks if task not in done]
        for future in as_completed(waiting):
            result = future.result()
            done[tuple(result["task"])] = result
            if asked.results is not None:
                with asked.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    for setting in settings:
        show(*setting, [done[*setting, seed] for seed in range(first, last + 1)])


if __name__ == "__main__":
    main()
