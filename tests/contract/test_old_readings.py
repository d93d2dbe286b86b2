"""Rows that an older Helios read wrongly are counted by kind, until they are read anew."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import text

from helios.app.history import misread_rows
from helios.warehouse import Warehouse, migrate
from helios.warehouse.engine import engine_for
from tests.builders import a_batch, a_job
from tests.contract.test_migrations import move
from tests.contract.test_requeues import a_run, load
from tests.contract.test_warehouse_apart import nodes_frame

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
"""Later than the job 7 of all these tests."""
MIDNIGHT = NOON - timedelta(hours=12)
DAY = timedelta(days=1)
A_DAY_LATER = a_job(job_id="99", submitted_at=NOON + 900 * DAY)

MISREAD: dict[str, list[dict[str, Any]]] = {
    "has ended without an end": [a_job(job_id="7", state="REQUEUED", run_time_s=None, ended_at=None)],
    "has a start of 1970": [a_job(job_id="7", started_at="1970-01-01T00:00:00Z", ended_at=NOON)],
    "ran more than 1 h above its limit": [a_job(job_id="7", run_time_s=7201.0, time_limit_s=3600.0)],
    "ran on another cluster of the federation (REVOKED)": [a_job(job_id="7", state="REVOKED")],
    "holds more GPUs than": [a_job(job_id="7", gpus=64, nodes=4.0)],
    "shares of GPUs that are not counted": [a_job(job_id="7", gpus=0, tres_allocated="cpu=4,gres/shard=2,node=1")],
    "MPS shares of GPUs": [a_job(job_id="7", gpus=0, tres_allocated="cpu=4,gres/mps=50,node=1")],
    "MIG slices that are counted as whole GPUs": [
        a_job(job_id="7", gpus=2, tres_allocated="cpu=4,gres/gpu:1g.5gb=2,gres/gpu=2,node=1")
    ],
}
RIGHT = [
    a_job(job_id="1", run_time_s=3700.0, time_limit_s=3600.0),
    a_job(job_id="2", state="RUNNING", run_time_s=None, ended_at=None),
    a_job(job_id="3", state="REVOKED", started_at=None, ended_at=None, run_time_s=None),
    a_job(job_id="4", gpus=16, nodes=4.0),
    a_job(job_id="9", gpus=2, tres_allocated="gres/gpu:a100-80gb=2,gres/gpu=2"),
    a_job(job_id="10", gpus=1, tres_allocated="gres/gpu:1g.5gb=7,gres/gpu=7"),
    a_job(job_id="11", gpus=None, tres_allocated="cpu=4,gres/shard=2,node=1"),
    a_job(job_id="5", gpus=0, tres_allocated="cpu=4,node=1"),
    a_job(job_id="6", state="CANCELLED", started_at=None, ended_at=NOON, run_time_s=None),
    a_job(job_id="8", run_time_s=7200.0, ended_at="2020-01-01T12:08:05Z", time_limit_s=3600.0),
]


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def upgraded(warehouse: Warehouse, database: str, *jobs: dict[str, Any]) -> None:
    """Store jobs as an older Helios would have, and upgrade."""
    load(warehouse, *jobs, A_DAY_LATER, content="old")
    warehouse.add_nodes("venus", nodes_frame({"gpus": 4}))
    move(database, "down", "0012")
    warehouse.upgrade()


def kinds(warehouse: Warehouse) -> list[str]:
    return misread_rows(warehouse, "venus")[0]


@pytest.mark.parametrize("kind", MISREAD)
def test_a_misread_row_is_counted_with_an_example(warehouse: Warehouse, database: str, kind: str) -> None:
    upgraded(warehouse, database, *MISREAD[kind])
    (told,) = kinds(warehouse)
    assert told.startswith("1 job") and kind in told and told.endswith("such as 7")


def test_rows_that_are_right_are_not_counted(warehouse: Warehouse, database: str) -> None:
    upgraded(warehouse, database, *RIGHT)
    assert kinds(warehouse) == []


def test_later_runs_with_the_number_0_are_counted(warehouse: Warehouse, database: str) -> None:
    load(warehouse, *(a_run(number) for number in range(3)), A_DAY_LATER, content="old")
    with engine_for(database).begin() as connection:
        connection.execute(text("UPDATE jobs SET restart = 0"))
    move(database, "down", "0012")
    warehouse.upgrade()
    (told,) = kinds(warehouse)
    assert told.startswith("2 jobs have the number 0") and told.endswith("such as 7")


def test_what_is_stored_by_the_present_rules_is_not_counted(warehouse: Warehouse) -> None:
    load(warehouse, *MISREAD["ran more than 1 h above its limit"], content="new")
    assert kinds(warehouse) == []


def test_a_file_is_the_way_to_mend_what_came_from_one(warehouse: Warehouse, database: str) -> None:
    upgraded(warehouse, database, *MISREAD["has a start of 1970"])
    assert misread_rows(warehouse, "venus")[1] == "Load the files again: helios trace load p --cluster venus"


def test_the_accounting_is_the_way_to_mend_a_live_cluster(warehouse: Warehouse, database: str) -> None:
    upgraded(warehouse, database, *MISREAD["has a start of 1970"])
    warehouse.add_coverage("venus", source="jobs", started_at=NOON, ended_at=NOON + DAY, read_at=NOON + DAY)
    assert misread_rows(warehouse, "venus")[1] == "Read them anew: helios trace sync --again 2020-01-01"


def test_what_was_read_anew_is_not_counted_any_more(warehouse: Warehouse, database: str) -> None:
    upgraded(warehouse, database, *MISREAD["has a start of 1970"])
    warehouse.note_read_again("venus", NOON)
    assert len(kinds(warehouse)) == 1
    warehouse.note_read_again("venus", MIDNIGHT)
    warehouse.note_read_again("venus", NOON)
    assert kinds(warehouse) == []


REVOKED = {"started_at": None, "ended_at": None, "run_time_s": None}


@pytest.mark.parametrize("kind", MISREAD)
def test_the_same_file_loaded_again_mends_its_rows(warehouse: Warehouse, database: str, kind: str) -> None:
    upgraded(warehouse, database, *MISREAD[kind])
    right = a_job(job_id="7", state=MISREAD[kind][0]["state"], run_time_s=1800.0, gpus=2)
    if "1970" in kind:
        right |= {"started_at": None, "run_time_s": None}
    if "REVOKED" in kind:
        right |= REVOKED
    report = load_again(warehouse, right)
    assert (report.already_loaded, report.jobs_updated) == (False, 1)
    assert kinds(warehouse) == [] and report.changes
    found = warehouse.jobs("venus").set_index("job_id").loc["7"]
    assert found["gpus"] == 2
    assert pd.isna(found["started_at"]) if right["started_at"] is None else found["started_at"] == right["started_at"]


def load_again(warehouse: Warehouse, *jobs: dict[str, Any]) -> Any:
    record = {"cluster": "venus", "path": "p", "sha256": "old", "format": "sacct", "timezone": None}
    return warehouse.load([a_batch(*jobs, A_DAY_LATER)], **record)  # type: ignore[arg-type]  # because mypy does not tell the keys


def test_a_file_that_was_loaded_again_is_loaded_once_only(warehouse: Warehouse, database: str) -> None:
    upgraded(warehouse, database, *MISREAD["has a start of 1970"])
    assert not load_again(warehouse, a_job(job_id="7")).already_loaded
    assert load_again(warehouse, a_job(job_id="7")).already_loaded


def test_an_empty_warehouse_is_upgraded_without_a_note(database: str) -> None:
    move(database, "up", "0012")
    with Warehouse.open(database, create=False) as older:
        assert older.upgrade()[-1] == migrate.HEAD
        assert older.clusters().empty
