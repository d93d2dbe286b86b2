"""``helios config``: the settings in force."""

from __future__ import annotations

import typer
from rich.table import Table

from helios.cli.options import AsJson, configuration
from helios.cli.screen import show, show_json

commands = typer.Typer(no_args_is_help=True, help="The settings in force and where each comes from.")


@commands.command("show", epilog="Example: HELIOS_DATABASE_URL=sqlite:///site.db helios config show")
def show_settings(as_json: AsJson = False) -> None:
    """Print every setting, its value, and where that came from: default, file or environment."""
    listing = configuration().listing()
    if as_json:
        show_json(
            [
                {"key": s.key, "value": s.value, "origin": s.origin, "variable": s.variable, "doc": s.doc}
                for s in listing
            ]
        )
        return
    table = Table("Key", "Value", "From", "Meaning", box=None, pad_edge=False)
    for setting in listing:
        table.add_row(setting.key, str(setting.value), setting.origin, setting.doc)
    show(table)
