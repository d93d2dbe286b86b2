"""Simulations that go on from the jobs of one moment.

They are made many times with other run times, to see when a job starts. The tables are built once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from helios.model.slurm_site import SlurmSite
from helios.simulate.slurm.events import begin, keep_choices, make_first_priorities, put_running, run_until
from helios.simulate.slurm.state import MS, NEVER, RUNNING, SlurmState
from helios.simulate.slurm.tables import SlurmLatency, array_chains, build, link_tasks, node_names
from helios.simulate.slurm.workload import SlurmWorkload

CLOSED = -1_000_000
"""Number of jobs on a node that gets none, however many jobs that it has now end."""
RECENT_S = 60
"""How long before the moment the periods of the controller begin, s."""
GROWTH = 0.05
"""Least share of the time since the moment between two backfill passes.

With it the medians of four jobs of Venus were the same within a tenth as with passes each 30 s, 15 times as quickly.
"""
DEEP = 300
"""Pending jobs from which passes are rarer still, as each takes longer."""


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
        deep = max(1.0, np.isfinite(moment.priority).sum() / DEEP)
        latency = SlurmLatency(controller_started_s=moment.now_s - RECENT_S, growth=GROWTH * deep)
        self._state = build(workload, site, latency)
        state, self._moment = self._state, moment
        keep_choices(state)
        begin(state)
        self.fits: NDArray[np.bool_] = state.jobs["choices"] > 0
        now_ms = moment.now_s * MS
        state.clock["now_ms"] = now_ms - 1
        state.jobs["enters_ms"] = np.maximum(state.jobs["enters_ms"], now_ms)
        self._keep_priorities(moment.priority)
        number = {name: node for node, name in enumerate(node_names(site))}
        for name in moment.closed:
            if name in number:
                state.free["jobs"][:, number[name]] = CLOSED
        places = [[number[name] for name in names if name in number] for names in moment.nodes]
        # A job that could never start by the simulated rules runs all the same in a real cluster: it is left out.
        seated = np.array([bool(place) for place in places], dtype=np.bool_) & self.fits[moment.running]
        self._running, self._started_ms = (
            moment.running[seated],
            np.rint(moment.started_s[seated] * MS).astype(np.int64),
        )
        chosen = [place for place, seat in zip(places, seated, strict=True) if seat]
        self._state = _with_room(state, jobs=len(chosen), parts=sum(map(len, chosen)))
        self._first = np.concatenate([[0], np.cumsum([len(place) for place in chosen])]).astype(np.int64)
        self._nodes = np.array([node for place in chosen for node in place], dtype=np.int64)
        self._tasks, self._chain = array_chains(workload)
        self._order = np.lexsort((np.arange(len(workload)), state.jobs["enters_ms"])).astype(np.int64)

    def _keep_priorities(self, priority: Floats) -> None:
        state, known = self._state, np.flatnonzero(np.isfinite(priority) & self.fits)
        make_first_priorities(state, known.astype(np.int64))
        simulated = state.choices["priority"][state.jobs["first_choice"][known]]
        differences = priority[known] - simulated
        state.jobs["site"] = round(float(np.median(differences))) if len(known) else 0
        state.jobs["site"][known] = np.rint(differences).astype(np.int64)

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
