"""What Slurm's own idle timer would have done with the same jobs at the same times, node by node.

A node that has been idle for the timer's time falls asleep; it wakes as long before its next job as a boot takes. In
truth the job would have waited for that boot: the timer is given the benefit of the doubt, and so are savings against
it if anything too small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.app.energy.node_states import SPARE, NodeTimes, Spans, State

DRAWS = 2_000
"""Resamplings of the days; the ends of the interval then move by less than its own twentieth."""
FEWEST_DAYS = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Stretches in which a node was in service and held no job.

    Attributes
    ----------
    spans : Spans
    woken : bool array of shape (n,)
        Whether a job on that node ended the stretch.
    """

    spans: Spans
    woken: NDArray[np.bool_]


def gaps_of(times: NodeTimes) -> Gaps:
    """Return the longest stretches of each node in which it was idle, asleep or on the way."""
    spare = np.isin(times.state, SPARE)
    follows = np.append(False, times.node[1:] == times.node[:-1]) if len(times.node) else np.array([], dtype=bool)
    before = np.append(False, spare[:-1]) if len(spare) else spare
    first = spare & ~(follows & before)
    last = spare & ~np.append((follows & spare)[1:], False) if len(spare) else spare
    ends = np.flatnonzero(last)
    after = np.minimum(ends + 1, len(times.node) - 1)
    woken = (after > ends) & (times.node[after] == times.node[ends]) & (times.state[after] == State.BUSY)
    spans = Spans(node=times.node[first], start_s=times.start_s[first], end_s=times.end_s[ends])
    return Gaps(spans=spans, woken=woken)


def under_timer(gaps: Gaps, *, timer_s: float, boot_s: float, shutdown_s: float) -> dict[State, Spans]:
    """Return what the nodes would have done in those stretches; ``timer_s`` inf: they would have stayed awake."""
    start, end = gaps.spans.start_s, gaps.spans.end_s
    dozes = end if np.isinf(timer_s) else np.minimum(start + int(timer_s), end)
    sleeps = np.minimum(dozes + int(shutdown_s), end)
    wakes = np.where(gaps.woken, np.maximum(end - int(boot_s), sleeps), end)
    cuts = {
        State.IDLE: (start, dozes),
        State.FALLING_ASLEEP: (dozes, sleeps),
        State.ASLEEP: (sleeps, wakes),
        State.WAKING: (wakes, end),
    }
    return {state: Spans(node=gaps.spans.node, start_s=first, end_s=last) for state, (first, last) in cuts.items()}


def interval_of(saved_by_day: NDArray[np.float64], *, band: float) -> tuple[float, float]:
    """Return where a sum over days may as well have lain: 95 % of resampled days, widened by the model's own band.

    With fewer than ``FEWEST_DAYS`` days only the band counts: too few to say how days differ.
    """
    total = float(saved_by_day.sum())
    low, high = total, total
    if len(saved_by_day) >= FEWEST_DAYS:
        # Seeded: the same history gives the same interval.
        picks = np.random.default_rng(0).integers(len(saved_by_day), size=(DRAWS, len(saved_by_day)))
        low, high = (float(end) for end in np.quantile(saved_by_day[picks].sum(axis=1), [0.025, 0.975]))
    return low - band * abs(low), high + band * abs(high)
