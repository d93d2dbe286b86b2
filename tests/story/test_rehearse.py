"""A cautious person lets a service act on the site's own history before it may act on the site."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Answer, Helios, shell

REHEARSE = ("simulate", "--trace", "venus.csv.gz", "--nodes", "2", "--oversized", "skip")

AGAIN = ("--predict-again", "10min")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate")
    trace = synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1)
    write_helios_csv(trace.iloc[:400], folder / "venus.csv.gz")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Helios:
    return shell(folder, HELIOS_INGEST_TIMEZONE="Asia/Shanghai")


@pytest.fixture(scope="module")
def answer(site: Helios) -> Answer:
    return site(*REHEARSE, "--service", "qssf", "--every", "10min", "--json")


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
    assert shell(folder, alone=True)(*REHEARSE, "--service", "qssf", "--every", "10min", "--json").out == answer.out


def test_an_option_set_here_changes_what_the_service_does(site: Helios, runs: Any) -> None:
    again = site(
        *REHEARSE, "--service", "qssf", "--every", "10min", "--set", "qssf.promote_after_s=60.0", "--json"
    ).json["runs"]
    assert again[0] == runs[0]
    assert again[2] != runs[2]


def test_no_user_is_favoured_beyond_the_share_that_holds_live(folder: Path, runs: Any) -> None:
    strict = shell(folder, HELIOS_CONTROL_MOST_OF_ONE_USER="0.05")
    again = strict(*REHEARSE, "--service", "qssf", "--every", "10min", "--json").json["runs"]
    assert again[:2] == runs[:2]
    assert again[2] != runs[2]


def test_what_waits_is_predicted_again_as_often_as_is_said(site: Helios) -> None:
    request = (*REHEARSE, "--service", "qssf", "--json")
    usual, named, never = (site(*request, *said).json for said in ((), AGAIN, ("--predict-again", "never")))
    assert usual == named
    assert usual["services"][0]["asked"] > never["services"][0]["asked"]
    said = site(*request, "--predict-again", "often", code=2).err
    assert "Write 7d, 12h or 90min" in said


def test_without_a_name_the_configured_services_are_simulated_onto_a_page(site: Helios, tmp_path: Path) -> None:
    page = tmp_path / "rehearsal.html"
    answer = site(*REHEARSE, "--every", "1h", "--report", page)
    assert "FIFO + EASY (limit) (plain)" in answer.out
    assert "qssf" in answer.out
    assert "<svg" in page.read_text()


def test_an_unknown_option_of_a_service_is_misuse_and_names_those_known(site: Helios) -> None:
    answer = site(*REHEARSE, "--service", "qssf", "--set", "qssf.promote_after=3600", code=2)
    assert "promote_after_s: float" in answer.err


def test_help_shows_an_example(site: Helios) -> None:
    assert "Example: helios simulate" in site("simulate", "--help").out
