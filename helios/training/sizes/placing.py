"""Choose sizes of trainings exactly, and find GPUs for them.

Where the objective is a sum over trainings that share a number of GPUs, dynamic programming finds the best sizes in
about a millisecond, and no search is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from helios.training.sizes.snapshot import ElasticSnapshot, Placement

Floats = NDArray[np.float64]


def possible_sizes(snapshot: ElasticSnapshot) -> NDArray[np.int64]:
    """Return sizes that fill nodes without gaps."""
    full = snapshot.gpus_per_node
    parts = [2**power for power in range(full.bit_length()) if 2**power < full]
    return np.array([*parts, *range(full, snapshot.gpus + 1, full)])


def maximise_sum(gains: Sequence[Floats], sizes: NDArray[np.int64], capacity: int) -> list[int]:
    """Return the sizes that make the sum of gains largest, 0 for none.

    Parameters
    ----------
    gains : sequence of array
        Of each job by size, against having no GPU; shorter than ``sizes`` where a job may not have more.
    """
    best = np.zeros(capacity + 1)
    choices = []
    for gain in gains:
        fitting = sizes[: len(gain)][sizes[: len(gain)] <= capacity]
        options = np.full((len(fitting) + 1, capacity + 1), -np.inf)
        options[0] = best
        for row, (size, value) in enumerate(zip(fitting, gain, strict=False), start=1):
            options[row, size:] = best[: capacity + 1 - size] + value
        choice = options.argmax(axis=0)
        best = options[choice, np.arange(capacity + 1)]
        choices.append(choice)
    left, chosen = int(best.argmax()), []
    for choice in reversed(choices):
        size = int(sizes[choice[left] - 1]) if choice[left] else 0
        chosen.append(size)
        left -= size
    return chosen[::-1]


def place(snapshot: ElasticSnapshot, sizes: Mapping[str, int]) -> dict[str, Placement]:
    """Return the GPUs of each job.

    A job that keeps its size stays, and is moved only where another finds no room. Jobs of a node and more have whole
    nodes, so that at most one distributed job is on a node.
    """
    full = snapshot.gpus_per_node
    placed = {job.name: job.placement for job in snapshot.jobs if 0 < sizes.get(job.name, 0) == len(job.placement)}
    free = Counter(dict.fromkeys(range(snapshot.nodes), full))
    for placement in placed.values():
        free.subtract(placement)
    waiting = {name: size for name, size in sizes.items() if size and name not in placed}

    def vacate(node: int, most: int) -> None:
        """Move small jobs off a node until it has room."""
        here = sorted((len(gpus), name) for name, gpus in placed.items() if gpus[0] == node and len(gpus) < full)
        for size, name in here:
            if free[node] >= most:
                break
            waiting[name] = size
            free.update(placed.pop(name))

    while waiting:
        name = max(waiting, key=waiting.__getitem__)
        size = waiting.pop(name)
        share = min(size, full)
        whole = {node for gpus in placed.values() if len(gpus) >= full for node in gpus}
        chosen: list[int] = []
        for _ in range(max(size // full, 1)):
            open_nodes = [node for node in free if node not in whole and node not in chosen]
            fitting = [node for node in open_nodes if free[node] >= share]
            node = min(fitting, key=free.__getitem__) if fitting else max(open_nodes, key=free.__getitem__)
            vacate(node, share)
            chosen.append(node)
        placed[name] = tuple(sorted(chosen * share))
        free.subtract(placed[name])
    return placed
