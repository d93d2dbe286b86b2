"""Replay under Slurm's scheduling rules, at once or step by step.

The queue can be changed between the steps.

:class:`ForwardSimulation` simulates on from the jobs of one moment, many times with other run times, to see when
pending jobs start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from helios.errors import UsageError
from helios.model.slurm_site import SlurmSite
from helios.simulate.slurm.events import (
    NOBODY_AWAITED,
    compute_first_shares,
    compute_priorities,
    next_event_ms,
    put_running,
    recompute_priorities,
    run_until,
)
from helios.simulate.slurm.placement import drop_unfit_choices
from helios.simulate.slurm.tables import SlurmLatency, array_chains, build, link_tasks, node_names, refuse_misfits
from helios.simulate.slurm.workload import (
    BY_BACKFILL,
    ENDED,
    MS,
    NEVER,
    NOBODY,
    PENDING,
    RUNNING,
    Floats,
    Ints,
    SlurmState,
    SlurmWorkload,
)

CLOSED = -1_000_000
"""Number of jobs on a node that gets none, however many jobs that it has now end."""
RECENT_S = 60
"""How long before the moment the periods of the controller begin, s."""
GROWTH = 0.05
"""Least time between two backfill passes, as a share of the time since the moment.

With it the median starts of four jobs of Venus were within a tenth of those with passes each 30 s, 15 times as fast.
"""
DEEP_QUEUE = 300
"""Pending jobs beyond which passes are rarer in proportion, as each takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmReplay:
    """Result of a replay for each job.

    Arrays have shape (n_jobs,).

    Attributes
    ----------
    started_s, ended_s : float64
        s since the epoch; NaN where it has not started, or not ended, by the end of the replay.
    priority : int64
        At the start, or now where it waits; 0 where it has not been submitted.
    partition : int64
        Where it ran, as a position in the site's partitions; -1: nowhere.
    node : int64
        Last node picked for a job that runs at the end of the replay, as a position in ``node_names``; -1: none.
    planned_s : float64
        Planned start by the last backfill pass that planned the job, s since the epoch; NaN: never planned.
    backfilled : bool
        Whether a backfill pass started it.
    node_names : tuple of str
        Names of the nodes.
    main_passes, backfill_passes, backfill_tests : int
        Passes made (those that could change nothing are left out), and jobs that backfill tested.
    """

    started_s: Floats
    ended_s: Floats
    priority: Ints
    partition: Ints
    node: Ints
    planned_s: Floats
    backfilled: NDArray[np.bool_]
    node_names: tuple[str, ...]
    main_passes: int
    backfill_passes: int
    backfill_tests: int


def replay_slurm(
    workload: SlurmWorkload,
    site: SlurmSite,
    *,
    site_factor: Ints | None = None,
    latency: SlurmLatency | None = None,
    until_s: float | None = None,
) -> SlurmReplay:
    """Replay ``workload`` on ``site`` under Slurm's scheduling rules.

    Parameters
    ----------
    site_factor : array of shape (n_jobs,), optional
        Set as each job is submitted, as a job_submit plugin does; None: the workload's own.
    latency : SlurmLatency, optional
        How quickly the controller reacts.
    until_s : float, optional
        When the replay ends, s since the epoch; None: when no job is left.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    """
    timeline = SlurmTimeline(workload, site, site_factor=site_factor, latency=latency)
    timeline.advance(until_s)
    return timeline.result()


def startable(workload: SlurmWorkload, site: SlurmSite) -> NDArray[np.bool_]:
    """Return whether each job could start on an empty cluster.

    That is by size and time limit; shape (n_jobs,).
    """
    state = build(workload, site, SlurmLatency())
    drop_unfit_choices(state)
    fits: NDArray[np.bool_] = state.jobs["choices"] > 0
    return fits


class SlurmTimeline:
    """Replay that can be stopped, read, changed and continued.

    Parameters
    ----------
    site_factor, latency
        As for :func:`replay_slurm`.

    Attributes
    ----------
    state : SlurmState
        Tables of the replay.

    Raises
    ------
    PartitionUnknown, JobLargerThanPartition
        A job could never start.
    """

    def __init__(
        self,
        workload: SlurmWorkload,
        site: SlurmSite,
        *,
        site_factor: Ints | None = None,
        latency: SlurmLatency | None = None,
    ) -> None:
        self.state = build(workload, site, latency or SlurmLatency())
        self._names = node_names(site)
        if site_factor is not None:
            self.state.jobs["site_factor"] = site_factor
        drop_unfit_choices(self.state)
        refuse_misfits(workload, self.state.jobs["choices"] > 0)
        compute_first_shares(self.state)

    @property
    def now_s(self) -> float:
        """Clock, s since the epoch."""
        return int(self.state.clock["now_ms"][0]) / MS

    def is_going(self) -> bool:
        """Return whether jobs are left that run, wait or will be submitted."""
        clock = self.state.clock[0]
        return bool(clock["ended"] < len(self.state.jobs)) and (
            next_event_ms(self.state) != NEVER or bool(clock["changed_for_backfill"]) or bool(clock["changed_for_main"])
        )

    def next_event_s(self) -> float | None:
        """Return when nodes are freed or a job enters the queue next.

        None: never.
        """
        moment_ms = next_event_ms(self.state)
        return None if moment_ms == NEVER else moment_ms / MS

    def advance(self, until_s: float | None = None, *, leave_due: bool = False) -> None:
        """Advance the clock to ``until_s``, included.

        None: until nothing is left to happen. With ``leave_due`` the passes due at that very moment wait until time
        goes on.

        Raises
        ------
        UsageError
            ``until_s`` lies in the past.
        """
        until_ms = NEVER if until_s is None else round(until_s * MS)
        if until_ms < self.state.clock["now_ms"][0]:
            raise UsageError(f"the clock stands at {self.now_s}; it cannot go back to {until_s}")
        run_until(self.state, until_ms, leave_due, False, NOBODY_AWAITED)

    def pending(self) -> Ints:
        """Return the positions of pending jobs in the order of the queue.

        Of an array only the first pending task is in it.
        """
        clock = self.state.clock[0]
        queue = self.state.queue[: clock["queued"]]
        jobs = self.state.choices["job"][queue].astype(np.int64)
        first: Ints = jobs[queue == self.state.jobs["first_choice"][jobs]]
        return first

    def running(self) -> Ints:
        """Return the positions of running jobs, in order of their ends."""
        jobs = self.state.ends[: self.state.clock["running"][0]]
        return jobs[np.argsort(self.state.jobs["freed_ms"][jobs], kind="stable")]

    def set_site_factor(self, jobs: Ints, values: Ints) -> None:
        """Set the site factor of ``jobs``.

        Pending ones move in the queue at once.
        """
        self.state.jobs["site_factor"][jobs] = values
        self._recompute_priorities(jobs)

    def set_time_min(self, jobs: Ints, seconds: Floats) -> None:
        """Set TimeMin of ``jobs``, s, rounded up to minutes.

        0: none. Jobs that run are left as they are.
        """
        waiting = np.asarray(jobs)[self.state.jobs["status"][jobs] <= PENDING]
        values = np.ceil(np.broadcast_to(seconds, np.shape(jobs))[self.state.jobs["status"][jobs] <= PENDING] / 60)
        self.state.jobs["time_min"][waiting] = values
        self._recompute_priorities(waiting)

    def set_held(self, jobs: Ints, *, held: bool) -> None:
        """Hold or release pending ``jobs``."""
        self.state.jobs["is_held"][jobs] = held
        self._recompute_priorities(jobs)

    def result(self) -> SlurmReplay:
        """Return the result of each job so far."""
        jobs, clock = self.state.jobs, self.state.clock[0]
        started = jobs["status"] >= RUNNING
        ended = (jobs["status"] == ENDED) | (started & (jobs["ended_ms"] <= clock["now_ms"]))
        waiting = self.state.choices["priority"][np.minimum(jobs["first_choice"], len(self.state.choices) - 1)]
        share = jobs["first_share"]
        return SlurmReplay(
            started_s=np.where(started, jobs["started_ms"] / MS, np.nan),
            ended_s=np.where(ended, jobs["ended_ms"] / MS, np.nan),
            priority=np.where(started, jobs["priority"], waiting),
            partition=np.where(started, jobs["partition"], NOBODY).astype(np.int64),
            node=np.where(jobs["status"] == RUNNING, self.state.holdings["node"][share], NOBODY).astype(np.int64),
            planned_s=np.where(jobs["planned_s"] != NEVER, jobs["planned_s"].astype(np.float64), np.nan),
            backfilled=started & (jobs["started_by"] == BY_BACKFILL),
            node_names=self._names,
            main_passes=int(clock["main_passes"]),
            backfill_passes=int(clock["backfill_passes"]),
            backfill_tests=int(clock["backfill_tests"]),
        )

    def _recompute_priorities(self, jobs: Ints) -> None:
        heads = np.asarray(jobs, dtype=np.int64)
        waiting = heads[self.state.jobs["status"][heads] == PENDING]
        recompute_priorities(self.state, waiting, int(self.state.clock["now_ms"][0]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moment:
    """What a cluster runs and queues at one moment.

    Attributes
    ----------
    now_s : int
        s since the epoch.
    running : int64 array of shape (n_running,)
        Positions of running jobs in the workload.
    started_s : float64 array of shape (n_running,)
        Their starts.
    nodes : sequence of sequence of str
        The nodes of each.
    priority : float64 array of shape (n_jobs,)
        Current priority of pending jobs; NaN: not known, or not submitted yet.
    closed : sequence of str
        Nodes that get no job.
    """

    now_s: int
    running: Ints
    started_s: Floats
    nodes: Sequence[Sequence[str]]
    priority: Floats
    closed: Sequence[str] = ()


class ForwardSimulation:
    """Simulations of one moment's future under Slurm's scheduling rules.

    A running job with unequal parts on several nodes holds as much as it can of the first ones, which may not be how
    it was placed. A pending job keeps the difference between its real priority and the simulated one, whatever made
    it. Jobs that come later get the median difference.

    Parameters
    ----------
    workload : SlurmWorkload
        The jobs that run and wait, and those to come.
    site : SlurmSite
    moment : Moment

    Attributes
    ----------
    fits : bool array of shape (n_jobs,)
        Whether each job could start on an empty cluster.
    """

    def __init__(self, workload: SlurmWorkload, site: SlurmSite, moment: Moment) -> None:
        depth_factor = max(1.0, np.isfinite(moment.priority).sum() / DEEP_QUEUE)
        latency = SlurmLatency(controller_started_s=moment.now_s - RECENT_S, growth=GROWTH * depth_factor)
        self._state = build(workload, site, latency)
        state, self._moment = self._state, moment
        drop_unfit_choices(state)
        compute_first_shares(state)
        self.fits: NDArray[np.bool_] = state.jobs["choices"] > 0
        now_ms = moment.now_s * MS
        state.clock["now_ms"] = now_ms - 1
        state.jobs["enters_ms"] = np.maximum(state.jobs["enters_ms"], now_ms)
        self._keep_priorities(moment.priority)
        number = {name: node for node, name in enumerate(node_names(site))}
        for name in moment.closed:
            if name in number:
                state.free["jobs"][:, number[name]] = CLOSED
        node_numbers = [[number[name] for name in names if name in number] for names in moment.nodes]
        # A job that could never start by the simulated rules runs all the same in a real cluster: it is left out.
        is_placed = np.array([bool(numbers) for numbers in node_numbers], dtype=np.bool_) & self.fits[moment.running]
        self._running, self._started_ms = (
            moment.running[is_placed],
            np.rint(moment.started_s[is_placed] * MS).astype(np.int64),
        )
        placed_nodes = [numbers for numbers, placed in zip(node_numbers, is_placed, strict=True) if placed]
        self._state = _with_room(state, jobs=len(placed_nodes), parts=sum(map(len, placed_nodes)))
        self._first = np.concatenate([[0], np.cumsum([len(numbers) for numbers in placed_nodes])]).astype(np.int64)
        self._nodes = np.array([node for numbers in placed_nodes for node in numbers], dtype=np.int64)
        self._tasks, self._chain = array_chains(workload)
        self._order = np.lexsort((np.arange(len(workload)), state.jobs["enters_ms"])).astype(np.int64)

    def _keep_priorities(self, priority: Floats) -> None:
        state, known_jobs = self._state, np.flatnonzero(np.isfinite(priority) & self.fits)
        compute_priorities(state, known_jobs.astype(np.int64))
        simulated = state.choices["priority"][state.jobs["first_choice"][known_jobs]]
        differences = priority[known_jobs] - simulated
        state.jobs["site_factor"] = round(float(np.median(differences))) if len(known_jobs) else 0
        state.jobs["site_factor"][known_jobs] = np.rint(differences).astype(np.int64)

    def starts(self, run_time_s: Floats, *, present: NDArray[np.bool_], awaited: Ints, until_s: int) -> Floats:
        """Simulate until all ``awaited`` jobs have started, or ``until_s``.

        Parameters
        ----------
        run_time_s : float64 array of shape (n_jobs,)
            Whole run times, s; of running jobs too.
        present : bool array of shape (n_jobs,)
            Which jobs there are or will be in this simulation. Running ones are always there.
        awaited : int64 array of shape (n_awaited,)
            Positions of pending jobs.

        Returns
        -------
        float64 array of shape (n_awaited,)
            Starts, s since the epoch; inf: not by then.
        """
        tables = {field.name: getattr(self._state, field.name).copy() for field in fields(self._state)}
        tables["jobs"]["run_ms"] = np.rint(run_time_s * MS).astype(np.int64)
        # A running job ends in the future, whatever is drawn.
        lasted_ms = self._moment.now_s * MS - self._started_ms
        tables["jobs"]["run_ms"][self._running] = np.maximum(tables["jobs"]["run_ms"][self._running], lasted_ms + 1)
        enters = present & self.fits
        enters[self._moment.running] = False
        tables["entering"] = self._order[enters[self._order]]
        # A task that runs or is not there must neither hold up the tasks behind it nor start with them.
        queued = enters[self._tasks]
        link_tasks(tables["jobs"], self._tasks[queued], self._chain[queued])
        state = SlurmState(**tables)
        put_running(state, self._running, self._started_ms, self._first, self._nodes)
        run_until(state, until_s * MS, False, False, awaited)
        started = state.jobs["status"][awaited] >= RUNNING
        moments = np.where(started, state.jobs["started_ms"][awaited], NEVER)
        return np.where(started, moments / MS, np.inf)


def _with_room(state: SlurmState, *, jobs: int, parts: int) -> SlurmState:
    """Return the tables with room for running jobs.

    Parameters
    ----------
    parts : int
        Nodes of all running jobs together.
    """
    types = int(state.clock["types"][0])
    held = len(state.holdings) + parts * (1 + types)
    holdings = np.zeros(held, dtype=state.holdings.dtype)
    holdings["next"] = np.arange(1, held + 1)
    tables = {field.name: getattr(state, field.name) for field in fields(state)}
    tables |= {
        "holdings": holdings,
        "ends": np.zeros(held + jobs, dtype=np.int64),
        "expected": np.zeros(held + jobs + 1, dtype=np.int64),
    }
    return SlurmState(**tables)
