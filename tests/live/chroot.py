"""A cluster inside a chroot, where a pyslurm fits its Slurm; made once and kept, because making it takes minutes."""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from helios.config import SlurmSettings
from helios.slurm.commands import CommandsBackend
from helios.slurm.pyslurm_backend import PyslurmBackend
from tests.live.rig import Rig
from tests.reaper import REAPER
from tests.waiting import TEST_TIMEOUT_S

SCRIPT = Path(__file__).parents[2] / "deploy" / "devcluster" / "pyslurm-chroot.sh"
COMMANDS = ("scontrol", "squeue", "sinfo", "sprio", "sacct", "sacctmgr")
LONGEST_BUILD_S = 900
"""Two minutes on an idle machine, eleven on one that is five times too busy."""
PYTHON = "/opt/pyslurm/bin/python"


class NotToBeHad(Exception):
    """Why there is no such cluster here."""


class Chroot(Rig):
    """A :class:`Rig` of two nodes of four GPUs below ``root``; ``scratch`` is a folder of the session's own."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root = root
        self.scratch = scratch
        self.folder = root / "var/lib/helios-lab"
        self.settings = {"NODES": "2", "GPUS": "4", "PORT": str(_free_port())}
        self._lock: IO[str] | None = None

    @property
    def name(self) -> str:
        return "chroot"

    def take(self) -> None:
        """Make it if need be, and bring up an empty cluster; or raise :class:`NotToBeHad`."""
        if os.geteuid() != 0:
            raise NotToBeHad("a chroot needs root")
        self.root.parent.mkdir(parents=True, exist_ok=True)
        lock = self.root.with_suffix(".lock")
        self._lock = lock.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as reason:
            raise NotToBeHad(f"another session uses {self.root}") from reason
        REAPER.stop(self.root, lock=lock)
        for word in ("build", "forget", "up"):
            self._done(word)
        self._write_commands()

    def leave(self) -> None:
        """Stop everything; what took minutes to make is kept."""
        self._done("forget")
        if self._lock:
            self._lock.close()

    def control(self, *words: str) -> str:
        """Run the script that made it: up, down."""
        return self._done(*words)

    def run(self, *words: str, user: str | None = None, check: bool = True, given: str | None = None) -> str:
        """Run a command inside, as ``user`` if one is named, and return what it printed."""
        prefix = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if user else []
        done = subprocess.run(
            [str(SCRIPT), str(self.root), "run", *prefix, *words],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            input=given,
            timeout=TEST_TIMEOUT_S,
            cwd="/",
        )
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout + ("" if check else done.stderr)

    def by_pyslurm(self, *prefix: str, timeout_s: float = 30.0) -> PyslurmBackend:
        """Return the way in through pyslurm; ``prefix`` stands before the Python inside."""
        inside = ["chroot", str(self.root), *prefix, PYTHON]
        return PyslurmBackend(python=shlex.join(inside), timeout_s=timeout_s)

    def by_commands(self) -> CommandsBackend:
        """Return the way in through the commands inside."""
        return CommandsBackend(commands_folder=str(self.scratch))

    def slurm(self, backend: Any) -> SlurmSettings:
        """Return the settings with which Helios reaches it."""
        python = shlex.join(["chroot", str(self.root), PYTHON])
        return SlurmSettings(backend=backend, python=python, commands=str(self.scratch))

    def controller_pid(self) -> int:
        """Return the process id of slurmctld."""
        # Slurm writes over the file and cuts nothing off: a shorter number leaves the end of the one before it.
        return int((self.folder / "run/slurmctld.pid").read_text().split()[0])

    def _done(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [str(SCRIPT), str(self.root), *words],
                check=False,
                env=os.environ | {"CHROOT_PORT": self.settings["PORT"]},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LONGEST_BUILD_S,
            )
        except subprocess.TimeoutExpired as reason:
            raise NotToBeHad(f"{SCRIPT.name} {' '.join(words)} took longer than {LONGEST_BUILD_S} s") from reason
        if done.returncode != 0:
            raise NotToBeHad(done.stdout.strip() or f"{SCRIPT.name} {' '.join(words)} failed")
        return done.stdout

    def _write_commands(self) -> None:
        """Write programs that run Slurm's own inside."""
        for command in COMMANDS:
            path = self.scratch / command
            path.write_text(f'#!/bin/sh\nexec chroot {shlex.quote(str(self.root))} {command} "$@"\n')
            path.chmod(0o755)


def chroot_folder() -> Path:
    """Return where it is kept from session to session."""
    named = os.environ.get("HELIOS_PYSLURM_ROOT")
    return Path(named) if named else Path.home() / ".cache" / "helios-devcluster" / "pyslurm"


def _free_port() -> int:
    for port in range(28_817, 60_000, 200):
        if all(_is_free(port + offset) for offset in (0, 2, 184, 185)):
            return port
    raise NotToBeHad("no free ports")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as door:
        return door.connect_ex(("127.0.0.1", port)) != 0
