"""Snapshots of a simulated cluster, made from the tables of a replay.

Frames of running jobs and of nodes are made when they are first read, since few services read them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.model import JOBS, NODE_STATES, QUEUE, Demand, JobState, PowerSettings, Snapshot, plain_values
from helios.ownership import MARK, STEP
from helios.simulate.core.state import EngineState
from helios.simulate.slurm.workload import SlurmWorkload
from helios.simulate.workload import ClusterShape, Workload

# Rows of the queue: values that no event changes, and values that may change, as of one moment.
#
# A replay is asked for its queue thousands of times. So what no event changes is taken by position from columns that
# are made once, and frames are made of whole columns of the declared types: if pandas has to infer the types, that
# costs more than all else here.

BASE_PRIORITY = 100_000.0
"""Priority of a job without urgency; an urgency adds what Slurm's SiteFactor would."""
EXACT_STEPS = 99
"""Steps in which a priority is shown where urgencies are not rounded."""

_TEXT = pd.StringDtype(storage="python", na_value=np.nan)
_NAMES = pd.Index(QUEUE.names, dtype=_TEXT)
"""Shared by all frames, so that its lookup of columns is built once."""

Jobs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """Predictions for the jobs of a workload.

    They are filled in as the timeline goes on.

    Attributes
    ----------
    quantiles_s : float64 array of shape (n_jobs, 3)
        p10, p50, p90 of the run time, s; NaN: not predicted.
    source : int16 array of shape (n_jobs,)
        Position in ``sources`` of what predicted; -1: none.
    sources : list of str
        Model ids and fallbacks, distinct.
    longest_backlog_s : float64 array of shape ()
        The longest backlog so far (:mod:`helios.metrics.backlog`), s; NaN: it is not computed.
    """

    quantiles_s: NDArray[np.float64]
    source: NDArray[np.int16]
    sources: list[str]
    longest_backlog_s: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))


class QueueFacts:
    """Columns of ``QUEUE`` for all jobs of a replay.

    Parameters
    ----------
    queue : DataFrame
        Columns of ``QUEUE``: each job as it is while it is pending and unchanged.
    """

    def __init__(self, queue: pd.DataFrame) -> None:
        self._typed = {name: _typed(queue[name]) for name in QUEUE.names}
        self._plain: dict[str, NDArray[Any]] = {}

    def frame(self, jobs: Jobs, own: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of ``jobs`` as a frame.

        Columns in ``own`` are used in place of the stored ones.
        """
        columns = {name: own[name] if name in own else typed.take(jobs) for name, typed in self._typed.items()}
        made = pd.DataFrame(columns, index=pd.RangeIndex(len(jobs)), copy=False)
        made.columns = _NAMES
        return made

    def values(self, name: str, jobs: Jobs) -> NDArray[Any]:
        """Return one column for ``jobs``, as ``pending_values`` does."""
        if name not in self._plain:
            self._plain[name] = plain_values(pd.Series(self._typed[name]))
        return self._plain[name].take(jobs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRows:
    """Pending jobs of a replay at one moment.

    A frame, or one column, is made on request. Values that may change later are copies of that moment; None: the whole
    column is missing.
    """

    facts: QueueFacts
    jobs: Jobs
    urgency: NDArray[np.float64]
    soft_limit_s: NDArray[np.float64]
    steps: int
    excluded_reason: list[str | None] | None
    held: NDArray[np.bool_] | None
    quantiles_s: NDArray[np.float64] | None
    source: NDArray[np.int16] | None
    sources: tuple[str, ...]
    longest_backlog_s: float

    def frame(self) -> pd.DataFrame:
        """Return columns of ``QUEUE``."""
        own = {name: column for name, make in _OWN.items() if (column := make(self)) is not None}
        return self.facts.frame(self.jobs, own)

    def values(self, name: str) -> NDArray[Any]:
        """Return one column, as ``pending_values`` does."""
        if name == "longest_backlog_s":
            return np.full(len(self.jobs), self.longest_backlog_s)
        column = _OWN[name](self) if name in _OWN else None
        if column is None:
            return self.facts.values(name, self.jobs)
        return plain_values(pd.Series(column)) if isinstance(column, pd.Categorical) else column

    @property
    def priority(self) -> NDArray[np.float64]:
        """Priority that the SiteFactor of each job's urgency would give it."""
        steps = np.rint(self.urgency * (self.steps or EXACT_STEPS))
        priority: NDArray[np.float64] = BASE_PRIORITY + steps * STEP + np.sign(self.urgency) * MARK
        return priority if self.held is None else np.where(self.held, 0.0, priority)


def _quantile(column: int) -> Callable[[PendingRows], Any]:
    return lambda rows: None if rows.quantiles_s is None else rows.quantiles_s[:, column]


_OWN: dict[str, Callable[[PendingRows], Any]] = {
    "urgency": lambda rows: rows.urgency,
    "soft_limit_s": lambda rows: rows.soft_limit_s,
    "priority": lambda rows: rows.priority,
    "excluded_reason": lambda rows: None if rows.excluded_reason is None else pd.Categorical(rows.excluded_reason),
    "p10_s": _quantile(0),
    "p50_s": _quantile(1),
    "p90_s": _quantile(2),
    "source": lambda rows: None if rows.source is None else encode(rows.source, rows.sources),
}
"""Columns that may change during a replay; None: the whole column is missing."""


def _typed(column: pd.Series[Any]) -> Any:
    """Return the array of a column, with text as Python strings.

    Taking a few of them is much faster than taking a few of Arrow's.
    """
    if column.dtype == "str":
        return column.astype(_TEXT).array
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def encode(codes: NDArray[Any], words: tuple[str, ...]) -> pd.Categorical:
    """Return the categorical in which each of ``codes`` stands for one of ``words``.

    -1: missing.
    """
    return pd.Categorical.from_codes(codes, dtype=_category(words), validate=False)


@lru_cache(maxsize=64)
def _category(words: tuple[str, ...]) -> Any:
    """Return the categorical type of these words.

    It is cached, since the check that they are distinct is slow.
    """
    return pd.CategoricalDtype(list(words))


_FIXED = [name for name in JOBS.names if name in QUEUE.by_name and name not in ("state", "started_at", "node_list")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobMarks:
    """Values that were set on the jobs of a replay.

    Arrays have shape (n_jobs,). ``steps`` is the number of steps between 0 and 1 that urgencies are rounded to; 0: they
    are not rounded. ``excluded_reason`` says, by position, why a job must be left alone. ``held`` are positions.
    """

    urgency: NDArray[np.float64]
    soft_limit_s: NDArray[np.float64]
    steps: int
    excluded_reason: dict[int, str]
    held: set[int]


def unique_ids(workload: Workload | SlurmWorkload) -> list[str]:
    """Return a distinct name for each job.

    It is the site's id, with -2, -3, ... appended where the id was used again.
    """
    taken: set[str] = set()
    return [_fresh(str(job_id), taken) for job_id in workload.job_id]


def _fresh(job_id: str, taken: set[str]) -> str:
    if job_id in taken:
        job_id = next(name for again in count(2) if (name := f"{job_id}-{again}") not in taken)
    taken.add(job_id)
    return job_id


class SnapshotBuilder:
    """Builder of the frames ``QUEUE`` and ``NODE_STATES`` for a replay.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload.
    resource : str
        ``gpus`` or ``cpus``: what the field ``gpus`` of the workload counts.
    """

    def __init__(
        self, workload: Workload, shape: ClusterShape, jobs: pd.DataFrame, *, job_ids: list[str], resource: str
    ) -> None:
        self._facts = QueueFacts(_queue(workload, shape, jobs, job_ids, resource))
        self._nodes = _nodes(shape, resource)
        self._size = np.repeat(shape.gpus_per_node.astype(np.int64), shape.nodes)
        self._names = self._nodes["name"].tolist()
        self._resource = resource

    def pending(self, jobs: Jobs, marks: JobMarks, predictions: Predictions | None) -> PendingRows:
        """Return the rows of pending ``jobs``, in that order, as of now."""
        return PendingRows(
            facts=self._facts,
            jobs=jobs,
            urgency=marks.urgency.take(jobs),
            soft_limit_s=marks.soft_limit_s.take(jobs),
            steps=marks.steps,
            excluded_reason=[marks.excluded_reason.get(job) for job in jobs.tolist()]
            if marks.excluded_reason
            else None,
            held=np.array([job in marks.held for job in jobs.tolist()], dtype=bool) if marks.held else None,
            quantiles_s=None if predictions is None else predictions.quantiles_s.take(jobs, axis=0),
            source=None if predictions is None else predictions.source.take(jobs),
            sources=() if predictions is None else tuple(predictions.sources),
            longest_backlog_s=math.nan if predictions is None else float(predictions.longest_backlog_s),
        )

    def running(self, jobs: Jobs, tables: EngineState) -> Callable[[], pd.DataFrame]:
        """Return a function that makes the frame of running ``jobs``.

        Its rows are in that order and as of now.
        """
        # A job whose nodes are still waking is shown as started when it got them: when they are up lies in the future.
        late = tables.jobs["resumed_s"][jobs] > tables.clock["now_s"][0]
        started_s = tables.jobs["started_s"][jobs] - np.where(late, tables.jobs["late_s"][jobs], 0)
        held = tables.jobs["first_share"][jobs]
        shares = tables.shares.copy()

        def made() -> pd.DataFrame:
            places = pd.Categorical([self._place(shares, share) for share in held.tolist()])
            first = np.zeros(len(jobs), dtype=np.int8)
            state = encode(first, (JobState.RUNNING.value,))
            own = {"started_at": times(started_s).array, "node_list": places, "state": state}
            return self._facts.frame(jobs, own | {"reason": encode(first - 1, ())})

        return made

    @property
    def facts(self) -> QueueFacts:
        """Columns that no event changes, for all jobs."""
        return self._facts

    @property
    def names(self) -> list[str]:
        """Names of the nodes, in the order of the state."""
        return self._names

    def nodes(self, tables: EngineState, changing: Callable[[], dict[str, Any]]) -> Callable[[], pd.DataFrame]:
        """Return a function that makes the frame of all nodes as of now.

        ``changing`` makes its columns of power and weight.
        """
        free = tables.nodes["free"].copy()

        def made() -> pd.DataFrame:
            held = self._size - free
            level = (held > 0).astype(np.int8) + (free == 0)
            seen = self._nodes.copy()
            seen["state"] = encode(level, ("IDLE", "MIXED", "ALLOCATED"))
            seen[f"{self._resource}_held"] = held.astype(np.int32 if self._resource == "gpus" else np.float64)
            return NODE_STATES.conform(seen.assign(**changing()))

        return made

    def _place(self, shares: NDArray[np.void], share: int) -> str:
        """Return the names of the nodes in the chain that begins at ``share``."""
        return ",".join(self._names[node] for node in sorted(nodes_held(shares, share)))


def _queue(
    workload: Workload, shape: ClusterShape, jobs: pd.DataFrame, job_ids: list[str], resource: str
) -> pd.DataFrame:
    """Return all jobs as they are while they are pending and unchanged."""
    known = jobs[_FIXED].reset_index(drop=True)
    submitted_at = times(workload.submitted_s)
    known = known.assign(
        job_id=job_ids,
        tasks=1,
        partition=encode(workload.partition, tuple(shape.partitions)),
        state=JobState.PENDING.value,
        reason="Priority",
        submitted_at=submitted_at,
        eligible_at=submitted_at,
    )
    known[resource] = workload.gpus
    return QUEUE.conform(known)


def _nodes(shape: ClusterShape, resource: str) -> pd.DataFrame:
    names = [
        f"{partition}{number}"
        for partition, nodes in zip(shape.partitions, shape.nodes.tolist(), strict=True)
        for number in range(1, nodes + 1)
    ]
    frame = {
        "name": names,
        "partitions": np.repeat(np.array(shape.partitions, dtype=object), shape.nodes),
        resource: np.repeat(shape.gpus_per_node, shape.nodes),
        f"{resource}_held": 0,
        "weight": 1.0,
    }
    return NODE_STATES.conform(pd.DataFrame(frame))


def nodes_held(shares: NDArray[np.void], share: int) -> list[int]:
    """Return the nodes of the chain of shares that begins at ``share``.

    They are in the order of the chain. -1 ends it.
    """
    held = []
    while share >= 0:
        held.append(int(shares["node"][share]))
        share = int(shares["next"][share])
    return held


def times(seconds: NDArray[np.int64]) -> pd.DatetimeIndex:
    """Return times given in s since the epoch as UTC timestamps."""
    return pd.DatetimeIndex((seconds * 1_000_000).view("datetime64[us]")).tz_localize("UTC")


# Lazy snapshots: their frames are made when they are first read.

Frames = dict[str, Callable[[], pd.DataFrame]]
"""Functions that make the frames of running jobs and of nodes."""

_LAZY = ("pending", "running", "nodes")
"""Frames of a snapshot that are made when they are first read."""


class QueueColumns:
    """Running jobs and nodes at one moment, read from the tables on request.

    Before time goes on, :meth:`kept` has to be called for an instance that is still in use; :class:`CachedSnapshot`
    does so.
    """

    __slots__ = ("__weakref__", "_frames", "_read")

    def __init__(self, read: Callable[[], Frames]) -> None:
        self._read = read
        self._frames: Frames | None = None

    def kept(self) -> Frames:
        """Return the functions that make the frames.

        The first call fixes their content as of now.
        """
        if self._frames is None:
            self._frames = self._read()
        return self._frames

    def running(self) -> pd.DataFrame:
        """Return columns of ``QUEUE``."""
        return self.kept()["running"]()

    def nodes(self) -> pd.DataFrame:
        """Return columns of ``NODE_STATES``."""
        return self.kept()["nodes"]()


class CachedSnapshot:
    """Cache of the columns of the present moment.

    All snapshots that are taken before time goes on share them.
    """

    def __init__(self) -> None:
        self._seen: Callable[[], QueueColumns | None] = _nothing

    def now(self, read: Callable[[], Frames]) -> QueueColumns:
        """Return the columns of now.

        If they are not cached, ``read`` gives the functions that make their frames.
        """
        context = self._seen()
        if context is None:
            context = QueueColumns(read)
            self._seen = weakref.ref(context)
        return context

    def leave(self) -> None:
        """Fix the content of snapshots still in use.

        It has to be called before time goes on.
        """
        context = self._seen()
        if context is not None:
            context.kept()
        self._seen = _nothing


def _nothing() -> None:
    """Return None, as the weak reference to a deleted object does."""


class LazySnapshot(Snapshot):
    """Snapshot that makes its frames when they are first read.

    A frame that a service does not read costs nothing.
    """

    __slots__ = ("_frames", "_pending")
    _frames: Mapping[str, Callable[[], pd.DataFrame]]
    _pending: PendingRows

    @classmethod
    def at(
        cls,
        now_s: int,
        *,
        cluster: str,
        pending: PendingRows,
        context: QueueColumns,
        power: PowerSettings | None = None,
    ) -> LazySnapshot:
        """Return a snapshot taken at ``now_s``."""
        seen = cls.__new__(cls)
        frames = {"pending": pending.frame, "running": context.running, "nodes": context.nodes}
        plain = {"taken_at": moment(now_s), "cluster": cluster, "power": power, "demand": None}
        own = {"longest_backlog_s": pending.longest_backlog_s, "_pending": pending, "_frames": frames}
        for name, value in (plain | own).items():
            object.__setattr__(seen, name, value)
        return seen

    def with_demand(self, demand: Demand | None) -> LazySnapshot:
        """Return a copy with this demand for nodes.

        No frame is made for it.
        """
        seen = LazySnapshot.__new__(LazySnapshot)
        for name in (*Snapshot.__slots__, *LazySnapshot.__slots__):
            if name in _LAZY and name not in self._made():
                continue
            object.__setattr__(seen, name, demand if name == "demand" else getattr(self, name))
        return seen

    def positions(self, rows: Jobs, facts: QueueFacts) -> Jobs | None:
        """Return the positions in the workload of these rows of ``pending``.

        ``facts`` identify the replay. None: the snapshot is of another one.
        """
        pending = getattr(self, "_pending", None)
        return pending.jobs.take(rows) if pending is not None and pending.facts is facts else None

    def _made(self) -> list[str]:
        """Return the names of the frames that are made already."""
        return [name for name in _LAZY if _is_set(self, name)]

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Make a frame when it is first read.

        Python calls this for an attribute that is not set yet.
        """
        if name not in _LAZY:
            raise AttributeError(name)
        frame = self._frames[name]()
        object.__setattr__(self, name, frame)
        return frame

    def pending_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``pending`` as a plain array, not to be written to."""
        if hasattr(self, "_pending"):
            return self._pending.values(name)
        return super().pending_values(name)  # a copy made by dataclasses.replace, whose frames are there


def _is_set(seen: LazySnapshot, name: str) -> bool:
    """Return whether a slot has a value, without calling ``__getattr__``."""
    try:
        object.__getattribute__(seen, name)
    except AttributeError:
        return False
    return True


def moment(seconds: int) -> datetime:
    """Return a time given in s since the epoch as a UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)
