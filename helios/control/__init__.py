"""Prudence: one turn - look, ask, check, act, write down - and everything that keeps it from doing harm.

Services propose, this room disposes. It knows clusters and ledgers by their sockets only, has no clock of its own, and
passes no service's wish that a guard refuses.
"""

from __future__ import annotations

from helios.control.applied import NodeBooks, NodeStanding, Resolution, Undo, node_books_of
from helios.control.circuit_breaker import Bench, Breaker, BreakerState, Fault
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
from helios.control.preconditions import Conditions, reasons_to_be_still
from helios.control.reconcile import Seat
from helios.control.release import release, release_nodes
from helios.control.report import NodeTurnReport, TurnReport
from helios.control.state import Failure, NodeMemory, TurnMemory, Wake, cleared

__all__ = [
    "Bench",
    "Breaker",
    "BreakerState",
    "CanaryCluster",
    "CanaryNodes",
    "Conditions",
    "Failure",
    "Fault",
    "NodeBooks",
    "NodeMemory",
    "NodeStanding",
    "NodeTurnReport",
    "Resolution",
    "Seat",
    "ServiceMode",
    "ShadowCluster",
    "ShadowNodes",
    "TurnMemory",
    "TurnReport",
    "Undo",
    "Wake",
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
