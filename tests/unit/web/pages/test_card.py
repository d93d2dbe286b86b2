"""The card of own jobs, for a frame on another site's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from helios.config import Settings
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, JSON, client

PROXY: dict[str, Any] = {"user_header": "X-Remote-User", "admins": frozenset({"root"})}
PORTAL = "https://ondemand.example.org"


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


def policy(web: TestClient, path: str) -> str:
    return str(web.get(path, headers={**HTML, "X-Remote-User": "bob"}).headers["content-security-policy"])


def test_the_card_has_the_own_jobs_of_an_admin_too(fake_site: FakeSite) -> None:
    jobs = {user: fake_site.cluster.submit(user=user) for user in ("bob", "root")}
    fake_site.cluster.start(jobs["bob"])
    waiting = fake_site.cluster.submit(user="bob", tasks=3)
    with client(fake_site, **PROXY) as web:
        of_bob, of_root = (web.get("/card", headers={**JSON, "X-Remote-User": user}).json() for user in ("bob", "root"))
        text = web.get("/card", headers={**HTML, "X-Remote-User": "bob"}).text
    assert [(job["job_id"], job["state"]) for job in of_bob["jobs"]] == [(jobs["bob"], "running"), (waiting, "waiting")]
    assert (of_bob["running"], of_bob["pending"], of_root["pending"]) == (1, 3, 1)
    assert '<base target="_top">' in text and "<nav" not in text and "<form" not in text


def test_only_the_card_may_be_framed_and_only_where_it_is_set(fake_site: FakeSite) -> None:
    with client(fake_site, **PROXY) as web:
        assert "frame-ancestors 'none'" in policy(web, "/card")
    with client(fake_site, **PROXY, framed_by=(PORTAL,)) as web:
        assert f"frame-ancestors {PORTAL};" in policy(web, "/card")
        assert "frame-ancestors 'none'" in policy(web, "/") and "frame-ancestors 'none'" in policy(web, "/card/x")


@pytest.mark.parametrize("text", ["*", "https://a.example; script-src *", "ondemand", "https://a.example/x"])
def test_what_is_no_origin_cannot_frame_anything(text: str) -> None:
    with pytest.raises(ValidationError, match="no origin"):
        Settings.model_validate({"web": {"framed_by": text}})
