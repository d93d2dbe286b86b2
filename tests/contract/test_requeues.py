"""Runs of requeued jobs in any order of arrival: in one load, in several, from files and from the live accounting."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.examples import examples

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def a_run(number: int, **values: Any) -> dict[str, Any]:
    """Return one of three runs of a job that lasted an hour each, submitted a minute after the one before."""
    submitted = NOON + number * (HOUR + 2 * MINUTE)
    started = submitted + MINUTE
    times = {"submitted_at": submitted, "eligible_at": submitted, "started_at": started, "ended_at": started + HOUR}
    return a_job(job_id="7", state=("PREEMPTED", "NODE_FAIL", "COMPLETED")[number], run_time_s=3600.0, **times) | values


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def load(warehouse: Warehouse, *jobs: dict[str, Any], content: str, cluster: str = "venus", live: bool = False) -> None:
    warehouse.load(
        [a_batch(*jobs)], cluster=cluster, path="p", sha256=content, format="sacct", timezone=None, live=live
    )


def numbers(warehouse: Warehouse, cluster: str = "venus") -> list[int]:
    """Return the numbers of the runs in the order of submission."""
    found: list[int] = warehouse.jobs(cluster)["restart"].tolist()
    return found


USUAL_ORDERS = ((0, 1, 2), (1, 2, 0), (2, 1, 0))
ORDERS = [
    order if order in USUAL_ORDERS else pytest.param(order, marks=pytest.mark.nightly)
    for order in permutations(range(3))
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("live", [False, True])
def test_runs_are_numbered_alike_in_any_order_of_arrival(warehouse: Warehouse, order: Any, live: bool) -> None:
    for number in order:
        load(warehouse, a_run(number), content=str(number), live=live)
    assert numbers(warehouse) == [0, 1, 2]


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_that_is_read_again_alone_stays_itself(warehouse: Warehouse, order: Any) -> None:
    load(warehouse, *(a_run(number, restart=number) for number in range(3)), content="all")
    for number in order:
        load(warehouse, a_run(number), content=str(number))
    assert numbers(warehouse) == [0, 1, 2]


WAITS: dict[str, Any] = {"state": "PENDING", "started_at": None, "ended_at": None, "run_time_s": None}


def test_a_run_that_waited_ends_under_its_number(warehouse: Warehouse) -> None:
    load(warehouse, a_run(0), a_run(1, restart=1, **WAITS), content="first", live=True)
    load(warehouse, a_run(1), content="second", live=True)
    assert warehouse.jobs("venus")[["restart", "state"]].to_numpy().tolist() == [[0, "PREEMPTED"], [1, "NODE_FAIL"]]


def test_a_run_stored_without_a_count_gets_that_of_the_cluster(warehouse: Warehouse) -> None:
    load(warehouse, a_run(2), content="first")
    load(warehouse, a_run(2, restart=5), content="second")
    assert numbers(warehouse) == [5]


@pytest.mark.parametrize(
    "other",
    [
        {"user": "another"},
        {"state": "COMPLETED"},
        {"submitted_at": NOON - 60 * 24 * HOUR, "started_at": NOON - 60 * 24 * HOUR, "ended_at": NOON - 59 * 24 * HOUR},
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_a_job_with_an_id_that_was_used_before_is_its_own(warehouse: Warehouse, other: Any, turn: int) -> None:
    for content, job in list({"a": a_run(0) | other, "b": a_run(1)}.items())[::turn]:
        load(warehouse, job, content=content)
    assert numbers(warehouse) == [0, 0]


@pytest.mark.parametrize("turn", [1, -1])
def test_parts_of_a_resized_job_from_two_loads_are_kept_apart(warehouse: Warehouse, turn: int) -> None:
    half = NOON + MINUTE + HOUR / 2
    first = a_run(0, state="RESIZING", ended_at=half, run_time_s=1800.0)
    second = a_run(0, state="COMPLETED", started_at=half, run_time_s=1800.0)
    for content, job in list({"a": first, "b": second}.items())[::turn]:
        load(warehouse, job, content=content)
    jobs = warehouse.jobs("venus")
    assert jobs["restart"].tolist() == [0, 1] and jobs["state"].tolist() == ["RESIZING", "COMPLETED"]


def test_runs_of_one_load_with_numbers_of_their_own_are_kept_apart(warehouse: Warehouse) -> None:
    unknown = {"started_at": None, "ended_at": None}
    load(warehouse, *(a_run(0, restart=number, **unknown) for number in range(3)), content="first")
    load(warehouse, *(a_run(0, restart=number, **unknown) for number in range(2)), content="second")
    assert numbers(warehouse) == [0, 1, 2]


def test_a_corrected_start_is_the_same_run(warehouse: Warehouse) -> None:
    load(warehouse, a_run(0), content="first")
    load(warehouse, a_run(0, started_at=NOON + 5 * MINUTE), content="second")
    assert warehouse.jobs("venus")["started_at"].tolist() == [NOON + 5 * MINUTE]


def test_runs_of_other_clusters_are_none_of_it(warehouse: Warehouse) -> None:
    load(warehouse, a_run(0), content="a", cluster="east")
    load(warehouse, a_run(1), content="b", cluster="west")
    assert numbers(warehouse, "west") == [0]


def test_a_removed_cluster_leaves_no_run_behind(warehouse: Warehouse) -> None:
    load(warehouse, a_run(0), content="a")
    warehouse.remove_cluster("venus")
    load(warehouse, a_run(1), content="b")
    assert numbers(warehouse) == [0]


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)))
def test_any_split_of_the_rows_ends_alike(warehouse: Warehouse, parts: list[int], cuts: set[int]) -> None:
    cluster = f"cluster {len(warehouse.clusters())}"
    known = [a_run(number, job_id=job) for job in ("7", "8") for number in range(3)]
    edges = [0, *sorted(cuts), 6]
    for first, last in pairwise(edges):
        load(warehouse, *(known[part] for part in parts[first:last]), content=str(first), cluster=cluster)
    assert numbers(warehouse, cluster) == [0, 0, 1, 1, 2, 2]


def test_runs_of_a_requeued_job_are_found_by_its_id(warehouse: Warehouse) -> None:
    load(warehouse, *(a_run(number) for number in range(3)), a_job(job_id="8"), content="a")
    assert warehouse.requeued_runs("venus", "7")["restart"].tolist() == [0, 1, 2]
    assert warehouse.requeued_runs("venus", "8").empty


def test_a_finished_job_requeued_by_hand_is_listed_with_its_next_run(warehouse: Warehouse) -> None:
    load(warehouse, a_run(0, state="COMPLETED"), a_run(1, restart=1, state="COMPLETED"), content="a")
    assert warehouse.requeued_runs("venus", "7")["restart"].tolist() == [0, 1]


def test_a_record_that_slurm_marks_as_requeued_later_links_its_next_run(warehouse: Warehouse) -> None:
    load(warehouse, a_run(0, state="COMPLETED"), content="a", live=True)
    load(warehouse, a_run(0, state="REQUEUED"), content="b", live=True)
    load(warehouse, a_run(1), content="c", live=True)
    assert numbers(warehouse) == [0, 1]


def test_a_part_of_a_heterogeneous_job_is_found_by_its_offset(warehouse: Warehouse) -> None:
    parts = [a_job(job_id=str(15 + offset), het_job_id="15", het_job_offset=float(offset)) for offset in range(2)]
    load(warehouse, *parts, content="a")
    assert warehouse.jobs_named("venus", "15+1")["job_id"].tolist() == ["16"]
