"""A user asks why a run time is predicted as it is."""

from datetime import UTC, datetime

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    """A site with a day of history loaded, and no model."""
    folder = tmp_path_factory.mktemp("site")
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1), folder / "venus.csv")
    helios = shell(folder, HELIOS_INGEST_TIMEZONE="Asia/Shanghai")
    helios("trace", "load", "venus.csv")
    return helios


def the_last_job(site: Helios) -> str:
    """Return an id at the end of the day, as the error about an unknown one names it."""
    return site("model", "explain", "99999999999", code=2).err.split("It has ")[1].split(",")[0]


def test_a_job_of_the_history_is_explained_in_words(site: Helios) -> None:
    text = site("model", "explain", the_last_job(site)).out
    assert "Predicted run time" in text
    assert "Note: no model is trained" in text


def test_a_model_of_its_moment_explains_a_job_of_a_trace(site: Helios) -> None:
    job = the_last_job(site)
    answer = site("model", "explain", job, "--trace", "venus.csv", "--json").json
    assert answer["job_id"] == job
    assert answer["p10_s"] <= answer["p50_s"] <= answer["p90_s"]
    assert answer["steps"][0]["level"] == "prior"


def test_an_unknown_job_is_misuse_where_the_queue_was_not_seen(site: Helios) -> None:
    said = site("model", "explain", "99999999999", code=2).err
    assert "No job 99999999999 is in the history of venus" in said
    assert "cannot be read" in said
