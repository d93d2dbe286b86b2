"""State observed on the cluster, and changes applied there by Helios.

Pending jobs and nodes are copied from the snapshot before any service receives it, so that a service cannot change what
guards check.

An applied change is recorded before it is made and confirmed when it was read back. Whatever happens in between, the
record has at least every changed target. A comparison with the observed state shows what somebody else has changed
since.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pandas as pd

from helios import ownership
from helios.actions import JobSetting, NodeSetting
from helios.changes import LIST, Key, Setting
from helios.config import SlurmSettings
from helios.errors import HostlistInvalid
from helios.model import FrameKind, Mode, NodePower, Snapshot, node_pools
from helios.model.nodes import OUT_OF_SERVICE, expand, expand_valid

NOT_RESPONDING = frozenset({"NOT_RESPONDING", "NO_RESPOND"})
UNTOUCHABLE = OUT_OF_SERVICE | NOT_RESPONDING | {"COMPLETING", "PLANNED", "RESERVED", "REBOOT", "REBOOT_REQUESTED"}
"""Flags of a node that is never put to sleep, checked in addition to ``excluded_reason``."""
WAITS_FOR_NODES = frozenset({"Resources", "Priority", "None", ""})
"""Reasons of a pending job that only waits for nodes."""

SET_AGAIN = " (set again)"
"""Suffix of ``after`` for a change that somebody had undone once, and that Helios made a second time."""

MINUTES_STEP_S = 60.0 * ownership.MINUTE_STEP
"""Distance of two adjacent soft limits that Helios writes, s."""
ROUNDING = 1e-9
"""Tolerance for floating-point errors of an urgency."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Jobs and nodes of one snapshot, by id and name."""

    at: datetime
    pending: frozenset[str]
    running: frozenset[str]
    nodes: frozenset[str]


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
    """Return the jobs and whole GPUs of a snapshot, named as in ``CycleReport``.

    It is empty without a snapshot.
    """
    if snapshot is None:
        return {}
    pending, running = snapshot.pending, snapshot.running
    return {
        "pending": int(pending["tasks"].sum()),
        "running": int(running["tasks"].sum()),
        "gpus_pending": round((pending["tasks"] * pending["gpus"]).sum()),
        "gpus_running": round((running["tasks"] * running["gpus"]).sum()),
    }


def _text(values: pd.Series[Any]) -> list[str]:
    return [value if isinstance(value, str) else "" for value in values.astype(object)]


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
    named = _jobs_that_wait(snapshot)["partition"].astype(object).dropna().unique()
    return frozenset(partition for names in named for partition in str(names).split(","))


def nodes_wanted(snapshot: Snapshot) -> int:
    """Return at most how many nodes pending jobs wait for."""
    jobs = _jobs_that_wait(snapshot)
    return int((jobs["nodes"].fillna(1).clip(lower=1) * jobs["tasks"].clip(lower=1)).sum())


def delayed_submissions(snapshot: Snapshot, nodes: Mapping[str, ObservedNode]) -> frozenset[str]:
    """Return the submissions of started jobs that wait for a node to boot.

    A submission is the pool of the node and the minute in which the job was submitted, as text.
    """
    waking = {node.name: node.pool for node in nodes.values() if node.holds and node.power is NodePower.WAKING}
    if not waking:
        return frozenset()
    running = snapshot.running
    minutes = running["submitted_at"].dt.strftime("%Y-%m-%dT%H:%M")
    return frozenset(
        f"{minute} {waking[first]}"
        for minute, text in zip(minutes, _text(running["node_list"]), strict=True)
        if (first := next((name for name in expand_valid(text) if name in waking), ""))
    )


def _jobs_that_wait(snapshot: Snapshot) -> pd.DataFrame:
    pending = snapshot.pending
    waits = (
        (pending["eligible_at"] <= pd.Timestamp(snapshot.taken_at))
        & ~(pending["priority"] == 0)
        & pending["reason"].astype(object).fillna("").isin(WAITS_FOR_NODES)
    )
    return pending[waits]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChange:
    """One applied change, as in ``APPLIED_CHANGES`` or ``APPLIED_NODE_CHANGES``.

    Attributes
    ----------
    target : str
        Id of a job, or name of a node; empty for the keep-awake list.
    value : float or str
        As in ``Change``.
    after : str
        Value that was read back. Empty, except for ``SET_AGAIN``, until it was read back.
    overridden : bool
        Whether somebody else has changed the setting since.
    submitted_us : int
        Submission of a job, microseconds since the epoch, because Slurm reuses ids.
    own : str
        The site's own value on a node; empty for its power.
    """

    setting: Setting
    target: str
    service: str
    mode: Mode
    value: Any
    after: str
    written_at: datetime
    overridden: bool = False
    submitted_us: int = 0
    own: str = ""

    @property
    def key(self) -> Key:
        """Setting and target."""
        return self.setting, self.target

    @property
    def confirmed(self) -> bool:
        """Whether the requested value was read back."""
        return self.after not in {"", SET_AGAIN}

    @property
    def set_again(self) -> bool:
        """Whether Helios has made this change a second time."""
        return self.after.endswith(SET_AGAIN)


AppliedByKey = dict[Key, AppliedChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChanges:
    """Changes applied on the cluster, and those that shadows would have applied."""

    real: AppliedByKey = field(default_factory=dict)
    shadow: AppliedByKey = field(default_factory=dict)

    @classmethod
    def read(cls, frame: pd.DataFrame, table: FrameKind) -> AppliedChanges:
        """Return the content of ``APPLIED_CHANGES`` or ``APPLIED_NODE_CHANGES``."""
        frame = table.check(frame)
        if "submitted_at" in frame:
            frame = frame.assign(submitted_us=frame["submitted_at"].astype("int64"))
        texts = [column.name for column in table.columns if column.dtype == "str"]
        about_jobs = "job_id" in texts
        rows = [
            AppliedChange(
                setting=(JobSetting if about_jobs else NodeSetting)(record["setting"]),
                target=record["job_id" if about_jobs else "node"],
                service=str(record["service"]),
                mode=Mode(record["mode"]),
                value=record["value"],
                after=record["after"],
                written_at=record["written_at"].to_pydatetime(),
                overridden=bool(record["overridden"]),
                submitted_us=record.get("submitted_us", 0),
                own=record.get("own", ""),
            )
            for record in frame.assign(**{name: frame[name].fillna("") for name in texts}).to_dict("records")
        ]
        return cls(
            real={row.key: row for row in rows if row.mode is not Mode.SHADOW},
            shadow={row.key: row for row in rows if row.mode is Mode.SHADOW},
        )

    def frame(self, table: FrameKind) -> pd.DataFrame:
        """Return both as columns of ``table``."""
        rows = [*self.real.values(), *self.shadow.values()]
        if not rows:
            return table.empty()
        fields = {"job_id": "target", "node": "target", "submitted_at": "submitted_us"}
        columns: dict[str, Any] = {name: [getattr(row, fields.get(name, name)) for row in rows] for name in table.names}
        columns["setting"] = [row.setting.value for row in rows]
        columns["mode"] = [row.mode.value for row in rows]
        columns["written_at"] = pd.to_datetime(columns["written_at"], utc=True)
        columns["overridden"] = [int(row.overridden) for row in rows]
        if "submitted_at" in columns:
            columns["submitted_at"] = pd.to_datetime(columns["submitted_at"], unit="us", utc=True)
        return table.conform(pd.DataFrame(columns))

    def of(self, mode: Mode) -> AppliedByKey:
        """Return the changes of services in ``mode``, applied or in shadow."""
        return self.shadow if mode is Mode.SHADOW else self.real

    def by_helios(self, setting: NodeSetting) -> list[AppliedChange]:
        """Return Helios' applied changes of one setting."""
        return [row for row in self.real.values() if row.setting is setting and not row.overridden]

    def own_values(self) -> dict[Key, str]:
        """Return the site's own values of settings that Helios changed."""
        return {key: row.own for key, row in self.real.items() if not row.overridden}


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Changes on nodes that would have to be reverted.

    They are stored outside of the database, for the kill switch.

    Attributes
    ----------
    asleep : tuple of str
        Nodes that Helios put to sleep, or is about to.
    weights : tuple of (str, int)
        Nodes whose weight Helios changed, with the site's own weight of each.
    keep_awake : str, optional
        The site's own keep-awake list. None where Helios did not change it.
    """

    asleep: tuple[str, ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    keep_awake: str | None = None

    @classmethod
    def of(cls, applied: AppliedChanges) -> Undo:
        """Return what reverts all applied changes on nodes."""
        kept = applied.real.get(LIST)
        weights = {row.target: row.own for row in applied.by_helios(NodeSetting.WEIGHT)}
        return cls(
            asleep=tuple(sorted(row.target for row in applied.by_helios(NodeSetting.POWER))),
            weights=tuple(sorted((node, int(float(own))) for node, own in weights.items())),
            keep_awake=None if kept is None or kept.overridden else kept.own,
        )

    def rows(self, *, at: datetime, service: str) -> AppliedByKey:
        """Return the content as applied changes of ``service``, to be reverted."""
        pairs = [
            *((NodeSetting.POWER, node, "asleep", "") for node in self.asleep),
            *((NodeSetting.WEIGHT, node, "unknown", str(own)) for node, own in self.weights),
            *([(NodeSetting.KEEP_AWAKE, "", "unknown", self.keep_awake)] if self.keep_awake is not None else []),
        ]
        rows = [
            AppliedChange(
                setting=setting,
                target=node,
                service=service,
                mode=Mode.ACTIVE,
                value=value,
                own=own,
                after="",
                written_at=at,
            )
            for setting, node, value, own in pairs
        ]
        return {row.key: row for row in rows}


def weight_in(words: str) -> float | None:
    """Return the weight in a text such as ``Weight 20``.

    None where the text has no number.
    """
    numbers = re.findall(r"\d+", words)
    return float(numbers[-1]) if numbers else None


def same_list(one: str, other: str) -> bool:
    """Return whether two keep-awake lists keep the same nodes awake.

    The notation does not matter. A list may have words of Slurm before it (``SuspendExcNodes n[1-4]``), and may keep a
    number of a group of nodes awake (``n[1-9]:4``).
    """
    return one == other or _parse_keep_awake(one) == _parse_keep_awake(other)


def _parse_keep_awake(words: str) -> frozenset[tuple[str, ...]]:
    text = words.rsplit(maxsplit=1)[-1] if words.split() else ""
    try:
        parts = [part.partition(":") for part in re.split(r",(?![^\[]*\])", text) if part]
        plain = {(node,) for names, _, least in parts if not least for node in expand(names)}
        return frozenset(plain | {(least, *expand(names)) for names, _, least in parts if least})
    except HostlistInvalid:
        return frozenset({(text,)})  # a text that cannot be parsed equals only itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Tolerances between requested values and those read back.

    Attributes
    ----------
    urgency : float
        Half a step, because an urgency is rounded to the nearest one.
    soft_limit_s : float
        A whole step, s, because a soft limit is rounded up.
    """

    urgency: float
    soft_limit_s: float = MINUTES_STEP_S

    @classmethod
    def of(cls, slurm: SlurmSettings) -> Tolerance:
        """Return the tolerances that follow from the bound of the SiteFactor."""
        return cls(urgency=0.5 / (ownership.steps(slurm.site_factor_most)) + ROUNDING)

    def same(self, setting: Setting, *, asked: float, read: float) -> bool:
        """Return whether ``read`` is how the cluster stores ``asked``.

        NaN stands for no soft limit.
        """
        if setting is JobSetting.ORDER:
            return abs(asked - read) <= self.urgency
        return -ROUNDING <= read - asked < self.soft_limit_s

    def is_nothing(self, setting: Setting, value: float) -> bool:
        """Return whether ``value`` means no change by Helios."""
        return abs(value) <= self.urgency if setting is JobSetting.ORDER else math.isnan(value)
