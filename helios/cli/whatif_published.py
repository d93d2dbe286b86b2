"""``helios whatif published``: the published simulator's answer beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from helios.app.replay_cluster import parse_nodes
from helios.cli.options import (
    AsJson,
    Cluster,
    Format,
    GpusPerNode,
    IfOversized,
    Oversized,
    Since,
    Timezone,
    Trace,
    Until,
    configuration,
    history_from,
    moment,
    refuse_misplaced,
)
from helios.cli.output import progress_bars, say_notes, show, show_json

if TYPE_CHECKING:
    from helios.app.published import PublishedAnswer, PublishedRow

NAMES = {
    "fifo": "FIFO",
    "sjf": "SJF, true run times",
    "qssf": "QSSF, true x noise",
    "fewest_gpus": "Fewest GPUs, no model",
    "srtf": "SRTF, true run times",
}
LEGEND = (
    "Mean seconds, by the semantics of the SC'21 artifact. Draws: lowest to highest over orders of jobs of one second, "
    "and for QSSF over its errors. Queued: jobs that did not start at once. Helios: same jobs and order, strict queue, "
    "our semantics.{printed} What differs: docs/whatif.md."
)
PRINTED = " Printed: the artifact's own table, Philly, October and November 2017."


def published(
    context: typer.Context,
    cluster: Cluster = None,
    trace: Trace = None,
    trace_format: Format = None,
    timezone: Timezone = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes", help="Nodes of each partition, as gpu=16,cpu=4; or N to pool all jobs. Else the published ones."
        ),
    ] = None,
    gpus_per_node: GpusPerNode = None,
    since: Since = None,
    until: Until = None,
    draws: Annotated[
        int, typer.Option("--draws", min=0, help="How often ties, and the errors of QSSF, are drawn anew.")
    ] = 10,
    oversized: IfOversized = Oversized.FAIL,
    by_partition: Annotated[
        bool, typer.Option("--by-partition", help="Show every partition, beside what was printed of it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay with the semantics of the simulator that the SC'21 paper published, beside ours and beside its table.

    Without --nodes the jobs are held against the artifact's table of Philly, October and November 2017, on its virtual
    clusters. With --nodes it is your own cluster: how far would the published simulator's answer be from ours?
    """
    from helios.app.published import PublishedQuestion, as_published  # noqa: PLC0415 - the simulator takes a second

    refuse_misplaced(context, write="helios whatif published --trace FILE")
    settings = configuration().settings
    with progress_bars() as progress:
        history = history_from(
            trace=trace, cluster=cluster, trace_format=trace_format, timezone=timezone, progress=progress
        )
        request = PublishedQuestion(
            nodes=parse_nodes(nodes) if nodes is not None else None,
            gpus_per_node=gpus_per_node or settings.whatif.gpus_per_node,
            since=moment(since, timezone=history.timezone),
            until=moment(until, timezone=history.timezone),
            skip_oversized=oversized is Oversized.SKIP,
            draws=draws,
            seed=settings.model.seed,
        )
        answer = as_published(history, request, progress=progress)
    say_notes(answer.notes)
    if as_json:
        show_json(answer.to_json())
        return
    show(published_table(answer))
    if by_partition:
        show("", partition_table(answer))


def published_table(answer: PublishedAnswer) -> RenderableType:
    """Show each policy as published, over draws, as we replay it, and what was printed."""
    printed = any(row.printed for row in answer.rows)
    names = ["JCT", "Draws", "Queue", "Draws", "Queued", "Helios: JCT", "Queue"]
    names += ["Printed: JCT", "Queue"] if printed else []
    table = _plain("Policy", names)
    for row in answer.rows:
        cells = [
            _seconds(row.found.jct_s),
            _range(row.lowest.jct_s, row.highest.jct_s),
            _seconds(row.found.queue_s),
            _range(row.lowest.queue_s, row.highest.queue_s),
            f"{row.queued_jobs:,}",
            _seconds(row.ours.jct_s),
            _seconds(row.ours.queue_s),
        ]
        if printed:
            cells += [_seconds(row.printed.jct_s), _seconds(row.printed.queue_s)] if row.printed else ["-", "-"]
        table.add_row(NAMES[row.policy.value], *cells)
    first, last = answer.window
    caption = (
        f"{escape(answer.cluster)}: {answer.jobs:,} jobs from {first:%Y-%m-%d} to {last:%Y-%m-%d} (UTC), "
        f"{answer.run_time_s:,.0f} s each on average, on {sum(answer.partitions.values()):,} nodes in "
        f"{len(answer.partitions)} partitions."
    )
    legend = LEGEND.format(printed=PRINTED if printed else "")
    return Group(caption, "", table, "", f"[dim]{legend}[/]")


def partition_table(answer: PublishedAnswer) -> RenderableType:
    """Show mean JCT / mean queue of every partition under each policy, below them what was printed."""
    table = _plain("Partition", [NAMES[row.policy.value].split(",")[0] for row in answer.rows])
    for name in answer.partitions:
        table.add_row(escape(name), *(_pair(row, name) for row in answer.rows))
        if answer.table is not None:
            cells = (_printed_pair(answer, row, name) for row in answer.rows)
            table.add_row("  printed", *cells, style="dim")
    return Group("Mean JCT / mean queue, s:", table)


def _plain(first: str, others: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _pair(row: PublishedRow, partition: str) -> str:
    means = row.by_partition.get(partition)
    return "-" if means is None else f"{_seconds(means.jct_s)} / {_seconds(means.queue_s)}"


def _printed_pair(answer: PublishedAnswer, row: PublishedRow, partition: str) -> str:
    if answer.table is None or row.printed is None:
        return "-"
    policy = row.policy.value
    return f"{answer.table.jct_s[policy][partition]:,} / {answer.table.queue_s[policy][partition]:,}"


def _seconds(mean_s: float) -> str:
    """Write a mean as the artifact does: cut, not rounded."""
    return f"{int(mean_s):,}"


def _range(lowest_s: float, highest_s: float) -> str:
    return f"{int(lowest_s):,}..{int(highest_s):,}"


def add_to(commands: typer.Typer) -> None:
    """Make this a command of ``commands``."""
    commands.command("published", epilog="Example: helios whatif published --trace philly.csv")(published)
