"""Slurm's commands, of which ``sprio`` has something happen right beside its next answer."""

from __future__ import annotations

import shlex
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.waiting import until

COMMANDS = ("scontrol", "squeue", "sinfo", "sprio", "sacct", "sacctmgr", "sdiag", "sshare")
_PROGRAM = """#!/bin/sh
act() {{
  mv {folder}/armed {folder}/answered || return
  until [ -e {folder}/happened ]; do sleep 0.05; done
  rm {folder}/answered {folder}/happened
}}
when=$(cat {folder}/armed 2>/dev/null)
case "$when $*" in "block "*--jobs=*) act ;; esac
{real} "$@"
status=$?
[ "$when" != answer ] || act
exit $status
"""


class Meanwhile:
    """A folder of commands in which others come between a reading and what is written after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "sprio"
        real = folder / "sprio.real"
        program.rename(real)
        quoted = shlex.quote(str(folder))
        program.write_text(_PROGRAM.format(real=shlex.quote(str(real)), folder=quoted))
        program.chmod(0o755)

    @classmethod
    def of_path(cls, folder: Path, commands: Iterable[str] = COMMANDS) -> Meanwhile:
        """Take the commands on ``PATH``."""
        for name in commands:
            (folder / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
        return cls(folder)

    def __call__(self, happens: Callable[[], object], *, before_a_block: bool = False) -> None:
        """Have ``happens`` called after the next answer, before who asked can go on.

        With ``before_a_block`` it is called before the next answer about the jobs of a block, whatever was read before.
        """

        def act() -> None:
            until((self.folder / "answered").exists)
            try:
                happens()
            finally:
                (self.folder / "happened").touch()

        (self.folder / "armed").write_text("block\n" if before_a_block else "answer\n")
        threading.Thread(target=act, daemon=True).start()
