"""Lists of jobs are what a search through all jobs finds, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

from helios.warehouse import JobFilter, Warehouse
from tests.builders import a_batch, a_job

BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 3, tzinfo=UTC)
COLUMNS = ("job_id", "user", "name", "state", "gpus", "submitted_at", "started_at", "restart")
JOBS = [
    a_job(
        job_id=str(number),
        user=("bob", "eve", "ann")[number % 3],
        name=("train", "Train_50%", "eval", None)[number % 4],
        state=("COMPLETED", "FAILED")[number % 2],
        gpus=(None, 1.0, 8.0, 0.5)[number % 4],
        started_at=None if number % 7 == 0 else pd.Timestamp(BEGIN) + pd.Timedelta(minutes=97 * number % 60),
        submitted_at=pd.Timestamp(BEGIN) + pd.Timedelta(hours=number // 2),
    )
    for number in range(100)
]


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        opened.load([a_batch(*JOBS)], cluster="venus", path="p", sha256="s", format="sacct", timezone="UTC")
        yield opened


def listed(
    warehouse: Warehouse, *, sort: str = "-submitted_at", first: int = 0, most: int = 1_000, **given: Any
) -> Any:
    wanted = JobFilter(**{"since": BEGIN, "until": END} | given)
    parts = warehouse.list_jobs("venus", wanted, columns=COLUMNS, sort=sort, first=first, most=most)
    found = [job for part in parts for job in part["job_id"]]
    assert warehouse.count_jobs("venus", wanted, most=1_000) == len(found) or most < 1_000 or first
    return found


def ids(**given: Any) -> list[str]:
    """Return the ids of the jobs of the window with these values, the newest first."""
    within = [job for job in JOBS if BEGIN <= job["submitted_at"] < END]
    kept = [job for job in within if all(job[name] == value for name, value in given.items())]
    return [job["job_id"] for job in sorted(kept, key=lambda job: (job["submitted_at"], job["job_id"]), reverse=True)]


def test_a_list_has_the_jobs_of_its_window_the_newest_first(warehouse: Warehouse) -> None:
    assert listed(warehouse) == ids()
    assert listed(warehouse, sort="submitted_at") == ids()[::-1]


def test_a_list_has_the_jobs_with_every_value_asked_for(warehouse: Warehouse) -> None:
    assert listed(warehouse, only={"user": ["bob"], "state": ["FAILED"]}) == ids(user="bob", state="FAILED")
    assert listed(warehouse, only={"user": ["bob", "nobody"], "account": []}) == ids(user="bob")
    assert listed(warehouse, only={"user": ["nobody"]}) == []


def test_a_part_of_a_name_is_found_in_any_case(warehouse: Warehouse) -> None:
    assert set(listed(warehouse, name_part="TRAIN")) == set(ids(name="train")) | set(ids(name="Train_50%"))
    assert listed(warehouse, name_part="_50%") == ids(name="Train_50%")
    assert listed(warehouse, name_part="n%l") == []


@pytest.mark.parametrize("sort", ["gpus", "-gpus", "started_at", "-started_at"])
def test_what_is_unknown_comes_last_in_either_order(warehouse: Warehouse, sort: str) -> None:
    column = sort.removeprefix("-")
    values = {job["job_id"]: job[column] for job in JOBS}
    found = [values[job_id] for job_id in listed(warehouse, sort=sort)]
    known = [value for value in found if value is not None]
    assert found == [*sorted(known, reverse=sort.startswith("-")), *[None] * (len(found) - len(known))]
    assert None in found


def test_pages_of_a_list_have_each_job_once(warehouse: Warehouse) -> None:
    pages = [listed(warehouse, sort="-gpus", first=first, most=7) for first in range(0, 105, 7)]
    assert [job for page in pages for job in page] == listed(warehouse, sort="-gpus")


def test_a_list_comes_in_parts_and_is_counted_up_to_a_bound(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helios.warehouse.job_store.ROWS_AT_ONCE", 10)
    wanted = JobFilter(since=BEGIN, until=END)
    parts = list(warehouse.list_jobs("venus", wanted, columns=COLUMNS, sort="-submitted_at", first=0, most=25))
    assert [len(part) for part in parts] == [10, 10, 5]
    assert warehouse.count_jobs("venus", wanted, most=20) == 20
