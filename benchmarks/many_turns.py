"""Cycles without end on a cluster in memory: what grows, and what does not.

Takes ``--cycles N`` cycles (default 1,000) of ``--step`` seconds on the fake cluster of :mod:`helios.testing`, with 30
jobs pending at any moment, and keeps what the night keeps. Prints resident memory, open files, files of the state
folder and bytes of the database as it goes, and what the audit holds. ``--mode shadow`` changes nothing on the cluster.
"""

from __future__ import annotations

import argparse
import gc
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.nightly import delete_old_rows
from helios.control import ServiceMode
from helios.model import Mode
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite

PENDING = 30
GPUS = 8
MEDIAN_RUN_S = {"ann": 300.0, "bea": 1_800.0, "cem": 7_200.0, "dan": 20_000.0, "eve": 600.0, "fay": 40_000.0}
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was measured after so many cycles; sizes in bytes."""

    cycles: int
    resident: int
    open_files: int
    state_files: int
    database: int
    decisions: int
    cpu_s: float

    def line(self) -> str:
        """Return it in one line."""
        sizes = f"RSS {self.resident / 2**20:,.0f} MiB, database {self.database / 2**20:,.1f} MiB"
        files = f"{self.open_files} open files, {self.state_files} in the state folder"
        return f"{self.cycles:>7,} cycles: {sizes}, {files}, {self.decisions:,} audit rows, {self.cpu_s:,.0f} s CPU"


class Crowd:
    """People who keep the queue of a small cluster at ``PENDING`` jobs."""

    def __init__(self, fake_site: FakeSite, *, seed: int = 0) -> None:
        self._town, self._random = fake_site, np.random.default_rng(seed)
        self._ends: dict[str, tuple[float, str, float]] = {}
        self._runs: dict[str, tuple[str, float]] = {}
        self._loaded = 0

    def step(self, passes: timedelta) -> None:
        """Let time pass: jobs end and are known to the accounting, others start, new ones come."""
        cluster = self._town.cluster
        cluster.tick(passes)
        now_s = cluster.now.timestamp()
        ended = [job for job, (end_s, _, _) in self._ends.items() if end_s <= now_s]
        rows = []
        for job in ended:
            end_s, user, run_s = self._ends.pop(job)
            cluster.end(job)
            end = cluster.now - timedelta(seconds=now_s - end_s)
            start = end - timedelta(seconds=run_s)
            times = {"submitted_at": start, "eligible_at": start, "started_at": start, "ended_at": end}
            rows.append(a_job(job_id=job, user=user, run_time_s=run_s, **times))
        for job in cluster.queue[: GPUS - len(self._ends)]:
            user, run_s = self._runs.pop(job)
            cluster.start(job)
            self._ends[job] = (now_s + run_s, user, run_s)
        while len(self._runs) < PENDING:
            user = str(self._random.choice(list(MEDIAN_RUN_S)))
            job = cluster.submit(user=user)
            self._runs[job] = (user, float(MEDIAN_RUN_S[user] * self._random.lognormal(0, 0.7)))
        self._account(rows)

    def _account(self, rows: list[dict[str, object]]) -> None:
        if not rows:
            return
        self._loaded += 1
        name = f"sacct {self._loaded}"
        with self._town.warehouse() as warehouse:
            warehouse.load([a_batch(*rows)], cluster="dev", path=name, sha256=name, format="sacct", timezone="UTC")


def take_cycles(
    folder: Path, *, cycles: int, step: timedelta, mode: Mode, every: int, tell: Callable[[Reading], None]
) -> list[Reading]:
    """Take cycles in ``folder`` and return what was measured after each ``every`` of them."""
    fake_site = FakeSite(folder, history={"jobs_for_predictions": 1_000})
    modes, crowd, read = {"qssf": ServiceMode(mode=mode)}, Crowd(fake_site), []
    night = fake_site.cluster.now + DAY
    for cycle in range(1, cycles + 1):
        crowd.step(step)
        if cycle % 10 == 1 or step >= timedelta(minutes=5):
            fake_site.read()
        fake_site.cycles.cycle(modes=modes)
        fake_site.cluster.applied.clear()  # the fake remembers all that it was ever asked
        if fake_site.cluster.now >= night:
            delete_old_rows(fake_site.url, "dev", fake_site.settings.retention, now=fake_site.cluster.now)
            night += DAY
        if cycle % every == 0:
            read.append(measured(fake_site, cycle))
            tell(read[-1])
    return read


def measured(fake_site: FakeSite, cycles: int) -> Reading:
    """Measure now."""
    gc.collect()
    with closing(sqlite3.connect(fake_site.folder / "helios.db")) as raw:
        decisions = raw.execute("SELECT count(*) FROM decisions").fetchone()[0]
    return Reading(
        cycles=cycles,
        resident=int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        open_files=len(list(Path("/proc/self/fd").iterdir())),
        state_files=sum(len(files) for _, _, files in os.walk(fake_site.settings.control.state_folder)),
        database=sum(file.stat().st_size for file in fake_site.folder.glob("helios.db*")),
        decisions=decisions,
        cpu_s=time.process_time(),
    )


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cycles", type=int, default=1_000)
    arguments.add_argument("--step", type=int, default=60, help="seconds between cycles")
    arguments.add_argument("--mode", choices=[Mode.SHADOW.value, Mode.ACTIVE.value], default=Mode.ACTIVE.value)
    given = arguments.parse_args()
    every = max(given.cycles // 20, 1)
    with tempfile.TemporaryDirectory() as folder:
        take_cycles(
            Path(folder),
            cycles=given.cycles,
            step=timedelta(seconds=given.step),
            mode=Mode(given.mode),
            every=every,
            tell=lambda reading: print(reading.line(), flush=True),
        )
        what_the_audit_holds(Path(folder))


def what_the_audit_holds(folder: Path) -> None:
    """Print the kinds of rows of the audit, the commonest first."""
    with FakeSite(folder).warehouse() as warehouse:
        rows = warehouse.decisions("dev")
    outcome = rows["outcome"].astype("str").str.split(":").str[0]
    kinds = rows["action"].astype("str") + " " + rows["mode"].astype("str") + " " + outcome
    for kind, number in kinds.value_counts().head(8).items():
        print(f"{number:>9,} {kind}")


if __name__ == "__main__":
    main()
