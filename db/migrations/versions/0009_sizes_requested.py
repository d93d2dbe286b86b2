"""Add the requested sizes to jobs, beside those that were allocated.

Of jobs that were stored before, CPUs and GPUs are those requested, and the new columns are unknown.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = ("nodes_requested", "cpus_requested", "gpus_requested")
VIEW = "jobs_readable"
_SHOWN = "".join(f", jobs.{name}" for name in COLUMNS)


def upgrade() -> None:
    """Add the columns, to the view for people too."""
    shown, granted = _take_view()
    for name in COLUMNS:
        op.add_column("jobs", sa.Column(name, sa.Double(), nullable=True))
    _make_view(re.sub(r"\s+FROM\s+\(?jobs\b", lambda found: f"{_SHOWN}{found[0]}", shown, count=1), granted)


def downgrade() -> None:
    """Remove the columns, from the view too."""
    shown, granted = _take_view()
    for name in COLUMNS:
        op.drop_column("jobs", name)
        shown = re.sub(rf",\s*jobs\.{name}\b", "", shown)
    _make_view(shown, granted)


def _take_view() -> tuple[str, list[tuple[str, str]]]:
    """Drop the view, and return its query and who else may do what with it."""
    connection, granted = op.get_bind(), list[tuple[str, str]]()
    if connection.dialect.name == "postgresql":
        query = sa.text("SELECT pg_get_viewdef(CAST(:view AS regclass))")
        rights = sa.text(
            "SELECT CAST(acl.grantee AS regrole)::text, acl.privilege_type FROM pg_class, aclexplode(relacl) AS acl "
            "WHERE oid = CAST(:view AS regclass) AND acl.grantee NOT IN (0, relowner)"
        )
        granted = [(str(role), str(right)) for role, right in connection.execute(rights, {"view": VIEW})]
    else:
        query = sa.text("SELECT sql FROM sqlite_master WHERE name = :view")
    shown = str(connection.execute(query, {"view": VIEW}).scalar_one())
    op.execute(f"DROP VIEW {VIEW}")
    return shown.removeprefix(f"CREATE VIEW {VIEW} AS").rstrip().rstrip(";"), granted


def _make_view(shown: str, granted: list[tuple[str, str]]) -> None:
    op.execute(sa.text(f"CREATE VIEW {VIEW} AS {shown}".replace(":", "\\:")))
    for role, right in granted:
        op.execute(f"GRANT {right} ON {VIEW} TO {role}")
