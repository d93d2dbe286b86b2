"""``helios why``: the question that every user asks."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from helios.app.explain_job import explain
from helios.app.operations import Operations
from helios.app.replay_cluster import parse_nodes
from helios.app.scenarios import Policy, RunTimes, scenarios
from helios.app.whatif import WhatIfRequest
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    GpusPerNode,
    Nodes,
    Since,
    Timezone,
    Trace,
    Until,
    WarmUp,
    configuration,
    duration,
    history_from,
    moment,
    refuse_misplaced,
)
from helios.cli.output import progress_bars, say_notes, show, show_json, width
from helios.simulate import Backfill


def why_(
    job: Annotated[str, typer.Argument(help="Job id, of an array 123 or 123_7; or the name of a node.")],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits: predicted run time, place in the queue, what Helios did, and the place without it.

    Works for jobs that run or are over too. Of a node it says what it does, what Helios did to it, and why.

    Example: helios why 12345
    """
    if not job[:1].isdigit():
        _of_the_node(job, cluster=cluster, as_json=as_json)
        return
    told = explain(Operations(configuration().settings, cluster=cluster).cycles, job)
    if as_json:
        show_json(told.to_json())
        return
    show(*told.lines())


def _of_the_node(node: str, *, cluster: str | None, as_json: bool) -> None:
    from helios.app.explain_node import explain_node  # noqa: PLC0415 - only for nodes

    story = explain_node(Operations(configuration().settings, cluster=cluster).node_cycles, node)
    if as_json:
        show_json(story.to_json())
        return
    show(*story.parts(width=width()))


# ``helios whatif explain``: one job's own story in a replay.


def explain_in_replay(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="Job id, of an array 123_7; 123-2 is the second run of a requeued job.")
    ],
    cluster: Cluster = None,
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    since: Since = None,
    until: Until = None,
    warm_up: WarmUp = None,
    policy: Annotated[Policy, typer.Option("--policy", help="Queue order of the replay.")] = Policy.FIFO,
    backfill: Annotated[
        Backfill, typer.Option("--backfill", help="What may pass a blocked job at the head of the queue.")
    ] = Backfill.EASY,
    estimates: Annotated[
        str, typer.Option("--estimates", help="Run times backfill plans with: limit, SECONDS, predicted, true.")
    ] = "limit",
    run_times: Annotated[
        RunTimes | None, typer.Option("--run-times", help="Run times that qssf and sjf order by: predicted or true.")
    ] = None,
    resource: Annotated[
        Literal["gpus", "cpus"] | None,
        typer.Option("--resource", help="Replay GPUs or CPUs; GPUs where any job asks for one."),
    ] = None,
    oversized: Annotated[
        Literal["fail", "skip"],
        typer.Option("--oversized", help="Jobs larger than their partition: fail, or skip."),
    ] = "fail",
    as_json: AsJson = False,
) -> None:
    """Say why one job waited in a replay: behind whom, for what, and when it would have started in today's order.

    Without --policy the replay is what a Slurm site has today (FIFO with EASY backfill by time limits); with another
    order, the job's start under today's stands beside it. For a job that waits now, see helios why.
    """
    from helios.app.explain_wait import explain_wait  # noqa: PLC0415 - only this command needs it
    from helios.cli.whatif import read_estimate  # noqa: PLC0415 - that module registers this command
    from helios.report.job_wait import wait_table  # noqa: PLC0415 - as above

    refuse_misplaced(context, write="helios whatif explain JOB --trace FILE")
    settings = configuration().settings
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        request = WhatIfRequest(
            plans=scenarios(
                policies=[policy], backfills=[backfill], estimates=[read_estimate(estimates)], run_times=run_times
            ),
            since=moment(since, timezone=history.timezone),
            until=moment(until, timezone=history.timezone),
            warm_up=duration(warm_up),
            nodes=parse_nodes(nodes) if nodes is not None else None,
            gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
            resource=resource,
            skip_oversized=oversized == "skip",
            default_time_limit_s=settings.whatif.default_time_limit_s,
            seed=settings.model.seed,
        )
        story = explain_wait(history, request, job, progress=progress)
    say_notes(story.notes)
    if as_json:
        show_json(story.to_json())
        return
    show(wait_table(story))


def add_to(commands: typer.Typer) -> None:
    """Make this a command of ``commands``."""
    commands.command("explain", epilog="Example: helios whatif explain 12345 --nodes gpu=16 --policy qssf")(
        explain_in_replay
    )
