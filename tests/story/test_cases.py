"""Rows as sites have them, loaded as a person loads them, with the values that Slurm's source and manual settle."""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

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
def test_a_suspended_job_worked_for_its_elapsed_time(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "06_suspended.txt")
    assert jobs(helios, tmp_path)["run_time_s"].tolist() == [7_200] and hours(helios) == 8
    assert "1 job was suspended" in answer.err and "such as '1'" in answer.err


@needs_cases
def test_a_start_of_1970_is_unknown(helios: Helios, tmp_path: Path) -> None:
    answer = load(helios, CASES / "09_epoch_zero_start.txt")
    assert jobs(helios, tmp_path)["started_at"].isna().tolist() == [True, False] and hours(helios) == 8
    assert "1 job has a time of 1970" in answer.err
