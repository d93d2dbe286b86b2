"""Simulate a cluster where trainings change their number of GPUs.

The setting is that of Pollux (OSDI'21). A service for pools decides once a minute, from the snapshot that it has of a
pool that runs. A change of a training's nodes stops it; a batch changes for nothing. A service is told what a training
has shown: measured steps, gradients of the past, epochs that its owner states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from helios.errors import HeliosError
from helios.training.elastic_sim.learned_profile import LearnedProfile
from helios.training.elastic_sim.profiles import ModelProfile
from helios.training.model import (
    Device,
    PauseTrial,
    PoolSnapshot,
    ResizeTrial,
    StartTrial,
    Trial,
    TrialState,
    node_name,
)
from helios.training.ports import PoolService
from helios.training.sizes.goodput import learn_goodput
from helios.training.sizes.model import ElasticState, GpuBatch, Gradient, Measured, StepRun, statistical_gain

NODES, GPUS_PER_NODE = 16, 4
CHANGE_S = 30
"""Seconds that a training stands still when its nodes change."""
ROUND_S = 60
"""Seconds between two decisions."""
MOST_DECISIONS = 3
"""Most decisions at one time; a pool decides again once a trial is paused."""
LONGEST_S = 60 * 86_400
"""Time after which a simulation is given up."""

NO_BATCH = GpuBatch(0, 0)


def make_devices(nodes: Sequence[int]) -> tuple[Device, ...]:
    """Return the GPUs of nodes with so many each."""
    return tuple(
        Device(name=f"node{node}/gpu:{place}", kind="gpu", memory_mib=1.0, slots=1)
        for node, count in enumerate(nodes)
        for place in range(count)
    )


DEVICES = make_devices((GPUS_PER_NODE,) * NODES)


class AllocationInvalid(HeliosError):
    """A rule gives out GPUs that are not there."""


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A training of a workload.

    Attributes
    ----------
    gpus, batch : int
        What its owner asks for; sizes are tuned in the published workloads.
    fixed_batch : bool
        Whether the batch stays as asked for, whatever is learned.
    least_gpus, most_gpus : int
        GPUs that it may ever have.
    every_s : float
        How long it keeps the GPUs that it has got, s.
    weight : float
        Importance, relative to other trainings.
    family : str
        Jobs of one know of each other what they have measured.
    measured : tuple
        Steps of earlier jobs like it, which are known from the begin.
    stated_epochs : float, optional
        Epochs that its owner states. The truth is in the profile, and 0 there is none.
    """

    name: str
    submit_s: int
    profile: ModelProfile | LearnedProfile
    gpus: int
    batch: int
    fixed_batch: bool = False
    least_gpus: int = 1
    most_gpus: int = NODES * GPUS_PER_NODE
    every_s: float = 0.0
    weight: float = 1.0
    family: str = ""
    measured: Measured = ()
    stated_epochs: float | None = None


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a training.

    Attributes
    ----------
    shapes : tuple of pair
        Since when it had how many GPUs on each of its nodes, s.
    """

    job: ElasticJob
    end_s: int
    restarts: int
    gpu_s: float
    shapes: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def completion_s(self) -> int:
        """Seconds from submission to end."""
        return self.end_s - self.job.submit_s


@dataclass(slots=True)
class _Training:
    job: ElasticJob
    devices: tuple[str, ...] = ()
    nodes: Counter[str] = field(default_factory=Counter)
    shape: tuple[int, ...] = ()
    batch: GpuBatch = NO_BATCH
    pause_s: int = 0
    gpu_s: float = 0.0
    epoch: int = 0
    progress: float = 0.0
    gradient: Gradient | None = None
    measured: Measured = ()
    end_s: int | None = None
    shapes: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    _chosen_for: tuple[Measured, Gradient | None, tuple[int, ...]] | None = None

    @property
    def restarts(self) -> int:
        """How often it started on other nodes, beyond the first."""
        return max(sum(bool(shape) for _, shape in self.shapes) - 1, 0)

    def place(self, devices: tuple[str, ...], now_s: int, *, change_s: int, start_s: int) -> None:
        """Move to other GPUs, or off all."""
        nodes = Counter(map(node_name, devices))
        in_place = {*devices} & {*self.devices} and len({*nodes, *self.nodes}) == 1
        self.devices = devices
        if nodes != self.nodes:
            self.nodes, self.shape = nodes, tuple(nodes.values())
            self.shapes.append((now_s, self.shape))
            if nodes:
                self.pause_s = change_s if in_place else start_s
                self._choose_batch()

    def run(self, start_s: int, seconds: int) -> None:
        """Train for some seconds on the GPUs it has."""
        if not self.devices or self.end_s is not None:
            return
        pause = min(self.pause_s, seconds)
        self.pause_s -= pause
        now, left = start_s + pause, seconds - pause
        while left > 0 and self.end_s is None:
            rate = self._measure()
            epoch_end = self.job.profile.progress_after(self.epoch + 1)
            if self.progress + rate * left < epoch_end:
                self.progress += rate * left
                now += left
                left = 0
            else:
                used = round((epoch_end - self.progress) / rate)  # the published runs count whole seconds here
                self.progress, self.epoch = epoch_end, self.epoch + 1
                now, left = now + used, left - used
                if self.epoch == self.job.profile.epochs:
                    self.end_s = now
            self._choose_batch()
        self.gpu_s += (now - start_s) * len(self.devices)

    def _measure(self) -> float:
        """Return the goodput of the coming steps, and learn from them."""
        profile, gpus = self.job.profile, len(self.devices)
        time = profile.step_time(self.shape, self.batch.local)
        total = self.batch.total(gpus)
        gradient = profile.gradient(total, self.epoch)
        run = StepRun(len(self.shape), gpus, self.batch.local)
        if not any(known == run for known, _ in self.measured):
            self.measured = tuple(sorted((*self.measured, (run, time))))
        self.gradient = gradient
        return statistical_gain(gradient, total / profile.limits.smallest) / time.with_passes(self.batch.accumulation)

    def _choose_batch(self) -> None:
        known = self.measured, self.gradient, self.shape
        if self._chosen_for == known:
            return
        self._chosen_for = known
        limits, gpus = self.job.profile.limits, len(self.devices)
        if self.job.fixed_batch:
            self.batch = limits.split(self.job.batch, gpus)
        elif (goodput := learn_goodput(self.measured, self.gradient, limits)) is None:
            self.batch = limits.split(max(limits.smallest, limits.smallest_local * gpus), gpus)
        else:
            self.batch = goodput.choose_batch(len(self.shape), gpus)

    def trial(self, number: int, change_s: int) -> Trial:
        """Return what a service may know."""
        job, limits = self.job, self.job.profile.limits
        per_epoch = job.profile.progress_after(1)  # an epoch has as many samples as the one before
        epochs = job.profile.epochs if job.stated_epochs is None else job.stated_epochs
        grown = 2 * max((run.gpus for run, _ in self.measured), default=0)
        state = ElasticState(
            asked=job.gpus,
            most=min(max(grown, job.least_gpus), limits.most_gpus, job.most_gpus),
            least=job.least_gpus,
            limits=limits,
            submit_s=job.submit_s,
            restarts=self.restarts,
            gpu_s=self.gpu_s,
            epoch=self.epoch,
            remaining=max(epochs * per_epoch - self.progress, per_epoch / 2) if epochs else None,
            measured=self.measured,
            gradient=self.gradient,
            change_s=change_s,
            every_s=job.every_s,
            kept_until_s=self.shapes[-1][0] + job.every_s if self.shapes else 0.0,
        )
        at = TrialState.RUNNING if self.devices else TrialState.PAUSED if self.shapes else TrialState.WAITING
        return Trial(
            number=number,
            parameters={},
            state=at,
            devices=self.devices,
            weight=job.weight,
            family=job.family,
            elastic=state,
        )


def simulate(
    jobs: Sequence[ElasticJob],
    service: PoolService,
    *,
    devices: Sequence[Device] = DEVICES,
    change_s: int = CHANGE_S,
    start_s: int | None = None,
) -> list[JobOutcome]:
    """Run a workload to its end.

    A start, and each change over several nodes, costs ``start_s``, which is ``change_s`` where it is not given.

    Raises
    ------
    AllocationInvalid
        The service gives a GPU twice, or starts nothing for ever.
    NotMeasured
        The service asks for what the profile does not hold.
    """
    trainings = [
        _Training(job, measured=job.measured, gradient=job.profile.gradient(job.batch, 0) if job.measured else None)
        for job in jobs
    ]
    pauses = {"change_s": change_s, "start_s": change_s if start_s is None else start_s}
    now = 0
    while any(training.end_s is None for training in trainings):
        if now > LONGEST_S:
            raise AllocationInvalid(
                f"Trainings have not ended after {LONGEST_S // 86_400} days.",
                hint="See that the service starts each one.",
            )
        for training in trainings:
            training.run(now, ROUND_S)
        now += ROUND_S
        waiting = {
            number: training
            for number, training in enumerate(trainings)
            if training.job.submit_s <= now and training.end_s is None
        }
        for _ in range(MOST_DECISIONS if waiting else 0):
            trials = tuple(training.trial(number, change_s) for number, training in waiting.items())
            actions = list(service.decide(PoolSnapshot(now_s=now, devices=tuple(devices), trials=trials)))
            for action in actions:
                if isinstance(action, StartTrial | ResizeTrial | PauseTrial):
                    names = () if isinstance(action, PauseTrial) else action.devices
                    trainings[action.number].place(names, now, **pauses)
            if not any(isinstance(action, PauseTrial) for action in actions):
                break
        used = list(chain.from_iterable(training.devices for training in waiting.values()))
        if len({*used}) < len(used):
            raise AllocationInvalid(f"At {now} s a GPU is given twice.", hint="Give out each GPU once.")
    return [
        JobOutcome(training.job, training.end_s or 0, training.restarts, training.gpu_s, tuple(training.shapes))
        for training in trainings
    ]
