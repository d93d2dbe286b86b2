"""The list of jobs: filtered and sorted by the database, and only the reader's own."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from helios.app import job_list
from helios.web.pages import jobs
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, JSON, client

PROXY: dict[str, Any] = {
    "user_header": "X-Remote-User",
    "admins": frozenset({"root"}),
    "managers": frozenset({"carol"}),
}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A site where alice and bob have 40 jobs each."""
    fake_site = FakeSite(tmp_path_factory.mktemp("site"))
    fake_site.learn()
    with client(fake_site, **PROXY) as found:
        yield found


def rows(web: TestClient, query: str = "", *, user: str = "root") -> Any:
    answer = web.get(f"/jobs{query}", headers={**JSON, "X-Remote-User": user})
    assert answer.status_code == 200
    return answer.json()


def test_jobs_come_in_pages_the_newest_first(web: TestClient) -> None:
    first, second = rows(web), rows(web, "?page=2")
    times = [row["submitted_at"] for row in first["rows"] + second["rows"]]
    assert times == sorted(times, reverse=True)
    assert (first["jobs"], first["pages"], len(second["rows"])) == (80, 2, 30)


def test_only_jobs_with_every_value_are_listed(web: TestClient) -> None:
    found = rows(web, "?user=bob&state=completed")["rows"]
    assert {(row["user"], row["state"]) for row in found} == {("bob", "COMPLETED")}
    assert rows(web, "?name=nothing-has-this")["rows"] == []


@pytest.mark.parametrize("user", ["bob", "carol"])
def test_who_is_no_admin_has_the_own_jobs_alone(web: TestClient, user: str) -> None:
    found = rows(web, user=user)
    assert {row["user"] for row in found["rows"]} == ({"bob"} if user == "bob" else set())
    assert web.get("/jobs?user=alice", headers={**JSON, "X-Remote-User": user}).status_code == 404


def test_a_field_that_is_not_cheap_to_sort_by_is_no_link(web: TestClient) -> None:
    page = web.get("/jobs", headers={**HTML, "X-Remote-User": "root"}).text
    assert "sort=-GPUs" in page and "sort=Name" not in page and "sort=-Waited" not in page
    refused = web.get("/jobs?sort=Name", headers={**JSON, "X-Remote-User": "root"})
    assert (refused.status_code, "RunTime" in refused.json()["hint"]) == (400, True)


@pytest.mark.parametrize(("query", "hint"), [("state=BROKEN", "OUT_OF_MEMORY"), ("page=3", "2 pages")])
def test_what_is_not_there_is_refused_with_what_is(web: TestClient, query: str, hint: str) -> None:
    refused = web.get(f"/jobs?{query}", headers={**JSON, "X-Remote-User": "root"})
    assert refused.status_code == 400 and hint in refused.json()["hint"]


def test_csv_has_all_pages_up_to_a_bound_that_the_page_says(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(query: str) -> list[list[str]]:
        text = web.get(f"/jobs?format=csv{query}", headers={**HTML, "X-Remote-User": "root"}).text
        return list(csv.reader(io.StringIO(text)))

    assert len(lines("")) == 81
    for module in (jobs, job_list):
        monkeypatch.setattr(module, "MOST_JOBS", 60)
    query = "&from=now-9weeks"  # another page than the one that is kept
    assert len(lines(query)) == 61
    page = web.get("/jobs?from=now-9weeks", headers={**HTML, "X-Remote-User": "root"}).text
    assert "more than 60" in page and "Page 1 of 2" in page
