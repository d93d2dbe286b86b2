"""Kinds of data frames with declared columns, for bulk data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import pandas_dtype
from pandas.arrays import NumpyExtensionArray

from helios.errors import FrameInvalid

TIME = "datetime64[us, UTC]"


def plain(value: Any) -> Any:
    """Return dataclasses, frames and containers as plain values.

    A frame becomes a list of its rows. Missing values and numbers that are not finite are None. Times stay as they are.
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, pd.DataFrame):
        return value.astype(object).where(value.notna(), None).to_dict("records")
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None  # + 0.0 removes the sign of a negative zero
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [plain(item) for item in value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One declared column of a frame.

    Parameters
    ----------
    name : str
        Name of the column, with the unit of a number as suffix.
    dtype : str
        ``category`` (text with few values, missing allowed), ``str`` (text, missing allowed),
        ``float64`` (missing is NaN), ``int32``/``int64`` (never missing), or ``TIME`` (missing is NaT).
    doc : str
        Meaning of a value, and of a missing value.
    """

    name: str
    dtype: str
    doc: str

    def empty(self) -> pd.Series[Any]:
        """Return a series of length 0 with this column's type."""
        return pd.Series([], dtype=self.dtype, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameKind:
    """A named set of columns of a frame."""

    name: str
    columns: tuple[Column, ...]
    by_name: dict[str, Column] = field(init=False)
    _types: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})
        object.__setattr__(self, "_types", {column.name: pandas_dtype(column.dtype) for column in self.columns})

    @property
    def names(self) -> list[str]:
        """Column names in the declared order."""
        return list(self.by_name)

    def empty(self) -> pd.DataFrame:
        """Return a frame with all columns and no rows."""
        return pd.DataFrame({column.name: column.empty() for column in self.columns})

    def conform(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return ``frame`` with exactly the declared columns.

        Columns that ``frame`` lacks become missing (0 for integers). Columns not declared here are refused.

        Raises
        ------
        FrameInvalid
            A column is not declared, or cannot be converted.
        """
        if undeclared := sorted(set(frame.columns) - set(self.by_name)):
            raise FrameInvalid(f"a {self.name} frame has no column {', '.join(undeclared)}")
        try:
            return pd.DataFrame(
                {
                    column.name: _convert(column, frame[column.name])
                    if column.name in frame
                    else _missing(column, frame.index)
                    for column in self.columns
                },
                index=frame.index,
                copy=False,
            )
        except (ValueError, TypeError) as reason:
            raise FrameInvalid(f"a {self.name} frame has a column of the wrong type: {reason}") from reason

    def check(self, frame: pd.DataFrame, *, columns: Iterable[str] | None = None) -> pd.DataFrame:
        """Return ``frame`` unchanged if it has the declared columns and types.

        ``columns`` limits the check to some of them.

        Raises
        ------
        FrameInvalid
            A declared column is missing or has another type.
        """
        # Reading all types at once takes as long as taking one column out of a frame.
        types = dict(zip(frame.columns.tolist(), frame.dtypes.tolist(), strict=True))
        for name in self.by_name if columns is None else columns:
            if name not in types:
                raise FrameInvalid(f"a {self.name} frame lacks its column {name!r}")
            self._check_type(name, types[name])
        return frame

    def arrays(self, frame: pd.DataFrame, columns: Iterable[str]) -> dict[str, Any]:
        """Return the arrays of some columns, checked as ``check`` does.

        Plain numbers are in NumPy arrays, other values in pandas arrays.

        Raises
        ------
        FrameInvalid
            A column is missing or has another type.
        """
        arrays, names = {}, frame.columns
        # This method is private to pandas and may be removed, but is 20 times as fast as taking a column as a Series.
        array_at = getattr(frame, "_get_column_array", lambda position: _column_array(frame.iloc[:, position]))
        for name in columns:
            if name not in names:
                raise FrameInvalid(f"a {self.name} frame lacks its column {name!r}")
            arrays[name] = array_at(names.get_loc(name))
            self._check_type(name, arrays[name].dtype)
        return arrays

    def _check_type(self, name: str, dtype: Any) -> None:
        declared = self.by_name[name].dtype
        # Plain types are the same objects everywhere, and their names are slow to make.
        if dtype is not self._types[name] and str(dtype) != declared:
            raise FrameInvalid(f"column {name!r} of a {self.name} frame is {dtype}, not {declared}")


def _column_array(values: pd.Series[Any]) -> Any:
    """Return the array of a column, NumPy's where it holds plain numbers."""
    array = values.array
    return array.to_numpy() if isinstance(array, NumpyExtensionArray) else array


def _convert(column: Column, values: pd.Series[Any]) -> pd.Series[Any]:
    if not column.dtype.startswith("int") and values.isna().all():
        # A column without values has no type of its own, and pandas would convert None to a time without a zone.
        return _missing(column, values.index)
    return values.astype(pandas_dtype(column.dtype))


def _missing(column: Column, index: pd.Index[Any]) -> pd.Series[Any]:
    fill = 0 if column.dtype.startswith("int") else None
    return pd.Series(fill, index=index, dtype=column.dtype, name=column.name)


def frame_kind(name: str, *columns: tuple[str, str, str]) -> FrameKind:
    """Return a kind of frame with columns of (name, dtype, doc)."""
    return FrameKind(
        name=name, columns=tuple(Column(name=column, dtype=dtype, doc=doc) for column, dtype, doc in columns)
    )


def seconds_of(times: pd.Series[Any]) -> NDArray[np.float64]:
    """Return times as seconds since the epoch, NaN if missing."""
    times_us = times.to_numpy(dtype="datetime64[us]")
    seconds: NDArray[np.float64] = times_us.astype(np.int64) / 1e6
    return np.where(np.isnat(times_us), np.nan, seconds)
