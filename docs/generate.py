"""Write docs/reference/ from the code itself; a test holds the two together. Run: make reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from helios.cli.main import COMMANDS, application, imported
from helios.config import load_configuration
from helios.model import JOBS

REFERENCE = Path(__file__).parent / "reference"
OF_THE_USER = {
    "database.url": "helios.db in the user's data folder",
    "control.state_folder": "the user's state folder",
    "report.folder": "reports in the user's data folder",
}
"""Defaults that differ from user to user, by key."""


def pages() -> dict[str, str]:
    """Return each reference page's file name and text."""
    return {"cli.md": _commands(), "configuration.md": _settings(), "jobs.md": _columns()}


def _commands() -> str:
    trees = [_tree(imported(name), f"helios {name}") for name in sorted(COMMANDS)]
    found = [("helios", typer.main.get_command(application)), *chain.from_iterable(trees)]
    parts = [f"## `{name}`\n\n{_help(command)}" for name, command in found]
    return "# Commands\n\nWritten by `make reference`.\n\n" + "\n".join(parts)


def _tree(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from _tree(below, f"{name} {word}")


def _help(command: Any) -> str:
    lines = [f"{command.help or ''}".strip(), ""]
    rows = [row for row in (_option(parameter) for parameter in command.params) if row]
    if rows:
        lines += ["| option | meaning | default |", "|---|---|---|", *rows, ""]
    if command.epilog:
        lines += [command.epilog, ""]
    return "\n".join(lines)


def _option(parameter: Any) -> str | None:
    if parameter.name in {"help", "install_completion", "show_completion"}:
        return None
    argument = getattr(parameter, "param_type_name", "") == "argument"
    spelled = str(parameter.name).upper() if argument else ", ".join(parameter.opts)
    default = parameter.default if parameter.default not in (None, False) and not callable(parameter.default) else ""
    meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| `{spelled}` | {meaning} | {getattr(default, 'value', default)} |"


def _settings() -> str:
    lines = [
        "# Settings",
        "",
        "Written by `make reference`. [Operate](../operate.md#configuration) says which files are read and which wins;",
        "`helios config show` says where each value came from.",
        "",
        "| key | variable | default | meaning |",
        "|---|---|---|---|",
    ]
    for setting in load_configuration(environment={}, folder=Path("/nonexistent")).listing():
        default = OF_THE_USER.get(setting.key, setting.value)
        lines.append(f"| `{setting.key}` | `{setting.variable}` | {default} | {setting.doc} |")
    return "\n".join(lines) + "\n"


def _columns() -> str:
    lines = [
        "# Columns of a job",
        "",
        "Written by `make reference`.",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| `{column.name}` | {column.dtype} | {column.doc} |" for column in JOBS.columns]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write every page."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
