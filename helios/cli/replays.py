"""Replays as ``helios whatif`` asks for them, and their answers.

They are apart from the options, because all that trains and replays takes two seconds to import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import typer

from helios.app.executors import Engine, run_here, run_in_processes, run_on_dask, run_on_slurm
from helios.app.history import LoadedHistory
from helios.app.order_check import check_order, refuse_few
from helios.app.scenarios import RENAMED, Estimates
from helios.app.sweep import FEWEST_REPEATS, SweepPlan, cross_options, read_sweep_plan, sweep
from helios.app.whatif import WhatIfRequest
from helios.choices import Policy, RunTimes
from helios.cli.output import say, say_notes, show, show_json, write_page
from helios.config import Settings
from helios.errors import UsageError
from helios.ports import Progress
from helios.report.history import describe
from helios.report.significance import Differences
from helios.report.sweep import Sweep, sweep_csv, sweep_tables
from helios.report.whatif import WhatIf
from helios.services.qssf import Qssf
from helios.services.registry import checked_options

Choice = TypeVar("Choice", bound=StrEnum)


def write_whatif(path: Path, history: LoadedHistory, result: WhatIf, differences: Differences | None = None) -> None:
    """Write the page of a what-if."""
    from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

    description = describe(history.jobs, cluster=history.cluster, timezone=history.timezone)
    write_page(path, render_whatif(result, description=description, differences=differences))


def live_setting(settings: Settings) -> str:
    """Return the setting of the service qssf that this configuration has, in words."""
    if "qssf" not in settings.services:
        return "The service qssf is not configured here, so no setting is live."
    options = checked_options(Qssf, settings.services["qssf"], name="qssf")
    bound = f"bound_share {options.bound_share:g}" if options.bound_share else "no bound_share"
    return (
        f"Live now: QSSF with wait_share {options.wait_share:g}, {bound}, large_divisor {options.large_divisor:g} "
        f"(order {options.order})."
    )


def refuse_contradictions(
    *, sweep: bool, of_one: Mapping[str, object], of_many: Mapping[str, object], repeat: int, draws: int
) -> None:
    """Refuse options that would be ignored.

    In a sweep those of one what-if, without a sweep those of one.
    """
    ignored = [name for name, value in (of_one if sweep else of_many).items() if value]
    if ignored and sweep:
        raise UsageError(f"{', '.join(ignored)} cannot be used with --sweep.", hint="Write it into the plan instead.")
    if ignored:
        raise UsageError(f"{', '.join(ignored)} is for sweeps only.", hint="Give a plan: --sweep PLAN.toml")
    if 0 < repeat < FEWEST_REPEATS:
        raise UsageError(
            f"{repeat} repeats are too few to tell a difference from chance.",
            hint=f"Use --repeat 20, at least {FEWEST_REPEATS}.",
        )
    if draws:
        refuse_few(draws)


def with_verdict(
    result: WhatIf, history: LoadedHistory, request: WhatIfRequest, *, draws: int, progress: Progress
) -> WhatIf:
    """Return the result with the check of the live order."""
    return replace(result, check=check_order(history, request, draws=draws, progress=progress)) if draws else result


def split_words(given: list[str] | None) -> list[str]:
    """Return the words of an option that takes several by commas."""
    return [word.strip() for text in given or [] for word in text.split(",")]


def choices(given: list[str] | None, kind: type[Choice], option: str) -> list[Choice]:
    """Parse the words of an option as members of ``kind``.

    Raises
    ------
    UsageError
        There is no such member.
    """
    words = split_words(given)
    if unknown := [word for word in words if word not in list(kind)]:
        renamed = [RENAMED[word] for word in unknown if word in RENAMED and kind is Policy]
        raise UsageError(
            f"{option} has no {', '.join(map(repr, unknown))}.",
            hint=" ".join([*renamed, f"Choose from: {', '.join(kind)}"]),
        )
    return [kind(word) for word in words]


def read_estimate(word: str) -> Estimates:
    """Parse a value of ``--estimates``.

    Raises
    ------
    UsageError
        It is not understood.
    """
    if word.isdecimal() and int(word) > 0:
        return int(word)
    try:
        return RunTimes(word)
    except ValueError as reason:
        raise UsageError(
            f"--estimates has no {word!r}.", hint="Write limit, predicted, expected, true or a number of seconds."
        ) from reason


# Sweeps, repeats and parallel replays.


def engine_for(*, dask: str | None, workers: int, plan: SweepPlan | None = None) -> Engine:
    """Return what runs the replays.

    Raises
    ------
    UsageError
        The plan does not describe the Slurm jobs.
    """
    if dask != "slurm":
        if dask:
            return partial(run_on_dask, address=dask)
        return partial(run_in_processes, workers=workers) if workers > 1 else run_here
    if plan is None or not plan.slurm:
        raise UsageError(
            "--dask slurm needs a plan with a table [slurm], which says what jobs to submit.",
            hint="Give --sweep PLAN.toml, and write jobs, cores, memory, walltime, queue and account in its [slurm].",
        )
    options = {name: value for name, value in plan.slurm.items() if name not in ("jobs", "wait")}
    return partial(run_on_slurm, jobs=int(plan.slurm.get("jobs", 1)), options=options)


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
