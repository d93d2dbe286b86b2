"""Keys of anonymous exports."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from helios.errors import FileUnreadable, FileUnwritable, UsageError
from helios.private_files import OWN, file_name, make_folder, write_private
from helios.study.export.anonymous import (
    KEY_BYTES,
)
from helios.study.export.request import ExportRequest


def choose_key(request: ExportRequest, cluster: str) -> tuple[Path, bytes]:
    """Return the key and where it is or will be kept.

    Raises
    ------
    UsageError
        The file is no key, or lies in the folder that is to be given away.
    """
    path, key = request.key_file, secrets.token_bytes(KEY_BYTES)
    if path is None:
        path = request.key_folder / f"{file_name(cluster)}-{key_fingerprint(key)}.key"
    if path.resolve().is_relative_to(request.out.resolve()):
        raise UsageError(
            f"The key {path} would lie in the folder that is given away.", hint="Keep it elsewhere: --key FILE"
        )
    try:
        if not path.exists():
            return path, key
        key = bytes.fromhex(path.read_text("ascii").strip())
    except OSError as reason:
        raise FileUnreadable(
            f"{path} cannot be read: {reason.strerror}.", hint="Choose another: --key FILE"
        ) from reason
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(
            f"{path} is not a key of an export, which is one line of {2 * KEY_BYTES} hexadecimal digits.",
            hint="Name a file that does not exist to make a new one: --key FILE",
        )
    return path, key


def key_fingerprint(key: bytes) -> str:
    """Return a fingerprint of a key.

    It stands in the export.
    """
    return blake2b(b"export", key=key, digest_size=6).hexdigest()


@contextmanager
def new_key_file(path: Path, key: bytes) -> Iterator[None]:
    """Write a new key, and remove it again if the export fails.

    Raises
    ------
    FileUnwritable
        It cannot be written.
    """
    if path.exists():
        yield
        return
    try:
        make_folder(path.parent)
        write_private(path, key.hex().encode() + b"\n", mode=OWN, lasting=True)
    except OSError as reason:
        raise FileUnwritable(
            f"The key cannot be written to {path}: {reason.strerror or reason}.", hint="Keep it elsewhere: --key FILE"
        ) from reason
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
