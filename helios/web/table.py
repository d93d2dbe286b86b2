"""The table of a page that the server sorts, pages and filters."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import pandas as pd

from helios.errors import UsageError
from helios.report.admin.sacct_format import Field, FieldKind, ReportTable
from helios.report.html import TableCells, filled_fields, write_cell, write_cells

ROWS_OF_PAGE = 50
"""Rows that a page shows at once."""
CONTROLS = ("sort", "page", "find", "format")
"""Parameters of every page with such a table. They change what is shown of it, not what it is."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First letters of a text that a spreadsheet would take for a formula."""


class PageTable(Protocol):
    """Table of a page, of any length, whose controls are query parameters."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no row, whatever is looked for."""
        ...

    def view(self, given: Mapping[str, str]) -> TableView:
        """Return what a page shows of it.

        Raises
        ------
        UsageError
            There is no such column to sort by, or no such page.
        """
        ...

    def to_csv(self, given: Mapping[str, str]) -> Iterator[str]:
        """Yield the chosen rows as CSV, with values as in JSON."""
        ...

    def to_json(self, values: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
        """Return what the controls change in the values of the page."""
        ...


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """A table in memory.

    Attributes
    ----------
    answer : ReportTable
    key : str
        Name of its rows in the values of the page, in the same order. Empty where they are not there.
    """

    answer: ReportTable
    key: str = "rows"

    @property
    def is_empty(self) -> bool:
        """Whether it has no row, whatever is looked for."""
        return self.answer.rows.empty

    @cached_property
    def fields(self) -> list[Field]:
        """The fields that are shown, those with a value."""
        return filled_fields(self.answer)

    def view(self, given: Mapping[str, str]) -> TableView:
        """Return what a page shows of it.

        Raises
        ------
        UsageError
            There is no such column to sort by, or no such page.
        """
        rows = self._chosen_rows(given)
        number, pages = page_number(given, len(rows))
        first = (number - 1) * ROWS_OF_PAGE
        shown = replace(self.answer, rows=rows.iloc[first : first + ROWS_OF_PAGE])
        total = self.answer.total if self.answer.total and not given.get("find") and len(rows) > 1 else None
        return TableView(
            cells=write_cells(shown, self.fields),
            fields=self.fields,
            total=None
            if total is None
            else tuple(write_cell(total.get(field.column), field, timezone=shown.timezone) for field in self.fields),
            rows=len(rows),
            first=first + 1 if len(rows) else 0,
            page=number,
            pages=pages,
            sort=given.get("sort", ""),
            find=given.get("find", ""),
        )

    def to_csv(self, given: Mapping[str, str]) -> Iterator[str]:
        """Yield the chosen rows of all pages as CSV."""
        return write_csv([replace(self.answer, rows=self._chosen_rows(given))], self.fields)

    def to_json(self, values: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
        """Return the chosen rows, those of one page where it is asked for."""
        if not self.key or not any(given.get(name) for name in ("sort", "page", "find")):
            return {}
        places = self._chosen_rows(given).index.tolist()
        if given.get("page"):
            number, _ = page_number(given, len(places))
            places = places[(number - 1) * ROWS_OF_PAGE : number * ROWS_OF_PAGE]
        return {self.key: [values[self.key][place] for place in places]}

    def _chosen_rows(self, given: Mapping[str, str]) -> pd.DataFrame:
        """Return the rows with the text looked for, in order."""
        rows = self.answer.rows.reset_index(drop=True)
        if text := given.get("find", "").casefold():
            texts = [field.column for field in self.fields if field.kind is FieldKind.TEXT]
            found = pd.Series(False, index=rows.index)
            for column in texts:
                found |= rows[column].astype("string").str.casefold().str.contains(text, regex=False).fillna(False)
            rows = rows[found]
        if not (sort := given.get("sort", "")):
            return rows
        name, descending = sort.removeprefix("-"), sort.startswith("-")
        field = next((field for field in self.fields if field.name == name), None)
        if field is None:
            names = ", ".join(field.name for field in self.fields)
            raise UsageError(f"sort={sort} is not known.", hint=f"Columns are {names}; a minus before: largest first.")
        # Of equal ones the order of the report stays, and what is unknown comes last.
        return rows.sort_values(field.column, ascending=not descending, kind="stable", na_position="last")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """What a page shows of a table.

    Attributes
    ----------
    cells : TableCells
        The rows of this page.
    fields : list of Field
    total : tuple of str, optional
        The sum over all rows.
    rows, first, page, pages : int
        Number of all rows, number of the first one shown, page, and number of pages.
    sort, find : str
        As asked.
    sorted_by : collection of str, optional
        Names of the fields to sort by. None for all.
    is_searched : bool
        Whether a text can be looked for in the rows.
    """

    cells: TableCells
    fields: list[Field]
    total: tuple[str, ...] | None
    rows: int
    first: int
    page: int
    pages: int
    sort: str
    find: str
    sorted_by: Collection[str] | None = None
    is_searched: bool = True

    def next_sort(self, field: Field) -> str:
        """Return the order that a column's head asks for.

        It is empty where rows are not sorted by that. Numbers begin with the largest, texts with A; a second time turns
        it round.
        """
        if self.sorted_by is not None and field.name not in self.sorted_by:
            return ""
        first = field.name if field.kind is FieldKind.TEXT else f"-{field.name}"
        return first if self.sort != first else (field.name if first.startswith("-") else f"-{field.name}")

    def direction(self, field: Field) -> str:
        """Return how the rows are sorted by a column, in words of ARIA."""
        if self.sort.removeprefix("-") != field.name:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"


def page_number(given: Mapping[str, str], rows: int) -> tuple[int, int]:
    """Return the page that is asked for, and the number of pages.

    Raises
    ------
    UsageError
        There is no such page.
    """
    pages = max(-(-rows // ROWS_OF_PAGE), 1)
    number = given.get("page") or "1"
    if not number.isdecimal() or not 1 <= int(number) <= pages:
        raise UsageError(f"page={number} is not here.", hint=f"There are {pages:,} pages.")
    return int(number), pages


def write_csv(parts: Iterable[ReportTable], fields: Sequence[Field]) -> Iterator[str]:
    """Yield a header and the rows of each part as CSV.

    Columns are called as in JSON, but that of groups by what they are, such as ``account``.
    """
    yield _csv_lines([[field.name.lower() if field.column == "group" else field.column for field in fields]])
    for part in parts:
        columns = [[_plain(value, field) for value in part.rows[field.column].tolist()] for field in fields]
        yield _csv_lines(zip(*columns, strict=True))


def _csv_lines(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def _plain(value: object, field: Field) -> object:
    """Return a value of CSV, empty where unknown.

    A spreadsheet takes none for a formula.
    """
    if pd.isna(value):  # type: ignore[call-overload]
        return ""
    if field.kind is FieldKind.MOMENT:
        return pd.Timestamp(value).isoformat()  # type: ignore[arg-type]
    text = str(value)
    return f"'{text}" if field.kind is FieldKind.TEXT and text.startswith(FORMULAS) else text
