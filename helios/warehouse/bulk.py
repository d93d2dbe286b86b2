"""Bulk transport by columns: one Arrow table in, one Arrow table out, on either kind of database.

Arrow tables hold columns as they are stored (``schema.py``): 64-bit integers, doubles and text, missing as null.
An ADBC driver was rejected for SQLite: it brings a second SQLite library into the process, and two of them lose each
other's POSIX locks on one file (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa
from sqlalchemy import BigInteger, Connection, Double, Integer, Select, Table, TableClause
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine

Conflict = Callable[[Any], tuple[Mapping[str, ColumnElement[Any]], ColumnElement[bool]]]
"""Given the columns of a new row: the values that its job then has, and whether it has them at all."""


class Bulk(Protocol):
    """What the warehouse needs of a database beyond SQLAlchemy Core. Each call is part of the caller's transaction."""

    def insert(self, connection: Connection, table: Table, rows: pa.Table) -> int:
        """Add the rows whose key is not there yet; return how many were added."""
        ...

    def staged(self, connection: Connection, rows: pa.Table) -> AbstractContextManager[TableClause]:
        """Hand out rows of ``jobs`` as a table of the transaction, which is gone afterwards."""
        ...

    def upsert_jobs(self, connection: Connection, incoming: TableClause, conflict: Conflict) -> int:
        """Add staged rows to ``jobs``; return how many were added or, by the rule for those there, changed."""
        ...

    def select(self, connection: Connection, query: Select[Any]) -> pa.Table:
        """Run a query of stored columns, whose parameters are numbers, and return its rows."""
        ...

    def elements(self, array: str) -> ColumnElement[str]:
        """Return the SQL for the elements, as text, of a JSON array of texts."""
        ...


def arrow_schema(query: Select[Any]) -> pa.Schema:
    """Return the Arrow schema of the rows of ``query``."""
    return pa.schema([(column.name, _arrow_type(column.type)) for column in query.selected_columns])


def with_values(rows: pa.Table) -> pa.Table:
    """Return ``rows`` without the columns that are missing altogether; traces rarely fill all of them."""
    return rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])


def _arrow_type(sql_type: TypeEngine[Any]) -> pa.DataType:
    if isinstance(sql_type, (BigInteger, Integer)):
        return pa.int64()
    return pa.float64() if isinstance(sql_type, Double) else pa.string()
