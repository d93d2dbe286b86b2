"""Files and folders that other accounts can neither read nor lock.

Helios' files name users and their jobs, which a site may hide (Slurm's ``PrivateData``), and its locks stop control
cycles. So modes are set explicitly, whatever the umask. New files that root creates in a folder of the service's
account are given to the folder's owner, as the service could not open them otherwise.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import stat
from contextlib import suppress
from pathlib import Path

from helios.errors import UsageError

FOLDER = 0o750
OWN = 0o600
SHARED = 0o640
"""Mode of files that a site may open to people through the group of Helios, such as reports and health."""
WIDE = 0o027
"""Permissions that a private file must not have: any for others, and writing for the group."""
LONGEST_CLUSTER = 100
"""Most characters of a cluster's name, so that a file's name (255 bytes) can contain it with a date."""


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, closed to other accounts.

    Raises
    ------
    OSError
        It cannot be made.
    """
    missing = [part for part in (folder, *folder.parents) if not part.exists()]
    for part in reversed(missing):
        with suppress(FileExistsError):  # by another process meanwhile
            part.mkdir(mode=FOLDER)
            if (owner := _owner_for_root(part)) is not None:
                os.chown(part, *owner, follow_symlinks=False)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", str(folder))


def require_cluster_name(name: str) -> str:
    """Return the name of a cluster, which is one name and no path.

    Raises
    ------
    UsageError
        It is empty, too long, begins with a dot or a hyphen, or has a slash, a control character or outer spaces.
    """
    is_plain = name.isprintable() and name == name.strip() and not name.startswith((".", "-"))
    if not is_plain or not 0 < len(name) <= LONGEST_CLUSTER or "/" in name or "\\" in name:
        raise UsageError(
            f"{name[:LONGEST_CLUSTER]!r} cannot be the name of a cluster.",
            hint=f"Choose a name of at most {LONGEST_CLUSTER} characters without slashes, as with --cluster NAME",
        )
    return name


def file_name(text: str) -> str:
    """Return a unique, safe part of a file's name for a text.

    Databases of earlier versions may hold a cluster whose name is a path.
    """
    safe = re.sub(r"[^\w.-]", "_", text).lstrip(".")
    if safe == text and 0 < len(text.encode()) <= LONGEST_CLUSTER:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{safe.encode()[:LONGEST_CLUSTER].decode('utf-8', 'ignore') or 'cluster'}-{digest}"


def open_private(path: Path) -> int:
    """Open a private file for reading and writing, and return its descriptor.

    It is created if missing.

    Raises
    ------
    OSError
        It cannot be opened, or is a link or no plain file.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, OWN)
    except FileExistsError:
        handle = os.open(path, flags)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "is not a plain file", str(path)) from None
        if status.st_uid == os.geteuid():
            os.fchmod(handle, OWN)
    else:
        give_to_folder_owner(handle, path)
    return handle


def read_secret(path: Path, *, made_by: str = "openssl rand -hex 24") -> str:
    """Return the token or password in a file.

    Parameters
    ----------
    made_by : str
        Command that creates the content, for the hint about a missing file.

    Raises
    ------
    UsageError
        It cannot be read, others may read it, or it is empty.
    """
    make = f"Make one: (umask 077; {made_by} > {path})"
    try:
        status = path.stat()
        secret = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as reason:
        raise UsageError(f"{path} cannot be read: {reason}", hint=make) from reason
    # systemd 254 gives a service its credentials as files of root and root's group, with an access list.
    forbidden = WIDE if status.st_uid == status.st_gid == 0 else WIDE | 0o040
    if status.st_mode & forbidden:
        raise UsageError(f"Others can read {path}.", hint=f"Close it: chmod 0600 {path}")
    if not secret:
        raise UsageError(f"{path} is empty.", hint=make)
    return secret


def write_private(path: Path, content: bytes, *, mode: int = SHARED, lasting: bool = False) -> None:
    """Replace a file atomically.

    A reader finds the old content or the new one. Links are not followed.

    Parameters
    ----------
    lasting : bool
        Whether file and folder are fsynced before this returns.

    Raises
    ------
    OSError
        It could not be written; the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        temporary.unlink()
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            give_to_folder_owner(handle, path)
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if lasting:
        fsync_directory(path.parent)


def atomic_write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file of ASCII text atomically and durably.

    It works like :func:`write_private` with an fsync. A missing folder is created, closed to other accounts. The file
    itself is readable for everybody who may read the folder, so that a site can open it to another user.

    Raises
    ------
    OSError
        It could not be written; the old content stays.
    """
    make_folder(path.parent)
    allowed = mode & (0o600 | path.parent.stat().st_mode & 0o044)
    write_private(path, text.encode("ascii"), mode=allowed, lasting=True)


def fsync_directory(folder: Path) -> None:
    """Fsync a directory so that renamed files survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def give_to_folder_owner(handle: int, path: Path) -> None:
    """Give a file created by root to the owner of its folder."""
    if (owner := _owner_for_root(path)) is not None:
        os.fchown(handle, *owner)


def restrict_access(path: Path) -> None:
    """Remove the access of other accounts to a file.

    The group may no longer write either. Only a file of this user in a folder of this user is changed, and errors are
    ignored. The file is not opened, because closing it would release the locks that SQLite holds in this process.
    """
    with suppress(OSError):
        status, uid = path.lstat(), os.geteuid()
        if (
            stat.S_ISREG(status.st_mode)
            and status.st_mode & WIDE
            and {status.st_uid, path.parent.stat().st_uid} == {uid}
        ):
            path.chmod(stat.S_IMODE(status.st_mode) & ~WIDE)


def is_wide(path: Path) -> bool:
    """Return whether others may read a file, or the group may write it.

    It is false where there is no file, or where others cannot enter its folder.
    """
    try:
        return bool(path.stat().st_mode & WIDE) and bool(path.parent.stat().st_mode & stat.S_IXOTH)
    except OSError:
        return False


def find_denied(user: str, path: Path) -> Path | None:
    """Return the first part of a path that is denied to an account.

    That is a folder that it cannot enter, or ``path`` itself if it cannot read it. None: it may read ``path``, or that
    is unknown, as for an account of another machine or a path with an access control list.
    """
    try:
        account = pwd.getpwnam(user)
        groups = set(os.getgrouplist(user, account.pw_gid))
        for part in (*reversed(path.absolute().parents), path):
            if account.pw_uid == 0 or "system.posix_acl_access" in os.listxattr(part):
                return None
            status, needed = part.stat(), stat.S_IRUSR if part == path else stat.S_IXUSR
            if status.st_uid != account.pw_uid:
                needed >>= 3 if status.st_gid in groups else 6
            if not status.st_mode & needed:
                return part
    except (KeyError, OSError):
        return None
    return None


def _owner_for_root(path: Path) -> tuple[int, int] | None:
    """Return the owner for a file that root creates.

    It is the user and group of the folder of ``path``. None where the process is not root, or the folder is root's.
    """
    if os.geteuid() != 0:
        return None
    folder_status = path.parent.stat()
    return (folder_status.st_uid, folder_status.st_gid) if folder_status.st_uid else None
