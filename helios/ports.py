"""Interfaces that have, or are meant to have, more than one implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Action, NodeOutcome, Outcome
from helios.changes import Change
from helios.choices import Domain  # noqa: F401 - services name theirs, and find it with the other interfaces
from helios.model import Sizes, Snapshot
from helios.model.targets import TargetJob

HORIZON_S = 8 * 3600.0
"""Longest run time that counts in ``RunTime.truncated_mean``, s."""
LONGEST_LEASE = timedelta(minutes=10)
"""Longest time that a stored lease may last, unless a longer one is requested; beyond it a clock was wrong."""
Columns = Callable[[str], NDArray[Any]]
"""Function from the name of a ``QUEUE`` column, or ``node_gpus``, to its values for some pending jobs.

Values are as :meth:`helios.model.Snapshot.pending_values` returns them.
"""


class RunTime(NamedTuple):
    """Columns of a prediction of run time, statistics of its distribution.

    Attributes
    ----------
    p10, p50, p90 : int
        Quantiles, s; p10 and p90 calibrated.
    typical : int
        Middle of the densest window in log time, s: the best single guess.
    mean : int
        Mean, s.
    truncated_mean : int
        Mean of the run time, of which at most ``HORIZON_S`` counts, s.
    log_mean : int
        Mean of log1p of the run time in s.
    """

    p10: int
    p50: int
    p90: int
    typical: int
    mean: int
    truncated_mean: int
    log_mean: int


RUN_TIME = RunTime(*range(len(RunTime._fields)))
"""Position of each column."""


class ReplayPredictor(Protocol):
    """Predictor of run times within a replay, from the jobs ended there.

    Jobs are given by their positions in the replayed workload. Calls come in the order of time.
    """

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Learn that jobs have ended.

        ``jobs`` and ``ended_s`` have the same length; times are ascending, s since the epoch.
        """
        ...

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, which are submitted at ``now_s``.

        Only jobs that ended strictly before ``now_s`` may be used.

        Returns
        -------
        array of shape (len(jobs), len(RunTime._fields))
            Columns of :class:`RunTime`; p10, p50 and p90 ascend in each row.
        """
        ...

    def waiting(
        self,
        jobs: NDArray[np.int64],
        now_s: int,
        *,
        running: NDArray[np.int64],
        since_s: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Predict again the run times of jobs that still wait.

        ``jobs`` were submitted before ``now_s``. Only jobs that ended strictly before ``now_s`` may be used, and that
        each of ``running`` has run since the moment in ``since_s`` (same length, s since the epoch). Returns the same
        as :meth:`submitted`.
        """
        ...


class Order(Protocol):
    """A queue order.

    Smaller keys come first; ties are broken by submit time, then by job id.
    """

    def __call__(
        self, *, submitted_s: NDArray[np.int64], gpus: Sizes, run_time_s: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return one key for each job.

        ``run_time_s`` is the run time that the policy goes by, true or predicted.
        """
        ...


class Cluster(Protocol):
    """Cluster, real or simulated, whose jobs Helios observes and changes.

    One contract suite, ``tests/contract/test_cluster.py``, checks every implementation in Helios; authors of services
    check their own clusters with :func:`helios.testing.check_cluster`.
    """

    def snapshot(self) -> Snapshot:
        """Return the current state of the cluster.

        Prediction columns are missing.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        ...

    def apply(self, changes: Sequence[Change[float]]) -> list[Outcome]:
        """Apply changes, read back, and return the outcome of each.

        The target :data:`helios.changes.EVERY` of a revert stands for all pending jobs that Helios has changed.

        - It is idempotent: a value that is already set is ``UNCHANGED`` and costs no write.
        - A job that must be left alone (``excluded_reason``) is ``REFUSED``.
        - A failure for one job does not stop the others.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        """
        ...


@runtime_checkable
class YieldCluster(Protocol):
    """Cluster whose running jobs can be asked for a checkpoint and requeued.

    A :class:`Cluster` that lacks this has no jobs that yield.
    """

    def read_target(self, job_id: str) -> TargetJob | None:
        """Return a job with a target as it is now.

        None where there is no such job.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached.
        """
        ...

    def ask_for_checkpoint(self, job: TargetJob) -> str:
        """Send the signal that the job's owner named.

        Returns the cluster's complaint, empty where it accepted.
        """
        ...

    def requeue_job(self, job: TargetJob) -> str:
        """Requeue a job, unless it has ended.

        Returns the cluster's complaint, empty where it accepted. That it accepted does not say that it happened.
        """
        ...


class NodeCluster(Protocol):
    """Cluster, real or simulated, whose nodes Helios puts to sleep and wakes.

    It is separate from :class:`Cluster` because Slurm requires an administrator for changes of nodes, and only an
    operator for changes of jobs. One contract suite, ``tests/contract/test_nodes.py``, checks every implementation.
    """

    def snapshot(self) -> Snapshot:
        """Return the current state of the cluster, with ``power``.

        Predictions, ``use`` and ``forecast`` are missing.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        ...

    def steer(self, changes: Sequence[Change[str]]) -> list[NodeOutcome]:
        """Apply changes, read back, and return the outcome of each.

        - It is idempotent: a value that is already set is ``UNCHANGED`` and costs no write.
        - It refuses to power down a node that is not idle or must be left alone (``excluded_reason``).
        - It postpones to power up a node that is falling asleep, as Slurm would ignore it.
        - A failure for one node does not stop the others.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        """
        ...


class Service(Protocol):
    """Plug-in that turns a snapshot into requested actions, and never acts itself.

    ``decide`` is deterministic: no clock (time is ``snapshot.taken_at``), network, disk or randomness of its own.

    A service is a class with a frozen dataclass ``Options`` as an attribute and ``__init__(self, options)``, registered
    in the entry point group ``helios.services``. A service that acts on nodes has the class attribute ``domain =
    Domain.NODES``; one without it acts on jobs.

    Attributes
    ----------
    every : timedelta
        Time between two decisions; positive.
    why_nothing : str, optional
        Why the last decision has no actions, for a person.
    """

    every: timedelta

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        """Return the actions to take now, possibly none.

        Actions on jobs are a desired state: a change that an earlier call requested and this one does not is reverted.
        Changes of nodes stay until the service requests another, or :class:`helios.actions.RevertNodes`.
        """
        ...


class ChangeRequests(NamedTuple):
    """Changes that a service requests for some jobs.

    Arrays of shape (n_jobs,).

    Attributes
    ----------
    urgency : float64 array
        From -1 to 1, as of a :class:`helios.actions.Place`. NaN for no request for that job.
    until : datetime64[us] array
        Last moment at which the request is still the same if no column of the job changes; NaT: for ever.
    """

    urgency: NDArray[np.float64]
    until: NDArray[np.datetime64]


@runtime_checkable
class JobwiseService(Service, Protocol):
    """Service that decides on each job independently.

    Other jobs and nodes must not matter. It may use ``longest_own_wait_s`` and ``size_orders``, which are the same for
    all jobs. So a replay need not evaluate the whole queue at every event, but only a job that is submitted or
    predicted again, a job whose request expires, and all jobs when that wait changes. The results are the same, and
    tens of thousands of jobs a second are replayed.

    ``decide`` must agree with ``changes``; :func:`helios.services.qssf.reorders` derives its actions from them.
    """

    def changes(self, jobs: Columns, at: datetime) -> ChangeRequests:
        """Return the changes for ``jobs`` at a moment, which is ``snapshot.taken_at``."""
        ...


class Ledger(Protocol):
    """Storage of a cluster's lease, applied changes and audit log."""

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the lease of the only writer.

        Where the store has a clock of its own, it is used for all holders; else ``now``. An end further ahead than any
        lease lasts comes from a wrong clock, and is moved to the latest possible end.

        Returns
        -------
        int or None
            The fencing token: the same while ``holder`` renews in time, a larger one after another holder had it.
            None where another holder's lease has not expired.
        """
        ...

    def release(self, *, holder: str) -> None:
        """Give up the lease, if ``holder`` has it."""
        ...

    def applied_changes(self) -> pd.DataFrame:
        """Return the changes that are applied now.

        Columns of ``APPLIED_CHANGES``, or for nodes of ``APPLIED_NODE_CHANGES``.
        """
        ...

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append decisions and replace the applied changes, in one transaction.

        The applied changes stay as they are where ``applied_changes`` is None.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one; nothing was written.
        WarehouseUnavailable
            The database failed; nothing was written.
        """
        ...


class Progress(Protocol):
    """Receiver of the progress of a long operation.

    The command line draws a bar; a test or a service ignores it.
    """

    def __call__(self, step: str, done: float) -> None:
        """Report the progress of a step, 0 to 1.

        ``step`` names it for a person.
        """
        ...


def no_progress(step: str, done: float) -> None:
    """Ignore the progress, as a ``Progress`` for callers that want none."""
