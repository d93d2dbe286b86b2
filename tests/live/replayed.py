"""A stretch of a real trace, compressed in time, run as sleeping jobs under two Slurms at once, one of them helped."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import numpy as np
import pandas as pd

from helios.app.history import read_file
from helios.model import JOBS, REJECTS, Batch, in_submission_order
from helios.warehouse import Warehouse
from tests.live.rig import Rig
from tests.story.shell import run_command
from tests.traces import TRACES
from tests.waiting import TEST_TIMEOUT_S

TRACE = TRACES / "KTH-SP2-1996-2.1-cln.swf.gz"
# A stretch of KTH with a queue, chosen with the simulator (benchmarks/live_chance.py) as one whose outcome
# does not hang on which node the first long jobs land on; 600 s become one. No job is larger than a node: who waits for
# three empty nodes of four waits for chance.
FIRST, JOBS_REPLAYED, FASTER = 9_180, 130, 600
PROCESSORS_PER_NODE, GPUS_PER_NODE = 25, 8
PROMOTE_AFTER_S = 42
CONFIGURATION = f"""
[daemon]
cycle_s = 1
ingest_s = 30
listen = ""
[services.qssf]
every_s = 1
order = "service"
promote_after_s = {PROMOTE_AFTER_S}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One job of the stretch, in compressed time."""

    after_s: float
    user: str
    gpus: int
    run_time_s: int
    limit_min: int

    def submit(self, rig: Rig) -> None:
        rig.run(
            "sbatch",
            f"--uid={self.user}",
            "--chdir=/tmp",
            "--output=/dev/null",
            "--mem=100",
            f"--gres=gpu:{self.gpus}",
            f"--time={self.limit_min}",
            "--job-name=replayed",
            f"--wrap=sleep {self.run_time_s}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waits of one cluster's jobs, s."""

    name: str
    waits_s: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.waits_s))

    @property
    def longest(self) -> float:
        return max(self.waits_s)

    @property
    def ten_longest(self) -> float:
        """Their mean."""
        return float(np.mean(sorted(self.waits_s)[-10:]))

    def line(self) -> str:
        p50, p99 = np.percentile(self.waits_s, [50, 99])
        return (
            f"{self.name:<22} {len(self.waits_s):>5} jobs   mean {self.mean:6.1f} s   median {p50:6.1f} s   "
            f"p99 {p99:6.1f} s   longest {self.longest:6.1f} s   ten longest {self.ten_longest:6.1f} s"
        )


class Arriving(Protocol):
    """Jobs that arrive, and what came before them."""

    def arrivals(self) -> list[Arrival]: ...

    def history(self, now: datetime) -> pd.DataFrame: ...


class Stretch:
    """The stretch, who submits it, and what came before it."""

    def __init__(self, *, first: int = FIRST) -> None:
        jobs = read_file(TRACE).jobs
        jobs = jobs[jobs["run_time_s"].notna()].reset_index(drop=True)
        self.chosen = jobs.iloc[first : first + JOBS_REPLAYED]
        self.earlier = jobs.iloc[:first]
        self.names = {user: f"helios{n:02}" for n, user in enumerate(self.chosen["user"].unique())}

    @property
    def users(self) -> list[str]:
        return list(self.names.values())

    def arrivals(self) -> list[Arrival]:
        began = self.chosen["submitted_at"].iloc[0]
        return [self._arrival((job.submitted_at - began).total_seconds(), job) for job in self.chosen.itertuples()]

    def _arrival(self, after_s: float, job: object) -> Arrival:
        return Arrival(
            after_s=after_s / FASTER,
            user=self.names[job.user],  # type: ignore[attr-defined]  # because rows of a frame have no type
            gpus=_scaled(job.cpus),  # type: ignore[attr-defined]  # as above
            run_time_s=_run_time_s(job.run_time_s),  # type: ignore[attr-defined]  # as above
            limit_min=_limit_min(job.time_limit_s),  # type: ignore[attr-defined]  # as above
        )

    def history(self, now: datetime) -> pd.DataFrame:
        """Return what came before, compressed, as if it had just ended."""
        past = self.earlier
        ago = (self.chosen["submitted_at"].iloc[0] - past["submitted_at"]) / FASTER
        submitted_at = (pd.Timestamp(now) - timedelta(minutes=2) - ago).dt.floor("us")
        run_time_s = past["run_time_s"].map(_run_time_s).astype("float64")
        return in_submission_order(
            JOBS.conform(
                past.assign(
                    job_id="past" + past["job_id"],
                    user=past["user"].astype("str").map(lambda user: self.names.get(user, f"other {user}")),
                    partition="gpu",
                    submitted_at=submitted_at,
                    eligible_at=submitted_at,
                    started_at=submitted_at,
                    ended_at=submitted_at + pd.to_timedelta(run_time_s, unit="s"),
                    run_time_s=run_time_s,
                    time_limit_s=past["time_limit_s"].map(_limit_min) * 60.0,
                    gpus=past["cpus"].map(_scaled).astype("float64"),
                )
            )
        )


def replay(stretch: Arriving, rigs: Sequence[Rig]) -> None:
    """Submit every arrival to all clusters at its time, and wait until every job is over."""
    began = time.monotonic()
    for arrival in stretch.arrivals():
        pause_s = began + arrival.after_s - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)  # the arrivals of a trace come at their time: that is the replay
        for rig in rigs:
            arrival.submit(rig)
    for rig in rigs:
        rig.until(lambda rig=rig: not rig.lines("squeue", "-h", "-o", "%i"))


def waits(rig: Rig, name: str, *, jobs: int = JOBS_REPLAYED) -> Waits:
    """Return how long the replayed jobs waited, from the accounting, in the order of their ids."""
    fields = "JobIDRaw,State,Submit,Start"
    asked = ("sacct", "--allusers", "-X", "-n", "-P", "--name=replayed", "-S", "now-1hour", f"--format={fields}")
    rig.until(lambda: len([row for row in rig.lines(*asked) if "|COMPLETED|" in row]) >= jobs)
    rows = sorted((row.split("|") for row in rig.lines(*asked)), key=lambda row: int(row[0]))
    return Waits(name=name, waits_s=tuple((_moment(row[3]) - _moment(row[2])).total_seconds() for row in rows))


@contextmanager
def helped(rig: Rig, stretch: Arriving, folder: Path, *, configuration: str = CONFIGURATION) -> Iterator[None]:
    """Run ``helios daemon`` on a cluster, qssf active, with a history; at the end stop it and see that it ends well."""
    environment = rig.environment | {
        "HELIOS_DATABASE_URL": f"sqlite:///{folder / 'helios.db'}",
        "HELIOS_CONTROL_STATE_FOLDER": str(folder / "state"),
        "HELIOS_REPORT_FOLDER": str(folder / "reports"),
        "HELIOS_CONFIG": str(folder / "helios.toml"),
    }
    (folder / "helios.toml").write_text(configuration)
    _remember(folder, stretch, rig.name)
    for words in (["model", "train"], ["trace", "sync"], ["mode", "qssf", "active", "--reason", "a replay"]):
        done = run_command(words, folder=folder, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    log = (folder / "daemon.log").open("w")
    daemon = subprocess.Popen(
        [sys.executable, "-m", "helios", "daemon", "--no-nightly"], env=environment, stderr=log, stdout=log, cwd=folder
    )
    try:
        rig.until(lambda: "ingest:" in (folder / "daemon.log").read_text() or daemon.poll() is not None)
        assert daemon.poll() is None, (folder / "daemon.log").read_text()
        yield
        assert daemon.poll() is None, (folder / "daemon.log").read_text()
    finally:
        daemon.terminate()
        code = daemon.wait(timeout=TEST_TIMEOUT_S)
        log.close()
    assert code == 0, (folder / "daemon.log").read_text()


def _remember(folder: Path, stretch: Arriving, cluster: str) -> None:
    jobs = stretch.history(datetime.now(UTC))
    batch = Batch(jobs=jobs, rejects=REJECTS.empty(), bytes_read=0)
    with Warehouse.open(f"sqlite:///{folder / 'helios.db'}") as warehouse:
        warehouse.load([batch], cluster=cluster, path="kth", sha256="kth", format="swf", timezone="UTC")


def _scaled(cpus: float) -> int:
    return max(1, min(GPUS_PER_NODE, math.ceil(cpus * GPUS_PER_NODE / PROCESSORS_PER_NODE)))


def _run_time_s(run_time_s: float) -> int:
    return max(1, round(run_time_s / FASTER))


def _limit_min(limit_s: float) -> int:
    # Slurm counts limits in minutes; a job must not be killed for the compression's sake.
    return max(1, math.ceil(limit_s / FASTER / 60)) + 1


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
