"""Hours of the reports of use are those held in the window, whenever a job was submitted."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helios.app.reports import ReportQuery, usage_report
from helios.model import Batch, in_submission_order
from helios.report.admin.sacct_format import as_json
from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE
from tests.builders import a_job, jobs_frame, rejects_frame

ZONE = "Europe/Berlin"
NOW = datetime(2025, 11, 3, 12, tzinfo=UTC)
DAYS = pd.date_range("2025-10-20", "2025-11-02", tz=ZONE)
"""Local midnights. The clock goes back on the 26th, which lasts 25 hours."""
UNENDED: dict[str, Any] = {"state": "RUNNING", "ended_at": None, "run_time_s": float("nan")}
PENDING: dict[str, Any] = {**UNENDED, "state": "PENDING", "started_at": None}


class Site:
    """A warehouse with the history of a live cluster."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'helios.db'}"

    def load(self, *jobs: dict[str, Any]) -> None:
        with Warehouse.open(self.url) as warehouse:
            batch = Batch(jobs=in_submission_order(jobs_frame(*jobs)), rejects=rejects_frame(), bytes_read=0)
            warehouse.load([batch], cluster="c", path="p", sha256="0", format="sacct", timezone=ZONE)
            warehouse.add_coverage("c", source=LIVE_SOURCE, started_at=NOW, ended_at=NOW, read_at=NOW)

    def rows(self, start: str, end: str, *, group: str = "user", now: datetime = NOW) -> dict[str, dict[str, Any]]:
        """Return the rows of a report by group, with the total as ``Total``."""
        query = ReportQuery(url=self.url, now=now, start=start, end=f"{end}T00:00")
        found = as_json(usage_report(query, group=group))
        return {row["group"]: row for row in [*found["rows"], *([found["total"]] if found["rows"] else [])]}

    def gpu_hours(self, start: str, end: str, *, now: datetime = NOW) -> float:
        rows = self.rows(start, end, now=now)
        return float(rows["Total"]["gpu_hours"]) if rows else 0.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def local(text: str) -> pd.Timestamp:
    return pd.Timestamp(text, tz=ZONE).tz_convert("UTC")


def ran(submitted: str, started: str, hours: float, **overrides: Any) -> dict[str, Any]:
    """Return a job of one GPU and four CPUs that ran so long."""
    times = {"submitted_at": local(submitted), "started_at": local(started), "run_time_s": hours * 3600}
    return a_job(**(times | overrides))


def test_a_run_across_midnight_is_in_both_days_in_part(site: Site) -> None:
    site.load(ran("2025-10-21 10:00", "2025-10-21 20:00", 10))
    assert site.gpu_hours("2025-10-21", "2025-10-22") == 4
    assert site.gpu_hours("2025-10-22", "2025-10-23") == 6
    assert site.gpu_hours("2025-10-20", "2025-11-02") == 10


def test_a_run_from_before_to_after_holds_the_whole_window(site: Site) -> None:
    site.load(ran("2025-07-01", "2025-10-20", 24 * 7))
    row = site.rows("2025-10-22", "2025-10-23")["alice"]
    assert (row["gpu_hours"], row["cpu_hours"], row["node_hours"]) == (24, 96, 24)
    assert (row["jobs"], row["waiting"], row["mean_wait_s"], row["failed_share"]) == (0, 0, None, None)


def test_the_day_on_which_the_clock_goes_back_has_25_hours(site: Site) -> None:
    site.load(ran("2025-10-20", "2025-10-20", 24 * 10))
    assert site.gpu_hours("2025-10-26", "2025-10-27") == 25


def test_what_is_submitted_and_starts_later_is_a_job_without_hours(site: Site) -> None:
    site.load(ran("2025-10-21 10:00", "2025-10-22 10:00", 1))
    row = site.rows("2025-10-21", "2025-10-22")["alice"]
    assert (row["jobs"], row["waiting"], row["gpu_hours"]) == (1, 1, 0)


def test_a_running_job_holds_until_now_in_every_window(site: Site) -> None:
    site.load(ran("2025-10-20", "2025-10-20", 1, time_limit_s=float("inf"), **UNENDED))
    now = local("2025-10-23 06:00").to_pydatetime()
    hours = [site.gpu_hours(f"2025-10-{day}", f"2025-10-{day + 1}", now=now) for day in (21, 22, 23, 24)]
    assert hours == [24, 24, 6, 0]
    assert site.gpu_hours("2025-10-20", "2025-11-02", now=now) == 78


def test_a_run_of_an_old_history_does_not_run_until_today(site: Site) -> None:
    site.load(ran("2025-10-20", "2025-10-20", 1, time_limit_s=86_400.0, **UNENDED))
    assert site.rows("2026-10-20", "2026-10-21", now=datetime(2026, 11, 3, tzinfo=UTC)) == {}


def test_each_run_of_a_requeued_job_counts_once(site: Site) -> None:
    first = ran("2025-10-20 10:00", "2025-10-20 20:00", 6, job_id="7", state="NODE_FAIL")
    again = ran("2025-10-21 02:00", "2025-10-21 22:00", 4, job_id="7", restart=1)
    site.load(first, again)
    days = [site.rows(f"2025-10-{day}", f"2025-10-{day + 1}")["alice"] for day in (20, 21, 22)]
    assert [row["gpu_hours"] for row in days] == [4, 4, 2]
    assert [row["jobs"] for row in days] == [1, 1, 0]
    assert [row["lost_gpu_hours"] for row in days] == [4, 2, 0]


def test_the_end_of_a_window_is_not_in_it(site: Site) -> None:
    site.load(ran("2025-10-21", "2025-10-21", 24))
    assert site.rows("2025-10-20", "2025-10-21") == {}
    assert site.rows("2025-10-22", "2025-10-23") == {}
    assert site.rows("2025-10-21", "2025-10-22")["alice"]["jobs"] == 1


def test_a_suspended_job_keeps_gpus_and_nodes_and_frees_cpus(site: Site) -> None:
    site.load(ran("2025-10-21", "2025-10-21 18:00", 3, ended_at=local("2025-10-22 06:00")))
    row = site.rows("2025-10-21", "2025-10-22")["alice"]
    assert (row["gpu_hours"], row["node_hours"], row["cpu_hours"]) == (6, 6, 4 * 1.5)


def test_a_start_before_the_submission_counts_on_its_day(site: Site) -> None:
    site.load(ran("2025-10-22 00:10", "2025-10-21 23:00", 2))
    assert site.rows("2025-10-21", "2025-10-22")["alice"]["gpu_hours"] == 1
    assert site.gpu_hours("2025-10-21", "2025-10-23") == 2


def test_an_end_before_the_submission_is_still_a_job_submitted(site: Site) -> None:
    site.load(ran("2025-10-22 00:10", "2025-10-20 23:00", 2))
    assert site.rows("2025-10-22", "2025-10-23")["alice"]["jobs"] == 1


def test_without_a_start_the_run_counts_where_it_was_submitted(site: Site) -> None:
    site.load(a_job(submitted_at=local("2025-10-21 23:00"), started_at=None, ended_at=None, run_time_s=7_200.0))
    assert site.gpu_hours("2025-10-21", "2025-10-22") == 2
    assert site.gpu_hours("2025-10-22", "2025-10-23") == 0


def test_unknown_nodes_are_no_zero_node_hours(site: Site) -> None:
    site.load(ran("2025-10-21", "2025-10-21", 2, nodes=float("nan")))
    assert site.rows("2025-10-21", "2025-10-22")["alice"]["node_hours"] is None


def test_shares_are_of_the_hours_held_in_the_window(site: Site) -> None:
    site.load(
        ran("2025-10-20", "2025-10-20", 72, gpus=3),
        ran("2025-10-21", "2025-10-21", 24, user="bob"),
        ran("2025-10-21", "2025-10-25", 24, user="carol"),
    )
    rows = site.rows("2025-10-21", "2025-10-22")
    assert {name: row["hours_share"] for name, row in rows.items()} == {
        "alice": 0.75,
        "bob": 0.25,
        "carol": 0,
        "Total": 1,
    }


def test_title_and_notes_say_which_is_which(site: Site) -> None:
    site.load(ran("2025-10-21", "2025-10-21", 24))
    answer = usage_report(ReportQuery(url=site.url, now=NOW, start="2025-10-21", end="2025-10-21"), group="account")
    assert "Hours held and jobs submitted by account" in answer.title
    assert answer.notes == (
        "Hours are those held in the window; jobs, waits and ends are of what was submitted in it, each run of a "
        "requeued job once.",
        "Medians, P95Wait and MaxWait of whole days come from counts in bins and are within 1 %.",
    )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, list[dict[str, Any]]]:
    """A random history of two weeks and its jobs."""
    site, jobs = Site(tmp_path_factory.mktemp("held")), list(random_jobs())
    site.load(*jobs)
    return site, jobs


def random_jobs() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(41)
    first = DAYS[0].tz_convert("UTC")
    for _ in range(150):
        submitted = first + pd.Timedelta(seconds=int(rng.integers(-3 * 86_400, 13 * 86_400)))
        started = submitted + pd.Timedelta(seconds=int(rng.integers(0, 2 * 86_400)))
        job = a_job(
            user=str(rng.choice(["alice", "bob", "carol"])),
            submitted_at=submitted,
            started_at=started,
            run_time_s=float(rng.integers(0, 3 * 86_400)),
            gpus=int(rng.integers(0, 9)),
            time_limit_s=float("inf"),
        )
        yield job | dict(rng.choice([{}, {}, {}, {"state": "FAILED"}, UNENDED, PENDING]))


def hours_of_a_plain_loop(jobs: list[dict[str, Any]], user: str, since: pd.Timestamp, until: pd.Timestamp) -> float:
    hours = 0.0
    for job in jobs:
        if job["user"] == user and job["started_at"] is not None:
            end = pd.Timestamp(NOW) if job["ended_at"] is None else job["ended_at"]
            held = min(end, until) - max(job["started_at"], since)
            hours += job["gpus"] * max(held.total_seconds(), 0.0) / 3600
    return hours


def written(moment: pd.Timestamp) -> str:
    return f"{moment:%Y-%m-%d}"


def test_each_day_has_the_hours_of_a_plain_loop(mixed: tuple[Site, list[dict[str, Any]]]) -> None:
    site, jobs = mixed
    for since, until in pairwise(DAYS):
        rows = site.rows(written(since), written(until))
        for user in ("alice", "bob", "carol"):
            mine = [job for job in jobs if job["user"] == user]
            submitted = [job for job in mine if since <= job["submitted_at"] < until]
            hours = hours_of_a_plain_loop(mine, user, since, until)
            row = rows.get(user, {"jobs": 0, "gpu_hours": 0.0})
            assert (row["jobs"], row["gpu_hours"]) == (len(submitted), pytest.approx(hours))


@pytest.mark.parametrize("figure", ["gpu_hours", "cpu_hours", "node_hours", "lost_gpu_hours", "jobs"])
def test_days_sum_to_the_whole(mixed: tuple[Site, list[dict[str, Any]]], figure: str) -> None:
    site, _ = mixed
    days = [site.rows(written(since), written(until))["Total"][figure] for since, until in pairwise(DAYS)]
    assert sum(days) == pytest.approx(site.rows(written(DAYS[0]), written(DAYS[-1]))["Total"][figure])
