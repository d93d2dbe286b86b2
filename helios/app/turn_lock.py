"""One turn at a time on a machine: processes of one Helios share its lease, and must not act beside each other."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from helios.errors import HeliosError

LOCK = "turn.lock"
LOCK_OF_NODES = "nodes.lock"


class TurnUnderWay(HeliosError):
    """Another process of this Helios is taking a turn."""


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / lock).open("a")
    except OSError as reason:
        raise HeliosError(
            f"{folder} cannot be written: {reason}", remedy="Set control.state_folder to a folder of Helios' own."
        ) from reason
    with file:
        until = time.monotonic() + within_s
        while not _locked(file):
            if time.monotonic() >= until:
                raise TurnUnderWay(
                    "Another process is taking a turn on this machine just now.", remedy="Try again in a moment."
                )
            time.sleep(0.05)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
