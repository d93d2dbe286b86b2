"""Ctrl-C ends a whole Slurm, its jobs and a PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.rig import skip_without_slurm
from tests.waiting import TEST_TIMEOUT_S, until

ROOT = Path(__file__).parents[2]
INNER = """
import time
from pathlib import Path
from sqlalchemy import make_url
from tests.contract.conftest import postgres
from tests.live.conftest import cluster

def test_that_never_ends(cluster, postgres):
    job = cluster.submit(seconds=3600)
    cluster.until(lambda: cluster.job_state(job) == "RUNNING")
    folders = [cluster.folder, make_url(postgres).query["host"]]
    part = Path({ready!r}).with_suffix(".part")
    part.write_text("\\n".join(map(str, folders)))
    part.rename({ready!r})  # whoever waits for the file reads it whole
    time.sleep(3600)
"""


DAEMONS = ("slurmctld", "slurmd ", "slurmdbd", "slurmstepd", "munged", "mariadbd", "bin/postgres", "sleep 3600")


def processes(folder: str) -> list[str]:
    """Return the command lines of the processes that have to do with a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes()
            told = [said, (process / "environ").read_bytes(), os.fsencode((process / "cwd").readlink())]
        except OSError:
            continue  # it has ended
        if any(folder.encode() in text for text in told):
            found.append(said.replace(b"\0", b" ").decode(errors="replace"))
    return found


@dataclass(frozen=True)
class Running:
    """What has to run before it can be seen to end, and does not yet; what runs is told where a wait fails."""

    missing: list[str]
    lines: list[str]

    def __bool__(self) -> bool:
        return not self.missing


def all_run(inner: subprocess.Popen[bytes], said: Path, lines: list[str]) -> Running:
    """Say which of the daemons run, while the session that started them does."""
    assert inner.poll() is None, said.read_text()
    return Running([name for name in DAEMONS if not any(name in line for line in lines)], lines)


def test_ctrl_c_leaves_no_daemon_no_job_and_no_folder(tmp_path: Path) -> None:
    skip_without_slurm()
    if os.environ.get("HELIOS_TEST_POSTGRES") == "skip":
        pytest.skip("HELIOS_TEST_POSTGRES=skip")
    ready = tmp_path / "ready"
    (tmp_path / "test_inner.py").write_text(INNER.format(ready=str(ready)))
    words = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "--numprocesses", "1"]
    # The default signals, because what runs in the background of a shell ignores Ctrl-C.
    inner = subprocess.Popen(
        ["env", "--default-signal", sys.executable, "-m", "pytest", *words, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "HELIOS_TEST_POSTGRES_URL": ""},
        start_new_session=True,
        stdout=(tmp_path / "said").open("w"),
        cwd=tmp_path,
    )
    try:
        until(lambda: ready.exists() or inner.poll() is not None)
        assert inner.poll() is None, (tmp_path / "said").read_text()
        folders = ready.read_text().split()
        until(lambda: all_run(inner, tmp_path / "said", [line for folder in folders for line in processes(folder)]))
        os.killpg(inner.pid, signal.SIGINT)
        inner.wait(TEST_TIMEOUT_S)
        until(lambda: not [line for folder in folders for line in processes(folder)])
        until(lambda: not [folder for folder in folders if Path(folder).exists()])
    finally:
        inner.kill()
        inner.wait()
