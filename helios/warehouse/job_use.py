"""What jobs used, in the warehouse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import sqlalchemy as sa

from helios.model import EARLY, GPU_USE, JOB_USE, JOBS, UseSource
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, find_cluster_id
from helios.warehouse.columns import (
    StringTable,
    frame_of,
    known_numbers,
    stored_column,
    stored_frame,
    stored_time,
)
from helios.warehouse.engine import reading, writing
from helios.warehouse.rows import between, select_columns

_RUN = ("cluster_id", "submitted_at", "job_id", "restart")
RUN_COLUMNS = ("submitted_at", "job_id", "restart", "started_at", "ended_at", "gpus", "node_list")


class JobUseStore:
    """Methods of ``Warehouse`` that concern what jobs used."""

    _engine: sa.Engine
    _bulk: Bulk

    def add_job_use(self, cluster: str, jobs: pd.DataFrame, gpus: pd.DataFrame) -> None:
        """Store what runs of known jobs used.

        It stands in place of what the same source said of them before.

        Parameters
        ----------
        jobs, gpus : DataFrame
            Columns of ``JOB_USE`` and of ``GPU_USE``, with one row for each key.

        Raises
        ------
        FrameInvalid
            A column is missing or of another type.
        """
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=cluster)
            self._bulk.replace(connection, schema.job_use, stored_frame(JOB_USE, jobs, cluster_id))
            self._bulk.replace(connection, schema.gpu_use, stored_frame(GPU_USE, gpus, cluster_id))

    def runs_of(self, cluster: str, jobs: pd.DataFrame) -> pd.DataFrame:
        """Return the runs of jobs.

        Parameters
        ----------
        jobs : DataFrame
            ``submitted_at`` and ``job_id``; jobs that are not stored have no runs.

        Returns
        -------
        DataFrame
            ``submitted_at``, ``job_id``, ``restart`` and ``started_at`` of ``JOBS``.
        """
        types = {name: JOBS.by_name[name].dtype for name in ("submitted_at", "job_id", "restart", "started_at")}
        wanted = jobs.drop_duplicates(["submitted_at", "job_id"])
        with writing(self._engine) as connection:  # because of the temporary table
            rows = {"cluster_id": np.full(len(wanted), find_cluster_id(connection, cluster))}
            rows |= {name: stored_column(wanted[name], types[name]) for name in ("submitted_at", "job_id")}
            with self._bulk.staged(connection, pa.table(rows)) as incoming:
                same = (schema.jobs.c[name] == incoming.c[name] for name in rows)
                # SQLite would scan the jobs of the cluster for an inner join.
                joined = sa.select(*(schema.jobs.c[name] for name in types)).join_from(
                    incoming, schema.jobs, sa.and_(*same), isouter=True
                )
                found = self._bulk.select(connection, joined)
        return frame_of(found.filter(found["job_id"].is_valid()), types)

    def job_use(
        self,
        cluster: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        only: Mapping[str, Collection[str]] | None = None,
        by_gpu: bool = False,
        early: bool = False,
    ) -> pd.DataFrame:
        """Return what runs submitted in [since, until) used.

        Parameters
        ----------
        only : mapping of str to collection of str, optional
            Texts of category columns of the jobs, as in :meth:`JobStore.jobs`.
        by_gpu : bool
            Whether there is a row for each GPU.
        early : bool
            Only what they used in their first 15 minutes, which is left out otherwise.

        Returns
        -------
        DataFrame
            Columns of ``JOB_USE``, with a row for each run and source, or of ``GPU_USE``, in the order of submission.
        """
        table, kind = (schema.gpu_use, GPU_USE) if by_gpu else (schema.job_use, JOB_USE)
        with reading(self._engine) as connection:
            query = select_columns(table, find_cluster_id(connection, cluster), kind.names)
            query = between(query, table.c.submitted_at, since, until)
            query = query.where((table.c.source == EARLY) if early else (table.c.source != EARLY))
            chosen = {name: known_numbers(connection, texts) for name, texts in (only or {}).items() if texts}
            if chosen:
                jobs = schema.jobs.c
                query = query.join(schema.jobs, sa.and_(*(jobs[name] == table.c[name] for name in _RUN)))
                query = query.where(*(jobs[name].in_(numbers) for name, numbers in chosen.items()))
            query = query.order_by(*(column for column in table.primary_key if column.name != "cluster_id"))
            return frame_of(self._bulk.select(connection, query), kind)

    def runs_without_use(
        self, cluster: str, source: UseSource, *, since: datetime, until: datetime, before: datetime, most: int
    ) -> pd.DataFrame:
        """Return ended runs of which a source has said nothing.

        Parameters
        ----------
        since, until : datetime
            They ended in [since, until).
        before : datetime
            They were submitted before this time.
        most : int
            Number of runs, those submitted last.

        Returns
        -------
        DataFrame
            ``RUN_COLUMNS`` of ``JOBS``, the last submitted first.
        """
        jobs, use = schema.jobs.c, schema.job_use.c
        said = sa.and_(*(jobs[name] == use[name] for name in _RUN), use.source == sa.literal_column(f"'{source}'"))
        with reading(self._engine) as connection:
            query = select_columns(schema.jobs, find_cluster_id(connection, cluster), RUN_COLUMNS)
            query = between(query, jobs.submitted_at, None, before).where(
                jobs.ended_at >= stored_time(since),
                jobs.ended_at < stored_time(until),
                jobs.started_at < jobs.ended_at,
                ~sa.exists().where(said),
            )
            query = query.order_by(*(jobs[name].desc() for name in _RUN)).limit(most)
            types = {name: JOBS.by_name[name].dtype for name in RUN_COLUMNS}
            return frame_of(self._bulk.select(connection, query), types, StringTable(connection, self._bulk))
