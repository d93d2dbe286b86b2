"""The command ``helios``: its nouns, and the commands that have none.

Helios' rooms take a second to import (pandas, numba, SQLAlchemy). So only the module of the command that was typed is
imported: whoever types ``helios pause`` does not wait for what trains models, nor does ``helios --help`` for anything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from helios import __version__
from helios.cli.output import complain
from helios.errors import HeliosError

# Where each command is, and what the help says of it: a test holds these lines to what the commands say of themselves.
COMMANDS = {
    "try": ("system:try_", "See Helios work on a made-up month of a GPU cluster: load, learn, replay, report."),
    "whatif": (
        "whatif:commands",
        "Replay a cluster's own jobs under other queue policies, and say who gains and who pays.",
    ),
    "simulate": (
        "replay_services:simulate_",
        "Let the real services act on a replay of a cluster's own jobs, and say what that would have done to the "
        "waits.",
    ),
    "doctor": (
        "system:doctor_",
        "Examine the cluster and Helios' own state, each finding with its hint. No job is touched.",
    ),
    "why": (
        "job:why_",
        "Say why a job waits: predicted run time, place in the queue, what Helios did, and the place without it.",
    ),
    "cycle": (
        "control:cycle_",
        "Take one cycle: look at the queue, predict, decide, and say what would be changed. Nothing is written.",
    ),
    "mode": ("control:mode_", "Say how far a service may go; it holds from the service's next cycle on."),
    "pause": (
        "control:pause_",
        "Stop Helios at once: revert everything it set, verify that, and do nothing until helios resume.",
    ),
    "resume": (
        "control:resume_",
        "Let Helios go on after helios pause, helios-release.sh, or a PAUSED file; modes are as they were.",
    ),
    "nightly": (
        "control:nightly_",
        "Do the nightly analysis once, for cron: read what came late, learn, report. It changes no job.",
    ),
    "daemon": (
        "system:daemon_",
        "Read, decide and act in a rhythm, until SIGTERM: then revert what was set, verify it, and exit 0.",
    ),
    "trace": ("trace:commands", "Job history: load it, look at it."),
    "model": ("model:commands", "Predict run times from history, and judge the prediction."),
    "forecast": ("energy:forecast_commands", "Forecast how many nodes will be needed, and judge the forecasts."),
    "db": ("trace:db_commands", "The warehouse's schema."),
    "config": ("system:config_commands", "The settings in force and where each comes from."),
    "report": (
        "report:commands",
        "Who waits, who used what, how far off predictions are, what was decided; options as sacct's.",
    ),
    "service": ("control:service_commands", "Services: what is installed, and with which options."),
    "energy": ("energy:commands", "What putting idle nodes to sleep would save."),
    "power": ("control:power_commands", "Nodes: which sleep, which wake, and why."),
    "hook": ("system:hook_commands", "The priority hook: job_submit.lua and its table."),
}

RENAMED_COMMANDS = {"turn": "cycle", "rehearse": "simulate"}
RENAMED_OPTIONS = {"--office": "--domain"}
"""Old names of commands and options, which go on for one release and are in no help."""


class CommandGroup(TyperGroup):
    """The group of all commands: their names and help are known, the command itself is imported when it is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name=name, help=told) for name, (_, told) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command itself, and the arguments that are left for it."""
        name, command, rest = super().resolve_command(ctx, [renamed(args[0], RENAMED_COMMANDS), *args[1:]])
        rest = [renamed(word, RENAMED_OPTIONS) for word in rest]
        if name == "power" and rest:
            rest[0] = renamed(rest[0], {"turn": "run-cycle"})
        return name, command if name is None else imported(name), rest


def renamed(word: str, names: Mapping[str, str]) -> str:
    """Return the new name of an old command or option, and say so; any other word as it is."""
    name, equals, value = word.partition("=")
    if name not in names:
        return word
    typer.echo(f"note: {name} is called {names[name]} now; the old name goes with the next release.", err=True)
    return f"{names[name]}{equals}{value}"


def imported(name: str) -> Any:
    """Import the module of one of the ``COMMANDS`` and return the command, ready to be run or asked for its options."""
    module, _, found = COMMANDS[name][0].partition(":")
    spoken = getattr(import_module(f"helios.cli.{module}"), found)
    if isinstance(spoken, typer.Typer):
        command: Any = typer.main.get_group(spoken)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(spoken)
        command = typer.main.get_command(alone)
    command.name = name
    _unwrap(command)
    return command


def _unwrap(command: Any) -> None:
    """Let the terminal break the lines of a help text: Typer keeps those of the source from the second paragraph on."""
    if command.help:
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help))
    for inner in getattr(command, "commands", {}).values():
        _unwrap(inner)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"helios {__version__}")
        raise typer.Exit


application = typer.Typer(
    name="helios",
    cls=CommandGroup,
    help="Learns from a Slurm GPU cluster's own history and acts on it, safely.",
    epilog="See it work on a made-up month: helios try",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@application.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; exit 0 done, 1 failed, 2 misused, 130 interrupted."""
    try:
        application()
    except HeliosError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; the interpreter must not complain when it flushes.
        sys.stdout = None
        sys.exit(0)
