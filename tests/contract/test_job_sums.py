"""Sums over jobs are those of the stored jobs, in whatever order these were loaded, changed and read again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.warehouse import Warehouse, schema
from helios.warehouse.clusters import find_cluster_id
from helios.warehouse.engine import reading, writing
from helios.warehouse.job_sums import LEVELS, rebuild
from tests.builders import a_batch, a_job
from tests.contract.test_migrations import move, revisions_after
from tests.examples import examples

ZONE = "Europe/Berlin"
FIRST = datetime(2025, 10, 20, tzinfo=UTC)
"""The clock of ``ZONE`` goes back on the 26th."""
UNKNOWN = float("nan")

moments = st.integers(0, 14 * 86_400).map(lambda seconds: FIRST + timedelta(seconds=seconds))
waits = st.integers(-2 * 86_400, 3 * 86_400) | st.integers(0, 60)
runs_s = st.sampled_from([0.0, 1.0, 3_600.0, 86_400.0, 12 * 86_400.0, 101 * 86_400.0]) | st.integers(0, 200_000).map(
    float
)
FATES = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED", "RUNNING", "PENDING", "REQUEUED", None)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Return a job that ended, runs, waits, or lacks times."""
    submitted, wait, run_s, fate = draw(moments), draw(waits), draw(runs_s), draw(st.sampled_from(FATES))
    started = submitted + timedelta(seconds=wait)
    job: dict[str, Any] = {
        "job_id": str(draw(st.integers(1, 6))),
        "user": draw(st.sampled_from(["alice", "bob", None])),
        "account": draw(st.sampled_from(["lab", None])),
        "partition": draw(st.sampled_from(["gpu", "cpu"])),
        "state": fate,
        "submitted_at": submitted,
        "eligible_at": draw(st.sampled_from([None, submitted, submitted + timedelta(hours=1)])),
        "started_at": started,
        "ended_at": started + timedelta(seconds=run_s + draw(st.sampled_from([0, 0, 5_000]))),
        "run_time_s": run_s,
        "time_limit_s": draw(st.sampled_from([3_600.0, float("inf"), UNKNOWN])),
        "gpus": draw(st.sampled_from([0.0, 0.25, 1.0, 8.0, UNKNOWN])),
        "nodes": draw(st.sampled_from([1.0, UNKNOWN])),
    }
    if fate in {"RUNNING", "PENDING", "REQUEUED"} or draw(st.integers(0, 5)) == 0:
        job |= {"ended_at": None}
        job |= {"run_time_s": UNKNOWN} if draw(st.booleans()) else {}
    if fate == "PENDING" or draw(st.integers(0, 5)) == 0:
        job |= {"started_at": None}
    return job


def stored_sums(warehouse: Warehouse, cluster: str) -> list[tuple[Any, ...]]:
    with reading(warehouse._engine) as connection:
        table = schema.job_sums
        query = table.select().where(table.c.cluster_id == find_cluster_id(connection, cluster))
        return sorted(tuple(row)[1:] for row in connection.execute(query))


def fresh_sums(warehouse: Warehouse, cluster: str) -> list[tuple[Any, ...]]:
    """Return the sums as they are made from the stored jobs alone."""
    with writing(warehouse._engine) as connection:
        rebuild(connection, warehouse._bulk, find_cluster_id(connection, cluster))
    return stored_sums(warehouse, cluster)


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def load(
    warehouse: Warehouse, *jobs: dict[str, Any], content: str, cluster: str = "c", zone: str | None = ZONE, **how: bool
) -> None:
    warehouse.load([a_batch(*jobs)], cluster=cluster, path="p", sha256=content, format="sacct", timezone=zone, **how)


readings = st.lists(st.tuples(st.lists(rows(), min_size=1, max_size=5), st.booleans(), st.booleans()), max_size=4)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(readings=readings, zones=st.sampled_from([(ZONE,), (None, ZONE), ("UTC",)]))
def test_sums_are_those_of_the_jobs(warehouse: Warehouse, readings: Any, zones: Any) -> None:
    cluster = f"cluster {len(warehouse.clusters())}"
    for number, (jobs, live, again) in enumerate(readings):
        zone = zones[min(number, len(zones) - 1)]
        load(warehouse, *jobs, content=str(number), cluster=cluster, zone=zone, live=live, again=again)
        assert stored_sums(warehouse, cluster) == fresh_sums(warehouse, cluster)
        known, stored = warehouse.clusters(counts=True).set_index("name").loc[cluster], warehouse.jobs(cluster)
        assert (known["jobs"], known["gpu_jobs"]) == (len(stored), (stored["gpus"] > 0).sum())
    if readings:
        assert warehouse.wrong_days(cluster, days=200)[1] == []


def test_jobs_of_years_that_are_not_summed_are_counted(warehouse: Warehouse) -> None:
    days = [datetime(year, 1, 2, tzinfo=UTC) for year in (1950, 1969, 1970, 2200, 2250)]
    load(warehouse, *(a_job(submitted_at=day, gpus=float(n % 2)) for n, day in enumerate(days)), content="a")
    load(warehouse, a_job(submitted_at=days[-1] + timedelta(days=1)), content="b")
    assert warehouse.clusters(counts=True)[["jobs", "gpu_jobs"]].to_numpy().tolist() == [[6, 3]]


def test_a_job_that_ends_leaves_no_old_share(warehouse: Warehouse) -> None:
    load(warehouse, a_job(job_id="1", state="PENDING", started_at=None, ended_at=None, run_time_s=UNKNOWN), content="a")
    assert stored_sums(warehouse, "c") == []
    load(warehouse, a_job(job_id="1"), content="b")
    load(warehouse, a_job(job_id="1", state="RUNNING", ended_at=None, run_time_s=UNKNOWN), content="c", live=True)
    assert stored_sums(warehouse, "c") == []


def test_gpus_that_turn_out_to_be_none_are_summed_as_none(warehouse: Warehouse) -> None:
    load(warehouse, a_job(gpus=UNKNOWN, tres_requested="cpu=4"), a_job(gpus=1.0), content="a")
    assert warehouse.settle_unnamed_gpus("c") == 1
    assert stored_sums(warehouse, "c") == fresh_sums(warehouse, "c")
    size = LEVELS.index(("month", ("size",)))
    assert [row[5] for row in stored_sums(warehouse, "c") if row[0] == size] == [0, 2]


def test_a_removed_cluster_leaves_no_sums(warehouse: Warehouse) -> None:
    load(warehouse, a_job(), content="a")
    load(warehouse, a_job(), content="a", cluster="other")
    warehouse.remove_cluster("c")
    with reading(warehouse._engine) as connection:
        left = connection.execute(schema.job_sums.select()).all()
    assert len(left) == len(LEVELS) and len(stored_sums(warehouse, "other")) == len(LEVELS)


def test_a_renamed_cluster_keeps_its_sums(warehouse: Warehouse) -> None:
    load(warehouse, a_job(), content="a")
    before = stored_sums(warehouse, "c")
    warehouse.rename_cluster("c", "d")
    assert stored_sums(warehouse, "d") == before


def test_an_upgrade_makes_the_sums_of_stored_jobs(database: str) -> None:
    with Warehouse.open(database) as opened:
        load(opened, *(a_job(job_id=str(number), gpus=float(number % 3)) for number in range(50)), content="a")
        before = stored_sums(opened, "c")
    move(database, "down", "0015")
    read: list[float] = []
    with Warehouse.open(database, create=False) as older:
        assert older.upgrade(progress=read.append) == revisions_after("0015")
        assert stored_sums(older, "c") == before and read == [1.0]


def test_what_fails_changes_no_sums(warehouse: Warehouse) -> None:
    load(warehouse, a_job(job_id="1"), content="a")
    before = stored_sums(warehouse, "c")

    def broken() -> Iterator[Any]:
        yield a_batch(a_job(job_id="2"))
        raise ValueError("the file ends here")

    with pytest.raises(ValueError, match="ends here"):
        warehouse.load(broken(), cluster="c", path="p", sha256="b", format="sacct", timezone=ZONE)
    assert stored_sums(warehouse, "c") == before


def test_many_jobs_are_summed_in_parts(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helios.warehouse.job_sums.MOST_KEPT", 20)
    monkeypatch.setattr("helios.warehouse.job_sums.ROWS_PER_REBUILD", 7)
    random = np.random.default_rng(3)
    jobs = [a_job(job_id=str(n), run_time_s=float(random.integers(0, 90_000))) for n in range(60)]
    batches = [a_batch(*jobs[first : first + 10]) for first in range(0, 60, 10)]
    warehouse.load(batches, cluster="c", path="p", sha256="a", format="sacct", timezone=ZONE)
    assert stored_sums(warehouse, "c") == fresh_sums(warehouse, "c")
    assert sum(row[6] for row in stored_sums(warehouse, "c") if row[0] == 0) == 60


@pytest.mark.parametrize("level", [0, 3, LEVELS.index(("month", ("user",)))])
def test_sums_that_are_not_those_of_the_jobs_are_found(warehouse: Warehouse, level: int) -> None:
    load(warehouse, a_job(job_id="1"), a_job(job_id="2"), content="a")
    looked_at, wrong = warehouse.wrong_days("c", days=2)
    assert looked_at and not wrong
    with writing(warehouse._engine) as connection:
        table = schema.job_sums
        connection.execute(table.update().where(table.c.level == level).values(cpu_ms=table.c.cpu_ms + 1))
    assert warehouse.wrong_days("c", days=2)[1] == looked_at
    warehouse.upgrade(sums=True)
    assert warehouse.wrong_days("c", days=2)[1] == []
