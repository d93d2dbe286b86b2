"""Rules that decide how many GPUs each training has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.training.sizes.placing import maximise_sum, place, possible_sizes
from helios.training.sizes.snapshot import CHANGE_S, Decide, ElasticSnapshot, Placement, TrainingState

Floats = NDArray[np.float64]

LEAST_SPEEDUP = 1e-3
"""Added to each speedup by Pollux, so that a job without GPUs does not count without end."""

KEPT_S = 300
"""Seconds that a new placement is taken to last, s; the pause of a change is weighed against them."""
FIRST_GPU = 2.0
"""Worth of the first GPU of a job that has not run yet, twice that of the shortest job; what it needs is unknown."""


def pollux(snapshot: ElasticSnapshot) -> dict[str, Placement]:
    """Return the best placements by Pollux' own objective, exactly where its authors searched.

    The harmonic mean of goodputs against an equal share; where a placement changes, times the part of its life that
    a job has trained (Pollux, OSDI'21, in the version of its artifact).
    """
    sizes, share = possible_sizes(snapshot), int(np.ceil(snapshot.gpus / len(snapshot.jobs)))
    gains = []
    for job in snapshot.jobs:
        allowed = sizes[sizes <= job.most_gpus]
        if job.goodput is None:
            speedups = allowed / share
        else:
            nodes = np.append(np.ceil(allowed / snapshot.gpus_per_node), 1)
            reached, _, _ = job.goodput.best(nodes, np.append(allowed, share))
            speedups = reached[:-1] / reached[-1]
        age = snapshot.now_s - job.submit_s
        kept = allowed == len(job.placement)
        speedups = speedups * np.where(kept, 1, max(age - job.restarts * CHANGE_S, 0) / (age + CHANGE_S))
        speedups = speedups * snapshot.nodes / snapshot.gpus
        gains.append(1 / LEAST_SPEEDUP - 1 / (speedups + LEAST_SPEEDUP))
    chosen = maximise_sum(gains, sizes, snapshot.gpus)
    return place(snapshot, {job.name: size for job, size in zip(snapshot.jobs, chosen, strict=True)})


def shortest_first(snapshot: ElasticSnapshot) -> dict[str, Placement]:
    """Return placements that weigh work by how many jobs wait for it.

    In a queue that ends the shortest job first, a GPU second saved on a job saves as much to each that ends later.
    So the work of a job, in seconds of a GPU at an equal share, weighs as its place from the end.
    """
    sizes, share = possible_sizes(snapshot), max(snapshot.gpus / len(snapshot.jobs), 1)
    reached = {job.name: _learned_goodputs(job, snapshot, sizes) for job in snapshot.jobs}
    left = {job.name: job.remaining / reached[job.name][0] if len(reached[job.name]) else 0.0 for job in snapshot.jobs}
    longest_last = sorted(left, key=left.__getitem__)
    gains = []
    for job in snapshot.jobs:
        goodputs = reached[job.name]
        if not len(goodputs):
            gains.append(np.array([FIRST_GPU]))
            continue
        allowed = sizes[: len(goodputs)]
        fair = int(np.searchsorted(allowed, share, side="right")) - 1
        per_gpu = goodputs[: fair + 1].max() / allowed[fair]
        weight = 1 - longest_last.index(job.name) / len(left)
        worth = np.where(allowed == len(job.placement), 1, KEPT_S / (KEPT_S + CHANGE_S))
        gains.append(weight * worth * goodputs / per_gpu)
    chosen = maximise_sum(gains, sizes, snapshot.gpus)
    return place(snapshot, {job.name: size for job, size in zip(snapshot.jobs, chosen, strict=True)})


def _learned_goodputs(job: TrainingState, snapshot: ElasticSnapshot, sizes: NDArray[np.int64]) -> Floats:
    """Return the goodput on each size that is allowed, none before the first step.

    Sizes that a job ran on are corrected by what was measured there over what the model says.
    """
    if job.goodput is None:
        return np.array([])
    allowed = sizes[sizes <= job.most_gpus]
    nodes = np.ceil(allowed / snapshot.gpus_per_node).astype(int)
    reached, _, _ = job.goodput.best(nodes, allowed)
    ratios: dict[tuple[int, int], list[float]] = {}
    for run, time in job.measured:
        ratios.setdefault((run.nodes, run.gpus), []).append(float(job.goodput.speed.times(*run)[1]) / time.step_s)
    size = zip(nodes.tolist(), allowed.tolist(), strict=True)
    corrections: Floats = np.array([np.mean(ratios.get(ran, [1.0])) for ran in size])
    return np.asarray(reached * corrections)


ELASTIC: dict[str, Decide] = {"pollux": pollux, "shortest-first": shortest_first}
"""Rules for jobs whose batch follows what they have learned."""
