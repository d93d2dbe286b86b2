"""A person runs several sweeps in one pool, from a terminal and through kills."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.story.shell import Helios
from tests.unit.training.pool.test_coordinator import pool_processes
from tests.waiting import until

PROGRAM = """
import json, os, pathlib, subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
pathlib.Path(f"{sys.argv[0]}.began").touch()
while not pathlib.Path("go").exists(): time.sleep(0.02)
open(os.environ["HELIOS_REPORT"], "a").write(json.dumps({"step": 0, "METRIC": float(sys.argv[1])}) + "\\n")
"""
SWEEP = """
command = "{python} {name}.py {{x}}"
[parameters]
x = [0.5, 0.25]
[search]
metric = "{metric}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, metric in (("a", "accuracy"), ("b", "score"), ("c", "reward")):
        (tmp_path / f"{name}.py").write_text(PROGRAM.replace("METRIC", metric))
        (tmp_path / f"{name}.toml").write_text(SWEEP.format(python=sys.executable, name=name, metric=metric))
    return tmp_path


def files(folder: Path, names: str) -> list[Path]:
    return [folder / f"{name}.toml" for name in names]


def pools(folder: Path, names: str) -> list[Path]:
    return [folder / f"{name}.pool" for name in names]


def programs(pool: Path) -> list[psutil.Process]:
    """The programs of trials that run, without what they have started."""
    found = []
    for process in pool_processes(pool):
        with suppress(psutil.Error):  # it has ended meanwhile
            if process.name() != "sleep":
                found.append(process)
    return found


def start(folder: Path, names: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "helios", "pool", "run", *map(str, files(folder, names)), "--slots", "2"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: all((folder / f"{name}.py.began").exists() for name in names))
    return process


def kill_at_once(process: subprocess.Popen[bytes], pool: Path) -> None:
    """Kill a pool with the process that would clear away what it leaves."""
    agent = programs(pool)[0].parent()
    assert agent is not None
    agent.suspend()
    process.kill()
    process.wait()
    agent.kill()


def test_one_sweep_of_a_killed_pool_goes_on_alone(helios: Helios, folder: Path) -> None:
    a, b = pools(folder, "ab")
    kill_at_once(start(folder, "ab"), a)
    until(lambda: not programs(a) and not programs(b))
    assert pool_processes(a) and pool_processes(b)  # what their trials have left
    (folder / "go").touch()
    found = helios("pool", "run", *files(folder, "b"), "--json").json
    assert [trial["state"] for trial in found["trials"]] == ["finished"] * 2
    assert any("were ended" in note for note in found["notes"])
    assert pool_processes(b) == []
    assert pool_processes(a)  # a pool clears away what is its own
    helios("pool", "run", *files(folder, "a"))
    assert pool_processes(a) == []


def test_a_killed_pool_goes_on_with_a_third_sweep(helios: Helios, folder: Path) -> None:
    process = start(folder, "ab")
    process.kill()
    process.wait()
    until(lambda: not any(map(pool_processes, pools(folder, "ab"))))
    (folder / "go").touch()
    found = helios("pool", "run", *files(folder, "cab"), "--json").json
    assert [answer["sweep"] for answer in found["sweeps"]] == ["c.toml", "a.toml", "b.toml"]
    assert [answer["best"]["value"] for answer in found["sweeps"]] == [0.5] * 3
    attempts = [[trial["attempts"] for trial in answer["trials"]] for answer in found["sweeps"]]
    assert attempts == [[1, 1], [2, 1], [2, 1]]


def test_an_interrupted_pool_says_how_all_sweeps_go_on(helios: Helios, folder: Path) -> None:
    words = [sys.executable, "-m", "helios", "pool", "run", *map(str, files(folder, "ab")), "--slots", "2", "--json"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: all((folder / f"{name}.py.began").exists() for name in "ab"))
    process.terminate()
    out, err = process.communicate()
    assert process.returncode == 143
    assert f"helios pool run {folder}/a.toml {folder}/b.toml" in err
    assert [answer["left"] for answer in json.loads(out)["sweeps"]] == ["it was told to end"] * 2


def test_a_terminal_shows_each_sweep(folder: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "helios", "pool", "run", "a.toml", "b.toml", "--slots", "2"]
    process = subprocess.Popen(words, cwd=folder, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "100"})
    os.close(theirs)
    shown = b""
    with suppress(OSError):
        while read := os.read(ours, 65_536):
            shown += read
            if b"b:0" in shown:
                (folder / "go").touch()
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "trials of a.toml in" in text
    assert "a:0" in text


def test_the_report_has_both_sweeps(helios: Helios, folder: Path) -> None:
    (folder / "go").touch()
    page = folder / "pool.html"
    helios("pool", "run", *files(folder, "ab"), "--report", page)
    text = page.read_text()
    assert "Trials of a.toml, b.toml" in text
    assert "accuracy" in text and "score" in text


def test_a_job_of_slurm_runs_several_sweeps(helios: Helios, folder: Path) -> None:
    script = helios("pool", "submit", *files(folder, "ab"), "--time", "1:00:00", "--dry-run").out
    assert f"pool run {folder}/a.toml {folder}/b.toml --json" in script
    assert f"--output={folder}/a.pool/slurm-%j.log" in script
