"""Jobs in the warehouse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from numpy.typing import NDArray

from helios import model
from helios.errors import FrameInvalid
from helios.metrics.node_usage import NEVER_S
from helios.model import columns_of_id
from helios.warehouse import job_sums, schema
from helios.warehouse.bulk import arrow_schema
from helios.warehouse.clusters import find_cluster_id
from helios.warehouse.columns import StringTable, frame_of, in_order, known_numbers, stored_time, text_digest
from helios.warehouse.engine import reading, writing
from helios.warehouse.rows import ORDER, RowStore, between, select_columns

ROWS_AT_ONCE = 5_000
"""Rows of a list of jobs that are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Jobs that a list has.

    Attributes
    ----------
    since, until : datetime
        They were submitted in [since, until).
    only : mapping of str to collection of str
        Texts of category columns: a job must have one of them in each column. An empty collection holds all.
    name_part : str
        Text within the job's name, in any case. Empty for all.
    """

    since: datetime
    until: datetime
    only: Mapping[str, Collection[str]] = field(default_factory=dict)
    name_part: str = ""


class JobStore(RowStore):
    """Methods of ``Warehouse`` that concern jobs."""

    def jobs(
        self,
        cluster: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        columns: Sequence[str] | None = None,
        last: int | None = None,
        unended_at: datetime | None = None,
        only: Mapping[str, Collection[str]] | None = None,
    ) -> pd.DataFrame:
        """Return a cluster's jobs submitted in [since, until), in submission order.

        Parameters
        ----------
        cluster : str
            Name of the cluster.
        since, until : datetime, optional
            Bounds of the submit time; None means no bound.
        columns : sequence of str, optional
            Columns of ``JOBS`` to return, by default all; each has its declared type.
        last : int, optional
            Only this number of the jobs in [since, until) that ``only`` holds, those submitted last, and all others
            with the submit time of the first of them.
        unended_at : datetime, optional
            Only jobs that had not ended before this time, or were submitted since. Jobs submitted before ``since`` are
            left out too.
        only : mapping of str to collection of str, optional
            Texts of category columns: a job must have one of them in each column. An empty collection holds all.

        Raises
        ------
        FrameInvalid
            A column is not one of ``JOBS``.
        """
        names = list(dict.fromkeys(model.JOBS.names if columns is None else columns))
        if unknown := [name for name in names if name not in model.JOBS.by_name]:
            raise FrameInvalid(f"a jobs frame has no column {', '.join(unknown)}")
        types = {name: model.JOBS.by_name[name].dtype for name in names}
        submitted_at = schema.jobs.c.submitted_at
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            query = sa.select(*(schema.jobs.c[name] for name in dict.fromkeys([*names, *ORDER])))
            query = between(query, submitted_at, since, until)
            for name, texts in (only or {}).items():
                if texts:
                    query = query.where(schema.jobs.c[name].in_(known_numbers(connection, texts)))
            if last is not None:
                newest = query.with_only_columns(submitted_at).where(schema.jobs.c.cluster_id == cluster_id)
                first = newest.order_by(submitted_at.desc()).offset(max(last - 1, 0)).limit(1).scalar_subquery()
                query = query.where(submitted_at >= sa.func.coalesce(first, 0))
            # No variable has the table, so that frame_of can free its columns.
            conditions = [schema.jobs.c.cluster_id == cluster_id]
            if unended_at is not None:
                conditions = _unended_jobs(cluster_id, stored_time(unended_at))
            return frame_of(
                in_order(
                    pa.concat_tables(self._bulk.select(connection, query.where(condition)) for condition in conditions)
                ).select(names),
                types,
                StringTable(connection, self._bulk),
            )

    def job_times(self, cluster: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return submissions and ends of all jobs, in no order.

        They are in s since the epoch, rounded down. An end that is not known is ``NEVER_S``. It takes half of the time
        of :meth:`jobs`.
        """
        with reading(self._engine) as connection:
            query = select_columns(schema.jobs, find_cluster_id(connection, cluster), ["submitted_at", "ended_at"])
            table = self._bulk.select(connection, query)
        ended_us, known = pc.fill_null(table["ended_at"], 0).to_numpy(), table["ended_at"].is_valid().to_numpy()
        ended_s = np.where(known, ended_us // schema.SECOND_US, NEVER_S)
        return table["submitted_at"].to_numpy() // schema.SECOND_US, ended_s

    def count_jobs(self, cluster: str, wanted: JobFilter, *, most: int | None = None) -> int:
        """Return the number of jobs of a list, counted up to ``most``."""
        with reading(self._engine) as connection:
            query = _filtered(connection, find_cluster_id(connection, cluster), wanted, ["submitted_at"]).limit(most)
            return int(connection.execute(sa.select(sa.func.count()).select_from(query.subquery())).scalar_one())

    def list_jobs(
        self, cluster: str, wanted: JobFilter, *, columns: Sequence[str], sort: str, first: int, most: int
    ) -> Iterator[pd.DataFrame]:
        """Yield the jobs of a list in parts, ordered by the database.

        Parameters
        ----------
        columns : sequence of str
            Columns of ``JOBS``.
        sort : str
            One of these, behind a minus for the largest first. What is unknown comes last, and equal ones come the last
            submitted first.
        first, most : int
            Number of jobs before the first one that is wanted, and most jobs that are.
        """
        types = {name: model.JOBS.by_name[name].dtype for name in columns}
        by = schema.jobs.c[sort.removeprefix("-")]
        newest = [schema.jobs.c[name].desc() for name in ORDER]
        order: list[sa.ColumnElement[Any]] = [by.desc() if sort.startswith("-") else by.asc()]
        if by.name not in schema.NEVER_MISSING:  # else the key has this order already
            order.insert(0, by.is_(None))
        elif not sort.startswith("-"):
            newest = [schema.jobs.c[name].asc() for name in ORDER]
        with reading(self._engine) as connection:
            query = _filtered(connection, find_cluster_id(connection, cluster), wanted, columns)
            query = query.order_by(*order, *(each for each in newest if each.element is not by))
            rows = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query.offset(first).limit(most))
            for part in rows.partitions():
                arrays = [
                    pa.array(values, kind.type)
                    for values, kind in zip(zip(*part, strict=True), arrow_schema(query), strict=True)
                ]
                table = pa.table(arrays, names=list(columns))
                with reading(self._engine) as other:  # the first connection is in the midst of its rows
                    yield frame_of(table, types, StringTable(other, self._bulk))

    def jobs_named(self, cluster: str, name: str, *, since: datetime | None = None) -> pd.DataFrame:
        """Return the jobs with an id as people write it, in submission order.

        A task of a job array is written ``123_7``, and a part of a heterogeneous job ``123+0``. Only jobs submitted at
        or after ``since`` are returned. Without it every job is looked at, which takes seconds for millions.
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            query = select_columns(schema.jobs, cluster_id, ["submitted_at"])
            query = between(query, schema.jobs.c.submitted_at, since, None).where(_has_name(name))
            frame = self._jobs_at(connection, cluster_id, query)
        parts = columns_of_id(name)
        is_part = np.all([frame[column] == value for column, value in parts.items()], axis=0) & bool(parts)
        named: pd.DataFrame = frame[(frame["job_id"] == name) | is_part].reset_index(drop=True)
        return named

    def requeued_runs(self, cluster: str, job_id: str) -> pd.DataFrame:
        """Return the runs with an id that follow another one or are followed.

        They are in submission order. An index makes this fast, however long the history is. The id may have been used
        again.
        """
        table = schema.requeues
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            query = select_columns(table, cluster_id, ["submitted_at"]).where(table.c.job_id == job_id)
            frame = self._jobs_at(connection, cluster_id, query)
        return frame[frame["job_id"] == job_id].reset_index(drop=True)

    def _jobs_at(self, connection: sa.Connection, cluster_id: int, query: sa.Select[Any]) -> pd.DataFrame:
        """Return the jobs with the submit times that a query gives.

        They are read by these, since ``Bulk.select`` takes only numbers.
        """
        times = list(connection.execute(query).scalars())
        jobs = select_columns(schema.jobs, cluster_id, model.JOBS.names)
        table = self._bulk.select(connection, jobs.where(schema.jobs.c.submitted_at.in_(times)))
        return frame_of(in_order(table), model.JOBS, StringTable(connection, self._bulk))

    def has_job(self, cluster: str, name: str, *, user: str, since: datetime | None) -> bool:
        """Return whether a user has a job of this id.

        It takes as long for an id of nobody, of another user and of this one: all jobs since ``since`` are looked at.
        """
        jobs, texts = schema.jobs.c, schema.names.c
        with reading(self._engine) as connection:
            number = sa.select(texts.name_id).where(texts.digest == text_digest(user)).scalar_subquery()
            query = sa.select(sa.func.count()).where(
                jobs.cluster_id == find_cluster_id(connection, cluster),
                sa.true() if since is None else jobs.submitted_at >= stored_time(since),
                jobs.user == number,
                _has_name(name),
            )
            return bool(connection.execute(query).scalar_one())

    def kinds_of_name(self, cluster: str, name: str) -> set[str]:
        """Return which of user, account, partition and node have exactly this name."""
        texts, found = schema.names.c, set()
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            number = connection.execute(sa.select(texts.name_id).where(texts.digest == text_digest(name))).scalar()
            for kind in ("user", "account", "partition") if number is not None else ():
                of_name = sa.select(schema.jobs.c.job_id).where(
                    schema.jobs.c.cluster_id == cluster_id, schema.jobs.c[kind] == number
                )
                if connection.execute(of_name.limit(1)).first() is not None:
                    found.add(kind)
            of_node = sa.select(schema.nodes.c.name).where(
                schema.nodes.c.cluster_id == cluster_id, schema.nodes.c.name == name
            )
            return found | ({"node"} if connection.execute(of_node.limit(1)).first() is not None else set())

    def names_of_jobs(self, cluster: str, kind: str, *, user: str = "") -> set[str]:
        """Return the names of all users, accounts or partitions that jobs have.

        Parameters
        ----------
        kind : str
            ``user``, ``account`` or ``partition``.
        user : str
            Only of the jobs of this user. Empty for all.
        """
        sums, jobs = schema.job_sums.c, schema.jobs.c
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            owners = known_numbers(connection, [user]) if user else []
            level = job_sums.LEVELS.index(("month", job_sums.DIMENSIONS))
            of_sums = sa.select(sums[kind]).where(sums.cluster_id == cluster_id, sums.level == level)
            # The sums lack these, of which there are few.
            in_cluster = schema.in_cluster_by_index(cluster_id)
            of_jobs = [sa.select(jobs[kind]).where(in_cluster, few) for few in (schema.IS_UNENDED, schema.IS_ODD)]
            queries = [of_sums.where(sums.user.in_(owners)) if user else of_sums]
            queries += [query.where(jobs.user.in_(owners)) if user else query for query in of_jobs]
            numbers = {number for query in queries for number in connection.execute(query.distinct()).scalars()}
            known = [number for number in numbers if number]
            return set(StringTable(connection, self._bulk).texts(known).values())

    def names_gpus(self, cluster: str) -> bool:
        """Return whether any job of a cluster holds a GPU."""
        jobs = schema.jobs.c
        with reading(self._engine) as connection:
            held = sa.select(jobs.gpus).where(jobs.cluster_id == find_cluster_id(connection, cluster), jobs.gpus > 0)
            return connection.execute(held.limit(1)).first() is not None

    def settle_unnamed_gpus(self, cluster: str) -> int:
        """Store that jobs whose lists name no GPU hold none.

        It is for a cluster of which other jobs turned out to name theirs. Returns how many jobs these are.
        """
        jobs, texts = schema.jobs.c, schema.names.c
        shares = sa.or_(texts.text.like("%gres/shard%"), texts.text.like("%gres/mps%"))
        lists = (jobs.tres_requested, jobs.tres_allocated)
        with writing(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            with_shares = connection.execute(sa.select(texts.name_id).where(shares)).scalars().all()
            unnamed = sa.and_(
                jobs.cluster_id == cluster_id,
                jobs.gpus.is_(None),
                sa.or_(*(column.is_not(None) for column in lists)),
                *(sa.func.coalesce(column, -1).not_in(with_shares) for column in lists),
            )
            rows = self._bulk.select(connection, sa.select(*(jobs[name] for name in job_sums.COLUMNS)).where(unnamed))
            if not len(rows):
                return 0
            sums = job_sums.SumChanges(connection, self._bulk, cluster_id=cluster_id)
            sums.add(rows, sign=-1)
            place = rows.column_names.index("gpus")
            sums.add(rows.set_column(place, "gpus", pa.array(np.zeros(len(rows)))))
            sums.write()
            return int(connection.execute(sa.update(schema.jobs).values(gpus=0.0).where(unnamed)).rowcount)

    def ended_jobs(self, cluster: str, *, since: datetime) -> int:
        """Return the number of finished jobs submitted at or after ``since``."""
        jobs = schema.jobs.c
        with reading(self._engine) as connection:
            query = sa.select(sa.func.count(jobs.ended_at)).where(
                jobs.cluster_id == find_cluster_id(connection, cluster)
            )
            return int(connection.execute(query.where(jobs.submitted_at >= stored_time(since))).scalar_one())


def _unended_jobs(cluster_id: int, moment: int) -> list[sa.ColumnElement[bool]]:
    """Return conditions for the jobs of a cluster that had not ended at a moment.

    Those submitted since are among them. Each job meets at most one condition. Those submitted more than a day before
    are found by indexes.
    """
    submitted_at, ended_at = schema.jobs.c.submitted_at, schema.jobs.c.ended_at
    is_recent = submitted_at >= moment - schema.DAY_US
    # A recorded end may be before the submission.
    reaches = ended_at.is_(None) | (ended_at >= moment) | (submitted_at >= moment)
    older = ~is_recent & schema.in_cluster_by_index(cluster_id)
    return [
        (schema.jobs.c.cluster_id == cluster_id) & is_recent & reaches,
        older & schema.IS_UNENDED,
        older & schema.IS_LONG & (ended_at >= moment),
    ]


def _filtered(connection: sa.Connection, cluster_id: int, wanted: JobFilter, columns: Sequence[str]) -> sa.Select[Any]:
    """Return the query of the jobs of a list."""
    query = between(
        select_columns(schema.jobs, cluster_id, columns), schema.jobs.c.submitted_at, wanted.since, wanted.until
    )
    for name, texts in wanted.only.items():
        if texts:
            query = query.where(schema.jobs.c[name].in_(known_numbers(connection, texts)))
    if wanted.name_part:
        query = query.where(schema.jobs.c.name.icontains(wanted.name_part, autoescape=True))
    return query


def _has_name(name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a job has an id as people write it."""
    parts = [schema.jobs.c[column] == value for column, value in columns_of_id(name).items()]
    return sa.or_(schema.jobs.c.job_id == name, sa.and_(*parts) if parts else sa.false())
