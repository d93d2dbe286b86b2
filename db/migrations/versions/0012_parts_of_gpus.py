"""Let the GPUs of a job be a part of one, or not recorded.

GPUs of stored jobs stay as they were read: 0 also where the site recorded none. A downgrade rounds parts up.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

from helios.errors import WarehouseUnavailable

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

WHOLE, ANY = "INTEGER NOT NULL", "DOUBLE"

READERS = """SELECT DISTINCT grantee FROM information_schema.role_table_grants
WHERE table_schema = current_schema() AND table_name = 'jobs_readable' AND privilege_type = 'SELECT'
AND grantee != current_user ORDER BY grantee"""
DEFINITION = "SELECT pg_get_viewdef('jobs_readable'::regclass)"


def upgrade() -> None:
    """Take any number, or none, as the GPUs of a job."""
    if op.get_context().dialect.name == "postgresql":
        _alter_postgresql("ALTER COLUMN gpus TYPE double precision, ALTER COLUMN gpus DROP NOT NULL")
    else:
        _declare_sqlite(WHOLE, ANY)


def downgrade() -> None:
    """Take whole numbers only, 0 where none is recorded."""
    if op.get_context().dialect.name == "postgresql":
        _alter_postgresql(
            "ALTER COLUMN gpus TYPE integer USING ceil(coalesce(gpus, 0))::integer, ALTER COLUMN gpus SET NOT NULL"
        )
        return
    op.execute(
        "UPDATE jobs SET gpus = CASE WHEN gpus IS NULL THEN 0 ELSE CAST(gpus AS INTEGER) + 1 END "
        "WHERE gpus IS NULL OR gpus != CAST(gpus AS INTEGER)"
    )
    _declare_sqlite(ANY, WHOLE)


def _alter_postgresql(changes: str) -> None:
    """Change the column, without the view for people, which is made again as it was."""
    definition = op.get_bind().execute(sa.text(DEFINITION)).scalar_one()
    readers = list(op.get_bind().execute(sa.text(READERS)).scalars())
    op.execute("DROP VIEW jobs_readable")
    op.execute(f"ALTER TABLE jobs {changes}")
    op.get_bind().exec_driver_sql(f"CREATE VIEW jobs_readable AS {definition}".replace("%", "%%"))
    quote = op.get_context().dialect.identifier_preparer.quote
    for reader in readers:
        op.execute(f"GRANT SELECT ON jobs_readable TO {quote(reader)}")


def _declare_sqlite(before: str, after: str) -> None:
    """Change the declaration of the column in SQLite's own table of the schema.

    SQLite has no ALTER COLUMN, and a copy of 10^7 jobs would take minutes and the disk twice. Rows need no change, as
    whole numbers are stored alike in both types. The steps are those for a change that does not affect the content
    (https://www.sqlite.org/lang_altertable.html#otheralter), in the transaction of the upgrade.
    """
    run = op.get_bind().exec_driver_sql
    sql = str(run("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'jobs'").scalar_one())
    changed, places = re.subn(rf"(?<=[\s,(])gpus\s+{before}(?=\s*,)", f"gpus {after}", sql)
    if places != 1:
        raise WarehouseUnavailable(
            "The table of jobs was changed by hand, and its column gpus cannot be upgraded.",
            hint=f"Declare it as Helios did ({before}), or load the traces into a new database.",
        )
    version = int(run("PRAGMA schema_version").scalar_one())
    run("PRAGMA writable_schema = ON")
    run("UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = 'jobs'", (changed,))
    run(f"PRAGMA schema_version = {version + 1}")
    run("PRAGMA writable_schema = OFF")
    run("SELECT gpus FROM jobs LIMIT 1")  # reads the schema anew, so that an error undoes the upgrade
