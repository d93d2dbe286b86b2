"""What Helios counted of nodes at each look, as node seconds: a check of the accounting, and whose sleep it was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.energy.node_states import Spans, binned, seconds

HOLDS_S = 1_800
"""How long a count holds without another: looks are minutes apart, and a daemon that stood still saw nothing."""
LEAST_SEEN = 0.5
"""Share of a stretch that must have been seen to speak of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tallied:
    """Node seconds within each stretch of time, all pools together; NaN: too little of it was seen.

    Attributes
    ----------
    total_s : float64 array of shape (n,)
        In service.
    asleep_s : float64 array of shape (n,)
        Asleep.
    helios_s : float64 array of shape (n,)
        Asleep because Helios asked for it.
    wanted_s : float64 array of shape (n,)
        Wanted awake by a service; where it was asked about some pools only, what was awake of the others.
    """

    total_s: NDArray[np.float64]
    asleep_s: NDArray[np.float64]
    helios_s: NDArray[np.float64]
    wanted_s: NDArray[np.float64]


def tallied(tallies: pd.DataFrame, *, edges_s: NDArray[np.int64]) -> Tallied:
    """Return counts of nodes (``NODE_TALLIES``) as node seconds between ``edges_s``."""
    if tallies.empty:
        nothing = np.full(len(edges_s) - 1, np.nan)
        return Tallied(total_s=nothing, asleep_s=nothing, helios_s=nothing, wanted_s=nothing)
    rows = tallies.sort_values(["pool", "taken_at"], kind="stable")
    pool = rows["pool"].cat.codes.to_numpy().astype(np.int64)
    start_s = seconds(rows["taken_at"])
    same = np.append(pool[1:] == pool[:-1], False)
    end_s = np.where(same, np.minimum(np.append(start_s[1:], 0), start_s + HOLDS_S), start_s + HOLDS_S).astype(np.int64)

    def summed(weight: NDArray[np.float64]) -> NDArray[np.float64]:
        spans = Spans(node=pool, start_s=start_s, end_s=end_s, weight=weight)
        found: NDArray[np.float64] = binned(
            spans, edges_s=edges_s, group=np.zeros(int(pool.max()) + 1, dtype=np.int64), n_groups=1
        )[0]
        return found

    n_pools = len(np.unique(pool))
    seen = summed(np.ones(len(pool))) / (n_pools * np.diff(edges_s))
    asked = summed(rows["wanted"].notna().to_numpy().astype(np.float64)) > 0
    asleep, falling = (rows[name].to_numpy(dtype=np.float64) for name in ("asleep", "falling_asleep"))
    helios = rows["by_helios"].to_numpy(dtype=np.float64) * asleep / np.maximum(asleep + falling, 1)
    total = rows["total"].to_numpy(dtype=np.float64)
    wanted = np.where(rows["wanted"].isna(), total - asleep - falling, rows["wanted"])
    enough = seen >= LEAST_SEEN
    # What was seen stands for the rest of its stretch.
    share = np.where(enough, np.maximum(seen, LEAST_SEEN), 1.0)
    return Tallied(
        total_s=np.where(enough, summed(total) / share, np.nan),
        asleep_s=np.where(enough, summed(asleep) / share, np.nan),
        helios_s=np.where(enough, summed(helios) / share, np.nan),
        wanted_s=np.where(enough & asked, summed(wanted) / share, np.nan),
    )
