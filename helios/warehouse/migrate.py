"""Schema migrations, by Alembic and without an ``alembic.ini``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from helios.errors import SchemaOutdated
from helios.warehouse.engine import prepare_file, reading, sqlite_path, writing

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

HEAD = "0018"
"""The newest migration, which a test compares with the folder.

It is a constant because importing Alembic takes a quarter of a second. Every command opens the database, and only those
that change the schema need Alembic.
"""


def migrations_folder() -> Path:
    """Return the folder of the migrations, installed or in the source."""
    here = Path(__file__).resolve().parent
    installed = here / "migrations"
    return installed if installed.is_dir() else here.parents[1] / "db" / "migrations"


def head() -> str:
    """Return the revision that this version of Helios expects."""
    return HEAD


def revision(engine: sa.Engine) -> str | None:
    """Return the schema revision of a database, or None without a schema."""
    path = sqlite_path(engine)
    with suppress(OSError):  # what cannot be looked at cannot be opened below
        if path is not None and not path.exists():
            return None
    with reading(engine) as connection:
        return _revision(connection)


def upgrade(engine: sa.Engine, *, finish: Callable[[sa.Connection, list[str]], None] | None = None) -> list[str]:
    """Bring a database to ``head``, in one transaction.

    Parameters
    ----------
    engine : Engine
    finish : callable, optional
        Called with the connection and the applied revisions, oldest first, at the end of the transaction, also where
        none was applied.

    Returns
    -------
    list of str
        The revisions that were applied, oldest first.

    Raises
    ------
    SchemaOutdated
        A newer Helios made the schema.
    WarehouseUnavailable
        The database cannot be opened or written.
    """
    prepare_file(engine)
    with writing(engine, alone=True) as connection:
        before = _revision(connection)
        refuse_unknown(before)
        missing = [script.revision for script in _scripts().iterate_revisions("head", before or "base")]
        if missing:
            _run_migrations(connection)
        if finish is not None:
            finish(connection, missing[::-1])
        return missing[::-1]


def refuse_unknown(revision: str | None) -> None:
    """Raise ``SchemaOutdated`` if this version of Helios does not know ``revision``."""
    if revision is not None and not is_known(revision):
        raise SchemaOutdated(
            f"The database is at revision {revision}, which this version of Helios does not know.",
            hint="A newer Helios made it: install that release or a newer one.",
        )


def is_known(revision: str) -> bool:
    """Return whether this version of Helios knows a revision, which may be newer."""
    from alembic.script.revision import ResolutionError  # noqa: PLC0415 - see HEAD
    from alembic.util import CommandError  # noqa: PLC0415 - see HEAD

    try:
        _scripts().get_revision(revision)
    except (ResolutionError, CommandError):
        return False
    return True


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see HEAD

    return ScriptDirectory(migrations_folder())


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    number = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return None if number is None else str(number)


def _run_migrations(connection: sa.Connection) -> None:
    from alembic.config import Config  # noqa: PLC0415 - see HEAD
    from alembic.runtime.environment import EnvironmentContext  # noqa: PLC0415 - see HEAD

    configuration, scripts = Config(), _scripts()
    configuration.attributes["connection"] = connection
    context = EnvironmentContext(
        configuration,
        scripts,
        fn=lambda revision, _context: scripts._upgrade_revs("head", revision),
    )
    with context:
        scripts.run_env()
