"""What an admin types, on a real Slurm: the commands of the README, each in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.live.rig import Rig
from tests.story.shell import run_command


class Shell:
    """A shell in which ``helios`` reaches the rig."""

    def __init__(self, rig: Rig, folder: Path, *, since: datetime) -> None:
        self.folder = folder
        self.environment = rig.environment | {
            "HELIOS_DATABASE_URL": f"sqlite:///{folder / 'helios.db'}",
            "HELIOS_CONTROL_STATE_FOLDER": str(folder / "state"),
            "HELIOS_SLURM_BACKEND": "commands",
            # What other tests left in the accounting would say who of the two is predicted to be shorter.
            "HELIOS_HISTORY_START": since.isoformat(),
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_command(words, folder=self.folder, environment=self.environment)

    def says(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def answers(self, *words: str) -> Any:
        return json.loads(self.says(*words, "--json"))


def from_now_on(rig: Rig) -> datetime:
    """Return the next full second when it has come: what ended in this one, of another test, accounting would tell."""
    since = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    rig.until(lambda: datetime.now(UTC) >= since)
    return since


@pytest.fixture
def shell(rig: Rig, tmp_path: Path) -> Iterator[Shell]:
    """A full cluster and two jobs that wait."""
    since = from_now_on(rig)
    rig.fill()
    waiting = [rig.submit(user="alice", gpus=8, limit="600"), rig.submit(user="bob", limit="10")]
    rig.until(lambda: set(waiting) <= set(rig.site_factors()))
    yield Shell(rig, tmp_path, since=since)


def test_an_evening_with_helios(shell: Shell, rig: Rig) -> None:
    findings = {it["check"]: it["verdict"] for it in json.loads(shell.run("doctor", "--json").stdout)}
    assert findings["controller"] == "ok" and findings["history"] == "fail"
    read: list[int] = []  # the accounting learns of a job a little later than the controller
    rig.until(lambda: read.append(shell.answers("trace", "sync")["jobs_new"]) or sum(read) >= 6)  # type: ignore[func-returns-value]  # because None goes on
    assert shell.answers("mode")["qssf"]["mode"] == "shadow"

    planned = shell.answers("cycle", "--as", "active")
    moved = planned["counts"]["qssf"]["would"]
    assert moved >= 1
    assert not any(rig.site_factors().values())

    shell.says("mode", "qssf", "active", "--reason", "an evening")
    assert shell.answers("cycle", "--apply")["acted"] == moved
    assert sum(value != 0 for value in rig.site_factors().values()) == moved

    long, short = rig.lines("squeue", "-h", "-t", "PD", "-o", "%i", "--sort=i")
    told = shell.answers("why", short)
    assert (told["rank"], told["rank_without"], told["queued"]) == (1, 2, 2)
    assert "Without Helios it would be number 1." in shell.says("why", long)
    assert ", goes first after 22 h" in shell.says("why", short), "no GPU job has ended that it could know of"
    assert "done" in shell.says("report", "decisions")

    assert shell.answers("pause", "--reason", "enough")["remaining"] == []
    assert not any(rig.site_factors().values())
    assert "enough" in shell.says("cycle", "--apply")
    assert "qssf is active" in shell.says("resume")


def test_who_waits_is_told_of_the_bound_that_the_accounting_gives(rig: Rig, tmp_path: Path) -> None:
    shell = Shell(rig, tmp_path, since=from_now_on(rig))
    ended = rig.submit(user="alice", gpus=1, limit="10", seconds=1)
    rig.until(lambda: rig.lines("sacct", "-n", "-X", "-P", "-j", ended, "-o", "State") == ["COMPLETED"])
    rig.fill()
    waits = rig.submit(user="alice", gpus=1, limit="10")
    rig.until(lambda: waits in rig.site_factors())
    rig.until(lambda: shell.says("trace", "sync") and "COMPLETED" in shell.run("why", ended).stdout)
    shell.says("mode", "qssf", "active", "--reason", "a bound")
    shell.says("cycle", "--apply")
    assert ", goes first after 3 h" in shell.says("why", waits), "hardly anything ever waited here: the least there is"


def test_what_cannot_be_done_is_said_with_a_way_out(shell: Shell, rig: Rig) -> None:
    assert shell.run("mode", "qsff", "active").returncode == 2
    shell.says("trace", "sync")
    unknown = shell.run("mode", "qsff", "active")
    assert unknown.returncode == 2 and "Configured are: qssf" in unknown.stderr
    canary = shell.run("mode", "qssf", "canary")
    assert canary.returncode == 2 and "--percent" in canary.stderr
    job = shell.run("why", "99999999")
    assert job.returncode == 2 and "99999999" in job.stderr
    other = shell.run("cycle", "--cluster", "elsewhere")
    assert other.returncode == 2 and "SLURM_CONF" in other.stderr
    rig.control("stop", "slurmctld")
    try:
        away = shell.run("cycle")
        assert away.returncode == 1 and "Traceback" not in away.stderr
    finally:
        rig.control("start", "slurmctld")


def test_a_cycle_that_read_no_queue_counts_no_jobs(shell: Shell, rig: Rig, tmp_path: Path) -> None:
    shell.says("trace", "sync")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sacct", "sacctmgr", "scontrol", "sprio"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error' >&2\nexit 1\n")
    (programs / "squeue").chmod(0o755)
    shell.environment["HELIOS_SLURM_COMMANDS"] = str(programs)
    told = shell.run("cycle")
    assert "The queue was not read." in told.stdout, told.stdout + told.stderr
    assert json.loads(shell.run("cycle", "--json").stdout)["pending"] is None
