import pyarrow as pa
import pytest
from sqlalchemy import create_engine, select

from helios.warehouse import sqlite_bulk
from helios.warehouse.schema import names
from helios.warehouse.sqlite_bulk import SqliteBulk


@pytest.fixture
def connection():
    engine = create_engine("sqlite://")
    names.create(engine)
    with engine.begin() as opened:
        yield opened


def some_names(numbers):
    digests = [str(number) for number in numbers]
    return pa.table({"digest": digests, "text": [f"name {digest}" if int(digest) % 3 else "" for digest in digests]})


@pytest.mark.parametrize("rows", [1, 199, 200, 201, 9_999, 10_000, 10_203])
def test_every_row_is_added_once_however_many_a_statement_takes(connection, rows):
    assert SqliteBulk().insert(connection, names, some_names(range(rows))) == rows
    found = dict(connection.execute(select(names.c.digest, names.c.text)).all())
    assert found == {str(number): f"name {number}" if number % 3 else "" for number in range(rows)}


def test_rows_that_are_stored_already_are_not_counted(connection):
    SqliteBulk().insert(connection, names, some_names(range(0, 900, 2)))
    assert SqliteBulk().insert(connection, names, some_names(range(900))) == 450


def test_an_sqlite_with_few_variables_takes_fewer_rows_a_statement(connection, monkeypatch):
    monkeypatch.setattr(sqlite_bulk, "ROWS_PER_STATEMENT", 10**9)
    raw = connection.connection.driver_connection
    raw.setlimit(sqlite_bulk.sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 7)
    assert SqliteBulk().insert(connection, names, some_names(range(20))) == 20
