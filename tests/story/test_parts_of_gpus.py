"""A site whose jobs hold parts of GPUs, and of some jobs it is not known what they held."""

import math
from pathlib import Path
from typing import Any

import pytest

from helios.ingest.parquet import write_parquet
from tests.builders import a_job, jobs_frame
from tests.story.shell import Helios

UNKNOWN = "1 job has no record of its GPUs, such as 4"
HOUR_S = 3_600.0


def a_history(*gpus: float, **columns: Any) -> list[dict[str, Any]]:
    """Return jobs of an hour with these GPUs, one for each user u1, u2, ..."""
    return [
        a_job(job_id=str(number), user=f"u{number}", gpus=held, run_time_s=HOUR_S, **columns)
        for number, held in enumerate(gpus, start=1)
    ]


def a_file(path: Path, jobs: list[dict[str, Any]]) -> Path:
    """Write jobs as Parquet, which holds all columns."""
    write_parquet(jobs_frame(*jobs), path, cluster="venus", timezone="UTC")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file with jobs of two GPUs, a quarter of one, none, and an unknown number."""
    return a_file(tmp_path / "venus.parquet", a_history(2.0, 0.25, 0.0, math.nan))


def test_a_description_sums_parts_and_leaves_out_what_is_unknown(helios: Helios, trace: Path) -> None:
    answer = helios("trace", "describe", "--trace", trace, "--json")
    assert answer.json["resource_hours"] == 2.25
    assert answer.json["missing"]["gpus"] == 1
    assert {row["size"]: row["jobs"] for row in answer.json["sizes"]} == {"0": 1, "<1": 1, "2": 1, "unknown": 1}
    assert UNKNOWN in answer.err


def test_usage_of_unknown_gpus_is_unknown_and_not_zero(helios: Helios, trace: Path) -> None:
    helios("trace", "load", trace)
    window = ("-S", "2020-01-01", "-E", "2020-01-02")
    report = helios("report", "users", *window, "--json").json
    assert {row["group"]: row["gpu_hours"] for row in report["rows"]} == {"u1": 2.0, "u2": 0.25, "u3": 0.0, "u4": None}
    assert report["total"]["gpu_hours"] == 2.25
    assert any(UNKNOWN in note for note in report["notes"])


@pytest.mark.parametrize("window", [(), ("-S", "2020-01-01")])
def test_the_queue_counts_parts_of_gpus_and_names_unknown_ones(helios: Helios, trace: Path, window: tuple) -> None:
    helios("trace", "load", trace)
    report = helios("report", "queue", *window, "-E", "2020-01-01T00:30", "--json").json
    assert max(row["running_gpus"] or 0.0 for row in report["rows"]) > 0
    assert any(UNKNOWN in note for note in report["notes"])


def test_a_job_of_a_quarter_is_shown_as_such(helios: Helios, trace: Path) -> None:
    helios("trace", "load", trace)
    report = helios("report", "queue", "-E", "2020-01-01T00:30", "--format", "User,RunGPUs", "-P")
    assert {"u1|2", "u2|0.25", "u3|0", "u4|"} <= set(report.out.splitlines())


def test_a_study_repeats_how_many_jobs_it_does_not_count(helios: Helios, trace: Path) -> None:
    answer = helios("study", "--trace", trace, "--json")
    assert answer.json["resource"] == "gpus"
    assert UNKNOWN in answer.err + answer.out


def test_a_replay_names_the_jobs_it_leaves_out_as_unknown(helios: Helios, tmp_path: Path) -> None:
    trace = a_file(tmp_path / "venus.parquet", a_history(2.0, 1.0, 0.0, math.nan))
    notes = helios("whatif", "--trace", trace, "--nodes", "1", "--json").json["notes"]
    assert f"{UNKNOWN}, and was left out." in notes
    assert "1 job that holds no GPU was left out." in notes


@pytest.mark.parametrize("layout", ["parquet", "helios"])
def test_an_export_keeps_parts_and_unknown_gpus(helios: Helios, trace: Path, tmp_path: Path, layout: str) -> None:
    helios("trace", "export", "--trace", trace, "--layout", layout, "--out", tmp_path / "out")
    file = next(path for path in (tmp_path / "out").iterdir() if not path.name.endswith(".json"))
    again = helios("trace", "describe", "--trace", file, "--json").json
    assert {row["size"]: row["jobs"] for row in again["sizes"]} == {"0": 1, "<1": 1, "2": 1, "unknown": 1}
    assert again["resource_hours"] == 2.25


def test_an_anonymous_export_never_makes_unknown_gpus_none(helios: Helios, tmp_path: Path) -> None:
    trace = a_file(tmp_path / "venus.parquet", a_history(*[2.0] * 30, *[0.0] * 30, *[math.nan] * 30))
    helios("trace", "export", "--trace", trace, "--anonymous", "--layout", "parquet", "--out", tmp_path / "out")
    file = next((tmp_path / "out").glob("*.parquet"))
    again = helios("trace", "describe", "--trace", file, "--json").json
    assert {row["size"]: row["jobs"] for row in again["sizes"]} == {"0": 30, "2": 30, "unknown": 30}
