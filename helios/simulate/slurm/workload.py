"""Workload and state of a replay under Slurm's rules in plain arrays.

A replay can stop and go on at any moment. Times of events are in ms. What Slurm itself counts in whole seconds or
minutes is kept in these (``*_s``, ``*_min``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import WorkloadInvalid
from helios.jit import Table
from helios.simulate.core.state import integers

NOBODY = -1
NEVER = np.iinfo(np.int64).max
MS = 1000
YEAR_MIN = 365 * 24 * 60
"""Time limit that Slurm plans with for a job without one, min."""
ANY_NODES = 0
"""Number of nodes of a job that takes as many as hold what it asks for."""
ANY_TYPE = -1
"""GPU type of a job that takes any."""
NO_ARRAY = -1
NO_LIMIT = 0
NO_QOS = -1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_DEFAULTS: dict[str, Any] = {
    "eligible_s": None,
    "time_limit_s": float(NO_LIMIT),
    "time_min_s": 0.0,
    "nodes": 1,
    "cpus": 1,
    "memory_mib": 0,
    "gpus": 0.0,
    "gpu_type": ANY_TYPE,
    "exclusive": False,
    "user": 0,
    "account": 0,
    "qos": NO_QOS,
    "nice": 0,
    "site_factor": 0,
    "array": NO_ARRAY,
}
_TYPES: dict[str, Any] = (
    dict.fromkeys(("submitted_s", "run_time_s", "eligible_s", "time_limit_s", "time_min_s", "gpus"), np.float64)
    | dict.fromkeys(("partition", "nodes", "cpus", "memory_mib", "gpu_type", "user", "account"), np.int64)
    | dict.fromkeys(("qos", "nice", "site_factor", "array"), np.int64)
    | {"exclusive": np.bool_}
)
_CODES = {
    "partition": "partitions",
    "gpu_type": "gpu_types",
    "user": "users",
    "account": "accounts",
    "qos": "qos_names",
}

WORD = 62
"""Nodes in a word of a set of nodes. So few bits keep every word positive."""
ALL = 2**WORD - 1
"""A word with all of its nodes."""

JOB = np.dtype(
    [
        ("enters_ms", np.int64),  # when it is submitted and eligible
        *integers("submitted_s", "eligible_ms", "run_ms", "started_ms", "ended_ms"),
        ("freed_ms", np.int64),  # when its nodes are free
        ("expected_s", np.int64),  # end that backfill plans with
        ("limit_end_s", np.int64),  # end at the time limit
        ("soft_end_s", np.int64),  # end at TimeMin as a soft limit; NEVER: none
        ("time_min", np.int64),  # min; 0: none
        ("planned_s", np.int64),  # start planned by the last backfill pass that planned it
        ("planned_in", np.int64),  # number of that pass
        ("priority", np.int64),  # at the start
        ("memory", np.int64),  # MiB of each part; -1: all of the node's
        ("nice", np.int64),
        ("site_factor", np.int64),
        ("billing", np.float64),
        ("nodes", np.int64),  # number of equal parts; 0: unequal parts
        ("cpus", np.int64),  # of each equal part, or of the whole job
        *integers("gpus", "gpu_type", "exclusive", "user", "qos"),
        ("association", np.int64),  # in ``shares``
        *integers("next_task", "previous_task", "first_choice", "choices"),
        ("partition", np.int64),  # in which it runs
        ("first_share", np.int64),  # first of the list of its ``holdings``
        ("heap_index", np.int64),  # in ``ends``
        ("status", np.int64),  # FUTURE, ...
        ("started_by", np.int64),  # BY_MAIN or BY_BACKFILL
        *integers("held_by_limit", "is_held"),
        ("asks_for_pass", np.int64),  # whether it asks for a pass when it enters the queue
    ],
    align=True,
)
CHOICE = np.dtype(  # a job in one of its partitions, which is an entry of the queue
    [
        ("fixed", np.float64),  # constant part of the priority: size, partition, QOS, TRES
        ("priority", np.int64),
        ("tier", np.int64),
        ("plan_min", np.int64),  # time limit that backfill plans with
        ("limit_min", np.int64),  # time limit that it gets
        ("longest_min", np.int64),  # longest time limit that the partition allows
        ("job", np.int64),
        ("partition", np.int64),
        ("billing", np.float64),
        ("memory", np.int64),
    ],
    align=True,
)
PARTITION = np.dtype(integers("qos", "exclusive", "failed", "tested"), align=True)
NODE = np.dtype(integers("cpus", "memory", "weight"), align=True)
FREE = np.dtype(integers("cpus", "memory", "jobs", "units"), align=True)
HOLDING = np.dtype(  # resources of one node that a job holds
    [
        *integers("memory", "cpus", "gpus", "gpu_type", "node"),
        ("whole", np.int64),  # counts as a job on the node
        ("next", np.int64),
    ],
    align=True,
)
QOS = np.dtype(
    [
        ("user_gpus", np.int64),  # limits; -1: none
        *integers("gpus", "user_jobs", "held_gpus"),
        ("usage_factor", np.float64),
    ],
    align=True,
)
SHARE = np.dtype(
    [
        ("usage", np.float64),
        ("norm", np.float64),  # of its shares
        ("effective", np.float64),
        ("level", np.float64),
        ("factor", np.float64),
        ("shares", np.int64),  # -1: competes in its parent's place
        ("level_shares", np.int64),
        ("parent", np.int64),
        ("fair_parent", np.int64),  # that its shares count in
        *integers("is_user", "first_child", "children"),
    ],
    align=True,
)
SLOT = np.dtype(integers("begin_s", "end_s", "next"), align=True)
RUN = np.dtype(integers("first", "last", "cpus", "units", "nodes", "weight"), align=True)
"""Neighbouring nodes of equal weight, among those that a job could use."""
CLOCK = np.dtype(
    [
        ("now_ms", np.int64),
        ("entered", np.int64),
        ("queued", np.int64),  # choices in the queue
        *integers("running", "ended", "free_holding", "words", "types", "slots", "picked"),
        ("units", np.int64),  # of a GPU: GPUs of all tables are counted in them
        # When things are due.
        ("pass_due", np.int64),  # a quick pass of the main scheduler, now
        ("pass_asked_ms", np.int64),  # oldest submission that the background loop has not handled; NEVER: none
        *integers("last_background_ms", "last_full_ms", "last_pass_ms", "last_backfill_ms"),
        ("first_update_ms", np.int64),  # first update since the last backfill pass; NEVER: none
        ("updated_ms", np.int64),  # last update of jobs or nodes
        ("postponed", np.int64),  # whether the last backfill pass postponed a planned start
        ("planned_idle", np.int64),  # whether its plans have idle nodes
        ("closed", np.int64),  # whether the last full pass met a closed partition
        ("spent_us", np.int64),  # by backfill passes, the part below a millisecond
        ("changed_for_backfill", np.int64),  # whether a backfill pass could find something new
        ("changed_for_main", np.int64),  # whether a full pass of the main scheduler could
        ("last_priority_ms", np.int64),
        ("charged", np.int64),  # whether usage was charged since
        # The rules.
        ("quick_depth", np.int64),
        ("most_starts", np.int64),  # of a pass; 0: no limit
        *integers("partition_depth", "sched_interval_s", "min_interval_ms", "batch_delay_s", "tick_ms"),
        *integers("tick_origin_ms", "release_ms"),
        ("ends_ask", np.int64),  # whether an end waits for the background loop
        ("backfill_interval_ms", np.int64),  # -1: none
        ("growth", np.float64),  # least length of a period, as a share of the time since the origin; 0: no least
        ("origin_ms", np.int64),
        ("pass_us", np.int64),  # duration of a backfill pass
        ("record_us", np.int64),  # added to it for each record in the queue
        *integers("poll_ms", "window_s", "tolerance_s", "max_test", "max_array", "max_part", "max_user", "max_start"),
        *integers("busy_nodes", "soft", "least_loaded", "holds_memory", "multifactor", "fair_tree", "calc_period_ms"),
        ("max_age_s", np.int64),
        ("age_weight", np.float64),
        ("fair_weight", np.float64),
        ("decay", np.float64),  # of usage, per second
        ("users", np.int64),  # in the tree of shares
        # What was done.
        *integers("main_passes", "backfill_passes", "backfill_tests", "starts"),
    ],
    align=True,
)

FUTURE, PENDING, RUNNING, ENDED = 0, 1, 2, 3
NOW, PLAN = 0, 1
"""Rows of ``free``: resources free now, and in a plan in which running jobs are removed."""
BY_MAIN, BY_BACKFILL = 0, 1
"""Which scheduler started a job."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmWorkload:
    """Jobs to replay, as they were asked for.

    They are ordered by submit time, then job id; tasks of an array by task id. A missing column, other than ids and
    times, means what it means to Slurm where it is not asked for. Numbers are given as any numeric array and kept as
    float64 (times) or int64 (the rest).

    Parameters
    ----------
    job_id : array of str, shape (n_jobs,)
        The site's ids.
    submitted_s : array of shape (n_jobs,)
        Submission, s since the epoch; fractions are kept to the millisecond.
    run_time_s : array of shape (n_jobs,)
        True run time, s; a job ends at its time limit if that is earlier.
    partitions : tuple of str
        Names that ``partition`` and ``more_partitions`` are positions in.
    partition : array of shape (n_jobs,)
        The partition that the job asks for, or the first of several.
    more_partitions : dict of int to tuple of int
        Further partitions, by position of the job: those that ask for several.
    eligible_s : array of shape (n_jobs,)
        Begin time, or when the last dependency was met; missing: the submission.
    time_limit_s : array of shape (n_jobs,)
        Rounded up to whole minutes, as Slurm does; ``NO_LIMIT``: not asked for.
    time_min_s : array of shape (n_jobs,)
        ``--time-min``, s; 0: not asked for.
    nodes : array of shape (n_jobs,)
        Nodes, each of which holds an equal part of the rest; ``ANY_NODES``: as many as it takes, unequal parts.
    cpus, memory_mib, gpus : arrays of shape (n_jobs,)
        Totals of the job; at least one CPU. GPUs may be parts of one. Without memory a job gets what its partition
        defines, or all of the node's.
    gpu_type : array of shape (n_jobs,)
        Position in ``gpu_types``; ``ANY_TYPE``: any.
    exclusive : bool array of shape (n_jobs,)
        Whole nodes.
    user, account : arrays of shape (n_jobs,)
        Positions in ``users`` and ``accounts``.
    qos : array of shape (n_jobs,)
        Position in ``qos_names``; ``NO_QOS``: none.
    nice, site_factor : arrays of shape (n_jobs,)
        What is taken from, and added to, the priority.
    array : array of shape (n_jobs,)
        Equal for the tasks of one job array, whose pending tasks are one record; ``NO_ARRAY``: no array.

    Raises
    ------
    WorkloadInvalid
        Columns differ in length, are out of order, or a job asks for what cannot be.
    """

    job_id: NDArray[np.object_]
    submitted_s: Floats
    run_time_s: Floats
    partitions: tuple[str, ...]
    partition: Ints
    more_partitions: dict[int, tuple[int, ...]] | None = None
    eligible_s: Floats | None = None
    time_limit_s: Floats | None = None
    time_min_s: Floats | None = None
    nodes: Ints | None = None
    cpus: Ints | None = None
    memory_mib: Ints | None = None
    gpus: Floats | Ints | None = None
    gpu_types: tuple[str, ...] = ()
    gpu_type: Ints | None = None
    exclusive: NDArray[np.bool_] | None = None
    users: tuple[str, ...] = ("",)
    user: Ints | None = None
    accounts: tuple[str, ...] = ("",)
    account: Ints | None = None
    qos_names: tuple[str, ...] = ()
    qos: Ints | None = None
    nice: Ints | None = None
    site_factor: Ints | None = None
    array: Ints | None = None

    def __post_init__(self) -> None:
        """Fill in missing columns and check the rest."""
        n_jobs = len(self.submitted_s)
        for name, value in _DEFAULTS.items():
            if getattr(self, name) is None:
                default = self.submitted_s if name == "eligible_s" else np.full(n_jobs, value)
                object.__setattr__(self, name, default)
        if self.more_partitions is None:
            object.__setattr__(self, "more_partitions", {})
        for name, dtype in _TYPES.items():
            column = np.asarray(getattr(self, name))
            if column.shape != (n_jobs,):
                raise WorkloadInvalid(f"{name} has shape {column.shape}, not ({n_jobs},)")
            object.__setattr__(self, name, column.astype(dtype))
        self._refuse("is submitted before the job above it", np.diff(self.submitted_s, prepend=-np.inf) < 0)
        self._refuse("has a negative run time", self.run_time_s < 0)
        self._refuse("asks for no CPU", self.column("cpus") < 1)
        for name in ("time_limit_s", "time_min_s", "nodes", "memory_mib", "gpus"):
            self._refuse(f"asks for a negative {name}", self.column(name) < 0)
        for name, names in _CODES.items():
            self._refuse(f"has a {name} out of range", self.column(name) >= len(getattr(self, names)))

    def __len__(self) -> int:
        return len(self.submitted_s)

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, with missing values filled in."""
        column: NDArray[Any] = getattr(self, name)
        return column

    def choices(self, job: int) -> tuple[int, ...]:
        """Return all partitions that the job at this position asks for.

        They are positions in ``partitions``.
        """
        return (int(self.partition[job]), *(self.more_partitions or {}).get(job, ()))

    def kept(self, keep: NDArray[np.bool_]) -> SlurmWorkload:
        """Return the jobs where ``keep``, of shape (n_jobs,), is true."""
        number = np.cumsum(keep) - 1
        more = {int(number[job]): parts for job, parts in (self.more_partitions or {}).items() if keep[job]}
        all_columns = {column.name: getattr(self, column.name) for column in fields(self)}
        columns = {name: all_columns[name][keep] for name in (*_TYPES, "job_id")}
        return SlurmWorkload(**(all_columns | columns | {"more_partitions": more}))

    def _refuse(self, what: str, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            raise WorkloadInvalid(f"{int(wrong.sum()):,} jobs: job {self.job_id[np.argmax(wrong)]} {what}")


@dataclass(frozen=True, eq=False)
class SlurmState(Table):
    """Tables of a replay.

    The record types of this module describe the fields of the others.

    Attributes
    ----------
    free, free_gpus
        Free resources, in rows NOW and PLAN; of GPUs a column for each type of each node.
    queue
        Choices of pending jobs, in order.
    ends
        Heap of running jobs by the time at which their nodes are free.
    expected
        Running jobs by the end that backfill plans with.
    part_nodes, slot_nodes
        Sets of nodes, of partitions and of slots, as words of bits.
    words, stack
        Scratch space: three sets of nodes, and a stack for the tree of shares.
    picked
        Nodes picked for a job.
    user_gpus, user_jobs
        What users hold, of shape (users x QOS,).
    children
        Children in the tree of shares, one parent's after another's.
    """

    clock: NDArray[np.void]
    jobs: NDArray[np.void]
    choices: NDArray[np.void]
    partitions: NDArray[np.void]
    nodes: NDArray[np.void]
    free: NDArray[np.void]
    gpus: NDArray[np.int64]
    free_gpus: NDArray[np.int64]
    holdings: NDArray[np.void]
    queue: NDArray[np.int64]
    ends: NDArray[np.int64]
    expected: NDArray[np.int64]
    ended: NDArray[np.int64]
    entering: NDArray[np.int64]
    part_nodes: NDArray[np.int64]
    slots: NDArray[np.void]
    slot_nodes: NDArray[np.int64]
    words: NDArray[np.int64]
    runs: NDArray[np.void]
    picked: NDArray[np.int64]
    qos: NDArray[np.void]
    user_gpus: NDArray[np.int64]
    user_jobs: NDArray[np.int64]
    user_tested: NDArray[np.int64]
    shares: NDArray[np.void]
    children: NDArray[np.int64]
    stack: NDArray[np.int64]
