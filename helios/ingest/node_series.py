"""Reader of time series of busy nodes.

Three layouts are read: ``time,active,total``; ``time,active``, where the caller gives the total; and that of the
Helios traces' virtual clusters, which counts GPUs. Real series have gaps, duplicate rows, rows out of order and an
hour that daylight saving repeats. Each defect is repaired in one documented way, and a note reports it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from helios.errors import FormatUnknown, NothingUnderstood, UsageError
from helios.ingest.lines import blocks, head
from helios.ingest.parse import TimeParser
from helios.model import STEP_S, NodeSeries

_TIME = "time"
_LAYOUTS = {("active", "total"): False, ("running_gpu_num", "total_gpu_num"): True, ("active",): False}
"""Columns beside the time, and whether they count GPUs. The first layout whose columns all exist is taken."""
_MOST_STEPS = 20_000_000
_HINT = "It needs a header line with the columns time,active,total; or time,active with --total N."


def read_series(path: Path, *, timezone: str, total: float | None = None, gpus_per_node: int = 8) -> NodeSeries:
    """Read a file of busy nodes, compressed or plain.

    Parameters
    ----------
    path : Path
        The file: comma-separated with a header line.
    timezone : str
        IANA zone of times that carry none.
    total : float, optional
        Nodes in service. It replaces a total in the file, and is required where the file has none.
    gpus_per_node : int
        GPUs of a node, for files that count GPUs. Their counts are divided by it and rounded up, as if jobs were
        packed.

    Raises
    ------
    FileUnreadable
        The file cannot be opened or decompressed.
    FormatUnknown
        It has none of the layouts.
    NothingUnderstood
        No row makes sense.
    UsageError
        The total is missing, or there is no such time zone.
    """
    table, columns = read_table(path, list(_LAYOUTS), hint=_HINT)
    in_gpus = _LAYOUTS[columns]
    if total is None and len(columns) == 1:
        raise UsageError(f"{path} does not tell how many nodes there are.", hint="Say it: --total N")
    seconds, values, notes = rows_in_order(path, table, columns, timezone, hint=_HINT)
    active, there = values[:, 0], values[:, 1] if len(columns) > 1 else np.zeros(len(values))
    if in_gpus:
        active, there = np.ceil(active / gpus_per_node), np.ceil(there / gpus_per_node)
        notes.append(
            f"GPUs are counted there, not nodes: {gpus_per_node} are taken for a node, rounded up, as if jobs were "
            "packed."
        )
    if total is not None:
        there = np.full(len(active), float(total))
    return _to_series(path, seconds, active, there, notes)


def resample(series: NodeSeries, step_s: int = STEP_S) -> NodeSeries:
    """Return the maximum of a series in each longer step.

    Steps that the series covers only in part are left out. A step is a gap where at least half of it is one.

    Raises
    ------
    UsageError
        ``step_s`` is not a multiple of the series' own step, or longer than the whole series.
    """
    parts = step_s // series.step_s
    if parts * series.step_s != step_s:
        raise UsageError(
            f"A series in steps of {series.step_s} s cannot be read in steps of {step_s} s.",
            hint=f"Give a series whose step divides {step_s} s.",
        )
    first = -(series.start_s // series.step_s) % parts
    n_steps = max(len(series) - first, 0) // parts
    if n_steps == 0:
        raise UsageError(f"{series.name} is shorter than one step of {step_s} s.", hint="Give a longer series.")

    def cut(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[first : first + n_steps * parts].reshape(n_steps, parts)

    return replace(
        series,
        start_s=series.start_s + first * series.step_s,
        step_s=step_s,
        active=cut(series.active).max(axis=1),
        total=cut(series.total).max(axis=1),
        gaps=cut(series.gaps.astype(np.float64)).mean(axis=1) >= 0.5,
    )


def sum_series(series: Sequence[NodeSeries], *, name: str) -> NodeSeries:
    """Return the sum of several series over the time that all cover.

    A gap in one series is a gap in the sum.

    Raises
    ------
    UsageError
        They have different steps, or no time in common.
    """
    if len(series) == 1:
        return series[0]
    step_s = series[0].step_s
    start_s, end_s = max(one.start_s for one in series), min(one.end_s for one in series)
    if any(one.step_s != step_s or (one.start_s - start_s) % step_s for one in series) or end_s <= start_s:
        raise UsageError(
            "The series have different steps, or no time in common: they cannot be added up.",
            hint="Give files of one cluster and one stretch of time, or one file at a time.",
        )
    cuts = [slice((start_s - one.start_s) // step_s, (end_s - one.start_s) // step_s) for one in series]
    return NodeSeries(
        name=name,
        start_s=start_s,
        step_s=step_s,
        active=np.sum([one.active[cut] for one, cut in zip(series, cuts, strict=True)], axis=0),
        total=np.sum([one.total[cut] for one, cut in zip(series, cuts, strict=True)], axis=0),
        gaps=np.any([one.gaps[cut] for one, cut in zip(series, cuts, strict=True)], axis=0),
        notes=(
            f"{len(series)} series are added up, over the time that all cover.",
            *dict.fromkeys(note for one in series for note in one.notes),
        ),
    )


def read_table(path: Path, layouts: Sequence[tuple[str, ...]], *, hint: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Read a table of times and the columns of a layout.

    Returns the table as text, and the first layout whose columns all exist.

    Raises
    ------
    FileUnreadable, FormatUnknown
        As :func:`read_series`.
    """
    header = head(path).split(b"\n", 1)[0].decode("utf-8", "replace")
    names = [name.strip().strip('"').lower() for name in header.split(",")]
    layout = next((columns for columns in layouts if {_TIME, *columns} <= set(names)), None)
    if layout is None:
        raise FormatUnknown(f"{path} is no series of nodes: its first line is {header[:100]!r}.", hint=hint)
    data = b"".join(block.data for block in blocks(path, lines_per_block=1_000_000, continues=lambda _: False))
    try:
        table = pd.read_csv(io.BytesIO(data), dtype="str", encoding_errors="replace", on_bad_lines="skip", names=names)
    except (pd.errors.ParserError, ValueError) as reason:
        raise FormatUnknown(f"{path} cannot be read as a table: {reason}.", hint=hint) from reason
    return table.iloc[1:], layout


def rows_in_order(
    path: Path, table: pd.DataFrame, columns: tuple[str, ...], timezone: str, *, hint: str
) -> tuple[NDArray[np.int64], NDArray[np.float64], list[str]]:
    """Return the rows that make sense, in order of time.

    They are their times (s since the epoch), their columns, and notes about what was repaired or left out.

    Raises
    ------
    NothingUnderstood
        There is none.
    """
    clock, notes = TimeParser(timezone), []
    seconds, unread = _seconds(clock, table[_TIME])
    values = np.column_stack([pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64) for name in columns])
    sane = ~unread & (np.isfinite(values) & (values >= 0)).all(axis=1)
    if not sane.any():
        raise NothingUnderstood(f"Not one row of {path} has a time and a number of nodes.", hint=hint)
    if not sane.all():
        notes.append(f"{path.name}: {int((~sane).sum()):,} rows without a time or a number of nodes were left out.")
    if clock.nonexistent:
        notes.append(f"{path.name}: {clock.nonexistent:,} local times that daylight saving skips were moved on.")
    seconds, values = seconds[sane], values[sane]
    if (np.diff(seconds) < 0).any():
        notes.append(f"{path.name}: rows were not in the order of time; they were sorted.")
    order = np.argsort(seconds, kind="stable")
    return seconds[order], values[order], notes


def _seconds(clock: TimeParser, texts: pd.Series[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the times, s since the epoch, and where there is none.

    Daylight saving repeats an hour, so that a local time can occur twice. Its second occurrence is then the later time.
    """
    column = pa.array(texts.to_numpy(dtype=object), from_pandas=True, type=pa.string())
    instants, _ = clock.read(column)
    again = pd.Series(instants).duplicated().to_numpy() & ~np.isnat(instants)
    if again.any():
        after = instants[again] + np.timedelta64(1, "us")
        instants = instants.copy()
        instants[again], _ = clock.read(column.filter(pa.array(again)), not_before=after)
    unread = np.isnat(instants)
    return np.where(unread, np.datetime64(0, "us"), instants).astype("datetime64[s]").astype(np.int64), unread


def _to_series(
    path: Path, seconds: NDArray[np.int64], active: NDArray[np.float64], there: NDArray[np.float64], notes: list[str]
) -> NodeSeries:
    """Lay the rows on an even grid of steps.

    A step without a row is a gap and repeats the last known value.

    Raises
    ------
    UsageError
        As :func:`on_grid`.
    """
    start_s, step_s, laid, gaps, found = on_grid(path, seconds, np.column_stack([active, there]))
    notes += found
    if gaps.any():
        notes.append(_holes(path.name, gaps, step_s))
        laid = laid[:, np.maximum.accumulate(np.where(gaps, 0, np.arange(len(gaps))))]
    if (beyond := int((laid[0] > laid[1]).sum())) > 0:
        notes.append(f"{path.name}: in {beyond:,} steps more nodes are active than there are; the total was raised.")
    return NodeSeries(
        name=path.name.split(".")[0] or path.name,
        start_s=start_s,
        step_s=step_s,
        active=laid[0],
        total=np.maximum(laid[1], laid[0]),
        gaps=gaps,
        notes=tuple(notes),
    )


def on_grid(
    path: Path, seconds: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[int, int, NDArray[np.float64], NDArray[np.bool_], list[str]]:
    """Lay rows in order of time on an even grid of steps.

    The step is the commonest distance of two rows. Of several rows in one step the maximum counts; a step without a row
    is -inf in every column.

    Returns
    -------
    The start and the step in s, the columns as rows of an array, whether each step has no row, and notes.

    Raises
    ------
    UsageError
        The series would have more than ``_MOST_STEPS`` steps.
    """
    apart = np.diff(np.unique(seconds))
    lengths, times = np.unique(apart, return_counts=True)
    step_s = int(lengths[times.argmax()]) if len(apart) else STEP_S
    start_s = int(seconds[0]) // step_s * step_s
    place = (seconds - start_s) // step_s
    n_steps = int(place[-1]) + 1
    if n_steps > _MOST_STEPS:
        raise UsageError(f"{path} spans {n_steps:,} steps of {step_s} s.", hint="Look for a wrong date in it.")
    notes = []
    if (twice := len(place) - len(np.unique(place))) > 0:
        notes.append(f"{path.name}: {twice:,} rows fall on a step that has another; the most of them counts.")
    laid = np.full((values.shape[1], n_steps), -np.inf)
    for row, column in zip(laid, values.T, strict=True):
        np.maximum.at(row, place, column)
    return start_s, step_s, laid, np.isinf(laid[0]), notes


def _holes(name: str, gaps: NDArray[np.bool_], step_s: int) -> str:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], gaps, [False]])))
    lengths = np.diff(edges)[::2]
    longest = f"{lengths.max() * step_s / 3600:.1f} h"
    found = f"a hole of {longest}" if len(lengths) == 1 else f"{len(lengths):,} holes, the longest of {longest}"
    return f"{name}: {found}; the last value stands there, and no forecast is judged by it."
