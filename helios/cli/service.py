"""``helios service``: what is installed."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table

from helios.cli.options import AsJson, configuration
from helios.cli.screen import show, show_json
from helios.services.registry import installed

commands = typer.Typer(no_args_is_help=True, help="Services: what is installed, and with which options.")


@commands.command("list", epilog="Example: helios service list")
def list_(as_json: AsJson = False) -> None:
    """List every installed service with its options; a broken one says why it is."""
    configured = configuration().settings.services
    found = installed().values()
    if as_json:
        show_json([asdict(it) | {"configured": it.name in configured} for it in found])
        return
    table = Table("Service", "Configured", "What it does", "Options", "From", box=None, pad_edge=False)
    for it in found:
        told = f"broken: {it.broken}" if it.broken else it.summary
        options = "\n".join(map(str, it.options))
        table.add_row(it.name, "yes" if it.name in configured else "", told, options, it.package)
    show(table)
