"""Recorded jobs as a workload for a simulated Slurm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.app.history import LoadedHistory
from helios.app.own_order import own_order_waits
from helios.app.service_replay import (
    PREDICT_AGAIN_S,
    SITE_FACTOR_MOST,
    NamedPredictor,
    ReplayedService,
    replay_services,
    replayed_services,
)
from helios.app.whatif import describe_sources, train_before
from helios.errors import NotEnoughHistory
from helios.model import in_submission_order, seconds_of
from helios.model.slurm_site import SlurmSite
from helios.ownership import time_min
from helios.ports import RUN_TIME, Progress, Service, no_progress
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.simulate.slurm import SlurmLatency, SlurmReplay, startable
from helios.simulate.slurm.cluster import SimulatedSlurm
from helios.simulate.slurm.workload import ANY_NODES, ANY_TYPE, NO_ARRAY, NO_LIMIT, NO_QOS, SlurmWorkload
from helios.units import in_number

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJobs:
    """Recorded jobs that can be replayed on a site.

    Attributes
    ----------
    jobs : DataFrame
        Replayed jobs as columns of ``JOBS``, in the order of ``workload``.
    workload : SlurmWorkload
    notes : tuple of str
        What was left out or assumed.
    """

    jobs: pd.DataFrame
    workload: SlurmWorkload
    notes: tuple[str, ...]


def slurm_jobs(
    jobs: pd.DataFrame, site: SlurmSite, *, nice: Ints | None = None, keep_misfits: bool = False
) -> SlurmJobs:
    """Return jobs as they would be submitted to ``site``.

    Parameters
    ----------
    jobs : DataFrame
        Columns of ``JOBS``, in submission order; those without a run time, or of partitions that the site does not
        have, are left out.
    nice : array of shape (len(jobs),), optional
        Priority that users gave up with ``nice``, which no accounting keeps. None stands for 0.
    keep_misfits : bool
        Keep jobs that an empty cluster could not start: some may run all the same, as an admin may let them.

    Raises
    ------
    NotEnoughHistory
        No job is left.
    """
    notes: list[str] = []
    places = {partition.name: place for place, partition in enumerate(site.partitions)}
    default = next((place for place, partition in enumerate(site.partitions) if partition.is_default), None)
    missing = jobs["partition"].isna().to_numpy()
    names = jobs["partition"].astype("str").to_numpy(dtype=object)
    by_name = {
        name: tuple(dict.fromkeys(places[one] for one in str(name).split(",") if one in places))
        for name in set(names[~missing])
    }
    fallback = () if default is None else (default,)
    asked = [fallback if gone else by_name[name] for name, gone in zip(names, missing, strict=True)]
    keep = jobs["run_time_s"].notna().to_numpy()
    if not keep.all():
        notes.append(in_number(int((~keep).sum()), "jobs that never ran, or whose run time is unknown, were left out."))
    placed = np.array([bool(choice) for choice in asked], dtype=np.bool_)
    if lost := int((keep & ~placed).sum()):
        strange = sorted({str(name) for name in jobs["partition"].astype("str")[keep & ~placed]})
        notes.append(
            in_number(lost, f"jobs of partitions that the site does not have were left out: {', '.join(strange[:10])}.")
        )
    keep = keep & placed
    if missing.any() and default is not None:
        notes.append(in_number(int(missing.sum()), "jobs without a partition go to the site's default one."))
    if not keep.any():
        notes.append("Do --slurm-conf and --sinfo describe the cluster that ran these jobs?")
        raise NotEnoughHistory("No job of the window can be replayed on this site.", hint="\n".join(notes))
    order = _with_tasks_in_order(jobs[keep])
    chosen = jobs[keep].iloc[order].reset_index(drop=True)
    kept = [choice for choice, keeps in zip(asked, keep, strict=True) if keeps]
    workload = _workload(chosen, site, [kept[place] for place in order], notes)
    if nice is not None:
        workload = replace(workload, nice=nice[keep][order])
    if keep_misfits:
        return SlurmJobs(jobs=chosen, workload=workload, notes=tuple(notes))
    # Slurm would have refused the others, or kept them pending for ever.
    fits = startable(workload, site)
    if not fits.any():
        raise NotEnoughHistory(
            "No job of the window fits the nodes and limits of this site's partitions.",
            hint="Is it the slurm.conf of the cluster that ran these jobs?",
        )
    if not fits.all():
        notes.append(
            in_number(
                int((~fits).sum()),
                "jobs that ask for more nodes, resources or time than their partition has were left out",
            )
            + f", as {workload.job_id[np.argmin(fits)]}."
        )
        chosen, workload = chosen[fits].reset_index(drop=True), workload.kept(fits)
    return SlurmJobs(jobs=chosen, workload=workload, notes=tuple(notes))


def _with_tasks_in_order(jobs: pd.DataFrame) -> Ints:
    """Return the order in which Slurm keeps job records.

    Jobs are sorted by submission, job id (that of the array for its tasks), task and restart.
    """
    master = jobs["array_job_id"].astype("str").where(jobs["array_job_id"].notna(), jobs["job_id"])
    keys = pd.DataFrame(
        {
            "submitted_at": jobs["submitted_at"].to_numpy(),
            "length": master.str.len().to_numpy(),
            "master": master.to_numpy(),
            "task": pd.to_numeric(jobs["array_task_id"], errors="coerce").fillna(0).to_numpy(),
            "restart": jobs["restart"].to_numpy(),
        }
    )
    return keys.sort_values(list(keys.columns), kind="stable").index.to_numpy().astype(np.int64)


def _workload(jobs: pd.DataFrame, site: SlurmSite, choices: list[tuple[int, ...]], notes: list[str]) -> SlurmWorkload:
    submitted_s = seconds_of(jobs["submitted_at"])
    eligible_s = np.fmax(seconds_of(jobs["eligible_at"]), submitted_s)
    users, user = _codes(jobs["user"])
    accounts, account = _codes(jobs["account"])
    qos_names, qos = _codes(jobs["qos"], missing=NO_QOS)
    gpu_types = tuple(dict.fromkeys(kind for group in site.nodes for kind in group.gpus if kind))
    named = jobs["gpu_type"].astype("str").where(jobs["gpu_type"].notna(), "").to_numpy(dtype=object)
    places = {kind: place for place, kind in enumerate(gpu_types)}
    if strange := sorted({name for name in named if name and name not in places}):
        notes.append(f"GPU types that the site does not have are taken as any: {', '.join(strange[:10])}.")
    limit_s = jobs["time_limit_s"].to_numpy(dtype=np.float64)
    unknown = ~np.isfinite(limit_s)
    if unknown.any():
        notes.append(f"{int(unknown.sum()):,} of {len(jobs):,} jobs have no time limit: they get their partition's.")
    return SlurmWorkload(
        job_id=jobs["job_id"].to_numpy(dtype=object),
        submitted_s=submitted_s,
        eligible_s=eligible_s,
        run_time_s=jobs["run_time_s"].to_numpy(dtype=np.float64),
        time_limit_s=np.where(unknown, NO_LIMIT, limit_s),
        partitions=tuple(partition.name for partition in site.partitions),
        partition=np.array([choice[0] for choice in choices], dtype=np.int64),
        more_partitions={place: choice[1:] for place, choice in enumerate(choices) if len(choice) > 1},
        nodes=_nodes(jobs),
        cpus=np.maximum(1, jobs["cpus"].fillna(1).to_numpy()).astype(np.int64),
        memory_mib=jobs["memory_mib"].fillna(0).to_numpy().astype(np.int64),
        gpus=jobs["gpus"].to_numpy().astype(np.int64),
        gpu_types=gpu_types,
        gpu_type=np.array([places.get(name, ANY_TYPE) for name in named], dtype=np.int64),
        users=users,
        user=user,
        accounts=accounts,
        account=account,
        qos_names=qos_names,
        qos=qos,
        array=_arrays(jobs),
    )


def _nodes(jobs: pd.DataFrame) -> Ints:
    """Return the recorded number of nodes of each job.

    ``ANY_NODES`` where CPUs or GPUs do not divide evenly among them: then the job takes as many as it needs.
    """
    nodes = jobs["nodes"].fillna(1).to_numpy().astype(np.int64).clip(min=1)
    whole = np.ones(len(jobs), dtype=np.bool_)
    for name in ("cpus", "gpus"):
        whole &= jobs[name].fillna(1).to_numpy().astype(np.int64) % nodes == 0
    return np.where(whole, nodes, ANY_NODES)


def _arrays(jobs: pd.DataFrame) -> Ints:
    """Return a number for each job array.

    An array id that was used again at another time gets another number.
    """
    known = jobs["array_job_id"].notna().to_numpy()
    numbers = jobs.groupby(["array_job_id", "submitted_at"], sort=False, dropna=False).ngroup().to_numpy()
    return np.where(known, numbers, NO_ARRAY).astype(np.int64)


def _codes(column: pd.Series, *, missing: int | None = None) -> tuple[tuple[str, ...], Ints]:
    """Return distinct names, and the index of each row.

    A missing name becomes ``""``, or gets the code ``missing``.
    """
    codes, names = pd.factorize(column.astype("str").where(column.notna(), None))
    found = tuple(str(name) for name in names)
    if missing is not None:
        return found, np.where(codes < 0, missing, codes).astype(np.int64)
    if (codes < 0).any():
        codes, found = np.where(codes < 0, len(found), codes), (*found, "")
    return found, codes.astype(np.int64)


# Services on a site's own Slurm, simulated with the same objects, cycles and predictions as on a live cluster.


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
