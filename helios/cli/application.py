"""The command ``helios``: its nouns, and the commands that have none."""

from __future__ import annotations

from typing import Annotated

import typer

from helios import __version__
from helios.cli import config, db, model, trace, tryout, whatif

application = typer.Typer(
    name="helios",
    help="Learns from a Slurm GPU cluster's own history and acts on it, safely.",
    epilog="See it work on a made-up month: helios try",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
application.add_typer(trace.commands, name="trace")
application.add_typer(model.commands, name="model")
application.add_typer(db.commands, name="db")
application.add_typer(config.commands, name="config")
application.command("try")(tryout.try_)
application.command("whatif")(whatif.whatif_)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"helios {__version__}")
        raise typer.Exit


@application.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
