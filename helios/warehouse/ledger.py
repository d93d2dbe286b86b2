"""The ledger of one cluster in the warehouse: control's memory and audit."""

from __future__ import annotations

from datetime import datetime, timedelta

import pandas as pd
from sqlalchemy import Engine

from helios.warehouse import acting, records, schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading
from helios.warehouse.columns import frame_of
from helios.warehouse.engine import reading, writing


class SqlLedger:
    """A :class:`helios.ports.Ledger` in the warehouse; made by :meth:`helios.warehouse.Warehouse.ledger`."""

    def __init__(self, engine: Engine, bulk: Bulk, cluster: str) -> None:
        self._engine, self._bulk = engine, bulk
        with writing(engine) as connection:
            self._cluster_id = cluster_id_for_loading(connection, name=cluster, timezone=None)

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the one writer's lease, as :class:`helios.ports.Ledger` says."""
        with writing(self._engine, alone=True) as connection:
            return acting.acquire(connection, self._cluster_id, holder=holder, now=now, lasts=lasts)

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it."""
        with writing(self._engine) as connection:
            acting.release(connection, self._cluster_id, holder=holder)

    def standings(self) -> pd.DataFrame:
        """Return what stands changed, columns of ``STANDINGS``, by lever and job."""
        table = schema.standings
        with reading(self._engine) as connection:
            query = records.of_cluster(table, self._cluster_id, list(acting.STANDING_TYPES))
            ordered = query.order_by(table.c.lever, table.c.job_id, table.c.mode)
            return frame_of(self._bulk.select(connection, ordered), acting.STANDING_TYPES)

    def record(self, *, token: int, decisions: pd.DataFrame, standings: pd.DataFrame | None) -> None:
        """Append ``decisions`` and, unless None, replace what stands changed, in one transaction.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one; nothing was written.
        """
        with writing(self._engine) as connection:
            acting.refuse_stale(connection, self._cluster_id, token=token)
            records.add_decisions(connection, self._cluster_id, decisions)
            if standings is not None:
                acting.replace_standings(connection, self._bulk, self._cluster_id, standings)
