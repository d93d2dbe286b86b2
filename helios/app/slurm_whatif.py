"""What-if under a site's own Slurm, with Helios' order and other settings.

Recorded jobs are the workload of a simulated Slurm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from math import ceil
from typing import Any

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
from helios.app.whatif import STARTS_EMPTY, WhatIfRequest, choose_window, describe_sources, measured_run, train_before
from helios.errors import NotEnoughHistory
from helios.model import in_submission_order, largest_nodes, seconds_of
from helios.model.slurm_site import NodeGroup, SlurmSite
from helios.ownership import site_factor, time_min
from helios.ports import HORIZON_S, RUN_TIME, JobwiseService, Progress, Service, no_progress
from helios.predict.replay_predictor import ReplayTrainedPredictor
from helios.report.tables import FEWEST_JOBS, Fidelity, fidelity
from helios.report.whatif import Run, WhatIf
from helios.services.qssf import Qssf
from helios.simulate import Backfill, ClusterShape, Workload, replay
from helios.simulate.ageing import first_in_first_out
from helios.simulate.gpu_units import replay_sizes, rounding_note
from helios.simulate.slurm import SlurmLatency, SlurmReplay, replay_slurm, startable
from helios.simulate.slurm.cluster import SimulatedSlurm
from helios.simulate.slurm.workload import ANY_NODES, ANY_TYPE, NO_ARRAY, NO_LIMIT, NO_QOS, SlurmWorkload
from helios.units import best_unit, in_number

# The textbook control: FIFO with EASY backfill by time limits, all of a site's GPUs as one pool.

POOL = "all"

_SUBMITTED = datetime(2000, 1, 1, tzinfo=UTC)
"""An arbitrary moment, at which a service is called for jobs that have not waited yet."""

TODAY, WITH_QSSF, OTHERWISE, TEXTBOOK = "slurm", "qssf", "slurm_otherwise", "fifo"
AT_ONCE = "Everybody at once, in order of submission"
TEXTBOOK_NAME = "FIFO + EASY (limit), all GPUs pooled"


def capacity(site: SlurmSite, resource: str) -> int:
    """Return the GPUs or CPUs of a site."""
    return sum(len(group.names) * _each(group, resource) for group in site.nodes)


def pooled_easy(jobs: SlurmJobs, site: SlurmSite, *, resource: str, default_time_limit_s: int) -> NDArray[np.float64]:
    """Replay jobs under FIFO and EASY backfill on one pool of nodes.

    Only jobs that hold some of ``resource`` are replayed. Partitions, priorities, types and shares of a node by CPUs
    and memory are ignored: that makes it the naive control.

    Returns
    -------
    array of shape (n_jobs,)
        Start of each job, s since the epoch; of jobs that hold nothing of it, or are larger than the pool, the time
        they could start.
    """
    workload, shape = jobs.workload, job_pools(site, resource)
    eligible_s, size = workload.column("eligible_s"), workload.column(resource)
    started_s = eligible_s.copy()
    chosen = np.flatnonzero((size > 0) & (size <= shape.total_gpus))
    if not len(chosen):
        return started_s
    # Whole seconds, in the order in which jobs could start: the textbook algorithm knows no other times.
    chosen = chosen[np.lexsort((chosen, eligible_s[chosen]))]
    limit_s = workload.column("time_limit_s")[chosen]
    result = replay(
        Workload(
            job_id=np.array([f"{place:012d}" for place in range(len(chosen))], dtype=object),
            submitted_s=np.rint(eligible_s[chosen]).astype(np.int64),
            run_time_s=np.rint(workload.run_time_s[chosen]).astype(np.int64),
            gpus=replay_sizes(size[chosen]),
            partition=np.zeros(len(chosen), dtype=np.int32),
        ),
        shape,
        backfill=Backfill.EASY,
        order=first_in_first_out,
        estimate_s=np.where(limit_s > 0, limit_s, default_time_limit_s).astype(np.int64),
    )
    started_s[chosen] = result.started_s
    return started_s


def job_pools(site: SlurmSite, resource: str) -> ClusterShape:
    """Return one partition with all GPUs or CPUs.

    All its nodes are as large as the site's largest.
    """
    largest = max((_each(group, resource) for group in site.nodes), default=1) or 1
    return ClusterShape(
        partitions=(POOL,),
        nodes=np.array([max(1, -(-capacity(site, resource) // largest))], dtype=np.int32),
        gpus_per_node=np.array([largest], dtype=np.int32),
    )


def site_nodes(jobs: SlurmJobs, site: SlurmSite, resource: str) -> NDArray[np.int64]:
    """Return the GPUs or CPUs of the largest node that each job may run on."""
    nodes = [
        {"partitions": partition.name, "gpus": _each(group, resource)}
        for partition in site.partitions
        for group in site.nodes
        if set(group.names) & set(partition.nodes)
    ]
    default = next((partition.name for partition in site.partitions if partition.is_default), "")
    partitions = jobs.jobs["partition"].astype("object").fillna(default).to_numpy(dtype=object)
    return largest_nodes(partitions, pd.DataFrame(nodes, columns=["partitions", "gpus"]))


def _each(group: NodeGroup, resource: str) -> int:
    return ceil(round(group.whole_gpus, 6)) if resource == "gpus" else group.cpus


# Helios' order as a site's Slurm would get it: a SiteFactor from the prediction at submission, as the hook sets it.


def _predicted(
    predictor: InWorkloadOrder, submitted_s: NDArray[np.float64], ended_s: NDArray[np.float64], progress: Progress
) -> NDArray[np.float64]:
    """Return each job's predicted median at its submission, s.

    Submissions and ends are replayed in the order of time.
    """
    second, last = np.floor(submitted_s).astype(np.int64), np.ceil(ended_s).astype(np.int64)
    by_submission, by_end = (np.lexsort((predictor.place, at_s)) for at_s in (second, last))
    p50_s, n_reported = np.empty(len(second)), 0
    groups = np.split(by_submission, np.flatnonzero(np.diff(second[by_submission])) + 1)
    for number, jobs in enumerate(groups):
        now_s = int(second[jobs[0]])
        upto = int(np.searchsorted(last[by_end], now_s, side="left"))
        if upto > n_reported:
            predictor.ended(by_end[n_reported:upto], last[by_end[n_reported:upto]])
            n_reported = upto
        p50_s[jobs] = predictor.submitted(jobs, now_s)[:, 1]
        if number % 1_000 == 0:
            progress("Predicting each job at its submission", number / len(groups))
    progress("Predicting each job at its submission", 1.0)
    return p50_s


def _requested(
    service: JobwiseService, p50_s: NDArray[np.float64], gpus: NDArray[np.float64], node: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the urgency that the service requests for each job at submission.

    0 where it names none.
    """
    now = np.datetime64(_SUBMITTED.replace(tzinfo=None), "us")
    columns: dict[str, NDArray[Any]] = {
        "eligible_at": np.full(len(p50_s), now),
        "p50_s": p50_s,
        "p10_s": p50_s,
        "p90_s": p50_s,
        "truncated_mean_s": np.minimum(p50_s, HORIZON_S),
        "submitted_at": np.full(len(p50_s), now),
        "gpus": gpus,
        "node_gpus": node,
        "urgency": np.zeros(len(p50_s)),
        "excluded_reason": np.full(len(p50_s), np.nan, dtype=object),
        "longest_own_wait_s": np.full(len(p50_s), np.nan),
        "size_orders": np.zeros(len(p50_s), dtype=np.bool_),
    }
    return np.nan_to_num(service.changes(columns.__getitem__, _SUBMITTED).urgency, nan=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmWhatIfResult:
    """The replays, and how faithful they are where starts were recorded.

    Attributes
    ----------
    whatif : WhatIf
    fidelity : tuple of Fidelity
        The replay of today's setup first, then controls; empty where too few starts were recorded.
    """

    whatif: WhatIf
    fidelity: tuple[Fidelity, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        return self.whatif.to_json() | {"fidelity": [row.to_json() for row in self.fidelity]}


def slurm_whatif(
    history: LoadedHistory,
    request: WhatIfRequest,
    site: SlurmSite,
    *,
    otherwise: SlurmSite | None = None,
    changed: str = "",
    services: Mapping[str, Service] | None = None,
    site_factor_most: int = 10_000,
    most_of_one_user: float = 1.0,
    progress: Progress = no_progress,
) -> SlurmWhatIfResult:
    """Replay a window of history under the site's own Slurm.

    It is replayed as the site is set up, with Helios' order, with the services, with other settings, and under the
    textbook control. Waits are counted from the time a job could start (its begin time, or when its dependencies were
    met).

    Parameters
    ----------
    request : WhatIfRequest
        The window.
    site : SlurmSite
        As it is set up today.
    otherwise : SlurmSite, optional
        With other settings. None where it was not requested.
    changed : str
        The other settings, for a person.
    services : mapping of str to Service, optional
        Services by name that act together in a replay of their own, in cycles as they would live. None where there is
        none.
    site_factor_most : int
        Bound of the SiteFactor that Helios sets (``slurm.site_factor_most``).
    most_of_one_user : float
        Largest share of the jobs put ahead of others' that one user may have (``control.most_of_one_user``); 1: no cap.

    Raises
    ------
    NotEnoughHistory
        No job in the window can be replayed.
    JobLargerThanPartition
        A job does not fit the site as described.
    """
    window = choose_window(history, request.since, request.until, warm_up=request.warm_up)
    before = replace(history, jobs=window.before)
    jobs = slurm_jobs(window.jobs, site)
    workload, eligible_s = jobs.workload, jobs.workload.column("eligible_s")
    resource = "gpus" if bool((workload.column("gpus") > 0).any()) else "cpus"
    counted = (jobs.jobs["submitted_at"] >= window.since).to_numpy() & (workload.column(resource) > 0)
    if not counted.any():
        raise NotEnoughHistory("Every job between --from and --to was left out.", hint="\n".join(jobs.notes))
    users = jobs.jobs["user"].cat.codes.to_numpy().astype(np.int64)[counted]
    node = site_nodes(jobs, site, resource)[counted]

    def replayed(name: str, site: SlurmSite, *, site_factor: NDArray[np.int64] | None = None) -> SlurmReplay:
        progress(f"Replaying {name}", 0.0)
        result = replay_slurm(workload, site, site_factor=site_factor)
        progress(f"Replaying {name}", 1.0)
        return result

    def measured(
        started_s: NDArray[np.float64],
        ended_s: NDArray[np.float64],
        *,
        site: SlurmSite = site,
        backfill: str = "none",
        **about: Any,
    ) -> Run:
        """Measure the counted jobs of a replay, in whole seconds."""
        submitted, started, ended = (
            np.rint(times[counted]).astype(np.int64) for times in (eligible_s, started_s, ended_s)
        )
        return measured_run(
            submitted_s=submitted,
            started_s=started,
            ended_s=ended,
            run_time_s=ended - started,
            gpus=replay_sizes(workload.column(resource)[counted]),
            users=users,
            total_gpus=capacity(site, resource),
            node=node,
            backfill=backfill,
            unit=best_unit(resource),
            **about,
        )

    today = replayed("Slurm as it is set up", site)
    predictor = InWorkloadOrder(jobs.jobs, history=before, seed=request.seed, progress=progress)
    p50_s = _predicted(predictor, workload.submitted_s, today.ended_s, progress)
    urgency = _requested(Qssf(Qssf.Options()), p50_s, workload.column("gpus"), site_nodes(jobs, site, "gpus"))
    factors = np.array([site_factor(change, most=site_factor_most) for change in urgency], dtype=np.int64)
    said = [
        f"SiteFactors are those of each job's submission, {factors.min():,} to {factors.max():,}: no job is promoted "
        "while it waits.",
        *describe_sources(predictor.online),
    ]
    ordered = replayed("Slurm, ordered by QSSF", site, site_factor=factors)
    textbook_s = pooled_easy(jobs, site, resource=resource, default_time_limit_s=request.default_time_limit_s)
    runs = [
        measured(today.started_s, today.ended_s, policy=TODAY),
        measured(ordered.started_s, ordered.ended_s, policy=WITH_QSSF, run_times="predicted"),
    ]
    if services:
        acted = simulate_services_on_slurm(
            jobs,
            site,
            services,
            history=before,
            most=site_factor_most,
            most_of_one_user=most_of_one_user,
            seed=request.seed,
            progress=progress,
        )
        title = f"{' + '.join(services)}, in cycles"
        runs.append(measured(acted.replay.started_s, acted.replay.ended_s, policy=title))
        said += acted.notes
    if otherwise is not None:
        other = replayed("other settings", otherwise)
        runs.append(measured(other.started_s, other.ended_s, site=otherwise, policy=OTHERWISE))
    textbook_ended_s = textbook_s + workload.run_time_s
    runs.append(measured(textbook_s, textbook_ended_s, policy=TEXTBOOK, estimates="limit", backfill="easy"))
    pool, submitted = job_pools(site, resource), jobs.jobs["submitted_at"][counted]
    n_nodes, each = int(pool.nodes[0]), int(pool.gpus_per_node[0])
    notes = [
        *history.notes,
        *(f"The site's files: {note}" for note in site.notes),
        *jobs.notes,
        *said,
        f"{TEXTBOOK_NAME}: {n_nodes} nodes of {each}, whatever the partition.",
        *([f"Other settings: {changed}."] if changed else []),
        *([] if request.warm_up else [STARTS_EMPTY]),
    ]
    whatif = WhatIf(
        cluster=history.cluster,
        capacity=history.capacity,
        partitions={", ".join(partition.name for partition in site.partitions): n_nodes},
        gpus_per_node=each,
        resource=resource,
        window=(submitted.min().to_pydatetime(), submitted.max().to_pydatetime()),
        runs=tuple(runs),
        notes=tuple(dict.fromkeys(notes)),
    )
    recorded_s = seconds_of(jobs.jobs["started_at"])
    known = counted & ~np.isnan(recorded_s)
    replays = {"Slurm as it is set up": today.started_s, TEXTBOOK_NAME: textbook_s, AT_ONCE: eligible_s}
    scores = (
        fidelity(name, eligible_s=eligible_s[known], recorded_s=recorded_s[known], replayed_s=replayed_s[known])
        for name, replayed_s in replays.items()
    )
    return SlurmWhatIfResult(whatif=whatif, fidelity=tuple(scores) if known.sum() >= FEWEST_JOBS else ())


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
    gpus = np.nan_to_num(jobs["gpus"].to_numpy())
    notes += filter(None, [rounding_note(gpus, total=capacity(site, "gpus"))])
    if (unrecorded := jobs["gpus"].isna().to_numpy()).any():
        example = jobs["job_id"].iloc[int(unrecorded.argmax())]
        taken = f"jobs have no record of their GPUs, such as {example}, and are replayed without any."
        notes.append(in_number(int(unrecorded.sum()), taken))
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
        gpus=gpus,
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
    cpus, gpus = (jobs[name].fillna(1).to_numpy() for name in ("cpus", "gpus"))
    whole = (cpus.astype(np.int64) % nodes == 0) & ((gpus % nodes == 0) | (nodes == 1))
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
