"""What Slurm's own idle timer would have done with the same jobs.

It is computed node by node, at the same times.
A node that was idle for the timer's length falls asleep. It starts to wake early enough to be up for its next job. In
truth the job would have waited for that boot. The comparison therefore favours the timer, and the savings against it
are rather too small than too large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from helios.app.energy.node_states import (
    SPARE,
    NodePowerState,
    NodeTimes,
    Spans,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Intervals in which a node was in service and held no job.

    Attributes
    ----------
    spans : Spans
    woken : bool array of shape (n,)
        Whether a job on that node ended the interval.
    """

    spans: Spans
    woken: NDArray[np.bool_]


def idle_gaps(times: NodeTimes) -> Gaps:
    """Return each node's maximal intervals without a job while in service.

    The node is idle, asleep, falling asleep or waking in them.
    """
    spare = np.isin(times.state, SPARE)
    follows = np.append(False, times.node[1:] == times.node[:-1]) if len(times.node) else np.array([], dtype=bool)
    before = np.append(False, spare[:-1]) if len(spare) else spare
    first = spare & ~(follows & before)
    last = spare & ~np.append((follows & spare)[1:], False) if len(spare) else spare
    ends = np.flatnonzero(last)
    after = np.minimum(ends + 1, len(times.node) - 1)
    woken = (after > ends) & (times.node[after] == times.node[ends]) & (times.state[after] == NodePowerState.BUSY)
    spans = Spans(node=times.node[first], start_s=times.start_s[first], end_s=times.end_s[ends])
    return Gaps(spans=spans, woken=woken)


def split_by_timer(gaps: Gaps, *, timer_s: float, boot_s: float, shutdown_s: float) -> dict[NodePowerState, Spans]:
    """Return what an idle timer would have done in these gaps.

    Parameters
    ----------
    timer_s : float
        Idle time after which a node falls asleep, s; inf for nodes that stay awake.
    """
    start, end = gaps.spans.start_s, gaps.spans.end_s
    dozes = end if np.isinf(timer_s) else np.minimum(start + int(timer_s), end)
    sleeps = np.minimum(dozes + int(shutdown_s), end)
    wakes = np.where(gaps.woken, np.maximum(end - int(boot_s), sleeps), end)
    cuts = {
        NodePowerState.IDLE: (start, dozes),
        NodePowerState.FALLING_ASLEEP: (dozes, sleeps),
        NodePowerState.ASLEEP: (sleeps, wakes),
        NodePowerState.WAKING: (wakes, end),
    }
    return {state: Spans(node=gaps.spans.node, start_s=first, end_s=last) for state, (first, last) in cuts.items()}
