"""Command ``helios report use``."""

from __future__ import annotations

import os
import re
import sys
from textwrap import wrap
from typing import Annotated, Literal

import typer
from typer import Option

from helios.cli.options import BY, expand
from helios.cli.output import print_message, print_notes, show_json, width
from helios.cli.report import Form, Jobs, print_lines, show_table

commands = typer.Typer()
_SHARE = re.compile(r"\b(\d+\.\d)%")
RED, GREEN, PLAIN = "\x1b[31m", "\x1b[32m", "\x1b[0m"
LOW, HIGH = 20.0, 80.0
"""Efficiencies, %, below which they are red and above which green, those of reportseff."""


@commands.command("use", epilog="Example: helios report use --by user -S now-4weeks -r gpu")
@expand
def use(
    *,
    jobs: Jobs,
    by: Annotated[
        Literal["job", "user", "account", "partition", "kind", "week", "class", "memory"], Option(help=BY)
    ] = "user",
    form: Form,
) -> None:
    """Show what jobs used of the GPUs, CPUs and memory that they held.

    What was not measured, or what two sources contradict, comes first and is never counted as idle. A GPU is idle that
    was below 1 % utilization over the whole run. Kinds are jobs of one user with equal partition, words of the name,
    GPUs and CPUs; class and memory are classes of utilization and of the most memory held. Memory that is held proves
    no use. Of --by job, efficiencies have colours on a terminal, unless NO_COLOR is set.
    """
    from helios.job_use.report import fields_by, use_report  # noqa: PLC0415 - pandas, which no help needs

    form.check(fields_by(by))
    found = use_report(jobs.query(), by=by)
    if form.json:
        show_json(found.to_json())
        return
    if not form.parsable2:
        print_lines([*(line for text in found.sentences for line in wrap(text, min(width(), 100))), ""])
    is_colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if by != "job" or form.parsable2 or not is_colored or found.table.rows.empty:
        show_table(found.table, form)
        return
    from helios.report.admin.sacct_format import as_lines, chosen_fields  # noqa: PLC0415 - as above

    print_notes(found.table.notes)
    print_message(found.table.title)
    lines = as_lines(found.table, chosen_fields(found.table, form.fields), header=not form.noheader)
    print_lines(_SHARE.sub(_colored, line) for line in lines)


def _colored(share: re.Match[str]) -> str:
    percent = float(share[1])
    color = RED if percent < LOW else GREEN if percent > HIGH else ""
    return f"{color}{share[0]}{PLAIN}" if color else share[0]
