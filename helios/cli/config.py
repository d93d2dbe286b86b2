"""Commands on the settings in force."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from helios.cli.options import AsJson, configuration
from helios.cli.output import print_message, print_result
from helios.config import FILE_NAME, FILE_VARIABLE, SYSTEM_FOLDER, example_file, load_configuration, user_file
from helios.errors import UsageError

if TYPE_CHECKING:
    pass

config_commands = typer.Typer(no_args_is_help=True, help="Show, check and write settings.")


@config_commands.command("show", epilog="Example: HELIOS_DATABASE_URL=sqlite:///site.db helios config show")
def show_settings(as_json: AsJson = False) -> None:
    """Print every setting, its value and its origin.

    The origin is the default, a file or the environment. A later one of these wins: default,
    /etc/helios/helios.toml, /etc/helios/conf.d/*.toml, ~/.config/helios/helios.toml, helios.toml in the current folder,
    environment. A file that --config or HELIOS_CONFIG names is read instead of all others.
    """
    found = configuration()
    listing = found.listing()
    print_message(f"Read, a later one wins: {', '.join(['defaults', *found.files, 'environment'])}.")
    table = Table("Key", "Value", "From", "Meaning", box=None, pad_edge=False)
    for setting in listing:
        table.add_row(setting.key, str(setting.value), setting.origin, setting.doc)
    print_result([asdict(setting) for setting in listing], table, as_json=as_json)


@config_commands.command("init", epilog="Example: helios config init --out helios.toml")
def init(
    out: Annotated[
        Path | None,
        Option(
            help="File to write; - for standard output. Default: /etc/helios/helios.toml for root, else "
            "~/.config/helios/helios.toml."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a configuration file with every setting, its meaning and its default.

    Every setting is commented out, so that the file changes nothing before you edit it. A file that is there already is
    left as it is.
    """
    text = example_file()
    if out == Path("-"):
        print_result({"file": None, "text": text}, Text(text.rstrip("\n")), as_json=as_json)
        return
    path = out or (SYSTEM_FOLDER / FILE_NAME if os.geteuid() == 0 else user_file(os.environ))
    if path is None:
        raise UsageError("There is no home folder to write to.", hint="Name the file: --out helios.toml")
    try:
        if out is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)  # the umask may let a group write, and then Helios would not use it
            file.write(text)
    except FileExistsError as reason:
        raise UsageError(
            f"{path} is there already, and was not touched.", hint="Compare with: helios config init --out -"
        ) from reason
    except OSError as reason:
        raise UsageError(f"{path} cannot be written: {reason}", hint="Choose another place: --out FILE") from reason
    print_result({"file": str(path), "text": text}, f"Written: {path}", as_json=as_json)
    if out is not None:
        print_message(f"Use it: helios --config {path} COMMAND, or HELIOS_CONFIG={path.resolve()}")


@config_commands.command("check", epilog="Example: helios config check /etc/helios/helios.toml")
def check(
    file: Annotated[
        Path | None, Argument(help="File to check, as if it were the only one. Default: all that are read here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check the settings, and the folders and files that they name.

    Nothing is changed, and no cluster is asked. The exit status is 1 if something is wrong.
    """
    environment = dict(os.environ) | ({} if file is None else {FILE_VARIABLE: str(file)})
    found = load_configuration(environment=environment, folder=Path.cwd())
    from helios.app.doctor import check_settings  # noqa: PLC0415 - pandas and SQLAlchemy; config show needs neither

    problems = check_settings(found.settings)
    plain = {
        "files": list(found.files),
        "warnings": list(found.notes),
        "problems": [{"message": problem.message, "hint": problem.hint} for problem in problems],
    }
    changed = len(found.origins)
    lines = [
        f"Files: {', '.join(found.files) or 'none, so defaults and the environment hold'}.",
        f"{changed} {'setting is' if changed == 1 else 'settings are'} not the default's: {', '.join(found.origins)}."
        if changed
        else "Every setting is the default.",
        *(f"warning: {note}" for note in found.notes),
        *(f"wrong: {problem.message} {problem.hint}".rstrip() for problem in problems),
    ]
    print_result(plain, *map(escape, lines), *([] if problems else ["Nothing is wrong."]), as_json=as_json)
    if problems:
        raise typer.Exit(1)
