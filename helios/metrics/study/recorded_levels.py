"""Levels of partitions as a site's monitoring recorded them, without jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.metrics.study.blocks import WEEK_HOURS, Blocks, local_edges
from helios.metrics.study.findings import Finding
from helios.units import HOUR_S, count_in_words

FEWEST_FALLING = 3
"""Partitions in use below which all of them may well end at one moment."""
LEAST_FALLING = 0.5
"""Share of the partitions in use that end at one moment where a hole begins."""
ALMOST_NOTHING = 0.02
"""Share of the median use up to which a hole lasts."""
LEAST_MISSING = 0.5
"""Share of a day without a record from which on the day is left out."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


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
        GPUs; waiting: those that jobs in the queue ask for.
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


def find_holes(levels: RecordedLevels) -> Flags:
    """Return the steps in which nothing was recorded.

    Their rows say, wrongly, that nothing was in use. A hole begins where most of the partitions in use fall to nothing
    from one step to the next, and lasts while next to nothing is in use. On a quiet day partitions fall empty one after
    the other. Whether the record or the cluster failed is not known; either way these GPUs were not to be had.
    """
    total = levels.used.sum(axis=0)
    busy = np.median(total[~levels.gaps]) if (~levels.gaps).any() else 0.0
    quiet = total <= ALMOST_NOTHING * busy
    holes = np.zeros(len(total), dtype=np.bool_)
    begins = np.flatnonzero(quiet & ~np.concatenate([[True], quiet[:-1]]))
    ends = np.append(np.flatnonzero(~quiet), len(total))
    for begin in begins:
        before = levels.used[:, begin - 1] > 0
        fallen = before & (levels.used[:, begin] == 0)
        if before.sum() >= FEWEST_FALLING and fallen.sum() >= LEAST_FALLING * before.sum():
            holes[begin : ends[np.searchsorted(ends, begin)]] = True
    return holes


def idle_beside_waiting_levels(levels: RecordedLevels) -> Finding:
    """Return finding 1 from levels, in GPU hours a week.

    Jobs are not known, so neither is what would fit: it is an upper bound. Days of which half or more is a hole or a
    gap are left out.
    """
    step_at_s = levels.start_s + levels.step_s * np.arange(len(levels.gaps), dtype=np.int64)
    edges_s = local_edges(levels.start_s, levels.end_s, timezone=levels.timezone)
    day = np.searchsorted(edges_s, step_at_s, side="right") - 1
    holes = find_holes(levels)
    steps = np.bincount(day)
    missing = np.bincount(day, weights=holes | levels.gaps) / steps
    kept = (missing < LEAST_MISSING)[day] & ~levels.gaps
    idle = np.maximum(levels.capacity - levels.used, 0.0)
    all_idle, all_waiting = idle.sum(axis=0), levels.waiting.sum(axis=0)
    pooled, within = np.minimum(all_idle, all_waiting), np.minimum(idle, levels.waiting).sum(axis=0)
    blocks = Blocks.of_window(levels.start_s, levels.end_s, timezone=levels.timezone)
    hours = blocks.sum(step_at_s[kept], pooled[kept]) * levels.step_s / HOUR_S
    weeks = blocks.sum(step_at_s[kept]) * levels.step_s / (WEEK_HOURS * HOUR_S)
    estimate = blocks.ratio(hours, weeks).bounded()
    served = float(levels.capacity[:, kept].sum())
    some = bool(kept.any())

    def mean(values: NDArray[np.float64] | Flags) -> float | None:
        return float(values[..., kept].sum(axis=0).mean() if values.ndim > 1 else values[kept].mean()) if some else None

    return Finding(
        number=1,
        estimate=estimate,
        n=len(levels.names),
        coverage=float(kept.mean()),
        hours_per_week=estimate.value,
        missing="" if some else "a day without holes",
        parts={
            "level": "pooled",
            "mean_capacity": mean(levels.capacity),
            "mean_idle": mean(all_idle),
            "mean_waiting": mean(all_waiting),
            "pooled": mean(pooled),
            "same_partition": mean(within),
            "same_partition_share": float(within[kept].sum() / pooled[kept].sum()) if pooled[kept].any() else None,
            "share_of_time_with_both": mean((all_idle > 0) & (all_waiting > 0)),
            "share_of_service": float(pooled[kept].sum()) / served if served else None,
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
    found = [
        f"{date}: {count_in_words(round(lasts), 'minute')}"
        + (", the day is left out" if share >= LEAST_MISSING else "")
        for date, lasts, share in zip(_dates(edges_s[:-1], levels.timezone), minutes, missing, strict=True)
        if lasts
    ]
    return [
        "Use of most partitions fell to nothing at the same moment, as where a record has a hole or a cluster fails. "
        + "; ".join(found)
        + "."
    ]
