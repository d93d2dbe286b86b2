"""Rows that acting on a live cluster leaves: the lease, what stands, modes, cycles, and what history was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
from sqlalchemy import ColumnElement, Connection, Engine, Table, delete, func, insert, select, update

from helios.errors import LeaseLost, NoSuchCluster
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES, COVERAGE, CYCLES, MODES, NODE_TALLIES, FrameKind
from helios.ports import LONGEST_LEASE, Domain
from helios.warehouse import jobs, schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import frame_of, stored_column, stored_time
from helios.warehouse.engine import reading, writing
from helios.warehouse.keys import cluster_id_for_loading, find_cluster_id

MODE_TYPES = {column.name: column.dtype for column in MODES.columns}
CYCLE_TYPES = {column.name: column.dtype for column in CYCLES.columns}
COVERAGE_TYPES = {column.name: column.dtype for column in COVERAGE.columns}
TALLY_TYPES = {column.name: column.dtype for column in NODE_TALLIES.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedTable:
    """Where what stands changed is kept, for one domain.

    Attributes
    ----------
    kind : FrameKind
        Its columns.
    table : Table
        Where they are stored.
    order : tuple of str
        Columns by which they are read.
    """

    kind: FrameKind
    table: Table
    order: tuple[str, ...]


SHELVES = {
    Domain.JOBS: AppliedTable(kind=APPLIED_CHANGES, table=schema.applied_changes, order=("setting", "job_id", "mode")),
    Domain.NODES: AppliedTable(
        kind=APPLIED_NODE_CHANGES, table=schema.applied_node_changes, order=("setting", "node", "mode")
    ),
}


def acquire(
    connection: Connection, cluster_id: int, domain: Domain, *, holder: str, now: datetime, lasts: timedelta
) -> int | None:
    """Take or renew the lease of a domain of a cluster; see :meth:`helios.ports.Ledger.acquire`.

    A lease that ran out and that nobody took is its last holder's to renew, under the same token. An end that is
    further ahead than any lease lasts was written by a wrong clock: it is brought near. Its holder, if it lives, renews
    in time; if it does not, the next to ask after that has the lease.
    """
    leases, here = schema.leases, _here(cluster_id, domain)
    row = connection.execute(select(leases).where(here).with_for_update()).one_or_none()
    at = _time(connection, now)  # after the row, for which it may have waited
    expires = {"expires_at": at + _microseconds(lasts), "holder": holder}
    if row is None:
        connection.execute(insert(leases).values(cluster_id=cluster_id, domain=domain.value, token=1, **expires))
        return 1
    if row.holder not in {None, holder} and at < row.expires_at:
        longest = _microseconds(max(lasts, LONGEST_LEASE))
        if row.expires_at > at + longest:
            connection.execute(update(leases).where(here).values(expires_at=at + longest))
        return None
    token = int(row.token) + int(row.holder != holder)
    connection.execute(update(leases).where(here).values(token=token, **expires))
    return token


def time_of_leases(connection: Connection, now: datetime) -> datetime:
    """Return the time by which leases run: the database's clock where it has one, else ``now``."""
    return datetime.fromtimestamp(_time(connection, now) / 1e6, UTC)


def _time(connection: Connection, now: datetime) -> int:
    """Return the time by which leases run, microseconds; SQLite has no clock but this machine's."""
    if connection.dialect.name != "postgresql":
        return stored_time(now)
    # Not now(): that is when the transaction began, before it waited for the row.
    return int(connection.execute(select(func.extract("epoch", func.clock_timestamp()) * 1_000_000)).scalar_one())


def _microseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def release(connection: Connection, cluster_id: int, domain: Domain, *, holder: str) -> None:
    """Give the lease back, if ``holder`` has it; whoever comes next gets a larger token."""
    leases = schema.leases
    mine = _here(cluster_id, domain) & (leases.c.holder == holder)
    connection.execute(update(leases).where(mine).values(holder=None))


def refuse_stale(connection: Connection, cluster_id: int, domain: Domain, *, token: int) -> None:
    """Raise :class:`LeaseLost` unless ``token`` is the current one of the domain."""
    current = connection.execute(
        select(schema.leases.c.token).where(_here(cluster_id, domain)).with_for_update()
    ).scalar_one_or_none()
    if current != token:
        raise LeaseLost(
            f"Another Helios took over this cluster: token {token} is not the current {current or 'one'}.",
            hint="Nothing was written. See who holds the lease: helios doctor",
        )


def lease(connection: Connection, cluster_id: int, domain: Domain) -> Mapping[str, Any] | None:
    """Return ``token``, ``holder`` and ``expires_at`` (microseconds) of a domain's lease; None: never held."""
    row = connection.execute(select(schema.leases).where(_here(cluster_id, domain))).one_or_none()
    return None if row is None else dict(row._mapping)


def _here(cluster_id: int, domain: Domain) -> ColumnElement[bool]:
    return (schema.leases.c.cluster_id == cluster_id) & (schema.leases.c.domain == domain.value)


def replace_applied(
    connection: Connection, bulk: Bulk, cluster_id: int, domain: Domain, applied_changes: pd.DataFrame
) -> None:
    """Store what stands changed of a domain's business in place of what was stored."""
    applied_table = SHELVES[domain]
    applied_table.kind.check(applied_changes)
    connection.execute(delete(applied_table.table).where(applied_table.table.c.cluster_id == cluster_id))
    bulk.insert(connection, applied_table.table, _stored(applied_table.kind, applied_changes, cluster_id))


def store_state(connection: Connection, cluster_id: int, *, name: str, text: str, at: datetime) -> None:
    """Store a text under a name, in place of the one there."""
    memories = schema.memories
    chosen = (memories.c.cluster_id == cluster_id) & (memories.c.name == name)
    connection.execute(delete(memories).where(chosen))
    row = {"cluster_id": cluster_id, "name": name, "text": text, "written_at": stored_time(at)}
    connection.execute(insert(memories).values(row))


def recall_state(connection: Connection, cluster_id: int, *, name: str) -> str | None:
    """Return the text stored under a name; None: there is none."""
    memories = schema.memories
    chosen = (memories.c.cluster_id == cluster_id) & (memories.c.name == name)
    return connection.execute(select(memories.c.text).where(chosen)).scalar_one_or_none()


def add_mode(connection: Connection, bulk: Bulk, cluster_id: int, mode: pd.DataFrame) -> None:
    """Append settings of modes; the last of a service counts."""
    bulk.insert(connection, schema.modes, _stored(MODES, mode, cluster_id))


def add_cycles(connection: Connection, bulk: Bulk, cluster_id: int, cycles: pd.DataFrame) -> None:
    """Append cycles."""
    bulk.insert(connection, schema.cycles, _stored(CYCLES, cycles, cluster_id))


def add_tallies(connection: Connection, bulk: Bulk, cluster_id: int, tallies: pd.DataFrame) -> None:
    """Append counts of nodes; those of a pool at a time that is known stay as they are."""
    bulk.insert(connection, schema.node_tallies, _stored(NODE_TALLIES, tallies, cluster_id))


def forget_tallies(connection: Connection, cluster_id: int, *, before: datetime) -> int:
    """Delete the counts of nodes taken before a time; return how many rows went."""
    tallies = schema.node_tallies
    older = (tallies.c.cluster_id == cluster_id) & (tallies.c.taken_at < stored_time(before))
    return connection.execute(delete(tallies).where(older)).rowcount


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


# The ledger of one domain of a cluster in the warehouse: control's memory and audit.


class SqlLedger:
    """A :class:`helios.ports.Ledger` in the warehouse; made by :meth:`helios.warehouse.Warehouse.ledger`.

    Each domain has its own lease, tokens and standings; the audit is one.
    """

    def __init__(self, engine: Engine, bulk: Bulk, cluster: str, domain: Domain) -> None:
        self._engine, self._bulk, self._domain = engine, bulk, domain
        self._cluster_id = _cluster_id(engine, cluster)

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the one writer's lease, as :class:`helios.ports.Ledger` says."""
        with writing(self._engine, alone=True) as connection:
            return acquire(connection, self._cluster_id, self._domain, holder=holder, now=now, lasts=lasts)

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it."""
        with writing(self._engine) as connection:
            release(connection, self._cluster_id, self._domain, holder=holder)

    def applied_changes(self) -> pd.DataFrame:
        """Return the applied changes, by setting and job, or by node."""
        applied_table = SHELVES[self._domain]
        types = {column.name: column.dtype for column in applied_table.kind.columns}
        with reading(self._engine) as connection:
            query = jobs.jobs_in_cluster(applied_table.table, self._cluster_id, list(types))
            ordered = query.order_by(*(applied_table.table.c[name] for name in applied_table.order))
            return frame_of(self._bulk.select(connection, ordered), types)

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append ``decisions`` and, unless None, replace what stands changed, in one transaction.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one; nothing was written.
        """
        with writing(self._engine) as connection:
            refuse_stale(connection, self._cluster_id, self._domain, token=token)
            jobs.add_decisions(connection, self._cluster_id, decisions)
            if applied_changes is not None:
                replace_applied(connection, self._bulk, self._cluster_id, self._domain, applied_changes)


def _cluster_id(engine: Engine, cluster: str) -> int:
    """Return the number of a cluster, making it if it is new: who only reads a known one need not be able to write."""
    try:
        with reading(engine) as connection:
            return find_cluster_id(connection, cluster)
    except NoSuchCluster:
        with writing(engine) as connection:
            return cluster_id_for_loading(connection, name=cluster, timezone=None)
