"""Warm process that has done the imports of a Python program.

Each trial is a fork of it. The program is run as ``python SCRIPT.py`` would run it. The fork of a fork becomes a child
of the agent, which then treats it as any other trial.

It runs in the interpreter of the trials, for Python 3.9 and newer, and imports nothing of Helios.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import random
import runpy
import signal
import sys
import time
from typing import Any

_SET_PDEATHSIG = 1
"""Of ``prctl``, from ``linux/prctl.h``."""


def main(modules: list[str]) -> None:
    """Import modules, then start a trial for each order on standard input."""
    libc = ctypes.CDLL(None)
    agent = os.getppid()
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as reason:
            failed[module] = f"{type(reason).__name__}: {reason}"
    os.write(1, json.dumps({"failed": failed}).encode() + b"\n")
    buffer = b""
    while read := os.read(0, 65_536):
        *lines, buffer = (buffer + read).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = _fork_twice()
            if pid == 0:
                _become_trial(order, agent, libc)
                return
            os.write(1, json.dumps({"number": order["number"], "pid": pid}).encode() + b"\n")


def _fork_twice() -> int:
    """Return the pid of a grandchild, and 0 in it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild:
            os.write(writer, str(grandchild).encode())
            os._exit(0)
        os.close(reader)
        os.close(writer)
        return 0
    os.close(writer)
    pid = int(os.read(reader, 32))
    os.close(reader)
    os.waitpid(child, 0)
    return pid


def _become_trial(order: dict[str, Any], agent: int, libc: ctypes.CDLL) -> None:
    """Run the program in this process, as a session of its own."""
    os.setsid()
    while os.getppid() != agent:  # the process between has not ended yet
        if os.getppid() == 1:
            os._exit(1)
        time.sleep(0.0005)
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as in the agent
        file.write(order["oom_score"])
    if order["group"]:
        with open(os.path.join(order["group"], "cgroup.procs"), "w") as file:  # noqa: PTH118, PTH123 - as above
            file.write("0")
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    script = order["argv"][1]
    sys.argv = order["argv"][1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as the interpreter does
    # Every fork would draw the same numbers.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
