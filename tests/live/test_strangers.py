"""What a user without privileges can do to a daemon on its host: nothing."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.live.rig import Rig, roomy_folder
from tests.live.test_daemon import Site
from tests.waiting import TEST_TIMEOUT_S

HOLD = "import socket, sys; taken = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print(flush=True); input()"
AS_ALICE = ("setpriv", "--reuid", "alice", "--regid", "alice", "--clear-groups")


@pytest.fixture
def site(rig: Rig) -> Iterator[Site]:
    """A daemon to be, in a folder that everybody may enter, with jobs that wait."""
    folder = roomy_folder()
    rig.fill()
    rig.submit(user="bob")
    made = Site(rig, folder)
    made.environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    made.helios("trace", "sync")
    made.helios("mode", "qssf", "active", "--reason", "a test")
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_user_who_takes_port_locks_and_files_changes_nothing(site: Site) -> None:
    port = free_port()
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    words = [*AS_ALICE, python, "-c", HOLD, str(port)]
    taker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
    try:
        assert taker.stdout is not None and taker.stdout.readline() == b"\n"
        site.environment["HELIOS_DAEMON_LISTEN"] = f"127.0.0.1:{port}"
        daemon = site.start()
        site.until_all_are_set()
        (site.folder / "state").chmod(0o755)  # as an older Helios left it
        files = [site.folder / "helios.db", *(path for path in (site.folder / "state").iterdir() if path.is_file())]
        assert {"cycle.lock", "daemon.jobs.lock", "identity", "health.json"} <= {path.name for path in files}
        for path in files:
            assert "denied" in site.rig.run("flock", "-n", str(path), "cat", str(path), user="alice", check=False)
        assert f"another process listens on 127.0.0.1:{port}" in site.log()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(TEST_TIMEOUT_S) == 0, site.log()
    finally:
        taker.kill()
        taker.wait()


def test_a_command_of_root_in_a_user_folder_runs_no_user_program(site: Site) -> None:
    trap = site.folder / "trap"
    trap.mkdir()
    for name in ("scontrol", "squeue", "sinfo", "sacct"):
        (trap / name).write_text(f"#!/bin/sh\ntouch {trap}/sprung\n")
        (trap / name).chmod(0o755)
    (trap / "helios.toml").write_text(f'[slurm]\nbackend = "commands"\ncommands = "{trap}"\n')
    for path in (trap, *trap.iterdir()):
        shutil.chown(path, "alice", "alice")
    typed = subprocess.run(
        [sys.executable, "-m", "helios", "doctor"],
        cwd=trap,
        env=site.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "belongs to another user (alice), so that it is not used" in " ".join(typed.stderr.split())
    assert not (trap / "sprung").exists()
