"""Warehouse of all data of Helios, the interface for other packages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import sqlalchemy as sa

from helios import model
from helios.choices import Domain
from helios.errors import NothingUnderstood, SchemaOutdated, UsageError
from helios.model import TIME, Batch
from helios.private_files import require_cluster_name
from helios.warehouse import migrate, old_readings, schema
from helios.warehouse.bulk import CLUSTERS, Bulk, arrow_schema
from helios.warehouse.clusters import cluster_id_for_loading, cluster_timezone, find_cluster_id, known_clusters
from helios.warehouse.columns import frame_of, stored_column, stored_time
from helios.warehouse.control_state import SqlLedger, lease_time_us, read_lease
from helios.warehouse.deletion import Horizon, count_rows, forget, remove_cluster
from helios.warehouse.engine import (
    engine_for,
    grant_privileges,
    leave_engine,
    reading,
    redact_url,
    sqlite_file,
    use_engine,
    with_timeout,
    writing,
)
from helios.warehouse.job_store import JobStore
from helios.warehouse.job_sums import rebuild, wrong_days
from helios.warehouse.job_use import JobUseStore
from helios.warehouse.loads import LoadedFile, LoadReport, load, reject_counts
from helios.warehouse.models import ModelStore, incumbent_id
from helios.warehouse.old_readings import OldRows
from helios.warehouse.postgres_bulk import PostgresBulk
from helios.warehouse.rows import (
    CLUSTER_REJECTS,
    LOADS,
    ORDER,
    PREDICTION_TYPES,
    add_decisions,
    add_predictions,
    decision_columns,
    select_columns,
)
from helios.warehouse.sqlite_bulk import SqliteBulk
from helios.warehouse.start_estimates import StartEstimateStore
from helios.warehouse.trials import TrialStore
from helios.warehouse.use import Use, UseQuery, count_jobs, read_use

SUMS_SINCE = "0016"
"""Migration that adds the sums over jobs, which are then made from the jobs."""
_PREDICTIONS_ORDER = (*ORDER, "made_at")
_TIMES_PER_QUERY = 2_000


class Warehouse(JobStore, JobUseStore, ModelStore, StartEstimateStore, TrialStore):
    """A SQLite or PostgreSQL database with all data of Helios.

    :meth:`open` creates it. It is a context manager that closes itself. Every method that writes is one transaction,
    unless its documentation says otherwise.

    Every method raises :class:`~helios.errors.WarehouseUnavailable` if the database fails. Methods that read data of a
    cluster raise :class:`~helios.errors.NoSuchCluster` if it is not known. Methods that add data of a cluster make the
    cluster if it is new.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        use_engine(engine, self)
        self._bulk: Bulk = SqliteBulk() if engine.dialect.name == "sqlite" else PostgresBulk()

    @classmethod
    def open(cls, url: str, *, create: bool = True, waits_s: int | None = None) -> Warehouse:
        """Open the database at ``url``.

        Parameters
        ----------
        url : str
            ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``.
        create : bool
            Whether to make the schema in an empty or new database, and to refuse another schema. With False the
            database is opened as it is, to read its revision or to upgrade it.
        waits_s : int, optional
            Longest wait for another writer of a SQLite database, s. By default ``BUSY_TIMEOUT_S``.

        Raises
        ------
        SchemaOutdated
            The schema is older or newer than this version of Helios expects.
        WarehouseUnavailable
            The URL is wrong, the driver missing, or the database cannot be opened.
        """
        warehouse = cls(engine_for(url if waits_s is None else with_timeout(url, waits_s)))
        try:
            if create:
                warehouse._create_or_check_schema()
        except BaseException:
            warehouse.close()
            raise
        return warehouse

    @staticmethod
    def exists(url: str) -> bool:
        """Return whether there is a database at ``url``.

        Always True for PostgreSQL, which would have to be opened to find out, and for SQLite in memory.

        Raises
        ------
        WarehouseUnavailable
            The URL is wrong, or the driver missing.
        """
        file = sqlite_file(url)
        return file is None or file.exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, unless another warehouse of this process uses them."""
        leave_engine(self._engine, self)

    @property
    def url(self) -> str:
        """Address of the database, without a password."""
        return redact_url(self._engine.url)

    def revision(self) -> str | None:
        """Return the revision of the schema, or None."""
        return migrate.revision(self._engine)

    def head(self) -> str:
        """Return the revision that this version of Helios expects."""
        return migrate.head()

    def try_to_write(self) -> None:
        """Raise ``WarehouseUnavailable`` unless the database is writable.

        Nothing is changed.
        """
        with writing(self._engine) as connection:
            connection.execute(sa.delete(schema.memories).where(schema.memories.c.name.is_(None)))  # no such row

    def is_known(self, revision: str) -> bool:
        """Return whether this version of Helios knows a revision, which may be newer."""
        return migrate.is_known(revision)

    def grant(self, *, jobs: str, nodes: str | None, reader: str | None, **rows: Collection[str]) -> None:
        """Give roles of a PostgreSQL database the privileges that they need.

        The arguments and errors are those of :func:`helios.warehouse.engine.grant_privileges`.
        """
        grant_privileges(self._engine, jobs=jobs, nodes=nodes, reader=reader, **rows)

    def upgrade(self, *, sums: bool = False, progress: Callable[[float], None] | None = None) -> list[str]:
        """Bring the schema to ``head``, in one transaction.

        Parameters
        ----------
        sums : bool
            Whether the sums over jobs are made anew in any case.
        progress : callable, optional
            Called with the share of each history whose jobs were summed.

        Returns
        -------
        list of str
            The revisions that were applied, oldest first.
        """

        def make_sums(connection: sa.Connection, applied: list[str]) -> None:
            if sums or SUMS_SINCE in applied:
                for cluster_id in connection.execute(sa.select(schema.clusters.c.cluster_id)).scalars().all():
                    rebuild(connection, self._bulk, cluster_id, progress=progress)

        return migrate.upgrade(self._engine, finish=make_sums)

    def load(
        self,
        batches: Iterable[Batch],
        *,
        cluster: str,
        path: str,
        sha256: str,
        format: str,
        timezone: str | None,
        live: bool = False,
        again: bool = False,
    ) -> LoadReport:
        """Store a trace in one transaction.

        If ``batches`` raises, the database stays as it was. Only the rejects of a file are kept of which no row was
        understood.

        A job is identified by cluster, submit time, id and restart. The row of a known job replaces the stored one
        unless it knows less of the run (see :mod:`helios.warehouse.revisions`). Values that it lacks stay as they were
        stored. The notes of the report count corrected jobs that had ended, with examples.

        Parameters
        ----------
        batches : iterable of Batch
            The trace; not read if the same content was loaded into this cluster before.
        cluster : str
            Name of the cluster; made if it is new.
        live : bool
            Whether the rows come from the live accounting. Then they replace all others, no file replaces them, and a
            value that they lack is removed.
        again : bool
            Whether to load content that was loaded before once more, and to list what changes.
        path, sha256, format, timezone
            Recorded with the load; see :class:`~helios.warehouse.loads.LoadedFile`.

        Raises
        ------
        FrameInvalid
            A batch lacks a declared column, or a job its id or submit time.
        NothingUnderstood
            Not one row was understood.
        """
        trace = LoadedFile(
            cluster=cluster, path=path, sha256=sha256, format=format, timezone=timezone, live=live, again=again
        )
        with writing(self._engine, alone=True) as connection:
            report, failure = load(connection, self._bulk, batches, trace)
        if failure is not None:
            hint = f"{failure.hint} All rows are kept: helios trace describe --cluster {cluster}"
            raise NothingUnderstood(failure.message, hint=hint) from failure
        return report

    def clusters(self, *, counts: bool = False) -> pd.DataFrame:
        """Return all clusters, ordered by name.

        Columns: ``name``, ``timezone`` (None where unknown), ``first_submitted_at``, ``last_submitted_at``; with
        ``counts`` also ``jobs`` and ``gpu_jobs``.
        """
        with reading(self._engine) as connection:
            table = self._bulk.select(connection, known_clusters())
            found = frame_of(table, {name: CLUSTERS[name] for name in table.column_names})
            numbers = [
                count_jobs(connection, self._bulk, cluster_id=find_cluster_id(connection, name), zone=zone or "UTC")
                for name, zone in (zip(found["name"], found["timezone"], strict=True) if counts else ())
            ]
        if counts:
            for place, name in enumerate(("jobs", "gpu_jobs")):
                values = np.array([number[place] for number in numbers], dtype=CLUSTERS[name])
                found.insert(2 + place, name, values)
        return found

    def contents(self, cluster: str) -> dict[str, int]:
        """Return the number of a cluster's rows in each table, without empty ones.

        Raises
        ------
        NoSuchCluster
            There is no such cluster.
        """
        with reading(self._engine) as connection:
            return count_rows(connection, find_cluster_id(connection, cluster))

    def remove_cluster(self, cluster: str) -> None:
        """Delete a cluster with all its rows, in one transaction.

        Raises
        ------
        NoSuchCluster
            There is no such cluster.
        UsageError
            A Helios acts on it. What that has applied could not be reverted any more.
        """
        with writing(self._engine, alone=True) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            _refuse_if_in_use(connection, cluster, cluster_id)
            remove_cluster(connection, cluster_id)

    def rename_cluster(self, cluster: str, name: str) -> None:
        """Give a cluster another name.

        Raises
        ------
        NoSuchCluster
            There is no such cluster.
        UsageError
            The new name is none, or another cluster's. Or the accounting is read under the old one, which would make
            it again.
        """
        require_cluster_name(name)
        clusters = schema.clusters
        with writing(self._engine, alone=True) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            _refuse_if_in_use(connection, cluster, cluster_id)
            if connection.execute(sa.select(schema.coverage.c.source).filter_by(cluster_id=cluster_id)).first():
                raise UsageError(
                    f"{cluster} is the name that Slurm gives the cluster, and its accounting is read under it.",
                    hint="Rename only what was loaded from files.",
                )
            if connection.execute(sa.select(clusters.c.cluster_id).filter_by(name=name)).first():
                raise UsageError(f"There is a cluster {name} already.", hint="Choose another name: helios trace list")
            connection.execute(sa.update(clusters).filter_by(cluster_id=cluster_id).values(name=name))

    def use(self, cluster: str, query: UseQuery) -> list[Use]:
        """Return the use of a cluster by period and group, for each way to group.

        Whole days come from the kept sums.
        """
        with reading(self._engine) as connection:
            cluster_id, zone = find_cluster_id(connection, cluster), cluster_timezone(connection, cluster) or "UTC"
            return read_use(connection, self._bulk, cluster_id=cluster_id, zone=zone, query=query)

    def wrong_days(self, cluster: str, *, days: int) -> tuple[list[datetime], list[datetime]]:
        """Return random days, and those whose kept sums are wrong."""
        with reading(self._engine) as connection:
            found = wrong_days(connection, self._bulk, find_cluster_id(connection, cluster), days=days)
        looked_at, wrong = ([datetime.fromtimestamp(begin / 1e6, UTC) for begin in begins] for begins in found)
        return looked_at, wrong

    def edition(self, cluster: str) -> tuple[int, str]:
        """Return a value that changes with each load and promotion.

        It is the number of the last load (0 without one) and the id of the incumbent model (empty without one).
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
            newest = sa.select(sa.func.max(schema.loads.c.load_id)).where(schema.loads.c.cluster_id == cluster_id)
            return int(connection.execute(newest).scalar() or 0), incumbent_id(connection, cluster_id)

    def loads(self, cluster: str) -> pd.DataFrame:
        """Return the loads of a cluster, oldest first.

        The watermark of a load is the last submission in it.
        """
        return self._read(cluster, schema.loads, LOADS, "load_id")

    def rejects(self, cluster: str, *, limit: int | None = None) -> pd.DataFrame:
        """Return the refused rows of a cluster, at most the first ``limit``.

        Columns: those of ``REJECTS``, and the ``path`` of the file.
        """
        rejects, loads = schema.rejects, schema.loads
        query = sa.select(rejects.c.line, rejects.c.reason, rejects.c.text, loads.c.path).join_from(rejects, loads)
        query = query.order_by(rejects.c.load_id, rejects.c.line, rejects.c.reject_id).limit(limit)
        with reading(self._engine) as connection:
            query = query.where(loads.c.cluster_id == find_cluster_id(connection, cluster))
            return frame_of(self._bulk.select(connection, query), CLUSTER_REJECTS)

    def reject_counts(self, cluster: str) -> pd.DataFrame:
        """Return ``reason`` and ``rows`` over all loads of a cluster.

        The most frequent reason comes first.
        """
        with reading(self._engine) as connection:
            query = reject_counts(schema.loads.c.cluster_id == find_cluster_id(connection, cluster))
            return frame_of(self._bulk.select(connection, query), {"reason": "str", "rows": "int64"})

    def add_nodes(self, cluster: str, nodes: pd.DataFrame) -> None:
        """Store a ``NODES`` frame in place of the same nodes."""
        self._replace(cluster, schema.nodes, model.NODES, nodes, never_missing=("name",), key=("name", "partition"))

    def nodes(self, cluster: str) -> pd.DataFrame:
        """Return a cluster's nodes as a ``NODES`` frame, ordered by name and partition."""
        nodes = self._read(cluster, schema.nodes, model.NODES)
        return _blank_as_missing(nodes, "partition").sort_values(["name", "partition"], ignore_index=True)

    def add_node_events(self, cluster: str, events: pd.DataFrame) -> None:
        """Store a ``NODE_EVENTS`` frame.

        An event with the same node, start and state as a stored one replaces it, with its newer end and reason.
        """
        key, never_missing = ("node", "started_at", "state"), ("node", "started_at")
        self._replace(cluster, schema.node_events, model.NODE_EVENTS, events, never_missing=never_missing, key=key)

    def node_events(
        self, cluster: str, since: datetime | None = None, until: datetime | None = None, *, reaching: bool = False
    ) -> pd.DataFrame:
        """Return a cluster's node events that started in [since, until), oldest first.

        With ``reaching``, events that started earlier are included if they had not ended by ``since``.
        """
        table, where = schema.node_events, []
        if reaching and since is not None:
            where, since = [table.c.ended_at.is_(None) | (table.c.ended_at > stored_time(since))], None
        events = self._read(
            cluster, table, model.NODE_EVENTS, "started_at", "node", since=since, until=until, where=where
        )
        return _blank_as_missing(events, "state")

    def add_predictions(self, cluster: str, frame: pd.DataFrame, made_at: datetime) -> int:
        """Store predictions and return how many were new.

        Parameters
        ----------
        frame : DataFrame
            Columns of ``PREDICTIONS``, and ``job_id``, ``submitted_at``, ``restart`` of the job.
        made_at : datetime
            When they were made. A stored prediction of the same job and time stays as it is.
        """
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=cluster)
            return add_predictions(connection, self._bulk, cluster_id, frame, made_at=made_at)

    def predictions(
        self, cluster: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> pd.DataFrame:
        """Return the predictions for jobs submitted in [since, until).

        They are ordered by submit time, job id, restart and the time they were made.
        """
        types = PREDICTION_TYPES
        return self._read(cluster, schema.predictions, types, *_PREDICTIONS_ORDER, since=since, until=until)

    def predictions_of(self, cluster: str, submitted_at: pd.Series[Any]) -> pd.DataFrame:
        """Return the predictions for jobs submitted at exactly these times.

        They are ordered by submit time, job id, restart and the time they were made. Unlike with :meth:`predictions`,
        the cost does not depend on how long ago the oldest job was submitted.
        """
        table, times = schema.predictions, sorted(set(stored_column(submitted_at, TIME).to_pylist()))
        types, n = PREDICTION_TYPES, _TIMES_PER_QUERY
        with reading(self._engine) as connection:
            query = select_columns(table, find_cluster_id(connection, cluster), types)
            query = query.order_by(*(table.c[name] for name in _PREDICTIONS_ORDER))
            parts = [
                self._bulk.select(connection, query.where(table.c.submitted_at.in_(times[first : first + n])))
                for first in range(0, max(len(times), 1), n)
            ]
        return frame_of(pa.concat_tables(parts), types)

    def timezone(self, cluster: str) -> str | None:
        """Return a cluster's time zone, None if either is not known."""
        with reading(self._engine) as connection:
            return cluster_timezone(connection, cluster)

    def add_decisions(self, cluster: str, decisions: pd.DataFrame) -> None:
        """Append decisions to the audit log.

        Columns ``decided_at``, ``service``, ``mode``, ``action``, ``target`` and ``reason`` are required; ``before``,
        ``after``, ``model_id`` and ``outcome`` may be missing. Stored decisions are never changed.
        """
        with writing(self._engine) as connection:
            add_decisions(connection, cluster_id_for_loading(connection, name=cluster), decisions)

    def decisions(self, cluster: str, *, since: datetime | None = None, until: datetime | None = None) -> pd.DataFrame:
        """Return the decisions made in [since, until), oldest first."""
        order = ("decided_at", "decision_id")
        return self._read(cluster, schema.decisions, model.DECISIONS, *order, since=since, until=until)

    def decisions_about(self, cluster: str, target: str, *, since: datetime | None = None) -> pd.DataFrame:
        """Return the decisions about one job or node, oldest first.

        Only decisions made at or after ``since`` are returned. An index makes this fast, however long the audit log is.
        """
        with reading(self._engine) as connection:
            query = decision_columns(find_cluster_id(connection, cluster), target, since=since)
            rows = [dict(row._mapping) for row in connection.execute(query)]
        return frame_of(pa.Table.from_pylist(rows, schema=arrow_schema(query)), model.DECISIONS)

    def forget(self, cluster: str, horizon: Horizon) -> dict[str, int]:
        """Delete the rows of a cluster that are older than ``horizon``.

        Each transaction deletes a bounded number of rows.

        Returns
        -------
        dict of str to int
            How many rows were deleted, by kind.
        """
        with reading(self._engine) as connection:
            cluster_id = find_cluster_id(connection, cluster)
        return forget(self._engine, cluster_id, horizon)

    def ledger(self, cluster: str, domain: Domain = Domain.JOBS) -> SqlLedger:
        """Return the ledger of a domain of ``cluster``."""
        return SqlLedger(self._engine, self._bulk, cluster, domain)

    def lease(self, cluster: str, *, domain: Domain = Domain.JOBS) -> Mapping[str, Any] | None:
        """Return the lease of a domain, or None.

        Its entries are ``token``, ``holder`` (None after a release) and ``expires_at`` (microseconds).
        """
        with reading(self._engine) as connection:
            return read_lease(connection, find_cluster_id(connection, cluster), domain)

    def time_of_leases(self, now: datetime) -> datetime:
        """Return the current time by the clock of leases.

        It is the clock of the database server, or ``now`` with SQLite.
        """
        with reading(self._engine) as connection:
            return datetime.fromtimestamp(lease_time_us(connection, now) / 1e6, UTC)

    def remember(self, cluster: str, name: str, text: str, *, at: datetime) -> None:
        """Store a text under ``name``, in place of the one stored there."""
        memories = schema.memories
        with writing(self._engine) as connection:
            key = {"cluster_id": cluster_id_for_loading(connection, name=cluster), "name": name}
            connection.execute(sa.delete(memories).filter_by(**key))
            connection.execute(sa.insert(memories).values(key | {"text": text, "written_at": stored_time(at)}))

    def remembered(self, cluster: str, name: str) -> str | None:
        """Return the text stored under ``name``, or None if there is none."""
        with reading(self._engine) as connection:
            key = {"cluster_id": find_cluster_id(connection, cluster), "name": name}
            return connection.execute(sa.select(schema.memories.c.text).filter_by(**key)).scalar_one_or_none()

    def add_modes(self, cluster: str, modes: pd.DataFrame) -> None:
        """Append a ``MODES`` frame, the modes of services from now on."""
        self._append(cluster, schema.modes, model.MODES, modes)

    def modes(self, cluster: str) -> pd.DataFrame:
        """Return every mode that was set, oldest first, as a ``MODES`` frame.

        The last row of a service is its present mode.
        """
        return self._read(cluster, schema.modes, model.MODES, "mode_id")

    def add_cycles(self, cluster: str, cycles: pd.DataFrame) -> None:
        """Append a ``CYCLES`` frame."""
        self._append(cluster, schema.cycles, model.CYCLES, cycles)

    def cycles(self, cluster: str, *, since: datetime | None = None, until: datetime | None = None) -> pd.DataFrame:
        """Return the control cycles of [since, until) as a ``CYCLES`` frame, oldest first."""
        return self._read(cluster, schema.cycles, model.CYCLES, "taken_at", "cycle_id", since=since, until=until)

    def add_node_tallies(self, cluster: str, tallies: pd.DataFrame) -> None:
        """Append a ``NODE_TALLIES`` frame.

        Stored counts of the same pool and time stay as they are.
        """
        self._append(cluster, schema.node_tallies, model.NODE_TALLIES, tallies)

    def node_tallies(self, cluster: str, start: datetime | None = None, end: datetime | None = None) -> pd.DataFrame:
        """Return the counts of nodes taken in [start, end).

        The result is a ``NODE_TALLIES`` frame, oldest first, then by pool.
        """
        return self._read(cluster, schema.node_tallies, model.NODE_TALLIES, "taken_at", "pool", since=start, until=end)

    def forget_tallies(self, cluster: str, before: datetime) -> int:
        """Delete the counts of nodes taken before a time, and return their number."""
        tallies = schema.node_tallies.c
        with writing(self._engine) as connection:
            in_cluster = tallies.cluster_id == find_cluster_id(connection, cluster)
            return connection.execute(
                sa.delete(schema.node_tallies).where(in_cluster, tallies.taken_at < stored_time(before))
            ).rowcount

    def old_rows(self, cluster: str) -> list[OldRows]:
        """Return the rows that an older Helios read wrongly, by kind."""
        with reading(self._engine) as connection:
            return old_readings.find_old_rows(connection, find_cluster_id(connection, cluster))

    def note_read_again(self, cluster: str, since: datetime) -> None:
        """Note that all jobs of a cluster since a moment were read anew."""
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=cluster)
            old_readings.note_read_again(connection, cluster_id, stored_time(since))

    def add_coverage(
        self, cluster: str, *, source: str, started_at: datetime, ended_at: datetime, read_at: datetime
    ) -> None:
        """Record that the live history of [started_at, ended_at) was read.

        Overlapping and adjacent periods of the same ``source`` become one.
        """
        table, start, end = schema.coverage, stored_time(started_at), stored_time(ended_at)
        with writing(self._engine) as connection:
            key = {"cluster_id": cluster_id_for_loading(connection, name=cluster), "source": source}
            touches = (table.c.started_at <= end) & (table.c.ended_at >= start)
            for row in connection.execute(sa.select(table).filter_by(**key).where(touches)).all():
                start, end = min(start, row.started_at), max(end, row.ended_at)
            connection.execute(sa.delete(table).filter_by(**key).where(touches))
            period = {"started_at": start, "ended_at": end, "read_at": stored_time(read_at)}
            connection.execute(sa.insert(table).values(key | period))

    def coverage(self, cluster: str) -> pd.DataFrame:
        """Return the periods of live history that were read, as a ``COVERAGE`` frame.

        The oldest comes first.
        """
        return self._read(cluster, schema.coverage, model.COVERAGE, "started_at")

    def _create_or_check_schema(self) -> None:
        revision, expected = self.revision(), self.head()
        if revision is None:
            self.upgrade()
        elif revision != expected:
            migrate.refuse_unknown(revision)
            raise SchemaOutdated(
                f"{redact_url(self._engine.url)} is at revision {revision}; this version of Helios expects {expected}.",
                hint="Bring it up to date: helios db upgrade",
            )


def _refuse_if_in_use(connection: sa.Connection, cluster: str, cluster_id: int) -> None:
    """Raise UsageError if a Helios acts on a cluster or has applied changes."""
    leases = schema.leases
    now_us = lease_time_us(connection, datetime.now(UTC))
    held_leases = sa.select(leases.c.holder).where(
        leases.c.cluster_id == cluster_id, leases.c.holder.is_not(None), leases.c.expires_at > now_us
    )
    changes = [
        sa.select(table.c.setting).filter_by(cluster_id=cluster_id)
        for table in (schema.applied_changes, schema.applied_node_changes)
    ]
    if any(connection.execute(query).first() for query in (held_leases, *changes)):
        raise UsageError(
            f"A Helios acts on {cluster}, and what it applied is recorded here.",
            hint="Stop its daemon and revert everything first: systemctl stop helios; helios pause",
        )


def _blank_as_missing(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    # A column of a primary key cannot be null in SQL, so a missing value is stored as "".
    return frame.assign(**{name: frame[name].cat.remove_categories([c for c in frame[name].cat.categories if not c])})
