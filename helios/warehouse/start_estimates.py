"""Estimates of starts of waiting jobs, in the warehouse, and what came of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import sqlalchemy as sa

from helios.model import START_ESTIMATES, TIME
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, find_cluster_id
from helios.warehouse.columns import frame_of, known_numbers, stored_column, stored_frame
from helios.warehouse.engine import reading, writing
from helios.warehouse.rows import between, select_columns

KEPT_EVERY = timedelta(hours=1)
"""Shortest time between two estimates of a job that are kept."""
OUTCOMES = {column.name: column.dtype for column in START_ESTIMATES.columns} | {"started_at": TIME, "ended_at": TIME}
"""Types of estimates with what came of them."""
_RUN = ("cluster_id", "submitted_at", "job_id", "restart")


class StartEstimateStore:
    """Methods of ``Warehouse`` that concern estimates of starts."""

    _engine: sa.Engine
    _bulk: Bulk

    def add_start_estimates(self, cluster: str, estimates: pd.DataFrame) -> int:
        """Store estimates, and return how many were stored.

        Of each job at most one in ``KEPT_EVERY`` is.

        Parameters
        ----------
        estimates : DataFrame
            Columns of ``START_ESTIMATES``, with one row for each run.

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        table = schema.start_estimates
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=cluster)
            rows = stored_frame(START_ESTIMATES, estimates, cluster_id).to_pylist()
            fresh = []
            for row in rows:
                run = {name: row[name] for name in _RUN}
                last = connection.execute(sa.select(sa.func.max(table.c.made_at)).filter_by(**run)).scalar()
                if last is None or row["made_at"] - last >= KEPT_EVERY / timedelta(microseconds=1):
                    fresh.append(row)
            if fresh:
                connection.execute(sa.insert(table), fresh)
        return len(fresh)

    def start_estimates(
        self,
        cluster: str,
        *,
        job_id: str | None = None,
        submitted_at: pd.Series[Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        user: str | None = None,
    ) -> pd.DataFrame:
        """Return estimates with what came of them, in the order in which they were made.

        Parameters
        ----------
        job_id : str, optional
            Only those of jobs of this id.
        submitted_at : Series, optional
            Only those of runs submitted at exactly these times.
        since, until : datetime, optional
            Only those made in [since, until).
        user : str, optional
            Only those of jobs of this user that the history knows.

        Returns
        -------
        DataFrame
            Columns of ``START_ESTIMATES``, ``started_at`` and ``ended_at`` of the run, NaT where the history has none.
        """
        table, jobs = schema.start_estimates, schema.jobs
        same = sa.and_(*(jobs.c[name] == table.c[name] for name in _RUN))
        with reading(self._engine) as connection:
            query = select_columns(table, find_cluster_id(connection, cluster), START_ESTIMATES.names)
            query = query.add_columns(jobs.c.started_at, jobs.c.ended_at).outerjoin(jobs, same)
            query = between(query, table.c.made_at, since, until)
            if job_id is not None:
                query = query.where(table.c.job_id == job_id)
            if submitted_at is not None:
                query = query.where(table.c.submitted_at.in_(stored_column(submitted_at, TIME).to_pylist()))
            if user is not None:
                query = query.where(jobs.c.user.in_(known_numbers(connection, [user])))
            query = query.order_by(table.c.made_at, table.c.submitted_at, table.c.job_id)
            return frame_of(self._bulk.select(connection, query), OUTCOMES)
