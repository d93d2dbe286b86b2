"""Frames of what Helios records about itself.

Modes, cycles, decisions, applied changes, the active models, and what was read.
"""

from __future__ import annotations

from enum import StrEnum

from helios.model.frames import TIME, frame_kind


class Mode(StrEnum):
    """How far a service may go."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY = "canary"
    ACTIVE = "active"


class AuditStep(StrEnum):
    """What was decided about the active model of a cluster."""

    PROMOTED = "promoted"
    KEPT = "kept"
    ROLLED_BACK = "rolled back"


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
    ("pool", "category", "Nodes that can stand in for each other; see helios.model.pools"),
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
