"""Run of a training pool, here or in a Slurm job.

Nothing of a site is needed: no configuration, database or daemon.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios.model.trial_runs import TrialRun
from helios.training.model import Device
from helios.training.past_runs import earlier_runs, keep_if_possible, keep_while_running, shown_sizes
from helios.training.plan import PoolOptions, prepare_pools
from helios.training.pool.clock import steady_s
from helios.training.pool.containers import find_container
from helios.training.pool.coordinator import Coordinator, PoolEnd, Watcher
from helios.training.pool.growth import describe, take_over
from helios.training.pool.provenance import MADE_WITH, changed_code, describe_start, own_name
from helios.training.pool.search import open_search
from helios.training.pool.state import FILE, StateFile
from helios.training.pool.sweep import TrainingSweep, ValueRange, program
from helios.training.pool.sweep_file import pool_names, read_training_sweep
from helios.training.pool.trials import PoolSweep, SweepTrials
from helios.training.report import PoolResult

if TYPE_CHECKING:
    from helios.training.forecast import TrialModel

SLURM_END = "SLURM_JOB_END_TIME"
"""Set by Slurm in a job: when it ends, s since the epoch."""
MARGIN_S, MARGIN_SHARE = 60.0, 0.1
"""How long before the end trials are asked for a checkpoint; of a short time limit, a part."""


def run_pool(path: Path, **given: Any) -> PoolResult:
    """Run or resume the trials of one sweep file here.

    The arguments are those of :func:`run_pools`.
    """
    [result] = run_pools([path], **given)
    return result


def run_pools(
    paths: Sequence[Path],
    *,
    time_limit_s: float | None = None,
    watcher: Watcher | None = None,
    database: str | None = None,
    environment: Mapping[str, str] = os.environ,
    read: Callable[..., TrainingSweep] = read_training_sweep,
    **given: Any,
) -> list[PoolResult]:
    """Run or resume the trials of sweep files here, in one pool.

    Parameters
    ----------
    paths : sequence of Path
        The sweep files.
    time_limit_s : float, optional
        After how long to end. None for the end of the Slurm job that this is in, if it is in one.
    database : str, optional
        URL of the warehouse, which tells the service of earlier trials and keeps what these used. None, or one that
        does not exist: neither.
    read : callable
        Returns the sweep of a path, and takes ``target``.
    **given
        Those of :class:`~helios.training.plan.PoolOptions`, such as ``folder``, ``slots`` and ``service``.

    Raises
    ------
    UsageError
        A sweep cannot be run, another pool runs in a folder, or there are no such devices.
    FileUnwritable, FileUnreadable
        A folder cannot be used.
    """
    asked = PoolOptions(**given)
    ready = prepare_pools(paths, asked, read=read)
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
            model, runs, problem = None, list[TrialRun](), ""
            if ready.service:
                own = [into] if (into / FILE).exists() else []
                runs, problem = earlier_runs(program(sweep), own, database)
                model = _learn(runs, devices[0])
            problems.append(problem)
            about = describe_start(sweep, ready.all_devices, ends_s=ends_s)
            state = stack.enter_context(StateFile(into, describe(sweep), shared=asked.shared))
            with state.exclusive():
                changes = take_over(sweep, state)
                made = [state.trials[number].parameters for number in takewhile(state.trials.__contains__, count())]
                search = open_search(sweep, into / "search", made, others=state.joined if asked.shared else None)
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
                    known_sizes=shown_sizes(runs, devices[0]),
                    notes=[
                        f"{name}: {note}" if len(paths) > 1 else note
                        for note in (changes, code, ready.size_note(sweep))
                        if note
                    ],
                )
            )
        coordinator = Coordinator(
            sweeps=sources,
            devices=devices,
            decide=ready.decide,
            ends_s=ends_s,
            warm=asked.warm,
            nodes=nodes,
            mps=asked.mps,
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


def _result(trials: SweepTrials, *, devices: Sequence[Device], seconds: float, end: PoolEnd) -> PoolResult:
    """Return what became of a sweep."""
    state, sweep = trials.state, trials.sweep
    with state.exclusive():  # reads what others wrote
        others = sum(not trial.ended and not state.is_mine(trial) for trial in state.trials.values())
    records = [state.trials[number] for number in sorted(state.trials)]
    return PoolResult(
        name=trials.source.name,
        folder=str(trials.source.folder),
        objectives=sweep.objectives,
        devices=devices,
        trials=[record.to_json() for record in records],
        total=trials.total,
        seconds=seconds,
        signal=end.signal,
        is_log={name: space.log for name, space in sweep.parameters.items() if isinstance(space, ValueRange)},
        targets=() if sweep.target is None else sweep.target.values,
        made_with={name: state.runs[state.run].get(name) for name in MADE_WITH},
        notes=(f"{others:,} trials are with other pools of this folder",) if others else (),
    )


def _learn(runs: Iterable[TrialRun], device: Device) -> TrialModel:
    """Return the model of a program's trials on a device."""
    from helios.training.forecast import TrialModel  # noqa: PLC0415 - LightGBM takes a second, and most pools need none

    on = device.model if device.kind == "gpu" else device.kind
    return TrialModel(runs, now_s=math.inf, device_model=on)
