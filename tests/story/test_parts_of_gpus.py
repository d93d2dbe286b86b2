"""A site whose jobs hold parts of GPUs, and of some jobs it is not known what they held."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
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
    window = ("-S", "2020-01-01", "-E", "2020-01-01")
    report = helios("report", "usage", *window, "--json").json
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
    trace = a_file(tmp_path / "venus.parquet", a_history(*[2.0] * 30, *[0.25] * 30, *[0.0] * 30, *[math.nan] * 30))
    helios("trace", "export", "--trace", trace, "--anonymous", "--layout", "parquet", "--out", tmp_path / "out")
    file = next((tmp_path / "out").glob("*.parquet"))
    again = helios("trace", "describe", "--trace", file, "--json").json
    assert {row["size"]: row["jobs"] for row in again["sizes"]} == {"0": 30, "<1": 30, "2": 30, "unknown": 30}


# Replays: nine jobs of a quarter, submitted at once, on a node of two GPUs. Eight fit; the ninth waits for an hour.


@pytest.fixture
def nine(tmp_path: Path) -> Path:
    """A file of nine such jobs."""
    return a_file(tmp_path / "venus.parquet", a_history(*[0.25] * 9, submitted_at="2020-01-01T00:00:00Z", cpus=1.0))


NODE = ("--nodes", "1", "--gpus-per-node", "2")


def test_eight_quarters_run_at_once_on_two_gpus(helios: Helios, nine: Path) -> None:
    (run, *_) = helios("whatif", "--trace", nine, *NODE, "--policy", "fifo", "--json").json["runs"]
    assert (run["max_wait_s"], run["mean_wait_s"], run["queued_jobs"]) == (HOUR_S, HOUR_S / 9, 1)
    assert run["utilization"] == 9 * 0.25 / (2 * 2)


def test_the_wait_for_a_part_is_explained_in_gpus(helios: Helios, nine: Path) -> None:
    explained = helios("why", "9", "--trace", nine, *NODE, "--policy", "fifo", "--json").json
    assert [interval["free"] for interval in explained["replay"]["intervals"]] == [[0, 0]]
    assert {job["gpus"] for job in (explained, *explained["replay"]["holders"])} == {0.25}


def test_whole_gpus_wait_until_the_parts_are_free(helios: Helios, tmp_path: Path) -> None:
    trace = a_file(tmp_path / "venus.parquet", a_history(1.5, 1.0, 0.5, submitted_at="2020-01-01T00:00:00Z"))
    (run, *_) = helios("whatif", "--trace", trace, *NODE, "--policy", "fifo", "--json").json["runs"]
    # The first leaves half a GPU, for which the third may not overtake the second without backfill.
    assert run["policy"] == "fifo"
    assert run["max_wait_s"] == HOUR_S


def test_sevenths_of_a_gpu_fill_it_exactly(helios: Helios, tmp_path: Path) -> None:
    slices = [1 / 7, 2 / 7, 4 / 7, 3 / 7, 4 / 7]
    trace = a_file(tmp_path / "venus.parquet", a_history(*slices, submitted_at="2020-01-01T00:00:00Z"))
    (run, *_) = helios("whatif", "--trace", trace, *NODE, "--policy", "fifo", "--json").json["runs"]
    assert (run["max_wait_s"], run["utilization"]) == (0.0, pytest.approx(1.0))


def test_sizes_without_a_common_part_are_rounded_up_and_named(helios: Helios, tmp_path: Path) -> None:
    odd = [1 / 11, 1 / 13, 1 / 17, 1 / 19]
    trace = a_file(tmp_path / "venus.parquet", a_history(*odd, submitted_at="2020-01-01T00:00:00Z"))
    notes = helios("whatif", "--trace", trace, *NODE, "--policy", "fifo", "--json").json["notes"]
    assert any("in units of 1/100" in note and "4 jobs" in note for note in notes)


def test_slurm_starts_eight_quarters_at_once_too(helios: Helios, nine: Path, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "GresTypes=gpu\nSelectTypeParameters=CR_Core\nNodeName=n1 CPUs=64 Gres=gpu:2\n"
        "PartitionName=gpu Nodes=n1 Default=YES MaxTime=INFINITE\n"
    )
    done = helios("whatif", "slurm", "--slurm-conf", tmp_path / "slurm.conf", "--trace", nine, "--json")
    run = done.json["runs"][0]
    assert run["queued_jobs"] == 1
    assert run["max_wait_s"] == pytest.approx(HOUR_S, rel=0.05)


def test_slurm_fills_the_slices_of_a_gpu_and_no_more(helios: Helios, tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(
        "GresTypes=gpu\nSelectTypeParameters=CR_Core\nNodeName=n1 CPUs=64 Gres=gpu:1g.5gb:7\n"
        "PartitionName=gpu Nodes=n1 Default=YES MaxTime=INFINITE\n"
    )
    slices = a_history(*[1 / 7] * 8, submitted_at="2020-01-01T00:00:00Z", cpus=1.0, gpu_type="1g.5gb")
    trace = a_file(tmp_path / "venus.parquet", slices)
    run = helios("whatif", "slurm", "--slurm-conf", tmp_path / "slurm.conf", "--trace", trace, "--json").json["runs"][0]
    assert run["queued_jobs"] == 1
    assert run["max_wait_s"] == pytest.approx(HOUR_S, rel=0.05)


# Days of twelve such jobs at every hour, of half an hour: eight run at once, and four of them in the second half hour.


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of five such days."""
    first = pd.Timestamp("2020-01-01T00:00:00Z")
    jobs = [
        a_job(job_id=str(12 * hour + number), user=f"u{number}", gpus=0.25, cpus=1.0, run_time_s=HOUR_S / 2)
        | dict.fromkeys(("submitted_at", "eligible_at"), first + pd.Timedelta(hours=hour))
        | {"started_at": first + pd.Timedelta(hours=hour if number <= 8 else hour + 0.5)}
        | {"ended_at": first + pd.Timedelta(hours=hour + (0.5 if number <= 8 else 1.0))}
        for hour in range(5 * 24)
        for number in range(1, 13)
    ]
    return a_file(tmp_path_factory.mktemp("days") / "venus.parquet", jobs)


def test_a_study_counts_parts_of_gpus_as_used(helios: Helios, days: Path) -> None:
    statements = helios("study", "--trace", days, *NODE, "--json").json["statements"]
    used = next(statement for statement in statements if statement["name"] == "utilization")
    assert used["value"] == pytest.approx((2 + 1) / 2 / 2, rel=0.01)


def test_a_model_is_judged_by_replays_in_parts_of_gpus(helios: Helios, days: Path) -> None:
    until = ("--from", "2020-01-04")
    value = helios("model", "evaluate", "--trace", days, *until, *NODE, "--json").json["value"]
    assert value["replays"]["fifo"]["mean_wait_s"] == 4 * (HOUR_S / 2) / 12


def test_energy_is_of_the_parts_of_gpus_in_use(helios: Helios, days: Path) -> None:
    window = ("--from", "2020-01-05", "--to", "2020-01-05")
    policies = helios("whatif", "energy", "--trace", days, *NODE, *window, "--json").json["policies"]
    always_on = next(row for row in policies if row["policy"] == "always_on")
    # From midnight to the last submission: 800 W for the node and 250 W for each of 1.5 GPUs, with cooling.
    assert always_on["energy_kwh"] == pytest.approx(23 * (0.8 + 1.5 * 0.25) * 1.3, rel=0.001)
    assert always_on["node_utilization_before"] == pytest.approx(1.0)
