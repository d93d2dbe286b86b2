"""Seconds to read a million jobs out of a PostgreSQL warehouse for training, and the memory that takes.

    python benchmarks/warehouse_read.py [JOBS]

Prints, in one run: reading the columns that training needs, reading every column, and the naive control, the same
columns by ``pandas.read_sql`` from the same table. Every reading is made by a process of its own, so that its peak
memory is its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.warehouse_load import BATCH_ROWS, synthetic_jobs
from helios.app.model_registry import training_history
from helios.model import REJECTS, Batch
from helios.warehouse import Warehouse
from helios.warehouse.engine import engine_for
from tests.postgres import fresh_database, postgres_server

GOAL_S = 10.0
COLUMNS_IN_SQL = (
    "job_id, restart, submitted_at, started_at, ended_at, run_time_s, time_limit_s, state, "
    '"user", account, partition, qos, name, gpus, cpus, nodes, memory_mib'
)


def main() -> None:
    """Load the jobs, then print a line for each way to read them."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with postgres_server() as server, fresh_database(server) as url:
        _apart(_load, url, rows)
        print(f"PostgreSQL, {rows:,} jobs, goal for training {GOAL_S:g} s")
        for _ in range(2):  # the first reading also fills the server's memory
            _apart(_read, url, "columns for training", _for_training)
        _apart(_read, url, "every column", _every_column)
        _apart(_read, url, "control: pandas.read_sql, same columns, no names", _by_pandas)


def _apart(work: Callable[..., None], *given: Any) -> None:
    child = multiprocessing.get_context("spawn").Process(target=work, args=given)
    child.start()
    child.join()
    if child.exitcode:
        sys.exit(f"{work.__name__} failed")


def _load(url: str, rows: int) -> None:
    jobs = synthetic_jobs(rows)
    batches = (
        Batch(jobs=jobs.iloc[at : at + BATCH_ROWS].reset_index(drop=True), rejects=REJECTS.empty(), bytes_read=0)
        for at in range(0, rows, BATCH_ROWS)
    )
    began = time.perf_counter()
    with Warehouse.open(url) as warehouse:
        warehouse.load(batches, cluster="big", path="synthetic", sha256="1", format="sacct", timezone="UTC")
    print(f"(loaded in {time.perf_counter() - began:.1f} s)", flush=True)


def _read(url: str, label: str, read: Callable[[str], int]) -> None:
    import_module("helios.predict.model_record")  # what is imported is not what is measured
    before_mib, began, used_s = _peak_mib(), time.perf_counter(), time.process_time()
    rows = read(url)
    seconds, used_s = time.perf_counter() - began, time.process_time() - used_s
    print(
        f"  {label:<50} {seconds:6.1f} s ({used_s:.1f} s of this process)  {rows / seconds:9,.0f} jobs/s   "
        f"peak {_peak_mib():6,.0f} MiB ({_peak_mib() - before_mib:,.0f} more than before)",
        flush=True,
    )


def _for_training(url: str) -> int:
    return len(training_history(url, "big").jobs)


def _every_column(url: str) -> int:
    with Warehouse.open(url) as warehouse:
        return len(warehouse.jobs("big"))


def _by_pandas(url: str) -> int:
    with engine_for(url).connect() as connection:
        query = f"SELECT {COLUMNS_IN_SQL} FROM jobs ORDER BY submitted_at"
        return len(pd.read_sql(query, connection))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
