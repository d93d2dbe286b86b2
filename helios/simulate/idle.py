"""Idle nodes that the cluster's own idle timer may put to sleep, longest idle first: a list through the nodes."""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.state import NOBODY, State


@kernel
def enlist(state: State, node: int) -> None:
    """Put ``node``, idle and awake, into the list by how long it has been idle; one that is kept awake stays out."""
    clock, nodes, its = state.clock[0], state.nodes, state.nodes[node]
    if its.kept:
        return
    ahead = clock.idle_last
    while ahead != NOBODY and nodes[ahead].idle_since_s > its.idle_since_s:
        ahead = nodes[ahead].earlier
    behind = clock.idle_first if ahead == NOBODY else nodes[ahead].later
    its.earlier, its.later = ahead, behind
    _join(state, ahead, node)
    _join(state, node, behind)


@kernel
def strike(state: State, node: int) -> None:
    """Take ``node`` out of the list, if it is in it."""
    clock, its = state.clock[0], state.nodes[node]
    if its.earlier != NOBODY or clock.idle_first == node:
        _join(state, its.earlier, its.later)
        its.earlier = its.later = NOBODY


@kernel
def _join(state: State, ahead: int, behind: int) -> None:
    clock, nodes = state.clock[0], state.nodes
    if ahead == NOBODY:
        clock.idle_first = behind
    else:
        nodes[ahead].later = behind
    if behind == NOBODY:
        clock.idle_last = ahead
    else:
        nodes[behind].earlier = ahead
