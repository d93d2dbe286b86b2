"""Data types of Helios, and the one place where columns are declared.

Bulk data travels as pandas frames with these columns; every package checks the frames that it receives with
:meth:`FrameKind.check`. A change of a column is a change here, in a migration, and nowhere else;
``tests/unit/model/test_frames.py`` checks that schema and frames agree.
"""

# ruff: noqa: F401 - the names are for others

from helios.choices import Mode
from helios.model.frames import TIME, Column, FrameKind, seconds_of
from helios.model.job_sizes import (
    SIZE_CLASSES,
    SIZE_HEADS,
    SIZE_NAMES,
    SIZE_RANGES,
    UNKNOWN_NODE,
    NodeSizes,
    Sizes,
    is_large,
    largest_nodes,
    size_class,
    size_range,
)
from helios.model.job_use import EARLY, GPU_USE, JOB_USE, LONGEST_GPU, BusyMeans, UseQuality, UseSource
from helios.model.nodes import (
    NODE_STATES,
    RESERVATIONS,
    STEP_S,
    NodeForecast,
    NodePower,
    NodeSeries,
    NodeUse,
    PoolUse,
    PowerSettings,
    node_pools,
    pool_names,
)
from helios.model.records import (
    APPLIED_CHANGES,
    APPLIED_NODE_CHANGES,
    COVERAGE,
    CYCLES,
    DECISIONS,
    JOBS,
    MODES,
    NODE_EVENTS,
    NODE_TALLIES,
    NODES,
    PREDICTIONS,
    PROMOTIONS,
    REJECTS,
    SIZES,
    START_ESTIMATES,
    AuditStep,
    Batch,
    JobState,
    ModelRecord,
    columns_of_id,
    in_submission_order,
    with_sizes_requested,
)
from helios.model.runs import FINISHED, INTERRUPTED, LONGEST_EPILOG_US, NEVER_US, number_runs
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
from helios.model.untracked_gpus import UNTRACKED, UntrackedGpus, note_unknown_gpus, unknown_gpus_note
