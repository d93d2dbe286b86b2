"""Deletion of a cluster, and of old rows.

Decisions, cycles, predictions, estimates of starts and the records of live readings are deleted once they are old.
Jobs, nodes, models and applied changes are deleted only with their whole cluster. SQLite uses the free space for new
rows, so that the file stops growing. VACUUM is not used, because it would lock the database and need as much space
again on the disk.
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

DELETE_BATCH = 5_000
"""Rows deleted in one transaction, in about 50 ms. A control cycle that wants to write can wait for that long."""
# Shadow decisions are searched only in the last 30 days before their horizon, not every night in the whole audit log.
# Those that remain after a longer outage are deleted with the rest of the audit log.
SHADOW_SEARCH_SPAN = timedelta(days=30)
# LIKE pattern of the paths under which helios.app.sync records readings of the live accounting. Records of files that a
# person loaded are kept.
LIVE_READING = "sacct ____-__-__T__:__:__Z to ____-__-__T__:__:__Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Times before which rows are old.

    Attributes
    ----------
    audit, shadow : datetime
        For all decisions, and for those of services in shadow mode, which change nothing.
    cycles, predictions, readings : datetime
        For control cycles, for predictions and estimates of starts (by the submission of their job), and for records of
        live readings with the rows that they rejected.
    """

    audit: datetime
    shadow: datetime
    cycles: datetime
    predictions: datetime
    readings: datetime


def count_rows(connection: sa.Connection, cluster_id: int) -> dict[str, int]:
    """Return the number of a cluster's rows in each table, without empty ones.

    Sums of its jobs are no content of their own.
    """
    conditions = {table: _in_cluster(table, cluster_id) for table in schema.metadata.sorted_tables}
    counts = {
        table.name: connection.execute(sa.select(sa.func.count()).select_from(table).where(condition)).scalar_one()
        for table, condition in conditions.items()
        if condition is not None and table not in {schema.clusters, schema.job_sums}
    }
    return {name: rows for name, rows in counts.items() if rows}


def remove_cluster(connection: sa.Connection, cluster_id: int) -> None:
    """Delete a cluster with all its rows.

    Texts that jobs refer to by number, such as names of users, stay, because other clusters may refer to them too.
    """
    for table in reversed(schema.metadata.sorted_tables):
        if (condition := _in_cluster(table, cluster_id)) is not None:
            connection.execute(sa.delete(table).where(condition))


def forget(engine: sa.Engine, cluster_id: int, horizon: Horizon) -> dict[str, int]:
    """Delete the rows of a cluster that are older than ``horizon``.

    Each transaction deletes a bounded number of rows.

    Returns
    -------
    dict of str to int
        How many rows were deleted, by kind.
    """
    decisions, cycles, predictions = schema.decisions, schema.cycles, schema.predictions
    estimates = schema.start_estimates
    is_shadow = decisions.c.mode == Mode.SHADOW.value
    is_shadow &= decisions.c.decided_at >= stored_time(horizon.shadow - SHADOW_SEARCH_SPAN)
    return {
        "decisions": _delete_older(engine, cluster_id, decisions.c.decided_at, horizon.audit),
        "shadow decisions": _delete_older(engine, cluster_id, decisions.c.decided_at, horizon.shadow, is_shadow),
        "cycles": _delete_older(engine, cluster_id, cycles.c.taken_at, horizon.cycles),
        "predictions": _delete_older(engine, cluster_id, predictions.c.submitted_at, horizon.predictions),
        "estimates of starts": _delete_older(engine, cluster_id, estimates.c.submitted_at, horizon.predictions),
        "readings": _delete_readings(engine, cluster_id, horizon.readings),
    }


def _delete_older(
    engine: sa.Engine, cluster_id: int, time: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> int:
    """Delete a cluster's older rows in batches, and return their number."""
    is_older = [time.table.c.cluster_id == cluster_id, time < stored_time(before), *conditions]
    last_of_batch = select_older(cluster_id, time, before, *conditions).offset(DELETE_BATCH - 1).limit(1)
    deleted, has_more = 0, True
    while has_more:
        with writing(engine) as connection:
            last = connection.execute(last_of_batch).scalar_one_or_none()
            has_more = last is not None
            in_batch = [time <= last] if has_more else []
            deleted += connection.execute(sa.delete(time.table).where(*is_older, *in_batch)).rowcount
    return deleted


def select_older(
    cluster_id: int, time: sa.Column[Any], before: datetime, *conditions: sa.ColumnElement[bool]
) -> sa.Select[Any]:
    """Return the query of older values of ``time``, oldest first."""
    is_older = [time.table.c.cluster_id == cluster_id, time < stored_time(before), *conditions]
    return sa.select(time).where(*is_older).order_by(time)


def _delete_readings(engine: sa.Engine, cluster_id: int, before: datetime) -> int:
    deleted, has_more = 0, True
    while has_more:
        with writing(engine) as connection:
            ids = _old_reading_ids(connection, cluster_id, before)
            has_more = len(ids) > 0
            connection.execute(sa.delete(schema.rejects).where(schema.rejects.c.load_id.in_(ids)))
            deleted += connection.execute(sa.delete(schema.loads).where(schema.loads.c.load_id.in_(ids))).rowcount
    return deleted


def _old_reading_ids(connection: sa.Connection, cluster_id: int, before: datetime) -> list[int]:
    loads = schema.loads
    in_cluster = loads.c.cluster_id == cluster_id
    # The last load is kept: Warehouse.edition returns its number.
    newest = sa.select(sa.func.max(loads.c.load_id)).where(in_cluster).scalar_subquery()
    is_old = in_cluster & (loads.c.loaded_at < stored_time(before)) & loads.c.path.like(LIVE_READING)
    query = sa.select(loads.c.load_id).where(is_old, loads.c.load_id != newest).order_by(loads.c.load_id)
    return list(connection.execute(query.limit(DELETE_BATCH // 10)).scalars())


def _in_cluster(table: sa.Table, cluster_id: int) -> sa.ColumnElement[bool] | None:
    """Return the condition that a row belongs to a cluster.

    None for a table without clusters.
    """
    if table is schema.rejects:
        loads = sa.select(schema.loads.c.load_id).where(schema.loads.c.cluster_id == cluster_id)
        return table.c.load_id.in_(loads)
    return table.c.cluster_id == cluster_id if "cluster_id" in table.c else None
