"""Prudence for nodes: the power turn, what keeps it from doing harm, and the kill switch that wakes everything.

The office of nodes has its own turn, lease, book and memory beside that of jobs; services, modes, breaker, bench and
the conditions of stillness are the same.
"""

from helios.control.nodes.memory import Failure, NodeMemory, Wake, cleared
from helios.control.nodes.modes import CanaryNodes, ShadowNodes, node_door_for
from helios.control.nodes.outcome import NodeTurnReport
from helios.control.nodes.release import release_nodes
from helios.control.nodes.standings import NodeBooks, NodeStanding, Undo, node_books_of
from helios.control.nodes.turn import take_node_turn

__all__ = [
    "CanaryNodes",
    "Failure",
    "NodeBooks",
    "NodeMemory",
    "NodeStanding",
    "NodeTurnReport",
    "ShadowNodes",
    "Undo",
    "Wake",
    "cleared",
    "node_books_of",
    "node_door_for",
    "release_nodes",
    "take_node_turn",
]
