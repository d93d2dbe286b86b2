"""Runs that records of what jobs used are of."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from helios.job_use.matching import match_runs

TIME = "datetime64[us, UTC]"


def frame(*rows: tuple[Any, ...], columns: tuple[str, ...]) -> pd.DataFrame:
    found = pd.DataFrame([*rows], columns=[*columns])
    return found.assign(**{name: found[name].astype(TIME) for name in columns if name.endswith("_at")})


RUNS = frame(
    ("7", "2026-03-01", 0, "2026-03-02"),
    ("7", "2026-03-01", 1, "2026-03-03"),
    ("8", "2026-03-01", 0, "2026-03-01"),
    ("8", "2026-04-01", 0, "2026-04-01"),
    ("9_1", "2026-03-01", 0, "2026-03-05"),
    ("5", "2026-03-01", 0, None),
    columns=("job_id", "submitted_at", "restart", "started_at"),
)


@pytest.mark.parametrize(
    ("job_id", "submitted_at", "started_at", "row"),
    [
        ("7", None, "2026-03-02", 0),
        ("7", "2026-03-01", "2026-03-03", 1),
        ("7", "2026-03-01", None, 1),
        ("7", None, None, 1),
        ("7", "2026-03-01", "2026-03-04", -1),
        ("8", "2026-04-01", None, 3),
        ("8", None, "2026-03-01", 2),
        ("8", None, None, -1),
        ("9_1", None, None, 4),
        ("9", None, None, -1),
    ],
)
def test_a_record_is_of_one_run_or_of_none(
    job_id: str, submitted_at: str | None, started_at: str | None, row: int
) -> None:
    record = frame((job_id, submitted_at, started_at), columns=("job_id", "submitted_at", "started_at"))
    found = match_runs(record, RUNS)
    assert found.rows.tolist() == [row]
    assert found.is_used_again.tolist() == [(job_id, submitted_at, started_at) == ("8", None, None)]
