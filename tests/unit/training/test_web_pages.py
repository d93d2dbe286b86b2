"""Pools on the web page: what it says of them, and to whom."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from helios.model.trial_runs import CurvePoint
from helios.web.application import Access, web_application
from helios.web.site import Site
from tests.builders import a_trial_run
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import HTML, JSON, TOKEN

PROXY: dict[str, Any] = {"user_header": "X-Remote-User", "admins": frozenset({"root"})}
CURVE = tuple(CurvePoint(step, step * 2.0, 1 / (step + 1)) for step in range(200))


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    return FakeSite(tmp_path)


@pytest.fixture
def web(fake_site: FakeSite) -> Iterator[TestClient]:
    site = Site(fake_site.settings, clock=lambda: fake_site.cluster.now)
    with TestClient(web_application(site, Access(token=TOKEN, **PROXY)), base_url="http://127.0.0.1") as client:
        yield client


def ask(web: TestClient, path: str, user: str = "root") -> Any:
    return web.get(path, headers={**JSON, "X-Remote-User": user})


def show(web: TestClient, path: str, user: str = "root") -> str:
    return web.get(path, headers={**HTML, "X-Remote-User": user}).text


def test_the_list_has_outcomes_the_best_and_gpu_hours(fake_site: FakeSite, web: TestClient) -> None:
    with fake_site.warehouse() as warehouse:
        runs = [
            a_trial_run(0, metrics={"loss": 0.5}, seconds=1800.0, placement=(2,)),
            a_trial_run(1, metrics={"loss": 0.1}, outcome="pruned", seconds=3600.0),
            a_trial_run(2, metrics={"loss": 0.9}, outcome="paused", seconds=3600.0),
            a_trial_run(2, attempt=2, metrics={"loss": 0.4}, seconds=3600.0),
        ]
        warehouse.add_trial_runs(runs, user="ann")
    (pool,) = ask(web, "/pools").json()["pools"]
    assert pool["trials"] == {"finished": 2, "pruned": 1}
    assert pool["best"] == {"number": 2, "value": 0.4}
    assert (pool["user"], pool["gpu_hours"]) == ("ann", 4.0)
    page = show(web, "/pools")
    assert '<a href="/pools/p">p</a>' in page
    assert "2 finished, 1 pruned" in page


def test_a_pool_has_a_page_with_figures_and_trials(fake_site: FakeSite, web: TestClient) -> None:
    with fake_site.warehouse() as warehouse:
        runs = [
            a_trial_run(number, curve=CURVE, parameters={"lr": 10.0**-number}, metrics={"loss": number + 1.0})
            for number in range(3)
        ]
        warehouse.add_trial_runs(runs, user="ann")
    page = show(web, "/pools/p")
    assert "Curves of loss by step: 3 finished; the best is trial 0 with 1" in page
    assert "Parallel coordinates of 3 trials" in page
    assert "train.py of ann: 3 finished." in page
    (sweep,) = ask(web, "/pools/p").json()["sweeps"]
    assert [trial["value"] for trial in sweep["trials"]] == [1.0, 2.0, 3.0]


def test_a_pool_is_found_by_the_short_name_of_the_list(fake_site: FakeSite, web: TestClient) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.add_trial_runs([a_trial_run(pool="0123456789abcdef0123456789abcdef")], user="ann")
    (where,) = re.findall(r'href="(/pools/[^"]+)"', show(web, "/pools"))
    assert where == "/pools/0123456789ab"
    assert "1 finished" in show(web, where)


def test_a_reader_sees_the_own_pools_only(fake_site: FakeSite, web: TestClient) -> None:
    with fake_site.warehouse() as warehouse:
        for user in ("ann", "bob"):
            warehouse.add_trial_runs([a_trial_run(pool=f"{user}s")], user=user)
    assert [pool["pool"] for pool in ask(web, "/pools", "ann").json()["pools"]] == ["anns"]
    assert ask(web, "/pools/anns", "ann").status_code == 200
    hidden, missing = (ask(web, f"/pools/{pool}", "ann") for pool in ("bobs", "nobodys"))
    assert hidden.status_code == missing.status_code == 404
    assert hidden.text.replace("bobs", "") == missing.text.replace("nobodys", "")
    assert len(ask(web, "/pools").json()["pools"]) == 2


def test_the_page_of_a_large_pool_is_bounded(fake_site: FakeSite, web: TestClient) -> None:
    numbers = random.Random(1)
    with fake_site.warehouse() as warehouse:
        runs = [
            a_trial_run(
                number,
                curve=CURVE,
                parameters={f"x{name}": numbers.random() for name in range(9)} | {"long": "y" * 10_000},
                metrics={"loss": numbers.random()},
            )
            for number in range(1_500)
        ]
        warehouse.add_trial_runs(runs, user="ann")
    assert len(show(web, "/pools/p")) < 2_500_000


def test_a_list_of_many_pools_is_bounded(fake_site: FakeSite, web: TestClient) -> None:
    with fake_site.warehouse() as warehouse:
        warehouse.add_trial_runs([a_trial_run(pool=f"{number}") for number in range(300)], user="ann")
    assert len(ask(web, "/pools").json()["pools"]) == 200
    assert "The first 200 of 300 are shown." in show(web, "/pools")


def test_what_a_program_is_called_breaks_no_page(fake_site: FakeSite, web: TestClient) -> None:
    run = a_trial_run(program="/x/<script>alert(1)</script>.py", metric="<b>", metrics={"<b>": 1.0}, curve=CURVE)
    with fake_site.warehouse() as warehouse:
        warehouse.add_trial_runs([run, a_trial_run(1, parameters={"lr": 1e300, "huge": 10**400})], user="ann")
    for path in ("/pools", "/pools/p"):
        page = show(web, path)
        assert "<script" not in page
        assert not re.search("<b>", page)


def test_without_pools_the_page_says_who_stores_them(web: TestClient) -> None:
    assert "helios pool run" in show(web, "/pools")
