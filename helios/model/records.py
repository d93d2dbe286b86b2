"""Records of jobs, nodes and models and of what Helios does.

Frames hold what Helios records about itself: modes, cycles, decisions, applied changes, the active models, and what was
read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

import pandas as pd

from helios.model.frames import TIME, frame_kind

PROMOTIONS = frame_kind(
    "promotions",
    ("promoted_at", TIME, "When it was decided"),
    ("step", "category", "Step: promoted, kept or rolled back"),
    ("model_id", "str", "The model active from then on; missing: none, shrinkage predicts"),
    ("previous", "str", "The model active until then; missing as above"),
    ("candidate", "str", "The model that was judged; missing: none was"),
    ("promoted_by", "str", "Who decided: a person's login, or nightly"),
    ("why", "str", "Why, for a person"),
)

DECISIONS = frame_kind(
    "decisions",
    ("decided_at", TIME, "When; the rows of one cycle share it"),
    ("service", "category", "Who proposed it; 'helios' for control itself"),
    ("mode", "category", "A Mode, or 'paused'"),
    ("action", "category", "Reorder, SoftLimit, Revert, ...; Cycle for a line about a whole cycle"),
    ("target", "str", "Job id, partition, node, or the cluster's name"),
    ("reason", "str", "Why, for a person"),
    ("before", "str", "What was read before, in the mechanism's words; missing: not applicable"),
    ("after", "str", "What was read back, in the mechanism's words; missing: not applicable"),
    ("model_id", "str", "What predicted; missing: nothing did"),
    ("outcome", "str", "A Result, and what more there is to say after a colon"),
)

APPLIED_CHANGES = frame_kind(
    "applied_changes",
    ("setting", "category", "Setting: what of the job stands changed"),
    ("job_id", "str", "The job, as in QUEUE"),
    ("submitted_at", TIME, "Its submission: ids are used again"),
    ("service", "category", "Who asked for it"),
    ("mode", "category", "A Mode; shadow: only would stand"),
    ("value", "float64", "Urgency, or soft limit in s, as asked for"),
    ("after", "str", "What was read back, in the mechanism's words"),
    ("written_at", TIME, "When it was read back"),
    ("overridden", "int32", "1: somebody else changed it since; it is theirs, Helios keeps off"),
)

APPLIED_NODE_CHANGES = frame_kind(
    "applied node changes",
    ("setting", "category", "A NodeSetting: what of the node stands changed"),
    ("node", "str", "The node; of the keep-awake list, which is the cluster's, empty text"),
    ("service", "category", "Who asked for it"),
    ("mode", "category", "A Mode; shadow: only would stand"),
    ("value", "str", "What was asked for: asleep, a weight, a list of nodes"),
    ("own", "str", "What the site itself had there before Helios, and will have again: a weight, a list"),
    ("after", "str", "What was read back, in the mechanism's words; missing: not yet"),
    ("written_at", TIME, "When it was written"),
    ("overridden", "int32", "1: somebody else changed it since; it is theirs, Helios keeps off"),
)

NODE_TALLIES = frame_kind(
    "node tallies",
    ("taken_at", TIME, "When the nodes were looked at"),
    ("pool", "category", "Nodes that can stand in for each other; see helios.model.node_pools"),
    ("total", "int32", "Nodes in service: not down, not drained"),
    ("busy", "int32", "Nodes that hold a job"),
    ("asleep", "int32", "Nodes asleep"),
    ("falling_asleep", "int32", "Nodes on the way there"),
    ("waking", "int32", "Nodes on the way back"),
    ("by_helios", "int32", "Nodes asleep or falling asleep because Helios asked for it"),
    ("wanted", "float64", "Nodes that the service wanted awake; NaN: none was asked"),
)

MODES = frame_kind(
    "modes",
    ("service", "category", "The service"),
    ("mode", "category", "A Mode"),
    ("partitions", "str", "Partitions of a canary, by commas; missing: all"),
    ("percent", "float64", "Share of the jobs of a canary, 1 to 100; NaN: all"),
    ("set_at", TIME, "When"),
    ("set_by", "str", "Who"),
    ("reason", "str", "Why"),
)

CYCLES = frame_kind(
    "cycles",
    ("taken_at", TIME, "When the cluster was looked at"),
    ("seconds", "float64", "How long the cycle took, s"),
    ("pending", "int64", "Jobs pending, array tasks counted one by one"),
    ("running", "int64", "Jobs running"),
    ("gpus_pending", "int64", "GPUs that pending jobs ask for"),
    ("gpus_running", "int64", "GPUs that running jobs hold"),
    ("acted", "int32", "Jobs changed on the cluster"),
    ("suspended", "str", "Why nothing was done, a reason a line; missing: services were asked"),
    ("counts", "str", "Outcomes as JSON: service, then Result, then number"),
)

COVERAGE = frame_kind(
    "coverage",
    ("source", "category", "What was read: jobs or node_events"),
    ("started_at", TIME, "Start of the stretch that was read"),
    ("ended_at", TIME, "End of the stretch"),
    ("read_at", TIME, "When its last part was read"),
)

JOBS = frame_kind(
    "jobs",
    ("job_id", "str", "The site's id (Slurm: JobIDRaw); unique with submit time and restart"),
    (
        "restart",
        "int32",
        "Number of the run in its job: 0, then 1, 2, ... for each requeue and each part after a resize",
    ),
    ("array_job_id", "str", "Slurm array master id; missing: not an array task, or unknown"),
    ("array_task_id", "str", "Slurm array task id; missing as above"),
    ("het_job_id", "str", "Slurm heterogeneous job id; missing: not one, or unknown"),
    ("het_job_offset", "float64", "Component number within a heterogeneous job"),
    ("name", "str", "Job name as submitted (some sites publish a hash)"),
    ("user", "category", "Who submitted; missing: unknown"),
    ("group", "category", "Unix group"),
    ("account", "category", "Slurm account"),
    ("qos", "category", "Slurm QOS"),
    ("partition", "category", "Partition (the paper's virtual cluster); missing: unknown"),
    ("state", "category", "A JobState; missing: unknown"),
    ("exit_code", "category", "Slurm's exit:signal"),
    ("submitted_at", TIME, "Submission; never missing"),
    ("eligible_at", TIME, "When it could first have started; missing: unknown"),
    ("started_at", TIME, "Start of the run; missing: not started, or unknown"),
    ("ended_at", TIME, "End of the run; missing: not ended, or unknown"),
    ("run_time_s", "float64", "Time it ran, without suspensions, s; NaN: not ended, or unknown"),
    ("time_limit_s", "float64", "The user's time limit, s; inf: UNLIMITED; NaN: unknown"),
    ("nodes", "float64", "Nodes allocated, else requested; NaN: unknown"),
    ("cpus", "float64", "CPUs allocated, else requested; NaN: unknown"),
    ("gpus", "float64", "GPUs allocated, else requested, parts of one included; 0: none; NaN: not recorded"),
    ("nodes_requested", "float64", "Nodes requested; NaN: unknown, or as ``nodes``"),
    ("cpus_requested", "float64", "CPUs requested; NaN: unknown, or as ``cpus``"),
    ("gpus_requested", "float64", "GPUs requested; NaN: unknown, or as ``gpus``"),
    ("gpu_type", "category", "GRES type of the GPUs; missing: unknown or untyped"),
    ("memory_mib", "float64", "Memory requested for the whole job, MiB; NaN: unknown"),
    ("tres_requested", "category", "Slurm's ReqTRES text"),
    ("tres_allocated", "category", "Slurm's AllocTRES text"),
    ("node_list", "category", "Slurm's NodeList text"),
)

REJECTS = frame_kind(
    "rejects",
    ("line", "int64", "Line number in the file, from 1"),
    ("reason", "category", "Why the row makes no sense; few distinct values, to be counted"),
    ("text", "str", "The line as read, undecodable bytes escaped, at most 2,000 characters"),
)

NODES = frame_kind(
    "nodes",
    ("name", "str", "Node name"),
    ("partition", "category", "Partition; a node of several partitions has a row for each"),
    ("cpus", "float64", "CPUs"),
    ("gpus", "int32", "GPUs"),
    ("gpu_type", "category", "GRES type"),
    ("memory_mib", "float64", "Memory, MiB"),
)

NODE_EVENTS = frame_kind(
    "node_events",
    ("node", "str", "Node name"),
    ("state", "category", "Slurm node state during the event"),
    ("started_at", TIME, "Start of the event"),
    ("ended_at", TIME, "End of the event; missing: lasts"),
    ("reason", "str", "Reason given, if any"),
)

PREDICTIONS = frame_kind(
    "predictions",
    ("p10_s", "float64", "Run time that 10 % of such jobs stay below, s"),
    ("p50_s", "float64", "Median run time, s"),
    ("p90_s", "float64", "Run time that 90 % of such jobs stay below, s"),
    ("typical_s", "float64", "Best single guess of the run time, s"),
    ("mean_s", "float64", "Mean run time, s"),
    ("truncated_mean_s", "float64", "Mean run time if none took longer than 8 hours, s"),
    ("source", "category", "Model id, or the fallback that was used"),
)

START_ESTIMATES = frame_kind(
    "start_estimates",
    ("submitted_at", TIME, "Submission of the job; never missing"),
    ("job_id", "str", "The site's id of the job"),
    ("restart", "int32", "Number of the run in its job"),
    ("made_at", TIME, "When the start was estimated; never missing"),
    ("p10_at", TIME, "Time before which it starts in 10 % of the simulations; missing: after horizon_at"),
    ("p50_at", TIME, "Median start; missing: after horizon_at"),
    ("p90_at", TIME, "Time before which it starts in 90 % of the simulations; missing: after horizon_at"),
    ("horizon_at", TIME, "End of the simulations; never missing"),
)

_ID_FORMS = re.compile(r"(?P<leader>\d+)(?:_(?P<task>\d+)|\+(?P<offset>\d{1,9}))", re.ASCII)

SIZES = ("nodes", "cpus", "gpus")

LONGEST_NAME = 128
"""Letters of a name that are read. Time grows with their square, and a user may submit any name."""

# Ids of a run: UUIDs, and long hexadecimal numbers with at least one digit, so that words are kept.
_RUN_ID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![a-z0-9])(?=[a-f]*[0-9])[0-9a-f]{7,}(?![a-z0-9])"
)
_MAY_HOLD_RUN_ID = re.compile(r"[0-9a-f]{7}")  # checked first, since most names have none and it is ten times as fast
_NO_WORD = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?|[\W_])+")
_EXTENSION = re.compile(r"\.[a-z]{1,6}$")


class AuditStep(StrEnum):
    """What was decided about the active model of a cluster."""

    PROMOTED = "promoted"
    KEPT = "kept"
    ROLLED_BACK = "rolled back"


class JobState(StrEnum):
    """Slurm's base job states, as ``sacct`` prints them (slurm.h ``enum job_states``)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    REQUEUED = "REQUEUED"
    RESIZING = "RESIZING"
    REVOKED = "REVOKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A part of a trace file, as understood jobs and refused rows.

    Attributes
    ----------
    jobs : DataFrame
        Columns of ``JOBS``.
    rejects : DataFrame
        Columns of ``REJECTS``.
    bytes_read : int
        Bytes of the (compressed) file consumed so far, for a progress bar.
    notes : tuple of str
        Notes for a person, such as an assumed time zone or repaired values.
    """

    jobs: pd.DataFrame
    rejects: pd.DataFrame
    bytes_read: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A trained run-time predictor as text, with its scores.

    Attributes
    ----------
    model_id : str
        Name by which predictions, reports and the audit log refer to it.
    cluster : str
        Cluster whose history it learned from.
    trained_at, trained_until : datetime
        Time of the training, and end of the jobs used. Only jobs that ended before ``trained_until`` count.
    jobs : int
        Number of jobs it learned from.
    features : tuple of str
        Feature names in the order the model takes them.
    scores : dict
        Scores of its evaluation. Empty if it was not evaluated.
    artifact : str
        The whole model as JSON text, with LightGBM's own text format inside.
    manifest : dict
        Provenance, see ``docs/predictions.md``. Empty for a model of an older Helios.
    confirmed_at : datetime, optional
        When it was last promoted or kept as the active model. None where it is not active, or that was never decided.
    """

    model_id: str
    cluster: str
    trained_at: datetime
    trained_until: datetime
    jobs: int
    features: tuple[str, ...]
    scores: dict[str, Any]
    artifact: str
    manifest: dict[str, Any] = field(default_factory=dict)
    confirmed_at: datetime | None = None

    @property
    def known_good_at(self) -> datetime:
        """When it was last known to be the best available.

        It is the time of the training, or of the last promotion or confirmation since then.
        """
        return max(self.trained_at, self.confirmed_at or self.trained_at)


def columns_of_id(text: str) -> dict[str, str | float]:
    """Return the columns that an id names besides ``job_id``.

    They are those of ``14_3``, the task of an array, and of ``15+0``, a part of a heterogeneous job. Any other text
    names none.
    """
    found = _ID_FORMS.fullmatch(text)
    if found is None:
        return {}
    if found["task"]:
        return {"array_job_id": found["leader"], "array_task_id": found["task"]}
    return {"het_job_id": found["leader"], "het_job_offset": float(found["offset"])}


def with_sizes_requested(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return ``jobs`` with requested sizes in place of allocated ones.

    Only the request is known at submission. Where it is not recorded, the allocated size is kept.
    """
    known = [name for name in SIZES if f"{name}_requested" in jobs]
    requested = {name: jobs[f"{name}_requested"].where(lambda size: size > 0, jobs[name]) for name in known}
    return jobs.assign(**{name: size.astype(jobs[name].dtype) for name, size in requested.items()})


def in_submission_order(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return ``jobs`` in the order of submission.

    The order is by submit time, then job id (numbers by value), then restart. It breaks ties everywhere, in queues,
    splits and features.
    """
    keys = pd.DataFrame(
        {
            "submitted_at": jobs["submitted_at"].to_numpy("datetime64[us]"),
            "id_length": jobs["job_id"].str.len().to_numpy(),
            "job_id": jobs["job_id"].to_numpy(),
            "restart": jobs["restart"].to_numpy(),
        }
    )
    position = keys.sort_values(list(keys.columns), kind="stable").index.to_numpy()
    return jobs.iloc[position].reset_index(drop=True)


@lru_cache(maxsize=65_536)
def split_words(name: str) -> str:
    """Return the words of a job's name in lower case, in order.

    Path, extension, numbers and ids are removed. Empty where nothing is left, because a hash or a number shows no
    relation.
    """
    file = _EXTENSION.sub("", name[-LONGEST_NAME:].lower().rstrip("/").rpartition("/")[2])
    if _MAY_HOLD_RUN_ID.search(file):
        file = _RUN_ID.sub(" ", file)
    return _NO_WORD.sub(" ", file).strip()
