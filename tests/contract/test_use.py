"""Use from the kept sums is that of the jobs, for any history and window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios.app.reports import ReportQuery, open_context, usage_report
from helios.app.series import series
from helios.metrics.job_sums import QUANTILE_ERROR
from helios.report.admin.sacct_format import ReportTable
from helios.report.admin.usage import running_at, waiting_at
from helios.warehouse import Warehouse
from helios.warehouse.bulk import Bulk
from helios.warehouse.revisions import LIVE_SOURCE
from tests.builders import a_job
from tests.contract.test_job_sums import FIRST, UNKNOWN, load, readings
from tests.examples import examples

NOW = FIRST + timedelta(days=16)
HOUR = timedelta(hours=1)
BINNED = {"p50_wait_s", "p95_wait_s", "longest_wait_s", "p50_run_time_s", "over_asked"}

days = st.integers(-1, 16)
clocks = st.sampled_from(["00:00", "00:00", "07:30", "23:59:59"])


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, str]:
    """Return begin and end of a window on the cluster's clock."""
    first = draw(days)
    dates = [FIRST + timedelta(days=first), FIRST + timedelta(days=first + draw(st.integers(1, 17)))]
    begin, end = (f"{date:%Y-%m-%d}T{draw(clocks)}" for date in dates)
    return begin, end


def make_live(warehouse: Warehouse, cluster: str) -> None:
    warehouse.add_coverage(cluster, source=LIVE_SOURCE, started_at=NOW, ended_at=NOW, read_at=NOW)


def both(query: ReportQuery, group: Any) -> tuple[ReportTable, ReportTable]:
    """Return the report from the sums and the one from the jobs."""
    return usage_report(query, group=group), usage_report(query, group=group, with_predictions=True)


def assert_equal(answer: ReportTable, oracle: ReportTable) -> None:
    rows, expected = answer.rows.set_index("group"), oracle.rows.set_index("group")
    assert set(rows.index) == set(expected.index)
    for name in rows.columns:
        error = {"rel": QUANTILE_ERROR, "abs": 2e-3} if name in BINNED else {"rel": 1e-9, "abs": 1e-4}
        for group in rows.index:
            value, known = rows[name][group], expected[name][group]
            assert value == pytest.approx(known, nan_ok=True, **error), (name, group)
    notes = [note for note in oracle.notes if "such as" in note]
    assert [note.partition(",")[0] for note in answer.notes if "such as" in note] == [
        note.partition(",")[0] for note in notes
    ]


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    readings=readings,
    window=windows(),
    group=st.sampled_from(["user", "account", "partition"]),
    users=st.sampled_from([(), (), ("alice",), ("nobody",)]),
)
def test_the_report_from_sums_is_that_of_the_jobs(
    database: str, readings: Any, window: tuple[str, str], group: str, users: Any
) -> None:
    with Warehouse.open(database) as warehouse:
        cluster = f"cluster {len(warehouse.clusters())}"
        load(warehouse, a_job(submitted_at=FIRST, user="bob"), content="first", cluster=cluster)
        for number, (jobs, live, _) in enumerate(readings):
            load(warehouse, *jobs, content=str(number), cluster=cluster, live=live)
        make_live(warehouse, cluster)
    query = ReportQuery(url=database, now=NOW, cluster=cluster, start=window[0], end=window[1], users=users)
    assert_equal(*both(query, group))
    with open_context(query) as context:
        use, _ = context.use((group, "size"), (context.since, context.until))  # type: ignore[arg-type]  # one of them
        jobs, until = context.jobs_of_window(), context.until
    assert use.waits_at_end == waiting_at(jobs, until).sum()
    assert use.runs_at_end == running_at(jobs, until).sum()


@pytest.fixture
def url(database: str) -> str:
    """Return a history of two months: a day's run each day, and three jobs that lack something."""
    begin = datetime(2025, 9, 1, tzinfo=UTC)
    jobs = [
        a_job(
            job_id=str(day),
            submitted_at=begin + timedelta(days=day),
            started_at=begin + timedelta(days=day, hours=day % 5),
            run_time_s=86_400.0,
            partition=["gpu", "cpu"][day % 2],
            user=f"u{day % 3}",
        )
        for day in range(45)
    ]
    unended: dict[str, Any] = {"ended_at": None, "run_time_s": UNKNOWN}
    late = NOW - timedelta(days=5)
    jobs += [
        a_job(job_id="90", submitted_at=begin + 9 * HOUR, gpus=UNKNOWN),
        a_job(job_id="91", submitted_at=late, state="RUNNING", time_limit_s=float("inf"), **unended),
        a_job(job_id="92", submitted_at=late, state="PENDING", started_at=None, **unended),
    ]
    with Warehouse.open(database) as warehouse:
        load(warehouse, *jobs, content="a")
        make_live(warehouse, "c")
    return database


@pytest.mark.parametrize("group", ["user", "partition"])
@pytest.mark.parametrize("start", ["2025-08-20", "2025-09-10T13:00", "2025-10-01", "2025-09-30T22:00"])
def test_whole_months_give_the_report_of_the_jobs(url: str, group: str, start: str) -> None:
    assert_equal(*both(ReportQuery(url=url, now=NOW, start=start), group))


def test_an_unknown_job_of_whole_days_is_named(url: str) -> None:
    answer = usage_report(ReportQuery(url=url, now=NOW, start="2025-08-20"), group="user")
    assert any("1 job has no record" in note and "such as 90" in note for note in answer.notes), answer.notes


@pytest.mark.parametrize("start", ["2025-08-20", "2024-08-20"])
def test_charts_add_up_to_the_report(url: str, start: str) -> None:
    query = ReportQuery(url=url, now=NOW, start=start)
    total = usage_report(query, group="partition").total
    with open_context(query) as context:
        rows = series(context, "partition")[0].rows
    assert total is not None
    assert rows["submitted"].sum() == total["jobs"] == 48
    assert rows["gpu_hours"].sum() == pytest.approx(total["gpu_hours"])
    assert rows.groupby("group")["gpu_hours"].sum().max() > 500


def test_whole_days_are_read_without_their_jobs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    with Warehouse.open(url) as warehouse:
        bulk = type(warehouse._bulk)
    select = bulk.select

    def counted(self: Bulk, *given: Any) -> Any:
        rows = select(self, *given)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(bulk, "select", counted)
    usage_report(ReportQuery(url=url, now=NOW, start="2025-09-05", end="2025-10-10"), group="user")
    assert sum(read) < 12  # the running one, the waiting one, and those that run at midnight
