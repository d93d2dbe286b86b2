"""The ledger of one office of a cluster in the warehouse: control's memory and audit."""

from __future__ import annotations

from datetime import datetime, timedelta

import pandas as pd
from sqlalchemy import Engine

from helios.errors import NoSuchCluster
from helios.ports import Office
from helios.warehouse import acting, records
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, cluster_id_of
from helios.warehouse.columns import frame_of
from helios.warehouse.engine import reading, writing


class SqlLedger:
    """A :class:`helios.ports.Ledger` in the warehouse; made by :meth:`helios.warehouse.Warehouse.ledger`.

    Each office has its own lease, tokens and standings; the audit is one.
    """

    def __init__(self, engine: Engine, bulk: Bulk, cluster: str, office: Office) -> None:
        self._engine, self._bulk, self._office = engine, bulk, office
        self._cluster_id = _cluster_id(engine, cluster)

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the one writer's lease, as :class:`helios.ports.Ledger` says."""
        with writing(self._engine, alone=True) as connection:
            return acting.acquire(connection, self._cluster_id, self._office, holder=holder, now=now, lasts=lasts)

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it."""
        with writing(self._engine) as connection:
            acting.release(connection, self._cluster_id, self._office, holder=holder)

    def standings(self) -> pd.DataFrame:
        """Return what stands changed: columns of ``STANDINGS`` by lever and job, or of ``NODE_STANDINGS`` by node."""
        shelf = acting.SHELVES[self._office]
        types = {column.name: column.dtype for column in shelf.kind.columns}
        with reading(self._engine) as connection:
            query = records.of_cluster(shelf.table, self._cluster_id, list(types))
            ordered = query.order_by(*(shelf.table.c[name] for name in shelf.order))
            return frame_of(self._bulk.select(connection, ordered), types)

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:
        """Append ``decisions`` and, unless None, replace what stands changed, in one transaction.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one; nothing was written.
        """
        with writing(self._engine) as connection:
            acting.refuse_stale(connection, self._cluster_id, self._office, token=token)
            records.add_decisions(connection, self._cluster_id, decisions)
            if standings is not None:
                acting.replace_standings(connection, self._bulk, self._cluster_id, self._office, standings)


def _cluster_id(engine: Engine, cluster: str) -> int:
    """Return the number of a cluster, making it if it is new: who only reads a known one need not be able to write."""
    try:
        with reading(engine) as connection:
            return cluster_id_of(connection, cluster)
    except NoSuchCluster:
        with writing(engine) as connection:
            return cluster_id_for_loading(connection, name=cluster, timezone=None)
