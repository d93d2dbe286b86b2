"""Files that grow line by line, and of which a crash leaves whole lines.

Whoever appends has the lock of the file or is its only writer. A partial last line is of a process that ended while it
wrote, so it is cut off before anything is appended.
"""

from __future__ import annotations

import fcntl
import os

TAIL_BYTES = 65_536
"""Part of a file that is read at once to find its last line, bytes."""


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, and return whether nobody else had it."""
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
        """Return the whole lines that are new since the last call, and cut off a partial one."""
        size = os.fstat(self.handle).st_size
        content = b""
        while len(content) < size - self._end:
            part = os.pread(self.handle, size - self._end - len(content), self._end + len(content))
            if not part:
                break
            content += part
        whole = content.rfind(b"\n") + 1
        self._end += whole
        if whole < len(content):
            os.ftruncate(self.handle, self._end)
        return content[:whole].splitlines()

    def skip(self) -> None:
        """Pass over all lines, and cut off a partial one."""
        size = end = os.fstat(self.handle).st_size
        while end:
            start = max(0, end - TAIL_BYTES)
            found = os.pread(self.handle, end - start, start).rfind(b"\n")
            end = start + found + 1 if found >= 0 else start
            if found >= 0:
                break
        if end < size:
            os.ftruncate(self.handle, end)
        self._end = end

    def append(self, lines: bytes, *, lasting: bool = True) -> None:
        """Append whole lines.

        Parameters
        ----------
        lasting : bool
            Whether they are on the disk when this returns.

        Raises
        ------
        OSError
            None of them was appended.
        """
        try:
            written = 0
            while written < len(lines):
                written += os.pwrite(self.handle, lines[written:], self._end + written)
            if lasting:
                os.fdatasync(self.handle)
        except OSError:
            os.ftruncate(self.handle, self._end)
            raise
        self._end += len(lines)
