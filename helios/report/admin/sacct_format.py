"""Reports in the style of sacct.

They are written with sacct's fields and column widths, in its parsable form, or as JSON.

As in sacct, ``--format`` takes ``Field[%[-]width]`` by commas, without regard to case; text longer than its column
ends in ``+``. Unlike sacct, a number is never cut: its column grows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from helios.errors import UsageError
from helios.units import write_count

CUT = "+"
"""What sacct puts in place of the end of a text that its column cannot hold."""


class FieldKind(StrEnum):
    """How a field's values are written."""

    TEXT = "text"
    COUNT = "count"
    SIZE = "size"
    DECIMAL = "decimal"
    LENGTH = "length"
    SHARE = "share"
    FACTOR = "factor"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column that a report can show.

    Attributes
    ----------
    name : str
        As typed after ``--format`` and printed above the column.
    column : str
        Column of the report's frame, and key in JSON; lengths are in s there, shares of 1.
    kind : FieldKind
    doc : str
        What it means, for a person.
    width : int
        Characters; negative: to the left.
    exact : bool
        Whether a person chose the width, so that it does not grow.
    """

    name: str
    column: str
    kind: FieldKind
    doc: str
    width: int = 10
    exact: bool = False

    @property
    def is_left(self) -> bool:
        """Whether it is written to the left of its column."""
        return self.width < 0 or self.kind is FieldKind.TEXT


def declare_fields(*fields: tuple[str, str, FieldKind, int, str]) -> tuple[Field, ...]:
    """Return fields of (name, column, kind, width, doc), in that order."""
    return tuple(
        Field(name=name, column=column, kind=kind, width=width, doc=doc) for name, column, kind, width, doc in fields
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportTable:
    """Rows of a report, with every field that can be shown.

    Attributes
    ----------
    title : str
        What was asked, with the window, in a line.
    fields : tuple of Field
        In the order in which an unknown field of ``--format`` lists them.
    shown : tuple of str
        Names of the fields shown unless others are asked for; they fit 100 columns. Empty for all.
    rows : DataFrame
        A column for each of ``fields``.
    total : mapping, optional
        A last row over all others. None where none makes sense.
    empty : str
        Text in place of the table where there is no row.
    notes : tuple of str
        What a person should know before relying on it.
    timezone : str
        Zone in which moments are written.
    """

    title: str
    fields: tuple[Field, ...]
    shown: tuple[str, ...] = ()
    rows: pd.DataFrame
    total: Mapping[str, Any] | None = None
    empty: str = "Nothing."
    notes: tuple[str, ...] = ()
    timezone: str = "UTC"


def chosen_fields(answer: ReportTable, asked: str | None) -> list[Field]:
    """Return the fields of a report that a ``--format`` text names.

    None for those shown by default. Raises as :func:`named_fields`.
    """
    return named_fields(answer.fields, ",".join(answer.shown) or None if asked is None else asked)


def named_fields(fields: Sequence[Field], asked: str | None) -> list[Field]:
    """Return the fields that a ``--format`` text names.

    None for all.

    Raises
    ------
    UsageError
        No field is named, a field is unknown (the hint lists the known ones), or a width is no number.
    """
    if asked is None:
        return list(fields)
    by_name = {field.name.lower(): field for field in fields}
    known = "\n".join(["Fields are:", *(f"  {field.name:<14} {field.doc}" for field in fields)])
    parts = tuple(part.strip() for part in asked.split(",") if part.strip())
    if not parts:
        raise UsageError("--format names no field.", hint=known)
    chosen = []
    for part in parts:
        name, percent_sign, width = part.partition("%")
        field = by_name.get(name.strip().lower())
        if field is None:
            raise UsageError(f"--format: there is no field {name.strip()!r} here.", hint=known)
        if percent_sign and not re.fullmatch(r"-?[1-9]\d{0,3}", width):
            raise UsageError(
                f"--format: {part!r} has no width after its %.", hint=f"Write {field.name}%20, to the left %-20"
            )
        chosen.append(replace(field, width=int(width), exact=True) if percent_sign else field)
    return chosen


def as_lines(answer: ReportTable, fields: Sequence[Field], *, header: bool = True) -> Iterator[str]:
    """Yield the report in the layout of sacct.

    Header, rule and rows, and below another rule the total.
    """
    cells = _texts(answer, fields)
    last = {} if answer.total is None or answer.rows.empty else answer.total
    total = [write_values(last.get(field.column), field.kind, timezone=answer.timezone) for field in fields]
    widths = []
    for field, column, whole in zip(fields, cells, total, strict=True):
        grows = not field.exact and field.kind is not FieldKind.TEXT
        widths.append(max(abs(field.width), *map(len, (*column, whole))) if grows else abs(field.width))

    def line(texts: Sequence[str]) -> str:
        held = []
        for text, field, width in zip(texts, fields, widths, strict=True):
            cut = text if len(text) <= width else text[: width - 1] + CUT
            held.append(cut.ljust(width) if field.is_left else cut.rjust(width))
        return " ".join(held).rstrip()

    rule = " ".join("-" * width for width in widths)
    if header:
        yield line([field.name for field in fields])
        yield rule
    yield from map(line, zip(*cells, strict=True))
    if last:
        yield rule
        yield line(total)


def as_parsable(answer: ReportTable, fields: Sequence[Field], *, header: bool = True) -> Iterator[str]:
    """Yield header and rows with ``|`` between the fields.

    Nothing is cut, and there is no total.
    """
    if header:
        yield "|".join(field.name for field in fields)
    for row in zip(*_texts(answer, fields), strict=True):
        yield "|".join(row)


def as_json(answer: ReportTable) -> dict[str, Any]:
    """Return title, rows, total and notes as plain values.

    Rows have every field. Lengths are in s, shares fractions of 1, moments in ISO 8601.
    """
    columns = [field.column for field in answer.fields]
    values = {name: [_plain(value) for value in answer.rows[name].tolist()] for name in columns}
    total = None if answer.total is None else plain_values(answer.total)
    return {
        "title": answer.title,
        "rows": [dict(zip(columns, row, strict=True)) for row in zip(*values.values(), strict=True)],
        "total": total,
        "notes": list(answer.notes),
    }


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them, None for what is missing."""
    return {name: _plain(value) for name, value in values.items()}


def write_values(value: Any, kind: FieldKind, *, timezone: str = "UTC") -> str:
    """Write one value in the way of its kind.

    A missing value is empty.
    """
    if pd.isna(value):
        return ""
    if kind is FieldKind.MOMENT:
        return pd.Timestamp(value).tz_convert(timezone).strftime("%Y-%m-%dT%H:%M:%S")
    if kind is FieldKind.TEXT:
        return re.sub(r"[\x00-\x1f\x7f]+", " ", str(value))
    return _NUMBERS[kind](float(value))


def slurm_length(seconds: float) -> str:
    """Write a length of time in Slurm's notation.

    ``[days-]HH:MM:SS``, rounded to whole seconds, behind a minus where it is below 0.
    """
    minutes, second = divmod(abs(round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return "-" * (round(seconds) < 0) + (f"{days}-{clock}" if days else clock)


_NUMBERS: Mapping[FieldKind, Callable[[float], str]] = {
    FieldKind.LENGTH: slurm_length,
    FieldKind.SHARE: lambda share: f"{100 * share:.1f}%",
    FieldKind.DECIMAL: lambda number: f"{number:.1f}",
    FieldKind.COUNT: lambda number: f"{round(number)}",
    FieldKind.SIZE: write_count,
    FieldKind.FACTOR: lambda factor: f"{factor:.{0 if factor >= 1000 else 1}f}x",
}


def _texts(answer: ReportTable, fields: Sequence[Field]) -> list[list[str]]:
    return [
        [write_values(value, field.kind, timezone=answer.timezone) for value in answer.rows[field.column].tolist()]
        for field in fields
    ]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NaT or (isinstance(value, float) and not np.isfinite(value)):
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return value.item() if isinstance(value, np.generic) else value
