"""Note which histories were read by the rules of older releases.

Some of their rows were read wrongly. ``helios.warehouse.old_readings`` finds them.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Write the moment of the upgrade for each cluster with loaded rows."""
    now = round(datetime.now(UTC).timestamp() * 1e6)
    statement = sa.text(
        "INSERT INTO memories (cluster_id, name, text, written_at) "
        "SELECT DISTINCT cluster_id, 'old_readings', CAST(:note AS TEXT), CAST(:now AS BIGINT) FROM loads"
    )
    op.execute(statement.bindparams(note=json.dumps({"upgraded": now, "until": None}), now=now))


def downgrade() -> None:
    """Remove the notes."""
    op.execute("DELETE FROM memories WHERE name = 'old_readings'")
