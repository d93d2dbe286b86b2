"""Workload of a replay under Slurm's rules, in columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.errors import WorkloadInvalid

ANY_NODES = 0
"""Number of nodes of a job that takes as many as hold what it asks for."""
ANY_TYPE = -1
"""GPU type of a job that takes any."""
NO_ARRAY = -1
NO_LIMIT = 0
NO_QOS = -1

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
        Totals of the job; at least one CPU. Without memory a job gets what its partition defines, or all of the node's.
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
    gpus: Ints | None = None
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
                given = self.submitted_s if name == "eligible_s" else np.full(n_jobs, value)
                object.__setattr__(self, name, given)
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
        for name, words in _CODES.items():
            self._refuse(f"has a {name} out of range", self.column(name) >= len(getattr(self, words)))

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
        named = {column.name: getattr(self, column.name) for column in fields(self)}
        columns = {name: named[name][keep] for name in (*_TYPES, "job_id")}
        return SlurmWorkload(**(named | columns | {"more_partitions": more}))

    def _refuse(self, what: str, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            raise WorkloadInvalid(f"{int(wrong.sum()):,} jobs: job {self.job_id[np.argmax(wrong)]} {what}")


_DEFAULTS: dict[str, Any] = {
    "eligible_s": None,
    "time_limit_s": float(NO_LIMIT),
    "time_min_s": 0.0,
    "nodes": 1,
    "cpus": 1,
    "memory_mib": 0,
    "gpus": 0,
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
    dict.fromkeys(("submitted_s", "run_time_s", "eligible_s", "time_limit_s", "time_min_s"), np.float64)
    | dict.fromkeys(("partition", "nodes", "cpus", "memory_mib", "gpus", "gpu_type", "user", "account"), np.int64)
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
