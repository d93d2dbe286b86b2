"""``helios whatif``: replay your own history under other queue policies."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from helios.app.replay_cluster import parse_nodes
from helios.app.scenarios import Estimates, Policy, RunTimes, scenarios, with_options
from helios.app.sweep import FEWEST_REPEATS, repeats, repredict_interval_s
from helios.app.whatif import WhatIfRequest, whatif
from helios.cli import job, whatif_published, whatif_slurm
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    GpusPerNode,
    IfOversized,
    Nodes,
    OfResource,
    Oversized,
    PredictAgain,
    Report,
    Since,
    Timezone,
    Trace,
    Until,
    WarmUp,
    configuration,
    duration,
    history_from,
    moment,
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
def whatif_(
    context: typer.Context,
    cluster: Cluster = None,
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    since: Since = None,
    until: Until = None,
    warm_up: WarmUp = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", "--policies", help=f"{', '.join(Policy)}; several by commas."),
    ] = None,
    backfill: Annotated[
        list[str] | None, typer.Option("--backfill", help=f"{', '.join(Backfill)}; several by commas.")
    ] = None,
    estimates: Annotated[
        list[str] | None,
        typer.Option("--estimates", help="Run times backfill plans with: limit, SECONDS, predicted, expected, true."),
    ] = None,
    run_times: Annotated[
        RunTimes | None,
        typer.Option("--run-times", help="Run times that qssf and sjf order by: predicted or true."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", help="POLICY.OPTION=VALUE, as balanced.share=0.8 or fifo.patience=12h; may be repeated."),
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
    """Replay a cluster's own jobs under other queue policies, and say who gains and who pays.

    Without --policy, --backfill and --estimates all controls are replayed: what a Slurm site has today (FIFO with
    EASY backfill by time limits), strict FIFO, fewest GPUs first, QSSF with predictions, and oracles that know the true
    run times. Nothing touches a cluster.

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
        estimates=_estimates(estimates),
        run_times=run_times,
    )
    chosen = with_options(chosen, option or [])
    described = parse_nodes(nodes) if nodes is not None else None
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        request = WhatIfRequest(
            plans=chosen,
            since=moment(since, timezone=history.timezone),
            until=moment(until, timezone=history.timezone),
            warm_up=duration(warm_up),
            nodes=described,
            gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
            resource=resource.value if resource else None,
            skip_oversized=oversized is Oversized.SKIP,
            default_time_limit_s=settings.whatif.default_time_limit_s,
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
    """Refuse options that would be ignored: those of one what-if in a sweep, those of a sweep without one."""
    ignored = [name for name, value in (of_one if sweep else of_many).items() if value]
    if ignored and sweep:
        raise UsageError(f"{', '.join(ignored)} has no part in a sweep.", hint="Write it into the plan of --sweep.")
    if ignored:
        raise UsageError(f"{', '.join(ignored)} belongs to a sweep.", hint="Give a plan: --sweep PLAN.toml")
    if 0 < repeat < FEWEST_REPEATS:
        raise UsageError(f"{repeat} repeats say nothing of chance.", hint=f"--repeat {FEWEST_REPEATS} or more; 20 do.")


def _choices(given: list[str] | None, kind: type[Choice], option: str) -> list[Choice]:
    words = [word.strip() for text in given or [] for word in text.split(",")]
    if unknown := [word for word in words if word not in list(kind)]:
        raise UsageError(f"{option} has no {', '.join(map(repr, unknown))}.", hint=f"Choose from: {', '.join(kind)}")
    return [kind(word) for word in words]


def _estimates(given: list[str] | None) -> list[Estimates]:
    words = [word.strip() for text in given or [] for word in text.split(",")]
    return [read_estimate(word) for word in words]


def read_estimate(word: str) -> Estimates:
    """Read what ``--estimates`` says; raises Misuse."""
    if word.isdecimal() and int(word) > 0:
        return int(word)
    try:
        return RunTimes(word)
    except ValueError as reason:
        raise UsageError(
            f"--estimates {word!r} is not understood.",
            hint="Write limit, predicted, expected, true or a number of seconds.",
        ) from reason


job.add_to(commands)
whatif_published.add_to(commands)
whatif_slurm.add_to(commands)
