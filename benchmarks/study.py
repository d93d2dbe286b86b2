"""What the statements of a study are worth, and what a study costs.

    python -m benchmarks.study arguments FOLDER      # do the commands bring what the statements say?
    python -m benchmarks.study idle FOLDER           # the same of statement 4 and sleeping nodes
    python -m benchmarks.study repetition FOLDER     # of statement 14 and predictions
    python -m benchmarks.study packing FOLDER        # of statement 16 and packed trials
    python -m benchmarks.study speed [JOBS]          # CPU seconds and memory, beside plain pandas

``arguments`` takes windows of the traces in FOLDER. Most of them record no starts, so each is first replayed under the
site's own order (first in, first out with EASY backfill by time limits), and that replay is studied as if it had been
recorded. Beside statement 13 stands the mean wait under `qssf` over that of the site's own order; beside statement 14
the rank correlation that the predictor reaches. A statement is worth something if the two go together over windows.

``idle`` replays three weeks of three months of Venus on clusters of three sizes under the site's own order, with jobs
placed at random, and reads statement 4 off the nodes that each job got (jobs shorter than a minute are not seen).
Beside it stands the share of the nodes that CES and an idle timer of 30 minutes put to sleep in the same window.
``repetition`` reads statement 14 off what was before a moment, and puts the rank correlation of the predictor after
that moment beside it, for moments in each trace with users. ``packing`` puts beside statement 16 what the replay of
``helios report trials`` makes everybody else wait less, in weeks of the one GPU trace with users on clusters of two
sizes.

``speed`` studies a synthetic history in a warehouse (SQLite), with its page, in a process of its own. The control
reads the same rows with pandas and groups hours by user, partition, size, state and week, without any interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.draws import day
from benchmarks.ordering import BLUE, FIRST, KTH, PREDICTED, REST, VENUS, VENUS_USERS, plan
from helios.app.energy.whatif_jobs import EnergyJobsRequest, energy_on_jobs
from helios.app.history import LoadedHistory, ingest, read_file
from helios.app.replay_cluster import POOL, parse_nodes
from helios.app.scenarios import Scenario
from helios.app.study import NodeRecords, study
from helios.app.training import judge
from helios.app.trials import Packing, find_repeated
from helios.app.whatif import WhatIfRequest, prepare_replay, whatif
from helios.choices import Policy
from helios.config import Energy, Settings
from helios.ingest import synthetic_trace, write_helios_csv
from helios.metrics.statistics import rank_correlation
from helios.model import JOBS, NODES
from helios.predict.demand.types import Calendar
from helios.report.whatif import Run
from helios.simulate import Placement, SimCluster
from helios.units import HOUR_S

START = datetime(2020, 1, 1, tzinfo=UTC)
JOBS_A_DAY = 698_896 / 183


def replayed_history(run: Run, cluster: str) -> LoadedHistory:
    """Return a replay as if it had been recorded."""
    times = {"submitted_at": run.submitted_s, "started_at": run.started_s, "ended_at": run.ended_s}
    columns: dict[str, Any] = {name: pd.to_datetime(at_s, unit="s", utc=True) for name, at_s in times.items()}
    users = [str(user) if user >= 0 else None for user in run.users.tolist()]
    jobs = pd.DataFrame(
        columns
        | {
            "job_id": np.arange(len(run.gpus)).astype(str),
            "gpus": run.gpus,
            "run_time_s": (run.ended_s - run.started_s).astype(np.float64),
            "user": users,
            "state": "COMPLETED",
        }
    )
    return LoadedHistory(cluster=cluster, jobs=JOBS.conform(jobs), timezone="UTC")


def arguments(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield, for each window, what its statements say and what the commands bring."""
    own, ours = plan(Policy.FIFO), plan(Policy.QSSF, PREDICTED)
    for window in (*FIRST, *REST):
        history = read_file(folder / window.file)
        runs = _replays(history, window, [own, ours])
        found = study(replayed_history(runs[0], window.name), resource="gpus")
        told = {statement.number: statement for statement in found.statements}
        yield {
            "window": window.name,
            "short_behind_long": told[13].value,
            "share_of_waiting_of_short_jobs": told[13].parts.get("share_of_waiting_of_short_jobs"),
            "who_waits": told[12].value,
            "who_waits_p90": told[12].parts.get("short_p90"),
            "repetition": told[14].value,
            "last_alike_rank": told[14].parts.get("rank_correlation"),
            "qssf_over_own_order": runs[1].summary.mean_wait_s / runs[0].summary.mean_wait_s,
        }


def _replays(history: LoadedHistory, window: Any, scenarios: list[Scenario]) -> list[Run]:
    request = WhatIfRequest(
        plans=scenarios,
        since=window.since,
        until=window.until,
        nodes=parse_nodes(window.nodes),
        gpus_per_node=window.gpus_per_node,
        skip_oversized=True,
    )
    found = whatif(history, request)
    return list(found.runs)


def print_arguments(folder: Path, *, as_json: bool) -> None:
    """Print a line for each window, and how the two sides go together."""
    rows = []
    for row in arguments(folder):
        rows.append(row)
        if not as_json:
            print(_line(row), flush=True)
    gain = np.array([1 - row["qssf_over_own_order"] for row in rows])
    for name in ("short_behind_long", "share_of_waiting_of_short_jobs", "who_waits", "who_waits_p90"):
        said = np.array([row[name] for row in rows], dtype=np.float64)
        print(
            f"rank correlation of {name} with qssf's gain over {len(rows)} windows: {rank_correlation(said, gain):.2f}"
        )
    if as_json:
        print(json.dumps(rows, indent=2))


VENUS_NODES = (115, 133, 150)
MONTHS = ("2020-05-01", "2020-06-01", "2020-07-01")
LOOK_S = 60


def idle(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield statement 4 of each month and cluster, and what share of the nodes slept there."""
    history = read_file(folder / VENUS, timezone="Asia/Shanghai")
    zone = ZoneInfo("Asia/Shanghai")
    for month, nodes in product(MONTHS, VENUS_NODES):
        since = datetime.fromisoformat(month).replace(tzinfo=zone)
        replay = WhatIfRequest(
            plans=(),
            since=since,
            until=since + timedelta(days=21),
            nodes={POOL: nodes},
            placement=Placement.RANDOM,
            skip_oversized=True,
        )
        request = EnergyJobsRequest(
            replay=replay, calendar=Calendar(zone=zone), policies=("idle_timer_30min", "ces"), history_days=28
        )
        slept = energy_on_jobs(history, request, energy=Energy(), power=Settings().power)
        placed, records = _placed(history, replay)
        told = study(placed, since=replay.since, until=replay.until, records=records).statements[3]
        shares = {policy.policy: policy.mean_sleeping_nodes / nodes for policy in slept.policies}
        yield {
            "window": f"{month[:7]} on {nodes}",
            "idle_nodes": told.value,
            "verdict": str(told.verdict),
            "ces": shares["ces"],
            "idle_timer": shares["idle_timer_30min"],
        }


def _placed(history: LoadedHistory, replay: WhatIfRequest) -> tuple[LoadedHistory, NodeRecords]:
    """Return a replay of a window with the nodes that each job got, as if it had been recorded."""
    since, until = replay.since, replay.until
    assert since is not None
    assert until is not None
    setup = prepare_replay(history, dataclasses.replace(replay, warm_up=timedelta(days=14)))
    machine, begin_s = setup.machine, int(since.timestamp())
    cluster = SimCluster(
        setup.workload,
        machine.shape,
        machine.jobs,
        estimates_s=setup.limit_s,
        resource=machine.resource,
        placement=replay.placement,
        seed=replay.seed,
    )
    held: dict[str, str] = {}
    seen: set[int] = set()
    for now_s in range(begin_s, int(until.timestamp()), LOOK_S):
        cluster.advance(now_s)
        running = set(cluster.running()[0].tolist())
        if not running <= seen:
            found = cluster.snapshot().running
            held |= dict(zip(found["job_id"], found["node_list"], strict=True))
            seen |= running
    started_s, run_s = cluster.started_s.copy(), setup.workload.run_time_s
    started = started_s < int(until.timestamp())
    jobs = machine.jobs[started].assign(
        started_at=pd.to_datetime(started_s[started], unit="s", utc=True),
        ended_at=pd.to_datetime((started_s + run_s)[started], unit="s", utc=True),
        state="COMPLETED",
        partition=POOL,
        node_list=machine.jobs["job_id"][started].map(held),
        nodes=np.nan,
    )
    names = cluster.snapshot().nodes["name"]
    records = NodeRecords(nodes=NODES.conform(pd.DataFrame({"name": names, "partition": POOL, "gpus": 8})))
    return LoadedHistory(cluster="venus", jobs=JOBS.conform(jobs), timezone="Asia/Shanghai"), records


def repetition(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield statement 14 before a moment, and how well the predictor ranks what came after it."""
    for file, since, moments, days in MOMENTS:
        history = read_file(folder / file)
        for moment in moments:
            split = day(moment)
            jobs = history.jobs[history.jobs["submitted_at"] < split + timedelta(days=days)]
            if since:
                jobs = jobs[jobs["submitted_at"] >= day(since)]
            known = dataclasses.replace(history, jobs=jobs.reset_index(drop=True))
            told = study(known, until=split).statements[13]
            judged = judge(known, train_until=split)
            yield {
                "window": f"{file.split('.')[0].split('_may')[0]} {moment}",
                "repetition": told.value,
                "last_alike_rank": told.parts.get("rank_correlation"),
                "verdict": str(told.verdict),
                "predictor": judged.figures.spearman,
                "user_last": judged.controls["user_last"].spearman,
            }


def packing(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield statement 16 of each week and cluster, and what packing makes everybody else wait less."""
    history = read_file(folder / VENUS_USERS, timezone="Asia/Shanghai")
    for week, nodes in product(("2020-05-28", "2020-06-03", "2020-06-10"), (80, 85, 90)):
        since = datetime.fromisoformat(week).replace(tzinfo=ZoneInfo("Asia/Shanghai"))
        until = since + timedelta(days=7)
        told = study(history, since=since, until=until, resource="gpus").statements[15]
        found = find_repeated(history, since=since, until=until, packing=Packing(nodes={POOL: nodes}))
        unpacked, most = found.replays[0], found.replays[-1]
        yield {
            "window": f"{week} on {nodes}",
            "one_gpu_jobs": told.value,
            "repeated_high": told.parts["share_of_hours_repeated_high"],
            "verdict": str(told.verdict),
            "saved_share": found.totals["saved_hours_high"] / found.totals["gpu_hours"],
            "wait_h": unpacked.mean_wait_s / HOUR_S,
            "less_share": (most.less_s or 0.0) / max(unpacked.mean_wait_s, 1.0),
            "less_h_in_9_of_10": f"{(most.less_low_s or 0) / HOUR_S:.2f} to {(most.less_high_s or 0) / HOUR_S:.2f}",
        }


MOMENTS = (
    (VENUS_USERS, None, ("2020-06-05", "2020-06-09", "2020-06-13"), 4),
    (KTH, None, ("1997-01-01", "1997-03-01", "1997-05-01", "1997-07-01"), 28),
    (BLUE, "2000-07-01", ("2000-09-01", "2000-10-01"), 28),
    (BLUE, "2001-09-01", ("2001-11-01", "2001-12-01"), 28),
    ("sacct_graham_may-jun2021.txt.gz", None, ("2021-05-25", "2021-06-10"), 14),
    ("sacct_cedar_may-jun2021.txt.gz", None, ("2021-05-25", "2021-06-10"), 14),
)
"""Traces with users, from when on they are read, moments, and days after them that are judged."""
TESTS = {
    "idle": (idle, ("idle_nodes",), ("ces", "idle_timer")),
    "repetition": (repetition, ("repetition", "last_alike_rank"), ("predictor",)),
    "packing": (packing, ("one_gpu_jobs", "repeated_high"), ("saved_share", "less_share")),
}
"""What each part yields, what is said in it, and what the command brings."""


def print_test(name: str, folder: Path) -> None:
    """Print the windows of a part, and how the two sides go together."""
    measure, said, brought = TESTS[name]
    rows = []
    for row in measure(folder):
        rows.append(row)
        print(_line(row), flush=True)
    for one, other in product(said, brought):
        pairs = [(row[one], row[other]) for row in rows if row[one] is not None and row[other] is not None]
        both = np.array(pairs, dtype=np.float64)
        print(
            f"rank correlation of {one} with {other} over {len(both)}: {rank_correlation(both[:, 0], both[:, 1]):.2f}"
        )


def _line(row: dict[str, Any]) -> str:
    return "  ".join(
        f"{key} {value:.3f}" if isinstance(value, float) else f"{value!s:12}" for key, value in row.items()
    )


STUDY = """
import resource, sys
from helios.cli.main import main
sys.argv = ["helios", "study", "--report", sys.argv[1]]
main()
"""
PANDAS = """
import sqlite3, sys
import pandas as pd
names = "submitted_at, started_at, ended_at, run_time_s, gpus, state, user, partition, time_limit_s"
jobs = pd.read_sql(f"SELECT {names} FROM jobs ORDER BY submitted_at", sqlite3.connect(sys.argv[1]))
hours = jobs["gpus"] * jobs["run_time_s"] / 3600
week = jobs["submitted_at"] // (7 * 86_400 * 1_000_000)
for key in ("user", "partition", "gpus", "state"):
    hours.groupby([jobs[key], week]).sum()
jobs["run_time_s"].quantile([0.1, 0.5, 0.9])
(jobs["started_at"] - jobs["submitted_at"]).groupby([jobs["partition"], week]).quantile([0.5, 0.9, 0.99])
"""


def speed(n_jobs: int) -> None:
    """Print the CPU seconds and peak memory of a study with its page, and of the control."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, database = folder / "jobs.csv.gz", folder / "helios.db"
        write_helios_csv(synthetic_trace(start=START, days=int(n_jobs / JOBS_A_DAY) + 1).head(n_jobs), trace)
        ingest(trace, url=f"sqlite:///{database}", timezone="UTC")
        for what, code, argument in (
            ("study with its page", STUDY, folder / "page.html"),
            ("pandas", PANDAS, database),
        ):
            cpu_s, peak_mib = _apart(code, str(argument), database)
            print(f"{what:22s} {n_jobs:>12,} jobs {cpu_s:8.1f} CPU s {peak_mib:8,.0f} MiB", flush=True)
        print(f"page: {(folder / 'page.html').stat().st_size / 1e6:.2f} MB")


def _apart(code: str, argument: str, database: Path) -> tuple[float, float]:
    """Run code in a process of its own, and return its CPU seconds and its peak memory in MiB."""
    environment = os.environ | {"HELIOS_DATABASE_URL": f"sqlite:///{database}"}
    child = subprocess.Popen([sys.executable, "-c", code, argument], env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the process ended with {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("arguments")
    one.add_argument("folder", type=Path)
    one.add_argument("--json", action="store_true")
    for name in TESTS:
        parts.add_parser(name).add_argument("folder", type=Path)
    other = parts.add_parser("speed")
    other.add_argument("jobs", type=int, nargs="?", default=1_000_000)
    given = parser.parse_args()
    if given.part in TESTS:
        print_test(given.part, given.folder)
    elif given.part == "arguments":
        print_arguments(given.folder, as_json=given.json)
    else:
        speed(given.jobs)


if __name__ == "__main__":
    main()
