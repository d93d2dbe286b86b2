"""Start commands from a process that has imported Helios already, which takes a process of its own 3 CPU s.

``python -m tests.story.prepared`` reads one request per line (JSON: arguments, folder, environment, and the files for
what the command prints), forks, runs ``python -m helios`` in the child, and writes its exit code.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from numba.core.registry import cpu_target

from helios.cli.main import COMMANDS, import_command

LATE = (
    *("alembic.command", "alembic.config", "jinja2", "lightgbm", "matplotlib.figure", "matplotlib.style"),
    *("pyarrow.csv", "rich.progress", "scipy.stats"),
)
"""What commands import as late as they can."""
EARLY = ("PYTHON", "NUMBA_", "OMP_", "LD_", "XDG_", "MPL")
"""Beginnings of the variables that must be set before anything is imported."""


class Prepared:
    """The process that runs the commands of one test process; it begins with the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def run(self, arguments: list[str], *, folder: Path, environment: dict[str, str], out: Path, err: Path) -> int:
        """Run ``helios ARGUMENTS`` in ``folder`` and return its exit code."""
        if self._process is None or self._owner != os.getpid():
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
            self._owner = os.getpid()
        asked = {"arguments": arguments, "folder": str(folder), "environment": environment}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(asked | {"out": str(out), "err": str(err)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def same_early_variables(environment: dict[str, str]) -> bool:
    """Return whether what this environment says of imports is said here too; an empty variable says nothing."""
    return all(os.environ.get(name, "") == value for name, value in environment.items() if name.startswith(EARLY))


def _command(asked: dict[str, Any]) -> int:
    """Run the command in this process, and return its exit code."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for file, stream in ((os.devnull, 0), (asked["out"], 1), (asked["err"], 2)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    sys.argv = ["helios", *asked["arguments"]]
    sys.path[0] = asked["folder"]
    try:
        runpy.run_module("helios", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Run commands until nobody asks any more."""
    for name in COMMANDS:
        import_command(name)
    for library in LATE:
        import_module(library)
    # What Numba reads at the first call of anything compiled, in a third of a second.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = _command(json.loads(line))
            threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does at its end
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
