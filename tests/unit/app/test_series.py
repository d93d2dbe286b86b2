"""Series for charts, held against the reports of each day."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.reports import ReportQuery, open_context, queue_report, usage_report
from helios.app.series import MOST_GROUPS, OTHERS, By, SeriesFrame, Step, series
from helios.model import Batch, in_submission_order
from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE
from tests.builders import a_job, jobs_frame, rejects_frame

ZONE = "Europe/Berlin"
NOW = datetime(2025, 11, 3, 12, tzinfo=UTC)
DAYS = pd.date_range("2025-10-24", "2025-11-01", tz=ZONE)
"""Local midnights. The clock goes back on the 26th, which lasts 25 hours."""
HOUR = pd.Timedelta(hours=1)


def random_jobs(n_jobs: int = 300) -> Iterator[dict[str, Any]]:
    """Yield jobs of several days, some of which never started, run still, or have unknown GPUs."""
    random = np.random.default_rng(7)
    for number in range(n_jobs):
        submitted = DAYS[0].tz_convert("UTC") - 24 * HOUR + pd.Timedelta(seconds=int(random.integers(0, 10 * 86_400)))
        started = submitted + pd.Timedelta(seconds=int(random.exponential(20_000)))
        run_s = float(random.integers(0, 200_000))
        job = {
            "job_id": str(number),
            "user": f"u{random.integers(0, 12)}",
            "account": f"a{random.integers(0, 12)}",
            "partition": str(random.choice(["gpu", "cpu"])),
            "gpus": float(random.choice([0, 1, 4, 8])) if number % 10 else np.nan,
            "submitted_at": submitted,
            "eligible_at": submitted,
            "started_at": started,
            "run_time_s": run_s,
            "state": str(random.choice(["COMPLETED", "FAILED", "TIMEOUT"])),
        }
        if number % 7 == 0:
            job |= {"state": "CANCELLED", "started_at": None, "ended_at": started, "run_time_s": 0.0}
        elif number % 11 == 0:
            job |= {"state": "RUNNING", "ended_at": None, "run_time_s": np.nan}
        elif number % 13 == 0:
            job |= {"state": "PENDING", "started_at": None, "ended_at": None, "run_time_s": np.nan}
        yield a_job(**job)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = f"sqlite:///{tmp_path_factory.mktemp('series') / 'helios.db'}"
    with Warehouse.open(made) as warehouse:
        jobs = in_submission_order(jobs_frame(*random_jobs()))
        batch = Batch(jobs=jobs, rejects=rejects_frame(), bytes_read=0)
        warehouse.load([batch], cluster="c", path="p", sha256="0", format="sacct", timezone=ZONE)
        warehouse.add_coverage("c", source=LIVE_SOURCE, started_at=NOW, ended_at=NOW, read_at=NOW)
    return made


def days_of(
    url: str, by: By, *, since: str = "2025-10-24", until: str = "2025-10-31", step: Step | None = "day"
) -> SeriesFrame:
    with open_context(ReportQuery(url=url, now=NOW, start=since, end=until)) as context:
        return series(context, by, step=step)[0]


@pytest.mark.parametrize("by", ["partition", "account"])
def test_each_day_has_the_figures_of_its_report(url: str, by: By) -> None:
    rows = days_of(url, by).rows
    named = rows[rows["group"] != OTHERS]
    assert len(named) >= 8 * 2
    for day, of_day in named.groupby("day"):
        answer = usage_report(ReportQuery(url=url, now=NOW, start=f"{day:%Y-%m-%d}", end=f"{day:%Y-%m-%d}"), group=by)
        reported = answer.rows.set_index("group")
        for row in of_day.to_dict("records"):
            if row["group"] not in reported.index:
                assert row["submitted"] == 0 and row["cpu_hours"] == 0
                continue
            line = reported.loc[row["group"]]
            assert row["submitted"] == line["jobs"]
            assert row["gpu_hours"] == pytest.approx(line["gpu_hours"], abs=1e-5, nan_ok=True)
            assert row["cpu_hours"] == pytest.approx(line["cpu_hours"], abs=1e-5)


def test_waited_hours_are_the_mean_of_gpus_that_waited(url: str) -> None:
    rows = days_of(url, "").rows
    day = pd.Timestamp("2025-10-26", tz=ZONE)  # of 25 hours
    row = rows[rows["day"] == day].iloc[0]
    answer = queue_report(ReportQuery(url=url, now=NOW, start="2025-10-26", end="2025-10-26"))
    ends = answer.rows["time"].shift(-1, fill_value=day.tz_convert("UTC") + 25 * HOUR)
    reported = (answer.rows["waiting_gpus"] * (ends - answer.rows["time"]).dt.total_seconds() / 3600).sum()
    assert row["gpu_hours_waited"] == pytest.approx(reported, rel=1e-6)
    assert row["started"] == answer.rows["started"].sum()


def test_quantiles_of_waits_are_within_one_percent(url: str) -> None:
    for day in (f"{day:%Y-%m-%d}" for day in DAYS):
        (row,) = days_of(url, "", since=day, until=day).rows.to_dict("records")
        total = usage_report(ReportQuery(url=url, now=NOW, start=day, end=day), group="partition").total
        assert total is not None and total["p50_wait_s"] > 0
        assert row["p50_wait_s"] == pytest.approx(total["p50_wait_s"], rel=0.01)


def test_others_sum_what_is_not_named(url: str) -> None:
    rows = days_of(url, "account").rows
    assert rows["group"].nunique() == MOST_GROUPS and rows["group"].iloc[MOST_GROUPS - 1] == OTHERS
    totals = days_of(url, "").rows
    for name in ("cpu_hours", "submitted", "started", "ended", "cpu_hours_waited"):
        assert rows.groupby("day")[name].sum().to_numpy() == pytest.approx(totals[name].to_numpy(), abs=1e-5)


def test_a_window_above_400_days_is_given_by_month(url: str) -> None:
    found = days_of(url, "", since="2024-09-15", step=None)
    assert found.step == "month"
    assert found.rows["day"].iloc[:2].tolist() == [
        pd.Timestamp("2024-09-15", tz=ZONE),
        pd.Timestamp("2024-10-01", tz=ZONE),
    ]
    assert found.rows["submitted"].sum() == days_of(url, "", since="2025-10-01").rows["submitted"].sum()


def test_a_window_below_four_days_is_given_by_hour(url: str) -> None:
    found = days_of(url, "", since="2025-10-26T00:30+02:00", until="2025-10-26T23:59+01:00", step=None)
    assert (found.step, len(found.rows)) == ("hour", 25)
    assert found.rows["day"].iloc[:2].dt.minute.tolist() == [30, 0]
    day = days_of(url, "", since="2025-10-26T00:30+02:00", until="2025-10-26T23:59+01:00")
    for name in ("cpu_hours", "submitted", "gpu_hours_waited"):
        assert found.rows[name].sum() == pytest.approx(day.rows[name].sum(), abs=1e-5)
