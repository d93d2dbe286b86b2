"""End what tests started once the tests themselves have ended, whether they were interrupted or killed.

Slurm's daemons, database servers and builds detach from the process that starts them, so that neither Ctrl-C nor the
end of pytest reaches them, and a test process that is killed stops nothing. One process beside each test process waits
for its end, then ends every process that

- has the mark of this test process in its environment (whatever was started without an environment of its own),
- names one of the registered folders in its environment or command line, or has its root or working folder there
  (Slurm and PostgreSQL write the title of a process over its environment), or
- descends from one of these,

and removes the registered folders. A run that ends well has nothing of this left, and nothing happens.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

MARK = "TESTED_BY"
TERM_S, KILL_S = 15.0, 60.0
"""How long a process may take to end after SIGTERM (MariaDB writes its pages), and the kernel to end it."""
LOOK_S = 0.5


class Reaper:
    """The process beside this one; it begins with the first folder, or when it is started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def start(self) -> None:
        """Mark whatever this process starts from now on; what waits for its end runs afterwards."""
        if self._process is not None and self._owner == os.getpid():  # a fork has none of its own
            return
        mark = f"{os.getpid()}-{uuid4().hex}"
        # A session of its own, because Ctrl-C at a terminal goes to all processes of the foreground.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != MARK},
            start_new_session=True,
        )
        self._owner = os.getpid()
        os.environ[MARK] = mark

    def remove(self, folder: Path) -> None:
        """Register a folder: its processes end with this one, and then it is removed."""
        self._tell(f"remove\t{folder}\n")

    def stop(self, folder: Path, *, lock: Path) -> None:
        """Register a folder that is kept; its processes end with this one, unless another holds ``lock`` by then."""
        self._tell(f"stop\t{folder}\t{lock}\n")

    def _tell(self, line: str) -> None:
        self.start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()


REAPER = Reaper()


def main(mark: str) -> None:
    """Read folders until the parent has ended, and end what is left."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = _told_until_the_end_of(parent).decode().splitlines()
    remove, kept = [], []
    for what, folder, *lock in (line.split("\t") for line in lines):
        if what == "remove":
            remove.append(Path(folder))
        elif _taken(Path(*lock)):
            kept.append(Path(folder))
    folders = [os.fsencode(folder.resolve()) for folder in (*remove, *kept)]
    for number, longest_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        _end(f"{MARK}={mark}".encode(), folders, number, longest_s=longest_s)
    for folder in remove:
        shutil.rmtree(folder, ignore_errors=True)


def _told_until_the_end_of(parent: int) -> bytes:
    """Return what was told; a process that the parent forked may hold its end of the pipe for longer than it lives."""
    told, lives = b"", True
    while lives:
        lives = os.getppid() == parent  # before the pipe is looked at: what was told last is read after the end
        while select.select([0], [], [], LOOK_S if lives else 0)[0]:
            if not (part := os.read(0, 65536)):
                return told
            told += part
    return told


def _taken(lock: Path) -> bool:
    """Take a lock for as long as this process lives; False: another has it."""
    try:
        fcntl.flock(os.open(lock, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _end(mark: bytes, folders: list[bytes], number: signal.Signals, *, longest_s: float) -> None:
    """Send a signal to each of our processes, also those that come meanwhile, until none is left."""
    told, limit = set(), time.monotonic() + longest_s
    while (ours := _ours(mark, folders)) and time.monotonic() < limit:
        for process in ours - told:
            _send(process, number)
        told |= ours
        time.sleep(0.1)


def _send(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except OSError:
        return  # it has ended


def _ours(mark: bytes, folders: list[bytes]) -> set[int]:
    names = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    parents = {int(name): _parent(int(name)) for name in names}
    ours = {process for process in parents if _is_ours(process, mark, folders)}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    # A worker's reaper is a child of what another reaper ends; it has its own to end.
    return {process for process in ours if os.fsencode(__file__) not in _read(process, "cmdline")}


def _is_ours(process: int, mark: bytes, folders: list[bytes]) -> bool:
    environment = _read(process, "environ")
    if mark in environment.split(b"\0"):
        return True
    said = environment + _read(process, "cmdline")
    places = [_place(process, link) + b"/" for link in ("cwd", "root")]
    return any(folder in said or any(place.startswith(folder + b"/") for place in places) for folder in folders)


def _read(process: int, file: str) -> bytes:
    """Return a file of a process; nothing: it has ended, or is another user's."""
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def _place(process: int, link: str) -> bytes:
    """Return a folder of a process; nothing: as above."""
    try:
        return os.fsencode(Path(f"/proc/{process}/{link}").readlink())
    except OSError:
        return b""


def _parent(process: int) -> int:
    """Return the id of a process' parent; 0: it has ended, also where nobody has collected it."""
    try:
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return 0
    return 0 if state == "Z" else int(parent)


if __name__ == "__main__":
    main(sys.argv[1])
