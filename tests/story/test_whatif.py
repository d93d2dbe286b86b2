"""An admin asks what other orders would have changed."""

from datetime import UTC, datetime

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from tests.story.shell import Helios, shell

REPLAY = ("--trace", "venus.csv", "--nodes", "6", "--oversized", "skip")
MORNING = ("--to", "2020-09-01T09:00:00Z")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    """A day of a cluster that is too small for it."""
    folder = tmp_path_factory.mktemp("site")
    write_helios_csv(synthetic_trace(start=datetime(2020, 9, 1, tzinfo=UTC), days=1), folder / "venus.csv")
    helios = shell(folder)
    helios.folder = folder
    return helios


@pytest.mark.parametrize("command", [("slurm", "--slurm-conf", "slurm.conf")])
def test_an_option_that_would_be_passed_over_is_misuse(site: Helios, command: tuple[str, ...]) -> None:
    said = site("whatif", "--nodes", "6", *command, "--trace", "venus.csv", code=2).err
    assert f"--nodes before {command[0]} would have no effect" in said
    assert f"helios whatif {command[0]} " in said


def test_what_does_not_exist_is_named_with_what_does(site: Helios) -> None:
    said = site("whatif", "--policy", "fifo,lifo", "--trace", "venus.csv", code=2).err
    assert "--policy has no 'lifo'" in said
    assert "service" in said


def test_a_window_that_ends_before_it_begins_is_misuse(site: Helios) -> None:
    said = site("whatif", "--trace", "venus.csv", "--from", "2020-05-02", "--to", "2020-04-30", code=2).err
    assert "Give a --from that is before --to." in said


def test_the_verdict_comes_first_and_is_the_same_in_text_and_json(site: Helios) -> None:
    request = ("whatif", *REPLAY, *MORNING, "--policy", "fifo")
    check = site(*request, "--draws", "2", "--json").json["verdict"]
    assert check["draws"] == 2
    assert site(*request, "--draws", "2").out.startswith(check["sentences"][0][:60])
    assert site(*request, "--draws", "0", "--json").json["verdict"] is None
    assert site(*request, "--draws", "0").out.startswith("A single replay is no evidence")
