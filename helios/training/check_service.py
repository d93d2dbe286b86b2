"""Conformance suite for services that act on pools of trials."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from helios.services.registry import find_flaws, make_service
from helios.testing.check_service import find_clocks, watch_calls
from helios.training.model import (
    NUMBERS,
    Device,
    FusedSpeed,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ResizeTrial,
    SharedSpeed,
    ShareTrial,
    StartTrial,
    Trial,
    TrialForecast,
    TrialState,
    by_process,
    placement,
)
from helios.training.ports import PoolService
from helios.training.sizes.model import BatchLimits, ElasticState, Gradient, StepRun, StepTime

MOST_SHOWN = 12
NOW_S = 1_700_000_000.0

KNOWN = TrialForecast(memory_p50_mib=4_000.0, memory_p95_mib=5_000.0, seconds_p50=600.0, seconds_p90=900.0)
RUNNING: dict[str, Any] = {"state": TrialState.RUNNING, "started_s": NOW_S - 300, "attempts": 1}
MEASURED: dict[str, Any] = RUNNING | {
    "memory_limit_mib": 5_500.0,
    "memory_mib": 4_000.0,
    "peak_memory_mib": 4_100.0,
    "progress": 0.5,
}
SPEEDS = (
    SharedSpeed(family="train", beside=(), steps_per_s=10.0, samples=2),
    SharedSpeed(family="train", beside=("train",), steps_per_s=7.0, samples=1),
    SharedSpeed(family="gone", beside=("train", "train"), steps_per_s=0.0, samples=0),
)


def check_pool_service(service: type[Any] | PoolService) -> None:
    """Check that a service keeps the contract of ``PoolService``.

    It is called with an empty pool, one without devices, trials of which nothing is known, trials in every state, odd
    numbers and texts, kills for memory, and 1,000 trials on 256 devices. The contract:

    - It answers the same twice, whatever it was called with before.
    - It uses no clock, random numbers, disk or network.
    - It starts only waiting and paused trials, each once, on devices of the snapshot with a free slot, or in a process
      that may train them as well.
    - It promises no more memory than a device has.
    - It pauses and stops only trials that have not ended, and gives shares above 0 and at most 1 to running ones.
    - It resizes only running trials that are elastic, and not before their time. Devices that they give up by earlier
      actions of the same answer are free for them.
    - Every action has a reason.

    Parameters
    ----------
    service : class or PoolService
        A class is instantiated with the defaults of its ``Options``. Pass an object to check other options.

    Raises
    ------
    AssertionError
        The contract is broken. The message lists everything found, with what to do about it.
    """
    service_class = service if isinstance(service, type) else type(service)
    complaints = find_flaws(service_class) or [
        f"{name} asks the clock; the time is snapshot.now_s" for name in find_clocks(service_class)
    ]
    if not complaints:
        complaints = [
            f"{title}: {complaint}" for title, pool in pool_situations() for complaint in _complaints(service, pool)
        ]
    if complaints:
        raise AssertionError("This is not yet a service for pools:\n- " + "\n- ".join(complaints[:MOST_SHOWN]))


def a_trial(number: int = 0, **values: Any) -> Trial:
    """Return a trial with the given values alone."""
    fields: dict[str, Any] = {"number": number, "parameters": {}, "family": "train"} | values
    return Trial(**fields)


def a_pool(trials: list[Trial], *, devices: int | tuple[Device, ...] = 2, **values: Any) -> PoolSnapshot:
    """Return a pool of trials.

    A number of devices are GPUs of 16 GiB named ``gpu:0``, ``gpu:1`` and so on.
    """
    gpus = (
        devices
        if isinstance(devices, tuple)
        else tuple(Device(name=f"gpu:{number}", kind="gpu", memory_mib=16_384.0) for number in range(devices))
    )
    fields: dict[str, Any] = {"now_s": NOW_S, "devices": gpus, "trials": tuple(trials)} | values
    return PoolSnapshot(**fields)


def pool_situations() -> Iterator[tuple[str, PoolSnapshot]]:
    """Yield the pools that ``check_pool_service`` tries, each with a title."""
    yield from _waiting_pools()
    yield from _running_pools()
    yield from _elastic_pools()
    yield from _extreme_pools()


def _waiting_pools() -> Iterator[tuple[str, PoolSnapshot]]:
    yield "an empty pool", a_pool([])
    yield "a pool without devices", a_pool([a_trial(0), a_trial(1)], devices=0)
    yield "trials of which nothing is known", a_pool([a_trial(number) for number in range(9)])
    yield "trials of which much is known", a_pool([a_trial(n, forecast=KNOWN) for n in range(9)], speeds=SPEEDS)
    sweeps = [
        a_trial(place * NUMBERS + n, sweep=f"s{place}", family=f"f{place}") for place in range(3) for n in range(4)
    ]
    yield "trials of several sweeps", a_pool(sweeps)
    cpu = Device(name="cpu:0", kind="cpu", memory_mib=8_000.0, slots=2)
    yield "trials on the CPU", a_pool([a_trial(number) for number in range(9)], devices=(cpu,))


def _running_pools() -> Iterator[tuple[str, PoolSnapshot]]:
    states = [a_trial(n, state=state) for n, state in enumerate(TrialState) if state is not TrialState.RUNNING]
    yield (
        "trials in every state",
        a_pool(
            [
                *states,
                a_trial(10, devices=("gpu:0",), steps_per_s=7.0, forecast=KNOWN, **MEASURED),
                a_trial(11, devices=("gpu:0",), steps_per_s=7.0, forecast=KNOWN, **MEASURED),
                a_trial(12, devices=("gpu:1",), **RUNNING),
                *(a_trial(number, forecast=KNOWN) for number in range(13, 20)),
            ],
            speeds=SPEEDS,
        ),
    )
    fused: dict[str, Any] = RUNNING | {"fusible": "one", "most_fused": 4, "process": -1, "memory_limit_mib": 16_384.0}
    yield (
        "trials that may be fused",
        a_pool(
            [
                *(a_trial(number, devices=("gpu:0",), **fused) for number in range(2)),
                *(a_trial(number, fusible="one", most_fused=4) for number in range(2, 9)),
                *(a_trial(number, family="other", fusible="two", most_fused=4) for number in range(9, 16)),
                *(a_trial(number, forecast=KNOWN) for number in range(16, 20)),
            ],
            speeds=SPEEDS,
            fused=(FusedSpeed(fusible="one", models=2, together_s=1.0, alone_s=0.8),),
        ),
    )
    yield "trials on a device that is gone", a_pool([a_trial(0, devices=("gpu:9",), **RUNNING), a_trial(1)])
    yield (
        "kills for memory",
        a_pool(
            [
                a_trial(0, attempts=1, out_of_memory_mib=6_000.0, forecast=KNOWN),
                a_trial(1, attempts=3, out_of_memory_mib=9_000.0, forecast=KNOWN),
                a_trial(2, attempts=3, out_of_memory_mib=16_384.0, forecast=KNOWN),
                a_trial(3, forecast=KNOWN),
            ],
            speeds=SPEEDS,
        ),
    )


def _elastic_pools() -> Iterator[tuple[str, PoolSnapshot]]:
    limits = BatchLimits(smallest=32, largest=512, smallest_local=16, largest_local=128)
    new = ElasticState(asked=1, most=1, limits=limits, submit_s=NOW_S)
    ran = ElasticState(
        asked=1,
        most=2,
        limits=limits,
        submit_s=NOW_S - 600,
        remaining=1e5,
        measured=((StepRun(1, 1, 32), StepTime(0.1, 0.0)),),
        gradient=Gradient(1.0, 5.0),
    )
    yield "elastic trials that wait", a_pool([a_trial(number, elastic=new) for number in range(5)])
    yield (
        "elastic trials beside others",
        a_pool(
            [
                a_trial(0, elastic=ran, devices=("gpu:0",), **RUNNING),
                a_trial(1, elastic=replace(ran, kept_until_s=NOW_S + 9), devices=("gpu:1",), **RUNNING),
                a_trial(2, elastic=replace(ran, remaining=None), devices=("gpu:2", "gpu:3"), **RUNNING),
                a_trial(3, elastic=ran, state=TrialState.PAUSED),
                a_trial(4, elastic=replace(new, least=3, most=4)),
                *(a_trial(number) for number in range(5, 9)),
            ],
            devices=6,
        ),
    )


def _extreme_pools() -> Iterator[tuple[str, PoolSnapshot]]:
    huge = TrialForecast(memory_p95_mib=1e12, seconds_p50=1e12)
    none = TrialForecast(memory_p95_mib=0.0, seconds_p50=0.0)
    yield (
        "numbers that nobody expects",
        a_pool(
            [
                a_trial(0, forecast=huge),
                a_trial(1, forecast=none),
                a_trial(2, progress=1.5, forecast=KNOWN),
                a_trial(3, progress=-1.0, parameters={"lr": float("nan"), "layers": (1, 2), "on": True, "none": None}),
                a_trial(4, devices=("gpu:0",), steps_per_s=0.0, peak_memory_mib=0.0, **RUNNING),
            ],
            speeds=SPEEDS,
            ends_s=NOW_S - 1,
        ),
    )
    yield (
        "texts that nobody expects",
        a_pool(
            [a_trial(n, family=text, parameters={text: text}) for n, text in enumerate(("", "ä\n", "x" * 5_000, "{0}"))]
        ),
    )
    families = [f"f{number % 300}" for number in range(1_384)]
    many = [
        a_trial(number, family=families[number], devices=(f"gpu:{number % 256}",), steps_per_s=6.0, **MEASURED)
        for number in range(384)
    ]
    many += [a_trial(number, family=families[number], forecast=KNOWN) for number in range(384, 1_384)]
    yield (
        "1,000 trials on 256 devices",
        a_pool(
            many,
            devices=256,
            speeds=tuple(SharedSpeed(family=f"f{n}", beside=(), steps_per_s=9.0, samples=1) for n in range(300)),
        ),
    )


def _complaints(service: type[Any] | PoolService, pool: PoolSnapshot) -> Iterator[str]:
    def make() -> Any:
        if isinstance(service, type):
            return make_service(service, service.Options(), name=service.__name__)
        return copy.deepcopy(service)

    before = copy.deepcopy(pool)
    try:
        first = list(make().decide(pool))
        reused = make()
        with watch_calls() as calls:
            second = list(reused.decide(pool))
        third = list(reused.decide(pool))
    except Exception as raised:  # because a service is third-party code
        yield f"it raised {type(raised).__name__}: {raised}; return no action for what cannot be judged"
        return
    yield from (f"{call}; decide on the snapshot alone" for call in dict.fromkeys(calls))
    if not first == second == third:
        yield "asked twice it answers differently; order every set and every tie, and keep nothing between calls"
    if repr(before) != repr(pool):
        yield "it changed the snapshot, which others see too; take a copy"
    yield from find_pool_faults(first, pool)


def find_pool_faults(actions: list[PoolAction], pool: PoolSnapshot) -> Iterator[str]:
    """Yield the faults of a service's answer for a pool."""
    foreign = [action for action in actions if not isinstance(action, PoolAction)]
    if foreign:
        yield f"{foreign[0]!r} is no action on a pool; see PoolAction for what is"
        return
    trials = {trial.number: trial for trial in pool.trials}
    for number, times in Counter(action.number for action in actions).items():
        if number not in trials:
            yield f"it names trial {number}, which is not in the snapshot"
        elif times > 1:
            yield f"it names trial {number} {times} times; decide once for each trial"
    for action in actions:
        if not action.reason.strip():
            yield f"a {type(action).__name__} has no reason; say why, for the person who asks"
        state = trials[action.number].state if action.number in trials else None
        allowed = (
            {TrialState.WAITING, TrialState.PAUSED}
            if isinstance(action, StartTrial)
            else {TrialState.RUNNING}
            if isinstance(action, PauseTrial | ShareTrial | ResizeTrial)
            else {TrialState.RUNNING, TrialState.WAITING, TrialState.PAUSED}
        )
        if state is not None and state not in allowed:
            yield f"a {type(action).__name__} names trial {action.number}, which is {state}"
        if isinstance(action, ShareTrial) and action.share is not None and not 0 < action.share <= 1:
            yield f"it gives trial {action.number} a share of {action.share}; shares are above 0 and at most 1"
    elastic = {number: trial for number, trial in trials.items() if trial.elastic is not None}
    yield from _size_faults([action for action in actions if action.number in elastic], elastic, pool)
    yield from _resize_faults([action for action in actions if isinstance(action, ResizeTrial)], elastic, pool)
    fixed = replace(pool, trials=tuple(trial for trial in pool.trials if trial.elastic is None))
    starts = [action for action in actions if isinstance(action, StartTrial) and action.number not in elastic]
    yield from _device_faults(starts, fixed)


def _resize_faults(actions: list[ResizeTrial], elastic: dict[int, Trial], pool: PoolSnapshot) -> Iterator[str]:
    for action in actions:
        known = elastic[action.number].elastic if action.number in elastic else None
        if known is None:
            yield f"it resizes trial {action.number}, which is of a fixed size"
        elif pool.now_s < known.kept_until_s:
            yield f"it resizes trial {action.number} before its time"


def _size_faults(actions: list[PoolAction], elastic: dict[int, Trial], pool: PoolSnapshot) -> Iterator[str]:
    """Yield faults of the devices that elastic trials get, one action after another."""
    slots = {device.name: device.slots for device in pool.devices}
    held = {lead.number: lead.devices for lead, *_ in by_process(pool.trials)}
    for action in actions:
        held.pop(action.number, None)
        if isinstance(action, StartTrial | ResizeTrial):
            used = Counter(name for devices in held.values() for name in devices)
            if not action.devices or len({*action.devices}) < len(action.devices) or {*action.devices} - slots.keys():
                yield f"it gives trial {action.number} {action.devices}; name devices of the snapshot, each once"
            elif full := sorted(name for name in action.devices if used[name] >= slots[name]):
                yield f"it gives trial {action.number} devices whose slots others have: {', '.join(full)}"
            known = elastic[action.number].elastic
            if known is not None and len(action.devices) > known.most:
                yield f"it gives trial {action.number} {len(action.devices)} devices, above {known.most}"
            held[action.number] = action.devices


def _fusing_faults(starts: list[StartTrial], joining: list[StartTrial], pool: PoolSnapshot) -> Iterator[str]:
    """Yield faults of trials that join another one's process."""
    trials = {trial.number: trial for trial in pool.trials}
    processes = {trial.number: process for process in by_process(pool.trials) for trial in process if trial.fusible}
    sizes = Counter({process[0].number: len(process) for process in processes.values()})
    lead_of = {number: process[0].number for number, process in processes.items()}
    lead_of |= {start.number: start.number for start in starts if start.number in trials}
    sizes.update({start.number: 1 for start in starts})
    for start in joining:
        trial, lead = trials.get(start.number), trials.get(lead_of.get(-1 if start.into is None else start.into, -1))
        if trial is None:
            continue
        if lead is None or not trial.fusible or lead.fusible != trial.fusible:
            yield f"it puts trial {start.number} into the process of {start.into}, which is of another kind or none"
            continue
        sizes[lead.number] += 1
        if sizes[lead.number] > trial.most_fused:
            yield f"it puts {sizes[lead.number]} trials into one process, above {trial.most_fused}"


def _device_faults(starts: list[StartTrial], pool: PoolSnapshot) -> Iterator[str]:
    devices = {device.name: device for device in pool.devices}
    running = [lead for lead, *_ in by_process(pool.trials)]
    joining = [start for start in starts if start.into is not None]
    starts = [start for start in starts if start.into is None]
    yield from _fusing_faults(starts, joining, pool)
    there: list[Trial | StartTrial] = [*running, *starts]
    slots = Counter(name for placed in there for name in placed.devices)
    promised_mib: dict[str, float] = defaultdict(float)
    for placed in there:
        for name in placed.devices:
            promised_mib[name] += placed.memory_limit_mib or 0.0
    for start in starts:
        if not start.devices or len(placement(start.devices)) > 1 or len({*start.devices}) < len(start.devices):
            yield f"it starts trial {start.number} on {start.devices}; name devices of one node, each once"
    for name in dict.fromkeys(name for start in starts for name in start.devices):
        device = devices.get(name)
        if device is None:
            yield f"it starts a trial on {name!r}, which is not in the snapshot"
            continue
        if slots[name] > device.slots:
            yield f"it puts {slots[name]} trials on {name}, which has {device.slots} slots"
        if promised_mib[name] > device.memory_mib * (1 + 1e-9):
            yield f"it promises {promised_mib[name]:.0f} MiB on {name}, which has {device.memory_mib:.0f}"
