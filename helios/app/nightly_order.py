"""Nightly check of a site's queue order.

It compares orders on the last weeks. Where predictions are not better than the size of a job beyond chance, jobs are
ordered by size until a later check. Where nothing has been better than plain FIFO + EASY for four weeks, shadow mode is
proposed. Only an admin changes a mode or an option.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

import pandas as pd

from helios.app.history import LoadedHistory
from helios.app.own_order import LOOKS_BACK, gpu_machine
from helios.config import Settings
from helios.errors import HeliosError
from helios.ports import Progress, no_progress
from helios.report.verdict import CheckedOrder
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.whatif import WhatIfRequest

CHECKS = "order checks"
"""Name under which the warehouse keeps the last checks."""
KEPT = timedelta(weeks=5)
"""Time for which checks are kept."""
FRESH = timedelta(days=8)
"""Age at which a check no longer applies to the live queue."""
PATIENCE = timedelta(weeks=4)
"""Time without any order better than plain FIFO + EASY after which shadow mode is proposed."""
MOST_JOBS = 50_000
"""Most jobs to replay, the last ones."""
DRAWS = 10


class NoGpuMachine(HeliosError):
    """There are no GPUs whose queue could be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastCheck:
    """Result of one check.

    Attributes
    ----------
    at : datetime
    best : CheckedOrder
    sentences : tuple of str
        Its sentences.
    """

    at: datetime
    best: CheckedOrder
    sentences: tuple[str, ...]


def order_checks(warehouse: Warehouse, cluster: str) -> list[PastCheck]:
    """Return the kept checks of a cluster, oldest first."""
    text = warehouse.remembered(cluster, CHECKS)
    return [
        PastCheck(
            at=datetime.fromisoformat(entry["at"]), best=CheckedOrder(entry["best"]), sentences=tuple(entry["said"])
        )
        for entry in (json.loads(text) if text else [])
    ]


def size_orders(checks: Sequence[PastCheck], now: datetime) -> bool:
    """Return whether the last check found predictions no better than size.

    A check older than ``FRESH`` does not count.
    """
    return bool(checks) and checks[-1].best is CheckedOrder.SIZE and now - checks[-1].at < FRESH


def proposal(checks: Sequence[PastCheck], now: datetime) -> str:
    """Return the proposal of shadow mode, or an empty text."""
    vain = list(takewhile(lambda check: check.best is CheckedOrder.OWN, reversed(checks)))
    if not vain or now - vain[-1].at < PATIENCE:
        return ""
    return (
        f"In {len(vain)} checks over four weeks neither predictions nor size was told to be better than plain "
        "FIFO + EASY. Shadow mode loses nothing and goes on measuring: helios mode qssf shadow"
    )


def check_tonight(
    history: LoadedHistory,
    nodes: pd.DataFrame,
    *,
    settings: Settings,
    now: datetime,
    progress: Progress = no_progress,
) -> PastCheck:
    """Replay the last weeks and store the result.

    Parameters
    ----------
    history : LoadedHistory
        All jobs of the cluster.
    nodes : DataFrame
        Columns of ``NODE_STATES``, the machine of today.

    Raises
    ------
    NoGpuMachine
        The cluster has no GPUs.
    NotEnoughHistory
        No job of the last weeks can be replayed.
    """
    from helios.app.order_check import check_order  # noqa: PLC0415 - it compiles, and a live queue only reads checks

    # Recorded waits are those with Helios acting, so they say nothing of the site's own order.
    asked = _last_weeks(history, nodes, settings, now)
    result = check_order(*asked, draws=DRAWS, compares_recorded=False, progress=progress)
    check = PastCheck(at=now, best=result.best, sentences=tuple(result.sentences()))
    with Warehouse.open(settings.database.url) as warehouse:
        earlier = [each for each in order_checks(warehouse, history.cluster) if now - KEPT < each.at < now]
        entries = [{"at": each.at.isoformat(), "best": each.best, "said": each.sentences} for each in (*earlier, check)]
        warehouse.remember(history.cluster, CHECKS, json.dumps(entries), at=now)
    return check


def _last_weeks(
    history: LoadedHistory, nodes: pd.DataFrame, settings: Settings, now: datetime
) -> tuple[LoadedHistory, WhatIfRequest]:
    """Return the history and the window to replay.

    Partitions that share nodes become one.
    """
    from helios.app.whatif import WhatIfRequest  # noqa: PLC0415 - as above

    group_of, shape = gpu_machine(nodes)
    if shape is None:
        raise NoGpuMachine("The cluster has no GPU nodes with partitions, so no order of GPU jobs can be checked.")
    jobs = history.jobs
    partition = jobs["partition"].astype("str").str.split(",").str[0].map(group_of)
    names = dict(enumerate(shape.partitions))
    submitted = jobs["submitted_at"]
    recent = submitted[submitted >= pd.Timestamp(now) - LOOKS_BACK].iloc[-MOST_JOBS:]
    since = recent.min().to_pydatetime() if len(recent) else now - LOOKS_BACK
    per_node = int(shape.gpus_per_node.max())
    gpus = shape.nodes.astype(int) * shape.gpus_per_node
    request = WhatIfRequest(
        scenarios=(),
        since=since,
        until=now,
        nodes={names[group]: int(-(-total // per_node)) for group, total in enumerate(gpus)},
        gpus_per_node=per_node,
        resource="gpus",
        skip_oversized=True,
        default_time_limit_s=settings.whatif.default_time_limit_s,
    )
    jobs_by_group = jobs.assign(partition=partition.map(names).fillna("none").astype("category"))
    return replace(history, jobs=jobs_by_group), request
