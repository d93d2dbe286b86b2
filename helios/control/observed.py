"""Pending jobs and nodes as control observed them.

They are copied from the snapshot before any service receives it, so that a service cannot change what guards check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from helios.actions import JobSetting
from helios.changes import Key, Setting
from helios.model import NodePower, Snapshot, node_pools


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """Pending record of the queue, with names as in ``QUEUE``.

    Attributes
    ----------
    submitted_us : int
        Submission, microseconds since the epoch. Slurm reuses job ids, so that a job is identified by its id and this.
    eligible_us : int
        When it can first start, in the same unit. If it is unknown, it counts as long ago.
    eligible : bool
        Whether it could have started at the time of the snapshot. Only then can its urgency be read.
    excluded_reason : str
        Why it must be left alone; empty where it may be changed.
    source : str
        What predicted its run time; empty where nothing did.
    """

    job_id: str
    array_job_id: str
    partition: str
    user: str
    submitted_us: int
    eligible_us: int
    eligible: bool
    time_limit_s: float
    user_soft_limit_s: float
    urgency: float
    soft_limit_s: float
    excluded_reason: str
    p50_s: float
    source: str

    def value(self, setting: Setting) -> float:
        """Return what Helios has set there, 0 or NaN for nothing."""
        return self.urgency if setting is JobSetting.ORDER else self.soft_limit_s

    def readable(self, setting: Setting) -> bool:
        """Return whether ``value`` is known for this setting."""
        return self.eligible or setting is JobSetting.SOFT_LIMIT

    def has_helios_value(self, setting: Setting) -> bool:
        """Return whether a value set by Helios was observed."""
        return self.urgency != 0 if setting is JobSetting.ORDER else not math.isnan(self.soft_limit_s)


def pending_jobs(snapshot: Snapshot) -> dict[str, PendingJob]:
    """Return the pending jobs by id, in the order of the queue."""
    frame = snapshot.pending
    columns = {
        "job_id": _text(frame["job_id"]),
        "array_job_id": _text(frame["array_job_id"]),
        "partition": _text(frame["partition"]),
        "user": _text(frame["user"]),
        "submitted_us": frame["submitted_at"].astype("int64").tolist(),
        "eligible_us": frame["eligible_at"].astype("int64").tolist(),
        "eligible": (frame["eligible_at"] <= snapshot.taken_at).tolist(),
        "time_limit_s": frame["time_limit_s"].tolist(),
        "user_soft_limit_s": frame["user_soft_limit_s"].tolist(),
        "urgency": frame["urgency"].fillna(0.0).tolist(),
        "soft_limit_s": frame["soft_limit_s"].tolist(),
        "excluded_reason": _text(frame["excluded_reason"]),
        "p50_s": frame["p50_s"].tolist(),
        "source": _text(frame["source"]),
    }
    rows = zip(*columns.values(), strict=True)
    return {row[0]: PendingJob(**dict(zip(columns, row, strict=True))) for row in rows}


def helios_values(jobs: Sequence[PendingJob]) -> list[Key]:
    """Return every job setting with an observed value of Helios."""
    return [(setting, job.job_id) for job in jobs for setting in JobSetting if job.has_helios_value(setting)]


def cycle_counts(snapshot: Snapshot | None) -> dict[str, Any]:
    """Return the jobs and GPUs of a snapshot, named as in ``CycleReport``.

    It is empty without a snapshot.
    """
    if snapshot is None:
        return {}
    pending, running = snapshot.pending, snapshot.running
    return {
        "pending": int(pending["tasks"].sum()),
        "running": int(running["tasks"].sum()),
        "gpus_pending": int((pending["tasks"] * pending["gpus"]).sum()),
        "gpus_running": int((running["tasks"] * running["gpus"]).sum()),
    }


def _text(values: pd.Series[Any]) -> list[str]:
    return [value if isinstance(value, str) else "" for value in values.astype(object)]


# Nodes.

OUT_OF_SERVICE = frozenset({"DRAIN", "DRAINING", "DRAINED", "DOWN", "FAIL", "FAILING", "MAINT", "MAINTENANCE"})
"""Flags of a node on which no job should start."""
NOT_RESPONDING = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
UNTOUCHABLE = OUT_OF_SERVICE | NOT_RESPONDING | {"COMPLETING", "PLANNED", "RESERVED", "REBOOT", "REBOOT_REQUESTED"}
"""Flags of a node that is never put to sleep, checked in addition to ``excluded_reason``."""
WAITS_FOR_NODES = frozenset({"Resources", "Priority", "None", ""})
"""Reasons of a pending job that only waits for nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """Node of the snapshot, with names as in ``NODE_STATES``.

    Attributes
    ----------
    pool : str
        As :func:`helios.model.node_pools` names it.
    power : NodePower, optional
        None where it is down or does not answer.
    excluded_reason : str
        Why its power must be left alone; empty where it may be changed.
    holds : bool
        Whether jobs hold any of it.
    idle_since : datetime, optional
        None where it is unknown, or the node is busy.
    """

    name: str
    partitions: tuple[str, ...]
    pool: str
    state: str
    flags: frozenset[str]
    power: NodePower | None
    excluded_reason: str
    kept_awake: bool
    weight: float
    features: tuple[str, ...]
    gpu_type: str
    holds: bool
    idle_since: datetime | None
    reason: str

    @property
    def idle(self) -> bool:
        """Whether it is awake and nothing runs on it."""
        return self.power is NodePower.AWAKE and self.state == "IDLE" and not self.holds

    @property
    def is_away(self) -> bool:
        """Whether it is asleep or falling asleep."""
        return self.power in {NodePower.ASLEEP, NodePower.FALLING_ASLEEP}

    @property
    def in_transition(self) -> bool:
        """Whether it falls asleep or wakes."""
        return self.power in {NodePower.FALLING_ASLEEP, NodePower.WAKING}

    @property
    def in_service(self) -> bool:
        """Whether jobs may run on it, awake or after a wake."""
        return self.power is not None and self.state != "DOWN" and not self.flags & OUT_OF_SERVICE

    @property
    def serves(self) -> bool:
        """Whether it is awake and takes jobs."""
        return self.power is NodePower.AWAKE and self.in_service and not self.flags & NOT_RESPONDING

    @property
    def down(self) -> bool:
        """Whether it is down or its power state is unknown."""
        return self.state == "DOWN" or self.power is None

    def kinds(self) -> list[str]:
        """Return the groups that should keep an awake node, as text.

        These are its pool, its GPU type and each of its features.
        """
        typed = [f"GPU type {self.gpu_type}"] if self.gpu_type else []
        return [f"pool {self.pool}", *typed, *(f"feature {feature}" for feature in self.features)]


def observed_nodes(snapshot: Snapshot) -> dict[str, ObservedNode]:
    """Return the nodes by name, in the cluster's order."""
    frame = snapshot.nodes
    text = {name: _text(frame[name]) for name in ("name", "partitions", "state", "flags", "power", "excluded_reason")}
    held = (frame["cpus_held"].fillna(0.0) > 0) | (frame["gpus_held"] > 0)
    columns = {
        "name": text["name"],
        "partitions": [tuple(part for part in value.split(",") if part) for value in text["partitions"]],
        "pool": node_pools(frame).tolist(),
        "state": text["state"],
        "flags": [frozenset(flag for flag in value.split("+") if flag) for value in text["flags"]],
        "power": [NodePower(value) if value else None for value in text["power"]],
        "excluded_reason": text["excluded_reason"],
        "kept_awake": (frame["kept_awake"] == 1).tolist(),
        "weight": frame["weight"].tolist(),
        "features": [tuple(part for part in value.split(",") if part) for value in _text(frame["features"])],
        "gpu_type": _text(frame["gpu_type"]),
        "holds": held.tolist(),
        "idle_since": [None if pd.isna(at) else at.to_pydatetime() for at in frame["idle_since"]],
        "reason": _text(frame["reason"]),
    }
    rows = zip(*columns.values(), strict=True)
    return {row[0]: ObservedNode(**dict(zip(columns, row, strict=True))) for row in rows}


def partitions_wanted(snapshot: Snapshot) -> frozenset[str]:
    """Return the partitions in which a pending job waits for nodes.

    Such a job is eligible, not held, and not waiting for a limit.
    """
    pending = snapshot.pending
    waits = (
        (pending["eligible_at"] <= pd.Timestamp(snapshot.taken_at))
        & ~(pending["priority"] == 0)
        & pending["reason"].astype(object).fillna("").isin(WAITS_FOR_NODES)
    )
    named = pending.loc[waits, "partition"].astype(object).dropna().unique()
    return frozenset(partition for names in named for partition in str(names).split(","))
