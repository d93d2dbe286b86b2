"""Who pays on a real Slurm: the same arrivals at once under plain Slurm, and under Helios without and with the hook.

Each seed draws 300 jobs of 1 to 8 GPUs (4 % take a whole node) on four nodes of eight GPUs, about nine minutes of work
at a load of 1.15. The history is of twelve such draws, so that predictions, the longest wait of the site's own order,
and with it ageing and wait bound are of the experiment's own length. ``least_s`` is scaled with them: a longest wait of
some minutes stands for one of a day.

Usage: python -m benchmarks.live_sizes [--seeds 2]   (twelve minutes a seed; as root, with Slurm installed)
"""

from __future__ import annotations

import argparse
import shutil
from contextlib import ExitStack
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from helios.model import JOBS, SIZE_CLASSES, SIZE_NAMES, in_submission_order, size_class
from helios.slurm.hook_table import TABLE
from tests.live.hooked import script_for
from tests.live.replayed import Arrival, helped, replay, waits
from tests.live.rig import Rig, missing, roomy_folder

N_JOBS, NODES, GPUS, LOAD = 300, 4, 8, 1.15
SIZES, SHARES = (1, 2, 4, 8), (0.66, 0.18, 0.12, 0.04)
USERS = tuple(f"helios{number:02}" for number in range(8))
WORK_S = 540.0
"""Time in which the jobs of a draw would run if no GPU were idle, s."""
SPREAD, OWN_SPREAD = 1.2, 0.9
"""Spread of the logarithms of run times between users, and of one user's."""
PAST_DRAWS = 12
LEAST_S = 60
CONFIGURATION = """
[daemon]
cycle_s = 2
ingest_s = 30
listen = ""
[hook]
publish = {publish}
[services.qssf]
every_s = 2
least_s = {least_s}
"""


class Drawn:
    """Jobs of one seed, and what came before them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.of_user = np.exp(SPREAD * np.random.default_rng(seed).standard_normal(len(USERS)))

    def jobs(self, number: int) -> pd.DataFrame:
        """Return the jobs of draw ``number``: since when, user, GPUs, run time and limit; 0 is the experiment."""
        rng = np.random.default_rng([self.seed, number])
        user, gpus = rng.integers(len(USERS), size=N_JOBS), rng.choice(SIZES, p=SHARES, size=N_JOBS)
        run_s = self.of_user[user] * np.exp(OWN_SPREAD * rng.standard_normal(N_JOBS))
        run_s = np.maximum(np.rint(run_s * WORK_S * NODES * GPUS / (run_s * gpus).sum()), 1.0)
        gaps = rng.exponential(size=N_JOBS)
        after_s = np.cumsum(gaps) * (run_s * gpus).sum() / (LOAD * NODES * GPUS * gaps.sum())
        limit_min = np.ceil(run_s * rng.uniform(1.2, 6.0, N_JOBS) / 60) + 1
        names = np.array(USERS)[user]
        return pd.DataFrame(
            {"after_s": after_s, "user": names, "gpus": gpus, "run_time_s": run_s, "limit_min": limit_min}
        )

    def arrivals(self) -> list[Arrival]:
        """Return the jobs of the experiment."""
        return [
            Arrival(
                after_s=float(job["after_s"]),
                user=str(job["user"]),
                gpus=int(job["gpus"]),
                run_time_s=int(job["run_time_s"]),
                limit_min=int(job["limit_min"]),
            )
            for job in self.jobs(0).to_dict("records")
        ]

    def history(self, now: datetime) -> pd.DataFrame:
        """Return earlier draws, one after the other, the last just over."""
        frames = []
        for number in range(1, PAST_DRAWS + 1):
            jobs = self.jobs(number)
            began = pd.Timestamp(now) - timedelta(seconds=2 * WORK_S * (PAST_DRAWS + 1 - number))
            submitted_at = (began + pd.to_timedelta(jobs["after_s"], unit="s")).dt.floor("us")
            frames.append(
                jobs.assign(
                    job_id=[f"{number}past{row}" for row in range(N_JOBS)],
                    **dict.fromkeys(("submitted_at", "eligible_at", "started_at"), submitted_at),
                    ended_at=submitted_at + pd.to_timedelta(jobs["run_time_s"], unit="s"),
                    time_limit_s=60.0 * jobs["limit_min"],
                    partition="gpu",
                    nodes=1.0,
                    cpus=1.0,
                    state="COMPLETED",
                )
            )
        past = pd.concat(frames, ignore_index=True).astype({"gpus": "int32"})
        return in_submission_order(JOBS.conform(past.drop(columns=["after_s", "limit_min"])))


def one_seed(seed: int) -> dict[str, dict[str, float]]:
    """Return the figures of the three clusters, s: mean wait, that of each size class, and the longest."""
    drawn, classes = Drawn(seed), size_class(Drawn(seed).jobs(0)["gpus"].to_numpy(), GPUS)
    with ExitStack() as ending:
        rigs: dict[str, Rig] = {}
        for name, kind in (("plain", "plain"), ("nohook", "helped"), ("hook", "helped")):
            folder = roomy_folder()
            ending.callback(shutil.rmtree, folder, ignore_errors=True)
            settings = {"NAME": f"{name}{seed}", "NODES": str(NODES), "GPUS": str(GPUS), "USERS": " ".join(USERS)}
            if name == "hook":
                (folder / "job_submit.lua").write_text(script_for(folder / "state" / TABLE))
                settings["LUA"] = str(folder / "job_submit.lua")
            rigs[name] = Rig(folder / "cluster", settings=settings)
            ending.callback(rigs[name].control, "wipe")
            rigs[name].control("up")
            if kind == "helped":
                text = CONFIGURATION.format(publish="true" if name == "hook" else "false", least_s=LEAST_S)
                ending.enter_context(helped(rigs[name], drawn, folder, configuration=text))
            if name == "hook":
                rigs[name].until((folder / "state" / TABLE).exists)
        replay(drawn, list(rigs.values()))
        return {name: figures(np.array(waits(rig, name, jobs=N_JOBS).waits_s), classes) for name, rig in rigs.items()}


def figures(waits_s: np.ndarray, classes: np.ndarray) -> dict[str, float]:
    """Return the mean wait, that of each size class that has jobs, and the longest, s."""
    sizes = {SIZE_NAMES[size]: waits_s[classes == number] for number, size in enumerate(SIZE_CLASSES)}
    by_size = {name: float(own_s.mean()) for name, own_s in sizes.items() if len(own_s)}
    return {"mean": float(waits_s.mean()), **by_size, "longest": float(waits_s.max())}


def main(words: list[str] | None = None) -> None:
    """Replay, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_sizes", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=2, help="how many, from 1 (default 2)")
    parser.add_argument("--first", type=int, default=1, help="first seed (default 1)")
    asked = parser.parse_args(words)
    if why := missing():
        print(f"skipped: {why}")
        return
    for seed in range(asked.first, asked.first + asked.seeds):
        found = one_seed(seed)
        for name, values in found.items():
            cells = (
                f"{key} {value:6.1f} s x {value / max(found['plain'][key], 1):4.2f}" for key, value in values.items()
            )
            print(f"seed {seed}  {name:<8}{'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
