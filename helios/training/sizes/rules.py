"""Rules that decide how many GPUs each training has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from helios.training.sizes.evolution import evolve
from helios.training.sizes.goodput import Goodput, fit_speed, learn_goodput
from helios.training.sizes.model import BatchLimits, Gradient, Measured
from helios.training.sizes.placing import add_job, allowed_sizes, maximise_sum, place, place_asked, possible_sizes
from helios.training.sizes.snapshot import Decide, ElasticSnapshot, ElasticTraining, Placement

LEAST_SPEEDUP = 1e-3
"""Added to each speedup by Pollux, so that a job without GPUs does not count without end."""

KEPT_S, KEPT_PAUSES = 300.0, 10.0
"""Longest time that a new placement is taken to last, s, and as a multiple of the pause that is weighed against it."""
LEAST_GPU_S = 600.0
"""What a job is taken to need at least where its length is unknown, GPU seconds."""

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]
Reached = Mapping[int, tuple[Sizes, Floats]]
"""Sizes of each job, and the goodput on each."""


def pollux(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return the best placements by Pollux' own objective, exactly where its authors searched.

    The harmonic mean of goodputs against an equal share; where a placement changes, times the part of its life that
    a job has trained (Pollux, OSDI'21, in the version of its artifact).
    """
    sizes, share = possible_sizes(snapshot), int(np.ceil(snapshot.gpus / len(snapshot.jobs)))
    gains = {}
    for job in snapshot.jobs:
        allowed, state = allowed_sizes(job, sizes), job.state
        speedups = allowed / share
        if goodput := learn_goodput(state.measured, state.gradient, state.limits):
            nodes = np.append(np.ceil(allowed / snapshot.gpus_per_node), 1)
            reached, _ = goodput.best(nodes, np.append(allowed, share))
            speedups = reached[:-1] / reached[-1]
        age = snapshot.now_s - state.submit_s
        kept = allowed == len(job.placement)
        trained = max(age - state.restarts * state.change_s, 0) / max(age + state.change_s, 1)
        speedups = speedups * np.where(kept, 1, trained) * len(snapshot.nodes) / snapshot.gpus
        gains[job.name] = allowed, 1 / LEAST_SPEEDUP - 1 / (speedups + LEAST_SPEEDUP)
    return _place_best(snapshot, gains)


def soonest(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return placements that end the jobs of now soonest in the mean.

    Were GPUs divisible, placements free and no job to come, a unit of a job's progress would have one price until its
    end, and at any time the best use of all GPUs would be worth as many as there are jobs (Pontryagin's principle). So
    prices follow one after another from the job that ends last, and sizes are chosen by them. Where no job's length is
    known, it does as ``pollux``: to take what a job had for what it still needs was 24 % worse than that on a workload.
    """
    ran = [job for job in snapshot.jobs if job.state.measured]
    if ran and all(job.state.remaining is None for job in ran):
        return pollux(snapshot)
    return _place_best(snapshot, _priced_gains(snapshot))


def size_blind(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return what ``soonest`` does where no owner states how long a job is."""
    jobs = tuple(replace(job, state=replace(job.state, remaining=None)) for job in snapshot.jobs)
    return soonest(replace(snapshot, jobs=jobs))


def _priced_gains(snapshot: ElasticSnapshot) -> dict[int, tuple[Sizes, Floats]]:
    """Return what each size of each job is worth, by the prices of progress."""
    sizes = possible_sizes(snapshot)
    reached = {job.name: _learned_goodputs(job, snapshot, sizes) for job in snapshot.jobs}
    known = [job for job in snapshot.jobs if len(reached[job.name][0])]
    # Of equal jobs the heavier ends first: in a queue that is the shortest weighted time (Smith, 1956).
    longest_first = sorted(known, key=lambda job: -_time_left(job, snapshot, *reached[job.name]) / job.weight)
    prices = _plan_prices(longest_first, reached, snapshot.gpus)
    # Where others wait for the devices, a size that disappoints costs them the time until it may be changed again.
    crowded = sum(job.state.least for job in snapshot.jobs) >= snapshot.gpus
    gains = {}
    for job, price in zip(longest_first, prices, strict=True):
        allowed, goodputs = reached[job.name]
        now = allowed <= job.state.most
        most_s = max(KEPT_S, KEPT_PAUSES * job.state.change_s)
        left = job.state.remaining
        left_s = np.full(len(allowed), np.inf) if left is None else np.maximum(left / goodputs, 1.0)
        lasts = np.minimum(left_s, most_s) if job.placement else most_s
        kept = np.where(allowed == len(job.placement), 1, lasts / (lasts + job.state.change_s))
        if crowded:
            tried = np.isin(allowed, [run.gpus for run, _ in job.state.measured])
            kept *= np.where(tried, 1, 1 / (1 + job.state.every_s / left_s))
        gains[job.name] = allowed[now], (price * kept * goodputs)[now]
    first = 1 + sum(job.weight for job in known)
    for job in snapshot.jobs:
        if job.name not in gains:  # what a job needs is known once it has run
            smallest = allowed_sizes(job, sizes)[:1]
            gains[job.name] = smallest, np.full(len(smallest), first)
    return gains


def _plan_prices(longest_first: Sequence[ElasticTraining], reached: Reached, gpus: int) -> list[float]:
    """Return the price of each job's progress.

    Jobs are sorted by how long they still take.
    """
    worth, total, prices = np.zeros(gpus + 1), 0.0, []
    for job in longest_first:
        allowed, goodputs = reached[job.name]
        total += job.weight
        prices.append(float(((total - worth[gpus - allowed]) / goodputs).min()))
        worth, _ = add_job(worth, allowed, prices[-1] * goodputs)
    return prices


def ones(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return placements by evolution for the least remaining GPU time.

    Only that of jobs which run counts, as in ONES (SC'21). Its population begins with the sizes of now each time, as a
    service remembers nothing. Sizes are rounded to such as fill nodes.
    """
    sizes = possible_sizes(snapshot)
    scores = {}
    for job in snapshot.jobs:
        allowed, goodputs = _learned_goodputs(job, snapshot, sizes)
        now = allowed <= job.state.most
        left = LEAST_GPU_S if job.state.remaining is None else job.state.remaining
        scores[job.name] = allowed[now], -left * allowed[now] / goodputs[now]
        if not len(allowed):
            scores[job.name] = allowed_sizes(job, sizes)[:1], np.zeros(1)[: len(allowed_sizes(job, sizes))]
    return _place_evolved(snapshot, scores)


def ones_goodput(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return placements by the evolution of ONES, for what ``soonest`` finds exactly."""
    return _place_evolved(snapshot, _priced_gains(snapshot))


def _place_evolved(snapshot: ElasticSnapshot, scores: Mapping[int, tuple[Sizes, Floats]]) -> dict[int, Placement]:
    """Return placements whose sizes were found by evolution."""
    by_length = sorted(snapshot.jobs, key=lambda job: job.state.remaining or LEAST_GPU_S)
    chosen = evolve(
        [scores[job.name] for job in by_length],
        [len(job.placement) for job in by_length],
        snapshot.gpus,
        seed=int(snapshot.now_s),
    )
    return place(snapshot, {job.name: size for job, size in zip(by_length, chosen, strict=True)})


def fixed(snapshot: ElasticSnapshot) -> dict[int, Placement]:
    """Return placements by arrival, with the sizes that owners ask for.

    A job that fits may pass one that does not.
    """
    return place_asked(snapshot, snapshot.jobs)


def _place_best(snapshot: ElasticSnapshot, gains: Mapping[int, tuple[Sizes, Floats]]) -> dict[int, Placement]:
    """Return placements of the sizes that gain most in all."""
    chosen = maximise_sum([gains[job.name] for job in snapshot.jobs], snapshot.gpus)
    return place(snapshot, {job.name: size for job, size in zip(snapshot.jobs, chosen, strict=True)})


def _time_left(job: ElasticTraining, snapshot: ElasticSnapshot, sizes: Sizes, goodputs: Floats) -> float:
    """Return how long a job still takes at an equal share, s.

    Where its length is unknown, it is taken to need as much again as it had.
    """
    share = max(snapshot.gpus / len(snapshot.jobs), sizes[0])
    fair = int(np.searchsorted(sizes, share, side="right"))
    if job.state.remaining is None:
        return max(job.state.gpu_s, LEAST_GPU_S) / float(sizes[fair - 1])
    return float(job.state.remaining / goodputs[:fair].max())


def _learned_goodputs(job: ElasticTraining, snapshot: ElasticSnapshot, sizes: Sizes) -> tuple[Sizes, Floats]:
    """Return sizes that a job may ever have, and the goodput on each.

    There are none before its first step.
    """
    state = job.state
    if state.gradient is None or not state.measured:
        return sizes[:0], np.array([])
    allowed = sizes[(sizes >= state.least) & (sizes <= max(state.limits.most_gpus, state.most))]
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
    reached, _ = Goodput(speed, gradient, limits).best(nodes, np.array(sizes))
    ratios: dict[tuple[int, int], list[float]] = {}
    for run, time in measured:
        ratios.setdefault((run.nodes, run.gpus), []).append(float(speed.times(*run)[1]) / time.step_s)
    corrections = [np.mean(ratios.get(ran, [1.0])) for ran in zip(nodes.tolist(), sizes, strict=True)]
    return np.asarray(reached * np.array(corrections))


RULES: dict[str, Decide] = {
    "soonest": soonest,
    "size-blind": size_blind,
    "pollux": pollux,
    "ones": ones,
    "ones-goodput": ones_goodput,
    "fixed": fixed,
}
"""Rules by name; of these only ``fixed`` gives each job what its owner asks for."""
