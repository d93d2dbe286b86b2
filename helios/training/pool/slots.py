"""Starts of trials on fixed slots, where no service decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from helios.training.model import (
    ENDED,
    NUMBERS,
    Device,
    PoolAction,
    PoolSnapshot,
    StartTrial,
    Trial,
    TrialState,
    by_process,
    fuse,
    node_name,
)

MORE_ROOM = 1.5
"""What a trial that was killed for memory gets of its last limit."""


def fixed_slots(snapshot: PoolSnapshot) -> list[PoolAction]:
    """Start trials in order while a device has a slot.

    A slot goes to the sweep that holds fewest, and of these to one whose trial has not just ended. Trials that may be
    fused share processes. Each process gets an equal part of the memory. A trial that was killed for memory gets more,
    and at last a device of its own.
    """
    running: dict[str, list[Trial]] = {device.name: [] for device in snapshot.devices}
    for lead, *_ in by_process(snapshot.trials):
        for name in lead.devices:
            running[name].append(lead)
    used = {device.name: len(running[device.name]) for device in snapshot.devices}
    free = {
        device.name: device.memory_mib - sum(trial.memory_limit_mib or 0.0 for trial in running[device.name])
        for device in snapshot.devices
    }
    held = Counter(_sweep(lead) for lead, *_ in by_process(snapshot.trials))
    just_ended = {_sweep(trial) for trial in snapshot.trials if trial.state in ENDED}
    actions: list[PoolAction] = []
    for start in list(_fused_starts(snapshot, used, held, just_ended)):
        actions.append(start)
        if start.into is None:
            held[start.number // NUMBERS] += 1
            for name in start.devices:
                used[name] += 1
                free[name] -= start.memory_limit_mib or 0.0
    for trial in _in_turns([trial for trial in _waiting(snapshot) if not trial.fusible], held, just_ended):
        if all(used[device.name] >= device.slots for device in snapshot.devices):
            break
        if trial.elastic is not None and trial.elastic.asked > 1:
            actions += _elastic_start(trial, snapshot.devices, used, free)
            continue
        for device in sorted(snapshot.devices, key=lambda device: used[device.name] / device.slots):
            need = trial.forecast.memory_p95_mib or device.memory_mib / device.slots
            if trial.out_of_memory_mib is not None:
                need = max(need, MORE_ROOM * trial.out_of_memory_mib)
            need = min(need, device.memory_mib)
            if used[device.name] < device.slots and (need <= free[device.name] * (1 + 1e-9) or not used[device.name]):
                actions.append(
                    StartTrial(
                        number=trial.number,
                        devices=(device.name,),
                        memory_limit_mib=need,
                        reason=f"{device.slots - used[device.name]} of {device.slots} slots free",
                    )
                )
                used[device.name] += 1
                free[device.name] -= need
                break
    return actions


def _elastic_start(
    trial: Trial, devices: Sequence[Device], used: dict[str, int], free: dict[str, float]
) -> list[PoolAction]:
    """Start a trial on its least number of devices, if a node has them free."""
    assert trial.elastic is not None
    idle = [device for device in devices if not used[device.name]]
    asked = min(trial.elastic.asked, len(devices))  # what was there at the start may be gone
    nodes = dict.fromkeys(node_name(device.name) for device in devices)
    for node in [*nodes, None]:
        fitting = [device for device in idle if node in {None, node_name(device.name)}]
        chosen = tuple(device.name for device in fitting[:asked])
        if len(chosen) == asked:
            limit_mib = min(device.memory_mib for device in fitting)
            for name in chosen:
                used[name] += 1
                free[name] -= limit_mib
            reason = f"{len(fitting)} devices free"
            return [StartTrial(number=trial.number, devices=chosen, memory_limit_mib=limit_mib, reason=reason)]
    return []


def _sweep(trial: Trial) -> int:
    return trial.number // NUMBERS


def _waiting(snapshot: PoolSnapshot) -> list[Trial]:
    return [trial for trial in snapshot.trials if trial.state in {TrialState.WAITING, TrialState.PAUSED}]


def _in_turns(waiting: Collection[Trial], held: Mapping[int, int], just_ended: Collection[int]) -> list[Trial]:
    """Return waiting trials in the order in which they get slots."""
    taken = Counter(held)
    keys = {}
    for trial in sorted(waiting, key=lambda trial: (trial.out_of_memory_mib or 0.0, trial.number)):
        sweep = _sweep(trial)
        keys[trial.number] = (taken[sweep], sweep in just_ended, sweep)
        taken[sweep] += 1
    return sorted(waiting, key=lambda trial: keys[trial.number])


def _fused_starts(
    snapshot: PoolSnapshot, used: Mapping[str, int], held: Mapping[int, int], just_ended: Collection[int]
) -> Iterator[StartTrial]:
    """Yield the starts of fusible trials, on the slots of their sweeps.

    Where a sweep waits for slots that the processes of others hold, these take no more trials, until each sweep has
    its part.
    """
    waiting, free = _waiting(snapshot), {each.name: each.slots - used[each.name] for each in snapshot.devices}
    turns = Counter(_sweep(trial) for trial in _in_turns(waiting, held, just_ended)[: max(0, sum(free.values()))])
    part = sum(device.slots for device in snapshot.devices) // max(1, len({*held, *map(_sweep, waiting)}))
    is_due = not any(free.values()) and any(held[_sweep(trial)] < max(1, part) for trial in waiting)
    for sweep in dict.fromkeys(_sweep(trial) for trial in waiting if trial.fusible):
        trials = [trial for trial in snapshot.trials if _sweep(trial) == sweep]
        if is_due:
            processes = sorted(by_process(trials), key=len, reverse=True)
            closing = {trial.number for process in processes[part:] for trial in process}
            trials = [trial for trial in trials if trial.number not in closing]
        for start in fuse(replace(snapshot, trials=tuple(trials)), free, most=turns[sweep]):
            yield start
            if start.into is None:
                free[start.devices[0]] -= 1
