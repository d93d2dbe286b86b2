"""Reading, adding and replacing of a cluster's rows in any table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa
from pandas.api.types import pandas_dtype

from helios.errors import FrameInvalid
from helios.model import DECISIONS, JOBS, PREDICTIONS, TIME, FrameKind
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk
from helios.warehouse.clusters import cluster_id_for_loading, find_cluster_id
from helios.warehouse.columns import Types, column_types, frame_of, stored_column, stored_frame, stored_time
from helios.warehouse.engine import reading, writing

LOADS = {
    "load_id": "int64",
    "path": "str",
    "sha256": "str",
    "format": "str",
    "timezone": "object",
    "loaded_at": TIME,
    "rows_read": "int64",
    "jobs_new": "int64",
    "jobs_updated": "int64",
    "jobs_unchanged": "int64",
    "rejected": "int64",
    "watermark": TIME,
}
CLUSTER_REJECTS = {"line": "int64", "reason": "category", "text": "str", "path": "str"}
PREDICTION_TYPES = {
    **{name: JOBS.by_name[name].dtype for name in ("job_id", "submitted_at", "restart")},
    "made_at": TIME,
    **column_types(PREDICTIONS),
}
ORDER = ("submitted_at", "job_id", "restart")
"""Order of jobs and of what is stored by job."""
_NEVER_MISSING_IN_DECISIONS = ("decided_at", "service", "mode", "action", "target", "reason")


class RowStore:
    """Methods of ``Warehouse`` that read and write rows of any table."""

    _engine: sa.Engine
    _bulk: Bulk

    def _append(self, cluster: str, table: sa.Table, kind: FrameKind, frame: pd.DataFrame) -> None:
        """Add the rows whose key is not stored yet."""
        with writing(self._engine) as connection:
            rows = stored_frame(kind, frame, cluster_id_for_loading(connection, name=cluster))
            self._bulk.insert(connection, table, rows)

    def _replace(
        self, cluster: str, table: sa.Table, kind: FrameKind, frame: pd.DataFrame, **columns: Sequence[str]
    ) -> None:
        """Store rows in place of those with the same key."""
        with writing(self._engine) as connection:
            cluster_id = cluster_id_for_loading(connection, name=cluster)
            replace_rows(connection, cluster_id, table, kind, frame, **columns)

    def _read(
        self,
        cluster: str,
        table: sa.Table,
        types: Types,
        *order: str,
        since: datetime | None = None,
        until: datetime | None = None,
        where: Iterable[sa.ColumnElement[bool]] = (),
    ) -> pd.DataFrame:
        """Return a cluster's rows, ordered by the columns ``order``.

        ``since`` and ``until`` are bounds of the first of these columns.
        """
        with reading(self._engine) as connection:
            query = select_columns(table, find_cluster_id(connection, cluster), column_types(types))
            if order:
                query = between(query, table.c[order[0]], since, until)
            query = query.where(*where).order_by(*(table.c[name] for name in order))
            return frame_of(self._bulk.select(connection, query), types)


def select_columns(table: sa.Table, cluster_id: int, names: Iterable[str]) -> sa.Select[Any]:
    """Return the query of some columns of all rows of a cluster."""
    return sa.select(*(table.c[name] for name in names)).where(table.c.cluster_id == cluster_id)


def add_predictions(
    connection: sa.Connection, bulk: Bulk, cluster_id: int, frame: pd.DataFrame, *, made_at: datetime
) -> int:
    """Store predictions and return how many were new.

    A stored prediction of the same job and ``made_at`` stays as it is.

    Raises
    ------
    FrameInvalid
        A column is missing.
    """
    types = {name: dtype for name, dtype in PREDICTION_TYPES.items() if name != "made_at"}
    for name, dtype in types.items():
        if name not in frame:
            raise FrameInvalid(f"a predictions frame lacks its column {name!r}, of type {dtype}")
    constants = {"cluster_id": [cluster_id] * len(frame), "made_at": [stored_time(made_at)] * len(frame)}
    return bulk.insert(connection, schema.predictions, pa.table(constants | _stored_columns(frame, types)))


def add_decisions(connection: sa.Connection, cluster_id: int, decisions: pd.DataFrame) -> None:
    """Append decisions to the audit log, whose rows are never changed.

    Raises
    ------
    FrameInvalid
        A column is not declared in ``DECISIONS``, or lacks values that are never missing.
    """
    types = column_types(DECISIONS)
    if unknown := sorted(set(decisions.columns) - set(types)):
        raise FrameInvalid(f"a decisions frame has no column {', '.join(unknown)}")
    _refuse_missing("decisions", decisions, _NEVER_MISSING_IN_DECISIONS)
    columns = _stored_columns(decisions, {name: dtype for name, dtype in types.items() if name in decisions})
    if rows := pa.table(columns).to_pylist():
        connection.execute(sa.insert(schema.decisions), [{"cluster_id": cluster_id} | row for row in rows])


def decision_columns(cluster_id: int, target: str, *, since: datetime | None) -> sa.Select[Any]:
    """Return the query of the decisions about one target, oldest first."""
    table = schema.decisions
    query = select_columns(table, cluster_id, DECISIONS.names).where(table.c.target == target)
    if since is not None:
        query = query.where(table.c.decided_at >= stored_time(since))
    return query.order_by(table.c.decided_at, table.c.decision_id)


def replace_rows(
    connection: sa.Connection,
    cluster_id: int,
    table: sa.Table,
    kind: FrameKind,
    frame: pd.DataFrame,
    *,
    never_missing: Sequence[str],
    key: Sequence[str],
) -> None:
    """Store rows in place of those with the same key.

    Of several rows with one key, the last counts. A missing key value is stored as an empty text.

    Raises
    ------
    FrameInvalid
        A column is missing or of another type, or lacks values that are never missing.
    """
    _refuse_missing(kind.name, kind.check(frame), never_missing)
    for row in pa.table(_stored_columns(frame, column_types(kind))).to_pylist():
        key_values = {"cluster_id": cluster_id} | {name: "" if row[name] is None else row[name] for name in key}
        connection.execute(sa.delete(table).filter_by(**key_values))
        connection.execute(sa.insert(table).values(row | key_values))


def _refuse_missing(what: str, frame: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame or frame[name].isna().any():
            raise FrameInvalid(f"a {what} frame has rows without {name}, which is never missing")


def _stored_columns(frame: pd.DataFrame, types: Mapping[str, str]) -> dict[str, Any]:
    return {name: stored_column(frame[name].astype(pandas_dtype(dtype)), dtype) for name, dtype in types.items()}


def between(
    query: sa.Select[Any], column: sa.ColumnElement[Any], since: datetime | None, until: datetime | None
) -> sa.Select[Any]:
    """Return ``query`` with [since, until) as bounds of a column of times."""
    if since is not None:
        query = query.where(column >= stored_time(since))
    if until is not None:
        query = query.where(column < stored_time(until))
    return query
