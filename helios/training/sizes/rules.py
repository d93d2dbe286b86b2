"""Rules that decide how many GPUs each training has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from helios.training.sizes.goodput import Goodput, fit_speed
from helios.training.sizes.model import BatchLimits, Gradient, Measured
from helios.training.sizes.placing import add_job, allowed_sizes, maximise_sum, place, possible_sizes
from helios.training.sizes.snapshot import Decide, ElasticSnapshot, Placement, Training

LEAST_SPEEDUP = 1e-3
"""Added to each speedup by Pollux, so that a job without GPUs does not count without end."""

KEPT_S = 300
"""Seconds that a new placement is taken to last, s; the pause of a change is weighed against them."""
LEAST_GPU_S = 600.0
"""What a job is taken to need at least where its length is unknown, GPU seconds."""

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]


def pollux(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return the best placements by Pollux' own objective, exactly where its authors searched.

    The harmonic mean of goodputs against an equal share; where a placement changes, times the part of its life that
    a job has trained (Pollux, OSDI'21, in the version of its artifact).
    """
    sizes, share = possible_sizes(snapshot), int(np.ceil(snapshot.gpus / len(snapshot.jobs)))
    gains = {}
    for job in snapshot.jobs:
        allowed, state = allowed_sizes(job, sizes), job.state
        if job.goodput is None:
            speedups = allowed / share
        else:
            nodes = np.append(np.ceil(allowed / snapshot.gpus_per_node), 1)
            reached, _, _ = job.goodput.best(nodes, np.append(allowed, share))
            speedups = reached[:-1] / reached[-1]
        age = snapshot.now_s - state.submit_s
        kept = allowed == len(job.placement)
        trained = max(age - state.restarts * state.change_s, 0) / (age + state.change_s)
        speedups = speedups * np.where(kept, 1, trained) * len(snapshot.nodes) / snapshot.gpus
        gains[job.name] = allowed, 1 / LEAST_SPEEDUP - 1 / (speedups + LEAST_SPEEDUP)
    return _place_best(snapshot, gains)


def soonest(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return placements that end all jobs soonest in the mean, as far as these alone are concerned.

    Were GPUs divisible, placements free and no job to come, a unit of a job's progress would have one price until its
    end, and at any time the best use of all GPUs would be worth as many as there are jobs (Pontryagin's principle). So
    prices follow one after another from the job that ends last, and sizes are chosen by them.
    """
    sizes = possible_sizes(snapshot)
    reached = {
        job.name: _learned_goodputs(job, snapshot, sizes, most=job.state.limits.most_gpus) for job in snapshot.jobs
    }
    known = [job for job in snapshot.jobs if len(reached[job.name][0])]
    left = {job.name: _time_left(job, snapshot, *reached[job.name]) for job in known}
    worth, total = np.zeros(snapshot.gpus + 1), 0.0
    gains = {}
    for job in sorted(known, key=lambda job: -left[job.name]):
        allowed, goodputs = reached[job.name]
        total += job.weight
        price = ((total - worth[snapshot.gpus - allowed]) / goodputs).min()
        worth, _ = add_job(worth, allowed, price * goodputs)
        now = allowed <= job.state.most
        kept = np.where(allowed == len(job.placement), 1, KEPT_S / (KEPT_S + job.state.change_s))
        gains[job.name] = allowed[now], (price * kept * goodputs)[now]
    for job in snapshot.jobs:
        if job.name not in left:  # what a job needs is known once it has run
            smallest = allowed_sizes(job, sizes)[:1]
            gains[job.name] = smallest, np.full(len(smallest), 1 + total)
    return _place_best(snapshot, gains)


def _place_best(snapshot: ElasticSnapshot, gains: Mapping[int, tuple[Sizes, Floats]]) -> dict[int, Placement]:
    """Return placements of the sizes that gain most in all."""
    chosen = maximise_sum([gains[job.name] for job in snapshot.jobs], snapshot.gpus)
    return place(snapshot, {job.name: size for job, size in zip(snapshot.jobs, chosen, strict=True)})


def _time_left(job: Training, snapshot: ElasticSnapshot, sizes: Sizes, goodputs: Floats) -> float:
    """Return how long a job still takes at an equal share, s.

    Where its length is unknown, it is taken to need as much again as it had.
    """
    share = max(snapshot.gpus / len(snapshot.jobs), sizes[0])
    fair = int(np.searchsorted(sizes, share, side="right"))
    if job.state.remaining is None:
        return max(job.state.gpu_s, LEAST_GPU_S) / float(sizes[fair - 1])
    return float(job.state.remaining / goodputs[:fair].max())


def _learned_goodputs(job: Training, snapshot: ElasticSnapshot, sizes: Sizes, *, most: int) -> tuple[Sizes, Floats]:
    """Return sizes up to a largest, and the goodput on each; none before the first step."""
    state = job.state
    if state.gradient is None:
        return sizes[:0], np.array([])
    allowed = sizes[(sizes >= state.least) & (sizes <= max(most, state.most))]
    goodputs = _corrected(state.measured, state.gradient, state.limits, tuple(allowed), snapshot.gpus_per_node)
    return allowed[goodputs > 0], goodputs[goodputs > 0]


@lru_cache(maxsize=10_000)
def _corrected(
    measured: Measured, gradient: Gradient, limits: BatchLimits, sizes: tuple[int, ...], full: int
) -> Floats:
    """Return the goodput of each size.

    Sizes that a job ran on are corrected by what was measured there over what the model says.
    """
    speed = fit_speed(measured)
    nodes = np.ceil(np.array(sizes) / full).astype(int)
    reached, _, _ = Goodput(speed, gradient, limits).best(nodes, np.array(sizes))
    ratios: dict[tuple[int, int], list[float]] = {}
    for run, time in measured:
        ratios.setdefault((run.nodes, run.gpus), []).append(float(speed.times(*run)[1]) / time.step_s)
    corrections = [np.mean(ratios.get(ran, [1.0])) for ran in zip(nodes.tolist(), sizes, strict=True)]
    return np.asarray(reached * np.array(corrections))


RULES: dict[str, Decide] = {"soonest": soonest, "pollux": pollux}
"""Rules for jobs whose batch follows what they have learned."""
