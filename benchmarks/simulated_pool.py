"""Compare pools of small programs with their simulations.

    python -m benchmarks.simulated_pool [--pools 3] [--trials 16]

Trials are programs that use a device for a part of each step; a lock stands for the device, so that two of them slow
each other as on a GPU, and other load of the machine matters little. Speeds alone and in pairs, and the time of a
start, are measured in small pools. Then pools of other trials, with lengths drawn anew, run with one, two and three
slots, and are simulated with these speeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

import numpy as np

from helios.model.trial_runs import TrialRun
from helios.training.model import Device
from helios.training.pool.state import read_runs
from helios.training.run import run_pool
from helios.training.sharing_rules import share_fixed
from helios.training.simulated_trials import PairProfiles, SimulatedTrial
from helios.training.simulator import PoolCosts, SimulatedPool

PROGRAM = """
import fcntl, json, os, sys, time
held_s, steps = float(sys.argv[1]), int(sys.argv[2])
with open("device", "a") as device, open(os.environ["HELIOS_REPORT"], "a", buffering=1) as report:
    for step in range(steps):
        fcntl.flock(device, fcntl.LOCK_EX)
        time.sleep(held_s)
        fcntl.flock(device, fcntl.LOCK_UN)
        time.sleep(0.05 - held_s)
        report.write(json.dumps({"step": step, "progress": (step + 1) / steps}) + "\\n")
"""
HELD_S = (0.04, 0.02, 0.005)
"""Time of a step of 0.05 s in which a family has the device, s."""
STEP_S, CALIBRATED_STEPS = 0.05, 80


def run(folder: Path, trials: list[tuple[int, int]], slots: int) -> list[TrialRun]:
    """Run trials, each a family and its steps, and return their runs."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    lines = [json.dumps({"held_s": HELD_S[family], "steps": steps}) for family, steps in trials]
    (folder / "trials.jsonl").write_text("\n".join(lines))
    sweep = folder / "sweep.toml"
    sweep.write_text(f'command = "{sys.executable} train.py {{held_s}} {{steps}}"\ntrials_file = "trials.jsonl"\n')
    run_pool(sweep, kind="cpu", slots=slots)
    return sorted(read_runs(folder / "sweep.pool"), key=lambda run: run.number)


def calibrate(folder: Path) -> tuple[PairProfiles, PoolCosts]:
    """Measure the speeds alone and in pairs, and the time of a start."""
    count = len(HELD_S)
    alone = run(folder / "alone", [(family, CALIBRATED_STEPS) for family in range(count)], 1)
    start_s = median(run.start_up_s or 0.0 for run in alone)
    own_s = np.array([run.seconds - start_s for run in alone])
    beside = np.empty((count, count))
    for first in range(count):
        for second in range(first, count):
            # The second one runs longer, so that the first has company to its end; then the other way round.
            for short, long in ((first, second), (second, first)):
                trials = [(short, CALIBRATED_STEPS), (long, 4 * CALIBRATED_STEPS)]
                found = run(folder / f"pair-{first}-{second}-{short}", trials, 2)
                beside[short, long] = min(1.0, own_s[short] / (found[0].seconds - start_s))
                if first == second:
                    break
    profiles = PairProfiles(families=tuple(map(str, HELD_S)), alone=CALIBRATED_STEPS / own_s, beside=beside)
    return profiles, PoolCosts(start_s=start_s)


def main() -> None:
    """Print the makespan and the mean time to a result of each pool, run and simulated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pools", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        profiles, costs = calibrate(Path(temporary))
        print(f"speeds in pairs:\n{profiles.beside.round(2)}, a start {costs.start_s:.2f} s")
        for pool in range(asked.pools):
            random = np.random.default_rng(pool)
            trials = [(int(random.integers(len(HELD_S))), int(random.integers(20, 160))) for _ in range(asked.trials)]
            slots = 1 + pool % 3
            runs = run(Path(temporary) / f"pool-{pool}", trials, slots)
            first_s = min(run.started_s for run in runs)
            ends_s = [run.started_s + run.seconds - first_s for run in runs]
            simulated = SimulatedPool(
                [
                    SimulatedTrial(family=f, seconds=steps / float(profiles.alone[f]), memory_mib=10.0)
                    for f, steps in trials
                ],
                [Device(name="cpu:0", kind="cpu", memory_mib=1e6)],
                profiles,
                costs=costs,
            ).run(share_fixed(slots))
            print(f"{slots} slots: makespan {max(ends_s):.1f} s, simulated {simulated.makespan_s:.1f} ", end="")
            print(
                f"({simulated.makespan_s / max(ends_s) - 1:+.1%}); mean time to a result {mean(ends_s):.1f} s, ", end=""
            )
            print(
                f"simulated {simulated.mean_result_s:.1f} ({simulated.mean_result_s / mean(ends_s) - 1:+.1%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
