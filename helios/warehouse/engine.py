"""Connections to SQLite and PostgreSQL and roles of PostgreSQL.

The module decides which URLs are accepted and how a database is opened, and translates database errors.

The roles of the two daemons and of readers have least privileges. Whoever may write what controls node power (applied
node changes, the lease of nodes, the modes of their services, the stored state of their controller) is in effect an
administrator of Slurm. The daemon of jobs has only the rights of an operator, so its role may not write these rows, and
the role of nodes may not write those of jobs. Tables that both write are divided by row-level security, which does not
apply to the owner of the tables.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakSet

import platformdirs
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError

from helios.choices import Domain
from helios.errors import UsageError, WarehouseUnavailable
from helios.private_files import make_folder, open_private, restrict_access

YOUNGEST_DELETED = timedelta(days=7)
"""Age of the youngest rows of the audit log that a daemon can delete, whatever its configuration says."""
_JOBS_PRIVILEGES: Mapping[str, str] = {
    "clusters": "INSERT, UPDATE",
    "names": "INSERT",
    "jobs": "INSERT, UPDATE",
    "job_sums": "INSERT, UPDATE, DELETE",
    "requeues": "INSERT",
    "job_use": "INSERT, UPDATE, DELETE",
    "gpu_use": "INSERT, UPDATE, DELETE",
    "loads": "INSERT, UPDATE, DELETE",
    "rejects": "INSERT, DELETE",
    "nodes": "INSERT, DELETE",
    "node_events": "INSERT, DELETE",
    "models": "INSERT, DELETE",
    "promotions": "INSERT",
    "predictions": "INSERT, DELETE",
    "start_estimates": "INSERT, DELETE",
    "decisions": "INSERT, DELETE",
    "leases": "INSERT, UPDATE",
    "applied_changes": "INSERT, DELETE",
    "memories": "INSERT, DELETE",
    "modes": "INSERT",
    "cycles": "INSERT, DELETE",
    "coverage": "INSERT, DELETE",
}
_NODES_PRIVILEGES: Mapping[str, str] = {
    "clusters": "INSERT",
    "decisions": "INSERT",
    "leases": "INSERT, UPDATE",
    "applied_node_changes": "INSERT, DELETE",
    "node_tallies": "INSERT, DELETE",
    "memories": "INSERT, DELETE",
    "modes": "INSERT",
}

# How long a statement waits for another writer before it gives up. A load of 10^6 jobs takes about 10 s.
BUSY_TIMEOUT_S = 30
# Larger pages hold more of the wide job rows: 344,000 rows/s are loaded, and 307,000 with SQLite's default of 4,096.
PAGE_BYTES = 16_384
# Number of PostgreSQL's advisory lock, "helios" in ASCII.
_ALONE_LOCK = int.from_bytes(b"helios")
_FORMS = "Give sqlite:///PATH or postgresql://USER@HOST/DATABASE as database.url or HELIOS_DATABASE_URL."
_SECRETS = ("password", "sslpassword", "passfile")

_BUSY = "Another process is writing to it. Wait until it is done, then try again."
# Hints by a part of the driver's message.
_HINTS = {
    "locked": _BUSY,
    "lock timeout": _BUSY,
    "not a database": "The file is something else. Name another file in database.url or HELIOS_DATABASE_URL.",
    "malformed": "The file is damaged. Restore it from a copy, or load the traces into a new one.",
    "readonly": "Make the file and its folder writable, or name another in database.url or HELIOS_DATABASE_URL.",
    "unable to open": "Check that the folder exists and is writable, or name another in HELIOS_DATABASE_URL.",
    "permission denied": "Check that you may write there, or name another place in HELIOS_DATABASE_URL.",
    "disk": "Free some space on that disk; nothing was written.",
    "no such table": "Bring the schema up to date: helios db upgrade",
    "does not exist": "Check the name in database.url; if the schema is behind: helios db upgrade",
    "already exists": "The database holds tables of another program. Name an empty one in HELIOS_DATABASE_URL.",
    "authentication": "Check user and password in database.url or HELIOS_DATABASE_URL.",
}


def grant_privileges(
    engine: sa.Engine,
    *,
    jobs: str,
    nodes: str | None,
    reader: str | None,
    node_services: Collection[str],
    node_memories: Collection[str],
    common_memories: Collection[str],
) -> None:
    """Give each role exactly the privileges that its daemon needs.

    Earlier privileges are revoked, in the same transaction.

    Parameters
    ----------
    engine : Engine
        A PostgreSQL database, connected as the owner of the tables.
    jobs, nodes, reader : str
        Existing roles. With ``nodes`` or ``reader`` None there is no such role.
    node_services : collection of str
        Services whose modes the role ``nodes`` may set. The role ``jobs`` may set all others.
    node_memories, common_memories : collection of str
        Names of stored texts that only ``nodes`` may write, and that both may write. ``jobs`` may write all others.

    Raises
    ------
    UsageError
        The database is SQLite, a role does not exist or cannot be restricted, or two roles are the same.
    WarehouseUnavailable
        The database refused: the connected user must own the tables.
    """
    if engine.dialect.name != "postgresql":
        raise UsageError(
            "A SQLite file has no roles: whoever may write it may write all of it.",
            hint="Give each domain a file of its own (database.url), or trust one user with both, or use PostgreSQL.",
        )
    roles = [role for role in (jobs, nodes, reader) if role]
    if len(set(roles)) < len(roles):
        raise UsageError(
            "Two daemons or readers were given the same role.",
            hint="Each needs a role of its own. Make one: CREATE ROLE helios_nodes LOGIN",
        )
    is_node_service = f"service IN ({_sql_texts(node_services)})"
    row_conditions = {
        "leases": (f"domain = '{Domain.JOBS}'", f"domain = '{Domain.NODES}'"),
        "modes": (f"NOT ({is_node_service})", is_node_service),
        "memories": (
            f"name NOT IN ({_sql_texts(node_memories)})",
            f"name IN ({_sql_texts([*node_memories, *common_memories])})",
        ),
        "decisions": (f"NOT ({is_node_service})", f"{is_node_service} OR service = 'helios'"),
    }
    with writing(engine, alone=True) as connection:
        for role in roles:
            _check_role(connection, role)
        for statement in _privilege_statements(connection, roles, row_conditions, jobs=jobs, nodes=nodes):
            connection.exec_driver_sql(statement)


def _check_role(connection: sa.Connection, role: str) -> None:
    is_unrestricted = connection.exec_driver_sql(
        "SELECT rolsuper OR rolbypassrls OR rolname = current_user FROM pg_roles WHERE rolname = %s", (role,)
    ).scalar_one_or_none()
    if is_unrestricted is None:
        raise UsageError(f"There is no role {role!r} in this database.", hint=f"Make it: CREATE ROLE {role} LOGIN")
    if is_unrestricted:
        raise UsageError(
            f"Role {role!r} is a superuser, or the one you are connected as: grants do not limit it.",
            hint="Connect as the owner of the tables, and give the daemons roles of their own.",
        )


def _privilege_statements(
    connection: sa.Connection,
    roles: list[str],
    row_conditions: Mapping[str, tuple[str, str]],
    *,
    jobs: str,
    nodes: str | None,
) -> Iterator[str]:
    """Yield the statements that revoke and grant privileges.

    ``row_conditions`` has, for each table that both daemons write, the conditions of the rows of jobs and of nodes.
    """
    quote = connection.dialect.identifier_preparer.quote
    schema = quote(str(connection.exec_driver_sql("SELECT current_schema()").scalar_one()))
    for role in map(quote, roles):
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}"
        yield f"REVOKE CREATE ON SCHEMA {schema} FROM {role}"
        yield f"GRANT USAGE ON SCHEMA {schema} TO {role}"
        yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    for writer, privileges in ((jobs, _JOBS_PRIVILEGES), (nodes, _NODES_PRIVILEGES)):
        if writer:
            yield f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {quote(writer)}"
            for table, commands in privileges.items():
                yield f"GRANT {commands} ON {schema}.{table} TO {quote(writer)}"
    for table in row_conditions:
        yield f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY"
        for policy in ("helios_read", "helios_jobs", "helios_nodes", "helios_old"):
            yield f"DROP POLICY IF EXISTS {policy} ON {schema}.{table}"
        yield f"CREATE POLICY helios_read ON {schema}.{table} FOR SELECT USING (true)"
    for table, (is_of_jobs, is_of_nodes) in row_conditions.items():
        yield _row_policy(f"{schema}.{table}", "helios_jobs", quote(jobs), is_of_jobs)
        if nodes:
            yield _row_policy(f"{schema}.{table}", "helios_nodes", quote(nodes), is_of_nodes)
    age_us = YOUNGEST_DELETED // timedelta(microseconds=1)
    is_old = f"decided_at < (extract(epoch FROM now()) * 1000000)::bigint - {age_us}"
    yield f"CREATE POLICY helios_old ON {schema}.decisions FOR DELETE TO {quote(jobs)} USING ({is_old})"


def _row_policy(table: str, name: str, role: str, condition: str) -> str:
    if table.endswith(".decisions"):  # rows are added to the audit log and never changed
        return f"CREATE POLICY {name} ON {table} FOR INSERT TO {role} WITH CHECK ({condition})"
    return f"CREATE POLICY {name} ON {table} FOR ALL TO {role} USING ({condition}) WITH CHECK ({condition})"


def _sql_texts(values: Collection[str]) -> str:
    quoted = ["'" + value.replace("'", "''") + "'" for value in values]
    return ", ".join(quoted) or "''"


@lru_cache(maxsize=8)
def engine_for(url: str) -> sa.Engine:
    """Return the engine of ``url``, the same one for the same URL.

    No connection is opened yet. The engine is cached because SQLAlchemy keeps compiled statements with it, and a
    control cycle opens the warehouse several times.

    Raises
    ------
    WarehouseUnavailable
        The URL is not valid, names another kind of database, or its driver is not installed.
    """
    parsed = _parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite_engine(parsed)
    return _postgres_engine(parsed.set(drivername="postgresql+psycopg"))


def with_timeout(url: str, waits_s: int) -> str:
    """Return the URL of a database, of SQLite with another longest wait for its writers."""
    parsed = _parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return url
    return parsed.update_query_dict({"timeout": str(waits_s)}).render_as_string(hide_password=False)


_users: dict[sa.Engine, WeakSet[object]] = {}
_users_lock = Lock()


def use_engine(engine: sa.Engine, user: object) -> None:
    """Register a user of the connections of an engine."""
    with _users_lock:
        _users.setdefault(engine, WeakSet()).add(user)


def leave_engine(engine: sa.Engine, user: object) -> None:
    """Close the connections of an engine after its last user.

    A connection that another thread uses outlives its pool, and then stays open until garbage is collected.
    """
    with _users_lock:
        users = _users.setdefault(engine, WeakSet())
        users.discard(user)
        if not users:
            engine.dispose()


def sqlite_file(url: str) -> Path | None:
    """Return the file of the SQLite database at ``url``.

    None for a database in memory or of another kind.

    Raises
    ------
    WarehouseUnavailable
        The URL is wrong, or the driver missing.
    """
    return sqlite_path(engine_for(url))


def sqlite_path(engine: sa.Engine) -> Path | None:
    """Return the file of a SQLite engine.

    None for a database in memory or of another kind.
    """
    database = engine.url.database
    if engine.dialect.name != "sqlite" or not database or database == ":memory:" or database.startswith("file:"):
        return None
    return Path(database)


def redact_url(url: sa.URL) -> str:
    """Return ``url`` without secrets, for messages and logs."""
    return url.difference_update_query(_SECRETS).render_as_string(hide_password=True)


@contextmanager
def translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Turn errors of the database into ``WarehouseUnavailable`` with a hint."""
    try:
        yield
    except Exception as reason:
        is_from_driver = isinstance(reason, sqlite3.Error) or type(reason).__module__.startswith("psycopg")
        if not (is_from_driver or isinstance(reason, SQLAlchemyError)):
            raise
        raise _unavailable_error(engine, reason) from reason


@contextmanager
def writing(engine: sa.Engine, *, alone: bool = False) -> Iterator[sa.Connection]:
    """Open a transaction that writes.

    It is rolled back unless the block ends normally. With ``alone`` other such transactions wait for this one. SQLite
    always has one writer at a time.
    """
    with (
        translate_errors(engine),
        engine.connect().execution_options(helios_writes=True) as connection,
        connection.begin(),
    ):
        if alone and engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_TIMEOUT_S}s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ALONE_LOCK})")
        yield connection


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that only reads."""
    with translate_errors(engine), engine.connect() as connection, connection.begin():
        yield connection


def _parse_url(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url.replace("postgres://", "postgresql://", 1))
    except ArgumentError as reason:
        # The URL is not repeated, because an invalid one may have a password too.
        raise WarehouseUnavailable("The database URL cannot be understood.", hint=_FORMS) from reason
    if parsed.get_backend_name() not in {"sqlite", "postgresql"}:
        raise WarehouseUnavailable(f"Helios does not speak to {parsed.get_backend_name()!r} databases.", hint=_FORMS)
    return parsed


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    options = {} if "timeout" in url.query else {"timeout": BUSY_TIMEOUT_S}
    try:
        engine = sa.create_engine(url.set(drivername="sqlite"), connect_args=options)
    except (SQLAlchemyError, TypeError, ValueError) as reason:
        raise WarehouseUnavailable(f"{redact_url(url)} cannot be opened: {reason}", hint=_FORMS) from reason
    sa.event.listen(engine, "do_connect", _open_immutable)
    sa.event.listen(engine, "connect", _configure_sqlite)
    sa.event.listen(engine, "connect", lambda *_: _restrict_file_access(engine))
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgres_engine(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url)
    except ModuleNotFoundError as reason:
        raise WarehouseUnavailable(
            f"{redact_url(url)} needs the PostgreSQL driver psycopg, which is not installed.",
            hint="Install it: pip install 'helios-slurm[postgres]'",
        ) from reason


def _open_immutable(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> None:
    """Open a SQLite file on a read-only mount as immutable.

    In WAL mode SQLite would otherwise have to write files beside it. On other mounts this would be wrong, because
    another process may write the file, and a reader without locks could see half a change.

    Raises
    ------
    WarehouseUnavailable
        Some rows are only in the WAL file, which cannot be read there.
    """
    file = Path(arguments[0])
    try:
        if not file.is_file() or not is_mounted_read_only(file):
            return
    except OSError:  # then SQLite cannot open it either, and its error has a hint
        return
    wal = file.with_name(f"{file.name}-wal")
    if not wal.exists() or not wal.stat().st_size:
        arguments[0] = f"{file.resolve().as_uri()}?mode=ro&immutable=1"
        options["uri"] = True
    elif not file.with_name(f"{file.name}-shm").exists():
        raise WarehouseUnavailable(
            f"{file} lies on a read-only mount and was not closed: what {wal.name} holds cannot be read there.",
            hint=f"Copy {file.name} and {wal.name} together to a folder that can be written, and name the copy "
            "in HELIOS_DATABASE_URL.",
        )


def is_mounted_read_only(file: Path) -> bool:
    """Return whether the file system of a file is mounted read-only."""
    return bool(os.statvfs(file).f_flag & os.ST_RDONLY)


def _configure_sqlite(driver: sqlite3.Connection, _record: object) -> None:
    # Python's driver would begin late and commit before DDL, so that neither loads nor migrations would be atomic.
    driver.isolation_level = None
    driver.execute("PRAGMA foreign_keys = ON")
    # In WAL mode NORMAL does not sync at a commit. After a power failure, the record of a change that Slurm already has
    # could be lost. A load is one transaction with one sync.
    driver.execute("PRAGMA synchronous = FULL")
    driver.execute("PRAGMA cache_size = -65536")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and then writes fails at once if another one wrote in between. IMMEDIATE waits.
    writes = connection.get_execution_options().get("helios_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def prepare_file(engine: sa.Engine) -> None:
    """Make a new SQLite file with settings for bulk loads.

    Only its owner can read and write it. A file that has content is not touched. The data folder of the user is made if
    it is missing, but no other folder, because a mistyped path would then give an empty database.

    Raises
    ------
    WarehouseUnavailable
        The folder does not exist, or the file cannot be made.
    """
    path = sqlite_path(engine)
    if path is None:
        return
    try:
        if path.exists() and path.stat().st_size:
            return
        if path.parent == platformdirs.user_data_path("helios"):
            make_folder(path.parent)
        check_folder(str(engine.url))
        if not path.exists():  # SQLite would make it readable by all; -wal and -shm copy the mode of this file
            os.close(open_private(path))
    except OSError as reason:
        raise _unavailable_error(engine, reason) from reason
    with translate_errors(engine), engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        driver.execute("PRAGMA journal_mode = WAL")


def check_folder(url: str) -> None:
    """Check that the folder of a SQLite database exists.

    The data folder of the user may be missing, as it is made when needed.

    Raises
    ------
    WarehouseUnavailable
        The folder does not exist, where the hint has the most similar one, or the URL is not valid.
    """
    path = sqlite_file(url)
    if path is None or path.parent.exists() or path.parent == platformdirs.user_data_path("helios"):
        return
    similar = _similar_folder(path.parent.absolute())
    suggestion = f"Did you mean {similar / path.name}? " if similar else ""
    raise WarehouseUnavailable(
        f"There is no folder {path.parent} for the database.",
        hint=f"{suggestion}Correct database.url or HELIOS_DATABASE_URL, or make it: mkdir -p {path.parent}",
    )


def _similar_folder(folder: Path) -> Path | None:
    """Return the existing folder with the path most similar to a missing one."""
    existing = next(parent for parent in folder.parents if parent.exists())
    for name in folder.relative_to(existing).parts:
        try:
            names = [entry.name for entry in os.scandir(existing) if entry.is_dir()]
        except OSError:
            return None
        matches = [name] if name in names else get_close_matches(name, names, n=1)
        if not matches:
            return None
        existing /= matches[0]
    return existing


def _restrict_file_access(engine: sa.Engine) -> None:
    if (path := sqlite_path(engine)) is not None:
        for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            restrict_access(file)


def _unavailable_error(engine: sa.Engine, reason: Exception) -> WarehouseUnavailable:
    # SQLAlchemy's message repeats the statement and its rows. The driver's message says what is wrong.
    original = reason.orig if isinstance(reason, DatabaseError) and reason.orig else reason
    message = _redact(str(original).strip(), engine.url)
    hints = (hint for part, hint in _HINTS.items() if part in message.lower())
    hint = next(hints, "Check database.url or HELIOS_DATABASE_URL, and that the database is running.")
    return WarehouseUnavailable(f"The database {redact_url(engine.url)} refused: {message}", hint=hint)


def _redact(text: str, url: sa.URL) -> str:
    secrets = [url.password, *(url.query.get(name) for name in _SECRETS)]
    for secret in secrets:
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return text
