"""A reservation that names nodes: when a blocked head will be placed, and where.

Counting free GPUs, as EASY does, promises a head GPUs that may be scattered, while long jobs go on filling the nodes
that it needs. Here the expected ends of running jobs are gone through on the nodes, in thought, until the head really
has a place; these nodes are kept for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from helios.errors import Misuse
from helios.simulate.kernel import kernel
from helios.simulate.placement import choice
from helios.simulate.running import falling_node, next_falling, overdue_end_s, overdue_job, planned_end_s
from helios.simulate.sets import imagine, imagine_power, room
from helios.simulate.state import ASLEEP, FALLING, NEVER, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What backfill ``nodes`` may do beside a reservation; see :mod:`helios.simulate`.

    Parameters
    ----------
    closed : bool
        Nodes that are reserved for a head which a guard has promoted are closed to all others, even to those that are
        expected to end in time: such a head does not depend on estimates being right.
    idle_gpus : int, optional
        How many free GPUs in each partition may be kept from jobs that would not end in time; what a promoted head is
        to get does not count. None: any number.

    Raises
    ------
    Misuse
        ``idle_gpus`` is negative.
    """

    closed: bool = False
    idle_gpus: int | None = None

    def __post_init__(self) -> None:
        if self.idle_gpus is not None and self.idle_gpus < 0:
            raise Misuse(f"idle_gpus is {self.idle_gpus}", remedy="Give 0 or more GPUs, or None for no bound.")


@kernel
def reserve(state: State, partition: int, head: int, now: int) -> int:
    """List the nodes that ``head``, which does not fit now, is to get, and return when it is expected to get them.

    All that ends in one second has ended before the head is placed, by the rule by which jobs are placed. A node that
    is falling asleep sleeps from then on.
    """
    home, gpus = state.partitions[partition], state.jobs[head].gpus
    planned, overdue, fallen, shadow = 0, 0, 0, now
    while gpus > home.free_gpus or gpus > room(state, partition):
        falls = next_falling(state, partition, fallen)
        shadow = min(planned_end_s(state, partition, planned), overdue_end_s(state, partition, overdue, now))
        shadow = min(shadow, _falls_s(state, falls))
        while planned_end_s(state, partition, planned) == shadow:
            _lift(state, state.expected[home.first_running + planned], 1)
            planned += 1
        while overdue_end_s(state, partition, overdue, now) == shadow:
            _lift(state, overdue_job(state, partition, overdue), 1)
            overdue += 1
        while _falls_s(state, falls) == shadow:
            imagine_power(state, partition, falling_node(state, falls), ASLEEP)
            fallen = falls + 1
            falls = next_falling(state, partition, fallen)
    _choose(state, partition, head)
    _undo(state, partition, planned, overdue, fallen)
    return shadow


@kernel
def hold_back(state: State, partition: int, idle_gpus: int) -> None:
    """Keep of the nodes that are reserved only the first, which together have no more free GPUs than that."""
    home, held = state.partitions[partition], 0
    for place in range(home.reserved):
        held += state.nodes[state.nodes[home.first_node + place].reserved].free
        if held > idle_gpus:
            home.reserved = place
            return


@kernel
def _choose(state: State, partition: int, head: int) -> None:
    """List the nodes on which ``head`` is placed."""
    home, nodes, gpus = state.partitions[partition], state.nodes, state.jobs[head].gpus
    full = home.gpus_per_node
    home.reserved = 0
    for number in range(gpus // full):
        _note(state, partition, choice(state, head, number, full), full)
    if gpus % full > 0:
        _note(state, partition, choice(state, head, full, gpus % full), gpus % full)
    for place in range(home.reserved):
        whole = place < gpus // full
        imagine(state, partition, nodes[home.first_node + place].reserved, full if whole else gpus % full)


@kernel
def _note(state: State, partition: int, node: int, gpus: int) -> None:
    home = state.partitions[partition]
    imagine(state, partition, node, -gpus)
    state.nodes[home.first_node + home.reserved].reserved = node
    home.reserved += 1


@kernel
def _undo(state: State, partition: int, planned: int, overdue: int, fallen: int) -> None:
    """Let all be as it is again: so many expected ends, and places in the list of those falling asleep, were passed."""
    first = state.partitions[partition].first_running
    for place in range(planned):
        _lift(state, state.expected[first + place], -1)
    for place in range(overdue):
        _lift(state, overdue_job(state, partition, place), -1)
    place = next_falling(state, partition, 0)
    while place < fallen:
        imagine_power(state, partition, falling_node(state, place), FALLING)
        place = next_falling(state, partition, place + 1)


@kernel
def _lift(state: State, job: int, sign: int) -> None:
    """Free the GPUs of ``job`` in thought (``sign`` 1), or give them back to it (-1)."""
    share = state.jobs[job].first_share
    while share >= 0:
        imagine(state, state.jobs[job].partition, state.shares[share].node, sign * state.shares[share].gpus)
        share = state.shares[share].next


@kernel
def _falls_s(state: State, place: int) -> int:
    """Return when the node at that place of those that fall asleep is asleep, or NEVER."""
    if len(state.versatile) == 0 or place >= state.clock[0].falling:
        return NEVER
    return int(state.nodes[falling_node(state, place)].until_s)
