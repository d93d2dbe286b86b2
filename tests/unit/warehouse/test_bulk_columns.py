"""Frames to stored columns and back, and the order of jobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from helios.model import TIME
from helios.warehouse.columns import CHUNK, StringTable, frame_of, in_order
from helios.warehouse.engine import engine_for, writing
from helios.warehouse.migrate import upgrade
from helios.warehouse.sqlite_bulk import SqliteBulk

KEYS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["2", "10", "9", "010", "a", "10_1"]), st.integers(0, 2)))


@given(KEYS)
def test_the_order_is_that_of_sorting_by_time_length_text_and_restart(keys: list[tuple[int, str, int]]) -> None:
    table = pa.table(
        {
            "submitted_at": pa.array([key[0] for key in keys], pa.int64()),
            "job_id": pa.array([key[1] for key in keys], pa.string()),
            "restart": pa.array([key[2] for key in keys], pa.int64()),
        }
    )
    ordered = [tuple(row.values()) for row in in_order(table).to_pylist()]
    assert ordered == sorted(keys, key=lambda key: (key[0], len(key[1]), key[1], key[2]))


def test_rows_move_as_a_whole_when_they_are_ordered() -> None:
    table = pa.table({"submitted_at": [2, 1, 1], "job_id": ["1", "20", "3"], "restart": [0, 0, 0], "gpus": [7, 8, 9]})
    assert in_order(table)["gpus"].to_pylist() == [9, 8, 7]


def test_missing_values_are_those_of_the_declared_type() -> None:
    table = pa.table({"t": pa.nulls(2, pa.int64()), "f": pa.nulls(2, pa.float64()), "s": pa.nulls(2, pa.string())})
    frame = frame_of(table, {"t": TIME, "f": "float64", "s": "str"})
    assert frame.isna().all().all()
    assert [str(dtype) for dtype in frame.dtypes] == [TIME, "float64", "str"]


def test_text_in_an_object_column_is_none_where_it_is_missing() -> None:
    assert frame_of(pa.table({"zone": ["UTC", None]}), {"zone": "object"})["zone"].tolist() == ["UTC", None]


def test_categories_come_back_in_the_order_of_their_text() -> None:
    frame = frame_of(pa.table({"state": ["b", None, "a", "b"]}), {"state": "category"})
    assert frame["state"].cat.categories.tolist() == ["a", "b"]
    assert frame["state"].cat.codes.tolist() == [1, -1, 0, 1]


def within_names(ask: Any) -> Any:
    engine = engine_for("sqlite://")
    upgrade(engine)
    with writing(engine) as connection:
        return ask(StringTable(connection, SqliteBulk()), StringTable(connection, SqliteBulk()))


def test_a_text_has_one_number_whoever_asks() -> None:
    first, second = within_names(lambda one, other: (one.numbers(["b", "a", "b"]), other.numbers(["a", "b", "c"])))
    assert first[0] == first[2] == second[1]
    assert first[1] == second[0]
    assert len({*first, *second}) == 3


def test_more_texts_than_fit_a_statement_are_all_numbered() -> None:
    texts = [f"node[{i}]" for i in range(CHUNK + 1)]

    def there_and_back(book: StringTable, other: StringTable) -> list[str]:
        numbers = book.numbers(texts)
        found = other.texts(numbers)
        return [found[number] for number in numbers]

    assert within_names(there_and_back) == texts


def test_times_come_back_to_the_microsecond() -> None:
    stored = pa.table({"t": [1, np.iinfo(np.int64).max // 4]})
    frame = frame_of(stored, {"t": TIME})
    assert frame["t"].iloc[0] == pd.Timestamp("1970-01-01T00:00:00.000001Z")
    assert frame["t"].astype("int64").tolist() == stored["t"].to_pylist()
