"""The page of charts: the figures of the reports, and nothing guessed where nothing is known."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from starlette.testclient import TestClient

from helios.model import NODES
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, JSON, client

PROXY: dict[str, Any] = {
    "user_header": "X-Remote-User",
    "admins": frozenset({"root"}),
    "managers": frozenset({"dean"}),
}


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


@pytest.fixture
def web(fake_site: FakeSite) -> Iterator[TestClient]:
    with client(fake_site, **PROXY) as found:
        yield found


def charts(web: TestClient, query: str = "", *, user: str = "root") -> dict[str, Any]:
    found: dict[str, Any] = web.get(f"/history{query}", headers={**JSON, "X-Remote-User": user}).json()
    return found


def hours(chart: dict[str, Any]) -> float:
    """The hours under the areas of a chart."""
    ends = [*chart["times"][1:], chart["end"]]
    lengths_h = [(end - begin) / 3600 for begin, end in zip(chart["times"], ends, strict=True)]
    stacked = [line["values"] for line in chart["lines"] if not line.get("is_bound")]
    return float(sum((v or 0) * length for values in stacked for v, length in zip(values, lengths_h, strict=True)))


@pytest.mark.parametrize("query", ["", "?from=now-5days", "?from=now-60hours&to=now-10hours", "?from=now-730days"])
def test_areas_of_use_hold_the_hours_of_the_report(web: TestClient, query: str) -> None:
    reported = web.get(f"/partitions{query}", headers={**JSON, "X-Remote-User": "root"}).json()
    total = sum(row["gpu_hours"] for row in reported["rows"])
    assert total > 0
    assert hours(charts(web, query)["charts"]["use_by_partition"]) == pytest.approx(total, rel=1e-3)


def test_a_pick_of_less_than_a_day_gives_hours(fake_site: FakeSite, web: TestClient) -> None:
    begin, end = (fake_site.cluster.now - timedelta(hours=ago) for ago in (50, 30))
    # As the script of the page writes what was drawn over.
    found = charts(web, f"?from={begin:%Y-%m-%dT%H:%M:%S}Z&to={end:%Y-%m-%dT%H:%M:%S}Z")
    times = found["charts"]["use_by_partition"]["times"]
    assert (found["step"], times[2] - times[1]) == ("hour", 3600)
    assert 20 <= len(times) <= 21


def test_days_that_nobody_read_are_unknown(fake_site: FakeSite, web: TestClient) -> None:
    now = fake_site.cluster.now
    with fake_site.warehouse() as warehouse:
        warehouse.add_coverage(
            "dev", source="jobs", started_at=now - timedelta(days=30), ended_at=now - timedelta(days=20), read_at=now
        )
    chart = charts(web, "?from=now-30days&to=now%2B5days")["charts"]["submissions"]
    known = {
        (pd.Timestamp(time, unit="s", tz="UTC") - pd.Timestamp(now)).days
        for time, value in zip(chart["times"], chart["lines"][0]["values"], strict=True)
        if value is not None
    }
    assert max(known) <= 0
    assert not known & set(range(-18, -4))


def test_use_without_recorded_starts_is_unknown(fake_site: FakeSite) -> None:
    now = fake_site.cluster.now
    jobs = [
        a_job(job_id=f"n{n}", submitted_at=now - timedelta(days=3, hours=n), started_at=None, ended_at=None)
        for n in range(5)
    ]
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="old", path="x", sha256="9", format="sacct", timezone="UTC")
    fake_site.settings = fake_site.settings.model_copy(
        update={"database": fake_site.settings.database.model_copy(update={"cluster": "old"})}
    )
    with client(fake_site, **PROXY) as web:
        found = charts(web, "?from=now-6days")
        assert "use_by_partition" not in found["charts"] and "submissions" in found["charts"]
        assert "No start is recorded" in web.get("/history", headers={**HTML, "X-Remote-User": "root"}).text


def test_a_window_after_the_end_of_a_history_is_told(fake_site: FakeSite) -> None:
    begin = fake_site.cluster.now - timedelta(days=300)
    jobs = [
        a_job(
            job_id=f"n{n}",
            submitted_at=begin + timedelta(hours=n),
            started_at=begin + timedelta(hours=n),
            ended_at=begin + timedelta(hours=n, days=9),
        )
        for n in range(120)
    ]
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="old", path="x", sha256="9", format="sacct", timezone="UTC")
    database = fake_site.settings.database.model_copy(update={"cluster": "old"})
    fake_site.settings = fake_site.settings.model_copy(update={"database": database})
    with client(fake_site, **PROXY) as web:
        window = f"?from={begin + timedelta(days=7):%Y-%m-%d}&to={begin + timedelta(days=8):%Y-%m-%d}"
        page = web.get(f"/history{window}", headers={**HTML, "X-Remote-User": "root"}).text
    assert "This history ends before the window" in page
    assert "No job was in this window" not in page


@pytest.fixture
def alone(fake_site: FakeSite) -> Iterator[TestClient]:
    """A history without Slurm: 200 jobs of 30 hours and 2 GPUs, an hour apart, from 2025-09-10 06:00 on."""
    begin = pd.Timestamp("2025-09-10 06:00", tz="UTC")
    long = {"run_time_s": 108_000.0, "gpus": 2}
    jobs = [
        a_job(job_id=f"n{n}", submitted_at=begin + timedelta(hours=n), user=("alice", "bob")[n % 2], **long)
        for n in range(200)
    ]
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="old", path="x", sha256="9", format="sacct", timezone="UTC")
    database = fake_site.settings.database.model_copy(update={"cluster": "old"})
    fake_site.settings = fake_site.settings.model_copy(update={"database": database})
    with client(fake_site, **PROXY) as found:
        yield found


AROUND = "?from=2025-09-01&to=2025-09-30"
"""A window around that history."""


@pytest.mark.parametrize(("user", "first"), [("root", "09-10 06:00"), ("bob", "09-10 07:00")])
def test_before_a_record_nothing_is_known_and_its_first_day_is_partial(
    alone: TestClient, user: str, first: str
) -> None:
    chart = charts(alone, AROUND, user=user)["charts"]["submissions"]
    begins = [f"{pd.Timestamp(time, unit='s', tz='UTC'):%m-%d %H:%M}" for time in chart["times"]]
    assert begins[:3] == ["09-01 00:00", first, "09-11 00:00"]
    assert pd.Timestamp(chart["end"], unit="s") == pd.Timestamp("2025-09-18 13:00:01")
    assert chart["lines"][0]["values"][0] is None
    table = alone.get(f"/history{AROUND}", headers={**HTML, "X-Remote-User": user}).text
    assert f">2025-{first}<" in table and ">2025-09-11<" in table


def test_a_mean_of_a_partial_day_is_over_its_known_part(alone: TestClient) -> None:
    values = charts(alone, AROUND)["charts"]["use_by_partition"]["lines"][0]["values"]
    assert values[1] == pytest.approx(19, rel=0.01)  # 2 GPUs x (18 + 17 + ... + 1) h in 18 h


def test_a_month_that_is_not_whole_says_so(alone: TestClient) -> None:
    (month,) = charts(alone, AROUND)["months"]
    assert (month["month"], month["part"]) == ("2025-09", "2025-09-10 06:00 to 2025-09-18 13:00")


def test_the_queue_before_and_after_a_record_is_unknown(alone: TestClient) -> None:
    found = alone.get(f"/waiting{AROUND}", headers={**JSON, "X-Remote-User": "root"}).json()
    running = {row["time"][:16]: row["running"] for row in found["rows"]}
    assert running["2025-09-09T00:00"] is None and running["2025-09-20T00:00"] is None
    assert running["2025-09-10T06:00"] == pytest.approx(9.5, rel=0.01)
    assert "The record ends at 2025-09-18 13:00." in found["notes"]


def test_capacity_is_that_of_known_nodes_alone(fake_site: FakeSite) -> None:
    with client(fake_site, **PROXY) as web:
        assert charts(web)["capacity"] is None
    nodes = [{"name": f"n{n}", "partition": "gpu", "gpus": 8, "cpus": 64.0} for n in range(3)]
    with fake_site.warehouse() as warehouse:
        warehouse.add_nodes("dev", NODES.conform(pd.DataFrame(nodes)))
    with client(fake_site, **PROXY) as web:
        assert charts(web)["capacity"] == 24
        assert charts(web, user="dean")["capacity"] == 24
        assert charts(web, "?account=lab")["capacity"] is None
        assert charts(web, user="bob")["capacity"] is None


def test_a_user_sees_the_own_hours_and_a_manager_all(web: TestClient) -> None:
    of = {user: hours(charts(web, user=user)["charts"]["use_by_partition"]) for user in ("root", "dean", "alice")}
    assert of["dean"] == of["root"] > of["alice"] > 0
    refused = web.get("/history?user=bob", headers={**JSON, "X-Remote-User": "dean"})
    assert refused.status_code == 404


def test_each_chart_has_a_picture_and_a_table(web: TestClient) -> None:
    root = {**HTML, "X-Remote-User": "root"}
    page = web.get("/history", headers=root).text
    names = charts(web)["charts"]
    assert {"use_by_partition", "waiting", "p50_wait", "p90_wait", "submissions", "months"} <= set(names)
    for name, chart in names.items():
        picture = web.get(f"/history?format={name}", headers=root)
        assert (picture.status_code, picture.headers["content-type"]) == (200, "image/svg+xml")
        assert f'data-chart="{name}"' in page and chart["title"] in picture.text


def test_a_table_has_the_hours_of_each_account_and_month(web: TestClient) -> None:
    rows = charts(web)["months"]
    reported = web.get("/accounts?from=now-60days", headers={**JSON, "X-Remote-User": "root"}).json()["rows"]
    assert sum(row["gpu_hours"] for row in rows) == pytest.approx(sum(row["gpu_hours"] for row in reported))
    csv = web.get("/history?format=csv", headers={**HTML, "X-Remote-User": "root"}).text
    assert csv.startswith("month,account,gpu_hours")


def test_no_line_has_more_than_600_points(web: TestClient) -> None:
    for query in ("?from=1970&to=2199", "?from=1970-01-01&to=2199-01-01", "?from=now-400days", "?from=now-4days"):
        for chart in charts(web, query).get("charts", {}).values():
            assert 0 < len(chart["times"]) <= 600
