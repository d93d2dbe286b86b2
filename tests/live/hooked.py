"""A cluster with the priority hook, for the tests of the hook and of the release script."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helios.actions import JobSetting
from helios.slurm.hook_table import PUBLISHED, TABLE, HookRow, publish, render, retract
from helios.slurm.undo_file import JOBS_FILE, JobsUndo, UndoEntry
from tests.live.rig import Rig, roomy_folder, skip_without_slurm

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "job_submit.lua"
ODD_USER = "ann+o.hara@lab"
ODD_PARTITION = "gpu+a@100"
HOUR = timedelta(hours=1)
# A partition that is down takes jobs and starts none: what is submitted stays pending.
PARTITIONS = f"""\
PartitionName=gpu Nodes=ALL Default=YES MaxTime=7-0 State=DOWN PriorityJobFactor=1
PartitionName=short Nodes=ALL DefaultTime=30 MaxTime=60 State=DOWN
PartitionName={ODD_PARTITION} Nodes=ALL MaxTime=7-0 State=DOWN"""


class Hooked:
    """A cluster with the hook, the state folder it reads from, and what tests do to both."""

    def __init__(self, rig: Rig, state: Path) -> None:
        self.rig = rig
        self.state = state
        self.table = state / TABLE
        self.generation = 0

    def publish(self, *rows: HookRow, now: datetime | None = None, lasts: timedelta = HOUR) -> None:
        self.generation += 1
        text = render(rows, generation=self.generation, now=now or datetime.now(UTC), lasts=lasts)
        publish(self.table, text)

    def site_factor(self, *options: str, **asked: object) -> int:
        """Submit a job and return its SiteFactor; nothing but the hook writes one here."""
        return self.place_of(self.rig.submit(*options, **asked))  # type: ignore[arg-type]  # because the names are submit's

    def place_of(self, job: str) -> int:
        """Return the SiteFactor of a job as soon as sprio names it, which takes a moment."""
        self.rig.until(lambda: job in self.rig.site_factors())
        return self.rig.site_factors()[job]

    def wrote(self, job: str, value: int, setting: JobSetting = JobSetting.ORDER) -> None:
        """Record, as Helios does before it writes, that it set a value on a job."""
        times = self.rig.lines("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-a", "-j", job, "-O", "SubmitTime")
        entry = UndoEntry(setting=setting, job_id=job, submitted=int(times[0]), value=value)
        undo = JobsUndo(self.state)
        undo.refresh()
        undo.add([entry])

    def use(self, script: str) -> None:
        """Put another script in the controller's folder; it is noticed by its time."""
        path = self.rig.folder / "conf" / "job_submit.lua"
        newer = path.stat().st_mtime + 2
        path.write_text(script)
        os.utime(path, (newer, newer))

    def log(self) -> str:
        return (self.rig.folder / "log" / "slurmctld.log").read_text(errors="replace")


def script_for(table: Path) -> str:
    text, times = re.subn(r'table_path = "[^"]*"', f'table_path = "{table}"', SCRIPT.read_text())
    assert times == 1
    return text


@pytest.fixture(scope="module")
def hooked_cluster() -> Iterator[Hooked]:
    skip_without_slurm()
    # Not pytest's own folder: every other pytest that starts closes that to users other than its own.
    folder = roomy_folder()
    script = folder / "job_submit.lua"
    script.write_text(script_for(folder / "state" / TABLE))
    subprocess.run(["useradd", "--badname", "-M", "-d", "/tmp", ODD_USER], check=False, capture_output=True)
    settings = {
        "LUA": str(script),
        "NODES": "2",
        "PARTITIONS": PARTITIONS,
        "USERS": f"alice bob {ODD_USER}",
    }
    rig = Rig(folder / "cluster", settings=settings)
    try:
        rig.control("up")
        yield Hooked(rig, folder / "state")
    finally:
        rig.control("wipe")
        shutil.rmtree(folder)
        subprocess.run(["userdel", ODD_USER], check=False, capture_output=True)


@pytest.fixture
def hooked(hooked_cluster: Hooked) -> Iterator[Hooked]:
    yield hooked_cluster
    hooked_cluster.rig.empty()
    retract(hooked_cluster.table)
    for folder in (hooked_cluster.state, hooked_cluster.table.parent):
        (folder / "PAUSED").unlink(missing_ok=True)
    if hooked_cluster.state.exists():
        hooked_cluster.state.chmod(0o755)
    for record in (PUBLISHED, Path(JOBS_FILE)):
        (hooked_cluster.state / record).unlink(missing_ok=True)
