"""Keep processes that share a state folder apart, and tell them from all others.

Processes of one Helios share its lease, and must not act beside each other: one takes a turn at a time, and one daemon
runs for each office. The kernel ends a lock with its process. The files are the owner's alone: who can open one can
hold it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from helios.errors import HeliosError
from helios.ports import Office
from helios.private_files import OWN, make_folder, open_private, write_private

LOCK = "turn.lock"
LOCK_OF_NODES = "nodes.lock"
IDENTITY = "identity"
BOOT = Path("/proc/sys/kernel/random/boot_id")
_OF_THIS_PROCESS = uuid4().hex


class TurnUnderWay(HeliosError):
    """Another process of this Helios is taking a turn."""


class DaemonRuns(HeliosError):
    """Another daemon has this state folder and acts on the same."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: nothing was begun, systemd tries again, and nothing is taken back after it."""


@contextmanager
def alone(folder: Path, *, within_s: float = 0.0, lock: str = LOCK) -> Iterator[None]:
    """Keep other processes of this Helios, which share its lease, from taking a turn meanwhile.

    Parameters
    ----------
    within_s : float
        How long to wait for the end of a turn that is being taken, s.
    lock : str
        Name of the lock's file: turns on jobs and on nodes do not wait for each other.

    Raises
    ------
    TurnUnderWay
        One is taking a turn.
    HeliosError
        The folder cannot be written.
    """
    with _lock(folder / lock, within_s=within_s) as other:
        if other is not None:
            raise TurnUnderWay(
                f"Another process{other} is taking a turn on this machine just now.",
                remedy=f"Try again in a moment. If it stays so, see who holds {folder / lock}: lslocks",
            )
        yield


@contextmanager
def only_daemon(folder: Path, *, offices: Collection[Office]) -> Iterator[None]:
    """Be the only daemon of this state folder for ``offices``.

    Raises
    ------
    DaemonRuns
        Another one runs.
    HeliosError
        The folder cannot be written.
    """
    with ExitStack() as held:
        for office in sorted(offices):
            other = held.enter_context(_lock(folder / f"daemon.{office}.lock"))
            if other is not None:
                raise DaemonRuns(
                    f"Another helios daemon{other} acts on {office} with the state folder {folder}.",
                    remedy="Nothing was done. Stop that one, or give this one a state folder of its own.",
                )
        yield


@contextmanager
def _lock(path: Path, *, within_s: float = 0.0) -> Iterator[str | None]:
    """Hold a lock, None; where another process keeps it all the time, say which: words, empty if it is not known."""
    try:
        make_folder(path.parent)
        handle = open_private(path)
    except OSError as reason:
        raise HeliosError(
            f"{path.parent} cannot be written: {reason}", remedy="Set control.state_folder to a folder of Helios' own."
        ) from reason
    try:
        until = time.monotonic() + within_s
        while not (locked := _locked(handle)) and time.monotonic() < until:
            time.sleep(0.05)
        yield None if locked else _holder(handle)
    finally:
        os.close(handle)


def identity_of(folder: Path) -> str:
    """Return a word that only processes with this state folder on this machine have, until it boots again.

    Host names and paths are the same on copies of a machine. A random number that is kept in the folder tells machines
    apart that only have the same names; the boot's tells a copy of the folder, or one on a network file system.
    """
    try:
        number = _number_kept_in(folder)
    except OSError:
        number = _OF_THIS_PROCESS  # who cannot write there takes no turn either
    boot = BOOT.read_text(encoding="ascii") if BOOT.exists() else ""
    return hashlib.sha256(f"{boot} {number}".encode()).hexdigest()[:16]


def _number_kept_in(folder: Path) -> str:
    file = folder / IDENTITY
    if not file.exists():
        make_folder(folder)
        fresh = folder / f".{IDENTITY}.{uuid4().hex}"
        write_private(fresh, f"{uuid4().hex}\n".encode(), mode=OWN, lasting=True)
        try:
            with suppress(FileExistsError):  # another process was first
                os.link(fresh, file)
        finally:
            fresh.unlink()
    return file.read_text(encoding="ascii", errors="replace")


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(handle: int) -> str:
    """Return `` (process 4711)`` of who holds the lock, as Linux tells in /proc/locks; empty: it does not."""
    inode = f":{os.fstat(handle).st_ino}"
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return ""
    # 7: FLOCK ADVISORY WRITE 4711 08:01:131074 0 EOF; a row with -> waits for the lock, pid 0 is of another container.
    pids = [row[4] for row in rows if row[1] == "FLOCK" and row[5].endswith(inode)]
    return f" (process {pids[0]})" if pids and pids[0] not in {"0", "-1"} else ""
