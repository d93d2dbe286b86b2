"""Small clusters for tests of a study, described by whole seconds after a midnight."""

from __future__ import annotations

from typing import Any

import pandas as pd

from helios.metrics.history import StudyHistory, read_history
from helios.model import NODE_EVENTS, NODES
from tests.builders import a_job, jobs_frame

MIDNIGHT = pd.Timestamp("2020-03-02T00:00:00Z")
MIDNIGHT_S = int(MIDNIGHT.timestamp())
DAY_S = 86_400


def at(second: float | None) -> pd.Timestamp | None:
    """The moment so many seconds after midnight."""
    return None if second is None else MIDNIGHT + pd.Timedelta(seconds=second)


def job(submitted: float, started: float | None, ended: float | None, gpus: int = 1, **more: Any) -> dict[str, Any]:
    """A job by its moments, which ran if it started."""
    run_time_s = float("nan") if started is None or ended is None else ended - started
    if started is None:
        state = "PENDING" if ended is None else "CANCELLED"
    else:
        state = "RUNNING" if ended is None else "COMPLETED"
    row = {"gpus": gpus, "run_time_s": run_time_s, "state": state, "gpu_type": None, "node_list": None} | more
    return a_job(submitted_at=at(submitted), started_at=at(started), ended_at=at(ended), **row)


def a_history(*jobs: dict[str, Any], end: float, first: float = 0, timezone: str = "UTC") -> StudyHistory:
    """The jobs of a window that begins at midnight."""
    since, until = at(first), at(end)
    assert since is not None and until is not None
    frame = jobs_frame(*jobs)
    return read_history(frame, cluster="tiny", timezone=timezone, since=since, until=until, resource="gpus")


def a_node(name: str, partition: str = "gpu", gpus: int = 8, **more: Any) -> dict[str, Any]:
    """A row of ``NODES``."""
    return {"name": name, "partition": partition, "gpus": gpus, "cpus": 64.0, "memory_mib": 1000.0} | more


def nodes_frame(*nodes: dict[str, Any]) -> pd.DataFrame:
    """A ``NODES`` frame."""
    return NODES.conform(pd.DataFrame([{name: node.get(name) for name in NODES.names} for node in nodes]))


def events_frame(*events: tuple[str, str, float, float | None]) -> pd.DataFrame:
    """A ``NODE_EVENTS`` frame of (node, state, start, end) rows."""
    rows = [
        {"node": node, "state": state, "started_at": at(start), "ended_at": at(end), "reason": None}
        for node, state, start, end in events
    ]
    frame = pd.DataFrame(rows, columns=NODE_EVENTS.names)
    for name in ("started_at", "ended_at"):
        frame[name] = pd.to_datetime(frame[name], utc=True)
    return NODE_EVENTS.conform(frame)
