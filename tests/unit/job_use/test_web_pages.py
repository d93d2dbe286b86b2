"""The page of GPUs that are held and not used now, and who sees what of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from helios.job_use.idle_gpus import IDLE_GPUS, HeldGpus, IdleGpu
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, JSON, client

PROXY: dict[str, Any] = {"user_header": "X-Remote-User", "admins": frozenset({"root"})}
HELD = HeldGpus(
    at="2026-03-02T12:00:00+00:00",
    exporter="slurm-job-exporter",
    busy_means="a kernel ran",
    measured=40,
    idle=(
        IdleGpu(job_id="7", user="alice", node="g1", gpu="0", has_process=True, memory_mib=9_000.0),
        IdleGpu(job_id="8", user="bob", node="g2", gpu="3", has_process=False, memory_mib=0.0),
        IdleGpu(job_id="9", user=None, node="g3", gpu="1", has_process=None, memory_mib=None),
    ),
)


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.read()
    return fake_site


@pytest.fixture
def web(fake_site: FakeSite) -> Iterator[TestClient]:
    with client(fake_site, **PROXY) as found:
        yield found


def put(fake_site: FakeSite) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", IDLE_GPUS, json.dumps(asdict(HELD)), at=fake_site.cluster.now)


@pytest.mark.parametrize(("user", "jobs"), [("root", ["7", "8", "9"]), ("bob", ["8"]), ("carol", [])])
def test_everybody_sees_the_own_idle_gpus(fake_site: FakeSite, web: TestClient, user: str, jobs: list[str]) -> None:
    put(fake_site)
    found = web.get("/idle-gpus", headers={**JSON, "X-Remote-User": user}).json()
    assert [row["job_id"] for row in found["idle"]] == jobs


def test_an_admin_reads_how_many_and_what_busy_means(fake_site: FakeSite, web: TestClient) -> None:
    put(fake_site)
    page = web.get("/idle-gpus", headers={**HTML, "X-Remote-User": "root"}).text
    assert "3 GPUs of 40 measured had no use for 30 minutes" in page
    assert "Measured by slurm-job-exporter, where busy means that a kernel ran." in page
    assert "As of 2026-03-02 12:00 UTC" in page and 'href="/jobs/7"' in page


def test_what_nobody_measured_is_not_known(web: TestClient) -> None:
    page = web.get("/idle-gpus", headers={**HTML, "X-Remote-User": "root"}).text
    assert "It is not known which GPUs are held without use." in page and "prometheus.url" in page
