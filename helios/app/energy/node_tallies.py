"""Node counts of each control cycle, as node seconds.

They check the accounting and say which sleep Helios caused.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.node_states import (
    Spans,
    seconds,
    sum_by_bin,
)

HOLDS_S = 1_800
"""Longest time for which a count holds, s. Cycles are minutes apart; a daemon that did not run counted nothing."""
LEAST_SEEN = 0.5
"""Share of an interval that counts must cover for a result."""


def tally_states(tallies: pd.DataFrame, *, edges_s: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return node counts (``NODE_TALLIES``) as node seconds of all pools between ``edges_s``.

    Returns
    -------
    dict of float64 arrays of shape (n_intervals,)
        In service (``total``), ``asleep``, asleep because Helios asked for it (``helios``), and ``wanted`` awake by a
        service. Pools for which no service was called count as wanted with the nodes that were awake; NaN where no
        service was called for any pool. All are NaN where too little of the interval was covered.
    """
    if tallies.empty:
        return dict.fromkeys(("total", "asleep", "helios", "wanted"), np.full(len(edges_s) - 1, np.nan))
    rows = tallies.sort_values(["pool", "taken_at"], kind="stable")
    pool = rows["pool"].cat.codes.to_numpy().astype(np.int64)
    start_s = seconds(rows["taken_at"])
    same = np.append(pool[1:] == pool[:-1], False)
    end_s = np.where(same, np.minimum(np.append(start_s[1:], 0), start_s + HOLDS_S), start_s + HOLDS_S).astype(np.int64)
    one_group = np.zeros(int(pool.max()) + 1, dtype=np.int64)

    def summed(weight: NDArray[np.float64]) -> NDArray[np.float64]:
        spans = Spans(node=pool, start_s=start_s, end_s=end_s, weight=weight)
        found: NDArray[np.float64] = sum_by_bin(spans, edges_s=edges_s, group=one_group, n_groups=1)[0]
        return found

    asleep, falling, total, by_helios = (
        rows[name].to_numpy(dtype=np.float64) for name in ("asleep", "falling_asleep", "total", "by_helios")
    )
    counts = {
        "total": total,
        "asleep": asleep,
        "helios": by_helios * asleep / np.maximum(asleep + falling, 1),
        "wanted": np.where(rows["wanted"].isna(), total - asleep - falling, rows["wanted"]),
    }
    seen = summed(np.ones(len(pool))) / (len(np.unique(pool)) * np.diff(edges_s))
    enough = seen >= LEAST_SEEN
    # The covered part of an interval stands for the rest of it.
    share = np.where(enough, seen, 1.0)
    found = {name: np.where(enough, summed(count) / share, np.nan) for name, count in counts.items()}
    called = summed(rows["wanted"].notna().to_numpy().astype(np.float64)) > 0
    found["wanted"] = np.where(called, found["wanted"], np.nan)
    return found
