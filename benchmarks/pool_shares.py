"""What it costs to share a device's time by turns or weights, beside trials that run side by side.

python -m benchmarks.pool_shares [--trials 2 4 8] [--seconds 20] [--rounds 3]

Trials sum up numbers on one core, each over 4 MB of its own. Rounds of equal shares by each way follow on rounds
without shares. Printed are, as medians over pairs of rounds, how many steps a second of CPU time makes beside that
without shares (what changing turns costs in caches), the CPU time of the agent in both, and how many steps the trial
with fewest has beside an equal part. Steps by CPU time and not by the clock, so that other load of the machine does
not count. Then how long it takes to stop and continue a program, in which nobody may run, beside a turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from helios.training.model import PoolAction, PoolSnapshot, ShareTrial, StopTrial, TrialState
from helios.training.pool.slices import SLICE_S
from helios.training.pool.slots import fixed_slots
from helios.training.pool.sweep import TrainingSweep
from helios.training.pool.warm import hold, release
from tests.unit.training.pool.sharing import share_by
from tests.unit.training.pool.test_coordinator import run

PROGRAM = """
import json, os, time
numbers = list(range(100_000))
steps, began = 0, time.process_time()
while not os.path.exists(os.environ["HELIOS_REQUESTS"]):
    sum(numbers)
    steps += 1
with open(os.environ["HELIOS_REPORT"], "a") as file:
    file.write(json.dumps({"step": steps, "steps": steps, "cpu_s": time.process_time() - began}) + "\\n")
"""


class EqualShares:
    """Gives all the same share, and ends them after some seconds."""

    def __init__(self, trials: int, seconds: float, *, share: float | None) -> None:
        self.trials, self.seconds, self.share = trials, seconds, share
        self.since_s: float | None = None
        self.agent_s = 0.0

    def decide(self, pool: PoolSnapshot) -> list[PoolAction]:
        """Start, share and end trials."""
        running = [trial for trial in pool.trials if trial.state is TrialState.RUNNING]
        if len(running) < self.trials:
            return fixed_slots(pool)
        (agent,) = psutil.Process().children()
        agent_s = sum(agent.cpu_times()[:2])
        if self.since_s is None:
            self.since_s, self.agent_s = pool.now_s, agent_s
        if pool.now_s - self.since_s >= self.seconds:
            self.agent_s = (agent_s - self.agent_s) / (pool.now_s - self.since_s)
            return [StopTrial(number=trial.number, reason="enough", finished=True) for trial in running]
        return [ShareTrial(number=trial.number, share=self.share, reason="equal") for trial in running]


def one_round(trials: int, seconds: float, how: str) -> tuple[float, float, float]:
    """Return steps by CPU time, CPU time of the agent, and the fewest steps beside an equal part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        sweep = TrainingSweep(
            path=folder / "sweep.toml",
            command=(sys.executable, "-S", "-E", "program.py", "{x}"),
            parameters={"x": tuple(range(trials))},
            cwd=folder,
        )
        device = share_by("weights" if how == "side by side" else how, folder, slots=trials)
        service = EqualShares(trials, seconds, share=None if how == "side by side" else 1 / trials)
        _, found = run(sweep, devices=[device], decide=service.decide)
        metrics = [trial.metrics for trial in found.values()]
        steps = [each["steps"] for each in metrics]
        by_cpu = sum(steps) / sum(each["cpu_s"] for each in metrics)
        return by_cpu, service.agent_s, min(steps) * trials / sum(steps)


def turn_s(threads: int) -> float:
    """Return how long it takes to stop and continue a program of so many threads, s."""
    text = (
        f"import threading, time\nfor _ in range({threads - 1}): threading.Thread(target=time.sleep, args=[60]).start()"
    )
    with subprocess.Popen([sys.executable, "-c", f"{text}\nprint(flush=True)\ntime.sleep(60)"], stdout=-1) as program:
        assert program.stdout is not None
        program.stdout.readline()
        took = []
        for _ in range(200):
            began = time.perf_counter()
            release(hold([program.pid]))
            took.append(time.perf_counter() - began)
            time.sleep(0.005)
        program.kill()
    return median(took)


def main() -> None:
    """Print a line for each way and number of trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(
        f"{'trials':>6}  {'way':8}{'steps':>9}{'agent':>9}{'before':>9}{'fewest':>9}   (load {os.getloadavg()[0]:.1f})"
    )
    for trials in asked.trials:
        found: dict[str, list[tuple[float, float, float, float]]] = {"weights": [], "slices": []}
        for _ in range(asked.rounds):
            for how, rounds in found.items():
                base, base_agent_s, _ = one_round(trials, asked.seconds, "side by side")
                steps, agent_s, fewest = one_round(trials, asked.seconds, how)
                rounds.append((steps / base, agent_s, base_agent_s, fewest))
        for how, rounds in found.items():
            steps, agent_s, base_agent_s, fewest = (median(column) for column in zip(*rounds, strict=True))
            print(f"{trials:6}  {how:8}{steps:9.1%}{agent_s:9.2%}{base_agent_s:9.2%}{fewest:9.1%}")
    for threads in (1, 30):
        print(f"a turn of a program of {threads} threads: {1e3 * turn_s(threads):.2f} ms of {1e3 * SLICE_S:.0f}")


if __name__ == "__main__":
    main()
