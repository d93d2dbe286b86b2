"""Reader of levels of partitions, in one file each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.ingest.node_series import on_grid, read_table, rows_in_order
from helios.study.statements.levels import RecordedLevels

_COLUMNS = ("running_gpu_num", "pending_gpu_num", "total_gpu_num")
_LEVELS_HINT = "It needs a header line with the columns time," + ",".join(_COLUMNS) + "."


def read_partition_levels(paths: Sequence[Path], *, timezone: str) -> RecordedLevels:
    """Read one file for each partition.

    Files may be compressed. Only the time that all cover is returned.

    Parameters
    ----------
    paths : sequence of Path
        Files that are named after their partitions.
    timezone : str
        IANA zone of times that carry none, and of the cluster's own clock.

    Raises
    ------
    FileUnreadable, FormatUnknown, NothingUnderstood
        As :func:`helios.ingest.node_series.read_series`.
    UsageError
        There is no file, no time that all cover, or they have different steps.
    """
    read, notes = list[tuple[int, int, NDArray[np.float64]]](), list[str]()
    for path in paths:
        table, columns = read_table(path, [_COLUMNS], hint=_LEVELS_HINT)
        seconds, values, repaired = rows_in_order(path, table, columns, timezone, hint=_LEVELS_HINT)
        start_s, step_s, laid, gaps, found = on_grid(path, seconds, values)
        notes += [*repaired, *found]
        if gaps.any():
            notes.append(f"{path.name}: {int(gaps.sum()):,} steps have no row; they are left out.")
        read.append((start_s, step_s, laid))
    step_s = read[0][1] if read else 1
    start_s = max((start for start, _, _ in read), default=0)
    end_s = min((start + step_s * laid.shape[1] for start, _, laid in read), default=0)
    if any(step != step_s or (start_s - start) % step_s for start, step, _ in read) or end_s <= start_s:
        raise UsageError(
            "The files have different steps, or no time in common.",
            hint="Give a file for each partition of one cluster, of one stretch of time.",
        )
    cut = np.stack([laid[:, (start_s - start) // step_s : (end_s - start) // step_s] for start, _, laid in read])
    missing = np.isinf(cut)
    cut = np.where(missing, 0.0, cut)
    return RecordedLevels(
        names=tuple(path.name.split(".")[0] or path.name for path in paths),
        timezone=timezone,
        start_s=start_s,
        step_s=step_s,
        used=cut[:, 0],
        waiting=cut[:, 1],
        capacity=cut[:, 2],
        gaps=np.asarray(missing.any(axis=(0, 1)), dtype=np.bool_),
        notes=tuple(notes),
    )
