"""A researcher loads a public trace on a machine without Slurm, and asks everything of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from helios.config import Settings
from helios.warehouse import Warehouse
from helios.web.application import Access, web_application
from helios.web.site import Site
from tests.story.shell import Helios, shell
from tests.traces import TRACES, needs_traces

pytestmark = needs_traces
TRACE = TRACES / "sacct_raw_phillips_dec2016.txt.gz"
WINDOW = "2016-12-30 00:03 to 2017-01-01 23:55 (UTC)"
"""The complete part of the trace, whose first job is of ten days before."""
TOKEN = "a token of this test"
JSON = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}
HTML = {"Accept": "text/html", "Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def helios(folder: Path) -> Helios:
    """A machine with a loaded trace, and no command of Slurm."""
    typed = shell(folder, HELIOS_SLURM_COMMANDS=str(folder))
    typed("trace", "load", TRACE, "--cluster", "phillips")
    return typed


@pytest.fixture(scope="module")
def a_job_id(helios: Helios, folder: Path) -> str:
    """Return the id of a job that waited."""
    with Warehouse.open(f"sqlite:///{folder}/helios.db") as warehouse:
        jobs = warehouse.jobs("phillips")
    waited = (jobs["started_at"] - jobs["submitted_at"]).dt.total_seconds()
    return str(jobs["job_id"][waited.idxmax()])


@pytest.fixture(scope="module")
def web(helios: Helios, folder: Path) -> TestClient:
    settings = Settings.model_validate(
        {
            "database": {"url": f"sqlite:///{folder}/helios.db"},
            "slurm": {"commands": str(folder)},
            "control": {"state_folder": str(folder / "state")},
            "report": {"folder": str(folder / "reports")},
        }
    )
    application = web_application(Site(settings), Access(token=TOKEN))
    return TestClient(application, base_url="http://127.0.0.1", follow_redirects=False)


@pytest.mark.parametrize("by", ["user", "account", "partition"])
def test_use_is_reported_over_the_last_weeks_of_the_history(helios: Helios, by: str) -> None:
    answer = helios("report", "usage", "--by", by, "--json").json
    assert answer["rows"]
    assert answer["title"].startswith("phillips (history, not the live cluster): ")


def test_a_report_names_the_window_that_it_took(helios: Helios) -> None:
    assert WINDOW in helios("report", "usage").err


def test_now_is_the_end_of_the_history(helios: Helios) -> None:
    title = helios("report", "usage", "-S", "now-1days", "--json").json["title"]
    assert "2016-12-31 23:55 to 2017-01-01 23:55" in title


def test_the_queue_is_that_of_the_end_of_the_history(helios: Helios) -> None:
    found = helios("report", "queue", "--json").json
    assert "the queue at 2017-01-01 23:55" in found["title"] and "not the live cluster" in found["title"]


def test_status_says_in_one_line_that_there_is_no_slurm(helios: Helios) -> None:
    lines = helios("status").out.splitlines()
    assert lines[0].startswith("slurm") and "not the live cluster" in lines[0]
    assert any("4,285 jobs" in line and "2017-01-01" in line for line in lines)
    assert not any(line.startswith("daemon") for line in lines)


def test_a_job_of_the_history_is_explained_without_slurm(helios: Helios, a_job_id: str) -> None:
    answer = helios("why", a_job_id)
    assert f"Job {a_job_id}" in answer.out and "waited" in answer.out
    assert "not the live cluster" in answer.out
    assert "scontrol" not in answer.out + answer.err


def test_a_job_that_no_history_holds_is_misuse(helios: Helios) -> None:
    said = helios("why", "99999999", code=2).err
    assert "No job 99999999 is in the history of phillips" in said


def test_advice_is_on_the_last_weeks_of_the_history(helios: Helios) -> None:
    answer = helios("advise")
    assert "of everybody on phillips (history, not the live cluster)" in answer.out
    assert "4,282 jobs" in answer.out
    assert "scontrol" not in answer.err


@pytest.mark.parametrize("path", ["/", "/waiting", "/users", "/accounts", "/partitions", "/predictions", "/advice"])
def test_every_page_of_a_history_answers_and_names_it(web: TestClient, path: str) -> None:
    values = web.get(path, headers=JSON)
    assert values.status_code == 200
    assert "problem" not in values.json()
    assert "not the live cluster" in web.get(path, headers=HTML).text


@pytest.mark.parametrize("path", ["/", "/users", "/predictions?from=2016-12-30"])
def test_every_page_of_a_history_says_how_old_it_is(web: TestClient, path: str) -> None:
    assert "its last job was submitted on 2017-01-01, " in web.get(path, headers=HTML).text


def test_the_first_page_of_a_history_says_its_span_in_json(web: TestClient) -> None:
    found = web.get("/", headers=JSON).json()
    assert found["cluster"] == "phillips"
    assert found["history"] == {"from": "2016-12-22T07:15:12+00:00", "to": "2017-01-01T23:55:01+00:00", "jobs": 4285}


def test_a_job_of_the_history_has_a_page_in_json(web: TestClient, a_job_id: str) -> None:
    found = web.get(f"/jobs/{a_job_id}", headers=JSON)
    assert found.status_code == 200
    assert found.json()["job_id"] == a_job_id


def test_nodes_of_a_history_are_refused_in_plain_words(web: TestClient) -> None:
    answer = web.get("/nodes", headers=JSON)
    assert answer.status_code == 404
    assert "not the live cluster" in answer.json()["error"]


@pytest.mark.parametrize("window", [("--from", "2031-01"), ("--to", "2011-01")])
def test_a_window_without_jobs_names_the_span_of_the_record(helios: Helios, window: tuple[str, str]) -> None:
    assert "the record spans 2016-12-22 to 2017-01-01" in helios("study", *window, code=1).err
