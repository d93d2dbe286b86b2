"""Rows as sites have them, loaded as a person loads them, with the values that Slurm's source and manual settle."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helios.slurm.commands import _node
from helios.slurm.power import power, why_not_wake
from tests.story.shell import Helios

CASES = Path(os.environ.get("HELIOS_CASES", Path(__file__).parents[3] / "shared" / "cases"))
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"the cases are not at {CASES}; set HELIOS_CASES")


def load(helios: Helios, *files: Path) -> Any:
    """Load files into the cluster ``site`` and return the last answer."""
    return [helios("trace", "load", file, "--cluster", "site") for file in files][-1]


def jobs(helios: Helios, tmp_path: Path) -> pd.DataFrame:
    """Return the loaded jobs in the order of submission."""
    helios("trace", "export", "--cluster", "site", "--layout", "parquet", "--out", tmp_path / "out")
    return pd.read_parquet(tmp_path / "out" / "jobs.parquet")


def hours(helios: Helios) -> float:
    return float(helios("trace", "describe", "--cluster", "site", "--json").json["resource_hours"])


@needs_cases
def test_a_requeued_run_keeps_its_end_and_its_hours(helios: Helios, tmp_path: Path) -> None:
    load(helios, CASES / "01_requeued.txt")
    assert jobs(helios, tmp_path)["run_time_s"].tolist() == [4 * 3600, 6 * 3600]
    assert hours(helios) == 40


@needs_cases
def test_runs_of_one_job_are_numbered_and_hours_before_the_last_are_lost(helios: Helios, tmp_path: Path) -> None:
    load(helios, CASES / "02_restarts_after_preemption.txt")
    assert jobs(helios, tmp_path)["restart"].tolist() == [0, 1, 2] and hours(helios) == 48
    assert lost_hours(helios) == 0.5


HEADER = "JobIDRaw|User|Partition|State|Submit|Start|End|ElapsedRaw|NNodes|AllocTRES"
RUNS = (
    "200|u1|gpu|PREEMPTED|2024-03-01T08:00:00|2024-03-01T08:10:00|2024-03-01T12:10:00|14400|1|gres/gpu=4,node=1",
    "200|u1|gpu|REQUEUED|2024-03-01T12:10:01|2024-03-01T12:15:00|2024-03-01T14:15:00|7200|1|gres/gpu=4,node=1",
    "200|u1|gpu|COMPLETED|2024-03-01T14:15:01|2024-03-01T14:20:00|2024-03-01T20:20:00|21600|1|gres/gpu=4,node=1",
    "200|u1|gpu|COMPLETED|2025-03-01T14:15:01|2025-03-01T14:20:00|2025-03-01T20:20:00|21600|1|gres/gpu=4,node=1",
)


@pytest.mark.parametrize("order", ["0123", "3210", "1302"])
@pytest.mark.parametrize("together", [True, False])
def test_runs_of_one_job_are_told_from_its_id_used_again(
    helios: Helios, tmp_path: Path, order: str, together: bool
) -> None:
    rows = [RUNS[int(place)] for place in order]
    files = [tmp_path / f"{number}.txt" for number in range(1 if together else len(rows))]
    for file, lines in zip(files, [rows] if together else [[row] for row in rows], strict=True):
        file.write_text("\n".join([HEADER, *lines]) + "\n")
    load(helios, *files)
    assert jobs(helios, tmp_path)["restart"].tolist() == [0, 1, 2, 0] and hours(helios) == 72
    assert lost_hours(helios) == pytest.approx(24 / 72)


def lost_hours(helios: Helios) -> float:
    """Return the share of hours that ``helios study`` finds lost to requeues."""
    found = helios("study", "--cluster", "site", "--json").json
    (statement,) = [it for it in found["statements"] if it["number"] == 19]
    return float(statement["value"])


@needs_cases
def test_a_suspended_job_worked_for_its_elapsed_time(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "06_suspended.txt")
    assert jobs(helios, tmp_path)["run_time_s"].tolist() == [7_200] and hours(helios) == 8
    assert "1 job was suspended" in answer.err and "such as '1'" in answer.err


@needs_cases
def test_a_start_of_1970_is_unknown(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "09_epoch_zero_start.txt")
    assert jobs(helios, tmp_path)["started_at"].isna().tolist() == [True, False] and hours(helios) == 8
    assert "1 job has a time of 1970" in answer.err


@needs_cases
def test_allocated_gres_is_a_sum_over_nodes(helios: Helios, tmp_path: Path) -> None:
    load(helios, CASES / "07_allocgres_total.txt")
    assert jobs(helios, tmp_path)["gpus"].tolist() == [16, 4]


@needs_cases
def test_the_sibling_that_ran_counts(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "08_federation.txt")
    assert jobs(helios, tmp_path)["state"].tolist() == ["COMPLETED"] and hours(helios) == 4
    assert "sibling of a job that another cluster of the federation ran" in answer.out


@needs_cases
def test_no_use_and_no_memory_of_a_gpu_is_not_measured(helios: Helios) -> None:
    words = ("advise", "-a", "--trace", CASES / "10_mig_trace.txt", "--usage", CASES / "10_mig_usage.txt")
    window = ("--from", "2024-05-01", "--to", "2024-06-01")
    found = helios(*words, *window, "--json").json
    assert found["jobs_measured"] > 0 and "gpus_unused" not in {one["kind"] for one in found["advice"]}


@needs_cases
def test_a_powered_down_node_that_does_not_answer_is_left_alone() -> None:
    (text,) = [line for line in (CASES / "15_stuck_cloud_node.txt").read_text().splitlines() if line.startswith("Node")]
    node = _node(text)
    assert power(node) is None and "never uses it" in why_not_wake(node)
