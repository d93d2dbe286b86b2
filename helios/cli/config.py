"""Command ``helios config``, on the settings in force."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from helios.cli.options import AsJson
from helios.cli.output import print_message, print_result
from helios.config import FILE_VARIABLE, example_file, load_configuration


def config_(
    file: Annotated[
        Path | None, Argument(help="File to check, as if it were the only one. Default: all that are read here.")
    ] = None,
    example: Annotated[
        bool, Option("--example", help="Print a file with every setting and its default, commented out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every setting with its origin, and check what the settings name.

    The origin is the default, a file or the environment. A later one of these wins: default,
    /etc/helios/helios.toml, /etc/helios/conf.d/*.toml, ~/.config/helios/helios.toml, helios.toml in the current folder,
    environment. A file that --config or HELIOS_CONFIG names is read instead of all others.

    Nothing is changed, and no cluster is asked. The exit status is 1 if something is wrong with the folders, files and
    services that the settings name.

    Example: helios config --example > helios.toml
    """
    if example:
        text = example_file()
        print_result({"text": text}, Text(text.rstrip("\n")), as_json=as_json)
        return
    environment = dict(os.environ) | ({} if file is None else {FILE_VARIABLE: str(file)})
    found = load_configuration(environment=environment, folder=Path.cwd())
    from helios.app.doctor import check_settings  # noqa: PLC0415 - pandas and SQLAlchemy, which the help needs not

    problems, listing = check_settings(found.settings), found.listing()
    print_message(f"Read, a later one wins: {', '.join(['defaults', *found.files, 'environment'])}.")
    table = Table("Key", "Value", "From", "Meaning", box=None, pad_edge=False)
    for setting in listing:
        table.add_row(setting.key, str(setting.value), setting.origin, setting.doc)
    plain = {
        "files": list(found.files),
        "settings": [asdict(setting) for setting in listing],
        "warnings": list(found.notes),
        "problems": [{"message": problem.message, "hint": problem.hint} for problem in problems],
    }
    changed = len(found.origins)
    lines = [
        f"{changed} {'setting is' if changed == 1 else 'settings are'} not the default's: {', '.join(found.origins)}."
        if changed
        else "Every setting is the default.",
        *(f"warning: {note}" for note in found.notes),
        *(f"wrong: {problem.message} {problem.hint}".rstrip() for problem in problems),
    ]
    print_result(plain, table, "", *map(escape, lines), *([] if problems else ["Nothing is wrong."]), as_json=as_json)
    if problems:
        raise typer.Exit(1)
