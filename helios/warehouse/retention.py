"""Deletion of old rows.

Decisions, cycles, predictions and the records of live readings are deleted once they are old. Jobs, nodes, models and
applied changes are deleted only with their whole cluster. SQLite uses the space again for new rows, so that the file
stops growing. VACUUM is not used: it would lock the database and need its size again on the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from helios.model import Mode
from helios.warehouse import schema
from helios.warehouse.columns import stored_time
from helios.warehouse.engine import writing

# Rows deleted in one transaction. It takes about 50 ms, which a control cycle that writes meanwhile can wait for.
BATCH = 5_000
# Shadow decisions are searched only in the last 30 days before their horizon, not every night in the whole audit log.
# Those that remain after a longer outage are deleted with the rest of the audit log.
SHADOWS_SEARCHED = timedelta(days=30)
# How helios.app.sync names its readings of the live accounting. Records of files that a person loaded are kept.
LIVE_READING = "sacct ____-__-__T__:__:__Z to ____-__-__T__:__:__Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Times before which rows are old.

    Attributes
    ----------
    audit, shadow : datetime
        For all decisions, and for those of services in shadow mode, which change nothing.
    cycles, predictions, readings : datetime
        For control cycles, for predictions (by the submission of their job), and for records of live readings with the
        rows that they rejected.
    """

    audit: datetime
    shadow: datetime
    cycles: datetime
    predictions: datetime
    readings: datetime


def count_rows(connection: sa.Connection, cluster_id: int) -> dict[str, int]:
    """Return a cluster's rows in each table, without empty ones."""
    tables = {table: _cluster_rows(table, cluster_id) for table in schema.metadata.sorted_tables}
    counts = {
        table.name: connection.execute(sa.select(sa.func.count()).select_from(table).where(chosen)).scalar_one()
        for table, chosen in tables.items()
        if chosen is not None and table is not schema.clusters
    }
    return {name: rows for name, rows in counts.items() if rows}


def remove_cluster(connection: sa.Connection, cluster_id: int) -> None:
    """Delete a cluster with all its rows.

    Texts that jobs refer to by number, such as names of users, stay: other clusters may have the same.
    """
    for table in reversed(schema.metadata.sorted_tables):
        if (chosen := _cluster_rows(table, cluster_id)) is not None:
            connection.execute(sa.delete(table).where(chosen))


def _cluster_rows(table: sa.Table, cluster_id: int) -> sa.ColumnElement[bool] | None:
    if table is schema.rejects:
        loads = sa.select(schema.loads.c.load_id).where(schema.loads.c.cluster_id == cluster_id)
        return table.c.load_id.in_(loads)
    return table.c.cluster_id == cluster_id if "cluster_id" in table.c else None


def forget(engine: sa.Engine, cluster_id: int, horizon: Horizon) -> dict[str, int]:
    """Delete the rows of a cluster that are older than ``horizon``.

    Each transaction deletes a bounded number of rows.

    Returns
    -------
    dict of str to int
        How many rows were deleted, by kind.
    """
    decisions, cycles, predictions = schema.decisions, schema.cycles, schema.predictions
    shadow = decisions.c.mode == Mode.SHADOW.value
    shadow &= decisions.c.decided_at >= stored_time(horizon.shadow - SHADOWS_SEARCHED)
    return {
        "decisions": _older(engine, cluster_id, decisions.c.decided_at, horizon.audit),
        "shadow decisions": _older(engine, cluster_id, decisions.c.decided_at, horizon.shadow, shadow),
        "cycles": _older(engine, cluster_id, cycles.c.taken_at, horizon.cycles),
        "predictions": _older(engine, cluster_id, predictions.c.submitted_at, horizon.predictions),
        "readings": _readings(engine, cluster_id, horizon.readings),
    }


def _older(
    engine: sa.Engine, cluster_id: int, at: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> int:
    chosen = [at.table.c.cluster_id == cluster_id, at < stored_time(before), *conditions]
    edge = oldest(cluster_id, at, before, *conditions).offset(BATCH - 1).limit(1)
    gone, more = 0, True
    while more:
        with writing(engine) as connection:
            last = connection.execute(edge).scalar_one_or_none()
            more = last is not None
            within = [at <= last] if more else []
            gone += connection.execute(sa.delete(at.table).where(*chosen, *within)).rowcount
    return gone


def oldest(
    cluster_id: int, at: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Return the query of the times of old rows."""
    chosen = [at.table.c.cluster_id == cluster_id, at < stored_time(before), *conditions]
    return sa.select(at).where(*chosen).order_by(at)


def _readings(engine: sa.Engine, cluster_id: int, before: datetime) -> int:
    gone, more = 0, True
    while more:
        with writing(engine) as connection:
            ids = _old_reading_ids(connection, cluster_id, before)
            more = len(ids) > 0
            connection.execute(sa.delete(schema.rejects).where(schema.rejects.c.load_id.in_(ids)))
            gone += connection.execute(sa.delete(schema.loads).where(schema.loads.c.load_id.in_(ids))).rowcount
    return gone


def _old_reading_ids(connection: sa.Connection, cluster_id: int, before: datetime) -> list[int]:
    loads = schema.loads
    of_cluster = loads.c.cluster_id == cluster_id
    # The number of the last load shows whether anything is new: see Warehouse.edition.
    newest = sa.select(sa.func.max(loads.c.load_id)).where(of_cluster).scalar_subquery()
    old = of_cluster & (loads.c.loaded_at < stored_time(before)) & loads.c.path.like(LIVE_READING)
    chosen = sa.select(loads.c.load_id).where(old, loads.c.load_id != newest).order_by(loads.c.load_id)
    return list(connection.execute(chosen.limit(BATCH // 10)).scalars())
