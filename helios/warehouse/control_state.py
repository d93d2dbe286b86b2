"""Leases, applied changes and the audit log of the controllers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import sqlalchemy as sa

from helios.choices import Domain
from helios.errors import LeaseLost, NoSuchCluster
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES
from helios.ports import LONGEST_LEASE
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, find_cluster_id
from helios.warehouse.columns import frame_of, stored_frame, stored_time
from helios.warehouse.engine import reading, writing
from helios.warehouse.rows import add_decisions, select_columns

# Applied changes of each domain: kind of frame, table, and the columns by which its rows are ordered.
_APPLIED = {
    Domain.JOBS: (APPLIED_CHANGES, schema.applied_changes, ("setting", "job_id", "mode")),
    Domain.NODES: (APPLIED_NODE_CHANGES, schema.applied_node_changes, ("setting", "node", "mode")),
}
UNKNOWN = -1
"""Number that no cluster has; numbers begin at 1."""
_MICROSECOND = timedelta(microseconds=1)


class SqlLedger:
    """A ``Ledger`` in the database.

    :meth:`helios.warehouse.Warehouse.ledger` makes it. Each domain has its own lease, fencing tokens and applied
    changes. All domains write to one audit log. The first lease makes the cluster known; reading never does.
    """

    def __init__(self, engine: sa.Engine, bulk: Bulk, cluster: str, domain: Domain) -> None:
        self._engine, self._bulk, self._cluster, self._domain = engine, bulk, cluster, domain

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the lease of the writer (see ``Ledger``).

        The last holder of an expired lease that nobody else has taken can renew it, with the same token. An end further
        ahead than the longest lease was written by a wrong clock, and is moved to the latest possible end. A live
        holder renews before that, and after it another one can take the lease.

        Returns
        -------
        int or None
            The fencing token. None if another holder has a lease that has not expired.
        """
        leases = schema.leases
        with writing(self._engine, alone=True) as connection:
            cluster_id = cluster_id_for_loading(connection, name=self._cluster)
            is_domain = _is_domain(cluster_id, self._domain)
            row = connection.execute(sa.select(leases).where(is_domain).with_for_update()).one_or_none()
            now_us = lease_time_us(connection, now)  # read after the row, because locking the row may take time
            lease = {"expires_at": now_us + lasts // _MICROSECOND, "holder": holder}
            if row is None:
                key = {"cluster_id": cluster_id, "domain": self._domain.value}
                connection.execute(sa.insert(leases).values(key | lease | {"token": 1}))
                return 1
            if row.holder not in {None, holder} and now_us < row.expires_at:
                latest_us = now_us + max(lasts, LONGEST_LEASE) // _MICROSECOND
                if row.expires_at > latest_us:
                    connection.execute(sa.update(leases).where(is_domain).values(expires_at=latest_us))
                return None
            token = int(row.token) + int(row.holder != holder)
            connection.execute(sa.update(leases).where(is_domain).values(token=token, **lease))
            return token

    def release(self, *, holder: str) -> None:
        """Give up the lease if ``holder`` has it.

        The next holder gets a larger token.
        """
        with writing(self._engine) as connection:
            is_held = _is_domain(self._known_cluster_id(connection), self._domain) & (schema.leases.c.holder == holder)
            connection.execute(sa.update(schema.leases).where(is_held).values(holder=None))

    def applied_changes(self) -> pd.DataFrame:
        """Return the applied changes, none for an unknown cluster.

        Those of jobs are ordered by setting and job, those of nodes by setting and node.
        """
        kind, table, order = _APPLIED[self._domain]
        with reading(self._engine) as connection:
            query = select_columns(table, self._known_cluster_id(connection), kind.names)
            return frame_of(self._bulk.select(connection, query.order_by(*(table.c[name] for name in order))), kind)

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append ``decisions`` to the audit log and replace the applied changes.

        Both happen in one transaction. With ``applied_changes`` None, the stored ones stay.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one. Then nothing was written.
        """
        kind, table, _ = _APPLIED[self._domain]
        with writing(self._engine) as connection:
            cluster_id = self._known_cluster_id(connection)
            query = sa.select(schema.leases.c.token).where(_is_domain(cluster_id, self._domain))
            current = connection.execute(query.with_for_update()).scalar_one_or_none()
            if current != token:
                raise LeaseLost(
                    f"Another Helios took over this cluster: token {token} is not the current {current or 'one'}.",
                    hint="Nothing was written. See who holds the lease: helios doctor",
                )
            add_decisions(connection, cluster_id, decisions)
            if applied_changes is not None:
                rows = stored_frame(kind, applied_changes, cluster_id)
                connection.execute(sa.delete(table).where(table.c.cluster_id == cluster_id))
                self._bulk.insert(connection, table, rows)

    def _known_cluster_id(self, connection: sa.Connection) -> int:
        """Return the number of the cluster, or one that no cluster has."""
        try:
            return find_cluster_id(connection, self._cluster)
        except NoSuchCluster:
            return UNKNOWN


def read_lease(connection: sa.Connection, cluster_id: int, domain: Domain) -> Mapping[str, Any] | None:
    """Return the lease of a domain, or None.

    Its entries are ``token``, ``holder`` (None after a release) and ``expires_at`` (microseconds).
    """
    row = connection.execute(sa.select(schema.leases).where(_is_domain(cluster_id, domain))).one_or_none()
    return None if row is None else dict(row._mapping)


def lease_time_us(connection: sa.Connection, now: datetime) -> int:
    """Return the current time by the clock of leases, in microseconds.

    It is the clock of the PostgreSQL server. SQLite has no server, so ``now`` is used there.
    """
    if connection.dialect.name != "postgresql":
        return stored_time(now)
    # now() would be wrong, because it is the time at which the transaction began, before it waited for the row.
    return int(
        connection.execute(sa.select(sa.func.extract("epoch", sa.func.clock_timestamp()) * 1_000_000)).scalar_one()
    )


def _is_domain(cluster_id: int, domain: Domain) -> sa.ColumnElement[bool]:
    return (schema.leases.c.cluster_id == cluster_id) & (schema.leases.c.domain == domain.value)
