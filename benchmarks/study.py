"""What the statements of a study are worth, and what a study costs.

    python -m benchmarks.study arguments FOLDER      # do the commands bring what the statements say?
    python -m benchmarks.study speed [JOBS]          # CPU seconds and memory, beside plain pandas
    python -m benchmarks.study speed --database URL  # the same on a server; postgresql: one of its own

``arguments`` takes windows of the traces in FOLDER. Most of them record no starts, so each is first replayed under the
site's own order (first in, first out with EASY backfill by time limits), and that replay is studied as if it had been
recorded. Beside statement 13 stands the mean wait under `qssf` over that of the site's own order; beside statement 14
the rank correlation that the predictor reaches. A statement is worth something if the two go together over windows.

``speed`` studies a synthetic history in a warehouse (SQLite, or what ``--database`` names), with its page, in a process
of its own. The synthetic jobs wait, half of them more than ten minutes, so that there is a queue at any time. The
control reads the same rows with pandas and groups hours by user, partition, size, state and week, without any interval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.ordering import FIRST, PREDICTED, REST, plan
from helios.app.history import LoadedHistory, ingest, read_file
from helios.app.replay_cluster import parse_nodes
from helios.app.scenarios import Scenario
from helios.app.study import study
from helios.app.whatif import WhatIfRequest, whatif
from helios.choices import Policy
from helios.ingest import synthetic_trace, write_helios_csv
from helios.metrics.statistics import rank_correlation
from helios.model import JOBS
from helios.report.whatif import Run

START = datetime(2020, 1, 1, tzinfo=UTC)
JOBS_A_DAY = 698_896 / 183
"""Of the synthetic cluster, Saturn."""
MEDIAN_WAIT_S, WAIT_LOG_SD = 600.0, 2.0


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
            print(
                "  ".join(
                    f"{key} {value:.3f}" if isinstance(value, float) else f"{value!s:12}" for key, value in row.items()
                ),
                flush=True,
            )
    gain = np.array([1 - row["qssf_over_own_order"] for row in rows])
    for name in ("short_behind_long", "share_of_waiting_of_short_jobs", "who_waits", "who_waits_p90"):
        said = np.array([row[name] for row in rows], dtype=np.float64)
        print(
            f"rank correlation of {name} with qssf's gain over {len(rows)} windows: {rank_correlation(said, gain):.2f}"
        )
    if as_json:
        print(json.dumps(rows, indent=2))


STUDY = """
import sys
from helios.cli.main import main
sys.argv = ["helios", "study", "--report", sys.argv[1]]
main()
"""
PANDAS = """
import os
import pandas as pd
from sqlalchemy import create_engine
names = 'submitted_at, started_at, ended_at, run_time_s, gpus, state, "user", partition, time_limit_s'
engine = create_engine(os.environ["HELIOS_DATABASE_URL"].replace("postgresql:", "postgresql+psycopg:"))
jobs = pd.read_sql(f"SELECT {names} FROM jobs ORDER BY submitted_at", engine)
hours = jobs["gpus"] * jobs["run_time_s"] / 3600
week = jobs["submitted_at"] // (7 * 86_400 * 1_000_000)
for key in ("user", "partition", "gpus", "state"):
    hours.groupby([jobs[key], week]).sum()
jobs["run_time_s"].quantile([0.1, 0.5, 0.9])
(jobs["started_at"] - jobs["submitted_at"]).groupby([jobs["partition"], week]).quantile([0.5, 0.9, 0.99])
"""


def write_waiting_jobs(path: Path, n_jobs: int) -> None:
    """Write synthetic jobs that wait, as a CSV file."""
    jobs = synthetic_trace(profile="saturn", start=START, days=int(n_jobs / JOBS_A_DAY) + 2).head(n_jobs)
    rng = np.random.default_rng(0)
    waited = pd.to_timedelta(np.exp(rng.normal(np.log(MEDIAN_WAIT_S), WAIT_LOG_SD, len(jobs))).round(), unit="s")
    for name in ("started_at", "ended_at"):
        jobs[name] += waited
    write_helios_csv(JOBS.conform(jobs), path)


def speed(n_jobs: int, database: str | None) -> None:
    """Print the CPU seconds and peak memory of a study with its page, and of the control."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        trace, url = folder / "jobs.csv.gz", database or f"sqlite:///{folder / 'helios.db'}"
        if url == "postgresql":
            from tests.postgres import fresh_database, postgres_server  # noqa: PLC0415 - a server of its own is rare

            url = stack.enter_context(fresh_database(stack.enter_context(postgres_server())))
        for work, arguments in ((write_waiting_jobs, (trace, n_jobs)), (_load, (trace, url))):
            child = get_context("spawn").Process(target=work, args=arguments)
            child.start()
            child.join()
            if child.exitcode:
                raise SystemExit(f"{work.__name__} failed")
        for what, code in (("study with its page", STUDY), ("pandas", PANDAS)):
            cpu_s, peak_mib = _apart(code, str(folder / "page.html"), url)
            print(f"{what:22s} {n_jobs:>12,} jobs {cpu_s:8.1f} CPU s {peak_mib:8,.0f} MiB", flush=True)
        print(f"page: {(folder / 'page.html').stat().st_size / 1e6:.2f} MB")


def _load(trace: Path, url: str) -> None:
    ingest(trace, url=url, timezone="UTC")


def _apart(code: str, argument: str, url: str) -> tuple[float, float]:
    """Run code in a process of its own, and return its CPU seconds and its peak memory in MiB."""
    environment = os.environ | {"HELIOS_DATABASE_URL": url}
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
    other = parts.add_parser("speed")
    other.add_argument("jobs", type=int, nargs="?", default=1_000_000)
    other.add_argument("--database", help="URL of an empty database; postgresql: a server of its own")
    given = parser.parse_args()
    if given.part == "arguments":
        print_arguments(given.folder, as_json=given.json)
    else:
        speed(given.jobs, given.database)


if __name__ == "__main__":
    main()
