"""The control cycle and its safety guards.

There is one cycle for every domain (``cycle``), the domains (``jobs``, ``nodes``), and the parts of a cycle. Clusters
and ledgers are used through their interfaces only. The time is an argument.
"""

from __future__ import annotations

from helios.control.cycle import ActiveService, Cycle
from helios.control.jobs import JobDomain, release
from helios.control.modes import (
    CanaryCluster,
    CanaryNodes,
    ServiceMode,
    ShadowCluster,
    ShadowNodes,
    cluster_for_mode,
    node_cluster_for_mode,
)
from helios.control.nodes import NodeDomain, release_nodes
from helios.control.observed import AppliedChange, AppliedChanges, Tolerance, Undo
from helios.control.preconditions import Preconditions, suspension_reasons
from helios.control.report import CycleReport, NodeCycleReport
from helios.control.state import (
    BreakerState,
    CircuitBreaker,
    ControllerState,
    Failure,
    Fault,
    NodeControllerState,
    ServiceSuspension,
    WakeUp,
    clear_failed_wakes,
)

__all__ = [
    "ActiveService",
    "AppliedChange",
    "AppliedChanges",
    "BreakerState",
    "CanaryCluster",
    "CanaryNodes",
    "CircuitBreaker",
    "ControllerState",
    "Cycle",
    "CycleReport",
    "Failure",
    "Fault",
    "JobDomain",
    "NodeControllerState",
    "NodeCycleReport",
    "NodeDomain",
    "Preconditions",
    "ServiceMode",
    "ServiceSuspension",
    "ShadowCluster",
    "ShadowNodes",
    "Tolerance",
    "Undo",
    "WakeUp",
    "clear_failed_wakes",
    "cluster_for_mode",
    "node_cluster_for_mode",
    "release",
    "release_nodes",
    "suspension_reasons",
]
