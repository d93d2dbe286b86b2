"""Commands ``helios why`` and ``helios whatif explain``, which say why a job waits."""

from __future__ import annotations

from typing import Annotated

import typer

from helios.app.scenarios import Policy, RunTimes, scenarios
from helios.app.whatif import WhatIfRequest
from helios.cli.options import (
    AsJson,
    Cluster,
    HistoryOptions,
    IfOversized,
    Machine,
    OfResource,
    Oversized,
    WindowOptions,
    configuration,
    expand,
    refuse_misplaced,
)
from helios.cli.output import answer, progress_bars, say_notes, width
from helios.simulate import Backfill


def why_(
    job: Annotated[str, typer.Argument(help="Job id, such as 123, or 123_7 of an array; or the name of a node.")],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits, and what Helios did to it.

    Shows the job's predicted run time, its place in the queue, and its place without Helios. Works for jobs that run or
    have ended, too. For a node it shows the state of the node, what Helios did to it, and why.

    Example: helios why 12345
    """
    from helios.app.explain_job import explain  # noqa: PLC0415 - whatif, which has this module, needs no live cluster
    from helios.app.operations import Operations  # noqa: PLC0415 - as above

    operations = Operations(configuration().settings, cluster=cluster)
    if job[:1].isdigit():
        found = explain(operations.cycles, job)
        answer(found.to_json(), *found.lines(), as_json=as_json)
        return
    from helios.app.explain_node import explain_node  # noqa: PLC0415 - only for nodes

    node = explain_node(operations.node_cycles, job)
    answer(node.to_json(), *node.parts(width=width()), as_json=as_json)


# ``helios whatif explain``: the wait of one job in a replay.


@expand
def explain_in_replay(
    *,
    context: typer.Context,
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="Job id, such as 123, or 123_7 of an array. 123-2 is the second run of a requeued job."
        ),
    ],
    source: HistoryOptions,
    machine: Machine,
    window: WindowOptions,
    policy: Annotated[Policy, typer.Option("--policy", help="Queue order of the replay.")] = Policy.FIFO,
    backfill: Annotated[
        Backfill, typer.Option("--backfill", help="Which jobs may start before a blocked job at the head of the queue.")
    ] = Backfill.EASY,
    estimates: Annotated[
        str,
        typer.Option("--estimates", help="Run times that backfill plans with: limit, SECONDS, predicted (p90), true."),
    ] = "limit",
    run_times: Annotated[
        RunTimes | None,
        typer.Option("--run-times", help="Run times that the policies qssf and sjf order by: predicted or true."),
    ] = None,
    resource: OfResource = None,
    oversized: IfOversized = Oversized.FAIL,
    as_json: AsJson = False,
) -> None:
    """Say why one job waited in a replay.

    It shows which jobs were ahead of it and what it waited for. Without --policy the replay is what a Slurm site has
    today (FIFO with EASY backfill by time limits). With another policy, it also shows when the job would have started
    in today's order. For a job that waits now, use helios why.
    """
    from helios.app.explain_wait import explain_wait  # noqa: PLC0415 - only this command needs it
    from helios.cli.whatif import read_estimate  # noqa: PLC0415 - that module registers this command
    from helios.report.job_wait import wait_table  # noqa: PLC0415 - as above

    refuse_misplaced(context, write="helios whatif explain JOB --trace FILE")
    settings = configuration().settings
    with progress_bars() as progress:
        history = source.read(progress)
        request = WhatIfRequest(
            plans=scenarios(
                policies=[policy], backfills=[backfill], estimates=[read_estimate(estimates)], run_times=run_times
            ),
            **window.of(history),
            **machine.of(settings),
            resource=resource,
            skip_oversized=oversized is Oversized.SKIP,
            seed=settings.model.seed,
        )
        story = explain_wait(history, request, job, progress=progress)
    say_notes(story.notes)
    answer(story.to_json(), wait_table(story), as_json=as_json)


def add_to(commands: typer.Typer) -> None:
    """Add ``explain`` to ``commands``."""
    commands.command("explain", epilog="Example: helios whatif explain 12345 --nodes gpu=16 --policy qssf")(
        explain_in_replay
    )
