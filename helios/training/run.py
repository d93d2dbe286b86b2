"""Run of a training pool, here or in a Slurm job.

Nothing of a site is needed: no configuration, database or daemon.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.errors import ClusterRefused, ClusterUnavailable, FileUnwritable, HeliosError, UsageError
from helios.model.trial_runs import TrialRun
from helios.private_files import make_folder
from helios.training.model import Device, TrialState
from helios.training.pool.agent import MPS_CONTROL
from helios.training.pool.containers import find_container
from helios.training.pool.coordinator import Coordinator, Decide, Watcher, fixed_slots, program
from helios.training.pool.devices import find_devices, find_nodes
from helios.training.pool.search import open_search
from helios.training.pool.state import FILE, StateFile, read_runs
from helios.training.pool.sweep import TrainingSweep
from helios.training.pool.sweep_file import read_training_sweep
from helios.training.report import PoolResult

if TYPE_CHECKING:
    from helios.training.forecast import TrialModel

SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm in a job: when it ends, s since the epoch."""
SUBMIT_S = 60.0
"""How long sbatch may take."""
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
        Service that decides what is started where. None for a fixed number of slots.
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
    if service is not None:
        from helios.training.services import build_for_pool  # noqa: PLC0415 - takes time to import, and most need none

        decide = build_for_pool(service, {}).decide
    into = (folder or path.with_suffix(".pool")).absolute()
    asked: dict[str, Any] = {
        "kind": kind,
        "slots": slots,
        "memory_mib": memory_mib,
        "gpu_slots": 1 if service is None else SHARED_SLOTS,
    }
    devices = find_devices(**asked)
    if mps and (devices[0].kind != "gpu" or shutil.which(MPS_CONTROL) is None):
        raise UsageError("MPS needs an NVIDIA GPU, and nvidia-cuda-mps-control of its driver.", hint="Leave --mps out.")
    nodes = find_nodes(path, into, asked)
    model, problem = (None, "") if service is None else _learn(into, program(sweep), devices[0], database)
    # The earlier of the time limit and the end of the Slurm job, s since the epoch.
    ends = [] if time_limit_s is None else [time.time() + time_limit_s]
    if (end_s := environment.get(SLURM_END, "")).isdigit():
        ends.append(float(end_s))
    ends_s = min(ends, default=None)
    began_s = time.time()
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
            seconds=time.time() - began_s,
            reason=end.reason,
            signal=end.signal,
            notes=[note for note in notes if note],
        )


def _learn(folder: Path, name: str, device: Device, database: str | None) -> tuple[TrialModel, str]:
    """Return the model of a program's trials on a device.

    With it comes a note on what could not be read.
    """
    from helios.training.forecast import TrialModel  # noqa: PLC0415 - LightGBM takes a second, and most pools need none

    known, problem = known_runs(database, name)
    own = read_runs(folder) if (folder / FILE).exists() else []
    runs = {(run.pool, run.number, run.attempt): run for run in [*known, *own]}
    on = device.model if device.kind == "gpu" else device.kind
    return TrialModel(runs.values(), now_s=time.time(), device_model=on), problem


# The same as a job of Slurm.


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Slurm options of a pool's job.

    None stands for the site's default.

    Attributes
    ----------
    memory, time_limit : str, optional
        As ``sbatch`` takes them.
    signal_s : int
        How long before the end of the allocation trials are asked for a checkpoint, s.
    nodes : int
        Nodes of one allocation. The other options are for each node.
    shards : int, optional
        Shards of GPUs (``gres/shard``) instead of whole ones.
    more : sequence of str
        Other options of ``sbatch``.
    """

    partition: str | None = None
    account: str | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory: str | None = None
    time_limit: str | None = None
    signal_s: int = 120
    more: Sequence[str] = ()
    nodes: int = 1
    shards: int | None = None


def job_script(
    path: Path,
    allocation: Allocation,
    *,
    folder: Path | None = None,
    slots: int | None = None,
    pool: int | None = None,
) -> str:
    """Return a batch script that runs a sweep in one allocation.

    Parameters
    ----------
    pool : int, optional
        Number of the pool among several that share the folder, from 1.

    Raises
    ------
    UsageError
        The sweep cannot be run, or an option has more than one line.
    """
    read_training_sweep(path)
    into = (folder or path.with_suffix(".pool")).absolute()
    place = hashlib.sha256(os.fsencode(into)).hexdigest()[:8]  # one allocation at a time for each folder
    asked = {
        "job-name": f"{path.stem}-{place}" + ("" if pool is None else f"-{pool}"),
        "nodes": allocation.nodes,
        "ntasks-per-node": 1,
        "dependency": "singleton",
        "signal": f"B:USR1@{allocation.signal_s}",
        "output": str(into / "slurm-%j.log"),
        "partition": allocation.partition,
        "account": allocation.account,
        "gpus-per-node": allocation.gpus,
        "gres": None if allocation.shards is None else f"shard:{allocation.shards}",
        "cpus-per-task": allocation.cpus,
        "mem": allocation.memory,
        "time": allocation.time_limit,
    }
    options = [f"--{name}={value}" for name, value in asked.items() if value is not None] + list(allocation.more)
    if any(not option.isprintable() for option in options):
        raise UsageError("An option for sbatch has more than one line.", hint="Write each on one line.")
    words = [sys.executable, "-m", "helios", "pool", "run", str(path.absolute()), "--folder", str(into), "--json"]
    words += [] if slots is None else ["--slots", str(slots)]
    words += [] if pool is None else ["--shared"]
    # exec, so that the signal before the end of the allocation reaches Helios itself.
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options), "", f"exec {shlex.join(words)}"]
    return "\n".join(lines) + "\n"


def submit_pool(scripts: Sequence[str], *, folder: Path, chain: int = 1) -> list[str]:
    """Submit batch scripts, and return the ids of the jobs.

    Parameters
    ----------
    scripts : sequence of str
        One for each pool of the folder.
    chain : int
        How many allocations at most, each of which goes on where the last one ended.

    Raises
    ------
    ClusterUnavailable
        There is no ``sbatch`` here, or it did not answer.
    ClusterRefused
        It refused the job.
    FileUnwritable
        The folder cannot be made, which is for the jobs' output.
    """
    try:
        make_folder(folder)
    except OSError as reason:
        raise FileUnwritable(f"{folder} cannot be made: {reason}", hint="Choose another place: --folder") from reason
    jobs = []
    for script in [script for _ in range(chain) for script in scripts]:
        try:
            answer = subprocess.run(
                ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False, timeout=SUBMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise ClusterUnavailable(
                f"sbatch cannot be run: {reason}", hint="Submit it where sbatch works, or run it here: helios pool run"
            ) from reason
        if answer.returncode:
            raise ClusterRefused(
                f"Slurm refused the job: {' '.join(answer.stderr.split())}",
                hint="See what is asked with --dry-run, and change it with the options of helios pool submit.",
            )
        jobs.append(answer.stdout.strip().partition(";")[0])
    return jobs


# Runs of trials in the warehouse, from which later pools forecast memory and time.


def keep_runs(database: str, folders: Sequence[Path]) -> list[int]:
    """Store the runs of pools in the warehouse.

    Returns
    -------
    list of int
        How many runs of each pool were new.

    Raises
    ------
    FileUnreadable
        A folder is not of a pool.
    """
    from helios.warehouse import Warehouse  # noqa: PLC0415 - pandas takes a second, and most pools have no warehouse

    runs = [read_runs(folder) for folder in folders]
    with Warehouse.open(database) as warehouse:
        return [warehouse.add_trial_runs(pool_runs, user=own_name()) for pool_runs in runs]


def keep_if_possible(database: str | None, folder: Path) -> str:
    """Store the runs of a pool where there is a warehouse.

    Returns
    -------
    str
        Why they could not be stored. Empty where they could, or there is no warehouse.
    """
    try:
        if database is not None and _has_warehouse(database):
            keep_runs(database, [folder])
    except HeliosError as reason:
        return f"What trials used is kept in {folder} alone, since the warehouse failed: {reason.message}"
    return ""


def known_runs(database: str | None, program: str) -> tuple[list[TrialRun], str]:
    """Return the user's earlier runs of a program.

    Returns
    -------
    runs : list of TrialRun
    problem : str
        Why they cannot be read. Empty where they can, or there is no warehouse.
    """
    try:
        if database is not None and _has_warehouse(database):
            from helios.warehouse import Warehouse  # noqa: PLC0415 - see keep_runs

            with Warehouse.open(database) as warehouse:
                return warehouse.trial_runs(user=own_name(), program=program), ""
    except HeliosError as reason:
        return [], f"Earlier trials are not known, since the warehouse cannot be read: {reason.message}"
    return [], ""


def _has_warehouse(database: str) -> bool:
    """Return whether there is a warehouse.

    For a file that is not there it is not imported.
    """
    file = database.removeprefix("sqlite:///")
    return file == database or Path(file).exists()


def own_name() -> str:
    """Return the user's name, or number where there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
