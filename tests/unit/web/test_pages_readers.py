"""Who sees what on the web page: another user's jobs change no answer, whatever is asked for."""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pytest
from starlette.testclient import TestClient

import helios.web.site as site_module
from helios.app.live_cluster import LiveCluster
from helios.app.operations import Operations
from helios.errors import ClusterUnavailable, WarehouseUnavailable
from helios.model import PREDICTIONS
from helios.report.stored_study import study_path
from helios.warehouse import Warehouse
from helios.web.application import Access, web_application
from helios.web.page import Reader, Role
from helios.web.routes import ROUTES
from helios.web.site import Site
from tests.builders import a_batch, a_job, a_trial_run
from tests.unit.app.sites import FakeSite
from tests.unit.web.test_pages import ACTIVE, HTML, JSON, client

PROXY: dict[str, Any] = {"user_header": "X-Remote-User", "admins": frozenset({"root"})}
DECLARED = {name for route in ROUTES for name in route.query}
UNDECLARED = {"cluster", "job", "q", "sort", "find", "page"}
QUERY_OF = {route.path: set(route.query) for route in ROUTES}
VALUES = {
    "user": ("bob", "eve", ""),
    "account": ("lab", "bobs"),
    "partition": ("gpu", "bobs"),
    "from": ("now-4weeks", "now-1hours", "2001-01-01"),
    "to": ("now", "now-1days"),
    "by": ("all", "size", "partition"),
    "result": ("done", "would"),
    "q": ("bob", "eve", "bobs", "9002", "node1"),
    "sort": ("-Jobs",),
    "page": ("2",),
    "state": ("failed",),
    "name": ("sweep",),
}
OF_MANAGER = {
    "json": ("", "?from=2001-01-01", "?account=lab&partition=gpu", "?by=size", "?sort=-Jobs", "?page=1", "?name=sweep"),
    "html": ("", "?from=2001-01-01", "?format=csv"),
}
"""What a manager asks of every page. No name of a user is in it, so that none comes back in a form."""
OF_QUEUE = ("p10_s", "p50_s", "p90_s", "source", "remaining_s", "rank", "rank_without", "queued", "start", "starts")
"""What the page of an own job that waits or runs, and the first page of such jobs, tells of everybody's jobs."""
SENTENCES_OF_QUEUE = re.compile(
    r"<p>(Predicted run|It has not ended|Starts|Ends|With |When it starts|It is number|Without Helios).*?</p>"
    r'|data-head="Starts".*?</td>'
)


EVERY_QUERY = (
    "",
    *(f"?{name}={value}" for name in sorted(DECLARED | UNDECLARED) for value in VALUES.get(name, ("bob",))),
    *(f"?user={user}&from={begin}" for user in ("bob", "eve") for begin in VALUES["from"]),
    *(f"?account={name}&partition={name}&from=now-4weeks&user=eve" for name in ("bobs", "gpu")),
)
HTML_QUERIES = ("", "?user=bob", "?q=bob", "?from=2001-01-01", "?from=now-1hours", "?format=csv", "?q=bobs")


def some_queries(declared: set[str]) -> Iterator[str]:
    """Yield each parameter that a page may read once, all others at once, and a long window."""
    first = {name: f"{name}={VALUES.get(name, ('bob',))[0]}" for name in sorted(DECLARED | UNDECLARED)}
    read = declared | UNDECLARED
    yield ""
    yield from (f"?{first[name]}" for name in sorted(read))
    yield "?" + "&".join(asked for name, asked in first.items() if name not in read)
    if "from" in declared:
        yield "?from=2001-01-01"
        yield "?user=bob&from=2001-01-01"


class SharedSite:
    """A site where eve and bob have jobs of every state, and bob's can be taken away."""

    def __init__(self, folder: Path) -> None:
        self.fake_site = FakeSite(folder, report={"folder": str(folder / "reports")})
        self.fake_site.learn()
        (folder / "reports").mkdir()
        (folder / "reports" / "night.html").write_text("<title>bob's night</title>")
        study_path(folder / "reports", "dev").write_text("{}")
        self.ended = {user: f"{number}" for number, user in enumerate(("eve", "bob"), start=9_001)}
        self._load()
        queue = self.fake_site.cluster
        self.running = {user: queue.submit(user=user, partition="gpu") for user in ("bob", "eve")}
        for job in self.running.values():
            queue.start(job)
        self.first = queue.submit(user="eve", tasks=3)
        self.waiting = {user: queue.submit(user=user, gpus=4, tasks=3) for user in ("bob", "eve")}
        queue.submit(user="bob", gpus=64)
        queue.tick(timedelta(minutes=5))
        self.fake_site.cycles.cycle(modes=ACTIVE)

    def _load(self) -> None:
        now = pd.Timestamp(self.fake_site.cluster.now)
        alike = {"name": "sweep", "gpus": 8, "run_time_s": 3_600.0, "time_limit_s": 86_400.0}
        jobs = [
            a_job(
                job_id=str(9_001 + number),
                user=("eve", "bob")[number % 2],
                account=("lab", "bobs")[number % 4 == 3],
                partition=("gpu", "bobs")[number % 4 == 3],
                array_job_id=str(9_001 + number),
                array_task_id="3",
                submitted_at=now - timedelta(days=2, minutes=number),
                **alike,
            )
            for number in range(60)
        ]
        # The first and the last submission of the history are bob's.
        jobs += [a_job(user="bob", submitted_at=now - timedelta(**ago)) for ago in ({"days": 50}, {"minutes": 1})]
        batch = a_batch(*jobs)
        key = batch.jobs[["job_id", "submitted_at", "restart"]]
        predicted = key.assign(**dict.fromkeys(PREDICTIONS.names, 3_000.0) | {"source": "shrinkage"})
        with self.fake_site.warehouse() as warehouse:
            options = {"cluster": "dev", "path": "more", "sha256": "2", "format": "sacct", "timezone": "UTC"}
            warehouse.load([batch], **options)  # type: ignore[arg-type]  # all are texts
            warehouse.add_predictions("dev", predicted, made_at=self.fake_site.cluster.now)
            for user in ("eve", "bob"):
                warehouse.add_trial_runs([a_trial_run(number, pool=f"{user}s") for number in range(3)], user=user)

    def remove_bob(self) -> None:
        """Remove bob's jobs from the queue, the history, the predictions and the audit."""
        queue = self.fake_site.cluster.snapshot()
        ids = [job for jobs in (queue.pending, queue.running) for job in jobs.loc[jobs["user"] == "bob", "job_id"]]
        for job in ids:
            self.fake_site.cluster.end(job)
        with sqlite3.connect(self.fake_site.folder / "helios.db") as database:
            (bob,) = database.execute("SELECT name_id FROM names WHERE text = 'bob'").fetchone()
            ids += [job for (job,) in database.execute("SELECT job_id FROM jobs WHERE user = ?", (bob,))]
            for table, column in (("predictions", "job_id"), ("decisions", "target"), ("applied_changes", "job_id")):
                statement = f"DELETE FROM {table} WHERE {column} = ?"
                database.executemany(statement, [(job,) for job in ids])
            database.execute("DELETE FROM jobs WHERE user = ?", (bob,))
            database.execute("DELETE FROM trial_runs WHERE user = 'bob'")

    def paths(self, web: TestClient) -> Iterator[str]:
        """Yield an address of every page, with every value for what stands in it."""
        yield from (path for _, path in self.paths_of_routes(web))

    def paths_of_routes(self, web: TestClient) -> Iterator[tuple[str, str]]:
        """Yield the same addresses, each behind the path of its route."""
        states = [jobs[user] for jobs in (self.ended, self.running, self.waiting) for user in ("eve", "bob")]
        values = {
            "job": (*states, f"{self.ended['bob']}_3", "404404", "4711_[1-3]"),
            "user": ("eve", "bob", "nobody"),
            "node": ("node1",),
            "partition": ("gpu", "bobs", "nowhere"),
            "account": ("lab", "bobs"),
            "pool": ("eves", "bobs", "nobodys"),
            "file": ("night.html", "study-dev.json", "helios.css"),
        }
        for route in web.app.application.routes:  # type: ignore[attr-defined]  # a new page is asked for, too
            if route.path.startswith(("/static/", "/openapi.json")):  # the same for everybody
                continue
            names = re.findall(r"\{(\w+)\}", route.path)
            for chosen in itertools.product(*(values[name] for name in names)):
                yield route.path, re.sub(r"\{(\w+)\}", "{}", route.path).format(*map(quote, chosen))

    def answers(self, user: str, *, every: bool) -> dict[tuple[str, str], tuple[int, Any]]:
        """Return what a user is told at every address, by address and form, with some or with every query."""
        found: dict[tuple[str, str], tuple[int, Any]] = {}
        with client(self.fake_site, **PROXY) as web:
            for route, path in self.paths_of_routes(web):
                is_live = path in {f"/jobs/{jobs['eve']}" for jobs in (self.running, self.waiting)}
                for query in EVERY_QUERY if every else some_queries(QUERY_OF.get(route, set())):
                    told = web.get(path + query, headers={**JSON, "X-Remote-User": user})
                    hidden = OF_QUEUE if is_live or path == "/" else ()
                    values = {name: value for name, value in told.json().items() if name not in hidden}
                    found[path + query, "json"] = told.status_code, values
                for query in HTML_QUERIES if every else HTML_QUERIES[:3]:
                    page = web.get(path + query, headers={**HTML, "X-Remote-User": user})
                    text = SENTENCES_OF_QUEUE.sub("", page.text) if is_live or path == "/" else page.text
                    found[path + query, "html"] = page.status_code, text
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedSite:
    """One site for all that only read; each client has a cache of its own."""
    return SharedSite(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "every"])
def test_no_answer_to_a_stranger_changes_when_another_user_is_gone(tmp_path: Path, every: bool) -> None:
    shared = SharedSite(tmp_path)
    before = shared.answers("eve", every=every)
    shared.remove_bob()
    after = shared.answers("eve", every=every)
    assert {address: (was, after[address]) for address, was in before.items() if after[address] != was} == {}
    told = {path for (path, _), (status, _) in before.items() if status == 200}
    own = {f"/jobs/{jobs['eve']}" for jobs in (shared.ended, shared.running, shared.waiting)}
    assert {"/", "/partitions", "/predictions", "/advice", "/users/eve", *own} <= told


def test_no_answer_to_a_manager_names_another_user(shared: SharedSite) -> None:
    named, told = [], set()
    with client(shared.fake_site, **PROXY, managers=frozenset({"carol"})) as web:
        for path, (form, queries) in itertools.product(shared.paths(web), OF_MANAGER.items()):
            for query in queries:
                accepted = JSON if form == "json" else HTML
                answer = web.get(path + query, headers={**accepted, "X-Remote-User": "carol"})
                told |= {path} if answer.status_code == 200 else set()
                # The description of the pages is the same for everybody; its examples have such names, too.
                if path != "/openapi.json" and answer.status_code == 200 and re.search(r"\b(bob|eve)\b", answer.text):
                    named.append(path + query)
    assert named == []
    assert {"/", "/accounts", "/accounts/lab", "/accounts/bobs", "/partitions/gpu", "/jobs", "/card"} <= told
    assert not {path for path in told if path.startswith(("/jobs/", "/users"))}


def test_a_manager_learns_from_no_parameter_whether_a_user_is_there(shared: SharedSite) -> None:
    every = {name: VALUES.get(name, ("9002",))[0] for name in sorted(DECLARED | UNDECLARED)}
    with client(shared.fake_site, **PROXY, managers=frozenset({"carol"})) as web:

        def told(path: str, name: str, value: str) -> tuple[int, str]:
            answer = web.get(path, params={name: value}, headers={**JSON, "X-Remote-User": "carol"})
            return answer.status_code, answer.text

        paths = [path for path in shared.paths(web) if path != "/openapi.json"]
        for path, (name, value) in itertools.product(paths, every.items()):
            status, text = told(path, name, value)
            if value == "bob":
                other, otherwise = told(path, name, "zed")
                assert (status, re.sub(r"\b(bob|zed)\b", "", text)) == (other, re.sub(r"\b(bob|zed)\b", "", otherwise))
            elif status == 200:
                assert not re.search(r"\b(bob|eve)\b", text), (path, name, value)


def test_an_admin_sees_the_jobs_of_all(shared: SharedSite) -> None:
    with client(shared.fake_site, **PROXY) as web:
        of_root = {**JSON, "X-Remote-User": "root"}
        for route in ROUTES:
            if "{" not in route.path:  # nodes are not part of this cluster
                expected = 503 if route.path == "/nodes" else 200
                assert (route.path, web.get(route.path, headers=of_root).status_code) == (route.path, expected)
        now = web.get("/", headers=of_root).json()
        assert {row["user"] for row in now["queue"]} == {"bob", "eve"}
        assert now["running"] == 2
        bobs = web.get("/partitions?user=bob&from=2001-01-01", headers=of_root).json()["rows"]
        assert sum(row["jobs"] for row in bobs) == 72
        assert web.get(f"/jobs/{shared.waiting['bob']}", headers=of_root).json()["user"] == "bob"
        assert "rests on" in web.get(f"/jobs/{shared.waiting['bob']}", headers={**HTML, "X-Remote-User": "root"}).text


def test_a_user_sees_the_own_jobs_and_their_numbers(shared: SharedSite) -> None:
    with client(shared.fake_site, **PROXY) as web:
        of_eve = {**JSON, "X-Remote-User": "eve"}
        now = web.get("/", headers=of_eve).json()
        assert [row["job_id"] for row in now["queue"]] == [shared.first, shared.waiting["eve"]]
        assert (now["pending"], now["running"]) == (6, 1)
        for query in ("", "&user=eve", "&account=lab", "&partition=gpu"):
            rows = web.get(f"/partitions?from=2001-01-01{query}", headers=of_eve).json()["rows"]
            assert [(row["group"], row["jobs"]) for row in rows] == [("gpu", 30)]
        refused = web.get("/partitions?user=bob", headers=of_eve)
        assert (refused.status_code, refused.json()["error"]) == (404, "Only your own jobs are shown.")


@pytest.mark.parametrize("user", ["eve", "root"])
def test_the_menu_and_forms_have_what_the_reader_may_ask(shared: SharedSite, user: str) -> None:
    with client(shared.fake_site, **PROXY) as web:
        as_user = {**HTML, "X-Remote-User": user}
        places = re.findall(r'<li><a href="([^"]+)"', web.get("/", headers=as_user).text)
        menu = {
            path
            for place in places
            for path in re.findall(r'<li><a href="([^"?]+)"', web.get(place, headers=as_user).text)
        }
        role = Role.USER if user == "eve" else Role.ADMIN
        assert menu == {route.path for route in ROUTES if route.menu_name and role.covers(route.readers)}
        for path in menu:
            page = web.get(path, headers=as_user)
            assert page.status_code in ({200} if user == "eve" else {200, 503})
            assert ('name="user"' in page.text) <= (user == "root")


def test_a_page_made_for_one_reader_is_not_shown_to_another(shared: SharedSite) -> None:
    def told(web: TestClient, user: str, path: str) -> tuple[int, str]:
        page = web.get(path, headers={**JSON, "X-Remote-User": user})
        return page.status_code, page.text

    paths = ("/partitions", "/predictions", "/advice", "/users/eve", "/users/bob", "/")
    alone = {}
    for user in ("root", "bob", "eve"):
        with client(shared.fake_site, **PROXY) as web:
            alone |= {(user, path): told(web, user, path) for path in paths}
    with client(shared.fake_site, **PROXY) as web:
        for user in ("root", "eve", "bob", "eve", "root"):
            assert [told(web, user, path) for path in paths] == [alone[user, path] for path in paths]


NAMES_NOBODY = {
    "none": [],
    "empty": [""],
    "two": ["eve", "root"],
    "the same twice": ["root", "root"],
    "an empty and a name": ["", "root"],
    "a list": ["eve, root"],
    "a list without a space": ["eve,root"],
    "a space behind": ["root "],
    "a space before": [" root"],
    "a tab": ["root\t"],
    "a look-alike": ["r\u043eot".encode().decode("latin-1")],
    "a path": ["eve/../root"],
    "too long": ["e" * 300],
}


@pytest.mark.parametrize("names", NAMES_NOBODY.values(), ids=NAMES_NOBODY.keys())
def test_a_header_that_names_not_exactly_one_user_is_refused(tmp_path: Path, names: list[str]) -> None:
    with client(FakeSite(tmp_path), **PROXY) as web:
        headers = [*JSON.items(), *(("X-Remote-User", name.encode("latin-1")) for name in names)]
        refused = web.get("/", headers=headers)  # type: ignore[arg-type]  # httpx takes texts and bytes
        assert (refused.status_code, "queue" in refused.text) == (403, False)


def test_the_header_may_be_written_in_any_case_the_user_may_not(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    with client(fake_site, **PROXY) as web:
        assert web.get("/users", headers={**JSON, "x-REMOTE-user": "root"}).status_code == 200
        for name in ("Root", "ROOT", "root.", "root@realm"):
            assert web.get("/users", headers={**JSON, "X-Remote-User": name}).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/users/eve%2f..",
        "/users/eve%2f..%2fbob",
        "/users/eve/../bob",
        "/users/eve/..%2fbob",
        "//users/bob",
        "/users/bob%00",
        "/users/bob%20",
        "/users/%62ob",
        "/users/BOB",
        "/users/bob?user=eve",
        "/users/bob?user=bob&user=eve",
        "/partitions?user=eve&user=bob",
        "/partitions?user=bob%00",
        "/reports/..%2fhelios.db",
        "/reports/night.html",
        "/jobs/..%2fusers%2fbob",
    ],
)
def test_no_spelling_of_an_address_opens_another_users_page(shared: SharedSite, path: str) -> None:
    with client(shared.fake_site, **PROXY) as web:
        told = web.get(path, headers={**JSON, "X-Remote-User": "eve"})
        assert told.status_code in {307, 404}
        assert not told.text.count("rows")


def spellings(job: str) -> list[str]:
    """Return a job's id as people might write it, and other things in its place."""
    ends = ("", "_3", "+1", ".batch", ".0", "_[1-3]", "-1", "%00", "%0a", "%20", "'--", "%25")
    return [*(job + end for end in ends), f"-{job}", f"0{job}", "9" * 400, "%F0%9F%92%A5", "nan", "_", "*"]


def test_an_id_in_any_spelling_tells_nothing_of_anothers_job(shared: SharedSite) -> None:
    with client(shared.fake_site, **PROXY) as web:
        for job in (shared.waiting["bob"], shared.running["bob"], shared.ended["bob"]):
            for spelt in spellings(job):
                told = web.get(f"/jobs/{spelt}", headers={**JSON, "X-Remote-User": "eve"})
                assert told.status_code == 404
                unknown = told.json()["error"].startswith("You have no job") or "control characters" in told.text
                assert unknown and "bob" not in told.text
        own = web.get(f"/jobs/{shared.ended['eve']}_3", headers={**JSON, "X-Remote-User": "eve"}).json()
        assert own["job_id"] == shared.ended["eve"]


class Work:
    """Counts what the answers about jobs cost."""

    def __init__(self, shared: SharedSite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared, self.explained, self.looked_up = shared, 0, 0
        explain, has_job = site_module.explain, getattr(Warehouse, "has_job", None)

        def counted(*given: Any, **named: Any) -> Any:
            self.explained += 1
            return explain(*given, **named)

        def counted_look(*given: Any, **named: Any) -> Any:
            self.looked_up += 1
            return has_job(*given, **named)  # type: ignore[misc]  # it is there

        monkeypatch.setattr(site_module, "explain", counted)
        if has_job:
            monkeypatch.setattr(Warehouse, "has_job", counted_look)

    def of(self, web: TestClient, job: str) -> tuple[int, int, int, int, str]:
        """Return readings, explanations, look-ups and the answer of one request."""
        cluster = self.shared.fake_site.cluster
        before = cluster.looks, self.explained, self.looked_up
        told = web.get(f"/jobs/{job}", headers={**JSON, "X-Remote-User": "eve"})
        readings, explained, looked_up = cluster.looks, self.explained, self.looked_up
        text = told.text.replace(job, "JOB")
        return readings - before[0], explained - before[1], looked_up - before[2], told.status_code, text


def test_a_strangers_request_costs_the_same_whosever_the_job_is(
    shared: SharedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(shared, monkeypatch)
    with client(shared.fake_site, **PROXY) as web:
        web.get("/", headers={**JSON, "X-Remote-User": "eve"})  # the shared reading of the queue
        jobs = ("404404", shared.waiting["bob"], shared.running["bob"], shared.ended["bob"])
        told = {job: work.of(web, job) for job in jobs}
        assert len(set(told.values())) == 1
        assert told["404404"][:4] == (0, 0, 1, 404)
        for job in (shared.waiting["eve"], shared.running["eve"], shared.ended["eve"]):
            assert work.of(web, job)[1:4] == (1, 1, 200)


def test_without_a_queue_only_own_jobs_of_the_history_are_told(shared: SharedSite) -> None:
    def unreachable(_: Any) -> LiveCluster:
        raise ClusterUnavailable("slurmctld does not answer")

    operations = Operations(shared.fake_site.settings, open_cluster=unreachable)
    site = Site(shared.fake_site.settings, clock=lambda: shared.fake_site.cluster.now, operations=operations)
    application = web_application(site, Access(token=JSON["Authorization"].removeprefix("Bearer "), **PROXY))
    with TestClient(application, base_url="http://127.0.0.1") as web:
        jobs = ("404404", shared.ended["bob"], *shared.waiting.values())
        told = [web.get(f"/jobs/{job}", headers={**JSON, "X-Remote-User": "eve"}) for job in jobs]
        own = web.get(f"/jobs/{shared.ended['eve']}", headers={**JSON, "X-Remote-User": "eve"})
    assert {(one.status_code, one.text) for one in told} == {(503, told[0].text)}
    assert (own.status_code, own.json()["user"]) == (200, "eve")


def test_where_the_history_cannot_be_read_every_job_is_answered_alike(
    shared: SharedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> bool:
        raise WarehouseUnavailable("The database does not answer.")

    monkeypatch.setattr(Warehouse, "has_job", failing)
    with client(shared.fake_site, **PROXY) as web:
        jobs = ("404404", *(jobs[user] for jobs in (shared.waiting, shared.ended) for user in ("bob", "eve")))
        told = [web.get(f"/jobs/{job}", headers={**JSON, "X-Remote-User": "eve"}) for job in jobs]
    assert {(one.status_code, one.text) for one in told} == {(503, told[0].text)}


def test_a_reader_without_a_name_owns_nothing() -> None:
    assert not Reader().may_see("")
