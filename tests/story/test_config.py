"""``helios config`` and which files are read, typed as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helios.warehouse import Warehouse
from tests.builders import a_batch, a_job
from tests.story.shell import shell

NOBODY = 65534


def put_program(folder: Path, name: str) -> Path:
    """Write a program that leaves a trace when it is run, and return the trace."""
    ran = folder / f"{name}.ran"
    (folder / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
    (folder / name).chmod(0o755)
    return ran


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("owner_of_the_file", [0, NOBODY])
def test_root_runs_nothing_of_another_user_s_folder(tmp_path: Path, owner_of_the_file: int) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    theirs.mkdir()
    own.mkdir()
    ran = [put_program(theirs, name) for name in ("scontrol", "sacctmgr", "squeue", "sacct")]
    (theirs / "helios.toml").write_text(f"[slurm]\nbackend = 'commands'\ncommands = '{theirs}'\n")
    (theirs / ".numba_config.yaml").write_text("disable_jit: 1\n")
    os.chown(theirs / "helios.toml", owner_of_the_file, owner_of_the_file)
    os.chown(theirs, NOBODY, NOBODY)
    helios = shell(theirs, HELIOS_DATABASE_URL=f"sqlite:///{own}/h.db", PATH=f".::{os.environ['PATH']}")
    said = helios("doctor", code=1)
    assert "belongs to another user" in said.err
    assert [path for path in ran if path.exists()] == []
    (theirs / "helios.toml").unlink()
    helios("doctor", code=1)
    assert [path for path in ran if path.exists()] == []  # nor through a PATH that has the current folder


def test_a_named_file_is_used_and_shown(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("[model]\nseed = 5\n")
    helios = shell(tmp_path)
    shown = {it["key"]: it for it in helios("--config", "site.toml", "config", "--json").json["settings"]}
    assert (shown["model.seed"]["value"], shown["model.seed"]["origin"]) == (5, "site.toml")
    assert "no.toml cannot be read" in helios("--config", "no.toml", "config", code=2).err


def test_the_example_of_a_file_changes_nothing(tmp_path: Path) -> None:
    helios = shell(tmp_path, HELIOS_DATABASE_URL=f"sqlite:///{tmp_path}/h.db")
    before = helios("config", "--json").json["settings"]
    example = helios("config", "--example").out
    assert "[database]" in example
    (tmp_path / "helios.toml").write_text(example)
    assert helios("config", "--json").json["settings"] == before


def test_check_names_what_is_wrong_with_what_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    site = tmp_path / "site.toml"
    site.write_text(
        f"[database]\nurl = 'sqlite:///{tmp_path}/dtaa/h.db'\n[energy]\nhourly = '{tmp_path}/none.csv'\n"
        "[services.qsf]\n"
    )
    environment = {"HELIOS_DATABASE_URL": "sqlite://"}
    helios = shell(tmp_path, **environment)
    assert helios("config").out.endswith("Nothing is wrong.\n")
    found = helios("config", site, "--json", code=1).json
    assert found["files"] == [str(site)]
    wrong = [problem["message"] for problem in found["problems"]]
    assert len(wrong) == 2 and "qsf" in wrong[0] and "none.csv" in wrong[1]  # the environment names another database
    nowhere = shell(tmp_path, HELIOS_DATABASE_URL=f"sqlite:///{tmp_path}/dtaa/h.db")("config", code=1)
    assert f"Did you mean {tmp_path}/data/h.db?" in nowhere.out


def test_the_default_cluster_is_used_where_none_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/helios.db"
    with Warehouse.open(url) as warehouse:
        for name, jobs in (("venus", 2), ("earth", 3)):
            batch = a_batch(*(a_job(job_id=str(number)) for number in range(jobs)))
            warehouse.load([batch], cluster=name, path=name, sha256=name, format="sacct", timezone="UTC")
    assert "several clusters" in shell(tmp_path)("trace", "describe", code=2).err
    helios = shell(tmp_path, HELIOS_DATABASE_CLUSTER="earth")
    assert helios("trace", "describe", "--json").json["cluster"] == "earth"
    assert helios("trace", "describe", "--cluster", "venus", "--json").json["cluster"] == "venus"
    assert "No cluster 'mars'" in shell(tmp_path, HELIOS_DATABASE_CLUSTER="mars")("trace", "describe", code=2).err


def test_libraries_take_no_settings_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / ".numba_config.yaml").write_text("disable_jit: 1\n")
    (tmp_path / "matplotlibrc").write_text("figure.dpi: 7\n")
    script = (
        "import matplotlib, numba; before = (matplotlib.rcParams['figure.dpi'], numba.config.DISABLE_JIT); "
        "import helios.report.charts, helios.jit; "
        "print(before, (matplotlib.rcParams['figure.dpi'], numba.config.DISABLE_JIT))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "(7.0, 1) (100.0, 0)\n"


def test_resume_ends_a_pause_where_no_history_was_ever_read(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    paused = tmp_path / "state" / "PAUSED"
    helios = shell(tmp_path, HELIOS_CONTROL_STATE_FOLDER=str(tmp_path / "state"))
    assert "holds no history" in helios("resume", code=2).err
    paused.touch()
    assert f"{paused} was removed" in helios("resume").out
    assert not paused.exists()
