"""Launcher whose workers are forks of itself, which has imported PyTorch: a process of its own takes 3 CPU s for it.

``python forked.py HUNG_S PROGRAM [ARGUMENTS]``. All else of a worker is as of one that was started: its environment,
its only connection, its signals, its exit status.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence

import torch

from helios.training import elastic
from helios.training.elastic import __main__, launcher

elastic.Training  # noqa: B018  # imported where it is first named
torch.optim.AdamW([torch.zeros(1)]).zero_grad()  # which imports a compiler


class Fork:
    """What ``subprocess.Popen`` is to the launcher."""

    returncode: int | None = None

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(work(command[1:], env, *pass_fds))

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int | None:
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def work(words: Sequence[str], environment: Mapping[str, str], connection: int) -> int:
    """Run a program, and return its exit status."""
    for number in launcher.FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, connection)
    os.closerange(connection + 1, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [*words]
    status: object = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter does at its end
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    launcher.HUNG_S = float(sys.argv[1])
    launcher.subprocess.Popen = Fork  # type: ignore[misc,assignment]
    sys.exit(__main__.main(sys.argv[2:]))
