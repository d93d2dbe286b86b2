"""A person asks a pool from another terminal: while it runs, after kills, and where its folder is damaged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from helios.errors import FileUnreadable, UsageError
from helios.training.pool.orders import RETRY, STOP, give_order
from helios.training.pool.provenance import own_name
from helios.training.pool.state import FILE, MEMBERS, VERSION
from helios.training.status import find_pool, read_status
from tests.disks import fill, small_disk
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
if x == 1 and not pathlib.Path("data").exists():
    raise SystemExit("no data")
report(step=1, score=x, progress=1.0)
"""
SWEEP = """
command = "{python} train.py {{x}} {{seed}}"
attempts = 1
grace_s = 0.5
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


def trial(helios: Helios, number: int) -> Any:
    return helios("pool", "show", number, "--json").json


def finish(sweep: Path, pool: subprocess.Popen[bytes]) -> int:
    (sweep.parent / "go").touch()
    return pool.wait()


def test_a_failed_trial_is_run_again_while_the_pool_runs(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    (sweep.parent / "data").touch()
    given = helios("pool", "retry", "--json").json
    assert (given["trials"], given["running"], given["done"]) == ([1], True, True)
    assert finish(sweep, waiting) == 0
    found = trial(helios, 1)
    assert (found["state"], found["value"], found["attempts"]) == ("finished", 1, 2)
    assert [attempt["outcome"] for attempt in found["runs"]] == ["failed", "finished"]


def test_a_dead_pool_s_orders_are_carried_out_once_by_the_next(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    waiting.kill()
    waiting.wait()
    assert "next run" in helios("pool", "retry", 1).out
    assert "next run" in helios("pool", "stop", 6).out
    waits = [(order["order"], order["trials"]) for order in helios("pool", "status", "--json").json["orders"]]
    assert waits == [("retry", [1]), ("stop", [6])]
    assert "not done yet: retry trial 1" in helios("pool", "status").out
    (sweep.parent / "go").touch()
    for _ in range(2):
        helios("pool", "run", sweep, code=1)
        assert (trial(helios, 1)["attempts"], trial(helios, 1)["state"]) == (2, "failed")
    assert (trial(helios, 6)["attempts"], trial(helios, 6)["state"]) == (0, "pruned")


def test_trials_that_run_and_wait_are_ended_with_who_wanted_it(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    helios("pool", "stop", 3, 6)
    until(lambda: status(helios)["counts"].get("pruned") == 2)
    assert finish(sweep, waiting) == 1
    assert {trial(helios, number)["reason"] for number in (3, 6)} == {f"stopped by {own_name()}"}
    assert status(helios)["counts"] == {"failed": 1, "finished": 4, "pruned": 2}


def test_a_pool_is_stopped_as_by_sigterm(helios: Helios, waiting: subprocess.Popen[bytes]) -> None:
    helios("pool", "stop")
    assert waiting.wait() == 128 + signal.SIGTERM
    assert status(helios)["counts"] == {"failed": 1, "finished": 2, "waiting": 4}


def test_a_stop_ends_no_later_run(helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]) -> None:
    give_order(sweep.with_suffix(".pool"), STOP, (), who="somebody")
    waiting.wait()
    (sweep.parent / "go").touch()
    helios("pool", "run", sweep, code=1)
    assert status(helios)["counts"] == {"failed": 1, "finished": 6}


@pytest.fixture
def sharing(helios: Helios, sweep: Path, start: Start) -> list[subprocess.Popen[bytes]]:
    """Two pools that share a folder, whose slots are all taken."""
    pools = [start("--shared") for _ in range(2)]
    folder = sweep.with_suffix(".pool")
    until(lambda: (folder / FILE).exists() and status(helios)["counts"] == {"failed": 1, "finished": 2, "running": 4})
    return pools


def test_of_pools_that_share_a_folder_one_runs_a_trial_again(
    helios: Helios, sweep: Path, sharing: list[subprocess.Popen[bytes]]
) -> None:
    assert helios("pool", "retry", 1, "--json").json["done"]
    assert {finish(sweep, pool) for pool in sharing} <= {0, 1}
    assert (trial(helios, 1)["attempts"], trial(helios, 1)["state"]) == (2, "failed")


def test_pools_that_share_a_folder_are_told_one_by_one(helios: Helios, sharing: list[subprocess.Popen[bytes]]) -> None:
    assert {run["pid"] for run in status(helios)["runs"]} == {pool.pid for pool in sharing}


def test_pools_that_share_a_folder_all_stop(helios: Helios, sharing: list[subprocess.Popen[bytes]]) -> None:
    helios("pool", "stop")
    assert [pool.wait() for pool in sharing] == [143, 143]


def test_what_cannot_be_ordered_is_refused(helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]) -> None:
    assert "since it is finished" in helios("pool", "retry", 2, code=2).err
    assert "has ended: failed" in helios("pool", "stop", 1, code=2).err
    assert "no trial 77" in helios("pool", "retry", 77, code=2).err
    assert "neither a number" in helios("pool", "stop", 1, sweep, sweep, code=2).err
    waiting.kill()
    waiting.wait()
    assert "No pool runs" in helios("pool", "stop", code=2).err
    assert not (sweep.with_suffix(".pool") / "orders.jsonl").exists()


def test_orders_survive_kills_at_any_moment(helios: Helios, sweep: Path, start: Start) -> None:
    (sweep.parent / "go").touch()
    folder, random = sweep.with_suffix(".pool"), Random(7)
    for _ in range(3):
        pool = start()
        until(lambda: (folder / FILE).exists() and '"failed"' in (folder / FILE).read_text())
        give_order(folder, RETRY, (1,), who="somebody")
        time.sleep(random.random())
        pool.kill()
        pool.wait()
        assert helios("pool", "status", "--json").json["running"] is False
    helios("pool", "run", sweep, code=1)
    lines = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    given = [line["order"] for line in lines if line.get("what") == "retried"]
    assert len(set(given)) == len(given) > 0
    assert status(helios)["counts"] == {"failed": 1, "finished": 6}


def test_what_holds_starts_on_a_full_disk_is_told(sweep: Path, tmp_path: Path) -> None:
    sweep.write_text(sweep.read_text().replace("[0, 1, 2", f"{list(range(2, 40))} #"))
    with small_disk(tmp_path / "disk") as disk:
        folder = disk / "own.pool"
        words = [sys.executable, "-m", "helios", "pool"]
        run = [*words, "run", str(sweep), "--folder", str(folder), "--slots", "2"]
        pool = subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def ask() -> Any:
            asked = subprocess.run([*words, "status", str(folder), "--json"], capture_output=True, check=False)
            return {"runs": []} if asked.returncode else json.loads(asked.stdout)

        until(lambda: ask().get("counts", {}).get("running") == 2)
        fill(disk)
        (tmp_path / "go").touch()
        until(lambda: [run for run in ask()["runs"] if re.search("full|No space", run["hold"] or "")])
        refused = subprocess.run([*words, "stop", str(folder)], capture_output=True, text=True, check=False)
        assert (refused.returncode, "Make room" in refused.stderr) == (1, True)
        (disk / "full").unlink()
        pool.wait()
        assert "waiting" not in ask()["counts"]


def test_asking_never_keeps_a_pool_from_starting(helios: Helios, sweep: Path, start: Start) -> None:
    (sweep.parent / "go").touch()
    folder = sweep.with_suffix(".pool")
    for _ in range(2):
        pool = start()
        while pool.poll() is None:
            if (folder / FILE).exists():
                status(helios)
        assert pool.returncode == 1  # one trial fails
    assert status(helios)["counts"] == {"failed": 1, "finished": 6}
    assert [*(folder / MEMBERS).iterdir()] == []


def test_load_and_status_say_the_same_of_a_damaged_line(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    waiting.kill()
    waiting.wait()
    state = sweep.with_suffix(".pool") / FILE
    header, second, *others = state.read_bytes().splitlines(keepends=True)
    state.write_bytes(b"".join((header, second[:-20] + b"\n", *others)))
    for command in (("status", state.parent), ("run", sweep), ("load", state.parent)):
        said = " ".join(helios("pool", *command, code=1).err.split())
        assert "line 2, is damaged" in said
        assert "Bring the file back from a copy" in said


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
        (f'{{"version": {VERSION}, "pool": "a", "sweep": {{}}}}\n[]\n', "line 2, is damaged"),
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


def test_status_of_many_trials_costs_little_more_than_reading_them(helios: Helios, tmp_path: Path) -> None:
    folder = tmp_path / "many.pool"
    folder.mkdir()
    run = {"program": "p", "family": "f", "device_kind": "cpu", "device_model": "", "speeds": [[["f"], 3.0, 5.0]]}
    lines: list[dict[str, Any]] = [{"version": VERSION, "pool": "a", "sweep": {}}]
    for number in range(10_000):
        lines.append(
            {"what": "made", "at_s": 1.0, "trial": number, "parameters": {"lr": 0.1, "width": 64, "depth": number}}
        )
        started = {"at_s": 1.0, "devices": ["cpu:0"], "memory_limit_mib": 10.0, "why": "a slot is free", "run": "r"}
        lines.append({"what": "started", "trial": number, **started})
        ended = {"seconds": 9.0, "peak_memory_mib": 5.0, "memory_limit_mib": 10.0, "metrics": {"score": 1.0}}
        ended |= {"value": 1.0, "reason": "", "at_s": 10.0, "run": run}
        lines.append({"what": "finished", "trial": number, "state": "finished", **ended})
    (folder / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    few = tmp_path / "few.pool"
    few.mkdir()
    (few / FILE).write_text(f"{json.dumps(lines[0])}\n")

    def used_s(work: Callable[[], object]) -> float:
        """Return the least CPU seconds of three: of this process and of what it starts."""
        used = []
        for _ in range(3):
            before = os.times()
            work()
            used.append(sum(os.times()[:4]) - sum(before[:4]))
        return min(used)

    def asked(pool: Path) -> bytes:
        return subprocess.check_output([sys.executable, "-m", "helios", "pool", "status", str(pool)])

    assert b"10,000 of 10,000 trials" in asked(folder)
    more_s = used_s(lambda: asked(folder)) - used_s(lambda: asked(few))
    read_s = used_s(lambda: [json.loads(line) for line in (folder / FILE).read_text().splitlines()])
    assert more_s < 4.0 * read_s, (more_s, read_s)


def test_a_dry_run_says_what_would_run_and_writes_nothing(helios: Helios, sweep: Path) -> None:
    before = sorted(sweep.parent.iterdir())
    [plan] = helios("pool", "run", sweep, "--dry-run", "--slots", 3, "--json").json["pools"]
    assert sorted(sweep.parent.iterdir()) == before
    assert (plan["total"], plan["ended"], plan["goes_on"], plan["drawn"]) == (7, 0, False, False)
    assert plan["commands"] == [f"{sys.executable} train.py {x} 17" for x in range(3)]
    assert plan["devices"][0]["slots"] == 3
    assert {"MODE", "HELIOS_REPORT"} <= {*plan["environment"]}
    assert f"First, in {sweep.parent}" in helios("pool", "run", sweep, "--dry-run").out


def test_a_dry_run_of_a_known_pool_has_its_next_trials(
    helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]
) -> None:
    assert "Another pool is running" in helios("pool", "run", sweep, "--dry-run", code=2).err
    waiting.kill()
    waiting.wait()
    [plan] = helios("pool", "run", sweep, "--dry-run", "--json").json["pools"]
    assert (plan["ended"], plan["goes_on"]) == (3, True)
    assert plan["commands"][0].endswith("train.py 3 17")
    sweep.write_text(sweep.read_text().replace("train.py {x}", "train.py {x} {x}"))
    assert "another sweep" in helios("pool", "run", sweep, "--dry-run", code=2).err


def test_a_dry_run_of_a_pool_killed_at_once_is_new(helios: Helios, sweep: Path) -> None:
    folder = sweep.with_suffix(".pool")
    folder.mkdir()
    (folder / FILE).touch()
    assert f"7 trials of {sweep}: new" in helios("pool", "run", sweep, "--dry-run").out


def test_a_trial_named_twice_is_run_again_once(helios: Helios, sweep: Path, waiting: subprocess.Popen[bytes]) -> None:
    assert json.loads(helios("pool", "retry", 1, 1, "--json").out)["trials"] == [1]


def test_a_run_keeps_its_commit_and_says_once_where_it_has_changed(helios: Helios, sweep: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(sweep.parent)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    commits = []
    for text in ("a", "b"):
        (sweep.parent / "text").write_text(text)
        subprocess.run([*git, "add", "text", "train.py"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
        commits.append(subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip())
        (sweep.parent / "go").touch()
        said = helios("pool", "run", sweep, "--report", "page.html", code=1)
        assert said.err.count("The code has changed") == (text == "b")
        assert commits[-1] in (sweep.parent / "page.html").read_text()
        helios("pool", "retry")
    found = trial(helios, 1)
    assert [attempt["commit"] for attempt in found["runs"]] == commits
    (sweep.parent / "text").write_text("c")
    helios("pool", "run", sweep, code=1)
    assert trial(helios, 1)["provenance"]["changed"] is True
