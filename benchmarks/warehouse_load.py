"""CPU seconds to load a text file, and rows per second into and out of the warehouse, beside controls in the same run.

Where the folder of real traces is at hand, a real ``sacct`` trace repeated to 1.06 million rows is loaded with
``helios trace load``, with pandas and ``to_sql`` (times parsed and a key, or neither), and with ``.import`` of the
command ``sqlite3`` where it is installed. Each is a process of its own, whose user and system time is counted from its
start to its end. ``--file-only`` prints only these.

Then it prints, for SQLite and PostgreSQL and from typed frames in memory, ``Warehouse.load`` of 200,000 synthetic jobs
with 24 columns filled, which is more than any real trace fills, the forms of ``pandas.to_sql`` (which keep no keys, so
that they do less), and bulk reads; then the same on SQLite for the real trace. ``--rows N`` changes the number of rows;
``--sqlite-only`` leaves PostgreSQL out.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from sqlalchemy import create_engine

sys.path.insert(0, str(Path(__file__).parents[1]))

from helios.ingest import open_trace
from helios.model import JOBS, REJECTS, Batch
from helios.warehouse import Warehouse
from helios.warehouse.engine import engine_for
from helios.warehouse.job_sums import SumChanges
from tests.postgres import fresh_database, postgres_server
from tests.traces import TRACES

REAL_TRACE = TRACES / "sacct_graham_may-jun2021.txt.gz"
COPIES = 8
# Added to the job ids of each copy; those of the trace are smaller.
IDS_OF_A_COPY = 100_000_000
WITH_TIMES_AND_KEY = """
import sqlite3, sys
import pandas
jobs = pandas.read_csv(sys.argv[1], sep="|", low_memory=False, dtype={"JobIDRaw": str})
for name in ("Submit", "Eligible", "Start", "End"):
    jobs[name] = pandas.to_datetime(jobs[name], format="ISO8601", errors="coerce")
with sqlite3.connect(sys.argv[2]) as connection:
    columns = ", ".join(f"{name} {'TEXT' if name in ('JobIDRaw', 'Submit') else ''}" for name in jobs)
    connection.execute(f"CREATE TABLE jobs ({columns}, PRIMARY KEY (Submit, JobIDRaw)) WITHOUT ROWID")
    jobs.to_sql("jobs", connection, if_exists="append", index=False)
"""
RAW = """
import sqlite3, sys
import pandas
with sqlite3.connect(sys.argv[2]) as connection:
    pandas.read_csv(sys.argv[1], sep="|", low_memory=False).to_sql("jobs", connection, index=False)
"""
BATCH_ROWS = 50_000
SYNC_ROWS = 200
# method="multi" compiles one statement of all rows: so slow that a tenth of the rows shows its rate.
MULTI_SHARE = 10


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=200_000)
    arguments.add_argument("--sqlite-only", action="store_true")
    arguments.add_argument("--file-only", action="store_true")
    given = arguments.parse_args()
    if REAL_TRACE.is_file():
        of_a_file()
    if given.file_only:
        return
    jobs = synthetic_jobs(given.rows)
    on_sqlite("synthetic", jobs)
    if REAL_TRACE.is_file():
        on_sqlite(REAL_TRACE.name, jobs_of(REAL_TRACE))
    if not given.sqlite_only:
        with postgres_server() as server:
            on_postgres(jobs, server)
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


def of_a_file() -> None:
    """Print the CPU seconds of each way to load a text file into SQLite."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, rows = repeated_trace(folder)
        print(f"SQLite, a text file of {rows:,} rows, CPU seconds of the whole process")
        python, cli = sys.executable, shutil.which("sqlite3")
        database = {"HELIOS_DATABASE_URL": f"sqlite:///{folder / 'helios.db'}"}
        ours = cpu_s("helios trace load", [python, "-m", "helios", "trace", "load", str(file)], **database)
        parsed = [python, "-c", WITH_TIMES_AND_KEY, str(file), str(folder / "parsed.db")]
        control = cpu_s("pandas and to_sql, times parsed, a key", parsed)
        cpu_s("pandas and to_sql, as guessed, no key", [python, "-c", RAW, str(file), str(folder / "raw.db")])
        if cli:
            cpu_s("sqlite3 .import, all text, no key", [cli, folder / "cli.db", ".separator |", f".import {file} jobs"])
        print(f"  pandas with times and a key takes {control / ours:.1f} x the time of Helios")


def repeated_trace(folder: Path) -> tuple[Path, int]:
    """Write ``COPIES`` of the real trace, with job ids of their own, and return the file and its rows."""
    header, *rows = gzip.decompress(REAL_TRACE.read_bytes()).splitlines(keepends=True)
    path = folder / "repeated.txt"
    with path.open("wb") as file:
        file.write(header)
        for copy in range(COPIES):
            for row in rows:
                job, bar, rest = row.partition(b"|")
                file.write(b"%d%b%b" % (int(job) + copy * IDS_OF_A_COPY, bar, rest))
    return path, COPIES * len(rows)


def cpu_s(label: str, command: Sequence[str | Path], **environment: str) -> float:
    """Run a command, print the CPU seconds of its process and return them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {label:<40} {spent:>12.1f} s", flush=True)
    return spent


def synthetic_jobs(rows: int) -> pd.DataFrame:
    """Make jobs of half a year, in submission order, of one seed."""
    random = np.random.default_rng(0)
    submitted_s = np.sort(random.integers(0, 180 * 86_400, rows))
    wait_s, run_s = np.round(random.exponential(300, rows)), np.round(random.lognormal(5, 2, rows))
    gpus = random.choice([0, 1, 2, 4, 8], rows).astype("int32")

    def moment(seconds: np.ndarray) -> pd.Series:
        return pd.Series(pd.to_datetime(1_585_699_200 + seconds, unit="s", utc=True))

    def few(prefix: str, kinds: int) -> pd.Categorical[str]:
        return pd.Categorical.from_codes(
            random.integers(0, kinds, rows), pd.Index([f"{prefix}{kind}" for kind in range(kinds)])
        )

    return JOBS.conform(
        pd.DataFrame(
            {
                "job_id": np.arange(1_000_000, 1_000_000 + rows).astype(str),
                "name": random.integers(0, 5_000, rows).astype(str),
                "user": few("user", 800),
                "group": few("group", 50),
                "account": few("account", 100),
                "qos": few("qos", 3),
                "partition": few("partition", 12),
                "state": pd.Categorical(random.choice(["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"], rows)),
                "exit_code": few("0:", 5),
                "submitted_at": moment(submitted_s),
                "eligible_at": moment(submitted_s),
                "started_at": moment(submitted_s + wait_s),
                "ended_at": moment(submitted_s + wait_s + run_s),
                "run_time_s": run_s,
                "time_limit_s": random.choice([3_600.0, 86_400.0, np.inf], rows),
                "nodes": 1.0,
                "cpus": gpus * 8.0 + 4,
                "gpus": gpus,
                "gpu_type": few("v", 2),
                "memory_mib": gpus * 32_768.0,
                "tres_requested": few("billing=40,cpu=8,mem=64G,node=1,gres/gpu=", 500),
                "tres_allocated": few("billing=40,cpu=8,mem=64G,node=1,gres/gpu=", 500),
                "node_list": few("gpu-node", 300),
            }
        )
    )


def jobs_of(path: Path) -> pd.DataFrame:
    """Read a trace file."""
    trace = open_trace(path, format=None, timezone="UTC")
    return JOBS.conform(pd.concat([batch.jobs for batch in trace.read()], ignore_index=True))


def on_sqlite(label: str, jobs: pd.DataFrame) -> None:
    """Print the figures of SQLite."""
    print(f"SQLite, {len(jobs):,} jobs, {label}")
    with tempfile.TemporaryDirectory() as folder:
        _on_sqlite(jobs, Path(folder))


def _on_sqlite(jobs: pd.DataFrame, folder: Path) -> None:
    ours = warehouse(jobs, f"sqlite:///{folder / 'helios.db'}")
    cost_of_sums(jobs, folder)
    peers = []
    with closing(sqlite3.connect(folder / "raw.db")) as raw:
        peers.append(to_sql("to_sql, sqlite3 connection", jobs, raw))
    engine = create_engine(f"sqlite:///{folder / 'engine.db'}")
    peers.append(to_sql("to_sql, SQLAlchemy", jobs, engine))
    some = jobs.head(len(jobs) // MULTI_SHARE)
    peers.append(to_sql("to_sql, SQLAlchemy, method='multi'", some, engine, method="multi", chunksize=1_000))
    peers += adbc(jobs, folder)
    print(f"  Warehouse.load is {ours / max(peers):.1f} x the fastest form of to_sql here")


def on_postgres(jobs: pd.DataFrame, server: str) -> None:
    """Print the figures of PostgreSQL."""
    print(f"PostgreSQL, {len(jobs):,} jobs")
    with fresh_database(server) as url:
        ours = warehouse(jobs, url)
        engine = engine_for(url)
        peers = [to_sql("to_sql, SQLAlchemy", jobs, engine, name="peer")]
        some = jobs.head(len(jobs) // MULTI_SHARE)
        peers.append(
            to_sql("to_sql, SQLAlchemy, method='multi'", some, engine, method="multi", chunksize=1_000, name="peer")
        )
        engine.dispose()
    print(f"  Warehouse.load is {ours / max(peers):.1f} x the fastest form of to_sql here")


def warehouse(jobs: pd.DataFrame, url: str) -> float:
    """Print the rates of loading, loading again as other content, and reading; return that of loading."""

    def load(content: str) -> None:
        opened.load(batches(jobs), cluster="c", path="p", sha256=content, format="sacct", timezone="UTC")

    with Warehouse.open(url) as opened:
        rate = timed("Warehouse.load", len(jobs), lambda: load("first"))
        timed("Warehouse.load of known jobs", len(jobs), lambda: load("second"))
        timed("Warehouse.jobs, all columns", len(jobs), lambda: opened.jobs("c"))
        timed(
            "Warehouse.jobs, three columns", len(jobs), lambda: opened.jobs("c", columns=["user", "gpus", "run_time_s"])
        )
    return rate


def cost_of_sums(jobs: pd.DataFrame, folder: Path) -> None:
    """Print the CPU time of a load with the sums by day and without, and of a small load after it, like a sync."""

    def spent(label: str, *parts: pd.DataFrame) -> list[float]:
        with Warehouse.open(f"sqlite:///{folder / label}.db") as opened:
            found = []
            for number, part in enumerate(parts):
                began = time.process_time()
                opened.load(batches(part), cluster="c", path="p", sha256=str(number), format="sacct", timezone="UTC")
                found.append(time.process_time() - began)
        return found

    parts = (jobs, jobs.tail(SYNC_ROWS).assign(run_time_s=1.0))
    summed = spent("sums", *parts)
    with patch.object(SumChanges, "add"):
        plain = spent("plain", *parts)
    for label, with_sums, without in zip(("all", f"{SYNC_ROWS} known ones again"), summed, plain, strict=True):
        print(f"  CPU time of loading {label}: {with_sums:.2f} s, {with_sums / without:.2f} x that without sums by day")


def batches(jobs: pd.DataFrame) -> Iterator[Batch]:
    """Cut jobs into batches as a reader does."""
    for start in range(0, len(jobs), BATCH_ROWS):
        yield Batch(jobs=jobs.iloc[start : start + BATCH_ROWS], rejects=REJECTS.empty(), bytes_read=0)


def to_sql(label: str, jobs: pd.DataFrame, connection: Any, *, name: str = "jobs", **options: Any) -> float:
    """Print and return the rate of one form of pandas.to_sql."""
    return timed(label, len(jobs), lambda: jobs.to_sql(name, connection, if_exists="replace", index=False, **options))


def adbc(jobs: pd.DataFrame, folder: Path) -> list[float]:
    """Print and return the rate of to_sql over ADBC, where its SQLite driver is installed."""
    try:
        from adbc_driver_sqlite import dbapi  # noqa: PLC0415  # an optional peer, not a dependency
    except ImportError:
        print("  to_sql, ADBC: not measured, adbc_driver_sqlite is not installed")
        return []
    # The driver takes no dictionaries of text over pandas.
    plain = jobs.astype({column.name: "str" for column in JOBS.columns if column.dtype == "category"})
    with closing(dbapi.connect(str(folder / "adbc.db"))) as connection:
        return [to_sql("to_sql, ADBC", plain, connection)]


def timed(label: str, rows: int, work: Callable[[], object]) -> float:
    """Run ``work`` once, print its rate in rows/s and return it."""
    started = time.perf_counter()
    work()
    rate = rows / (time.perf_counter() - started)
    print(f"  {label:<40} {rate:>12,.0f} rows/s", flush=True)
    return rate


if __name__ == "__main__":
    main()
