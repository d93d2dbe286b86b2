"""Sizes of elastic trials, decided again and again.

A rule of :mod:`helios.training.sizes.rules` says on how many devices of each node a trial is to run. The service makes
actions of that: trials stay on the devices that they keep, and devices are freed before others take them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain

from helios.training.model import (
    ENDED,
    Device,
    PauseTrial,
    PoolAction,
    PoolSnapshot,
    ResizeTrial,
    StartTrial,
    Trial,
    TrialState,
    node_name,
)
from helios.training.services.packing import Packing, PackingOptions
from helios.training.sizes.model import Decide, ElasticSnapshot, ElasticState, ElasticTraining, Placement, mean_times
from helios.training.sizes.rules import RULES

AFTER_TARGETS = (1.0, 0.25, 0.05)
"""What a trial weighs whose sweep has reached none, one, and both of its targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticOptions(PackingOptions):
    """Options of elastic sizes, and of packing for trials of a fixed size.

    Attributes
    ----------
    every_s : int
        Time between two decisions where nothing happens, s.
    rule : str
        How sizes are chosen.
    """

    every_s: int = 60
    rule: str = "soonest"

    def __post_init__(self) -> None:
        PackingOptions.__post_init__(self)
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(sorted(RULES))}")


class Elastic:
    """Give elastic trials the devices with which all end soonest.

    Trials of a fixed size are packed on a part of the devices, as many as they are among all trials.
    """

    Options = ElasticOptions

    def __init__(self, options: ElasticOptions, rule: Decide | None = None) -> None:
        self.every = timedelta(seconds=options.every_s)
        self._rule = rule or RULES[options.rule]
        self._packing = Packing(options)

    def decide(self, snapshot: PoolSnapshot) -> list[PoolAction]:
        """Return which trials to start, to resize and to pause."""
        live = [trial for trial in snapshot.trials if trial.state not in ENDED]
        elastic = [trial for trial in _share_measured(snapshot.trials) if trial.state not in ENDED]
        if len(elastic) == len(live):
            return self._resize(snapshot.now_s, elastic, snapshot.devices)
        shared = _devices_of_fixed(snapshot.devices, live)
        others = tuple(trial for trial in snapshot.trials if trial.elastic is None)
        held = set(chain.from_iterable(trial.devices for trial in elastic))
        open_devices = tuple(device for device in snapshot.devices if device.name in shared - held)
        actions = self._packing.decide(replace(snapshot, trials=others, devices=open_devices))
        free = [device for device in snapshot.devices if device.name not in shared]
        return [*actions, *self._resize(snapshot.now_s, elastic, free)]

    def _resize(self, now_s: float, trials: Sequence[Trial], devices: Sequence[Device]) -> list[PoolAction]:
        """Return the actions for elastic trials, on devices that are all theirs."""
        nodes = {name: place for place, name in enumerate(dict.fromkeys(node_name(each.name) for each in devices))}
        kept = [trial for trial in trials if _keeps(trial, now_s)]
        taken = set(chain.from_iterable(trial.devices for trial in kept))
        names = [device.name for device in devices if device.name not in taken]
        node_of = {name: nodes[node_name(name)] for name in names}
        rooms = Counter(node_of.values())
        open_trials = {trial.number: trial for trial in trials if not _keeps(trial, now_s)}
        if not names or not open_trials:
            return []
        jobs = tuple(_training(trial, node_of) for trial in open_trials.values())
        placements = self._rule(ElasticSnapshot(now_s, jobs, tuple(rooms[place] for place in range(len(nodes)))))
        return _actions(open_trials, _devices(open_trials, placements, node_of))


def _share_measured(trials: Sequence[Trial]) -> list[Trial]:
    """Return elastic trials with what all of their family have measured.

    So one tries a size for all.
    """
    families = defaultdict[str | int, list[ElasticState]](list)
    for trial in trials:
        if trial.elastic is not None:
            families[trial.family or trial.number].append(trial.elastic)
    known = {
        name: (mean_times(state.measured for state in states), next(filter(None, (s.gradient for s in states)), None))
        for name, states in families.items()
    }
    return [
        replace(trial, elastic=replace(trial.elastic, measured=measured, gradient=trial.elastic.gradient or gradient))
        for trial in trials
        if trial.elastic is not None
        for measured, gradient in [known[trial.family or trial.number]]
    ]


def _keeps(trial: Trial, now_s: float) -> bool:
    """Return whether a trial is to keep its devices."""
    return trial.state is TrialState.RUNNING and trial.elastic is not None and now_s < trial.elastic.kept_until_s


def _training(trial: Trial, node_of: Mapping[str, int]) -> ElasticTraining:
    """Return a trial as rules see it, without devices that it has to leave."""
    assert trial.elastic is not None
    placement = sorted(node_of[name] for name in trial.devices if name in node_of)
    reached = trial.targets_reached if trial.target else 0
    return ElasticTraining(trial.number, tuple(placement), trial.elastic, trial.weight * AFTER_TARGETS[reached])


def _devices_of_fixed(devices: Sequence[Device], trials: Sequence[Trial]) -> set[str]:
    """Return the devices for trials of a fixed size, those where such run first."""
    fixed = [trial for trial in trials if trial.elastic is None]
    running = set(chain.from_iterable(trial.devices for trial in fixed))
    held = set(chain.from_iterable(trial.devices for trial in trials if trial.elastic is not None))
    count = max(1, math.floor(len(devices) * len(fixed) / len(trials)))
    order = sorted(devices, key=lambda device: (device.name not in running, device.name in held))
    return running | {device.name for device in order[:count]}


def _devices(
    trials: Mapping[int, Trial], placements: Mapping[int, Placement], node_of: Mapping[str, int]
) -> dict[int, tuple[str, ...]]:
    """Return the devices of each placement, those that a trial keeps first."""
    chosen: dict[int, list[str]] = {}
    wanted = {number: Counter(placement) for number, placement in placements.items()}
    free = dict.fromkeys(node_of)
    for number, counts in wanted.items():
        chosen[number] = []
        for name in trials[number].devices:
            if name in free and counts[node_of[name]]:
                counts[node_of[name]] -= 1
                chosen[number].append(name)
                del free[name]
    by_node: dict[int, list[str]] = defaultdict(list)
    for name in free:
        by_node[node_of[name]].append(name)
    for number, counts in wanted.items():
        for node, count in counts.items():
            chosen[number] += by_node[node][:count]
            del by_node[node][:count]
    return {number: tuple(names) for number, names in chosen.items()}


def _actions(trials: Mapping[int, Trial], chosen: Mapping[int, tuple[str, ...]]) -> list[PoolAction]:
    """Return actions of which each finds its devices free once those before it are done.

    Where trials would have to swap devices, one of them is paused.
    """
    held = {trial.number: {*trial.devices} for trial in trials.values() if trial.devices}
    leaving = [number for number in held if not chosen.get(number)]
    actions: list[PoolAction] = [_pause(trials[number], "others end sooner with its devices") for number in leaving]
    for number in leaving:
        del held[number]
    waiting = {number: names for number, names in chosen.items() if names and {*names} != held.get(number)}
    while waiting:
        used = {name: number for number, names in held.items() for name in names}
        ready = [n for n, names in waiting.items() if all(used.get(name, n) == n for name in names)]
        for number in ready:
            names = waiting.pop(number)
            actions.append(_give(trials[number], names, among=len(chosen)))
            held[number] = {*names}
        if not ready:
            number = min(number for number in waiting if number in held)
            del waiting[number], held[number]
            actions.append(_pause(trials[number], "others need its devices"))
    return actions


def _pause(trial: Trial, reason: str) -> PauseTrial:
    return PauseTrial(number=trial.number, reason=reason)


def _give(trial: Trial, devices: tuple[str, ...], *, among: int) -> StartTrial | ResizeTrial:
    """Return the start of a trial on its devices, or the change to them."""
    count = f"{len(devices)} devices" if len(devices) > 1 else "one device"
    reason = f"{count} of those for {among} trials end all soonest"
    if trial.devices:
        return ResizeTrial(number=trial.number, devices=devices, reason=reason)
    return StartTrial(number=trial.number, devices=devices, memory_limit_mib=None, reason=reason)
