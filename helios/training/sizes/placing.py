"""Choose sizes of trainings exactly, and find GPUs for them.

Where the objective is a sum over trainings that share a number of GPUs, dynamic programming finds the best sizes in
about a millisecond, and no search is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from helios.training.sizes.model import ElasticSnapshot, ElasticTraining, Placement

MOST_EVEN = 16
"""Whole nodes up to which each number of them is a size of its own."""

Floats = NDArray[np.float64]


def possible_sizes(snapshot: ElasticSnapshot) -> NDArray[np.int64]:
    """Return sizes that fill nodes without gaps, and those below that trainings are limited to."""
    full = snapshot.gpus_per_node
    parts = {2**power for power in range(full.bit_length())} | {
        size for job in snapshot.jobs for size in (job.state.least, job.state.most)
    }
    whole = np.arange(1, snapshot.nodes.count(full) + 1)
    if len(whole) > MOST_EVEN:  # further apart, as one node more matters less
        whole = np.unique(np.append(whole[:MOST_EVEN], np.geomspace(MOST_EVEN, len(whole), MOST_EVEN).astype(int)))
    return np.array([*sorted(size for size in parts if size < full), *full * whole], dtype=np.int64)


def allowed_sizes(job: ElasticTraining, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sizes that a job may have now, ascending."""
    return sizes[(sizes >= job.state.least) & (sizes <= job.state.most)]


def add_job(best: Floats, sizes: NDArray[np.int64], gain: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Add a job to the best sums of others by capacity.

    Returns
    -------
    best : float array of shape (capacity + 1,)
    choice : int array of the same shape
        Place of the job's size in ``sizes`` counted from 1, 0 for none.
    """
    capacity = len(best) - 1
    options = np.full((len(sizes) + 1, capacity + 1), -np.inf)
    options[0] = best
    for row, (size, value) in enumerate(zip(sizes.tolist(), gain.tolist(), strict=True), start=1):
        if size <= capacity:
            options[row, size:] = best[: capacity + 1 - size] + value
    choice = options.argmax(axis=0)
    return options[choice, np.arange(capacity + 1)], choice


def maximise_sum(gains: Sequence[tuple[NDArray[np.int64], Floats]], capacity: int) -> list[int]:
    """Return the sizes that make the sum of gains largest, 0 for none.

    Parameters
    ----------
    gains : sequence of pairs of arrays
        Sizes of each job, and what each is worth against having no GPU.
    """
    best, choices = np.zeros(capacity + 1), []
    for sizes, gain in gains:
        best, choice = add_job(best, sizes, gain)
        choices.append(choice)
    left, chosen = int(best.argmax()), []
    for (sizes, _), choice in zip(reversed(gains), reversed(choices), strict=True):
        size = int(sizes[choice[left] - 1]) if choice[left] else 0
        chosen.append(size)
        left -= size
    return chosen[::-1]


def place(snapshot: ElasticSnapshot, sizes: Mapping[int, int]) -> dict[int, Placement]:
    """Return the GPUs of each job.

    One that grows or shrinks keeps a node that it has, if there is room. A job that keeps its size stays, and is moved
    only where another finds no room. Jobs of a node and more have whole nodes, so that at most one distributed job is
    on a node. Where nodes differ, one may get fewer than chosen, or none.
    """
    full, nodes = snapshot.gpus_per_node, range(len(snapshot.nodes))
    placed: dict[int, Placement] = {}
    on_node = defaultdict[int, set[int]](set)
    free = [*snapshot.nodes]

    def put(name: int, gpus: Placement) -> None:
        placed[name] = gpus
        for node in gpus:
            on_node[node].add(name)
            free[node] -= 1

    def take(name: int) -> None:
        for node in placed.pop(name):
            on_node[node].discard(name)
            free[node] += 1

    def movable(node: int, share: int) -> list[tuple[int, int]]:
        """Return smaller jobs of a node, as two of a size could take turns."""
        return sorted((len(placed[name]), name) for name in on_node[node] if len(placed[name]) < share)

    for job in snapshot.jobs:
        if 0 < sizes.get(job.name, 0) == len(job.placement):
            put(job.name, job.placement)
    waiting = {name: size for name, size in sizes.items() if size and name not in placed}
    jobs = {job.name: job for job in snapshot.jobs}
    while waiting:
        name = max(waiting, key=waiting.__getitem__)
        size, least, own = waiting.pop(name), jobs[name].state.least, {*jobs[name].placement}
        share = min(size, full)
        chosen: list[int] = []
        for _ in range(max(size // full, 1)):
            fitting = [node for node in nodes if free[node] >= share and node not in chosen]
            if kept := [node for node in fitting if node in own] or fitting:
                chosen.append(min(kept, key=free.__getitem__))
                continue
            rooms = {
                node: free[node] + sum(placed[other].count(node) for _, other in movable(node, share))
                for node in nodes
                if node not in chosen
            }
            node = max((node for node, room in rooms.items() if room >= share), key=free.__getitem__, default=None)
            if node is None:
                break
            for held, other in movable(node, share):
                if free[node] < share:
                    waiting[other] = held
                    take(other)
            chosen.append(node)
        if len(chosen) * share >= least:
            put(name, tuple(sorted(chosen * share)))
        elif size > least:
            waiting[name] = max(size // 2, least)
    return placed


def place_asked(snapshot: ElasticSnapshot, queue: Iterable[ElasticTraining]) -> dict[int, Placement]:
    """Return the GPUs of jobs that get what they ask for, in order."""
    left, chosen = snapshot.gpus, []
    for job in queue:
        if job.state.asked <= left:
            left -= job.state.asked
            chosen.append(job)
    return place_emptiest(snapshot, [(job, job.state.asked) for job in chosen])


def place_emptiest(snapshot: ElasticSnapshot, sizes: Sequence[tuple[ElasticTraining, int]]) -> dict[int, Placement]:
    """Return placements that take the emptiest nodes first.

    Jobs of an unchanged size stay where they are.
    """
    placements = {job.name: job.placement for job, size in sizes if len(job.placement) == size}
    used = list(chain.from_iterable(placements.values()))
    free = [room - used.count(node) for node, room in enumerate(snapshot.nodes)]
    for job, size in sizes:
        placement = list(placements.get(job.name, ()))
        while len(placement) < size:
            node = max(range(len(free)), key=free.__getitem__)
            taken = min(free[node], size - len(placement))
            placement += [node] * taken
            free[node] -= taken
        placements[job.name] = tuple(placement)
    return placements
