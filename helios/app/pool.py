"""Pools of training trials on this machine, from a sweep file to a result.

Nothing of a site is needed: no configuration, database, daemon or Slurm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from helios.errors import UsageError
from helios.model.pools import TrialState
from helios.pools.coordinator import Coordinator, Decide, Watcher, fixed_slots
from helios.pools.devices import find_devices
from helios.pools.space import TrainingSweep, open_search, read_training_sweep
from helios.pools.state import StateFile
from helios.report.pool import PoolResult

SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm in a job: when it ends, s since the epoch."""
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
    watcher: Callable[[TrainingSweep], Watcher] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> PoolResult:
    """Run the trials of a sweep file on this machine, or go on with them.

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
        Which decides what is started where. None for a fixed number of slots.

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
    decide = fixed_slots if service is None else _service(service)
    devices = find_devices(kind=kind, slots=slots, memory_mib=memory_mib)
    into = (folder or path.with_suffix(".pool")).absolute()
    ends_s = end_of_allocation(time_limit_s, environment)
    began_s = time.time()
    margin_s = MARGIN_S if ends_s is None else min(MARGIN_S, MARGIN_SHARE * max(0.0, ends_s - began_s))
    with StateFile(into, sweep.fingerprint()) as state:
        search = open_search(sweep, into / "search")
        try:
            coordinator = Coordinator(
                sweep=sweep,
                search=search,
                state=state,
                devices=devices,
                decide=decide,
                folder=into,
                ends_s=ends_s,
                margin_s=margin_s,
                watcher=None if watcher is None else watcher(sweep),
            )
            end = coordinator.run()
        finally:
            search.close()
        trials = [state.trials[number] for number in sorted(state.trials)]
        return PoolResult(
            name=path.name,
            folder=str(into),
            metric=sweep.metric,
            maximize=sweep.maximize,
            devices=devices,
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
            notes=end.notes,
        )


def end_of_allocation(time_limit_s: float | None, environment: Mapping[str, str]) -> float | None:
    """Return when to end, s since the epoch: the earlier of the time limit and the end of the Slurm job.

    None: neither is known.
    """
    ends = [] if time_limit_s is None else [time.time() + time_limit_s]
    if (told := environment.get(SLURM_END, "")).isdigit():
        ends.append(float(told))
    return min(ends, default=None)


def _service(name: str) -> Decide:
    from helios.services.registry import build  # noqa: PLC0415 - most pools need none

    service: Any = build(name, {})

    def decide(snapshot: Any) -> Sequence[Any]:
        return list(service.decide(snapshot))

    return decide
