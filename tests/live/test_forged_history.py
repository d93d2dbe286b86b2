"""What users can write into the accounting of a real Slurm, and that it makes no row of somebody else's."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from helios.app.sync import AccountingSource, sync_history
from helios.slurm import accounting
from helios.slurm.commands import CommandsBackend
from helios.slurm.shell import Shell
from helios.warehouse import Warehouse
from tests.live.rig import Rig
from tests.unit.ingest.crafted import NAMES

CAN_BE_SAID = [name for name in NAMES if name.strip() and not re.search(r"[\0\ud800-\udfff]", name)]
"""A command line takes no NUL, and without a name a job gets that of its script."""


def submitted(rig: Rig, names: list[str]) -> dict[str, str]:
    """Submit one pending job of alice for each name, and one of bob that ends; return the user of each.

    They wait for GPUs: a job that was never eligible, as a held one, is not in the accounting (22.05.8).
    """
    users = dict.fromkeys(rig.fill(), "alice")
    for name in names:
        with contextlib.suppress(AssertionError):  # Slurm itself refuses some
            users[rig.submit(name=name)] = "alice"
    return users | {rig.submit(seconds=0, gpus=0, user="bob"): "bob"}


def test_no_name_of_a_job_forges_a_row_of_the_history(rig: Rig, tmp_path: Path) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    users = submitted(rig, CAN_BE_SAID)
    assert len(users) > 90
    (bobs,) = (job for job, user in users.items() if user == "bob")
    rig.until(lambda: bobs not in rig.lines("squeue", "-h", "-o", "%A"))
    rig.empty()
    asked = ("sacct", "-a", "-D", "-X", "-n", "-P", "-S", "now-1hours", "-E", "now", "-o", "JobIDRaw,User,Submit,End")

    def truth() -> dict[str, list[str]]:
        return {job: rest for job, *rest in (line.split("|") for line in rig.lines(*asked)) if job in users}

    def late() -> dict[str, list[str] | None]:
        rows = truth()
        return {job: rows.get(job) for job in users if rows.get(job, ["Unknown"])[-1] == "Unknown"}

    with contextlib.suppress(AssertionError):
        rig.until(lambda: not late())
    assert late() == {}, rig.log("slurmdbd") + rig.log("slurmctld")
    rows = truth()

    applied = accounting.Accounting(shell=Shell(environment=rig.environment))
    url = f"sqlite:///{tmp_path / 'helios.db'}"
    reading = sync_history(
        AccountingSource(
            jobs=lambda start, end, path: applied.sacct_window(start, end, path=path), node_events=applied.node_events
        ),
        url=url,
        cluster=rig.name,
        now=datetime.now(UTC) + timedelta(seconds=2),
        start=began,
        window=timedelta(days=1),
        overlap=timedelta(hours=1),
    )
    with Warehouse.open(url) as warehouse:
        jobs = warehouse.jobs(rig.name, since=began)
    assert reading.rejected == 0
    read = jobs.set_index(jobs["job_id"].astype(str))
    assert set(read.index) >= set(rows)
    assert read.index.is_unique
    submitted_ever = {line.split("|")[0] for line in rig.lines(*asked)}  # without a name nothing is forged
    assert set(read.index) <= submitted_ever
    assert read.loc[list(rows), "user"].tolist() == [user for user, *_ in rows.values()] == [users[job] for job in rows]
    assert read.loc[list(rows), "ended_at"].notna().all()


def test_no_name_of_a_job_forges_a_row_of_the_queue(rig: Rig) -> None:
    users = submitted(rig, CAN_BE_SAID)
    assert len(users) > 90
    seen = {str(job["job_id"]): job["user"] for job in CommandsBackend(environment=rig.environment).queue()}
    assert {job: user for job, user in seen.items() if user != "bob"} == {
        job: user for job, user in users.items() if user != "bob"
    }
    assert set(seen.values()) <= {"alice", "bob"}
