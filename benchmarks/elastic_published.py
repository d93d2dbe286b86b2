"""Decide as published schedulers do, for jobs with tuned batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from helios.training.elastic_sim.profiles import ModelProfile
from helios.training.elastic_sim.simulator import ElasticJob
from helios.training.sizes.model import Decide, ElasticSnapshot, ElasticTraining, Placement
from helios.training.sizes.placing import place_asked, place_emptiest

SHORT_GPU_S = 16 * 3600
"""GPU seconds after which a job falls into the second queue of Tiresias."""


def tiresias() -> Decide:
    """Return Tiresias with two queues and the sizes that owners ask for.

    New jobs go first. A job that had ``SHORT_GPU_S`` waits behind all that had less, in the order of falling behind.
    """
    long: list[int] = []

    def decide(snapshot: ElasticSnapshot) -> Mapping[int, Placement]:
        known = {job.name: job for job in snapshot.jobs}
        long[:] = [name for name in long if name in known]
        long.extend(job.name for job in snapshot.jobs if job.state.gpu_s >= SHORT_GPU_S and job.name not in long)
        queue = [*(name for name in known if name not in long), *long]
        return place_asked(snapshot, (known[name] for name in queue))

    return decide


def optimus(jobs: Sequence[ElasticJob]) -> Decide:
    """Return Optimus, which gives each GPU where it saves most time.

    It knows remaining steps and step times, as its published runs did.
    """

    def time_left(training: ElasticTraining, gpus: int) -> float:
        job = jobs[training.name]
        profile = job.profile
        assert isinstance(profile, ModelProfile)  # nothing else knows the steps of each epoch
        last = profile.epochs - 1
        steps = (
            profile.iterations_after(job.batch, last) - profile.iterations_after(job.batch, training.state.epoch)
            if training.state.epoch < last
            else 1
        )
        return steps * _true_step(job, gpus)

    def decide(snapshot: ElasticSnapshot) -> Mapping[int, Placement]:
        left, sizes, gains = snapshot.gpus, dict.fromkeys((job.name for job in snapshot.jobs), 0), {}
        states = {job.name: job for job in snapshot.jobs}
        for name in list(states)[:left]:
            sizes[name] = 1
        left -= sum(sizes.values())

        def gain(name: int) -> float:
            job, size = jobs[name], sizes[name]
            most = min(job.batch // job.profile.limits.smallest_local, job.most_gpus)
            if not size or size + 1 > most:
                return 0.0
            return time_left(states[name], size) - time_left(states[name], size + 1)

        gains = {name: gain(name) for name in sizes}
        while left > 0 and max(gains.values()) > 0:
            name = max(gains, key=gains.__getitem__)
            sizes[name] += 1
            left -= 1
            gains[name] = gain(name)
        smallest_first = sorted(snapshot.jobs, key=lambda job: sizes[job.name])
        return place_emptiest(snapshot, [(job, sizes[job.name]) for job in smallest_first if sizes[job.name]])

    return decide


def _true_step(job: ElasticJob, gpus: int) -> float:
    limits, full = job.profile.limits, 4
    placement = (full,) * (gpus // full) + ((gpus % full,) if gpus % full else ())
    batch = limits.split(job.batch, gpus)
    if gpus == 1 and not batch.accumulation:
        local = -(-job.batch // 2)
        batch = type(batch)(min(local, limits.largest // 2), 1)
    return job.profile.step_time(placement, batch.local).with_passes(batch.accumulation)


TUNED: dict[str, Callable[[Sequence[ElasticJob]], Decide]] = {
    "tiresias": lambda _: tiresias(),
    "optimus": optimus,
}
"""Rules for jobs that keep the batch their owners tuned, each made for one run of a workload."""
