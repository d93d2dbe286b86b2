"""Rows that acting on a live cluster leaves: the lease, what stands, modes, turns, and what history was read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
from sqlalchemy import Connection, delete, insert, select, update

from helios.errors import LeaseLost
from helios.model import COVERAGE, MODES, STANDINGS, TURNS, FrameKind
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import stored_column, stored_time

STANDING_TYPES = {column.name: column.dtype for column in STANDINGS.columns}
MODE_TYPES = {column.name: column.dtype for column in MODES.columns}
TURN_TYPES = {column.name: column.dtype for column in TURNS.columns}
COVERAGE_TYPES = {column.name: column.dtype for column in COVERAGE.columns}


def acquire(connection: Connection, cluster_id: int, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
    """Take or renew the lease of a cluster; see :meth:`helios.ports.Ledger.acquire`.

    A lease that ran out and that nobody took is its last holder's to renew, under the same token.
    """
    leases, at = schema.leases, stored_time(now)
    here = leases.c.cluster_id == cluster_id
    row = connection.execute(select(leases).where(here).with_for_update()).one_or_none()
    expires = {"expires_at": stored_time(now + lasts), "holder": holder}
    if row is None:
        connection.execute(insert(leases).values(cluster_id=cluster_id, token=1, **expires))
        return 1
    if row.holder not in {None, holder} and at < row.expires_at:
        return None
    token = int(row.token) + int(row.holder != holder)
    connection.execute(update(leases).where(here).values(token=token, **expires))
    return token


def release(connection: Connection, cluster_id: int, *, holder: str) -> None:
    """Give the lease back, if ``holder`` has it; whoever comes next gets a larger token."""
    leases = schema.leases
    mine = (leases.c.cluster_id == cluster_id) & (leases.c.holder == holder)
    connection.execute(update(leases).where(mine).values(holder=None))


def refuse_stale(connection: Connection, cluster_id: int, *, token: int) -> None:
    """Raise :class:`LeaseLost` unless ``token`` is the cluster's current one."""
    leases = schema.leases
    current = connection.execute(
        select(leases.c.token).where(leases.c.cluster_id == cluster_id).with_for_update()
    ).scalar_one_or_none()
    if current != token:
        raise LeaseLost(
            f"Another Helios took over this cluster: token {token} is not the current {current or 'one'}.",
            remedy="Nothing was written. See who holds the lease: helios doctor",
        )


def lease(connection: Connection, cluster_id: int) -> Mapping[str, Any] | None:
    """Return ``token``, ``holder`` and ``expires_at`` (microseconds) of a cluster's lease; None: never held."""
    leases = schema.leases
    row = connection.execute(select(leases).where(leases.c.cluster_id == cluster_id)).one_or_none()
    return None if row is None else dict(row._mapping)


def replace_standings(connection: Connection, bulk: Bulk, cluster_id: int, standings: pd.DataFrame) -> None:
    """Store what stands changed in place of what was stored."""
    STANDINGS.check(standings)
    connection.execute(delete(schema.standings).where(schema.standings.c.cluster_id == cluster_id))
    bulk.insert(connection, schema.standings, _stored(STANDINGS, standings, cluster_id))


def remember(connection: Connection, cluster_id: int, *, name: str, text: str, at: datetime) -> None:
    """Store a text under a name, in place of the one there."""
    memories = schema.memories
    chosen = (memories.c.cluster_id == cluster_id) & (memories.c.name == name)
    connection.execute(delete(memories).where(chosen))
    row = {"cluster_id": cluster_id, "name": name, "text": text, "written_at": stored_time(at)}
    connection.execute(insert(memories).values(row))


def remembered(connection: Connection, cluster_id: int, *, name: str) -> str | None:
    """Return the text stored under a name; None: there is none."""
    memories = schema.memories
    chosen = (memories.c.cluster_id == cluster_id) & (memories.c.name == name)
    return connection.execute(select(memories.c.text).where(chosen)).scalar_one_or_none()


def add_mode(connection: Connection, bulk: Bulk, cluster_id: int, mode: pd.DataFrame) -> None:
    """Append settings of modes; the last of a service counts."""
    bulk.insert(connection, schema.modes, _stored(MODES, mode, cluster_id))


def add_turns(connection: Connection, bulk: Bulk, cluster_id: int, turns: pd.DataFrame) -> None:
    """Append turns."""
    bulk.insert(connection, schema.turns, _stored(TURNS, turns, cluster_id))


def cover(
    connection: Connection, cluster_id: int, *, source: str, started_at: datetime, ended_at: datetime, read_at: datetime
) -> None:
    """Note that a stretch of history was read, joined with the stretches that it touches."""
    table, start, end = schema.coverage, stored_time(started_at), stored_time(ended_at)
    touching = (
        (table.c.cluster_id == cluster_id)
        & (table.c.source == source)
        & (table.c.started_at <= end)
        & (table.c.ended_at >= start)
    )
    for row in connection.execute(select(table).where(touching)).all():
        start, end = min(start, row.started_at), max(end, row.ended_at)
    connection.execute(delete(table).where(touching))
    joined = {"source": source, "started_at": start, "ended_at": end, "read_at": stored_time(read_at)}
    connection.execute(insert(table).values(cluster_id=cluster_id, **joined))


def _stored(kind: FrameKind, frame: pd.DataFrame, cluster_id: int) -> pa.Table:
    kind.check(frame)
    columns = {column.name: stored_column(frame[column.name], column.dtype) for column in kind.columns}
    return pa.table({"cluster_id": pa.array([cluster_id] * len(frame), pa.int64())} | columns)
