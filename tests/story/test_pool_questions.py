"""A person asks a pool from another terminal: while it runs, after kills, and where its folder is damaged."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helios.errors import FileUnreadable, UsageError
from helios.training.pool.state import FILE, MEMBERS
from helios.training.status import find_pool, read_status
from tests.story.shell import Helios
from tests.waiting import until

TRAIN = """
import json, os, pathlib, sys, time
x = int(sys.argv[1])
print("begins with", x, flush=True)
def report(**values):
    with open(os.environ["HELIOS_REPORT"], "a") as file:
        file.write(json.dumps(values) + "\\n")
report(step=0, score=x / 2, progress=0.5)
while x > 2 and not pathlib.Path("go").exists():
    time.sleep(0.02)
if x == 1:
    raise SystemExit("no data")
report(step=1, score=x, progress=1.0)
"""
SWEEP = """
command = "{python} train.py {{x}}"
attempts = 1
[parameters]
x = [0, 1, 2, 3, 4, 5, 6]
seed = [17]
[search]
metric = "score"
[env]
MODE = "a b"
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP.format(python=sys.executable).replace("train.py {x}", "train.py {x} {seed}"))
    return path


@pytest.fixture
def start(sweep: Path) -> Iterator[Start]:
    """Start the pool in a process of its own, and end it with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "helios", "pool", "run", "sweep.toml", "--slots", "2", "--json", *words]
        begun.append(subprocess.Popen(command, cwd=sweep.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return begun[-1]

    yield begin
    (sweep.parent / "go").touch()
    for each in begun:
        each.wait()


def status(helios: Helios, *words: object) -> Any:
    return helios("pool", "status", *words, "--json").json


@pytest.fixture
def waiting(helios: Helios, sweep: Path, start: Start) -> subprocess.Popen[bytes]:
    """A pool of which two trials wait for a file, and one has failed."""
    pool = start()
    folder = sweep.with_suffix(".pool")
    until(lambda: (folder / FILE).exists() and status(helios)["counts"].get("running") == 2)
    until(lambda: {trial["progress"] for trial in status(helios)["running_trials"]} == {0.5})
    return pool


def test_a_running_pool_says_who_runs_it_and_how_far_it_is(helios: Helios, waiting: subprocess.Popen[bytes]) -> None:
    found = status(helios)
    (run,) = found["runs"]
    assert (found["running"], run["pid"], run["devices"][0]["slots"]) == (True, waiting.pid, 2)
    assert found["counts"] == {"failed": 1, "finished": 2, "running": 2, "waiting": 2}
    assert found["best"][0]["value"] == 2
    assert found["left_s"] > 0
    (failed,) = found["failed"]
    assert failed["reason"].startswith("exit status 1")
    assert "no data" in Path(failed["log"]).read_text()


def test_a_status_is_one_screen_of_80_columns(
    helios: Helios, waiting: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = helios("pool", "status").out.splitlines()
    assert len(lines) < 24
    assert all(len(line) <= 80 for line in lines if "log:" not in line)
    assert any("5 waiting" in line or "2 waiting" in line for line in lines)


def test_the_best_trial_comes_with_a_command_that_repeats_it(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    (best,) = helios("pool", "best", sweep, "--json").json["trials"]
    assert (best["number"], best["parameters"], best["metrics"]) == (2, {"x": 2, "seed": 17}, {"score": 2})
    assert (best["provenance"]["seed"], best["provenance"]["python"]) == (17, sys.version.split()[0])
    again = subprocess.run(
        ["sh", "-c", f"HELIOS_REPORT=again.jsonl; export HELIOS_REPORT; {best['command']}"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == "begins with 2\n"
    assert "MODE='a b'" in best["command"] or "'MODE=a b'" in best["command"]
    assert json.loads((sweep.parent / "again.jsonl").read_text().splitlines()[-1])["score"] == 2


def test_show_tells_each_attempt_with_its_log(helios: Helios, waiting: subprocess.Popen[bytes]) -> None:
    found = helios("pool", "show", 1, "--json").json
    (attempt,) = found["runs"]
    assert (attempt["outcome"], attempt["devices"], found["state"]) == ("failed", ["cpu:0"], "failed")
    assert "slots free" in attempt["why"]
    assert found["log_end"] == ["begins with 1", "no data"]
    said = helios("pool", "show", 1).out
    assert "exit status 1" in said
    assert "no data" in said


def test_a_trial_that_is_not_there_is_refused(helios: Helios, waiting: subprocess.Popen[bytes]) -> None:
    assert "from 0 to 6" in helios("pool", "show", 99, code=2).err


def test_a_killed_pool_does_not_run(helios: Helios, waiting: subprocess.Popen[bytes]) -> None:
    waiting.send_signal(signal.SIGKILL)
    waiting.wait()
    found = status(helios)
    assert (found["running"], found["running_trials"], found["left_s"]) == (False, [], None)
    assert found["counts"] == {"failed": 1, "finished": 2, "waiting": 4}
    assert "does not run" in helios("pool", "status").out


def test_pools_that_share_a_folder_are_told_one_by_one(helios: Helios, sweep: Path, start: Start) -> None:
    pools = {start("--shared").pid for _ in range(2)}
    folder = sweep.with_suffix(".pool")
    until(lambda: (folder / FILE).exists() and {run.get("pid") for run in status(helios)["runs"]} == pools)
    until(lambda: status(helios)["counts"].get("running") == 4)


def test_asking_never_keeps_a_pool_from_starting(helios: Helios, sweep: Path, start: Start) -> None:
    (sweep.parent / "go").touch()
    folder = sweep.with_suffix(".pool")
    for _ in range(3):
        pool = start()
        while pool.poll() is None:
            if (folder / FILE).exists():
                status(helios)
        assert pool.returncode == 1  # one trial fails
    assert status(helios)["counts"] == {"failed": 1, "finished": 6}
    assert [*(folder / MEMBERS).iterdir()] == []


def test_a_line_half_written_is_not_read(helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]) -> None:
    waiting.kill()
    waiting.wait()
    with (sweep.with_suffix(".pool") / FILE).open("ab") as file:
        file.write(b'{"what": "made", "tri')
    assert status(helios)["total"] == 7


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"version": 1, "pool": "a", "sweep": "b"}\n', "another version of Helios"),
        ("garbage\n", "line 1, is not of a pool"),
        ('{"version": 2, "pool": "a", "sweep": "b"}\n[]\n', "line 2, is not of a pool"),
    ],
)
def test_a_folder_that_cannot_be_read_is_said(helios: Helios, tmp_path: Path, content: str, words: str) -> None:
    folder = tmp_path / "other.pool"
    folder.mkdir()
    (folder / FILE).write_text(content)
    assert words in " ".join(helios("pool", "status", folder, code=1).err.split())


def test_where_there_is_no_pool_it_is_said(helios: Helios, sweep: Path) -> None:
    assert "no pool here" in helios("pool", "status", code=2).err
    assert "no pool yet" in helios("pool", "status", sweep, code=2).err
    assert "cannot be read" in helios("pool", "status", sweep.parent, code=1).err
    for name in ("a.pool", "b.pool"):
        (sweep.parent / name).mkdir()
        (sweep.parent / name / FILE).write_text("")
    assert "a.pool, b.pool" in helios("pool", "best", code=2).err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")
def test_the_folder_of_another_account_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("")
    tmp_path.chmod(0o700)
    os.seteuid(65_534)
    try:
        with pytest.raises(FileUnreadable, match="Permission denied"):
            read_status(tmp_path)
        with pytest.raises(UsageError, match="Permission denied"):
            find_pool(tmp_path)
    finally:
        os.seteuid(0)


def test_links_and_pipes_in_the_folder_are_not_followed(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    secret = sweep.parent / "secret"
    secret.write_text('{"score": 99}\n')
    trials = sweep.with_suffix(".pool") / "trials"
    for number, name in ((3, "report.jsonl"), (4, "report.jsonl"), (1, "log.txt")):
        (trials / f"{number:05d}" / name).unlink()
    (trials / "00003" / "report.jsonl").symlink_to(secret)
    os.mkfifo(trials / "00004" / "report.jsonl")
    (trials / "00001" / "log.txt").symlink_to(secret)
    assert {trial["progress"] for trial in status(helios)["running_trials"]} == {None}
    assert helios("pool", "show", 1, "--json").json["log_end"] == []


def test_garbage_and_huge_reports_are_read_in_part(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    trials = sweep.with_suffix(".pool") / "trials"
    with (trials / "00003" / "report.jsonl").open("r+b") as file:
        file.truncate(1 << 40)
    with (trials / "00004" / "report.jsonl").open("ab") as file:
        file.write(b'\xff{"a\n' * 10_000 + b'{"step": 7}\n{"progr')
    steps = {trial["number"]: trial["step"] for trial in status(helios)["running_trials"]}
    assert steps == {3: None, 4: 7}


def test_status_of_many_trials_takes_half_a_second_at_most(helios: Helios, tmp_path: Path) -> None:
    folder = tmp_path / "many.pool"
    folder.mkdir()
    run = {"program": "p", "family": "f", "device_kind": "cpu", "device_model": "", "speeds": [[["f"], 3.0, 5.0]]}
    lines: list[dict[str, Any]] = [{"version": 2, "pool": "a", "sweep": "b"}]
    for number in range(10_000):
        lines.append({"what": "made", "trial": number, "parameters": {"lr": 0.1, "width": 64, "depth": number}})
        started = {"at_s": 1.0, "devices": ["cpu:0"], "memory_limit_mib": 10.0, "why": "a slot is free", "run": "r"}
        lines.append({"what": "started", "trial": number, **started})
        ended = {"seconds": 9.0, "peak_memory_mib": 5.0, "memory_limit_mib": 10.0, "metrics": {"score": 1.0}}
        ended |= {"value": 1.0, "reason": "", "at_s": 10.0, "run": run}
        lines.append({"what": "finished", "trial": number, "state": "finished", **ended})
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [sys.executable, "-m", "helios", "pool", "status", str(folder)]
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert b"10,000 of 10,000 trials" in subprocess.check_output(words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(used) < 0.5, used
