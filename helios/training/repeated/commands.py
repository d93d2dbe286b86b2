"""Command ``helios report trials``."""

from __future__ import annotations

from textwrap import wrap
from typing import Annotated, Literal

import typer
from typer import Option

from helios.cli.options import BY, Gain, GpusPerNode, Machine, Nodes, Report, configuration, expand, low_high
from helios.cli.output import print_notes, progress_bars, show_json, width, write_page
from helios.cli.report import Form, Jobs, print_lines, show_table

commands = typer.Typer()
MOST_ROWS = 20
"""Rows that are printed, the largest first; --json and -P have all."""


@commands.command("trials", epilog="Example: helios report trials -S now-4weeks --by group --report trials.html")
@expand
def trials(
    *,
    jobs: Jobs,
    by: Annotated[Literal["user", "group"], Option(help=BY)] = "user",
    gain: Gain = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    report: Report = None,
    form: Form,
) -> None:
    """Show repeated jobs of few GPUs, and what packing them saves.

    Arrays and bursts of alike jobs by one user, as an interval: the lower end counts arrays and equal names only. The
    queue is replayed with two of them on a GPU, to show what everybody else would have waited less. By default, the
    window is that of the other reports. See docs/reports.md.
    """
    from helios.metrics.trials import GAINS  # noqa: PLC0415 - pandas, which no help needs
    from helios.training.repeated.report import fields_of_trials  # noqa: PLC0415 - as above

    form.check(fields_of_trials(by))
    from helios.training.repeated.replay import PackingCase, trials_report  # noqa: PLC0415 - it compiles

    machine = Machine(nodes=nodes, gpus_per_node=gpus_per_node).request_fields(configuration().settings)
    packing = PackingCase(**machine, gains=GAINS if gain is None else low_high("--gain", gain, example="1.0,1.87"))
    whole = form.json or form.parsable2
    with progress_bars() as progress:
        found = trials_report(
            jobs.query(), by=by, most=None if whole else MOST_ROWS, packing=packing, progress=progress
        )
    if report is not None:
        from helios.training.repeated.page import render_trials  # noqa: PLC0415 - drawing takes a second to import

        write_page(report, render_trials(found))
    if form.json:
        show_json(found.to_json())
        return
    show_table(found.table, form)
    if whole:
        return
    if found.sentences:
        print_lines(["", *(line for sentence in found.sentences for line in wrap(sentence, min(width(), 100)))])
    if found.replays:
        print_lines([""])
        show_table(found.replay_table(), Form())
    else:
        print_notes(found.replay_notes)
