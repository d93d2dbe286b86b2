"""What grows with the number of cycles, and what does not; benchmarks/many_turns.py takes many more."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from benchmarks.many_turns import PENDING, take_cycles
from helios.model import Mode

BYTES_A_ROW = 1_000
"""More than any row of the audit takes with its part of the indexes and of the cycle's other rows."""
EMPTY = 1 << 20
"""A database in which next to nothing is written yet."""


def test_after_many_cycles_files_handles_and_bytes_stay_bounded(tmp_path: Path) -> None:
    read = take_cycles(
        tmp_path, cycles=15, step=timedelta(hours=3), mode=Mode.ACTIVE, every=5, tell=lambda reading: None
    )
    first, *_, last = read
    assert (first.open_files, first.state_files) == (last.open_files, last.state_files)
    assert last.decisions <= 2 * PENDING * last.cycles
    assert last.database <= EMPTY + BYTES_A_ROW * (last.decisions + last.cycles)


def test_the_audit_stops_growing_once_its_oldest_rows_are_deleted(tmp_path: Path) -> None:
    read = take_cycles(
        tmp_path, cycles=15, step=timedelta(days=15), mode=Mode.SHADOW, every=3, tell=lambda reading: None
    )
    kept = [reading.decisions for reading in read]
    assert kept[-1] <= 1.5 * kept[1]  # 60 days of a shadow are four cycles; fifteen were taken
    assert read[-1].database <= 1.3 * read[1].database + EMPTY
