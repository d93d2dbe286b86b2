"""A year of audit: its size, and the CPU seconds of ``helios why``, beside reading 60 days of it as it once did.

Builds the audit of a year in a temporary folder: a cycle a minute, ``--rows`` rows a cycle (default 10; 30 is a row for
every job of a queue of 30 in every cycle, the most there can be), each job in twelve of them. Prints bytes a row, what
deleting a day costs, and the times of ``why`` for a pending job, with the cluster in memory.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.app.explain import explain
from helios.app.explain_past import LOOK_BACK
from helios.app.nightly import delete_old_rows
from tests.unit.app.sites import FakeSite

CYCLES_A_DAY = 1_440
ROWS_A_JOB = 12
REASON = "predicted 10.0 h (7.4 h to 13 h) on 4 GPUs: 40 GPU-hours; waited 76 min, goes first after 20 h"
INSERT = (
    "INSERT INTO decisions (cluster_id, decided_at, service, mode, action, target, reason, before, after, model_id, "
    "outcome) VALUES (1, ?, 'qssf', 'active', 'Reorder', ?, ?, 'SiteFactor -2037', 'SiteFactor -1037', 'm2026', 'done')"
)


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10, help="rows of the audit a cycle")
    arguments.add_argument("--days", type=int, default=365)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        fake_site = FakeSite(Path(name))
        fake_site.learn()
        file = fake_site.folder / "helios.db"
        empty = file.stat().st_size
        number = fill(file, days=given.days, rows=given.rows, until=fake_site.cluster.now)
        job = fake_site.cluster.submit(user="alice", job_id=str(number // ROWS_A_JOB))
        grown = sum(part.stat().st_size for part in fake_site.folder.glob("helios.db*")) - empty
        print(f"{number:,} rows, {grown / 2**30:.2f} GiB, {grown / number:.0f} bytes a row with their indexes")
        told("helios why of a pending job, whole", lambda: explain(fake_site.cycles, job))
        told("  of that the audit, by the job", lambda: by_target(fake_site, job))
        told("  before: 60 days of the audit read", lambda: as_once(fake_site, job))
        later = fake_site.cluster.now + timedelta(days=36)
        told(
            "a night that deletes one day",
            lambda: delete_old_rows(fake_site.url, "dev", fake_site.settings.retention, now=later),
        )
        print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


def fill(file: Path, *, days: int, rows: int, until: datetime) -> int:
    """Write the audit of so many days before a moment; return how many rows that is."""
    last_us, cycles = int(until.timestamp()) * 10**6, days * CYCLES_A_DAY

    def lines() -> Iterator[tuple[int, str, str]]:
        for cycle in range(cycles):
            at_us = last_us - (cycles - cycle) * 60 * 10**6
            for place in range(rows):
                yield at_us, str(1 + place + rows * (cycle // ROWS_A_JOB)), REASON

    with closing(sqlite3.connect(file)) as raw:
        raw.executemany(INSERT, lines())
        raw.commit()
    return cycles * rows


def by_target(fake_site: FakeSite, job: str) -> int:
    """Return how many decisions are about a job, as ``why`` finds them."""
    with fake_site.warehouse() as warehouse:
        return len(warehouse.decisions_about("dev", job, since=fake_site.cluster.now - LOOK_BACK))


def as_once(fake_site: FakeSite, job: str) -> int:
    """Return the same as ``why`` found them before: all of 60 days read, then the job's taken out."""
    with fake_site.warehouse() as warehouse:
        decisions = warehouse.decisions("dev", since=fake_site.cluster.now - LOOK_BACK)
    return int((decisions["target"] == job).sum())


def told(what: str, act: Callable[[], object]) -> None:
    """Print the CPU time of an act."""
    began = time.process_time()
    act()
    print(f"{what}: {time.process_time() - began:.3f} s CPU", flush=True)


if __name__ == "__main__":
    main()
