"""A user asks why a job of a history waited, and what its prediction rests on."""

from datetime import UTC, datetime

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell

FILE = ("--trace", "venus.csv")
REPLAY = (*FILE, "--nodes", "6")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    """A day of a cluster that is too small for it, in a file and in a warehouse."""
    folder = tmp_path_factory.mktemp("site")
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1), folder / "venus.csv")
    helios = shell(folder, HELIOS_SLURM_COMMANDS=str(folder))
    helios("trace", "load", "venus.csv", "--timezone", "UTC")
    return helios


@pytest.fixture(scope="module")
def some_job(site: Helios) -> str:
    """Return an id at the end of the day, as the error about an unknown one names it."""
    return site("why", "99999999999", *FILE, code=2).err.split("It has ")[1].split(",")[0]


def test_the_causes_of_a_wait_add_up_under_an_order(site: Helios, some_job: str) -> None:
    answer = site("why", some_job, *REPLAY, "--policy", "fewest_gpus", "--json").json
    assert answer["job_id"] == some_job
    chosen, plain = answer["replay"]["starts"]
    assert sum(interval["length_s"] for interval in answer["replay"]["intervals"]) == chosen["wait_s"]
    assert plain["label"] == "FIFO + EASY (limit) (plain)"


def test_the_replay_is_told_in_words_and_tables(site: Helios, some_job: str) -> None:
    assert "FIFO + EASY (limit) (plain)" in site("why", some_job, *REPLAY, "--policy", "fifo").out


def test_a_file_and_the_warehouse_tell_the_same_of_a_job(site: Helios, some_job: str) -> None:
    of_file, loaded = (site("why", some_job, *asked).out.splitlines() for asked in (FILE, ()))
    assert of_file == loaded[:-1]
    assert loaded[-1] == "venus is history, not the live cluster."


def test_a_prediction_without_a_model_is_told_step_by_step(site: Helios, some_job: str) -> None:
    text = site("why", some_job, "--prediction").out
    assert "Predicted run time" in text and "From the widest group to the narrowest" in text
    assert "Note: no model is trained" in text


def test_a_model_of_its_moment_explains_a_job_of_a_file(site: Helios, some_job: str) -> None:
    answer = site("why", some_job, *FILE, "--prediction", "--json").json
    assert answer["p10_s"] <= answer["p50_s"] <= answer["p90_s"]
    assert answer["steps"]["explained"]["steps"][0]["level"] == "prior"
