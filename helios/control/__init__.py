"""The control cycle and its safety guards.

There is one cycle for every domain (``cycle``), the domains (``jobs``, ``nodes``), and the parts of a cycle. Clusters
and ledgers are used through their interfaces only. The time is an argument.
"""

from __future__ import annotations

from helios.control.applied import AppliedChange, AppliedChanges, Tolerance, Undo
from helios.control.circuit_breaker import BreakerState, CircuitBreaker, Fault, ServiceSuspension
from helios.control.cycle import ActiveService
from helios.control.jobs import release, run_cycle
from helios.control.modes import (
    CanaryCluster,
    CanaryNodes,
    ServiceMode,
    ShadowCluster,
    ShadowNodes,
    cluster_for_mode,
    node_cluster_for_mode,
)
from helios.control.nodes import release_nodes, run_node_cycle
from helios.control.preconditions import Preconditions, suspension_reasons
from helios.control.report import CycleReport, NodeCycleReport
from helios.control.state import ControllerState, Failure, NodeControllerState, WakeUp, clear_service

__all__ = [
    "ActiveService",
    "AppliedChange",
    "AppliedChanges",
    "BreakerState",
    "CanaryCluster",
    "CanaryNodes",
    "CircuitBreaker",
    "ControllerState",
    "CycleReport",
    "Failure",
    "Fault",
    "NodeControllerState",
    "NodeCycleReport",
    "Preconditions",
    "ServiceMode",
    "ServiceSuspension",
    "ShadowCluster",
    "ShadowNodes",
    "Tolerance",
    "Undo",
    "WakeUp",
    "clear_service",
    "cluster_for_mode",
    "node_cluster_for_mode",
    "release",
    "release_nodes",
    "run_cycle",
    "run_node_cycle",
    "suspension_reasons",
]
