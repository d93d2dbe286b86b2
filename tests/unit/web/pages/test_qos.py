"""The page of QOS and reservations, and what runs on a node now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from starlette.testclient import TestClient

from helios.app.operations import Operations
from helios.model import RESERVATIONS
from helios.model.slurm_site import QosRules, SlurmSite
from helios.testing import NOON, FakeCluster
from helios.web.application import Access, web_application
from helios.web.site import Site
from tests.unit.app.node_sites import FakeNodeSite
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, JSON, TOKEN, client

RULES = SlurmSite(qos=(QosRules(name="high", priority=100, max_gpus_per_user=8), QosRules(name="normal")))
MAINTENANCE = {
    "name": "maint",
    "state": "INACTIVE",
    "begins_at": pd.Timestamp(NOON),
    "ends_at": pd.Timestamp(NOON) + pd.Timedelta(hours=8),
    "nodes": 2.0,
    "node_list": "n[1-2]",
    "users": "root",
    "flags": "MAINT",
}


@contextmanager
def told(fake_site: FakeSite | FakeNodeSite, **parts: Any) -> Iterator[TestClient]:
    live = replace(fake_site.live_cluster(), **parts)
    operations = Operations(fake_site.settings, open_cluster=lambda _: live, clock=lambda: NOON)
    site = Site(fake_site.settings, clock=lambda: NOON, operations=operations)
    access = Access(token=TOKEN, user_header="X-Remote-User", admins=frozenset({"root"}))
    with TestClient(web_application(site, access), base_url="http://127.0.0.1") as web:
        yield web


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    fake_site.cluster.submit(user="alice", qos="high", gpus=4)
    fake_site.cluster.start(fake_site.cluster.submit(user="bob", qos="high", gpus=2))
    return fake_site


def test_a_qos_has_its_limits_and_its_jobs(fake_site: FakeSite) -> None:
    reservations = RESERVATIONS.conform(pd.DataFrame([MAINTENANCE]))
    with told(fake_site, rules=lambda: RULES, reservations=lambda: reservations) as web:
        found = {user: web.get("/qos", headers={**JSON, "X-Remote-User": user}).json() for user in ("root", "alice")}
        page = web.get("/qos", headers={**HTML, "X-Remote-User": "root"}).text
    counts = ("qos", "max_gpus_per_user", "running", "gpus", "waiting")
    assert [tuple(row[name] for name in counts) for row in found["root"]["qos"]] == [
        ("high", 8, 1, 2, 1),
        ("normal", None, 0, 0, 0),
    ]
    (own,) = [row for row in found["alice"]["qos"] if row["qos"] == "high"]
    assert (own["running"], own["gpus"], own["waiting"]) == (0, 0, 1)
    assert "reservations" not in found["alice"]
    assert found["root"]["reservations"][0]["name"] == "maint" and "n[1-2]" in page


def test_without_the_rules_the_jobs_of_a_qos_are_counted(fake_site: FakeSite) -> None:
    with client(fake_site) as web:
        found = web.get("/qos", headers=JSON).json()
    assert "scheduling rules" in found["problem"] and found["reservations"] is None
    assert [(row["qos"], row["max_gpus_per_user"], row["running"]) for row in found["qos"]] == [("high", None, 1)]


def test_a_node_has_the_jobs_that_run_on_it_now(tmp_path: Path) -> None:
    cluster = FakeCluster(name="dev")
    for job_id, nodes in (("7", "n[2-3]"), ("8", "n4")):
        cluster.submit(job_id=job_id)
        cluster.start(job_id, node_list=nodes)
    with told(FakeNodeSite(tmp_path), cluster=cluster) as web:
        asked = {**JSON, "X-Remote-User": "root"}
        running = {node: web.get(f"/nodes/{node}", headers=asked).json()["running"] for node in ("n1", "n2", "n3")}
        page = web.get("/nodes/n2", headers={**HTML, "X-Remote-User": "root"}).text
    assert {node: [job["job_id"] for job in jobs] for node, jobs in running.items()} == {
        "n1": [],
        "n2": ["7"],
        "n3": ["7"],
    }
    assert "Jobs that run on it now" in page
