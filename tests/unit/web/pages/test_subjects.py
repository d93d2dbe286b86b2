"""The pages of one user, account, partition and node, by the reader's role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from starlette.testclient import TestClient

from helios.app.operations import Operations
from helios.model.slurm_site import PartitionRules, QosRules, SlurmSite
from helios.web.application import Access, web_application
from helios.web.site import Site
from tests.builders import a_batch, a_job
from tests.unit.app.node_sites import FakeNodeSite
from tests.unit.app.sites import FakeSite
from tests.unit.app.test_start_estimates import RuledSite
from tests.unit.web.pages.test_job import MOST_BYTES, without_slurm
from tests.unit.web.test_pages import HTML, JSON, TOKEN, client

RULES = SlurmSite(
    partitions=(PartitionRules(name="gpu", nodes=("n1", "n2"), max_time_s=7200),),
    qos=(QosRules(name="normal"), QosRules(name="high", max_gpus_per_user=8)),
)
USERS = 1_200


@pytest.fixture(scope="module")
def fake_site(tmp_path_factory: pytest.TempPathFactory) -> FakeSite:
    """A cluster where 60 jobs of alice hold far too long limits, and many users have a job each."""
    fake_site = FakeSite(tmp_path_factory.mktemp("subjects"))
    now = pd.Timestamp(fake_site.cluster.now)
    sweep = {"user": "alice", "name": "sweep", "gpus": 8, "run_time_s": 3_600.0, "time_limit_s": 86_400.0}
    jobs = [
        a_job(job_id=f"{n}", account="lab", node_list="n1", submitted_at=now - timedelta(days=2, hours=n), **sweep)
        for n in range(60)
    ]
    jobs += [
        a_job(
            job_id=f"{10_000 + n}", user=f"u{n:04d}", account="others", submitted_at=now - timedelta(hours=30 + n % 9)
        )
        for n in range(USERS)
    ]
    jobs.append(a_job(job_id="9", user="u0000", partition="gone", submitted_at=now - timedelta(days=20)))
    with fake_site.warehouse() as warehouse:
        options = {"cluster": "dev", "path": "p", "sha256": "1", "format": "sacct", "timezone": "UTC"}
        warehouse.load([a_batch(*jobs)], **options)  # type: ignore[arg-type]  # all are texts
    fake_site.read()
    return fake_site


@pytest.fixture(scope="module")
def web(fake_site: FakeSite) -> Iterator[TestClient]:
    live = replace(fake_site.live_cluster(), rules=lambda: RULES)
    operations = Operations(fake_site.settings, open_cluster=lambda _: live, clock=lambda: fake_site.cluster.now)
    site = Site(fake_site.settings, clock=lambda: fake_site.cluster.now, operations=operations)
    access = Access(token=TOKEN, user_header="X-Remote-User", admins=frozenset({"root"}), managers=frozenset({"boss"}))
    with TestClient(web_application(site, access), base_url="http://127.0.0.1") as found:
        yield found


def ask(web: TestClient, path: str, *, user: str = "root") -> dict[str, Any]:
    found: dict[str, Any] = web.get(path, headers={**JSON, "X-Remote-User": user}).json()
    return found


def text(web: TestClient, path: str, *, user: str = "root") -> str:
    page = web.get(path, headers={**HTML, "X-Remote-User": user})
    assert page.status_code == 200
    assert len(page.content) < MOST_BYTES
    return page.text


def test_a_user_has_last_jobs_that_are_sorted_and_linked(web: TestClient) -> None:
    page = text(web, "/users/alice?from=now-4weeks&sort=-Submitted", user="alice")
    assert "60 jobs submitted" in page and "The last 50 jobs" in page
    assert '<a href="/jobs/0?from=now-4weeks">0</a>' in page
    lines = web.get("/users/alice?from=now-4weeks&format=csv", headers={**HTML, "X-Remote-User": "alice"}).text
    assert len(lines.splitlines()) == 51


@pytest.mark.parametrize(
    ("path", "sort", "rows"),
    [("/users/alice", "-Submitted", "jobs"), ("/partitions/gpu", "-Jobs", "by_user"), ("/advice", "-Jobs", "rows")],
)
def test_json_has_the_page_of_rows_that_was_asked_for(web: TestClient, path: str, sort: str, rows: str) -> None:
    whole = ask(web, f"{path}?from=now-4weeks&sort={sort}")[rows]
    assert 1 <= len(ask(web, f"{path}?from=now-4weeks&sort={sort}&page=1")[rows]) <= min(len(whole), 50)


def test_a_users_advice_is_one_row_for_a_kind(web: TestClient) -> None:
    kinds = ask(web, "/users/alice?from=now-4weeks", user="alice")["advice"]
    assert len(kinds) == 1
    kind = kinds[0]
    assert (kind["jobs"], kind["gpu_hours"], kind["example"]) == (60, 480.0, "0")
    assert "Time limit far above the run time" in text(web, "/users/alice?from=now-4weeks", user="alice")


@pytest.mark.parametrize("user", ["root", "alice"])
def test_the_way_back_leads_only_where_the_reader_may_go(web: TestClient, user: str) -> None:
    assert ('href="/users?from=now-4weeks">Users' in text(web, "/users/alice?from=now-4weeks", user=user)) == (
        user == "root"
    )


def test_a_user_sees_the_limits_of_slurm(web: TestClient) -> None:
    page = text(web, "/users/alice?from=now-4weeks", user="alice")
    assert "Longest time limits: gpu 2 h." in page
    assert "At once a user may hold in QOS high: at most 8 GPUs." in page
    assert "QOS normal" not in page


def test_use_over_time_is_drawn_of_the_own_jobs(web: TestClient) -> None:
    charts = ask(web, "/users/alice?from=now-4weeks", user="alice")["charts"]
    assert [line["name"] for line in charts["use_by_partition"]["lines"]] == ["gpu"]
    assert "Capacity" not in str(charts)


def test_an_admins_advice_is_one_table_by_kind_and_one_by_user(web: TestClient) -> None:
    page = text(web, "/advice?from=now-4weeks")
    assert "Advice by kind and user" in page
    assert '<a href="/users/alice?from=now-4weeks">alice</a>' in page
    assert "Evidence" in text(web, "/advice?from=now-4weeks&user=alice")


def test_advice_is_of_the_window_of_the_address_or_four_weeks(web: TestClient) -> None:
    jobs = {query: ask(web, f"/advice{query}")["jobs"] for query in ("", "?from=now-4weeks", "?from=now-7days")}
    assert jobs[""] == jobs["?from=now-4weeks"] == jobs["?from=now-7days"] + 1
    assert re.search(r"jobs submitted \d{4}-\d\d-\d\d .* to ", text(web, "/advice"))


def test_a_partition_has_the_rules_of_slurm_and_its_users_in_pages(web: TestClient) -> None:
    page = text(web, "/partitions/gpu?from=now-4weeks")
    assert "Slurm&#39;s rules: 2 nodes, at most 2 h" in page
    assert f"1 to 50 of {USERS + 1:,}" in page
    assert len(ask(web, "/partitions/gpu?from=now-4weeks")["by_user"]) == USERS + 1


def test_a_partition_that_slurm_does_not_have_is_said_so(web: TestClient) -> None:
    assert "Slurm has no such partition now." in text(web, "/partitions/gone?from=now-4weeks")


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/users/alcie", "alice"),
        ("/accounts/Other", "others"),
        ("/partitions/gppu", "gpu"),
        ("/nodes/n11", "n1"),
        ("/history?account=other", "others"),
        ("/search?q=alicia", "alice"),
    ],
)
def test_an_unknown_name_is_not_found_and_near_ones_are_told(web: TestClient, path: str, near: str) -> None:
    found = web.get(path, headers={**JSON, "X-Remote-User": "root"})
    assert (found.status_code, found.json()["hint"]) == (404, f"Meant perhaps: {near}.")


@pytest.mark.parametrize("path", ["/partitions/{}", "/history?account={}", "/jobs?partition={}", "/search?q={}"])
def test_names_of_others_are_told_from_unknown_ones_by_nobody(web: TestClient, path: str) -> None:
    def told(name: str) -> tuple[int, str]:
        answer = web.get(path.format(name), headers={**JSON, "X-Remote-User": "u0001"})
        return answer.status_code, answer.text.replace(name, "NAME")

    assert told("gone") == told("none") == told("lab")
    assert told("gone")[0] == 404 and "gpu" not in told("gone")[1]


def test_a_user_without_a_job_has_an_own_page(web: TestClient) -> None:
    assert "No job was submitted" in text(web, "/users/newcomer", user="newcomer")


@pytest.mark.parametrize("path", ["/partitions/gpu", "/accounts/others"])
def test_a_manager_sees_sums_and_no_users_or_jobs(web: TestClient, path: str) -> None:
    found = ask(web, f"{path}?from=now-4weeks", user="boss")
    assert not {"by_user", "jobs", "nodes"} & set(found)
    assert sum(row["jobs"] for row in found["by_size"]) >= USERS
    page = text(web, f"{path}?from=now-4weeks", user="boss")
    assert "u0001" not in page and "alice" not in page


def test_a_user_sees_the_own_part_of_a_partition(web: TestClient) -> None:
    found = ask(web, "/partitions/gpu?from=now-4weeks", user="u0001")
    assert [job["job_id"] for job in found["jobs"]] == ["10001"]
    assert [row["jobs"] for row in found["by_account"]] == [1]


def test_a_node_of_the_history_has_its_jobs(web: TestClient) -> None:
    page = text(web, "/nodes/n1?from=now-4weeks")
    assert "60 jobs ran on it, for 60.0 of 672 hours" in page
    assert "Its state now is not known" in page
    assert web.get("/nodes/n77", headers={**JSON, "X-Remote-User": "root"}).status_code == 404


def test_a_live_node_has_its_state_and_its_jobs(tmp_path: Path) -> None:
    fake_site = FakeNodeSite(tmp_path)
    operations = Operations(
        fake_site.settings, open_cluster=lambda _: fake_site.live_cluster(), clock=lambda: fake_site.nodes.now
    )
    site = Site(fake_site.settings, clock=lambda: fake_site.nodes.now, operations=operations)
    job = a_job(job_id="7", node_list="n[1-2]", submitted_at=pd.Timestamp(fake_site.nodes.now) - timedelta(hours=9))
    with fake_site.warehouse() as warehouse:
        options = {"cluster": "dev", "path": "p", "sha256": "1", "format": "sacct", "timezone": "UTC"}
        warehouse.load([a_batch(job)], **options)  # type: ignore[arg-type]  # all are texts
    with TestClient(web_application(site, Access(token=TOKEN)), base_url="http://127.0.0.1") as web:
        page = web.get("/nodes/n2", headers=HTML).text
    assert "Slurm says" in page and '<a href="/jobs/7">7</a>' in page


def test_a_user_is_told_what_a_job_like_the_last_meets(tmp_path: Path) -> None:
    fake_site = RuledSite(tmp_path)
    fake_site.learn()
    with client(fake_site) as web:
        told = web.get("/users/alice", headers=JSON).json()["like_the_last"]
        page = web.get("/users/alice", headers=HTML).text
    assert told["job_id"] == "alice39" and told["start"]["p50_at"] is not None
    assert "A job like the last one, alice39 (1 GPU in gpu, limit 1 h), submitted now: Starts" in page


def test_without_slurm_it_is_said_why_that_is_unknown(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    with without_slurm(fake_site) as web:
        found = web.get("/users/alice", headers=JSON).json()
    assert found["like_the_last"] is None
    assert "When a job like the last one would start now is not known" in " ".join(found["sentences"])
