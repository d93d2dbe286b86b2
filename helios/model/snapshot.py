"""A cluster at one moment, with everything that a service is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helios.errors import FrameInvalid
from helios.model.frames import TIME, frame_kind
from helios.model.job_sizes import largest_nodes
from helios.model.nodes import NODE_STATES, NodeForecast, NodeUse, PowerSettings
from helios.model.targets import TargetJob

QUEUE = frame_kind(
    "queue",
    ("job_id", "str", "Id by which the cluster knows the record; of a pending array, its master id"),
    ("restart", "int32", "How often it was requeued"),
    ("array_job_id", "str", "Slurm array master id; missing: not an array"),
    ("array_task_id", "str", "Array task id, or the pending tasks of the record as Slurm writes them (0-9%2)"),
    ("tasks", "int32", "Jobs that the record stands for: the pending tasks of an array, else 1"),
    ("het_job_id", "str", "Slurm heterogeneous job id; missing: not one"),
    ("het_job_offset", "float64", "Component number within a heterogeneous job"),
    ("name", "str", "Job name as submitted"),
    ("user", "category", "Who submitted"),
    ("group", "category", "Unix group"),
    ("account", "category", "Slurm account"),
    ("qos", "category", "Slurm QOS"),
    ("partition", "category", "Partition; several that are all acceptable are joined by commas"),
    ("state", "category", "A JobState"),
    ("reason", "category", "Why the cluster has not started it, in Slurm's word (Resources, Priority, ...)"),
    ("submitted_at", TIME, "Submission; never missing"),
    ("eligible_at", TIME, "When it can first start; missing: not yet known (a dependency)"),
    ("started_at", TIME, "Start of this run; missing: pending"),
    ("planned_start_at", TIME, "Start that the cluster's own backfill foresees; missing: none"),
    ("time_limit_s", "float64", "The user's time limit, s; inf: UNLIMITED; NaN: unknown"),
    ("user_soft_limit_s", "float64", "The user's own --time-min, s; NaN: none. Never changed by Helios"),
    ("nodes", "float64", "Nodes held, else asked for"),
    ("cpus", "float64", "CPUs of one task of the record, asked for or held"),
    ("gpus", "float64", "GPUs of one task of the record, asked for or held, parts of one included; 0: none"),
    ("gpu_type", "category", "GRES type of the GPUs; missing: unknown or any"),
    ("memory_mib", "float64", "Memory of one task of the record, MiB; NaN: unknown"),
    ("node_list", "category", "Nodes it runs on, in Slurm's text; missing: pending"),
    ("priority", "float64", "The cluster's own priority now; 0: held; NaN: unknown"),
    ("urgency", "float64", "What Helios has set, -1 to 1; 0: nothing, or it cannot be read"),
    ("soft_limit_s", "float64", "Soft limit that Helios has set, s; NaN: none"),
    ("excluded_reason", "category", "Why Helios must leave it alone, for a person; missing: it may act"),
    ("p10_s", "float64", "Predicted run time that 10 % of such jobs stay below, s; NaN: no prediction"),
    ("p50_s", "float64", "Predicted median run time, s"),
    ("p90_s", "float64", "Predicted run time that 90 % of such jobs stay below, s"),
    ("typical_s", "float64", "Best single guess of the run time, s"),
    ("mean_s", "float64", "Predicted mean run time, s"),
    ("truncated_mean_s", "float64", "Predicted mean run time if none took longer than 8 hours, s"),
    ("source", "category", "Model id or fallback that predicted; missing: no prediction"),
)


SAME_FOR_ALL = frozenset({"longest_own_wait_s", "size_orders"})
"""Facts of the cluster that are asked for like a column of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """A cluster at one moment.

    Attributes
    ----------
    taken_at : datetime
        Aware, UTC, by the clock of the machine that read it.
    cluster : str
        The cluster's name.
    pending : DataFrame
        Columns of ``QUEUE``: jobs that have not started, in the cluster's own order, first to start first.
    running : DataFrame
        Columns of ``QUEUE``: jobs that hold resources (suspended ones too), oldest start first.
    nodes : DataFrame
        Columns of ``NODE_STATES``.
    power : PowerSettings, optional
        How the cluster powers nodes. None where it was not read, as where no service acts on nodes.
    use : NodeUse, optional
        How many nodes were in use, by minute. None where it is not known.
    forecast : NodeForecast, optional
        How many nodes will be in use. None where no service asks for it.
    longest_own_wait_s : float
        Longest wait of the last weeks in a replay under the site's own order (:mod:`helios.app.own_order`), s; NaN: not
        known.
    size_orders : bool
        Whether the last check of the order (:mod:`helios.app.own_order`) found that predictions are no better than
        the size of a job.
    targets : tuple of TargetJob
        Queued jobs whose comments name a target. Empty where no service asks for them.
    """

    taken_at: datetime
    cluster: str
    pending: pd.DataFrame
    running: pd.DataFrame
    nodes: pd.DataFrame
    power: PowerSettings | None = None
    use: NodeUse | None = None
    forecast: NodeForecast | None = None
    longest_own_wait_s: float = math.nan
    size_orders: bool = False
    targets: tuple[TargetJob, ...] = ()

    def __post_init__(self) -> None:
        QUEUE.check(self.pending)
        QUEUE.check(self.running)
        NODE_STATES.check(self.nodes)
        if self.taken_at.tzinfo is None:
            raise FrameInvalid("a snapshot's taken_at has no time zone")

    def pending_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``pending`` as a plain array.

        Callers must not write to it. Its values are those of the frame. A simulated cluster returns it without building
        the frame, which would take most of the time of a service in a replay.

        Parameters
        ----------
        name : str
            A column of ``QUEUE``, or ``longest_own_wait_s`` or ``size_orders``, which are the same for all jobs, or
            ``node_gpus``: GPUs of the largest node that the job may run on, 8 where not known.

        Returns
        -------
        array of shape (n_pending,)
            Numbers as declared; times as ``datetime64[us]``, UTC, missing NaT; text and categories as objects, missing
            NaN.
        """
        if name in SAME_FOR_ALL:
            return np.full(len(self.pending), getattr(self, name))
        if name == "node_gpus":
            return largest_nodes(plain_values(self.pending["partition"]), self.nodes)
        return plain_values(self.pending[name])

    def running_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``running`` as a plain array.

        As :meth:`pending_values`; ``name`` is a column of ``QUEUE``.
        """
        return plain_values(self.running[name])

    def node_values(self, name: str) -> NDArray[Any]:
        """Return a column of ``nodes`` as a plain array.

        As :meth:`pending_values`; ``name`` is a column of ``NODE_STATES``.
        """
        return plain_values(self.nodes[name])


def plain_values(column: pd.Series[Any]) -> NDArray[Any]:
    """Return a declared column as ``Snapshot.pending_values`` gives it."""
    if isinstance(column.dtype, np.dtype):
        return column.to_numpy()
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return column.to_numpy(dtype="datetime64[us]")
    return column.to_numpy(dtype=np.object_)
