"""``helios whatif``: replay your own history under other queue policies."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from helios.app.machine import parse_nodes
from helios.app.plans import Estimates, Policy, RunTimes, plans
from helios.app.whatif import Question, whatif
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    GpusPerNode,
    Nodes,
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
from helios.cli.screen import progress_bars, say, say_notes, show, show_json, width, write_page
from helios.errors import Misuse
from helios.report.describe import describe
from helios.report.tables import whatif_table
from helios.simulate import Backfill


class Resource(StrEnum):
    """What jobs hold in a replay."""

    GPUS = "gpus"
    CPUS = "cpus"


class Oversized(StrEnum):
    """What to do with jobs larger than their partition."""

    FAIL = "fail"
    SKIP = "skip"


Choice = TypeVar("Choice", bound=StrEnum)

commands = typer.Typer(help="Replay a cluster's own jobs under other queue policies, and say who gains and who pays.")


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
        typer.Option("--policy", "--policies", help="fifo, sjf, qssf, fewest_gpus, srtf; several by commas."),
    ] = None,
    backfill: Annotated[
        list[str] | None, typer.Option("--backfill", help="none, skip, easy; several by commas.")
    ] = None,
    estimates: Annotated[
        list[str] | None,
        typer.Option("--estimates", help="Run times EASY plans with: limit, SECONDS, predicted, true."),
    ] = None,
    run_times: Annotated[
        RunTimes | None,
        typer.Option("--run-times", help="Run times that qssf and sjf order by: predicted or true."),
    ] = None,
    resource: Annotated[
        Resource | None,
        typer.Option("--resource", help="Replay GPUs or CPUs; GPUs where any job asks for one."),
    ] = None,
    oversized: Annotated[
        Oversized, typer.Option("--oversized", help="Jobs larger than their partition: fail, or skip them.")
    ] = Oversized.FAIL,
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
    chosen = plans(
        policies=_choices(policy, Policy, "--policy"),
        backfills=_choices(backfill, Backfill, "--backfill"),
        estimates=_estimates(estimates),
        run_times=run_times,
    )
    described = parse_nodes(nodes) if nodes is not None else None
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        question = Question(
            plans=chosen,
            since=moment(since, timezone=history.timezone),
            until=moment(until, timezone=history.timezone),
            warm_up=duration(warm_up),
            nodes=described,
            gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
            resource=resource.value if resource else None,
            skip_oversized=oversized is Oversized.SKIP,
            default_time_limit_s=settings.whatif.default_time_limit_s,
            seed=settings.model.seed,
        )
        result = whatif(history, question, progress=progress)
    say_notes(result.notes)
    if report is not None:
        from helios.report.page import render_whatif  # noqa: PLC0415 - drawing takes a second to import

        description = describe(history.jobs, cluster=history.cluster, timezone=history.timezone)
        write_page(report, render_whatif(result, description=description))
    if as_json:
        show_json(result.to_json())
        return
    show(whatif_table(result, width=width()))
    if report is None:
        say("Plots, and who gains and who pays: add --report whatif.html")


def _choices(given: list[str] | None, kind: type[Choice], option: str) -> list[Choice]:
    words = [word.strip() for text in given or [] for word in text.split(",")]
    try:
        return [kind(word) for word in words]
    except ValueError as reason:
        allowed = ", ".join(kind)
        raise Misuse(f"{option} {','.join(words)}: {reason}.", remedy=f"Choose from: {allowed}") from reason


def _estimates(given: list[str] | None) -> list[Estimates]:
    words = [word.strip() for text in given or [] for word in text.split(",")]
    return [_estimate(word) for word in words]


def _estimate(word: str) -> Estimates:
    if word.isdecimal() and int(word) > 0:
        return int(word)
    try:
        return RunTimes(word)
    except ValueError as reason:
        raise Misuse(
            f"--estimates {word!r} is not understood.",
            remedy="Write limit, predicted, true or a number of seconds.",
        ) from reason
