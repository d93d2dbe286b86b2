"""The command ``helios``: its nouns, and the commands that have none."""

from __future__ import annotations

from typing import Annotated

import typer

from helios import __version__
from helios.cli import (
    acting,
    config,
    daemon,
    db,
    doctor,
    hook,
    model,
    rehearse,
    report,
    service,
    trace,
    tryout,
    whatif,
    why,
)

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
application.add_typer(report.commands, name="report")
application.add_typer(service.commands, name="service")
application.add_typer(hook.commands, name="hook")
application.command("try")(tryout.try_)
application.command("whatif")(whatif.whatif_)
application.command("rehearse")(rehearse.rehearse_)
application.command("doctor")(doctor.doctor_)
application.command("why")(why.why_)
application.command("turn")(acting.turn_)
application.command("mode")(acting.mode_)
application.command("pause")(acting.pause_)
application.command("resume")(acting.resume_)
application.command("nightly")(acting.nightly_)
application.command("daemon")(daemon.daemon_)


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
