"""Command ``helios whatif``, which replays a history under other queue policies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from helios.app.scenarios import Estimates, Policy, RunTimes, scenarios, with_options
from helios.app.sweep import FEWEST_REPEATS, repeats, repredict_interval_s
from helios.app.whatif import WhatIfRequest, whatif
from helios.cli import job, whatif_slurm
from helios.cli.options import (
    AsJson,
    HistoryOptions,
    IfOversized,
    Machine,
    OfResource,
    Oversized,
    PredictAgain,
    Report,
    WindowOptions,
    configuration,
    expand,
)
from helios.cli.output import progress_bars, say, say_notes, show, show_json, width, write_page
from helios.cli.whatif_sweep import (
    Csv,
    DaskAt,
    Out,
    Repeat,
    RepeatOver,
    SweepFile,
    Workers,
    engine_for,
    run_sweep,
    show_sweep,
)
from helios.errors import UsageError
from helios.report.history import describe
from helios.report.significance import of_one_replay
from helios.report.tables import differences_table, whatif_table
from helios.report.whatif_text import nobody_waits
from helios.simulate import Backfill

Choice = TypeVar("Choice", bound=StrEnum)

commands = typer.Typer()  # its help is the callback's, with the example: a help given here would hide that


@commands.callback(invoke_without_command=True)
@expand
def whatif_(
    *,
    context: typer.Context,
    source: HistoryOptions,
    machine: Machine,
    window: WindowOptions,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "--policies", help=f"Queue order: {', '.join(Policy)}. Several by commas."),
    ] = None,
    backfill: Annotated[
        list[str] | None,
        typer.Option("--backfill", help=f"Kind of backfill: {', '.join(Backfill)}. Several by commas."),
    ] = None,
    estimates: Annotated[
        list[str] | None,
        typer.Option(
            "--estimates",
            help="Run times that backfill plans with: limit, SECONDS, predicted (p90), expected, true. Several by "
            "commas.",
        ),
    ] = None,
    run_times: Annotated[
        RunTimes | None,
        typer.Option("--run-times", help="Run times that the policies qssf and sjf order by: predicted or true."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Set an option of a policy: POLICY.OPTION=VALUE, such as balanced.share=0.8. May be repeated."
        ),
    ] = None,
    predict_again: PredictAgain = None,
    resource: OfResource = None,
    oversized: IfOversized = Oversized.FAIL,
    repeat: Repeat = 0,
    repeat_over: RepeatOver = None,
    sweep_file: SweepFile = None,
    out: Out = None,
    csv: Csv = None,
    workers: Workers = None,
    dask: DaskAt = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Replay a cluster's jobs under other queue policies, and compare the waits.

    It says who would wait shorter and who longer. Without --policy, --backfill and --estimates it replays a default
    set: what a Slurm site has today (FIFO with EASY backfill by time limits), strict FIFO, fewest GPUs first, balanced,
    QSSF (shortest predicted GPU seconds first), and oracles that know the true run times. Nothing touches a cluster.
    For the meaning of the options see docs/whatif.md.

    Example: helios whatif --trace sacct.txt --nodes gpu=16 --gpus-per-node 8 --from 2020-09-01 --report whatif.html
    """
    if context.invoked_subcommand is not None:
        return
    settings = configuration().settings
    _refuse_contradictions(
        sweep=sweep_file is not None,
        of_one={
            "--policy": policy,
            "--backfill": backfill,
            "--estimates": estimates,
            "--run-times": run_times,
            "--set": option,
            "--repeat": repeat,
            "--repeat-over": repeat_over,
            "--report": report,
        },
        of_many={"--out": out, "--csv": csv},
        repeat=repeat,
    )
    chosen = scenarios(
        policies=_choices(policy, Policy, "--policy"),
        backfills=_choices(backfill, Backfill, "--backfill"),
        estimates=[read_estimate(word) for word in _split(estimates)],
        run_times=run_times,
    )
    chosen = with_options(chosen, option or [])
    nodes = machine.of(settings)
    with progress_bars() as progress:
        history = source.read(progress)
        request = WhatIfRequest(
            plans=chosen,
            **window.of(history),
            **nodes,
            resource=resource,
            skip_oversized=oversized is Oversized.SKIP,
            predict_again_s=None if predict_again is None else repredict_interval_s(predict_again) or 0,
            seed=settings.model.seed,
        )
        if sweep_file is not None:
            swept = run_sweep(sweep_file, history, request, out=out, dask=dask, workers=workers, progress=progress)
        else:
            result = whatif(history, request, progress=progress)
            differences = of_one_replay(result)
            if repeat:
                engine = engine_for(dask=dask, workers=workers or 1)
                differences = repeats(
                    history, request, times=repeat, over=repeat_over, engine=engine, progress=progress
                )
    if sweep_file is not None:
        show_sweep(swept, csv=csv, as_json=as_json)
        return
    say_notes(result.notes)
    if report is not None:
        from helios.report.html import render_whatif  # noqa: PLC0415 - drawing takes a second to import

        description = describe(history.jobs, cluster=history.cluster, timezone=history.timezone)
        write_page(report, render_whatif(result, description=description, differences=differences))
    if as_json:
        show_json(result.to_json() | {"differences": differences.to_json()})
        return
    show(whatif_table(result, width=width(), differences=differences))
    if differences.others and not nobody_waits(result):
        show("", differences_table(differences))
    if report is None:
        say("Plots, and who gains and who pays: add --report whatif.html")


def _refuse_contradictions(
    *, sweep: bool, of_one: Mapping[str, object], of_many: Mapping[str, object], repeat: int
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


def _split(given: list[str] | None) -> list[str]:
    return [word.strip() for text in given or [] for word in text.split(",")]


def _choices(given: list[str] | None, kind: type[Choice], option: str) -> list[Choice]:
    words = _split(given)
    if unknown := [word for word in words if word not in list(kind)]:
        raise UsageError(f"{option} has no {', '.join(map(repr, unknown))}.", hint=f"Choose from: {', '.join(kind)}")
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
            f"--estimates has no {word!r}.",
            hint="Write limit, predicted, expected, true or a number of seconds.",
        ) from reason


job.add_to(commands)
whatif_slurm.add_to(commands)
