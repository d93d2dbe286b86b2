"""Data types of Helios, and the one place where columns are declared.

Bulk data travels as pandas frames with these columns; every package checks the frames that it receives with
:meth:`FrameKind.check`. A change of a column is a change here, in a migration, and nowhere else;
``tests/unit/test_model.py`` checks that schema and frames agree.
"""

# ruff: noqa: F401 - the names are for others

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
from helios.model.nodes import NODE_STATES, STEP_S, Demand, NodePower, NodeSeries, PowerSettings, node_pools, pool_names
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
