"""Write docs/reference/ from the code itself; a test holds the two together. Run: make reference."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from helios.cli.main import COMMANDS, import_command
from helios.cli.manual import command_tree, default_settings, describe_options, root_command
from helios.model import JOBS

REFERENCE = Path(__file__).parent / "reference"


def pages() -> dict[str, str]:
    """Return each reference page's file name and text."""
    return {"cli.md": _commands(), "configuration.md": _settings(), "jobs.md": _columns()}


def _commands() -> str:
    trees = [command_tree(import_command(name), f"helios {name}") for name in sorted(COMMANDS)]
    found = [("helios", root_command()), *chain.from_iterable(trees)]
    parts = [f"## `{name}`\n\n{_help(command)}" for name, command in found]
    return "# Commands\n\nWritten by `make reference`.\n\n" + "\n".join(parts)


def _help(command: Any) -> str:
    lines = [f"{command.help or ''}".strip(), ""]
    rows = [
        f"| `{spelled}` | {meaning.replace('|', chr(92) + '|')} | {default} |"
        for spelled, meaning, default in describe_options(command)
    ]
    if rows:
        lines += ["| option | meaning | default |", "|---|---|---|", *rows, ""]
    if command.epilog:
        lines += [command.epilog, ""]
    return "\n".join(lines)


def _settings() -> str:
    lines = [
        "# Settings",
        "",
        "Written by `make reference`. [Operate](../operate.md#configuration) says which files are read and which wins;",
        "`helios config` says where each value came from.",
        "",
        "| key | variable | default | meaning |",
        "|---|---|---|---|",
    ]
    for setting, default in default_settings():
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
