"""Levels of a cluster's partitions, in one file each, and what they say of idle GPUs beside waiting jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.ingest.node_series import on_grid, read_table, rows_in_order
from helios.metrics.blocks import WEEK_HOURS, Blocks, Finding, Question, local_edges
from helios.metrics.history import Flags, Floats
from helios.units import HOUR_S, count_in_words

_COLUMNS = ("running_gpu_num", "pending_gpu_num", "total_gpu_num")
_LEVELS_HINT = "It needs a header line with the columns time," + ",".join(_COLUMNS) + "."
FEWEST_FALLING = 3
"""Fewest partitions in use where a hole can begin, because few may become empty together by chance."""
LEAST_FALLING = 0.5
"""Smallest share of the partitions in use that become empty in the step where a hole begins."""
ALMOST_NOTHING = 0.02
"""A hole lasts while the use is below this share of the median use."""
LEAST_MISSING = 0.5
"""Share of a day without a record from which on the day is left out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedLevels:
    """Levels of partitions on one grid of steps.

    Attributes
    ----------
    names : tuple of str
        Partitions.
    timezone : str
        IANA zone of the cluster's own clock.
    start_s, step_s : int
        Start of the first step, s since the epoch, and length of each, s.
    used, waiting, capacity : float64 arrays of shape (n_partitions, n_steps)
        GPUs; ``waiting`` are those that jobs in the queue request.
    gaps : bool array of shape (n_steps,)
        Whether a partition has no record of a step.
    notes : tuple of str
    """

    names: tuple[str, ...]
    timezone: str
    start_s: int
    step_s: int
    used: Floats
    waiting: Floats
    capacity: Floats
    gaps: Flags
    notes: tuple[str, ...] = ()

    @property
    def end_s(self) -> int:
        """End of the last step, s since the epoch."""
        return self.start_s + self.step_s * len(self.gaps)


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


def find_holes(levels: RecordedLevels) -> Flags:
    """Return the steps in which nothing was recorded.

    Their rows wrongly have no use. A hole begins where most of the partitions in use become empty from one step to the
    next, and lasts while almost nothing is in use. On a quiet day partitions become empty one after the other. Whether
    the record or the cluster failed is not known. Either way these GPUs were not available.
    """
    total = levels.used.sum(axis=0)
    busy = np.median(total[~levels.gaps]) if (~levels.gaps).any() else 0.0
    quiet = total <= ALMOST_NOTHING * busy
    holes = np.zeros(len(total), dtype=np.bool_)
    begins = np.flatnonzero(quiet & ~np.concatenate([[True], quiet[:-1]]))
    ends = np.append(np.flatnonzero(~quiet), len(total))
    for begin in begins:
        was_used = levels.used[:, begin - 1] > 0
        fell = was_used & (levels.used[:, begin] == 0)
        if was_used.sum() >= FEWEST_FALLING and fell.sum() >= LEAST_FALLING * was_used.sum():
            holes[begin : ends[np.searchsorted(ends, begin)]] = True
    return holes


def idle_beside_waiting_levels(levels: RecordedLevels) -> Finding:
    """Return finding 1 from levels, in GPU hours a week.

    It is an upper bound, because it is not known which jobs fit. Days of which half or more is a hole or a gap are left
    out.
    """
    step_at_s = levels.start_s + levels.step_s * np.arange(len(levels.gaps), dtype=np.int64)
    edges_s = local_edges(levels.start_s, levels.end_s, timezone=levels.timezone)
    day = np.searchsorted(edges_s, step_at_s, side="right") - 1
    holes = find_holes(levels)
    steps = np.bincount(day)
    missing = np.bincount(day, weights=holes | levels.gaps) / steps
    is_kept = (missing < LEAST_MISSING)[day] & ~levels.gaps
    idle = np.maximum(levels.capacity - levels.used, 0.0)
    all_idle, all_waiting = idle.sum(axis=0), levels.waiting.sum(axis=0)
    pooled, within = np.minimum(all_idle, all_waiting), np.minimum(idle, levels.waiting).sum(axis=0)
    blocks = Blocks.of_window(levels.start_s, levels.end_s, timezone=levels.timezone)
    hours = blocks.sum(step_at_s[is_kept], pooled[is_kept]) * levels.step_s / HOUR_S
    weeks = blocks.sum(step_at_s[is_kept]) * levels.step_s / (WEEK_HOURS * HOUR_S)
    estimate = blocks.ratio(hours, weeks).bounded()
    served = float(levels.capacity[:, is_kept].sum())
    has_days = bool(is_kept.any())

    def mean(values: NDArray[np.float64] | Flags) -> float | None:
        return (
            float(values[..., is_kept].sum(axis=0).mean() if values.ndim > 1 else values[is_kept].mean())
            if has_days
            else None
        )

    return Finding(
        question=Question.IDLE_WHILE_JOBS_WAIT_ELSEWHERE,
        estimate=estimate,
        n=len(levels.names),
        coverage=float(is_kept.mean()),
        hours_per_week=estimate.value,
        missing="" if has_days else "a day without holes",
        parts={
            "level": "pooled",
            "mean_capacity": mean(levels.capacity),
            "mean_idle": mean(all_idle),
            "mean_waiting": mean(all_waiting),
            "pooled": mean(pooled),
            "same_partition": mean(within),
            "same_partition_share": float(within[is_kept].sum() / pooled[is_kept].sum())
            if pooled[is_kept].any()
            else None,
            "share_of_time_with_both": mean((all_idle > 0) & (all_waiting > 0)),
            "share_of_service": float(pooled[is_kept].sum()) / served if served else None,
            "by_partition": {
                name: {
                    "capacity": mean(levels.capacity[place]),
                    "used": mean(levels.used[place]),
                    "idle": mean(idle[place]),
                    "waiting": mean(levels.waiting[place]),
                }
                for place, name in enumerate(levels.names)
            },
            "days_left_out": _dates(edges_s[:-1][missing >= LEAST_MISSING], levels.timezone),
            "notes": [*levels.notes, *_holes_in_words(levels, holes, day, edges_s, missing)],
        },
    )


def _dates(moments_s: NDArray[np.int64], timezone: str) -> list[str]:
    return [f"{pd.Timestamp(moment, unit='s', tz='UTC').tz_convert(timezone):%Y-%m-%d}" for moment in moments_s]


def _holes_in_words(
    levels: RecordedLevels, holes: Flags, day: NDArray[np.int64], edges_s: NDArray[np.int64], missing: Floats
) -> list[str]:
    if not holes.any():
        return []
    minutes = np.bincount(day, weights=holes) * levels.step_s / 60
    descriptions = [
        f"{date}: {count_in_words(round(minutes_of_day), 'minute')}"
        + (", the day is left out" if share >= LEAST_MISSING else "")
        for date, minutes_of_day, share in zip(_dates(edges_s[:-1], levels.timezone), minutes, missing, strict=True)
        if minutes_of_day
    ]
    return [
        "Use of most partitions fell to nothing at the same moment, as where a record has a hole or a cluster fails. "
        + "; ".join(descriptions)
        + "."
    ]
