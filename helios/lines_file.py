"""Files of lines, of which a crash leaves whole ones.

Whoever appends has the lock of the file or is its only writer. A partial last line is of a process that ended while it
wrote, so it is cut off before anything is appended. Reading alone changes nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

TAIL_BYTES = 65_536
"""Part of a file that is read at once to find its last line, bytes."""


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, if nobody else has."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class LinesFile:
    """An open file of lines.

    Parameters
    ----------
    handle : int
        Descriptor of the file, open for reading and writing. It belongs to the caller.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._end = 0  # of the last whole line that was read or written

    def read(self) -> list[bytes]:
        """Return the whole lines that are new since the last call."""
        new, content = os.fstat(self.handle).st_size - self._end, b""
        while len(content) < new:  # the system reads 2 GiB at most
            content += os.pread(self.handle, new - len(content), self._end + len(content))
        whole = content.rfind(b"\n") + 1
        self._end += whole
        return content[:whole].splitlines()

    def skip(self) -> None:
        """Pass over all whole lines."""
        end = os.fstat(self.handle).st_size
        while end:
            start = max(0, end - TAIL_BYTES)
            found = os.pread(self.handle, end - start, start).rfind(b"\n")
            end = start + found + 1 if found >= 0 else start
            if found >= 0:
                break
        self._end = end

    def append(self, lines: bytes, *, lasting: bool = True) -> None:
        """Append whole lines after the last one that was read or passed over.

        Parameters
        ----------
        lasting : bool
            Whether they are on the disk when this returns.

        Raises
        ------
        OSError
            None of them was appended.
        """
        if os.fstat(self.handle).st_size > self._end:
            os.ftruncate(self.handle, self._end)
        with cut_on_failure(self.handle):
            written = 0
            while written < len(lines):
                written += os.pwrite(self.handle, lines[written:], self._end + written)
            if lasting:
                os.fdatasync(self.handle)
        self._end += len(lines)


@contextmanager
def cut_on_failure(handle: int) -> Iterator[None]:
    """Cut a file to its present length if what follows fails."""
    size = os.fstat(handle).st_size
    try:
        yield
    except OSError:
        os.ftruncate(handle, size)
        raise
