"""Sleeping nodes on a trace of jobs: busy nodes by placement, and what each policy comes to.

    python benchmarks/energy_jobs.py [FROM TO [POLICY,...]]

On the Venus trace (133 nodes of 8 GPUs, all VCs pooled); FROM and TO are local dates, 2020-08-01 2020-09-01 if none are
given. Prints the seconds that it took, too.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.predict.demand.types import Calendar

from helios.app.energy.whatif import POLICIES, EnergyJobsRequest, energy_on_jobs
from helios.app.history import LoadedHistory, read_file
from helios.app.whatif import WhatIfRequest, prepare_replay
from helios.config import Settings
from helios.simulate import Backfill, Placement, replay
from helios.simulate.ageing import first_in_first_out
from tests.traces import TRACES

ZONE = ZoneInfo("Asia/Shanghai")
NODES = {"all": 133}
STEP_S = 600


def placements(history: LoadedHistory, since: datetime, until: datetime) -> None:
    """Print how many nodes are busy on average under each placement, and the least that would do."""
    warm_up = since - history.jobs["submitted_at"].min()
    setup = prepare_replay(history, WhatIfRequest(scenarios=(), since=since, until=until, warm_up=warm_up, nodes=NODES))
    begin_s, end_s = int(since.timestamp()), int(until.timestamp())
    print(f"{'placement':<12}{'busy nodes':>12}{'most in a step':>16}{'seconds':>9}")
    for placement in (Placement.SPREAD, Placement.RANDOM, Placement.WEIGHTED, Placement.PACKED):
        begun = time.perf_counter()
        result = replay(
            setup.workload,
            setup.machine.shape,
            backfill=Backfill.EASY,
            order=first_in_first_out,
            estimate_s=setup.limit_s,
            placement=placement,
            count_nodes=True,
        )
        start_s, most, mean = result.busy_nodes(STEP_S)
        window = slice((begin_s - start_s) // STEP_S, (end_s - start_s) // STEP_S)
        seconds = time.perf_counter() - begun
        print(f"{placement:<12}{mean[0, window].mean():>12.1f}{most[0, window].mean():>16.1f}{seconds:>9.2f}")
    started, ended = (np.clip(times, begin_s, end_s) for times in (result.started_s, result.ended_s))
    floor = ((ended - started) * setup.workload.gpus).sum() / 8 / (end_s - begin_s)
    print(f"{'floor':<12}{floor:>12.1f}   GPUs in use over 8")


def main() -> None:
    """Print everything."""
    since, until = (
        datetime.fromisoformat(day).replace(tzinfo=ZONE) for day in [*sys.argv[1:3], "2020-08-01", "2020-09-01"][:2]
    )
    policies = sys.argv[3].split(",") if len(sys.argv) > 3 else POLICIES
    history = read_file(TRACES / "helios_venus_mar-aug2020.csv.gz", timezone="Asia/Shanghai")
    placements(history, since, until)
    settings, begun = Settings(), time.perf_counter()
    answer = energy_on_jobs(
        history,
        EnergyJobsRequest(
            replay=WhatIfRequest(scenarios=(), since=since, until=until, nodes=NODES, placement=Placement.RANDOM),
            calendar=Calendar(zone=ZONE),
            policies=policies,
        ),
        energy=settings.energy,
        power=settings.power,
        progress=lambda step, done: (
            print(f"  {step} {done:.0%}", file=sys.stderr, flush=True) if done in (0, 1) else None
        ),
    )
    columns = (
        "mean_sleeping_nodes",
        "node_utilization_after",
        "wakeups_per_day",
        "jobs_delayed",
        "share_of_jobs_delayed",
        "mean_delay_s",
        "saved_kwh",
    )
    print(f"\n{'policy':<18}" + "".join(f"{name[:16]:>18}" for name in columns))
    for policy in answer.to_json()["policies"]:
        print(f"{policy['policy']:<18}" + "".join(f"{policy[name]:>18.5g}" for name in columns))
    print(f"{time.perf_counter() - begun:.0f} s")
    print(json.dumps(answer.to_json()["notes"], indent=1))


if __name__ == "__main__":
    main()
