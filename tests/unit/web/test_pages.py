"""The web page: who may read what, the same as JSON, and nothing that a job's text could break."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from starlette.testclient import TestClient

from helios.app.live_cluster import LiveCluster
from helios.app.operations import Operations
from helios.config import Settings
from helios.control import ServiceMode
from helios.errors import ClusterUnavailable, UsageError
from helios.model import Mode
from helios.private_files import read_secret
from helios.report.stored_study import study_path
from helios.study.study import load_study, store_study, study
from helios.testing import FakeNodes, a_node
from helios.warehouse import Warehouse
from helios.web.application import Access, web_application
from helios.web.openapi import openapi
from helios.web.pages import queue as queue_pages
from helios.web.routes import ROUTES
from helios.web.site import Site
from tests.builders import a_batch, a_job
from tests.unit.app.node_sites import FakeNodeSite
from tests.unit.app.sites import FakeSite

TOKEN = "a token of this test"
JSON = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}
HTML = {"Accept": "text/html", "Authorization": f"Bearer {TOKEN}"}
ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path, report={"folder": str(tmp_path / "reports")})
    fake_site.learn()
    (tmp_path / "reports").mkdir()
    return fake_site


def client(fake_site: FakeSite, **access: object) -> TestClient:
    operations = Operations(
        fake_site.settings, open_cluster=lambda settings: fake_site.live_cluster(), clock=lambda: fake_site.cluster.now
    )
    site = Site(fake_site.settings, clock=lambda: fake_site.cluster.now, operations=operations)
    application = web_application(site, Access(token=TOKEN, **access))  # type: ignore[arg-type]
    return TestClient(application, base_url="http://127.0.0.1", follow_redirects=False)


@pytest.fixture
def web(fake_site: FakeSite) -> Iterator[TestClient]:
    with client(fake_site) as found:
        yield found


def test_tabs_of_one_reader_cost_one_page_of_the_queue(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(
        queue_pages, "count_jobs", lambda *given, real=queue_pages.count_jobs: made.append(1) or real(*given)
    )
    with client(fake_site) as web:
        for _ in range(8):
            assert web.get("/queue", headers=HTML).status_code == 200
    assert len(made) == 1


def test_a_window_that_ended_long_ago_says_so(web: TestClient) -> None:
    assert "This window ended on" not in web.get("/users?from=now-4weeks&to=now-1hours", headers=HTML).text
    assert ", 14 days ago." in web.get("/users?from=now-4weeks&to=now-14days", headers=HTML).text


def test_the_queue_is_there_with_predictions_and_places(fake_site: FakeSite, web: TestClient) -> None:
    long, short = fake_site.cluster.submit(user="bob"), fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes=ACTIVE)
    found = web.get("/", headers=JSON).json()
    assert (found["cluster"], found["pending"], found["running"]) == ("dev", 2, 0)
    assert [row["job_id"] for row in found["queue"]] == [short, long]
    assert found["queue"][0]["p50_s"] < found["queue"][1]["p50_s"]
    page = web.get("/", headers=HTML).text
    assert f'<a href="/jobs/{short}">{short}</a>' in page
    assert "2 jobs wait" in page


def test_a_part_of_a_gpu_is_shown_in_the_queue(fake_site: FakeSite, web: TestClient) -> None:
    fake_site.cluster.submit(user="bob", gpus=0.25)
    fake_site.cycles.cycle(modes=ACTIVE)
    assert web.get("/", headers=JSON).json()["queue"][0]["gpus"] == 0.25
    assert "<td>0.25</td>" in re.sub(r"<td[^>]*>", "<td>", web.get("/", headers=HTML).text)


def test_a_job_has_a_page_with_what_was_decided(fake_site: FakeSite, web: TestClient) -> None:
    fake_site.cluster.submit(user="bob")
    short = fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes=ACTIVE)
    found = web.get(f"/jobs/{short}", headers=JSON).json()
    assert (found["job_id"], found["rank"], found["rank_without"]) == (short, 1, 2)
    page = web.get(f"/jobs/{short}", headers=HTML).text
    assert "Predicted run time" in page
    assert "SiteFactor" in page


@pytest.mark.parametrize("route", [route for route in ROUTES if "{" not in route.path], ids=lambda route: route.path)
def test_every_page_of_the_menu_answers_in_html_and_json(web: TestClient, route: object) -> None:
    path = route.path  # type: ignore[attr-defined]
    page, values = web.get(path, headers=HTML), web.get(path, headers=JSON)
    assert page.headers["content-type"].startswith("text/html")
    assert values.headers["content-type"] == "application/json"
    assert page.status_code == values.status_code
    # Nodes are not part of this cluster.
    assert page.status_code == (503 if path == "/nodes" else 200)
    assert "Traceback" not in page.text
    assert not re.search(r"(?:src|href|action)=\"?(?:https?:)?//", page.text)


def test_use_is_counted_by_user_and_a_user_has_a_page(web: TestClient) -> None:
    rows = web.get("/users", headers=JSON).json()["rows"]
    assert {row["group"]: row["jobs"] for row in rows} == {"alice": 40, "bob": 40}
    only = web.get("/users?user=bob", headers=JSON).json()["rows"]
    assert [row["group"] for row in only] == ["bob"]
    assert web.get("/users/bob", headers=JSON).json()["by_partition"][0]["jobs"] == 40


def test_use_has_who_only_held_gpus_in_the_window(web: TestClient) -> None:
    # The last five of bob's hourly jobs run on then, one of them for 53 minutes. Nobody submits one.
    window = "/users?from=now-12hours&to=now-11hours"
    (row,) = web.get(window, headers=JSON).json()["rows"]
    assert (row["group"], row["jobs"], row["gpu_hours"]) == ("bob", 0, pytest.approx(4.89, abs=0.01))
    assert "held in the window" in web.get(window, headers=HTML).text


@pytest.mark.parametrize(
    ("accepted", "query", "begin"),
    [
        ("application/json;q=0.9,text/plain", {}, '{"title"'),
        ("text/csv; charset=utf-8", {"format": "csv"}, "account,jobs"),
    ],
)
def test_requests_of_grafanas_infinity_data_source_are_answered(
    fake_site: FakeSite, web: TestClient, accepted: str, query: dict[str, str], begin: str
) -> None:
    # As its client writes them (pkg/infinity/headers.go), with Grafana's ${__from:date:iso} and ${__to:date:iso}.
    now = fake_site.cluster.now
    window = {"from": now - timedelta(weeks=4), "to": now}
    given = {name: f"{moment:%Y-%m-%dT%H:%M:%S.000Z}" for name, moment in window.items()} | query
    headers = {"Accept": accepted, "Authorization": f"Bearer {TOKEN}", "User-Agent": "Go-http-client/1.1"}
    answer = web.get("/accounts", params=given, headers=headers)
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (
        200,
        accepted.split(";", maxsplit=1)[0],
    )
    assert answer.text.startswith(begin) and "lab" in answer.text


def test_nothing_is_shown_without_the_token(fake_site: FakeSite, web: TestClient) -> None:
    for path in ("/", "/users", "/openapi.json", "/reports/x.html", "/jobs/1"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "helios_token=wrong"}):
            refused = web.get(path, headers=headers)
            assert refused.status_code == 401
            assert "dev" not in refused.text
    opened = web.get(f"/users?to=now&token={TOKEN.replace(' ', '+')}")
    assert (opened.status_code, opened.headers["location"]) == (303, "/users?to=now")
    assert "HttpOnly" in opened.headers["set-cookie"] and "SameSite=strict" in opened.headers["set-cookie"]
    assert web.get("/users").status_code == 200


def test_the_address_with_the_token_leads_to_no_other_site(web: TestClient) -> None:
    opened = web.get(f"http://127.0.0.1//example.org/?token={TOKEN.replace(' ', '+')}")
    assert (opened.status_code, opened.headers["location"]) == (303, "/example.org/")


def test_another_name_of_this_server_is_refused(web: TestClient) -> None:
    assert web.get("/", headers={**HTML, "Host": "evil.example"}).status_code == 421
    assert web.get("/", headers={**HTML, "Host": "localhost:9850"}).status_code == 200
    assert web.get("/", headers={**HTML, "Host": "[::1]:9850"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_can_only_be_read(web: TestClient, method: str) -> None:
    assert web.request(method, "/", headers=HTML).status_code == 405


def test_runs_of_a_job_are_shown_without_earlier_owners_of_its_id(fake_site: FakeSite) -> None:
    moments = [pd.Timestamp(fake_site.cluster.now) - pd.Timedelta(hours=hours) for hours in (900, 48, 46)]
    users, states = ("bob", "alice", "alice"), ("COMPLETED", "PREEMPTED", "COMPLETED")
    jobs = [
        a_job(job_id="7", user=user, state=state, submitted_at=moment, run_time_s=7000.0, restart=number)
        for user, state, moment, number in zip(users, states, moments, (0, 0, 1), strict=True)
    ]
    with fake_site.warehouse() as warehouse:
        warehouse.load([a_batch(*jobs)], cluster="dev", path="p", sha256="runs", format="sacct", timezone="UTC")
    with client(fake_site, user_header="X-Remote-User", admins=frozenset({"root"})) as web:
        of_alice, of_root = (web.get("/jobs/7", headers={**HTML, "X-Remote-User": u}).text for u in ("alice", "root"))
    assert "It was run 2 times" in of_alice and "bob" not in of_alice
    assert "the job of bob submitted" in of_root


def test_a_user_of_a_proxy_sees_the_own_jobs_alone(fake_site: FakeSite) -> None:
    his, hers = fake_site.cluster.submit(user="bob"), fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes=ACTIVE)
    with client(fake_site, user_header="X-Remote-User", admins=frozenset({"root"})) as web:
        alice, root = ({**JSON, "X-Remote-User": name} for name in ("alice", "root"))
        assert web.get("/", headers=JSON).status_code == 403  # the proxy names nobody
        mine = web.get("/", headers=alice).json()
        assert mine["pending"] == 1
        assert [row["job_id"] for row in mine["queue"]] == [hers]
        assert web.get(f"/jobs/{hers}", headers=alice).status_code == 200
        refused = web.get(f"/jobs/{his}", headers=alice)
        assert (refused.status_code, "bob" in refused.text) == (404, False)
        assert web.get("/jobs/404404", headers=alice).text == refused.text.replace(his, "404404")
        assert web.get("/users/alice", headers=alice).status_code == 200
        for path in ("/users", "/users/bob", "/accounts", "/waiting", "/decisions", "/reports", "/reports/x.html"):
            assert web.get(path, headers=alice).status_code == 404
        assert len(web.get("/", headers=root).json()["queue"]) == 2
        # Without the proxy's token a header is worth nothing.
        assert web.get("/", headers={"X-Remote-User": "root"}).status_code == 401


def test_only_reports_of_the_folder_are_shown(fake_site: FakeSite, web: TestClient, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    (folder / "night.html").write_text("<p>night</p>")
    (folder / "mail.eml").write_text("To: root")
    (folder / "link.html").symlink_to("/etc/passwd")
    assert [each["file"] for each in web.get("/reports", headers=JSON).json()["reports"]] == ["night.html"]
    shown = web.get("/reports/night.html", headers=HTML)
    assert (shown.status_code, shown.text) == (200, "<p>night</p>")
    assert "default-src 'none'" in shown.headers["content-security-policy"]
    for name in ("mail.eml", "link.html", "..%2Fhelios.db", "%2Fetc%2Fpasswd"):
        assert web.get(f"/reports/{name}", headers=HTML).status_code == 404


def test_what_a_user_writes_is_text(fake_site: FakeSite, web: TestClient) -> None:
    found = web.get("/users/%3Cscript%3Ealert(1)%3C%2Fscript%3E", headers=HTML).text
    assert "<script" not in found
    wrong = web.get("/users?from=%22%3E%3Cscript%3E", headers=HTML)
    assert wrong.status_code == 400
    assert "<script" not in wrong.text


def test_a_cluster_that_is_away_leaves_the_history(fake_site: FakeSite, web: TestClient) -> None:
    def unreachable(settings: Settings) -> LiveCluster:
        raise ClusterUnavailable("slurmctld does not answer")

    site = Site(
        fake_site.settings,
        clock=lambda: fake_site.cluster.now,
        operations=Operations(fake_site.settings, open_cluster=unreachable),
    )
    with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as away:
        assert "problem" in away.get("/", headers=JSON).json()
        assert "cannot be read" in away.get("/", headers=HTML).text
        assert away.get("/users", headers=JSON).json()["rows"]


def test_openapi_describes_every_page(web: TestClient) -> None:
    assert web.get("/openapi.json", headers=JSON).json() == openapi()
    assert set(openapi()["paths"]) == {route.path for route in ROUTES}


def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "token"
    kept.write_text(TOKEN + "\n")
    kept.chmod(0o644)
    with pytest.raises(UsageError, match="Others can read"):
        read_secret(kept)
    kept.chmod(0o600)
    assert read_secret(kept) == TOKEN
    with pytest.raises(UsageError, match="guessed"):
        Access(token="short")


def test_nodes_have_a_page_each(tmp_path: Path) -> None:
    fake_site = FakeNodeSite(tmp_path)
    operations = Operations(
        fake_site.settings, open_cluster=lambda settings: fake_site.live_cluster(), clock=lambda: fake_site.nodes.now
    )
    site = Site(fake_site.settings, clock=lambda: fake_site.nodes.now, operations=operations)
    with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as web:
        pools = web.get("/nodes", headers=JSON).json()["pools"]
        assert sum(pool["total"] for pool in pools) == len(fake_site.nodes.snapshot().nodes)
        assert pools[0]["pool"] in web.get("/nodes", headers=HTML).text
        name = fake_site.nodes.snapshot().nodes["name"].iloc[0]
        assert "/pools/" not in web.get("/nodes", headers=HTML).text  # pools of nodes are none of trials
        assert name in web.get(f"/nodes/{name}", headers=HTML).text
        assert web.get("/nodes/nowhere", headers=JSON).status_code == 404


def test_all_nodes_are_listed_those_that_failed_first(fake_site: FakeSite) -> None:
    nodes = FakeNodes(name="dev", nodes=[a_node(name=f"n{number}") for number in (1, 2, 3)])
    nodes.drain("n2", reason="a GPU is lost")
    fake_site.cluster.nodes = nodes.snapshot().nodes.to_dict("records")
    operations = Operations(
        fake_site.settings,
        open_cluster=lambda _: replace(fake_site.live_cluster(), nodes=lambda: nodes),
        clock=lambda: fake_site.cluster.now,
    )
    site = Site(fake_site.settings, clock=lambda: fake_site.cluster.now, operations=operations)
    with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as web:
        told, page = web.get("/nodes", headers=JSON).json(), web.get("/nodes", headers=HTML).text
        overview = web.get("/", headers=HTML).text
    assert [node["name"] for node in told["nodes"]] == ["n2", "n1", "n3"]
    assert (told["nodes"][0]["state"], told["nodes"][0]["reason"]) == ("IDLE+DRAIN", "a GPU is lost")
    assert '<a href="/nodes/n2">' in page and '<a href="/nodes/n2">' in overview
    assert "3 nodes: 2 idle, 1 drained." in page and "3 nodes: 2 idle, 1 drained." in overview


def test_what_runs_is_listed_with_the_time_that_is_left(fake_site: FakeSite, web: TestClient) -> None:
    job = fake_site.cluster.submit(user="alice", time_limit_s=7_200.0)
    fake_site.cluster.start(job, node_list="n[1-2]")
    fake_site.cluster.tick(timedelta(hours=1))
    (row,) = web.get("/running", headers=JSON).json()["jobs"]
    assert (row["job_id"], row["node_list"]) == (job, "n[1-2]")
    assert row["ran_s"] == row["left_s"] == pytest.approx(3_600.0, abs=60.0)
    assert f"/jobs/{job}" in web.get("/running", headers=HTML).text


def test_slurms_reason_stands_in_the_queue_for_an_admin_only(fake_site: FakeSite) -> None:
    fake_site.cluster.submit(user="bob", reason="QOSMaxGRESPerUser")
    with client(fake_site, user_header="X-Remote-User", admins=frozenset({"root"})) as web:
        shown = {user: web.get("/queue", headers={**HTML, "X-Remote-User": user}).text for user in ("root", "bob")}
        told = {user: web.get("/queue", headers={**JSON, "X-Remote-User": user}).json() for user in ("root", "bob")}
    assert "QOSMaxGRESPerUser" in shown["root"] and "QOSMaxGRESPerUser" not in shown["bob"]
    assert told["root"]["queue"][0]["reason"] == "QOSMaxGRESPerUser" and "reason" not in told["bob"]["queue"][0]


def test_decisions_begin_with_the_newest_and_lead_to_their_jobs(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="bob")
    for _ in range(2):
        fake_site.cycles.cycle(modes=ACTIVE)
        fake_site.cluster.tick(timedelta(minutes=30))
    with client(fake_site) as web:
        rows, page = web.get("/decisions", headers=JSON).json()["rows"], web.get("/decisions", headers=HTML).text
    times = [row["decided_at"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert f'href="/jobs/{job}"' in page and 'href="/jobs/dev"' not in page


def test_long_answers_are_compressed_and_short_ones_are_not(web: TestClient) -> None:
    assert web.get("/static/uplot.min.js", headers=HTML).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in web.get("/static/uplot.min.js", headers={**HTML, "Accept-Encoding": ""}).headers
    assert "content-encoding" not in web.get("/nothing", headers=HTML).headers


def test_the_latest_study_is_shown_with_its_figures(fake_site: FakeSite, web: TestClient) -> None:
    assert web.get("/study", headers=JSON).json()["made_at"] is None
    assert "helios study --keep" in web.get("/study", headers=HTML).text
    now, folder = fake_site.cluster.now, Path(fake_site.settings.report.folder)
    loaded, records = load_study(url=fake_site.settings.database.url, cluster="dev", window=lambda *_: (None, None))
    found = study(loaded, records=records)
    path = store_study(found, folder, energy=None, now=now)
    assert path.stat().st_mode & 0o007 == 0
    with client(fake_site) as anew:
        values = anew.get("/study", headers=JSON).json()
        assert values["made_at"] == now.isoformat()
        assert len(values["statements"]) == len(found.statements)
        page = anew.get("/study", headers=HTML).text
    assert page.count("<svg") >= 4
    assert found.statements[0].title in page
    assert page.index('class="verdict"') < page.index('<details class="fold">') < page.index("<svg")
    assert "<script" not in page


def test_a_study_that_cannot_be_read_is_none(fake_site: FakeSite, web: TestClient) -> None:
    (Path(fake_site.settings.report.folder) / "study-dev.json").write_text("{")
    assert web.get("/study", headers=JSON).json() == {"made_at": None}


def test_an_admin_sees_all_advice_and_a_user_their_own(fake_site: FakeSite) -> None:
    with Warehouse.open(fake_site.settings.database.url) as warehouse:
        jobs = [
            a_job(
                job_id=str(90_000 + number),
                user=("alice", "bob")[number % 2],
                name="sweep",
                gpus=8,
                submitted_at=fake_site.cluster.now - timedelta(days=2, minutes=number),
                run_time_s=3_600.0,
                time_limit_s=86_400.0,
            )
            for number in range(60)
        ]
        warehouse.load([a_batch(*jobs)], cluster="dev", path="more", sha256="another", format="sacct", timezone="UTC")
    with client(fake_site, user_header="X-Remote-User", admins=frozenset({"root"})) as web:
        of = {name: {**JSON, "X-Remote-User": name} for name in ("root", "alice")}
        assert {one["user"] for one in web.get("/advice", headers=of["root"]).json()["advice"]} == {"alice", "bob"}
        own = web.get("/advice", headers=of["alice"])
        assert {one["user"] for one in own.json()["advice"]} == {"alice"}
        assert "bob" not in own.text
        assert web.get("/advice?user=bob", headers=of["alice"]).status_code == 404
        only = web.get("/advice?user=bob", headers=of["root"]).json()
        assert {one["user"] for one in only["advice"]} == {"bob"}
        page = web.get("/advice", headers={**HTML, "X-Remote-User": "alice"}).text
        assert "--time=01:15:00" in page and "the middle 8 of 10 ran: 1 h to 1 h" in page
        assert web.get("/study", headers=of["alice"]).status_code == 404


def test_reports_are_named_by_their_titles(fake_site: FakeSite, web: TestClient) -> None:
    folder = Path(fake_site.settings.report.folder)
    (folder / "w.html").write_text("<!DOCTYPE html><title>What if? dev &amp; more</title>")
    (folder / "w.txt").write_text("text")
    titles = {each["file"]: each["title"] for each in web.get("/reports", headers=JSON).json()["reports"]}
    assert titles == {"w.html": "What if? dev & more", "w.txt": "the same as text"}
    assert "What if? dev &amp; more" in web.get("/reports", headers=HTML).text


def add_venus(fake_site: FakeSite) -> None:
    """Load a file of another cluster, as by accident."""
    with fake_site.warehouse() as warehouse:
        loaded = {"cluster": "venus", "path": "v", "sha256": "v", "format": "sacct", "timezone": "UTC"}
        warehouse.load([a_batch(a_job(user="vera", submitted_at=fake_site.cluster.now - timedelta(days=1)))], **loaded)  # type: ignore[arg-type]  # all are texts


def users_shown(
    fake_site: FakeSite, *, cluster: str | None = None, live: bool = True, setting: str = ""
) -> set[str] | str:
    """Return the users on the page of users, or why there is none."""

    def open_cluster(_: Settings) -> LiveCluster:
        if not live:
            raise ClusterUnavailable("slurmctld does not answer")
        return fake_site.live_cluster()

    database = fake_site.settings.database.model_copy(update={"cluster": setting})
    settings = fake_site.settings.model_copy(update={"database": database})
    operations = Operations(settings, open_cluster=open_cluster)
    site = Site(settings, cluster=cluster, clock=lambda: fake_site.cluster.now, operations=operations)
    with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as web:
        found = web.get("/users", headers=JSON).json()
        assert (web.get("/study", headers=JSON).status_code == 200) == ("rows" in found)
        return {row["group"] for row in found["rows"]} if "rows" in found else str(found["error"])


def test_the_cluster_is_the_named_one_else_the_live_one(fake_site: FakeSite) -> None:
    assert users_shown(fake_site, live=False) == {"alice", "bob"}  # the only one
    add_venus(fake_site)
    assert users_shown(fake_site) == {"alice", "bob"}
    assert users_shown(fake_site, setting="venus") == {"vera"}
    assert users_shown(fake_site, setting="venus", cluster="dev") == {"alice", "bob"}
    assert users_shown(fake_site, cluster="mars") == "No cluster 'mars' is loaded."
    assert "several clusters: dev, venus" in users_shown(fake_site, live=False)


def test_the_queue_of_another_cluster_than_the_named_one_is_not_shown(
    fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = partial(Operations, open_cluster=lambda _: fake_site.live_cluster())
    monkeypatch.setattr("helios.web.site.Operations", here)
    database = fake_site.settings.database.model_copy(update={"cluster": "venus"})
    site = Site(fake_site.settings.model_copy(update={"database": database}))
    assert "'dev', not 'venus'" in str(site.live())


@pytest.mark.parametrize("name", ["../dev", "a/../../x", ".", "", "a\nb", "v" * 300])
def test_the_study_of_a_cluster_of_any_name_stays_in_its_folder(fake_site: FakeSite, name: str) -> None:
    folder = Path(fake_site.settings.report.folder)
    with sqlite3.connect(fake_site.folder / "helios.db") as database:  # by an earlier version
        database.execute("UPDATE clusters SET name = ?", (name,))
    stored = {"made_at": fake_site.cluster.now.isoformat(), "subtitle": "", "values": {"secret": 1}, "sections": []}
    for place in (folder / "study-dev.json", folder.parent / "dev.json", folder.parent / "x.json"):
        place.write_text(json.dumps(stored))
    with client(fake_site) as web:
        assert web.get("/study", headers=JSON).json() == {"made_at": None}
    kept = study_path(folder, name)
    assert kept.parent == folder
    kept.write_text(json.dumps(stored))
    with client(fake_site) as web:
        assert web.get("/study", headers=JSON).json()["secret"] == 1
