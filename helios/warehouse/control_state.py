"""What control keeps in the database: its lease, what it applied, and its audit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from sqlalchemy import ColumnElement, Connection, Engine, delete, func, insert, select, update

from helios.errors import LeaseLost, NoSuchCluster
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES
from helios.ports import LONGEST_LEASE, Domain
from helios.warehouse import jobs, schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.columns import column_types, frame_of, stored_frame, stored_time
from helios.warehouse.engine import reading, writing
from helios.warehouse.keys import cluster_id_for_loading, find_cluster_id

# What is applied, by domain: its columns, its table, and the columns by which it is read.
_APPLIED = {
    Domain.JOBS: (APPLIED_CHANGES, schema.applied_changes, ("setting", "job_id", "mode")),
    Domain.NODES: (APPLIED_NODE_CHANGES, schema.applied_node_changes, ("setting", "node", "mode")),
}
_MICROSECOND = timedelta(microseconds=1)


class SqlLedger:
    """A :class:`helios.ports.Ledger` in the warehouse; made by :meth:`helios.warehouse.Warehouse.ledger`.

    Each domain has its own lease, tokens and applied changes; the audit is one.
    """

    def __init__(self, engine: Engine, bulk: Bulk, cluster: str, domain: Domain) -> None:
        self._engine, self._bulk, self._domain = engine, bulk, domain
        try:
            with reading(engine) as connection:  # who only reads a known cluster need not be able to write
                self._cluster_id = find_cluster_id(connection, cluster)
        except NoSuchCluster:
            with writing(engine) as connection:
                self._cluster_id = cluster_id_for_loading(connection, name=cluster, timezone=None)

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the one writer's lease, as :class:`helios.ports.Ledger` says.

        A lease that ran out and that nobody took is its last holder's to renew, under the same token. An end that is
        further ahead than any lease lasts was written by a wrong clock: it is brought near. Its holder, if it lives,
        renews in time; if it does not, the next to ask after that has the lease.
        """
        leases, here = schema.leases, _of_domain(self._cluster_id, self._domain)
        with writing(self._engine, alone=True) as connection:
            row = connection.execute(select(leases).where(here).with_for_update()).one_or_none()
            at = lease_time_us(connection, now)  # after the row, for which it may have waited
            expires = {"expires_at": at + lasts // _MICROSECOND, "holder": holder}
            if row is None:
                key = {"cluster_id": self._cluster_id, "domain": self._domain.value}
                connection.execute(insert(leases).values(key | expires | {"token": 1}))
                return 1
            if row.holder not in {None, holder} and at < row.expires_at:
                latest = at + max(lasts, LONGEST_LEASE) // _MICROSECOND
                if row.expires_at > latest:
                    connection.execute(update(leases).where(here).values(expires_at=latest))
                return None
            token = int(row.token) + int(row.holder != holder)
            connection.execute(update(leases).where(here).values(token=token, **expires))
            return token

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it; whoever comes next gets a larger token."""
        mine = _of_domain(self._cluster_id, self._domain) & (schema.leases.c.holder == holder)
        with writing(self._engine) as connection:
            connection.execute(update(schema.leases).where(mine).values(holder=None))

    def applied_changes(self) -> pd.DataFrame:
        """Return the applied changes, by setting and job, or by node."""
        kind, table, order = _APPLIED[self._domain]
        with reading(self._engine) as connection:
            query = jobs.select_columns(table, self._cluster_id, kind.names).order_by(
                *(table.c[name] for name in order)
            )
            return frame_of(self._bulk.select(connection, query), column_types(kind))

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append ``decisions`` and, unless None, replace the applied changes, in one transaction.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one; nothing was written.
        """
        kind, table, _ = _APPLIED[self._domain]
        with writing(self._engine) as connection:
            held = select(schema.leases.c.token).where(_of_domain(self._cluster_id, self._domain))
            current = connection.execute(held.with_for_update()).scalar_one_or_none()
            if current != token:
                raise LeaseLost(
                    f"Another Helios took over this cluster: token {token} is not the current {current or 'one'}.",
                    hint="Nothing was written. See who holds the lease: helios doctor",
                )
            jobs.add_decisions(connection, self._cluster_id, decisions)
            if applied_changes is not None:
                rows = stored_frame(kind, applied_changes, self._cluster_id)
                connection.execute(delete(table).where(table.c.cluster_id == self._cluster_id))
                self._bulk.insert(connection, table, rows)


def read_lease(connection: Connection, cluster_id: int, domain: Domain) -> Mapping[str, Any] | None:
    """Return ``token``, ``holder`` and ``expires_at`` (microseconds) of a domain's lease; None: never held."""
    row = connection.execute(select(schema.leases).where(_of_domain(cluster_id, domain))).one_or_none()
    return None if row is None else dict(row._mapping)


def lease_time_us(connection: Connection, now: datetime) -> int:
    """Return the time by which leases run, microseconds; ``now`` where the database has no clock of its own."""
    if connection.dialect.name != "postgresql":
        return stored_time(now)
    # Not now(): that is when the transaction began, before it waited for the row.
    return int(connection.execute(select(func.extract("epoch", func.clock_timestamp()) * 1_000_000)).scalar_one())


def _of_domain(cluster_id: int, domain: Domain) -> ColumnElement[bool]:
    return (schema.leases.c.cluster_id == cluster_id) & (schema.leases.c.domain == domain.value)
