"""Recorded jobs as they would be submitted to a site's own Slurm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import NotEnoughHistory
from helios.model import seconds_of
from helios.model.slurm_site import NodeGroup, SlurmSite
from helios.simulate.gpu_units import rounding_note
from helios.simulate.slurm import startable
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


def capacity(site: SlurmSite, resource: str) -> int:
    """Return the GPUs or CPUs of a site."""
    return sum(len(group.names) * units_of(group, resource) for group in site.nodes)


def units_of(group: NodeGroup, resource: str) -> int:
    """Return the GPUs or CPUs of a node of a group."""
    return ceil(round(group.whole_gpus, 6)) if resource == "gpus" else group.cpus
