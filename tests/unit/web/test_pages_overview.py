"""The first page: what each reader is told, and how often its parts are made."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from starlette.testclient import TestClient

from helios.app.controllers import NODES_MEMORY
from helios.app.model_drift import DRIFTED
from helios.app.operations import Operations
from helios.control import NodeControllerState, ServiceMode
from helios.control.state import Failure
from helios.model import MODES, NODES, Mode
from helios.model.slurm_site import NodeGroup, PartitionRules, SlurmSite
from helios.report.stored_study import study_path
from helios.testing import a_node, a_snapshot
from helios.web.application import Access, web_application
from helios.web.page import Reader
from helios.web.pages import overview
from helios.web.site import Site
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import ACTIVE, HTML, JSON, TOKEN, client

PROXY: dict[str, Any] = {
    "user_header": "X-Remote-User",
    "admins": frozenset({"root"}),
    "managers": frozenset({"dean"}),
}


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path, report={"folder": str(tmp_path / "reports")})
    fake_site.learn()
    (tmp_path / "reports").mkdir()
    return fake_site


def told(fake_site: FakeSite, user: str = "root") -> dict[str, Any]:
    with client(fake_site, **PROXY) as web:
        found: dict[str, Any] = web.get("/", headers={**JSON, "X-Remote-User": user}).json()
    return found


def page(fake_site: FakeSite, user: str = "root") -> str:
    with client(fake_site, **PROXY) as web:
        return web.get("/", headers={**HTML, "X-Remote-User": user}).text


def test_the_week_has_the_figures_of_the_report(fake_site: FakeSite) -> None:
    with client(fake_site, **PROXY) as web:
        headers = {**JSON, "X-Remote-User": "root"}
        week = web.get("/", headers=headers).json()["week"]
        rows = web.get(f"/partitions?from={week['from'][:10]}", headers=headers).json()["rows"]
    assert week["jobs"] == sum(row["jobs"] for row in rows) == 80
    assert week["gpu_hours"] == pytest.approx(sum(row["gpu_hours"] for row in rows))


def test_a_change_that_was_made_is_counted_by_service(fake_site: FakeSite) -> None:
    for user in ("bob", "alice"):
        fake_site.cluster.submit(user=user)
    assert told(fake_site)["changes"] == []
    fake_site.cycles.cycle(modes=ACTIVE)
    (made,) = told(fake_site)["changes"]
    assert made["service"] == "qssf" and made["done"] > 0
    assert f"qssf: {made['done']} change" in page(fake_site)


def test_why_nothing_was_changed_is_told(fake_site: FakeSite) -> None:
    assert "services only note what they would do (shadow)" in page(fake_site)
    fake_site.cluster.submit(user="bob")
    fake_site.cycles.cycle(modes={"qssf": ServiceMode(mode=Mode.SHADOW)})
    assert "only noted in shadow mode" in page(fake_site)
    with fake_site.warehouse() as warehouse:
        off = {"service": "qssf", "mode": "off", "set_at": fake_site.cluster.now, "set_by": "root", "reason": "test"}
        warehouse.add_modes("dev", MODES.conform(pd.DataFrame([off])))
    fake_site.cluster.tick(timedelta(days=8))
    fake_site.read()
    assert "Nothing: all services are off." in page(fake_site)


def test_an_admin_sees_what_needs_a_person(fake_site: FakeSite) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", DRIFTED, "errors of jobs of bob have grown", at=fake_site.cluster.now)
    problems = {each["check"]: each for each in told(fake_site)["problems"]}
    assert {"daemon", "drift"} <= set(problems)
    assert "helios model drift" in problems["drift"]["hint"]
    assert "problems" not in told(fake_site, "dean") and "problems" not in told(fake_site, "alice")


def test_a_history_that_is_too_old_is_told(fake_site: FakeSite) -> None:
    fake_site.cluster.tick(timedelta(days=2))
    assert any("known until" in each["message"] for each in told(fake_site)["problems"])


def test_findings_of_the_study_come_with_their_commands(fake_site: FakeSite) -> None:
    statements = [
        {
            "name": f"s{hours}",
            "title": f"t{hours}",
            "sentence": f"{hours} hours are lost.",
            "verdict": "worth a try" if hours else "for orientation",
            "command": "helios whatif order",
            "hours_per_week": hours,
        }
        for hours in (5, 0, 30, 20, 10)
    ]
    stored = {
        "made_at": fake_site.cluster.now.isoformat(),
        "subtitle": "",
        "values": {"statements": statements},
        "sections": [],
    }
    study_path(Path(fake_site.settings.report.folder), "dev").write_text(json.dumps(stored))
    assert [each["name"] for each in told(fake_site)["findings"]] == ["s30", "s20", "s10"]
    assert "30 hours are lost. Try: helios whatif order" in page(fake_site)
    assert "findings" not in told(fake_site, "alice")


def test_a_manager_sees_accounts_and_no_user(fake_site: FakeSite) -> None:
    fake_site.cluster.submit(user="bob")
    found = told(fake_site, "dean")
    assert [row["group"] for row in found["accounts"]] == ["lab"]
    assert found["week"]["jobs"] == 80
    shown = page(fake_site, "dean")
    assert "Of yours" not in shown and "Your waiting jobs" not in shown  # nothing of the own waits
    assert "bob" not in json.dumps(found) + shown and "alice" not in json.dumps(found) + shown


def test_a_user_sees_the_own_week(fake_site: FakeSite) -> None:
    found = told(fake_site, "alice")
    assert found["week"]["jobs"] == 40
    assert {"accounts", "findings", "changes", "problems"}.isdisjoint(found)
    assert "40 jobs of yours submitted" in page(fake_site, "alice")


def test_three_small_charts_stand_on_it(fake_site: FakeSite) -> None:
    assert set(told(fake_site)["charts"]) == {"use", "waiting", "waits"}


def test_parts_of_the_page_are_made_once_a_minute(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    whole = overview._recent

    def recent(site: Site, reader: Reader) -> overview.Part:
        made.append(reader.user)
        return whole(site, reader)

    monkeypatch.setattr(overview, "_recent", recent)
    with client(fake_site, **PROXY) as web:
        for user in ("root", "alice", "root", "alice"):
            web.get("/", headers={**JSON, "X-Remote-User": user})
    assert made == ["root", "alice"]


def test_where_the_history_is_unknown_the_queue_is_still_shown(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.cluster.submit(user="bob")
    found = told(fake_site)
    assert found["pending"] == 1 and found["recent"] is None


def test_a_node_that_failed_to_wake_needs_a_person(fake_site: FakeSite) -> None:
    settings = fake_site.settings.model_dump() | {"services": {"ces": {}}}
    fake_site.settings = type(fake_site.settings).model_validate(settings)
    failed = Failure(node="gpu7", at=fake_site.cluster.now, what="no answer in 600 s")
    memory = NodeControllerState(quarantined={"gpu7": failed})
    with fake_site.warehouse() as warehouse:
        warehouse.remember("dev", NODES_MEMORY, memory.to_json(), at=fake_site.cluster.now)
    assert any("gpu7" in each["message"] for each in told(fake_site)["problems"])


def test_failed_nodes_are_named_with_their_reason() -> None:
    nodes = [
        a_node(name="n1", state="DOWN", reason="power supply"),
        a_node(name="n2", flags="DRAIN"),
        a_node(name="n3", state="ALLOCATED"),
        a_node(name="n4", flags="POWERED_DOWN"),
    ]
    assert overview._failed_nodes(a_snapshot(nodes=nodes)) == [("n1", "DOWN, power supply"), ("n2", "IDLE+DRAIN")]


def test_a_user_sees_when_the_own_waiting_jobs_may_start(fake_site: FakeSite) -> None:
    fake_site.cluster.submit(user="bob", gpus=8)
    own = [fake_site.cluster.submit(user="alice", gpus=8) for _ in range(2)]
    with fake_site.warehouse() as warehouse:
        warehouse.add_nodes("dev", NODES.conform(pd.DataFrame([{"name": "n1", "partition": "gpu", "gpus": 8}])))
    rules = SlurmSite(
        nodes=(NodeGroup(names=("n1",), cpus=64, gpus={"": 8}),),
        partitions=(PartitionRules(name="gpu", nodes=("n1",), is_default=True),),
    )
    live = replace(fake_site.live_cluster(), rules=lambda: rules)
    operations = Operations(fake_site.settings, open_cluster=lambda _: live, clock=lambda: fake_site.cluster.now)
    site = Site(fake_site.settings, clock=lambda: fake_site.cluster.now, operations=operations)
    with TestClient(web_application(site, Access(token=TOKEN, **PROXY)), base_url="http://127.0.0.1") as web:
        of = {user: web.get("/", headers={**JSON, "X-Remote-User": user}).json() for user in ("alice", "root")}
        shown = web.get("/", headers={**HTML, "X-Remote-User": "alice"}).text
    starts = of["alice"]["starts"]
    assert [start["job_id"] for start in starts] == own
    assert all(start["problem"] == "" for start in starts)
    first, second = (pd.Timestamp(start["p50_at"]) for start in starts)
    assert pd.Timestamp(of["alice"]["taken_at"]).floor("s") <= first < second
    assert 'data-head="Starts"' in shown and "8 in 10 simulations" in shown
    assert "starts" not in of["root"]
