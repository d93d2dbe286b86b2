"""Process that starts trials in a container, or after their imports.

Without a container each trial is a fork of a fork, which becomes a child of the agent, and the agent treats it as any
other trial. In a container the agent may be unable to see or signal a trial, so there this process runs one trial at a
time, says how it ended, and kills what it left. It kills the trial, too, when its standard input ends. It stops and
continues it for the agent, by the functions with which the agent does so outside of containers.

With imports, the program is run as ``python SCRIPT.py`` would run it. It runs in the interpreter of the trials, for
Python 3.9 and newer, and imports nothing of Helios: the agent gives its text to an interpreter inside of an image.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import random
import resource
import runpy
import select
import signal
import sys
import time
from typing import Any

_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
"""Of ``prctl``, from ``linux/prctl.h``."""
SEGMENT = "--segment"
"""First argument where trials run one after another."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> None:
    """Import modules, then start a trial for each order on standard input."""
    if arguments[:1] == [SEGMENT]:
        run_segment(arguments[1:])
    else:
        run_forks(arguments)


def _import(modules: list[str]) -> None:
    """Import modules and report failures."""
    failed = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as reason:
            failed[module] = f"{type(reason).__name__}: {reason}"
    _send({"failed": failed})


def _send(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def run_segment(modules: list[str]) -> None:
    """Run trials one by one until standard input ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    _import(modules)
    order: dict[str, Any] = {}
    buffer, trial = b"", 0
    held: set[int] = set()
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            for pid, status, usage in iter(_wait, None):
                if pid == trial:
                    trial, held = 0, set()
                    _kill_children()
                    _send(
                        {
                            "ended": order["number"],
                            "status": status,
                            "peak_mib": usage.ru_maxrss / 1024,
                            "cpu_s": usage.ru_utime + usage.ru_stime,
                        }
                    )
        if 0 not in ready:
            continue
        read = os.read(0, 65_536)
        if not read:
            _kill_children()
            return
        *lines, buffer = (buffer + read).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["do"] != "run":
                release(held)
                held = hold(read_children(os.getpid())) if message["do"] == "hold" and trial else set()
                if message["do"] == "end" and trial:
                    try:
                        os.killpg(trial, signal.SIGTERM)
                    except OSError:  # it has none of its own yet
                        with contextlib.suppress(OSError):
                            os.kill(trial, signal.SIGTERM)
                continue
            order = message
            trial = _fork_trial(order, libc, (woken, wake))
            if trial == 0:
                return


def _fork_trial(order: dict[str, Any], libc: ctypes.CDLL, pipe: tuple[int, int]) -> int:
    """Fork a child that runs a trial.

    Returns its pid, and 0 in the child.
    """
    server = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # one that comes early waits for the trial
    trial = os.fork()
    if trial == 0:
        signal.set_wakeup_fd(-1)
        for descriptor in pipe:
            os.close(descriptor)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _become_trial(order, server, libc)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return trial


def _wait() -> Any:
    """Return which child has ended, and None for none."""
    with contextlib.suppress(ChildProcessError):
        found = os.wait4(-1, os.WNOHANG)
        if found[0]:
            return found
    return None


def _kill_children() -> None:
    """Kill all descendants of this process.

    It is their subreaper, so orphans become its children.
    """
    while children := read_children(os.getpid()):
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def read_children(pid: int) -> list[int]:
    """Return the children of a process."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above, many times a second
            with open(f"/proc/{pid}/task/{thread}/children") as file:  # noqa: PTH123 - as in the agent
                children += map(int, file.read().split())
    return children


def find_tree(roots: list[int]) -> list[int]:
    """Return processes and all that descend from them."""
    tree: list[int] = []
    left = list(roots)
    while left:
        pid = left.pop()
        tree.append(pid)
        left += read_children(pid)
    return tree


def read_state(pid: int) -> tuple[str, float]:
    """Return the state of a process and the CPU time that it used.

    The state is a letter of ``/proc/PID/stat``. The time is in s, with that of children that have ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as in the agent
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "X", 0.0
    return fields[0].decode(), sum(map(int, fields[11:15])) / _TICKS_PER_S


def hold(roots: list[int]) -> set[int]:
    """Stop processes with their descendants, and return those it stopped.

    What somebody else has stopped is not among them, so that only who stopped it continues it.
    """
    held: set[int] = set()
    others: set[int] = set()
    # What is being forked when its parent is stopped is found by looking again.
    while new := [pid for pid in find_tree(roots) if pid not in held and pid not in others]:
        for pid in new:
            (others if read_state(pid)[0] in "TtZX" else held).add(pid)
            if pid in held:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)
    return held


def release(held: set[int]) -> None:
    """Continue processes that were stopped."""
    for pid in held:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def run_forks(modules: list[str]) -> None:
    """Have each trial become a child of the agent."""
    libc = ctypes.CDLL(None)
    agent = os.getppid()
    _import(modules)
    buffer = b""
    while read := os.read(0, 65_536):
        *lines, buffer = (buffer + read).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = _fork_twice()
            if pid == 0:
                os.setsid()
                while os.getppid() != agent:  # the process between has not ended yet
                    if os.getppid() == 1:
                        os._exit(1)
                    time.sleep(0.0005)
                _become_trial(order, agent, libc)
                return
            _send({"number": order["number"], "pid": pid})


def _fork_twice() -> int:
    """Fork a grandchild.

    Returns its pid, and 0 in it.
    """
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


def _become_trial(order: dict[str, Any], parent: int, libc: ctypes.CDLL) -> None:
    """Run the program in this process.

    It dies with its parent.
    """
    libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - as in the agent
        file.write(order["oom_score"])
    if order["group"]:
        with open(os.path.join(order["group"], "cgroup.procs"), "w") as file:  # noqa: PTH118, PTH123 - as above
            file.write("0")
    if order.get("data_limit"):
        resource.setrlimit(resource.RLIMIT_DATA, (order["data_limit"], order["data_limit"]))
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    if order.get("clear", True):
        os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if not order["warm"]:
        try:
            os.execvp(order["argv"][0], order["argv"])
        except OSError as reason:
            os.write(2, f"{order['argv'][0]} cannot be started: {reason}\n".encode())
            os._exit(127)
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
