"""Commands ``helios notify``."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from helios.app.notify import channels, read_causes, send_test
from helios.cli.options import AsJson, Cluster, configuration, select_cluster
from helios.cli.output import print_result

commands = typer.Typer(no_args_is_help=True, help="Show what people were told by mail and webhook, and send a test.")


@commands.command("test", epilog="Example: helios notify test")
def test_(cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Send a test message by every mail and webhook of the settings.

    The exit status is 1 if one was not taken.
    """
    found = send_test(configuration().settings, cluster=select_cluster(cluster) or "this machine")
    print_result(found, *(escape(f"{name}: {what}") for name, what in found.items()), as_json=as_json)
    if set(found.values()) != {"sent"}:
        raise typer.Exit(1)


@commands.command("list", epilog="Example: helios notify list --json")
def list_(as_json: AsJson = False) -> None:
    """List the causes that last, since when, and by which channels they were told.

    A cause that is told by none is told again and again until it is taken, or ends.
    """
    settings = configuration().settings
    paths = sorted(Path(settings.control.state_folder).glob("notices-*.json"))
    causes = [{"cause": cause, **entry} for path in paths for cause, entry in read_causes(path).items()]
    table = Table("Since (UTC)", "Told by", "What", box=None, pad_edge=False)
    for entry in causes:
        table.add_row(str(entry["began_at"])[:16], ", ".join(entry["sent"]) or "-", escape(entry["subject"]))
    names = ", ".join(channels(settings.notify)) or "none"
    plain = {"channels": list(channels(settings.notify)), "causes": causes}
    print_result(
        plain,
        f"Channels: {names}.",
        *([table] if causes else ["Nothing lasts that was or is to be told."]),
        as_json=as_json,
    )
