"""Nightly check of the queue order on the last weeks.

Where predictions are not ahead of the size of a job, beyond chance, size orders until a later check finds otherwise.
Where nothing has been ahead of the site's own order for four weeks, shadow mode is proposed. Nothing else follows by
itself: a mode or an option is changed by an admin alone.
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
from helios.report.significance import CheckedOrder
from helios.warehouse import Warehouse

if TYPE_CHECKING:
    from helios.app.whatif import WhatIfRequest

CHECKS = "order checks"
"""Name under which the warehouse keeps the last checks."""
KEPT = timedelta(weeks=5)
FRESH = timedelta(days=8)
"""Age at which a check no longer says anything about the live queue."""
PATIENCE = timedelta(weeks=4)
"""How long no order must have been better than the site's own before shadow mode is proposed."""
MOST_JOBS = 50_000
"""Jobs of the last weeks that are replayed at most, the last ones."""
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
    said : tuple of str
        Its sentences.
    """

    at: datetime
    best: CheckedOrder
    said: tuple[str, ...]


def order_checks(warehouse: Warehouse, cluster: str) -> list[PastCheck]:
    """Return the kept checks of a cluster, oldest first."""
    text = warehouse.remembered(cluster, CHECKS)
    return [
        PastCheck(at=datetime.fromisoformat(entry["at"]), best=CheckedOrder(entry["best"]), said=tuple(entry["said"]))
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
        f"In {len(vain)} checks over four weeks neither predictions nor size was better than the site's own order. "
        "Shadow mode loses nothing and goes on measuring: helios mode qssf shadow"
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

    found = check_order(*_last_weeks(history, nodes, settings, now), draws=DRAWS, progress=progress)
    made = PastCheck(at=now, best=found.best, said=tuple(found.sentences()))
    with Warehouse.open(settings.database.url) as warehouse:
        kept = [check for check in order_checks(warehouse, history.cluster) if now - KEPT < check.at < now]
        text = json.dumps([{"at": one.at.isoformat(), "best": one.best, "said": one.said} for one in (*kept, made)])
        warehouse.remember(history.cluster, CHECKS, text, at=now)
    return made


def _last_weeks(
    history: LoadedHistory, nodes: pd.DataFrame, settings: Settings, now: datetime
) -> tuple[LoadedHistory, WhatIfRequest]:
    """Return the history and the window to replay.

    Partitions that share nodes are one there.
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
        plans=(),
        since=since,
        until=now,
        nodes={names[place]: int(-(-total // per_node)) for place, total in enumerate(gpus)},
        gpus_per_node=per_node,
        resource="gpus",
        skip_oversized=True,
        default_time_limit_s=settings.whatif.default_time_limit_s,
    )
    named = jobs.assign(partition=partition.map(names).fillna("none").astype("category"))
    return replace(history, jobs=named), request
