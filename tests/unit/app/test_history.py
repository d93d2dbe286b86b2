from __future__ import annotations

from pathlib import Path

import pytest

from helios.app.history import ingest
from helios.ingest.reader import TraceFile
from tests.unit.app.sites import put_empty_database
from tests.unit.ingest.builders import a_sacct_file, a_sacct_row


def test_a_load_translates_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    original = TraceFile._read_again

    def counted(trace: TraceFile, rows_per_batch: int) -> object:
        passes.append(rows_per_batch)
        return original(trace, rows_per_batch)

    monkeypatch.setattr(TraceFile, "_read_again", counted)
    report = ingest(a_sacct_file(tmp_path, a_sacct_row()), url=put_empty_database(tmp_path / "helios.db"))
    assert (report.rows_read, len(passes)) == (1, 1)
