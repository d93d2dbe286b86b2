"""The last weeks of a history are looked for once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.app.clusters import last_weeks
from helios.app.history import ingest
from helios.app.reports import ReportQuery, usage_report
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.unit.app.sites import put_empty_database
from tests.unit.ingest.builders import a_sacct_file, a_sacct_row

AT = pd.Timestamp("2020-06-01", tz="UTC")


def load(warehouse: Warehouse, day: int) -> None:
    job = a_job(job_id=f"{day}", submitted_at=AT + timedelta(days=day))
    options = {"cluster": "dev", "path": "p", "sha256": f"{day}", "format": "sacct", "timezone": "UTC"}
    warehouse.load([a_batch(job)], **options)  # type: ignore[arg-type]  # all are texts


def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets a cluster's name whenever all its jobs are read."""
    read, times = list[str](), Warehouse.job_times

    def counted(warehouse: Warehouse, cluster: str) -> Any:
        read.append(cluster)
        return times(warehouse, cluster)

    monkeypatch.setattr(Warehouse, "job_times", counted)
    return read


def test_jobs_are_read_again_only_after_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = readings(monkeypatch)
    with Warehouse.open(put_empty_database(tmp_path / "helios.db")) as warehouse:
        load(warehouse, 1)
        first = [last_weeks(warehouse, "dev") for _ in range(3)]
        assert (len(set(first)), len(read)) == (1, 1)
        load(warehouse, 9)
        later = last_weeks(warehouse, "dev")
        assert later is not None and later[1] - AT >= timedelta(days=9)
        assert len(read) == 2


def test_a_loaded_file_leaves_its_last_weeks_until_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = put_empty_database(tmp_path / "helios.db")
    ingest(a_sacct_file(tmp_path, a_sacct_row()), url=url, cluster="dev")
    read = readings(monkeypatch)
    with Warehouse.open(url) as warehouse:
        monkeypatch.setattr("helios.app.clusters._complete", {})  # as in another process
        kept = last_weeks(warehouse, "dev")
        assert kept is not None and not read
        load(warehouse, 1)
        assert last_weeks(warehouse, "dev") != kept and read == ["dev"]


def test_two_histories_of_one_name_are_told_apart(tmp_path: Path) -> None:
    found = []
    for day in (1, 9):
        with Warehouse.open(put_empty_database(tmp_path / f"{day}.db")) as warehouse:
            load(warehouse, day)
            found.append(last_weeks(warehouse, "dev"))
    assert found[0] != found[1]


def test_a_tiny_record_lasts_until_the_last_thing_known(tmp_path: Path) -> None:
    with Warehouse.open(put_empty_database(tmp_path / "helios.db")) as warehouse:
        job = a_job(submitted_at=AT, started_at=AT + timedelta(hours=1), run_time_s=7_200.0)
        options = {"cluster": "dev", "path": "p", "sha256": "1", "format": "sacct", "timezone": "UTC"}
        warehouse.load([a_batch(job)], **options)  # type: ignore[arg-type]  # all are texts
        assert last_weeks(warehouse, "dev") == (AT, AT + timedelta(hours=3, seconds=1))
        table = usage_report(ReportQuery(url=warehouse.url, now=AT + timedelta(days=90)), group="user")
    assert (table.rows["gpu_hours"].tolist(), table.rows["waiting"].tolist()) == ([2.0], [0])
