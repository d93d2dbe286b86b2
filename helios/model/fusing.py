"""Which trials of a pool train as one stack in one process.

Here because the pool itself and its services decide it by the same rule.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from helios.model.pools import PoolSnapshot, StartTrial, Trial, TrialState

_FUSED = "{others} more in its process"


def fused_with(others: int) -> str:
    """Return the family name for trials of the same process."""
    return _FUSED.format(others=others)


def count_fused(beside: Iterable[str]) -> int:
    """Return how many trials shared a process."""
    ends = _FUSED.format(others="")
    return 1 + sum(int(each.removesuffix(ends)) for each in beside if each.endswith(ends))


def by_process(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return the running trials, those of one process together."""
    found: dict[tuple[str, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.state is TrialState.RUNNING:
            key = ("own", trial.number) if trial.process is None else ("fused", trial.process)
            found[key].append(trial)
    return list(found.values())


def fuse(snapshot: PoolSnapshot, free: Mapping[str, int]) -> list[StartTrial]:
    """Return which trials that may be fused start, and in which process.

    A part is all trials that may train in one process. Its trials are spread evenly over its processes, and over new
    ones on free slots; a slot goes to the part whose processes have most to do. So a trial takes the place of one that
    has left its process.

    Parameters
    ----------
    free : mapping
        Slots that may be taken of each device.
    """
    waiting: dict[str, list[Trial]] = defaultdict(list)
    for trial in sorted(snapshot.trials, key=lambda trial: trial.number):
        if trial.fusible and trial.state in {TrialState.WAITING, TrialState.PAUSED}:
            waiting[trial.fusible].append(trial)
    running: dict[str, list[list[Trial]]] = defaultdict(list)
    for process in by_process(snapshot.trials):
        if process[0].process is not None:
            running[process[0].fusible].append(process)
    slots = sorted(
        (device for device in snapshot.devices for _ in range(free.get(device.name, 0))), key=lambda d: d.name
    )
    slots.sort(key=lambda device: -free.get(device.name, 0) / device.slots)
    new = dict.fromkeys(waiting, 0)

    def load(part: str) -> float:
        """Return the trials of each process of a part."""
        trials, count = len(waiting[part]) + sum(map(len, running[part])), len(running[part]) + new[part]
        return trials / count if count else math.inf

    for _ in slots:
        parts = [part for part in waiting if new[part] < len(waiting[part]) and load(part) > 1]
        if not parts:
            break
        new[max(parts, key=lambda part: (load(part), len(waiting[part])))] += 1
    actions: list[StartTrial] = []
    for part, trials in waiting.items():
        there, left = sorted(running[part], key=len), list(trials)
        if not there and not new[part]:
            continue
        size = min(trials[0].most_fused, math.ceil((len(left) + sum(map(len, there))) / (len(there) + new[part])))
        for process in there:
            lead = process[0]
            for _ in range(min(len(left), size - len(process))):
                reason = f"trained with trial {lead.number}"
                actions.append(_start(left.pop(0), str(lead.device), None, lead.number, reason))
        for _ in range(min(new[part], len(left))):
            device, count = slots.pop(0), min(size, len(left))
            lead = left.pop(0)
            limit = device.memory_mib / device.slots
            reason = f"{count} trials in one process" if count > 1 else "a slot is free"
            actions.append(_start(lead, device.name, limit, None, reason))
            actions += [_start(left.pop(0), device.name, limit, lead.number, reason) for _ in range(count - 1)]
            if not left:
                break
    return actions


def _start(trial: Trial, device: str, limit_mib: float | None, into: int | None, reason: str) -> StartTrial:
    return StartTrial(number=trial.number, device=device, memory_limit_mib=limit_mib, reason=reason, into=into)
