"""What a pool would run, and on what.

It is checked in the same way before a run, which nothing of a site is needed for.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helios.errors import FileUnwritable, UsageError
from helios.training.model import Device, node_name
from helios.training.pool.containers import find_container
from helios.training.pool.coordinator import Decide
from helios.training.pool.devices import Node, device_environment, find_devices, find_nodes
from helios.training.pool.growth import compare
from helios.training.pool.mps import MPS_CONTROL
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import FILE, TrialRecord, trial_folder
from helios.training.pool.sweep import TrainingSweep
from helios.training.pool.sweep_file import pool_folders, read_training_sweep
from helios.training.report import memory_in_words
from helios.training.services import build_for_pool, choose_common_service
from helios.training.status import read_status
from helios.units import count_in_words

SHARED_SLOTS = 8
"""Most trials on a GPU that a service shares between trials."""
ONE_DEVICE_SERVICES = ("packing", "targets")
"""Services that start each trial on one device."""
SHOWN = 3
"""Commands that a plan shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """What a person may ask of a pool.

    Attributes
    ----------
    folder : Path, optional
        Where results, logs and checkpoints of the only sweep are. None for a folder beside each sweep file,
        ``sweep.pool`` for ``sweep.toml``.
    slots : int, optional
        Most trials at the same time on a device.
    kind : str, optional
        ``gpu`` or ``cpu``.
    memory_mib : float, optional
        Memory of each device that trials may share.
    service : str, optional
        Service that decides what is started where. None for that of the sweep files, else a fixed number of slots.
    options : mapping
        Options of the service, above those of the sweep files.
    warm : sequence of str
        Modules that are imported once, before the trials of a Python program are forked.
    shared : bool
        Whether other pools may work on the same folders at the same time; all must say so.
    mps : bool
        Whether to run NVIDIA's MPS while the pool runs.
    target : str, optional
        Target of all sweeps, above those of the sweep files, such as ``val_acc>=0.90,0.95``.
    """

    folder: Path | None = None
    slots: int | None = None
    kind: str | None = None
    memory_mib: float | None = None
    service: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    warm: Sequence[str] = ()
    shared: bool = False
    mps: bool = False
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPools:
    """What a pool runs, and on what."""

    folders: Mapping[Path, Path]
    sweeps: Mapping[Path, TrainingSweep]
    service: str
    decide: Decide
    devices: Sequence[Device]
    nodes: Sequence[Node]

    def size_note(self, sweep: TrainingSweep) -> str:
        """Return what keeps trials from changing their size here, nothing where they may."""
        rooms = Counter(node_name(device.name) for device in self.all_devices).values()
        program, full = sweep.elastic, max(rooms)
        if self.service != "elastic" or program is None:
            return ""
        wholes = [full * count for count, room in enumerate(sorted(rooms, reverse=True), 1) if room == full]
        if not any(program.least <= size <= program.most for size in (*range(full), *wholes)):
            about = f"least = {program.least} and most = {program.most} allow no whole nodes of {full} devices"
            return f"Trials of {sweep.path.name} start only while nothing else runs, since {about}"
        if program.least == sum(rooms) < program.most:
            kept = count_in_words(program.least, "device").replace("1 ", "one ")
            return f"Trials of {sweep.path.name} keep {kept}, since the pool has no more"
        return ""

    @property
    def all_devices(self) -> list[Device]:
        """The devices of this node and of the others."""
        return [*self.devices, *(device for node in self.nodes for device in node.devices)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """What a pool would run.

    Attributes
    ----------
    ended : int
        Trials that are not run again.
    drawn : bool
        Whether the commands are of trials as the search may draw them.
    commands : sequence of str
        Those of the first trials.
    environment : sequence of str
        Names of variables that trials get.
    """

    sweep: str
    folder: str
    total: int
    ended: int
    goes_on: bool
    changes: str
    drawn: bool
    commands: Sequence[str]
    cwd: str
    environment: Sequence[str]
    container: str | None
    service: str
    target: str | None
    devices: Sequence[Device]
    note: str = ""

    def lines(self) -> list[str]:
        """Return the plan for a person."""
        goes_on = f"goes on with {self.folder}, where {self.ended:,} have ended"
        lines = [f"{count_in_words(self.total, 'trial')} of {self.sweep}: {goes_on if self.goes_on else 'new'}"]
        if self.changes:
            lines.append(f"Changed: {self.changes}")
        lines.append(f"{'Such as' if self.drawn else 'First'}, in {self.cwd}:")
        lines += [f"  {command}" for command in self.commands] or ["  none, since all have ended"]
        for device in self.devices:
            slots, memory = count_in_words(device.slots, "slot"), memory_in_words(device.memory_mib)
            lines.append(f"On {device.name}: {device.model or device.kind}, {memory}, {slots}")
        lines.append(f"Starts: {self.service}")
        if self.note:
            lines.append(f"{self.note}.")
        if self.target is not None:
            lines.append(f"Target: {self.target}")
        if self.container is not None:
            lines.append(f"Container: {self.container}")
        lines.append(f"Variables: {', '.join(self.environment)}")
        return [*lines, f"Kept in {self.folder}: state.jsonl, search, and trials with log, reports and checkpoints"]


def prepare_pools(
    paths: Sequence[Path], asked: PoolOptions, *, read: Callable[..., TrainingSweep] = read_training_sweep
) -> PreparedPools:
    """Check what a pool is to run, and on what.

    Raises
    ------
    UsageError
        A sweep cannot be run, or there are no such devices.
    """
    folders = pool_folders(paths, asked.folder)
    sweeps = {path: read(path, target=asked.target) for path in paths}
    if asked.slots is not None and asked.slots < 1:
        raise UsageError(f"{asked.slots} slots run nothing.", hint="Write --slots 1 or more")
    if asked.warm and not all(len(each.command) > 1 and each.command[1].endswith(".py") for each in sweeps.values()):
        raise UsageError(
            "Only a Python program can start from a warm process.",
            hint='Write command = "python SCRIPT.py ..." in the sweep file, or leave --warm out.',
        )
    decide: Decide = fixed_slots
    choice = choose_common_service([each.service for each in sweeps.values()], asked.service, asked.options)
    service = "" if choice is None else choice.name
    if choice is not None:
        decide = build_for_pool(service, choice.options).decide
    wanted: dict[str, Any] = {
        "kind": asked.kind,
        "slots": asked.slots,
        "memory_mib": asked.memory_mib,
        "gpu_slots": 1 if choice is None else SHARED_SLOTS,
        "split": any(sweep.elastic is not None for sweep in sweeps.values()),
    }
    devices = find_devices(**wanted)
    if asked.mps and (devices[0].kind != "gpu" or shutil.which(MPS_CONTROL) is None):
        raise UsageError("MPS needs an NVIDIA GPU, and nvidia-cuda-mps-control of its driver.", hint="Leave --mps out.")
    nodes = find_nodes(folders, wanted)
    count = len(devices) + sum(len(node.devices) for node in nodes)
    for path, sweep in sweeps.items():
        if sweep.elastic is not None and sweep.elastic.least > 1 and service in ONE_DEVICE_SERVICES:
            raise UsageError(
                f"The service {service} starts each trial on one device, and those of {path} need more.",
                hint="Add --service elastic, or write least = 1 in [elastic].",
            )
        if sweep.elastic is not None and sweep.elastic.least > count:
            raise UsageError(
                f"The trials of {path} need at least {sweep.elastic.least} devices, and {count} are there.",
                hint="Write a smaller least in [elastic]; on the CPU each slot is a device: --slots",
            )
    return PreparedPools(
        folders=folders,
        sweeps=sweeps,
        service=service,
        decide=decide,
        devices=devices,
        nodes=nodes,
    )


def plan_pools(paths: Sequence[Path], **given: Any) -> list[PoolPlan]:
    """Return what a pool would run, after the checks of a run.

    Nothing is written. A container is started once, to look into it. The arguments are those of :class:`PoolOptions`.
    """
    asked = PoolOptions(**given)
    ready = prepare_pools(paths, asked)
    return [_plan(sweep, ready.folders[path], ready, shared=asked.shared) for path, sweep in ready.sweeps.items()]


def _plan(sweep: TrainingSweep, folder: Path, ready: PreparedPools, *, shared: bool) -> PoolPlan:
    container = find_container(sweep, folder, gpus=ready.devices[0].kind == "gpu")
    changes, known, goes_on = "", dict[int, TrialRecord](), False
    if (folder / FILE).exists():
        status = read_status(folder)
        if status.live and not shared:
            raise UsageError(f"Another pool is running in {folder}.", hint="Wait for it, or see it: helios pool status")
        if status.records.sweep:  # else a run was killed before it wrote anything
            changes, known, goes_on = compare(sweep, status.records, folder)[0], status.records.trials, True
    elif not os.access(next(each for each in folder.parents if each.exists()), os.W_OK):
        raise FileUnwritable(f"{folder} cannot be made.", hint="Choose another place: --folder FOLDER")
    ended = {number for number, trial in known.items() if trial.ended}
    exact = sweep.combinations is not None and sweep.combinations <= sweep.trials
    drawn = dict(enumerate(sweep.draws(sweep.trials if exact else SHOWN, seed=0)))
    first = drawn | {number: dict(trial.parameters) for number, trial in known.items()}
    shown = [number for number in sorted(first) if number not in ended][:SHOWN]
    places = {number: trial_folder(folder, number) / "checkpoints" for number in shown}
    own = ("HELIOS_TRIAL", "HELIOS_PARAMETERS", "HELIOS_TRIAL_FOLDER", "HELIOS_REPORT", "HELIOS_REQUESTS")
    return PoolPlan(
        sweep=str(sweep.path),
        folder=str(folder),
        total=max(sweep.trials, len(known)),
        ended=len(ended),
        goes_on=goes_on,
        changes=changes,
        drawn=not exact and any(number not in known for number in shown),
        commands=[
            shlex.join(sweep.fill(first[number], trial=number, checkpoints=place)) for number, place in places.items()
        ],
        cwd=str(sweep.cwd),
        environment=sorted({*own, "HELIOS_CHECKPOINTS", *device_environment(ready.devices[0]), *sweep.env}),
        container=None if container is None else f"{container.image} by {container.runtime}",
        service=ready.service or "fixed slots",
        target=None if sweep.target is None else str(sweep.target),
        devices=ready.all_devices,
        note=ready.size_note(sweep),
    )
