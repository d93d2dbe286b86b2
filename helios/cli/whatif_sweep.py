"""Sweeps, repeats and parallel replays of ``helios whatif``."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from helios.app.executors import DaskScheduler, Engine, Processes, SlurmExecutor, run_here
from helios.app.history import LoadedHistory
from helios.app.sweep import SweepPlan, cross_options, read_sweep_plan, sweep
from helios.app.whatif import WhatIfRequest
from helios.cli.output import say, say_notes, show, show_json
from helios.errors import UsageError
from helios.ports import Progress
from helios.report.significance import ResampledUnit
from helios.report.sweep import Sweep, sweep_csv, sweep_tables

SLURM = "slurm"

Repeat = Annotated[
    int,
    typer.Option(
        "--repeat",
        min=0,
        help="Replay each scenario this often, each time with other random weeks of the window (days or arrivals in a "
        "short window), to see which differences are more than chance. Use 20. 0: one replay, with intervals from its "
        "own weeks or days.",
    ),
]
RepeatOver = Annotated[
    ResampledUnit | None, typer.Option("--repeat-over", help="Repeat over random weeks, days or seeds (arrival times).")
]
SweepFile = Annotated[
    Path | None,
    typer.Option("--sweep", help="Replay every combination of settings in this TOML file. See docs/sweeps.md."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="File for the results of the sweep. After an interruption, the same command goes on from it."
    ),
]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write the results of the sweep to this CSV file.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Number of processes that replay. More than 1 needs Dask. Default: all cores in a sweep, otherwise 1.",
    ),
]
DaskAt = Annotated[
    str | None,
    typer.Option(
        "--dask", help="Replay on the workers of this Dask scheduler, such as tcp://HOST:8786, or in Slurm jobs: slurm."
    ),
]


def engine_for(*, dask: str | None, workers: int, plan: SweepPlan | None = None) -> Engine:
    """Return what runs the replays.

    Raises
    ------
    UsageError
        The plan does not describe the Slurm jobs.
    """
    if dask != SLURM:
        return DaskScheduler(address=dask) if dask else Processes(workers=workers) if workers > 1 else run_here
    if plan is None or not plan.slurm:
        raise UsageError(
            "--dask slurm needs to know what to ask Slurm for.",
            hint="Write a table [slurm] into the plan of --sweep: jobs, cores, memory, walltime, queue, account.",
        )
    options = {name: value for name, value in plan.slurm.items() if name not in ("jobs", "wait")}
    return SlurmExecutor(jobs=int(plan.slurm.get("jobs", 1)), options=options)


def all_cores() -> int:
    """Return the number of cores that this process may use.

    1 if Dask is not installed, with a note.
    """
    cores = len(os.sched_getaffinity(0))
    if cores > 1 and find_spec("distributed") is None:
        say("note: Dask is not installed, so one process replays; pip install 'helios-slurm[dask]' for all cores.")
        return 1
    return cores


def run_sweep(
    path: Path,
    history: LoadedHistory,
    base: WhatIfRequest,
    *,
    out: Path | None,
    dask: str | None,
    workers: int | None,
    progress: Progress,
) -> Sweep:
    """Replay every combination of the plan in ``path``.

    What the plan does not say is taken from ``base``.

    Raises
    ------
    UsageError
        The plan cannot be used, or the results cannot be written.
    """
    plan = read_sweep_plan(path)
    asked = cross_options(plan, base=base, timezone=history.timezone)
    engine = engine_for(dask=dask, workers=workers or (1 if dask else all_cores()), plan=plan)
    into = out or path.with_suffix(".results.jsonl")
    try:
        return sweep(history, asked, out=into, engine=engine, progress=progress)
    except KeyboardInterrupt:
        say(f"Stopped. What was replayed is in {into}; the same command goes on from there.")
        raise


def show_sweep(found: Sweep, *, csv: Path | None, as_json: bool) -> None:
    """Show the results of a sweep.

    Raises
    ------
    UsageError
        ``csv`` cannot be written.
    typer.Exit
        Cells failed.
    """
    say_notes(found.notes)
    if csv is not None:
        _write(csv, sweep_csv(found))
    if as_json:
        show_json(found.to_json())
    else:
        show(sweep_tables(found))
        say(f"Results: {found.results}")
    if found.failed:
        raise typer.Exit(1)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as reason:
        raise UsageError(f"The CSV cannot be written: {reason}", hint="Choose another place: --csv FILE") from reason
