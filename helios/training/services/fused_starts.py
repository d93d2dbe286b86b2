"""Starts of trials that one process trains faster."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from helios.training.model import PoolAction, PoolSnapshot, TrialState, by_process, fuse
from helios.training.services.group_speeds import PRIOR_SPEED

LEAST_GAIN = 0.95
"""Gain of fusing below which trials run in slots of the CPU instead; a measurement is about as exact."""


def fuse_where_faster(snapshot: PoolSnapshot) -> tuple[list[PoolAction], PoolSnapshot]:
    """Start trials together that one process trains faster.

    Such a process has a GPU for itself; on the CPU it has one slot. Before its first step it measures the gain of
    fusing, so that it is tried where nothing is known.

    Returns
    -------
    actions : list of PoolAction
    remaining : PoolSnapshot
        The other trials, and what such processes leave of the devices.
    """
    families = {trial.fusible: trial.family for trial in snapshot.trials if trial.fusible}
    if not families:
        return [], snapshot
    faster = {key for key, family in families.items() if fused_gain(snapshot, key) >= _sharing_gain(snapshot, family)}
    processes = by_process(snapshot.trials)
    used = Counter(name for process in processes for name in process[0].devices)
    free = {
        device.name: max(0, device.slots - used[device.name]) if device.kind == "cpu" else int(not used[device.name])
        for device in snapshot.devices
    }
    devices = tuple(device if device.kind == "cpu" else replace(device, slots=1) for device in snapshot.devices)
    running = {trial.number for trial in snapshot.trials if trial.state is TrialState.RUNNING}
    fused = {trial.number for trial in snapshot.trials if trial.fusible in faster} - running
    candidates = tuple(trial for trial in snapshot.trials if trial.number in fused | running)
    starts = fuse(replace(snapshot, devices=devices, trials=candidates), free)
    taken = Counter(name for start in starts if start.into is None for name in start.devices)
    for process in processes:
        if len(process) > 1 or process[0].fusible in faster:
            taken.update(process[0].devices)
            fused.update(trial.number for trial in process)
    remaining_devices = tuple(
        replace(
            device,
            slots=device.slots - taken[device.name],
            memory_mib=device.memory_mib * (1 - taken[device.name] / device.slots),
        )
        for device in snapshot.devices
        if taken[device.name] < (device.slots if device.kind == "cpu" else 1)
    )
    remaining = tuple(trial for trial in snapshot.trials if trial.number not in fused)
    return list(starts), replace(snapshot, devices=remaining_devices, trials=remaining)


def fused_gain(snapshot: PoolSnapshot, fusible: str) -> float:
    """Return the speed-up of a process of many trials.

    It is infinite where it was not measured, so that it is tried.
    """
    return max((speed.gain for speed in snapshot.fused if speed.fusible == fusible), default=math.inf)


def _sharing_gain(snapshot: PoolSnapshot, family: str) -> float:
    """Return the speed-up of trials of a family that share a GPU.

    It is about 1 on the CPU, where slots have cores of their own.
    """
    if all(device.kind == "cpu" for device in snapshot.devices):
        return LEAST_GAIN
    speeds = [speed for speed in snapshot.speeds if speed.family == family]
    alone = max((speed.steps_per_s for speed in speeds if not speed.beside), default=0.0)
    shared = [
        (len(speed.beside) + 1) * speed.steps_per_s / alone for speed in speeds if alone and {*speed.beside} == {family}
    ]
    return max(1.0, *shared) if shared else 2 * PRIOR_SPEED
