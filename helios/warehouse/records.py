"""What else is remembered of a cluster: loads, rejects, nodes, predictions, decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pandas.api.types import pandas_dtype
from sqlalchemy import Connection, Select, Table, delete, func, insert, select

from helios.errors import FrameInvalid
from helios.model import DECISIONS, JOBS, NODE_EVENTS, NODES, PREDICTIONS, TIME, FrameKind
from helios.warehouse import schema
from helios.warehouse.bulk import Bulk, arrow_schema
from helios.warehouse.columns import stored_column, stored_time
from helios.warehouse.shelf import id_in_charge

NODE_TYPES = {column.name: column.dtype for column in NODES.columns}
NODE_EVENT_TYPES = {column.name: column.dtype for column in NODE_EVENTS.columns}
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
REJECTS_OF_A_CLUSTER = {"line": "int64", "reason": "category", "text": "str", "path": "str"}
REJECT_COUNTS = {"reason": "str", "rows": "int64"}
JOB_OF_A_PREDICTION = {name: JOBS.by_name[name].dtype for name in ("job_id", "submitted_at", "restart")}
PREDICTION_TYPES = JOB_OF_A_PREDICTION | {"made_at": TIME} | {c.name: c.dtype for c in PREDICTIONS.columns}
DECISION_TYPES = {column.name: column.dtype for column in DECISIONS.columns}
_NEVER_MISSING_IN_DECISIONS = ("decided_at", "service", "mode", "action", "target", "reason")


def of_cluster(table: Table, cluster_id: int, names: Sequence[str]) -> Select[Any]:
    """Return the query of some columns of all rows of a cluster."""
    return select(*(table.c[name] for name in names)).where(table.c.cluster_id == cluster_id)


def last_jobs(query: Select[Any], cluster_id: int, number: int) -> Select[Any]:
    """Narrow a query of jobs to the ``number`` submitted last, and those submitted together with their first."""
    submitted_at = schema.jobs.c.submitted_at
    of_cluster_ = select(submitted_at).where(schema.jobs.c.cluster_id == cluster_id)
    first = of_cluster_.order_by(submitted_at.desc()).offset(max(number - 1, 0)).limit(1).scalar_subquery()
    return query.where(submitted_at >= func.coalesce(first, 0))


def edition(connection: Connection, cluster_id: int) -> tuple[int, str]:
    """Return the number of a cluster's last load (0: none) and the id of the model in charge (empty: none)."""
    loads = schema.loads
    load = connection.execute(select(func.max(loads.c.load_id)).where(loads.c.cluster_id == cluster_id)).scalar()
    return int(load or 0), id_in_charge(connection, cluster_id)


def rejects_of(cluster_id: int, *, limit: int | None) -> Select[Any]:
    """Return the query of a cluster's rejects: loads in their order, lines in theirs."""
    rejects, loads = schema.rejects, schema.loads
    return (
        select(rejects.c.line, rejects.c.reason, rejects.c.text, loads.c.path)
        .join_from(rejects, loads, rejects.c.load_id == loads.c.load_id)
        .where(loads.c.cluster_id == cluster_id)
        .order_by(rejects.c.load_id, rejects.c.line, rejects.c.reject_id)
        .limit(limit)
    )


def reject_counts_of(cluster_id: int) -> Select[Any]:
    """Return the query of a cluster's rejects counted by reason over all loads, most frequent first."""
    rejects, rows = schema.rejects, func.count().label("rows")
    loads = select(schema.loads.c.load_id).where(schema.loads.c.cluster_id == cluster_id)
    chosen = select(rejects.c.reason, rows).where(rejects.c.load_id.in_(loads))
    return chosen.group_by(rejects.c.reason).order_by(rows.desc(), rejects.c.reason)


def add_nodes(connection: Connection, cluster_id: int, nodes: pd.DataFrame) -> None:
    """Store nodes; one that is known by name and partition is replaced."""
    rows = _stored(NODES, nodes, never_missing=("name",))
    _replace(connection, schema.nodes, cluster_id, rows, key=("name", "partition"))


def add_node_events(connection: Connection, cluster_id: int, events: pd.DataFrame) -> None:
    """Store node events; one that is known by node, start and state takes the newer end and reason."""
    rows = _stored(NODE_EVENTS, events, never_missing=("node", "started_at"))
    _replace(connection, schema.node_events, cluster_id, rows, key=("node", "started_at", "state"))


def add_predictions(
    connection: Connection, bulk: Bulk, cluster_id: int, frame: pd.DataFrame, *, made_at: datetime
) -> int:
    """Store predictions; one for the same job and ``made_at`` stays as it is. Return how many were new."""
    for name, dtype in (JOB_OF_A_PREDICTION | {c.name: c.dtype for c in PREDICTIONS.columns}).items():
        if name not in frame:
            raise FrameInvalid(f"a predictions frame lacks its column {name!r}, of type {dtype}")
    declared = {name: dtype for name, dtype in PREDICTION_TYPES.items() if name != "made_at"}
    columns = {name: stored_column(frame[name].astype(pandas_dtype(dtype)), dtype) for name, dtype in declared.items()}
    same = {"cluster_id": [cluster_id] * len(frame), "made_at": [stored_time(made_at)] * len(frame)}
    return bulk.insert(connection, schema.predictions, pa.table(same | columns))


def add_decisions(connection: Connection, cluster_id: int, decisions: pd.DataFrame) -> None:
    """Append decisions; nothing written is ever changed.

    Raises
    ------
    FrameInvalid
        A column is not declared in ``DECISIONS``, or lacks values that are never missing.
    """
    if unknown := sorted(set(decisions.columns) - set(DECISION_TYPES)):
        raise FrameInvalid(f"a decisions frame has no column {', '.join(unknown)}")
    _refuse_missing("decisions", decisions, _NEVER_MISSING_IN_DECISIONS)
    rows = _rows(decisions, {name: dtype for name, dtype in DECISION_TYPES.items() if name in decisions})
    if rows:
        connection.execute(insert(schema.decisions), [{"cluster_id": cluster_id} | row for row in rows])


def decisions_about(connection: Connection, cluster_id: int, target: str, *, since: datetime | None) -> pa.Table:
    """Return the decisions about one job or node, oldest first: columns of ``DECISIONS`` as they are stored."""
    query = about(cluster_id, target, since=since)
    rows = connection.execute(query).all()
    columns = zip(*rows, strict=True) if rows else [()] * len(DECISION_TYPES)
    types = arrow_schema(query).types
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=list(DECISION_TYPES))


def about(cluster_id: int, target: str, *, since: datetime | None) -> Select[Any]:
    """Return the query of the decisions about one job or node."""
    table = schema.decisions
    query = of_cluster(table, cluster_id, list(DECISION_TYPES)).where(table.c.target == target)
    if since is not None:
        query = query.where(table.c.decided_at >= stored_time(since))
    return query.order_by(table.c.decided_at, table.c.decision_id)


def _stored(kind: FrameKind, frame: pd.DataFrame, *, never_missing: Sequence[str]) -> list[dict[str, Any]]:
    _refuse_missing(kind.name, kind.check(frame), never_missing)
    return _rows(frame, {column.name: column.dtype for column in kind.columns})


def _refuse_missing(what: str, frame: pd.DataFrame, names: Sequence[str]) -> None:
    for name in names:
        if name not in frame or frame[name].isna().any():
            raise FrameInvalid(f"a {what} frame has rows without {name}, which is never missing")


def _rows(frame: pd.DataFrame, dtypes: Mapping[str, str]) -> list[dict[str, Any]]:
    columns = {
        name: stored_column(frame[name].astype(pandas_dtype(dtype)), dtype).to_pylist()
        for name, dtype in dtypes.items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _replace(
    connection: Connection, table: Table, cluster_id: int, rows: list[dict[str, Any]], *, key: Sequence[str]
) -> None:
    """Update the row of each key, or insert it; of several rows with one key the last counts."""
    for row in rows:
        named = {name: "" if row[name] is None else row[name] for name in key}
        chosen = [table.c.cluster_id == cluster_id, *(table.c[name] == value for name, value in named.items())]
        connection.execute(delete(table).where(*chosen))
        connection.execute(insert(table).values({"cluster_id": cluster_id} | row | named))
