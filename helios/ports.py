"""The sockets: every interface that has, or is meant to have, more than one implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.actions import Action, JobAction, NodeAction, NodeOutcome, Outcome
from helios.model import Batch, Snapshot


class Source(Protocol):
    """A history file of one format, or a live accounting database."""

    def read(self) -> Iterator[Batch]:
        """Yield the history in stretches, oldest line first."""
        ...


class ReplayPredictor(Protocol):
    """Predicts run times inside a replayed timeline, from what has ended in that timeline.

    Jobs are named by their position in the replayed workload. Calls come in the order of time.
    """

    def ended(self, jobs: NDArray[np.int64], ended_s: NDArray[np.int64]) -> None:
        """Take note that ``jobs`` ended at ``ended_s`` (same length, ascending, s since the epoch)."""
        ...

    def submitted(self, jobs: NDArray[np.int64], now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, which are submitted at ``now_s``.

        Only jobs that ended strictly before ``now_s`` may be used.

        Returns
        -------
        array of shape (len(jobs), 3)
            p10, p50 and p90 of the run time, s, ascending in each row.
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
        """Predict again the run times of ``jobs``, which were submitted earlier and still wait at ``now_s``.

        Only jobs that ended strictly before ``now_s`` may be used, and that ``running`` jobs have run ``since_s`` (same
        length, s since the epoch). Returns as ``submitted`` does.
        """
        ...


class Order(Protocol):
    """A queue order: smaller keys first, ties by submit time, then job id."""

    def __call__(
        self, *, submitted_s: NDArray[np.int64], gpus: NDArray[np.int32], run_time_s: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return one key for each job, from the run time the policy believes in (true or predicted)."""
        ...


class Cluster(Protocol):
    """A cluster, real, shadowed or simulated: look at it, act on it.

    One contract suite, ``tests/contract/test_cluster.py``, holds every implementation; a service author's own runs
    :func:`helios.testing.check_cluster`.
    """

    def snapshot(self) -> Snapshot:
        """Look; prediction columns are missing.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        ...

    def apply(self, actions: Sequence[JobAction]) -> list[Outcome]:
        """Act, read back, and say what became of each job that an action names.

        Idempotent: what already is so is ``UNCHANGED`` and costs no write. A job that must be left alone
        (``excluded_reason``) is ``REFUSED``. What fails for one job does not stop the others.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        """
        ...


class NodeCluster(Protocol):
    """The nodes of a cluster, real, shadowed or simulated: look at them, put them to sleep, wake them.

    A door of its own beside :class:`Cluster`: on Slurm it takes an administrator, where job updates take an operator.
    One contract suite, ``tests/contract/test_nodes.py``, holds every implementation.
    """

    def snapshot(self) -> Snapshot:
        """Look, with ``power`` filled in; predictions and demand are missing.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached, or did not answer in time.
        """
        ...

    def steer(self, actions: Sequence[NodeAction]) -> list[NodeOutcome]:
        """Act, read back, and say what became of each node that an action names.

        Idempotent: what already is so is ``UNCHANGED`` and costs no write. The door itself refuses what can never be
        right, whoever asks: to power down a node that is not idle or must be left alone (``excluded_reason``), or to
        power up one that is falling asleep (``POSTPONED``: Slurm would ignore it). What fails for one node does not
        stop the others.

        Raises
        ------
        ClusterUnavailable
            It cannot be reached; nothing was written.
        """
        ...


class Domain(StrEnum):
    """What a service acts on; each domain has its own cycle, lease and door, and may run under its own identity."""

    JOBS = "jobs"
    NODES = "nodes"


class Service(Protocol):
    """Judgement: looks at a snapshot and proposes actions. It never acts.

    ``decide`` is deterministic: no clock (time is ``snapshot.taken_at``), network, disk or randomness of its own.
    A service is a class with a frozen dataclass ``Options`` as an attribute and ``__init__(self, options)``, registered
    in the entry point group ``helios.services``. One that acts on nodes has the class attribute
    ``domain = Domain.NODES``; one without it acts on jobs.
    """

    every: timedelta

    def decide(self, snapshot: Snapshot) -> Iterable[Action]:
        """Return what should be done now; nothing is a good answer."""
        ...


Columns = Callable[[str], NDArray[Any]]
"""Some pending jobs by columns of ``QUEUE``, each as :meth:`helios.model.Snapshot.pending_values` gives it."""


class ChangeRequests(NamedTuple):
    """What a service wishes for some jobs; arrays of shape (n_jobs,).

    Attributes
    ----------
    urgency : float64 array
        From -1 to 1, as of a :class:`helios.actions.Place`; NaN: it does not name the job.
    until : datetime64[us] array
        The last moment at which it is sure to wish the same as long as no column of the job changes; NaT: for ever.
    """

    urgency: NDArray[np.float64]
    until: NDArray[np.datetime64]


@runtime_checkable
class JobwiseService(Service, Protocol):
    """A service whose wish for a job depends on that job and the time alone, never on other jobs or on nodes.

    Of the cluster it may look at ``longest_backlog_s``, which is the same for all. A replay then need not ask it about
    the whole queue at every event, but about a job when it comes, when it is predicted again or the backlog is another,
    and when the change expires: the answers are the same, and tens of thousands of jobs a second are replayed.
    ``decide`` must say the same as ``changes``; :func:`helios.services.qssf.reorders` makes it of them.
    """

    def changes(self, jobs: Columns, at: datetime) -> ChangeRequests:
        """Return what it wishes for ``jobs`` as they are ``at`` a moment, which stands for ``snapshot.taken_at``."""
        ...


LONGEST_LEASE = timedelta(minutes=10)
"""No end of a lease is believed that is further ahead than this, or than the lease that is asked for."""


class Ledger(Protocol):
    """What control remembers from turn to turn about one cluster, and writes down for good."""

    def acquire(self, *, holder: str, now: datetime, lasts: timedelta) -> int | None:
        """Take or renew the one writer's lease.

        It runs by one clock for all who ask, where there is one; else by ``now``, and then an end that is further ahead
        than any lease lasts is not believed, but brought near.

        Returns
        -------
        int or None
            The fencing token: the same while ``holder`` renews in time, a larger one after anybody else held it.
            None: another holder's lease has not run out.
        """
        ...

    def release(self, *, holder: str) -> None:
        """Give the lease back, if ``holder`` has it."""
        ...

    def applied_changes(self) -> pd.DataFrame:
        """Return the applied changes: ``APPLIED_CHANGES``, or of the nodes ``APPLIED_NODE_CHANGES``."""
        ...

    def record(self, *, token: int, decisions: pd.DataFrame, applied_changes: pd.DataFrame | None) -> None:
        """Append ``decisions`` and, unless None, replace what stands changed, in one transaction.

        Raises
        ------
        LeaseLost
            ``token`` is no longer the current one; nothing was written.
        WarehouseUnavailable
            The database failed; nothing was written.
        """
        ...


class Progress(Protocol):
    """Hears how far a long piece of work is; the command line draws a bar, a test or a service nothing."""

    def __call__(self, setup: str, done: float) -> None:
        """Take note that ``setup`` (a phrase for a person) is done to the fraction ``done``, 0 to 1."""
        ...


def no_progress(setup: str, done: float) -> None:
    """Be a :class:`Progress` that tells nobody."""
