"""What the statements of a study are worth, and what a study costs.

    python -m benchmarks.study arguments FOLDER      # do the commands bring what the statements say?
    python -m benchmarks.study idle FOLDER           # the same of statement 4 and sleeping nodes
    python -m benchmarks.study repetition FOLDER     # of statement 14 and predictions
    python -m benchmarks.study packing FOLDER        # of statement 16 and packed trials
    python -m benchmarks.study published FOLDER      # our figures of public traces beside the published ones
    python -m benchmarks.study speed [JOBS]          # CPU seconds and memory, beside plain pandas
    python -m benchmarks.study speed --database URL  # the same on a server; postgresql: one of its own

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

``published`` studies Venus, April to August 2020, and the minutes of Earth, May 2020, and prints how far each figure is
from the published one and why. The published curves are of Venus to 28 September. What is left for September, if ours
are right, is the published sum less ours; it has to be a distribution, from 0 to 100 % and never falling. A cause is
only named where this holds. It fails (exit 1) where a figure is further away than its bound.

``speed`` studies a synthetic history in a warehouse (SQLite, or what ``--database`` names), with its page, in a process
of its own. The synthetic jobs wait, half of them more than ten minutes, so that there is a queue at any time. The
control reads the same rows with pandas and groups hours by user, partition, size, state and week, without any interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))


from benchmarks.draws import day
from benchmarks.ordering import BLUE, FIRST, KTH, PREDICTED, REST, VENUS, VENUS_USERS, plan
from benchmarks.recorded_levels import idle_beside_waiting_levels, read_partition_levels
from helios.app.energy.whatif import EnergyJobsRequest, energy_on_jobs
from helios.app.history import LoadedHistory, ingest, read_file
from helios.app.model_registry import judge
from helios.app.replay_cluster import POOL, parse_nodes
from helios.app.scenarios import Scenario
from helios.app.whatif import WhatIfRequest, prepare_replay, whatif
from helios.choices import Policy
from helios.config import Energy
from helios.ingest import synthetic_trace, write_helios_csv
from helios.metrics.statistics import rank_correlation
from helios.model import JOBS, NODES
from helios.report.whatif import Run
from helios.simulate import Placement, SimCluster
from helios.study.figures.catalog import study_figures
from helios.study.figures.source import FigureSource, published, summary
from helios.study.study import NodeRecords, study
from helios.training.repeated.replay import PackingCase, find_repeated
from helios.units import HOUR_S, percent

START = datetime(2020, 1, 1, tzinfo=UTC)
JOBS_A_DAY = 698_896 / 183
"""Of the synthetic cluster, Saturn."""
ZONE = "Asia/Shanghai"
CLAMP_S = 172_800
"""Where run times of the public trace of Venus are cut."""
RUN_TIMES = "run times of GPU jobs"
SEPTEMBER_DAYS = 28
EARTH = {"GPUs idle": 266, "GPUs waited for": 63, "% of minutes with both": 92, "% within one VC": 18}
"""Of May 2020 without the 10th, 16 virtual clusters."""
ROUNDING = 0.02
"""Precision of a published curve, points."""
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
            "repetition": told[14].parts.get("share_of_jobs"),
            "last_alike_rank": told[14].value,
            "qssf_over_own_order": runs[1].summary.mean_wait_s / runs[0].summary.mean_wait_s,
        }


def _replays(history: LoadedHistory, window: Any, scenarios: list[Scenario]) -> list[Run]:
    request = WhatIfRequest(
        scenarios=scenarios,
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
            scenarios=(),
            since=since,
            until=since + timedelta(days=21),
            nodes={POOL: nodes},
            placement=Placement.RANDOM,
            skip_oversized=True,
        )
        request = EnergyJobsRequest(replay=replay, policies=("idle_timer_30min", "ces"))
        slept = energy_on_jobs(history, request, energy=Energy())
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
                "repetition": told.parts.get("share_of_jobs"),
                "last_alike_rank": told.value,
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
        found = find_repeated(history, since=since, until=until, packing=PackingCase(nodes={POOL: nodes}))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One figure beside the published one.

    Attributes
    ----------
    off, bound : float
        The largest difference, and what it may be.
    at : str
        Where it is.
    """

    figure: str
    unit: str
    points: int
    off: float
    at: str
    bound: float
    cause: str


def published_beside(folder: Path) -> Iterator[Beside]:
    """Yield each figure of the public traces beside the published one."""
    loaded = read_file(folder / VENUS, timezone=ZONE)
    found = study(loaded, since=moment_of("2020-04-01"), until=moment_of("2020-09-01"))
    source = FigureSource(found.history, found.capacity, audience="paper")
    figures = {figure.key: figure for figure in study_figures(source)}
    theirs = {
        one.name.split(": ")[-1]: dict(zip(one.x, one.y, strict=True))
        for one in published("months")
        if one.name.startswith("Venus")
    }
    ours = {one.name: dict(zip(one.x, one.y, strict=True)) for one in figures["months"].panels[0].series}
    pairs = [
        (f"{month}, {theirs_name}", ours[name][month], theirs[theirs_name][month])
        for name, theirs_name in (("1 GPU", "single-GPU"), ("2 or more GPUs", "multi-GPU"))
        for month in ours[name]
    ]
    yield beside("GPU jobs by month", "jobs", pairs, 0, "the same rows")
    september = sum(by_month["2020-09"] for by_month in theirs.values())
    all_jobs, hours = summary("Venus"), found.history.hours()
    all_hours = sum(all_jobs[f"{state}_gpu_time"] for state in ("complete", "cancel", "fail")) / HOUR_S
    at_clamp = float((found.history.run_time_s == CLAMP_S).mean())
    of_jobs = f"{percent(september / all_jobs['gpu_job_num'])} of the jobs are of September"
    of_hours = (
        f"{percent(1 - hours.sum() / all_hours)} of the GPU time is of September or above 48 h, where run times are cut"
        f" ({percent(at_clamp, 1)} of the jobs)"
    )
    part = {False: len(hours) / all_jobs["gpu_job_num"], True: float(hours.sum()) / all_hours}
    for what, key, panel, name, bound, by_hours in (
        (RUN_TIMES, "run_times", 0, "gpu_run_time", 1.5, False),
        ("sizes by jobs", "sizes", 0, "size_jobs", 2.0, False),
        ("sizes by GPU time", "sizes", 1, "size_hours", 2.5, True),
    ):
        own = figures[key].panels[panel].series[0]
        (curve,) = [one for one in published(name) if one.name == "Venus"]
        at_x = dict(zip(curve.x, curve.y, strict=True))
        both = [x for x in own.x if x in at_x]
        pairs = [(f"{x:,.0f}", y, at_x[x]) for x, y in zip(own.x, own.y, strict=True) if x in at_x]
        # Of run times at or above 48 h the trace says nothing.
        kept = [y for x, y in zip(both, pairs, strict=True) if what != RUN_TIMES or float(x) < CLAMP_S]
        left = [(there - part[by_hours] * here) / (1 - part[by_hours]) for _, here, there in kept]
        explained = min(left) >= -ROUNDING and max(left) <= 100 + ROUNDING and min(np.diff(left)) >= -ROUNDING
        cause = (of_hours if by_hours else of_jobs) if explained else "not explained: what is left is no distribution"
        yield beside(what, "points", pairs, bound, cause)
    (curve,) = [one for one in published("hour_submissions") if one.name == "Venus"]
    own = next(one for panel in figures["hour_of_day"].panels for one in panel.series if "submitted" in one.name)
    days = {True: SEPTEMBER_DAYS, False: 181}
    left = [days[False] * y - (days[False] - days[True]) * x for x, y in zip(own.y, curve.y, strict=True)]
    pairs = [(f"{hour:.0f} h", here, there) for hour, here, there in zip(own.x, own.y, curve.y, strict=True)]
    cause = f"{of_jobs}, {september / days[True] / 24:.0f} an hour against {found.history.sized.sum() / 153 / 24:.0f}"
    yield beside("submissions by hour of day", "jobs an hour", pairs, 15, cause if min(left) >= 0 else "not explained")
    yield from earth_beside(folder / "helios_earth_vc_may2020")


def earth_beside(folder: Path) -> Iterator[Beside]:
    """Yield what the minutes of Earth say, beside the published values."""
    recorded = read_partition_levels(sorted(folder.glob("*.csv.gz")), timezone=ZONE)
    parts = idle_beside_waiting_levels(recorded).parts
    found = {
        "GPUs idle": parts["mean_idle"],
        "GPUs waited for": parts["mean_waiting"],
        "% of minutes with both": 100 * parts["share_of_time_with_both"],
        "% within one VC": 100 * parts["same_partition_share"],
    }
    pairs = [(name, round(value), EARTH[name]) for name, value in found.items()]
    cause = f"the day left out, found as a hole: {', '.join(parts['days_left_out'])}"
    yield beside("Earth, idle beside waiting", "GPUs or %", pairs, 0, cause)


def beside(figure: str, unit: str, pairs: Sequence[tuple[str, float, float]], bound: float, cause: str) -> Beside:
    """Return the largest difference of pairs of (where, ours, published)."""
    at, off = max(((where, abs(here - there)) for where, here, there in pairs), key=lambda pair: pair[1])
    return Beside(figure=figure, unit=unit, points=len(pairs), off=off, at=at, bound=bound, cause=cause)


def moment_of(date: str) -> datetime:
    """Return the midnight of a date on the clusters' clock."""
    return datetime.fromisoformat(date).replace(tzinfo=ZoneInfo(ZONE))


def print_published(folder: Path, *, as_json: bool) -> bool:
    """Print every figure beside the published one, and return whether all are within their bounds."""
    found = list(published_beside(folder))
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        for one in found:
            where = f" at {one.at}" if one.off else ""
            print(f"{one.figure:28s} {one.points:3d} values off by {one.off:5.2f} {one.unit}{where}, bound {one.bound}")
            print(f"{'':28s} {one.cause}")
    return all(one.off <= one.bound for one in found)


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
    for name in TESTS:
        parts.add_parser(name).add_argument("folder", type=Path)
    one = parts.add_parser("published")
    one.add_argument("folder", type=Path)
    one.add_argument("--json", action="store_true")
    other = parts.add_parser("speed")
    other.add_argument("jobs", type=int, nargs="?", default=1_000_000)
    other.add_argument("--database", help="URL of an empty database; postgresql: a server of its own")
    given = parser.parse_args()
    if given.part in TESTS:
        print_test(given.part, given.folder)
    elif given.part == "arguments":
        print_arguments(given.folder, as_json=given.json)
    elif given.part == "published":
        sys.exit(not print_published(given.folder, as_json=given.json))
    else:
        speed(given.jobs, given.database)


if __name__ == "__main__":
    main()
