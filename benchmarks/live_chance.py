"""How far chance decides the live proof: both of its sides in the simulator, under Slurm's rules, drawn many times.

Each side has its own draw of how long every submission takes, of fractions of seconds that jobs run longer, and of when
its controller began to count its periods. ``benchmarks/live_replay.py`` runs one pair on real clusters.

Usage: python -m benchmarks.live_chance   (about four minutes; as root, with Slurm installed, and with the real traces)
       python -m benchmarks.live_chance --first 9180 --draws 10   (another stretch)
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np
import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.slurm_whatif_jobs import slurm_jobs
from helios.app.slurm_whatif_services import simulate_services_on_slurm
from helios.config import Control
from helios.model import JOBS, in_submission_order
from helios.model.slurm_site import SlurmSite
from helios.ports import Service
from helios.services.qssf import Qssf
from helios.simulate.slurm import SlurmLatency, replay_slurm
from tests.live.recorded import site_of, texts_of
from tests.live.replayed import FIRST, PROMOTE_AFTER_S, Stretch, Waits
from tests.live.rig import Rig, missing, roomy_folder
from tests.traces import TRACES

BEGAN = pd.Timestamp("2026-01-01T00:00:00Z")
SBATCH_S = 0.05
AT_MOST_S = (0.1, 0.4, 0.8)
Three = tuple[float, float, float]


def main(words: list[str] | None = None) -> None:
    """Draw, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_chance", description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=FIRST, help=f"where in KTH-SP2 it begins (default {FIRST})")
    parser.add_argument("--draws", type=int, default=20, help="of both sides, for each lateness (default 20)")
    asked = parser.parse_args(words)
    if why := missing() or ("" if TRACES.is_dir() else f"the real traces are not at {TRACES}"):
        print(f"skipped: {why}")
        return
    stretch = Stretch(first=asked.first)
    site = site_of_the_proof(stretch)
    for late_s in AT_MOST_S:
        drawn = [pair(stretch, site, late_s=late_s, seed=seed) for seed in range(asked.draws)]
        print(line(np.array(drawn), late_s), flush=True)


def line(drawn: np.ndarray, late_s: float) -> str:
    """Say what became of draws, of shape (pairs, 2, 3): plain and helped; mean, ten longest and longest wait, s."""
    plain, helped = drawn[:, 0].T, drawn[:, 1].T
    ratio = helped[0] / plain[0]
    again = np.roll(plain[2], 1) - plain[2]
    return (
        f"submissions up to {late_s:.1f} s late, {len(drawn)} pairs\n"
        f"  mean wait       plain {said(plain[0])} s, helped / plain {ratio.min():.2f} to {ratio.max():.2f}\n"
        f"  ten longest     plain {said(plain[1])} s, helped - plain {said(helped[1] - plain[1])} s\n"
        f"  longest         plain {said(plain[2])} s, helped - plain {said(helped[2] - plain[2])} s, "
        f"plain - another plain {said(again)} s"
    )


def said(values: np.ndarray) -> str:
    """Say from where to where values go."""
    return f"{values.min():.1f} to {values.max():.1f}"


def site_of_the_proof(stretch: Stretch) -> SlurmSite:
    """Bring up a cluster of the proof for a moment, and read how it is set up."""
    rig = Rig(roomy_folder(), settings={"NAME": "plain", "USERS": " ".join(stretch.users)})
    try:
        rig.control("up")
        return site_of(texts_of(rig))
    finally:
        rig.control("wipe")


def pair(stretch: Stretch, site: SlurmSite, *, late_s: float, seed: int) -> tuple[Three, Three]:
    """Return what ``side`` does, without services and with ``qssf`` as the proof has it."""
    helped = {"qssf": Qssf(Qssf.Options(order="service", promote_after_s=PROMOTE_AFTER_S, every_s=1))}
    plain, other = (
        side(stretch, site, services, rng=np.random.default_rng([seed, number]), late_s=late_s)
        for number, services in enumerate(({}, helped))
    )
    return plain, other


def side(
    stretch: Stretch, site: SlurmSite, services: Mapping[str, Service], *, rng: np.random.Generator, late_s: float
) -> Three:
    """Return the mean wait, the mean of the ten longest, and the longest, of one draw of one side, s."""
    jobs = slurm_jobs(submitted(stretch, rng, late_s), site)
    latency = SlurmLatency(controller_started_s=BEGAN.timestamp() - 30 - 7 * rng.random())
    if services:
        past = stretch.history(BEGAN.to_pydatetime())
        replayed = simulate_services_on_slurm(
            jobs,
            site,
            services,
            history=LoadedHistory(cluster="helped", jobs=past, timezone="UTC"),
            most_of_one_user=Control().most_of_one_user,
            latency=latency,
        ).replay
    else:
        replayed = replay_slurm(jobs.workload, site, latency=latency)
    waits_s = tuple((replayed.started_s - jobs.workload.column("eligible_s")).tolist())
    waits = Waits(name="", waits_s=waits_s)
    return waits.mean, waits.ten_longest, waits.longest


def submitted(stretch: Stretch, rng: np.random.Generator, late_s: float) -> pd.DataFrame:
    """Return the stretch's jobs, columns of ``JOBS``, each handed in after the one before it."""
    arrivals, at_s = stretch.arrivals(), 0.0
    rows = []
    for number, one in enumerate(arrivals):
        at_s = max(at_s, one.after_s) + SBATCH_S + late_s * rng.random()
        begins, run_time_s = BEGAN + pd.Timedelta(at_s, unit="s"), one.run_time_s + 0.5 * rng.random()
        rows.append(
            {
                **{"job_id": str(number + 1), "user": one.user, "account": "root", "qos": "normal", "partition": "gpu"},
                **{"nodes": 1, "cpus": 1, "memory_mib": 100, "gpus": one.gpus, "time_limit_s": 60.0 * one.limit_min},
                **dict.fromkeys(("submitted_at", "eligible_at", "started_at"), begins),
                **{"ended_at": begins + pd.Timedelta(run_time_s, unit="s"), "run_time_s": run_time_s},
                "state": "COMPLETED",
            }
        )
    return in_submission_order(JOBS.conform(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
