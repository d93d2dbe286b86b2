"""Prudence: one turn - look, ask, check, act, write down - and everything that keeps it from doing harm.

Services propose, this room disposes. It knows clusters and ledgers by their sockets only, has no clock of its own, and
passes no service's wish that a guard refuses.
"""

from helios.control.bench import Bench, Fault
from helios.control.breaker import Breaker, BreakerState
from helios.control.conditions import Conditions, reasons_to_be_still
from helios.control.memory import TurnMemory
from helios.control.modes import CanaryCluster, ServiceMode, ShadowCluster, door_for
from helios.control.outcome import TurnReport
from helios.control.plan import Seat
from helios.control.release import release
from helios.control.resolution import Resolution
from helios.control.turn import take_turn

__all__ = [
    "Bench",
    "Breaker",
    "BreakerState",
    "CanaryCluster",
    "Conditions",
    "Fault",
    "Resolution",
    "Seat",
    "ServiceMode",
    "ShadowCluster",
    "TurnMemory",
    "TurnReport",
    "door_for",
    "reasons_to_be_still",
    "release",
    "take_turn",
]
