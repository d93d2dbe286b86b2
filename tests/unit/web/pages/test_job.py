"""The page of one job, of the queue or of the history, with or without Slurm."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Event

import pandas as pd
import pytest
from starlette.testclient import TestClient

from helios.app import start_forecast
from helios.app.live_cluster import LiveCluster
from helios.app.operations import Operations
from helios.config import Settings
from helios.errors import ClusterUnavailable
from helios.model import GPU_USE, JOB_USE
from helios.report.job_use import PREDICTED_USE
from helios.web.application import Access, web_application
from helios.web.site import Site
from tests.builders import a_batch, a_job
from tests.unit.app.sites import FakeSite
from tests.unit.app.test_start_estimates import RuledSite
from tests.unit.web.test_pages import ACTIVE, HTML, JSON, TOKEN, client

MOST_BYTES = 200_000


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


def load(fake_site: FakeSite, **values: object) -> None:
    """Load two runs of job 7 of alice, on nodes n1 and n[2-3]."""
    begin = pd.Timestamp(fake_site.cluster.now) - timedelta(days=2)
    runs = [
        a_job(
            job_id="7",
            user="alice",
            restart=number,
            state=state,
            node_list=nodes,
            submitted_at=begin + timedelta(hours=2 * number),
            started_at=begin + timedelta(hours=2 * number, minutes=5),
            run_time_s=3600.0,
            **values,
        )
        for number, (state, nodes) in enumerate((("NODE_FAIL", "n1"), ("COMPLETED", "n[2-3]")))
    ]
    with fake_site.warehouse() as warehouse:
        options = {"cluster": "dev", "path": "p", "sha256": "7", "format": "sacct", "timezone": "UTC"}
        warehouse.load([a_batch(*runs)], **options)  # type: ignore[arg-type]  # all are texts


def without_slurm(fake_site: FakeSite, **access: object) -> TestClient:
    asked = []

    def unreachable(_: Settings) -> LiveCluster:
        asked.append(1)
        raise ClusterUnavailable("slurmctld does not answer")

    operations = Operations(fake_site.settings, open_cluster=unreachable)
    site = Site(fake_site.settings, clock=lambda: fake_site.cluster.now, operations=operations)
    web = TestClient(web_application(site, Access(token=TOKEN, **access)), base_url="http://127.0.0.1")  # type: ignore[arg-type]  # of Access
    web.asked = asked  # type: ignore[attr-defined]  # for a test
    return web


def test_a_past_job_has_its_runs_its_life_and_its_nodes(fake_site: FakeSite) -> None:
    load(fake_site)
    with client(fake_site) as web:
        page = web.get("/jobs/7", headers=HTML).text
        kinds = [event["kind"] for event in web.get("/jobs/7", headers=JSON).json()["events"]]
    assert kinds == ["submitted", "started", "ended"] * 2
    assert "It was run 2 times" in page and "NODE_FAIL after 1 h" in page
    for link in ("/nodes/n1", "/nodes/n2", "/nodes/n3", "/users/alice"):
        assert f'<a href="{link}">' in page


@pytest.mark.parametrize("headers", [{}, {"X-Remote-User": "alice"}], ids=["admin", "owner"])
def test_a_job_of_the_warehouse_has_a_page_without_slurm(fake_site: FakeSite, headers: dict[str, str]) -> None:
    load(fake_site)
    with without_slurm(fake_site, **({"user_header": "X-Remote-User"} if headers else {})) as web:
        found = web.get("/jobs/7", headers=JSON | headers)
    assert found.status_code == 200
    assert "slurmctld does not answer" in found.json()["remarks"][-1]


def test_a_job_has_what_each_of_its_gpus_did(fake_site: FakeSite) -> None:
    load(fake_site)
    begin = pd.Timestamp(fake_site.cluster.now) - timedelta(days=2)
    key = {"submitted_at": begin + timedelta(hours=2), "job_id": "7", "restart": 1, "source": "prometheus"}
    use = {**key, "busy_means": "an SM was active", "quality": "ok", "utilization": 40.0, "covered_s": 3500.0}
    gpus = [{**key, "node": "n2", "gpu": str(number), "utilization": 80.0 * number} for number in range(2)]
    with fake_site.warehouse() as warehouse:
        frames = JOB_USE.conform(pd.DataFrame([use])), GPU_USE.conform(pd.DataFrame(gpus))
        warehouse.add_job_use("dev", *frames)
    with client(fake_site) as web:
        found, page = web.get("/jobs/7", headers=JSON).json(), web.get("/jobs/7", headers=HTML).text
    sentence = (
        "Run 1, measured by Prometheus, where busy means that an SM was active: GPUs 40 % busy on average; "
        "1 of 2 GPUs below 1 %; 97 % of the run measured."
    )
    assert sentence in page
    assert "What it used" in page and "80.0" in page
    assert [gpu["utilization"] for gpu in found["gpu_use"]] == [0.0, 80.0]
    assert found["use"][0]["cpu_s"] is None


def test_a_running_job_has_what_it_will_likely_use(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="alice")
    fake_site.cluster.start(job, node_list="n1")
    submitted_at = fake_site.cluster.now.isoformat()
    fake_site.cluster.tick(timedelta(hours=1))
    numbers = {"first_utilization": 0.3, "first_memory_mib": 512.0, "utilization": 12.0, "idle_chance": 0.6}
    kept = numbers | {"utilization_before": 44.0, "memory_mib": 2048.0, "busy_means": "an SM was active"}
    with fake_site.warehouse() as warehouse:
        values = {job: kept | {"submitted_at": submitted_at}, "77": kept}
        warehouse.remember("dev", PREDICTED_USE, json.dumps(values), at=fake_site.cluster.now)
    with client(fake_site) as web:
        page = web.get(f"/jobs/{job}", headers=HTML).text
        found = web.get(f"/jobs/{job}", headers=JSON).json()["predicted_use"]
    assert (
        "After 15 minutes: GPUs 0.3 % busy in minutes 5 to 15; GPU memory at most 0.5 GiB, by Prometheus, where busy "
        "means that an SM was active. So it will likely use 12 % in all (the mean of runs that began so; 60 % of them "
        "stayed idle), and at most 2.0 GiB of GPU memory, as 95 of 100 such runs. At its submission 44 % was expected."
    ) in page
    assert found["utilization"] == 12.0


def test_a_job_that_nothing_knows_is_said_to_be_in_no_history(fake_site: FakeSite) -> None:
    with without_slurm(fake_site) as web:
        found = web.get("/jobs/404", headers=JSON)
    assert found.status_code == 503
    assert "No job 404 is in the history of dev" in found.json()["error"]


def test_a_slurm_that_did_not_answer_is_not_asked_for_each_page(fake_site: FakeSite) -> None:
    load(fake_site)
    with without_slurm(fake_site) as web:
        web.get("/", headers=JSON)
        asked = len(web.asked)  # type: ignore[attr-defined]  # of this test
        for _ in range(3):
            assert web.get("/jobs/7", headers=JSON).status_code == 200
        assert len(web.asked) == asked  # type: ignore[attr-defined]  # as above


def test_a_job_lies_among_alike_ones(fake_site: FakeSite) -> None:
    with client(fake_site) as web:
        assert "0 % of 39 alike jobs of its user" in web.get("/jobs/alice3", headers=HTML).text


def test_a_job_with_thousands_of_decisions_has_a_small_page(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes=ACTIVE)
    with fake_site.warehouse() as warehouse:
        made = warehouse.decisions_about("dev", job)
        again = pd.concat([made.tail(1)] * 3_000, ignore_index=True)
        later = made["decided_at"].iloc[-1] + pd.to_timedelta(range(1, 3_001), unit="min")
        warehouse.add_decisions("dev", again.assign(decided_at=later, after=[f"SiteFactor {n}" for n in range(3_000)]))
    with client(fake_site) as web:
        page = web.get(f"/jobs/{job}", headers=HTML)
        assert len(page.content) < MOST_BYTES
        assert "earlier events in JSON" in page.text
        assert len(web.get(f"/jobs/{job}?format=csv", headers=HTML).text.splitlines()) > 3_000
        assert len(web.get(f"/jobs/{job}?page=2", headers=JSON).json()["decisions"]) == 50


def test_a_job_has_its_start_as_it_was_estimated(tmp_path: Path) -> None:
    fake_site = RuledSite(tmp_path)
    fake_site.learn()
    job = fake_site.cluster.submit(user="alice")
    with client(fake_site) as web:
        assert web.get(f"/jobs/{job}", headers=JSON).json()["estimates"] == []
        (made,) = web.get(f"/jobs/{job}", headers=JSON).json()["estimates"]
        page = web.get(f"/jobs/{job}", headers=HTML).text
    assert made["started_at"] is None and made["p50_at"] is not None
    assert "Its start was estimated between" in page


def test_nobody_waits_for_the_simulation_of_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_site = RuledSite(tmp_path)
    fake_site.learn()
    job = fake_site.cluster.submit(user="alice")
    began, may_end = Event(), Event()
    whole = start_forecast.forecast_start

    def slow(*given: object, **named: object) -> object:
        began.set()
        assert may_end.wait(60)
        return whole(*given, **named)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(start_forecast, "forecast_start", slow)
    with client(fake_site) as web, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(web.get, f"/jobs/{job}", headers=JSON)
        assert began.wait(60)
        try:
            assert web.get("/jobs/alice3", headers=JSON).status_code == 200
            assert web.get("/queue", headers=JSON).json()["pending"] == 1
        finally:
            may_end.set()
        assert asked.result(60).json()["start"]["problem"] == ""
