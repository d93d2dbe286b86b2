"""Conversion of Slurm's raw records into data frames.

Values that Helios wrote are distinguished from other people's here. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios import ownership
from helios.actions import JobSetting
from helios.changes import NO_RECORD
from helios.model import NODE_STATES, QUEUE, TIME, JobState
from helios.model.gpu_parts import NodeGpus, Places, SiteGpus, gpus_of_shares, is_slice, part_of_gpu, places
from helios.slurm import parse, power
from helios.slurm.backend import UNLIMITED, Length, RawJob, RawNode
from helios.slurm.commands import SiteFactor
from helios.slurm.undo_file import JOBS_FILE, JobsUndo

SOFT_LIMITS_SINCE = (23, 11)
"""First release of ``SchedulerParameters=time_min_as_soft_limit``. Before it, every TimeMin is the user's own."""

_NO_CONFIGURATION = power.NodeSurroundings()
_EMPTY_RECORD = JobsUndo()
"""Empty record. Without a record no value counts as Helios' own."""
_HOLDING = {"RUNNING": JobState.RUNNING, "SUSPENDED": JobState.SUSPENDED, "COMPLETING": JobState.RUNNING}
_COPIED_COLUMNS = (
    "restart", "array_job_id", "tasks", "het_job_id", "het_job_offset", "user", "group", "account", "qos", "partition",
    "nodes", "cpus", "gpu_type", "memory_mib", "node_list", "priority",
)  # fmt: skip
_TIMES = {
    "submitted_at": "submitted",
    "eligible_at": "eligible",
    "started_at": "started",
    "planned_start_at": "planned_start",
}


def to_minutes(length: Length) -> int:
    """Return a TimeMin in minutes, 0 for none."""
    return round(length / 60) if isinstance(length, (int, float)) else 0


def is_helios_site_factor(value: int, job: RawJob, undo: JobsUndo) -> bool:
    """Return whether a job's SiteFactor is Helios' own.

    It has Helios' mark, and a record proves that Helios wrote it to this job.
    """
    return ownership.has_helios_mark(value) and undo.has_record(JobSetting.ORDER, job, value)


def is_helios_time_min(job: RawJob, undo: JobsUndo, *, release: tuple[int, int]) -> bool:
    """Return whether a job's TimeMin is Helios' own.

    It has Helios' mark, a record proves it, and this release of Slurm has soft limits.
    """
    value = to_minutes(job["time_min_s"])
    return (
        release >= SOFT_LIMITS_SINCE
        and ownership.has_helios_time_min(value)
        and undo.has_record(JobSetting.SOFT_LIMIT, job, value)
    )


def no_record_remark(undo: JobsUndo) -> str:
    """Return the remark about a value with Helios' mark but no record."""
    if undo.problem:
        return f"it bears Helios' mark, and whether Helios wrote it is not known ({undo.problem})"
    return f"{NO_RECORD} ({JOBS_FILE})"


def excluded_reason(job: RawJob, factor: SiteFactor | None, undo: JobsUndo = _EMPTY_RECORD) -> str:
    """Return why Helios must leave a job alone, for a person.

    Empty where it may act.

    Parameters
    ----------
    factor : SiteFactor, optional
        The job's entry in ``sprio``; None where it has none, because it is not eligible.
    undo : JobsUndo
        What Helios wrote.
    """
    if job["het_job_id"]:
        return f"it is a component of heterogeneous job {job['het_job_id']}"
    if job["cron"]:
        return "scrontab made it"
    if job["reservation"]:
        return f"it is of reservation {job['reservation']}"
    return _why_not_helios(job, factor, undo)


def _why_not_helios(job: RawJob, factor: SiteFactor | None, undo: JobsUndo) -> str:
    if job["state"] == "PENDING" and (job["priority"] == 0 or (job["reason"] or "").startswith("JobHeld")):
        return "it is held"
    if factor is not None and factor.direct:
        return f"its priority was set directly, to {job['priority']}"
    if factor is not None and factor.value and not is_helios_site_factor(factor.value, job, undo):
        theirs = f"an admin set SiteFactor {factor.value}"
        return f"{theirs}, or {no_record_remark(undo)}" if ownership.has_helios_mark(factor.value) else theirs
    return ""


def pending(
    jobs: Iterable[RawJob],
    factors: Mapping[str, SiteFactor],
    *,
    most: int,
    release: tuple[int, int],
    undo: JobsUndo = _EMPTY_RECORD,
    nodes: Sequence[RawNode] = (),
) -> pd.DataFrame:
    """Return the pending jobs as ``QUEUE``, in Slurm's order.

    They are sorted by descending priority, then submit time, then id. Parts of a GPU are counted by the ``nodes``.
    """
    waiting = [job for job in jobs if job["state"] == "PENDING"]
    waiting.sort(key=lambda job: (-(job["priority"] or 0), job["submitted"], int(job["job_id"])))
    soft_limits_of_helios = [is_helios_time_min(job, undo, release=release) for job in waiting]
    soft = [_seconds(job["time_min_s"]) for job in waiting]
    factors_of_jobs = [factors.get(job["job_id"]) for job in waiting]
    columns = _columns(waiting, nodes) | {
        "state": [JobState.PENDING.value] * len(waiting),
        "reason": [job["reason"] for job in waiting],
        "urgency": [
            ownership.urgency(factor.value, most=most)
            if factor and is_helios_site_factor(factor.value, job, undo)
            else 0.0
            for job, factor in zip(waiting, factors_of_jobs, strict=True)
        ],
        "soft_limit_s": [length if own else None for length, own in zip(soft, soft_limits_of_helios, strict=True)],
        "user_soft_limit_s": [None if own else length for length, own in zip(soft, soft_limits_of_helios, strict=True)],
        "excluded_reason": [
            excluded_reason(job, factor, undo) or None for job, factor in zip(waiting, factors_of_jobs, strict=True)
        ],
    }
    return QUEUE.conform(pd.DataFrame(columns))


def running(
    jobs: Iterable[RawJob],
    *,
    release: tuple[int, int],
    undo: JobsUndo = _EMPTY_RECORD,
    nodes: Sequence[RawNode] = (),
) -> pd.DataFrame:
    """Return the jobs that hold resources as ``QUEUE``, oldest start first.

    ``reason`` shows which are completing. Helios' soft limits are left out, because they have no effect on a running
    job.
    """
    holding = [job for job in jobs if job["state"] in _HOLDING]
    holding.sort(key=lambda job: (job["started"] or 0, int(job["job_id"])))
    columns = _columns(holding, nodes) | {
        "state": [_HOLDING[job["state"]].value for job in holding],
        "reason": ["Completing" if job["state"] == "COMPLETING" else job["reason"] for job in holding],
        "urgency": [0.0] * len(holding),
        "user_soft_limit_s": [
            None if is_helios_time_min(job, undo, release=release) else _seconds(job["time_min_s"]) for job in holding
        ],
        "excluded_reason": [excluded_reason(job, None) or None for job in holding],
    }
    return QUEUE.conform(pd.DataFrame(columns))


def node_states(nodes: Sequence[RawNode], around: power.NodeSurroundings = _NO_CONFIGURATION) -> pd.DataFrame:
    """Return the nodes as ``NODE_STATES``, in the order of their names.

    Parameters
    ----------
    around : NodeSurroundings
        Nodes that the cluster itself keeps awake, and racks. By default no node is kept awake and no rack is known.
    """
    ordered = sorted(nodes, key=lambda node: (len(node["name"]), node["name"]))
    plain = [name for name in RawNode.__annotations__ if name not in ("idle_since", "gres")]
    kept = power.kept_awake(ordered, around.exclusions)
    columns: dict[str, Any] = {name: [_readable_value(dict(node)[name]) for node in ordered] for name in plain}
    columns["idle_since"] = times(node["idle_since"] for node in ordered)
    if any(map(_has_slices, ordered)):
        site = _site(ordered).nodes
        # Where not all of a GPU is divided, the rest of it is nobody's.
        columns["gpus"] = [math.ceil(site[node["name"]].gpus) for node in ordered]
        columns["gpus_held"] = [
            node["gpus_held"] * (has.gpus / has.slices if has.slices else 1.0)
            for node in ordered
            for has in [site[node["name"]]]
        ]
    columns["power"] = [power.power(node) for node in ordered]
    columns["excluded_reason"] = [
        _readable_value(power.excluded_reason(node, around.exclusions)) or None for node in ordered
    ]
    columns["kept_awake"] = [int(node["name"] in kept) for node in ordered]
    columns["rack"] = [around.racks.get(node["name"]) for node in ordered]
    return NODE_STATES.conform(pd.DataFrame(columns))


def readable(text: str) -> str:
    r"""Return ``text`` with undecodable bytes written as ``\xff``.

    Frames and databases hold only valid text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return text


def _columns(jobs: Sequence[RawJob], nodes: Sequence[RawNode]) -> dict[str, Any]:
    rows = [dict(job) for job in jobs]
    columns: dict[str, Any] = {
        name: [_readable_value(row[name]) for row in rows] for name in ("job_id", "name", *_COPIED_COLUMNS)
    }
    columns["array_task_id"] = [job["array_tasks"] for job in jobs]
    columns["gpus"] = _gpus(jobs, nodes)
    columns["time_limit_s"] = [_seconds(job["time_limit_s"]) for job in jobs]
    return columns | {column: times(row[key] for row in rows) for column, key in _TIMES.items()}


def _gpus(jobs: Sequence[RawJob], nodes: Sequence[RawNode]) -> NDArray[np.float64]:
    """Return the GPUs of each job.

    Shards, MPS shares and MIG slices are parts of one.
    """
    gpus = np.array([job["gpus"] * (part_of_gpu(job["gpu_type"] or "") or 1.0) for job in jobs], dtype=np.float64)
    shares = {kind: np.array([dict(job)[kind] or 0 for job in jobs], dtype=np.float64) for kind in ("shards", "mps")}
    untyped = np.array([not job["gpu_type"] for job in jobs], dtype=np.bool_) & (gpus > 0)
    slices = np.flatnonzero(untyped & any(map(_has_slices, nodes)))
    rows = {kind: np.flatnonzero((held > 0) & (gpus == 0)) for kind, held in shares.items()}
    if not any(map(len, (*rows.values(), slices))):
        return gpus
    site = _site(nodes)

    def where(chosen: Iterable[int]) -> Places:
        return places(site, [jobs[at]["node_list"] for at in chosen], [jobs[at]["partition"] for at in chosen])

    for kind, chosen in rows.items():
        found, _ = gpus_of_shares(shares[kind][chosen], kind, where(chosen))
        gpus[chosen] = np.nan_to_num(found, nan=1.0)  # without a node that is divided so, none can run the job
    on = where(slices)
    gpus[slices] *= np.nan_to_num(on.each("gpus") / on.each("slices"), nan=1.0)[on.codes]
    return gpus


def _has_slices(node: RawNode) -> bool:
    return any(map(is_slice, parse.gres(node["gres"] or "").get("gpu", ())))


def _site(nodes: Iterable[RawNode]) -> SiteGpus:
    """Return the GPUs of nodes, and what they are divided into."""
    counts: dict[str, NodeGpus] = {}
    partitions: dict[str, list[str]] = {}
    for node in nodes:
        gres = parse.gres(node["gres"] or "")
        gpus = gres.get("gpu", {node["gpu_type"] or "": node["gpus"]})
        shards, mps = (parse.gpus(node["gres"] or "", name).count for name in ("shard", "mps"))
        counts[node["name"]] = NodeGpus.of_node(gpus, cpus=node["cpus"], shards=shards, mps=mps)
        for partition in node["partitions"].split(","):
            partitions.setdefault(partition, []).append(node["name"])
    return SiteGpus(source="nodes", nodes=counts, partitions=partitions)


def _readable_value(value: Any) -> Any:
    return readable(value) if isinstance(value, str) else value


def _seconds(length: Length) -> float | None:
    return math.inf if length == UNLIMITED else length if isinstance(length, (int, float)) else None


def times(values: Iterable[Any]) -> pd.Series[Any]:
    """Return times in s since the epoch as a column."""
    seconds = pd.Series([*values], dtype="float64")
    return pd.Series(pd.to_datetime(seconds, unit="s", utc=True), dtype=TIME)
