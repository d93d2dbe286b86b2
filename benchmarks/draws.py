"""Windows of traces on machines, and what the default order makes of them over draws.

A draw is that of ``helios whatif`` (helios/app/order_check.py): users moved by whole days where they are known and this
keeps the queue, else weeks, days or arrivals.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.order_check import DrawnWindow, check_draws
from helios.app.replay_cluster import parse_nodes
from helios.app.whatif import WhatIfRequest
from helios.report.verdict import CheckedOrder, geometric_mean

BUSY = 0.85
"""Share of a machine of unknown size that the jobs of a window would keep busy."""
GPUS_PER_NODE = 8
LARGEST_KEPT = 0.999
"""Quantile of the sizes that a machine of unknown size is made to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of a trace on a machine."""

    name: str
    file: str
    nodes: str
    gpus_per_node: int = 8
    since: datetime | None = None
    until: datetime | None = None

    def drawn_from(self, history: LoadedHistory) -> DrawnWindow:
        """Return the draws of the window."""
        request = WhatIfRequest(
            scenarios=(),
            since=self.since,
            until=self.until,
            nodes=parse_nodes(self.nodes),
            gpus_per_node=self.gpus_per_node,
            skip_oversized=True,
        )
        return DrawnWindow(history, request)


def day(text: str) -> datetime:
    """Return midnight of a day, UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def machine_for(jobs: pd.DataFrame) -> tuple[str, int]:
    """Return a pool that these jobs keep ``BUSY``, as ``Window`` takes it: nodes, and GPUs (or CPUs) of a node."""
    has_gpus = bool((jobs["gpus"] > 0).any())
    size = (jobs["gpus"] if has_gpus else jobs["cpus"]).to_numpy(dtype=np.float64)
    run_s = jobs["run_time_s"].to_numpy(dtype=np.float64)
    known = np.isfinite(size * run_s)
    span_s = max((jobs["submitted_at"].iloc[-1] - jobs["submitted_at"].iloc[0]).total_seconds(), 1.0)
    per_node = GPUS_PER_NODE if has_gpus else 1
    needed = float((size[known] * run_s[known]).sum()) / span_s / BUSY
    return str(int(np.ceil(max(needed, np.nanquantile(size, LARGEST_KEPT)) / per_node))), per_node


def rows(
    name: str, history: LoadedHistory, spans: Sequence[tuple[int, int]], *, draws: int
) -> Iterator[dict[str, Any]]:
    """Yield the figures of the default order in each window: against plain FIFO + EASY, and against size, equally aged.

    Windows in which hardly any job waits are left out, and those without a job that can be replayed, which are named.

    Parameters
    ----------
    spans : sequence of (int, int)
        Windows, s since the epoch.
    """
    for begin_s, end_s in spans:
        since, until = (datetime.fromtimestamp(moment, UTC) for moment in (begin_s, end_s))
        jobs = history.jobs
        inside = jobs[(jobs["submitted_at"] >= since) & (jobs["submitted_at"] < until)]
        if not (inside["run_time_s"].notna() & ((inside["gpus"] > 0) | (inside["cpus"] > 0))).any():
            what = "job has a run time and a size" if len(inside) else "job was submitted"
            print(f"{name}, {since:%Y-%m-%d} to {until:%Y-%m-%d}: left out, no {what}", file=sys.stderr)
            continue
        nodes, per_node = machine_for(inside)
        window = Window(name=name, file=name, nodes=nodes, gpus_per_node=per_node, since=since, until=until)
        check = check_draws(window.drawn_from(history), draws=draws)
        if check.has_no_waits:
            continue
        where = {
            "trace": name,
            "window": f"{since:%Y-%m-%d} to {until:%Y-%m-%d}",
            "nodes": int(nodes),
            "draws": draws,
        }
        ours, size = (
            {key: geometric_mean([getattr(one, key) for one in ratios]) for key in ("mean", "longest", "large")}
            for ratios in (check.ratios[CheckedOrder.PREDICTIONS], check.ratios[CheckedOrder.SIZE])
        )
        for question, key in (("mean wait", "mean"), ("longest wait", "longest"), ("large jobs", "large")):
            if np.isfinite(ours[key]):
                own = {"ours": ours[key], "control": 1.0, "ratio": ours[key], "best": "plain FIFO + EASY"}
                yield {"question": question, **where, **own}
        beside = {"ours": ours["mean"], "control": size["mean"], "ratio": ours["mean"] / size["mean"]}
        yield {"question": "mean wait beside size", **where, **beside, "best": "size, equally aged"}
