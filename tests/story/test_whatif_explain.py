"""A user asks why a job waited in a replay."""

import html
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

from helios.ingest import synthetic_trace, write_helios_csv
from helios.units import duration
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


def test_the_causes_of_a_wait_add_up_under_two_orders(site: Helios) -> None:
    some = site("whatif", "explain", "0", *REPLAY, code=2).err.split("Near it: ")[1].split(",")[0]
    answer = site("whatif", "explain", some, *REPLAY, "--policy", "fewest_gpus", "--json").json
    assert answer["job_id"] == some
    chosen, today = answer["replay"]["starts"]
    assert sum(interval["length_s"] for interval in answer["replay"]["intervals"]) == chosen["wait_s"]
    assert today["label"] == "FIFO + EASY (limit) (plain)"
    assert "FIFO + EASY (limit) (plain)" in site("whatif", "explain", some, *REPLAY).out


def test_why_and_a_replay_explain_a_job_in_the_same_words(site: Helios) -> None:
    site("db", "upgrade")
    site("trace", "load", "venus.csv", "--cluster", "venus", "--timezone", "UTC")
    some = site("whatif", "explain", "0", *REPLAY, code=2).err.split("Near it: ")[1].split(",")[0]
    why, replayed = (site(*asked, some, "--cluster", "venus") for asked in (("why",), ("whatif", "explain")))
    assert why.out.splitlines()[0] == replayed.out.splitlines()[0]


@pytest.mark.parametrize("command", [("explain", "1"), ("slurm", "--slurm-conf", "slurm.conf")])
def test_an_option_that_would_be_passed_over_is_misuse(site: Helios, command: tuple[str, ...]) -> None:
    said = site("whatif", "--nodes", "6", *command, "--trace", "venus.csv", code=2).err
    assert f"--nodes before {command[0]} would have no effect" in said
    assert f"helios whatif {command[0]} " in said


def test_what_does_not_exist_is_named_with_what_does(site: Helios) -> None:
    said = site("whatif", "--policy", "fifo,lifo", "--trace", "venus.csv", code=2).err
    assert "--policy has no 'lifo'" in said
    assert "service" in said


@pytest.mark.parametrize("command", [(), ("explain", "1")])
def test_a_window_that_ends_before_it_begins_is_misuse(site: Helios, command: tuple[str, ...]) -> None:
    said = site("whatif", *command, "--trace", "venus.csv", "--from", "2020-05-02", "--to", "2020-04-30", code=2).err
    assert "Give a --from that is before --to." in said


def test_the_verdict_comes_first_and_is_the_same_in_text_and_json(site: Helios) -> None:
    request = ("whatif", *REPLAY, *MORNING, "--policy", "fifo")
    check = site(*request, "--draws", "2", "--json").json["verdict"]
    assert check["draws"] == 2
    assert site(*request, "--draws", "2").out.startswith(check["sentences"][0][:60])
    assert site(*request, "--draws", "0", "--json").json["verdict"] is None
    assert site(*request, "--draws", "0").out.startswith("A single replay is no evidence")


@pytest.mark.parametrize(
    "policy", [("qssf",), ("qssf", "--set", "qssf.wait_share=0.3", "--set", "qssf.patience=4h"), ("fewest_gpus",)]
)
def test_the_command_on_the_page_explains_the_wait_that_the_page_shows(
    site: Helios, tmp_path: Path, policy: tuple[str, ...]
) -> None:
    page, trace = tmp_path / "page.html", site.folder / "venus.csv"
    site(
        "whatif", "--trace", trace, "--nodes", "6", "--gpus-per-node", "8", "--oversized", "skip", "--draws", "0",
        "--from", "2020-09-01T01:00:00Z", "--to", "2020-09-01T23:00:00Z", "--warm-up", "1h",
        "--policy", f"fifo,{policy[0]}", *policy[1:], "--report", page,
    )  # fmt: skip
    (command,) = re.findall(r"<pre>(helios whatif explain .*)</pre>", page.read_text())
    words = shlex.split(html.unescape(command))
    explained = shell(tmp_path)(*words[1:], "--json").json  # typed elsewhere
    row = next(line for line in page.read_text().splitlines() if f"<tr><td>{explained['job_id']}</td>" in line)
    waited = re.findall(r"<td>([^<]*)</td>", row)[-2]
    assert waited == duration(explained["replay"]["starts"][0]["wait_s"])
