"""Rows a second that ingest reads, beside pandas reading the same file into columns and nothing else.

Usage: python benchmarks/ingest_rows.py [FILE ...]; without files, a synthetic Saturn month and, where the real
traces are (HELIOS_TRACES or ../shared/traces), one file of each format.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from helios.ingest import TraceFormat, open_trace, synthetic_trace, write_helios_csv

TRACES = Path(os.environ.get("HELIOS_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
REAL = (
    "helios_venus_mar-aug2020.csv.gz",
    "sacct_graham_may-jun2021.txt.gz",
    "sacct_raw_phillips_dec2016.txt.gz",
    "SDSC-BLUE-2000-4.2-cln.swf.gz",
)
REPEATS = 3


def rows_read(path: Path) -> int:
    """Read a trace as Helios does: survey for requeues, parse, check; return the rows."""
    return sum(len(batch.jobs) + len(batch.rejects) for batch in open_trace(path).read())


def rows_by_pandas(path: Path) -> int:
    """Read the same file with pandas' C parser, types guessed, nothing interpreted; return the rows."""
    options: dict[TraceFormat, dict[str, Any]] = {
        TraceFormat.HELIOS: {},
        TraceFormat.SACCT: {"sep": "|", "low_memory": False},
        TraceFormat.SWF: {"sep": r"\s+", "comment": ";", "header": None},
    }
    return len(pd.read_csv(path, **options[TraceFormat(open_trace(path).format)]))


def best_rate(read: Callable[[Path], int], path: Path) -> tuple[int, float]:
    """Return rows, and rows a second in the fastest of several runs."""
    fastest, rows = float("inf"), 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        rows = read(path)
        fastest = min(fastest, time.perf_counter() - began)
    return rows, rows / fastest


def main() -> None:
    """Print one line for each file."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "synthetic_saturn_30d.csv.gz"
        write_helios_csv(synthetic_trace(profile="saturn", start=datetime(2020, 9, 1, tzinfo=UTC)), made)
        files = [Path(name) for name in sys.argv[1:]] or [made, *(TRACES / name for name in REAL)]
        print(f"{'file':42} {'rows':>9} {'helios rows/s':>14} {'pandas rows/s':>14} {'ratio':>6}")
        for path in filter(Path.exists, files):
            rows, rate = best_rate(rows_read, path)
            _, control = best_rate(rows_by_pandas, path)
            print(f"{path.name:42} {rows:9,} {rate:14,.0f} {control:14,.0f} {rate / control:6.2f}")


if __name__ == "__main__":
    main()
