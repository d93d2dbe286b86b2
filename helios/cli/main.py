"""The command ``helios`` and the list of all its commands.

Helios' packages take a second to import (pandas, numba, SQLAlchemy). So only the module of the command that was typed
is imported. ``helios pause`` does not wait for the training code, and ``helios --help`` for none of them.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from helios import __version__
from helios.cli.output import print_error
from helios.errors import HeliosError

# Where each command is in the package, and its line in the help; a test compares these lines with the commands' help.
# The help shows them in this order, grouped by what a reader comes for.
# Modules of the wings, training and study, are named here and in app/nightly.py, and imported when they are used.
GROUPS = {
    "Start": {
        "try": ("cli.system:try_", "Try Helios on a synthetic month of a GPU cluster."),
        "setup": (
            "cli.system:setup_",
            "Lay down the files that the services need on this machine.",
        ),
        "doctor": ("cli.system:doctor_", "Check the cluster and the state of Helios."),
        "config": ("cli.config:config_", "Show every setting with its origin, and check what the settings name."),
        "compile": ("cli.compile:compile_", "Compile beforehand what other commands would compile at their first run."),
    },
    "History": {
        "trace": ("cli.trace:commands", "Load, describe and export job history."),
        "db": ("cli.trace:db_commands", "Upgrade the database and grant access to it."),
    },
    "Questions about your cluster": {
        "status": ("cli.system:status_", "Show in five lines what Helios does."),
        "why": ("cli.system:why_", "Say why a job waits or waited, and what Helios did to it."),
        "advise": ("cli.report:advise_", "Say which requests of your jobs do not fit what they need."),
        "report": (
            "cli.report:commands",
            "Report waits, usage, prediction errors and decisions, with options as in sacct.",
        ),
        "study": (
            "study.commands:commands",
            "Say what a history shows of its cluster, and what follows from it.",
        ),
        "forecast": (
            "cli.forecast:forecast_",
            "Forecast how many nodes will be needed tomorrow, hour by hour.",
        ),
    },
    "What if": {
        "whatif": (
            "cli.whatif:commands",
            "Replay a cluster's jobs under other queue policies, and compare the waits.",
        ),
    },
    "Models of run times": {
        "model": ("cli.model:commands", "Predict run times from history, and evaluate the predictions."),
    },
    "Acting on the cluster": {
        "daemon": ("cli.system:daemon_", "Run control cycles at regular intervals until SIGTERM."),
        "cycle": (
            "cli.control:cycle_",
            "Show or apply what one control cycle would change.",
        ),
        "nightly": (
            "cli.control:nightly_",
            "Run the nightly analysis once, or show what it found.",
        ),
        "mode": (
            "cli.control:mode_",
            "Show the services and their modes, or set a mode.",
        ),
        "pause": ("cli.control:pause_", "Stop Helios at once and revert everything it set."),
        "resume": ("cli.control:resume_", "Let Helios act again after a pause."),
        "power": (
            "cli.control:power_commands",
            "Show busy, idle and sleeping nodes, or clear a failed wake.",
        ),
        "hook": (
            "cli.hook:hook_",
            "Show, publish or remove the table of the priority hook.",
        ),
        "notify": ("cli.system:notify_", "Show what people were told by mail and webhook, or send a test."),
        "web": ("cli.system:web_", "Serve a read-only web page of the queue, decisions, use and reports."),
    },
    "Training": {
        "pool": ("training.commands:commands", "Run many training trials in one allocation."),
    },
}
COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}

WING_COMMANDS = {
    "report": ("training.repeated.commands:commands", "job_use.report_commands:commands"),
    "trace": ("study.export.commands:commands", "job_use.commands:commands"),
}
"""Where more subcommands of a command are, in a wing."""


class CommandGroup(TyperGroup):
    """The group of all commands.

    Their names and help are in ``COMMANDS``. A command itself is imported only when it is run.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name=name, help=line, rich_help_panel=group)
            for group, members in GROUPS.items()
            for name, (_, line) in members.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command itself, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else import_command(name), rest


def import_command(name: str) -> Any:
    """Import the module of a command and return the command.

    It is ready to be run or asked for its options.

    Parameters
    ----------
    name : str
        One of ``COMMANDS``.
    """
    target = _import_object(COMMANDS[name][0])
    if isinstance(target, typer.Typer):
        command: Any = typer.main.get_group(target)
        for place in WING_COMMANDS.get(name, ()):
            command.commands |= typer.main.get_group(_import_object(place)).commands
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(target)
        command = typer.main.get_command(alone)
    command.name = name
    _join_help_lines(command)
    return command


def _import_object(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"helios.{module}"), name)


def _join_help_lines(command: Any) -> None:
    """Join the source lines of each paragraph of a help text.

    The terminal wraps them. Typer would keep the line breaks of the source from the second paragraph on.
    """
    if command.help:
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help))
    for inner in getattr(command, "commands", {}).values():
        _join_help_lines(inner)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"helios {__version__}")
        raise typer.Exit


application = typer.Typer(
    name="helios",
    cls=CommandGroup,
    help="Learn from the job history of a Slurm GPU cluster, and act on the cluster safely.",
    epilog="To try it on a synthetic month: helios try",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _set_configuration_file(path: Path | None) -> None:
    if path is not None:
        from helios.config import FILE_VARIABLE  # noqa: PLC0415 - pydantic; the list of commands needs none

        os.environ[FILE_VARIABLE] = str(path)  # processes that a command starts read the same settings


@application.callback()
def _global_options(
    config: Annotated[
        Path | None,
        Option(
            "--config",
            callback=_set_configuration_file,
            help="Read settings from this file alone, as with HELIOS_CONFIG. Default: those that helios config names.",
        ),
    ] = None,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line.

    Exit status: 0 done, 1 failed, 2 misused, 3 only strangers' values left by a pause, 130 interrupted.
    """
    # Python's own 700 has it look for garbage hundreds of times while modules are imported, which leave none.
    gc.set_threshold(10_000)
    # At its end it would look through all modules once more, a tenth of a second for memory that goes with the process.
    atexit.register(gc.freeze)
    try:
        application()
    except HeliosError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; the interpreter must not complain when it flushes.
        sys.stdout = None
        sys.exit(0)
