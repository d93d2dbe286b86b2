"""The table of a page that the server sorts, pages and filters."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

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


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """A table of any length.

    Attributes
    ----------
    answer : ReportTable
    """

    answer: ReportTable

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
        pages = max(-(-len(rows) // ROWS_OF_PAGE), 1)
        number = given.get("page") or "1"
        if not number.isdecimal() or not 1 <= int(number) <= pages:
            raise UsageError(f"page={number} is not here.", hint=f"There are {pages:,} pages.")
        first = (int(number) - 1) * ROWS_OF_PAGE
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
            page=int(number),
            pages=pages,
            sort=given.get("sort", ""),
            find=given.get("find", ""),
        )

    def to_csv(self, given: Mapping[str, str]) -> str:
        """Return all chosen rows as CSV, with values as in JSON."""
        rows = self._chosen_rows(given)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow([field.column for field in self.fields])
        columns = [[_plain(value, field) for value in rows[field.column].tolist()] for field in self.fields]
        writer.writerows(zip(*columns, strict=True))
        return text.getvalue()

    def _chosen_rows(self, given: Mapping[str, str]) -> pd.DataFrame:
        """Return the rows with the text looked for, in order."""
        rows = self.answer.rows
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

    def next_sort(self, field: Field) -> str:
        """Return the order that a column's head asks for.

        Numbers begin with the largest, texts with A; a second time turns it round.
        """
        first = field.name if field.kind is FieldKind.TEXT else f"-{field.name}"
        return first if self.sort != first else (field.name if first.startswith("-") else f"-{field.name}")

    def direction(self, field: Field) -> str:
        """Return how the rows are sorted by a column, in words of ARIA."""
        if self.sort.removeprefix("-") != field.name:
            return ""
        return "descending" if self.sort.startswith("-") else "ascending"


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
