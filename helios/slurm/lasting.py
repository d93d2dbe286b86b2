"""Put a small file in its place in one step, to outlast a crash: what a shell or Lua reads while Helios writes."""

from __future__ import annotations

import os
from pathlib import Path

from helios.private_files import make_folder, write_private


def put(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write ``text`` at ``path`` and onto the disk: a reader sees the old file whole or the new one whole.

    The folder is made if missing, closed to other accounts. Whoever may read the folder may read the file, since it may
    be read as another user: a site opens the folder, or lets that user into the group.

    Raises
    ------
    OSError
        It could not be written; what was there stands.
    """
    make_folder(path.parent)
    allowed = mode & (0o600 | path.parent.stat().st_mode & 0o044)
    write_private(path, text.encode("ascii"), mode=allowed, lasting=True)
    make_lasting(path.parent)


def make_lasting(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
