"""The nouns: what was asked, what is, what was, what we expect.

The one place where columns are declared. Bulk data travels as pandas frames with these columns;
every room checks them at its door with :meth:`FrameKind.check`. A change of a column is a change here,
in a migration, and nowhere else; ``tests/unit/test_model.py`` holds schema and frames together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import pandas_dtype

from helios.errors import FrameInvalid

TIME = "datetime64[us, UTC]"


class JobState(StrEnum):
    """Slurm's base job states, as ``sacct`` prints them (slurm.h ``enum job_states``)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    REQUEUED = "REQUEUED"
    RESIZING = "RESIZING"
    REVOKED = "REVOKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One declared column of a frame.

    Parameters
    ----------
    name : str
        Column name; a bare number carries its unit in it.
    dtype : str
        ``category`` (text with few values, missing allowed), ``str`` (text, missing allowed),
        ``float64`` (missing is NaN), ``int32``/``int64`` (never missing), or ``TIME`` (missing is NaT).
    doc : str
        What it means, and what a missing value means.
    """

    name: str
    dtype: str
    doc: str

    def empty(self) -> pd.Series[Any]:
        """Return a series of length 0 with this column's type."""
        return pd.Series([], dtype=self.dtype, name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameKind:
    """A named set of columns, and the check that a frame has them."""

    name: str
    columns: tuple[Column, ...]
    by_name: dict[str, Column] = field(init=False)
    _types: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {column.name: column for column in self.columns})
        object.__setattr__(self, "_types", {column.name: pandas_dtype(column.dtype) for column in self.columns})

    @property
    def names(self) -> list[str]:
        """Column names in the declared order."""
        return list(self.by_name)

    def empty(self) -> pd.DataFrame:
        """Return a frame with all columns and no rows."""
        return pd.DataFrame({column.name: column.empty() for column in self.columns})

    def conform(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return ``frame`` with every declared column, in order and of its declared type.

        Columns that ``frame`` lacks become missing (0 for integers). Columns not declared here are refused.

        Raises
        ------
        FrameInvalid
            A column is not declared, or cannot be converted.
        """
        self._refuse_undeclared(frame.columns)
        try:
            return pd.DataFrame(
                {
                    column.name: _converted(column, frame[column.name])
                    if column.name in frame
                    else _missing(column, frame.index)
                    for column in self.columns
                },
                index=frame.index,
            )
        except (ValueError, TypeError) as reason:
            raise FrameInvalid(f"a {self.name} frame has a column of the wrong type: {reason}") from reason

    def check(self, frame: pd.DataFrame, *, columns: Iterable[str] | None = None) -> pd.DataFrame:
        """Return ``frame`` unchanged if it has the declared ``columns`` (default all) with their types.

        Raises
        ------
        FrameInvalid
            A declared column is missing or has another type.
        """
        # All types at once: taking a column out of a frame costs as much as reading all of its types.
        found = dict(zip(frame.columns.tolist(), frame.dtypes.tolist(), strict=True))
        for name in self.by_name if columns is None else columns:
            if name not in found:
                raise FrameInvalid(f"a {self.name} frame lacks its column {name!r}")
            declared = self.by_name[name].dtype
            # Plain types are the same objects everywhere, and slow to spell.
            if found[name] is not self._types[name] and str(found[name]) != declared:
                raise FrameInvalid(f"column {name!r} of a {self.name} frame is {found[name]}, not {declared}")
        return frame

    def _refuse_undeclared(self, names: Iterable[str]) -> None:
        undeclared = sorted(set(names) - set(self.by_name))
        if undeclared:
            raise FrameInvalid(f"a {self.name} frame has no column {', '.join(undeclared)}")


def _converted(column: Column, values: pd.Series[Any]) -> pd.Series[Any]:
    if not column.dtype.startswith("int") and values.isna().all():
        # A column of nothing has no type of its own: pandas would take None for a time without a zone.
        return _missing(column, values.index)
    return values.astype(pandas_dtype(column.dtype))


def _missing(column: Column, index: pd.Index[Any]) -> pd.Series[Any]:
    fill = 0 if column.dtype.startswith("int") else None
    return pd.Series(fill, index=index, dtype=column.dtype, name=column.name)


def _columns(*declared: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(name=name, dtype=dtype, doc=doc) for name, dtype, doc in declared)


JOBS = FrameKind(
    name="jobs",
    columns=_columns(
        ("job_id", "str", "The site's id (Slurm: JobIDRaw); unique with submit time and restart"),
        ("restart", "int32", "0 for the first run, then 1, 2, ... for each requeue of that id and time"),
        ("array_job_id", "str", "Slurm array master id; missing: not an array task, or unknown"),
        ("array_task_id", "str", "Slurm array task id; missing as above"),
        ("het_job_id", "str", "Slurm heterogeneous job id; missing: not one, or unknown"),
        ("het_job_offset", "float64", "Component number within a heterogeneous job"),
        ("name", "str", "Job name as submitted (some sites publish a hash)"),
        ("user", "category", "Who submitted; missing: unknown"),
        ("group", "category", "Unix group"),
        ("account", "category", "Slurm account"),
        ("qos", "category", "Slurm QOS"),
        ("partition", "category", "Partition (the paper's virtual cluster); missing: unknown"),
        ("state", "category", "A JobState; missing: unknown"),
        ("exit_code", "category", "Slurm's exit:signal"),
        ("submitted_at", TIME, "Submission; never missing"),
        ("eligible_at", TIME, "When it could first have started; missing: unknown"),
        ("started_at", TIME, "Start of the last run; missing: not started, or unknown"),
        ("ended_at", TIME, "End of the last run; missing: not ended, or unknown"),
        ("run_time_s", "float64", "End minus start of the last run, s; NaN: not ended, or unknown"),
        ("time_limit_s", "float64", "The user's time limit, s; inf: UNLIMITED; NaN: unknown"),
        ("nodes", "float64", "Nodes allocated, else requested; NaN: unknown"),
        ("cpus", "float64", "CPUs requested, else allocated; NaN: unknown"),
        ("gpus", "int32", "GPUs requested, else allocated; 0: a CPU job"),
        ("gpu_type", "category", "GRES type of the GPUs; missing: unknown or untyped"),
        ("memory_mib", "float64", "Memory requested for the whole job, MiB; NaN: unknown"),
        ("tres_requested", "category", "Slurm's ReqTRES text"),
        ("tres_allocated", "category", "Slurm's AllocTRES text"),
        ("node_list", "category", "Slurm's NodeList text"),
    ),
)

REJECTS = FrameKind(
    name="rejects",
    columns=_columns(
        ("line", "int64", "Line number in the file, from 1"),
        ("reason", "category", "Why the row makes no sense; few distinct values, to be counted"),
        ("text", "str", "The line as read, undecodable bytes escaped, at most 2,000 characters"),
    ),
)

NODES = FrameKind(
    name="nodes",
    columns=_columns(
        ("name", "str", "Node name"),
        ("partition", "category", "Partition; a node of several partitions has a row for each"),
        ("cpus", "float64", "CPUs"),
        ("gpus", "int32", "GPUs"),
        ("gpu_type", "category", "GRES type"),
        ("memory_mib", "float64", "Memory, MiB"),
    ),
)

NODE_EVENTS = FrameKind(
    name="node_events",
    columns=_columns(
        ("node", "str", "Node name"),
        ("state", "category", "Slurm node state during the event"),
        ("started_at", TIME, "Start of the event"),
        ("ended_at", TIME, "End of the event; missing: lasts"),
        ("reason", "str", "Reason given, if any"),
    ),
)

PREDICTIONS = FrameKind(
    name="predictions",
    columns=_columns(
        ("p10_s", "float64", "Run time that 10 % of such jobs stay below, s"),
        ("p50_s", "float64", "Median run time, s"),
        ("p90_s", "float64", "Run time that 90 % of such jobs stay below, s"),
        ("source", "category", "Model id, or the fallback that was used"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A stretch of a trace file: the jobs understood and the rows refused.

    Attributes
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    rejects : DataFrame
        Columns of ``REJECTS``.
    bytes_read : int
        Bytes of the (compressed) file consumed so far, for a progress bar.
    notes : tuple of str
        Things a person should be told: the zone assumed, values repaired.
    """

    jobs: pd.DataFrame
    rejects: pd.DataFrame
    bytes_read: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A trained duration predictor as text: what it learned from, how good it is, and itself.

    Attributes
    ----------
    model_id : str
        Name by which predictions, reports and the audit refer to it.
    cluster : str
        Cluster whose history it learned from.
    trained_at, trained_until : datetime
        When it was made; no job that ended at or after ``trained_until`` was used.
    jobs : int
        Number of jobs it learned from.
    features : tuple of str
        Feature names in the order the model takes them.
    scores : dict
        Figures of its evaluation; empty if it was not evaluated.
    artifact : str
        The whole model as JSON text (LightGBM's own text format inside); no pickle.
    """

    model_id: str
    cluster: str
    trained_at: datetime
    trained_until: datetime
    jobs: int
    features: tuple[str, ...]
    scores: dict[str, Any]
    artifact: str


def in_submission_order(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return ``jobs`` ordered by submit time, then job id (numbers by value), then restart.

    This is the one order in which ties are broken everywhere: queues, splits, features.
    """
    keys = pd.DataFrame(
        {
            "submitted_at": jobs["submitted_at"].to_numpy(),
            "id_length": jobs["job_id"].str.len().to_numpy(),
            "job_id": jobs["job_id"].to_numpy(),
            "restart": jobs["restart"].to_numpy(),
        }
    )
    position = keys.sort_values(list(keys.columns), kind="stable").index.to_numpy()
    return jobs.iloc[position].reset_index(drop=True)


class Mode(StrEnum):
    """How far a service may go."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"


QUEUE = FrameKind(
    name="queue",
    columns=_columns(
        ("job_id", "str", "Id by which the cluster knows the record; of a pending array, its master id"),
        ("restart", "int32", "How often it was requeued"),
        ("array_job_id", "str", "Slurm array master id; missing: not an array"),
        ("array_task_id", "str", "Array task id, or the pending tasks of the record as Slurm writes them (0-9%2)"),
        ("tasks", "int32", "Jobs that the record stands for: the pending tasks of an array, else 1"),
        ("het_job_id", "str", "Slurm heterogeneous job id; missing: not one"),
        ("het_job_offset", "float64", "Component number within a heterogeneous job"),
        ("name", "str", "Job name as submitted"),
        ("user", "category", "Who submitted"),
        ("group", "category", "Unix group"),
        ("account", "category", "Slurm account"),
        ("qos", "category", "Slurm QOS"),
        ("partition", "category", "Partition; several that are all acceptable are joined by commas"),
        ("state", "category", "A JobState"),
        ("reason", "category", "Why the cluster has not started it, in Slurm's word (Resources, Priority, ...)"),
        ("submitted_at", TIME, "Submission; never missing"),
        ("eligible_at", TIME, "When it can first start; missing: not yet known (a dependency)"),
        ("started_at", TIME, "Start of this run; missing: pending"),
        ("planned_start_at", TIME, "Start that the cluster's own backfill foresees; missing: none"),
        ("time_limit_s", "float64", "The user's time limit, s; inf: UNLIMITED; NaN: unknown"),
        ("user_soft_limit_s", "float64", "The user's own --time-min, s; NaN: none. Never changed by Helios"),
        ("nodes", "float64", "Nodes held, else asked for"),
        ("cpus", "float64", "CPUs of one task of the record, asked for or held"),
        ("gpus", "int32", "GPUs of one task of the record, asked for or held; 0: a CPU job"),
        ("gpu_type", "category", "GRES type of the GPUs; missing: unknown or any"),
        ("memory_mib", "float64", "Memory of one task of the record, MiB; NaN: unknown"),
        ("node_list", "category", "Nodes it runs on, in Slurm's text; missing: pending"),
        ("priority", "float64", "The cluster's own priority now; 0: held; NaN: unknown"),
        ("urgency", "float64", "What Helios has set, -1 to 1; 0: nothing, or it cannot be read"),
        ("soft_limit_s", "float64", "Soft limit that Helios has set, s; NaN: none"),
        ("hands_off", "category", "Why Helios must leave it alone, for a person; missing: it may act"),
        ("p10_s", "float64", "Predicted run time that 10 % of such jobs stay below, s; NaN: no prediction"),
        ("p50_s", "float64", "Predicted median run time, s"),
        ("p90_s", "float64", "Predicted run time that 90 % of such jobs stay below, s"),
        ("source", "category", "Model id or fallback that predicted; missing: no prediction"),
    ),
)

NODE_STATES = FrameKind(
    name="node states",
    columns=_columns(
        ("name", "str", "Node name"),
        ("partitions", "category", "Its partitions, by commas"),
        ("state", "category", "Slurm's base state: IDLE, ALLOCATED, MIXED, DOWN, ..."),
        ("flags", "category", "Slurm's state flags by +, as DRAIN or POWERED_DOWN; missing: none"),
        ("cpus", "float64", "CPUs"),
        ("cpus_held", "float64", "CPUs held by jobs"),
        ("gpus", "int32", "GPUs"),
        ("gpus_held", "int32", "GPUs held by jobs"),
        ("gpu_type", "category", "GRES type of the GPUs; missing: none or untyped"),
        ("memory_mib", "float64", "Memory, MiB"),
        ("weight", "float64", "Slurm's weight: lowest is filled first"),
        ("features", "category", "Active features, by commas; missing: none"),
        ("idle_since", TIME, "When its last job left; missing: unknown or busy"),
        ("reason", "str", "Reason an admin or Slurm gave for its state"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A cluster at one moment: all that a service sees.

    Attributes
    ----------
    taken_at : datetime
        Aware, UTC, by the clock of whoever looked.
    cluster : str
        The cluster's name.
    pending : DataFrame
        Columns of ``QUEUE``: jobs that have not started, in the cluster's own order, first to start first.
    running : DataFrame
        Columns of ``QUEUE``: jobs that hold resources (suspended ones too), oldest start first.
    nodes : DataFrame
        Columns of ``NODE_STATES``.
    """

    taken_at: datetime
    cluster: str
    pending: pd.DataFrame
    running: pd.DataFrame
    nodes: pd.DataFrame

    def __post_init__(self) -> None:
        QUEUE.check(self.pending)
        QUEUE.check(self.running)
        NODE_STATES.check(self.nodes)
        if self.taken_at.tzinfo is None:
            raise FrameInvalid("a snapshot's taken_at has no time zone")

    def pending_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``pending`` as a plain array, not to be written to.

        It says the same as the frame. A simulated cluster answers without making one, which is most of what a service
        costs in a rehearsal.

        Parameters
        ----------
        name : str
            A column of ``QUEUE``.

        Returns
        -------
        array of shape (n_pending,)
            Numbers as declared; times as ``datetime64[us]``, UTC, missing NaT; text and categories as objects, missing
            NaN.
        """
        return plain_values(self.pending[name])


def plain_values(column: pd.Series[Any]) -> NDArray[Any]:
    """Return a declared column as :meth:`Snapshot.pending_values` gives it."""
    if isinstance(column.dtype, np.dtype):
        return column.to_numpy()
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return column.to_numpy(dtype="datetime64[us]")
    return column.to_numpy(dtype=np.object_)


DECISIONS = FrameKind(
    name="decisions",
    columns=_columns(
        ("decided_at", TIME, "When; the rows of one turn share it"),
        ("service", "category", "Who proposed it; 'helios' for control itself"),
        ("mode", "category", "A Mode, or 'paused'"),
        ("action", "category", "Reorder, SoftLimit, Restore, ...; Turn for a line about a whole turn"),
        ("target", "str", "Job id, partition, node, or the cluster's name"),
        ("reason", "str", "Why, for a person"),
        ("before", "str", "What was read before, in the mechanism's words; missing: not applicable"),
        ("after", "str", "What was read back, in the mechanism's words; missing: not applicable"),
        ("model_id", "str", "What predicted; missing: nothing did"),
        ("outcome", "str", "A Result, and what more there is to say after a colon"),
    ),
)

STANDINGS = FrameKind(
    name="standings",
    columns=_columns(
        ("lever", "category", "A Lever: what of the job stands changed"),
        ("job_id", "str", "The job, as in QUEUE"),
        ("submitted_at", TIME, "Its submission: ids are used again"),
        ("service", "category", "Who asked for it"),
        ("mode", "category", "A Mode; shadow: only would stand"),
        ("value", "float64", "Urgency, or soft limit in s, as asked for"),
        ("after", "str", "What was read back, in the mechanism's words"),
        ("written_at", TIME, "When it was read back"),
        ("admins", "int32", "1: somebody else changed it since; it is theirs, Helios keeps off"),
    ),
)

MODES = FrameKind(
    name="modes",
    columns=_columns(
        ("service", "category", "The service"),
        ("mode", "category", "A Mode"),
        ("partitions", "str", "Partitions of a canary, by commas; missing: all"),
        ("percent", "float64", "Share of the jobs of a canary, 1 to 100; NaN: all"),
        ("set_at", TIME, "When"),
        ("set_by", "str", "Who"),
        ("reason", "str", "Why"),
    ),
)

TURNS = FrameKind(
    name="turns",
    columns=_columns(
        ("taken_at", TIME, "When the cluster was looked at"),
        ("seconds", "float64", "How long the turn took, s"),
        ("pending", "int64", "Jobs pending, array tasks counted one by one"),
        ("running", "int64", "Jobs running"),
        ("gpus_pending", "int64", "GPUs that pending jobs ask for"),
        ("gpus_running", "int64", "GPUs that running jobs hold"),
        ("acted", "int32", "Jobs changed on the cluster"),
        ("still", "str", "Why nothing was done, a reason a line; missing: services were asked"),
        ("counts", "str", "Outcomes as JSON: service, then Result, then number"),
    ),
)

COVERAGE = FrameKind(
    name="coverage",
    columns=_columns(
        ("source", "category", "What was read: jobs or node_events"),
        ("started_at", TIME, "Start of the stretch that was read"),
        ("ended_at", TIME, "End of the stretch"),
        ("read_at", TIME, "When its last part was read"),
    ),
)
