"""What stands changed: Helios' own book, held against what is seen, so that nobody else's hand is written over.

A change is entered before it is made and confirmed when it was read back: whatever happens in between, the book names
at least every job that was touched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pandas as pd

from helios import ownership
from helios.actions import JobSetting, NodeSetting
from helios.changes import LIST, Key, NodeKey
from helios.config import SlurmSettings
from helios.control.observed import PendingJob
from helios.errors import HostlistInvalid
from helios.model import APPLIED_CHANGES, APPLIED_NODE_CHANGES, Mode, Snapshot
from helios.model.hostlist import expand

# What stands changed on nodes: Helios' own book, and what others did to it since.
#
# A change is entered before it is made and confirmed when it was read back: whatever happens in between, the book
# names at least every node that was touched.


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedNodeChange:
    """One change that stands, as in ``APPLIED_NODE_CHANGES``.

    Attributes
    ----------
    own : str
        What the site itself had there; of a node's power empty.
    after : str
        What was read back; empty: it is entered, and not yet read back.
    admins : bool
        Whether it is somebody else's now.
    """

    setting: NodeSetting
    node: str
    service: str
    mode: Mode
    value: str
    own: str
    after: str
    written_at: datetime
    overridden: bool = False

    @property
    def key(self) -> NodeKey:
        """Setting and node."""
        return self.setting, self.node

    @property
    def confirmed(self) -> bool:
        """Whether it was read back as asked."""
        return bool(self.after)


NodeBook = dict[NodeKey, AppliedNodeChange]
"""What stands, by setting and node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedNodeChanges:
    """What stands on the cluster, and what would stand if the shadows could act."""

    real: NodeBook
    shadow: NodeBook

    def frame(self) -> pd.DataFrame:
        """Return both as columns of ``APPLIED_NODE_CHANGES``."""
        return _node_frame([*self.real.values(), *self.shadow.values()])

    def ours(self, setting: NodeSetting) -> list[AppliedNodeChange]:
        """Return what stands on the cluster because of Helios."""
        return [row for row in self.real.values() if row.setting is setting and not row.overridden]

    def own(self) -> dict[NodeKey, str]:
        """Return what the site itself has, where Helios changed it."""
        return {key: row.own for key, row in self.real.items() if not row.overridden}


def read_applied_nodes(frame: pd.DataFrame) -> AppliedNodeChanges:
    """Read ``APPLIED_NODE_CHANGES``."""
    rows = [_node_applied(record) for record in APPLIED_NODE_CHANGES.check(frame).to_dict("records")]
    return AppliedNodeChanges(
        real={row.key: row for row in rows if row.mode is not Mode.SHADOW},
        shadow={row.key: row for row in rows if row.mode is Mode.SHADOW},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """What would have to be reverted, in plain words that outlive the database: what a kill switch reads.

    Attributes
    ----------
    asleep : tuple of str
        Nodes that Helios put to sleep, or is about to.
    weights : tuple of (str, int)
        Nodes whose weight Helios changed, and the site's own weight of each.
    keep_awake : str, optional
        The site's own keep-awake list; None: Helios did not change it.
    """

    asleep: tuple[str, ...] = ()
    weights: tuple[tuple[str, int], ...] = ()
    keep_awake: str | None = None

    @classmethod
    def of(cls, applied: AppliedNodeChanges) -> Undo:
        """Return what undoes all that stands in the book."""
        kept = applied.real.get(LIST)
        weights = {row.node: row.own for row in applied.ours(NodeSetting.WEIGHT)}
        return cls(
            asleep=tuple(sorted(row.node for row in applied.ours(NodeSetting.POWER))),
            weights=tuple(sorted((node, int(float(own))) for node, own in weights.items())),
            keep_awake=None if kept is None or kept.overridden else kept.own,
        )

    def rows(self, *, at: datetime, service: str) -> NodeBook:
        """Return it as entries of a book that are nobody's, to be reverted."""
        pairs = [
            *((NodeSetting.POWER, node, "asleep", "") for node in self.asleep),
            *((NodeSetting.WEIGHT, node, "unknown", str(own)) for node, own in self.weights),
            *([(NodeSetting.KEEP_AWAKE, "", "unknown", self.keep_awake)] if self.keep_awake is not None else []),
        ]
        rows = [
            AppliedNodeChange(
                setting=setting,
                node=node,
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
    """Return the weight that is said in the mechanism's words (``Weight 20``); None: none is."""
    numbers = re.findall(r"\d+", words)
    return float(numbers[-1]) if numbers else None


def same_list(one: str, other: str) -> bool:
    """Return whether two keep-awake lists keep the same nodes awake, however they are folded.

    Each may stand alone or in the mechanism's words (``SuspendExcNodes n[1-4]``), and may say of how many nodes so many
    are kept (``n[1-9]:4``).
    """
    return one == other or _kept(one) == _kept(other)


def _kept(words: str) -> frozenset[tuple[str, ...]]:
    text = words.rsplit(maxsplit=1)[-1] if words.split() else ""
    try:
        parts = [part.partition(":") for part in re.split(r",(?![^\[]*\])", text) if part]
        plain = {(node,) for names, _, least in parts if not least for node in expand(names)}
        return frozenset(plain | {(least, *expand(names)) for names, _, least in parts if least})
    except HostlistInvalid:
        return frozenset({(text,)})  # what nobody can read is the same only as itself


def _node_applied(record: Mapping[Any, Any]) -> AppliedNodeChange:
    return AppliedNodeChange(
        setting=NodeSetting(record["setting"]),
        node=_text(record["node"]),
        service=str(record["service"]),
        mode=Mode(record["mode"]),
        value=_text(record["value"]),
        own=_text(record["own"]),
        after=_text(record["after"]),
        written_at=record["written_at"].to_pydatetime(),
        overridden=bool(record["overridden"]),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _node_frame(rows: Iterable[AppliedNodeChange]) -> pd.DataFrame:
    rows = list(rows)
    if not rows:
        return APPLIED_NODE_CHANGES.empty()
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in APPLIED_NODE_CHANGES.names}
    columns["setting"] = [row.setting.value for row in rows]
    columns["mode"] = [row.mode.value for row in rows]
    columns["written_at"] = pd.to_datetime(columns["written_at"], utc=True)
    columns["overridden"] = [int(row.overridden) for row in rows]
    return APPLIED_NODE_CHANGES.conform(pd.DataFrame(columns))


# How coarsely a cluster holds what it is asked to hold: what counts as the same when it is read back.

MINUTES_STEP_S = 60.0 * ownership.MINUTE_STEP
"""Distance of two neighbouring soft limits that Helios writes, s."""
ROUNDING = 1e-9
"""What floating point may lose of an urgency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far what is read may lie from what was asked.

    Attributes
    ----------
    urgency : float
        Half a step: an urgency is rounded to the nearest.
    soft_limit_s : float
        A whole step, s: a soft limit is rounded up.
    """

    urgency: float
    soft_limit_s: float = MINUTES_STEP_S

    @classmethod
    def of(cls, slurm: SlurmSettings) -> Tolerance:
        """Return what a bound of the SiteFactor leaves room for."""
        return cls(urgency=0.5 / (ownership.steps(slurm.site_factor_most)) + ROUNDING)

    def same(self, setting: JobSetting, *, asked: float, read: float) -> bool:
        """Return whether ``read`` (NaN: no soft limit) is what the cluster makes of ``asked``."""
        if setting is JobSetting.ORDER:
            return abs(asked - read) <= self.urgency
        return -ROUNDING <= read - asked < self.soft_limit_s

    def is_nothing(self, setting: JobSetting, value: float) -> bool:
        """Return whether ``value`` leaves a job as it would be without Helios."""
        return abs(value) <= self.urgency if setting is JobSetting.ORDER else math.isnan(value)


SET_AGAIN = " (set again)"
"""Ends the ``after`` of a change that somebody had undone once, and that Helios made a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChange:
    """One change that stands, as in ``APPLIED_CHANGES``.

    Attributes
    ----------
    after : str
        What was read back; empty but for ``SET_AGAIN``: it is entered, and not yet read back.
    admins : bool
        Whether it is somebody else's now.
    """

    setting: JobSetting
    job_id: str
    submitted_us: int
    service: str
    mode: Mode
    value: float
    after: str
    written_at: datetime
    overridden: bool = False

    @property
    def key(self) -> Key:
        """Setting and job."""
        return self.setting, self.job_id

    @property
    def confirmed(self) -> bool:
        """Whether it was read back as asked."""
        return self.after not in {"", SET_AGAIN}

    @property
    def set_again(self) -> bool:
        """Whether Helios made this change a second time already."""
        return self.after.endswith(SET_AGAIN)

    def is_of(self, job: PendingJob | None) -> bool:
        """Return whether ``job`` is the one that was changed, and not a later one of the same id."""
        return job is not None and job.job_id == self.job_id and job.submitted_us == self.submitted_us


Book = dict[Key, AppliedChange]
"""What stands, by setting and job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedChanges:
    """What stands on the cluster, and what would stand if the shadows could act."""

    real: Book
    shadow: Book

    def frame(self) -> pd.DataFrame:
        """Return both as columns of ``APPLIED_CHANGES``."""
        return _frame([*self.real.values(), *self.shadow.values()])

    def of_the_overridden(self) -> frozenset[Key]:
        """Return what Helios keeps off for good."""
        return frozenset(key for key, row in self.real.items() if row.overridden)


def read_applied(frame: pd.DataFrame) -> AppliedChanges:
    """Read ``APPLIED_CHANGES``."""
    submitted_us = APPLIED_CHANGES.check(frame)["submitted_at"].astype("int64")
    rows = [
        _applied(record, submitted) for record, submitted in zip(frame.to_dict("records"), submitted_us, strict=True)
    ]
    return AppliedChanges(
        real={row.key: row for row in rows if row.mode is not Mode.SHADOW},
        shadow={row.key: row for row in rows if row.mode is Mode.SHADOW},
    )


def drop_gone_jobs(applied: AppliedChanges, *, jobs: Mapping[str, PendingJob], snapshot: Snapshot) -> AppliedChanges:
    """Return the books without jobs that left the queue.

    What is an admin's is remembered while the job runs: a requeue brings it back.
    """
    running = set(snapshot.running["job_id"])
    return AppliedChanges(
        real={
            k: r
            for k, r in applied.real.items()
            if r.is_of(jobs.get(r.job_id)) or (r.overridden and r.job_id in running)
        },
        shadow={k: r for k, r in applied.shadow.items() if r.is_of(jobs.get(r.job_id))},
    )


def find_overridden(applied_now: Book, *, jobs: Mapping[str, PendingJob], tolerance: Tolerance) -> list[AppliedChange]:
    """Return what was read back as Helios had asked, and now reads otherwise.

    Jobs that cannot be read (not eligible) or must be left alone anyway are not judged.
    """
    return [row for row in applied_now.values() if _differs(row, jobs.get(row.job_id), tolerance)]


def drop_released(applied_now: Book, *, jobs: Mapping[str, PendingJob]) -> Book:
    """Return the book after a kill switch took everything back: without what is seen to be gone from the cluster.

    That it is gone is nobody's will about that job, and no reason to keep off it.
    """
    return {key: row for key, row in applied_now.items() if row.overridden or _may_stand(row, jobs.get(row.job_id))}


def _may_stand(row: AppliedChange, job: PendingJob | None) -> bool:
    # Slurm hides the place of a job that is held, or whose priority was set: those have a reason to be left alone.
    return job is None or job.carries(row.setting) or not job.readable(row.setting) or bool(job.excluded_reason)


def mark_overridden(applied_now: Book, rows: Iterable[AppliedChange]) -> Book:
    """Return the book with ``rows`` marked as somebody else's."""
    return applied_now | {row.key: replace(row, overridden=True) for row in rows}


def _differs(row: AppliedChange, job: PendingJob | None, tolerance: Tolerance) -> bool:
    if row.overridden or not row.confirmed or job is None or not row.is_of(job):
        return False
    if job.excluded_reason or not job.readable(row.setting):
        return False
    return not tolerance.same(row.setting, asked=row.value, read=job.value(row.setting))


def _applied(record: Mapping[Any, Any], submitted_us: int) -> AppliedChange:
    return AppliedChange(
        setting=JobSetting(record["setting"]),
        job_id=record["job_id"],
        submitted_us=submitted_us,
        service=str(record["service"]),
        mode=Mode(record["mode"]),
        value=float(record["value"]),
        after=record["after"] if isinstance(record["after"], str) else "",
        written_at=record["written_at"].to_pydatetime(),
        overridden=bool(record["overridden"]),
    )


def _frame(rows: list[AppliedChange]) -> pd.DataFrame:
    if not rows:
        return APPLIED_CHANGES.empty()
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in APPLIED_CHANGES.names if name != "submitted_at"
    }
    columns["setting"] = [row.setting.value for row in rows]
    columns["mode"] = [row.mode.value for row in rows]
    columns["submitted_at"] = pd.to_datetime([row.submitted_us for row in rows], unit="us", utc=True)
    columns["written_at"] = pd.to_datetime(columns["written_at"], utc=True)
    return APPLIED_CHANGES.conform(pd.DataFrame(columns))
