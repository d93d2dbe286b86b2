"""The whole path on real traces: load, describe, learn, replay. The two largest take their time at night."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.story.shell import Helios, shell
from tests.traces import TRACES, needs_traces

pytestmark = needs_traces

ROWS = {
    "helios_venus_mar-aug2020.csv.gz": 99_707,
    "philly_vc_aug-oct2017.csv.gz": 52_849,
    "sacct_graham_may-jun2021.txt.gz": 131_939,
    "sacct_cedar_may-jun2021.txt.gz": 84_773,
    "sacct_raw_phillips_dec2016.txt.gz": 4_285,
}
FORMATS = {
    **dict.fromkeys(ROWS, "sacct"),
    "helios_venus_mar-aug2020.csv.gz": "helios",
    "philly_vc_aug-oct2017.csv.gz": "helios",
    "KTH-SP2-1996-2.1-cln.swf.gz": "swf",
}
LARGEST = ("sacct_graham_may-jun2021.txt.gz", "sacct_cedar_may-jun2021.txt.gz")
SCORES = ["jobs", "spearman", "median_abs_log_error", "mae_s", "within_10pct", "within_50pct", "within_100pct"]
RUN_KEYS = {
    "policy",
    "estimates",
    "backfill",
    "jobs",
    "mean_jct_s",
    "mean_wait_s",
    "median_wait_s",
    "p99_wait_s",
    "max_wait_s",
    "mean_wait_s_by_size",
    "mean_bounded_slowdown",
    "utilization",
    "queued_jobs",
}


@pytest.fixture(scope="module")
def helios(tmp_path_factory: pytest.TempPathFactory) -> Helios:
    return shell(tmp_path_factory.mktemp("site"))


def cluster_of(file: str) -> str:
    return file.split("-", maxsplit=1)[0].split(".", maxsplit=1)[0]


def largest_at_night(files: Iterable[str]) -> list[Any]:
    """Return the cases of files, of which the usual run leaves out the largest."""
    return [pytest.param(file, marks=pytest.mark.nightly) if file in LARGEST else file for file in files]


@pytest.fixture(scope="module")
def load(helios: Helios) -> Callable[[str], Any]:
    """Return what loads a trace under its own name into the one warehouse, once, and returns the report."""
    return cache(lambda file: helios("trace", "load", TRACES / file, "--cluster", cluster_of(file), "--json").json)


@pytest.mark.parametrize("file", largest_at_night(ROWS))
def test_every_row_is_a_job_or_a_counted_reject(load: Callable[[str], Any], file: str) -> None:
    report = load(file)
    assert report["jobs_new"] + sum(report["rejects"].values()) == ROWS[file]
    assert sum(report["rejects"].values()) <= 0.001 * ROWS[file]


@pytest.mark.parametrize("file", ["KTH-SP2-1996-2.1-cln.swf.gz", "sacct_raw_phillips_dec2016.txt.gz"])
def test_loading_twice_changes_nothing(load: Callable[[str], Any], helios: Helios, file: str) -> None:
    first = load(file)
    again = helios("trace", "load", TRACES / file, "--cluster", cluster_of(file), "--json").json
    assert (again["jobs_new"], again["jobs_updated"]) == (0, 0)
    described = helios("trace", "describe", "--cluster", cluster_of(file), "--json").json
    assert described["jobs"] == first["jobs_new"]


@pytest.mark.parametrize("file", largest_at_night(FORMATS))
def test_every_trace_is_described(load: Callable[[str], Any], helios: Helios, file: str) -> None:
    jobs = load(file)["jobs_new"]
    assert helios("trace", "describe", "--cluster", cluster_of(file), "--json").json["jobs"] == jobs


def test_kth_is_predicted_from_history_alone_as_well_as_known(load: Callable[[str], Any], helios: Helios) -> None:
    load("KTH-SP2-1996-2.1-cln.swf.gz")
    scores = helios("model", "evaluate", "--cluster", "KTH", "--test-fraction", "0.3", "--draws", "0", "--json").json
    assert set(SCORES) | {"coverage_p10_p90", "controls"} <= set(scores)
    assert {"user_last", "time_limit", "size_only"} <= set(scores["controls"])
    assert scores["spearman"] >= 0.78
    assert scores["spearman"] > max(control["spearman"] for control in scores["controls"].values())


@pytest.mark.nightly
def test_the_last_ended_job_predicts_no_better_than_without_a_leak(load: Callable[[str], Any], helios: Helios) -> None:
    load(LARGEST[0])
    found = helios(
        "model", "evaluate", "--cluster", cluster_of(LARGEST[0]), "--from", "2021-06-01", "--draws", "0", "--json"
    ).json
    # traces/README.md: with the leak this rule reads .86 on Graham; without it, .44 over the whole log.
    assert found["controls"]["user_last"]["spearman"] < 0.6


def test_venus_is_replayed_under_all_controls(load: Callable[[str], Any], helios: Helios, tmp_path: Path) -> None:
    load("helios_venus_mar-aug2020.csv.gz")
    page = tmp_path / "whatif.html"
    window = ("--from", "2020-08-01", "--to", "2020-08-07", "--draws", "0")
    answer = helios(
        "whatif", "--cluster", "helios_venus_mar", *window, "--nodes", "100", "--json", "--report", page
    ).json
    assert {run["policy"] for run in answer["runs"]} == {
        "fifo",
        "fewest_gpus",
        "qssf",
        "service",
        "mean_service",
        "sjf",
        "srtf",
    }
    assert all(set(run) >= RUN_KEYS for run in answer["runs"])
    assert len({run["jobs"] for run in answer["runs"]}) == 1
    assert "<svg" in page.read_text()


def test_shortest_service_first_beats_first_in_first_out_in_a_strict_queue(
    load: Callable[[str], Any], helios: Helios
) -> None:
    load("philly_vc_aug-oct2017.csv.gz")
    nodes = "6214e9=26,7f04ca=13,11cb48=7,b436b2=26,ee9e8c=26,e13805=7,6c71a0=13,2869ce=7,ed69ec=4,103959=4,0e4a51=13"
    answer = helios(
        *("whatif", "--cluster", "philly_vc_aug", "--nodes", nodes, "--oversized", "skip"),
        *("--policy", "fifo,qssf", "--draws", "0", "--json"),
    ).json
    wait = {run["policy"]: run["mean_wait_s"] for run in answer["runs"] if run["backfill"] == "none"}
    assert wait["qssf"] < wait["fifo"]


def test_a_cpu_trace_is_replayed_on_its_processors_and_says_so(helios: Helios) -> None:
    answer = helios(
        *("whatif", "--trace", TRACES / "KTH-SP2-1996-2.1-cln.swf.gz", "--nodes", "100", "--gpus-per-node", "1"),
        *("--policy", "fifo", "--draws", "0", "--json"),
    )
    assert answer.json["resource"] == "cpus"
    assert "CPUs" in answer.err
