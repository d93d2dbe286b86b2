"""Prudence: one turn - look, ask, check, act, write down - and everything that keeps it from doing harm.

Services propose, this room disposes. It knows clusters and ledgers by their sockets only, has no clock of its own, and
passes no service's wish that a guard refuses.
"""

from __future__ import annotations

from helios.control.applied import AppliedNodeChange, AppliedNodeChanges, Tolerance, Undo, node_books_of
from helios.control.circuit_breaker import BreakerState, CircuitBreaker, Fault, ServiceSuspension
from helios.control.cycle import take_node_turn, take_turn
from helios.control.modes import (
    CanaryCluster,
    CanaryNodes,
    ServiceMode,
    ShadowCluster,
    ShadowNodes,
    door_for,
    node_door_for,
)
from helios.control.preconditions import Preconditions, reasons_to_be_still
from helios.control.reconcile import ActiveService
from helios.control.release import release, release_nodes
from helios.control.report import CycleReport, NodeCycleReport
from helios.control.state import ControllerState, Failure, NodeControllerState, WakeUp, cleared

__all__ = [
    "ActiveService",
    "AppliedNodeChange",
    "AppliedNodeChanges",
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
    "cleared",
    "door_for",
    "node_books_of",
    "node_door_for",
    "reasons_to_be_still",
    "release",
    "release_nodes",
    "take_node_turn",
    "take_turn",
]
