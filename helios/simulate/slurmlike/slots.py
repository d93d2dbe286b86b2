"""The future as backfill sees it: a list of slots of time, each with the nodes that no planned job has reserved.

After the ``node_space`` map of Slurm's ``backfill.c``. ``state.words`` holds three sets of nodes: those that a job may
have, one for the main scheduler, and those picked.
"""

from __future__ import annotations

from helios.simulate.kernel import kernel
from helios.simulate.slurmlike.plain import plain
from helios.simulate.slurmlike.state import ALL, NOBODY, WORD, SlurmState


@kernel
def begin_slots(state: SlurmState, now_s: int) -> None:
    """Begin with one slot, the whole window, and nothing reserved."""
    clock, slot = state.clock[0], state.slots[0]
    slot.begin_s = now_s // clock.resolution_s * clock.resolution_s
    slot.end_s = (now_s + clock.window_s) // clock.resolution_s * clock.resolution_s
    slot.next = NOBODY
    clock.slots = 1
    for word in range(clock.words):
        state.slot_nodes[0, word] = ALL


@kernel
def free_nodes(state: SlurmState, partition: int, from_s: int, until_s: int) -> int:
    """Put the partition's nodes that nobody has reserved in that time into the first set of ``state.words``.

    Returns when to try next: the end of the first slot after which there are other nodes; 0: never.
    """
    clock, slot, later_s = state.clock[0], plain(0), 0
    for word in range(clock.words):
        state.words[word] = state.part_nodes[partition, word]
    while slot != NOBODY:
        its = state.slots[slot]
        if its.end_s > from_s:
            if its.next != NOBODY and later_s == 0 and _opens(state, partition, slot):
                later_s = its.end_s
            if its.begin_s > until_s:
                return int(later_s)
            for word in range(clock.words):
                state.words[word] &= state.slot_nodes[slot, word]
        slot = its.next
    return int(later_s)


@kernel
def _opens(state: SlurmState, partition: int, slot: int) -> bool:
    """Say whether the slot after this one has nodes of the partition that are not free of reservations up to this."""
    following = state.slots[slot].next
    for word in range(state.clock[0].words):
        here = state.words[word] & state.slot_nodes[slot, word]
        after = state.part_nodes[partition, word] & state.slot_nodes[following, word]
        if after & ~here:
            return True
    return False


@kernel
def count_nodes(state: SlurmState) -> int:
    """Count the nodes in the first set."""
    count = 0
    for word in range(state.clock[0].words):
        bits = state.words[word]
        while bits != 0:
            bits &= bits - 1
            count += 1
    return count


@kernel
def mark_picked(state: SlurmState) -> None:
    """Make the third set of ``state.words`` the nodes picked."""
    clock = state.clock[0]
    base = 2 * clock.words
    for word in range(clock.words):
        state.words[base + word] = 0
    for place in range(clock.picked):
        node = state.picked[place]
        state.words[base + node // WORD] |= 1 << (node % WORD)


@kernel
def has_marked(state: SlurmState, slot: int) -> bool:
    """Say whether nobody has reserved a node of the third set in ``slot``."""
    clock, missing = state.clock[0], 0
    for word in range(clock.words):
        missing |= state.words[2 * clock.words + word] & ~state.slot_nodes[slot, word]
    return bool(missing == 0)


@kernel
def is_reserved(state: SlurmState, from_s: int, until_s: int) -> bool:
    """Say whether somebody has reserved a node of the third set in that time."""
    slot = plain(0)
    while slot != NOBODY:
        its = state.slots[slot]
        if its.end_s > from_s and its.begin_s < until_s and not has_marked(state, slot):
            return True
        slot = its.next
    return False


@kernel
def reserve(state: SlurmState, from_s: int, until_s: int) -> None:
    """Take the marked nodes out of all slots of that time, which are cut where it begins and ends."""
    clock = state.clock[0]
    from_s = max(from_s, state.slots[0].begin_s)
    until_s = max(until_s, from_s + clock.resolution_s)
    slot, before = plain(0), plain(NOBODY)
    while slot != NOBODY and state.slots[slot].end_s <= from_s:
        before, slot = slot, state.slots[slot].next
    if slot == NOBODY:
        return
    if state.slots[slot].begin_s < from_s:
        before = slot
        slot = _cut(state, slot, from_s)
    while slot != NOBODY and state.slots[slot].begin_s < until_s:
        if state.slots[slot].end_s > until_s:
            _cut(state, slot, until_s)
        for word in range(clock.words):
            state.slot_nodes[slot, word] &= ~state.words[2 * clock.words + word]
        slot = state.slots[slot].next
    _merge(state, 0 if before == NOBODY else before, until_s)


@kernel
def _cut(state: SlurmState, slot: int, at_s: int) -> int:
    """Cut ``slot`` in two and return the later part."""
    clock = state.clock[0]
    part = clock.slots
    clock.slots += 1
    its, later = state.slots[slot], state.slots[part]
    later.begin_s, later.end_s, later.next = at_s, its.end_s, its.next
    its.end_s, its.next = at_s, part
    for word in range(clock.words):
        state.slot_nodes[part, word] = state.slot_nodes[slot, word]
    return int(part)


@kernel
def _merge(state: SlurmState, slot: int, until_s: int) -> None:
    """Join the first two neighbours from ``slot`` on that have the same nodes; Slurm joins no more than one pair."""
    while slot != NOBODY and state.slots[slot].begin_s <= until_s:
        following = state.slots[slot].next
        if following == NOBODY:
            return
        alike = True
        for word in range(state.clock[0].words):
            if state.slot_nodes[slot, word] != state.slot_nodes[following, word]:
                alike = False
                break
        if alike:
            state.slots[slot].end_s = state.slots[following].end_s
            state.slots[slot].next = state.slots[following].next
            return
        slot = following
