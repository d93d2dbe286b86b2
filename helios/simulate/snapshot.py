"""What a simulated cluster shows of itself: rows of the queue and of the nodes, from the tables of a replay.

Running jobs and nodes, which few services look at, are made when somebody does.
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

# Jobs of a replay as rows of the queue: what no event changes, and what may, as it was at one moment.
#
# A replay is asked for its queue thousands of times, so what no event changes is taken by position from columns that
# are made once, and frames are made of whole columns of the declared types: a frame that has to find out what it is
# given costs more than all else here.

BASE_PRIORITY = 100_000.0
"""Priority of a job that nobody moved; what of it Helios changes is the SiteFactor that Slurm would have."""
EXACT_STEPS = 99
"""Steps that a priority is shown in where urgencies are not rounded."""

_TEXT = pd.StringDtype(storage="python", na_value=np.nan)
_NAMES = pd.Index(QUEUE.names, dtype=_TEXT)
"""Shared by all frames: where it stands which column lies is worked out once."""

Jobs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What is expected of each job of a workload; filled in as the timeline goes on.

    Attributes
    ----------
    quantiles_s : float64 array of shape (n_jobs, 3)
        p10, p50, p90 of the run time, s; NaN: not predicted.
    source : int16 array of shape (n_jobs,)
        Which of ``sources`` said so; -1: none.
    sources : list of str
        Model ids and fallbacks, distinct.
    longest_backlog_s : float64 array of shape ()
        The longest backlog so far (:mod:`helios.metrics.backlog`), s; NaN: nobody reckons it.
    """

    quantiles_s: NDArray[np.float64]
    source: NDArray[np.int16]
    sources: list[str]
    longest_backlog_s: NDArray[np.float64] = field(default_factory=lambda: np.array(np.nan))


class QueueFacts:
    """The columns of ``QUEUE`` for all jobs of a replay, of which rows are taken.

    Parameters
    ----------
    queue : DataFrame
        Columns of ``QUEUE``: each job as it is while it waits and nobody has set anything.
    """

    def __init__(self, queue: pd.DataFrame) -> None:
        self._typed = {name: _typed(queue[name]) for name in QUEUE.names}
        self._plain: dict[str, NDArray[Any]] = {}

    def frame(self, jobs: Jobs, own: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows of ``jobs``, with these columns of their ``own``."""
        columns = {name: own[name] if name in own else typed.take(jobs) for name, typed in self._typed.items()}
        made = pd.DataFrame(columns, index=pd.RangeIndex(len(jobs)), copy=False)
        made.columns = _NAMES
        return made

    def values(self, name: str, jobs: Jobs) -> NDArray[Any]:
        """Return one column for ``jobs``, as :meth:`helios.model.Snapshot.pending_values` does."""
        if name not in self._plain:
            self._plain[name] = plain_values(pd.Series(self._typed[name]))
        return self._plain[name].take(jobs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingRows:
    """Some jobs of a replay at one moment: a frame, or a column of it, when somebody asks.

    What may change while they are kept is as it was at that moment; None: all of it is missing.
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
        """Return one column, as :meth:`helios.model.Snapshot.pending_values` does."""
        if name == "longest_backlog_s":
            return np.full(len(self.jobs), self.longest_backlog_s)
        column = _OWN[name](self) if name in _OWN else None
        if column is None:
            return self.facts.values(name, self.jobs)
        return plain_values(pd.Series(column)) if isinstance(column, pd.Categorical) else column

    @property
    def priority(self) -> NDArray[np.float64]:
        """The priority that the SiteFactor of its urgency would give each job."""
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
"""Columns that are not the same for good; one that says None is missing as a whole."""


def _typed(column: pd.Series[Any]) -> Any:
    """Return the array of a column, text as Python's, of which a few are taken far sooner than of Arrow's."""
    if column.dtype == "str":
        return column.astype(_TEXT).array
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else column.array


def encode(codes: NDArray[Any], words: tuple[str, ...]) -> pd.Categorical:
    """Return ``codes``, each of which stands for one of ``words``; -1: missing."""
    return pd.Categorical.from_codes(codes, dtype=_category(words), validate=False)


@lru_cache(maxsize=64)
def _category(words: tuple[str, ...]) -> Any:
    """Return the type with these words, of which checking that they are distinct is the slow part."""
    return pd.CategoricalDtype(list(words))


_FIXED = [name for name in JOBS.names if name in QUEUE.by_name and name not in ("state", "started_at", "node_list")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobMarks:
    """What somebody set on the jobs; arrays of shape (n_jobs,), and by position why to leave a job alone.

    ``steps`` are those of the grid between 0 and 1 that urgencies lie on; 0: on none.
    """

    urgency: NDArray[np.float64]
    soft_limit_s: NDArray[np.float64]
    steps: int
    excluded_reason: dict[int, str]
    held: set[int]


def unique_ids(workload: Workload | SlurmWorkload) -> list[str]:
    """Return a name for each job that no other has: the site's id, and -2, -3, ... where it was used again."""
    taken: set[str] = set()
    return [_fresh(str(job_id), taken) for job_id in workload.job_id]


def _fresh(job_id: str, taken: set[str]) -> str:
    if job_id in taken:
        job_id = next(name for again in count(2) if (name := f"{job_id}-{again}") not in taken)
    taken.add(job_id)
    return job_id


class SnapshotBuilder:
    """Frames of ``QUEUE`` and ``NODE_STATES`` for a replay.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in the order of the workload.
    resource : str
        ``gpus`` or ``cpus``: what the workload's GPUs are in truth.
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
        """Return ``jobs``, which wait, in that order, as they are marked now."""
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
        """Return what makes the frame of ``jobs``, which run, in that order, as of now."""
        # A job whose nodes are still waking is shown as started when it got them: when they will be up is not over yet.
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
        """What no event changes of all jobs."""
        return self._facts

    @property
    def names(self) -> list[str]:
        """Names of the nodes, as the state numbers them."""
        return self._names

    def nodes(self, tables: EngineState, changing: Callable[[], dict[str, Any]]) -> Callable[[], pd.DataFrame]:
        """Return what makes the frame of all nodes as of now, given what makes its columns about power and weight."""
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
        """Return the nodes of the shares that ``share`` is the first of."""
        return ",".join(self._names[node] for node in sorted(nodes_held(shares, share)))


def _queue(
    workload: Workload, shape: ClusterShape, jobs: pd.DataFrame, job_ids: list[str], resource: str
) -> pd.DataFrame:
    """Return all jobs as they are while they wait and nobody has set anything."""
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
    """Return the nodes of ``share`` and those chained to it, in that order; -1 ends the chain."""
    held = []
    while share >= 0:
        held.append(int(shares["node"][share]))
        share = int(shares["next"][share])
    return held


def times(seconds: NDArray[np.int64]) -> pd.DatetimeIndex:
    """Return times given in s since the epoch."""
    return pd.DatetimeIndex((seconds * 1_000_000).view("datetime64[us]")).tz_localize("UTC")


# A look at a simulated cluster: a snapshot whose frames are made when somebody looks at them.

Frames = dict[str, Callable[[], pd.DataFrame]]
"""What makes the frames of running jobs and of nodes."""

_LAZY = ("pending", "running", "nodes")
"""Frames of a snapshot that are made when somebody looks."""


class QueueColumns:
    """Who runs and what the nodes do at one moment, read from the tables when somebody looks.

    Before time goes on, whoever moves it has a scene that somebody still holds :meth:`kept`; :class:`CachedSnapshot`
    does so.
    """

    __slots__ = ("__weakref__", "_frames", "_read")

    def __init__(self, read: Callable[[], Frames]) -> None:
        self._read = read
        self._frames: Frames | None = None

    def kept(self) -> Frames:
        """Return what makes the frames, which from now on says what is so now."""
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
    """The scene of now: whoever looks before time goes on is shown the same one."""

    def __init__(self) -> None:
        self._seen: Callable[[], QueueColumns | None] = _nothing

    def now(self, read: Callable[[], Frames]) -> QueueColumns:
        """Return the scene of now, of which ``read`` gives what makes the frames."""
        context = self._seen()
        if context is None:
            context = QueueColumns(read)
            self._seen = weakref.ref(context)
        return context

    def leave(self) -> None:
        """Let whoever still holds a snapshot keep what it shows; to be called before time goes on."""
        context = self._seen()
        if context is not None:
            context.kept()
        self._seen = _nothing


def _nothing() -> None:
    """Be the scene that nobody has seen."""


class LazySnapshot(Snapshot):
    """A snapshot that makes its frames when somebody looks at them: what most services do not look at costs nothing."""

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
        """Return what is to be seen ``now_s``."""
        seen = cls.__new__(cls)
        frames = {"pending": pending.frame, "running": context.running, "nodes": context.nodes}
        plain = {"taken_at": moment(now_s), "cluster": cluster, "power": power, "demand": None}
        own = {"longest_backlog_s": pending.longest_backlog_s, "_pending": pending, "_frames": frames}
        for name, value in (plain | own).items():
            object.__setattr__(seen, name, value)
        return seen

    def with_demand(self, demand: Demand | None) -> LazySnapshot:
        """Return the same with what is expected of the nodes, and no frame made for it."""
        seen = LazySnapshot.__new__(LazySnapshot)
        for name in (*Snapshot.__slots__, *LazySnapshot.__slots__):
            if name in _LAZY and name not in self._made():
                continue
            object.__setattr__(seen, name, demand if name == "demand" else getattr(self, name))
        return seen

    def positions(self, rows: Jobs, facts: QueueFacts) -> Jobs | None:
        """Return which jobs of a replay, known by its ``facts``, these rows of ``pending`` are; None: of another."""
        pending = getattr(self, "_pending", None)
        return pending.jobs.take(rows) if pending is not None and pending.facts is facts else None

    def _made(self) -> list[str]:
        """Return the names of the frames that are there already."""
        return [name for name in _LAZY if _is_set(self, name)]

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Make a frame: Python asks here for an attribute that is not there yet."""
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
    """Say whether a slot has a value, without asking ``__getattr__`` for one."""
    try:
        object.__getattribute__(seen, name)
    except AttributeError:
        return False
    return True


def moment(seconds: int) -> datetime:
    """Return a time given in s since the epoch."""
    return datetime.fromtimestamp(seconds, UTC)
