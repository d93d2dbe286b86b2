"""Snapshots of a simulated cluster, made from the tables of a replay.

Frames of running jobs and of nodes are made when they are first read, since few services read them.

A replay reads its queue thousands of times. So values that no event changes are taken by position from columns that
are made once, and frames are made of whole columns of the declared types, as pandas infers types slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import (
    JOBS,
    NODE_STATES,
    QUEUE,
    FrameKind,
    JobState,
    PowerSettings,
    Snapshot,
    largest_nodes,
    plain_values,
    with_sizes_requested,
)
from helios.ownership import MARK, STEP
from helios.ports import RUN_TIME

BASE_PRIORITY = 100_000.0
"""Priority of a job without urgency. An urgency adds the same as Slurm's SiteFactor."""
EXACT_STEPS = 99
"""Steps in which a priority is shown where urgencies are not rounded."""

_TEXT = pd.StringDtype(storage="python", na_value=np.nan)

Jobs = NDArray[np.int64]

_RUN_TIMES = tuple(RUN_TIME._asdict().items())

_OF_A_RUN = ("state", "started_at", "node_list")

_LAZY = ("pending", "running", "nodes")
"""Frames of a snapshot that are made when they are first read."""


class Coded(NamedTuple):
    """Column of categories.

    Each of ``codes`` stands for one of ``words``, -1 for a missing value.
    """

    codes: NDArray[Any]
    words: tuple[str, ...]


Values = NDArray[Any] | Coded
"""A column that may change: categories coded or as objects, times as ``datetime64[us]``, UTC."""
OwnColumns = Mapping[str, Values | Callable[[], Values]]
"""Columns that may change: values of one moment, or functions that return them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """Predictions for the jobs of a workload.

    They are filled in as the timeline goes on.

    Attributes
    ----------
    run_times : float64 array of shape (n_jobs, len(RUN_TIME))
        Columns of :class:`helios.ports.RunTime`; NaN: not predicted.
    source : int16 array of shape (n_jobs,)
        Position in ``sources`` of the predictor; -1: none.
    sources : list of str
        Model ids and fallbacks, distinct.
    longest_own_wait_s : float64 array of shape ()
        Longest wait so far under the site's own order, s; NaN: not known.
    """

    run_times: NDArray[np.float64]
    source: NDArray[np.int16]
    sources: list[str]
    longest_own_wait_s: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))


class FixedColumns:
    """Columns for all jobs, or all nodes, of a replay.

    Parameters
    ----------
    kind : FrameKind
    frame : DataFrame
        Columns of ``kind``: each job as it is while it is pending and unchanged, or each node while it is idle.
    """

    def __init__(self, kind: FrameKind, frame: pd.DataFrame) -> None:
        self._typed = {name: _typed_array(frame[name]) for name in kind.names}
        self._plain: dict[str, NDArray[Any]] = {}
        # Shared by all frames, so that pandas builds its lookup of columns once.
        self._names = pd.Index(kind.names, dtype=_TEXT)

    def frame(self, rows: Jobs, own: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows at these positions as a frame.

        Columns in ``own`` are used in place of the stored ones.
        """
        columns = {name: own[name] if name in own else typed.take(rows) for name, typed in self._typed.items()}
        result = pd.DataFrame(columns, index=pd.RangeIndex(len(rows)), copy=False)
        result.columns = self._names
        return result

    def values(self, name: str, rows: Jobs) -> NDArray[Any]:
        """Return one column for these rows, as ``pending_values`` does."""
        if name not in self._plain:
            self._plain[name] = plain_values(pd.Series(self._typed[name]))
        return self._plain[name].take(rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentRows:
    """Pending jobs, running jobs or nodes of a replay at one moment.

    A frame, or one column, is made on request.

    Attributes
    ----------
    facts : FixedColumns
    rows : int64 array
        Positions in ``facts``.
    own : mapping
        Columns that may change, for pending jobs also values that a service may read and no frame has.
    """

    facts: FixedColumns
    rows: Jobs
    own: OwnColumns

    def frame(self) -> pd.DataFrame:
        """Return all columns."""
        return self.facts.frame(self.rows, {name: _to_frame_column(self._own(name)) for name in self.own})

    def values(self, name: str) -> NDArray[Any]:
        """Return one column, as ``pending_values`` does."""
        if name not in self.own:
            return self.facts.values(name, self.rows)
        values = self._own(name)
        return _words_or_nan(values.words).take(values.codes) if isinstance(values, Coded) else values

    def _own(self, name: str) -> Values:
        values = self.own[name]
        return values() if callable(values) else values


def _to_frame_column(values: Values) -> Any:
    if isinstance(values, Coded):
        return encode(*values)
    if values.dtype.kind == "M":
        return pd.DatetimeIndex(values).tz_localize("UTC").array
    return pd.Categorical(values) if values.dtype == np.object_ else values


@lru_cache(maxsize=64)
def _words_or_nan(words: tuple[str, ...]) -> NDArray[np.object_]:
    """Return the words as objects, a missing value last for -1."""
    return np.array([*words, np.nan], dtype=np.object_)


def shown_priority(urgency: NDArray[np.float64], *, steps: int, held: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Return the priority that jobs have by their urgency, as a SiteFactor.

    ``steps`` are those between 0 and 1 that urgencies are rounded to; 0: they are not rounded.
    """
    level = np.rint(urgency * (steps or EXACT_STEPS))
    priority = BASE_PRIORITY + level * STEP + np.sign(urgency) * MARK
    return priority if held is None else np.where(held, 0.0, priority)


def predicted_columns(jobs: Jobs, predictions: Predictions | None) -> OwnColumns:
    """Return predictions of pending ``jobs``, and columns equal for all.

    A replay measures the worth of predictions, so it never orders by size.
    """
    shared = {"size_orders": lambda: np.zeros(len(jobs), dtype=np.bool_)}
    if predictions is None:
        return {**shared, "longest_own_wait_s": lambda: np.full(len(jobs), np.nan)}
    run_times, longest_s = predictions.run_times.take(jobs, axis=0), float(predictions.longest_own_wait_s)
    return {
        **shared,
        **{f"{name}_s": run_times[:, column] for name, column in _RUN_TIMES},
        "source": Coded(predictions.source.take(jobs), tuple(predictions.sources)),
        "longest_own_wait_s": lambda: np.full(len(jobs), longest_s),
    }


def _typed_array(column: pd.Series[Any]) -> Any:
    """Return the array of a column, with text as Python strings.

    Taking a few of them is much faster than taking a few of Arrow's.
    """
    if column.dtype == "str":
        return column.astype(_TEXT).array
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def encode(codes: NDArray[Any], words: tuple[str, ...]) -> pd.Categorical:
    """Return ``codes`` as a categorical of ``words``.

    -1: missing.
    """
    return pd.Categorical.from_codes(codes, dtype=_category(words), validate=False)


@lru_cache(maxsize=64)
def _category(words: tuple[str, ...]) -> Any:
    """Return the categorical type of these words.

    It is cached, since the check that they are distinct is slow.
    """
    return pd.CategoricalDtype(list(words))


class SnapshotBuilder:
    """Builder of the frames ``QUEUE`` and ``NODE_STATES`` for a replay.

    Parameters
    ----------
    queue : DataFrame
        Columns of ``QUEUE``: each job of the workload as it is while it is pending and unchanged.
    nodes : DataFrame
        Columns of ``NODE_STATES``: each node while it is idle.

    Attributes
    ----------
    node_gpus : int64 array of shape (n_jobs,)
        GPUs of the largest node that each job may run on, 8 where not known.
    """

    def __init__(self, queue: pd.DataFrame, nodes: pd.DataFrame) -> None:
        self.facts = FixedColumns(QUEUE, queue)
        self.names: list[str] = nodes["name"].tolist()
        self._nodes = FixedColumns(NODE_STATES, nodes)
        self.node_gpus = largest_nodes(plain_values(queue["partition"]), nodes)
        self._rows = np.arange(len(nodes))

    def running(
        self,
        jobs: Jobs,
        *,
        started_s: Jobs,
        shares: NDArray[np.void],
        first_share: Jobs,
        own: OwnColumns,
    ) -> MomentRows:
        """Return the rows of running ``jobs``, in that order.

        ``shares`` has a linked list of the nodes that each job holds. ``own`` are further columns.
        """
        shares, zeros = shares.copy(), np.zeros(len(jobs), dtype=np.int8)
        columns: OwnColumns = {
            "started_at": as_times(started_s),
            "node_list": lambda: self._node_lists(shares["node"], shares["next"], first_share),
            "state": Coded(zeros, (JobState.RUNNING.value,)),
            "reason": Coded(zeros - 1, ()),
        }
        return MomentRows(facts=self.facts, rows=jobs, own={**columns, **own})

    def nodes(self, free: NDArray[Any], held: NDArray[Any], own: OwnColumns) -> MomentRows:
        """Return the rows of all nodes.

        ``free`` and ``held`` are the amounts of the resource that makes a node idle, mixed or allocated. ``own`` are
        the other columns that change.
        """

        def state() -> Coded:
            level = (held > 0).astype(np.int8) + ((free == 0) & (held > 0))
            return Coded(level, ("IDLE", "MIXED", "ALLOCATED"))

        return MomentRows(facts=self._nodes, rows=self._rows, own={"state": state, **own})

    def _node_lists(self, node: NDArray[Any], next_share: NDArray[Any], share: Jobs) -> NDArray[np.object_]:
        """Return the nodes that each job holds, as text.

        ``share`` is the first of each job's linked list, which ends with -1.
        """
        n_jobs, n_nodes, job = len(share), len(self.names), np.arange(len(share))
        held = [np.empty(0, dtype=np.int64)]
        while len(job := job[share >= 0]):
            share = share[share >= 0]
            held.append(job * n_nodes + node[share])
            share = next_share[share]
        codes = np.unique(np.concatenate(held))
        names = [self.names[node_number] for node_number in (codes % n_nodes).tolist()]
        ends = np.searchsorted(codes, np.arange(n_jobs + 1) * n_nodes).tolist()
        lists = np.empty(n_jobs, dtype=np.object_)
        lists[:] = [",".join(names[first:after]) for first, after in pairwise(ends)]
        return lists


def pending_queue(jobs: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return all jobs as they are while they are pending and unchanged.

    ``columns`` replace those of ``jobs``, which has the columns of ``JOBS``.
    """
    names = [name for name in JOBS.names if name in QUEUE.by_name and name not in (*_OF_A_RUN, *columns)]
    frame = with_sizes_requested(jobs)[names].reset_index(drop=True)
    return QUEUE.conform(frame.assign(tasks=1, state=JobState.PENDING.value, reason="Priority", **columns))


def as_times(seconds: NDArray[np.int64]) -> NDArray[np.datetime64]:
    """Return times given in s since the epoch."""
    return (seconds * 1_000_000).view("datetime64[us]")


def times(seconds: NDArray[np.int64]) -> pd.DatetimeIndex:
    """Return times given in s since the epoch as UTC timestamps."""
    return pd.DatetimeIndex(as_times(seconds)).tz_localize("UTC")


Frames = dict[str, MomentRows]
"""Rows of ``running`` and of ``nodes``."""


class QueueColumns:
    """Running jobs and nodes at one moment, read on request.

    :meth:`freeze` has to be called before time goes on, for an instance that is still in use.
    """

    __slots__ = ("__weakref__", "_frames", "_read")

    def __init__(self, read: Callable[[], Frames]) -> None:
        self._read = read
        self._frames: Frames | None = None

    def freeze(self) -> Frames:
        """Return the rows, fixed as of the first call."""
        if self._frames is None:
            self._frames = self._read()
        return self._frames


class LazySnapshot(Snapshot):
    """Snapshot that makes its frames when they are first read.

    A frame that a service does not read costs nothing.
    """

    __slots__ = ("_context", "_pending")
    _context: QueueColumns
    _pending: MomentRows

    @classmethod
    def at(
        cls,
        now_s: int,
        *,
        cluster: str,
        pending: MomentRows,
        context: QueueColumns,
        power: PowerSettings | None,
        longest_own_wait_s: float,
    ) -> LazySnapshot:
        """Return a snapshot taken at ``now_s``."""
        snapshot = cls.__new__(cls)
        fields = {
            "taken_at": moment(now_s),
            "cluster": cluster,
            "power": power,
            "use": None,
            "forecast": None,
            "size_orders": False,
            "targets": (),
        }
        private = {"longest_own_wait_s": longest_own_wait_s, "_pending": pending, "_context": context}
        for name, value in (fields | private).items():
            object.__setattr__(snapshot, name, value)
        return snapshot

    def positions(self, rows: Jobs, facts: FixedColumns) -> Jobs | None:
        """Return the positions in the workload of some rows of ``pending``.

        None: the snapshot is of another replay than ``facts``.
        """
        pending = getattr(self, "_pending", None)
        return pending.rows.take(rows) if pending is not None and pending.facts is facts else None

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Make a frame when it is first read.

        Python calls this for an attribute that is not set yet.
        """
        if name not in _LAZY:
            raise AttributeError(name)
        frame = (self._pending if name == "pending" else self._context.freeze()[name]).frame()
        object.__setattr__(self, name, frame)
        return frame

    def pending_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``pending`` as a read-only array."""
        if hasattr(self, "_pending"):
            return self._pending.values(name)
        return super().pending_values(name)  # a copy made by dataclasses.replace, whose frames are there

    def running_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``running`` as a read-only array."""
        return self._values_of("running", name)

    def node_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``nodes`` as a read-only array."""
        return self._values_of("nodes", name)

    def _values_of(self, frame: str, name: str) -> NDArray[Any]:
        if hasattr(self, "_context"):
            return self._context.freeze()[frame].values(name)
        return plain_values(getattr(self, frame)[name])


def _is_set(snapshot: LazySnapshot, name: str) -> bool:
    """Return whether a slot has a value, without calling ``__getattr__``."""
    try:
        object.__getattribute__(snapshot, name)
    except AttributeError:
        return False
    return True


def moment(seconds: int) -> datetime:
    """Return a time given in s since the epoch as a UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)
