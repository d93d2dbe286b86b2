"""Services on a site's own Slurm, simulated: the same objects, turns and predictions that a live cluster would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.backlog import reckoning_on
from helios.app.foresight import NamedPredictor
from helios.app.rehearsal import PREDICT_AGAIN_S, RESOLUTION
from helios.app.slurm_jobs import SlurmJobs
from helios.app.timeline import RAISES_TO_BENCH, Seat, play
from helios.app.whatif import sources_said
from helios.errors import NotEnoughHistory
from helios.marks import time_min
from helios.model import in_submission_order
from helios.model.site import SlurmSite
from helios.ports import Progress, Service, in_silence
from helios.predict import DurationModel, OnlinePredictor, train
from helios.simulate.slurmlike import SlurmLatency, SlurmReplay
from helios.simulate.slurmlike.door import SlurmDoor

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlurmRehearsal:
    """What became of the jobs, and of the services.

    Attributes
    ----------
    replay : SlurmReplay
    seats : tuple of Seat
    notes : tuple of str
        Who predicted, and what each service was asked and did, for a person.
    """

    replay: SlurmReplay
    seats: tuple[Seat, ...]
    notes: tuple[str, ...]


def rehearse_on_slurm(
    jobs: SlurmJobs,
    site: SlurmSite,
    services: Mapping[str, Service],
    *,
    before: pd.DataFrame,
    cluster: str,
    timezone: str,
    every: timedelta | None = None,
    most: int = RESOLUTION,
    raises_to_bench: int = RAISES_TO_BENCH,
    predict_again_s: int | None = PREDICT_AGAIN_S,
    most_of_one_user: float = 1.0,
    jobwise: bool = True,
    latency: SlurmLatency | None = None,
    seed: int = 0,
    progress: Progress = in_silence,
) -> SlurmRehearsal:
    """Replay jobs under a site's own Slurm, with services that look and act as they would live.

    Parameters
    ----------
    services : mapping of str to Service
        By name, in the order in which their proposals are applied.
    before : DataFrame
        Earlier jobs, columns of ``JOBS``; they teach the predictor.
    every : timedelta, optional
        Least time between two questions to a service; None: each its own.
    most : int
        Bound of the SiteFactor (``slurm.site_factor_most``).
    predict_again_s, most_of_one_user, jobwise
        As for :func:`helios.app.timeline.play`.
    latency : SlurmLatency, optional
        How quickly the controller reacts.

    Raises
    ------
    JobLargerThanPartition, PartitionUnknown
        A job could never start.
    """
    seats = [
        Seat(name=name, service=it, every=it.every if every is None else every, raises_to_bench=raises_to_bench)
        for name, it in services.items()
    ]
    door = SlurmDoor(jobs.workload, site, jobs.jobs, name=cluster, resolution=most, latency=latency, time_min=time_min)
    model = taught(before, jobs.jobs, cluster=cluster, timezone=timezone, seed=seed, progress=progress)
    predictor = InWorkloadOrder(jobs.jobs, before=before, model=model, seed=seed, timezone=timezone)
    told = f"Rehearsing {' + '.join(services)} on Slurm"
    progress(told, 0.0)
    play(
        door,
        seats,
        predictor=predictor,
        predict_again_s=predict_again_s,
        jobwise=jobwise,
        most_of_one_user=most_of_one_user,
        reckoning=reckoning_on(door.look(None).nodes, jobs.jobs),
        progress=lambda done: progress(told, done / len(jobs.workload)),
    )
    progress(told, 1.0)
    return SlurmRehearsal(
        replay=door.timeline.result(),
        seats=tuple(seats),
        notes=(*(_said_of(seat) for seat in seats), *sources_said(predictor.online)),
    )


def taught(
    before: pd.DataFrame, jobs: pd.DataFrame, *, cluster: str, timezone: str, seed: int, progress: Progress
) -> DurationModel | None:
    """Return a model of what had ended when the replay opens; None leaves the predictor to learn on its way."""
    if before.empty:
        return None
    opening = jobs["submitted_at"].min().to_pydatetime()
    try:
        return train(before, cluster=cluster, until=opening, seed=seed, timezone=timezone, progress=progress)
    except NotEnoughHistory:
        return None


class InWorkloadOrder(NamedPredictor):
    """The predictor that learns on its way, for jobs in the order of Slurm's own records: arrays by task.

    Attributes
    ----------
    online : OnlinePredictor
        Whose jobs stand in submission order.
    """

    def __init__(
        self, jobs: pd.DataFrame, *, before: pd.DataFrame, model: DurationModel | None, seed: int, timezone: str
    ) -> None:
        there = in_submission_order(jobs.assign(place=np.arange(len(jobs))))["place"].to_numpy()
        self._place = np.empty(len(jobs), dtype=np.int64)
        self._place[there] = np.arange(len(jobs))
        self.online = OnlinePredictor(
            jobs.iloc[there].reset_index(drop=True), history=before, model=model, seed=seed, timezone=timezone
        )
        self.source = np.full(len(jobs), -1, dtype=np.int16)
        self.sources = self.online.sources

    def ended(self, jobs: Positions, ended_s: Positions) -> None:
        """Take note that ``jobs`` ended; see :class:`helios.ports.ReplayPredictor`."""
        self.online.ended(self._place[jobs], ended_s)

    def submitted(self, jobs: Positions, now_s: int) -> NDArray[np.float64]:
        """Predict the run times of ``jobs``, which are submitted; see :class:`helios.ports.ReplayPredictor`."""
        order = np.argsort(self._place[jobs])
        quantiles_s = np.empty((len(jobs), 3))
        quantiles_s[order] = self.online.submitted(self._place[jobs][order], now_s)
        self.source[jobs] = self.online.source[self._place[jobs]]
        return quantiles_s

    def waiting(self, jobs: Positions, now_s: int, *, running: Positions, since_s: Positions) -> NDArray[np.float64]:
        """Predict again the run times of ``jobs``, which wait; see :class:`helios.ports.ReplayPredictor`."""
        order = np.argsort(self._place[jobs])
        quantiles_s = np.empty((len(jobs), 3))
        quantiles_s[order] = self.online.waiting(
            self._place[jobs][order], now_s, running=self._place[running], since_s=since_s
        )
        self.source[jobs] = self.online.source[self._place[jobs]]
        return quantiles_s


def _said_of(seat: Seat) -> str:
    did = ", ".join(f"{jobs:,} {result.value}" for result, jobs in sorted(seat.outcomes.items())) or "nothing"
    said = f"Service {seat.name} was asked {seat.asked:,} times; its proposals ended as: {did}."
    if seat.troubles:
        first = "; ".join(f"{trouble} ({times:,} times)" for trouble, times in islice(seat.troubles.items(), 3))
        said += f" It raised {first}{', and was asked no more' if seat.benched else ''}."
    return said
