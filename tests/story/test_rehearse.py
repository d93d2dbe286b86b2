"""A cautious person lets a service act on the site's own history before it may act on the site."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Answer, Helios, shell

REHEARSE = ("whatif", "--draws", "0", "--trace", "venus.csv.gz", "--nodes", "2", "--oversized", "skip")

ZONE = "Asia/Shanghai"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate")
    trace = synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1)
    write_helios_csv(trace.iloc[:400], folder / "venus.csv.gz")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Helios:
    return shell(folder, HELIOS_INGEST_TIMEZONE=ZONE)


@pytest.fixture(scope="module")
def answer(site: Helios) -> Answer:
    return site(*REHEARSE, "--service", "qssf", "--json")


@pytest.fixture(scope="module")
def runs(answer: Answer) -> Any:
    return answer.json["runs"]


def test_the_service_stands_beside_today_and_the_control_that_needs_no_model(runs: Any) -> None:
    assert [run["policy"] for run in runs] == ["fifo", "fewest_gpus", "qssf"]
    assert len({run["jobs"] for run in runs}) == 1
    assert runs[0]["mean_wait_s"] != runs[2]["mean_wait_s"]


def test_what_became_of_its_proposals_is_counted(answer: Answer) -> None:
    (service,) = answer.json["services"]
    assert service["service"] == "qssf"
    assert service["asked"] > 0
    assert service["outcomes"]["done"] > 0
    assert service["problems"] == {}


def test_what_was_assumed_is_said(answer: Answer) -> None:
    assert "note: Each replay starts on an empty cluster" in answer.err


def test_the_same_request_gets_the_same_answer(folder: Path, answer: Answer) -> None:
    again = shell(folder, alone=True, HELIOS_INGEST_TIMEZONE=ZONE)
    assert again(*REHEARSE, "--service", "qssf", "--json").out == answer.out


def test_an_option_set_here_changes_what_the_service_does(site: Helios, runs: Any) -> None:
    again = site(*REHEARSE, "--service", "qssf", "--set", "qssf.promote_after_s=60.0", "--json").json["runs"]
    assert again[0] == runs[0]
    assert again[2] != runs[2]


def test_no_user_is_favoured_beyond_the_share_that_holds_live(folder: Path, runs: Any) -> None:
    strict = shell(folder, HELIOS_CONTROL_MOST_OF_ONE_USER="0.05", HELIOS_INGEST_TIMEZONE=ZONE)
    again = strict(*REHEARSE, "--service", "qssf", "--json").json["runs"]
    assert again[:2] == runs[:2]
    assert again[2] != runs[2]


def test_a_service_stands_beside_the_policies_that_are_named(site: Helios) -> None:
    runs = site(*REHEARSE, "--service", "qssf", "--policy", "fifo,qssf", "--json").json["runs"]
    named = [(run["policy"], run["run_times"], run["backfill"]) for run in runs]
    assert named[:4] == [
        ("fifo", None, "none"),
        ("fifo", None, "easy"),
        ("qssf", "predicted", "none"),
        ("qssf", "predicted", "easy"),
    ]
    assert named[4:] == [("qssf", None, "easy")]


def test_services_are_replayed_onto_a_page(site: Helios, tmp_path: Path) -> None:
    page = tmp_path / "rehearsal.html"
    answer = site(*REHEARSE, "--service", "qssf", "--report", page)
    assert "FIFO + EASY (limit) (plain)" in answer.out
    assert "jobs/s were replayed with the services acting" in answer.err
    assert "<svg" in page.read_text()


def test_a_service_that_acts_on_nodes_is_sent_to_the_energy_replay(site: Helios) -> None:
    assert "helios whatif energy" in site(*REHEARSE, "--service", "ces", code=2).err


def test_an_unknown_option_of_a_service_is_misuse_and_names_those_known(site: Helios) -> None:
    answer = site(*REHEARSE, "--service", "qssf", "--set", "qssf.promote_after=3600", code=2)
    assert "promote_after_s: float" in answer.err
