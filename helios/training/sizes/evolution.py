"""Search sizes by evolution, as ONES does (SC'21, doi 10.1145/3458817.3480859).

A genome has a cell for each GPU, which holds a job or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

POPULATION, CROSSOVER, MUTATION = 16, 0.5, 0.3
"""Genomes that live on, and the chances that two are crossed and that a job is taken out, as published."""
GENERATIONS = 5
"""Generations at a decision. Published runs search without a pause between decisions."""

Genome = NDArray[np.int64]
Tables = Sequence[dict[int, float]]
"""Score of each size of each job, 0 for none."""
Scores = Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]]


def evolve(scores: Scores, now: Sequence[int], capacity: int, *, seed: int) -> list[int]:
    """Return sizes of a large sum of scores, 0 for none.

    Parameters
    ----------
    scores : sequence of pairs of arrays
        Sizes of each job, and the score of each against having no GPU. Jobs come first that are filled up first.
    now : sequence of int
        The size of each job now.
    """
    random = np.random.default_rng(seed)
    tables: Tables = [dict(zip(sizes.tolist(), values.tolist(), strict=True)) | {0: 0.0} for sizes, values in scores]
    begin = np.full(capacity, -1)
    held = np.repeat(np.arange(len(now)), now)[:capacity]
    begin[: len(held)] = held
    population = [_fill(begin, tables)]

    def total(genome: Genome) -> float:
        return sum(table[count] for table, count in zip(tables, _counts(genome, tables), strict=True))

    for _ in range(GENERATIONS):
        children = []
        for parent in population * (POPULATION // len(population)):
            child = parent.copy()
            if random.random() < CROSSOVER:
                other = population[random.integers(len(population))]
                child = np.where(random.random(capacity) < 0.5, child, other)
            out = random.random(len(tables)) < MUTATION
            child[(child >= 0) & out[child]] = -1
            children.append(_fill(child, tables))
        population = sorted([*population, *children], key=total, reverse=True)[:POPULATION]
    return _counts(population[0], tables)


def _counts(genome: Genome, tables: Tables) -> list[int]:
    return [int(count) for count in np.bincount(genome[genome >= 0], minlength=len(tables))]


def _fill(genome: Genome, tables: Tables) -> Genome:
    """Return a genome of allowed sizes with few empty cells.

    These are given to the first jobs that can grow. A job without a GPU gets its smallest size before others grow.
    """
    genome = genome.copy()
    counts = _counts(genome, tables)
    for job, table in enumerate(tables):
        fitting = max(size for size in table if size <= counts[job])
        genome[np.flatnonzero(genome == job)[fitting:]] = -1
        counts[job] = fitting
    free = int((genome < 0).sum())
    for grows in (False, True):
        for job, table in enumerate(tables):
            larger = [size for size in sorted(table) if counts[job] < size <= counts[job] + free]
            if larger and (grows or not counts[job]):
                size = larger[-1] if grows else larger[0]
                genome[np.flatnonzero(genome < 0)[: size - counts[job]]] = job
                free, counts[job] = free - size + counts[job], size
    return genome
