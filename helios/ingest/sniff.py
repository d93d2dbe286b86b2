"""Which format a file has, by its content and never by its name."""

from __future__ import annotations

from pathlib import Path

from helios.errors import FormatUnknown, NothingUnderstood
from helios.ingest.formats import LAYOUTS, TraceFormat
from helios.ingest.stream import head

_TAR_MAGIC_AT = 257


def start_of(path: Path) -> bytes:
    """Return the first decompressed bytes of a file that holds anything.

    Raises
    ------
    NothingUnderstood
        The file is empty.
    FileUnreadable
        It cannot be opened or decompressed.
    """
    start = head(path)
    if not start.strip():
        raise NothingUnderstood(f"{path} is empty.", remedy="Check the export that wrote it.")
    return start


def sniff(path: Path, start: bytes) -> TraceFormat:
    """Return the format that the first bytes of a file have.

    Raises
    ------
    FormatUnknown
        They look like none that Helios reads.
    """
    for name, layout in LAYOUTS.items():
        if layout.fits(start):
            return name
    if start[_TAR_MAGIC_AT:].startswith(b"ustar"):
        raise FormatUnknown(
            f"{path} is a tar archive of files.", remedy=f"Unpack it (tar -xf {path.name}) and load the file inside."
        )
    raise FormatUnknown(
        f"The format of {path} is not recognised from its content.",
        remedy=f"Helios reads {', '.join(LAYOUTS)}; say which it is with --format, or export it anew.",
    )
