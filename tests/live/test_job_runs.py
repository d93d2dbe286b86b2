"""A job that was requeued on a real Slurm: its runs by ``helios why``, and its history read anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.live.rig import Rig
from tests.live.test_cli import Shell, from_now_on


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Shell:
    return Shell(rig, tmp_path, since=from_now_on(rig))


def states(rig: Rig, job: str) -> list[str]:
    """Return the states of a job's records, as the accounting has them."""
    return rig.lines("sacct", "--duplicates", "-n", "-X", "-P", "-j", job, "-o", "State")


def start_again(rig: Rig, job: str) -> None:
    """Have a requeued job start at once, which Slurm puts off by two minutes."""
    rig.until(lambda: rig.show_job(job)["Reason"] == "BeginTime")
    rig.run("scontrol", "update", f"jobid={job}", "StartTime=now")


def test_runs_of_a_job_requeued_by_hand_are_told_and_read_anew(rig: Rig, site: Shell) -> None:
    running, finished = jobs = rig.submit(gpus=2, seconds=600), rig.submit(gpus=1, seconds=1)
    rig.until(lambda: states(rig, running) == ["RUNNING"] and states(rig, finished) == ["COMPLETED"])
    for job in jobs:
        rig.run("scontrol", "requeue", job)
        start_again(rig, job)
    rig.until(lambda: all(len(found := states(rig, job)) == 2 and "PENDING" not in found for job in jobs))
    rig.run("scancel", running, check=False)
    rig.until(lambda: not any({"RUNNING", "COMPLETING"} & set(states(rig, job)) for job in jobs))
    rig.until(lambda: site.says("trace", "sync") and "It was run 2 times" in site.run("why", running).stdout)
    rig.until(lambda: site.says("trace", "sync") and "RUNNING" not in site.run("why", running).stdout)

    for job in jobs:
        found = site.answers("why", job)["runs"]
        assert [(run["number"], run["state"] == "REQUEUED", run["lost"]) for run in found["runs"]] == [
            (0, True, True),
            (1, False, False),
        ]
        assert found["total"]["lost_gpu_hours"] > 0

    before = {job: site.answers("why", job)["runs"] for job in jobs}
    with closing(sqlite3.connect(site.folder / "helios.db")) as database, database:  # as an older Helios stored them
        database.execute("UPDATE jobs SET ended_at = NULL, run_time_s = NULL WHERE restart = 0")
        database.execute("UPDATE jobs SET restart = 0")
        database.execute("DELETE FROM requeues")
    since = site.environment["HELIOS_HISTORY_START"]
    changes = site.answers("trace", "sync", "--again", since)["changes"]
    assert changes["restart"]["jobs"] == 2 and changes["ended_at"]["jobs"] >= 2
    assert {job: site.answers("why", job)["runs"] for job in jobs} == before
    assert site.answers("trace", "sync", "--again", since)["changes"] == {}
