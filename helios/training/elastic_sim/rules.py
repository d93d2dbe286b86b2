"""Rules that decide how many GPUs each training has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.training.elastic_sim.placing import maximise_sum, place, possible_sizes
from helios.training.elastic_sim.simulator import CHANGE_S, Decide, ElasticSnapshot, Placement

Floats = NDArray[np.float64]

LEAST_SPEEDUP = 1e-3
"""Added to each speedup by Pollux, so that a job without GPUs does not count without end."""


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


ELASTIC: dict[str, Decide] = {"pollux": pollux}
"""Rules for jobs whose batch follows what they have learned."""
