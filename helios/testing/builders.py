"""Builders of snapshots and their parts, for tests.

A test names only the values that matter to it. All others are those of an ordinary job on an ordinary node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pandas as pd

from helios.model import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    DECISIONS,
    NODE_STATES,
    NODE_TALLIES,
    QUEUE,
    FrameKind,
    JobState,
    NodeForecast,
    NodeUse,
    PoolUse,
    PowerSettings,
    Snapshot,
)
from helios.model.nodes import MINUTES_PER_DAY
from helios.ports import HORIZON_S

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
"""Default time of a snapshot, a Monday."""

Row = dict[str, Any]
"""Values of one job or node by column name. A column that is not named has a missing value."""

_ids = count(1)


def a_pending_job(**overrides: Any) -> Row:
    """Return an ordinary pending job as a row of ``QUEUE``.

    It belongs to alice, requests one GPU with a time limit of an hour, and was submitted ten minutes ago.

    Parameters
    ----------
    **overrides
        Columns of ``QUEUE``. Times may be text. ``job_id`` counts up by default, and ``eligible_at`` is
        ``submitted_at`` by default. With ``p50_s``, the default of ``p10_s`` is a third of it, that of ``p90_s`` three
        times as much, that of ``mean_s`` twice as much, and that of ``source`` is ``model``.

    Raises
    ------
    TypeError
        A name is not a column of ``QUEUE``.
    """
    row: Row = {
        "job_id": str(next(_ids)),
        "tasks": 1,
        "name": "train",
        "user": "alice",
        "group": "lab",
        "account": "lab",
        "qos": "normal",
        "partition": "gpu",
        "state": JobState.PENDING.value,
        "reason": "Priority",
        "submitted_at": pd.Timestamp(NOON) - pd.Timedelta(minutes=10),
        "time_limit_s": 3600.0,
        "nodes": 1.0,
        "cpus": 4.0,
        "gpus": 1,
        "priority": 100_000.0,
        "urgency": 0.0,
    } | _checked_overrides(QUEUE, overrides)
    return {"eligible_at": row["submitted_at"]} | _with_quantiles(row)


def a_running_job(**overrides: Any) -> Row:
    """Return an ordinary running job as a row of ``QUEUE``.

    It is the job of :func:`a_pending_job`, started on ``node1`` as soon as it was eligible.

    Parameters
    ----------
    **overrides
        Columns of ``QUEUE``, as in :func:`a_pending_job`.

    Raises
    ------
    TypeError
        A name is not a column of ``QUEUE``.
    """
    row = a_pending_job(**({"state": JobState.RUNNING.value, "reason": "None", "node_list": "node1"} | overrides))
    if _is_missing(row.get("started_at")):
        row["started_at"] = row["submitted_at"] if _is_missing(row["eligible_at"]) else row["eligible_at"]
    return row


def a_node(**overrides: Any) -> Row:
    """Return an ordinary node as a row of ``NODE_STATES``.

    It is idle, awake, in partition ``gpu``, and has 8 GPUs.

    Parameters
    ----------
    **overrides
        Columns of ``NODE_STATES``.

    Raises
    ------
    TypeError
        A name is not a column of ``NODE_STATES``.
    """
    return {
        "name": "node1",
        "partitions": "gpu",
        "state": "IDLE",
        "power": "awake",
        "kept_awake": 0,
        "cpus": 64.0,
        "cpus_held": 0.0,
        "gpus": 8,
        "gpus_held": 0.0,
        "memory_mib": 512_000.0,
        "weight": 1.0,
    } | _checked_overrides(NODE_STATES, overrides)


def a_snapshot(
    *,
    pending: Sequence[Mapping[str, Any]] = (),
    running: Sequence[Mapping[str, Any]] = (),
    nodes: Sequence[Mapping[str, Any]] | None = None,
    taken_at: datetime = NOON,
    cluster: str = "venus",
    power: PowerSettings | None = None,
    use: NodeUse | None = None,
    forecast: NodeForecast | None = None,
) -> Snapshot:
    """Return a valid snapshot of the given rows, in the given order.

    Parameters
    ----------
    pending, running : sequences of rows
        As :func:`a_pending_job` and :func:`a_running_job` return them.
    nodes : sequence of rows, optional
        As :func:`a_node` returns them. None means one ordinary node.
    taken_at : datetime
        Time of the snapshot.
    cluster : str
        Name of the cluster.
    power, use, forecast : optional
        As :func:`power_settings` and :func:`a_use` return them, and a forecast. None means that it has none.
    """
    return Snapshot(
        taken_at=taken_at,
        cluster=cluster,
        pending=frame_of(QUEUE, pending),
        running=frame_of(QUEUE, running),
        nodes=frame_of(NODE_STATES, [a_node()] if nodes is None else nodes),
        power=power,
        use=use,
        forecast=forecast,
    )


def power_settings(**overrides: Any) -> PowerSettings:
    """Return the power settings of an ordinary cluster.

    A node takes a minute to fall asleep and at most ten minutes to wake. Slurm puts a node to sleep by itself after a
    week idle. The keep-awake list can be changed.

    Parameters
    ----------
    **overrides
        Fields of :class:`helios.model.PowerSettings`.
    """
    values: dict[str, Any] = {
        "suspend_time_s": 604_800.0,
        "suspend_timeout_s": 60.0,
        "resume_timeout_s": 600.0,
        "can_keep_awake": True,
    }
    return PowerSettings(**(values | overrides))


def a_use(
    in_use: Mapping[str, Sequence[int] | int] | None = None,
    *,
    nodes: int = 16,
    at: datetime = NOON,
    days: int = 28,
    submissions: int = 10_000,
    has_holes: bool = False,
    **energy: float,
) -> NodeUse:
    """Return a record of nodes in use that ends at ``at``.

    Parameters
    ----------
    in_use : mapping, optional
        Nodes in use of each pool, by minute until ``at``. A number means so many for ``days`` days. None means 4 nodes
        in pool ``gpu``.
    nodes : int
        Nodes of each pool.
    submissions : int
        Minutes in which jobs were submitted, in each pool.
    has_holes : bool
        Whether use is missing from the record at times.
    **energy
        Fields of :class:`helios.config.Energy` that the site gives.
    """
    minutes = {
        pool: np.array([used] * (days * MINUTES_PER_DAY) if isinstance(used, int) else used, dtype=np.int64)
        for pool, used in ({"gpu": 4} if in_use is None else in_use).items()
    }
    ended_s = int(at.timestamp())
    today = ended_s // 60 % MINUTES_PER_DAY
    return NodeUse(
        ended_s=ended_s,
        recent={pool: last[-180:] for pool, last in minutes.items()},
        past={
            pool: PoolUse(
                nodes=nodes,
                most=np.maximum(last, np.concatenate([last[:1], last[:-1]])),
                last=last,
                raised=np.where(np.diff(last, prepend=last[:1]) > 0, last, 0),
                submissions=submissions,
                has_holes=has_holes,
            )
            for pool, whole in minutes.items()
            for last in (whole[: max(len(whole) - today, 0)],)
        },
        energy=energy,
    )


def frame_of(kind: FrameKind, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return ``rows`` as a frame of the given kind.

    A column that a row does not name has a missing value there.
    """
    empty = _empty_row(kind.name).take([0] * len(rows)).reset_index(drop=True)
    names = [name for name in kind.names if any(name in row for row in rows)]
    columns = {name: _typed_column(kind, name, rows) for name in names}
    return empty.assign(**{name: values for name, values in columns.items() if values is not None})


@cache
def _empty_row(kind_name: str) -> pd.DataFrame:
    """Return a frame with one row of missing values.

    It is cached because building typed empty columns is slow.
    """
    kinds = (QUEUE, NODE_STATES, DECISIONS, APPLIED_CHANGES, APPLIED_NODE_CHANGES, NODE_TALLIES)
    (kind,) = (kind for kind in kinds if kind.name == kind_name)
    return kind.conform(pd.DataFrame(index=[0]))


def _typed_column(kind: FrameKind, name: str, rows: Sequence[Mapping[str, Any]]) -> pd.Series[Any] | None:
    """Return the values of one column, or None where no row has one."""
    values, dtype = [row.get(name) for row in rows], kind.by_name[name].dtype
    is_missing = pd.isna(np.array(values, dtype=object))
    if is_missing.all():
        return None
    if dtype.startswith("datetime"):
        return pd.Series(pd.to_datetime(pd.Series(values, dtype=object), utc=True), dtype=dtype)
    if dtype.startswith("int"):
        values = [0 if absent else value for value, absent in zip(values, is_missing, strict=True)]
    return pd.Series(values, dtype=dtype)


def _checked_overrides(kind: FrameKind, overrides: Mapping[str, Any]) -> Row:
    unknown = sorted(set(overrides) - set(kind.names))
    if unknown:
        raise TypeError(f"{', '.join(unknown)}: not a column of a {kind.name} frame; it has {', '.join(kind.names)}")
    return {
        name: None
        if _is_missing(value)
        else _as_time(value)
        if kind.by_name[name].dtype.startswith("datetime")
        else value
        for name, value in overrides.items()
    }


def _with_quantiles(row: Row) -> Row:
    median_s = row.get("p50_s")
    if median_s is None:
        return row
    means = {"mean_s": 2 * median_s, "truncated_mean_s": min(2 * median_s, HORIZON_S)}
    return {"p10_s": median_s / 3, "p90_s": median_s * 3, "typical_s": median_s, **means, "source": "model"} | row


def _as_time(value: Any) -> pd.Timestamp:
    timestamp = pd.Timestamp(value)
    return timestamp.tz_localize("UTC") if timestamp.tzinfo is None else timestamp.tz_convert("UTC")


def _is_missing(value: Any) -> bool:
    return bool(pd.isna(value))
