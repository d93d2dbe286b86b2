"""Run of a training pool, here or in a Slurm job.

Nothing of a site is needed: no configuration, database or daemon.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.errors import UsageError
from helios.training.model import Device, TrialState
from helios.training.pool.agent import MPS_CONTROL
from helios.training.pool.clock import steady_s
from helios.training.pool.containers import find_container
from helios.training.pool.coordinator import Coordinator, Decide, Watcher, fixed_slots
from helios.training.pool.devices import find_devices, find_nodes
from helios.training.pool.search import open_search
from helios.training.pool.state import FILE, StateFile
from helios.training.pool.sweep import TrainingSweep, program
from helios.training.pool.sweep_file import read_training_sweep
from helios.training.report import PoolResult
from helios.training.services import build_for_pool, choose_service

if TYPE_CHECKING:
    from helios.training.forecast import TrialModel
from helios.training.past_runs import keep_if_possible, known_runs, runs_of_folder

SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm in a job: when it ends, s since the epoch."""
SHARED_SLOTS = 8
"""Most trials on a GPU that a service shares between trials."""
MARGIN_S, MARGIN_SHARE = 60.0, 0.1
"""How long before the end trials are asked for a checkpoint; of a short time limit, a part."""


def run_pool(
    path: Path,
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
    watcher: Callable[[TrainingSweep], Watcher] | None = None,
    database: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> PoolResult:
    """Run or resume the trials of a sweep file here.

    Parameters
    ----------
    path : Path
        The sweep file.
    folder : Path, optional
        Where results, logs and checkpoints are. None for a folder beside the sweep file, ``sweep.pool`` for
        ``sweep.toml``.
    slots : int, optional
        Most trials at the same time on a device.
    kind : str, optional
        ``gpu`` or ``cpu``.
    memory_mib : float, optional
        Memory of each device that trials may share.
    time_limit_s : float, optional
        After how long to end. None for the end of the Slurm job that this is in, if it is in one.
    service : str, optional
        Service that decides what is started where. None for that of the sweep file, else a fixed number of slots.
    options : mapping
        Options of the service, above those of the sweep file.
    warm : sequence of str
        Modules that are imported once, before the trials of a Python program are forked.
    shared : bool
        Whether other pools may work on the same folder at the same time; all must say so.
    mps : bool
        Whether to run NVIDIA's MPS while the pool runs.
    database : str, optional
        URL of the warehouse, which tells the service of earlier trials and keeps what these used. None, or one that
        does not exist: neither.

    Raises
    ------
    UsageError
        The sweep cannot be run, another pool runs in the folder, or there are no such devices.
    FileUnwritable, FileUnreadable
        The folder cannot be used.
    """
    sweep = read_training_sweep(path)
    if slots is not None and slots < 1:
        raise UsageError(f"{slots} slots run nothing.", hint="Write --slots 1 or more")
    if warm and not (len(sweep.command) > 1 and sweep.command[1].endswith(".py")):
        raise UsageError(
            "Only a Python program can start from a warm process.",
            hint='Write command = "python SCRIPT.py ..." in the sweep file, or leave --warm out.',
        )
    decide: Decide = fixed_slots
    if (choice := choose_service(sweep.service, service, options)) is not None:
        decide = build_for_pool(choice.name, choice.options).decide
    into = (folder or path.with_suffix(".pool")).absolute()
    asked: dict[str, Any] = {
        "kind": kind,
        "slots": slots,
        "memory_mib": memory_mib,
        "gpu_slots": 1 if choice is None else SHARED_SLOTS,
    }
    devices = find_devices(**asked)
    if mps and (devices[0].kind != "gpu" or shutil.which(MPS_CONTROL) is None):
        raise UsageError("MPS needs an NVIDIA GPU, and nvidia-cuda-mps-control of its driver.", hint="Leave --mps out.")
    nodes = find_nodes(path, into, asked)
    model, problem = (None, "") if choice is None else _learn(into, program(sweep), devices[0], database)
    # The earlier of the time limit and the end of the Slurm job, s since the epoch.
    ends = [] if time_limit_s is None else [steady_s() + time_limit_s]
    if (end_s := environment.get(SLURM_END, "")).isdigit():
        ends.append(float(end_s))
    ends_s = min(ends, default=None)
    began_s = steady_s()
    container = find_container(sweep, into, gpus=devices[0].kind == "gpu")
    margin_s = MARGIN_S if ends_s is None else min(MARGIN_S, MARGIN_SHARE * max(0.0, ends_s - began_s))
    with StateFile(into, sweep.fingerprint(), shared=shared) as state:
        with state.exclusive():
            search = open_search(sweep, into / "search", others=state.joined if shared else None)
        try:
            coordinator = Coordinator(
                sweep=sweep,
                search=search,
                state=state,
                devices=devices,
                decide=decide,
                folder=into,
                ends_s=ends_s,
                warm=warm,
                container=container,
                nodes=nodes,
                mps=mps,
                margin_s=margin_s,
                watcher=None if watcher is None else watcher(sweep),
                forecast=None if model is None else partial(model.expect, program(sweep)),
                known_speeds=() if model is None else model.speeds,
            )
            end = coordinator.run()
        finally:
            search.close()
        with state.exclusive():  # reads what others wrote
            others = sum(not trial.ended and not state.is_mine(trial) for trial in state.trials.values())
        elsewhere = (f"{others:,} trials are with other pools of this folder",) if others else ()
        trials = [state.trials[number] for number in sorted(state.trials)]
        notes = [*end.notes, *elsewhere, problem, keep_if_possible(database, into)]
        return PoolResult(
            name=path.name,
            folder=str(into),
            metric=sweep.metric,
            maximize=sweep.maximize,
            devices=coordinator.devices,
            trials=[trial.to_json() for trial in trials],
            values={
                trial.number: trial.value
                for trial in trials
                if trial.state is TrialState.FINISHED and trial.value is not None
            },
            total=coordinator.total,
            seconds=steady_s() - began_s,
            reason=end.reason,
            signal=end.signal,
            more_metrics=sweep.more_metrics,
            notes=[note for note in notes if note],
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
