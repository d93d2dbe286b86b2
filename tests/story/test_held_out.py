"""What the benchmark of kept-back traces does with a history that has gaps; benchmarks/held_out.py reads real ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.held_out import main

HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
FIRST = datetime(2020, 1, 1, tzinfo=UTC)


def test_months_without_jobs_are_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = [*range(60), *range(160, 200)]
    rows = [f"{day},1,,1,1,1,COMPLETED,{FIRST + timedelta(days=day):%Y-%m-%d %H:%M:%S},,,600," for day in days]
    (tmp_path / "gap.csv").write_text("\n".join([HEADER, *rows]) + "\n", encoding="utf-8")
    main([str(tmp_path), "--only", "predictions", "orders", "--draws", "2", "--json"])
    said = capsys.readouterr().err
    assert "gap.csv, 2020-03-25 to 2020-04-22: left out, no job was submitted" in said
