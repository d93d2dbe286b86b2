"""Run of a training pool, here or in a Slurm job.

Nothing of a site is needed: no configuration, database or daemon.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.errors import FileUnwritable, UsageError
from helios.training.model import Device
from helios.training.past_runs import keep_if_possible, keep_while_running, known_runs, runs_of_folder
from helios.training.pool.agent import MPS_CONTROL
from helios.training.pool.clock import steady_s
from helios.training.pool.containers import find_container
from helios.training.pool.coordinator import Coordinator, Decide, PoolEnd, Watcher
from helios.training.pool.devices import Node, device_environment, find_devices, find_nodes
from helios.training.pool.growth import compare, describe, take_over
from helios.training.pool.provenance import MADE_WITH, changed_code, describe_start, own_name
from helios.training.pool.search import open_search
from helios.training.pool.slots import fixed_slots
from helios.training.pool.state import FILE, StateFile, TrialRecord, trial_folder
from helios.training.pool.sweep import TrainingSweep, ValueRange, program
from helios.training.pool.sweep_file import pool_folders, pool_names, read_training_sweep
from helios.training.pool.trials import PoolSweep, SweepTrials
from helios.training.report import PoolPlan, PoolResult
from helios.training.services import build_for_pool, choose_common_service
from helios.training.status import read_status

if TYPE_CHECKING:
    from helios.training.forecast import TrialModel

SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm in a job: when it ends, s since the epoch."""
SHARED_SLOTS = 8
"""Most trials on a GPU that a service shares between trials."""
SHOWN = 3
"""Commands that a plan shows."""
MARGIN_S, MARGIN_SHARE = 60.0, 0.1
"""How long before the end trials are asked for a checkpoint; of a short time limit, a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What a pool runs, and on what."""

    folders: Mapping[Path, Path]
    sweeps: Mapping[Path, TrainingSweep]
    service: str
    decide: Decide
    devices: Sequence[Device]
    nodes: Sequence[Node]

    @property
    def all_devices(self) -> list[Device]:
        """The devices of this node and of the others."""
        return [*self.devices, *(device for node in self.nodes for device in node.devices)]


def run_pool(path: Path, **given: Any) -> PoolResult:
    """Run or resume the trials of one sweep file here.

    The arguments are those of :func:`run_pools`.
    """
    [result] = run_pools([path], **given)
    return result


def run_pools(
    paths: Sequence[Path],
    *,
    folder: Path | None = None,
    slots: int | None = None,
    kind: str | None = None,
    memory_mib: float | None = None,
    time_limit_s: float | None = None,
    service: str | None = None,
    options: Mapping[str, Any] = {},
    warm: Sequence[str] = (),
    shared: bool = False,
    mps: bool = False,
    watcher: Watcher | None = None,
    database: str | None = None,
    environment: Mapping[str, str] = os.environ,
    read: Callable[[Path], TrainingSweep] = read_training_sweep,
) -> list[PoolResult]:
    """Run or resume the trials of sweep files here, in one pool.

    Parameters
    ----------
    paths : sequence of Path
        The sweep files.
    folder : Path, optional
        Where results, logs and checkpoints of the only sweep are. None for a folder beside each sweep file,
        ``sweep.pool`` for ``sweep.toml``.
    slots : int, optional
        Most trials at the same time on a device.
    kind : str, optional
        ``gpu`` or ``cpu``.
    memory_mib : float, optional
        Memory of each device that trials may share.
    time_limit_s : float, optional
        After how long to end. None for the end of the Slurm job that this is in, if it is in one.
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
    database : str, optional
        URL of the warehouse, which tells the service of earlier trials and keeps what these used. None, or one that
        does not exist: neither.
    read : callable
        Returns the sweep of a path.

    Raises
    ------
    UsageError
        A sweep cannot be run, another pool runs in a folder, or there are no such devices.
    FileUnwritable, FileUnreadable
        A folder cannot be used.
    """
    ready = _prepare(
        paths,
        folder=folder,
        slots=slots,
        kind=kind,
        memory_mib=memory_mib,
        service=service,
        options=options,
        warm=warm,
        mps=mps,
        read=read,
    )
    folders, sweeps, devices, nodes = ready.folders, ready.sweeps, ready.devices, ready.nodes
    # The earlier of the time limit and the end of the Slurm job, s since the epoch.
    ends = [] if time_limit_s is None else [steady_s() + time_limit_s]
    if (end_s := environment.get(SLURM_END, "")).isdigit():
        ends.append(float(end_s))
    ends_s = min(ends, default=None)
    began_s = steady_s()
    margin_s = MARGIN_S if ends_s is None else min(MARGIN_S, MARGIN_SHARE * max(0.0, ends_s - began_s))
    sources, problems = [], []
    with ExitStack() as stack:
        for (path, sweep), name in zip(sweeps.items(), pool_names(paths), strict=True):
            into = folders[path]
            container = find_container(sweep, into, gpus=devices[0].kind == "gpu")
            model, problem = (None, "") if not ready.service else _learn(into, program(sweep), devices[0], database)
            problems.append(problem)
            about = describe_start(sweep, ready.all_devices, ends_s=ends_s)
            state = stack.enter_context(StateFile(into, describe(sweep), shared=shared))
            with state.exclusive():
                changes = take_over(sweep, state)
                made = [state.trials[number].parameters for number in takewhile(state.trials.__contains__, count())]
                search = open_search(sweep, into / "search", made, others=state.joined if shared else None)
            stack.callback(search.close)
            state.record_run(about)
            code = changed_code([*state.runs.values()])
            sources.append(
                PoolSweep(
                    sweep=replace(sweep, owner=sweep.owner or own_name()),
                    search=search,
                    state=state,
                    folder=into,
                    name=name,
                    container=container,
                    forecast=None if model is None else partial(model.expect, program(sweep)),
                    known_speeds=() if model is None else model.speeds,
                    notes=[f"{name}: {note}" if len(paths) > 1 else note for note in (changes, code) if note],
                )
            )
        coordinator = Coordinator(
            sweeps=sources,
            devices=devices,
            decide=ready.decide,
            ends_s=ends_s,
            warm=warm,
            nodes=nodes,
            mps=mps,
            margin_s=margin_s,
            watcher=watcher,
        )
        with keep_while_running(database, [*folders.values()]):
            end = coordinator.run()
        seconds = steady_s() - began_s
        results = []
        for trials, reason, problem in zip(coordinator.sweeps, end.reasons, problems, strict=True):
            result = _result(trials, devices=coordinator.devices, seconds=seconds, end=end)
            notes = [*end.notes, *result.notes, problem, keep_if_possible(database, trials.source.folder)]
            results.append(replace(result, reason=reason, notes=[note for note in notes if note]))
        return results


def _prepare(
    paths: Sequence[Path],
    *,
    folder: Path | None,
    slots: int | None,
    kind: str | None,
    memory_mib: float | None,
    service: str | None,
    options: Mapping[str, Any],
    warm: Sequence[str],
    mps: bool,
    read: Callable[[Path], TrainingSweep],
) -> _Prepared:
    """Check what a pool is to run, and on what."""
    folders = pool_folders(paths, folder)
    sweeps = {path: read(path) for path in paths}
    if slots is not None and slots < 1:
        raise UsageError(f"{slots} slots run nothing.", hint="Write --slots 1 or more")
    if warm and not all(len(each.command) > 1 and each.command[1].endswith(".py") for each in sweeps.values()):
        raise UsageError(
            "Only a Python program can start from a warm process.",
            hint='Write command = "python SCRIPT.py ..." in the sweep file, or leave --warm out.',
        )
    decide: Decide = fixed_slots
    if (choice := choose_common_service([each.service for each in sweeps.values()], service, options)) is not None:
        decide = build_for_pool(choice.name, choice.options).decide
    asked: dict[str, Any] = {
        "kind": kind,
        "slots": slots,
        "memory_mib": memory_mib,
        "gpu_slots": 1 if choice is None else SHARED_SLOTS,
    }
    devices = find_devices(**asked)
    if mps and (devices[0].kind != "gpu" or shutil.which(MPS_CONTROL) is None):
        raise UsageError("MPS needs an NVIDIA GPU, and nvidia-cuda-mps-control of its driver.", hint="Leave --mps out.")
    return _Prepared(
        folders=folders,
        sweeps=sweeps,
        service="" if choice is None else choice.name,
        decide=decide,
        devices=devices,
        nodes=find_nodes(folders, asked),
    )


def plan_pools(
    paths: Sequence[Path],
    *,
    folder: Path | None = None,
    slots: int | None = None,
    kind: str | None = None,
    memory_mib: float | None = None,
    service: str | None = None,
    options: Mapping[str, Any] = {},
    warm: Sequence[str] = (),
    mps: bool = False,
    shared: bool = False,
) -> list[PoolPlan]:
    """Return what a pool would run, after the checks of a run.

    Nothing is written. A container is started once, to look into it.
    """
    ready = _prepare(
        paths,
        folder=folder,
        slots=slots,
        kind=kind,
        memory_mib=memory_mib,
        service=service,
        options=options,
        warm=warm,
        mps=mps,
        read=read_training_sweep,
    )
    return [_plan(sweep, ready.folders[path], ready, shared=shared) for path, sweep in ready.sweeps.items()]


def _plan(sweep: TrainingSweep, folder: Path, ready: _Prepared, *, shared: bool) -> PoolPlan:
    container = find_container(sweep, folder, gpus=ready.devices[0].kind == "gpu")
    changes, known = "", dict[int, TrialRecord]()
    if (folder / FILE).exists():
        status = read_status(folder)
        if status.live and not shared:
            raise UsageError(f"Another pool is running in {folder}.", hint="Wait for it, or see it: helios pool status")
        changes, known = compare(sweep, status.records, folder)[0], status.records.trials
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
        goes_on=(folder / FILE).exists(),
        changes=changes,
        drawn=not exact and any(number not in known for number in shown),
        commands=[
            shlex.join(sweep.fill(first[number], trial=number, checkpoints=place)) for number, place in places.items()
        ],
        cwd=str(sweep.cwd),
        environment=sorted({*own, "HELIOS_CHECKPOINTS", *device_environment(ready.devices[0]), *sweep.env}),
        container=None if container is None else f"{container.image} by {container.runtime}",
        service=ready.service or "fixed slots",
        devices=ready.all_devices,
    )


def _result(trials: SweepTrials, *, devices: Sequence[Device], seconds: float, end: PoolEnd) -> PoolResult:
    """Return what became of a sweep."""
    state, sweep = trials.state, trials.sweep
    with state.exclusive():  # reads what others wrote
        others = sum(not trial.ended and not state.is_mine(trial) for trial in state.trials.values())
    records = [state.trials[number] for number in sorted(state.trials)]
    return PoolResult(
        name=trials.source.name,
        folder=str(trials.source.folder),
        metric=sweep.metric,
        maximize=sweep.maximize,
        devices=devices,
        trials=[record.to_json() for record in records],
        total=trials.total,
        seconds=seconds,
        signal=end.signal,
        more_metrics=sweep.more_metrics,
        is_log={name: space.log for name, space in sweep.parameters.items() if isinstance(space, ValueRange)},
        made_with={name: state.runs[state.run].get(name) for name in MADE_WITH},
        notes=(f"{others:,} trials are with other pools of this folder",) if others else (),
    )


def _learn(folder: Path, name: str, device: Device, database: str | None) -> tuple[TrialModel, str]:
    """Return the model of a program's trials on a device.

    With it comes a note on what could not be read.
    """
    from helios.training.forecast import TrialModel  # noqa: PLC0415 - LightGBM takes a second, and most pools need none

    known, problem = known_runs(database, name)
    own = runs_of_folder(folder, name) if (folder / FILE).exists() else []
    runs = {(run.pool, run.number, run.attempt): run for run in [*known, *own]}
    on = device.model if device.kind == "gpu" else device.kind
    return TrialModel(runs.values(), now_s=math.inf, device_model=on), problem
