"""The search field leads to a job, a user, an account, a partition; to nobody else's for a user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, client

PROXY = {"user_header": "X-Remote-User", "admins": frozenset({"root"}), "managers": frozenset({"carol"})}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[TestClient]:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    with client(fake_site, **PROXY) as found:
        yield found


def search(web: TestClient, text: str, user: str) -> tuple[int, str]:
    found = web.get("/search", params={"q": text, "from": "now-1weeks"}, headers={**HTML, "X-Remote-User": user})
    return found.status_code, found.headers.get("location", "")


@pytest.mark.parametrize(
    ("text", "path"),
    [("4711", "/jobs/4711"), ("4711_3", "/jobs/4711_3"), (" bob ", "/users/bob"), ("gpu", "/partitions/gpu")],
)
def test_an_admin_is_led_to_what_is_called_so(web: TestClient, text: str, path: str) -> None:
    assert search(web, text, "root") == (303, f"{path}?from=now-1weeks")


def test_a_manager_finds_partitions_and_no_users(web: TestClient) -> None:
    assert search(web, "gpu", "carol") == (303, "/partitions/gpu?from=now-1weeks")
    assert search(web, "bob", "carol")[0] == 404


def test_a_user_finds_only_the_own_name_and_jobs(web: TestClient) -> None:
    assert search(web, "bob", "bob") == (303, "/users/bob?from=now-1weeks")
    assert search(web, "alice", "bob")[0] == search(web, "nobody", "bob")[0] == 404


@pytest.mark.parametrize("text", ["", "nothing of this name", "<script>alert(1)</script>"])
def test_what_is_not_here_is_said_and_escaped(web: TestClient, text: str) -> None:
    page = web.get("/search", params={"q": text}, headers={**HTML, "X-Remote-User": "root"})
    assert page.status_code == 404
    assert "<script>alert" not in page.text
