"""What a test process started ends with it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reaper import MARK
from tests.waiting import TEST_TIMEOUT_S, until

ROOT = Path(__file__).parents[2]
AWAY = "setsid sh -c 'echo $$ >>{0}/pids; exec sleep 3600' >/dev/null 2>&1 &"
"""A process that detaches as a daemon does, and whose id is written down."""

INNER = """
import os, subprocess, time
from pathlib import Path
from tests.reaper import REAPER

def test_that_starts_processes_and_never_ends():
    here, kept = Path({here!r}), Path({kept!r})
    REAPER.remove(here)
    away = {away!r}.format(kept)
    subprocess.run(away, shell=True, check=True)
    subprocess.run(away, shell=True, check=True, cwd=here, env=dict(PATH=os.environ["PATH"]))
    subprocess.run(away, shell=True, check=True, env=dict(PATH=os.environ["PATH"], CONFIGURATION=str(here / "x")))
    subprocess.run("env -i " + away.replace("sh -c", "sh -c -- "), shell=True, check=True, cwd=here)
    while True:
        try:
            time.sleep(3600)
        except KeyboardInterrupt:
            if not {stubborn!r}:
                raise
            (kept / "interrupted").touch()
"""
DETACHED = 4


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""  # an ended one that nobody has collected has none
    except OSError:
        return False


def interrupt(pytest_: subprocess.Popen[bytes]) -> None:
    """Do what Ctrl-C at a terminal does."""
    os.killpg(pytest_.pid, signal.SIGINT)


class Run:
    """A pytest of its own, whose one test has started processes."""

    def __init__(self, folder: Path, *options: str, stubborn: bool = False) -> None:
        self.here, self.kept = folder / "here", folder / "kept"
        for path in (self.here, self.kept):
            path.mkdir()
        inner = INNER.format(here=str(self.here), kept=str(self.kept), away=AWAY, stubborn=stubborn)
        (folder / "test_inner.py").write_text(inner)
        words = ["-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder), *options, str(folder)]
        # The default signals, because what runs in the background of a shell ignores Ctrl-C.
        self.pytest = subprocess.Popen(
            ["env", "--default-signal", sys.executable, "-m", "pytest", *words],
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        until(lambda: len(self.detached()) == DETACHED)

    def detached(self) -> list[int]:
        file = self.kept / "pids"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def until_nothing_is_left(self) -> None:
        self.pytest.wait(TEST_TIMEOUT_S)
        until(lambda: not any(runs(process) for process in self.detached()))
        until(lambda: not self.here.exists())
        assert self.kept.exists()


@pytest.mark.parametrize("way", [interrupt, subprocess.Popen.terminate, subprocess.Popen.kill])
def test_nothing_that_a_test_of_a_worker_started_outlives_it(
    tmp_path: Path, way: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    run = Run(tmp_path, "--numprocesses", "1")
    way(run.pytest)
    run.until_nothing_is_left()


def test_a_kill_ends_a_stubborn_test_and_nothing_of_others(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "3600"], env={"PATH": os.environ["PATH"], MARK: "another"}, cwd="/")
    try:
        run = Run(tmp_path, stubborn=True)
        interrupt(run.pytest)
        until((run.kept / "interrupted").exists)
        assert all(runs(process) for process in run.detached())
        run.pytest.kill()
        run.until_nothing_is_left()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
