"""Estimates of starts, in the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pandas as pd
import pytest

from helios.model import START_ESTIMATES
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def keep(warehouse: Warehouse, *minutes: int, job_id: str = "1") -> list[int]:
    """Keep an estimate at each of these minutes, one after the other, and return how many each call stored."""
    stored = []
    for minute in minutes:
        at = NOON + minute * MINUTE
        row = {"submitted_at": NOON, "job_id": job_id, "restart": 0, "made_at": at}
        row |= {"p10_at": at, "p50_at": at + 60 * MINUTE, "p90_at": None, "horizon_at": at + timedelta(days=7)}
        stored.append(warehouse.add_start_estimates("venus", START_ESTIMATES.conform(pd.DataFrame([row]))))
    return stored


def test_one_estimate_an_hour_of_a_job_is_kept(warehouse: Warehouse) -> None:
    assert keep(warehouse, 0, 1, 59, 60, 61, 120) == [1, 0, 0, 1, 0, 1]
    assert keep(warehouse, 5, job_id="2") == [1]
    made = warehouse.start_estimates("venus", job_id="1")
    assert [at - NOON for at in made["made_at"]] == [0 * MINUTE, 60 * MINUTE, 120 * MINUTE]
    assert made["p90_at"].isna().all()


def test_an_estimate_comes_with_the_start_of_its_run(warehouse: Warehouse) -> None:
    for job_id in ("1", "2", "3"):
        keep(warehouse, 0, job_id=job_id)
    started_at = NOON + 30 * MINUTE
    jobs = [
        a_job(job_id="1", user="alice", submitted_at=NOON, started_at=started_at),
        a_job(job_id="2", user="bob", submitted_at=NOON + MINUTE),  # the id was used again
    ]
    warehouse.load([a_batch(*jobs)], cluster="venus", path="p", sha256="1", format="sacct", timezone="UTC")
    came = warehouse.start_estimates("venus").set_index("job_id")["started_at"]
    assert came["1"] == started_at
    assert came[["2", "3"]].isna().all()
    assert warehouse.start_estimates("venus", user="alice")["job_id"].tolist() == ["1"]
    assert warehouse.start_estimates("venus", user="bob").empty
    assert warehouse.start_estimates("venus", since=NOON + MINUTE).empty
