"""Put a small file in its place in one step, to outlast a crash: what a shell or Lua reads while Helios writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def put(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write ``text`` at ``path`` and onto the disk: a reader sees the old file whole or the new one whole.

    The folder is made if missing; by default anybody may read the file, since it may be read as another user.

    Raises
    ------
    OSError
        It could not be written; what was there stands.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = _written_beside(path, text, mode)
    try:
        fresh.replace(path)
    except OSError:
        fresh.unlink()
        raise
    make_lasting(path.parent)


def make_lasting(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def give_to_owner(handle: int, folder: Path) -> None:
    """Give an open file that root has made to the owner of its folder: a service must read and change its own."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(handle, owner.st_uid, owner.st_gid)


def _written_beside(path: Path, text: str, mode: int) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="ascii", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fchmod(handle, mode)
            give_to_owner(handle, path.parent)
            os.fsync(handle)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        raise
    return fresh
