"""``helios doctor``: what must be so for Helios to act well, and what to do where it is not."""

from __future__ import annotations

from datetime import UTC, datetime

import typer
from rich.table import Table
from rich.text import Text

from helios.app.doctor import diagnose
from helios.cli.options import AsJson, Cluster, configuration
from helios.cli.screen import show, show_json
from helios.slurm.preflight import Level

COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def doctor_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Examine the cluster and Helios' own state, each finding with its remedy. No job is touched.

    Exit status 1 if something fails. Example: helios doctor
    """
    found = diagnose(configuration().settings, cluster=cluster, now=datetime.now(UTC))
    worst = any(finding.verdict is Level.FAIL for finding in found)
    if as_json:
        show_json([{name: str(getattr(it, name)) for name in ("check", "verdict", "fact", "remedy")} for it in found])
    else:
        table = Table("", "Check", "Finding", box=None, pad_edge=False)
        for it in found:
            told = Text(it.fact)
            if it.remedy:
                told.append(f"\n-> {it.remedy}", style="italic")
            table.add_row(Text(it.verdict.value, style=COLOURS[it.verdict]), it.check, told)
        show(table)
    if worst:
        raise typer.Exit(1)
