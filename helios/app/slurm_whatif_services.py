"""Services on a site's own Slurm, simulated as on a live cluster.

Objects, cycles and predictions are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.own_order import own_order_waits
from helios.app.replay_predictions import NamedPredictor
from helios.app.service_replay import (
    PREDICT_AGAIN_S,
    SITE_FACTOR_MOST,
    ReplayedService,
    replay_services,
    replayed_services,
)
from helios.app.slurm_whatif_jobs import Ints, SlurmJobs
from helios.app.whatif import describe_sources, train_before
from helios.model import in_submission_order
from helios.model.slurm_site import SlurmSite
from helios.ownership import time_min
from helios.ports import RUN_TIME, Progress, Service, no_progress
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.simulate.slurm import SlurmLatency, SlurmReplay
from helios.simulate.slurm.cluster import SimulatedSlurm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmServiceReplay:
    """Results of a replay with services under Slurm's rules.

    Attributes
    ----------
    replay : SlurmReplay
    active_services : tuple of ReplayedService
    notes : tuple of str
        Which models predicted, how often each service was called and what it did, for a person.
    """

    replay: SlurmReplay
    active_services: tuple[ReplayedService, ...]
    notes: tuple[str, ...]


def simulate_services_on_slurm(
    jobs: SlurmJobs,
    site: SlurmSite,
    services: Mapping[str, Service],
    *,
    history: LoadedHistory,
    every: timedelta | None = None,
    most: int = SITE_FACTOR_MOST,
    most_of_one_user: float = 1.0,
    jobwise: bool = True,
    latency: SlurmLatency | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> SlurmServiceReplay:
    """Replay jobs under a site's own Slurm, with services acting as live.

    Parameters
    ----------
    services : mapping of str to Service
        Services by name, in the order in which their changes are applied.
    history : LoadedHistory
        The cluster with its earlier jobs; the predictor learns from them.
    every : timedelta, optional
        Least time between two calls of a service. None for each service's own.
    most : int
        Bound of the SiteFactor (``slurm.site_factor_most``).
    most_of_one_user, jobwise
        As for :func:`helios.app.service_replay.replay_services`.
    latency : SlurmLatency, optional
        How quickly the controller reacts.

    Raises
    ------
    JobLargerThanPartition, PartitionUnknown
        A job could never start.
    """
    active_services = replayed_services(services, every=every)
    slurm = SimulatedSlurm(
        jobs.workload, site, jobs.jobs, name=history.cluster, site_factor_most=most, latency=latency, time_min=time_min
    )
    predictor = InWorkloadOrder(jobs.jobs, history=history, seed=seed, progress=progress)
    label = f"Replaying {' + '.join(services)} on Slurm"
    progress(label, 0.0)
    replay_services(
        slurm,
        active_services,
        predictor=predictor,
        predict_again_s=PREDICT_AGAIN_S,
        jobwise=jobwise,
        most_of_one_user=most_of_one_user,
        own_order=own_order_waits(jobs.jobs, slurm.snapshot_with(None).nodes),
        progress=lambda done: progress(label, done / len(jobs.workload)),
    )
    progress(label, 1.0)
    return SlurmServiceReplay(
        replay=slurm.timeline.result(),
        active_services=tuple(active_services),
        notes=(*(_outcome_in_words(active) for active in active_services), *describe_sources(predictor.online)),
    )


class InWorkloadOrder(NamedPredictor):
    """Predictor for jobs in the order of Slurm's own records.

    It translates positions, because the tasks of an array are in another order there. It begins with what had ended
    before them, the jobs of ``history``.

    Attributes
    ----------
    online : ReplayTrainedPredictor
        Learns during the replay; its jobs are in submission order.
    place : int64 array of shape (n_jobs,)
        Position of each job among these.
    """

    def __init__(self, jobs: pd.DataFrame, *, history: LoadedHistory, seed: int, progress: Progress) -> None:
        there = in_submission_order(jobs.assign(place=np.arange(len(jobs))))["place"].to_numpy()
        self.place = np.empty(len(jobs), dtype=np.int64)
        self.place[there] = np.arange(len(jobs))
        opening = jobs["submitted_at"].min().to_pydatetime()
        self.online = ReplayTrainedPredictor(
            jobs.iloc[there].reset_index(drop=True),
            history=history.jobs,
            model=train_before(history, history.jobs, opening, seed=seed, progress=progress),
            seed=seed,
            timezone=history.timezone,
        )
        self.source = np.full(len(jobs), -1, dtype=np.int16)
        self.sources = self.online.sources

    def ended(self, jobs: Ints, ended_s: Ints) -> None:
        """Learn that ``jobs`` ended.

        See :class:`helios.ports.ReplayPredictor`.
        """
        self.online.ended(self.place[jobs], ended_s)

    def submitted(self, jobs: Ints, now_s: int) -> NDArray[np.float64]:
        """Predict the run times of submitted ``jobs``.

        See :class:`helios.ports.ReplayPredictor`.
        """
        return self._in_order(jobs, lambda place: self.online.submitted(place, now_s))

    def waiting(self, jobs: Ints, now_s: int, *, running: Ints, since_s: Ints) -> NDArray[np.float64]:
        """Predict the run times of pending ``jobs`` again.

        See :class:`helios.ports.ReplayPredictor`.
        """
        on = self.place[running]
        return self._in_order(jobs, lambda place: self.online.waiting(place, now_s, running=on, since_s=since_s))

    def _in_order(self, jobs: Ints, predict: Callable[[Ints], NDArray[np.float64]]) -> NDArray[np.float64]:
        place = self.place[jobs]
        order = np.argsort(place)
        quantiles_s = np.empty((len(jobs), len(RUN_TIME)))
        quantiles_s[order] = predict(place[order])
        self.source[jobs] = self.online.source[place]
        return quantiles_s


def _outcome_in_words(active: ReplayedService) -> str:
    did = ", ".join(f"{jobs:,} {result.value}" for result, jobs in sorted(active.outcomes.items())) or "nothing"
    text = f"Service {active.name} was called {active.asked:,} times; its requested changes ended as: {did}."
    if active.problems:
        first = "; ".join(f"{problem} ({times:,} times)" for problem, times in islice(active.problems.items(), 3))
        text += f" It raised {first}{', and was suspended' if active.suspended else ''}."
    return text
