"""Several files and clusters: load, rename, remove, and what Helios does in five lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helios.choices import Domain
from helios.ingest import synthetic_trace, write_helios_csv
from helios.warehouse import Warehouse
from helios.warehouse.revisions import LIVE_SOURCE
from tests.story.shell import Helios, shell


@pytest.fixture
def site(tmp_path: Path) -> Helios:
    """A folder with two days of jobs, a file each."""
    for day in (1, 2):
        jobs = synthetic_trace(start=datetime(2020, 9, day, tzinfo=UTC), days=1, seed=day)
        write_helios_csv(jobs, tmp_path / f"day{day}.csv")
    (tmp_path / "bad.csv").write_text("nonsense\n")
    return shell(tmp_path, HELIOS_CONTROL_STATE_FOLDER=str(tmp_path / "state"))


def test_several_files_go_into_one_cluster(site: Helios, tmp_path: Path) -> None:
    assert "--cluster NAME" in site("trace", "load", "day1.csv", "day2.csv", code=2).err
    loaded = site("trace", "load", "day1.csv", "day2.csv", "--cluster", "venus", "--json").json
    assert [it["file"] for it in loaded] == ["day1.csv", "day2.csv"]
    (cluster,) = site("trace", "list", "--json").json
    assert cluster["jobs"] == sum(it["jobs_new"] for it in loaded)
    said = site("trace", "load", "day1.csv", "bad.csv", "--cluster", "earth", code=2).err
    assert "Loaded before the error: day1.csv." in said


def test_standard_input_is_loaded_under_the_name_given(site: Helios, tmp_path: Path) -> None:
    assert "--cluster NAME" in site("trace", "load", "-", code=2).err
    environment = dict(os.environ) | {"HELIOS_DATABASE_URL": f"sqlite:///{tmp_path}/helios.db"}
    command = [sys.executable, "-m", "helios", "trace", "load", "-", "--cluster", "venus", "--json"]
    with (tmp_path / "day1.csv").open("rb") as file:
        done = subprocess.run(command, stdin=file, env=environment, capture_output=True, check=True, text=True)
    with (tmp_path / "day1.csv").open() as file:
        assert json.loads(done.stdout)["rows_read"] == sum(1 for _ in file) - 1
    assert site("trace", "load", "day1.csv", "--cluster", "venus", "--json").json["already_loaded"]


def test_a_cluster_is_renamed_with_its_history(site: Helios) -> None:
    site("trace", "load", "day1.csv", "--cluster", "venus")
    site("trace", "load", "day2.csv", "--cluster", "earth")
    before = site("trace", "describe", "--cluster", "venus", "--json").json
    assert "already" in site("trace", "rename", "venus", "earth", code=2).err
    assert "No cluster 'mars'" in site("trace", "rename", "mars", "x", code=2).err
    site("trace", "rename", "venus", "mars")
    assert site("trace", "describe", "--cluster", "mars", "--json").json == before | {"cluster": "mars"}


@pytest.mark.parametrize("name", ["../venus", "a/b", "", ".venus", "a\nb", "v" * 300])
def test_a_path_is_refused_as_the_name_of_a_cluster(site: Helios, tmp_path: Path, name: str) -> None:
    site("trace", "load", "day1.csv")
    kept = sorted(tmp_path.rglob("*"))
    for words in (
        ("trace", "load", "day2.csv", f"--cluster={name}"),
        ("trace", "rename", "day1", name),
        ("study", "--trace", "day2.csv", f"--cluster={name}", "--keep"),
    ):
        assert "cannot be the name of a cluster" in site(*words, code=2).err
    assert [it["name"] for it in site("trace", "list", "--json").json] == ["day1"]
    assert sorted(tmp_path.rglob("*")) == kept


def test_a_file_of_a_cluster_whose_name_is_a_path_needs_another(site: Helios, tmp_path: Path) -> None:
    (tmp_path / "jobs.txt").write_text("JobIDRaw|Cluster|Submit|State\n1|../venus|2026-09-01T00:00:00|PENDING\n")
    assert "--cluster NAME" in site("trace", "load", "jobs.txt", code=2).err
    site("trace", "load", "jobs.txt", "--cluster", "venus")


def test_a_cluster_is_removed_only_when_told_to(site: Helios) -> None:
    site("trace", "load", "day1.csv", "--cluster", "venus")
    site("trace", "load", "day2.csv", "--cluster", "earth")
    planned = site("trace", "remove", "venus", "--json").json
    assert planned["removed"] is False and planned["rows"]["jobs"] > 0 and planned["rows"]["loads"] == 1
    earth = site("trace", "describe", "--cluster", "earth", "--json").json
    assert site("trace", "remove", "venus", "--yes", "--json").json["rows"] == planned["rows"]
    assert [it["name"] for it in site("trace", "list", "--json").json] == ["earth"]
    assert site("trace", "describe", "--json").json == earth
    assert site("trace", "load", "day1.csv", "--cluster", "venus", "--json").json["jobs_new"] == planned["rows"]["jobs"]


def test_a_cluster_that_a_helios_acts_on_is_neither_removed_nor_renamed(site: Helios, tmp_path: Path) -> None:
    site("trace", "load", "day1.csv", "--cluster", "venus")
    with Warehouse.open(f"sqlite:///{tmp_path}/helios.db") as warehouse:
        now = datetime.now(UTC)
        ledger = warehouse.ledger("venus", domain=Domain.JOBS)
        assert ledger.acquire(holder="here", now=now, lasts=timedelta(hours=1)) is not None
    for words in (("remove", "venus", "--yes"), ("rename", "venus", "mars")):
        assert "A Helios acts on venus" in site("trace", *words, code=2).err
    assert site("trace", "describe", "--cluster", "venus", "--json").json["jobs"] > 0


def test_the_status_has_five_lines_and_asks_no_slurm(site: Helios, tmp_path: Path) -> None:
    site("trace", "load", "day1.csv", "--cluster", "venus")
    now = datetime.now(UTC)
    with Warehouse.open(f"sqlite:///{tmp_path}/helios.db") as warehouse:
        warehouse.add_coverage("venus", source=LIVE_SOURCE, started_at=now, ended_at=now, read_at=now)
    lines = site("status").out.splitlines()
    assert [line.split()[0] for line in lines] == ["daemon", "services", "cycle", "history", "model"]
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "PAUSED").touch()
    found = {it["check"]: it for it in site("status", "--json").json}
    assert found["services"]["message"].startswith("paused")
    assert found["services"]["hint"] == "To go on: helios resume"


def test_a_pause_shows_in_the_status_of_a_history_too(site: Helios, tmp_path: Path) -> None:
    site("trace", "load", "day1.csv", "--cluster", "venus")
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "PAUSED").touch()
    lines = site("status").out.splitlines()
    assert [line.split()[0] for line in lines] == ["slurm", "services", "history", "model"]
