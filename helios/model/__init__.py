"""Data types of Helios, and the one place where columns are declared.

Bulk data travels as pandas frames with these columns; every package checks the frames that it receives with
:meth:`FrameKind.check`. A change of a column is a change here, in a migration, and nowhere else;
``tests/unit/test_model.py`` checks that schema and frames agree.
"""

from helios.model.audit import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    COVERAGE,
    CYCLES,
    DECISIONS,
    MODES,
    NODE_TALLIES,
    PROMOTIONS,
    AuditStep,
    Mode,
)
from helios.model.frames import TIME, Column, FrameKind, seconds_of
from helios.model.jobs import (
    JOBS,
    NODE_EVENTS,
    NODES,
    PREDICTIONS,
    REJECTS,
    SIZES,
    Batch,
    JobState,
    ModelRecord,
    in_submission_order,
    with_sizes_requested,
)
from helios.model.nodes import NODE_STATES, STEP_S, Demand, NodePower, NodeSeries, PowerSettings, pool_names, pools
from helios.model.slurm_site import (
    NodeGroup,
    PartitionRules,
    PriorityRules,
    QosRules,
    SchedulingRules,
    Share,
    SlurmSite,
)
from helios.model.snapshot import QUEUE, Snapshot, plain_values

__all__ = [
    "APPLIED_CHANGES",
    "APPLIED_NODE_CHANGES",
    "COVERAGE",
    "CYCLES",
    "DECISIONS",
    "JOBS",
    "MODES",
    "NODES",
    "NODE_EVENTS",
    "NODE_STATES",
    "NODE_TALLIES",
    "PREDICTIONS",
    "PROMOTIONS",
    "QUEUE",
    "REJECTS",
    "SIZES",
    "STEP_S",
    "TIME",
    "AuditStep",
    "Batch",
    "Column",
    "Demand",
    "FrameKind",
    "JobState",
    "Mode",
    "ModelRecord",
    "NodeGroup",
    "NodePower",
    "NodeSeries",
    "PartitionRules",
    "PowerSettings",
    "PriorityRules",
    "QosRules",
    "SchedulingRules",
    "Share",
    "SlurmSite",
    "Snapshot",
    "in_submission_order",
    "plain_values",
    "pool_names",
    "pools",
    "seconds_of",
    "with_sizes_requested",
]
