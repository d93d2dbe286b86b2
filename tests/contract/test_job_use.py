"""What jobs used, in the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.errors import FrameInvalid
from helios.metrics.job_use import memory_class, one_row_a_run, utilization_class
from helios.model import EARLY, GPU_USE, JOB_USE
from helios.model.job_use import UseSource
from helios.report.job_use import sessions
from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def use(job_id: str = "1", **values: Any) -> dict[str, Any]:
    """Return a row of ``JOB_USE``, unknown but for its key and what is given."""
    return {"submitted_at": NOON, "job_id": job_id, "restart": 0, "source": "jobstats", "quality": "ok"} | values


@pytest.fixture
def warehouse(database: str) -> Iterator[Warehouse]:
    with Warehouse.open(database) as opened:
        yield opened


def use_frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return JOB_USE.conform(pd.DataFrame(list(rows)))


NO_GPUS = GPU_USE.empty()


def test_use_is_read_back_as_it_was_stored(warehouse: Warehouse) -> None:
    jobs = use_frame(use(utilization=41.7, busy_means="a kernel ran"), use(restart=1, quality="none"), use("2"))
    rows = [use(node="g1", gpu="1", utilization=41.7), use(node="g1", gpu="MIG-26", gpu_memory_peak_mib=9.0)]
    gpus = GPU_USE.conform(pd.DataFrame(rows).drop(columns="quality"))
    warehouse.add_job_use("venus", jobs, gpus)
    pd.testing.assert_frame_equal(warehouse.job_use("venus"), jobs)
    pd.testing.assert_frame_equal(warehouse.job_use("venus", by_gpu=True), gpus)


def test_a_second_reading_of_a_source_replaces_the_first(warehouse: Warehouse) -> None:
    warehouse.add_job_use("venus", use_frame(use(utilization=1.0, cpu_s=5.0), use(source="file")), NO_GPUS)
    warehouse.add_job_use("venus", use_frame(use(utilization=2.0)), NO_GPUS)
    stored = warehouse.job_use("venus").set_index("source")
    assert stored.loc["jobstats", "utilization"] == 2.0
    assert np.isnan(stored.loc["jobstats", "cpu_s"])
    assert len(stored) == 2


def test_use_of_the_first_minutes_stands_apart(warehouse: Warehouse) -> None:
    warehouse.add_job_use("venus", use_frame(use(utilization=9.0), use(source=EARLY, utilization=1.0)), NO_GPUS)
    assert [*warehouse.job_use("venus")["utilization"]] == [9.0]
    assert [*warehouse.job_use("venus", early=True)["utilization"]] == [1.0]


@pytest.mark.parametrize(
    ("name", "said", "is_session"),
    [
        ("sys/dashboard/sys/jupyter", 0.0, 1.0),  # Open OnDemand's sessions are batch jobs
        ("site/sys/dashboard/dev/desktop", np.nan, 1.0),
        ("sys/myjobs/basic_python_serial", np.nan, np.nan),  # its job composer
        ("interactive", np.nan, 1.0),
        ("interactive", 0.0, 0.0),
        ("bash", np.nan, np.nan),
        (None, 1.0, 1.0),
    ],
)
def test_names_tell_sessions_where_they_can(name: str | None, said: float, is_session: float) -> None:
    found = sessions(pd.Series([said]), pd.Series([name], dtype="str"))
    np.testing.assert_array_equal(found, [is_session])


def test_use_is_chosen_by_time_and_by_what_the_job_is(warehouse: Warehouse) -> None:
    hour = timedelta(hours=1)
    jobs = [
        a_job(job_id=name, user=user, submitted_at=NOON + hour * n)
        for n, (name, user) in enumerate([("1", "a"), ("2", "b")])
    ]
    warehouse.load([a_batch(*jobs)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    rows = [use(job["job_id"], submitted_at=job["submitted_at"]) for job in jobs]
    warehouse.add_job_use("venus", use_frame(*rows), NO_GPUS)
    assert [*warehouse.job_use("venus", only={"user": ["b"]})["job_id"]] == ["2"]
    assert [*warehouse.job_use("venus", until=NOON + hour)["job_id"]] == ["1"]
    assert [*warehouse.job_use("venus", only={"user": ["nobody"]})["job_id"]] == []


def test_runs_of_jobs_are_found_by_submission_and_id(warehouse: Warehouse) -> None:
    jobs = [a_job(job_id="1", submitted_at=NOON), a_job(job_id="1", submitted_at=NOON, restart=1)]
    jobs += [a_job(job_id="2", submitted_at=NOON), a_job(job_id="1", submitted_at=NOON + timedelta(hours=1))]
    warehouse.load([a_batch(*jobs)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    wanted = use_frame(use("1"), use("1"), use("3"), use("2", submitted_at=NOON + timedelta(hours=1)))
    found = warehouse.runs_of("venus", wanted[["submitted_at", "job_id"]])
    assert sorted(zip(found["job_id"], found["restart"], strict=True)) == [("1", 0), ("1", 1)]
    assert found["started_at"].notna().all()


def test_runs_of_which_a_source_has_said_nothing_are_found(warehouse: Warehouse) -> None:
    hour = timedelta(hours=1)
    rows = [
        a_job(job_id=name, submitted_at=NOON, started_at=NOON + hour, ended_at=NOON + hour * hours, node_list="g[1-2]")
        for name, hours in (("1", 2), ("2", 3), ("3", 9), ("4", 1))
    ]
    rows += [a_job(job_id="5", submitted_at=NOON + hour, started_at=NOON + hour, ended_at=None, run_time_s=None)]
    warehouse.load([a_batch(*rows)], cluster="venus", path="f", sha256="", format="helios", timezone="UTC")
    warehouse.add_job_use("venus", use_frame(use("1", source="prometheus"), use("2", source="jobstats")), NO_GPUS)

    def left(**bounds: datetime) -> list[str]:
        usual = {"since": NOON, "until": NOON + hour * 10, "before": NOON + hour * 10}
        return [*warehouse.runs_without_use("venus", UseSource.PROMETHEUS, **(usual | bounds), most=9)["job_id"]]

    assert left() == ["3", "2"]
    assert left(until=NOON + hour * 9) == ["2"]
    assert left(since=NOON + hour * 4) == ["3"]
    assert left(before=NOON) == []


def test_use_without_a_quality_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(FrameInvalid):
        warehouse.add_job_use("venus", use_frame(use()).drop(columns="quality"), NO_GPUS)


def test_a_run_has_what_its_most_trusted_source_knows() -> None:
    found = one_row_a_run(
        use_frame(
            use(source="sacct", memory_peak_mib=7.0, memory_limit_mib=9.0),
            use(source="jobstats", utilization=40.0, samples=3.0, memory_peak_mib=5.0),
            use(source="prometheus", utilization=50.0, covered_s=60.0),
            use("2", source="prometheus", utilization=90.0, quality="broken"),
            use("2", source="jobstats", utilization=20.0),
            use("3", source="jobstats", quality="none"),
            use("4", source="prometheus", utilization=90.0, quality="partial"),
            use("4", source="jobstats", utilization=30.0),
        )
    ).set_index("job_id")
    assert [*found["source"]] == ["prometheus", "jobstats", "jobstats", "jobstats"]
    assert [*found["quality"]] == ["ok", "ok", "none", "ok"]
    assert [*found["utilization"]] == pytest.approx([50.0, 20.0, np.nan, 30.0], nan_ok=True)
    first = found.loc["1"]
    assert np.isnan(first["samples"])  # those of jobstats are not of this utilization
    assert (first["memory_peak_mib"], first["covered_s"]) == (5.0, 60.0)
    assert np.isnan(first["memory_limit_mib"])


def test_unknown_use_is_in_the_class_of_the_unknown() -> None:
    assert [*utilization_class(np.array([0.0, 0.99, 1.0, 74.0, 75.0, 120.0, np.nan]))] == [0, 0, 1, 4, 5, 5, 6]
    assert [*memory_class(np.array([0.0, 10.0, 5.0, np.nan]), np.array([10.0, 10.0, 0.0, 9.0]))] == [0, 3, 4, 4]
